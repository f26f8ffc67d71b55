"""Runs compared by the times of their kernels and NVTX ranges: two sets of runs, or each run with all others.

The ranks of a job are not independent runs, so two sets are compared by job. For outliers, each file is a run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.statistics.kernels import KERNELS
from ...analysis.tables import columns_of
from ...trace.arrow import pyarrow
from ...units import format_duration
from .model import (
    COLUMN_DOCS,
    INCOMPLETE,
    Bars,
    BatchOptions,
    BatchReport,
    BatchTable,
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
# The probability that an interval misses the ratio, and the probability that a report has a false sentence.
_MISSED = 0.05
# The smallest change that gets a sentence, as a share.
_CHANGE = 0.01
# The smallest number of runs in each set for such a sentence.
_FEWEST = 4
# The smallest number of runs for a report on outliers.
_MANY = 8
# The smallest distance of an outlier from the median, as a share of the median.
_AWAY = 0.05
# The largest number of rows of the table of outliers.
_ROWS = 1000
_DRAWN = 20

_Key = tuple[str, str]


def uses(rank: RankTrace, options: BatchOptions) -> Any:
    """The times of kernels and NVTX ranges by name. In names of ranges, each number is replaced by ``#``."""
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
    """Convert sums by number of a name to sums by name, in a table with a ``kind`` column. Several numbers may have one
    name."""
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


@dataclass
class _Run:
    """The counts and times (ns) of kernels and ranges in a run. ``host`` is "" if it is unknown or there are
    several."""

    label: str
    host: str
    incomplete: bool = False
    counts: Counter[_Key] = field(default_factory=Counter)
    totals: Counter[_Key] = field(default_factory=Counter)

    def add(self, part: Part) -> None:
        self.incomplete |= part.incomplete
        if self.host != part.host:
            self.host = ""
        for row in part.table().to_pylist():
            key = (row["kind"], row["name"])
            self.counts[key] += row["count"]
            self.totals[key] += row["total_ns"]


def _runs(parts: Sequence[Part], by_job: bool) -> list[_Run]:
    """Group the parts into runs: one run for each job, or for each file."""
    by_name: dict[str, _Run] = {}
    for part in parts:
        name = part.source
        if by_job:
            name = part.job
        by_name.setdefault(name, _Run(name, part.host)).add(part)
    labels = list(by_name)
    if not by_job:
        labels = short(labels)
    runs = list(by_name.values())
    for run, label in zip(runs, labels, strict=True):
        run.label = label
        if run.incomplete:
            run.label += INCOMPLETE
    return runs


def _keys(runs: Sequence[_Run]) -> list[_Key]:
    """The kinds and names of all kernels and ranges."""
    return sorted(set().union(*(run.counts for run in runs)))


# Two sets of runs


_REGRESSION_TABLE = BatchTable(
    "regressions",
    "Times compared with the baseline",
    columns_of(
        "ratio: number, at least: number, at most: number, baseline mean: ns, mean: ns, baseline runs: spare, "
        "runs: spare, kind: text, name: text",
        COLUMN_DOCS
        | {
            "ratio": "mean / baseline mean",
            "at least": "lower end of the 95 % interval of the ratio, if both sets have several runs",
            "at most": "upper end of this interval",
            "baseline mean": "mean of the mean durations in the runs of --baseline",
            "mean": "mean of the mean durations in the other runs",
            "baseline runs": "number of runs of --baseline that have the kernel or range",
            "runs": "number of other runs that have it",
        },
    ),
    "One row per kernel or range that both sets of runs have, the largest change first. A run is a job.",
)
_ONLY_TABLE = BatchTable(
    "only",
    "In one set only",
    columns_of(
        "total: ns, count, runs: text, kind: text, name: text",
        COLUMN_DOCS | {"runs": "the set that has it: baseline or others"},
    ),
    "One row per kernel or range that only one set has, the baseline first. Without rows, this table is left out.",
)


class Ratio(NamedTuple):
    """The ratio of the mean times of two sets of runs. ``error`` is the standard error of its logarithm, and
    ``freedom`` the degrees of freedom of this error."""

    value: float
    error: float
    freedom: float

    def ends(self, missed: float) -> tuple[float, float]:
        """The ends of the interval that misses the true ratio with the probability ``missed``."""
        reach = self.error * _students_t(missed, self.freedom)
        return self.value * float(np.exp(-reach)), self.value * float(np.exp(reach))


