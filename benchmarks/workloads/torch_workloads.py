"""Workloads of the overhead benchmark in PyTorch. Each workload is created after its tool has started.

Every workload times itself in a few segments, each of which ends with a synchronisation, and returns the median.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

SEGMENTS = 3


@dataclass(frozen=True)
class Timing:
    """``ns_per_op`` is the median over the segments; ``operations`` counts all operations, warm-up included."""

    workload: str
    ns_per_op: float
    operations: int


def _timed(name: str, run: Callable[[int], None], operations: int, warm_up: int) -> Timing:
    """Time ``run(operations)`` over the segments, after ``run(warm_up)``."""
    run(warm_up)
    torch.cuda.synchronize()
    gc.collect()
    gc.disable()
    times = []
    for _ in range(SEGMENTS):
        begin = time.perf_counter_ns()
        run(operations)
        torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - begin) / operations)
    gc.enable()
    return Timing(name, statistics.median(times), warm_up + SEGMENTS * operations)


def torch_loop(scale: float) -> Timing:
    """An operation is one small elementwise kernel. The host is the limit."""
    x = torch.zeros(1024, device="cuda")

    def run(operations: int) -> None:
        add = x.add_
        for _ in range(operations):
            add(1.0)

    return _timed("torch_loop", run, max(1, int(20_000 * scale)), max(1, int(10_000 * scale)))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):
    """A small decoder-only language model."""

    def __init__(self, vocabulary: int = 8192, width: int = 512, layers: int = 6, heads: int = 8, length: int = 256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


def transformer(scale: float) -> Timing:
    """A training step of a 27-million-parameter transformer in bfloat16: forward, backward, AdamW."""
    torch.manual_seed(0)
    model = Transformer().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(8192, (8, 257), device="cuda")

    def run(steps: int) -> None:
        for _ in range(steps):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return _timed("transformer", run, max(1, int(15 * scale)), max(3, int(10 * scale)))


GRAPH_NODES = 256


def cuda_graph(scale: float) -> Timing:
    """Replays of a CUDA graph of 256 small kernels."""
    x = torch.zeros(1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_NODES):
            x.add_(1.0)

    def run(replays: int) -> None:
        for _ in range(replays):
            graph.replay()

    return _timed("cuda_graph", run, max(1, int(200 * scale)), max(1, int(30 * scale)))


def graph_capture(scale: float) -> Timing:
    """Captures and instantiations of a CUDA graph of 256 small kernels."""
    x = torch.zeros(1024, device="cuda")
    side, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def capture() -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool)
            for _ in range(GRAPH_NODES):
                x.add_(1.0)
            graph.capture_end()
        return graph

    kept = capture()  # keep one graph, because the pool ends with its last graph

    def run(captures: int) -> None:
        for _ in range(captures):
            capture()
        kept.replay()

    return _timed("graph_capture", run, max(1, int(100 * scale)), max(1, int(20 * scale)))


class _LaunchLoopTimes(ctypes.Structure):
    _fields_ = (("total_ns", ctypes.c_double), ("submit_ns", ctypes.c_double), ("kernels", ctypes.c_uint64))


def launch_loop(library: Path, threads: int, launches: int, warm_up: int) -> Timing:
    """The native launch loop of native/launch_loop.cu, in this process."""
    loop = ctypes.CDLL(str(library)).launch_loop
    loop.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(_LaunchLoopTimes)]
    times = _LaunchLoopTimes()
    each, each_warm_up = launches // threads, warm_up // threads
    status = loop(threads, each_warm_up, each, ctypes.byref(times))
    if status:
        raise RuntimeError(f"launch_loop with {threads} threads: CUDA error {status}")
    return Timing(f"launches_{threads}", times.total_ns / (each * threads), times.kernels)


WORKLOADS: dict[str, Callable[[float], Timing]] = {
    "torch_loop": torch_loop,
    "transformer": transformer,
    "cuda_graph": cuda_graph,
    "graph_capture": graph_capture,
}
