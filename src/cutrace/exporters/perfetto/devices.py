"""GPUs, contexts and streams: ids that hold for the whole trace, and the facts of each device."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from ...analysis.occupancy import Occupancy, occupancy
from ...trace import Trace
from ...trace.quality import GPU_WORK
from .naming import CUDA, process_label
from .sequence import Interned

#: Kinds of work, with what viewers show as the description of such work. gpu_specifications holds stages and queues
#: under one range of ids, which stages begin.
STAGES = {
    "Kernel": "CUDA kernel",
    "Memcpy": "copy of memory",
    "Memset": "fill of memory",
    "CUDA graph": "CUDA graph, recorded as a whole",
}
_COMPUTE, _OTHER = 2, 0
_FIRST_QUEUE = 16

_ARCHITECTURES = {
    (5, 0): "Maxwell", (5, 2): "Maxwell", (5, 3): "Maxwell", (6, 0): "Pascal", (6, 1): "Pascal", (6, 2): "Pascal",
    (7, 0): "Volta", (7, 2): "Volta", (7, 5): "Turing", (8, 0): "Ampere", (8, 6): "Ampere", (8, 7): "Ampere",
    (8, 9): "Ada Lovelace", (9, 0): "Hopper", (10, 0): "Blackwell", (10, 3): "Blackwell", (11, 0): "Blackwell",
    (12, 0): "Blackwell", (12, 1): "Blackwell",
}  # fmt: skip


class Devices:
    """The hardware side of a trace. A device ordinal, context id or stream id is one process's own; queues, contexts
    and GPUs of a Perfetto trace are numbered once for all processes."""

    def __init__(self, trace: Trace, pids: list[int]) -> None:
        self._trace, self._pids = trace, pids
        self._rows = {(int(r["process"]), int(r["device"])): r for r in trace.devices}
        self._gpus: dict[Any, int] = {}
        self._taken: set[int] = set()
        self._free = count()  # indices of GPUs, those taken among them
        self._gpu_rows: dict[int, np.void] = {}
        self._contexts: dict[tuple[int, int], int] = {}
        self._context_count: dict[int, int] = {}
        self._queues: dict[tuple[int, int, int, int], int] = {}
        self._first_queues: dict[int, tuple[int, int]] = {}  # by process, device and context
        self._stream_names = {
            (int(r["process"]), int(r["context"]), int(r["object"])): trace.strings[int(r["name"])]
            for r in trace.resource_names
            if r["kind"] == 1
        }
        working = {info.process for name in GPU_WORK for info in trace.block_infos(name)}
        self._several = len(working) > 1
        for process, context in sorted({(int(r["process"]), int(r["context"])) for r in trace.contexts}):
            self._context_count[process] = self._context_count.get(process, 0) + 1
            del context
        for (process, device), row in sorted(self._rows.items()):
            self._gpu_rows.setdefault(self.gpu(process, device), row)

    def gpu(self, process: int, device: int) -> int:
        """The index of a device among the GPUs of the trace: one a physical GPU, as far as the capture says."""
        row = self._rows.get((process, device))
        key: Any
        if row is None:
            key = ("ordinal", self._trace.processes[process].host, device)
        elif bytes(row["uuid"]).strip(b"\0"):
            key = ("uuid", bytes(row["uuid"]))
        else:
            key = ("row", self._trace.processes[process].host, device, int(row["name"]), int(row["pci"]))
        if key not in self._gpus:
            index = len(self._gpus)
            if not self._rows:
                index = device if device not in self._taken else next(i for i in self._free if i not in self._taken)
            self._gpus[key] = index
            self._taken.add(index)
        return self._gpus[key]

    def architecture(self, process: int, device: int) -> str | None:
        """``sm_90``, None when the capture does not say."""
        row = self._rows.get((process, device))
        return f"sm_{row['compute_major']}{row['compute_minor']}" if row is not None and row["compute_major"] else None

    def reserved_shared(self, process: int, device: int) -> int | None:
        """Shared memory (bytes) that the driver takes of each block."""
        row = self._rows.get((process, device))
        return None if row is None else int(row["shared_reserved_per_block"])

    def occupancy(self, process: int, device: int, launches: np.ndarray) -> Occupancy | None:
        """Theoretical occupancy of launch configurations, None without the facts of the device."""
        row = self._rows.get((process, device))
        if row is None:
            return None
        return occupancy(
            threads=volume(launches, "block"),
            registers=launches["registers"],
            shared=launches["static_shared"].astype(np.int64) + launches["dynamic_shared"],
            grid_blocks=volume(launches, "grid"),
            compute_major=int(row["compute_major"]),
            multiprocessors=int(row["multiprocessors"]),
            warp_size=int(row["warp_size"]),
            max_warps=int(row["max_warps_per_multiprocessor"]),
            max_blocks=int(row["max_blocks_per_multiprocessor"]),
            registers_per_multiprocessor=int(row["registers_per_multiprocessor"]),
            shared_per_multiprocessor=int(row["shared_per_multiprocessor"]),
            shared_reserved=int(row["shared_reserved_per_block"]),
        )

    def context(self, process: int, context: int) -> Interned:
        """A context as interned data."""
        key = process, context
        if key not in self._contexts:
            self._contexts[key] = len(self._contexts) + 1
        return Interned("graphics_contexts", self._contexts[key], {"pid": self._pids[process], "api": CUDA})

    def queue(self, process: int, device: int, context: int, stream: int) -> Interned:
        """A stream as interned data."""
        key = process, device, context, stream
        if key not in self._queues:
            self._queues[key] = _FIRST_QUEUE + len(self._queues)
        name = self.queue_name(*key)
        if self._several:
            name = f"{process_label(self._trace.processes[process], self._pids[process])} {name}"
        return Interned("gpu_specifications", self._queues[key], {"name": name, "category": _COMPUTE})

    def queue_name(self, process: int, device: int, context: int, stream: int) -> str:
        """What a stream is called within its process. Queues with one name would share a track, so the name has what
        tells them apart: the context and the device when the process uses several. Context 0 is one that a source did
        not tell: the process's only one, as far as is known."""
        given = self._stream_names.get((process, context, stream)) or self._stream_names.get((process, 0, stream))
        name = f"stream {stream} {given}" if given else f"stream {stream}"
        first = self._first_queues.setdefault(process, (device, context))
        if self._context_count.get(process, 0) > 1 or (device, context) not in (first, (first[0], 0)):
            where = f"device {device} context {context}" if context else f"device {device}"
            name = f"{where} {name}"
        return name

    def stage(self, name: str) -> Interned:
        """A kind of GPU work as interned data; only kernels count as compute."""
        category = _COMPUTE if name == "Kernel" else _OTHER
        number = 1 + list(STAGES).index(name)
        return Interned("gpu_specifications", number, {"name": name, "description": STAGES[name], "category": category})

    def info(self) -> dict[str, Any] | None:
        """The ``gpu_info`` of the GPUs with known facts, None when there are none."""
        if not self._gpu_rows:
            return None
        names = [self._trace.strings[int(r["name"])] for r in self._gpu_rows.values()]
        gpus = [
            self._describe(row, name if names.count(name) == 1 else f"{name} #{gpu}")
            for (gpu, row), name in zip(sorted(self._gpu_rows.items()), names, strict=True)
        ]
        return {"gpus": gpus}

    def _describe(self, row: np.void, name: str) -> dict[str, Any]:
        info = self._trace.processes[int(row["process"])].info
        major, minor = int(row["compute_major"]), int(row["compute_minor"])
        extra: dict[str, Any] = {
            "driver_version": info.get("driver_version"),
            "runtime_version": info.get("runtime_version"),
            "cupti_version": info.get("cupti_version"),
            "compute_capability": f"{major}.{minor}" if major else None,
            "multiprocessors": row["multiprocessors"],
            "memory_bytes": row["memory"],
            "memory_bandwidth_kb_per_s": row["memory_bandwidth"],
            "core_clock_khz": row["core_clock"],
            "memory_clock_khz": row["memory_clock"],
            "l2_cache_bytes": row["l2_cache"],
            "copy_engines": row["copy_engines"],
            "mig": row["mig"] if row["mig"] else None,
        }
        return {
            "name": name,
            "vendor": "NVIDIA",
            "model": self._trace.strings[int(row["name"])],
            "architecture": _ARCHITECTURES.get((major, minor)),
            "uuid": bytes(row["uuid"]) if bytes(row["uuid"]).strip(b"\0") else None,
            "pci_bdf": self._trace.strings[int(row["pci"])] or None,
            "extra_info": [{"key": k, "value": str(v)} for k, v in extra.items() if v is not None],
        }


def volume(launches: np.ndarray, of: str) -> np.ndarray:
    """How many blocks the ``grid``, or threads the ``block``, of each launch has."""
    x, y, z = (launches[f"{of}_{axis}"].astype(np.uint64) for axis in "xyz")
    return x * y * z
