"""Kernels over all ranks: times by name, and the slowest rank of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.statistics.kernels import KERNELS as KERNELS_BY_NAME
from ...analysis.tables import columns_of
from ...errors import package
from .model import (
    COLUMN_DOCS,
    BatchOptions,
    BatchReport,
    BatchTable,
    Matrix,
    Part,
    Picture,
    RankTrace,
    Result,
    share_of,
)
from .stragglers import Measured, stragglers
from .time_sums import TimeSums, binned, histogram

_TABLE = BatchTable(
    "kernels",
    "Kernels of all ranks",
    columns_of(
        "share: 1, total: ns, count, mean: ns, min: ns spare, max: ns spare, ranks: spare, slowest mean: ns, "
        "slowest rank: text, kernel: text",
        COLUMN_DOCS
        | {
            "ranks": "number of ranks that ran the kernel",
            "slowest mean": "mean of the slowest rank",
            "slowest rank": "rank with the largest mean",
            "kernel": "stable name of the kernel",
        },
    ),
    "One row per kernel: its times on all ranks, the largest total first.",
)

# The largest number of kernels with a histogram.
_DRAWN = 6
# The largest number of kernels in the chart that compares ranks.
_COMPARED = 24
# The smallest number of ranks in this chart.
_FEWEST = 4


def times(rank: RankTrace, options: BatchOptions) -> Any:
    """The times of kernels by name and bin."""
    sums = TimeSums("kernel", "at_least_ns")
    for kernel, duration in rank.grouped(KERNELS_BY_NAME):
        sums.add(duration, kernel, binned(duration))
    return sums.table(kernel=rank.context.kernels.names)


def _by_name(table: Any) -> Any:
    """The table of a part without its bins."""
    sums = TimeSums("kernel")
    sums.add_table(table)
    return sums.table()


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    bins = TimeSums("kernel", "at_least_ns")
    of_parts = []
    for part in parts:
        table = part.table()
        bins.add_table(table)
        of_parts.append(_by_name(table))
    added = bins.table()
    order = [("total_ns", "descending"), ("kernel", "ascending")]
    whole = _by_name(added).sort_by(order)
    times = _RankTimes(whole["kernel"], of_parts)
    labels = [part.label for part in parts]
    total = sum(whole["total_ns"].to_pylist())
    ranks = (times.counts > 0).sum(axis=1).tolist()
    rows = []
    for at, use in enumerate(whole.to_pylist()):
        # The first rank if several are equally slow.
        slowest = int(np.nanargmax(times.means[at]))
        row = (
            share_of(use["total_ns"], total),
            use["total_ns"],
            use["count"],
            use["total_ns"] / use["count"],
            use["min_ns"],
            use["max_ns"],
            ranks[at],
            float(times.means[at, slowest]),
            labels[slowest],
            use["kernel"],
        )
        rows.append(row)
    sentence = (
        "{who}: {its} kernels take {ratio:.2f} times as long as those of {others}"
    )
    slow = list(map(Measured.of, parts, times.slowness().tolist()))
    pictures: list[Picture] = []
    if len(parts) >= _FEWEST:
        pictures += times.by_rank(labels)
    kernels = added["kernel"].to_numpy()
    starts = added["at_least_ns"].to_numpy()
    counts = added["count"].to_numpy()
    for name in times.names[:_DRAWN]:
        own = kernels == name
        pictures.append(histogram(name, starts[own], counts[own]))
    return Result(
        [_TABLE.of(rows)],
        stragglers(slow, sentence),
        pictures,
    )


class _RankTimes:
    """The ``counts`` and the ``means`` (ns) of kernels: a row for each of ``names``, a column for each part. A mean is
    NaN if the part lacks the kernel."""

    def __init__(self, names: Any, of_parts: Sequence[Any]) -> None:
        compute = package("pyarrow.compute", "batch")
        self.names: list[str] = names.to_pylist()
        self.counts = np.zeros((len(self.names), len(of_parts)))
        totals = np.zeros_like(self.counts)
        for column, table in enumerate(of_parts):
            row = compute.index_in(table["kernel"], names).to_numpy()
            self.counts[row, column] = table["count"]
            totals[row, column] = table["total_ns"]
        with np.errstate(invalid="ignore"):
            self.means = totals / self.counts
        self._communicates = np.array(list(map(communicates, self.names)), bool)

    def by_rank(self, labels: Sequence[str]) -> Iterator[Matrix]:
        """Yield a heat map of the mean times of kernels by rank, as differences from the median rank. Yields nothing
        without kernels."""
        compared = np.flatnonzero(~self._communicates)[:_COMPARED]
        if not len(compared):
            return
        means = self.means[compared]
        medians = np.nanmedian(means, axis=1, keepdims=True)
        title = "Mean times of kernels by rank, compared with the median rank"
        names = [self.names[row] for row in compared.tolist()]
        # A median of 0 makes the shares infinite or NaN.
        with np.errstate(divide="ignore", invalid="ignore"):
            yield Matrix(
                title,
                "1",
                names,
                labels,
                means / medians - 1,
            )

    def slowness(self) -> np.ndarray:
        """The slowness of each part: the time of its kernels, divided by the time that they would take with the median
        duration over all parts. Communication kernels are left out, because fast ranks wait in them for slow ranks.
        Kernels in less than half of the parts are also left out."""
        parts = self.counts.shape[1]
        compared = 2 * (self.counts > 0).sum(axis=1) >= parts
        compared &= ~self._communicates
        counts = self.counts[compared]
        means = self.means[compared]
        spent = np.nansum(means * counts, axis=0)
        usual = np.nanmedian(means, axis=1) @ counts
        slow = np.ones(parts)
        np.divide(spent, usual, out=slow, where=usual > 0)
        return slow


KERNELS = BatchReport(
    "kernels",
    "Kernels of all ranks, and the slowest rank of each",
    times,
    _reduce,
    tables=(_TABLE,),
)
