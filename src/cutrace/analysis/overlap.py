"""How much of the communication of a GPU is hidden behind computation, and how busy the GPU is.

Four kinds of GPU work: kernels that communicate, other kernels (graphs that were traced as a whole among them), copies
and fills. The time in which any of some kinds runs is a union of intervals; what two kinds share is what their unions
are longer than the union of both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .._native import GpuTimes
from ..trace.quality import GPU_WORK
from .sweep import Window

_COMPUTE, _COMMUNICATE, _COPY, _FILL = 1, 2, 4, 8
_KINDS = [{"kernels": _COMPUTE, "memcpys": _COPY, "memsets": _FILL, "graph_launches": _COMPUTE}[t] for t in GPU_WORK]
_COMMUNICATION = re.compile(r"nccl|rccl|nvshmem|oneshot_all|two_?shot_all|cross_device_reduce", re.IGNORECASE)


@lru_cache(maxsize=1 << 16)
def communicates(name: str) -> bool:
    """Whether a kernel of this (mangled or plain) name moves data between GPUs: those of NCCL and NVSHMEM, and the
    all-reduce kernels of vLLM and PyTorch's symmetric memory."""
    return _COMMUNICATION.search(name) is not None


@dataclass(frozen=True)
class Overlap:
    """Communication of one kind on a GPU: the time (ns) in which any of it ran, and in which computation ran too."""

    time: int
    hidden: int


@dataclass(frozen=True)
class GpuUse:
    """The work of one process on one GPU. Times in ns in which any such work ran: ``busy`` all, ``compute`` kernels
    that do not communicate. ``communication`` are the kernels that do, ``copies`` the copies, ``both`` these two.
    ``first`` and ``last`` are the first begin and the last end; ``counts`` has the work by table, ``kernel_ns`` the
    times of kernels added."""

    process: int
    device: int
    counts: dict[str, int]
    kernel_ns: int
    first: int
    last: int
    busy: int
    compute: int
    communication: Overlap
    copies: Overlap
    both: Overlap


_ALL = _COMPUTE | _COMMUNICATE | _COPY | _FILL
_SETS = (_COMPUTE, _COMMUNICATE, _COPY, _COMMUNICATE | _COPY, _COMPUTE | _COMMUNICATE, _COMPUTE | _COPY,
         _COMPUTE | _COMMUNICATE | _COPY, _ALL)  # fmt: skip


class GpuUses:
    """Takes in the windows of one process, in order. ``communicating`` says of each launch configuration whether its
    kernel communicates."""

    def __init__(self, communicating: np.ndarray) -> None:
        kernels = np.where(communicating, np.uint8(_COMMUNICATE), np.uint8(_COMPUTE))
        self._times = GpuTimes(kernels, _KINDS, list(_SETS))

    def add(self, window: Window) -> None:
        work = window.work
        self._times.add(work.device, work.start, work.end, work.table, work.launch)

    def uses(self, process: int) -> list[GpuUse]:
        """What came of it, by device."""
        return [_use(process, *found) for found in self._times.uses()]


def _use(
    process: int, device: int, counts: list[int], kernel_ns: int, first: int, last: int, times: list[int]
) -> GpuUse:
    union = dict(zip(_SETS, times, strict=True))

    def overlap(kinds: int) -> Overlap:
        return Overlap(union[kinds], union[kinds] + union[_COMPUTE] - union[kinds | _COMPUTE])

    return GpuUse(
        process=process,
        device=device,
        counts=dict(zip(GPU_WORK, counts, strict=True)),
        kernel_ns=kernel_ns,
        first=first,
        last=last,
        busy=union[_ALL],
        compute=union[_COMPUTE],
        communication=overlap(_COMMUNICATE),
        copies=overlap(_COPY),
        both=overlap(_COMMUNICATE | _COPY),
    )
