"""Measure the missing part of captures of killed processes. Programs on the fake GPU are killed at random moments.

Each program launches kernels as fast as a training loop, and counts them in memory that outlives it. After SIGKILL its
capture must be readable, without damage except for a torn last block. Only the end may be missing: the capture has all
launches from the first one on, without a gap. The missing part is measured as a number of kernels, and as the time from
the last kernel of the capture to the kill. Prints one JSON line. Needs a C++ compiler and the CUDA and CUPTI headers,
no GPU.

The missing part may be as long as the interval ``--flush-ms`` plus ``--slack``, the allowed time of a flush. A flush
delivers, decodes and writes records on a machine with busy cores.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from workloads import options

TESTS = Path(__file__).parents[1] / "tests"

PROGRAM = """
import mmap, struct, sys, time
import fakegpu
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 16)
fakegpu.init()
count = 0
while True:
    for _ in range(10):
        fakegpu.launch("step", grid=1 + count % 101, duration_ns=100)
        count += 1
        shared[:8] = struct.pack("<Q", count)
    time.sleep(0.0002)
"""


@dataclass(frozen=True)
class Kill:
    """One killed program: the kernels that it launched, the kernels in its capture, and the milliseconds from the last
    kernel in the capture to the kill."""

    after_ms: float
    launched: int
    recorded: int
    missing_ms: float
    torn_bytes: int


def kill_one(folder: Path, environment: dict[str, str], flush_ms: int, after: float) -> Kill:
    """Record a program, kill it ``after`` seconds after its first kernels, and read its capture."""
    notes = folder / "notes"
    notes.write_bytes(bytes(16))
    variables = environment | {"CUTRACE_OPTIONS": f"directory={folder};flush_ms={flush_ms}"}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(notes)], env=variables)
    with notes.open("r+b") as file, mmap.mmap(file.fileno(), 16) as shared:
        deadline = time.monotonic() + 60
        while struct.unpack("<Q", shared[:8])[0] == 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the program did not start to launch")
            time.sleep(0.001)
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        killed = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        process.wait()
        launched = struct.unpack("<Q", shared[:8])[0]
    (capture,) = folder.glob("*.bin")
    with cutrace.load(capture) as trace:
        damage = trace.quality.damage
        end = capture.stat().st_size
        if any(d.offset + d.size != end for d in damage):
            raise SystemExit(f"{capture} is damaged before its end: {damage}")
        kernels = np.sort(trace.kernels, order="correlation")
        # Launch n has a grid of 1 + n % 101 blocks. A gap means that a record was lost before the last flush.
        grids = trace.launches["grid_x"][kernels["launch"]]
        if (grids != 1 + np.arange(len(kernels)) % 101).any():
            raise SystemExit(f"{capture} lacks kernels between others")
        if counted := [loss for loss in trace.quality.losses if loss.reason != "not_closed"]:
            raise SystemExit(f"{capture} counts losses: {counted}")
        # Without a kernel, the missing time starts with the recording.
        last = int(kernels["end"].max()) if len(kernels) else int(trace.processes[0].info["started"])
        missing = (killed - last) / 1e6
        recorded, torn = len(kernels), sum(d.size for d in damage)
    if recorded > launched:
        raise SystemExit(f"{capture} holds {recorded} kernels of {launched}")
    for path in (capture, notes):
        path.unlink()
    return Kill(round(after * 1e3, 1), launched, recorded, round(missing, 2), torn)


def run(kills: int, flush_ms: int, seed: int, cache: Path) -> dict[str, Any]:
    """Kill ``kills`` programs and summarise them. Raises SystemExit when a capture has damage, gaps or losses."""
    sys.path.insert(0, str(TESTS))
    from cutrace.collect.library import collector_path
    from support.fakedriver import build

    environment = build(cache).environment() | {"CUDA_INJECTION64_PATH": str(collector_path())}
    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        results = [kill_one(Path(folder), environment, flush_ms, chosen.uniform(0.05, 1.5)) for _ in range(kills)]
    missing = [kill.missing_ms for kill in results]
    return {
        "benchmark": "crash_recovery",
        "kills": kills,
        "flush_ms": flush_ms,
        "readable": len(results),
        "missing_ms": {
            "mean": round(statistics.mean(missing), 1),
            "median": round(statistics.median(missing), 1),
            "p95": round(float(np.percentile(missing, 95)), 1),
            "max": round(max(missing), 1),
        },
        "launched": sum(kill.launched for kill in results),
        "missing_kernels": {
            "mean": round(statistics.mean(kill.launched - kill.recorded for kill in results), 1),
            "max": max(kill.launched - kill.recorded for kill in results),
        },
        "torn_last_blocks": sum(kill.torn_bytes != 0 for kill in results),
        "seed": seed,
        "machine": machine(),
    }


def machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    cpu = names[0] if names else platform.machine()
    return {"cpu": cpu, "cores": os.cpu_count(), "gpu": "none: the fake GPU of the tests"}


def main() -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flush-ms", type=int, default=100)
    parser.add_argument("--slack", type=float, default=100, metavar="MS", help="how long a flush may take")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        summary = run(arguments.kills, arguments.flush_ms, arguments.seed, Path(cache))
    print(json.dumps(summary))
    missing = summary["missing_ms"]["max"]
    if missing > arguments.flush_ms + arguments.slack:
        raise SystemExit(f"a capture lacks its last {missing:.0f} ms, with an interval of {arguments.flush_ms} ms")


if __name__ == "__main__":
    main()
