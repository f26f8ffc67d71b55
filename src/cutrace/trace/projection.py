"""The GPU work launched in slices of the host: NVTX ranges, operators.

Work belongs to every slice of the launching thread that is open at the start of the launching call. It also belongs to
every open range in the nests that :class:`.ranges.Ranges` names. The projection of a slice onto the GPU is the time
from the first start to the last end of its work, as in Nsight Systems.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._native import Projections
from .launches import LaunchCalls
from .ranges import NO_DOMAIN, nest_numbers, nest_threads

#: The number of slices of a process that are kept after their end. Work is not matched if more slices end between its
#: launch and its start.
KEPT = 1 << 17

#: The kinds of work of a slice, as bits: work that its own thread launched, and work that it adopted.
OWN_WORK = 1
ADOPTED_WORK = 2


class SliceWork(NamedTuple):
    """The GPU work of slices on a queue, as parallel arrays: the number of the slice, its start and its end (ns), the
    queue, the first start and the last end of the work (ns), the number of pieces, the sum of their times (ns), and
    their kinds."""

    number: np.ndarray
    start: np.ndarray
    end: np.ndarray
    queue: np.ndarray
    first: np.ndarray
    last: np.ndarray
    operations: np.ndarray
    gpu_ns: np.ndarray
    kinds: np.ndarray


class Projection:
    """Slices of one process, and the GPU work launched in them."""

    def __init__(self) -> None:
        self._slices = Projections(KEPT)
        self._of_threads = False

    def add(
        self,
        thread: np.ndarray,
        domain: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
        number: np.ndarray,
    ) -> None:
        """Add slices before the work in them: parallel arrays. ``domain`` is a result of :func:`.ranges.domains_of`."""
        if not self._of_threads:
            self._of_threads = bool((domain == NO_DOMAIN).any())
        homes = nest_numbers(thread, domain)
        self._slices.add(homes, start, end, number.astype(np.int64))

    def launch(
        self,
        calls: LaunchCalls,
        queue: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
        *,
        pairs: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add GPU work with its calls. With ``pairs``, return the number of the range and the index of the work for
        each piece of work in a range."""
        at, nests = calls.nests
        adopted = nest_threads(nests) != calls.thread[at]
        kinds = np.where(adopted, ADOPTED_WORK, OWN_WORK).astype(np.uint8)
        found = self._slices.launch(
            nests, calls.start[at], queue[at], start[at], end[at], kinds, pairs
        )
        if self._of_threads:
            known = np.flatnonzero(calls.known)
            thread = calls.thread[known]
            homes = nest_numbers(thread, np.full(len(thread), NO_DOMAIN))
            self._slices.launch(
                homes,
                calls.start[known],
                queue[known],
                start[known],
                end[known],
                np.full(len(known), OWN_WORK, np.uint8),
            )
        if found is None:
            return (np.zeros(0, np.int64), np.zeros(0, np.intp))
        number, row = found
        if not isinstance(at, slice):
            row = at[row]
        return number, row

    def take(self, until: int | None = None) -> tuple[int, SliceWork]:
        """Remove the slices that ended before a time (ns), except the newest :data:`KEPT`, or with None all slices.
        Does nothing while there are few. Returns the time before which the removed slices ended, and their work."""
        before, columns = self._slices.take(until)
        return before, SliceWork(*columns)
