"""Counters that are derived from records: what work and memory there was at each moment.

* *launch queue* of a stream: work that was launched and is not finished;
* *copy bandwidth* of a device, by kind of copy: the sum over the copies that run;
* *memory* of a device, by kind: what was allocated since the capture began and is not released.

Up to :data:`EXACT` changes, all values of the counters of one sort are in the trace. Beyond that, each counter has a
value for each of up to ``2**BITS`` equal parts of the time: its mean, for memory its highest value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._native import Tally
from ...runbin.labels import MEMCPY_KINDS, MEMORY_KINDS, label
from .devices import Devices
from .gpu import Part
from .naming import DERIVED, Numbers
from .numbered import Numbered
from .output import Output
from .sequence import Sequence
from .streams import Chunk, Stream, counter_template
from .template import Columns
from .tracks import counter
from .values import counted

BITS = 12
EXACT = 1 << 16

_NONE = (1 << 32) - 1


class Gauge:
    """Counters of one sort, by number. ``name`` is what one is called, ``meaning`` what they count; ``peaks`` chooses
    the highest values where not all can be shown. Numbers beyond as many as a :class:`Tally` holds have no counter."""

    def __init__(
        self, first: int, last: int, name: Callable[[int], str], meaning: str, *, unit: str = "", peaks: bool = False
    ) -> None:
        self._name, self._meaning, self._unit, self._peaks = name, meaning, unit, peaks
        self._counters = np.zeros(0, np.uint32)
        self.tally = Tally(first, last, BITS, EXACT)

    def counters(self, count: int) -> np.ndarray:
        """By number, the counter of the tally (2**32 - 1: none), for numbers up to a count."""
        if len(self._counters) < count:
            numbers = np.arange(count, dtype=np.uint32)
            self._counters = np.where(numbers < Tally.MOST, numbers, np.uint32(_NONE))
        return self._counters

    def write(self, tracks: CounterTracks) -> None:
        """Write all counters."""
        for number in range(min(len(self._counters), Tally.MOST)):
            times, values, highest, exact = self.tally.values(number)
            if not exact and len(times):
                values = highest if self._peaks else values
                # A value holds until the next one.
                kept = np.append(values[0] != 0, values[1:] != values[:-1])
                times, values = times[kept], values[kept]
            if len(times):
                described = {"name": self._name(number), "description": self._meaning}
                tracks.write(described | {"counter": counter(self._unit, DERIVED)}, times, values)


class CounterTracks:
    """Writes counters that are there as a whole, each on a track below its process."""

    def __init__(self, uuid: int, numbers: Numbers, output: Output) -> None:
        self._uuid, self._numbers, self._output = uuid, numbers, output

    def write(self, described: dict[str, Any], times: np.ndarray, values: np.ndarray) -> None:
        """Write one counter, as its ``TrackDescriptor`` has it: its values from moments (ns, rising) on."""
        uuid = self._numbers.uuid()
        sequence = Sequence(self._numbers.sequence(), self._output, {"track_event_defaults": {"track_uuid": uuid}})
        sequence.anchor(int(times[0]))
        sequence.packet({"track_descriptor": {"uuid": uuid, "parent_uuid": self._uuid, **described}})
        whole, values = counted(values)
        columns: Columns = {"time": times, "value": values, **self._output.prefixed}
        offsets, clock = np.array([0, len(times)], np.uint32), np.array([sequence.time], np.uint64)
        self._output.events(
            [counter_template(whole).bind(columns)], offsets, np.array([sequence.piece], np.uint32), clock
        )
        sequence.time = int(clock[0])


class WorkGauges:
    """The counters of GPU work of one process. ``queues`` numbers its streams."""

    def __init__(self, process: int, devices: Devices, queues: Numbered, first: int, last: int) -> None:
        self._queues, self._copies = queues, Numbered("device", "kind")
        self._depth = Gauge(
            first,
            last,
            lambda q: f"launch queue, {devices.queue_name(process, *queues.keys[q])}",
            "Work that was launched and is not finished",
        )
        self._bandwidth = Gauge(first, last, self._name_of_copies, "The sum over the copies that run", unit="bytes/s")

    @property
    def depth(self) -> tuple[Tally, np.ndarray]:
        """What counts the work that was launched and is not finished, and its counter for each stream."""
        return self._depth.tally, self._depth.counters(len(self._queues.keys))

    def add(self, part: Part) -> None:
        """Note work."""
        bandwidth = part.computed("bandwidth")
        if bandwidth is not None:
            kinds = self._copies.of(part.block.writer.styles).take(part.styles)
            counters = self._bandwidth.counters(len(self._copies.keys))
            self._bandwidth.tally.add_stretches(kinds, counters, part.rows["start"], part.rows["end"], bandwidth)

    def write(self, tracks: CounterTracks) -> None:
        """Write all counters."""
        self._depth.write(tracks)
        self._bandwidth.write(tracks)

    def _name_of_copies(self, number: int) -> str:
        device, kind = self._copies.keys[number]
        return f"copy bandwidth, device {device}: {label(MEMCPY_KINDS, kind)}"


class MemoryGauge:
    """Memory that a process holds, by device and kind."""

    def __init__(self, first: int, last: int) -> None:
        meaning = "Allocated since the capture began, less what was released since"
        self._gauge = Gauge(first, last, self._name, meaning, unit="bytes", peaks=True)
        self._held: dict[tuple[int, int], int] = {}
        self._stream: Stream | None = None
        self._numbers, self._factors = [0], [0]  # by combination of the stream

    def add(self, chunk: Chunk) -> None:
        """Note rows of ``allocations``."""
        if chunk.stream is not self._stream:
            self._stream, self._numbers, self._factors = chunk.stream, [], []
        for key in chunk.stream.keys[len(self._numbers) :]:
            held = key["device"], key["memory"]
            self._numbers.append(self._held.setdefault(held, len(self._held)))
            self._factors.append({1: 1, 2: -1}.get(key["operation"], 0))
        counters = self._gauge.counters(len(self._held))[self._numbers]
        factors = np.array(self._factors, np.int64)
        self._gauge.tally.add(chunk.combinations, counters, factors, chunk.rows["time"], chunk.rows["bytes"])

    def write(self, tracks: CounterTracks) -> None:
        """Write all counters."""
        self._gauge.write(tracks)

    def _name(self, number: int) -> str:
        device, memory = list(self._held)[number]
        return f"memory in use, device {device}: {label(MEMORY_KINDS, memory)}"
