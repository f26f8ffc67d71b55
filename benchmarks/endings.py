"""Check for each ending of a program that its work is either recorded or counted as lost.

    python benchmarks/endings.py --out endings.json [--only fork,pool] [--fake]

Each program of ``workloads/endings_program.py`` runs under `cutrace record` and counts its launches and NVTX ranges in
memory that outlives it. If its capture was closed, all launches and ranges must be recorded or counted as lost.
Otherwise calls of the last moments may be missing. These moments are ``flush_ms`` plus ``--flush``, the allowed time of
a flush (ms). The same holds for a thread that continues while the program exits. The capture of a program that a signal
ended may end in a torn block. Needs an NVIDIA GPU, g++ and cutrace; with ``--fake`` it runs on the fake GPU of the
tests. Exit status 1 when launches or ranges are unaccounted for.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
from endings_program import PROGRAMS
from programs import Failed, build_endings

import cutrace
from cutrace.collect import cuda, environment
from cutrace.trace.process import Process

_PROGRAM = Path(__file__).parent / "workloads" / "endings_program.py"
_SLOTS = 60_000
_PATIENCE = 30
_SERIES = np.dtype([("begun", "u8"), ("done", "u8"), ("by_millisecond", "u4", _SLOTS)])
_COUNTS = np.dtype(
    [("start", "u8"), ("role", "S48"), ("error", "i4"), ("padding", "u4"), ("launches", _SERIES), ("ranges", _SERIES)]
)
_OF_BOTH = ("memory_limit", "size_limit", "write_error", "let_go")
_LOSSES = {"launches": ("cupti_dropped", "unknown_time", *_OF_BOTH), "ranges": ("nvtx_dropped", "nvtx_open", *_OF_BOTH)}
_TABLES = {"launches": "kernels", "ranges": "nvtx_ranges"}
# Processes that end without C's exit handlers: their captures cannot be closed.
_ABRUPT = {("os._exit", "main"), ("exec", "main"), ("fork after CUDA, child leaves by os._exit", "forked child")}
_STATUS = {"SIGKILL": 137, "SIGTERM": 143, "SIGSEGV": 139, "abort": 134}


@dataclass(frozen=True)
class Balance:
    """The calls of one process and their records.

    ``done`` of ``begun`` calls have returned. ``oldest_ms`` is the age of the first missing call. The age is measured
    at the end of the recording if the capture was closed, else at the last call of the process.
    """

    begun: int
    done: int
    recorded: int
    lost: int
    oldest_ms: int

    @property
    def missing(self) -> int:
        return max(self.done - self.lost - self.recorded, 0)


@dataclass(frozen=True)
class Row:
    """One process. ``closed`` says whether its capture was closed; None without a capture. ``allowed_ms`` is the
    allowed age of a missing call."""

    ending: str
    role: str
    pid: int
    closed: bool | None
    allowed_ms: int
    error: int
    launches: Balance
    ranges: Balance
    losses: list[str]
    notes: list[str]

    @property
    def faults(self) -> Iterator[str]:
        if self.closed is False and self.ending not in _STATUS and (self.ending, self.role) not in _ABRUPT:
            yield "the process ended with its exit handlers, and its capture was not closed"
        for what, balance in (("launches", self.launches), ("ranges", self.ranges)):
            if balance.recorded > balance.begun:
                yield f"{balance.recorded - balance.begun:,} {what} more than there were"
            if balance.missing and (self.closed is None or balance.oldest_ms > self.allowed_ms):
                yield f"{balance.missing:,} {what} are neither recorded nor counted as lost"


class Endings:
    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self._folder, self._flush_ms = folder, args.flush
        self.cupti: int | None = None
        self._environment = {k: v for k, v in os.environ.items() if k not in (environment.CUDA, environment.NVTX)}
        self._environment["ENDINGS_LIBRARY"] = str(build_endings(folder))
        if args.fake is not None:
            from support import fakedriver

            self._environment = fakedriver.build(Path(args.fake or folder / "fake")).environment(self._environment)

    def run(self, name: str) -> tuple[list[Row], list[str]]:
        """Return the processes of a program, and the faults of the program itself."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        counts, capture = folder / "counts", folder / "run.bin"
        counts.mkdir()
        command = [
            sys.executable,
            "-m",
            "cutrace",
            "record",
            "-o",
            str(capture),
            "--",
            sys.executable,
            str(_PROGRAM),
            name,
        ]
        variables = self._environment | {"ENDINGS_COUNTS": str(counts), "ENDINGS_FOLDER": str(folder)}
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return [], [f"it did not end within {_PATIENCE} s: {process.communicate()[0][-500:]}"]
        faults = [f"{path.name} is not as it was written" for path in sorted(folder.glob("own-*")) if not _intact(path)]
        held = sum(path.read_bytes() != b"held\n" for path in folder.glob("held-*"))
        if held:
            faults.append(f"{held} of the files held open are not as they were written")
        if name in ("daemon", "closed descriptors") and len(list(folder.glob("own-*"))) != 3:
            faults.append("the files of the program are missing")
        if process.returncode != _STATUS.get(name, 0):
            faults.append(f"status {process.returncode}: {output[-500:]}")
        if not capture.exists():
            return [], [*faults, f"there is no capture: {output[-500:]}"]
        with cutrace.load(capture) as trace:
            self.cupti = next(
                (p.info["cupti_version"] for p in trace.processes if "cupti_version" in p.info), self.cupti
            )
            end = capture.stat().st_size
            # A signal can end a program while it writes its last block.
            by_signal = name in _STATUS
            faults += [str(d) for d in trace.quality.damage if not (by_signal and d.offset + d.size == end)]
            rows = list(self._rows(name, trace, _read(counts)))
        return rows, faults

    def _rows(self, name: str, trace: cutrace.Trace, counts: dict[int, list[np.void]]) -> Iterator[Row]:
        recorded = {of: np.bincount(getattr(trace, table)["process"], minlength=len(trace.processes))
                    for of, table in _TABLES.items()}  # fmt: skip
        for pid, all_counts in counts.items():
            processes = sorted((p for p in trace.processes if p.pid == pid), key=lambda p: p.info.get("started", 0))
            # After exec, several programs have the same process id.
            for number, count in enumerate(all_counts):
                process = processes[number] if number < len(processes) else None
                yield self._row(name, trace, pid, process, count, recorded)

    def _row(
        self,
        name: str,
        trace: cutrace.Trace,
        pid: int,
        process: Process | None,
        count: np.void,
        recorded: dict[str, Any],
    ) -> Row:
        losses = [loss for loss in trace.quality.losses if process is not None and loss.process == process.index]
        allowed = 0
        if process is not None and not process.complete:
            allowed = process.flush_ms + self._flush_ms
        elif name == "launching at exit":
            allowed = self._flush_ms

        def balance(of: str) -> Balance:
            series = count[of]
            kept = 0 if process is None else int(recorded[of][process.index])
            lost = sum(loss.count for loss in losses if loss.reason in _LOSSES[of])
            return Balance(int(series["begun"]), int(series["done"]), kept, lost, _oldest(count, of, kept + lost, end))

        end = process.info["ended"] if process is not None and process.complete else None
        return Row(
            ending=name,
            role=count["role"].decode(),
            pid=pid,
            closed=None if process is None else process.complete,
            allowed_ms=allowed,
            error=int(count["error"]),
            launches=balance("launches"),
            ranges=balance("ranges"),
            losses=[f"{loss.reason} {loss.count}: {loss.detail}" for loss in losses],
            notes=list(process.info.get("notes", ())) if process is not None else [],
        )


