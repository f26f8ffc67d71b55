"""The figures that ``cutrace info`` prints.

They come from block headers, except the busy time of the GPUs and the quality of the capture. These stream over the
blocks, so memory does not grow with the capture.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from .._native import GpuTimes
from ..runbin.layout import TABLES
from ..trace import EarlyStart, Process, Quality, Trace
from ..trace.capture_ranges import time_within
from ..trace.ordered import Columns, MergeByTime, Ordered
from ..trace.quality import GPU_WORK
from .gpu import ANY_WORK, COMPUTE, Kinds

# Bytes of rows that are read together.
_WINDOW_BYTES = 16 << 20


@dataclass
class Gpu:
    """One GPU, by UUID, over all processes that used it.

    ``busy_ns`` is the time in which any GPU work ran, ``compute_ns`` the time of computation (:mod:`.gpu` defines
    both); ``utilization`` is the share of the busy time in the span of the capture, without the time between the
    windows of a capture range. ``kernel_ns`` is the sum of the times of kernels and whole graphs, which may overlap on
    different streams.
    """

    name: str
    uuid: str
    kernels: int = 0
    kernel_ns: int = 0
    busy_ns: int = 0
    compute_ns: int = 0
    utilization: float = 0.0


@dataclass(frozen=True)
class Summary:
    """The figures of a capture. ``counts`` has the number of rows by table, ``process_counts`` the same for each
    process; ``start`` and ``end`` are ns of BOOTTIME."""

    start: int
    end: int
    processes: tuple[Process, ...]
    gpus: tuple[Gpu, ...]
    counts: dict[str, int]
    process_counts: tuple[dict[str, int], ...]
    early_starts: dict[str, EarlyStart]
    quality: Quality = field(repr=False)

    @property
    def span(self) -> int:
        """The time (ns) from the first record to the last."""
        return self.end - self.start


def summarize(trace: Trace) -> Summary:
    """Compute the figures of a trace."""
    by_process: tuple[Counter[str], ...] = tuple(Counter() for _ in trace.processes)
    for name in TABLES:
        for info in trace.block_infos(name):
            by_process[info.process][name] += info.rows
    return Summary(
        start=trace.start,
        end=trace.end,
        processes=trace.processes,
        gpus=_gpus(trace),
        counts={name: rows for name in TABLES if (rows := trace.count(name))},
        process_counts=tuple(dict(c) for c in by_process),
        early_starts=trace.early_starts,
        quality=trace.quality,
    )


def _gpus(trace: Trace) -> tuple[Gpu, ...]:
    gpus, number = _devices(trace)
    kinds = Kinds(trace)
    times = GpuTimes()
    ordered = Ordered(
        trace, {name: trace.block_infos(name) for name in GPU_WORK}, _WINDOW_BYTES
    )
    for tables in ordered.windows():
        parts = []
        for table, rows in enumerate(tables.values()):
            numbers = _numbers(rows, number, gpus)
            table_of = np.full(len(rows), table, np.uint8)
            if "launch" in rows:
                launches = rows["launch"]
            else:
                launches = np.zeros(len(rows), np.uint32)
            parts.append(
                (
                    numbers,
                    rows["start"],
                    rows["end"],
                    table_of,
                    kinds.of(table_of, launches),
                )
            )
        merge = MergeByTime([start for _, start, *_ in parts])
        times.add(
            *(
                merge.column(column[0].dtype, column)
                for column in zip(*parts, strict=True)
            )
        )
    span = (
        trace.end
        - trace.start
        - time_within(trace.unrecorded(), trace.start, trace.end)
    )
    kernels = GPU_WORK.index("kernels")
    graphs = GPU_WORK.index("graph_launches")
    for index, counts, spent, _, _, union in times.uses():
        gpu = gpus[index]
        gpu.kernels = counts[kernels]
        gpu.kernel_ns = spent[kernels] + spent[graphs]
        gpu.busy_ns = union[ANY_WORK]
        gpu.compute_ns = union[COMPUTE]
        gpu.utilization = gpu.busy_ns / span if span else 0.0
    return tuple(gpus)


def _devices(trace: Trace) -> tuple[list[Gpu], dict[tuple[int, int], int]]:
    """The GPUs, and the index of the GPU of each (process, device)."""
    gpus: list[Gpu] = []
    number: dict[tuple[int, int], int] = {}
    known: dict[str, int] = {}
    for row in trace.devices:
        uuid = uuid_text(bytes(row["uuid"]))
        if uuid not in known:
            known[uuid] = len(gpus)
            gpus.append(
                Gpu(
                    trace.strings[int(row["name"])] or f"GPU {int(row['device'])}", uuid
                )
            )
        number[int(row["process"]), int(row["device"])] = known[uuid]
    return gpus, number


def uuid_text(raw: bytes) -> str:
    """The UUID of a GPU as the driver writes it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _numbers(
    rows: Columns, number: dict[tuple[int, int], int], gpus: list[Gpu]
) -> np.ndarray:
    """The index of the GPU of each row. GPUs that the capture does not describe are added to ``gpus``."""
    key = rows["process"].astype(np.uint32) << np.uint32(16) | rows["device"]
    values, which = np.unique(key, return_inverse=True)
    for value in values.tolist():
        process = value >> 16
        device = value & 0xFFFF
        if (process, device) not in number:
            number[process, device] = len(gpus)
            gpus.append(Gpu(f"GPU {device} of process {process}", ""))
    return np.array([number[v >> 16, v & 0xFFFF] for v in values.tolist()], np.uint32)[
        which.reshape(-1)
    ]
