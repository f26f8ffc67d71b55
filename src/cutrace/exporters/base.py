"""The description of exporters, and the request that they get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from ..arguments import check, types_of
from ..trace import Trace, writing
from ..trace.ranges import RangesBy

if TYPE_CHECKING:
    from ..analysis.flame import FramesBy

Progress = Callable[[int, int], None]
Compression = Literal["zstd", "deflate"] | None


@dataclass(frozen=True)
class Request:
    """The options of an export.

    ``format`` is the name of the exporter; if None, it follows from the ending of the output. ``compress`` compresses
    groups of packets, in formats that have packets. Without ``derived``, events that are computed from records are
    omitted: NVTX ranges on streams, counters, waits. ``table`` is for formats with one table. ``capture`` says whether
    to embed the capture, so that the file can be loaded as that capture (:mod:`cutrace.embedding`); if None, the format
    decides. ``by`` says what the frames of flame graphs are. With ``ranges="own"`` NVTX ranges contain the work of
    their own thread only. ``progress`` is called with the work done and the total work, in any unit, ``say`` with
    sentences about the output, such as how much of the GPU time has a range. An exporter writes all rows of
    the trace; :func:`cutrace.loading.selected` makes a smaller trace first.
    """

    format: str | None = None
    compress: Compression = None
    derived: bool = True
    table: str | None = None
    capture: bool | None = None
    by: FramesBy = "range"
    ranges: RangesBy = "adopted"
    progress: Progress | None = None
    say: Callable[[str], None] = lambda sentence: None

    def __post_init__(self) -> None:
        check(types_of(Request), vars(self))


Write = Callable[[Trace, Path, Request], None]


@dataclass(frozen=True)
class Exporter:
    """An exporter for one format, selected by the ending of the output (``suffixes``).

    ``write`` is a function that writes a trace to a new path, or its name as ``module:function``, which is imported on
    use. It raises :class:`cutrace.CutraceError` for a request that it does not support. With ``folder`` the output is a
    folder.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    write: str | Write
    folder: bool = False

    def __call__(self, trace: Trace, path: Path, request: Request) -> None:
        write = self.write
        if isinstance(write, str):
            module, _, function = write.partition(":")
            write = cast(Write, getattr(import_module(module), function))
        write(trace, path, request)


def write_capture(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a capture. Unreferenced rows, such as names of kernels that are not in it, are omitted."""
    writing.write(trace, path, progress=request.progress)


#: The core's exporters.
EXPORTERS = (
    Exporter(
        "perfetto",
        "a trace for ui.perfetto.dev",
        (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz"),
        "cutrace.exporters.perfetto:write",
    ),
    Exporter(
        "parquet",
        "a folder of Parquet files",
        (".parquet",),
        "cutrace.exporters.parquet:write",
        folder=True,
    ),
    Exporter(
        "csv",
        "one table as text",
        (".csv", ".csv.gz"),
        "cutrace.exporters.csvfile:write",
    ),
    Exporter(
        "chrome",
        "trace-event JSON",
        (".json", ".json.gz"),
        "cutrace.exporters.chrome:write",
    ),
    Exporter(
        "folded",
        "collapsed stacks of GPU time",
        (".folded",),
        "cutrace.exporters.flame:write_folded",
    ),
    Exporter(
        "speedscope",
        "a profile for speedscope.app",
        (".speedscope.json",),
        "cutrace.exporters.flame:write_speedscope",
    ),
    Exporter(
        "pprof",
        "a profile for pprof",
        (".pb.gz",),
        "cutrace.exporters.pprof:write",
    ),
    Exporter(
        "capture",
        "a capture, as `cutrace record` makes one",
        (".bin",),
        "cutrace.exporters.base:write_capture",
    ),
)
