"""The durations of a kernel, a range or a step, by rank and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...analysis.tables import columns_of
from ...errors import CutraceError
from ...patterns import matcher
from .model import (
    COLUMN_DOCS,
    BatchOptions,
    BatchReport,
    BatchTable,
    Part,
    Picture,
    RankTrace,
    Result,
    Row,
    descending,
)
from .stragglers import Measured, listed, stragglers
from .time_sums import TimeSums
from .timeline import Steps, TimeRatios, by_job

#: The kind of object that each table names.
_KINDS = {"kernels": "kernel", "nvtx_ranges": "range", "host_slices": "slice"}
#: The title of a result has the pattern of ``--name``.
_TABLE = BatchTable(
    "pace",
    "Durations of PATTERN",
    columns_of(
        "mean: ns, count, total: ns, min: ns, max: ns, kind: text, rank: text, host: text spare",
        COLUMN_DOCS
        | {"kind": "kernel, range of NVTX, or slice of the host (in imported traces)"},
    ),
    "One row per rank and kind: the durations of the matches of --name PATTERN, the largest mean first.",
)


def _durations(rank: RankTrace, options: BatchOptions) -> Any:
    matches = matcher(options.name)
    kernels = rank.context.kernels
    of_kernel = np.array([matches(name) for name in kernels.names], bool)
    of_launch = of_kernel[kernels.numbers]
    of_string = np.fromiter((matches(text) for text in rank.trace.strings), bool)
    steps = Steps.of(rank)
    sums = TimeSums("kind", "at_ns", "step_ns")
    for number, table in enumerate(_KINDS):
        for rows in rank.rows(table):
            if table == "kernels":
                named = of_launch[rows["launch"]]
            else:
                named = of_string[rows["name"]]
            start = rows["start"][named].astype(np.int64)
            end = rows["end"][named].astype(np.int64)
            at = steps.begins[steps.of_times(rank.moved(start))]
            sums.add(end - start, number, at, steps.width)
    return sums.table(kind=list(_KINDS.values()))


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[Row] = []
    pictures: list[Picture] = []
    sentences = []
    found = set()
    named = options.name.replace("{", "{{").replace("}", "}}")
    for kind in _KINDS.values():
        means: list[Measured] = []
        for job, of_job in by_job(parts):
            ratios = TimeRatios()
            for part in of_job:
                columns = part.columns()
                own = columns["kind"] == kind
                if not own.any():
                    continue
                found.add(part.label)
                at = columns["at_ns"][own] - part.ahead
                counts = columns["count"][own]
                totals = columns["total_ns"][own]
                ratios.add(
                    part.label,
                    at,
                    totals,
                    counts,
                    part.host,
                )
                total = int(totals.sum())
                count = int(counts.sum())
                means.append(Measured.of(part, total / count))
                least = int(columns["min_ns"][own].min())
                most = int(columns["max_ns"][own].max())
                rows.append(
                    (
                        total / count,
                        count,
                        total,
                        least,
                        most,
                        kind,
                        part.label,
                        part.host,
                    )
                )
            pictures += ratios.heat_map(
                f"Mean duration of {kind} {options.name}, job {job}", "ns"
            )
        sentence = f"{{who}}: {kind} {named} takes {{ratio:.2f}} times as long as on {{others}}"
        sentences += stragglers(means, sentence)
    if not rows:
        raise CutraceError(
            f"nothing is named {options.name!r} in these files: `cutrace stats` shows the names of kernels and ranges"
        )
    unnamed = [part.label for part in parts if part.label not in found]
    if unnamed:
        sentences.append(f"nothing is named {options.name!r} on {listed(unnamed)}")
    table = replace(_TABLE, title=f"Durations of {options.name}")
    return Result([table.of(descending(rows))], sentences, pictures)


PACE = BatchReport(
    "pace",
    "Durations of a kernel, range or step by rank and time",
    _durations,
    _reduce,
    ("name",),
    tables=(_TABLE,),
)
