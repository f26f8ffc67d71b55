"""Opening traces of any format: captures as they are, other files by way of an importer.

The content says what a file is, not its name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import CutraceError
from .outputs import append
from .runbin.blocks import MAGIC
from .trace import Trace
from .trace import load as load_capture

StrPath = str | os.PathLike[str]


def load(source: StrPath | Sequence[StrPath]) -> Trace:
    """Open a capture, or a file of another tool that cutrace can read (docs/importers.md), as a :class:`Trace`.

    Several paths are opened as one trace. Of a capture only block headers are read here; tables are read when they are
    asked for. A torn or damaged file opens with what can be used of it, and ``trace.quality`` says what could not. A
    file of another tool is read whole, into an unnamed temporary capture; ``trace.imports`` says what became of its
    events. Raises :class:`cutrace.BadCapture` (a :class:`cutrace.CutraceError`) when nothing can be used.
    """
    with _one_capture(source) as capture:
        return load_capture(capture)


@contextmanager
def opened(source: StrPath | Sequence[StrPath] | Trace, *, redacted: bool = False) -> Iterator[Trace]:
    """One file, or several as one, open as a trace; ``redacted`` as :func:`cutrace.runbin.redaction.redact` says. A
    trace that is open already stays open."""
    if isinstance(source, Trace):
        yield source
        return
    with _one_capture(source, redacted) as capture, load_capture(capture) as trace:
        yield trace


@contextmanager
def _one_capture(source: StrPath | Sequence[StrPath], redacted: bool = False) -> Iterator[Path]:
    """The path of a capture with what one file or several hold. Several are concatenated into a temporary file: that
    is what merging captures means."""
    paths = [Path(path) for path in listed(source)]
    if not paths:
        raise CutraceError("there is no capture to open: name one or more")
    if len(paths) == 1:
        with _prepared(paths[0], redacted) as capture:
            yield capture
        return
    with tempfile.NamedTemporaryFile(prefix="cutrace.", suffix=".bin") as whole:
        for path in paths:
            with _prepared(path, redacted) as capture:
                # Each must be a capture of its own: in the joined file one that is not would only be a damaged stretch.
                load_capture(capture).close()
                _join(capture, whole.fileno())
        yield Path(whole.name)


def listed(source: StrPath | Sequence[StrPath]) -> list[StrPath]:
    """One path or several as a list."""
    return [source] if isinstance(source, str | os.PathLike) else list(source)


@contextmanager
def as_capture(path: Path) -> Iterator[Path]:
    """The path of a capture with what the file at ``path`` holds: itself, or a temporary one that was imported."""
    if _is_capture(path):
        yield path
        return
    from .importers.base import Source, read
    from .importers.registry import find

    source = Source.at(path)
    importer = find(source)
    if importer is None:
        # A capture whose begin is damaged, or nothing that is known: the reader of captures says which.
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="cutrace.") as folder:
        yield read(importer, source, Path(folder))


def _is_capture(path: Path) -> bool:
    try:
        # What is no file on a disk is not opened: a pipe would wait.
        if not path.is_file():
            return not path.is_dir()
        with path.open("rb") as file:
            return file.read(len(MAGIC)) in (MAGIC, b"")
    except OSError:
        return True  # the reader of captures says why it cannot be read


@contextmanager
def _prepared(path: Path, redacted: bool) -> Iterator[Path]:
    with as_capture(path) as capture:
        if not redacted:
            yield capture
            return
        from .runbin.redaction import redact

        with tempfile.TemporaryDirectory(prefix="cutrace.") as folder:
            copy = Path(folder, "redacted.bin")
            redact(capture, copy)
            yield copy


def _join(capture: Path, whole: int) -> None:
    try:
        with capture.open("rb") as part:
            append(part.fileno(), whole)
    except OSError as error:
        place = tempfile.gettempdir()
        raise CutraceError(
            f"cannot join the captures in {place}: {error.strerror}. Set TMPDIR to a folder with room."
        ) from None
