"""Runs compared by the times of their kernels and NVTX ranges: two sets of runs, or each run with all others.

A run is a job if all sets have several jobs, else a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.statistics.kernels import KERNELS
from ...analysis.tables import Cell, Table, columns_of
from ...errors import CutraceError
from ...trace.arrow import pyarrow
from .model import (
    Bars,
    BatchOptions,
    BatchReport,
    Part,
    Picture,
    RankTrace,
    Result,
    short,
)
from .stragglers import OUTSTANDING, robust_scores
from .time_sums import TimeSums

_NUMBERS = re.compile(r"\d+")
# Resamplings of the runs; the probability that an interval misses the ratio, and of a wrong sentence in a report.
_RESAMPLED = 2000
_MISSED = 0.05
_SEED = 20250101
# The smallest change that is said, as a share; runs of each set that it needs, and runs that one can stand out from.
_CHANGE = 0.01
_FEWEST = 4
_MANY = 8
# The smallest distance of an outlier from the median, as a share, and the rows of the table of outliers.
_AWAY = 0.05
_ROWS = 1000
_DRAWN = 20

_Key = tuple[str, str]


def uses(rank: RankTrace, options: BatchOptions) -> Any:
    """The times of kernels and NVTX ranges by name. Numbers in names of ranges become ``#``."""
    kernels = TimeSums("name")
    for kernel, duration in rank.grouped(KERNELS):
        kernels.add(duration, kernel)
    ranges = TimeSums("name")
    for rows in rank.rows("nvtx_ranges"):
        ranges.add((rows["end"] - rows["start"]).astype(np.int64), rows["name"])
    names_of_ranges = [_NUMBERS.sub("#", text) for text in rank.trace.strings]
    tables = [
        _by_name("kernel", kernels, rank.context.kernels.names),
        _by_name("range", ranges, names_of_ranges),
    ]
    return pyarrow("batch").concat_tables(tables).combine_chunks()


def _by_name(kind: str, sums: TimeSums, names: Sequence[str]) -> Any:
    """The table of sums by number as one by name, with the ``kind`` of all. Several numbers may have one name."""
    pa = pyarrow("batch")
    table = sums.table()
    in_order = sorted(set(names))
    place = {name: number for number, name in enumerate(in_order)}
    places = [place[names[number]] for number in table["name"].to_pylist()]
    folded = TimeSums("name")
    folded.add_table(table.set_column(0, "name", pa.array(places, pa.int64())))
    table = folded.table(name=in_order)
    return table.add_column(0, "kind", pa.array([kind] * len(table), pa.string()))


@dataclass(frozen=True)
class _Runs:
    """The uses of runs. ``counts`` and ``totals`` (ns) have the row that ``keys`` say, and a column for
    each run."""

    labels: list[str]
    keys: dict[_Key, int]
    counts: np.ndarray
    totals: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[Part], by_job: bool) -> _Runs:
        runs: dict[str, dict[_Key, tuple[int, int]]] = {}
        for part in parts:
            run = runs.setdefault(part.job if by_job else part.source, {})
            table = part.table()
            columns = (
                table[name].to_pylist()
                for name in ("kind", "name", "count", "total_ns")
            )
            for kind, name, count, total in zip(*columns, strict=True):
                before = run.get((kind, name), (0, 0))
                run[kind, name] = before[0] + count, before[1] + total
        keys = sorted({key for run in runs.values() for key in run})
        amounts = np.array(
            [[run.get(key, (0, 0)) for run in runs.values()] for key in keys], np.int64
        )
        amounts = amounts.reshape(len(keys), len(runs), 2)
        labels = list(runs) if by_job else short(list(runs))
        return cls(
            labels,
            {key: row for row, key in enumerate(keys)},
            amounts[..., 0],
            amounts[..., 1],
        )

    def means(self, key: _Key) -> np.ndarray:
        """The mean time (ns) in each run that has the kernel or range."""
        row = self.keys.get(key)
        if row is None:
            return np.zeros(0)
        count = self.counts[row]
        total = self.totals[row]
        means: np.ndarray = total[count > 0] / count[count > 0]
        return means

    def sums(self, key: _Key) -> tuple[int, int]:
        """The time (ns) and the count in all runs."""
        row = self.keys[key]
        return int(self.totals[row].sum()), int(self.counts[row].sum())


