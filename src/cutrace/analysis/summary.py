"""What a capture holds, in figures: what ``cutrace info`` prints.

Everything comes from block headers but the busy time of the GPUs and the quality of the capture, which stream over
the blocks, so memory does not grow with the capture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ..runbin.layout import TABLES
from ..trace import EarlyStart, Process, Quality, Trace
from ..trace.quality import GPU_WORK
from ..trace.rows import by_value
from .gpu import communicating

# Blocks of kernels looked at together: some 16 MiB of rows.
_WINDOW_BLOCKS = 16


@dataclass
class Gpu:
    """One GPU, by UUID, over all processes that used it.

    ``busy_ns`` is the time in which any GPU work ran, ``compute_ns`` that in which kernels that do not communicate or
    whole graphs did, as :mod:`.gpu` says; ``utilization`` is the share of the busy time in the capture's span.
    ``kernel_ns`` adds the times of kernels, and of whole graphs, which overlap where streams do.
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
    """The figures of a capture. ``counts`` has rows by table, ``process_counts`` the same for each process;
    ``start`` and ``end`` are ns of BOOTTIME."""

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
        """ns from the first record to the last."""
        return self.end - self.start


def counts(trace: Trace) -> dict[str, int]:
    """Rows by table, tables without rows left out."""
    return {name: rows for name in TABLES if (rows := trace.count(name))}


def summarize(trace: Trace) -> Summary:
    """The figures of a trace."""
    by_process: tuple[Counter[str], ...] = tuple(Counter() for _ in trace.processes)
    for name in TABLES:
        for info in trace.block_infos(name):
            by_process[info.process][name] += info.rows
    return Summary(
        start=trace.start,
        end=trace.end,
        processes=trace.processes,
        gpus=_gpus(trace),
        counts=counts(trace),
        process_counts=tuple(dict(c) for c in by_process),
        early_starts=trace.early_starts,
        quality=trace.quality,
    )


def _gpus(trace: Trace) -> tuple[Gpu, ...]:
    gpus, number = _devices(trace)
    computing = ~communicating(trace)
    for window in _windows(trace):
        # The intervals of each GPU, all and those of computation.
        busy: dict[int, list[np.ndarray]] = {}
        compute: dict[int, list[np.ndarray]] = {}
        for table in GPU_WORK:
            for rows in trace.blocks(table, *window):
                for index, mine in _by_gpu(rows, number, gpus):
                    here = mine[(mine["start"] >= window[0]) & (mine["start"] < window[1])]
                    if table in ("kernels", "graph_launches"):
                        gpus[index].kernels += len(here) if table == "kernels" else 0
                        gpus[index].kernel_ns += int((here["end"] - here["start"]).sum())
                        computes = computing.take(mine["launch"]) if table == "kernels" else slice(None)
                        compute.setdefault(index, []).append(_cut(mine[computes], window))
                    busy.setdefault(index, []).append(_cut(mine, window))
        for index, intervals in busy.items():
            gpus[index].busy_ns += union(np.concatenate(intervals, axis=1))
        for index, intervals in compute.items():
            gpus[index].compute_ns += union(np.concatenate(intervals, axis=1))
    span = trace.end - trace.start
    for gpu in gpus:
        gpu.utilization = gpu.busy_ns / span if span else 0.0
    return tuple(gpus)


def _cut(rows: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """The intervals of rows within a window: array (2, n) of starts and ends."""
    cut = np.stack([np.maximum(rows["start"], window[0]), np.minimum(rows["end"], window[1])])
    inside: np.ndarray = cut[:, cut[0] < cut[1]]
    return inside


def union(intervals: np.ndarray) -> int:
    """The length of the union of intervals: array (2, n) of starts and ends."""
    if not intervals.shape[1]:
        return 0
    start, end = intervals[:, np.argsort(intervals[0], kind="stable")]
    reached = np.maximum.accumulate(end)
    # Each interval adds what reaches beyond all before it.
    before = np.concatenate([start[:1], reached[:-1]])
    return int((reached - np.minimum(np.maximum(before, start), reached)).sum())


def _devices(trace: Trace) -> tuple[list[Gpu], dict[tuple[int, int], int]]:
    """The GPUs, and for each (process, device) which of them it is."""
    gpus: list[Gpu] = []
    number: dict[tuple[int, int], int] = {}
    known: dict[str, int] = {}
    for row in trace.devices:
        uuid = uuid_text(bytes(row["uuid"]))
        if uuid not in known:
            known[uuid] = len(gpus)
            gpus.append(Gpu(trace.strings[int(row["name"])] or f"GPU {int(row['device'])}", uuid))
        number[int(row["process"]), int(row["device"])] = known[uuid]
    return gpus, number


def uuid_text(raw: bytes) -> str:
    """The UUID of a GPU as the driver writes it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _by_gpu(rows: np.ndarray, number: dict[tuple[int, int], int], gpus: list[Gpu]) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of a block by the GPU they ran on; GPUs that the capture does not describe are added."""
    key = rows["process"].astype(np.uint32) << np.uint32(16) | rows["device"]
    values = np.unique(key).tolist()
    for value, at in zip(values, by_value(key, values), strict=True):
        process, device = value >> 16, value & 0xFFFF
        if (process, device) not in number:
            number[process, device] = len(gpus)
            gpus.append(Gpu(f"GPU {device} of process {process}", ""))
        yield number[process, device], rows[at] if len(values) > 1 else rows


def _windows(trace: Trace) -> Iterator[tuple[int, int]]:
    """Stretches of time that cover the GPU work, each with about the same number of blocks in it."""
    infos = [info for table in GPU_WORK for info in trace.block_infos(table) if info.first_time]
    if not infos:
        return
    begins = sorted(info.first_time for info in infos)
    edges = sorted({*begins[::_WINDOW_BLOCKS], trace.end + 1})
    yield from pairwise(edges)
