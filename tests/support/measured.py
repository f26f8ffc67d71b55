"""Metrics as a test would measure them, for tests of what is done with them."""

from __future__ import annotations

from typing import Any

from cutrace.analysis.metrics import Metrics

TEST = "tests/test_softmax.py::TestSoftmax::test_fwd[float16-1024x4096]"
H200 = "nvidia-h200"
FACTS = {"compute capability": "9.0", "driver": "580.159", "cuda": "13.0"}
SOFTMAX: dict[str, Any] = {
    "kernel_launches": 3, "kernels": {"softmax_fwd": 1, "vectorized_elementwise": 2}, "graph_launches": 0,
    "memcpy_count": 1, "memcpy_bytes": 4, "memcpy_d2h_count": 1, "memcpy_d2h_bytes": 4,
    "memset_count": 1, "memset_bytes": 64, "sync_calls": 1, "syncs": {"cudaStreamSynchronize": 1},
    "allocations": 0, "allocators": {}, "frees": 0, "pinned_allocations": 0, "pinned_frees": 0, "streams_used": 1,
    "peak_memory_bytes": 32 << 20, "net_memory_bytes": 0,
    "kernel_time_ns": 18_700, "busy_ns": 18_000, "api_time_ns": 40_000, "idle_share": 0.25,
}  # fmt: skip


def run(
    *,
    regions: dict[str, dict[str, Any]] | None = None,
    problems: tuple[str, ...] = (),
    facts: dict[str, str] = FACTS,
    gpus: tuple[str, ...] = ("NVIDIA H200",),
    **changed: Any,
) -> Metrics:
    """A run of a softmax test: three kernels, a copy of 4 bytes, a memset and a wait; with what is changed. A metric
    that is changed to None is left out."""
    values = {name: value for name, value in {**SOFTMAX, **changed}.items() if value is not None}
    return Metrics(values, regions or {}, problems, gpus, facts, 5)
