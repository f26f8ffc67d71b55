"""Replays CUDA graphs until its stdin is closed: one graph that is captured first, and one that is captured again every
50 steps.

Prints the number of steps, and the number of steps with a wrong sum."""

import json
import select
import sys

import torch


def captured(x: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            x += 1
    return graph


x, y = torch.zeros(256, device="cuda"), torch.zeros(256, device="cuda")
old = captured(x)
steps = wrong = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    if steps % 50 == 0:
        new = captured(y)
    old.replay()
    new.replay()
    steps += 1
    wrong += float(x[0]) != 20.0 * steps or float(y[-1]) != 20.0 * steps
    if steps == 20:
        print("ready", flush=True)
print(json.dumps({"steps": steps, "wrong": wrong}))
