"""Kernels over all ranks: times by name, and the slowest rank of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.statistics.kernels import KERNELS as KERNELS_BY_NAME
from ...analysis.tables import columns_of
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

#: The count, total, minimum and maximum (ns) of each kernel by name.
_Uses = dict[str, tuple[int, int, int, int]]

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


def by_name(table: Any) -> _Uses:
    """Return count, total, minimum and maximum (ns) of each kernel of a part."""
    sums = TimeSums("kernel")
    sums.add_table(table)
    names, *values = (column.to_pylist() for column in sums.table().columns)
    return dict(zip(names, zip(*values, strict=True), strict=True))


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    bins = TimeSums("kernel", "at_least_ns")
    of_parts = []
    # The largest mean time of each kernel and its rank; the first rank if several are equally slow.
    slowest: dict[str, tuple[float, str]] = {}
    ranks = Counter[str]()
    for part in parts:
        table = part.table()
        bins.add_table(table)
        uses = by_name(table)
        of_parts.append(uses)
        ranks.update(uses.keys())
        for name, (count, spent, _, _) in uses.items():
            mean = spent / count
            if name not in slowest or mean > slowest[name][0]:
                slowest[name] = mean, part.label
    added = bins.table()
    whole = by_name(added)
    total = sum(spent for _, spent, _, _ in whole.values())
    order = sorted(whole, key=lambda name: (-whole[name][1], name))
    rows = []
    for name in order:
        count, spent, least, most = whole[name]
        row = (
            share_of(spent, total),
            spent,
            count,
            spent / count,
            least,
            most,
            ranks[name],
            *slowest[name],
            name,
        )
        rows.append(row)
    sentence = (
        "{who}: {its} kernels take {ratio:.2f} times as long as those of {others}"
    )
    slow = list(map(Measured.of, parts, slowness(of_parts)))
    pictures: list[Picture] = []
    if len(parts) >= _FEWEST:
        labels = [part.label for part in parts]
        compared = [name for name in order if not communicates(name)][:_COMPARED]
        pictures += by_rank(compared, labels, of_parts)
    kernels = added["kernel"].to_numpy()
    starts = added["at_least_ns"].to_numpy()
    counts = added["count"].to_numpy()
    for name in order[:_DRAWN]:
        own = kernels == name
        pictures.append(histogram(name, starts[own], counts[own]))
    return Result(
        [_TABLE.of(rows)],
        stragglers(slow, sentence),
        pictures,
    )


def by_rank(
    names: Sequence[str], labels: Sequence[str], of_parts: Sequence[_Uses]
) -> Iterator[Matrix]:
    """Yield a heat map of the mean times of kernels by rank, as differences from the median rank. Yields nothing
    without kernels."""
    if not names:
        return
    means = np.full((len(names), len(labels)), np.nan)
    for column, uses in enumerate(of_parts):
        for row, name in enumerate(names):
            if name in uses:
                count, total, *_ = uses[name]
                means[row, column] = total / count
    medians = np.nanmedian(means, axis=1, keepdims=True)
    title = "Mean times of kernels by rank, compared with the median rank"
    # A median of 0 makes the shares infinite or NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        yield Matrix(
            title,
            "1",
            list(names),
            list(labels),
            means / medians - 1,
        )


def slowness(of_parts: Sequence[_Uses]) -> list[float]:
    """Return the slowness of each part: the time of its kernels, divided by the time that they would take with the
    median duration over all parts. Communication kernels are left out, because fast ranks wait in them for slow ranks.
    Kernels in less than half of the parts are also left out."""
    means: dict[str, list[float]] = {}
    for uses in of_parts:
        for name, (count, total, *_) in uses.items():
            means.setdefault(name, []).append(total / count)
    medians = {}
    for name, own in means.items():
        if 2 * len(own) >= len(of_parts) and not communicates(name):
            medians[name] = float(np.median(own))
    slow = []
    for uses in of_parts:
        spent = 0
        usual = 0.0
        for name, (count, total, *_) in uses.items():
            if name not in medians:
                continue
            spent += total
            usual += count * medians[name]
        if usual:
            slow.append(spent / usual)
        else:
            slow.append(1.0)
    return slow


KERNELS = BatchReport(
    "kernels",
    "Kernels of all ranks, and the slowest rank of each",
    times,
    _reduce,
    tables=(_TABLE,),
)