def compare(before: np.ndarray, after: np.ndarray) -> Ratio:
    """Compare the times of two sets of runs. Each set has at least two runs. The standard error and its degrees of
    freedom come from Welch's t-test."""
    variances = []
    weights = []
    for times in (before, after):
        relative = float(times.std(ddof=1) / times.mean())
        variance = relative**2 / len(times)
        variances.append(variance)
        weights.append(variance**2 / (len(times) - 1))
    variance = sum(variances)
    freedom = float(min(len(before), len(after)) - 1)
    if sum(weights):
        freedom = variance**2 / sum(weights)
    return Ratio(float(after.mean() / before.mean()), variance**0.5, freedom)


def _students_t(missed: float, freedom: float) -> float:
    """The value that the absolute value of Student's t exceeds with the probability ``missed``."""
    # With t = sqrt(freedom) tan(angle), the density of the angle is proportional to a power of its cosine.
    angle = np.linspace(0, np.pi / 2, _ANGLES)
    density = np.cos(angle) ** (freedom - 1)
    beyond = np.cumsum((density[1:] + density[:-1])[::-1])
    at = np.interp(missed, beyond / beyond[-1], angle[-2::-1])
    return float(freedom**0.5 * np.tan(at))


#: The angles at which the density is integrated.
_ANGLES = 10_001


