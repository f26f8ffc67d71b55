"""Replay a small transformer from a CUDA graph. The program has no NVTX ranges. ``cutrace record --annotate
torch.nn.Module.__call__`` adds ranges around its modules."""

from __future__ import annotations

import json

import torch
from torch import nn

REPLAYS, LAYERS, BATCH, TOKENS, WIDTH, HEADS = 5, 2, 4, 64, 128, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = Transformer().to("cuda", torch.bfloat16)
    x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # captures need a warm-up
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    print(json.dumps({"replays": REPLAYS, "layers": LAYERS, "sum": float(y.float().sum())}))


if __name__ == "__main__":
    main()
