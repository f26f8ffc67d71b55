"""A server with clients that open and close windows: `served.py WINDOWS KERNELS [arm]`. With `arm` it records itself.
Fails if a window gets no file."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

import cutrace

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from profiled_server import Server

windows, kernels = int(sys.argv[1]), int(sys.argv[2])


def work(name: str) -> None:
    for _ in range(kernels):
        if name == "outside":
            x.mul_(1.0)
        else:
            x.add_(1.0)
    torch.cuda.synchronize()


recording = cutrace.arm("run-%i.bin", capture_range="profiler") if sys.argv[3:] else nullcontext()
with recording:
    x = torch.zeros(1024, device="cuda")
    server = Server(torch.cuda.profiler.start, torch.cuda.profiler.stop, work)
    for window in range(1, windows + 1):
        server.profile("inside")
        deadline = time.monotonic() + 30
        while not Path(f"run-{window}.bin").exists():
            assert time.monotonic() < deadline, f"run-{window}.bin is not there"
            time.sleep(0.01)
