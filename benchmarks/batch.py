"""Report over a thousand simulated ranks with `cutrace batch`, and compare its sentences with the planted faults.

    python benchmarks/batch.py --ranks 1024 [--copies 16] [--large 10000000] [--rounds 3] [--out results.json]

Simulates a job (benchmarks/simulate_ranks.py), and 64 runs of one rank each. Half of the runs have a slower kernel, and
two other runs differ as a whole. The result has these parts:

* ``found``: whether each planted fact is found. ``invented`` lists sentences about other things.
* ``same_bytes``: whether all modes write the same parts and pages, even if a worker is killed in the middle.
* ``seconds``: the time of each mode for the report ``collectives``, including the start of workers.
* ``worker_mib``: the peak memory of a worker, also for one capture with ``--large`` rows.
* ``dask``: the time on a running cluster with one worker and with two, on fewer and longer captures. The rounds
  alternate between the two, and the lowest time of each counts. ``idle`` is the share of this time in which the cores
  of the machine were idle.
* ``all``: the time of `cutrace batch NAME` for each report that needs no option, and of `cutrace batch all`, on 64
  ranks, as whole commands. The rounds alternate between the commands, and the lowest time of each counts. Processor
  time is given too, because it depends less on other work on the machine. ``times`` and ``cpu_times`` are the times of
  ``all``, divided by the times of the most expensive single report.
* ``scale``: `cutrace batch all` on ``--scale`` ranks of two copies. The result has the peak memory of the calling
  process and of a worker, the time, and the time of a second run, which skips all files.

``--only`` names some of these parts. Needs pyarrow and distributed. Prints one JSON line; ``--out`` adds it to the
results in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import cutrace
from convert import add_result, hardware, tile
from simulate_ranks import CAPTURE, RANKS_OF_MACHINE, Facts, simulate
from workloads import options

RUNS, SLOWER, OUTLIERS = 64, {"splitKreduce": 1.1}, {7: 1.25, 40: 1.4}
MEMORY_MIB, CLIENT_MIB, SPEEDUP, ALL_TIMES = 300, 2048, 1.6, 1.3
ALL_RANKS, ALL_COPIES = 64, 16
PARTS = ("job", "runs", "modes", "large", "dask", "all", "scale")
REPORTS = ("kernels", "collectives", "utilization", "gaps", "overlap")
# Runs a batch in a separate process. Prints the peak memory (MiB) of the process and of its workers, and the seconds.
BATCH = """
import json, resource, sys, time
import cutrace
from pathlib import Path
sources = sorted(Path(sys.argv[1]).glob("*.bin"))
begin = time.perf_counter()
cutrace.batch("all", sources, sys.argv[2], workers=2)
seconds = time.perf_counter() - begin
peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([*peaks, seconds]))
"""


def named(sentences: Sequence[str], words: str) -> set[str]:
    """The ranks or runs named by the sentences that contain ``words``."""
    found = set()
    for sentence in sentences:
        first, _, last = sentence.split(":")[0].partition(" to ")
        if words in sentence and last:
            found |= {f"rank {rank}" for rank in range(int(first.split()[1]), int(last.split()[1]) + 1)}
        elif words in sentence:
            found.add(first.partition(" on ")[0])
    return found


def check_job(paths: Sequence[Path], facts: Facts, folder: Path, mode: str) -> dict[str, Any]:
    """Compare the sentences about a job with the planted facts."""
    reports = ("kernels", "collectives", "gaps")
    said = {report: cutrace.batch(report, paths, folder, mode=mode).sentences for report in reports}
    slow, stalled = ({f"rank {rank}" for rank in ranks} for ranks in (facts.slow, facts.stalled))
    off = {f"rank {rank}" for rank in range(len(paths)) if rank // RANKS_OF_MACHINE in facts.clocks}
    checks = {
        "slow kernels": (slow, named(said["kernels"], "kernels take")),
        "late ranks": (slow | stalled, named(said["collectives"], "late to a collective")),
        "wrong clocks": (off, named(said["collectives"], ": clock ")),
    }
    kinds = ("kernels take", "late to a collective", ": clock ")
    others = [text for report in ("kernels", "collectives") for text in said[report]]
    invented = [text for text in others if not any(kind in text for kind in kinds)]
    # Late ranks, and only these, have longer gaps.
    invented += [text for text in said["gaps"] if text.split(" GPU")[0] not in slow | stalled]
    return summary(checks, invented)


def check_runs(folder: Path, count: int, copies: int, mode: str) -> dict[str, Any]:
    """Compare the sentences about runs with the planted facts."""

    def run(number: int, group: str, **facts: dict[Any, float]) -> Path:
        (path,) = simulate(folder / "runs", 1, copies, Facts(**facts), seed=1000 + number, job=f"{group}{number}")  # type: ignore[arg-type]
        return path

    half = count // 2
    before = [run(number, "old") for number in range(half)]
    after = [run(number, "new", regression=SLOWER) for number in range(half, count)]
    # The numbers differ from the numbers of `before` and `after`, because a recording is counted once.
    odd = [run(count + number, "odd", slow={0: factor}) for number, factor in OUTLIERS.items()]
    compared = cutrace.batch("regressions", after, folder / "out", baseline=before, mode=mode).sentences
    differing = cutrace.batch("outliers", [*before, *odd], folder / "out", mode=mode).sentences
    checks = {
        "regression": (set(SLOWER), {part for part in SLOWER for text in compared if part in text}),
        "outliers": ({f"odd{count + number}" for number in OUTLIERS}, {text.split("/")[0] for text in differing}),
    }
    return summary(checks, [text for text in compared if not any(part in text for part in SLOWER)])


def summary(checks: dict[str, tuple[set[str], set[str]]], invented: list[str]) -> dict[str, Any]:
    return {
        "planted": {name: len(planted) for name, (planted, _) in checks.items()},
        "found": {name: len(planted & found) for name, (planted, found) in checks.items()},
        "invented": [*invented, *(f"{name}: {one}" for name, (planted, found) in checks.items()
                                  for one in sorted(found - planted))],
    }  # fmt: skip


def contents(folder: Path) -> str:
    """The hash of all parts and pages."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".parquet", ".html"))
    one = hashlib.sha256()
    for path in files:
        one.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return one.hexdigest()