def _jobs(parts: Sequence[Part]) -> int:
    return len({part.job for part in parts})


# Two sets of runs


_REGRESSION_COLUMNS = columns_of(
    "ratio: number, at least: number, at most: number, baseline mean: ns, mean: ns, baseline runs: spare, "
    "runs: spare, kind: text, name: text"
)
_ONLY_COLUMNS = columns_of("total: ns, count, runs: text, kind: text, name: text")


@dataclass(frozen=True)
class _Change:
    """A kernel or range in two sets of runs. ``ratio`` is that of the mean times, ``low`` and ``high`` are the ends of
    its 95 % interval, ``deviation`` is that of its logarithm."""

    kind: str
    name: str
    old: np.ndarray
    new: np.ndarray
    ratio: float
    low: float
    high: float
    deviation: float

    @classmethod
    def of(cls, key: _Key, old: np.ndarray, new: np.ndarray) -> _Change:
        return cls(*key, old, new, *compare(old, new))

    @property
    def size(self) -> float:
        return abs(float(np.log(self.ratio)))

    def is_clear(self, score: float) -> bool:
        """Whether it is more than chance and :data:`_CHANGE`. ``score`` is the distance from zero, in deviations, that
        chance does not reach."""
        if min(len(self.old), len(self.new)) < _FEWEST or communicates(self.name):
            return False
        return self.size > max(score * self.deviation, float(np.log1p(_CHANGE)))

    @property
    def sentence(self) -> str:
        word = "slower" if self.ratio > 1 else "faster"
        factor = max(self.ratio, 1 / self.ratio)
        least, most = sorted(max(end, 1 / end) for end in (self.low, self.high))
        return (
            f"{self.kind} {self.name}: {factor:.3f} times {word} than in the baseline "
            f"(95 %: {least:.3f} to {most:.3f})"
        )

    @property
    def row(self) -> tuple[Cell, ...]:
        """The row of :data:`_REGRESSION_COLUMNS`."""
        return (
            self.ratio,
            self.low,
            self.high,
            float(self.old.mean()),
            float(self.new.mean()),
            len(self.old),
            len(self.new),
            self.kind,
            self.name,
        )


def _regressions(parts: Sequence[Part], options: BatchOptions) -> Result:
    known = set(options.baseline)
    baseline = [part for part in parts if part.source in known]
    others = [part for part in parts if part.source not in known]
    if not baseline or not others:
        raise CutraceError(
            "regressions compares two sets of runs: one of them has no file that could be read"
        )
    by_job = _jobs(baseline) > 1 and _jobs(others) > 1
    before = _Runs.of(baseline, by_job)
    after = _Runs.of(others, by_job)

    changes = _changes(before, after)
    # So many comparisons would give some wrong sentences with the intervals of the table.
    score = NormalDist().inv_cdf(1 - _MISSED / 2 / max(len(changes), 1))
    clear = [change for change in changes if change.is_clear(score)]
    clear.sort(key=lambda change: (-change.size, change.sentence))
    changes.sort(key=lambda change: (-change.size, change.name))

    tables = [
        Table(
            "regressions",
            "Times compared with the baseline",
            _REGRESSION_COLUMNS,
            [change.row for change in changes],
        )
    ]
    only = [*_only(before, after, "baseline"), *_only(after, before, "others")]
    if only:
        tables.append(Table("only", "In one set only", _ONLY_COLUMNS, only))
    pictures: list[Picture] = []
    if changes:
        drawn = changes[:_DRAWN]
        names = [change.name for change in drawn]
        shares = [change.ratio - 1 for change in drawn]
        pictures.append(Bars("Change of the mean time", "1", names, {"change": shares}))
    return Result(tables, [change.sentence for change in clear], pictures)


