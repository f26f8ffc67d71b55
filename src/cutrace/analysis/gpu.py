"""What GPUs and their streams did: busy time, idle time by reason, queues, and communication behind computation.

A GPU or a stream is *busy* while any work runs on it: a kernel, a copy, a fill, or a graph that was traced as a whole.
*Compute* is the time in which kernels run that do not communicate, or whole graphs. The reasons of idle time are those
of Holistic Trace Analysis (host wait, kernel wait, other), with waits for other streams taken out of "other".
docs/stats.md has the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..trace import Trace
from ..trace.quality import GPU_WORK
from .distribution import NOTHING, Spread
from .sweep import Stream

#: Gaps up to this (ns) are what it takes to start a kernel behind another one; HTA calls it consecutive kernel delay.
CONSECUTIVE_NS = 30
#: Work that begins so soon (ns) behind the end of work of another stream is taken to have waited for it.
RELEASE_NS = 10_000
#: Launches that fill the queue of a stream: the next call that launches waits.
FULL_QUEUE = 1024

#: Queues are not measured beyond.
LONGEST_QUEUE = 4096


@dataclass(frozen=True)
class Idle:
    """Time (ns) between pieces of work of a stream, by what it waited for, and the number of such gaps."""

    host: int = 0
    kernel: int = 0
    dependency: int = 0
    other: int = 0
    gaps: int = 0

    @property
    def total(self) -> int:
        return self.host + self.kernel + self.dependency + self.other


@dataclass(frozen=True)
class Queue:
    """Launches that had not begun to run. ``at_launch`` is the length that each launch made (itself included),
    ``mean`` the average over the time from the first launch to the last begin, ``full`` the time (ns) at
    :data:`FULL_QUEUE` or more."""

    at_launch: Spread = NOTHING
    mean: float = 0.0
    full: int = 0


@dataclass(frozen=True)
class StreamUse:
    """One stream. ``counts`` has its GPU work by table; ``first`` and ``last`` (ns) are the begin of its first work and
    the end of its last; ``busy`` is the time in which it ran any."""

    process: int
    stream: Stream
    counts: dict[str, int]
    first: int
    last: int
    busy: int
    idle: Idle
    queue: Queue


#: The kinds of GPU work, as bits; :class:`cutrace._native.GpuTimes` has the time of each set of them.
COMPUTE, COMMUNICATE, COPY, FILL = 1, 2, 4, 8
ANY_WORK = COMPUTE | COMMUNICATE | COPY | FILL
_BY_TABLE = {"kernels": COMPUTE, "memcpys": COPY, "memsets": FILL, "graph_launches": COMPUTE}
_KINDS = np.array([_BY_TABLE[table] for table in GPU_WORK], np.uint8)
_COMMUNICATION = re.compile(r"nccl|rccl|nvshmem|oneshot_all|two_?shot_all|cross_device_reduce", re.IGNORECASE)


def communicates(name: str) -> bool:
    """Whether a kernel of this (mangled or plain) name moves data between GPUs: those of NCCL and NVSHMEM, and the
    all-reduce kernels of vLLM and PyTorch's symmetric memory."""
    return _COMMUNICATION.search(name) is not None


class Kinds:
    """The kinds of a trace's GPU work."""

    def __init__(self, trace: Trace) -> None:
        found = trace.strings.take(trace.launches["name"], communicates).astype(bool)
        self._of_launch = np.where(found, np.uint8(COMMUNICATE), np.uint8(COMPUTE))

    def of(self, table: np.ndarray, launch: np.ndarray) -> np.ndarray:
        """The kind of each piece of work, by its table's index in ``GPU_WORK`` and its launch configuration."""
        return np.where(table == GPU_WORK.index("kernels"), self._of_launch.take(launch), _KINDS.take(table))


@dataclass(frozen=True)
class Overlap:
    """Communication of one kind on a GPU: the time (ns) in which any of it ran, and in which computation ran too."""

    time: int
    hidden: int


@dataclass(frozen=True)
class GpuUse:
    """The work of one process on one GPU. Times in ns in which any such work ran: ``busy`` all, ``compute`` kernels
    that do not communicate. ``communication`` are the kernels that do, ``copies`` the copies, ``both`` these two.
    ``first`` and ``last`` are the first begin and the last end; ``counts`` has the work by table, ``kernel_ns`` the
    times of kernels added."""

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
    """How much of the time of some kinds is that of computation too; ``times`` has the time of each set of kinds."""
    return Overlap(times[kinds], times[kinds] + times[COMPUTE] - times[kinds | COMPUTE])
