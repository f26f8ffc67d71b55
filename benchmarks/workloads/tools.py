"""The tools that the overhead benchmark compares, as Python programs use them."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def start(tool: str, settings: dict[str, Any], folder: Path) -> Callable[[], int]:
    """Start a tool in this process, before its first call of CUDA.

    Returns a function that ends the collection and returns the number of recorded kernels. With some tools this takes
    long, so a process that needs only the times does not call it.
    """
    if tool in ("torch_profiler", "proton"):
        # These tools usually start when CUDA is already in use.
        torch.zeros(1, device="cuda")
        return _torch_profiler(folder) if tool == "torch_profiler" else _proton(folder)
    if tool == "cutrace":
        import cutrace

        cutrace.arm(settings["capture"], **settings["options"])
    elif tool == "late":
        torch.zeros(1, device="cuda")
        return _late(settings)
    elif tool == "null_late":
        torch.zeros(1, device="cuda")
        os.environ.update(settings["environment"])
        ctypes.CDLL(settings["library"]).cutrace_null_start()
    elif tool in ("null", "collector"):
        os.environ.update(settings["environment"])
    return lambda: 0


def _late(settings: dict[str, Any]) -> Callable[[], int]:
    """Start cutrace in the middle of a program."""
    import cutrace

    recording = cutrace.record(settings["capture"], **settings["options"])
    recording.__enter__()

    def stop() -> int:
        recording.__exit__(None, None, None)
        with cutrace.load(settings["capture"]) as trace:
            return trace.count("kernels")

    return stop


def _torch_profiler(folder: Path) -> Callable[[], int]:
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CUDA])
    profiler.__enter__()

    def stop() -> int:
        profiler.__exit__(None, None, None)
        profiler.export_chrome_trace(str(folder / "torch.json"))
        return _count(folder / "torch.json", lambda event: event.get("cat") == "kernel")

    return stop


def _proton(folder: Path) -> Callable[[], int]:
    import triton.profiler as proton

    session = proton.start(str(folder / "proton"), backend="cupti", data="trace")

    def stop() -> int:
        proton.finalize(session, "chrome_trace")
        return _count(folder / "proton.chrome_trace", lambda event: event.get("ph") == "X")

    return stop


def _count(path: Path, chosen: Callable[[dict[str, Any]], bool]) -> int:
    return sum(1 for event in json.loads(path.read_text())["traceEvents"] if chosen(event))
