"""Compare the report `step_sum` with the times that a training loop measures itself.

    python benchmarks/step_sum.py -o step_sum.json [--steps 200] [--ranks 1]

A loop trains a small transformer in PyTorch, with a GPU for each rank, under `cutrace record --kinds
default,environment`. It times each step with its own clock. For each step, the parts of `step_trace` have to add up to
its wall clock exactly, and the wall clock has to be within 1 % of the time that the loop measured.

In two variants each step also sleeps, or copies during a pause of the computation. The parts `host` and `copies` must
have at least the added time. The upper limit is the sum of the added time and the same part of the plain variant, plus
10 % and 100 us a step. The variant `async` does not synchronise in its steps: the sum of their wall clocks has to be
within 1 % of the time of the loop on the host. The result also has the energy of the steps, and the energy of NVML's
counter. Needs an NVIDIA GPU for each rank, and PyTorch. Exit status 1 when a condition does not hold.
"""

from __future__ import annotations

import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine

import cutrace
from cutrace.analysis.statistics.steps import PARTS

VARIANTS = ("plain", "sleep", "copy", "async")
#: The part with the added time of a variant.
GROWS = {"sleep": "host", "copy": "copies"}
MOST_ERROR = 0.01
MOST_GROWTH = 1.10
MOST_MORE_NS = 100_000


def record(folder: Path, variant: str, steps: int, ranks: int) -> tuple[Path, list[dict[str, Any]]]:
    """Record the loop. Returns the capture and the measurements of each rank."""
    capture = folder / f"{variant}.bin"
    program = [str(Path(__file__).parent / "workloads" / "steps.py"), variant, str(steps)]
    python = [sys.executable]
    if ranks > 1:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, "-m", "cutrace", "record", "-o", str(capture), "--kinds", "default,environment", "--"]
    done = subprocess.run([*command, *python, *program], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the recording of {variant} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    measured = [json.loads(line.partition("measured ")[2]) for line in done.stdout.splitlines() if "measured {" in line]
    if len(measured) != ranks:
        sys.exit(f"{len(measured)} of {ranks} ranks measured their steps:\n{done.stdout[-3000:]}")
    return capture, measured


def compare(capture: Path, measured: dict[str, Any], variant: str) -> dict[str, Any]:
    """Compare the reports on the steps of one rank with the measurements of the rank."""
    with cutrace.load(capture) as trace:
        (process,) = [p for p in trace.processes if p.pid == measured["pid"]]
        told = f"{process.name} ({process.pid})"
        report = cutrace.stats(trace, "step_trace", name="step *")
        names = [column.name for column in report.columns]
        rows = [dict(zip(names, row, strict=True)) for row in report.rows]
        rows = [row for row in rows if row["process"] == told]
        missing = list(trace.quality.sentences())
    walls = [row["wall clock"] for row in rows]
    sums = [sum(row[part] for part in PARTS) for row in rows]
    joules = [row["joules"] for row in rows if row["joules"] is not None]
    result: dict[str, Any] = {
        "variant": variant,
        "gpus": sorted({row["GPU"] for row in rows}),
        "steps": len(rows),
        "measured_steps": len(measured["steps"]),
        "exact_sums": sum(a == b for a, b in zip(sums, walls, strict=True)),
        "wall_ns": sum(walls),
        "measured_ns": measured["loop"] if variant == "async" else sum(measured["steps"]),
        "parts_ns": {part: sum(row[part] for row in rows) for part in PARTS},
        "behind_ns": round(statistics.mean(row["GPU behind"] for row in rows)),
        "joules": round(sum(joules), 3) if joules else None,
        "joules_known": len(joules),
        "nvml_joules": measured["joules"],
        "missing": missing,
    }
    if variant != "async" and len(walls) == len(measured["steps"]):
        errors = [abs(wall / own - 1) for wall, own in zip(walls, measured["steps"], strict=True)]
        result |= {"median_error": round(statistics.median(errors), 6), "largest_error": round(max(errors), 6)}
    if variant in GROWS:
        result["added_ns"] = sum(measured["added"])
    return result


def faults(run: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """Sentences on the conditions of the docstring that do not hold."""
    found = []
    name = run["variant"]
    if run["steps"] != run["measured_steps"]:
        found.append(f"{name}: {run['steps']} of {run['measured_steps']} steps are in the report")
    if run["exact_sums"] != run["steps"]:
        found.append(f"{name}: the parts of {run['steps'] - run['exact_sums']} steps do not add up")
    if abs(run["wall_ns"] / run["measured_ns"] - 1) > MOST_ERROR:
        found.append(f"{name}: wall clock {run['wall_ns']} ns, measured {run['measured_ns']} ns")
    if run.get("median_error", 0) > MOST_ERROR:
        found.append(f"{name}: the wall clock of a step is {run['median_error']:.1%} off")
    if name in GROWS:
        part = GROWS[name]
        least = run["added_ns"]
        # The measured time of a copy includes the start of the copy, because events measure it.
        if run["parts_ns"][part] < least * (2 - MOST_GROWTH):
            found.append(f"{name}: {part} is {run['parts_ns'][part]} ns, although {least} ns were added")
        most = (least + plain["parts_ns"][part]) * MOST_GROWTH + MOST_MORE_NS * run["steps"]
        if run["parts_ns"][part] > most:
            found.append(f"{name}: {part} is {run['parts_ns'][part]} ns, and {most:.0f} ns are explained")
    return found


def main() -> None:
    parser = options.parser(__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the file for the result (JSON)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each variant (%(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="processes with a GPU each (%(default)s)")
    args = parser.parse_args()
    runs = []
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        plain: list[dict[str, Any]] = []
        for variant in VARIANTS:
            capture, measured = record(Path(folder), variant, args.steps, args.ranks)
            compared = [compare(capture, of_rank, variant) for of_rank in measured]
            plain = plain or compared
            for run, without in zip(compared, plain, strict=True):
                wrong += faults(run, without)
            runs += compared
    result = {
        "benchmark": "step_sum", "steps": args.steps, "ranks": args.ranks, "machine": machine.facts(), "runs": runs,
        "wrong": wrong, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for run in runs:
        print(run)
    for sentence in wrong:
        print(sentence)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
