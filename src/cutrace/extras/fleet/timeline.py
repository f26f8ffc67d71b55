"""Steps of time: powers of two of nanoseconds on the wall clock, so wider steps are exact sums of narrower ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ...analysis.tables import Unit
from .model import HeatMap, Lines, Part, RankTrace

# The most steps of a part, and the most columns of a picture.
_STEPS = 2048
_COLUMNS = 256


@dataclass(frozen=True)
class Steps:
    """Consecutive steps: the begin of the first one (ns on the wall clock), the width of each (ns), their number."""

    start: int
    width: int
    count: int

    @classmethod
    def covering(cls, first: int, last: int, most: int) -> Steps:
        """Return at most so many steps that cover the times."""
        width = 1
        while (last // width) - (first // width) >= most:
            width *= 2
        before = first // width
        return cls(before * width, width, last // width - before + 1)

    @classmethod
    def of(cls, rank: RankTrace) -> Steps:
        ends = np.array([rank.trace.start, rank.trace.end])
        first, last = sorted(rank.moved(ends).tolist())
        return cls.covering(first, last, _STEPS)

    @property
    def begins(self) -> np.ndarray:
        begins: np.ndarray = self.start + self.width * np.arange(self.count)
        return begins

    def of_times(self, times: np.ndarray) -> np.ndarray:
        """Return the index of the step of each time (ns on the wall clock)."""
        index = (times - self.start) // self.width
        inside: np.ndarray = np.clip(index, 0, self.count - 1)
        return inside


def by_job(parts: Sequence[Part]) -> Iterator[tuple[str, list[Part]]]:
    for job, of_job in groupby(parts, lambda part: part.job):
        yield job, list(of_job)


def heat_map(
    title: str,
    unit: Unit,
    labels: Sequence[str],
    cells: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    hosts: Sequence[str],
) -> HeatMap | None:
    """Return the picture of a ratio by rank and time; None if there is nothing to show. ``cells`` has for each label
    the times (ns) of steps, and the numbers to add and to divide for each of them. ``hosts`` has the host of each
    label, "" where it is not known."""
    found = _ratios(cells, _COLUMNS)
    if found is None:
        return None
    steps, values = found
    return HeatMap(
        title, unit, list(labels), steps.start, steps.width, values, list(hosts)
    )


def lines(
    title: str,
    unit: Unit,
    labels: Sequence[str],
    cells: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> Lines | None:
    """Return the picture of a ratio over time, a line for each label; None if there is nothing to show. ``cells`` are
    as in :func:`heat_map`. A step is so wide that most have two times of a label."""
    times = sum(len(at) for at, _, _ in cells)
    most = times // (2 * max(len(cells), 1))
    found = _ratios(cells, min(max(most, 1), _COLUMNS))
    if found is None:
        return None
    steps, values = found
    return Lines(title, unit, list(labels), steps.start, steps.width, values)


def _ratios(
    cells: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], most: int
) -> tuple[Steps, np.ndarray] | None:
    """At most so many steps of time, and the ratio of the numbers of each row of ``cells`` in each of them; NaN without
    any. None if there are no times."""
    if not cells:
        return None
    times = np.concatenate([times for times, _, _ in cells])
    if not len(times):
        return None
    steps = Steps.covering(int(times.min()), int(times.max()), most)
    values = np.full((len(cells), steps.count), np.nan)
    for row, (at, above, below) in zip(values, cells, strict=True):
        index = steps.of_times(at)
        dividends = np.bincount(index, above, steps.count)
        divisors = np.bincount(index, below, steps.count)
        some = divisors > 0
        row[some] = dividends[some] / divisors[some]
    return steps, values
