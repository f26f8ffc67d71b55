"""Check rooflines of kernels with known operations. Points are compared with the known numbers and with Nsight
Compute's, and measured ceilings with documented ones.

    python benchmarks/roofline.py --out roofline.json [--no-ncu]

Profiles ``workloads/known_operations.py`` with the metrics of `flops`, and with the peaks for the ceilings if the GPU
has them. Prints each point and ceiling. Needs an NVIDIA GPU with readable counters, PyTorch, CuPy and, without
``--no-ncu``, ncu.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cutrace
from cutrace.extras.hardware.cupti import Cupti
from cutrace.extras.hardware.host import Chip, first_chip
from cutrace.extras.hardware.roofline import DRAM, KINDS
from cutrace.extras.hardware.sets import chosen
from workloads import options
from workloads.machine import facts

PROGRAM = [sys.executable, str(Path(__file__).parent / "workloads" / "known_operations.py")]
PEAK = ".peak_sustained_elapsed.per_second"


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr[-2000:])
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def metrics() -> tuple[list[str], list[str], int]:
    """Return the metrics of `flops`, the additional peaks of this GPU, and the number of passes of all."""
    cupti = Cupti.found()
    with Chip(cupti, first_chip(cupti) or sys.exit("there is no GPU")) as chip:
        names = chosen(chip, "flops")
        wanted = ["dram__bytes.sum", *(list(kind)[-1] for kind in KINDS.values())]
        peaks = [name + PEAK for name in wanted if chip.has(name + PEAK)]
        return names, peaks, chip.configure([*names, *peaks]).passes


def by_ncu(folder: Path, names: list[str]) -> list[tuple[str, dict[str, float]]]:
    """Return the last launch of each kernel under ncu."""
    report = folder / "report"
    run(
        ["ncu", "--metrics", ",".join(names), "--cache-control", "none", "--clock-control", "none", "-f", "-o",
         str(report), *PROGRAM]
    )  # fmt: skip
    sys.path += map(str, Path("/opt/nvidia/nsight-compute").glob("*/extras/python"))
    import ncu_report

    launches: dict[str, dict[str, float]] = {}
    for kernels in ncu_report.load_report(f"{report}.ncu-rep"):
        for kernel in kernels:
            values = {name: kernel[name].as_double() for name in names if name in kernel}
            launches[kernel.name(kernel.NameBase_DEMANGLED)] = values
    return list(launches.items())


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED)
    parser.add_argument("--no-ncu", action="store_true")
    args = parser.parse_args()
    names, peaks, passes = metrics()
    print(f"{len(names)} metrics, {len(peaks)} peaks, {passes} passes")
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "run.bin")
        output = run(
            ["cutrace", "profile", "-o", str(capture), "--metrics", ",".join([*names, *peaks]), "--format", "csv",
             "--", *PROGRAM]
        )  # fmt: skip
        (roof,) = cutrace.roofline(capture, args.out.with_suffix(".html"))
        with cutrace.load(capture) as trace:
            values = {row["name"]: row["value"] for row in trace.arrow("kernel_metrics").to_pylist()}
        theirs = [] if args.no_ncu else by_ncu(Path(folder), sorted({name for k in KINDS.values() for name in k}))
    known = json.loads([line for line in output.splitlines() if line.startswith('{"operations"')][-1])
    points = [point_of(part, operations, roof.points, theirs) for part, operations in known["operations"].items()]
    documented = {c.kind: c.rate for c in roof.ceilings if not c.measured}
    ceilings = [
        {
            "kind": each.kind,
            "measured": each.rate,
            "documented": documented.get(each.kind),
            "source": each.source,
            "unit": "bytes/s" if each.kind == DRAM else "operations/s",
        }
        for each in roof.ceilings
        if each.measured
    ]
    for point in points:
        print(json.dumps(point))
    for ceiling in ceilings:
        print(json.dumps(ceiling))
    result = {
        "benchmark": "roofline",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": facts(),
        "gpu": vars(roof.gpu),
        "passes": passes,
        "points": points,
        "ceilings": ceilings,
        "peaks": {name: values.get(name) for name in peaks},
        "notes": roof.notes,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


def point_of(part: str, operations: int, points: Any, theirs: list[tuple[str, dict[str, float]]]) -> dict[str, Any]:
    """Return the operations of a launch of a known kernel: the known number, the number of the roofline, and the number
    of ncu."""
    taken = [p for p in points if re.search(part, p.kernel)]
    # The name of a float32 product also contains the part that names the bfloat16 one.
    if part.startswith("gemm"):
        taken = [p for p in taken if p.kind.startswith("tensor")]
    counted = sum(p.operations / p.launches for p in taken)
    point: dict[str, Any] = {"kernel": part, "known": operations, "cutrace": counted}
    if taken:
        first = taken[0]
        point |= {"kind": first.kind, "rate": first.rate, "bytes": first.bytes / first.launches, "share": first.share,
                  "of": first.ceiling}  # fmt: skip
        values = next(
            (v for name, v in theirs if re.search(part, name) and (not first.kind or value(v, first.kind))), {}
        )
        point["ncu"] = value(values, first.kind) if first.kind else 0.0
    return point


def value(values: dict[str, float], kind: str) -> float:
    return sum(values.get(name, 0.0) * weight for name, weight in KINDS[kind].items())


if __name__ == "__main__":
    main()
