"""Converting captures: the file name of the output says which exporter writes it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from .errors import CutraceError
from .outputs import append, check_output, unwritable
from .trace import Trace, load

#: Endings of the files that can be written.
SUFFIXES = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz")

Progress = Callable[[int, int], None]
StrPath = str | os.PathLike[str]


def convert(
    source: StrPath | Sequence[StrPath],
    destination: StrPath,
    *,
    compress: Literal["zstd", "deflate"] | None = None,
    start: int | None = None,
    end: int | None = None,
    redact: bool = False,
    progress: Progress | None = None,
) -> None:
    """Convert one capture, or several into one trace, to the format that ``destination`` ends with.

    ``.pftrace`` and ``.perfetto-trace`` are for ui.perfetto.dev; with ``.gz`` behind it the whole file is compressed,
    with ``compress`` groups of packets are. ``start`` and ``end`` (ns, as in the tables of :class:`cutrace.Trace`)
    keep what touches that time. ``redact`` leaves out command lines, host names and paths. ``progress`` is called with
    the work done and the whole work, in any unit.

    Memory does not grow with the capture. Raises :class:`CutraceError` when a source cannot be used or the
    destination cannot be written; nothing is then left at the destination.
    """
    check_destination(Path(destination), _listed(source))
    with opened(source, redacted=redact) as trace:
        write(trace, destination, compress=compress, start=start, end=end, progress=progress)


def write(
    trace: Trace,
    destination: StrPath,
    *,
    compress: Literal["zstd", "deflate"] | None = None,
    start: int | None = None,
    end: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write an open trace; otherwise like :func:`convert`."""
    destination = Path(destination)
    check_destination(destination)
    if start is not None and end is not None and end <= start:
        raise CutraceError(f"nothing lies between {start} and {end} ns: let the end be after the start")
    from .exporters import perfetto

    with _replaced(destination) as temporary:
        perfetto.write(trace, temporary, compress=compress, start=start, end=end, progress=progress)


def check_destination(destination: Path, sources: Sequence[StrPath] = ()) -> None:
    """Raise :class:`CutraceError` when no trace can be written there, or one of the sources is there, before any work
    is done for it."""
    if not destination.name.endswith(SUFFIXES):
        raise CutraceError(
            f"cannot tell the format of {destination}: let its name end with {' or '.join(SUFFIXES[:2])}"
        )
    check_output(destination)
    for source in map(Path, sources):
        if source.exists() and destination.exists() and source.samefile(destination):
            raise CutraceError(f"{destination} is the capture itself: choose another name")


@contextmanager
def opened(source: StrPath | Sequence[StrPath], *, redacted: bool = False) -> Iterator[Trace]:
    """One capture, or several as one, open as a trace; ``redacted`` as :func:`cutrace.runbin.redaction.redact` says.

    Several are concatenated into an unnamed temporary file: that is what merging captures means.
    """
    sources = _listed(source)
    if not sources:
        raise CutraceError("there is no capture to open: name one or more")
    if redacted:
        from .runbin.redaction import redact

        with tempfile.TemporaryDirectory(prefix="cutrace.") as folder:
            copies = [Path(folder, f"{i}.bin") for i in range(len(sources))]
            for path, copy in zip(sources, copies, strict=True):
                redact(path, copy)
            with opened(copies) as trace:
                yield trace
        return
    if len(sources) == 1:
        with load(sources[0]) as trace:
            yield trace
        return
    for path in sources:
        # Each must be a capture of its own: in the joined file one that is not would only be a damaged stretch.
        load(path).close()
    with tempfile.NamedTemporaryFile(prefix="cutrace.", suffix=".bin") as joined:
        try:
            for path in sources:
                with Path(path).open("rb") as part:
                    append(part.fileno(), joined.fileno())
        except OSError as error:
            place = tempfile.gettempdir()
            raise CutraceError(
                f"cannot join the captures in {place}: {error.strerror}. Set TMPDIR to a folder with room."
            ) from None
        with load(joined.name) as trace:
            yield trace


def _listed(source: StrPath | Sequence[StrPath]) -> list[StrPath]:
    return [source] if isinstance(source, str | os.PathLike) else list(source)


@contextmanager
def _replaced(destination: Path) -> Iterator[Path]:
    """A name to write to that becomes ``destination`` in one step if all goes well, and vanishes if not."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as folder:
            # The same name, since its ending says how to write.
            temporary = Path(folder, destination.name)
            try:
                yield temporary
            except CutraceError as error:
                raise CutraceError(str(error).replace(str(temporary), str(destination))) from None
            temporary.replace(destination)
    except OSError as error:
        raise unwritable(destination, error) from None
