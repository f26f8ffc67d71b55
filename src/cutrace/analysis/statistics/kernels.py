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
    (text_column("name"),),
    spread="time",
    options=("names",),
)

SHORT_KERN_SUM = Statistic(
    "short_kern_sum",
    "Short kernels",
    KERNELS,
    (
        count_column("short"),
        count_column("count", "time.count"),
        share_column("short share", "short", "time.count"),
        time_column("total", "time.total"),
        time_column("mean", "time.mean"),
        time_column("median", "time.median", spare=True),
        text_column("name"),
    ),
    where=attrgetter("short"),
    order=lambda use: (-use.short, use.name),
    usual=False,
    options=("names", "short_ns"),
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
        text_column("grid", _grid),
        text_column("block", _block),
        text_column("cluster", _cluster, spare=True),
        count_column("registers", "configuration.registers", spare=True),
        size_column("shared", _shared, spare=True),
        text_column("name", "configuration.name"),
    ),
    spread="time",
    usual=False,
    options=("names",),
)


# Machine code, which `cutrace diff` compares


@dataclass(frozen=True)
class CodeUse:
    """The machine code of the kernels of one name: what certainly ``ran``, and whether the code of a launch is
    ``unknown``."""

    name: str
    ran: frozenset[KernelCode]
    unknown: bool


class _CodeCollector(StatsCollector[CodeUse]):
    def add(self, batch: SweepBatch) -> None:
        """Code is recorded by launch configuration, not by event."""

    def result(self) -> Iterator[CodeUse]:
        codes = self.context.trace.codes
        if codes is None:
            return
        for name, kernel in codes.by_name(self.context.options.names).items():
            yield CodeUse(name or UNKNOWN, kernel.codes, kernel.unknown)


#: The machine code of kernels by name.
CODES = CollectedBy(_CodeCollector)
