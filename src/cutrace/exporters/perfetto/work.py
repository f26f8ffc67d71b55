"""The GPU's side of one process, in the order of time.

GPU work is written in windows: of all tables, what begins before a moment. So whatever follows from more than one
table (which range a kernel was launched in, which event it waited for) is there when an event is written, and memory is
bounded by the window and not by the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ...runbin import BlockInfo
from .gauges import WorkGauges
from .gpu import Block, GpuWriter, Part
from .launched import Launches
from .numbered import Numbered
from .projection import Projection
from .waits import Waits

#: Bytes of rows that are read for a window, and that may wait for later ones.
WINDOW_BYTES = 1 << 20
KEPT_BYTES = 32 << 20

NEVER = (1 << 64) - 1

Writers = dict[str, GpuWriter]


def windows(
    infos: Iterable[BlockInfo],
    writers: Writers,
    read: Callable[[BlockInfo], np.ndarray],
    shift: int,
    steps: Callable[[int], Iterator[int]],
) -> Iterator[tuple[int, Sequence[Part]]]:
    """The work of a process in windows of rising time: (the moment that it begins before, rows by block). ``shift`` is
    what times in the headers lack to the clock of the trace; ``steps`` gives moments before another at which to stop.

    Blocks that reach too far ahead are taken whole, in the window in which they are read.
    """
    live: list[Block] = []
    size, kept = 0, 0
    ordered = sorted(infos, key=lambda info: info.first_time)
    for number, info in enumerate(ordered, 1):
        rows = read(info)
        if len(rows):
            live.append(writers[info.table or ""].block(rows))
        size += info.payload_size
        kept += info.payload_size
        if size < WINDOW_BYTES and number < len(ordered):
            continue
        until = ordered[number].first_time + shift if number < len(ordered) and kept < KEPT_BYTES else NEVER
        for moment in steps(until):
            parts = [block.writer.part(block, moment) for block in live if block.written < len(block.rows)]
            yield moment, [part for part in parts if len(part)]
            del parts  # they hold their blocks
        live = [block for block in live if block.written < len(block.rows)]
        size, kept = 0, sum(block.rows.nbytes for block in live)


class Work:
    """Writes the GPU work of one process, and finds what follows from it."""

    def __init__(
        self, queues: Numbered, launches: Launches, projection: Projection, waits: Waits, gauges: WorkGauges
    ) -> None:
        self._queues, self._launches = queues, launches
        self._projection, self._waits, self._gauges = projection, waits, gauges

    def write(self, until: int, parts: Sequence[Part]) -> None:
        """Write one window."""
        queues = [self._queues.of(part.block.writer.styles).take(part.styles) for part in parts]
        self._projection.advance(until)
        for part, queue in zip(parts, queues, strict=True):
            self._gauges.add(part)
            if self._launches.known:
                self._launches.note(part, queue, *self._gauges.depth, wanted=self._projection.active)
        self._projection.settle(until)
        for part, waits in zip(parts, self._waits.window(parts, queues), strict=True):
            part.block.writer.write(part, waits)
