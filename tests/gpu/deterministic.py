"""The same GPU work in each run. test_agreement.py runs it: ``deterministic.py [TRACE.json]``.

With TRACE.json it runs under torch.profiler (CUDA only), which writes a Chrome trace to this path. The measured part is
inside the NVTX range "measured". It comes after a warm-up, so that clocks, libraries and allocators have settled.
"""

from __future__ import annotations

import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile

ITERATIONS = 50


def main() -> None:
    torch.manual_seed(0)
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4096, 4096, device="cuda")
    host = torch.randn(1 << 22).pin_memory()
    back = torch.empty_like(host).pin_memory()
    device = torch.empty(1 << 22, device="cuda")
    other = torch.empty_like(device)

    def work() -> None:
        device.copy_(host, non_blocking=True)
        other.copy_(device)
        product = a @ a
        torch.softmax(b, dim=-1)
        torch.nn.functional.layer_norm(b, (4096,))
        b.sum(dim=0)
        torch.relu(product)
        other.zero_()
        back.copy_(device, non_blocking=True)

    def measured() -> None:
        with torch.cuda.nvtx.range("measured"):
            for _ in range(ITERATIONS):
                work()
            torch.cuda.synchronize()

    for _ in range(2 * ITERATIONS):
        work()
    torch.cuda.synchronize()
    if len(sys.argv) > 1:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            measured()
        profiler.export_chrome_trace(sys.argv[1])
    else:
        measured()
    print(json.dumps({"iterations": ITERATIONS}))


if __name__ == "__main__":
    main()
