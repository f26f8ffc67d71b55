"""Two ranks with two communicators: DDP, and collectives of known sizes. Each rank prints its calls as JSON."""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FLOAT = 4


def rank_main(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.cuda.set_device(rank)
    limit = timedelta(seconds=60)
    dist.init_process_group("nccl", rank=rank, world_size=2, timeout=limit, device_id=torch.device(rank))
    groups = [dist.group.WORLD, dist.new_group([0, 1])]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device=rank), device_ids=[rank])
    for _ in range(3):
        model(torch.ones(8, 64, device=rank)).sum().backward()
    torch.cuda.synchronize()
    calls = []
    torch.cuda.nvtx.range_push("known")
    for number, group in enumerate(groups):
        for elements in (1, 1000, 1 << 20):
            given = torch.ones(elements, device=rank)
            both = torch.ones(2 * elements, device=rank)
            dist.all_reduce(given, group=group)
            calls.append({"group": number, "name": "AllReduce", "bytes": elements * FLOAT})
            dist.broadcast(given, src=1, group=group)
            calls.append({"group": number, "name": "Broadcast", "bytes": elements * FLOAT, "root": 1})
            dist.all_gather_into_tensor(both, given, group=group)
            calls.append({"group": number, "name": "AllGather", "bytes": elements * FLOAT})
            dist.reduce_scatter_tensor(given, both, group=group)
            calls.append({"group": number, "name": "ReduceScatter", "bytes": elements * FLOAT})
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    # The line is written at once, so that lines of the two ranks do not mix.
    sys.stdout.write(json.dumps({"pid": os.getpid(), "rank": rank, "calls": calls}) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, args=(int(sys.argv[1]),), nprocs=2)
