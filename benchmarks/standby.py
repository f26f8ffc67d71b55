"""Measure the cost of a process on standby, compared with a process without cutrace, before and after ten attachments.

    python benchmarks/standby.py --out standby.json [--processes 3] [--rounds 6] [--quick]

Two processes run the same loops (workloads/standby_program.py): one is started by `cutrace arm`, the other without
cutrace. They are timed in turn, in alternating order. Then the benchmark attaches ten times to the first process while
it runs its loops, and both are timed again. Everything is repeated with new processes. Needs an NVIDIA GPU, nvcc,
PyTorch and cutrace installed.
"""

from __future__ import annotations

import argparse
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
from programs import Failed, build_loops

import cutrace

_PROGRAM = Path(__file__).parent / "workloads" / "standby_program.py"
_LOOPS = ("launches", "torch_loop")
_ATTACHMENTS = 10


class Measured:
    """A process that times loops on request."""

    def __init__(self, library: Path, scale: float, *, standby: bool) -> None:
        arm = [sys.executable, "-m", "cutrace", "arm", "--"] if standby else []
        command = [*arm, sys.executable, _PROGRAM, library, scale]
        self._process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def ask(self, loop: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{loop}\n")
        self._process.stdin.flush()

    def answer(self) -> float:
        """Return the nanoseconds per operation of the requested loop. Raises :class:`Failed` without an answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"the measured process ended with {self._process.wait()}")
        return float(json.loads(line))

    def measure(self, loop: str) -> float:
        self.ask(loop)
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def compare(tools: dict[str, Measured], rounds: int) -> list[dict[str, Any]]:
    """Time each loop in each process, in turn. The first round is a warm-up and is not returned."""
    rows = []
    for number in range(rounds + 1):
        for loop in _LOOPS:
            for tool in sorted(tools, reverse=number % 2 == 1):
                ns = tools[tool].measure(loop)
                if number:
                    rows.append({"tool": tool, "workload": loop, "round": number, "ns_per_op": ns})
    return rows


def attach(process: Measured, folder: Path) -> list[dict[str, Any]]:
    """Attach ten times while the loops run. Returns the contents of each capture."""
    captures = []
    for number in range(_ATTACHMENTS):
        path = folder / f"{number}.bin"
        loop = _LOOPS[number % len(_LOOPS)]
        attachment = cutrace.attach(process.pid, path)
        attachment.start()
        during = process.measure(loop)
        attachment.stop()
        with cutrace.load(path) as trace:
            captures.append(
                {
                    "workload": loop,
                    "ns_per_op": during,
                    "kernels": trace.count("kernels"),
                    "lossless": trace.quality.lossless,
                }
            )
        path.unlink()
    return captures


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    build_loops(folder, args.arch)
    result: dict[str, Any] = {
        "benchmark": "standby",
        "command": sys.argv,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "versions": {"cutrace": cutrace.__version__},
        "measurements": [],
        "captures": [],
    }
    scale = 0.05 if args.quick else 1.0
    for number in range(args.processes):
        tools = {
            name: Measured(folder / "liblaunch_loop.so", scale, standby=name == "standby")
            for name in ("none", "standby")
        }
        try:
            for phase in ("before", "after"):
                if phase == "after":
                    result["captures"] += [{"process": number, **row} for row in attach(tools["standby"], folder)]
                rows = compare(tools, args.rounds)
                result["measurements"] += [{"process": number, "phase": phase, **row} for row in rows]
        finally:
            for tool in tools.values():
                tool.close()
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def table(result: dict[str, Any]) -> str:
    """Return a Markdown table. For each loop and phase it has the lowest time, the median, and the ratio of standby to
    none."""
    lines = ["| loop | phase | none ns | standby ns | lowest | median |", "|---|---|---:|---:|---:|---:|"]
    for loop in _LOOPS:
        for phase in ("before", "after"):
            times = {
                tool: [
                    row["ns_per_op"]
                    for row in result["measurements"]
                    if (row["workload"], row["phase"], row["tool"]) == (loop, phase, tool)
                ]
                for tool in ("none", "standby")
            }
            none, standby = times["none"], times["standby"]
            lines.append(
                f"| {loop} | {phase} | {min(none):.0f} | {min(standby):.0f} | {min(standby) / min(none):.3f} | "
                f"{statistics.median(standby) / statistics.median(none):.3f} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = options.parser(__doc__, out=options.REQUIRED, arch="native")
    parser.add_argument("--processes", type=int, default=3, help="pairs of processes (default 3)")
    parser.add_argument(
        "--rounds", type=int, default=6, help="measurements of each loop in each process and phase (default 6)"
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, to check that all of it runs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cutrace-standby-") as folder:
        try:
            result = measure(args, Path(folder))
        except (Failed, cutrace.CutraceError) as error:
            print(f"standby: {error}", file=sys.stderr)
            return 1
    print(table(result))
    whole = all(capture["lossless"] and capture["kernels"] for capture in result["captures"])
    print(f"{len(result['captures'])} captures, {'all' if whole else 'NOT all'} lossless and with kernels")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
