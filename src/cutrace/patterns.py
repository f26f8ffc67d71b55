"""Patterns of names, with the same syntax everywhere.

A pattern is an exact name, a name with ``*``, ``?`` or ``[...]`` as in a shell, or ``/a regular expression/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from .errors import CutraceError

#: One pattern of names or several: an exact name, a name with ``*``, ``?`` or ``[...]``, or ``/a regular expression/``.
Patterns = str | Sequence[str]

Matches = Callable[[str], bool]

_WILDCARDS = frozenset("*?[")
#: The prefix of regular expressions in ncu.
_OF_NCU = "regex:"


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> Matches:
    """Return a function that tests whether a name matches a pattern. Upper and lower case differ.

    A regular expression may match a part of the name. Raises :class:`CutraceError` for an invalid pattern.
    """
    if pattern.startswith(_OF_NCU):
        expression_of_ncu = pattern.removeprefix(_OF_NCU)
        raise CutraceError(
            f"{pattern} is not a pattern here: write '/{expression_of_ncu}/'"
        )
    if _is_expression(pattern):
        try:
            expression = re.compile(pattern[1:-1])
        except re.error as error:
            raise CutraceError(
                f"{pattern} is not a regular expression: {error}. Correct it."
            ) from None
        return lambda name: expression.search(name) is not None
    if _WILDCARDS.isdisjoint(pattern):
        return lambda name: name == pattern
    # Names in C++ contain these characters, too.
    return lambda name: name == pattern or fnmatchcase(name, pattern)


def in_another_case(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that match a valid pattern if case is ignored."""
    if _is_expression(pattern):
        expression = re.compile(pattern[1:-1], re.IGNORECASE)
        return list(filter(expression.search, names))
    matches = matcher(pattern.lower())
    return [name for name in names if matches(name.lower())]


def _is_expression(pattern: str) -> bool:
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")


def several(given: Patterns) -> tuple[str, ...]:
    """Return one string or several as a tuple."""
    if isinstance(given, str):
        return (given,)
    return tuple(given)


def any_matcher(patterns: Iterable[str]) -> Matches:
    """Return a function that tests whether a name matches one of several patterns."""
    matchers = [matcher(pattern) for pattern in patterns]
    return lambda name: any(matches(name) for matches in matchers)
