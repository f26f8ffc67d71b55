"""Kernels over all ranks: times by name, and the slowest rank of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.statistics.kernels import KERNELS as KERNELS_BY_NAME
from ...analysis.tables import Table, columns_of
from .model import BatchOptions, BatchReport, Part, RankTrace, Result
from .stragglers import stragglers
from .time_sums import TimeSums, binned, histogram

# Kernels with a picture.
_DRAWN = 6


def times(rank: RankTrace, options: BatchOptions) -> Any:
    """The times of kernels by name and bin."""
    sums = TimeSums("kernel", "at_least_ns")
    for kernel, duration in rank.grouped(KERNELS_BY_NAME):
        sums.add(duration, kernel, binned(duration))
    return sums.table(kernel=rank.context.kernels.names)


def by_name(table: Any) -> dict[str, tuple[int, int, int, int]]:
    """Return count, total, minimum and maximum (ns) of each kernel of a part."""
    sums = TimeSums("kernel")
    sums.add_table(table)
    name, *values = (column.to_pylist() for column in sums.table().columns)
    return dict(zip(name, zip(*values, strict=True), strict=True))


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    bins = TimeSums("kernel", "at_least_ns")
    of_parts = []
    for part in parts:
        table = part.table()
        bins.add_table(table)
        of_parts.append(by_name(table))
    added = bins.table()
    whole = by_name(added)
    rows_of_bins = added.to_pylist()
    total = sum(use[1] for use in whole.values()) or 1
    order = sorted(whole, key=lambda name: (-whole[name][1], name))
    rows = []
    for name in order:
        count, spent, least, most = whole[name]
        means = [(use[name][1] / use[name][0], part.label) for use, part in zip(of_parts, parts, strict=True)
                 if name in use]  # fmt: skip
        # The first of several equally slow ones.
        mean, slowest = max(means, key=lambda pair: pair[0])
        rows.append(
            (
                spent / total,
                spent,
                count,
                spent / count,
                least,
                most,
                len(means),
                mean,
                slowest,
                name,
            )
        )
    columns = columns_of(
        "share: 1, total: ns, count, mean: ns, min: ns spare, max: ns spare, ranks: spare, slowest mean: ns, "
        "slowest rank: text, kernel: text"
    )
    sentence = (
        "{rank}: its kernels take {ratio:.2f} times as long as those of the median rank"
    )
    return Result(
        [Table("kernels", "Kernels of all ranks", columns, rows)],
        stragglers([part.label for part in parts], slowness(of_parts), sentence),
        [
            histogram(name, (row for row in rows_of_bins if row["kernel"] == name))
            for name in order[:_DRAWN]
        ],
    )


def slowness(of_parts: Sequence[dict[str, tuple[int, int, int, int]]]) -> list[float]:
    """Return for each part the time of its kernels, divided by the time that they take with the median duration of all
    parts. Communication kernels are left out, because fast ranks wait in them for slow ones; so are kernels of less
    than half of the parts."""
    means: dict[str, list[float]] = {}
    for uses in of_parts:
        for name, (count, total, *_) in uses.items():
            means.setdefault(name, []).append(total / count)
    medians = {
        name: float(np.median(own))
        for name, own in means.items()
        if 2 * len(own) >= len(of_parts) and not communicates(name)
    }
    slow = []
    for uses in of_parts:
        usual = sum(
            use[0] * medians[name] for name, use in uses.items() if name in medians
        )
        slow.append(
            sum(use[1] for name, use in uses.items() if name in medians) / usual
            if usual
            else 1.0
        )
    return slow


KERNELS = BatchReport(
    "kernels", "Kernels of all ranks, and the slowest rank of each", times, _reduce
)