class Killer:
    """Kills a worker when a quarter of the files is finished."""

    def __init__(self) -> None:
        self.killed = 0

    def __call__(self, done: int, whole: int) -> None:
        if not self.killed and done >= whole // 4:
            self.killed = active_children()[0].pid or 0
            os.kill(self.killed, signal.SIGKILL)


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Yield a list with the peak memory (MiB) of the worker processes so far."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for child in active_children():
                try:
                    status = Path(f"/proc/{child.pid}/status").read_text()
                except OSError:
                    continue
                lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
                peak[0] = max([peak[0], *(int(line.split()[1]) / 1024 for line in lines)])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def check_modes(paths: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Run one report in all modes, and once with a worker that is killed."""
    killer, hashes, seconds = Killer(), {}, {}
    with peak_memory() as peak:
        for name, mode, progress in (
            ("sequential", "sequential", None), ("processes", "processes", None), ("dask", "dask", None),
            ("killed", "processes", killer),
        ):  # fmt: skip
            out = folder / name
            begin = time.perf_counter()
            workers = None if mode == "sequential" else 2
            result = cutrace.batch("collectives", paths, out, mode=mode, workers=workers, progress=progress)
            seconds[name] = round(time.perf_counter() - begin, 2)
            hashes[name] = f"{contents(out)} {hash(str(result))}"
            shutil.rmtree(out)
    return {
        "same_bytes": len(set(hashes.values())) == 1,
        "killed": bool(killer.killed),
        "seconds": {name: seconds[name] for name in ("sequential", "processes", "dask")},
        "worker_mib": round(peak[0], 1),
    }


def large(folder: Path, rows: int) -> dict[str, float]:
    """The peak memory of a worker that reads one large capture, by report."""
    path, peaks = folder / "large.bin", {}
    tile(CAPTURE, path, rows)
    for report in REPORTS:
        with peak_memory() as peak:
            cutrace.batch(report, [path], folder / "large", workers=1)
        peaks[report] = round(peak[0], 1)
    path.unlink()
    return peaks


def cores_idle(before: Sequence[int]) -> float:
    spent = [now - then for now, then in zip(cpu_times(), before, strict=True)]
    return round((spent[3] + spent[4]) / sum(spent), 3)


def cpu_times() -> list[int]:
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def speedup(paths: Sequence[Path], folder: Path, rounds: int) -> dict[str, Any]:
    """The time of a report on a running Dask cluster with one worker and with two."""
    from distributed import LocalCluster

    best = {1: 1e9, 2: 1e9}
    idle: dict[int, float] = {}
    for _ in range(rounds):
        for workers in best:
            out = folder / f"dask{workers}"
            with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
                # Workers import cutrace with their first file.
                cutrace.batch("kernels", paths[: 2 * workers], out, mode="dask", scheduler=cluster.scheduler_address)
                shutil.rmtree(out)
                begin, cpu = time.perf_counter(), cpu_times()
                cutrace.batch("kernels", paths, out, mode="dask", scheduler=cluster.scheduler_address)
                seconds = time.perf_counter() - begin
            if seconds < best[workers]:
                best[workers], idle[workers] = seconds, cores_idle(cpu)
            shutil.rmtree(out)
    times = {f"seconds_{workers}": round(seconds, 2) for workers, seconds in best.items()}
    return {"files": len(paths), **times, "times": round(best[1] / best[2], 2), "idle": idle, "rounds": rounds}


def all_reports(folder: Path, rounds: int) -> dict[str, Any]:
    """The time of each report and of `all`, as commands."""
    simulate(folder / "all", ALL_RANKS, ALL_COPIES, Facts.of(ALL_RANKS))
    paths = [str(path) for path in sorted((folder / "all").rglob("*.bin"))]
    names = [*REPORTS, "outliers", "all"]
    best, cpu = dict.fromkeys(names, 1e9), dict.fromkeys(names, 1e9)
    for _ in range(rounds):
        for name in names:
            out = folder / "all-out"
            words = [sys.executable, "-m", "cutrace", "batch", name, *paths, "-o", str(out), "--workers", "2", "-q"]
            begin, before = time.perf_counter(), cpu_of_children()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            best[name] = min(best[name], time.perf_counter() - begin)
            cpu[name] = min(cpu[name], cpu_of_children() - before)
            shutil.rmtree(out)
    shutil.rmtree(folder / "all")
    return {
        "ranks": ALL_RANKS,
        "seconds": {name: round(value, 2) for name, value in best.items()},
        "cpu_seconds": {name: round(value, 2) for name, value in cpu.items()},
        "times": round(best["all"] / max(best[name] for name in names[:-1]), 2),
        "cpu_times": round(cpu["all"] / max(cpu[name] for name in names[:-1]), 2),
        "rounds": rounds,
    }


def cpu_of_children() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def scale(folder: Path, ranks: int) -> dict[str, Any]:
    """The memory of many ranks, and the time of two runs."""
    simulate(folder / "scale", ranks, 2, Facts.of(ranks))
    sources, out = folder / "scale" / "train", folder / "scale-out"
    runs = []
    for _ in range(2):
        words = [sys.executable, "-c", BATCH, str(sources), str(out)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    first, second = runs
    result = {
        "ranks": ranks,
        "bytes": sum(path.stat().st_size for path in sources.iterdir()),
        "client_mib": round(max(first[0], second[0])),
        "worker_mib": round(first[1]),
        "seconds": round(first[2]),
        "second_seconds": round(second[2]),
    }
    shutil.rmtree(folder / "scale")
    shutil.rmtree(out)
    return result


def main() -> None:
    parser = options.parser(__doc__, rounds=3, out=None, only=None)
    parser.add_argument("--ranks", type=int, default=1024, help="ranks of the job (1024)")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of one rank each (64)")
    parser.add_argument("--copies", type=int, default=16, help="copies of the capture in each file (16)")
    parser.add_argument("--large", type=int, default=10_000_000, help="rows of a large capture, 0 for none (10000000)")
    parser.add_argument("--files", type=int, default=32, help="longer captures for the speedup (32)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each of them (2000000)")
    parser.add_argument("--scale", type=int, default=10_000, help="ranks of the largest job, 0 for none (10000)")
    parser.add_argument("--mode", default="processes", help="where the job and the runs are read (processes)")
    args = parser.parse_args()
    wanted = {part for part in PARTS if not args.only or part.startswith(tuple(args.only))}
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        folder = Path(name)
        result: dict[str, Any] = {"benchmark": "batch", "capture": CAPTURE.name, "events": args.ranks}
        if wanted & {"job", "modes"}:
            facts = Facts.of(args.ranks)
            paths = simulate(folder, args.ranks, args.copies, facts)
            result["bytes"] = sum(path.stat().st_size for path in paths)
            if "job" in wanted:
                result["job"] = check_job(paths, facts, folder / "out", args.mode)
            if "modes" in wanted:
                result["modes"] = check_modes(paths, folder)
            shutil.rmtree(folder / "train")
        if "runs" in wanted:
            result["runs"] = check_runs(folder, args.runs, args.copies, args.mode)
        if "large" in wanted and args.large:
            result["large"] = {"rows": args.large, "worker_mib": large(folder, args.large)}
        if "dask" in wanted and args.rounds:
            first = folder / "rank0.bin"
            rows = tile(CAPTURE, first, args.rows)
            longer = [first, *(folder / f"rank{rank}.bin" for rank in range(1, args.files))]
            for path in longer[1:]:
                path.hardlink_to(first)
            result["dask"] = {"rows": rows} | speedup(longer, folder, args.rounds)
        if "all" in wanted and args.rounds:
            result["all"] = all_reports(folder, args.rounds)
        if "scale" in wanted and args.scale:
            result["scale"] = scale(folder, args.scale)
        result["hardware"] = hardware(2)
    print(json.dumps(result))
    if args.out:
        add_result(args.out, result)


if __name__ == "__main__":
    main()
