"""The collective calls of a rank, as its part has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .communicators import POINT_TO_POINT, UNKNOWN
from .model import Part

# Calls that stay in memory, of some 100 bytes each.
_KEPT = 1 << 21


class CallKey(NamedTuple):
    """What numbers calls: a communicator, or the name of a kernel whose communicator is not known."""

    communicator: str
    name: str = ""

    @property
    def what(self) -> str:
        if self.name:
            return self.name
        return f"communicator {self.communicator}"


@dataclass(frozen=True)
class OwnCalls:
    """The calls of a rank with one key, in the order of their starts (ns on the wall clock). ``names`` and ``kinds``
    are strings, ``bytes`` are -1 where unknown. ``ranks`` is the number of ranks of the communicator, 0 if unknown."""

    start: np.ndarray
    end: np.ndarray
    names: np.ndarray
    kinds: np.ndarray
    bytes: np.ndarray
    ranks: int

    def __len__(self) -> int:
        return len(self.start)

    def chosen(self, mask: np.ndarray) -> OwnCalls:
        """The calls that a mask selects."""
        names = self.names[mask]
        kinds = self.kinds[mask]
        size = self.bytes[mask]
        return OwnCalls(
            self.start[mask], self.end[mask], names, kinds, size, self.ranks
        )


@dataclass(frozen=True)
class Union:
    """Times (ns) that no longer overlap, ascending, and the sum of those before each."""

    start: np.ndarray
    end: np.ndarray
    before: np.ndarray

    @classmethod
    def of(
        cls,
        start: np.ndarray,
        end: np.ndarray,
    ) -> Union:
        order = np.argsort(start, kind="stable")
        start = start[order]
        latest = np.maximum.accumulate(end[order])
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > latest[:-1]
        last = np.roll(first, -1)
        start = start[first]
        end = latest[last]
        before = np.cumsum(end - start) - (end - start)
        return cls(
            start,
            end,
            before,
        )

    def until(self, times: np.ndarray) -> np.ndarray:
        """The time in the union before each time."""
        at = (
            np.searchsorted(
                self.start,
                times,
                "right",
            )
            - 1
        )
        inside = np.minimum(times, self.end[at]) - self.start[at]
        amount: np.ndarray = np.where(
            at >= 0,
            self.before[at] + inside,
            0,
        )
        return amount


@dataclass(frozen=True)
class RankCalls:
    """The collective calls of a rank by key, and the time in which any communication kernel ran."""

    by_key: dict[CallKey, OwnCalls]
    communication: Union

    @classmethod
    def read(cls, part: Part) -> RankCalls:
        table = part.table()
        start = table["start_ns"].to_numpy()
        end = table["end_ns"].to_numpy()
        union = Union.of(start, end)
        if not len(start):
            return cls({}, union)
        texts = {}
        codes = {}
        for name in ("communicator", "collective", "kind"):
            column = table[name].combine_chunks().dictionary_encode()
            codes[name] = column.indices.to_numpy().astype(np.int64)
            known = np.array(column.dictionary.to_pylist(), object)
            texts[name] = known.take(codes[name])
        unknown = texts["communicator"] == ""
        # The name is in the key of calls without a communicator.
        name_code = np.where(
            unknown,
            codes["collective"] + 1,
            0,
        )
        code = codes["communicator"] << 32 | name_code
        order = np.lexsort((end, start, code))
        order = order[(texts["kind"] != POINT_TO_POINT)[order]]
        size = table["bytes"].fill_null(UNKNOWN).to_numpy()
        ranks = table["ranks"].fill_null(0).to_numpy()
        by_key = {}
        for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
            if not len(rows):
                continue
            first = rows[0]
            key = CallKey(texts["communicator"][first])
            if unknown[first]:
                key = CallKey("", texts["collective"][first])
            by_key[key] = OwnCalls(
                start[rows],
                end[rows],
                texts["collective"][rows],
                texts["kind"][rows],
                size[rows],
                int(ranks[first]),
            )
        return cls(by_key, union)

    def own_time(self, key: CallKey) -> np.ndarray:
        """For each call, the time from the end of the call before it to its start, less that in other communication
        kernels; NaN for the first call."""
        calls = self.by_key[key]
        time = np.full(len(calls), np.nan)
        before = calls.end[:-1]
        start = calls.start[1:]
        until = self.communication.until
        time[1:] = start - before - (until(start) - until(before))
        return time


class CallReader:
    """Reads the calls of parts, by index. Those of small jobs stay in memory."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._kept: dict[int, RankCalls] = {}
        self._room = _KEPT

    def read(self, part: int) -> RankCalls:
        known = self._kept.get(part)
        if known is not None:
            return known
        rank = RankCalls.read(self._parts[part])
        count = sum(map(len, rank.by_key.values()))
        if count <= self._room:
            self._room -= count
            self._kept[part] = rank
        return rank