def _read(folder: Path) -> dict[int, list[np.void]]:
    """Return the counts of all processes by process id, sorted by start."""
    out: dict[int, list[np.void]] = {}
    for path in folder.iterdir():
        pid = int(re.match(r"\d+", path.name)[0])  # type: ignore[index]
        out.setdefault(pid, []).append(np.fromfile(path, _COUNTS)[0])
    for counts in out.values():
        counts.sort(key=lambda count: int(count["start"]))
    return dict(sorted(out.items()))


def _oldest(count: np.void, of: str, accounted: int, end: int | None) -> int:
    """Return the age (ms) at ``end`` of the first call beyond ``accounted``. With None, ``end`` is the last call of the
    process."""
    series = np.maximum.accumulate(count[of]["by_millisecond"])
    if accounted >= series[-1]:
        return 0
    last = max(int(np.flatnonzero(count[name]["by_millisecond"])[-1]) for name in _TABLES if count[name]["done"])
    if end is not None:
        last = (end - int(count["start"])) // 1_000_000
    return last - int(np.searchsorted(series, accounted, side="right"))


def _intact(path: Path) -> bool:
    return path.read_bytes() == b"".join(b"line %d\n" % number for number in range(200))


def _print(rows: list[Row], faults: dict[str, list[str]]) -> None:
    columns = "ending", "process", "capture", "launched, recorded, lost", "ranges, recorded, lost", "missing", "balance"
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---:|---:|---|---|")
    name = ""
    for row in rows:
        closed = "none" if row.closed is None else "closed" if row.closed else "not closed"
        numbers = [f"{b.done:,}, {b.recorded:,}, {b.lost:,}" for b in (row.launches, row.ranges)]
        missing = [f"{b.missing:,} {what}, {b.oldest_ms} ms old" for what, b in
                   (("launches", row.launches), ("ranges", row.ranges)) if b.missing]  # fmt: skip
        verdict = "NO" if list(row.faults) else f"within {row.allowed_ms} ms" if missing else "yes"
        title = row.ending if row.ending != name else ""
        print(f"| {title} | {row.role} | {closed} | {' | '.join(numbers)} | {'; '.join(missing)} | {verdict} |")
        name = row.ending
    print()
    for row in rows:
        error = [f"the first call of CUDA that failed: CUresult {row.error}"] if row.error else []
        for sentence in dict.fromkeys((*row.faults, *error, *row.notes)):
            print(f"{row.ending}, {row.role}: {sentence}")
    for ending, sentences in faults.items():
        for sentence in sentences:
            print(f"{ending}: {sentence}")


