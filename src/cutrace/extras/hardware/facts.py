"""The facts of a kernel: the means of its metrics, its launch configuration, and the number of its blocks that fit on a
multiprocessor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..._native import Keys, demangle
from ...analysis.names import UNKNOWN, normalize_kernel
from ...analysis.occupancy import UNLIMITED, occupancy
from ...runbin.layout import CACHES
from ...trace import Trace
from .chosen import COUNTED_ONLY
from .kernel_metrics import Profiled, profiled
from .roofline import GpuLimits, gpus

_CONFIGURATION = [
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "static_shared",
    "dynamic_shared",
]


UNKNOWN_CACHES = CACHES[0]
FLUSHED = CACHES[1]


@dataclass(frozen=True)
class Shape:
    """A launch configuration: blocks of the ``grid``, threads of the ``block``, ``registers`` of a thread, and
    ``shared`` memory of a block (bytes)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int = 0
    shared: int = 0

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return math.prod(self.block)


@dataclass(frozen=True)
class Room:
    """The room on the GPU. ``blocks`` fit on each of the ``multiprocessors`` and fill ``percent`` of its warp slots.
    ``limits`` has the number of blocks that each resource allows. ``waves`` is the number of times that the grid fills
    the GPU."""

    multiprocessors: int
    blocks: int
    percent: float
    waves: float
    limits: Mapping[str, int]

    @property
    def limiter(self) -> str:
        """The resources that allow the fewest blocks."""
        names = [name for name, blocks in self.limits.items() if blocks == self.blocks]
        return " and ".join(names)


@dataclass(frozen=True)
class Facts:
    """A kernel in one launch configuration on one model of GPU. It has a stable name, and a ``symbol``: the mangled
    name that CUPTI gives, which differs between template instances. ``values`` are the means of its metrics over the
    ``counted`` launches, and ``caches`` is a value of :data:`CACHES`. ``total`` is the time of all ``launches`` in
    the run without counters (ns), ``time`` their mean, and ``share`` (0 to 1) the share of the total in the time of all
    kernels. ``shape`` and ``room`` are None if the capture lacks them. ``share`` is None if the capture has only
    counted launches."""

    kernel: str
    values: Mapping[str, float] = field(default_factory=dict)
    shape: Shape | None = None
    room: Room | None = None
    gpu: GpuLimits = field(default_factory=GpuLimits)
    caches: str = UNKNOWN_CACHES
    counted: int = 1
    launches: int = 1
    time: float = 0
    total: int = 0
    share: float | None = None
    symbol: str = ""

    @property
    def full_name(self) -> str:
        """The demangled name, with template arguments and parameters."""
        # Skip other names, because the demangler would read them as types.
        if self.symbol.startswith("_Z"):
            return demangle(self.symbol)
        return self.symbol

    @property
    def active(self) -> float:
        """The mean share (0 to 1) of the time in which a multiprocessor had a warp; 1 if unknown."""
        cycles = self.values.get("gpc__cycles_elapsed.max", 0)
        busy = self.values.get("sm__cycles_active.avg")
        if busy is None or not cycles:
            return 1
        return min(busy / cycles, 1)


_Key = tuple[str, tuple[int, ...]]
_Group = tuple[_Key, GpuLimits]


