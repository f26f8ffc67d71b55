"""Slices that importers read, on the host and as annotations on the GPU: operators, calls of the operating system, and
more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..._native import InnerTimes
from ...runbin import labels
from ...runbin.labels import known_label
from ...runbin.layout import HOST_SLICE_KINDS
from ...trace.ordered import Columns
from ..collection import Grouping, StatsCollector, Timed, fields
from ..context import CollectorContext
from ..distribution import Spread
from ..statistic import Statistic, text_column, time_column
from ..sweep import Stream
from .slices import FOREVER, Projected, ProjectedSlices, SliceCollector, SliceGrouping

_NUMBERS_OF_KINDS = {kind: number for number, kind in HOST_SLICE_KINDS.items()}
_ASYNCHRONOUS = _NUMBERS_OF_KINDS["asynchronous"]


@dataclass(frozen=True)
class HostUse(Timed):
    """Imported slices of the host with the same name. ``kind`` is a value of ``HOST_SLICE_KINDS``. ``self_ns`` is their
    time without the time of slices directly inside them on the same thread."""

    kind: str
    category: str
    projected: Projected
    self_ns: int


class _HostCollector(SliceCollector[HostUse]):
    """Also finds the time of slices that are directly inside others."""

    def __init__(
        self, context: CollectorContext, slices: SliceGrouping[HostUse]
    ) -> None:
        super().__init__(context, slices)
        self._inner = InnerTimes()

    def project(self, slices: ProjectedSlices) -> None:
        super().project(slices)
        thread, start, end, group, _, level = slices.at(slices.end != FOREVER)
        self._inner.add(thread, start, end, group, level)

    def end(self, process: int, streams: list[Stream]) -> Iterable[HostUse]:
        self._inner.finish()
        return super().end(process, streams)

    def result(self) -> Iterator[HostUse]:
        inner = self._inner.times().tolist()
        inner += [0] * (len(self.spreads) - len(inner))
        rows = zip(self.spreads.rows(), self.projected(), inner, strict=True)
        for (key, (time,)), projected, inner_ns in rows:
            yield self.grouping.row(self.context, key, time, projected, inner_ns)


@dataclass(frozen=True, eq=False)
class _HostGrouping(SliceGrouping[HostUse]):
    def collector(self, context: CollectorContext) -> StatsCollector[HostUse]:
        return _HostCollector(context, self)


def _host_use(
    context: CollectorContext,
    key: tuple[int, ...],
    time: Spread,
    projected: Projected,
    inner_ns: int,
) -> HostUse:
    name, category, kind = key
    return HostUse(
        context.text(name),
        time,
        known_label(HOST_SLICE_KINDS, kind),
        context.text(category),
        projected,
        self_ns=time.total - inner_ns,
    )


def _on_one_thread(rows: Columns) -> np.ndarray:
    """A mask of the slices of the host that are on one thread. Those that never ended last to the end."""
    return (rows["track"] == 0) & (rows["kind"] != _ASYNCHRONOUS)


#: The slices of the host by name, category and kind.
HOST_SLICES = _HostGrouping(
    ("host_slices",),
    key=fields("name", "category", "kind"),
    row=_host_use,
    projects=_on_one_thread,
)


def _is_system_call(use: HostUse) -> bool:
    return use.kind == "system call"


def _is_no_system_call(use: HostUse) -> bool:
    return not _is_system_call(use)


HOST_SUM = Statistic(
    "host_sum",
    "Operators and other slices of the host",
    HOST_SLICES,
    (
        time_column(
            "self",
            "self_ns",
            doc="their time without the time of slices directly inside, on the same thread",
        ),
        time_column(
            "GPU time",
            "projected.gpu_ns",
            doc="sum of the times of the GPU work in them",
        ),
        text_column("kind", doc="kind of the slice, such as operator or annotation"),
        text_column("name", doc="name of the slice"),
    ),
    where=_is_no_system_call,
    spread="time",
    weight="self_ns",
    doc="Which operators and annotations of imported traces take the host's time.",
)

OSRT_SUM = Statistic(
    "osrt_sum",
    "Calls of the operating system",
    HOST_SLICES,
    (text_column("name", doc="function"),),
    where=_is_system_call,
    spread="time",
    doc="Which calls of the operating system take time, in imported traces.",
)


# Annotations on the GPU


@dataclass(frozen=True)
class GpuSliceUse(Timed):
    """Annotations on streams, of one name."""

    kind: str
    category: str


def _gpu_slice_use(
    context: CollectorContext, key: tuple[int, ...], time: Spread
) -> GpuSliceUse:
    name, category, kind = key
    label = labels.GPU_SLICES.get(kind, "other")
    return GpuSliceUse(context.text(name), time, label, context.text(category))


#: The annotations on streams by name, category and kind.
GPU_SLICES = Grouping(
    ("gpu_slices",), key=fields("name", "category", "kind"), row=_gpu_slice_use
)

GPU_SLICE_SUM = Statistic(
    "gpu_slice_sum",
    "Annotations on the GPU",
    GPU_SLICES,
    (
        text_column("kind", doc="kind of the annotation"),
        text_column("name", doc="name of the annotation"),
    ),
    spread="time",
    doc="How long annotations on the GPU take, in imported traces.",
)
