"""NVTX ranges in which graph nodes were created, projected onto the streams of replays.

Consecutive work of one graph launch on a stream is taken together if its nodes were created in the same ranges. It
becomes one slice for each of these ranges, from the first start to the last end of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....trace.origins import OUTSIDE, Origins
from ....trace.rows import changes, chosen, joined
from ..gpu_events import GpuPart
from ..gpu_styles import KeyIndex
from ..gpu_tables import QUEUE_FIELDS
from ..host_tables import REPLAYED, Spool

#: The largest number of rows of unfinished graph launches to keep for the next window. With more rows, slices are cut.
_KEPT = 1 << 20

_WORK = np.dtype(
    [
        ("queue", np.uint32),
        ("correlation", np.uint32),
        ("path", np.uint32),
        ("start", np.uint64),
        ("end", np.uint64),
    ]
)


class Replays:
    """The slices of the replays of one process, put into a spool of :data:`REPLAYED`. The work is added in the order of
    time."""

    def __init__(
        self, origins: Origins, process: int, queues: KeyIndex, spool: Spool
    ) -> None:
        self._process = process
        self._queues = queues
        self._spool = spool
        self._levels = origins.levels[0]
        self._waiting = np.zeros(0, _WORK)

    def add(self, parts: Sequence[GpuPart], queues: Sequence[np.ndarray]) -> None:
        """Add the work of a window. ``queues`` has the number of the stream of each row, by part."""
        new = [self._waiting]
        for part, queue in zip(parts, queues, strict=True):
            path = part.paths
            at = np.flatnonzero(path != OUTSIDE)
            work = np.empty(len(at), _WORK)
            work["queue"] = queue[at]
            work["path"] = path[at]
            for name in ("correlation", "start", "end"):
                work[name] = part.rows[name][at]
            new.append(work)
        work = joined(_WORK, new)
        work = chosen(work, np.lexsort((work["start"], work["queue"])))
        # CUPTI reports no correlation id for the bodies of conditional nodes. These nodes belong to the graph launch
        # before them.
        has_id = work["correlation"] != 0
        place = np.arange(len(work))
        known = np.maximum.accumulate(np.where(has_id, place, 0))
        work["correlation"] = work["correlation"][known]
        launch = np.cumsum(changes(work["queue"], work["correlation"]))
        # The last graph launch of each stream may go on in the next window.
        next_queue = np.flatnonzero(changes(work["queue"]))[1:]
        last = np.append(next_queue, len(work)) - 1
        waits = np.isin(launch, launch[last[last >= 0]])
        if int(waits.sum()) > _KEPT:
            waits[:] = False
        self._write(chosen(work, ~waits))
        self._waiting = chosen(work, waits)

    def finish(self) -> None:
        """Write the slices of the work that waits."""
        self._write(self._waiting)
        self._waiting = self._waiting[:0]

    def _write(self, work: np.ndarray) -> None:
        """Write the slices of work that is sorted by stream and time."""
        if not len(work):
            return
        # Another thread may add streams.
        queues = np.array([*self._queues.keys], np.uint32)
        streams = queues.take(work["queue"], axis=0)
        begins = changes(work["queue"], work["correlation"])
        levels = self._levels[work["path"]]
        made = []
        for depth in range(levels.shape[1]):
            begins |= changes(levels[:, depth])
            at = np.flatnonzero(begins)
            rows = np.zeros(len(at), REPLAYED.dtype)
            rows["range"] = levels[at, depth]
            rows["start"] = work["start"][at]
            rows["end"] = np.maximum.reduceat(work["end"], at)
            for column, name in enumerate(QUEUE_FIELDS):
                rows[name] = streams[at, column]
            rows["process"] = self._process
            made.append(chosen(rows, rows["range"] != 0))
        # The outer one of slices with equal times comes first.
        if made:
            self._spool.add(REPLAYED, joined(REPLAYED.dtype, made))