def kernel_facts(trace: Trace) -> list[Facts]:
    """The facts of each kernel with metrics, by symbol, launch configuration and model of GPU: longest total time
    first."""
    keys = _Keys(trace)
    limits = gpus(trace)
    groups: dict[_Group, list[Profiled]] = {}
    for launch in profiled(trace, str):
        gpu = limits.get((launch.process, launch.device), GpuLimits())
        key = keys.of(launch.launch, launch.kernel)
        groups.setdefault((key, gpu), []).append(launch)
    if not groups:
        return []
    times = _times(trace, keys, limits)
    counted_only = any(process.info.get(COUNTED_ONLY) for process in trace.processes)
    whole = sum(time for _, time in times.values())
    made = []
    for (key, gpu), launches in groups.items():
        count, total = times.get((key, gpu), (0, 0))
        # Without the launches of the first run, use the times of the counted launches.
        time = sum(launch.time for launch in launches) / len(launches)
        if count:
            time = total / count
        facts = Facts(
            kernel=normalize_kernel(key[0]),
            symbol=key[0],
            values=_means(launches),
            shape=_shape(key[1]),
            room=_room(trace, launches[0]),
            gpu=gpu,
            caches=_caches(launches),
            counted=len(launches),
            launches=max(count, len(launches)),
            time=time,
            total=total,
            share=None if counted_only else total / (whole or 1),
        )
        made.append(facts)
    return sorted(made, key=lambda facts: (-facts.total, facts.symbol))


class _Keys:
    """The kernels of a trace by symbol and launch configuration. Several rows of ``launches`` can have the same key."""

    def __init__(self, trace: Trace) -> None:
        launches = trace.launches
        self._names = trace.strings.take(launches["name"]).tolist()
        self._configurations = launches[_CONFIGURATION].tolist()

    def of(self, launch: int, name: str = "") -> _Key:
        """The key of a row of ``launches``. Row 0 has no launch configuration."""
        known = name or self._names[launch] or UNKNOWN
        return known, self._configurations[launch]


def _times(
    trace: Trace, keys: _Keys, limits: Mapping[tuple[int, int], GpuLimits]
) -> dict[_Group, tuple[int, int]]:
    """The number of launches of each kernel on each model of GPU in the capture, and their total time (ns)."""
    times: dict[_Group, tuple[int, int]] = {}
    for kernels in trace.blocks("kernels"):
        columns = [kernels[name] for name in ("process", "device", "launch")]
        inverse, first = Keys(3).ids(columns)
        counts = np.bincount(inverse)
        totals = np.bincount(inverse, kernels["end"] - kernels["start"])
        places = zip(*(column[first].tolist() for column in columns), strict=True)
        for at, (process, device, launch) in enumerate(places):
            group = keys.of(launch), limits.get((process, device), GpuLimits())
            count, total = times.get(group, (0, 0))
            times[group] = (count + int(counts[at]), total + int(totals[at]))
    return times


def _means(launches: Sequence[Profiled]) -> dict[str, float]:
    """The mean of each metric over the launches that have it."""
    values: dict[str, list[float]] = {}
    for launch in launches:
        for name, value in launch.values.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(some) / len(some) for name, some in values.items()}


def _caches(launches: Sequence[Profiled]) -> str:
    """The state of the caches, if it is the same for all launches; else unknown."""
    states = {launch.caches for launch in launches}
    if len(states) == 1:
        return CACHES.get(states.pop(), UNKNOWN_CACHES)
    return UNKNOWN_CACHES


def _shape(configuration: tuple[int, ...]) -> Shape | None:
    grid = configuration[:3]
    block = configuration[3:6]
    registers, static, dynamic = configuration[6:]
    if not math.prod(block):
        return None
    return Shape(grid, block, registers, static + dynamic)  # type: ignore[arg-type]


def _room(trace: Trace, launch: Profiled) -> Room | None:
    device = trace.device_rows.get((launch.process, launch.device))
    if device is None:
        return None
    found = occupancy(device, trace.launches[[launch.launch]])
    if found is None or not found.known[0]:
        return None
    limits = {
        "warps": found.limit_warps,
        "blocks": found.limit_blocks,
        "registers": found.limit_registers,
        "shared memory": found.limit_shared,
    }
    known = {}
    for name, blocks in limits.items():
        if blocks[0] != UNLIMITED:
            known[name] = int(blocks[0])
    return Room(
        multiprocessors=int(device["multiprocessors"]),
        blocks=int(found.blocks[0]),
        percent=float(found.percent[0]),
        waves=float(found.waves[0]),
        limits=known,
    )
