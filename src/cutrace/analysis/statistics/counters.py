"""Counters: samples of hardware counters, counters of NVTX, and counters of imported traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext
from ..distribution import grown
from ..statistic import (
    GPU_DOC,
    SPARE_PROCESS,
    Statistic,
    View,
    count_column,
    number_column,
    text_column,
)
from ..sweep import Groups, Stream, SweepBatch

_NO_DEVICE = 0xFFFF
# The values of a counter without samples: number, sum, minimum and maximum.
_NO_SAMPLES = np.array([[0], [0], [np.inf], [-np.inf]])


@dataclass(frozen=True)
class CounterUse:
    """The samples of one counter of a process, in ``unit``. ``device`` is 0xffff for a counter of no device. ``total``
    is the integral of a rate over time, in the unit without ``/s``; None for other counters."""

    process: int
    device: int
    name: str
    series: str
    unit: str
    samples: int
    min: float
    mean: float
    max: float
    total: float | None


class _CounterCollector(StatsCollector[CounterUse]):
    tables = ("counters",)
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._groups = Groups()
        # By counter: number of samples, sum, minimum, maximum.
        self._values = np.zeros((4, 0))
        # By counter: the time integral (value x ns), and the last value and its time.
        self._held = np.zeros((2, 0))
        self._times = np.zeros(0, np.int64)

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("counters")
        if not rows:
            return
        group = self._groups.of(
            rows["device"], rows["name"], rows["series"], rows["unit"]
        )
        self._hold(group, rows["time"].astype(np.int64), rows["value"])
        self._count(group, rows["value"])

    def _count(self, group: np.ndarray, value: np.ndarray) -> None:
        """Add each finite value to the number, sum, minimum and maximum of its counter."""
        finite = np.isfinite(value)
        group = group[finite]
        value = value[finite]
        size = len(self._groups.values)
        self._values = grown(self._values, size, _NO_SAMPLES)
        count, total, least, most = self._values
        count += np.bincount(group, minlength=size)
        # Sums of huge values may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            total += np.bincount(group, weights=value, minlength=size)
        np.minimum.at(least, group, value)
        np.maximum.at(most, group, value)

    def _hold(self, group: np.ndarray, time: np.ndarray, value: np.ndarray) -> None:
        """Add each value, multiplied by the time (ns) until the next sample of its counter. Rows are in the order of
        time."""
        size = len(self._groups.values)
        self._held = grown(self._held, size)
        self._times = grown(self._times, size)
        total, last = self._held
        # Counter by counter: the last sample of earlier batches, then the new samples.
        group = np.append(np.arange(size), group)
        order = np.argsort(group, kind="stable")
        group = group[order]
        time = np.append(self._times, time)[order]
        value = np.append(last, value)[order]
        # Each value holds until the next value of its counter. The time of the last value is not known yet.
        is_last = np.append(group[1:] != group[:-1], True)
        held = np.diff(time, append=time[-1:])
        held[is_last] = 0
        known = np.isfinite(value)
        with np.errstate(over="ignore", invalid="ignore"):
            amount = value[known] * held[known]
            total += np.bincount(group[known], weights=amount, minlength=size)
        self._times = time[is_last]
        last[:] = value[is_last]

    def end(self, process: int, streams: list[Stream]) -> Iterator[CounterUse]:
        for number, key in enumerate(self._groups.values):
            count, total, least, most = self._values[:, number].tolist()
            if not count:
                continue
            device, *texts = key
            name, series, unit = map(self.context.text, texts)
            amount = float(self._held[0, number]) / 1e9
            yield CounterUse(
                process,
                device,
                name,
                series,
                unit,
                samples=int(count),
                min=least,
                mean=total / count,
                max=most,
                total=amount if unit.endswith("/s") else None,
            )


#: The counters of each process by device, name, series and unit.
COUNTERS = CollectedBy(_CounterCollector)


def _gpu(view: View, use: Any) -> str:
    if use.device == _NO_DEVICE:
        return ""
    return view.gpu(use.process, use.device)


def _counter(view: View, use: Any) -> str:
    return f"{use.name} {use.series}" if use.series else use.name


COUNTER_SUM = Statistic(
    "counter_sum",
    "Counters",
    COUNTERS,
    (
        SPARE_PROCESS,
        text_column("GPU", _gpu, spare=True, doc=GPU_DOC),
        text_column("counter", _counter, doc="name of the counter"),
        text_column("unit", doc="unit of min, mean and max"),
        count_column("samples", spare=True, doc="number of samples"),
        number_column("min", spare=True, doc="smallest sample"),
        number_column("mean", doc="mean of the samples, however far apart they are"),
        number_column("max", doc="largest sample"),
        number_column(
            "total",
            doc="a rate (bytes/s) summed over the time for which each value holds",
        ),
    ),
    order=attrgetter("process", "name", "series", "device"),
    doc="What counters measured: sampled hardware counters, counters of NVTX and of imported traces.",
)
