"""When the work of the GPU was launched, and by which thread: the API call with its correlation id.

Only the newest ``2**CALL_BITS`` calls are remembered, so memory does not grow with the capture. Work waits for far
fewer launches: the queues of a GPU are full after some thousand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from ...._native import Calls
from ....runbin import BlockInfo

#: The number of calls that are remembered, as a power of two, and how many are read at a time.
CALL_BITS = 17
STEP = 1 << 16


#: Gives the rows of a block with known times, and the others.
ReadBlock = Callable[[BlockInfo], tuple[np.ndarray, np.ndarray]]


class LaunchIndex:
    """The API calls of one process, read along with the work that they launched. ``infos`` are the blocks of
    ``api_calls`` in rising time; without any, nothing is known of launches."""

    def __init__(self, read: ReadBlock, infos: list[BlockInfo]) -> None:
        self._read = read
        self._unread = deque(infos)
        #: The remembered calls, and what each launched.
        self.calls = Calls(CALL_BITS)
        # Of the calls that are remembered: when they began and their threads, by block.
        self._newest: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._count = 0
        #: Calls that began before this moment (ns) are forgotten.
        self.horizon = 0
        self.known = bool(infos)

    def steps(self, until: int) -> Iterator[tuple[int, list[BlockInfo]]]:
        """The calls that begin before a moment, in steps: moments, each with blocks to :meth:`read` before the work up
        to there is added. The last moment is ``until``."""
        blocks: list[BlockInfo] = []
        while self._unread and self._unread[0].first_time < until:
            if sum(info.rows for info in blocks) > STEP:
                yield self._unread[0].first_time, blocks
                blocks = []
            blocks.append(self._unread.popleft())
        yield until, blocks

    def read(self, info: BlockInfo) -> None:
        """Remember the calls of a block."""
        rows = self._read(info)[0]
        if not len(rows):
            return
        self.calls.add(rows["correlation"], rows["start"], rows["thread"])
        self._newest.append((rows["start"].copy(), rows["thread"].copy()))
        self._count += len(rows)
        while self._count - len(self._newest[0][0]) > 1 << CALL_BITS:
            starts = self._newest.popleft()[0]
            self._count -= len(starts)
            self.horizon = max(self.horizon, int(starts.max()))

    def any_in(self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Which of these stretches of time contain a remembered call of their thread."""
        found = np.zeros(len(threads), bool)
        if not self._newest:
            return found
        times, owners = (np.concatenate(columns) for columns in zip(*self._newest, strict=True))
        for thread in np.unique(threads).tolist():
            calls = np.sort(times[owners == thread])
            mine = threads == thread
            found[mine] = np.searchsorted(calls, starts[mine]) < np.searchsorted(calls, ends[mine], "right")
        return found
