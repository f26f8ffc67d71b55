"""Use one GPU from three processes: a parent and two spawned workers. Each process has separate NVTX ranges."""

from __future__ import annotations

import json
import os

import torch
import torch.multiprocessing as multiprocessing
from torch.cuda import nvtx

WORKERS = 2
PRODUCTS = 5
SIZE = 512


def multiply(name: str) -> None:
    a = torch.ones(SIZE, SIZE, device="cuda")
    for number in range(PRODUCTS):
        with nvtx.range(f"{name}: product {number}"):
            a = (a @ a) / SIZE
    torch.cuda.synchronize()
    print(json.dumps({"pid": os.getpid(), "name": name, "products": PRODUCTS, "value": a[0, 0].item()}), flush=True)


def worker(index: int) -> None:
    multiply(f"worker {index}")


def main() -> None:
    multiply("parent")
    multiprocessing.spawn(worker, nprocs=WORKERS)


if __name__ == "__main__":
    main()
