"""The hardware metrics of the kernels of a capture.

``cutrace profile`` writes the metrics of a process as a separate part of the capture. They are joined to kernels by the
identity of the process, the start and the correlation id.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...analysis.names import UNKNOWN, normalize_kernel
from ...runbin.layout import CACHES
from ...trace import Trace

#: Counters have 64 bits at most.
_MOST = 2.0**64
_LAUNCH_COLUMNS = [
    "process",
    "correlation",
    "start",
    "end",
    "device",
    "name",
    "value",
]


@dataclass(frozen=True)
class MetricUse:
    """The values of one metric over the launches of a kernel, or over the NVTX ranges with one ``name``. All values
    have the same ``unit``, and were counted with the same state of the ``caches``."""

    name: str
    metric: str
    unit: str
    caches: str
    count: int
    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class Profiled:
    """A launch with metrics. It has the kernel name, the time (ns) in the run without counters, the process, and the
    device as in ``devices``. It also has the values by metric name, the row of ``launches`` (0 if unknown), and the
    state of the caches."""

    kernel: str
    time: int
    process: int
    device: int
    values: dict[str, float]
    launch: int = 0
    caches: int = 0


def metric_uses(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[MetricUse]:
    """The values of each metric of each kernel, sorted by kernel, then in the order of the request.
    NaN and infinite values are ignored."""
    rows = _rows(trace, of_ranges=False)
    return _uses(trace, rows, _kernels(trace, _launches(trace, rows), names))


def range_metric_uses(trace: Trace) -> list[MetricUse]:
    """The values of each metric of NVTX ranges that were counted as a whole, by name of the range."""
    rows = _rows(trace, of_ranges=True)
    return _uses(trace, rows, trace.strings.take(rows["range"]).tolist())


def _rows(trace: Trace, of_ranges: bool) -> np.ndarray:
    rows = trace.kernel_metrics
    return rows[(rows["range"] != 0) == of_ranges]


def _uses(trace: Trace, rows: np.ndarray, names: list[str]) -> list[MetricUse]:
    values: dict[tuple[str, int, int, int], list[float]] = {}
    columns = rows[["name", "unit", "caches", "value"]].tolist()
    for what, (metric, unit, caches, value) in zip(names, columns, strict=True):
        if math.isfinite(value):
            values.setdefault((what, metric, unit, caches), []).append(value)
    uses = []
    for (what, metric, unit, caches), of_metric in values.items():
        count = len(of_metric)
        use = MetricUse(
            name=what,
            metric=trace.strings[metric],
            unit=trace.strings[unit],
            caches=CACHES.get(caches, str(caches)),
            count=count,
            mean=sum(of_metric) / count,
            min=min(of_metric),
            max=max(of_metric),
        )
        uses.append(use)
    return sorted(uses, key=lambda use: use.name)


def profiled(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[Profiled]:
    """The launches with metrics, in the order of the capture. Impossible values of counters are left out."""
    rows = _rows(trace, of_ranges=False)
    of_rows = _launches(trace, rows)
    kernels = _kernels(trace, of_rows, names)
    identities = zip(kernels, of_rows, rows["caches"].tolist(), strict=True)
    values_of_rows = rows[_LAUNCH_COLUMNS].tolist()
    launches: dict[tuple[int, ...], Profiled] = {}
    for (kernel, launch, state), row in zip(identities, values_of_rows, strict=True):
        process, correlation, start, end, device, metric, value = row
        key = (process, correlation, start)
        if key not in launches:
            launches[key] = Profiled(
                kernel, end - start, process, device, {}, launch, state
            )
        if 0 <= value < _MOST:
            launches[key].values[trace.strings[metric]] = value
    return list(launches.values())


def _launches(trace: Trace, rows: np.ndarray) -> list[int]:
    """Return the row of ``launches`` for each of ``rows``; 0 if unknown."""
    if not len(rows):
        return []
    identity = ["process", "correlation", "start"]
    processes = [process.identity for process in trace.processes]
    launch_of: dict[tuple[object, ...], int] = {}
    first = int(rows["start"].min())
    last = int(rows["start"].max())
    for kernels in trace.blocks("kernels", first, last + 1):
        mine = kernels[np.isin(kernels["start"], rows["start"])]
        for process, correlation, start, launch in mine[[*identity, "launch"]].tolist():
            launch_of[processes[process], correlation, start] = launch
    found = []
    for process, correlation, start in rows[identity].tolist():
        key = (processes[process], correlation, start)
        found.append(launch_of.get(key, 0))
    return found


def _kernels(
    trace: Trace, launches: list[int], names: Callable[[str], str]
) -> list[str]:
    """The kernel name of each row of ``launches``."""
    if not launches:
        return []
    kernels = trace.strings.take(trace.launches["name"][launches], names).tolist()
    return [kernel or UNKNOWN for kernel in kernels]
