"""Train on two GPUs with several communicators: torchrun --nproc-per-node 2 groups.py

Data parallelism sums gradients in the communicator of all ranks, during the backward pass. Each step also sums in a
second communicator of both ranks and in a communicator of each rank alone. The first rank sends to the second. The
second rank is 20 ms late to a call of step 3. Steps with sharded gradients follow. Each rank prints the measured size,
time and bus bandwidth of its calls.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as distributed
from torch.cuda import nvtx
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
SIZE = 1 << 20
REPEATED = 10
LATE_S = 0.02
#: Bytes on the bus for each byte of a call, as defined by nccl-tests.
FACTORS = {
    "all_reduce": 2 * (RANKS - 1) / RANKS,
    "all_gather": (RANKS - 1) / RANKS,
    "reduce_scatter": (RANKS - 1) / RANKS,
    "broadcast": 1,
}


def measured(name: str, call: Callable[[], object]) -> None:
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    distributed.barrier()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPEATED):
        call()
    end.record()
    torch.cuda.synchronize()
    us = start.elapsed_time(end) * 1000 / REPEATED
    bandwidth = SIZE / us / 1e3 * FACTORS[name]
    print(json.dumps({"rank": RANK, "call": name, "bytes": SIZE, "us": us, "bus_gb_s": bandwidth}), flush=True)


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3))).to(DEVICE)


def train(model: torch.nn.Module, steps: int, label: str, more: Callable[[int], None] | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        with nvtx.range(f"{label} {step}"):
            model(torch.ones(64, 512, device=DEVICE)).square().mean().backward()
            if more:
                more(step)
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()


def main() -> None:
    torch.cuda.set_device(RANK)
    distributed.init_process_group("nccl", device_id=DEVICE)
    second = distributed.new_group([0, 1])
    alone = [distributed.new_group([rank]) for rank in range(RANKS)][RANK]
    torch.manual_seed(0)
    whole = torch.ones(SIZE // 4, device=DEVICE)
    part = torch.empty(SIZE // 4 // RANKS, device=DEVICE)
    measured("all_reduce", lambda: distributed.all_reduce(whole))
    measured("all_gather", lambda: distributed.all_gather_into_tensor(whole, part))
    measured("reduce_scatter", lambda: distributed.reduce_scatter_tensor(part, whole))
    measured("broadcast", lambda: distributed.broadcast(whole, 0))

    def more(step: int) -> None:
        if RANK == 1 and step == 3:
            torch.cuda.synchronize()
            time.sleep(LATE_S)
        distributed.all_reduce(whole, group=second)
        distributed.all_reduce(whole, group=alone)
        if RANK == 0:
            distributed.send(whole, 1)
        else:
            distributed.recv(whole, 0)

    train(torch.nn.parallel.DistributedDataParallel(layers(), device_ids=[RANK], bucket_cap_mb=1), 6, "ddp", more)
    mesh = init_device_mesh("cuda", (RANKS, 1), mesh_dim_names=("replicate", "shard"))
    sharded = layers()
    for layer in sharded:
        fully_shard(layer, mesh=mesh["replicate"])
    train(fully_shard(sharded, mesh=mesh["replicate"]), 4, "fsdp")
    with distributed._coalescing_manager(group=second, device=DEVICE, async_ops=False):
        for _ in range(3):
            distributed.all_reduce(whole, group=second)
    torch.cuda.synchronize()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
