"""The use of GPUs over all ranks: busy time over wall time, idle time by length, and communication and copies behind
computation.

A GPU is busy while any work runs on it: a kernel, a copy, a fill, or a graph that was traced as a whole. Each process
is counted separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..._native import BusyParts
from ...analysis.context import CollectorContext
from ...analysis.statistics.gpus import GPU_SUM, GPUS
from ...analysis.sweep import Groups, Stream, SweepBatch
from ...analysis.tables import columns_of, docs_of
from ...runbin.layout import GPU_WORK
from ...trace.arrow import pyarrow
from .model import (
    COLUMN_DOCS,
    BatchOptions,
    BatchReport,
    BatchTable,
    Part,
    Picture,
    RankCollector,
    RankTrace,
    Result,
    Row,
    descending,
    share_of,
)
from .stragglers import Measured, stragglers
from .time_sums import TimeSums, binned, histogram
from .timeline import Steps, TimeRatios, by_job

#: The meanings of the columns that these tables share with the statistic of GPUs.
_GPU_DOCS = docs_of(GPU_SUM.shown_columns)

# Busy time by rank and time


_UTILIZATION_TABLE = BatchTable(
    "utilization",
    "Busy time of GPUs",
    columns_of(
        "busy: 1, busy time: ns, span: ns, GPU: text, host: text spare",
        COLUMN_DOCS
        | {
            "busy": "busy time / span",
            "busy time": _GPU_DOCS["busy"],
            "span": "time from the first time step with work to the last one",
        },
    ),
    "One row per rank and GPU, the least busy first.",
)


class _BusySteps(RankCollector):
    """Collects the devices of a process, and the busy time (ns) of each device in each step of wall time."""

    tables = GPU_WORK

    def __init__(self, context: CollectorContext, rank: RankTrace) -> None:
        super().__init__(context, rank)
        self._steps = Steps.of(rank)
        self._devices = Groups()
        last = self._steps.width * self._steps.count - 1
        self._times = BusyParts(0, last, self._steps.count)

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        device = self._devices.of(work.device)
        start = self.rank.moved(work.start) - self._steps.start
        end = self.rank.moved(work.end) - self._steps.start
        self._times.add(device, start, end)

    def end(self, process: int, streams: list[Stream]) -> Iterator[Any]:
        by_device = self._times.busy().reshape(-1, self._steps.count)
        for (device,), busy in zip(self._devices.values, by_device, strict=True):
            yield device, busy


def _busy_by_time(rank: RankTrace, options: BatchOptions) -> Any:
    steps = Steps.of(rank)
    by_device: dict[int, np.ndarray] = {}
    for device, busy in rank.collected(_BusySteps):
        by_device[device] = by_device.get(device, 0) + busy
    parts = [np.zeros((4, 0), np.int64)]
    for device, busy in sorted(by_device.items()):
        used = np.flatnonzero(busy)
        if not len(used):
            continue
        rows = np.full((4, steps.count), device)
        rows[1] = steps.begins
        rows[2] = steps.width
        rows[3] = busy
        parts.append(rows[:, used[0] : used[-1] + 1])
    names = ("device", "at_ns", "step_ns", "busy_ns")
    columns = np.concatenate(parts, axis=1)
    return pyarrow("batch").table(dict(zip(names, columns, strict=True)))


def _utilization(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[tuple[float, int, int, str, str]] = []
    shares = []
    pictures: list[Picture] = []
    for job, of_job in by_job(parts):
        ratios = TimeRatios()
        for part in of_job:
            columns = part.columns()
            at = columns["at_ns"] - part.ahead
            for device in np.unique(columns["device"]).tolist():
                own = columns["device"] == device
                step = columns["step_ns"][own]
                busy = columns["busy_ns"][own]
                name = part.gpu(device)
                ratios.add(
                    name,
                    at[own],
                    busy,
                    step,
                    part.host,
                )
                spent = int(busy.sum())
                span = int(step.sum())
                rows.append(
                    (
                        spent / span,
                        spent,
                        span,
                        name,
                        part.host,
                    )
                )
                shares.append(Measured.of(part, 100 * spent / span, device))
        pictures += ratios.heat_map(f"Busy GPUs, job {job}", "1")
    rows.sort(key=lambda row: row[0])
    tables = [_UTILIZATION_TABLE.of(rows)]
    sentence = "{who}: busy {value:.3g}% of the time, {others} {usual:.3g}%"
    return Result(tables, stragglers(shares, sentence, low=True), pictures)


# Idle time by length and rank


_LENGTH_TABLE = BatchTable(
    "gaps",
    "Idle times by length",
    columns_of(
        "at least: ns, share: 1, total: ns, count, mean: ns, max: ns",
        COLUMN_DOCS
        | {"at least": "lower end of the lengths; the upper end is twice as long"},
    ),
    "One row per power of two of the lengths of idle times, the shortest first.",
)
_RANK_TABLE = BatchTable(
    "gaps_by_rank",
    "Idle times by rank",
    columns_of(
        "total: ns, count, mean: ns, max: ns, GPU: text, host: text spare", COLUMN_DOCS
    ),
    "One row per rank and GPU: its idle times, the largest total first.",
)


class _Gaps(RankCollector):
    """Collects the idle times of the devices of a process, by device and bin."""

    tables = GPU_WORK

    def __init__(self, context: CollectorContext, rank: RankTrace) -> None:
        super().__init__(context, rank)
        self._sums = TimeSums("device", "at_least_ns")
        # The last end by device.
        self._ends: dict[int, int] = {}

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        for device in np.unique(work.device).tolist():
            own = work.device == device
            start = work.start[own]
            latest = self._ends.get(device, start[0])
            ends = np.append(latest, work.end[own])
            before = np.maximum.accumulate(ends)
            self._ends[device] = int(before[-1])
            gaps = start - before[:-1]
            gaps = gaps[gaps > 0]
            self._sums.add(gaps, device, binned(gaps))

    def end(self, process: int, streams: list[Stream]) -> Iterator[Any]:
        yield self._sums.table()


def _gap_lengths(rank: RankTrace, options: BatchOptions) -> Any:
    sums = TimeSums("device", "at_least_ns")
    for of_process in rank.collected(_Gaps):
        sums.add_table(of_process)
    return sums.table()


def _gaps(parts: Sequence[Part], options: BatchOptions) -> Result:
    lengths = TimeSums("at_least_ns")
    rows: list[Row] = []
    idle = []
    for part in parts:
        table = part.table()
        lengths.add_table(table)
        own = TimeSums("device")
        own.add_table(table)
        for use in own.table().to_pylist():
            device = use["device"]
            idle.append(Measured.of(part, use["total_ns"], device))
            rows.append((*_sums(use), part.gpu(device), part.host))
    bins = lengths.table()
    pictures: list[Picture] = []
    if len(bins):
        starts = bins["at_least_ns"].to_numpy()
        counts = bins["count"].to_numpy()
        pictures.append(histogram("Idle times", starts, counts))
    sentence = "{who}: idle {ratio:.2f} times as long as {others}"
    tables = [
        _LENGTH_TABLE.of(_by_power_of_two(bins)),
        _RANK_TABLE.of(descending(rows)),
    ]
    return Result(tables, stragglers(idle, sentence), pictures)


def _sums(use: dict[str, Any]) -> tuple[int, int, float, int]:
    """The total, count, mean and maximum in a row of :class:`TimeSums`."""
    total = use["total_ns"]
    count = use["count"]
    return total, count, total / count, use["max_ns"]


def _by_power_of_two(bins: Any) -> list[Row]:
    """The rows of the table of idle times by length. Each row sums the bins of one power of two."""
    _, bits = np.frexp(bins["at_least_ns"].to_numpy())
    powers = 1 << (bits.astype(np.int64) - 1)
    sums = TimeSums("at_least_ns")
    sums.add_table(bins.set_column(0, "at_least_ns", [powers]))
    by_power = sums.table().to_pylist()
    whole = sum(power["total_ns"] for power in by_power)
    rows: list[Row] = []
    for power in by_power:
        share = share_of(power["total_ns"], whole)
        rows.append((power["at_least_ns"], share, *_sums(power)))
    return rows


# Communication and copies behind computation


_OVERLAP_TABLE = BatchTable(
    "overlap",
    "Communication and copies behind computation",
    columns_of(
        "busy: ns, compute: ns, communication: ns, hidden: 1, exposed: ns, copies: ns spare, "
        "hidden copies: 1 spare, GPU: text, host: text spare",
        _GPU_DOCS
        | COLUMN_DOCS
        | {
            "communication": "time in which a communication kernel ran",
            "hidden": "fraction of the communication in which computation ran too",
            "exposed": "time in which a communication kernel ran and no computation",
            "copies": "time in which a copy ran",
            "hidden copies": "fraction of the copies in which computation ran too",
        },
    ),
    "One row per rank and GPU, in the order of ranks. Times are unions, in which each moment counts once.",
)

_TIMES = (
    "busy_ns",
    "compute_ns",
    "communication_ns",
    "hidden_communication_ns",
    "copies_ns",
    "hidden_copies_ns",
)


def _overlap_times(rank: RankTrace, options: BatchOptions) -> Any:
    rows = []
    for use in rank.collected(GPUS):
        row = (
            use.device,
            use.busy,
            use.compute,
            use.communication.time,
            use.communication.hidden,
            use.copies.time,
            use.copies.hidden,
        )
        rows.append(row)
    names = ("device", *_TIMES)
    columns = np.array(rows, np.int64).reshape(-1, len(names)).T
    table = pyarrow("batch").table(dict(zip(names, columns, strict=True)))
    # Processes of a rank may share a device.
    sums = [(name, "sum") for name in _TIMES]
    added = table.group_by("device", use_threads=False).aggregate(sums)
    return (
        added.select(["device", *map("_".join, sums)])
        .rename_columns(names)
        .sort_by("device")
    )


def _overlap(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[Row] = []
    exposed = []
    for part in parts:
        for use in part.table().to_pylist():
            device = use["device"]
            communication = use["communication_ns"]
            hidden = use["hidden_communication_ns"]
            copies = use["copies_ns"]
            row = (
                use["busy_ns"],
                use["compute_ns"],
                communication,
                share_of(hidden, communication),
                communication - hidden,
                copies,
                share_of(use["hidden_copies_ns"], copies),
                part.gpu(device),
                part.host,
            )
            rows.append(row)
            if communication:
                exposed.append(Measured.of(part, communication - hidden, device))
    tables = [_OVERLAP_TABLE.of(rows)]
    sentence = "{who}: communication outside of computation, with waits, takes {ratio:.2f} times as long as on {others}"
    # If half of the ranks are slow, the other half waits for them. A sentence on one half would blame the wrong ranks.
    return Result(tables, stragglers(exposed, sentence, halves=False))


UTILIZATION = BatchReport(
    "utilization",
    "Busy time of each GPU over time",
    _busy_by_time,
    _utilization,
    collects=(_BusySteps,),
    tables=(_UTILIZATION_TABLE,),
)
GAPS = BatchReport(
    "gaps",
    "Idle times of GPUs by length and by rank",
    _gap_lengths,
    _gaps,
    collects=(_Gaps,),
    tables=(_LENGTH_TABLE, _RANK_TABLE),
)
OVERLAP = BatchReport(
    "overlap",
    "Communication and copies behind computation by rank",
    _overlap_times,
    _overlap,
    collects=(GPUS,),
    tables=(_OVERLAP_TABLE,),
)
