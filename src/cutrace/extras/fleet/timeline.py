"""Steps of wall time. Their width is a power of two (ns), so wider steps are exact sums of narrower ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ...analysis.tables import Unit
from .model import HeatMap, Lines, Part, RankTrace

# The largest number of steps of a part.
_STEPS = 2048
# The largest number of columns of a chart.
_COLUMNS = 256


@dataclass(frozen=True)
class Steps:
    """Consecutive steps: the start of the first one (ns on the wall clock), the width of each (ns), and their
    number."""

    start: int
    width: int
    count: int

    @classmethod
    def covering(
        cls,
        first: int,
        last: int,
        most: int,
    ) -> Steps:
        """Return at most ``most`` steps that cover the times from ``first`` to ``last`` (ns)."""
        width = 1
        while (last // width) - (first // width) >= most:
            width *= 2
        before = first // width
        count = last // width - before + 1
        return cls(before * width, width, count)

    @classmethod
    def of(cls, rank: RankTrace) -> Steps:
        ends = np.array([rank.trace.start, rank.trace.end])
        first, last = sorted(rank.moved(ends).tolist())
        return cls.covering(first, last, _STEPS)

    @property
    def begins(self) -> np.ndarray:
        return self.start + self.width * np.arange(self.count)

    def of_times(self, times: np.ndarray) -> np.ndarray:
        """Return the index of the step of each time (ns on the wall clock)."""
        index = (times - self.start) // self.width
        return np.clip(index, 0, self.count - 1)


def by_job(parts: Sequence[Part]) -> Iterator[tuple[str, list[Part]]]:
    for job, of_job in groupby(parts, lambda part: part.job):
        yield job, list(of_job)


class TimeRatios:
    """Ratios over time, a row for each label. A row has the times (ns) of its steps, and for each step a dividend and a
    divisor."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._hosts: list[str] = []
        self._rows: list[tuple[np.ndarray, ...]] = []
        # The first and the last time of each row.
        self._ends: list[int] = []
        self._times = 0

    def add(
        self,
        label: str,
        at: np.ndarray,
        above: np.ndarray,
        below: np.ndarray,
        host: str = "",
    ) -> None:
        """Add a row. ``at`` are times (ns), ``above`` dividends and ``below`` divisors. ``host`` is the host of the
        label, "" if unknown."""
        self._labels.append(label)
        self._hosts.append(host)
        self._rows.append((at, above, below))
        self._times += len(at)
        if len(at):
            self._ends += [int(at.min()), int(at.max())]

    def heat_map(self, title: str, unit: Unit) -> Iterator[HeatMap]:
        """Yield the heat map; nothing without times."""
        for picture in self._drawn(title, unit, _COLUMNS):
            yield HeatMap(**vars(picture), hosts=self._hosts)

    def lines(self, title: str, unit: Unit) -> Iterator[Lines]:
        """Yield the line chart; nothing without times. Steps are wide enough that most contain two times of a label."""
        most = self._times // (2 * max(len(self._rows), 1))
        return self._drawn(title, unit, min(max(most, 1), _COLUMNS))

    def _drawn(
        self,
        title: str,
        unit: Unit,
        most: int,
    ) -> Iterator[Lines]:
        """Yield the ratios in at most ``most`` steps."""
        if not self._times:
            return
        steps = Steps.covering(min(self._ends), max(self._ends), most)
        values = np.full((len(self._rows), steps.count), np.nan)
        for row, (at, above, below) in zip(values, self._rows, strict=True):
            index = steps.of_times(at)
            dividends = np.bincount(index, above, steps.count)
            divisors = np.bincount(index, below, steps.count)
            some = divisors > 0
            row[some] = dividends[some] / divisors[some]
        yield Lines(
            title,
            unit,
            self._labels,
            steps.start,
            steps.width,
            values,
        )
