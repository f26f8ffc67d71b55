"""Run work on 16 streams of two priorities. The streams wait for each other in a ring. NVTX ranges name the work."""

from __future__ import annotations

import json

import torch
from torch.cuda import nvtx

STREAMS, ROUNDS = 16, 3
WIDTH = 512


def main() -> None:
    streams = [torch.cuda.Stream(priority=-(number % 2)) for number in range(STREAMS)]
    values = [torch.full((WIDTH, WIDTH), 1 / WIDTH, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for number in range(ROUNDS):
        with nvtx.range(f"round {number}"):
            for at, stream in enumerate(streams):
                with nvtx.range(f"stream {at}"), torch.cuda.stream(stream):
                    product = values[at] @ values[at]
                    stream.wait_stream(streams[at - 1])
                    values[at] = torch.relu(product + values[at - 1])
    torch.cuda.synchronize()
    print(json.dumps({"streams": STREAMS, "rounds": ROUNDS, "sum": float(values[0].sum())}))


if __name__ == "__main__":
    main()
