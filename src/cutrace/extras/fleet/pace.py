"""The durations of a kernel, a range or a step, by rank and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...analysis.tables import Table, columns_of
from ...errors import CutraceError
from ...patterns import matcher
from .model import BatchOptions, BatchReport, Part, RankTrace, Result
from .stragglers import stragglers
from .time_sums import TimeSums
from .timeline import Steps, by_job, heat_map

#: What may bear the name, by table.
_KINDS = {"kernels": "kernel", "nvtx_ranges": "range", "host_slices": "slice"}


def _durations(rank: RankTrace, options: BatchOptions) -> Any:
    matches = matcher(options.name)
    kernels = rank.context.kernels
    of_launch = np.array([matches(name) for name in kernels.names], bool)[
        kernels.numbers
    ]
    of_string = np.fromiter((matches(text) for text in rank.trace.strings), bool)
    steps = Steps.of(rank)
    sums = TimeSums("kind", "at_ns", "step_ns")
    for number, table in enumerate(_KINDS):
        for rows in rank.rows(table):
            if table == "kernels":
                named = of_launch[rows["launch"]]
            else:
                named = of_string[rows["name"]]
            start, end = (
                rows[field][named].astype(np.int64) for field in ("start", "end")
            )
            at = steps.begins[steps.of_times(rank.moved(start))]
            sums.add(end - start, number, at, steps.width)
    return sums.table(kind=list(_KINDS.values()))


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows = []
    pictures = []
    sentences = []
    named = options.name.replace("{", "{{").replace("}", "}}")
    for kind in _KINDS.values():
        means: list[tuple[str, float]] = []
        for job, of_job in by_job(parts):
            cells = []
            labels = []
            for part in of_job:
                own = [row for row in part.table().to_pylist() if row["kind"] == kind]
                if not own:
                    continue
                at, count, total = (
                    np.array([row[key] for row in own])
                    for key in ("at_ns", "count", "total_ns")
                )
                labels.append(part.label)
                cells.append((at, total, count))
                mean = int(total.sum()) / int(count.sum())
                least = min(row["min_ns"] for row in own)
                most = max(row["max_ns"] for row in own)
                means.append((part.label, mean))
                rows.append(
                    (
                        mean,
                        int(count.sum()),
                        int(total.sum()),
                        least,
                        most,
                        kind,
                        part.label,
                    )
                )
            picture = heat_map(
                f"Mean duration of {kind} {options.name}, job {job}",
                "ns",
                labels,
                cells,
            )
            if picture:
                pictures.append(picture)
        sentence = f"{{rank}}: {kind} {named} takes {{ratio:.2f}} times as long as on the median rank"
        sentences += stragglers(
            [label for label, _ in means], [mean for _, mean in means], sentence
        )
    if not rows:
        raise CutraceError(
            f"nothing is named {options.name!r} in these files: `cutrace stats` shows the names of kernels and ranges"
        )
    columns = columns_of(
        "mean: ns, count, total: ns, min: ns, max: ns, kind: text, rank: text"
    )
    rows.sort(key=lambda row: -row[0])
    return Result(
        [Table("pace", f"Durations of {options.name}", columns, rows)],
        sentences,
        list(pictures),
    )


PACE = BatchReport(
    "pace",
    "Durations of a kernel, range or step by rank and time",
    _durations,
    _reduce,
    ("name",),
)
