"""Measure the memory and the time of `cutrace merge` for many ranks, small and large.

    python benchmarks/merge.py [--ranks 1024] [--large 32] [--copies 1000] [--rounds 3] [--out results.json]

Merges four sets of simulated captures (simulate_ranks.py): ``--ranks`` small captures, ``--ranks`` / 16 small captures,
``--large`` captures with ``--copies`` repetitions of two training steps, and ``--large`` captures with ``--copies`` / 8
repetitions. Small captures are merged to a capture, to an archive for Perfetto and to one trace. Large captures are
merged to a capture. Each merge is a separate process. ``peak_rss_mib`` is the highest value of the rounds, and
``user_seconds`` the lowest. Files are in the page cache, in the folder TMPDIR. Prints one JSON object; ``--out`` writes
it to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convert import hardware
from simulate_ranks import Facts, simulate
from workloads import options

# The number of repetitions of the steps in a small capture.
_SMALL = 2


def measured(paths: list[Path], output: Path, rounds: int) -> dict[str, Any]:
    """Merge files into ``output`` in separate processes."""
    peaks, seconds = [], []
    for _ in range(rounds):
        command = [sys.executable, "-m", "cutrace", "merge", "--quiet", "-o", output, *paths]
        process = subprocess.Popen(list(map(str, command)))
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"merge failed: {status}")
        peaks.append(usage.ru_maxrss / 1024)
        seconds.append(usage.ru_utime)
    return {
        "ranks": len(paths),
        "source_mib": round(sum(path.stat().st_size for path in paths) / (1 << 20), 1),
        "output": output.suffix,
        "peak_rss_mib": round(max(peaks), 1),
        "user_seconds": round(min(seconds), 2),
    }


def measurements(folder: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each merge."""
    small = simulate(folder, args.ranks, _SMALL, Facts(), job="small")
    for paths in (small[: len(small) // 16], small):
        for ending in (".bin", ".tar", ".pftrace"):
            yield measured(paths, folder / f"all{ending}", args.rounds)
    for copies in (args.copies // 8, args.copies):
        large = simulate(folder, args.large, copies, Facts(), job=f"large-{copies}")
        yield measured(large, folder / "all.bin", args.rounds)


def main() -> None:
    parser = options.parser(__doc__, rounds=3, out=None)
    parser.add_argument("--ranks", type=int, default=1024, help="small captures (1024)")
    parser.add_argument("--large", type=int, default=32, help="large captures (32)")
    parser.add_argument("--copies", type=int, default=1000, help="repetitions of two steps in a large capture (1000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        merges = list(measurements(Path(folder), args))
    text = json.dumps({"benchmark": "merge", "hardware": hardware(os.cpu_count() or 1), "merges": merges}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
