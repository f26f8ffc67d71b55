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

    ``format`` is the name of the exporter; if None, the ending of the output determines it. ``compress`` names a
    compression of groups of packets, for formats with packets. Without ``derived``, events that are computed from
    records are omitted: NVTX ranges on streams, counters, waits. ``table`` is for formats with one table. ``capture``
    says whether to embed the capture, so that the file can be loaded as that capture (:mod:`cutrace.embedding`); if
    None, the format decides. ``by`` selects the frames of flame graphs. With ``ranges="own"`` NVTX ranges contain the
    work of their own thread only. ``progress`` is called with the work done and the total work, in any unit. ``say`` is
    called with sentences about the output, such as how much of the GPU time has a range. An exporter writes all rows of
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
#: A check of a path and a table's name. It raises :class:`cutrace.CutraceError` if no trace, or no such table, can be
#: written to the path.
Check = Callable[[Path, str | None], object]


@dataclass(frozen=True)
class Exporter:
    """An exporter for one format, selected by the ending of the output (``suffixes``).

    ``write`` is a function that writes a trace to a new path, or its name as ``module:function``, which is imported on
    use. It raises :class:`cutrace.CutraceError` for a request that it does not support. ``check``, a function or its
    name, is called before the trace is read. With ``folder`` the output is a folder.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    write: str | Write
    folder: bool = False
    check: str | Check | None = None

    def __call__(self, trace: Trace, path: Path, request: Request) -> None:
        write = cast(Write, _function(self.write))
        write(trace, path, request)

    def refuse(self, path: Path, table: str | None) -> None:
        """Raise :class:`cutrace.CutraceError` if no trace, or no such table, can be written to a path."""
        if self.check is not None:
            check = cast(Check, _function(self.check))
            check(path, table)


def _function(given: object) -> object:
    """The function, given by itself or by its name ``module:function``."""
    if not isinstance(given, str):
        return given
    module, _, name = given.partition(":")
    return getattr(import_module(module), name)


def write_capture(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a capture. Rows without a reference, such as names of omitted kernels, are not written."""
    writing.write(trace, path, progress=request.progress)


#: The exporters of the core.
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
        check="cutrace.exporters.parquet:check",
    ),
    Exporter(
        "csv",
        "one table as text",
        (".csv", ".csv.gz"),
        "cutrace.exporters.csvfile:write",
        check="cutrace.exporters.csvfile:table_of",
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
