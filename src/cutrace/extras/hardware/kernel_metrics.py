"""The hardware metrics of the kernels of a capture.

``cutrace profile`` writes the metrics of a process as a separate part of the capture, so they are joined to kernels by
identity of the process, begin and correlation id.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...analysis.names import UNKNOWN, normalize_kernel
from ...trace import Trace

#: Counters have 64 bits at most.
_MOST = 2.0**64


@dataclass(frozen=True)
class MetricUse:
    """The values of one metric over the launches of one kernel, or over the NVTX ranges of one ``name``, in
    ``unit``."""

    name: str
    metric: str
    unit: str
    count: int
    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class Profiled:
    """A launch with metrics: its kernel, its time (ns) in the run without counters, its process and device as in
    ``devices``, and the values by name of metric."""

    kernel: str
    time: int
    process: int
    device: int
    values: dict[str, float]


def metric_uses(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[MetricUse]:
    """The values of each metric of each kernel, sorted by kernel, then in the order in which metrics were requested.
    Values that are not finite are ignored."""
    rows = _rows(trace, of_ranges=False)
    return _uses(trace, rows, _kernels(trace, rows, names))


def range_metric_uses(trace: Trace) -> list[MetricUse]:
    """The values of each metric of NVTX ranges that were counted as a whole, by name of the range."""
    rows = _rows(trace, of_ranges=True)
    return _uses(trace, rows, trace.strings.take(rows["range"]).tolist())


def _rows(trace: Trace, of_ranges: bool) -> np.ndarray:
    rows = trace.kernel_metrics
    return np.asarray(rows[(rows["range"] != 0) == of_ranges])


def _uses(trace: Trace, rows: np.ndarray, names: list[str]) -> list[MetricUse]:
    values: dict[tuple[str, int, int], list[float]] = {}
    for what, (name, unit, value) in zip(
        names, rows[["name", "unit", "value"]].tolist(), strict=True
    ):
        if math.isfinite(value):
            values.setdefault((what, name, unit), []).append(value)
    text = trace.strings
    uses = [
        MetricUse(what, text[name], text[unit], len(v), sum(v) / len(v), min(v), max(v))
        for (what, name, unit), v in values.items()
    ]
    return sorted(uses, key=lambda use: use.name)


def profiled(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[Profiled]:
    """The launches with metrics, in the order of the capture. Values that no counter can have are omitted."""
    rows = _rows(trace, of_ranges=False)
    launches: dict[tuple[int, ...], Profiled] = {}
    columns = rows[
        ["process", "correlation", "start", "end", "device", "name", "value"]
    ].tolist()
    for kernel, (process, correlation, start, end, device, name, value) in zip(
        _kernels(trace, rows, names), columns, strict=True
    ):
        launch = launches.setdefault(
            (process, correlation, start),
            Profiled(kernel, end - start, process, device, {}),
        )
        if 0 <= value < _MOST:
            launch.values[trace.strings[name]] = value
    return list(launches.values())


def _kernels(trace: Trace, rows: np.ndarray, names: Callable[[str], str]) -> list[str]:
    """The kernel name of each row."""
    if not len(rows):
        return []
    processes = [process.identity for process in trace.processes]
    launch_of: dict[tuple[object, ...], int] = {}
    for kernels in trace.blocks(
        "kernels", int(rows["start"].min()), int(rows["start"].max()) + 1
    ):
        mine = kernels[np.isin(kernels["start"], rows["start"])]
        for process, correlation, start, launch in mine[
            ["process", "correlation", "start", "launch"]
        ].tolist():
            launch_of[processes[process], correlation, start] = launch
    identities = rows[["process", "correlation", "start"]].tolist()
    found = [
        launch_of.get((processes[process], *identity), 0)
        for process, *identity in identities
    ]
    kernels = trace.strings.take(trace.launches["name"][found], names).tolist()
    return [kernel or UNKNOWN for kernel in kernels]
