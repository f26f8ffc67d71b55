"""Errors for users: a sentence with the problem and the next step."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType


class CutraceError(Exception):
    """A problem that the user can act on. The command line prints it and exits with status 2."""


class BadCapture(CutraceError):
    """A file that is not a capture, or holds no usable block."""


def package(name: str, what: str) -> ModuleType:
    """Import an optional package for ``what``. Raises :class:`CutraceError` with the command that installs it."""
    try:
        return import_module(name)
    except ImportError:
        raise CutraceError(
            f"{what} needs {name}: install it with `pip install {name.partition('.')[0]}`"
        ) from None


def cannot_read(
    path: object,
    error: OSError,
    what: str = "",
    *,
    absent: str = "",
) -> str:
    """The sentence for a file that cannot be read; ``what`` describes it. ``absent`` is the reason and the next step
    for a file that does not exist. A path can be a pattern: a shell leaves patterns in quotes and patterns without a
    match unchanged."""
    from glob import glob  # Few programs need this import.

    if isinstance(error, FileNotFoundError):
        if glob(str(path)):  # noqa: PTH207 (folders may have signs, too)
            return f"{path} is a pattern, and cutrace expands none. Leave out the quotes, so that the shell expands it."
        if "*" in str(path):
            return f"no file matches {path}. Check the pattern and its folder."
        if absent:
            return f"cannot read {what}{path}: {absent}"
    return (
        f"cannot read {what}{path}: {error.strerror}. Check its name and permissions."
    )


def did_you_mean(
    word: str, known: Iterable[str], otherwise: str, *, most: int = 3
) -> str:
    """The end of a sentence on an unknown name: up to ``most`` similar names from ``known``, or ``otherwise`` if none
    is similar."""
    from difflib import get_close_matches  # Few programs need this import.

    close = get_close_matches(word, list(known), most)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return otherwise
