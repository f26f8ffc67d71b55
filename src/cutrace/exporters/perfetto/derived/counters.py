"""Counters derived from records: work and memory over time.

* *launch queue* of a stream: the number of launches whose work has not started;
* *copy bandwidth* of a device, by kind of copy: the sum of the bandwidths of the running copies;
* *memory* of a device, by kind: the bytes allocated since the start of the capture and not released.

Counters of one sort with up to :data:`EXACT` changes have all their values in the trace. With more changes, the time is
divided into up to ``2**BITS`` equal parts, and each counter has one value for each part: the mean, or the peak for
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...._native import Levels
from ....runbin.labels import MEMCPY_KINDS, MEMORY_KINDS, label
from ....trace.rows import chosen, joined
from .. import placing
from ..descriptors import DERIVED, Descriptors, counter
from ..gpu_events import GpuPart
from ..gpu_styles import KeyIndex
from ..host_tables import COUNTED
from ..placing import BesideStream

BITS = 12
EXACT = 1 << 16

_NONE = (1 << 32) - 1
_NEVER = (1 << 64) - 1

#: By operation of an allocation, the change of the memory in use for each byte.
_FACTORS = {1: 1, 2: -1}
#: The kinds of memory on the GPU: device, array, device static, physical.
_IN_GPU = frozenset((3, 4, 6, 128))


class CounterSet:
    """The counters of one sort of a process, by number. They cover the time from ``span[0]`` to ``span[1]``. Numbers
    from ``Levels.MOST`` on have no counter. With ``peaks``, the value of a part of the time is the peak, not the mean.
    ``changes`` is the number of changes if it is known."""

    def __init__(
        self,
        descriptors: Descriptors,
        process: int,
        span: tuple[int, int],
        description: str,
        unit: str = "",
        *,
        peaks: bool = False,
        changes: int = 0,
    ) -> None:
        self._descriptors = descriptors
        self._process = process
        self._text = {"description": description, "counter": counter(unit, DERIVED)}
        self._until = 0
        self._numbers = np.zeros(0, np.uint32)
        # By number, the number of the counter in the trace, and the last returned value.
        self._tracks: dict[int, int] = {}
        self._last: dict[int, float] = {}
        exact = EXACT if changes <= EXACT else 0
        self.levels = Levels(*span, BITS, exact, not peaks)

    def numbers(self, count: int) -> np.ndarray:
        """By number, the counter of :attr:`levels` (2**32 - 1 for none), for at least ``count`` numbers."""
        if len(self._numbers) < count:
            numbers = np.arange(count, dtype=np.uint32)
            numbers[Levels.MOST :] = _NONE
            self._numbers = numbers
        return self._numbers

    def rows(self, tracks: Sequence[dict[str, Any]], until: int = _NEVER) -> np.ndarray:
        """The values before ``until`` (ns) that no earlier call returned, as rows of :data:`COUNTED` in the order of
        time. All changes before ``until`` must have been added. ``tracks`` has the name and the place of the track of
        each number."""
        parts = []
        if until <= self._until:
            return np.zeros(0, COUNTED.dtype)
        most = min(len(self._numbers), Levels.MOST)
        for number, track in enumerate(tracks[:most]):
            times, values = self._values(number, until)
            if number not in self._tracks:
                self._tracks[number] = len(self._descriptors.counters)
                self._descriptors.counters.append({**track, **self._text})
            part = np.empty(len(times), COUNTED.dtype)
            part["time"] = times
            part["value"] = values
            part["counter"] = self._tracks[number]
            part["process"] = self._process
            parts.append(part)
        self._until = until
        rows = joined(COUNTED.dtype, parts)
        return chosen(rows, np.argsort(rows["time"], kind="stable"))

    def all_values(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The times and the values of a counter. Not allowed after :meth:`rows` has returned values of this counter."""
        return self._values(number, _NEVER)

    def _values(self, number: int, until: int) -> tuple[np.ndarray, np.ndarray]:
        times, values, _, exact = self.levels.values(number)
        window = np.array([self._until, until], np.uint64)
        if exact:
            chosen = slice(*np.searchsorted(times, window))
            if chosen.stop > chosen.start:
                self._last[number] = values[chosen.stop - 1]
            return times[chosen], values[chosen]
        # The value of a part is known when the part is over. A part in two windows belongs to the second window.
        places = np.searchsorted(times, window, "right") - 1
        begin, end = np.maximum(places, 0)
        if until == _NEVER:
            end = len(times)
        values = values[begin:end]
        times = np.maximum(times[begin:end], window[0])
        if not len(values):
            return times, values
        # A value holds until the next one.
        changed = np.diff(values, prepend=self._last.get(number, 0.0)) != 0
        self._last[number] = values[-1]
        return times[changed], values[changed]


