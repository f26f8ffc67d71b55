"""How numbers are spread, group by group, over any number of them in bounded memory.

Numbers come in pieces. Counts, sums, least and greatest are exact; the mean and the deviation are as exact as floating
point is; quantiles come from a histogram whose bins hold one number each below 2,048 and are 1/1,024 of their number
wide above, so a quantile is exact up to there and within 0.05 % beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .._native import Keys

#: A quantile is within this share of the true one.
QUANTILE_ERROR = 0.0005

# A bin is a float32 without its last bits: ten of the mantissa stay.
_DROPPED_BITS = 13
# Sums are kept as multiples of 2^32 and a rest. So many numbers of this size add up exactly in floating point.
_WORD = 32
_SMALL = 1 << 37
_PIECE = 1 << 16


@dataclass(frozen=True)
class Spread:
    """The numbers of one group: ``std`` is the deviation of a sample (0 for one number), ``q3`` the third quartile.
    The unit is that of the numbers. Without any number all is 0."""

    count: int = 0
    total: int = 0
    mean: float = 0.0
    median: float = 0.0
    min: int = 0
    max: int = 0
    std: float = 0.0
    q3: float = 0.0


#: The spread of no numbers.
NOTHING = Spread()


class Distributions:
    """The spread of integers (0 <= number < 2^63) in each of the groups 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._count = np.zeros(0, np.int64)
        self._high = np.zeros(0, np.int64)
        self._low = np.zeros(0, np.int64)
        self._mean = np.zeros(0)
        self._squares = np.zeros(0)  # of the differences from the mean
        self._min = np.zeros(0, np.int64)
        self._max = np.zeros(0, np.int64)
        self._bins = Keys(2)
        self._bin_group: list[np.ndarray] = []
        self._bin_code: list[np.ndarray] = []
        self._bin_count = np.zeros(0, np.int64)

    def add(self, groups: np.ndarray, values: np.ndarray) -> None:
        """Take in one number for each element of ``groups``, parallel arrays of integers."""
        for at in range(0, len(values), _PIECE):
            self._add(groups[at : at + _PIECE], values[at : at + _PIECE])

    def _add(self, groups: np.ndarray, values: np.ndarray) -> None:
        groups, values = groups.astype(np.intp, copy=False), values.astype(np.int64, copy=False)
        numbers = values.astype(np.float64)
        count = np.bincount(groups)
        self._grow(len(count))
        here = slice(len(count))
        # bincount() adds in floating point: exact, since 2^16 numbers below 2^37 stay below 2^53.
        if int(values.max()) < _SMALL:
            total = np.bincount(groups, weights=numbers)
            self._low[here] += total.astype(np.int64)
        else:
            total = np.bincount(groups, weights=numbers)
            self._low[here] += np.bincount(groups, weights=values & (2**_WORD - 1)).astype(np.int64)
            self._high[here] += np.bincount(groups, weights=values >> _WORD).astype(np.int64)
        self._high[here] += self._low[here] >> _WORD
        self._low[here] &= 2**_WORD - 1
        self._deviate(groups, numbers, count, total)
        np.minimum.at(self._min, groups, values)
        np.maximum.at(self._max, groups, values)
        self._count[here] += count
        self._histogram(groups, values)

    def _deviate(self, groups: np.ndarray, numbers: np.ndarray, count: np.ndarray, total: np.ndarray) -> None:
        """Chan, Golub and LeVeque's way to put the deviations of two sets together."""
        mean = total / np.maximum(count, 1)
        difference = numbers - mean.take(groups)
        np.multiply(difference, difference, out=difference)
        squares = np.bincount(groups, weights=difference)
        here = slice(len(count))
        before, after = self._count[here], self._count[here] + count
        delta = mean - self._mean[here]
        part = count / np.maximum(after, 1)
        self._squares[here] += squares + delta * delta * before * part
        self._mean[here] += delta * part

    def _histogram(self, groups: np.ndarray, values: np.ndarray) -> None:
        code = values.astype(np.float32).view(np.uint32) >> np.uint32(_DROPPED_BITS)
        groups = groups.astype(np.uint32, copy=False)
        ids, new = self._bins.ids([groups, code])
        self._bin_group.append(groups[new])
        self._bin_code.append(code[new])
        counts = np.bincount(ids, minlength=len(self._bins))
        counts[: len(self._bin_count)] += self._bin_count
        self._bin_count = counts

    def _grow(self, size: int) -> None:
        more = size - len(self._count)
        if more <= 0:
            return
        for name in ("_count", "_high", "_low", "_mean", "_squares", "_max"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(more, old.dtype)]))
        self._min = np.concatenate([self._min, np.full(more, np.iinfo(np.int64).max)])

    # What came of it

    def __len__(self) -> int:
        """One more than the largest group that has a number."""
        return len(self._count)

    @property
    def counts(self) -> np.ndarray:
        """How many numbers each group has, int64."""
        return self._count

    def totals(self) -> list[int]:
        """The sum of each group."""
        return [high << _WORD | low for high, low in zip(self._high.tolist(), self._low.tolist(), strict=True)]

    def quantiles(self, part: float) -> np.ndarray:
        """The number below which ``part`` of each group lies, between the two nearest ones in proportion; 0 for an
        empty group."""
        if not len(self._count):
            return np.zeros(0)
        group, code = np.concatenate(self._bin_group), np.concatenate(self._bin_code)
        order = np.lexsort((code, group))
        reached = np.cumsum(self._bin_count[order])
        values = _middle(code[order])
        rank = part * np.maximum(self._count - 1, 0)
        base = np.cumsum(self._count) - self._count
        low, high = (
            values[np.minimum(np.searchsorted(reached, base + at, side="right"), len(values) - 1)]
            for at in (np.floor(rank), np.ceil(rank))
        )
        found = np.clip(low + (high - low) * (rank - np.floor(rank)), self._min, self._max)
        return np.where(self._count > 0, found, 0.0)

    def spreads(self) -> list[Spread]:
        """The spread of each group."""
        medians, thirds = self.quantiles(0.5).tolist(), self.quantiles(0.75).tolist()
        std = np.sqrt(self._squares / np.maximum(self._count - 1, 1)).tolist()
        columns = (self._count.tolist(), self.totals(), medians, thirds, std, self._min.tolist(), self._max.tolist())
        return [
            Spread(count, total, total / count, median, low, high, deviation if count > 1 else 0.0, third)
            if count
            else NOTHING
            for count, total, median, third, deviation, low, high in zip(*columns, strict=True)
        ]


def spread(values: np.ndarray) -> Spread:
    """The spread of one set of integers."""
    found = Distributions()
    found.add(np.zeros(len(values), np.uint32), values)
    return found.spreads()[0] if len(values) else NOTHING


def _middle(code: np.ndarray) -> np.ndarray:
    """The middle of the bins with these codes; the number itself where a bin has one."""
    low = (code << np.uint32(_DROPPED_BITS)).view(np.float32).astype(np.float64)
    high = ((code + np.uint32(1)) << np.uint32(_DROPPED_BITS)).view(np.float32).astype(np.float64)
    middle: np.ndarray = np.where(low < 1 << 11, np.round(low), (low + high - 1) / 2)
    return middle


assert math.isclose(2.0**-11, QUANTILE_ERROR, rel_tol=0.03)
