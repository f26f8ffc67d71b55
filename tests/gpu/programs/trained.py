"""Trains a small model with fixed seeds until its stdin is closed, or for STEPS steps. Prints each loss.

python trained.py [STEPS]
"""

import json
import os
import select
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from torch import nn
from torch.cuda import nvtx

torch.use_deterministic_algorithms(True)
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batches = torch.randn(16, 64, 256, device="cuda")
losses: list[str] = []
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 0


def goes_on() -> bool:
    return len(losses) < steps if steps else not select.select([sys.stdin], [], [], 0)[0]


while goes_on():
    nvtx.range_push("step")
    batch = batches[len(losses) % len(batches)]
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
    nvtx.range_pop()
    if len(losses) == 20:
        print("ready", flush=True)
print(json.dumps(losses))
