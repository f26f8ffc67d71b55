"""Converting captures. The name of the output selects the exporter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import plugins
from .arguments import checked
from .embedding import CARRIERS
from .errors import CutraceError
from .exporters.base import Compression, Exporter, Progress, Request
from .loading import Clock, Source, StrPath, listed, opened
from .outputs import check_output, replacing
from .trace import Trace
from .trace.ranges import RangesBy
from .trace.selection import window
from .units import Time

if TYPE_CHECKING:
    from .analysis.flame import FramesBy

# The exporters of flame graphs.
_WITH_FRAMES = ("folded", "speedscope", "pprof")
#: The exporters whose output says which work belongs to a range.
_WITH_RANGES = ("perfetto", *_WITH_FRAMES)


@checked
def convert(
    source: Source,
    destination: StrPath,
    *,
    format: str | None = None,
    compress: Compression = None,
    start: Time | None = None,
    end: Time | None = None,
    derived: bool = True,
    table: str | None = None,
    redact: bool = False,
    capture: bool | None = None,
    by: FramesBy = "range",
    clock: Clock = "align",
    ranges: RangesBy = "adopted",
    progress: Progress | None = None,
) -> None:
    """Convert one trace, or several into one, to the format of the ending of ``destination``, or to ``format``
    (``"perfetto"``, ``"chrome"``, ...).

    The source is an open trace, or captures and files that :func:`cutrace.load` reads. docs/formats.md lists the
    formats.

    :param compress: compress groups of packets; the ending ``.gz`` compresses the whole file.
    :param start: keep the rows that overlap the time from ``start`` to ``end``: an int is nanoseconds on the clock of
        the tables of :class:`cutrace.Trace`. A string such as ``"1.5s"`` counts from the start of the trace.
    :param derived: include derived data. It takes the most time.
    :param table: the table to write, for formats that hold one.
    :param redact: leave out command lines, host names and paths.
    :param capture: also embed the capture, so that the file opens again as that capture. This is the default for
        Perfetto traces and databases.
    :param by: the frames of flame graphs: ``range``, or ``stack`` for the Python frames of the launching calls.
    :param clock: align sources of different machines, or ``keep`` their times, as in :func:`cutrace.load`.
    :param ranges: with ``own`` NVTX ranges contain the work of their own thread only (docs/concepts.md).
    :param progress: called with the work done and the whole work, in any unit.

    docs/formats.md says how memory grows. Raises :class:`CutraceError` when a source cannot be used or the
    destination cannot be written; nothing is then left at the destination.
    """
    check_destination(Path(destination), listed(source), format, table)
    request = Request(
        format=format,
        compress=compress,
        derived=derived,
        table=table,
        capture=capture,
        by=by,
        ranges=ranges,
        progress=progress,
    )
    with opened(
        source,
        redacted=redact,
        clock=clock,
        select=lambda trace: window(trace, start, end),
    ) as trace:
        write(trace, destination, request)


def write(trace: Trace, destination: StrPath, request: Request | None = None) -> None:
    """Write an open trace; otherwise like :func:`convert`."""
    destination = Path(destination)
    request = request or Request()
    exporter = check_destination(
        destination, trace.sources, request.format, request.table
    )
    check_request(exporter, request)
    with replacing(destination) as temporary:
        exporter(trace, temporary, request)


def check_request(exporter: Exporter, request: Request) -> None:
    """Raise :class:`CutraceError` when the exporter does not support an option of the request."""
    if request.capture and exporter.name not in CARRIERS:
        raise CutraceError(
            f"{exporter.description} cannot carry the capture: choose .pftrace, .json or .sqlite"
        )
    if exporter in plugins.own_exporters():
        if request.table and exporter.name != "csv":
            raise CutraceError(
                f"{exporter.description} is not made of one table: choose .csv, or no table"
            )
        if request.compress and exporter.name not in ("perfetto", "chrome"):
            raise CutraceError(
                f"{exporter.description} has no packets to compress: choose .pftrace, or no compression"
            )
        if request.by != "range" and exporter.name not in _WITH_FRAMES:
            raise CutraceError(
                f"{exporter.description} has no frames: choose .folded, .speedscope.json or .pb.gz"
            )
        if request.ranges != "adopted" and exporter.name not in _WITH_RANGES:
            raise CutraceError(
                f"{exporter.description} does not say which work belongs to a range: leave out `ranges=`, or choose "
                ".pftrace or a flame graph"
            )
        if not request.derived and exporter.name != "perfetto":
            raise CutraceError(
                f"{exporter.description} has no events that are computed from records: leave out `derived=False`, or "
                "choose .pftrace"
            )


def check_destination(
    destination: Path,
    sources: Sequence[StrPath],
    format: str | None = None,
    table: str | None = None,
) -> Exporter:
    """Return the exporter for the output. Raise :class:`CutraceError` when no trace, or no such table, can be written
    there, or when the output would replace a source. Call this before any work is done."""
    exporter = plugins.exporter(destination, format)
    check_output(destination, sources, folder=exporter.folder)
    exporter.refuse(destination, table)
    return exporter
