"""Measure the time and the memory of `cutrace stats`, `cutrace slice` and `cutrace diff` on a large capture.

    python benchmarks/stats.py --events 10000000 [--capture tests/data/torch_step.bin] [--out results.json]

Tiles a capture to ``--events`` rows as benchmarks/convert.py does. Each round runs each verb in a fresh process:
``stats`` with its usual reports; ``slice`` of the middle half of the time, into a capture; and ``diff`` with a second
capture of the same size, so that it reads twice as many rows. ``stats`` and ``slice`` are pinned to one core; ``diff``
may use two. ``seconds`` is the time from the start of the process to its end, including the start of the interpreter
and all imports. It is the median of the rounds, as are ``user_seconds`` and ``system_seconds``. ``peak_rss_mib`` is the
peak memory of all rounds. Files are in the page cache, in the folder TMPDIR. A first round is not counted.

The targets are less than 2 s and less than 500 MiB each. Prints one JSON line; ``--out`` adds it to the results in a
file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from convert import add_result, default_capture, hardware, tile
from workloads import options

SECONDS, MEMORY_MIB = 2.0, 500
_SLICE = "half.bin"


def run(arguments: list[str], folder: Path, *, cores: int) -> dict[str, float]:
    """Run one verb in a fresh process and delete its output. The verb has to end with status 0 or 1."""
    # The first round writes the bytecode of modules in a checkout. Installed modules already have it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    chosen = sorted(os.sched_getaffinity(0))[-cores:]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "cutrace", *arguments],
        stdout=subprocess.DEVNULL,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"cutrace {' '.join(arguments)} ended with status {process.returncode}")
    (folder / _SLICE).unlink(missing_ok=True)
    return {
        "seconds": seconds,
        "user_seconds": usage.ru_utime,
        "system_seconds": usage.ru_stime,
        "peak_rss_mib": usage.ru_maxrss / 1024,
    }


def verbs(source: Path, other: Path, folder: Path) -> dict[str, tuple[list[str], int]]:
    """Return the command line of each verb, and its number of cores."""
    with cutrace.load(source) as trace:
        span = trace.end - trace.start
    half = ["--start", f"{span // 4}ns", "--end", f"{3 * span // 4}ns", "-q", "-o", str(folder / _SLICE)]
    return {
        "stats": (["stats", str(source)], 1),
        "slice": (["slice", str(source), *half], 1),
        "diff": (["diff", str(source), str(other)], 2),
    }


def main() -> None:
    parser = options.parser(__doc__, events=10_000_000, capture=None, rounds=5, out=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        folder = Path(name)
        capture = args.capture or default_capture(folder)
        source, other = folder / "tiled.bin", folder / "other.bin"
        events = tile(capture, source, args.events)
        tile(capture, other, args.events)
        os.sync()  # otherwise the system writes the captures to the disk while they are read
        result: dict[str, Any] = {
            "benchmark": "stats",
            "capture": capture.name,
            "events": events,
            "capture_bytes": source.stat().st_size,
        }
        met = True
        for verb, (arguments, cores) in verbs(source, other, folder).items():
            rounds = [run(arguments, folder, cores=cores) for _ in range(args.rounds + 1)][1:]
            figures = {key: round(float(np.median([r[key] for r in rounds])), 3) for key in rounds[0]}
            figures["peak_rss_mib"] = round(max(r["peak_rss_mib"] for r in rounds), 1)
            result[verb] = {**figures, "seconds_all": [round(r["seconds"], 3) for r in rounds]}
            met = met and figures["seconds"] < SECONDS and figures["peak_rss_mib"] < MEMORY_MIB
        result |= {"targets_met": met, "hardware": hardware() | {"cores_used": 2}}
    print(json.dumps(result))
    if args.out:
        add_result(args.out, result)


if __name__ == "__main__":
    main()