class WorkCounters:
    """The counters of the GPU work of one process. ``queues`` numbers its streams."""

    def __init__(
        self,
        descriptors: Descriptors,
        process: int,
        queues: KeyIndex,
        span: tuple[int, int],
    ) -> None:
        self._descriptors = descriptors
        self._process = process
        self._queues = queues
        self._copies = KeyIndex("device", "kind")
        of = descriptors, process, span
        self._launch_queues = CounterSet(*of, "Launches that have not begun")
        self._bandwidth = CounterSet(*of, "The sum over the copies that run", "bytes/s")

    @property
    def launch_queues(self) -> tuple[Levels, np.ndarray]:
        """The lengths of the launch queues, and the counter of each stream."""
        counters = self._launch_queues
        return counters.levels, counters.numbers(len(self._queues.keys))

    def add(self, part: GpuPart) -> None:
        if "bandwidth" in part.block.computed:
            rows = part.rows
            bandwidth = part.computed("bandwidth")
            kinds = self._copies.of(rows)
            counters = self._bandwidth.numbers(len(self._copies.keys))
            self._bandwidth.levels.add_stretches(
                kinds, counters, rows["start"], rows["end"], bandwidth
            )

    def rows(self) -> Iterator[np.ndarray]:
        """All values of each sort, as rows of :data:`COUNTED`."""
        yield self._launch_queues.rows(list(map(self._queue_track, self._queues.keys)))
        yield self._bandwidth.rows(list(map(self._copy_track, self._copies.keys)))

    def _queue_track(self, queue: tuple[int, ...]) -> dict[str, Any]:
        device, context, stream = queue
        key = device, context, stream
        name = self._descriptors.devices.queue_name(self._process, *key)
        place = placing.beside_stream(
            self._descriptors, self._process, key, BesideStream.LAUNCH_QUEUE
        )
        return {"name": f"launch queue, {name}", **place}

    def _copy_track(self, copies: tuple[int, ...]) -> dict[str, Any]:
        device, kind = copies
        name = f"copy bandwidth, device {device}: {label(MEMCPY_KINDS, kind)}"
        return {"name": name, **placing.behind_streams(device)}


class MemoryCounters:
    """The memory of a process, by device and kind. ``count`` is the number of its allocations and releases."""

    def __init__(
        self, descriptors: Descriptors, process: int, span: tuple[int, int], count: int
    ) -> None:
        description = "Bytes allocated since the capture began and not released"
        of = descriptors, process, span, description, "bytes"
        self._counters = CounterSet(*of, peaks=True, changes=count)
        self._on_gpus = CounterSet(*of, peaks=True, changes=count)
        # The number of each device and kind, and of each device with memory in the GPU.
        self._held: dict[tuple[int, int], int] = {}
        self._gpus: dict[int, int] = {}

    def add(self, rows: np.ndarray, kinds: np.ndarray, first: np.ndarray) -> None:
        """Add rows of ``allocations``. ``kinds`` has the number of each row's combination of device, kind of memory and
        operation, and ``first`` a row of each combination."""
        held = []
        gpus = []
        factors = []
        fields = rows[["device", "memory", "operation"]]
        for device, memory, operation in fields[first].tolist():
            number = self._held.setdefault((device, memory), len(self._held))
            held.append(number)
            factors.append(_FACTORS.get(operation, 0))
            gpu = _NONE
            if memory in _IN_GPU:
                gpu = self._gpus.setdefault(device, len(self._gpus))
            gpus.append(gpu)
        signs = np.array(factors, np.int64)
        changes = signs, rows["time"], rows["bytes"]
        of_kinds = self._counters.numbers(len(self._held))[held]
        of_gpus = np.array(gpus, np.uint32)
        of_gpus[of_gpus >= Levels.MOST] = _NONE
        sums = self._on_gpus.levels, of_gpus
        self._counters.levels.add(kinds, of_kinds, *changes, sums)

    def on_gpus(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each device, the times and values of all memory in the GPU."""
        for device, number in self._gpus.items():
            if number < Levels.MOST:
                yield device, *self._on_gpus.all_values(number)

    def rows(self, until: int) -> np.ndarray:
        """The values before ``until`` (ns) that no earlier call returned, as rows of :data:`COUNTED`."""
        place = placing.in_memory(0)
        tracks = []
        for device, memory in self._held:
            name = f"memory in use, device {device}: {label(MEMORY_KINDS, memory)}"
            tracks.append({"name": name, **place})
        return self._counters.rows(tracks, until)
