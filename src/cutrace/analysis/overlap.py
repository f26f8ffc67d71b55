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

from .streams import reached_before
from .sweep import Window
from .work import GPU_TABLES

_COMPUTE, _COMMUNICATE, _COPY, _FILL = 1, 2, 4, 8
_KIND = np.array(
    [{"kernels": _COMPUTE, "memcpys": _COPY, "memsets": _FILL, "graph_launches": _COMPUTE}[t] for t in GPU_TABLES],
    np.uint8,
)
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


class GpuUses:
    """Takes in the windows of one process, in order. ``communicating`` says of each launch configuration whether its
    kernel communicates."""

    def __init__(self, communicating: np.ndarray) -> None:
        self._communicating = communicating if communicating.any() else None
        self._devices: dict[int, _Device] = {}

    def add(self, window: Window) -> None:
        work = window.work
        if not len(work):
            return
        kind = _KIND[work.table]
        if self._communicating is not None:
            kind[self._communicating[work.launch] & (work.table == 0)] = _COMMUNICATE
        first = int(work.device[0])
        if (work.device == first).all():
            self._devices.setdefault(first, _Device()).add(work.start, work.end, kind, work.table)
            return
        for device in np.flatnonzero(np.bincount(work.device)).tolist():
            at = work.device == device
            parts = (work.start[at], work.end[at], kind[at], work.table[at])
            self._devices.setdefault(device, _Device()).add(*parts)

    def uses(self, process: int) -> list[GpuUse]:
        """What came of it, by device."""
        return [self._devices[device].use(process, device) for device in sorted(self._devices)]


class _Device:
    def __init__(self) -> None:
        self._counts = np.zeros(len(GPU_TABLES), np.int64)
        self._kernel_ns = 0
        self._first, self._last = -1, 0
        self._seen = 0
        # Sets of kinds by number: how far their union reaches and how long it is. Sets that hold the same kinds of
        # those seen so far have the same union, so only one of them is kept up.
        self._unions: dict[int, tuple[int, int]] = {}

    def add(self, start: np.ndarray, end: np.ndarray, kind: np.ndarray, table: np.ndarray) -> None:
        self._counts += np.bincount(table, minlength=len(GPU_TABLES))
        kernels = table == 0
        self._kernel_ns += int((end - start)[kernels].sum())
        self._first = int(start[0]) if self._first < 0 else self._first
        self._last = max(self._last, int(end.max()))
        here = int(np.bitwise_or.reduce(kind))
        self._see(here)
        for wanted in self._unions:
            if wanted & here == here:
                self._extend(wanted, start, end)
            elif wanted & here:
                at = np.flatnonzero(kind & wanted)
                self._extend(wanted, start[at], end[at])

    def _see(self, here: int) -> None:
        """Keep up one union for each set of kinds that can now be told apart."""
        if self._seen | here == self._seen:
            return
        before, self._seen = self._seen, self._seen | here
        # What a set of the kinds known now has run so far is what its part of the kinds known before has.
        self._unions = {
            wanted: self._unions.get(wanted & before, (-1, 0)) for wanted in {w & self._seen for w in _SETS} if wanted
        }

    def _extend(self, wanted: int, start: np.ndarray, end: np.ndarray) -> None:
        reached, length = self._unions[wanted]
        before = reached_before(end, reached)
        length += int((np.maximum(end, before) - np.maximum(start, before)).sum())
        self._unions[wanted] = max(int(before[-1]), int(end[-1])), length

    def use(self, process: int, device: int) -> GpuUse:
        def union(kinds: int) -> int:
            return self._unions.get(kinds & self._seen, (0, 0))[1]

        def overlap(kinds: int) -> Overlap:
            return Overlap(union(kinds), union(kinds) + union(_COMPUTE) - union(kinds | _COMPUTE))

        return GpuUse(
            process=process,
            device=device,
            counts=dict(zip(GPU_TABLES, self._counts.tolist(), strict=True)),
            kernel_ns=self._kernel_ns,
            first=max(self._first, 0),
            last=self._last,
            busy=union(_ALL),
            compute=union(_COMPUTE),
            communication=overlap(_COMMUNICATE),
            copies=overlap(_COPY),
            both=overlap(_COMMUNICATE | _COPY),
        )


_ALL = _COMPUTE | _COMMUNICATE | _COPY | _FILL
_SETS = (_COMPUTE, _COMMUNICATE, _COPY, _COMMUNICATE | _COPY, _COMPUTE | _COMMUNICATE, _COMPUTE | _COPY,
         _COMPUTE | _COMMUNICATE | _COPY, _ALL)  # fmt: skip
