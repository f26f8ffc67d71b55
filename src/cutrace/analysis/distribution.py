"""Statistics of numbers by group, in bounded memory.

Counts, sums, minima and maxima are exact; mean and deviation have floating-point accuracy. Quantiles come from a
histogram. For numbers below 2,048, each bin holds one number and quantiles are exact. For larger numbers, the width of
a bin is 1/1,024 of its numbers, and the error of quantiles is at most 0.05 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .._native import Spreads

#: The maximum relative error of a quantile.
QUANTILE_ERROR = 0.0005


@dataclass(frozen=True)
class Spread:
    """Statistics of the numbers of one group, in their unit. ``std`` is the sample standard deviation (0 for one
    number), ``q3`` the third quartile. All fields of an empty group are 0."""

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


def sizes(numbers: np.ndarray) -> np.ndarray:
    """Numbers of bytes as signed integers, capped at 2^63 - 1."""
    most = np.uint64(np.iinfo(np.int64).max)
    if (numbers > most).any():
        numbers = np.minimum(numbers, most)
    return numbers.view(np.int64)


def grown(array: np.ndarray, size: int, fill: np.ndarray | int = 0) -> np.ndarray:
    """The array with at least ``size`` entries along its last axis. New entries are ``fill``."""
    new = np.broadcast_to(fill, (*array.shape[:-1], max(size - array.shape[-1], 0)))
    return np.concatenate([array, new.astype(array.dtype)], axis=-1)


class Sums:
    """Sums of integers by group: 0, 1, 2, ... ``by_group`` ends with the last group that has a number."""

    def __init__(self) -> None:
        self.by_group = np.zeros(0, np.int64)

    def add(self, groups: np.ndarray, values: np.ndarray | int = 1) -> None:
        """Add one number for each element of ``groups``."""
        if not len(groups):
            return
        self.by_group = grown(self.by_group, int(groups.max()) + 1)
        if isinstance(values, int):
            sizes = np.bincount(groups, minlength=len(self.by_group))
            self.by_group += values * sizes
        else:
            np.add.at(self.by_group, groups, values)

    def of_groups(self, count: int) -> list[int]:
        """The sums of the groups 0 to ``count`` - 1. ``count`` is at least the length of ``by_group``."""
        return grown(self.by_group, count).tolist()


class Distributions:
    """The spreads of integers (0 <= number < 2^63) by group: 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._spreads = Spreads()

    def add(self, groups: np.ndarray | int, values: np.ndarray) -> None:
        """Add numbers. ``groups`` is an array parallel to ``values``, or one group for all."""
        groups = np.broadcast_to(np.asarray(groups, np.uint32), len(values))
        self._spreads.add(groups, values.astype(np.int64, copy=False))

    def __len__(self) -> int:
        """The largest group with a number, plus 1."""
        return len(self._spreads)

    def spreads(self) -> list[Spread]:
        """The spread of each group."""
        return [_spread(*row) for row in self._spreads.rows()]


def _spread(
    count: int,
    high: int,
    low: int,
    median: float,
    third: float,
    squares: float,
    least: int,
    greatest: int,
) -> Spread:
    if not count:
        return NOTHING
    total = high << 64 | low
    deviation = 0.0
    if count > 1:
        deviation = math.sqrt(squares / (count - 1))
    return Spread(
        count,
        total,
        total / count,
        median,
        least,
        greatest,
        deviation,
        third,
    )
