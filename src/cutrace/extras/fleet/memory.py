"""The memory of all ranks: the size over time, and the peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...analysis.statistics.memory import MEMORY as TOTALS
from ...analysis.statistics.memory import MEMORY_LEVELS, MEMORY_SUM
from ...analysis.tables import columns_of, docs_of
from ...trace.arrow import pyarrow
from .model import (
    COLUMN_DOCS,
    BatchOptions,
    BatchReport,
    BatchTable,
    Part,
    Picture,
    RankTrace,
    Result,
    Row,
    descending,
)
from .stragglers import Measured, stragglers
from .timeline import TimeRatios, by_job

# Memory of cudaMalloc, and of cuMemCreate, which NCCL and PyTorch's expandable segments use.
_ON_GPU = ("device", "physical")
_TABLE = BatchTable(
    "memory",
    "Memory of all ranks",
    columns_of(
        "peak: bytes, net: bytes, memory: text, GPU: text, host: text spare",
        docs_of(MEMORY_SUM.shown_columns) | COLUMN_DOCS,
    ),
    "One row per process, GPU and kind of memory, the largest peak first.",
)


def _levels(rank: RankTrace, options: BatchOptions) -> Any:
    """Map a rank to a table of memory levels. Each device, memory kind and process has its highest level in each step
    of the GPU work, its peak and its net."""
    totals = {}
    for use in rank.collected(TOTALS):
        totals[use.process, use.device, use.memory] = use
    rows = []
    for levels in rank.collected(MEMORY_LEVELS):
        use = totals[levels.process, levels.device, levels.memory]
        times = rank.moved(np.array(levels.times, np.uint64)).tolist()
        for at, level in zip(times, levels.highest, strict=True):
            row = (
                use.device,
                use.memory,
                use.process,
                at,
                level,
                use.peak,
                use.net,
            )
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


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    rows: list[Row] = []
    peaks: dict[str, list[Measured]] = {memory: [] for memory in _ON_GPU}
    pictures: list[Picture] = []
    for job, of_job in by_job(parts):
        levels = {memory: TimeRatios() for memory in _ON_GPU}
        for part in of_job:
            columns = part.columns()
            uses = zip(
                columns["device"], columns["memory"], columns["process"], strict=True
            )
            for device, memory, process in dict.fromkeys(uses):
                own = columns["device"] == device
                own &= columns["memory"] == memory
                own &= columns["process"] == process
                peak = int(columns["peak_bytes"][own][0])
                net = int(columns["net_bytes"][own][0])
                name = part.gpu(device)
                rows.append(
                    (
                        peak,
                        net,
                        str(memory),
                        name,
                        part.host,
                    )
                )
                if memory in _ON_GPU:
                    peaks[memory].append(Measured.of(part, peak, device))
                    at = columns["at_ns"][own] - part.ahead
                    levels[memory].add(
                        name,
                        at,
                        columns["level_bytes"][own],
                        np.ones(len(at)),
                        part.host,
                    )
        for memory, drawn in levels.items():
            title = f"Growth of {memory} memory since the start, job {job}"
            pictures += drawn.heat_map(title, "bytes")
    sentences = []
    for memory, of_ranks in peaks.items():
        sentence = f"{{who}}: {{its}} {memory} memory has a peak {{ratio:.2f}} times as high as on {{others}}"
        sentences += stragglers(of_ranks, sentence)
    return Result([_TABLE.of(descending(rows))], sentences, pictures)


MEMORY = BatchReport(
    "memory",
    "Memory of each rank over time, and its peak",
    _levels,
    _reduce,
    collects=(TOTALS, MEMORY_LEVELS),
    tables=(_TABLE,),
)
