"""Check that counts of instructions by line match a known program, and measure the cost of the counts.

    python benchmarks/instruction_lines.py --out instruction-lines.json [--torch] [--ncu]

``workloads/known_lines.cu`` has lines with known numbers of executions. It runs alone, under `cutrace profile --lines`,
and under `cutrace profile` with the GPU's counters of the same instructions. The sums of the two profiles are compared.
``--torch`` also compares the sums for ``workloads/eight_kernels.py`` (PyTorch, CuPy and Triton). ``--ncu`` adds Nsight
Compute's counts by line. Needs an NVIDIA GPU and nvcc.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine

import cutrace

SOURCE = Path(__file__).parent / "workloads" / "known_lines.cu"
EIGHT = [sys.executable, str(Path(__file__).parent / "workloads" / "eight_kernels.py")]
WARPS, TIMES, LAUNCHES = 64 * 256 // 32, 1000, 3
INSTRUCTIONS, THREADS = "smsp__sass_inst_executed", "smsp__sass_thread_inst_executed"
#: The GPU's counters of the same instructions.
COUNTERS = {INSTRUCTIONS: "smsp__inst_executed.sum", THREADS: "smsp__thread_inst_executed.sum"}
#: For each marked line, the warps that execute it, and the executing threads of each warp.
KNOWN = {"loop": (WARPS, 32), "divergence": (WARPS, 8), "function": (WARPS // 4, 32)}


def run(command: list[str], limit: int = 150) -> dict[str, Any]:
    """Run a command. Returns its output, its status (None if it was killed), and its time in seconds."""
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        status, output, errors = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        status, output, errors = None, str(error.stdout or ""), str(error.stderr or "")
    took = time.monotonic() - began
    print(f"{' '.join(command)[:150]}: status {status}, {took:.1f} s\n{errors[-1500:]}", file=sys.stderr)
    return {"status": status, "seconds": took, "output": output, "errors": errors[-1500:]}


def same(alone: dict[str, Any], under: dict[str, Any]) -> bool:
    """Whether all runs of a program computed the same results as alone."""
    results = [re.findall(r"result.*?[}\n]", done["output"]) for done in (alone, under)]
    return len(results[1]) > 1 and set(results[0]) == set(results[1])


def profiled(capture: Path, program: list[str], *options: str) -> dict[str, Any]:
    return run(["cutrace", "profile", "-o", str(capture), *options, "--format", "csv", "--", *program])


def by_line(capture: Path) -> dict[str, dict[tuple[str, int], float]]:
    """Return the values of each metric by file and line."""
    values: dict[str, dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
    with cutrace.load(capture) as trace:
        for row in trace.arrow("instruction_metrics").to_pylist():
            values[row["name"]][row["file"] or "", row["line"]] += row["value"]
    return values


def totals(lines: Path, counters: Path) -> list[dict[str, Any]]:
    """The sums over all instructions, with the counters of the same launches, by function and by kernel."""
    with cutrace.load(lines) as trace:
        mine = trace.arrow("instruction_metrics").to_pylist()
    with cutrace.load(counters) as trace:
        theirs = trace.arrow("kernel_metrics").to_pylist()
        kernels = {row["correlation"]: row["name"] for row in trace.arrow("kernels").to_pylist()}
    rows = []
    for metric, counter in COUNTERS.items():
        by_function, by_kernel = Counter(), Counter()
        for row in mine:
            by_function[row["function"]] += row["value"] * (row["name"] == metric)
        for row in theirs:
            by_kernel[kernels[row["correlation"]]] += row["value"] * (row["name"] == counter)
        rows.append(
            {
                "metric": metric, "lines": by_function.total(), "counters": by_kernel.total(),
                "functions": by_function, "kernels": by_kernel,
            }
        )  # fmt: skip
    return rows


def known(capture: Path, launches: int = LAUNCHES) -> list[dict[str, Any]]:
    """Return the counted and the known value of each marked line."""
    marks = {
        match[1]: number
        for number, line in enumerate(SOURCE.read_text().splitlines(), 1)
        if (match := re.search(r"// line (\w+)$", line))
    }
    lines, rows = by_line(capture), []
    for mark, (warps, threads) in KNOWN.items():
        times = warps * TIMES * launches
        for metric, expected in ((INSTRUCTIONS, times), (THREADS, times * threads)):
            counted = {file: value for (file, line), value in lines[metric].items() if line == marks[mark]}
            row = {"line": mark, "metric": metric, "expected": expected, "counted": sum(counted.values())}
            rows.append(row | {"files": [Path(file).name for file in counted]})
    return rows


def by_ncu(program: list[str], folder: Path) -> dict[str, Any]:
    """Return Nsight Compute's executed instructions by line, for the marked program."""
    report = folder / "report"
    done = run(["ncu", "--section", "SourceCounters", "-f", "-o", str(report), *program])
    sys.path += map(str, Path("/opt/nvidia/nsight-compute").glob("*/extras/python"))
    import ncu_report

    executed: dict[str, float] = defaultdict(float)
    for kernels in ncu_report.load_report(f"{report}.ncu-rep"):
        for kernel in kernels:
            metric = kernel["inst_executed"]
            places = metric.correlation_ids()
            for at in range(metric.num_instances()):
                info = kernel.source_info(places.as_uint64(at))
                if info is not None:
                    executed[f"{Path(info.file_name()).name}:{info.line()}"] += metric.as_double(at)
    return {"status": done["status"], "seconds": done["seconds"], "lines": executed}


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED)
    parser.add_argument("--torch", action="store_true", help="also eight kernels of libraries")
    parser.add_argument("--ncu", action="store_true", help="also Nsight Compute")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "instruction_lines",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        binary, lines, counters = folder / "known_lines", folder / "lines.bin", folder / "counters.bin"
        if run(["nvcc", "-O2", "-lineinfo", "-arch=native", str(SOURCE), "-o", str(binary)])["status"]:
            sys.exit("the program was not built")
        program = [str(binary)]
        alone = run(program)
        under = profiled(lines, program, "--lines", "--kernel", "*known_*")
        counted = profiled(counters, program, "--metrics", ",".join(COUNTERS.values()), "--kernel", "*known_*")
        result["seconds"] = {"alone": alone["seconds"], "lines": under["seconds"], "counters": counted["seconds"]}
        result["same_results"] = same(alone, under)
        if under["status"] == counted["status"] == 0:
            result["known"], result["totals"] = known(lines), totals(lines, counters)
            lines.replace(args.out.with_suffix(".bin"))
        else:
            result["failed"] = [under["errors"], counted["errors"]]
        one = profiled(lines, program, "--lines", "--kernel", "*known_loop*", "--skip", "1", "--count", "1")
        if one["status"] == 0:
            result["one_launch"] = known(lines, launches=1)[0]
        if args.torch:
            pattern = ("--kernel", "*known_*")
            alone = run(EIGHT)
            under = profiled(lines, EIGHT, "--lines", *pattern)
            counted = profiled(counters, EIGHT, "--metrics", ",".join(COUNTERS.values()), *pattern)
            result["eight"] = {
                "seconds": {"alone": alone["seconds"], "lines": under["seconds"], "counters": counted["seconds"]},
                "same_results": same(alone, under), "status": [under["status"], counted["status"]],
            }  # fmt: skip
            if under["status"] == counted["status"] == 0:
                result["eight"]["totals"] = totals(lines, counters)
                places = by_line(lines)[INSTRUCTIONS]
                result["eight"]["files"] = sorted({Path(file).name for file, _ in places})
            else:
                result["eight"]["failed"] = [under["errors"], counted["errors"]]
        if args.ncu:
            try:
                result["ncu"] = by_ncu(program, folder)
            except Exception as error:  # an older module of ncu has other names
                result["ncu"] = repr(error)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "machine"}, indent=1))


if __name__ == "__main__":
    main()
