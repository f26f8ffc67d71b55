"""Memory: allocations and releases of processes, and their memory over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..._native import Levels, MemoryTotals
from ...runbin import labels
from ...runbin.labels import known_label
from ...trace.ordered import Columns
from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext
from ..distribution import sizes
from ..gpu import work_span
from ..statistic import (
    SPARE_GPU,
    SPARE_PROCESS,
    Statistic,
    count_column,
    size_column,
    text_column,
)
from ..sweep import Groups, Stream, SweepBatch

_ALLOCATE = 1
_RELEASE = 2


@dataclass(frozen=True)
class MemoryUse:
    """The memory of one kind that a process allocated on a device. Host memory counts for the device in its rows. All
    sizes are in bytes. ``peak`` and ``net`` are the maximum and the final level, each minus the level at the start."""

    process: int
    device: int
    memory: str
    allocations: int
    allocated: int
    frees: int
    freed: int
    peak: int
    net: int


class _MemoryCollector(StatsCollector[MemoryUse]):
    tables = ("allocations",)
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._groups = Groups()
        self._totals = MemoryTotals()

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("allocations")
        if rows:
            group = self._groups.of(rows["device"], rows["memory"])
            self._totals.add(group, rows["operation"], rows["bytes"])

    def end(self, process: int, streams: list[Stream]) -> Iterator[MemoryUse]:
        groups = zip(self._groups.values, self._totals.rows(), strict=True)
        for (device, memory), totals in groups:
            name = known_label(labels.MEMORY_KINDS, memory)
            yield MemoryUse(process, device, name, *totals)


#: The memory of each process by device and kind of memory.
MEMORY = CollectedBy(_MemoryCollector)

MEMORY_SUM = Statistic(
    "memory_sum",
    "Memory",
    MEMORY,
    (
        SPARE_PROCESS,
        SPARE_GPU,
        text_column("memory", doc="kind of memory"),
        size_column(
            "peak", doc="largest use minus the use at the start of the capture"
        ),
        size_column("net", doc="use at the end minus the use at the start"),
        count_column("allocations", spare=True, doc="number of allocations"),
        size_column("allocated", spare=True, doc="bytes allocated"),
        count_column("frees", spare=True, doc="number of releases"),
        size_column("freed", spare=True, doc="bytes released"),
    ),
    doc="How much memory each process holds.",
)


# Memory over time, for `cutrace view`

# The time of GPU work has at most 2 ** this number of parts.
_PARTS_BITS = 9
_NO_COUNTER = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class MemoryLevels:
    """The memory of one kind that a process holds on a device, minus the memory that it held at the start of the
    capture. ``highest`` is the highest level (bytes) in each part of :func:`.gpu.work_span`; a part starts at its time
    in ``times`` (ns)."""

    process: int
    device: int
    memory: str
    times: tuple[int, ...]
    highest: tuple[int, ...]


def _changes(rows: Columns) -> np.ndarray:
    """The bytes of each row of ``allocations``: positive if allocated, negative if released."""
    operation = rows["operation"]
    signs = (operation == _ALLOCATE).astype(np.int8) - (operation == _RELEASE)
    return sizes(rows["bytes"]) * signs


class _LevelCollector(StatsCollector[MemoryLevels]):
    tables = ("allocations",)
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._groups = Groups()
        first, last = work_span(context.trace)
        self._levels = Levels(first, last, _PARTS_BITS, 0)

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("allocations")
        if not rows:
            return
        group = self._groups.of(rows["device"], rows["memory"])
        number = np.arange(len(self._groups.values), dtype=np.uint32)
        counter = np.where(number < Levels.MOST, number, _NO_COUNTER)
        factor = np.ones(len(number), np.int64)
        self._levels.add(group, counter, factor, rows["time"], _changes(rows))

    def end(self, process: int, streams: list[Stream]) -> Iterator[MemoryLevels]:
        for group, (device, memory) in enumerate(self._groups.values[: Levels.MOST]):
            times, _, highest, _ = self._levels.values(group)
            yield MemoryLevels(
                process,
                device,
                known_label(labels.MEMORY_KINDS, memory),
                tuple(times.tolist()),
                tuple(map(int, highest.tolist())),
            )


#: The levels of memory over time, of each process by device and kind of memory.
MEMORY_LEVELS = CollectedBy(_LevelCollector)
