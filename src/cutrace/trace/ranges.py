"""The ranges that a launch belongs to. All code that finds the GPU work of a range uses this module, so all results
agree.

Domains are independent of each other. In a domain, a launch at time t by thread T belongs to the innermost range of T
with start <= t < end. A range without an end lasts to the end of its process. If T has no open range of the domain at
t, and exactly one other thread of its process has one, the innermost range of that thread adopts the launch. If several
threads have one, the launch belongs to no range. docs/concepts.md describes the rule.

The ranges around the innermost one contain the launch, too. The ranges of a thread in a domain are called a nest. A
launch belongs to a set of nests, at most one for each domain, and is in all ranges of these nests that are open at t.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .._native import Keys, RangeThreads
from ..runbin.blocks import BlockInfo
from ..runbin.layout import HOST_SLICE_KINDS
from .rows import by_value, distinct, spanned, with_open

#: The ways in which a launch belongs to ranges: to ranges of its own thread (OWN), or of the only thread with an open
#: range (ADOPTED). It belongs to no range if several threads have an open range (SEVERAL), or no thread has (NONE). If
#: domains differ, the first of OWN, ADOPTED, SEVERAL and NONE counts.
OWN = RangeThreads.OWN
ADOPTED = RangeThreads.ADOPTED
SEVERAL = RangeThreads.SEVERAL
NONE = RangeThreads.NONE

#: Whether ranges adopt launches of other threads, or contain launches of their own thread only.
RangesBy = Literal["adopted", "own"]

#: The tables with ranges.
RANGE_TABLES = ("nvtx_ranges", "host_slices")

#: The domain of host slices that are no ranges.
NO_DOMAIN = 0xFFFFFFFF

_KINDS = {name: number for number, name in HOST_SLICE_KINDS.items()}
_ANNOTATION = _KINDS["annotation"]

#: The levels of slices of the host and of API calls: see :func:`levels_of`. On a thread, NVTX ranges contain slices of
#: the host, and these contain calls. Calls of the runtime contain calls of the driver, and both contain calls of the
#: system.
LEVEL_OF_SLICES = 0x800
LEVEL_OF_CALLS = LEVEL_OF_SLICES + 2


def are_ranges(table: str, rows: Any) -> np.ndarray:
    """A mask of the rows of a table of :data:`RANGE_TABLES` (an array, or columns by name) that are ranges: all NVTX
    ranges, and annotations on threads, which take the place of NVTX ranges in traces of other tools. A start/end range
    belongs to the thread that started it."""
    if table == "nvtx_ranges":
        return np.ones(len(rows), bool)
    mask: np.ndarray = rows["kind"] == _ANNOTATION
    mask &= rows["track"] == 0
    return mask


def domains_of(table: str, rows: Any) -> np.ndarray:
    """The domain of each row of a table of :data:`RANGE_TABLES`, as the string id of its name (uint32);
    :data:`NO_DOMAIN` for rows that are no ranges. Annotations are in the default domain."""
    if table == "nvtx_ranges":
        return rows["domain"]
    return np.where(are_ranges(table, rows), 0, NO_DOMAIN).astype(np.uint32)


def levels_of(table: str, rows: Any) -> np.ndarray:
    """The level (uint16) of each row of a table of :data:`RANGE_TABLES`. Of rows with equal times, the outer row has
    the lower level."""
    if table == "nvtx_ranges":
        depth: np.ndarray = np.minimum(rows["depth"], LEVEL_OF_SLICES - 1)
        return depth
    kind = rows["kind"]
    levels = np.full(len(rows), LEVEL_OF_SLICES + 1, np.uint16)
    levels[kind == _ANNOTATION] = LEVEL_OF_SLICES
    levels[kind == _KINDS["python"]] = LEVEL_OF_SLICES
    levels[kind == _KINDS["system call"]] = LEVEL_OF_CALLS + 2
    return levels


def nest_numbers(threads: np.ndarray, domains: np.ndarray) -> np.ndarray:
    """The numbers (uint64) of the nests of these threads and domains."""
    high = threads.astype(np.uint64) << np.uint64(32)
    return high | domains.astype(np.uint64)


def nest_threads(nests: np.ndarray) -> np.ndarray:
    """The threads of nests with these numbers."""
    return nests >> np.uint64(32)


def nest_number(thread: int, domain: int) -> int:
    """The number of a nest."""
    return thread << 32 | domain


class Nest(NamedTuple):
    """The ranges of a ``thread`` in a ``domain``. In the set of a launch, ``adopted`` says whether another thread made
    the launch."""

    thread: int
    domain: int
    adopted: bool


class _Domain:
    """The ranges of one domain, and the sets of nests that have a nest of this domain."""

    def __init__(self, adopts: bool) -> None:
        self.threads = RangeThreads(adopts)
        # ``keys`` numbers the combinations of a set without this domain, a thread, and the way of belonging. By this
        # number, ``sets`` has the set that also contains the nest of the thread.
        self.keys = Keys(3)
        self.sets: list[int] = []


class Ranges:
    """The ranges of one process. They are added in step with its launches. With ``by="own"`` no launch is adopted."""

    def __init__(self, by: RangesBy = "adopted") -> None:
        self._by = by
        self._domains: dict[int, _Domain] = {}
        #: The distinct sets of nests by number. Set 0 is empty.
        self.sets: list[tuple[Nest, ...]] = [()]
        # The nests of all sets so far, one set after another, and the index of the first nest of each set.
        self._members = np.zeros(0, np.uint64)
        self._firsts = np.zeros(2, np.int64)

    def add(self, table: str, rows: Any) -> None:
        """Add the ranges among rows of a table: an array, or columns by name, with the ends of
        :func:`.rows.with_open`."""
        columns = rows["thread"], rows["start"], rows["end"]
        domains = domains_of(table, rows)
        numbers = distinct(domains).tolist()
        for number, at in zip(numbers, by_value(domains, numbers), strict=True):
            if number == NO_DOMAIN:
                continue
            of_domain = columns
            if len(numbers) > 1:
                of_domain = tuple(column[at] for column in columns)
            if number not in self._domains:
                self._domains[number] = _Domain(self._by != "own")
            self._domains[number].threads.add(*of_domain)

    def owners(
        self, threads: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each launch, the index of its nests in :attr:`sets` (uint32), and :data:`OWN`, :data:`ADOPTED`,
        :data:`SEVERAL` or :data:`NONE`.

        All ranges that start up to the last of these times (ns) must have been added. Later calls of this method may
        have earlier times. Each domain remembers the last million starts and ends of ranges: a launch before them is in
        no range of the domain.
        """
        owner = np.zeros(len(threads), np.uint32)
        how = np.full(len(threads), NONE, np.uint8)
        for number, domain in self._domains.items():
            thread, how_here = domain.threads.find(threads, times)
            owner = self._joined(owner, number, domain, thread, how_here)
            np.minimum(how, how_here, out=how)
        return owner, how

    def _joined(
        self,
        owner: np.ndarray,
        number: int,
        domain: _Domain,
        thread: np.ndarray,
        how: np.ndarray,
    ) -> np.ndarray:
        """The sets of launches, with the nest of one more domain if a thread owns the launch there."""
        keys, new = domain.keys.ids([owner, thread, how])
        for row in new.tolist():
            joined = int(owner[row])
            way = int(how[row])
            if way <= ADOPTED:
                nest = Nest(int(thread[row]), number, way == ADOPTED)
                others = self.sets[joined]
                joined = len(self.sets)
                self.sets.append((*others, nest))
            domain.sets.append(joined)
        sets = np.array(domain.sets, np.uint32)
        return sets.take(keys)

    def members(self, owner: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray]:
        """The nests of some sets: pairs of an index in ``owner``, ascending, and the number of a nest. The indices are
        a slice if each set has one nest."""
        if len(self._firsts) <= len(self.sets):
            self._index()
        first = self._firsts.take(owner)
        last = self._firsts[1:].take(owner)
        sizes = last - first
        if (sizes == 1).all():
            return slice(None), self._members.take(first)
        if (sizes <= 1).all():
            inside = np.flatnonzero(sizes)
            return inside, self._members.take(first[inside])
        indices = np.arange(len(owner))
        places = spanned(first, last)
        return np.repeat(indices, sizes), self._members.take(places)

    def _index(self) -> None:
        """Note the nests of all sets for :meth:`members`."""
        firsts = [0]
        numbers = []
        for of_set in self.sets:
            for nest in of_set:
                number = nest_number(nest.thread, nest.domain)
                numbers.append(number)
            firsts.append(len(numbers))
        self._firsts = np.array(firsts, np.int64)
        self._members = np.array(numbers, np.uint64)

    def adopters(self) -> list[list[tuple[int, list[int]]]]:
        """By set, the threads whose ranges adopt launches, each with the domains of these ranges."""
        found = []
        for of_set in self.sets:
            domains: dict[int, list[int]] = {}
            for nest in of_set:
                if nest.adopted:
                    domains.setdefault(nest.thread, []).append(nest.domain)
            found.append(list(domains.items()))
        return found


class BlockRanges(Ranges):
    """The ranges of one process. Their blocks ``infos`` are read in step with the calls. ``read`` returns the rows of a
    block with known times, and the other rows."""

    def __init__(
        self,
        read: Callable[[BlockInfo], tuple[np.ndarray, np.ndarray]],
        infos: Sequence[BlockInfo],
        by: RangesBy,
    ) -> None:
        super().__init__(by)
        self._read = read
        self.unread = deque(sorted(infos, key=lambda info: info.first_time))

    def advance(self, until: int) -> None:
        """Add the ranges that start before a time (ns)."""
        while self.unread and self.unread[0].first_time < until:
            info = self.unread.popleft()
            table = info.table or ""
            self.add(table, with_open(table, *self._read(info)))

    def owners_of(self, calls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The owners of rows of ``api_calls``, as :meth:`owners`. Blocks of calls have to come in rising time."""
        if len(calls):
            self.advance(int(calls["start"].max()) + 1)
        return self.owners(calls["thread"], calls["start"])
