"""CuPy: its own kernels, its memory pool, raw memory and copies."""

from __future__ import annotations

import pytest

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.cutrace(warmup=1)

twice = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "suite_twice")


def test_elementwise() -> None:
    x = cupy.arange(1 << 12, dtype=cupy.float32)
    assert float(twice(x)[-1]) == 2 * ((1 << 12) - 1)


def test_reduction() -> None:
    x = cupy.ones((64, 64), dtype=cupy.float32)
    assert float(x.sum()) == 64 * 64


def test_raw_memory_is_allocated_and_given_back() -> None:
    memory = cupy.cuda.Memory(1 << 20)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    pointer.memset_async(1, 1 << 20, cupy.cuda.Stream.null)
    cupy.cuda.Stream.null.synchronize()
    del pointer, memory
