"""Compare the limiters of `cutrace why` with the leading rule of Nsight Compute on kernels of PyTorch and Triton.

    python benchmarks/why_ncu.py --out why.json [--capture run.bin --details ncu.csv]

Runs ``workloads/twenty_kernels.py`` under `cutrace profile --nvtx step2` and under ncu with its rules, both with
flushed caches. Runs nothing if the capture and ncu's details are given. For each launch it compares the limiter with
the result of ncu's rule SOLBottleneck. The output has both, and the values of the launch for
tests/extras/hardware/test_rules.py. Needs an NVIDIA GPU, ncu, PyTorch and Triton, or the two files.
"""

from __future__ import annotations

import csv
import datetime
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import cutrace
from cutrace.extras.hardware.facts import Facts, kernel_facts
from cutrace.extras.hardware.kernel_metrics import profiled
from cutrace.extras.hardware.rules import findings
from metrics_ncu import run
from workloads import options

PROGRAM = [sys.executable, str(Path(__file__).parent / "workloads" / "twenty_kernels.py")]
SECTIONS = ("SpeedOfLight", "Occupancy", "LaunchStats", "WarpStateStats")


def record(folder: Path) -> tuple[Path, Path]:
    capture, details = folder / "run.bin", folder / "ncu.csv"
    run(["cutrace", "profile", "-o", str(capture), "--nvtx", "step2", "--", *PROGRAM])
    sections = [word for section in SECTIONS for word in ("--section", section)]
    text, _ = run(
        ["ncu", *sections, "--page", "details", "--csv", "--nvtx", "--nvtx-include", "step2/", "--cache-control", "all",
         "--clock-control", "none", *PROGRAM]
    )  # fmt: skip
    details.write_text(text)
    return capture, details


def by_ncu(details: Path) -> list[tuple[str, str]]:
    """The kernel and the sentences of the leading rule, for each launch."""
    lines = details.read_text().splitlines(keepends=True)
    rows = csv.DictReader(line for line in lines if not line.startswith(("==", "{")))
    launches: dict[int, tuple[str, str]] = {}
    for row in rows:
        number = int(row["ID"])
        launches.setdefault(number, (row["Kernel Name"], ""))
        if row["Rule Name"] == "SOLBottleneck":
            launches[number] = (row["Kernel Name"], row["Rule Description"])
    return [launches[number] for number in sorted(launches)]


def limit(text: str) -> str:
    """The result of ncu's rule: a memory unit, compute, balanced, latency or small grid."""
    if "too small to fill" in text:
        return "small grid"
    if "latency issues" in text:
        return "latency"
    if "well-balanced" in text:
        return "balanced"
    if unit := re.search(r"identify the (\w+) bottleneck|analyzing (\w+) in the Memory", text):
        return str(unit[1] or unit[2])
    if "Compute is more heavily" in text or "in the Compute Workload Analysis" in text:
        return "compute"
    raise ValueError(f"unknown text of ncu: {text}")


def by_cutrace(capture: Path) -> list[Facts]:
    """The facts of each launch, in the order of the program."""
    with cutrace.load(capture) as trace:
        rooms = {(facts.symbol, facts.shape): facts for facts in kernel_facts(trace)}
        launches = []
        for launch in profiled(trace, str):
            row = trace.launches[launch.launch]
            grid, block = (tuple(int(row[f"{of}_{axis}"]) for axis in "xyz") for of in ("grid", "block"))
            (facts,) = [
                each for (symbol, shape), each in rooms.items()
                if symbol == launch.kernel and shape and (shape.grid, shape.block) == (grid, block)
                and shape.shared == int(row["static_shared"]) + int(row["dynamic_shared"])
            ]  # fmt: skip
            launches.append((launch, facts))
    made = []
    for launch, facts in launches:
        made.append(Facts(facts.kernel, launch.values, facts.shape, facts.room, facts.gpu, facts.caches))
    return made


def shown(facts: Facts) -> dict[str, Any]:
    assert facts.shape is not None
    assert facts.room is not None
    return {
        "grid": facts.shape.grid, "block": facts.shape.block, "registers": facts.shape.registers,
        "shared": facts.shape.shared, "multiprocessors": facts.room.multiprocessors, "blocks": facts.room.blocks,
        "percent": facts.room.percent, "waves": round(facts.room.waves, 6), "limits": dict(facts.room.limits),
    }  # fmt: skip


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED)
    parser.add_argument("--capture", type=Path)
    parser.add_argument("--details", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.capture is None or args.details is None:
            args.capture, args.details = record(Path(folder))
        ours, theirs = by_cutrace(args.capture), by_ncu(args.details)
    metrics = sorted({name for facts in ours for name in facts.values})
    launches = []
    equal = 0
    for facts, (name, text) in zip(ours, theirs, strict=True):
        if facts.kernel.rpartition("::")[2] not in name:
            sys.exit(f"the launches differ: {facts.kernel} and {name}")
        limiter = findings(facts)[0]
        said = limit(text)
        same = said == limiter.rule.removesuffix("-bound") or (
            said == "compute"
            and limiter.rule.endswith("-bound")
            and limiter.rule[:-6] not in ("DRAM", "L2", "L1", "latency")
        )
        equal += same
        if not same:
            print(f"{facts.kernel}: {limiter.sentence}; ncu: {said}")
        values = [facts.values.get(metric) for metric in metrics]
        rounded = [None if value is None else float(f"{value:.6g}") for value in values]
        launches.append(
            {"kernel": facts.kernel, "ncu": said, "limiter": limiter.rule, **shown(facts), "values": rounded}
        )
    print(f"{equal} of {len(launches)} limiters agree with ncu")
    result = {
        "benchmark": "why_ncu", "date": datetime.date.today().isoformat(), "gpu": ours[0].gpu.name,
        "capability": ours[0].gpu.capability, "caches": ours[0].caches, "equal": equal, "metrics": metrics,
        "launches": launches,
    }  # fmt: skip
    lines = json.dumps(result | {"launches": []})[:-2]
    rows = ",\n".join(json.dumps(launch) for launch in launches)
    args.out.write_text(f"{lines}\n{rows}\n]}}\n")


if __name__ == "__main__":
    main()
