"""The kinds of GPU work, and the time in which it ran."""

from __future__ import annotations

import re

import numpy as np

from ..runbin.layout import GPU_WORK
from ..trace import Trace
from ..trace.ordered import Columns
from ..trace.rows import numbered


def work_span(trace: Trace) -> tuple[int, int]:
    """The first start and the last end (ns) of GPU work, from the headers of blocks; the start and the end of the trace
    if it has no GPU work."""
    starts = []
    ends = []
    for table in GPU_WORK:
        for info in trace.block_infos(table):
            if info.first_time:
                starts.append(info.first_time)
                ends.append(info.last_time)
    if not starts:
        return trace.start, trace.end
    # A damaged header may have any times.
    last = min(max(ends), trace.end)
    return min(*starts, last), last


def devices_of(rows: Columns | np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The distinct pairs of process and device of rows, and for each row the index of its pair."""
    process = rows["process"].astype(np.uint32) << np.uint32(16)
    keys, which = numbered(process | rows["device"])
    pairs = [(key >> 16, key & 0xFFFF) for key in keys]
    return pairs, which


#: The kinds of GPU work, as bits. :class:`cutrace._native.GpuTimes` has the time of each set of kinds.
COMPUTE = 1
COMMUNICATE = 2
COPY = 4
FILL = 8
ANY_WORK = COMPUTE | COMMUNICATE | COPY | FILL
_BY_TABLE = {
    "kernels": COMPUTE,
    "memcpys": COPY,
    "memsets": FILL,
    "graph_launches": COMPUTE,
}
_KINDS = np.array([_BY_TABLE[table] for table in GPU_WORK], np.uint8)
_COMMUNICATION = re.compile(
    r"nccl|rccl|nvshmem|oneshot_all|two_?shot_all|cross_device_reduce", re.IGNORECASE
)


def communicates(name: str) -> bool:
    """Whether a kernel of this (mangled or plain) name moves data between GPUs: kernels of NCCL, RCCL and NVSHMEM, and
    the all-reduce kernels of vLLM and PyTorch's symmetric memory."""
    return _COMMUNICATION.search(name) is not None


class Kinds:
    """The kinds of a trace's GPU work."""

    def __init__(self, trace: Trace) -> None:
        names = trace.launches["name"]
        communication = trace.strings.take(names, communicates).astype(bool)
        kinds = np.where(communication, COMMUNICATE, COMPUTE)
        self._of_launch = kinds.astype(np.uint8)

    def of(self, table: np.ndarray, launch: np.ndarray) -> np.ndarray:
        """The kind of each piece of work, by its table's index in ``GPU_WORK`` and its launch configuration."""
        # Work other than kernels has configuration 0, whose kind is COMPUTE: the lowest bit, so the maximum is the kind
        # of the table.
        return np.maximum(self._of_launch.take(launch), _KINDS.take(table))
