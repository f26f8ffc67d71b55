"""Twenty steps of a matrix product and a softmax in PyTorch: for benchmarks/profile_time.py."""

import torch

STEPS = 20

given = torch.randn(4096, 4096, device="cuda")
total = torch.zeros((), device="cuda", dtype=torch.float64)
for _ in range(STEPS):
    total += torch.softmax(given @ given, -1).square().sum().double()
print(total.item())
