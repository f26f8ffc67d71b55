"""Triton: kernels that go through the driver API alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

pytestmark = pytest.mark.cutrace(warmup=1)


@triton.jit
def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) * factor, mask=inside)


@triton.jit
def row_sum_kernel(x, out, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + offsets, mask=offsets < columns, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(row, axis=0))


@pytest.mark.parametrize("size", [1000, 1 << 16])
def test_scale(size: int) -> None:
    x = torch.arange(size, device="cuda", dtype=torch.float32)
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(size, 1024),)](x, out, 3.0, size, BLOCK=1024)
    assert torch.equal(out, 3 * x)


@pytest.mark.gpu_limit(kernel_launches=8, sync_calls=4, peak_memory="64 MiB")
def test_row_sums() -> None:
    x = torch.ones(128, 500, device="cuda")
    out = torch.empty(128, device="cuda")
    row_sum_kernel[(128,)](x, out, 500, BLOCK=512)
    assert float(out.max()) == 500
