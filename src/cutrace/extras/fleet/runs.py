"""Runs compared by the times of their kernels and NVTX ranges: two sets of runs, or each run with all others.

The ranks of a job are no independent runs: two sets are compared by their jobs. Each file is a run for outliers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.statistics.kernels import KERNELS
from ...analysis.tables import Table, columns_of
from ...errors import CutraceError
from ...trace.arrow import pyarrow
from ...units import format_duration
from .model import (
    INCOMPLETE,
    Bars,
    BatchOptions,
    BatchReport,
    Part,
    Picture,
    RankTrace,
    Result,
    Row,
    share_of,
    short,
)
from .stragglers import OUTSTANDING, Measured, by_host, robust_scores
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
        durations = rows["end"] - rows["start"]
        ranges.add(durations.astype(np.int64), rows["name"])
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
    kinds = pa.array([kind] * len(table), pa.string())
    return table.add_column(0, "kind", kinds)


@dataclass(frozen=True)
class _Runs:
    """The uses of runs. ``counts`` and ``totals`` (ns) have the row that ``keys`` say, and a column for
    each run. ``hosts`` are those of the runs, "" where it is not known or there are several."""

    labels: list[str]
    hosts: list[str]
    keys: dict[_Key, int]
    counts: np.ndarray
    totals: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[Part], by_job: bool) -> _Runs:
        runs: dict[str, list[tuple[_Key, int, int]]] = {}
        incomplete = set()
        hosts: dict[str, str] = {}
        for part in parts:
            name = part.source
            if by_job:
                name = part.job
            if hosts.setdefault(name, part.host) != part.host:
                hosts[name] = ""
            run = runs.setdefault(name, [])
            if part.incomplete:
                incomplete.add(name)
            for row in part.table().to_pylist():
                key = (row["kind"], row["name"])
                run.append((key, row["count"], row["total_ns"]))
        labels = list(runs)
        if not by_job:
            labels = short(labels)
        for number, name in enumerate(runs):
            if name in incomplete:
                labels[number] += INCOMPLETE
        used = {key for run in runs.values() for key, _, _ in run}
        keys = {key: row for row, key in enumerate(sorted(used))}
        counts = np.zeros((len(keys), len(runs)), np.int64)
        totals = np.zeros((len(keys), len(runs)), np.int64)
        for column, run in enumerate(runs.values()):
            for key, count, total in run:
                counts[keys[key], column] += count
                totals[keys[key], column] += total
        return cls(
            labels,
            list(hosts.values()),
            keys,
            counts,
            totals,
        )

    def means(self, key: _Key) -> np.ndarray:
        """The mean time (ns) in each run that has the kernel or range."""
        row = self.keys.get(key)
        if row is None:
            return np.zeros(0)
        count = self.counts[row]
        used = count > 0
        means: np.ndarray = self.totals[row][used] / count[used]
        return means

    def with_kind(self, kind: str) -> np.ndarray:
        """The numbers of the runs with a kernel or a range. Files of some formats hold no ranges: they tell nothing
        about them."""
        rows = [row for key, row in self.keys.items() if key[0] == kind]
        return np.flatnonzero(self.counts[rows].any(axis=0))

    def sums(self, key: _Key) -> tuple[int, int]:
        """The time (ns) and the count in all runs."""
        row = self.keys[key]
        total = int(self.totals[row].sum())
        count = int(self.counts[row].sum())
        return total, count


# Two sets of runs


_REGRESSION_COLUMNS = columns_of(
    "ratio: number, at least: number, at most: number, baseline mean: ns, mean: ns, baseline runs: spare, "
    "runs: spare, kind: text, name: text"
)
_ONLY_COLUMNS = columns_of("total: ns, count, runs: text, kind: text, name: text")


@dataclass(frozen=True)
class _Change:
    """A kernel or range in two sets of runs. ``ratio`` is that of the mean times, ``low`` and ``high`` are the ends of
    its 95 % interval, ``deviation`` is that of its logarithm; None where a set has one job, which tells nothing about
    chance."""

    kind: str
    name: str
    old: np.ndarray
    new: np.ndarray
    ratio: float
    low: float | None
    high: float | None
    deviation: float | None

    @classmethod
    def of(
        cls,
        key: _Key,
        old: np.ndarray,
        new: np.ndarray,
    ) -> _Change:
        if min(len(old), len(new)) == 1:
            ratio = float(new.mean() / old.mean())
            return cls(
                *key,
                old,
                new,
                ratio,
                None,
                None,
                None,
            )
        return cls(*key, old, new, *compare(old, new))

    @property
    def size(self) -> float:
        return abs(float(np.log(self.ratio)))

    def is_clear(self, score: float) -> bool:
        """Whether it is more than chance and :data:`_CHANGE`. ``score`` is the distance from zero, in deviations, that
        chance does not reach."""
        fewest = min(len(self.old), len(self.new))
        if communicates(self.name) or self.size <= float(np.log1p(_CHANGE)):
            return False
        if self.deviation is None:
            return True
        return fewest >= _FEWEST and self.size > score * self.deviation

    @property
    def sentence(self) -> str:
        word = "faster"
        if self.ratio > 1:
            word = "slower"
        factor = _factor(self.ratio)
        if self.low is None or self.high is None:
            jobs = "one job each"
            if max(len(self.old), len(self.new)) > 1:
                jobs = "one set has one job"
            change = abs(self.ratio - 1)
            return (
                f"{self.kind} {self.name}: {change:.1%} {word} than in the baseline; "
                f"{jobs}, so no statement about chance"
            )
        least, most = sorted([_factor(self.low), _factor(self.high)])
        return (
            f"{self.kind} {self.name}: {factor:.3f} times {word} than in the baseline "
            f"(95 %: {least:.3f} to {most:.3f})"
        )

    @property
    def row(self) -> Row:
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


def _factor(ratio: float) -> float:
    """A ratio or its inverse, whichever is larger."""
    return max(ratio, 1 / ratio)


def _regressions(parts: Sequence[Part], options: BatchOptions) -> Result:
    known = set(options.baseline)
    baseline = []
    others = []
    for part in parts:
        if part.source in known:
            baseline.append(part)
        else:
            others.append(part)
    if not baseline or not others:
        raise CutraceError(
            "regressions compares two sets of runs: one of them has no file that could be read, or repeats the other"
        )
    before = _Runs.of(baseline, by_job=True)
    after = _Runs.of(others, by_job=True)

    changes = _changes(before, after)
    # So many comparisons would give some wrong sentences with the intervals of the table.
    missed = _MISSED / max(len(changes), 1)
    score = NormalDist().inv_cdf(1 - missed / 2)
    rows = []
    clear = []
    for change in sorted(changes, key=lambda change: (-change.size, change.name)):
        rows.append(change.row)
        if change.is_clear(score):
            clear.append((-change.size, change.sentence))
    clear.sort()
    tables = [
        Table(
            "regressions",
            "Times compared with the baseline",
            _REGRESSION_COLUMNS,
            rows,
        )
    ]
    only = [*_only(before, after, "baseline"), *_only(after, before, "others")]
    if only:
        tables.append(
            Table(
                "only",
                "In one set only",
                _ONLY_COLUMNS,
                only,
            )
        )
    pictures: list[Picture] = []
    if rows:
        ratios, *_, names = zip(*rows[:_DRAWN], strict=True)
        shares = [ratio - 1 for ratio in ratios]
        pictures.append(
            Bars(
                "Change of the mean time",
                "1",
                names,
                {"change": shares},
            )
        )
    return Result(tables, [sentence for _, sentence in clear], pictures)


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


def _only(runs: _Runs, others: _Runs, word: str) -> list[Row]:
    """The rows of :data:`_ONLY_COLUMNS` of what the other set does not have."""
    missing = [key for key in runs.keys if key not in others.keys]
    return [(*runs.sums(key), word, *key) for key in missing]


def compare(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float, float]:
    """Return the ratio of the means of two sets of runs, the ends of its 95 % interval, and the standard deviation of
    its logarithm, by resampling the runs of both sets. The same numbers give the same result."""
    random = np.random.default_rng(_SEED)
    means_before = _resampled_means(random, before)
    means_after = _resampled_means(random, after)
    logs = np.log(means_after / means_before)
    ends = np.quantile(logs, (_MISSED / 2, 1 - _MISSED / 2))
    low, high = np.exp(ends).tolist()
    ratio = float(after.mean() / before.mean())
    return ratio, low, high, float(logs.std())


# Each run and all others


def _resampled_means(random: np.random.Generator, times: np.ndarray) -> np.ndarray:
    """The means of runs of equal weights that are drawn with replacement, :data:`_RESAMPLED` times."""
    runs = len(times)
    drawn = random.multinomial(runs, np.full(runs, 1 / runs), _RESAMPLED)
    means: np.ndarray = drawn @ times / runs
    return means


def _outliers(parts: Sequence[Part], options: BatchOptions) -> Result:
    runs = _Runs.of(parts, by_job=False)
    outliers = list(_far_from_median(runs))
    outliers.sort(key=lambda one: (-abs(one.difference), one.run, one.name))
    columns = columns_of(
        "difference: change, total: ns, median: ns, ratio: number, score: number spare, run: text, "
        "kind: text, name: text"
    )
    rows = [one.row for one in outliers[:_ROWS]]
    table = Table(
        "outliers",
        "Runs far from the median",
        columns,
        rows,
    )
    computing = []
    for row, (kind, name) in enumerate(runs.keys):
        if kind == "kernel" and not communicates(name):
            computing.append(row)
    sums = runs.totals[computing].sum(axis=0).tolist()
    title = "Time of kernels by run, without communication"
    picture = Bars(
        title,
        "ns",
        runs.labels,
        {"total": sums},
    )
    return Result([table], _run_sentences(runs, outliers), [picture])


@dataclass(frozen=True)
class _Outlier:
    """The time (ns) of a kernel or range in a run that is far from its ``median`` in all runs, with its score."""

    run: str
    kind: str
    name: str
    total: int
    median: float
    score: float

    @property
    def difference(self) -> float:
        return self.total - self.median

    @property
    def row(self) -> Row:
        """The row of the table of outliers."""
        score = None
        if np.isfinite(self.score):
            score = self.score
        return (
            self.difference,
            self.total,
            self.median,
            share_of(self.total, self.median),
            score,
            self.run,
            self.kind,
            self.name,
        )

    @property
    def sentence(self) -> str:
        times = f"{format_duration(self.total)}, and nothing in most runs"
        if self.median:
            times = f"{self.total / self.median:.2f} times the median"
        return f"{self.kind} {self.name} takes {times}"


def _far_from_median(runs: _Runs) -> Iterator[_Outlier]:
    if len(runs.labels) < _MANY:
        return
    recorded = {kind: runs.with_kind(kind) for kind in ("kernel", "range")}
    for (kind, name), totals_of_all in zip(runs.keys, runs.totals, strict=True):
        columns = recorded[kind]
        totals = totals_of_all[columns]
        median = float(np.median(totals))
        scores = robust_scores(totals)
        away = np.abs(totals - median) > _AWAY * median
        far = away & (np.abs(scores) > OUTSTANDING)
        for at in np.flatnonzero(far).tolist():
            run = runs.labels[columns[at]]
            total = int(totals[at])
            score = float(scores[at])
            yield _Outlier(
                run,
                kind,
                name,
                total,
                median,
                score,
            )


def _run_sentences(
    runs: _Runs,
    outliers: Sequence[_Outlier],
) -> list[str]:
    """A sentence for each run, or for all runs of a host if the same differs most: what it is, and how much else.
    ``outliers`` are in the order of their size."""
    largest: dict[str, _Outlier] = {}
    count = Counter[str]()
    for one in outliers:
        if not communicates(one.name):
            largest.setdefault(one.run, one)
            count[one.run] += 1
    everyone = []
    alike: dict[_Key, list[Measured]] = {}
    for label, host in zip(runs.labels, runs.hosts, strict=True):
        value = 0
        if label in largest:
            value = largest[label].total
        measured = Measured(
            label=label,
            host=host,
            job="",
            value=value,
            kind="run",
        )
        everyone.append(measured)
        if label in largest:
            one = largest[label]
            alike.setdefault((one.kind, one.name), []).append(measured)
    findings = []
    for some in alike.values():
        for group in by_host(some, everyone):
            own = [largest[member.label] for member in group.members]
            difference = max(abs(one.difference) for one in own)
            mean = replace(own[0], total=round(group.value))
            others = max(count[one.run] for one in own) - 1
            more = ""
            if others:
                more = f", and {others:,} more"
            sentence = f"{group.name}: {mean.sentence}{more}"
            findings.append((-difference, sentence))
    findings.sort()
    return [sentence for _, sentence in findings]


REGRESSIONS = BatchReport(
    "regressions",
    "Times of runs, compared with those of --baseline",
    uses,
    _regressions,
    ("baseline",),
)
OUTLIERS = BatchReport(
    "outliers",
    "Runs that differ from the others",
    uses,
    _outliers,
)
