"""Statistics of a capture: everything that ``cutrace stats`` shows, as numbers.

    with cutrace.load("run.bin") as trace:
        for kernel in collect(trace, ["kernels"]).kernels:
            print(kernel.name, kernel.time.total)

docs/stats.md defines each number. A capture of any size is read once, process by process in the order of time, and
memory grows with the number of different names, streams and launch configurations alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import gpu
from .distribution import Spread
from .gpu import GpuUse, StreamUse
from .names import normalize_kernel
from .projection import Projected


@dataclass(frozen=True)
class Options:
    """What depends on the one who asks. ``names`` gives a kernel the name that it is counted under; ``short_ns`` is
    below what a kernel is short; see :mod:`.gpu` for the others."""

    names: Callable[[str], str] = normalize_kernel
    short_ns: int = 10_000
    consecutive_ns: int = gpu.CONSECUTIVE_NS
    full_queue: int = gpu.FULL_QUEUE


#: What holds where nothing else is said.
DEFAULTS = Options()


@dataclass(frozen=True)
class Timed:
    """Things of one name and their times (ns)."""

    name: str
    time: Spread


@dataclass(frozen=True)
class KernelUse(Timed):
    """The kernels of one name. ``short`` of them took less than :attr:`Options.short_ns`."""

    short: int


@dataclass(frozen=True)
class Configuration:
    """How a kernel was launched. ``shared`` is static and dynamic shared memory of a block, in bytes."""

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
class CallUse(Timed):
    """The calls of one API function, in whatever version; ``failed`` of them returned an error."""

    failed: int


@dataclass(frozen=True)
class MemoryOperationUse(Timed):
    """Copies of one direction, or fills: their times and their ``bytes``."""

    bytes: Spread


@dataclass(frozen=True)
class CopyUse:
    """Copies of one direction between two kinds of memory, of ``at_least`` bytes and less than twice that (0: none)."""

    direction: str
    source: str
    destination: str
    at_least: int
    time: Spread
    bytes: Spread


@dataclass(frozen=True)
class RangeUse(Timed):
    """The NVTX ranges of one name, domain and ``style`` (push/pop or start/end): ``time`` on the host, and
    ``projected`` onto the GPU."""

    domain: str
    style: str
    projected: Projected


@dataclass(frozen=True)
class RangeKernels:
    """The kernels of one name that were launched in NVTX ranges of one name."""

    range: str
    domain: str
    style: str
    kernel: str
    time: Spread


@dataclass(frozen=True)
class HostUse(Timed):
    """Slices of the host that an importer found, of one name: ``kind`` is a word of ``HOST_SLICE_KINDS``. ``self_ns``
    is their time less that of the slices directly inside them, on the same thread."""

    kind: str
    category: str
    projected: Projected
    self_ns: int


@dataclass(frozen=True)
class GpuSliceUse(Timed):
    """Slices of streams that are no work themselves, of one name."""

    kind: str
    category: str


@dataclass(frozen=True)
class LaunchUse:
    """The launches of kernels of one process, as far as their calls were recorded. Times in ns: of the ``call``;
    ``latency`` from the begin of the call to that of the kernel; ``queue`` from the end of the call to the begin of the
    kernel, 0 where it began earlier. ``bound`` kernels took less time than the call that launched them, ``short`` less
    than :attr:`Options.short_ns`; ``kernels`` are all, ``early`` those that seem to begin before their call."""

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
    """The kernels of one name that one API function launched. Times in ns as in :class:`LaunchUse`; ``time`` is the
    kernel's own, ``total`` from the begin of the call to the end of the kernel."""

    api: str
    kernel: str
    call: Spread
    queue: Spread
    time: Spread
    total: Spread


@dataclass(frozen=True)
class UnifiedMemoryUse(Timed):
    """Migrations, faults and the like: ``value`` is bytes if ``in_bytes``, else a count."""

    value: Spread
    in_bytes: bool


@dataclass(frozen=True)
class CounterUse:
    """The values of one counter of a process, as its samples are, in ``unit``. ``device`` is 0xffff where it is about
    none. ``total`` is what a rate adds up to over time, in the unit without ``/s``, None for other counters."""

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
    """Memory of one kind that a process took of a device (host memory counts as the device's that is named): numbers
    and bytes of allocations and releases, ``peak`` the most that was in use above the begin, ``net`` what was in use at
    the end above the begin (bytes)."""

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
class Stats:
    """What :func:`collect` was asked for; the rest is empty. ``start`` and ``end`` (ns) are those of the capture.
    Everything is in the order of first appearance."""

    start: int
    end: int
    options: Options = DEFAULTS
    kernels: tuple[KernelUse, ...] = ()
    configurations: tuple[ConfigurationUse, ...] = ()
    api: tuple[CallUse, ...] = ()
    memory_operations: tuple[MemoryOperationUse, ...] = ()
    copies: tuple[CopyUse, ...] = ()
    ranges: tuple[RangeUse, ...] = ()
    range_kernels: tuple[RangeKernels, ...] = ()
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
    graphs: tuple[Timed, ...] = ()
