"""The statistics of a capture: everything that ``cutrace stats`` shows, as numbers.

    with cutrace.load("run.bin") as trace:
        for kernel in collect(trace, ["kernels"]).kernels:
            print(kernel.name, kernel.time.total)

docs/stats.md defines each number. A capture is read once, process by process in the order of time. Memory grows only
with the number of different names, streams and launch configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..trace.codes import KernelCode
from ..trace.ranges import RangesBy
from ..trace.stacks import PythonFrame
from . import gpu
from .distribution import Spread
from .gpu import GpuUse, StreamUse
from .names import normalize_kernel
from .projection import Projected
from .sweep import Stream


@dataclass(frozen=True)
class StatsOptions:
    """Options of the statistics. ``names`` maps the name of a kernel to the one that it is counted under; kernels that
    take less than ``short_ns`` (ns) are short; with ``ranges="own"`` ranges adopt no work of other threads; :mod:`.gpu`
    describes the others."""

    names: Callable[[str], str] = normalize_kernel
    short_ns: int = 10_000
    consecutive_ns: int = gpu.CONSECUTIVE_NS
    full_queue: int = gpu.FULL_QUEUE
    ranges: RangesBy = "adopted"


DEFAULTS = StatsOptions()


@dataclass(frozen=True)
class Timed:
    """Events of one name and their times (ns)."""

    name: str
    time: Spread


@dataclass(frozen=True)
class KernelUse(Timed):
    """The kernels of one name. ``short`` of them took less than :attr:`StatsOptions.short_ns`."""

    short: int


@dataclass(frozen=True)
class Configuration:
    """A kernel and its launch configuration. ``shared`` is the static and the dynamic shared memory of a block
    (bytes)."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    registers: int
    shared: tuple[int, int]


@dataclass(frozen=True)
class ConfigurationUse:
    """The kernels of one launch configuration."""

    configuration: Configuration
    time: Spread


@dataclass(frozen=True)
class CodeUse:
    """The machine code of the kernels of one name: what certainly ``ran``, and whether the code of a launch is
    ``unknown``."""

    name: str
    ran: frozenset[KernelCode]
    unknown: bool


@dataclass(frozen=True)
class CallUse(Timed):
    """The calls of one API function, all versions together; ``failed`` of them returned an error."""

    failed: int


@dataclass(frozen=True)
class MemoryOperationUse(Timed):
    """Copies in one direction, or fills, with their times and ``bytes``."""

    bytes: Spread


@dataclass(frozen=True)
class CopyUse:
    """Copies in one direction between two kinds of memory, of ``at_least`` bytes and less than twice that (0: empty
    copies)."""

    direction: str
    source: str
    destination: str
    at_least: int
    time: Spread
    bytes: Spread


@dataclass(frozen=True)
class RangeUse(Timed):
    """The NVTX ranges of one name, domain and ``style`` (push/pop or start/end), with their ``time`` on the host and
    their GPU work ``projected``."""

    domain: str
    style: str
    projected: Projected


@dataclass(frozen=True)
class RangeKernels:
    """The kernels of one name launched in NVTX ranges of one name."""

    range: str
    domain: str
    style: str
    kernel: str
    time: Spread


@dataclass(frozen=True)
class RangeShare:
    """The GPU work that belongs to ranges in one way: to ranges of the launching thread (``how`` is "own"), to those of
    the only thread that had one open ("adopted"), or to none, because several threads had one open ("several"), or
    because no thread had or the call is not known ("none"). ``gpu_ns`` is the sum of its times."""

    how: str
    operations: int
    gpu_ns: int


@dataclass(frozen=True)
class PathUse:
    """A path of nested NVTX ranges and slices of the host, or of Python frames, outermost first.

    ``kind`` is "range": ``cpu_ns`` is the time of its threads in the last range but in none inside it, or in API calls
    of the last frame. Or it is that of
    GPU work launched there, named by the last element: "kernel", "copy", "fill" or "graph"; ``operations`` is its
    number, ``gpu_ns`` the sum of its times.
    """

    path: tuple[str, ...]
    kind: str
    operations: int
    gpu_ns: int
    cpu_ns: int


@dataclass(frozen=True)
class GraphRangeUse(Timed):
    """Work of graph nodes that were created in the same NVTX ranges: ``path``, outermost first. ``nodes`` is the number
    of these nodes that ran, ``replays`` how often the one that ran most did; both are None for nodes whose creation was
    not recorded."""

    path: tuple[str, ...]
    nodes: int | None
    replays: int | None


@dataclass(frozen=True)
class NcclUse(Timed):
    """The calls of one function of NCCL with the same communicator, rank, root and reduction, and the sizes of their
    messages. Fields that NCCL does not report are None."""

    bytes: Spread
    communicator: int | None
    rank: int | None
    root: int | None
    reduction: str | None


@dataclass(frozen=True)
class StackUse:
    """The API calls of one ``kind`` (``CALL_KINDS``) that have the same Python stack, in any thread and process, with
    the GPU work that they launched.

    ``frames`` are outermost first, none for calls without a stack. ``operations`` is the number of pieces of GPU work;
    ``bytes`` is what the calls copied, filled, allocated or released.
    """

    frames: tuple[PythonFrame, ...]
    kind: str
    calls: int
    api_ns: int
    operations: int
    gpu_ns: int
    bytes: int

    @property
    def time(self) -> int:
        """The time (ns) of the calls and of their GPU work."""
        return self.api_ns + self.gpu_ns


