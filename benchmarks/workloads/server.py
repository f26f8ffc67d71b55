"""A process that has imported PyTorch and forks one child for each measurement.

Each child initialises CUDA, because this process never does. The children share only the imports. Reads JSON requests,
one on each line (``tool``, ``settings``, ``workloads``, ``scale``, ``stop``, ``library``, ``launches``, ``warm_up``,
``threads``). Answers with the child's JSON lines, and a last one with its exit status.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tools
import torch
import torch_workloads


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def peak_memory() -> int:
    """Return the peak memory (bytes) of this process."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024


def measure(request: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stop = tools.start(request["tool"], request["settings"], Path(folder))
        for name in request["workloads"]:
            say(asdict(torch_workloads.WORKLOADS[name](request["scale"])))
        for threads in request.get("threads", ()):
            timing = torch_workloads.launch_loop(
                Path(request["library"]), threads, request["launches"], request["warm_up"]
            )
            say(asdict(timing))
        kernels = stop() if request.get("stop") else None
    say(
        {
            "exit_boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            "peak_memory": peak_memory(),
            "kernels_seen": kernels,
        }
    )
    if request["tool"] in ("torch_profiler", "proton"):
        # Skips the exit handlers of the tools, because they would write the collected data.
        os._exit(0)


def versions() -> dict[str, str]:
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}


def preload() -> None:
    """Import the children's modules without initialising CUDA, because CUDA does not work after a fork."""
    # Optimizers import torch._dynamo in their first step.
    for module in ("torch._dynamo", "torch.profiler", "triton.profiler", "cutrace"):
        importlib.import_module(module)
    from cutrace.collect import cuda

    if cuda.initialised():
        sys.exit("the imports have initialised CUDA: no child of this process can use it")


def main() -> None:
    preload()
    say({"versions": versions()})
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            measure(json.loads(line))
            return
        say({"pid": child})
        _, status = os.waitpid(child, 0)
        say(
            {
                "status": os.waitstatus_to_exitcode(status),
                "ended_boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            }
        )


if __name__ == "__main__":
    main()
