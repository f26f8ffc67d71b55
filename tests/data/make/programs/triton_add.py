"""Launch Triton kernels at several sizes. They use only the driver API."""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl

SIZES = (1 << 12, 1 << 16, 1 << 20)
REPEATS = 10


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside), mask=inside)


@triton.jit
def row_max_kernel(x, out, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + offsets, mask=offsets < columns, other=-float("inf"))
    tl.store(out + tl.program_id(0), tl.max(row, axis=0))


def main() -> None:
    torch.manual_seed(0)
    for size in SIZES:
        x, y = torch.rand(size, device="cuda"), torch.rand(size, device="cuda")
        out = torch.empty_like(x)
        for _ in range(REPEATS):
            add_kernel[(triton.cdiv(size, 1024),)](x, y, out, size, BLOCK=1024)
        assert torch.equal(out, x + y)
    table = torch.rand(256, 500, device="cuda")
    largest = torch.empty(256, device="cuda")
    for _ in range(REPEATS):
        row_max_kernel[(256,)](table, largest, 500, BLOCK=512)
    assert torch.equal(largest, table.max(dim=1).values)
    torch.cuda.synchronize()
    print(json.dumps({"kernels": {"add_kernel": REPEATS * len(SIZES), "row_max_kernel": REPEATS}}))


if __name__ == "__main__":
    main()
