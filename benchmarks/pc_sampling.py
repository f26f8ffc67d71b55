"""Check that PC sampling finds a known hot loop and its stall reason, and measure its cost.

    python benchmarks/pc_sampling.py --out pc_sampling.json [--launches 500] [--rounds 3] [--periods default,8192]

Comments in hot_loops.cu give the hot line of each of three kernels, and the stall reason there. Each program runs under
`cutrace record`, and under `cutrace record --sample pc` with each period. Of several rounds, the shortest launch
counts. "seconds" is the time of the whole command, and "gpu_mib" the memory in use on the GPU. A fourth program
launches small kernels, which gives the cost of a launch. Needs an NVIDIA GPU with readable counters, and nvcc.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine

import cutrace
from cutrace.extras.hardware.sources import sampled_lines

SOURCE = Path(__file__).parent / "native" / "hot_loops.cu"
SMALL_LAUNCHES = 200_000


def expected() -> dict[str, tuple[int, str]]:
    """Return the hot line of each program, and its stall reason."""
    marks = ((number, re.search(r"// hot: (\w+) (\w+)", line)) for number, line in enumerate(SOURCE.open(), 1))
    return {mark[1]: (number, mark[2]) for number, mark in marks if mark}


def run(program: Path, which: str, launches: int, period: str | None, folder: Path) -> dict[str, Any]:
    """Run a program once under `cutrace record`. Returns the nanoseconds of a launch, and figures of the samples."""
    capture = folder / "run.bin"
    options = [] if period is None else ["--sample", "pc" if period == "default" else f"pc={period}"]
    command = ["cutrace", "record", "-o", str(capture), *options, "--", str(program), which, str(launches)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    ns, mib = done.stdout.split()
    result: dict[str, Any] = {
        "ns": float(ns), "gpu_mib": int(mib), "seconds": round(seconds, 2), "said": done.stderr.splitlines(),
    }  # fmt: skip
    with cutrace.load(capture) as trace:
        result["kernels"] = len(trace.kernels)
        if period is not None:
            result |= hottest_line(trace)
    return result


def hottest_line(trace: cutrace.Trace) -> dict[str, Any]:
    """Return the hottest line of a capture, its most frequent stall reason, and the number of its samples."""
    lines = sampled_lines(trace)
    result: dict[str, Any] = {
        "rows": len(trace.pc_samples),
        "samples": sum(line.samples for line in lines),
        "capture_bytes": trace.size,
        "lost": {f"{loss.meaning} ({loss.detail})": loss.count for loss in trace.named_losses},
    }
    if lines:
        hottest = lines[0]
        result |= {
            "file": Path(hottest.place.file).name, "line": hottest.place.line, "share": round(hottest.share, 4),
            "reason": hottest.stall, "reasons": hottest.stalls,
        }  # fmt: skip
    return result


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED, launches=500, rounds=3, arch="native")
    parser.add_argument("--periods", type=options.words, default=["default", "8192"])
    args = parser.parse_args()
    known, results = expected(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "hot_loops"
        subprocess.run(
            ["nvcc", "-O2", "-std=c++17", f"-arch={args.arch}", "-lineinfo", "-o", program, SOURCE], check=True
        )
        for which in (*known, "small"):
            launches = SMALL_LAUNCHES if which == "small" else args.launches
            best: dict[str | None, dict[str, Any]] = {}
            for _ in range(args.rounds):
                for period in (None, *args.periods):
                    done = run(program, which, launches, period, folder)
                    if period not in best or done["ns"] < best[period]["ns"]:
                        best[period] = done
            base = best.pop(None)
            of_program: dict[str, Any] = {"launches": launches, "plain": base}
            for period, done in best.items():
                done["overhead"] = round(done["ns"] / base["ns"] - 1, 4)
                if which in known:
                    line, reason = known[which]
                    found = done.get("file"), done.get("line"), done.get("reason"), done["kernels"]
                    done["right"] = found == (SOURCE.name, line, reason, base["kernels"])
                of_program[period or ""] = done
                print(which, period, {key: value for key, value in done.items() if key != "said"}, flush=True)
            results[which] = of_program
    result = {
        "benchmark": "pc_sampling", "machine": machine.facts(), "rounds": args.rounds,
        "expected": known, "programs": results,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [
        f"{which} {p}"
        for which, of in results.items()
        for p, done in of.items()
        if p != "launches" and done.get("right") is False
    ]
    sys.exit(f"not found: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
