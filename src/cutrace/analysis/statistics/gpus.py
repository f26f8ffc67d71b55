"""GPUs: busy time, communication hidden behind computation, and all GPU work by name.

A GPU or a stream is *busy* while any work runs on it: a kernel, a copy, a fill, or a graph that was traced as a whole.
*Compute* is the time in which whole graphs or kernels other than communication kernels run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..._native import BusyParts, GpuTimes
from ...runbin.layout import GPU_WORK
from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext
from ..distribution import Spread
from ..gpu import ANY_WORK, COMMUNICATE, COMPUTE, COPY, work_span
from ..statistic import (
    GPU,
    PROCESS,
    SPARE_GPU,
    SPARE_PROCESS,
    Statistic,
    View,
    count_column,
    share_column,
    text_column,
    time_column,
)
from ..sweep import Stream, SweepBatch
from .copies import FILL_NAME, MEMORY_OPERATIONS, copy_name
from .graphs import GRAPHS, graph_name
from .kernels import KERNELS
from .streams import recorded_span, work_of

_KERNELS = GPU_WORK.index("kernels")
_GRAPHS = GPU_WORK.index("graph_launches")


@dataclass(frozen=True)
class Overlap:
    """Communication of one kind on a GPU: the ``time`` (ns) in which it ran, and the part ``hidden`` behind
    computation."""

    time: int
    hidden: int


@dataclass(frozen=True)
class GpuUse:
    """The work of one process on one GPU. Times are in ns: ``busy`` is the time with any work, ``compute`` with
    computation, ``communication`` with communication kernels, ``copies`` with copies, and ``both`` with communication
    kernels or copies. ``first`` and ``last`` are the first start and the last end. ``counts`` has the pieces of work by
    table, ``kernel_ns`` the sum of the times of kernels and whole graphs."""

    process: int
    device: int
    counts: dict[str, int]
    kernel_ns: int
    first: int
    last: int
    busy: int
    compute: int
    communication: Overlap
    copies: Overlap
    both: Overlap


def overlap(times: list[int], kinds: int) -> Overlap:
    """The overlap of some ``kinds`` (bits) with computation; ``times`` has the time (ns) of each set of kinds."""
    time = times[kinds]
    with_computation = times[kinds | COMPUTE]
    return Overlap(time, hidden=time + times[COMPUTE] - with_computation)


class _GpuCollector(StatsCollector[GpuUse]):
    tables = GPU_WORK
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._times = GpuTimes()

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        device = work.device.astype(np.uint32)
        kinds = self.context.kinds.of(work.table, work.launch)
        self._times.add(device, work.start, work.end, work.table, kinds)

    def end(self, process: int, streams: list[Stream]) -> Iterator[GpuUse]:
        for device, counts, spent, first, last, times in self._times.uses():
            yield GpuUse(
                process,
                device,
                dict(zip(GPU_WORK, counts, strict=True)),
                spent[_KERNELS] + spent[_GRAPHS],
                first,
                last,
                busy=times[ANY_WORK],
                compute=times[COMPUTE],
                communication=overlap(times, COMMUNICATE),
                copies=overlap(times, COPY),
                both=overlap(times, COMMUNICATE | COPY),
            )


#: The work of each process on each GPU.
GPUS = CollectedBy(_GpuCollector)


def _kernels_and_graphs(view: View, use: Any) -> int:
    return use.counts["kernels"] + use.counts["graph_launches"]


def _idle(view: View, use: Any) -> int:
    return recorded_span(view, use) - use.busy


GPU_SUM = Statistic(
    "gpu_sum",
    "GPUs",
    GPUS,
    (
        PROCESS,
        GPU,
        count_column(
            "kernels",
            _kernels_and_graphs,
            doc="kernels, and CUDA graphs that were traced as a whole",
        ),
        time_column(
            "kernel time",
            "kernel_ns",
            spare=True,
            doc="sum of the times of kernels and whole graphs",
        ),
        time_column(
            "compute",
            spare=True,
            doc="time in which a kernel that does not communicate ran, or a whole graph",
        ),
        time_column(
            "busy", doc="time in which a kernel, copy, fill or whole graph ran"
        ),
        share_column("busy share", "busy", recorded_span, doc="busy / span"),
        count_column("copies", work_of("memcpys"), spare=True, doc="copies"),
        count_column("fills", work_of("memsets"), spare=True, doc="memory fills"),
        time_column("idle", _idle, spare=True, doc="span - busy"),
        time_column(
            "span",
            recorded_span,
            spare=True,
            doc="time from the first start of GPU work to the last end, without the time outside a capture range",
        ),
    ),
    doc="How busy each GPU was: one row per process and GPU. Times are unions, in which each moment counts once.",
)


# Communication


class _Communication(NamedTuple):
    process: int
    device: int
    communication: str
    time: int
    hidden: int

    @property
    def exposed(self) -> int:
        return self.time - self.hidden


def _communication(view: View) -> Iterator[_Communication]:
    """The kinds of communication on each GPU, and their union if there are both kinds."""
    for use in view.collected[GPUS]:
        parts = {"kernels": use.communication, "copies": use.copies}
        if use.communication.time and use.copies.time:
            parts["both"] = use.both
        for kind, part in parts.items():
            if part.time:
                yield _Communication(
                    use.process, use.device, kind, part.time, part.hidden
                )


OVERLAP_SUM = Statistic(
    "overlap_sum",
    "Communication behind computation",
    _communication,
    (
        SPARE_PROCESS,
        SPARE_GPU,
        text_column(
            "communication",
            doc="kernels (NCCL, RCCL, NVSHMEM, all-reduce), copies, or both",
        ),
        time_column("time", doc="time in which it ran; each moment counts once"),
        time_column("hidden", doc="time in which computation ran too"),
        time_column("exposed", doc="time - hidden"),
        share_column("hidden share", "hidden", "time", doc="hidden / time"),
    ),
    needs=(GPUS,),
    doc="How much communication ran while computation ran.",
)


# All work by name


class _CategorizedWork(NamedTuple):
    category: str
    name: str
    time: Spread


def _all_work(view: View) -> Iterator[_CategorizedWork]:
    categories = (
        ("kernel", view.collected[KERNELS]),
        ("memory", view.collected[MEMORY_OPERATIONS]),
        ("graph", view.collected[GRAPHS]),
    )
    for category, uses in categories:
        for use in uses:
            yield _CategorizedWork(category, use.name, use.time)


CUDA_GPU_SUM = Statistic(
    "cuda_gpu_sum",
    "GPU work",
    _all_work,
    (
        text_column("category", doc="kernel, memory or graph"),
        text_column("name", doc="name as in the statistic of the category"),
    ),
    needs=(KERNELS, MEMORY_OPERATIONS, GRAPHS),
    spread="time",
    usual=False,
    options=("names",),
    doc="What takes the GPU's time: kernels, copies, fills and whole graphs together.",
)


@lru_cache(maxsize=4096)
def work_name(table: int, detail: int) -> tuple[str, str]:
    """The kind and the name of GPU work other than kernels, by the index of its table in ``GPU_WORK`` and its
    :attr:`.sweep.Work.detail`."""
    if GPU_WORK[table] == "memcpys":
        return "copy", copy_name(detail)
    if GPU_WORK[table] == "memsets":
        return "fill", FILL_NAME
    return "graph", graph_name(detail)


# Busy time over time, for `cutrace view`

# The number of equal parts of the time of GPU work.
_PARTS = 400


@dataclass(frozen=True)
class BusyUse:
    """The busy time (ns) of a GPU, or of one stream of it, in equal ``parts`` of :func:`.gpu.work_span`, each ``width``
    ns long."""

    process: int
    device: int
    stream: Stream | None
    width: int
    parts: tuple[int, ...]


class _BusyCollector(StatsCollector[BusyUse]):
    tables = GPU_WORK
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        span = work_span(context.trace)
        self._gpus = BusyParts(*span, _PARTS)
        self._streams = BusyParts(*span, _PARTS)

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        self._gpus.add(work.device.astype(np.uint32), work.start, work.end)
        self._streams.add(work.stream, work.start, work.end)

    def end(self, process: int, streams: list[Stream]) -> Iterator[BusyUse]:
        width = self._gpus.width
        used = {stream.device for stream in streams}
        by_gpu = self._gpus.busy().reshape(-1, _PARTS).tolist()
        for device, parts in enumerate(by_gpu):
            if device in used:
                yield BusyUse(process, device, None, width, tuple(parts))
        by_stream = self._streams.busy().reshape(-1, _PARTS).tolist()
        for stream, parts in zip(streams, by_stream, strict=False):
            yield BusyUse(process, stream.device, stream, width, tuple(parts))


#: The busy time of each GPU and stream, in parts of the time.
BUSY = CollectedBy(_BusyCollector)
