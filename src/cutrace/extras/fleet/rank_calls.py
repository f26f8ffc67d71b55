"""The collective calls of a rank, read from its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...trace.intervals import Intervals
from .communicators import POINT_TO_POINT, UNKNOWN
from .model import Part, Records

# The largest number of calls in memory, about 100 bytes each.
_KEPT = 1 << 21

#: A call of a rank: start and end (ns on the wall clock), bytes (:data:`UNKNOWN` if unknown), the number of ranks of
#: the communicator (0 if unknown), and strings.
_CALL = np.dtype(
    {
        "names": [
            "start_ns",
            "end_ns",
            "bytes",
            "ranks",
            "communicator",
            "collective",
            "kind",
        ],
        "formats": [np.int64] * 4 + [object] * 3,
    }
)


class CallKey(NamedTuple):
    """The key of calls that are numbered together. It is a communicator, or the name of a kernel without a known
    communicator."""

    communicator: str
    name: str = ""

    @property
    def what(self) -> str:
        return self.name or f"communicator {self.communicator}"


@dataclass(frozen=True)
class RankCalls:
    """The collective calls of a rank (records of :data:`_CALL`) by key, in the order of their starts, and the union of
    the times in which its communication kernels ran."""

    by_key: dict[CallKey, Records]
    communication: Intervals

    @classmethod
    def read(cls, part: Part) -> RankCalls:
        table = part.table()
        calls: Records = np.zeros(len(table), _CALL).view(np.recarray)
        calls.start_ns = table["start_ns"].to_numpy()
        calls.end_ns = table["end_ns"].to_numpy()
        calls.bytes = table["bytes"].fill_null(UNKNOWN).to_numpy()
        calls.ranks = table["ranks"].fill_null(0).to_numpy()
        codes = {}
        for name in ("communicator", "collective", "kind"):
            column = table[name].combine_chunks().dictionary_encode()
            codes[name] = column.indices.to_numpy().astype(np.int64)
            known = np.array(column.dictionary.to_pylist(), object)
            calls[name] = known.take(codes[name])
        # Calls without a communicator have their name in the key.
        unknown = calls.communicator == ""
        code = codes["communicator"] << 32 | np.where(
            unknown, codes["collective"] + 1, 0
        )
        order = np.lexsort((calls.end_ns, calls.start_ns, code))
        order = order[calls.kind[order] != POINT_TO_POINT]
        by_key = {}
        for own in np.split(calls[order], np.flatnonzero(np.diff(code[order])) + 1):
            for first in own[:1]:
                key = CallKey(first.communicator)
                if not first.communicator:
                    key = CallKey("", first.collective)
                by_key[key] = own
        return cls(by_key, Intervals.union(calls.start_ns, calls.end_ns))

    def times(self, key: CallKey, base: int) -> np.ndarray:
        """Return three rows of times (ns) for the calls with a key. The first two rows are the starts and the ends
        since ``base``. The third row is the time between the previous call and the call, without the time in other
        communication kernels. It is NaN for the first call."""
        calls = self.by_key[key]
        times = np.full((3, len(calls)), np.nan)
        times[0] = calls.start_ns - base
        times[1] = calls.end_ns - base
        before = calls.end_ns[:-1]
        start = calls.start_ns[1:]
        in_others = self.communication.within(before, start)
        times[2, 1:] = start - before - in_others
        return times


class CallReader:
    """Reads the calls of parts, by index. The calls of small jobs stay in memory."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._kept: dict[int, RankCalls] = {}
        self._room = _KEPT

    def read(self, part: int) -> RankCalls:
        if part in self._kept:
            return self._kept[part]
        rank = RankCalls.read(self._parts[part])
        count = sum(map(len, rank.by_key.values()))
        if count <= self._room:
            self._room -= count
            self._kept[part] = rank
        return rank
