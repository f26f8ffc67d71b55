"""NVTX ranges projected onto streams.

On each stream with work of a range (:mod:`cutrace.trace.projection`), the range becomes one slice, from the first start
to the last end of the work.
"""

from __future__ import annotations

import numpy as np

from ....runbin import BlockInfo
from ....runbin.layout import TABLES
from ....trace.launches import LaunchCalls, ReadBlock
from ....trace.projection import Projection
from ....trace.ranges import BlockRanges, RangesBy
from ....trace.rows import chosen, joined
from ..gpu_styles import KeyIndex
from ..gpu_tables import QUEUE_FIELDS
from ..host_tables import PROJECTED, Spool

_RANGE = TABLES["nvtx_ranges"]
_KEPT = (PROJECTED.offsets.keys() & _RANGE.offsets.keys()) - {"start", "end"}

#: The number of slices in a block of the spool.
_SPOOLED = 1 << 14


class RangesOnStreams(BlockRanges):
    """The ranges of one process. NVTX ranges with work are put into a spool of :data:`PROJECTED`."""

    def __init__(
        self,
        read: ReadBlock,
        infos: list[BlockInfo],
        by: RangesBy,
        queues: KeyIndex,
        spool: Spool,
    ) -> None:
        super().__init__(read, infos, by)
        self._queues = queues
        self._spool = spool
        self._projection = Projection()
        # The NVTX ranges in the projection, and their numbers, which ascend.
        self._ranges: list[np.ndarray] = []
        self._numbers: list[np.ndarray] = []
        self._count = 0

    @property
    def active(self) -> bool:
        """Whether there are NVTX ranges that may get work."""
        return bool(self._ranges) or any(
            info.table == "nvtx_ranges" for info in self.unread
        )

    def add(self, table: str, rows: np.ndarray) -> None:
        super().add(table, rows)
        if table != "nvtx_ranges" or not len(rows):
            return
        numbers = self._count + np.arange(len(rows))
        self._count += len(rows)
        self._ranges.append(rows)
        self._numbers.append(numbers)
        self._projection.add(
            rows["thread"], rows["domain"], rows["start"], rows["end"], numbers
        )

    def launch(
        self,
        calls: LaunchCalls,
        queue: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        """Add GPU work with its calls, after its ranges."""
        self._projection.launch(calls, queue, start, end)

    def settle(self, until: int | None) -> None:
        """Put ranges that get no more work into the spool, and forget them. All work that starts before ``until`` was
        added; all work, if it is None."""
        before, work = self._projection.take(until)
        if until is not None and not before:
            return
        ranges = joined(_RANGE.dtype, self._ranges)
        numbers = joined(np.dtype(np.int64), self._numbers)
        at = np.searchsorted(numbers, work.number)
        # Ranges with the same work nest as on the host: by start, then by length, longer ranges first. If ranges have
        # equal times, the inner range has the greater depth or was written first.
        order = np.lexsort(
            (-at, ranges["depth"][at], -work.end, work.start, -work.last, work.first)
        )
        for first in range(0, len(order), _SPOOLED):
            part = order[first : first + _SPOOLED]
            rows = np.zeros(len(part), PROJECTED.dtype)
            of_rows = chosen(ranges, at[part])
            for name in _KEPT:
                rows[name] = of_rows[name]
            rows["adopted"] = work.kinds[part]
            rows["start"] = work.first[part]
            rows["end"] = work.last[part]
            streams = np.array([*self._queues.keys, (0, 0, 0)], np.uint32)
            streams = streams.take(work.queue[part], axis=0)
            for column, name in enumerate(QUEUE_FIELDS):
                rows[name] = streams[:, column]
            self._spool.add(PROJECTED, rows)
        self._ranges.clear()
        self._numbers.clear()
        if until is not None:
            kept = ranges["end"] >= before
            self._ranges.append(chosen(ranges, kept))
            self._numbers.append(numbers[kept])
