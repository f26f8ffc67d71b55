"""Opens windows, with work before, between and after them: `windowed.py WINDOWS KERNELS [nvtx]`.

The last kernel of each window still runs after the end of the window. A second thread launches all the time.
"""

from __future__ import annotations

import sys
import threading

import torch

windows, kernels = int(sys.argv[1]), int(sys.argv[2])
by_nvtx = sys.argv[3:] == ["nvtx"]
x = torch.zeros(1024, device="cuda")
y = torch.zeros(1024, device="cuda")
over = threading.Event()


def begin() -> None:
    if by_nvtx:
        torch.cuda.nvtx.range_push("step")
    else:
        torch.cuda.profiler.start()


def end() -> None:
    if by_nvtx:
        torch.cuda.nvtx.range_pop()
    else:
        torch.cuda.profiler.stop()


def launch_all_the_time() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        while not over.is_set():
            y.mul_(1.0)


def window() -> None:
    begin()
    for _ in range(kernels):
        x.add_(1.0)
    torch.cuda._sleep(50_000_000)
    end()


background = threading.Thread(target=launch_all_the_time)
background.start()
for _ in range(windows):
    x.sub_(1.0)
    # Servers open a window on request, in the thread that serves the request.
    thread = threading.Thread(target=window)
    thread.start()
    thread.join()
    x.sub_(1.0)
over.set()
background.join()
torch.cuda.synchronize()
print(float(x[0]))
sys.exit(4)
