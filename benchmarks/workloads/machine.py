"""Describes the machine of a result."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def facts() -> dict[str, object]:
    """Return the hardware, driver and system of this machine, for the head of a result file."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    names = ("name", "driver_version", "clocks.max.sm", "clocks.max.mem", "memory.total")
    return {
        "gpu": dict(zip(names, _nvidia_smi(names), strict=False)),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _nvidia_smi(names: tuple[str, ...]) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [value.strip() for value in answer.splitlines()[0].split(",")] if answer else []
