"""The launch time of GPU work, from the API call with its correlation id, and the thread whose NVTX ranges it is in.

Only the newest ``2**CALL_BITS`` calls are kept, so memory does not grow with the capture. These are enough, because the
queues of a GPU are full after some thousand launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from ...._native import Calls
from ....runbin import BlockInfo
from ....trace.ranges import ADOPTED, BlockRanges, RangesBy
from ....trace.rows import distinct

#: The number of kept calls, as a power of two, and the number of calls to read in one step.
CALL_BITS = 17
STEP = 1 << 16


#: Returns the rows of a block with known times, and the rows without.
ReadBlock = Callable[[BlockInfo], tuple[np.ndarray, np.ndarray]]


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
        """The NVTX ranges that start before ``until``, and some later ones, each once."""
        self.advance(until)
        taken = self._nvtx
        self._nvtx = []
        return taken


class LaunchIndex:
    """The API calls of one process, read in step with the work that they launched. ``infos`` are the blocks of
    ``api_calls`` in rising time, ``ranges`` tells the ranges of a call. ``known`` is false without any."""

    def __init__(
        self, read: ReadBlock, infos: list[BlockInfo], ranges: RangesAhead
    ) -> None:
        self._read = read
        self._ranges = ranges
        self._unread = deque(infos)
        #: The kept calls, and the work of each.
        self.calls = Calls(CALL_BITS)
        # The starts of the kept calls, and the threads whose ranges they are in, by block.
        self._newest: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._count = 0
        #: Calls that began before this time (ns) may be forgotten.
        self.horizon = 0
        self.known = bool(infos)

    def steps(self, until: int) -> Iterator[tuple[int, list[BlockInfo]]]:
        """The calls that begin before ``until``, in steps. A step is a time, and the blocks to :meth:`read` before
        adding work up to that time. The last time is ``until``."""
        blocks: list[BlockInfo] = []
        while self._unread and self._unread[0].first_time < until:
            if sum(info.rows for info in blocks) > STEP:
                yield self._unread[0].first_time, blocks
                blocks = []
            blocks.append(self._unread.popleft())
        yield until, blocks

    def read(self, info: BlockInfo) -> None:
        """Add the calls of a block."""
        rows = self._read(info)[0]
        if not len(rows):
            return
        owner, how = self._ranges.owners_of(rows)
        self.calls.add(
            rows["correlation"], rows["start"], rows["thread"], owners=owner, how=how
        )
        in_range = how <= ADOPTED
        self._newest.append((rows["start"][in_range], owner[in_range]))
        self._count += len(self._newest[-1][0])
        while self._count - len(self._newest[0][0]) > 1 << CALL_BITS:
            starts = self._newest.popleft()[0]
            self._count -= len(starts)
            self.horizon = max(self.horizon, int(starts.max(initial=0)))

    def any_in(
        self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """Which of these intervals contain a kept call that is in ranges of their thread, as a mask."""
        mask = np.zeros(len(threads), bool)
        if not self._newest:
            return mask
        times, owners = (
            np.concatenate(columns) for columns in zip(*self._newest, strict=True)
        )
        for thread in distinct(threads).tolist():
            calls = np.sort(times[owners == thread])
            mine = threads == thread
            mask[mine] = np.searchsorted(calls, starts[mine]) < np.searchsorted(
                calls, ends[mine]
            )
        return mask
