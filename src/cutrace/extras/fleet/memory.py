"""The memory of all ranks: how much each holds over time, and its peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...analysis.statistics.memory import MEMORY as TOTALS
from ...analysis.statistics.memory import MEMORY_LEVELS
from ...analysis.tables import Table, columns_of
from ...trace.arrow import pyarrow
from .model import BatchOptions, BatchReport, Part, Picture, RankTrace, Result, Row
from .stragglers import Measured, stragglers
from .timeline import by_job, heat_map

# What is taken by cudaMalloc, and by cuMemCreate, as NCCL and PyTorch's expandable segments do.
_ON_GPU = ("device", "physical")
_COLUMNS = columns_of(
    "peak: bytes, net: bytes, memory: text, GPU: text, host: text spare"
)
#: The rows of a part with one device and kind of memory: times (ns), levels (bytes), the peak and the net (bytes).
_Use = tuple[np.ndarray, np.ndarray, int, int]


@dataclass
class _Drawn:
    """The rows of a picture."""

    names: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    cells: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, name: str, host: str, at: np.ndarray, level: np.ndarray) -> None:
        self.names.append(name)
        self.hosts.append(host)
        self.cells.append((at, level, np.ones(len(at), np.int64)))


def _levels(rank: RankTrace, options: BatchOptions) -> Any:
    """The highest level of each device, kind and process in each part of its GPU work, and its peak and net."""
    collected = rank.collected(TOTALS, MEMORY_LEVELS)
    totals = {}
    for use in collected[TOTALS]:
        totals[use.process, use.device, use.memory] = use
    rows = []
    for levels in collected[MEMORY_LEVELS]:
        use = totals[levels.process, levels.device, levels.memory]
        times = rank.moved(np.array(levels.times, np.uint64)).tolist()
        for at, level in zip(times, levels.highest, strict=True):
            row = (use.device, use.memory, use.process, at, level, use.peak, use.net)
            rows.append(row)
    pa = pyarrow("batch")
    schema = pa.schema(
        [
            ("device", pa.int64()),
            ("memory", pa.string()),
            ("process", pa.int64()),
            ("at_ns", pa.int64()),
            ("level_bytes", pa.int64()),
            ("peak_bytes", pa.int64()),
            ("net_bytes", pa.int64()),
        ]
    )
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


def _uses(part: Part) -> dict[tuple[int, str, int], _Use]:
    """The memory of a part by device, kind and process."""
    columns = part.columns()
    keys = list(
        zip(columns["device"], columns["memory"], columns["process"], strict=True)
    )
    uses = {}
    for device, memory, process in dict.fromkeys(keys):
        own = columns["device"] == device
        own &= columns["memory"] == memory
        own &= columns["process"] == process
        peak = int(columns["peak_bytes"][own][0])
        net = int(columns["net_bytes"][own][0])
        at = columns["at_ns"][own] - part.ahead
        uses[int(device), str(memory), int(process)] = (
            at,
            columns["level_bytes"][own],
            peak,
            net,
        )
    return uses


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[Row] = []
    peaks: dict[str, list[Measured]] = {memory: [] for memory in _ON_GPU}
    pictures: list[Picture] = []
    for job, of_job in by_job(parts):
        drawn = {memory: _Drawn() for memory in _ON_GPU}
        for part in of_job:
            for (device, memory, _), (at, level, peak, net) in _uses(part).items():
                name = f"{part.label} GPU {device}"
                rows.append((peak, net, memory, name, part.host))
                if memory in _ON_GPU:
                    peaks[memory].append(Measured.of(part, peak, device))
                    drawn[memory].add(name, part.host, at, level)
        for memory, levels in drawn.items():
            title = f"{memory.capitalize()} memory above that at the start, job {job}"
            picture = heat_map(title, "bytes", levels.names, levels.cells, levels.hosts)
            if picture:
                pictures.append(picture)
    rows.sort(key=lambda row: -float(row[0] or 0))
    table = Table("memory", "Memory of all ranks", _COLUMNS, rows)
    sentences = []
    for memory, of_ranks in peaks.items():
        sentence = f"{{who}}: {{its}} {memory} memory has a peak {{ratio:.2f}} times as high as on {{others}}"
        sentences += stragglers(of_ranks, sentence)
    return Result([table], sentences, pictures)


MEMORY = BatchReport(
    "memory",
    "Memory of each rank over time, and its peak",
    _levels,
    _reduce,
)
