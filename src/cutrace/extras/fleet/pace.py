"""The durations of a kernel, a range or a step, by rank and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...analysis.tables import Table, columns_of
from ...errors import CutraceError
from ...patterns import matcher
from .model import BatchOptions, BatchReport, Part, Picture, RankTrace, Result
from .stragglers import Measured, stragglers
from .time_sums import TimeSums
from .timeline import Steps, by_job, heat_map

#: What may bear the name, by table.
_KINDS = {"kernels": "kernel", "nvtx_ranges": "range", "host_slices": "slice"}


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
    rows = []
    pictures: list[Picture] = []
    sentences = []
    named = options.name.replace("{", "{{").replace("}", "}}")
    for kind in _KINDS.values():
        means: list[Measured] = []
        for job, of_job in by_job(parts):
            cells = []
            labels = []
            hosts = []
            for part in of_job:
                columns = part.columns()
                own = columns["kind"] == kind
                if not own.any():
                    continue
                at = columns["at_ns"][own] - part.ahead
                count = columns["count"][own]
                total = columns["total_ns"][own]
                labels.append(part.label)
                hosts.append(part.host)
                cells.append((at, total, count))
                mean = int(total.sum()) / int(count.sum())
                means.append(Measured.of(part, mean))
                rows.append(
                    (
                        mean,
                        int(count.sum()),
                        int(total.sum()),
                        int(columns["min_ns"][own].min()),
                        int(columns["max_ns"][own].max()),
                        kind,
                        part.label,
                        part.host,
                    )
                )
            title = f"Mean duration of {kind} {options.name}, job {job}"
            picture = heat_map(title, "ns", labels, cells, hosts)
            if picture:
                pictures.append(picture)
        sentence = f"{{who}}: {kind} {named} takes {{ratio:.2f}} times as long as on {{others}}"
        sentences += stragglers(means, sentence)
    if not rows:
        raise CutraceError(
            f"nothing is named {options.name!r} in these files: `cutrace stats` shows the names of kernels and ranges"
        )
    shown = columns_of(
        "mean: ns, count, total: ns, min: ns, max: ns, kind: text, rank: text, host: text spare"
    )
    rows.sort(key=lambda row: -row[0])
    table = Table("pace", f"Durations of {options.name}", shown, rows)
    return Result([table], sentences, pictures)


PACE = BatchReport(
    "pace",
    "Durations of a kernel, range or step by rank and time",
    _durations,
    _reduce,
    ("name",),
)
