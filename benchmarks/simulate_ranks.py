"""Write the captures of many ranks, simulated from a real one, with known stragglers and clocks that are wrong.

    python benchmarks/simulate_ranks.py FOLDER --ranks 64 [--copies 16] [--capture tests/data/ranks.bin]

Each rank repeats the first process of a capture with collectives, with durations that vary by a percent. A rank begins
a collective when it gets there, and all ranks end it together, so fast ranks wait for slow ones, as in NCCL. Eight
ranks share a machine, whose boot, wall clock and clock snapshots are its own; wall clocks are off by about 20 us.

Prints the planted facts as one JSON line: ranks whose kernels are ``slow`` by a factor; ranks that are ``stalled`` for
so many ns before the first collective of each copy; machines whose wall ``clocks`` are so many ns ahead; and the
``regression`` of kernels by a factor, for comparing sets of runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import cutrace
from cutrace.analysis.gpu import communicates
from cutrace.runbin import TABLES
from cutrace.runbin.writer import Writer
from workloads import options

CAPTURE = Path(__file__).resolve().parents[1] / "tests" / "data" / "ranks.bin"
RANKS_OF_MACHINE = 8
# The deviation of durations from copy to copy and from kernel to kernel.
JITTER = 0.01
# The deviation of wall clocks (ns), and of the ends of a collective.
CLOCK_NS, END_NS = 20_000, 500
_TIMES = ("start", "end", "time")


@dataclass(frozen=True)
class Facts:
    """What is planted. ``slow`` and ``stalled`` are by rank, ``clocks`` by machine, ``regression`` by a part of the
    mangled name of a kernel."""

    slow: dict[int, float] = field(default_factory=dict)
    stalled: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    regression: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, ranks: int, seed: int = 1) -> Facts:
        """Choose ranks: one of 128, but at least one, is slow, as many are stalled, and so many machines are off."""
        random = np.random.default_rng(seed)
        count, machines = max(1, ranks // 128), -(-ranks // RANKS_OF_MACHINE)
        chosen = random.choice(ranks, 2 * count, replace=False).tolist()
        off = random.choice(machines, min(count, (machines - 1) // 3), replace=False).tolist()
        return cls(
            {rank: round(1.15 + 0.05 * (at % 4), 2) for at, rank in enumerate(sorted(chosen[:count]))},
            {rank: 300_000 + 100_000 * (at % 4) for at, rank in enumerate(sorted(chosen[count:]))},
            {machine: (3_000_000 + 1_000_000 * (at % 4)) * (-1) ** at for at, machine in enumerate(sorted(off))},
        )


class Simulation:
    """Ranks of one job. The ends of collectives are those of the slowest rank, so all arrivals are computed first."""

    def __init__(self, ranks: int, copies: int, facts: Facts, *, capture: Path = CAPTURE, seed: int = 2) -> None:
        self.ranks, self.copies, self.facts, self._seed = ranks, copies, facts, seed
        with cutrace.load(capture) as trace:
            self._strings = list(trace.strings)[1:]
            self._launches, self._functions = trace.launches[1:], trace.functions[1:]
            self._rows = {name: _first(trace.table(name)) for name in TABLES if name not in ("launches", "functions")}
            self._info = trace.processes[0].info
            names = trace.strings.take(trace.launches["name"], str).tolist()
        self._rows = {name: rows for name, rows in self._rows.items() if len(rows)}
        self._clocks = self._rows.pop("clocks")
        self._rows.pop("losses", None)
        self._factors = np.ones(len(names))
        for part, factor in facts.regression.items():
            self._factors[[part in name for name in names]] = factor
        kernels = self._rows["kernels"] = np.sort(self._rows["kernels"], order="start")
        self._collective = np.array([communicates(name) for name in names])[kernels["launch"]]
        timed = [rows[name] for rows in self._rows.values() for name in _TIMES if name in rows.dtype.names]
        every = np.concatenate(timed)
        self._begin = int(every[every > 0].min())
        self.length = int(every.max()) - self._begin + 100_000
        calls = kernels[self._collective]
        # The time (ns, in the template) of each arrival, and between the last end and it.
        self._arrival = calls["start"].astype(np.int64) - self._begin
        self._transfer = (calls["end"] - calls["start"]).astype(np.int64)
        edges = np.append(self._arrival, self.length)
        self._segments = np.diff(edges, prepend=0).astype(np.float64)
        self._durations = np.stack([self._rank_durations(rank) for rank in range(ranks)])
        # Ranks begin a copy with the shift that the copy before left, and leave each collective together.
        self._starts = np.zeros((ranks, copies, len(calls)))
        self._shared = np.zeros((copies, len(calls)))
        now = np.zeros(ranks)
        for copy in range(copies):
            for call in range(len(calls)):
                self._starts[:, copy, call] = now = now + self._durations[:, copy, call]
                self._shared[copy, call] = now.max()
                now = np.full(ranks, now.max())
            now = now + self._durations[:, copy, -1]

    def _rank_durations(self, rank: int) -> np.ndarray:
        """The time (ns) before each collective of each copy, and behind the last one."""
        random = np.random.default_rng((self._seed, rank))
        shape = (self.copies, len(self._segments))
        durations = self._segments * random.normal(1, JITTER, shape) * self.facts.slow.get(rank, 1.0)
        durations[:, 0] += self.facts.stalled.get(rank, 0)
        return durations

    def write(self, rank: int, path: Path) -> None:
        """Write the capture of a rank."""
        machine = rank // RANKS_OF_MACHINE
        booted = np.random.default_rng((self._seed, 1, machine))
        # Any boot, but each clock runs for longer than the recording.
        boot = int(booted.integers(10**12, 10**15))
        wrong = int(booted.normal(0, CLOCK_NS)) + self.facts.clocks.get(machine, 0)
        info = {key: value for key, value in self._info.items() if key not in ("tables", "format", "ended", "notes")}
        boot_id = f"boot-{self._seed}-{machine}"
        about = {"pid": 1000 + rank, "host": f"node{machine:03}", "boot_id": boot_id, "rank": rank}
        with Writer(path, instance=(self._seed << 32) + rank + 1, **info | about) as writer:
            for text in self._strings:
                writer.string(text)
            writer.rows("launches", self._launches)
            writer.rows("functions", self._functions)
            writer.rows("clocks", self._snapshots(boot, wrong))
            for name, rows in self._rows.items():
                if any(field in rows.dtype.names for field in _TIMES):
                    writer.rows(name, self._tiled(name, rows, rank, boot))
                else:
                    writer.rows(name, rows)

    def _snapshots(self, boot: int, wrong: int) -> np.ndarray:
        rows = self._clocks[:3].copy()
        away = np.array([0, self.length * self.copies // 2, self.length * self.copies], np.uint64)
        # The wall clock at the common begin is that of the original.
        rows["realtime"] = np.uint64(int(self._clocks["realtime"][0]) + wrong) + away
        rows["boottime"] = np.uint64(boot) + away
        return rows

    def _tiled(self, name: str, rows: np.ndarray, rank: int, boot: int) -> np.ndarray:
        random = np.random.default_rng((self._seed, 2, rank))
        tiled = np.tile(rows, self.copies)
        slow = self.facts.slow.get(rank, 1.0)
        for copy in range(self.copies):
            part = tiled[copy * len(rows) : (copy + 1) * len(rows)]
            for time in (time for time in _TIMES if time in rows.dtype.names):
                moved = self._moved(rows[time], rank, copy)
                part[time] = np.where(rows[time] > 0, moved.astype(np.uint64) + np.uint64(boot), rows[time])
            if name == "kernels":
                length = (rows["end"] - rows["start"]) * random.normal(slow, JITTER, len(rows))
                length *= self._factors[rows["launch"]]
                part["end"] = part["start"] + np.maximum(length, 1).astype(np.uint64)
                end = self._shared[copy] + self._transfer + random.uniform(0, END_NS, len(self._transfer))
                part["end"][self._collective] = end.astype(np.uint64) + np.uint64(boot)
            if "correlation" in rows.dtype.names:
                part["correlation"] += np.uint32(copy << 16)
        return tiled

    def _moved(self, times: np.ndarray, rank: int, copy: int) -> np.ndarray:
        """Times of the original in a copy (ns since the begin). Waits pass at the begin of each collective."""
        before = self._shared[copy - 1, -1] + self._durations[rank, copy - 1, -1] if copy else 0.0
        known = np.maximum(times.astype(np.int64) - self._begin, 0)
        call = np.searchsorted(self._arrival, known, side="left")
        own, shared = self._starts[rank, copy], self._shared[copy]
        # A segment begins when the collective before it has begun everywhere.
        begins = np.concatenate([[before], shared])
        offsets = np.concatenate([[0], self._arrival])
        lengths = np.append(own - begins[:-1], self._durations[rank, copy, -1])
        stretch = lengths / self._segments
        moved: np.ndarray = begins[call] + (known - offsets[call]) * stretch[call]
        return moved


def _first(rows: np.ndarray) -> np.ndarray:
    """The rows of the first process."""
    return rows[rows["process"] == 0].copy() if "process" in rows.dtype.names else rows


def simulate(folder: Path, ranks: int, copies: int, facts: Facts, *, seed: int = 2, job: str = "train") -> list[Path]:
    """Write the captures of a job. Returns their paths."""
    folder = folder / job
    folder.mkdir(parents=True, exist_ok=True)
    simulation = Simulation(ranks, copies, facts, seed=seed)
    paths = [folder / f"rank{rank:04}.bin" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        simulation.write(rank, path)
    return paths


def main() -> None:
    parser = options.parser(__doc__)
    parser.add_argument("folder", type=Path, help="the folder for the captures; theirs is FOLDER/train")
    parser.add_argument("--ranks", type=int, default=64, help="captures to write (64)")
    parser.add_argument("--copies", type=int, default=16, help="repetitions of the capture, each of two steps (16)")
    args = parser.parse_args()
    facts = Facts.of(args.ranks)
    simulate(args.folder, args.ranks, args.copies, facts)
    print(json.dumps(asdict(facts)))


if __name__ == "__main__":
    main()
