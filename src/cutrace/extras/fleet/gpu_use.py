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
from ...analysis.tables import Table, columns_of
from ...trace.arrow import pyarrow
from ...trace.quality import GPU_WORK
from .model import (
    BatchOptions,
    BatchReport,
    Part,
    Picture,
    RankTrace,
    Result,
    Row,
    share_of,
)
from .stragglers import Measured, stragglers
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
            work = batch.work
            begin = rank.moved(work.start) - steps.start
            end = rank.moved(work.end) - steps.start
            times.add(devices.of(work.device), begin, end)
        by_device = times.busy().reshape(-1, steps.count)
        for (device,), of_process in zip(devices.values, by_device, strict=True):
            busy[device] = busy.get(device, 0) + of_process
    parts = [np.zeros((4, 0), np.int64)]
    for device, of_device in sorted(busy.items()):
        used = np.flatnonzero(of_device)
        if not len(used):
            continue
        first = used[0]
        end = used[-1] + 1
        rows = np.zeros((4, end - first), np.int64)
        rows[0] = device
        rows[1] = steps.begins[first:end]
        rows[2] = steps.width
        rows[3] = of_device[first:end]
        parts.append(rows)
    devices, times, widths, used = np.concatenate(parts, axis=1)
    return pyarrow("batch").table(
        {"device": devices, "at_ns": times, "step_ns": widths, "busy_ns": used}
    )


def _utilization(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[tuple[float, int, int, str, str]] = []
    shares = []
    pictures: list[Picture] = []
    for job, of_job in by_job(parts):
        cells = []
        names = []
        hosts = []
        for part in of_job:
            columns = part.columns()
            at = columns["at_ns"] - part.ahead
            step = columns["step_ns"]
            busy = columns["busy_ns"]
            for number in np.unique(columns["device"]).tolist():
                own = columns["device"] == number
                cells.append((at[own], busy[own], step[own]))
                name = f"{part.label} GPU {number}"
                names.append(name)
                hosts.append(part.host)
                spent = int(busy[own].sum())
                span = int(step[own].sum())
                share = spent / span
                row = (
                    share,
                    spent,
                    span,
                    name,
                    part.host,
                )
                rows.append(row)
                shares.append(Measured.of(part, share, number))
        picture = heat_map(f"Busy GPUs, job {job}", "1", names, cells, hosts)
        if picture:
            pictures.append(picture)
    rows.sort(key=lambda row: row[0])
    table = Table(
        "utilization",
        "Busy time of GPUs",
        columns_of("busy: 1, busy time: ns, span: ns, GPU: text, host: text spare"),
        rows,
    )
    sentence = "{who}: busy {value:.1%} of the time, {others} {usual:.1%}"
    return Result([table], stragglers(shares, sentence, low=True), pictures)


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
                latest = ends.get(device, start[0])
                end = np.append(latest, work.end[of_device])
                before = np.maximum.accumulate(end)
                ends[device] = int(before[-1])
                gaps = start - before[:-1]
                gaps = gaps[gaps > 0]
                sums.add(gaps, device, binned(gaps))
    return sums.table()


def _gaps(parts: Sequence[Part], options: BatchOptions) -> Result:
    lengths = TimeSums("at_least_ns")
    rows = []
    idle = []
    for part in parts:
        table = part.table()
        own = TimeSums("device")
        lengths.add_table(table)
        own.add_table(table)
        for use in own.table().to_pylist():
            gpu = f"{part.label} GPU {use['device']}"
            idle_time = use["total_ns"]
            idle.append(Measured.of(part, idle_time, use["device"]))
            row = (
                *_sums(use),
                gpu,
                part.host,
            )
            rows.append(row)
    rows.sort(key=lambda row: -row[0])
    bins = lengths.table().to_pylist()
    by_length = _by_power_of_two(bins)
    pictures: list[Picture] = []
    if bins:
        pictures.append(histogram("Idle times", bins))
    sentence = "{who}: idle {ratio:.2f} times as long as {others}"
    sums = "total: ns, count, mean: ns, max: ns"
    tables = [
        Table(
            "gaps",
            "Idle times by length",
            columns_of(f"at least: ns, share: 1, {sums}"),
            by_length,
        ),
        Table(
            "gaps_by_rank",
            "Idle times by rank",
            columns_of(f"{sums}, GPU: text, host: text spare"),
            rows,
        ),
    ]
    return Result(tables, stragglers(idle, sentence), pictures)


def _sums(use: dict[str, Any]) -> tuple[int, int, float, int]:
    """Total, count, mean and maximum of a row of :class:`TimeSums`."""
    total = use["total_ns"]
    count = use["count"]
    return total, count, total / count, use["max_ns"]


def _by_power_of_two(bins: Sequence[dict[str, Any]]) -> list[Row]:
    """The rows of the table of idle times by length. A power of two has many bins."""
    powers: dict[int, dict[str, int]] = {}
    for row in bins:
        least = 1 << (row["at_least_ns"].bit_length() - 1)
        power = powers.setdefault(least, {"total_ns": 0, "count": 0, "max_ns": 0})
        power["total_ns"] += row["total_ns"]
        power["count"] += row["count"]
        power["max_ns"] = max(power["max_ns"], row["max_ns"])
    whole = sum(power["total_ns"] for power in powers.values()) or 1
    rows: list[Row] = []
    for least, power in powers.items():
        rows.append((least, power["total_ns"] / whole, *_sums(power)))
    return rows


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
    devices = np.array(sorted(times), np.int64)
    columns = {"device": devices}
    for at, name in enumerate(_TIMES):
        of_devices = [times[device][at] for device in devices.tolist()]
        columns[f"{name}_ns"] = np.array(of_devices, np.int64)
    return pyarrow("batch").table(columns)


def _overlap(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[Row] = []
    exposed = []
    for part in parts:
        for use in part.table().to_pylist():
            communication = use["communication_ns"]
            hidden = use["hidden_communication_ns"]
            copies = use["copies_ns"]
            label = f"{part.label} GPU {use['device']}"
            rows.append(
                (
                    use["busy_ns"],
                    use["compute_ns"],
                    communication,
                    share_of(hidden, communication),
                    communication - hidden,
                    copies,
                    share_of(use["hidden_copies_ns"], copies),
                    label,
                    part.host,
                )
            )
            if communication:
                shown = communication - hidden
                exposed.append(Measured.of(part, shown, use["device"]))
    columns = columns_of(
        "busy: ns, compute: ns, communication: ns, hidden: 1, exposed: ns, copies: ns spare, "
        "hidden copies: 1 spare, GPU: text, host: text spare"
    )
    table = Table(
        "overlap",
        "Communication and copies behind computation",
        columns,
        rows,
    )
    sentence = "{who}: communication that no computation hides takes {ratio:.2f} times as long as on {others}"
    # Where half of the ranks are slow, the others wait for them, which is no fault of theirs.
    return Result([table], stragglers(exposed, sentence, halves=False))


UTILIZATION = BatchReport(
    "utilization",
    "Busy time of each GPU over time",
    _busy_by_time,
    _utilization,
)
GAPS = BatchReport(
    "gaps",
    "Idle times of GPUs by length and by rank",
    _gap_lengths,
    _gaps,
)
OVERLAP = BatchReport(
    "overlap",
    "Communication and copies behind computation by rank",
    _overlap_times,
    _overlap,
)
