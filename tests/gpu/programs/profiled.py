"""Multiplies matrices until its stdin is closed. Each line of stdin starts a session of torch.profiler. The answer is
the number of kernels in the session."""

import select
import sys

import torch
from torch.profiler import ProfilerActivity, profile

x = torch.eye(256, device="cuda")


def step() -> None:
    global x
    x = torch.tanh(x @ x)
    torch.cuda.synchronize()


step()
print("ready", flush=True)
while True:
    if not select.select([sys.stdin], [], [], 0)[0]:
        step()
        continue
    if not sys.stdin.readline():
        break
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(20):
            step()
    print(sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profiler.events() or ()), flush=True)
