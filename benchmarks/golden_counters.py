"""Measure how stable hardware counters are: the bodies of some 80 tests are counted 20 times each.

    python benchmarks/golden_counters.py --out golden-counters.json [--repeat 20] [--only PATTERN]

Counts ``instructions`` and ``dram_bytes`` of each body like a test with ``@pytest.mark.cutrace(counters=[...])``, after
three runs without counting. Reports whether the instructions were equal in all runs, and whether the bytes were within
their declared bound. :data:`REASONS` says why the instructions of some bodies can differ. Exit status 1 when the
instructions of another body differ. Each body is in an NVTX range with its name, so that these commands show its
kernels::

    cutrace record -o run.bin -- python benchmarks/golden_counters.py --out none --repeat 0
    cutrace stats run.bin --report nvtx_kern_sum --limit 0

Needs an NVIDIA GPU with readable counters, PyTorch, CuPy and Triton.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import cupy
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from cutrace.analysis.definitions import METRICS
from cutrace.extras.hardware.ranges import Context, RangeCounters
from cutrace.extras.hardware.sets import COUNTERS
from workloads import options
from workloads.machine import facts

NAMES = ("instructions", "dram_bytes")
WARM_UP = 3
LARGE, SMALL = 1 << 26, 1 << 12

_SCAN = "blocks wait in a loop for the sums of the blocks before them"
_TENSOR = "warps of a matrix product wait in a loop for data that other warps load"
_ADD_64 = "a 64-bit addition in shared memory is a loop that repeats when another thread came between"
#: The reasons why a body may execute more or fewer instructions each time.
REASONS = {
    **dict.fromkeys(
        ("torch cumsum large", "torch sort large", "torch unique", "torch masked_select", "cupy sort",
         "cupy cumsum"),
        _SCAN,
    ),
    **dict.fromkeys(
        ("torch matmul bf16", "torch matmul fp16", "torch matmul tf32", "torch bmm bf16", "torch linear bf16",
         "torch conv2d bf16", "torch conv2d tf32", "torch attention"),
        _TENSOR,
    ),
    **dict.fromkeys(("torch bincount", "cupy tally 64"), _ADD_64),
}  # fmt: skip

#: Counts numbers below 1000: first each block in shared memory, then all in ``counts``.
TALLY = r"""
extern "C" __global__ void tally(const long long* x, NUMBER* counts, int n) {
  __shared__ NUMBER mine[1000];
  for (int i = threadIdx.x; i < 1000; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 1000; i += blockDim.x) atomicAdd(&counts[i], mine[i]);
}
"""


@triton.jit
def triton_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def triton_softmax(x, out, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    row = tl.load(x + at, mask=inside, other=float("-inf"))
    powers = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + at, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def triton_matmul(a, b, c, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, n, BLOCK):
        left = tl.load(a + rows[:, None] * n + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


def bodies() -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # as PyTorch's default for matrix products
    x, y, out = (torch.rand(LARGE, device="cuda") for _ in range(3))
    small, small_out = torch.rand(SMALL, device="cuda"), torch.empty(SMALL, device="cuda")
    square, rows = x[: 1 << 24].view(4096, 4096), x.view(1 << 13, 1 << 13)
    a, b = (torch.rand(1024, 1024, device="cuda") for _ in range(2))
    ah, bh = (torch.rand(2048, 2048, device="cuda").bfloat16() for _ in range(2))
    batch = torch.rand(64, 256, 256, device="cuda").bfloat16()
    image = torch.rand(16, 64, 128, 128, device="cuda")
    weights = torch.rand(64, 64, 3, 3, device="cuda")
    flat = image.bfloat16().to(memory_format=torch.channels_last)
    flat_weights = weights.bfloat16().to(memory_format=torch.channels_last)
    numbers = torch.randint(0, 1000, (1 << 22,), device="cuda")
    places = torch.randint(0, LARGE, (1 << 24,), device="cuda")
    wave = torch.rand(1 << 22, device="cuda")
    heads = torch.rand(8, 8, 1024, 64, device="cuda").bfloat16()
    layers = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda()
    table = torch.rand(50_000, 256, device="cuda")
    words = torch.randint(0, 50_000, (8192,), device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def matmul_tf32() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.mm(a, b)
        torch.backends.cuda.matmul.allow_tf32 = False

    def conv2d_tf32() -> None:
        torch.backends.cudnn.allow_tf32 = True
        F.conv2d(image, weights, padding=1)
        torch.backends.cudnn.allow_tf32 = False

    def training_step() -> None:
        layers.zero_grad()
        layers(a).square().sum().backward()

    def streams() -> None:
        for stream, result in ((first, out[: LARGE // 2]), (second, out[LARGE // 2 :])):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.exp(x[: LARGE // 2], out=result)
                result.mul_(2)
        torch.cuda.current_stream().wait_stream(first)
        torch.cuda.current_stream().wait_stream(second)

    torch.add(x, y, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, y, out=out)
        out.mul_(2)
        graph_sum = out.sum()
    assert graph_sum.numel() == 1

    cx, cy = cupy.from_dlpack(x), cupy.empty(LARGE, cupy.float32)
    csmall = cupy.from_dlpack(small)
    ca, cwave, cnumbers = cupy.from_dlpack(a), cupy.from_dlpack(wave), cupy.from_dlpack(numbers)
    axpy = cupy.ElementwiseKernel("float32 x, float32 a", "float32 y", "y = a * x + y", "axpy")
    tally = {bits: cupy.RawKernel(TALLY.replace("NUMBER", number), "tally")
             for bits, number in ((32, "unsigned"), (64, "unsigned long long"))}  # fmt: skip
    counts = {32: cupy.zeros(1000, cupy.uint32), 64: cupy.zeros(1000, cupy.uint64)}
    norm = torch.nn.BatchNorm2d(64).cuda().eval()
    labels = numbers[:4096]
    eighth = LARGE // 8

    return {
        "torch add large": lambda: torch.add(x, y, out=out),
        "torch add small": lambda: torch.add(small, small, out=small_out),
        "torch fill": lambda: out.fill_(1),
        "torch copy": lambda: out.copy_(x),
        "torch exp": lambda: torch.exp(x, out=out),
        "torch gelu": lambda: F.gelu(x[:eighth]),
        "torch where": lambda: torch.where(x > 0.5, x, y),
        "torch divide": lambda: torch.div(x, y, out=out),
        "torch sigmoid": lambda: torch.sigmoid(x, out=out),
        "torch tanh": lambda: torch.tanh(x, out=out),
        "torch relu": lambda: F.relu(x[:eighth]),
        "torch clamp": lambda: torch.clamp(x, 0.2, 0.8, out=out),
        "torch compare": lambda: x > y,
        "torch addcmul": lambda: torch.addcmul(x, x, y, out=out),
        "torch foreach": lambda: torch._foreach_mul([small, small_out, wave], 1.0),
        "torch random": lambda: out.uniform_(),
        "torch dropout": lambda: F.dropout(x[:eighth], 0.5),
        "torch to bfloat16": lambda: x.bfloat16(),
        "torch transpose": lambda: square.t().contiguous(),
        "torch cat": lambda: torch.cat((x[:eighth], y[:eighth])),
        "torch flip": lambda: x[:eighth].flip(0),
        "torch roll": lambda: x[:eighth].roll(100),
        "torch triu": lambda: square.triu(),
        "torch repeat": lambda: small.repeat(1000),
        "torch sum large": lambda: x.sum(),
        "torch sum small": lambda: small.sum(),
        "torch sum of rows": lambda: rows.sum(1),
        "torch sum of columns": lambda: rows.sum(0),
        "torch min of rows": lambda: rows.min(1),
        "torch variance": lambda: x.var(),
        "torch any": lambda: (x[:eighth] > 2).any(),
        "torch argmax": lambda: x.argmax(),
        "torch norm": lambda: torch.linalg.vector_norm(x),
        "torch softmax": lambda: torch.softmax(square, 1),
        "torch log_softmax": lambda: torch.log_softmax(square, 1),
        "torch cross_entropy": lambda: F.cross_entropy(square, labels),
        "torch batch_norm": lambda: norm(image),
        "torch group_norm": lambda: F.group_norm(image, 8),
        "torch layer_norm": lambda: F.layer_norm(square, (4096,)),
        "torch matmul fp32": lambda: torch.mm(a, b),
        "torch matmul tf32": matmul_tf32,
        "torch matmul bf16": lambda: torch.mm(ah, bh),
        "torch matmul fp16": lambda: torch.mm(a[:128, :128].half(), b[:128, :128].half()),
        "torch bmm bf16": lambda: torch.bmm(batch, batch),
        "torch linear bf16": lambda: F.linear(ah, bh, ah[0]),
        "torch matrix times vector": lambda: torch.mv(square, x[:4096]),
        "torch conv2d fp32": lambda: F.conv2d(image, weights, padding=1),
        "torch conv2d tf32": conv2d_tf32,
        "torch conv2d bf16": lambda: F.conv2d(flat, flat_weights, padding=1),
        "torch max_pool2d": lambda: F.max_pool2d(image, 2),
        "torch avg_pool2d": lambda: F.avg_pool2d(image, 2),
        "torch interpolate": lambda: F.interpolate(image, scale_factor=2),
        "torch sort large": lambda: torch.sort(wave),
        "torch sort small": lambda: torch.sort(small),
        "torch topk": lambda: torch.topk(square, 10),
        "torch cumsum large": lambda: torch.cumsum(wave, 0),
        "torch cumsum small": lambda: torch.cumsum(small, 0),
        "torch index_select": lambda: torch.index_select(x, 0, places),
        "torch gather": lambda: torch.gather(square, 1, places.view(4096, 4096) % 4096),
        "torch index_add": lambda: out.index_add_(0, places[: 1 << 20], wave[: 1 << 20]),
        "torch bincount": lambda: torch.bincount(numbers, minlength=1000),
        "torch bincount of many": lambda: torch.bincount(numbers, minlength=1 << 20),
        "torch embedding": lambda: F.embedding(words, table),
        "torch masked_select": lambda: torch.masked_select(wave, wave > 0.5),
        "torch unique": lambda: torch.unique(numbers),
        "torch fft": lambda: torch.fft.fft(wave),
        "torch attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
        "torch linear fp32": lambda: layers(a),
        "torch narrow product": lambda: torch.mm(a, b[:, :10]),
        "torch narrow sums": lambda: torch.mm(a[:, :10].t(), b),
        "torch outer product": lambda: torch.mm(a[:, :10], b[:10]),
        "torch transposed product": lambda: torch.mm(a.t(), b),
        "torch training step": training_step,
        "torch two streams": streams,
        "torch graph": graph.replay,
        "cupy elementwise": lambda: axpy(cx, 2, cy),
        "cupy sum": lambda: cx.sum(),
        "cupy sort": lambda: cupy.sort(cwave),
        "cupy cumsum": lambda: cupy.cumsum(cwave),
        "cupy matmul": lambda: ca @ ca,
        "cupy fft": lambda: cupy.fft.fft(csmall),
        "cupy exp": lambda: cupy.exp(cx, out=cy),
        "cupy argmax": lambda: cx.argmax(),
        "cupy where": lambda: cupy.where(cx > 0.5, cx, 0),
        "cupy transpose": lambda: ca.T.copy(),
        "cupy dot": lambda: cupy.dot(cwave, cwave),
        "cupy tally 32": lambda: tally[32]((256,), (256,), (cnumbers, counts[32], cupy.int32(numbers.numel()))),
        "cupy tally 64": lambda: tally[64]((256,), (256,), (cnumbers, counts[64], cupy.int32(numbers.numel()))),
        "triton add": lambda: triton_add[(LARGE // 1024,)](x, y, out, LARGE, BLOCK=1024),
        "triton softmax": lambda: triton_softmax[(4096,)](square, out, 4096, BLOCK=4096),
        "triton matmul": lambda: triton_matmul[(16, 16)](ah, bh, out, 2048, BLOCK=128),
    }


def spread(counted: list[float], name: str) -> dict[str, Any]:
    """The smallest and the largest count, and whether each of them would pass with the other as the golden value."""
    metric, least, most = METRICS[name], min(counted), max(counted)
    bound = max(metric.tolerance * least, metric.floor)
    return {"least": least, "most": most, "bound": bound, "within": most - least <= bound}


def counted_body(
    name: str, body: Callable[[], Any], context: Context, ranges: RangeCounters, repeat: int
) -> dict[str, Any]:
    """Count the repetitions of a body."""
    with torch.cuda.nvtx.range(name):
        for _ in range(WARM_UP):
            body()
    values: dict[str, list[float]] = {each: [] for each in NAMES}
    for _ in range(repeat):
        context.synchronize()
        ranges.start()
        body()
        context.synchronize()
        counted = ranges.stop()
        for each in NAMES:
            values[each].append(counted[COUNTERS[each]])
    found: dict[str, Any] = {each: spread(values[each], each) for each in NAMES if repeat}
    if repeat:
        found["why"] = "" if found["instructions"]["within"] else REASONS.get(name, "UNKNOWN")
    return {"body": name} | found


def show(found: dict[str, Any]) -> None:
    """Print a line about a body."""
    if "error" in found:
        print(f"{found['body']:26} {found['error']}", flush=True)
        return
    instructions, moved = (found[name] for name in NAMES)
    print(
        f"{found['body']:26} {instructions['least']:>14,.0f} {'equal' if instructions['within'] else 'DIFFERS':8}"
        f"{moved['least'] / 2**20:>10.2f} to {moved['most'] / 2**20:<10.2f} MiB"
        f"{'' if moved['within'] else ' BEYOND its bound'} {found['why']}",
        flush=True,
    )


def main() -> int:
    parser = options.parser(__doc__, out=options.REQUIRED)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--only", default="", help="regular expression: only bodies with a matching name")
    args = parser.parse_args()
    began = time.monotonic()
    chosen = {name: body for name, body in bodies().items() if re.search(args.only, name)}
    context = Context.current()
    ranges = RangeCounters([COUNTERS[name] for name in NAMES], context)
    found: list[dict[str, Any]] = []
    for name, body in chosen.items():
        try:
            found.append(counted_body(name, body, context, ranges, args.repeat))
        except Exception as error:  # continue with the other bodies
            torch.cuda.synchronize()
            found.append({"body": name, "error": f"{type(error).__name__}: {error}"})
        if args.repeat:
            show(found[-1])
    ranges.close()
    if not args.repeat:
        return 0
    counted = [each for each in found if "error" not in each]
    unknown = [each["body"] for each in counted if each["why"] == "UNKNOWN"]
    errors = [each["body"] for each in found if "error" in each]
    summary = {
        "bodies": len(counted),
        "equal_instructions": sum(each["instructions"]["within"] for each in counted),
        "differ_for_a_reason": sum(each["why"] not in ("", "UNKNOWN") for each in counted),
        "differ_without_a_reason": unknown,
        "dram_within_bound": sum(each["dram_bytes"]["within"] for each in counted),
        "beyond_the_bound": [each["body"] for each in counted if not each["dram_bytes"]["within"]],
        "errors": errors,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(summary, indent=2))
    versions = {name: version(name) for name in ("torch", "cupy-cuda13x", "triton") if _installed(name)}
    head = {"machine": facts(), "versions": versions, "repeat": args.repeat, "summary": summary}
    args.out.write_text(json.dumps(head | {"results": found}, indent=1) + "\n")
    return 1 if unknown or errors else 0


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except ImportError:
        return False


if __name__ == "__main__":
    sys.exit(main())
