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
from ...analysis.tables import Cell, Table, columns_of
from ...errors import CutraceError
from ...trace.arrow import pyarrow
from .model import Bars, BatchOptions, BatchReport, Part, RankTrace, Result, short
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
    names = rank.kernels
    strings = rank.trace.strings
    kernels = TimeSums("name")
    ranges = TimeSums("name")
    for rows in rank.rows("kernels"):
        kernels.add(
            (rows["end"] - rows["start"]).astype(np.int64),
            names.numbers.take(rows["launch"]),
        )
    for rows in rank.rows("nvtx_ranges"):
        ranges.add((rows["end"] - rows["start"]).astype(np.int64), rows["name"])
    texts = [_NUMBERS.sub("#", text) for text in strings]
    pa = pyarrow("batch")
    tables = []
    for kind, sums, of in (("kernel", kernels, names.names), ("range", ranges, texts)):
        folded = TimeSums("name")
        known = {text: number for number, text in enumerate(sorted(set(of)))}
        table = sums.table()
        number = pa.array(
            [known[of[at]] for at in table["name"].to_pylist()], pa.int64()
        )
        folded.add_table(table.set_column(0, "name", number))
        table = folded.table(name=sorted(known))
        tables.append(
            table.add_column(0, "kind", pa.array([kind] * len(table), pa.string()))
        )
    return pa.concat_tables(tables).combine_chunks()


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


def _regressions(parts: Sequence[Part], options: BatchOptions) -> Result:
    known = set(options.baseline)
    sets = (
        [part for part in parts if part.source in known],
        [part for part in parts if part.source not in known],
    )
    if not all(sets):
        raise CutraceError(
            "regressions compares two sets of runs: one of them has no file that could be read"
        )
    by_job = all(_jobs(part) > 1 for part in sets)
    before, after = (_Runs.of(part, by_job) for part in sets)
    keys = sorted({*before.keys, *after.keys})
    means = ((key, before.means(key), after.means(key)) for key in keys)
    # Without any time there is no ratio.
    compared = [
        (key, old, new)
        for key, old, new in means
        if len(old) and len(new) and old.all() and new.all()
    ]
    # So many comparisons would give some wrong sentences with the intervals of the table.
    score = NormalDist().inv_cdf(1 - _MISSED / 2 / max(len(compared), 1))
    rows: list[tuple[Cell, ...]] = []
    changed: list[tuple[float, str]] = []
    for (kind, name), old, new in compared:
        ratio, low, high, deviation = compare(old, new)
        rows.append(
            (
                ratio,
                low,
                high,
                float(old.mean()),
                float(new.mean()),
                len(old),
                len(new),
                kind,
                name,
            )
        )
        clear = min(len(old), len(new)) >= _FEWEST and abs(np.log(ratio)) > max(
            score * deviation, np.log1p(_CHANGE)
        )
        if clear and not communicates(name):
            word = "slower" if ratio > 1 else "faster"
            factor = max(ratio, 1 / ratio)
            ends = sorted(max(x, 1 / x) for x in (low, high))
            bounds = f"95 %: {ends[0]:.3f} to {ends[1]:.3f}"
            text = f"{kind} {name}: {factor:.3f} times {word} than in the baseline ({bounds})"
            changed.append((-abs(float(np.log(ratio))), text))
    rows.sort(key=lambda row: (-abs(np.log(float(row[0] or 1))), str(row[-1])))
    columns = columns_of(
        "ratio: number, at least: number, at most: number, baseline mean: ns, mean: ns, baseline runs: spare, "
        "runs: spare, kind: text, name: text"
    )
    tables = [Table("regressions", "Times compared with the baseline", columns, rows)]
    only = [(key, runs, word) for runs, other, word in ((before, after, "baseline"), (after, before, "others"))
            for key in runs.keys if key not in other.keys]  # fmt: skip
    if only:
        total = columns_of("total: ns, count, runs: text, kind: text, name: text")
        sums: list[tuple[Cell, ...]] = [
            (*runs.sums(key), word, *key) for key, runs, word in only
        ]
        tables.append(Table("only", "In one set only", total, sums))
    first = rows[:_DRAWN]
    picture = Bars("Change of the mean time", "1", [str(row[-1]) for row in first],
                   {"change": [float(row[0] or 1) - 1 for row in first]})  # fmt: skip
    return Result(
        tables, [text for _, text in sorted(changed)], [picture] if first else []
    )


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