@dataclass(frozen=True)
class _Change:
    """A kernel or range in two sets of runs: the mean times (ns) in the runs of each set."""

    kind: str
    name: str
    old: np.ndarray
    new: np.ndarray

    @cached_property
    def ratio(self) -> float:
        """The ratio of the mean times."""
        return float(self.new.mean() / self.old.mean())

    @cached_property
    def compared(self) -> Ratio | None:
        """The ratio with its error. None if a set has one job, because one job shows no variation."""
        if min(len(self.old), len(self.new)) > 1:
            return compare(self.old, self.new)
        return None

    @property
    def size(self) -> float:
        return abs(float(np.log(self.ratio)))

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval of the ratio."""
        if self.compared is None:
            return None
        return self.compared.ends(_MISSED)

    def is_clear(self, missed: float) -> bool:
        """Whether the change is larger than :data:`_CHANGE`, and larger than chance. Chance alone exceeds it with the
        probability ``missed``."""
        fewest = min(len(self.old), len(self.new))
        if communicates(self.name) or self.size <= float(np.log1p(_CHANGE)):
            return False
        if self.compared is None:
            return True
        low, high = self.compared.ends(missed)
        return fewest >= _FEWEST and not low <= 1 <= high

    @property
    def sentence(self) -> str:
        word = "faster"
        if self.ratio > 1:
            word = "slower"
        factor = _factor(self.ratio)
        if self.ends is None:
            jobs = "one job each"
            if max(len(self.old), len(self.new)) > 1:
                jobs = "one set has one job"
            change = abs(self.ratio - 1)
            return (
                f"{self.kind} {self.name}: {change:.1%} {word} than in the baseline; "
                f"{jobs}, so no statement about chance"
            )
        least, most = sorted(map(_factor, self.ends))
        return (
            f"{self.kind} {self.name}: {factor:.3f} times {word} than in the baseline "
            f"(95 %: {least:.3f} to {most:.3f})"
        )

    @property
    def row(self) -> Row:
        """The row of :data:`_REGRESSION_TABLE`."""
        return (
            self.ratio,
            *(self.ends or (None, None)),
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
    before = _runs(baseline, by_job=True)
    after = _runs(others, by_job=True)

    changes = _changes(before, after)
    # The 95 % intervals of many comparisons would give some false sentences. So each comparison gets a share of the
    # error probability.
    missed = _MISSED / max(len(changes), 1)
    rows = []
    clear = []
    for change in sorted(changes, key=lambda change: (-change.size, change.name)):
        rows.append(change.row)
        if change.is_clear(missed):
            clear.append((-change.size, change.sentence))
    clear.sort()
    tables = [_REGRESSION_TABLE.of(rows)]
    only = [*_only(before, after, "baseline"), *_only(after, before, "others")]
    if only:
        tables.append(_ONLY_TABLE.of(only))
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


def _changes(before: Sequence[_Run], after: Sequence[_Run]) -> list[_Change]:
    """The changes of the kernels and ranges that both sets have."""
    changes = []
    for key in _keys([*before, *after]):
        old = _means(before, key)
        new = _means(after, key)
        # A mean time of 0 has no ratio.
        if len(old) and len(new) and old.all() and new.all():
            changes.append(_Change(*key, old, new))
    return changes


def _means(runs: Sequence[_Run], key: _Key) -> np.ndarray:
    """The mean time (ns) in each run that has the kernel or range."""
    means = [run.totals[key] / run.counts[key] for run in runs if run.counts[key]]
    return np.array(means)


def _only(runs: Sequence[_Run], others: Sequence[_Run], word: str) -> Iterator[Row]:
    """Yield the rows of :data:`_ONLY_TABLE` for kernels and ranges that the other set lacks."""
    known = set(_keys(others))
    for key in _keys(runs):
        if key not in known:
            total = sum(run.totals[key] for run in runs)
            count = sum(run.counts[key] for run in runs)
            yield (total, count, word, *key)


# Each run and all others


_OUTLIER_TABLE = BatchTable(
    "outliers",
    "Runs far from the median",
    columns_of(
        "difference: change, total: ns, median: ns, ratio: number, score: number spare, run: text, "
        "kind: text, name: text",
        COLUMN_DOCS
        | {
            "difference": "total - median",
            "total": "sum of the durations in the run",
            "median": "median of the totals of all runs",
            "ratio": "total / median",
            "score": "difference in robust standard deviations, if these are not 0",
            "run": "file of the run",
        },
    ),
    f"One row per run and kernel or range, the largest difference first, at most {_ROWS:,}.",
)


def _outliers(parts: Sequence[Part], options: BatchOptions) -> Result:
    runs = _runs(parts, by_job=False)
    outliers = list(_far_from_median(runs))
    outliers.sort(key=lambda one: (-abs(one.difference), one.run, one.name))
    rows = [one.row for one in outliers[:_ROWS]]
    labels = [run.label for run in runs]
    sums = Counter(dict.fromkeys(labels, 0))
    for kind, name in _keys(runs):
        if kind == "kernel" and not communicates(name):
            for run in runs:
                sums[run.label] += run.totals[kind, name]
    title = "Time of kernels by run, without communication"
    picture = Bars(title, "ns", labels, {"total": list(sums.values())})
    tables = [_OUTLIER_TABLE.of(rows)]
    return Result(tables, _run_sentences(runs, outliers), [picture])


@dataclass(frozen=True)
class _Outlier:
    """A kernel or range with a time in a run that is far from its ``median`` over all runs. ``total`` and ``median``
    are ns; ``score`` is the distance in standard deviations."""

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


def _far_from_median(runs: Sequence[_Run]) -> Iterator[_Outlier]:
    if len(runs) < _MANY:
        return
    # Files of some formats have no ranges, so they are not counted as runs without a range.
    recorded: defaultdict[str, list[_Run]] = defaultdict(list)
    for run in runs:
        for kind in {kind for kind, _ in run.counts}:
            recorded[kind].append(run)
    for key in _keys(runs):
        of_kind = recorded[key[0]]
        totals = np.array([run.totals[key] for run in of_kind])
        median = float(np.median(totals))
        scores = robust_scores(totals)
        away = np.abs(totals - median) > _AWAY * median
        far = away & (np.abs(scores) > OUTSTANDING)
        for at in np.flatnonzero(far).tolist():
            label = of_kind[at].label
            yield _Outlier(label, *key, int(totals[at]), median, float(scores[at]))


def _run_sentences(
    runs: Sequence[_Run],
    outliers: Sequence[_Outlier],
) -> list[str]:
    """Return a sentence for each run with its largest difference and the number of its other differences. Runs of a
    host share a sentence if the same kernel or range differs most in all of them. ``outliers`` are sorted by size."""
    largest: dict[str, _Outlier] = {}
    count = Counter[str]()
    for one in outliers:
        if not communicates(one.name):
            largest.setdefault(one.run, one)
            count[one.run] += 1
    everyone = []
    alike: defaultdict[_Key, list[Measured]] = defaultdict(list)
    for run in runs:
        found = largest.get(run.label)
        measured = Measured(run.label, run.host, "", 0, "run")
        if found:
            measured = replace(measured, value=found.total)
            alike[found.kind, found.name].append(measured)
        everyone.append(measured)
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
    tables=(_REGRESSION_TABLE, _ONLY_TABLE),
)
OUTLIERS = BatchReport(
    "outliers",
    "Runs that differ from the others",
    uses,
    _outliers,
    tables=(_OUTLIER_TABLE,),
)
