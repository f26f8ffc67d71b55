"""Check that long recordings lose no records, leak no memory, and do not drift.

    python benchmarks/soak.py --out soak.json [--quick] [--arch sm_90] [--only launches,graph,nodes,cycles]

Makes four recordings: 50 million launches by eight threads; 10 million nodes of CUDA graphs; 30 million nodes when only
kernels are recorded; and 1,000 recordings of one process with forks and children in between. The captures must have all
launches. Nothing may be lost, lack times, or have times outside the recording. Memory must not grow. Wall clock times
from the clock snapshots of the capture must agree with the readings of the program. Each part has a share of the time
(480 s in all) and reports its progress. Needs an NVIDIA GPU, nvcc and cutrace. With ``--quick`` it does a small part of
each on the fake GPU of the tests. Exit status 1 when a condition does not hold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
from programs import Failed, build_loops
from soak_program import contents

import cutrace
from cutrace.runbin import TABLES, Reader
from cutrace.units import format_size

_PROGRAM = Path(__file__).parent / "workloads" / "soak_program.py"
# Smaller changes of memory are not growth, because allocators and the page cache of file systems vary.
_FLAT = 24 << 20
# The system slews the wall clock by at most 500 ppm. Between snapshots a second apart, it may differ by this much from
# a straight line.
_BEND_NS = 125_000


@dataclass(frozen=True)
class Part:
    """A part. ``count`` is the amount of work, and ``seconds`` its time limit."""

    name: str
    count: int
    seconds: float
    options: tuple[str, ...] = ()  # of `cutrace record`


_KERNELS_ALONE = ("--kinds", "kernel", "--api", "none")
FULL = (
    *(Part("launches", 50_000_000, 230), Part("graph", 10_000_000, 60)),
    *(Part("nodes", 30_000_000, 120, _KERNELS_ALONE), Part("cycles", 1_000, 90)),
)
QUICK = (
    *(Part("launches", 200_000, 20), Part("graph", 100_000, 10)),
    *(Part("nodes", 100_000, 10, _KERNELS_ALONE), Part("cycles", 60, 15)),
)


@dataclass
class Outcome:
    """The result of a part. Memory (bytes) is measured early, late, and at its peak. Times are ns."""

    part: str
    wanted: int
    done: int
    seconds: float
    launched: int
    recorded: int
    lost: int
    memory_early: int
    memory_late: int
    memory_peak: int
    drift_ns: int | None = None
    unexplained_ns: int | None = None
    without_times: int = 0
    wrong_times: int = 0
    notes: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        out = []
        if self.done < self.wanted:
            out.append(f"{self.done:,} of {self.wanted:,} were done in the given time")
        if self.launched != self.recorded + self.lost:
            out.append(f"{self.launched - self.recorded - self.lost:,} launches are unaccounted for")
        if self.lost:
            out.append(f"{self.lost:,} launches are counted as lost")
        if self.without_times:
            out.append(f"{self.without_times:,} rows have no times")
        if self.wrong_times:
            out.append(f"{self.wrong_times:,} rows end before they start, or are outside of the recording")
        if self.memory_late - self.memory_early > _FLAT:
            out.append(f"memory grew by {format_size(self.memory_late - self.memory_early)}")
        if self.unexplained_ns is not None and self.unexplained_ns > _BEND_NS:
            out.append(f"the clock differs from its snapshots by {self.unexplained_ns:,} ns")
        return out


class Soak:
    """The machine that runs the parts, real or fake."""

    def __init__(self, folder: Path, quick: str | None, arch: str) -> None:
        self._folder, self._quick = folder, quick is not None
        self._environment = dict(os.environ)
        self._libraries = "fake"
        if quick is not None:
            from support import fakedriver

            self._environment = fakedriver.build(Path(quick or folder / "fake")).environment()
        else:
            build_loops(folder / "build", arch)
            self._libraries = str(folder / "build")

    def run(self, part: Part) -> Outcome:
        capture = self._folder / f"{part.name}.bin"
        arguments = [part.name, part.count, part.seconds, self._folder, self._libraries]
        command = [sys.executable, _PROGRAM, *arguments]
        if part.name != "cycles":
            command = [sys.executable, "-m", "cutrace", "record", "-o", capture, *part.options, "--", *command]
        begun = time.monotonic()
        answer = self._answer([str(word) for word in command], part.seconds + 30)
        seconds = time.monotonic() - begun
        recorded, lost, without_times = (answer.get(name, 0) for name in ("recorded", "lost", "without_times"))
        notes: tuple[str, ...] = ()
        wrong_times = 0
        drift: tuple[int | None, int | None] = (None, None)
        if part.name != "cycles":
            recorded, lost, without_times = contents(capture)
            with Reader(capture) as reader:
                notes = tuple(note for info in reader.processes for note in info.get("notes", ()))
                drift = _drift(reader, answer["clocks"])
                wrong_times = _wrong_times(reader)
            capture.unlink()
        memory = answer["memory"]
        quarter = max(len(memory) // 4, 1)
        return Outcome(
            part=part.name,
            wanted=part.count,
            done=answer.get("cycles", answer["launched"]),
            seconds=round(seconds, 1),
            launched=answer["launched"],
            recorded=recorded,
            lost=lost,
            memory_early=int(np.median(memory[:quarter])) if memory else 0,
            memory_late=int(np.median(memory[-quarter:])) if memory else 0,
            memory_peak=max(memory, default=0),
            drift_ns=drift[0],
            unexplained_ns=drift[1],
            without_times=without_times,
            wrong_times=wrong_times,
            notes=notes,
        )

    def attempt(self, part: Part, outcomes: list[Outcome]) -> str:
        """Run a part and append its result. Returns the reason for a missing result, or ""."""
        try:
            outcomes.append(self.run(part))
        except Failed as failure:
            return str(failure)
        return ""

    def _answer(self, command: list[str], limit: float) -> dict[str, Any]:
        try:
            done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end within {limit:.0f} s") from None
        if done.returncode:
            raise Failed(f"status {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


def _drift(reader: Reader, samples: list[list[int]]) -> tuple[int | None, int | None]:
    """Return the movement (ns) of REALTIME against the clock of the capture. Also return the largest difference (ns)
    between a reading of the program and the clock of the snapshots. The differences do not include the time of the two
    readings."""
    blocks = [reader.read(block) for block in reader.indices(TABLES["clocks"].number).tolist()]
    rows = np.sort(np.concatenate(blocks), order="boottime")
    known = rows["boottime"].astype(np.int64)
    offset = rows["realtime"].astype(np.int64) - known
    if not samples:
        return int(offset[-1] - offset[0]), None
    boot, real, took = np.array(samples, np.int64).T
    expected = (
        boot + np.round(np.interp(boot - known[0], known - known[0], offset - offset[0])).astype(np.int64) + offset[0]
    )
    apart = np.maximum(np.abs(real - expected) - took - int(rows["spread"].max()), 0)
    return int(offset[-1] - offset[0]), int(apart.max())


def _wrong_times(reader: Reader) -> int:
    """Return the number of kernels that end before they start, or have a time outside the recording."""
    snapshots = [reader.read(block) for block in reader.indices(TABLES["clocks"].number).tolist()]
    times = np.concatenate(snapshots)["boottime"]
    wrong = 0
    for block in reader.indices(TABLES["kernels"].number).tolist():
        kernels = reader.read(block)
        outside = (kernels["start"] < times.min()) | (kernels["end"] > times.max())
        wrong += int(np.count_nonzero(outside | (kernels["end"] < kernels["start"])))
    return wrong


def _print(outcomes: list[Outcome]) -> None:
    print("| part | done | time | launched | recorded | lost | memory: early, late, peak | clock: moved, unexplained |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for o in outcomes:
        memory = ", ".join(map(format_size, (o.memory_early, o.memory_late, o.memory_peak)))
        clock = "" if o.drift_ns is None else f"{o.drift_ns:,} ns, {o.unexplained_ns:,} ns"
        numbers = f"{o.launched:,} | {o.recorded:,} | {o.lost:,}"
        print(f"| {o.part} | {o.done:,} | {o.seconds} s | {numbers} | {memory} | {clock} |")
    for o in outcomes:
        for sentence in (*o.faults, *o.notes):
            print(f"{o.part}: {sentence}")


def main() -> int:
    parser = options.parser(__doc__, out=None, arch="native")
    parser.add_argument(
        "--quick", nargs="?", const="", metavar="CACHE", help="a little of each, on the fake GPU, built in CACHE"
    )
    parser.add_argument("--only", help="parts to run, with commas between")
    parser.add_argument("--folder", type=Path, help="where the captures go: 4 GB on a disk that keeps up")
    args = parser.parse_args()
    parts = [p for p in (FULL if args.quick is None else QUICK) if not args.only or p.name in args.only.split(",")]
    outcomes: list[Outcome] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="soak.", dir=args.folder) as folder:
        try:
            soak = Soak(Path(folder), args.quick, args.arch)
        except Failed as failure:
            print(f"soak: {failure}", file=sys.stderr)
            return 1
        for part in parts:
            failure = soak.attempt(part, outcomes)
            if failure:
                failures[part.name] = failure
    _print(outcomes)
    for name, failure in failures.items():
        print(f"{name}: {failure}")
    if args.out:
        result = {
            "benchmark": "soak",
            "command": sys.argv,
            "machine": machine.facts(),
            "versions": {"cutrace": cutrace.__version__},
            "gpu": "real" if args.quick is None else "fake",
            "parts": [asdict(o) | {"faults": o.faults} for o in outcomes],
            "failures": failures,
        }
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if failures or any(o.faults for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
