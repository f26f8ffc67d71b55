"""Collectives of known sizes on all GPUs of this machine: for benchmarks/collectives.py.

    torchrun --nproc-per-node 2 collective_calls.py

Each phase is an NVTX range with its name. In a phase of one collective, the ranks make the same call again and again,
and CUDA events time all calls together. Other phases train: DDP with the group of all ranks, DDP with a separate group,
and FSDP with a mesh of all ranks. Each rank prints a line of JSON: its rank, and for each phase the collectives with
their calls, bytes as NCCL counts them, and seconds if they were timed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MIB = 1 << 20
SIZES = (1, 16, 64, 256)
CALLS, WARM_UP = 20, 5
STEPS, WIDTH, LAYERS = 3, 1024, 4

Phases = dict[str, dict[str, dict[str, float]]]


def collectives(mib: int, ranks: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    """For each collective, the bytes of a call as NCCL counts them, and the call. The larger buffer has ``mib`` MiB."""
    whole = torch.ones(mib * MIB // 4, device="cuda")
    part = torch.ones(mib * MIB // 4 // ranks, device="cuda")
    size, share = whole.nbytes, part.nbytes
    return {
        "all-reduce": (size, lambda: dist.all_reduce(whole)),
        "all-gather": (share, lambda: dist.all_gather_into_tensor(whole, part)),
        "reduce-scatter": (share, lambda: dist.reduce_scatter_tensor(part, whole)),
        "broadcast": (size, lambda: dist.broadcast(whole, src=0)),
    }


def timed(name: str, size: int, call: Callable[[], Any], phases: Phases, mib: int) -> None:
    """Make the calls of one phase."""
    for _ in range(WARM_UP):
        call()
    dist.barrier()
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    phase = f"{name} {mib} MiB"
    with torch.cuda.nvtx.range(phase):
        first.record()
        for _ in range(CALLS):
            call()
        last.record()
        torch.cuda.synchronize()
    seconds = first.elapsed_time(last) / 1000
    phases[phase] = {name: {"calls": CALLS, "bytes": CALLS * size, "seconds": seconds}}


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(LAYERS)))


def train(model: nn.Module, phase: str) -> None:
    given = torch.ones(64, WIDTH, device="cuda")
    model(given).sum().backward()
    dist.barrier()
    torch.cuda.synchronize()
    with torch.cuda.nvtx.range(phase):
        for _ in range(STEPS):
            model(given).sum().backward()
        torch.cuda.synchronize()


def train_with_ddp(phase: str, group: dist.ProcessGroup | None, device: int, phases: Phases) -> None:
    model = nn.parallel.DistributedDataParallel(layers(), device_ids=[device], process_group=group)
    size = sum(parameter.nbytes for parameter in model.parameters())
    train(model, phase)
    # DDP chooses the number of calls.
    phases[phase] = {"all-reduce": {"bytes": STEPS * size}}


class Counted:
    """Counts the calls of FSDP in place of two functions of torch.distributed."""

    def __init__(self) -> None:
        self.sizes: dict[str, list[int]] = {"all-gather": [], "reduce-scatter": []}
        self.gather = dist.all_gather_into_tensor
        self.scatter = dist.reduce_scatter_tensor
        dist.all_gather_into_tensor = self.all_gather
        dist.reduce_scatter_tensor = self.reduce_scatter

    def all_gather(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        self.sizes["all-gather"].append(input_tensor.nbytes)
        return self.gather(output_tensor, input_tensor, *args, **named)

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, *args: Any, **named: Any) -> Any:
        self.sizes["reduce-scatter"].append(output.nbytes)
        return self.scatter(output, input, *args, **named)


def train_with_fsdp(phase: str, ranks: int, phases: Phases) -> None:
    counted = Counted()
    mesh = init_device_mesh("cuda", (1, ranks), mesh_dim_names=("replicated", "sharded"))
    model = layers()
    for layer in model:
        fully_shard(layer, mesh=mesh["sharded"])
    fully_shard(model, mesh=mesh["sharded"])
    before = {name: len(sizes) for name, sizes in counted.sizes.items()}
    train(model, phase)
    phases[phase] = {}
    for name, sizes in counted.sizes.items():
        # train() makes one step more than it counts.
        in_all = sizes[before[name] :]
        step, rest = divmod(len(in_all), STEPS + 1)
        assert rest == 0, f"{len(in_all)} calls of {name} in {STEPS + 1} steps"
        of_steps = in_all[step:]
        phases[phase][name] = {"calls": len(of_steps), "bytes": sum(of_steps)}


def main() -> None:
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device(device))
    ranks = dist.get_world_size()
    phases: Phases = {}
    for mib in SIZES:
        for name, (size, call) in collectives(mib, ranks).items():
            timed(name, size, call, phases, mib)
    train_with_ddp("DDP", None, device, phases)
    own = dist.new_group(list(range(ranks)))
    train_with_ddp("DDP with its own group", own, device, phases)
    train_with_fsdp("FSDP", ranks, phases)
    # The line is written at once, so that lines of two ranks do not mix.
    sys.stdout.write("measured " + json.dumps({"rank": dist.get_rank(), "ranks": ranks, "phases": phases}) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