@dataclass(frozen=True)
class HostUse(Timed):
    """Slices of the host of one name that an importer read. ``kind`` is a value of ``HOST_SLICE_KINDS``. ``self_ns`` is
    their time without that of slices directly inside them on the same thread."""

    kind: str
    category: str
    projected: Projected
    self_ns: int


@dataclass(frozen=True)
class GpuSliceUse(Timed):
    """Annotations on streams, of one name."""

    kind: str
    category: str


@dataclass(frozen=True)
class LaunchUse:
    """The kernel launches of one process whose calls were recorded.

    Times are in ns: ``call`` is that of the call, ``latency`` that from the begin of the call to the begin of the
    kernel, ``queue`` that from the end of the call to the begin of the kernel (0 if it begins earlier). ``bound``
    kernels took less time than their call, ``short`` ones less than :attr:`StatsOptions.short_ns`, ``early`` ones seem
    to begin before their call. ``kernels`` counts all kernels.
    """

    process: int
    kernels: int
    call: Spread
    latency: Spread
    queue: Spread
    bound: int
    short: int
    early: int


@dataclass(frozen=True)
class ExecutionUse:
    """The kernels of one name that one API function launched. Times (ns) are as in :class:`LaunchUse`; ``time`` is that
    of the kernel, ``total`` that from the begin of the call to the end of the kernel."""

    api: str
    kernel: str
    call: Spread
    queue: Spread
    time: Spread
    total: Spread


@dataclass(frozen=True)
class UnifiedMemoryUse(Timed):
    """Unified-memory events of one kind, such as migrations and faults. ``value`` is in bytes if ``in_bytes``, else a
    count."""

    value: Spread
    in_bytes: bool


@dataclass(frozen=True)
class CounterUse:
    """The samples of one counter of a process, in ``unit``. ``device`` is 0xffff if the counter belongs to none.
    ``total`` is the integral of a rate over time, in the unit without ``/s``; None for other counters."""

    process: int
    device: int
    name: str
    series: str
    unit: str
    samples: int
    min: float
    mean: float
    max: float
    total: float | None


@dataclass(frozen=True)
class MemoryUse:
    """The memory of one kind that a process allocated on a device; host memory counts for the device in its rows.
    ``allocated`` and ``freed`` are in bytes; ``peak`` and ``net`` are the maximum and the final level above that at the
    begin (bytes)."""

    process: int
    device: int
    memory: str
    allocations: int
    allocated: int
    frees: int
    freed: int
    peak: int
    net: int


@dataclass(frozen=True)
class BusyUse:
    """The busy time (ns) of a GPU, or of one stream of it, in equal ``parts`` of :func:`.gpu.work_span`, each ``width``
    ns long."""

    process: int
    device: int
    stream: Stream | None
    width: int
    parts: tuple[int, ...]


@dataclass(frozen=True)
class MemoryLevels:
    """The memory of one kind that a process holds on a device, above that at the begin of the capture. ``highest`` is
    the highest level (bytes) in each part of :func:`.gpu.work_span`; a part begins at its time in ``times`` (ns)."""

    process: int
    device: int
    memory: str
    times: tuple[int, ...]
    highest: tuple[int, ...]


@dataclass(frozen=True)
class Stats:
    """The result of :func:`collect`; fields that were not requested are empty. ``start`` and ``end`` (ns) are those of
    the capture. Rows are in the order of first appearance."""

    start: int
    end: int
    options: StatsOptions = DEFAULTS
    kernels: tuple[KernelUse, ...] = ()
    configurations: tuple[ConfigurationUse, ...] = ()
    codes: tuple[CodeUse, ...] = ()
    api: tuple[CallUse, ...] = ()
    memory_operations: tuple[MemoryOperationUse, ...] = ()
    copies: tuple[CopyUse, ...] = ()
    ranges: tuple[RangeUse, ...] = ()
    range_kernels: tuple[RangeKernels, ...] = ()
    range_shares: tuple[RangeShare, ...] = ()
    paths: tuple[PathUse, ...] = ()
    graph_ranges: tuple[GraphRangeUse, ...] = ()
    nccl: tuple[NcclUse, ...] = ()
    stacks: tuple[StackUse, ...] = ()
    stack_paths: tuple[PathUse, ...] = ()
    host: tuple[HostUse, ...] = ()
    gpu_slices: tuple[GpuSliceUse, ...] = ()
    streams: tuple[StreamUse, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    launches: tuple[LaunchUse, ...] = ()
    executions: tuple[ExecutionUse, ...] = ()
    synchronizations: tuple[Timed, ...] = ()
    overheads: tuple[Timed, ...] = ()
    unified_memory: tuple[UnifiedMemoryUse, ...] = ()
    counters: tuple[CounterUse, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    busy: tuple[BusyUse, ...] = ()
    memory_levels: tuple[MemoryLevels, ...] = ()
    graphs: tuple[Timed, ...] = ()
