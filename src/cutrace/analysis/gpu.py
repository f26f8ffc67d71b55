"""The use of GPUs and streams: busy time, idle time by reason, queues, and communication hidden behind computation.

A GPU or a stream is *busy* while any work runs on it: a kernel, a copy, a fill, or a graph that was traced as a whole.
*Compute* is the time in which whole graphs or kernels other than communication kernels run. The reasons of idle time
are those of Holistic Trace Analysis (host wait, kernel wait, other), with waits for other streams separated from
"other". docs/stats.md has the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from ..trace import Trace
from ..trace.capture_ranges import time_within
from ..trace.quality import GPU_WORK
from .distribution import NOTHING, Spread
from .sweep import Stream

#: Gaps up to this (ns) are the delay between consecutive kernels (HTA: consecutive kernel delay).
CONSECUTIVE_NS = 30
#: Work that begins within this time (ns) after work of another stream ends counts as having waited for it.
RELEASE_NS = 10_000
#: The length of a full queue, in launches: the next launching call waits.
FULL_QUEUE = 1024

#: The longest queue that is measured.
LONGEST_QUEUE = 4096


def work_span(trace: Trace) -> tuple[int, int]:
    """The first begin and the last end (ns) of GPU work by the headers of blocks; those of the trace without work."""
    infos = [
        info
        for table in GPU_WORK
        for info in trace.block_infos(table)
        if info.first_time
    ]
    if not infos:
        return trace.start, trace.end
    # A damaged header may have any times.
    last = min(max(info.last_time for info in infos), trace.end)
    return min(*(info.first_time for info in infos), last), last


@dataclass(frozen=True)
class Idle:
    """Idle time (ns) between the pieces of work of a stream, by reason, and the number of gaps."""

    host: int = 0
    kernel: int = 0
    dependency: int = 0
    other: int = 0
    gaps: int = 0

    @property
    def total(self) -> int:
        return self.host + self.kernel + self.dependency + self.other

    def without(self, unrecorded: list[tuple[int, int]], first: int, last: int) -> Idle:
        """Leave out the unrecorded times of a stream whose work lasts from ``first`` to ``last``. What follows one was
        launched after it, so the gap seems to wait for the host, or for an unknown launch."""
        inside = [
            (start, end) for start, end in unrecorded if first <= start and end <= last
        ]
        time = time_within(inside, first, last)
        of_host = min(time, self.host)
        of_other = min(time - of_host, self.other)
        return replace(self, host=self.host - of_host, other=self.other - of_other)


@dataclass(frozen=True)
class Queue:
    """The queue of a stream: work that was launched and has not begun. ``at_launch`` is its length after each launch,
    ``mean`` its average length over the time from the first launch to the last begin, ``full`` the time (ns) at
    :data:`FULL_QUEUE` or more."""

    at_launch: Spread = NOTHING
    mean: float = 0.0
    full: int = 0


@dataclass(frozen=True)
class StreamUse:
    """The use of one stream. ``counts`` has its pieces of GPU work by table; ``first`` and ``last`` (ns) are the first
    begin and the last end of its work; ``busy`` is the time (ns) in which any ran."""

    process: int
    stream: Stream
    counts: dict[str, int]
    first: int
    last: int
    busy: int
    idle: Idle
    queue: Queue


#: The kinds of GPU work, as bits; :class:`cutrace._native.GpuTimes` has the time of each set of them.
COMPUTE = 1
COMMUNICATE = 2
COPY = 4
FILL = 8
ANY_WORK = COMPUTE | COMMUNICATE | COPY | FILL
_BY_TABLE = {
    "kernels": COMPUTE,
    "memcpys": COPY,
    "memsets": FILL,
    "graph_launches": COMPUTE,
}
_KINDS = np.array([_BY_TABLE[table] for table in GPU_WORK], np.uint8)
_COMMUNICATION = re.compile(
    r"nccl|rccl|nvshmem|oneshot_all|two_?shot_all|cross_device_reduce", re.IGNORECASE
)


def communicates(name: str) -> bool:
    """Whether a kernel of this (mangled or plain) name moves data between GPUs: kernels of NCCL, RCCL and NVSHMEM, and
    the all-reduce kernels of vLLM and PyTorch's symmetric memory."""
    return _COMMUNICATION.search(name) is not None


class Kinds:
    """The kinds of a trace's GPU work."""

    def __init__(self, trace: Trace) -> None:
        communication = trace.strings.take(trace.launches["name"], communicates).astype(
            bool
        )
        self._of_launch = np.where(
            communication, np.uint8(COMMUNICATE), np.uint8(COMPUTE)
        )

    def of(self, table: np.ndarray, launch: np.ndarray) -> np.ndarray:
        """The kind of each piece of work, by its table's index in ``GPU_WORK`` and its launch configuration."""
        # All but kernels have configuration 0, which computes: the lowest bit.
        kinds: np.ndarray = np.maximum(self._of_launch.take(launch), _KINDS.take(table))
        return kinds


@dataclass(frozen=True)
class Overlap:
    """Communication of one kind on a GPU: the ``time`` (ns) in which any ran, and the part ``hidden`` behind
    computation."""

    time: int
    hidden: int


@dataclass(frozen=True)
class GpuUse:
    """The work of one process on one GPU. Times are in ns: ``busy`` of any work, ``compute`` of computation,
    ``communication`` of communication kernels, ``copies`` of copies, ``both`` of these two. ``first`` and ``last`` are
    the first begin and the last end. ``counts`` has the pieces of work by table, ``kernel_ns`` the sum of kernel
    times."""

    process: int
    device: int
    counts: dict[str, int]
    kernel_ns: int
    first: int
    last: int
    busy: int
    compute: int
    communication: Overlap
    copies: Overlap
    both: Overlap


def overlap(times: list[int], kinds: int) -> Overlap:
    """The overlap of some ``kinds`` (bits) with computation; ``times`` has the time (ns) of each set of kinds."""
    return Overlap(times[kinds], times[kinds] + times[COMPUTE] - times[kinds | COMPUTE])
