"""Opening traces of any format: captures directly, other files through an importer.

The format is detected by the content of a file, not by its name.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, cast

from .arguments import check, checked
from .errors import BadCapture, CutraceError
from .outputs import concatenate, scratch, unwritable
from .runbin.blocks import MAGIC
from .runbin.copying import Changes, copy, with_note
from .runbin.reader import Reader
from .trace import Trace
from .trace import load as load_capture
from .trace.alignment import KEPT
from .trace.process import clock_of, recording_of
from .trace.selection import Selection, cut_note, window_text
from .trace.writing import write as write_capture

StrPath = str | os.PathLike[str]
#: The source of a trace: a path, several paths (opened as one trace), or an open trace. An open trace stays open.
Source = StrPath | Sequence[StrPath] | Trace

#: Whether the times of files on different clocks are aligned (:mod:`.trace.alignment`) or kept.
Clock = Literal["align", "keep"]


@checked
def load(source: StrPath | Sequence[StrPath], *, clock: Clock = "align") -> Trace:
    """Open a capture, or a file of another tool (docs/howto/nsight-systems.md), as a :class:`Trace`.

    Several paths are opened as one trace. Files of different machines are aligned with the first one, by their clock
    snapshots or by their starts; with ``clock="keep"`` all times stay as they are in the files. Only block headers of a
    capture are read here; tables are read on first access. A torn or damaged file opens with its usable part, and
    ``trace.quality`` lists the damage. A file of another tool is imported into a temporary capture, which
    :meth:`Trace.close` removes; ``trace.imports`` counts its events. Raises :class:`cutrace.BadCapture` (a
    :class:`cutrace.CutraceError`) when nothing can be used.
    """
    return _whole(listed(source), redacted=False, clock=clock)


@contextmanager
def opened(
    source: Source,
    *,
    redacted: bool = False,
    clock: Clock = "align",
    select: Callable[[Trace], Selection | None] | None = None,
) -> Iterator[Trace]:
    """Open one file, or several as one, as a trace; an open trace stays open.

    ``redacted`` is as in :func:`cutrace.runbin.redaction.redact`, ``clock`` as in :func:`load`. ``select`` receives the
    whole trace and returns the window to open, None for all of it.
    """
    with ExitStack() as stack:
        if isinstance(source, Trace) and not redacted:
            trace = source
        else:
            if isinstance(source, Trace):
                paths: Sequence[StrPath] = [source.path]
            else:
                paths = listed(source)
            trace = stack.enter_context(_whole(paths, redacted, clock))
        if select:
            selection = select(trace)
            if selection is not None:
                notes = (cut_note([window_text(trace, selection)]),)
                trace = stack.enter_context(selected(trace, selection, notes))
        yield trace


def selected(trace: Trace, selection: Selection, notes: tuple[str, ...] = ()) -> Trace:
    """Return the selected part of a trace as a trace of its own: a temporary capture, with only the strings and
    launches that its rows refer to. ``notes`` are added to the descriptions of its processes."""
    with ExitStack() as files:
        part = files.enter_context(scratch()) / "part.bin"
        write_capture(trace, part, selection, notes=notes)
        return load_capture(part, files.pop_all(), trace.sources)


def listed(source: Source) -> list[StrPath]:
    """Return one path or several, or the files of a trace, as a list."""
    if isinstance(source, Trace):
        return list(source.sources)
    paths: Any = [source]
    if not isinstance(source, str | os.PathLike):
        paths = list(source)
        # Check the items of an iterator: an open file would give lines.
        check({"source": Sequence[StrPath]}, {"source": paths})
    if "" in paths:
        raise CutraceError("the name of a file is empty: name a capture")
    return cast(list[StrPath], paths)


def as_capture(path: Path, files: ExitStack) -> Path:
    """Return the path of a capture with the content of ``path``: the file itself, the capture inside it, or a capture
    imported from its events. Closing ``files`` removes temporary captures."""
    if _is_capture(path):
        return path
    from .embedding import Damaged, extract
    from .importers.base import DAMAGED, SourceFile, read
    from .plugins import importer

    source = SourceFile.at(path)
    folder = files.enter_context(scratch())
    inside = folder / "inside.bin"
    damage = ""
    try:
        if extract(source, inside, DAMAGED):
            return inside
    except Damaged as error:
        damage = str(error)
    fitting = importer(source)
    if fitting is None and damage:
        raise BadCapture(
            f"{path} is cut off or damaged: the capture inside is not complete ({damage}), and nothing else can be "
            "read. Copy the file again, or convert the capture again."
        )
    # The reader of captures reports files that no importer recognizes.
    if fitting is None:
        return path
    return read(fitting, source, folder, damage)


def _is_capture(path: Path) -> bool:
    try:
        # Only regular files are opened: opening a pipe would wait.
        if not path.is_file():
            return not path.is_dir()
        with path.open("rb") as file:
            return file.read(len(MAGIC)) in (MAGIC, b"")
    except OSError:
        return True  # The reader of captures reports the reason.


def _whole(sources: Sequence[StrPath], redacted: bool, clock: Clock) -> Trace:
    paths = [Path(source) for source in sources]
    if not paths:
        raise CutraceError("there is no capture to open: name one or more")
    with ExitStack() as files:
        if len(paths) == 1 and clock == "align":
            capture = _prepared(paths[0], redacted, files)
        else:
            capture = files.enter_context(scratch()) / "whole.bin"
            join(paths, capture, redacted=redacted, clock=clock)
        return load_capture(capture, files.pop_all(), paths)


def _prepared(path: Path, redacted: bool, files: ExitStack) -> Path:
    capture = as_capture(path, files)
    if not redacted:
        return capture
    from .runbin.redaction import redact

    copy = files.enter_context(scratch()) / "redacted.bin"
    redact(capture, copy)
    return copy


def join(
    paths: Sequence[Path],
    whole: Path,
    *,
    redacted: bool = False,
    clock: Clock = "align",
) -> list[list[tuple[int, int]]]:
    """Write several captures, or imported files, one after the other. The result is a capture. Returns for each file
    its recordings in order: the instance and the pid of each process. Raises :class:`CutraceError` when a file is named
    twice, and when two files are slices of one recording, or copies of one file of another tool: common rows would
    count twice. Copies of a capture are allowed, because readers count them once."""
    _refuse_repetition(paths)
    recordings = []
    imported: list[Path] = []
    parts: dict[tuple[str, int, int], tuple[Path, int]] = {}
    first_clock = ""
    with whole.open("wb") as target:
        for path in paths:
            with ExitStack() as files:
                capture = _prepared(path, redacted, files)
                # Each file must be a capture. Any other file would be damage in the joined file.
                with Reader(capture) as reader:
                    recordings.append(reader.recordings)
                    _refuse_parts(path, reader, parts)
                    if not _is_capture(path):
                        _refuse_copy(path, reader, imported)
                    first_clock = first_clock or clock_of(reader.processes[0]) or "kept"
                    try:
                        if clock == "keep":
                            blocks = range(len(reader.offsets))
                            changes = _KeptClocks(reader, first_clock)
                            copy(reader, blocks, changes, target)
                        else:
                            concatenate([capture], target)
                    except OSError as error:
                        raise unwritable(whole, error) from None
    return recordings


class _KeptClocks(Changes):
    """Changes of descriptions: all processes are on one clock, so that no reader moves their times."""

    def __init__(self, reader: Reader, clock: str) -> None:
        self._reader = reader
        self._clock = clock

    def description(self, process: int, info: dict[str, Any]) -> dict[str, Any]:
        starts_a_file = "tables" in info
        if starts_a_file:
            info = info | {"clock_of": self._clock}
        on_another = clock_of(self._reader.processes[process]) != self._clock
        if on_another and (starts_a_file or "notes" in info):
            return with_note(info, KEPT)
        return info


def _refuse_repetition(paths: Sequence[Path]) -> None:
    """Raise an error when two paths are one file."""
    seen: dict[Path, Path] = {}
    for path in paths:
        first = seen.setdefault(Path(os.path.realpath(path)), path)
        if first is not path:
            raise CutraceError(
                f"{first} and {path} are one file: name it once, or name the other file"
            )


def _refuse_copy(path: Path, reader: Reader, imported: list[Path]) -> None:
    """Raise an error when an imported file has the content of an earlier file, and add it to the earlier files. A file
    with known recordings, such as a trace with an embedded capture, needs no comparison."""
    pids = [pid for _, pid in reader.recordings]
    if all(map(recording_of, pids, reader.processes)):
        return
    for other in imported:
        if filecmp.cmp(path, other, shallow=False):
            raise CutraceError(
                f"{other} and {path} are copies of one file, whose rows would count twice: name one of them"
            )
    imported.append(path)


def _refuse_parts(
    path: Path, reader: Reader, parts: dict[tuple[str, int, int], tuple[Path, int]]
) -> None:
    """Raise an error when a recording of a file is in an earlier file, too. ``parts`` has the recordings so far, with
    their file and instance. Files of one instance share no block. Each slice is a separate instance, so slices may
    share rows."""
    for (instance, pid), info in zip(reader.recordings, reader.processes, strict=True):
        recording = recording_of(pid, info)
        if recording is None:
            continue
        other, known = parts.setdefault(recording, (path, instance))
        if other != path and known != instance:
            raise CutraceError(
                f"{other} and {path} are parts of one recording, of process {pid}, and may share rows, which would "
                "count twice: name one of them, or cut both parts out of the whole at once"
            )
