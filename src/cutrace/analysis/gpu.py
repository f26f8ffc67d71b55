"""What GPUs and their streams did: busy time, idle time by reason, queues, and communication behind computation.

A GPU or a stream is *busy* while any work runs on it: a kernel, a copy, a fill, or a graph that was traced as a whole.
*Compute* is the time in which kernels run that do not communicate, or whole graphs. The reasons of idle time are those
of Holistic Trace Analysis (host wait, kernel wait, other), with waits for other streams taken out of "other".
docs/stats.md has the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .._native import GpuTimes, StreamTimes
from ..trace import Trace
from ..trace.quality import GPU_WORK
from .distribution import NOTHING, Distributions, Spread
from .sweep import Stream, Window

#: Gaps up to this (ns) are what it takes to start a kernel behind another one; HTA calls it consecutive kernel delay.
CONSECUTIVE_NS = 30
#: Work that begins so soon (ns) behind the end of work of another stream is taken to have waited for it.
RELEASE_NS = 10_000
#: Launches that fill the queue of a stream: the next call that launches waits.
FULL_QUEUE = 1024

# Queues are not measured beyond.
_LONGEST = 4096


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


class Streams:
    """Takes in the windows of one process, in order."""

    def __init__(self, consecutive_ns: int = CONSECUTIVE_NS, full_queue: int = FULL_QUEUE) -> None:
        self._times = StreamTimes(consecutive_ns, RELEASE_NS, full_queue, _LONGEST)

    def add(self, window: Window) -> None:
        work, calls = window.work, window.work.calls
        called = (calls.known, calls.start, calls.end)
        self._times.add(work.start, work.end, work.table, work.stream, work.correlation, *called)

    def uses(self, process: int, streams: list[Stream]) -> list[StreamUse]:
        """What came of it."""
        lengths = Distributions(self._times.lengths).spreads()
        found = []
        for number, (counts, first, last, busy, idle, gaps, waited, span, full) in enumerate(self._times.uses()):
            at_launch = lengths[number] if number < len(lengths) else NOTHING
            host, kernel, dependency, other = idle
            mean = (waited[0] << 64 | waited[1]) / span if span > 0 else 0.0
            found.append(
                StreamUse(
                    process=process,
                    stream=streams[number],
                    counts=dict(zip(GPU_WORK, counts, strict=True)),
                    first=first,
                    last=last,
                    busy=busy,
                    idle=Idle(host, kernel, dependency, other, gaps),
                    queue=Queue(at_launch, mean, full),
                )
            )
        return found


_COMPUTE, _COMMUNICATE, _COPY, _FILL = 1, 2, 4, 8
_KINDS = [{"kernels": _COMPUTE, "memcpys": _COPY, "memsets": _FILL, "graph_launches": _COMPUTE}[t] for t in GPU_WORK]
_COMMUNICATION = re.compile(r"nccl|rccl|nvshmem|oneshot_all|two_?shot_all|cross_device_reduce", re.IGNORECASE)


@lru_cache(maxsize=1 << 16)
def communicates(name: str) -> bool:
    """Whether a kernel of this (mangled or plain) name moves data between GPUs: those of NCCL and NVSHMEM, and the
    all-reduce kernels of vLLM and PyTorch's symmetric memory."""
    return _COMMUNICATION.search(name) is not None


def communicating(trace: Trace) -> np.ndarray:
    """By launch configuration, whether its kernel communicates."""
    strings, which = np.unique(trace.launches["name"], return_inverse=True)
    found: np.ndarray = np.array([communicates(trace.strings[i]) for i in strings.tolist()], bool)[which.reshape(-1)]
    return found


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


_ALL = _COMPUTE | _COMMUNICATE | _COPY | _FILL
_SETS = (_COMPUTE, _COMMUNICATE, _COPY, _COMMUNICATE | _COPY, _COMPUTE | _COMMUNICATE, _COMPUTE | _COPY,
         _COMPUTE | _COMMUNICATE | _COPY, _ALL)  # fmt: skip


class Gpus:
    """Takes in the windows of one process, in order. ``communicating`` says of each launch configuration whether its
    kernel communicates."""

    def __init__(self, communicating: np.ndarray) -> None:
        kernels = np.where(communicating, np.uint8(_COMMUNICATE), np.uint8(_COMPUTE))
        self._times = GpuTimes(kernels, _KINDS, list(_SETS))

    def add(self, window: Window) -> None:
        work = window.work
        self._times.add(work.device, work.start, work.end, work.table, work.launch)

    def uses(self, process: int) -> list[GpuUse]:
        """What came of it, by device."""
        return [_use(process, *found) for found in self._times.uses()]


def _use(
    process: int, device: int, counts: list[int], kernel_ns: int, first: int, last: int, times: list[int]
) -> GpuUse:
    union = dict(zip(_SETS, times, strict=True))

    def overlap(kinds: int) -> Overlap:
        return Overlap(union[kinds], union[kinds] + union[_COMPUTE] - union[kinds | _COMPUTE])

    return GpuUse(
        process=process,
        device=device,
        counts=dict(zip(GPU_WORK, counts, strict=True)),
        kernel_ns=kernel_ns,
        first=first,
        last=last,
        busy=union[_ALL],
        compute=union[_COMPUTE],
        communication=overlap(_COMMUNICATE),
        copies=overlap(_COPY),
        both=overlap(_COMMUNICATE | _COPY),
    )
