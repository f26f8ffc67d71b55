"""Counters derived from records: work and memory over time.

* *launch queue* of a stream: the work that is launched and not finished;
* *copy bandwidth* of a device, by kind of copy: the sum over the copies that run;
* *memory* of a device, by kind: the bytes allocated since the capture began and not released.

Up to :data:`EXACT` changes, the trace has all values of the counters of one sort. Beyond that, the time is divided into
up to ``2**BITS`` equal parts, and each counter has one value for each part: the mean, or the peak for memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...._native import Levels
from ....runbin.labels import MEMCPY_KINDS, MEMORY_KINDS, label
from ..gpu_events import GpuPart, KeyIndex

BITS = 12
EXACT = 1 << 16

_NONE = (1 << 32) - 1


class CounterValues(NamedTuple):
    """One counter: name, description, unit, and the values that begin at ``times`` (ns, rising)."""

    name: str
    description: str
    unit: str
    times: np.ndarray
    values: np.ndarray


class CounterSet:
    """Counters of one sort, by number, over the time from ``span[0]`` to ``span[1]``. Numbers from ``Levels.MOST`` have
    no counter."""

    def __init__(self, span: tuple[int, int]) -> None:
        self._numbers = np.zeros(0, np.uint32)
        self.levels = Levels(*span, BITS, EXACT)

    def numbers(self, count: int) -> np.ndarray:
        """By number, the counter of :attr:`levels` (2**32 - 1 for none), for at least ``count`` numbers."""
        if len(self._numbers) < count:
            numbers = np.arange(count, dtype=np.uint32)
            self._numbers = np.where(numbers < Levels.MOST, numbers, np.uint32(_NONE))
        return self._numbers

    def values(
        self, names: Sequence[str], description: str, unit: str = "", *, peaks: bool = False
    ) -> Iterator[CounterValues]:
        """The counters; ``names`` are by number. With ``peaks``, a value of a part of the time is the highest one, not
        the mean."""
        for number, name in enumerate(names[: min(len(self._numbers), Levels.MOST)]):
            times, values, highest, exact = self.levels.values(number)
            if not exact and len(times):
                values = highest if peaks else values
                # A value holds until the next one.
                kept = np.append(values[0] != 0, values[1:] != values[:-1])
                times, values = times[kept], values[kept]
            if len(times):
                yield CounterValues(name, description, unit, times, values)


class WorkCounters:
    """The counters of the GPU work of one process. ``queues`` numbers its streams."""

    def __init__(self, queues: KeyIndex, span: tuple[int, int]) -> None:
        self._queues, self._copies = queues, KeyIndex("device", "kind")
        self._depth, self._bandwidth = CounterSet(span), CounterSet(span)

    @property
    def depth(self) -> tuple[Levels, np.ndarray]:
        """The levels of launched and unfinished work, and its counter for each stream."""
        return self._depth.levels, self._depth.numbers(len(self._queues.keys))

    def add(self, part: GpuPart) -> None:
        if "bandwidth" in part.block.computed:
            rows, bandwidth = part.rows, part.computed("bandwidth")
            kinds = self._copies.of(rows)
            counters = self._bandwidth.numbers(len(self._copies.keys))
            self._bandwidth.levels.add_stretches(kinds, counters, rows["start"], rows["end"], bandwidth)

    def values(self, queue_names: Sequence[str]) -> Iterator[CounterValues]:
        """All counters. ``queue_names`` has the names of the streams."""
        queues = [f"launch queue, {name}" for name in queue_names]
        yield from self._depth.values(queues, "Work that is launched and not finished")
        copies = [f"copy bandwidth, device {device}: {label(MEMCPY_KINDS, kind)}" for device, kind in self._copies.keys]
        yield from self._bandwidth.values(copies, "The sum over the copies that run", "bytes/s")


class MemoryCounters:
    """The memory that a process holds, by device and kind."""

    def __init__(self, span: tuple[int, int]) -> None:
        self._counters, self._kinds = CounterSet(span), KeyIndex("device", "memory", "operation")
        self._held: dict[tuple[int, int], int] = {}  # the number of each device and kind
        self._numbers: list[int] = []  # by kind of row
        self._factors: list[int] = []

    def add(self, rows: np.ndarray) -> None:
        """Add rows of ``allocations``."""
        kinds = self._kinds.of(rows)
        for device, memory, operation in self._kinds.keys[len(self._numbers) :]:
            self._numbers.append(self._held.setdefault((device, memory), len(self._held)))
            self._factors.append({1: 1, 2: -1}.get(operation, 0))
        counters, factors = self._counters.numbers(len(self._held))[self._numbers], np.array(self._factors, np.int64)
        self._counters.levels.add(kinds, counters, factors, rows["time"], rows["bytes"])

    def values(self) -> Iterator[CounterValues]:
        names = [f"memory in use, device {device}: {label(MEMORY_KINDS, memory)}" for device, memory in self._held]
        description = "Bytes allocated since the capture began and not released"
        yield from self._counters.values(names, description, "bytes", peaks=True)
