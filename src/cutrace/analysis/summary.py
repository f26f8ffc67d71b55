"""The figures that ``cutrace info`` prints.

Most figures come from block headers. The busy time of the GPUs and the quality of the capture are computed block by
block, so memory does not grow with the capture.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._native import GpuTimes
from ..runbin.layout import GPU_WORK, TABLES
from ..trace import EarlyStart, Process, Quality, Trace
from ..trace.capture_ranges import time_within
from ..trace.ordered import Columns, MergeByTime, Ordered
from .gpu import ANY_WORK, COMPUTE, Kinds, devices_of

# The number of bytes of rows that are read together.
_WINDOW_BYTES = 16 << 20


@dataclass
class Gpu:
    """One GPU, by UUID, over all processes that used it.

    ``busy_ns`` is the time in which any GPU work ran, ``compute_ns`` the time of computation (:mod:`.gpu` defines
    both). ``utilization`` is the busy time divided by the span of the capture; the span leaves out the time between the
    windows of a capture range. ``kernels`` counts kernels and whole graphs, ``kernel_ns`` is the sum of their times,
    which may overlap on different streams.
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
    counts = {}
    by_process: list[dict[str, int]] = [{} for _ in trace.processes]
    for name in TABLES:
        rows = trace.count(name)
        if rows:
            counts[name] = rows
        for info in trace.block_infos(name):
            own = by_process[info.process]
            own[name] = own.get(name, 0) + info.rows
    return Summary(
        start=trace.start,
        end=trace.end,
        processes=trace.processes,
        gpus=_gpus(trace),
        counts=counts,
        process_counts=tuple(by_process),
        early_starts=trace.early_starts,
        quality=trace.quality,
    )


def _gpus(trace: Trace) -> tuple[Gpu, ...]:
    gpus, number = _devices(trace)
    kinds = Kinds(trace)
    times = GpuTimes()
    infos = {name: trace.block_infos(name) for name in GPU_WORK}
    for tables in Ordered(trace, infos, _WINDOW_BYTES).windows():
        columns: list[list[np.ndarray]] = [[], [], [], [], []]
        for table, rows in enumerate(tables.values()):
            table_of = np.full(len(rows), table, np.uint8)
            launches = np.zeros(len(rows), np.uint32)
            if "launch" in rows:
                launches = rows["launch"]
            values = (
                _numbers(rows, number, gpus),
                rows["start"],
                rows["end"],
                table_of,
                kinds.of(table_of, launches),
            )
            for column, part in zip(columns, values, strict=True):
                column.append(part)
        merge = MergeByTime(columns[1])
        times.add(*[merge.column(column[0].dtype, column) for column in columns])
    between_windows = time_within(trace.unrecorded(), trace.start, trace.end)
    span = trace.end - trace.start - between_windows
    kernels = GPU_WORK.index("kernels")
    graphs = GPU_WORK.index("graph_launches")
    for index, counts, spent, _, _, union in times.uses():
        gpu = gpus[index]
        gpu.kernels = counts[kernels] + counts[graphs]
        gpu.kernel_ns = spent[kernels] + spent[graphs]
        gpu.busy_ns = union[ANY_WORK]
        gpu.compute_ns = union[COMPUTE]
        if span:
            gpu.utilization = gpu.busy_ns / span
    return tuple(gpus)


def _devices(trace: Trace) -> tuple[list[Gpu], dict[tuple[int, int], int]]:
    """The GPUs, and the index of the GPU of each (process, device)."""
    gpus: list[Gpu] = []
    number: dict[tuple[int, int], int] = {}
    known: dict[str, int] = {}
    for row in trace.devices:
        process = int(row["process"])
        device = int(row["device"])
        uuid = uuid_text(bytes(row["uuid"]))
        if uuid not in known:
            known[uuid] = len(gpus)
            name = trace.strings[int(row["name"])]
            gpus.append(Gpu(name or f"GPU {device}", uuid))
        number[process, device] = known[uuid]
    return gpus, number


def uuid_text(raw: bytes) -> str:
    """The UUID of a GPU as the driver writes it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _numbers(
    rows: Columns, number: dict[tuple[int, int], int], gpus: list[Gpu]
) -> np.ndarray:
    """The index of the GPU of each row. GPUs that the capture does not describe are added to ``gpus``."""
    used, which = devices_of(rows)
    numbers = []
    for process, device in used:
        if (process, device) not in number:
            number[process, device] = len(gpus)
            gpus.append(Gpu(f"GPU {device} of process {process}", ""))
        numbers.append(number[process, device])
    return np.array(numbers, np.uint32)[which]
