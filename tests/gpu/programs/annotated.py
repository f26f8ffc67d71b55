"""Run a small transformer in PyTorch: eagerly, captured as a CUDA graph, or with compiled blocks.

Prints a JSON line with the sums of the outputs, and with the actions of torch.compile.
"""

import json
import sys

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, width: int = 256, blocks: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def step(model: nn.Module, x: torch.Tensor, compiled: bool) -> float:
    if compiled:  # outputs of the previous step are no longer needed
        torch.compiler.cudagraph_mark_step_begin()
    return float(model(x).double().sum())


def replayed(model: nn.Module, x: torch.Tensor) -> list[float]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    sums = []
    for _ in range(5):
        graph.replay()
        sums.append(float(y.double().sum()))
    return sums


@torch.no_grad()
def main(mode: str) -> None:
    torch.manual_seed(0)
    model = Transformer().cuda().eval()
    x = torch.randn(4, 64, 256, device="cuda")
    if mode == "compile":
        for layer in model.layers:
            layer.compile(mode="reduce-overhead", fullgraph=True)
    sums = replayed(model, x) if mode == "graph" else [step(model, x, mode == "compile") for _ in range(5)]
    counters = torch._dynamo.utils.counters if mode == "compile" else {}
    compiled = {name: dict(counters[name]) for name in ("frames", "stats", "graph_break") if counters.get(name)}
    print(json.dumps({"sums": sums, "compiled": compiled}))


main(sys.argv[1])