def _changes(before: _Runs, after: _Runs) -> list[_Change]:
    """What both sets have, by kind and name."""
    changes = []
    for key in sorted({*before.keys, *after.keys}):
        old = before.means(key)
        new = after.means(key)
        # Without any time there is no ratio.
        if len(old) and len(new) and old.all() and new.all():
            changes.append(_Change.of(key, old, new))
    return changes


def _only(runs: _Runs, others: _Runs, word: str) -> list[tuple[Cell, ...]]:
    """The rows of :data:`_ONLY_COLUMNS` of what the other set does not have."""
    missing = [key for key in runs.keys if key not in others.keys]
    return [(*runs.sums(key), word, *key) for key in missing]


def compare(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float, float]:
    """Return the ratio of the means of two sets of runs, the ends of its 95 % interval, and the standard deviation of
    its logarithm, by resampling the runs of both sets. The same numbers give the same result."""
    random = np.random.default_rng(_SEED)
    # Runs of equal weights, drawn with replacement, as counts.
    drawn = [
        random.multinomial(len(means), np.full(len(means), 1 / len(means)), _RESAMPLED)
        @ means
        / len(means)
        for means in (before, after)
    ]
    logs = np.log(drawn[1] / drawn[0])
    low, high = np.exp(np.quantile(logs, (_MISSED / 2, 1 - _MISSED / 2))).tolist()
    return float(after.mean() / before.mean()), low, high, float(logs.std())


# Each run and all others


def _outliers(parts: Sequence[Part], options: BatchOptions) -> Result:
    runs = _Runs.of(parts, by_job=False)
    rows: list[tuple[Cell, ...]] = []
    of_run: dict[str, list[tuple[float, str]]] = {}
    for (kind, name), totals in zip(runs.keys, runs.totals, strict=True):
        median = float(np.median(totals))
        scores = robust_scores(totals.tolist())
        far = (np.abs(scores) > OUTSTANDING) & (
            np.abs(totals - median) > _AWAY * median
        )
        for run in np.flatnonzero(far).tolist() if len(runs.labels) >= _MANY else ():
            label = runs.labels[run]
            total = int(totals[run])
            score = float(scores[run])
            rows.append((
                *(total - median, total, median, total / median if median else None),
                *(score if np.isfinite(score) else None, label, kind, name),
            ))  # fmt: skip
            if not communicates(name):
                if median:
                    times = f"{total / median:.2f} times the median"
                else:
                    times = "and nothing in most runs"
                of_run.setdefault(label, []).append(
                    (abs(total - median), f"{kind} {name} takes {times}")
                )
    rows.sort(key=lambda row: (-abs(float(row[0] or 0)), str(row[5]), str(row[7])))
    columns = columns_of(
        "difference: change, total: ns, median: ns, ratio: number, score: number spare, run: text, "
        "kind: text, name: text"
    )
    sentences = list(_run_sentences(of_run))
    kernels = np.array(
        [kind == "kernel" and not communicates(name) for kind, name in runs.keys], bool
    )
    sums = runs.totals[kernels].sum(axis=0).tolist()
    picture = Bars(
        "Time of kernels by run, without communication",
        "ns",
        runs.labels,
        {"total": sums},
    )
    return Result(
        [Table("outliers", "Runs far from the median", columns, rows[:_ROWS])],
        sentences,
        [picture],
    )


def _run_sentences(of_run: dict[str, list[tuple[float, str]]]) -> Iterator[str]:
    """A sentence for each run: what differs most, and how much else."""
    for label, changes in sorted(
        of_run.items(), key=lambda item: (-max(item[1])[0], item[0])
    ):
        more = f", and {len(changes) - 1:,} more" if len(changes) > 1 else ""
        yield f"{label}: {max(changes)[1]}{more}"


REGRESSIONS = BatchReport(
    "regressions",
    "Times of runs, compared with those of --baseline",
    uses,
    _regressions,
    ("baseline",),
)
OUTLIERS = BatchReport("outliers", "Runs that differ from the others", uses, _outliers)
