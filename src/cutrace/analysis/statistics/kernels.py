"""Kernels: by name, by launch configuration, and their machine code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from ...trace.codes import KernelCode
from ..collection import (
    CollectedBy,
    Grouping,
    Rows,
    StatsCollector,
    Timed,
    duration,
)
from ..context import CollectorContext, Configuration
from ..distribution import Spread
from ..names import UNKNOWN
from ..statistic import (
    Statistic,
    View,
    count_column,
    share_column,
    size_column,
    text_column,
    time_column,
)
from ..sweep import SweepBatch

# By name


@dataclass(frozen=True)
class KernelUse(Timed):
    """The kernels of one name. ``short`` of them took less than :attr:`.context.StatsOptions.short_ns`."""

    short: int


def _name(context: CollectorContext, rows: Rows) -> Sequence[np.ndarray]:
    return (context.kernels.numbers.take(rows["launch"]),)


def _is_short(context: CollectorContext, rows: Rows) -> np.ndarray:
    return duration(rows) < context.options.short_ns


def _kernel_use(
    context: CollectorContext, key: tuple[int], time: Spread, short: int
) -> KernelUse:
    return KernelUse(context.kernels.names[key[0]], time, short)


#: The kernels by name.
KERNELS = Grouping(("kernels",), key=_name, row=_kernel_use, marked=_is_short)

CUDA_GPU_KERN_SUM = Statistic(
    "cuda_gpu_kern_sum",
    "Kernels",
    KERNELS,
    (
        text_column(
            "name", doc="stable name of the kernel, or its full name with --names full"
        ),
    ),
    spread="time",
    options=("names",),
    doc="Which kernels take the GPU's time.",
)

SHORT_KERN_SUM = Statistic(
    "short_kern_sum",
    "Short kernels",
    KERNELS,
    (
        count_column("short", doc="kernels that took less than --short"),
        count_column("count", "time.count", doc="kernels of this name"),
        share_column("short share", "short", "time.count", doc="short / count"),
        time_column(
            "total", "time.total", doc="sum of the times of all kernels of this name"
        ),
        time_column("mean", "time.mean", doc="total / count"),
        time_column("median", "time.median", spare=True, doc="median time"),
        text_column(
            "name", doc="stable name of the kernel, or its full name with --names full"
        ),
    ),
    where=attrgetter("short"),
    order=lambda use: (-use.short, use.name),
    usual=False,
    options=("names", "short_ns"),
    doc="Which kernels are short, so that launching them costs much of their time.",
)


# By launch configuration


@dataclass(frozen=True)
class ConfigurationUse:
    """The kernels of one launch configuration."""

    configuration: Configuration
    time: Spread


def _configuration(context: CollectorContext, rows: Rows) -> Sequence[np.ndarray]:
    numbers, _ = context.configurations
    return (numbers.take(rows["launch"]),)


def _configuration_use(
    context: CollectorContext, key: tuple[int], time: Spread
) -> ConfigurationUse:
    _, configurations = context.configurations
    return ConfigurationUse(configurations[key[0]], time)


#: The kernels by name and launch configuration.
CONFIGURATIONS = Grouping(("kernels",), key=_configuration, row=_configuration_use)


def size_text(size: tuple[int, int, int]) -> str:
    """The size of a grid, a block or a cluster: ``8x1x1``."""
    return "x".join(map(str, size))


def _grid(view: View, use: Any) -> str:
    return size_text(use.configuration.grid)


def _block(view: View, use: Any) -> str:
    return size_text(use.configuration.block)


def _cluster(view: View, use: Any) -> str:
    """Launches without clusters have clusters of size 0."""
    cluster = use.configuration.cluster
    if any(cluster):
        return size_text(cluster)
    return ""


def _shared(view: View, use: Any) -> int:
    return sum(use.configuration.shared)


CUDA_GPU_KERN_GB_SUM = Statistic(
    "cuda_gpu_kern_gb_sum",
    "Kernels by launch configuration",
    CONFIGURATIONS,
    (
        text_column("grid", _grid, doc="blocks of the grid: x y z"),
        text_column("block", _block, doc="threads of a block: x y z"),
        text_column("cluster", _cluster, spare=True, doc="blocks of a cluster: x y z"),
        count_column(
            "registers",
            "configuration.registers",
            spare=True,
            doc="registers per thread",
        ),
        size_column(
            "shared",
            _shared,
            spare=True,
            doc="static and dynamic shared memory of a block",
        ),
        text_column(
            "name",
            "configuration.name",
            doc="stable name of the kernel, or its full name with --names full",
        ),
    ),
    spread="time",
    usual=False,
    options=("names",),
    doc="Which launch configurations of kernels take the GPU's time.",
)


# Machine code, for `cutrace diff`


@dataclass(frozen=True)
class CodeUse:
    """The machine code of the kernels of one name: the codes that certainly ``ran``, and whether the code of a launch
    is ``unknown``."""

    name: str
    ran: frozenset[KernelCode]
    unknown: bool


class _CodeCollector(StatsCollector[CodeUse]):
    def add(self, batch: SweepBatch) -> None:
        """Collect nothing from events: code is recorded by launch configuration."""

    def result(self) -> Iterator[CodeUse]:
        codes = self.context.trace.codes
        if codes is None:
            return
        for name, kernel in codes.by_name(self.context.options.names).items():
            yield CodeUse(name or UNKNOWN, kernel.codes, kernel.unknown)


#: The machine code of kernels by name.
CODES = CollectedBy(_CodeCollector)
