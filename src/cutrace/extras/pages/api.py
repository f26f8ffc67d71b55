"""Functions that write the page of a trace and return flame graphs; :mod:`cutrace` exports them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from ...analysis.collection import collect
from ...analysis.context import StatsOptions
from ...analysis.flame import Frame, FramesBy, flame_with_coverage
from ...analysis.flame import flame as flame_graph
from ...analysis.names import normalize_kernel
from ...api import Names, demangle
from ...arguments import checked
from ...loading import Clock, Source, StrPath, listed, opened
from ...outputs import check_output, write_pieces
from ...trace.ranges import RangesBy
from ...units import count_of, format_duration
from .view import SHOWN, Earlier, flame_html, html


@dataclass(frozen=True, repr=False)
class FlameGraph:
    """GPU time by path of ranges, or of Python frames, down to kernels. ``root`` is the frame around all others.
    docs/internals/view.md defines the figures of a frame. ``coverage`` is a sentence on the share of the GPU time in
    ranges. It is None without ranges, and for Python frames. A notebook displays the graph."""

    root: Frame
    by: FramesBy = "range"
    coverage: str | None = None

    def __repr__(self) -> str:
        frames = sum(1 for _ in self.root.walk())
        return f"<FlameGraph of {count_of(frames, 'frame')}, {format_duration(self.root.gpu_ns)} of GPU time>"

    def _repr_html_(self) -> str:
        # An iframe separates the style and the script of the page from the notebook.
        page = flame_html(self.root, self.by, self.coverage)
        return f'<iframe srcdoc="{escape(page)}" width="100%" height="420" frameborder="0"></iframe>'


@checked
def flame(
    source: Source,
    *,
    names: Names = "stable",
    by: FramesBy = "range",
    ranges: RangesBy = "adopted",
    clock: Clock = "align",
) -> FlameGraph:
    """Return the flame graph of a trace: GPU time by NVTX range and operator, down to kernels.

    :param names: how kernels are named: ``stable``, or ``full`` with template arguments.
    :param by: ``range``, or ``stack`` for the Python frames of the launching calls in place of ranges and operators.
    :param ranges: ``adopted``, or ``own`` for NVTX ranges that contain only the work of their own thread.
    :param clock: ``align`` the times of several files, or ``keep`` them, as in :func:`cutrace.load`.

    Raises :class:`CutraceError` when stacks are requested and the trace has none.
    """
    options = StatsOptions(
        normalize_kernel if names == "stable" else demangle, ranges=ranges
    )
    with opened(source, clock=clock) as trace:
        root, covered = flame_with_coverage(trace, options, by)
        return FlameGraph(root, by, covered)


@checked
def view(
    source: Source,
    destination: StrPath,
    *,
    before: Source | None = None,
    ranges: RangesBy = "adopted",
    clock: Clock = "align",
) -> None:
    """Write one page (``.html``) of a trace: timeline, flame graph, kernels, copies, idle time, memory. It needs no
    server and no network.

    :param before: an earlier trace. The flame graph then shows the change from it, by path.
    :param ranges: ``adopted``, or ``own`` for NVTX ranges that contain only the work of their own thread.
    :param clock: ``align`` the times of several files, or ``keep`` them, as in :func:`cutrace.load`.

    Raises :class:`CutraceError` when the destination does not end in ``.html`` or cannot be written.
    """
    options = StatsOptions(ranges=ranges)
    path = Path(destination)
    check_output(
        path,
        [*listed(source), *listed(() if before is None else before)],
        endings=(".html",),
    )
    earlier = None
    if before is not None:
        with opened(before, clock=clock) as trace:
            earlier = Earlier(
                flame_graph(trace, options),
                _files(before),
                tuple(trace.quality.sentences()),
            )
    with opened(source, clock=clock) as trace:
        text = html(trace, collect(trace, SHOWN, options), _files(source), earlier)
    write_pieces(path, [text])


def _files(source: Source) -> str:
    """The names of the files of a source, without their folders."""
    return ", ".join(Path(path).name for path in listed(source))
