"""Flame graphs: GPU time by path, down to kernels. A path has nested ranges, or the Python frames of the launching
calls. A second time is the time of threads in the ranges, or the time of API calls.

A range is an NVTX range or a slice of the host (an operator) that is on one thread. The path of GPU work
has these parts, outermost first: the ranges that adopt it (:mod:`cutrace.trace.ranges`), the ranges that are open on
the launching thread at the start of the launching call, and the ranges in which its graph node was created. Work
without ranges, and work whose call was not recorded, is directly below the root. Equal paths of all threads and
processes are one frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..errors import CutraceError
from ..trace import Trace
from .collection import collect
from .context import DEFAULTS, StatsOptions
from .coverage import coverage
from .statistics.nvtx import RANGE_SHARES
from .statistics.paths import PATHS, STACK_PATHS, PathUse

#: The kinds of frames of a flame graph.
FramesBy = Literal["range", "stack"]


@dataclass
class Frame:
    """A frame: a range or a Python frame (``kind`` "range"), or GPU work of one name ("kernel", "copy", "fill" or
    "graph").

    ``operations`` counts the pieces of GPU work, and ``gpu_ns`` sums their times. ``cpu_ns`` is the time of threads in
    this range, or of API calls of this frame. These numbers include the frames below. ``children`` are by name, in the
    order of first appearance.
    """

    name: str
    kind: str = "range"
    operations: int = 0
    gpu_ns: int = 0
    cpu_ns: int = 0
    children: dict[tuple[str, str], Frame] = field(default_factory=dict, repr=False)

    @property
    def own_gpu_ns(self) -> int:
        """The GPU time (ns) that is in no frame below."""
        below = sum(child.gpu_ns for child in self.children.values())
        return self.gpu_ns - below

    @property
    def own_cpu_ns(self) -> int:
        """The time (ns) of ``cpu_ns`` that is in no frame below."""
        below = sum(child.cpu_ns for child in self.children.values())
        return self.cpu_ns - below

    def walk(self, path: tuple[Frame, ...] = ()) -> Iterator[tuple[Frame, ...]]:
        """Yield the path of each frame below this one. A path starts with a child of this frame and ends with the frame
        itself. Parents come before their children."""
        waiting = [(path, self)]
        while waiting:
            here, frame = waiting.pop()
            if frame is not self:
                yield here
            children = reversed(frame.children.values())
            waiting += [((*here, child), child) for child in children]


def flame(
    trace: Trace, options: StatsOptions = DEFAULTS, by: FramesBy = "range"
) -> Frame:
    """The root of the flame graph of a trace, ``by`` range or Python stack. Its ``gpu_ns`` is the sum of the times of
    all kernels, copies, fills and whole graphs, as in the reports of ``cutrace stats``. Its ``cpu_ns`` is the time of
    threads in any range, or of API calls with a stack. Raises :class:`cutrace.CutraceError` for stacks of a trace that
    has none."""
    return flame_with_coverage(trace, options, by)[0]


def flame_with_coverage(
    trace: Trace, options: StatsOptions = DEFAULTS, by: FramesBy = "range"
) -> tuple[Frame, str | None]:
    """Return the result of :func:`flame`, and a sentence about the share of GPU time in ranges. A flame graph of stacks
    and a trace without ranges have no sentence: it is None."""
    if by == "range":
        collected = collect(trace, [PATHS, RANGE_SHARES], options)
        return frames(collected[PATHS]), coverage(collected[RANGE_SHARES])
    if by != "stack":
        raise CutraceError(f"there is no flame graph by {by!r}: choose range or stack")
    if trace.python_stacks is None:
        absent = "no call of the trace has a Python stack: record it with `stacks='launch,sync'` or others"
        raise CutraceError(trace.quality.doubt(absent))
    return frames(STACK_PATHS.of(trace, options)), None


def frames(paths: tuple[PathUse, ...]) -> Frame:
    """The root of the flame graph of these paths."""
    root = Frame("all")
    for use in paths:
        at = root
        path = [root]
        deepest = len(use.path)
        for depth, name in enumerate(use.path, 1):
            kind = "range"
            if depth == deepest:
                kind = use.kind
            at = at.children.setdefault((kind, name), Frame(name, kind))
            path.append(at)
        for frame in path:
            frame.operations += use.operations
            frame.gpu_ns += use.gpu_ns
            frame.cpu_ns += use.cpu_ns
    return root
