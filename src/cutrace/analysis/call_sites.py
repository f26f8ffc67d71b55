"""The work that a metric counts, with the Python stacks of the calls that made it.

It needs a recording with stacks (docs/internals/stacks.md). :mod:`.metrics` computes the metrics from the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..runbin.layout import GPU_WORK
from ..trace import Trace
from .definitions import COPY_KINDS
from .marks import Window
from .metrics import (
    ALLOCATE,
    DEVICE_MEMORY,
    DIRECTION_NUMBERS,
    PINNED_MEMORY,
    RELEASE,
    on_default_stream,
    pageable,
    work_in,
)
from .names import normalize_kernel
from .work import Index, index_of

#: The metrics whose work has call sites, with the table of their rows. "calls" are API calls.
_TABLES: dict[str, tuple[str, ...]] = {
    "kernel_launches": ("kernels",),
    "graph_launches": ("calls",),
    "memcpy_count": ("memcpys",),
    "memcpy_bytes": ("memcpys",),
    "memset_count": ("memsets",),
    "memset_bytes": ("memsets",),
    "sync_calls": ("calls",),
    "allocations": ("allocations",),
    "frees": ("allocations",),
    "pinned_allocations": ("allocations",),
    "pinned_frees": ("allocations",),
    "default_stream_work": GPU_WORK,
    "pageable_copies": ("memcpys",),
    "peak_memory_bytes": ("allocations",),
    "net_memory_bytes": ("allocations",),
}
WITH_SITES = frozenset(_TABLES)
_DIRECTIONS = np.array(list(COPY_KINDS), object)


@dataclass(frozen=True)
class MetricWork:
    """The work that a metric counts, as arrays with one element for each piece. ``name`` is its part of the metric (""
    for a metric without parts), ``size`` is in bytes, and ``stack`` is the Python stack of its call (0 for none)."""

    name: np.ndarray
    size: np.ndarray
    stack: np.ndarray

    def __len__(self) -> int:
        return len(self.name)

    def named(self, name: str) -> MetricWork:
        """The part of this name."""
        at = self.name == name
        return MetricWork(
            name=self.name[at],
            size=self.size[at],
            stack=self.stack[at],
        )


def counted_work(
    trace: Trace,
    window: Window,
    metric: str,
    *,
    region: str = "",
    normalize: Callable[[str], str] = normalize_kernel,
) -> MetricWork:
    """Return the work that a metric of :data:`WITH_SITES` counts in a window, or in its regions of one name. For
    metrics of memory in use, return the allocations. ``normalize`` returns the stable name of a kernel."""
    index = index_of(trace)
    work = work_in(trace, window, region)
    names = []
    sizes = []
    stacks = []
    for table in _TABLES[metric]:
        rows = work.calls.rows
        if table != "calls":
            rows = work[table].rows
        rows = rows[_counts(index, rows, metric)]
        names.append(_names(index, rows, metric, normalize))
        sizes.append(_sizes(rows))
        stacks.append(_stacks(trace, rows))
    return MetricWork(
        name=np.concatenate(names),
        size=np.concatenate(sizes),
        stack=np.concatenate(stacks),
    )


def _counts(index: Index, rows: np.ndarray, metric: str) -> np.ndarray:
    """A mask of the rows that a metric counts."""
    functions = index.functions
    mask = np.ones(len(rows), bool)
    if metric == "sync_calls":
        mask &= functions.synchronizes[rows["function"]]
    elif metric == "graph_launches":
        function = rows["function"]
        mask &= functions.launches_graph[function]
        mask &= index.function_status[function] == 0
    elif metric == "pageable_copies":
        mask &= pageable(rows)
    elif metric == "default_stream_work":
        mask &= on_default_stream(index, rows)
    elif _has(rows, "operation"):
        operation = ALLOCATE
        if metric.endswith("frees"):
            operation = RELEASE
        mask &= rows["operation"] == operation
        mask &= _memory(rows, metric)
    return mask


def _memory(rows: np.ndarray, metric: str) -> np.ndarray:
    """A mask of the allocations and releases of the memory that a metric counts."""
    if metric.startswith("pinned"):
        return np.isin(rows["memory"], PINNED_MEMORY)
    return np.isin(rows["memory"], DEVICE_MEMORY)


def _names(
    index: Index, rows: np.ndarray, metric: str, normalize: Callable[[str], str]
) -> np.ndarray:
    """The name of each row among the parts of a metric."""
    if metric == "kernel_launches":
        recorded = index.kernel_names(rows)
        return _named(recorded, lambda number: normalize(index.strings[number]))
    if metric == "sync_calls":
        return _named(rows["function"], index.function_name)
    if metric in ("memcpy_count", "memcpy_bytes"):
        return _DIRECTIONS[DIRECTION_NUMBERS[rows["kind"]]]
    return np.full(len(rows), "", object)


def _named(numbers: np.ndarray, name: Callable[[int], str]) -> np.ndarray:
    """The names of these numbers."""
    names = np.empty(len(numbers), object)
    for number in np.unique(numbers).tolist():
        names[numbers == number] = name(number)
    return names


def _has(rows: np.ndarray, field: str) -> bool:
    names = rows.dtype.names or ()
    return field in names


def _sizes(rows: np.ndarray) -> np.ndarray:
    if _has(rows, "bytes"):
        return rows["bytes"].astype(np.int64)
    return np.zeros(len(rows), np.int64)


def _stacks(trace: Trace, rows: np.ndarray) -> np.ndarray:
    if trace.python_stacks is None:
        return np.zeros(len(rows), np.uint32)
    return trace.python_stacks.of_rows(rows)