def main() -> int:
    parser = options.parser(__doc__, out=None, only=[])
    parser.add_argument("--flush", type=int, default=250, help="milliseconds allowed for a flush (default 250)")
    parser.add_argument(
        "--fake", nargs="?", const="", metavar="CACHE", help="take the fake GPU of the tests, built in CACHE"
    )
    args = parser.parse_args()
    rows: list[Row] = []
    faults: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="endings.") as folder:
        try:
            endings = Endings(Path(folder), args)
        except Failed as failure:
            print(f"endings: {failure}", file=sys.stderr)
            return 1
        for name in PROGRAMS:
            if not args.only or any(name.startswith(beginning) for beginning in args.only):
                print(name, file=sys.stderr, flush=True)
                processes, faults[name] = endings.run(name)
                rows += processes
    _print(rows, faults)
    if args.out:
        result = {
            "benchmark": "endings",
            "command": sys.argv,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine.facts(),
            "gpu": "fake" if args.fake is not None else "real",
            "versions": {"cutrace": cutrace.__version__, "driver": cuda.version_text(cuda.driver_version()),
                         "cupti": cuda.cupti_version_text(endings.cupti)},
            "flush_ms_allowed": args.flush,
            "rows": [asdict(row) | {"faults": list(row.faults)} for row in rows],
            "failures": {name: sentences for name, sentences in faults.items() if sentences},
        }  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(faults.values()) or any(list(row.faults) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
