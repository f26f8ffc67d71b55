"""The use of GPUs over all ranks: busy time by time, idle time by length, communication and copies behind computation.

A GPU is busy while any work runs on it: a kernel, a copy, a fill, or a graph that was traced as a whole. Each process
counts for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._native import BusyParts
from ...analysis.statistics.gpus import GPUS
from ...analysis.sweep import Groups
from ...analysis.tables import Cell, Table, columns_of
from ...trace.arrow import pyarrow
from ...trace.quality import GPU_WORK
from .model import BatchOptions, BatchReport, Part, RankTrace, Result
from .stragglers import stragglers
from .time_sums import TimeSums, binned, histogram
from .timeline import Steps, by_job, heat_map

# Busy time by rank and time


def _busy_by_time(rank: RankTrace, options: BatchOptions) -> Any:
    steps = Steps.of(rank)
    busy: dict[int, np.ndarray] = {}
    for sweep in rank.sweeps(*GPU_WORK):
        devices = Groups()
        times = BusyParts(0, steps.width * steps.count - 1, steps.count)
        for batch in sweep:
            begin, end = (
                rank.moved(time) - steps.start
                for time in (batch.work.start, batch.work.end)
            )
            times.add(devices.of(batch.work.device), begin, end)
        for (device,), of_process in zip(
            devices.values, times.busy().reshape(-1, steps.count), strict=True
        ):
            busy[device] = busy.get(device, 0) + of_process
    parts = [np.zeros((4, 0), np.int64)]
    for device in sorted(busy):
        used = np.flatnonzero(busy[device])
        span = slice(used[0], used[-1] + 1) if len(used) else slice(0)
        parts.append(
            np.stack(
                np.broadcast_arrays(
                    device, steps.begins[span], steps.width, busy[device][span]
                )
            )
        )
    columns = zip(
        ("device", "at_ns", "step_ns", "busy_ns"),
        np.concatenate(parts, axis=1),
        strict=True,
    )
    return pyarrow("batch").table(dict(columns))


def _utilization(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[tuple[float, int, int, str]] = []
    pictures = []
    for job, of_job in by_job(parts):
        cells = []
        names = []
        for part in of_job:
            device, at, step, busy = (
                column.to_numpy() for column in part.table().columns
            )
            for number in np.unique(device).tolist():
                own = device == number
                cells.append((at[own], busy[own], step[own]))
                names.append(f"{part.label} GPU {number}")
                spent = int(busy[own].sum())
                span = int(step[own].sum())
                rows.append((spent / span, spent, span, names[-1]))
        picture = heat_map(f"Busy GPUs, job {job}", "1", names, cells)
        if picture:
            pictures.append(picture)
    rows.sort(key=lambda row: row[0])
    table = Table(
        "utilization",
        "Busy time of GPUs",
        columns_of("busy: 1, busy time: ns, span: ns, GPU: text"),
        rows,
    )
    sentence = "{rank}: busy {value:.1%} of the time, the median GPU {median:.1%}"
    return Result(
        [table],
        stragglers(
            [row[-1] for row in rows], [row[0] for row in rows], sentence, low=True
        ),
        list(pictures),
    )


# Idle time by length and rank


def _gap_lengths(rank: RankTrace, options: BatchOptions) -> Any:
    sums = TimeSums("device", "at_least_ns")
    for sweep in rank.sweeps(*GPU_WORK):
        ends: dict[int, int] = {}
        for batch in sweep:
            work = batch.work
            for device in np.unique(work.device).tolist():
                of_device = work.device == device
                start = work.start[of_device]
                end = work.end[of_device]
                before = np.maximum.accumulate(
                    np.append(ends.get(device, start[0]), end)
                )
                ends[device] = int(before[-1])
                gaps = start - before[:-1]
                gaps = gaps[gaps > 0]
                sums.add(gaps, device, binned(gaps))
    return sums.table()


def _gaps(parts: Sequence[Part], options: BatchOptions) -> Result:
    lengths = TimeSums("at_least_ns")
    rows = []
    for part in parts:
        table = part.table()
        own = TimeSums("device")
        lengths.add_table(table)
        own.add_table(table)
        for use in own.table().to_pylist():
            count = use["count"]
            total = use["total_ns"]
            rows.append(
                (
                    total,
                    count,
                    total / count,
                    use["max_ns"],
                    f"{part.label} GPU {use['device']}",
                )
            )
    bins = lengths.table().to_pylist()
    whole = sum(row["total_ns"] for row in bins) or 1
    # Eight bins make a power of two.
    powers: dict[int, list[Any]] = {}
    for row in bins:
        powers.setdefault(1 << (row["at_least_ns"].bit_length() - 1), []).append(row)
    by_length = []
    for least, some in powers.items():
        total, count = (
            sum(row[name] for row in some) for name in ("total_ns", "count")
        )
        by_length.append(
            (
                least,
                total / whole,
                total,
                count,
                total / count,
                max(row["max_ns"] for row in some),
            )
        )
    sentence = "{rank}: idle {ratio:.2f} times as long as the median GPU"
    by_rank = sorted(rows, key=lambda row: -row[0])
    sums = "total: ns, count, mean: ns, max: ns"
    return Result(
        [
            Table(
                "gaps",
                "Idle times by length",
                columns_of(f"at least: ns, share: 1, {sums}"),
                by_length,
            ),
            Table(
                "gaps_by_rank",
                "Idle times by rank",
                columns_of(f"{sums}, GPU: text"),
                by_rank,
            ),
        ],
        stragglers([str(row[-1]) for row in rows], [row[0] for row in rows], sentence),
        [histogram("Idle times", bins)] if bins else [],
    )


# Communication and copies behind computation


_TIMES = (
    "busy",
    "compute",
    "communication",
    "hidden_communication",
    "copies",
    "hidden_copies",
)


def _overlap_times(rank: RankTrace, options: BatchOptions) -> Any:
    times: dict[int, np.ndarray] = {}
    for use in rank.collected(GPUS)[GPUS]:
        own = (
            use.busy,
            use.compute,
            use.communication.time,
            use.communication.hidden,
            use.copies.time,
            use.copies.hidden,
        )
        before = times.get(use.device, np.zeros(len(_TIMES), np.int64))
        times[use.device] = before + np.array(own)
    devices = sorted(times)
    columns = (
        np.array([times[device] for device in devices], np.int64)
        .reshape(-1, len(_TIMES))
        .T
    )
    named = {f"{name}_ns": column for name, column in zip(_TIMES, columns, strict=True)}
    return pyarrow("batch").table({"device": np.array(devices, np.int64)} | named)


def _overlap(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[tuple[Cell, ...]] = []
    exposed = {}
    for part in parts:
        for device, busy, compute, communication, hidden, copies, hidden_copies in zip(
            *(column.to_pylist() for column in part.table().columns), strict=True
        ):
            shares = (
                hidden / communication if communication else None,
                hidden_copies / copies if copies else None,
            )
            label = f"{part.label} GPU {device}"
            rows.append(
                (
                    busy,
                    compute,
                    communication,
                    shares[0],
                    communication - hidden,
                    copies,
                    shares[1],
                    label,
                )
            )
            if communication:
                exposed[label] = communication - hidden
    columns = columns_of(
        "busy: ns, compute: ns, communication: ns, hidden: 1, exposed: ns, copies: ns spare, "
        "hidden copies: 1 spare, GPU: text"
    )
    table = Table(
        "overlap", "Communication and copies behind computation", columns, rows
    )
    sentence = "{rank}: communication that no computation hides takes {ratio:.2f} times as long as on the median GPU"
    return Result([table], stragglers(list(exposed), list(exposed.values()), sentence))


UTILIZATION = BatchReport(
    "utilization", "Busy time of each GPU over time", _busy_by_time, _utilization
)
GAPS = BatchReport(
    "gaps", "Idle times of GPUs by length and by rank", _gap_lengths, _gaps
)
OVERLAP = BatchReport(
    "overlap",
    "Communication and copies behind computation by rank",
    _overlap_times,
    _overlap,
)
