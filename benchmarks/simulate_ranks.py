"""Write the captures of many ranks, simulated from a real one. Ranks, networks, clocks and files can have known faults.

    python benchmarks/simulate_ranks.py FOLDER --ranks 64 [--copies 16] [--layout 4x2x8]

Each rank repeats two steps of a real training with collectives of several communicators. Durations vary by a percent. A
rank starts a collective on its arrival, and all ranks of the communicator end it together. So fast ranks wait for slow
ranks, as in NCCL. With a layout of tensor, pipeline and data parallelism, each rank is in a communicator of each kind.
Without a layout, all ranks share one communicator. Eight ranks share a machine with its own boot, wall clock and clock
snapshots. Wall clocks are off by about 20 us.

Prints the planted facts as one JSON line: the fields of :class:`Facts` that have a value.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from cutrace.analysis.gpu import communicates
from cutrace.runbin import TABLES
from cutrace.runbin.writer import Writer
from workloads import options

CAPTURE = Path(__file__).resolve().parents[1] / "tests" / "data" / "groups.bin"
RANKS_OF_MACHINE = 8
# The relative deviation of durations from copy to copy and from kernel to kernel.
JITTER = 0.01
# The deviation of wall clocks (ns), and the deviation of the ends of a collective (ns).
CLOCK_NS, END_NS = 20_000, 500
# The time of a transfer without bytes (ns), and the bytes per ns, as between the ranks of the real capture.
LATENCY_NS, BYTES_PER_NS = 15_000, 50.0
_TIMES = ("start", "end", "time")
_COMMUNICATOR = re.compile(r'(?<="NCCL communicator ID":)(\d+)')
_BYTES = re.compile(r'"(?:Message size \[bytes\]|Bytes)":(\d+)')


@dataclass(frozen=True)
class Layout:
    """The sizes of the groups of ranks. Neighbouring ranks are a tensor group. Data groups come next, then the stages
    of the pipeline."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 0

    def groups(self, ranks: int) -> dict[str, np.ndarray]:
        """The group number of each rank, by kind of group."""
        number = np.arange(ranks)
        data = self.data or ranks // (self.tensor * self.pipeline)
        tensor_at = number % self.tensor
        data_at = number // self.tensor % data
        stage = number // (self.tensor * data)
        return {
            "data": stage * self.tensor + tensor_at,
            "tensor": number // self.tensor,
            "pipeline": data_at * self.tensor + tensor_at,
            "stage": stage,
        }


