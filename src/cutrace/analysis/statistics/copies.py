"""Copies, fills, and unified memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from ...runbin import labels
from ...runbin.labels import known_label
from ..collection import Grouping, Rows, Timed, duration, fields
from ..context import CollectorContext
from ..distribution import Spread, sizes
from ..statistic import (
    Statistic,
    View,
    column_of,
    count_column,
    size_column,
    text_column,
    time_column,
)

# The kind of fills; copies have the kinds 0 to 255.
_FILL = 256


def _times_and_bytes(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return duration(rows), sizes(rows["bytes"])


def _bandwidth(view: View, use: Any) -> float | None:
    if use.time.total:
        return use.bytes.total * 1_000_000_000 / use.time.total
    return None


_BANDWIDTH = column_of("bandwidth", _bandwidth, unit="bytes/s", doc="bytes / time")


# By direction


@dataclass(frozen=True)
class MemoryOperationUse(Timed):
    """Copies in one direction, or fills, with their times and ``bytes``."""

    bytes: Spread


def copy_name(kind: int) -> str:
    """The name of copies of one kind: ``[CUDA memcpy Host-to-Device]``."""
    return f"[CUDA memcpy {known_label(labels.COPIES, kind)}]"


FILL_NAME = "[CUDA memset]"


def _operation(context: CollectorContext, rows: Rows) -> Sequence[np.ndarray]:
    if "kind" in rows:
        return (rows["kind"].astype(np.uint16),)
    return (np.full(len(rows), _FILL, np.uint16),)


def _operation_use(
    context: CollectorContext, key: tuple[int], time: Spread, size: Spread
) -> MemoryOperationUse:
    kind = key[0]
    name = FILL_NAME if kind == _FILL else copy_name(kind)
    return MemoryOperationUse(name, time, size)


#: The copies by direction, and the fills.
MEMORY_OPERATIONS = Grouping(
    ("memcpys", "memsets"),
    key=_operation,
    row=_operation_use,
    values=_times_and_bytes,
)

CUDA_GPU_MEM_TIME_SUM = Statistic(
    "cuda_gpu_mem_time_sum",
    "Copies and fills by time",
    MEMORY_OPERATIONS,
    (_BANDWIDTH, text_column("name", doc="direction of the copies, or [CUDA memset]")),
    spread="time",
    doc="Which copies and fills take the GPU's time.",
)

CUDA_GPU_MEM_SIZE_SUM = Statistic(
    "cuda_gpu_mem_size_sum",
    "Copies and fills by size",
    MEMORY_OPERATIONS,
    (text_column("name", doc="direction of the copies, or [CUDA memset]"),),
    spread="bytes",
    unit="bytes",
    doc="Which copies and fills move the most bytes.",
)


# By kinds of memory and size


@dataclass(frozen=True)
class CopyUse:
    """Copies in one direction between two kinds of memory, of ``at_least`` bytes and less than twice that (0: empty
    copies)."""

    direction: str
    source: str
    destination: str
    at_least: int
    time: Spread
    bytes: Spread


def _memories_and_bits(context: CollectorContext, rows: Rows) -> Sequence[np.ndarray]:
    # The exponent of frexp() is the number of bits. It is exact up to 2^53.
    _, bits = np.frexp(sizes(rows["bytes"]).astype(np.float64))
    memories = (rows["source_memory"], rows["destination_memory"])
    return rows["kind"], *memories, bits.astype(np.uint8)


def _copy_use(
    context: CollectorContext, key: tuple[int, ...], time: Spread, size: Spread
) -> CopyUse:
    kind, source, destination, bits = key
    return CopyUse(
        known_label(labels.COPIES, kind),
        known_label(labels.MEMORY_KINDS, source),
        known_label(labels.MEMORY_KINDS, destination),
        1 << (bits - 1) if bits else 0,
        time,
        size,
    )


#: The copies by direction, kinds of memory and power of two of their size.
COPIES = Grouping(
    ("memcpys",), key=_memories_and_bits, row=_copy_use, values=_times_and_bytes
)

COPY_SIZE_SUM = Statistic(
    "copy_size_sum",
    "Copies by kinds of memory and size",
    COPIES,
    (
        text_column("direction", doc="direction of the copies"),
        text_column("from", "source", doc="kind of memory of the source"),
        text_column("to", "destination", doc="kind of memory of the destination"),
        size_column(
            "at least",
            "at_least",
            doc="smallest size of the row, a power of two; sizes reach to below twice that",
        ),
        count_column("count", "time.count", doc="copies"),
        size_column("bytes", "bytes.total", doc="sum of their bytes"),
        time_column("time", "time.total", doc="sum of their times"),
        time_column("mean time", "time.mean", spare=True, doc="time / count"),
        _BANDWIDTH,
    ),
    order=attrgetter("direction", "source", "destination", "at_least"),
    usual=False,
    doc="How large copies are and how fast, by direction and kinds of memory.",
)


# Unified memory


@dataclass(frozen=True)
class UnifiedMemoryUse(Timed):
    """Unified-memory events of one kind, such as migrations and faults. ``value`` is in bytes if ``in_bytes``, else a
    count."""

    value: Spread
    in_bytes: bool


def _times_and_values(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return duration(rows), sizes(rows["value"])


def _unified_memory_use(
    context: CollectorContext, key: tuple[int], time: Spread, value: Spread
) -> UnifiedMemoryUse:
    unknown = (f"unknown ({key[0]})", False)
    name, in_bytes = labels.UNIFIED_MEMORY.get(key[0], unknown)
    return UnifiedMemoryUse(name, time, value, in_bytes)


#: The events of unified memory by kind.
UNIFIED_MEMORY = Grouping(
    ("unified_memory",),
    key=fields("kind"),
    row=_unified_memory_use,
    values=_times_and_values,
)


def _bytes(view: View, use: Any) -> int | None:
    return use.value.total if use.in_bytes else None


def _value(view: View, use: Any) -> int | None:
    return None if use.in_bytes else use.value.total


UM_SUM = Statistic(
    "um_sum",
    "Unified memory",
    UNIFIED_MEMORY,
    (
        text_column("kind", "name", doc="kind of event"),
        count_column("count", "time.count", doc="number of events"),
        size_column("bytes", _bytes, doc="bytes moved"),
        count_column("value", _value, doc="other values, such as numbers of faults"),
        time_column("time", "time.total", doc="sum of the times"),
    ),
    order=lambda use: (-use.time.total, use.name),
    doc="What unified memory migrates and which faults it has.",
)
