"""Train on two GPUs with a process for each. NCCL sums gradients on a separate stream during the backward pass.

At the end the first process copies to the other GPU.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch.cuda import nvtx

RANKS = 2
STEPS = 4
LAYERS = 3
WIDTH = 512
BATCH = 256


def rank(index: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(index), "WORLD_SIZE": str(RANKS)}
    torch.cuda.set_device(index)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", index))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[index], bucket_cap_mb=1)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)
    for step in range(STEPS):
        with nvtx.range(f"step {step}"):
            loss = parallel(torch.ones(BATCH, WIDTH, device="cuda") * (index + 1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    summed = torch.full((WIDTH,), float(index + 1), device="cuda")
    distributed.all_reduce(summed)
    if index == 0:
        copied = summed.to("cuda:1")
        torch.cuda.synchronize(1)
        assert copied.device.index == 1
    torch.cuda.synchronize()
    print(json.dumps({"pid": os.getpid(), "rank": index, "steps": STEPS, "sum": summed[0].item()}), flush=True)
    distributed.destroy_process_group()


def main() -> None:
    if torch.cuda.device_count() < RANKS:
        sys.exit(f"{RANKS} GPUs are wanted, {torch.cuda.device_count()} found")
    multiprocessing.spawn(rank, (29000 + os.getpid() % 1000,), nprocs=RANKS)


if __name__ == "__main__":
    main()
