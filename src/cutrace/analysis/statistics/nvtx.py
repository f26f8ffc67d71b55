"""NVTX ranges: on the host, projected onto the GPU, their kernels, and the GPU work outside of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from ...runbin import labels
from ...runbin.labels import known_label
from ...runbin.layout import GPU_WORK
from ...trace.ranges import NONE, RANGE_TABLES, are_ranges
from ..collection import CollectedBy, GroupSpreads, StatsCollector, Timed, fields
from ..context import CollectorContext
from ..coverage import RANGE_WAYS, RangeShare, range_shares
from ..distribution import Spread
from ..statistic import (
    Statistic,
    View,
    count_column,
    share_column,
    text_column,
    time_column,
)
from ..sweep import SweepBatch, Work
from .slices import Projected, SliceCollector, SliceGrouping

_KERNELS = GPU_WORK.index("kernels")
#: The number of pieces of work whose ranges are in memory at a time. A piece is in thousands of ranges if a program
#: does not end its ranges.
_PIECES = 1 << 10


@dataclass(frozen=True)
class RangeUse(Timed):
    """The NVTX ranges of one name, domain and ``style`` (push/pop or start/end), with their ``time`` on the host and
    their GPU work ``projected``."""

    domain: str
    style: str
    projected: Projected


def _names(context: CollectorContext, key: tuple[int, ...]) -> tuple[str, str, str]:
    """The name, the domain and the style of the ranges of a key."""
    name, domain, style = key
    text = context.text
    return text(name), text(domain), known_label(labels.RANGE_STYLES, style)


def _range_use(
    context: CollectorContext, key: tuple[int, ...], time: Spread, projected: Projected
) -> RangeUse:
    name, domain, style = _names(context, key)
    return RangeUse(name, time, domain, style, projected)


#: The ranges by name, domain and style.
RANGES = SliceGrouping(
    ("nvtx_ranges",), key=fields("name", "domain", "kind"), row=_range_use
)


def _range(view: View, use: Any) -> str:
    """The domain and the name of a range in the notation of Nsight Systems. The default domain has an empty name."""
    return f"{use.domain}:{use.name}"


NVTX_SUM = Statistic(
    "nvtx_sum",
    "NVTX ranges",
    RANGES,
    (
        text_column("style", spare=True, doc="push/pop or start/end"),
        text_column("range", _range, doc="domain and name of the range"),
    ),
    where=attrgetter("time.count"),
    spread="time",
    doc="How long NVTX ranges take on the host. Ranges that never ended do not count.",
)

NVTX_GPU_PROJ_SUM = Statistic(
    "nvtx_gpu_proj_sum",
    "NVTX ranges on the GPU",
    RANGES,
    (
        count_column(
            "operations",
            "projected.operations",
            spare=True,
            doc="kernels, copies, fills and whole graphs in the ranges",
        ),
        time_column("GPU time", "projected.gpu_ns", doc="sum of their times"),
        time_column(
            "CPU time",
            "projected.cpu_ns",
            spare=True,
            doc="sum of the times of these ranges on the host",
        ),
        text_column("style", spare=True, doc="push/pop or start/end"),
        text_column("range", _range, doc="domain and name of the range"),
    ),
    where=attrgetter("projected.time.count"),
    spread="projected.time",
    options=("ranges",),
    doc="How long the work of NVTX ranges takes on the GPU. A projected range is the time from the first "
    "start of its work to the last end.",
)


# Kernels by range


@dataclass(frozen=True)
class RangeKernels:
    """The kernels of one name launched in NVTX ranges of one ``name``."""

    name: str
    domain: str
    style: str
    kernel: str
    time: Spread


class _RangeKernelCollector(SliceCollector[Any]):
    """The kernels launched in the slices of each group, by name."""

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context, RANGES)
        self._kernels = GroupSpreads()

    def launch(self, work: Work) -> None:
        for first in range(0, len(work), _PIECES):
            self._launch(work, slice(first, first + _PIECES))

    def _launch(self, work: Work, pieces: slice) -> None:
        start = work.start[pieces]
        end = work.end[pieces]
        all_queues = np.zeros(len(start), np.uint32)
        group, row = self.projection.launch(
            work.calls.at(pieces), all_queues, start, end, pairs=True
        )
        row += pieces.start
        is_kernel = work.table[row] == _KERNELS
        group = group[is_kernel].astype(np.uint32)
        row = row[is_kernel]
        name = self.context.kernels.numbers.take(work.launch[row])
        pair = self._kernels.groups.of(group, name)
        self._kernels.add(pair, work.end[row] - work.start[row])

    def result(self) -> Iterator[RangeKernels]:
        for (group, kernel), (time,) in self._kernels.rows():
            key = self.spreads.groups.values[group]
            names = _names(self.context, key)
            yield RangeKernels(*names, self.context.kernels.names[kernel], time)


#: The kernels by range and name.
RANGE_KERNELS = CollectedBy(_RangeKernelCollector)

NVTX_KERN_SUM = Statistic(
    "nvtx_kern_sum",
    "Kernels by NVTX range",
    RANGE_KERNELS,
    (
        text_column("style", spare=True, doc="push/pop or start/end"),
        text_column("range", _range, doc="domain and name of the range"),
        text_column(
            "kernel",
            doc="stable name of the kernel, or its full name with --names full",
        ),
    ),
    spread="time",
    usual=False,
    options=("names", "ranges"),
    doc="Which kernels were launched in which NVTX range.",
)


# GPU work in ranges and outside


class _RangeShareCollector(StatsCollector[RangeShare]):
    """Collects nothing of a trace without ranges."""

    tables = (*GPU_WORK, "api_calls", *RANGE_TABLES)

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._has_ranges = False
        self._operations = np.zeros(NONE + 1, np.int64)
        self._gpu_ns = np.zeros(NONE + 1, np.int64)

    def add(self, batch: SweepBatch) -> None:
        for table in RANGE_TABLES:
            rows = batch.tables.get(table)
            if rows and are_ranges(table, rows).any():
                self._has_ranges = True
        work = batch.work
        how = np.where(work.calls.known, work.calls.how, NONE)
        time = work.end - work.start
        for kind in RANGE_WAYS:
            mine = how == kind
            self._operations[kind] += np.count_nonzero(mine)
            self._gpu_ns[kind] += time[mine].sum()

    def result(self) -> Iterator[RangeShare]:
        if not self._has_ranges:
            return
        uses = np.column_stack([self._operations, self._gpu_ns])
        yield from range_shares(uses.tolist())


#: The GPU work by the way in which it belongs to ranges.
RANGE_SHARES = CollectedBy(_RangeShareCollector)


def _all_gpu_time(view: View, use: Any) -> int:
    return sum(share.gpu_ns for share in view.collected[RANGE_SHARES])


NVTX_GPU_SHARE = Statistic(
    "nvtx_gpu_share",
    "GPU work in NVTX ranges and outside",
    RANGE_SHARES,
    (
        text_column(
            "range",
            "how",
            doc="own: in a range of the launching thread; adopted: in a range of another thread; several: in "
            "no range, because several are candidates; none: in no range",
        ),
        count_column("operations", doc="kernels, copies, fills and whole graphs"),
        time_column("GPU time", "gpu_ns", doc="sum of their times"),
        share_column("share", "gpu_ns", _all_gpu_time, doc="fraction of all GPU time"),
    ),
    options=("ranges",),
    doc="How much GPU work is in NVTX ranges. [Concepts](../concepts.md) has the rules.",
)
