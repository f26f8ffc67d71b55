"""Train a small network. Each phase has an NVTX range. The next batch is copied on a separate stream."""

from __future__ import annotations

import json

import torch
from torch.cuda import nvtx

STEPS = 4
BATCH, WIDTH, CLASSES = 256, 512, 16


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH),
        torch.nn.GELU(),
        torch.nn.LayerNorm(4 * WIDTH),
        torch.nn.Linear(4 * WIDTH, CLASSES),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [
        (torch.randn(BATCH, WIDTH).pin_memory(), torch.randint(CLASSES, (BATCH,)).pin_memory()) for _ in range(STEPS)
    ]
    copies = torch.cuda.Stream()

    def prefetch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        with nvtx.range("prefetch"), torch.cuda.stream(copies):
            inputs, targets = batches[number]
            return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    following = prefetch(0)
    losses = []
    for step in range(STEPS):
        with nvtx.range(f"step {step}"):
            torch.cuda.current_stream().wait_stream(copies)
            inputs, targets = following
            for tensor in following:
                tensor.record_stream(torch.cuda.current_stream())
            if step + 1 < STEPS:
                following = prefetch(step + 1)
            with nvtx.range("forward"):
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            with nvtx.range("backward"):
                loss.backward()
            with nvtx.range("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            losses.append(loss.item())
        nvtx.mark(f"loss {losses[-1]:.3f}")
    torch.cuda.synchronize()
    print(json.dumps({"steps": STEPS, "losses": losses}))


if __name__ == "__main__":
    main()
