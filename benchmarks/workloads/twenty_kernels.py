"""Run kernels that are common in PyTorch and Triton, in the NVTX ranges ``step0`` to ``step2``. Each operation has a
range.

Prints a JSON line with a checksum of each operation's result, so that runs can be compared bit for bit. With
``--ballast`` it allocates that many GB of additional memory, as a model would.
"""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

STEPS = 3


@triton.jit
def known_softmax(out, into, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(into + row * columns + offsets, mask=mask, other=-float("inf"))
    x = tl.exp(x - tl.max(x, axis=0))
    tl.store(out + row * columns + offsets, x / tl.sum(x, axis=0), mask=mask)


@triton.jit
def known_product(a, b, c, n, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    depths = tl.arange(0, DEPTH)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, DEPTH):
        left = tl.load(a + rows[:, None] * n + (start + depths)[None, :])
        right = tl.load(b + (start + depths)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


def triton_softmax(x):
    out = torch.empty_like(x)
    known_softmax[(x.shape[0],)](out, x, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def triton_product(a, b):
    out = torch.empty_like(a)
    n = a.shape[0]
    known_product[(n // 64, n // 64)](a, b, out, n, BLOCK=64, DEPTH=32)
    return out


def operations():
    """The operations as functions by name. Their inputs are the same in each run."""
    torch.manual_seed(0)
    device = "cuda"
    wide = torch.randn(4096, 1024, device=device)
    image = torch.randn(32, 64, 56, 56, device=device)
    weight = torch.randn(64, 64, 3, 3, device=device)
    square = torch.randn(2048, 2048, device=device)
    half = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    small = torch.randn(1024, 1024, device=device, dtype=torch.float16)
    heads = torch.randn(4, 16, 1024, 64, device=device, dtype=torch.bfloat16)
    table = torch.randn(50_000, 256, device=device)
    chosen = torch.randint(0, 50_000, (16_384,), device=device)
    line = torch.randn(1 << 22, device=device)
    places = torch.randint(0, 1 << 16, (1 << 22,), device=device)
    tiny = torch.randn(512, device=device)
    return {
        "layer_norm": lambda: F.layer_norm(wide, (1024,)),
        "softmax": lambda: F.softmax(wide, dim=1),
        "gelu": lambda: F.gelu(wide),
        "add": lambda: wide + 1.5,
        "transpose": lambda: square.t().contiguous(),
        "strided": lambda: line[::8] * 2,
        "gather": lambda: table[chosen],
        "embedding": lambda: F.embedding(chosen, table),
        "scatter": lambda: torch.zeros(1 << 16, device=device, dtype=torch.int32).index_add_(
            0, places, torch.ones_like(places, dtype=torch.int32)
        ),
        "sum": lambda: line.sum(),
        "row_max": lambda: wide.max(dim=1).values,
        "cumsum": lambda: line.view(1024, 4096).cumsum(1),
        "sort": lambda: line[: 1 << 20].sort().values,
        "topk": lambda: wide.topk(16, dim=1).values,
        "matmul_fp32": lambda: square @ square,
        "matmul_bf16": lambda: half @ half,
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
        "convolution": lambda: F.conv2d(image, weight, padding=1),
        "batch_norm": lambda: F.batch_norm(image, None, None, training=True),
        "tiny": lambda: tiny * 2,
        "triton_softmax": lambda: triton_softmax(wide),
        "triton_product": lambda: triton_product(small, small),
    }


def checksum(result) -> str:
    raw = result.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ballast", type=float, default=0, help="GB")
    parser.add_argument("--only", default="", help="comma-separated operations")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = False
    ballast = torch.ones(int(args.ballast * 2**28), device="cuda")
    functions = operations()
    names = args.only.split(",") if args.only else list(functions)
    results = {}
    for step in range(STEPS):
        torch.cuda.nvtx.range_push(f"step{step}")
        for name in names:
            torch.cuda.nvtx.range_push(name)
            results[name] = functions[name]()
            torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
    sums = {name: checksum(result) for name, result in results.items()}
    sums["ballast"] = float(ballast[:1000].sum())
    print(json.dumps({"results": sums}))


main()
