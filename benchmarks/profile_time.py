"""Compare the times of `cutrace profile` and Nsight Compute, for the same program, launches and metrics.

    python benchmarks/profile_time.py --out profile_time.json [--rounds 5] [--budget 300]

Counts the metrics of the set `why` for one launch of a softmax, and for all of its twenty launches. Both tools flush
the caches. In each round, ncu runs first, then `cutrace profile`, then `cutrace profile --recorded` with an earlier
capture of `cutrace record`, then `cutrace profile --timeline`, which records a first run. Also gives the time of the
program alone and under `cutrace record`. Needs an NVIDIA GPU, ncu and PyTorch.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from metrics_ncu import run
from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine

from cutrace.extras.hardware.cupti import Cupti
from cutrace.extras.hardware.host import Chip, first_chip
from cutrace.extras.hardware.sets import chosen

PROGRAM = [sys.executable, str(Path(__file__).parent / "workloads" / "softmax_steps.py")]
KERNEL = "SoftMax"
#: The launches that are counted.
LAUNCHES = (1, 20)


def commands(launches: int, names: list[str], folder: Path) -> dict[str, list[str]]:
    """The command of each tool."""
    ours = ["cutrace", "profile", "--metrics", ",".join(names), "--kernel", f"/{KERNEL}/", "--count", str(launches)]
    ours += ["--caches", "flush", "--format", "csv", "-o", str(folder / "profiled.bin")]
    theirs = ["ncu", "--metrics", ",".join(names), "--kernel-name", f"regex:{KERNEL}", "--launch-count", str(launches)]
    theirs += ["--cache-control", "all", "--clock-control", "none", "--csv"]
    return {
        "ncu": [*theirs, *PROGRAM],
        "cutrace": [*ours, "--", *PROGRAM],
        "cutrace --recorded": [*ours, "--recorded", str(folder / "run.bin"), "--", *PROGRAM],
        "cutrace --timeline": [*ours, "--timeline", "--", *PROGRAM],
    }


def counted(output: str) -> int:
    """The number of values that a tool printed as CSV."""
    return sum(KERNEL in line for line in output.splitlines())


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED, rounds=5, budget=10_000.0)
    args = parser.parse_args()
    end = time.monotonic() + args.budget
    cupti = Cupti.found()
    with Chip(cupti, first_chip(cupti) or sys.exit("there is no GPU")) as chip:
        names = chosen(chip, "why")
        passes = chip.configure(names).passes
    run(PROGRAM)
    _, alone = run(PROGRAM)
    result = {
        "benchmark": "profile_time", "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(), "metrics": len(names), "passes": passes, "seconds_alone": round(alone, 2),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _, recording = run(["cutrace", "record", "-o", str(folder / "run.bin"), "--", *PROGRAM])
        result["seconds_recorded"] = round(recording, 2)
        for launches in LAUNCHES:
            seconds: dict[str, list[float]] = {}
            for _ in range(args.rounds):
                if time.monotonic() > end:
                    break
                for tool, command in commands(launches, names, folder).items():
                    output, took = run(command)
                    if counted(output) < launches * len(names):
                        sys.exit(f"{tool} has {counted(output)} values:\n{output[-2000:]}")
                    seconds.setdefault(tool, []).append(round(took, 2))
            medians = {tool: statistics.median(times) for tool, times in seconds.items()}
            result[f"launches_{launches}"] = {"seconds": seconds, "median": medians}
            print(launches, medians, seconds, flush=True)
            args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
