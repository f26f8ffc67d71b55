"""A training loop of a small transformer that times its own steps: for benchmarks/step_sum.py.

    python steps.py VARIANT STEPS
    torchrun --nproc-per-node 2 steps.py VARIANT STEPS

Each step is an NVTX range, `step 0` and so on, between two synchronisations. The variant `async` has no
synchronisations. Other variants add work with a known time: `sleep` waits on the host in each step, and `copy` copies
to the GPU during a pause of the computation. Prints a line of JSON for each process: its id, the times (ns) of its
steps by its own clock, and the time that was added to each, by the same clock or by CUDA events.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

import torch
from torch import nn

WIDTH, HEADS, BLOCKS, TOKENS, BATCH = 512, 8, 4, 256, 8
WARM_UP = 10
SLEEP = 0.005
COPIED = 64 << 20


class Training:
    """The model, its optimizer, and one step."""

    def __init__(self, device: torch.device, ranks: int) -> None:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, dropout=0.0)
        model: nn.Module = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False).to(device)
        if ranks > 1:
            model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        self.input = torch.randn(BATCH, TOKENS, WIDTH, device=device)

    def step(self) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.model(self.input).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Added:
    """The additional work of a variant in each step."""

    def __init__(self, variant: str, device: torch.device) -> None:
        self.variant = variant
        if variant == "copy":
            self.source = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
            self.target = torch.empty(COPIED, dtype=torch.uint8, device=device)
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.slept: list[int] = []

    def run(self) -> None:
        if self.variant == "sleep":
            began = time.perf_counter_ns()
            time.sleep(SLEEP)
            self.slept.append(time.perf_counter_ns() - began)
        if self.variant == "copy":
            torch.cuda.synchronize()
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[0].record()
            self.target.copy_(self.source, non_blocking=True)
            events[1].record()
            torch.cuda.synchronize()
            self.events.append(events)

    def times(self) -> list[int]:
        if self.variant == "copy":
            return [round(start.elapsed_time(end) * 1e6) for start, end in self.events]
        return self.slept


class Meter:
    """The energy counter of a GPU, read with NVML. Without the library it has no values."""

    def __init__(self, index: int) -> None:
        self._handle = ctypes.c_void_p()
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self._known = self._nvml.nvmlInit_v2() == 0
        except OSError:
            self._known = False
        if self._known:
            # The device is found by its PCI address, because CUDA and NVML may number GPUs in different orders.
            found = torch.cuda.get_device_properties(index)
            address = f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0".encode()
            status = self._nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(self._handle))
            self._known = status == 0

    def joules(self) -> float | None:
        energy = ctypes.c_ulonglong()
        if not self._known:
            return None
        if self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(energy)):
            return None
        return energy.value / 1000


def main() -> None:
    variant = sys.argv[1]
    steps = int(sys.argv[2])
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if ranks > 1:
        torch.distributed.init_process_group("nccl", device_id=device)
    training = Training(device, ranks)
    added = Added(variant, device)
    for _ in range(WARM_UP):
        training.step()
    torch.cuda.synchronize()
    meter = Meter(device.index)
    before = meter.joules()
    times = []
    began = time.perf_counter_ns()
    for number in range(steps):
        start = time.perf_counter_ns()
        with torch.cuda.nvtx.range(f"step {number}"):
            added.run()
            training.step()
            if variant != "async":
                torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - start)
    loop = time.perf_counter_ns() - began
    torch.cuda.synchronize()
    after = meter.joules()
    joules = None
    if before is not None and after is not None:
        joules = after - before
    told = {"pid": os.getpid(), "steps": times, "added": added.times(), "loop": loop, "joules": joules}
    print("measured " + json.dumps(told), flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
