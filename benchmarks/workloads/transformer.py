"""A transformer in bfloat16, run eagerly, as one CUDA graph, or compiled: for benchmarks/graph_origins.py.

    python transformer.py MODE SIZE STEPS [--ranges]

MODE is eager, graph (captured by torch.cuda.graph), blocks (each block compiled with mode="reduce-overhead") or whole
(the model compiled with this mode). The measured steps are inside the NVTX range "measured". With ``--ranges`` the
program puts NVTX ranges around its modules. Otherwise `cutrace record --annotate` does this.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SIZES = {"small": (256, 4, 128, 8), "large": (1024, 16, 1024, 8)}  # width, heads, tokens, batch
BLOCKS, WARM_UP = 6, 5


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def put_ranges(model: nn.Module, inside: bool) -> None:
    """Put NVTX ranges around the calls of modules, with the names that `--annotate` gives them. Without ``inside``,
    only the model and its layers get ranges, because ranges in a compiled layer would change the compiled code."""
    for path, module in model.named_modules():
        name = path.removeprefix(_parent(model, path)).removeprefix(".") or type(model).__name__
        if inside or path.count(".") < 2:
            # Module.__call__ prefers this attribute to its own implementation. For a compiled layer it is the compiled
            # call.
            call = module._compiled_call_impl or module._call_impl
            module._compiled_call_impl = _in_range(name, call)


def _parent(model: nn.Module, path: str) -> str:
    """The path of the module around another one. A list of modules does not count, because nothing calls it."""
    parent = path.rpartition(".")[0]
    while parent and isinstance(model.get_submodule(parent), nn.ModuleList):
        parent = parent.rpartition(".")[0]
    return parent


def _in_range(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        torch.cuda.nvtx.range_push(name)
        try:
            return call(*args)
        finally:
            torch.cuda.nvtx.range_pop()

    return called


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["eager", "graph", "blocks", "whole"])
    parser.add_argument("size", choices=list(SIZES))
    parser.add_argument("steps", type=int)
    parser.add_argument("--ranges", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    width, heads, tokens, batch = SIZES[args.size]
    model = Transformer(width, heads).to("cuda", torch.bfloat16).eval()
    x = torch.randn(batch, tokens, width, device="cuda", dtype=torch.bfloat16)
    if args.mode == "blocks":
        for layer in model.layers:
            layer.compile(mode="reduce-overhead")
    if args.mode == "whole":
        model.compile(mode="reduce-overhead")
    elif args.ranges:
        put_ranges(model, inside=args.mode != "blocks")

    def step() -> torch.Tensor:
        if args.mode in ("blocks", "whole"):
            torch.compiler.cudagraph_mark_step_begin()
        return model(x)

    torch.cuda.synchronize()
    # A capture needs a warm-up on another stream.
    with torch.cuda.stream(torch.cuda.Stream() if args.mode == "graph" else torch.cuda.current_stream()):
        for _ in range(WARM_UP):
            y = step()
    torch.cuda.synchronize()
    run = step
    if args.mode == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = step()

        def run() -> torch.Tensor:
            graph.replay()
            return y

    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("measured")
    for _ in range(args.steps):
        y = run()
    torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    print("result", float(y.float().sum()))


if __name__ == "__main__":
    main()
