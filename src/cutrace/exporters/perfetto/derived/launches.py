"""The calls that launched GPU work, and the NVTX ranges around these calls, for the projection of ranges onto streams.

Only the newest ``2**CALL_BITS`` calls are kept, so memory does not grow with the capture. These calls are enough,
because the queues of a GPU are full after some thousand launches.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ....runbin import BlockInfo
from ....trace.launches import CallBlocks, LaunchTimes, ReadBlock
from ....trace.ranges import BlockRanges, RangesBy

#: The number of kept calls, as a power of two.
CALL_BITS = 17


class RangesAhead(BlockRanges):
    """The ranges of one process, and its NVTX ranges for the projection."""

    def __init__(self, read: ReadBlock, infos: list[BlockInfo], by: RangesBy) -> None:
        super().__init__(read, infos, by)
        self._nvtx: list[np.ndarray] = []

    @property
    def left(self) -> bool:
        """Whether there are NVTX ranges that :meth:`take` did not return."""
        return bool(self._nvtx) or any(
            info.table == "nvtx_ranges" for info in self.unread
        )

    def add(self, table: str, rows: np.ndarray) -> None:
        super().add(table, rows)
        if table == "nvtx_ranges":
            self._nvtx.append(rows)

    def take(self, until: int) -> list[np.ndarray]:
        """The NVTX ranges that start before ``until``, and some later ranges, each once."""
        self.advance(until)
        taken = self._nvtx
        self._nvtx = []
        return taken


class LaunchIndex(CallBlocks):
    """The newest calls of one process, and the nests of the calls in ranges. ``infos`` are the blocks of
    ``api_calls``."""

    def __init__(
        self, read: ReadBlock, infos: list[BlockInfo], ranges: RangesAhead
    ) -> None:
        super().__init__(read, infos, CALL_BITS, ranges)
        self._ranges_ahead = ranges
        # The starts of the kept calls, and the nests of these calls, by block.
        self._newest: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._count = 0
        #: Calls that started before this time (ns) may be forgotten.
        self.horizon = 0

    def added(self, rows: np.ndarray, owner: np.ndarray, how: np.ndarray) -> None:
        at, nests = self._ranges_ahead.members(owner)
        self._newest.append((rows["start"][at], nests))
        self._count += len(self._newest[-1][0])
        while self._count - len(self._newest[0][0]) > 1 << CALL_BITS:
            starts = self._newest.popleft()[0]
            self._count -= len(starts)
            self.horizon = max(self.horizon, int(starts.max(initial=0)))

    def any_in(
        self, nests: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """A mask of the intervals that contain a kept call of their nest."""
        return LaunchTimes(self._newest).inside(starts, ends, nests)