@dataclass(frozen=True)
class Facts:
    """The planted facts.

    These dicts are by rank. ``slow`` is the factor of all durations. ``stalled`` is the time (ns) lost before the first
    collective of each copy. ``lost`` is the share of kernels that the file lacks. ``late`` and ``ended`` are the
    numbers of copies that are missing at the start and at the end of the recording. ``restarted`` is the first copy of
    a second recording. ``heavy`` is the factor of the rank's API calls. ``formats`` is the ending of its file.

    These are sets of ranks: ``killed`` are killed in the middle, ``duplicates`` have a second file, ``missing`` have no
    file, and ``empty`` have no GPU work.

    ``clocks`` is the time (ns) that the clock of a machine is ahead, by machine. ``regression`` is the factor of
    kernels by a part of their mangled name. ``network`` has the first second of a slow network, its length in seconds,
    and the factor of transfers. With ``uneven``, the last stage of the pipeline makes half of the calls in its tensor
    groups.
    """

    slow: dict[int, float] = field(default_factory=dict)
    stalled: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    regression: dict[str, float] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    restarted: dict[int, int] = field(default_factory=dict)
    heavy: dict[int, int] = field(default_factory=dict)
    formats: dict[int, str] = field(default_factory=dict)
    killed: tuple[int, ...] = ()
    duplicates: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    network: tuple[float, float, float] | None = None
    uneven: bool = False

    @classmethod
    def of(cls, ranks: int, seed: int = 1) -> Facts:
        """Choose ranks and machines at random. One rank of 128, but at least one, is slow. The number of stalled ranks
        is the same. At most this number of machines have a wrong clock."""
        random = np.random.default_rng(seed)
        count, machines = max(1, ranks // 128), -(-ranks // RANKS_OF_MACHINE)
        chosen = random.choice(ranks, 2 * count, replace=False).tolist()
        off = random.choice(machines, min(count, (machines - 1) // 3), replace=False).tolist()
        return cls(
            {rank: round(1.15 + 0.05 * (at % 4), 2) for at, rank in enumerate(sorted(chosen[:count]))},
            {rank: 500_000 + 100_000 * (at % 4) for at, rank in enumerate(sorted(chosen[count:]))},
            {machine: (3_000_000 + 1_000_000 * (at % 4)) * (-1) ** at for at, machine in enumerate(sorted(off))},
        )


class Template:
    """The rows of one process of a capture, and its collective calls. A call has a kind, an arrival (ns since the start
    of the capture), and the time of its transfer (ns)."""

    def __init__(self, capture: Path) -> None:
        with cutrace.load(capture) as trace:
            self.strings = list(trace.strings)[1:]
            self.launches, self.functions = trace.launches[1:], trace.functions[1:]
            self.names = trace.strings.take(trace.launches["name"], str).tolist()
            collective = np.array([communicates(name) for name in self.names])
            kernels = trace.table("kernels")
            # The process that the others have waited for.
            spent = {
                process.index: int((own["end"] - own["start"])[collective[own["launch"]]].sum())
                for process in trace.processes
                if len(own := kernels[kernels["process"] == process.index])
            }
            chosen = min(spent, key=spent.__getitem__)
            self.info = trace.processes[chosen].info
            tables = {name: _of_process(trace.table(name), chosen) for name in TABLES}
        self.rows = {name: rows for name, rows in tables.items() if len(rows)}
        for name in ("launches", "functions", "losses"):
            self.rows.pop(name, None)
        self.clocks = self.rows.pop("clocks")
        kernels = np.sort(self.rows["kernels"], order="start")
        # Kernels of a step before the capture have no launch in it.
        kernels = kernels[np.isin(kernels["correlation"], self.rows["api_calls"]["correlation"])]
        self.rows["kernels"] = kernels
        self.collective = collective[kernels["launch"]]
        timed = [rows[name] for rows in self.rows.values() for name in _TIMES if name in rows.dtype.names]
        every = np.concatenate(timed)
        self.start = int(every[every > 0].min())
        self.length = int(every.max()) - self.start + 100_000
        called = self.rows["api_calls"]["correlation"]
        self.correlations = int(called.max()) - int(called[called > 0].min()) + 1
        self.calls = kernels[self.collective]
        self.arrival = self.calls["start"].astype(np.int64) - self.start
        self._read_payloads()

    def _read_payloads(self) -> None:
        """Find the NCCL range of each call: the last range of its thread that started before the launch."""
        ranges = self.rows["nvtx_ranges"]
        texts = ["", *self.strings]
        communicators = _numbers(_COMMUNICATOR, texts)
        sizes = _numbers(_BYTES, texts)
        known = ranges[communicators[ranges["arguments"]] > 0]
        launched = np.sort(self.rows["api_calls"], order=["correlation", "start"])
        launch = launched[np.searchsorted(launched["correlation"], self.calls["correlation"])]
        kinds, transfers, self.ranges = [], [], {}
        found = []
        for api in launch:
            own = known[(known["thread"] == api["thread"]) & (known["start"] <= api["start"])]
            found.append(own[own["start"].argmax()])
        arguments = np.array([row["arguments"] for row in found])
        ids, counts = np.unique(communicators[arguments], return_counts=True)
        most = ids[counts.argmax()]
        for number, (call, row) in enumerate(zip(self.calls, found, strict=True)):
            kind = "data" if communicators[row["arguments"]] == most else "tensor"
            if "SendRecv" in self.names[call["launch"]]:
                kind = "pipeline"
            kinds.append(kind)
            transfers.append(LATENCY_NS + sizes[row["arguments"]] / BYTES_PER_NS)
            # Each range is one call.
            self.ranges[int(row["start"])] = number
        self.kinds = np.array(kinds)
        self.transfer = np.array(transfers)


def _numbers(pattern: re.Pattern[str], texts: list[str]) -> np.ndarray:
    """The number in each string, 0 for a string without one."""
    found = [pattern.search(text) for text in texts]
    return np.array([int(match[1]) if match else 0 for match in found], np.uint64)


def _of_process(rows: np.ndarray, process: int) -> np.ndarray:
    if "process" not in rows.dtype.names:
        return rows
    own = rows[rows["process"] == process].copy()
    own["process"] = 0
    return own


class Simulation:
    """The ranks of one job. A collective ends when its slowest rank has arrived, so all arrivals are computed first."""

    def __init__(
        self,
        ranks: int,
        copies: int,
        facts: Facts,
        *,
        capture: Path = CAPTURE,
        layout: Layout | None = None,
        pause: int = 0,
        payloads: bool = True,
        seed: int = 2,
    ) -> None:
        """``pause`` is the time (ns) between copies. Without ``payloads``, NCCL's ranges name no communicators."""
        self.ranks, self.copies, self.facts, self.seed = ranks, copies, facts, seed
        self.pause, self.payloads = pause, payloads
        self.template = template = Template(capture)
        self.groups = (layout or Layout()).groups(ranks)
        self._factors = np.ones(len(template.names))
        for part, factor in facts.regression.items():
            self._factors[[part in name for name in template.names]] = factor
        edges = np.append(template.arrival, template.length)
        self._segments = np.maximum(np.diff(edges, prepend=0), 1).astype(np.float64)
        self._durations = np.stack([self._rank_durations(rank) for rank in range(ranks)])
        shape = (ranks, copies, len(template.calls))
        self._takes_part = np.ones(shape, bool)
        if facts.uneven:
            last = self.groups["stage"] == self.groups["stage"].max()
            self._takes_part[np.ix_(last, np.arange(copies) % 2 == 1, template.kinds == "tensor")] = False
        for kind, group in self.groups.items():
            # NCCL needs no kernel for a communicator of one rank.
            alone = np.bincount(group)[group] == 1
            self._takes_part[np.ix_(alone, np.arange(copies), template.kinds == kind)] = False
        self._starts, self._ends = np.zeros(shape), np.zeros(shape)
        now = np.zeros(ranks)
        for copy in range(copies):
            for call in range(len(template.calls)):
                now = self._call(now + self._durations[:, copy, call], copy, call)
            now = now + self._durations[:, copy, -1] + pause
        self.length = int(now.max())

    def _rank_durations(self, rank: int) -> np.ndarray:
        """The time (ns) before each collective of each copy, and after the last one."""
        random = np.random.default_rng((self.seed, rank))
        shape = (self.copies, len(self._segments))
        durations = self._segments * random.normal(1, JITTER, shape) * self.facts.slow.get(rank, 1.0)
        durations[:, 0] += self.facts.stalled.get(rank, 0)
        return durations

    def _call(self, arrived: np.ndarray, copy: int, call: int) -> np.ndarray:
        """Let ranks take part in a call. ``arrived`` has their arrivals. Returns when they continue."""
        template = self.template
        group = self.groups[template.kinds[call]]
        part = self._takes_part[:, copy, call]
        latest = np.zeros(group.max() + 1)
        np.maximum.at(latest, group[part], arrived[part])
        transfer = np.full(len(latest), template.transfer[call])
        if self.facts.network:
            first, length, factor = self.facts.network
            slow = (latest >= first * 1e9) & (latest < (first + length) * 1e9)
            transfer[slow] *= factor
        random = np.random.default_rng((self.seed, 3, copy, call))
        transfer *= random.normal(1, JITTER, len(transfer))
        self._starts[:, copy, call] = arrived
        self._ends[:, copy, call] = np.where(part, (latest + transfer)[group], arrived)
        ended: np.ndarray = self._ends[:, copy, call]
        return ended

    def write(self, rank: int, path: Path, copies: range | None = None, life: int = 0) -> None:
        """Write the capture of a rank. With ``copies``, write only these copies, as the recording of a restarted
        process."""
        template, facts = self.template, self.facts
        machine = rank // RANKS_OF_MACHINE
        booted = np.random.default_rng((self.seed, 1, machine))
        # The boot is arbitrary, but each clock has run for longer than the recording.
        boot = int(booted.integers(10**12, 10**15))
        wrong = int(booted.normal(0, CLOCK_NS)) + facts.clocks.get(machine, 0)
        end = self.copies - facts.ended.get(rank, 0)
        if rank in facts.killed:
            end = self.copies * 6 // 10
        copies = copies or range(facts.late.get(rank, 0), end)
        first = int(self._starts[rank, copies.start].min())
        last = int(self._ends[rank, copies[-1]].max()) + template.length
        about = {
            "pid": 1000 + rank + 100_000 * life,
            "host": f"node{machine:03}",
            "boot_id": f"boot-{self.seed}-{machine}",
            "started": boot + first + 1,
            "environment": {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % RANKS_OF_MACHINE),
                "WORLD_SIZE": str(self.ranks),
            },
        }
        kept = ("tables", "format", "ended", "notes")
        info = {key: value for key, value in template.info.items() if key not in kept}
        instance = (self.seed << 32) + rank + 1 + self.ranks * life
        with Writer(path, instance=instance, **info | about) as writer:
            arguments = self._strings(writer, rank)
            writer.rows("launches", template.launches)
            writer.rows("functions", template.functions)
            writer.rows("clocks", self._snapshots(boot, wrong, first, last))
            for name, rows in template.rows.items():
                if rank in facts.empty and name in ("kernels", "memcpys", "memsets"):
                    continue
                if not any(field in rows.dtype.names for field in _TIMES):
                    writer.rows(name, rows)
                    continue
                tiled = self._tiled(name, rows, rank, boot, copies)
                if name == "nvtx_ranges":
                    tiled["arguments"] = arguments[tiled["arguments"]]
                if name == "kernels" and rank in facts.lost:
                    tiled = self._lose(writer, rank, tiled)
                writer.rows(name, tiled)

    def _strings(self, writer: Writer, rank: int) -> np.ndarray:
        """Write the strings of the template. Returns the new id of each string. Payloads get the communicators of the
        rank."""
        for text in self.template.strings:
            writer.string(text)
        texts = ["", *self.template.strings]
        replaced = np.arange(len(texts), dtype=np.uint32)
        rows = self.template.rows["nvtx_ranges"]
        for start, number in self.template.ranges.items():
            (old,) = rows["arguments"][rows["start"] == start][:1]
            kind = str(self.template.kinds[number])
            group = int(self.groups[kind][rank])
            # This number is equal for all ranks of the group, and unique to the group.
            identity = (self.seed << 40) + (("data", "tensor", "pipeline").index(kind) << 32) + group + 1
            text = _COMMUNICATOR.sub(str(identity), texts[old])
            replaced[old] = writer.string(text)
        if not self.payloads:
            replaced[:] = 0
        return replaced

    def _snapshots(self, boot: int, wrong: int, first: int, last: int) -> np.ndarray:
        rows = self.template.clocks[:3].copy()
        away = np.array([first, (first + last) // 2, last], np.uint64)
        # The wall clock has the time of the original capture at the common start.
        rows["realtime"] = np.uint64(int(self.template.clocks["realtime"][0]) + wrong) + away
        rows["boottime"] = np.uint64(boot) + away
        return rows

    def _tiled(self, name: str, rows: np.ndarray, rank: int, boot: int, copies: range) -> np.ndarray:
        parts = []
        for copy in range(self.copies):
            # The random numbers of a copy do not depend on which copies are written.
            random = np.random.default_rng((self.seed, 2, rank, copy))
            if copy in copies:
                parts.append(self._copy(name, rows, rank, boot, copy, random))
        return np.concatenate(parts)

    def _copy(
        self, name: str, rows: np.ndarray, rank: int, boot: int, copy: int, random: np.random.Generator
    ) -> np.ndarray:
        template = self.template
        part = rows.copy()
        for time in (time for time in _TIMES if time in rows.dtype.names):
            moved = self._moved(rows[time], rank, copy)
            part[time] = np.where(rows[time] > 0, moved.astype(np.uint64) + np.uint64(boot), rows[time])
        if "correlation" in rows.dtype.names:
            part["correlation"] += np.uint32(copy * template.correlations)
        takes_part = self._takes_part[rank, copy]
        if name == "kernels":
            slow = self.facts.slow.get(rank, 1.0)
            length = (rows["end"] - rows["start"]) * random.normal(slow, JITTER, len(rows))
            length *= self._factors[rows["launch"]]
            part["end"] = part["start"] + np.maximum(length, 1).astype(np.uint64)
            end = self._ends[rank, copy] + random.uniform(0, END_NS, len(takes_part))
            part["start"][template.collective] = self._starts[rank, copy].astype(np.uint64) + np.uint64(boot)
            part["end"][template.collective] = end.astype(np.uint64) + np.uint64(boot)
            kept = np.ones(len(rows), bool)
            kept[template.collective] = takes_part
            return part[kept]
        if name == "nvtx_ranges":
            calls = [template.ranges.get(int(start), -1) for start in rows["start"]]
            return part[[call < 0 or bool(takes_part[call]) for call in calls]]
        if name == "api_calls" and rank in self.facts.heavy:
            # Calls that launch nothing, such as queries of errors.
            more = np.repeat(part, self.facts.heavy[rank] - 1)
            more["correlation"] = 0
            return np.concatenate([part, more])
        return part

    def _lose(self, writer: Writer, rank: int, kernels: np.ndarray) -> np.ndarray:
        random = np.random.default_rng((self.seed, 4, rank))
        kept = random.uniform(size=len(kernels)) >= self.facts.lost[rank]
        writer.losses([("memory_limit", int((~kept).sum()), "kernels")])
        return kernels[kept]

    def _moved(self, times: np.ndarray, rank: int, copy: int) -> np.ndarray:
        """Move times of the original to a copy (ns since the start). Each collective starts after the wait for the
        others."""
        template = self.template
        before = 0.0
        if copy:
            before = self._ends[rank, copy - 1, -1] + self._durations[rank, copy - 1, -1] + self.pause
        known = np.maximum(times.astype(np.int64) - template.start, 0)
        call = np.searchsorted(template.arrival, known, side="left")
        # A segment starts at the end of the previous collective.
        begins = np.concatenate([[before], self._ends[rank, copy]])
        offsets = np.concatenate([[0], template.arrival])
        lengths = np.append(self._starts[rank, copy] - begins[:-1], self._durations[rank, copy, -1])
        stretch = lengths / self._segments
        moved: np.ndarray = begins[call] + (known - offsets[call]) * stretch[call]
        return moved


def simulate(
    folder: Path, ranks: int, copies: int, facts: Facts, *, seed: int = 2, job: str = "train", **how: Any
) -> list[Path]:
    """Write the captures of a job. Returns their paths. ``how`` has arguments of :class:`Simulation`."""
    folder = folder / job
    folder.mkdir(parents=True, exist_ok=True)
    simulation = Simulation(ranks, copies, facts, seed=seed, **how)
    written = []
    for rank in range(ranks):
        if rank not in facts.missing:
            written += _write(simulation, rank, folder / f"rank{rank:04}.bin")
    return written


def _write(simulation: Simulation, rank: int, path: Path) -> list[Path]:
    """Write the files of a rank."""
    facts = simulation.facts
    again = facts.restarted.get(rank)
    if again:
        simulation.write(rank, path, range(again))
        second = path.with_name(f"{path.stem}-restarted.bin")
        simulation.write(rank, second, range(again, simulation.copies), life=1)
        return [path, second]
    simulation.write(rank, path)
    written = [path]
    if rank in facts.killed:
        # Tear the last block, which says that the recording ended.
        path.write_bytes(path.read_bytes()[:-20])
    if rank in facts.duplicates:
        written.append(path.with_name(f"{path.stem}-copy.bin"))
        shutil.copyfile(path, written[1])
    if rank in facts.formats:
        other = path.with_suffix(facts.formats[rank])
        cutrace.convert(path, other)
        path.unlink()
        written[0] = other
    return written


def main() -> None:
    parser = options.parser(__doc__)
    parser.add_argument("folder", type=Path, help="the folder for the captures, which go into FOLDER/train")
    parser.add_argument("--ranks", type=int, default=64, help="captures to write (64)")
    parser.add_argument("--copies", type=int, default=16, help="repetitions of the capture, each of two steps (16)")
    parser.add_argument("--layout", default="1x1x0", help="sizes of tensor, pipeline and data groups: 4x2x8")
    args = parser.parse_args()
    facts = Facts.of(args.ranks)
    layout = Layout(*map(int, args.layout.split("x")))
    simulate(args.folder, args.ranks, args.copies, facts, layout=layout)
    planted = {name: fact for name, fact in asdict(facts).items() if fact}
    print(json.dumps(planted))


if __name__ == "__main__":
    main()
