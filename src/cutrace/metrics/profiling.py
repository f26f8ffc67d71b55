"""Hardware metrics of chosen kernels, of their instructions or of whole NVTX ranges: a program is recorded without
counters, then run again with them.

The first run says what each kernel took, and which launches are meant. In the second, libcutrace_profiler.so replays
those and nothing else, and records nothing. A launch is known by its kernel's name and by its number among the
launches of that kernel in its process, so the program has to launch the same each time.
Ranges are chosen likewise and counted as a whole, without a replay.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from .._native import demangle
from ..analysis.names import normalize_kernel
from ..analysis.tables import Cell, Column, Table
from ..collect.checks import counters_refused
from ..collect.command import record_command, run_command
from ..collect.environment import CUDA, NVTX
from ..collect.library import installed
from ..collect.options import Options, completed
from ..errors import CutraceError
from ..loading import load, selected
from ..outputs import check_output, replacing, scratch
from ..runbin.layout import TABLES
from ..runbin.writer import Writer
from ..slicing import Conditions, resolve
from ..trace import Trace
from ..units import count_of
from . import instructions, nvtx_ranges
from .cupti import Cupti, advised
from .host import Chip, first_chip, undisturbed
from .nvtx_ranges import Range
from .sets import chosen

#: What is counted of kernels, and of ranges, unless somebody says.
DEFAULT, DEFAULT_OF_RANGES = "speed-of-light,occupancy", "overview"
#: Kernels whose instructions are counted at most: each takes a run of its own.
KERNELS = 8
_LIBRARY = "libcutrace_profiler.so"
_PLAN = "CUTRACE_PROFILE"
#: What the rows of the second run say of their process, as the first run does.
_WHO = ("pid", "parent_pid", "host", "boot_id", "command", "executable", "started", "cupti_version")


@dataclass(frozen=True)
class Launch:
    """A launch: which of its kernel's in its process (from 0), its row of ``kernels``, and its grid and block.

    ``place`` is that of its process among all that run a launch of these names and numbers, by process id.
    """

    process: int
    kernel: str
    ordinal: int
    row: np.void
    shape: tuple[int, ...]
    place: int = 0

    @property
    def title(self) -> str:
        """The name of its kernel, for people."""
        return normalize_kernel(demangle(self.kernel))

    def columns(self, to: Writer) -> dict[str, int]:
        """What a row of ``kernel_metrics`` says of it."""
        return {"correlation": int(self.row["correlation"]), "device": int(self.row["device"])}


@dataclass(frozen=True)
class Instruction:
    """An instruction, ``offset`` bytes into a (mangled) function: its ``file`` and ``line`` (empty and 0 where nothing
    is known), and its ``values``, sums over ``launches``. ``process`` is that of the first run."""

    process: int
    device: int
    launches: int
    function: str
    offset: int
    line: int
    values: tuple[float, ...]
    file: str


@dataclass
class Profile:
    """What came of profiling a command: ``names`` and ``units`` of metrics, ``values`` of each launch or range, or
    the ``instructions`` of all launches, and ``notes`` on what went wrong. ``status`` is the exit status of the command
    in its last run.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: list[tuple[Launch | Range, tuple[float, ...]]] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    status: int = 0

    def table(self) -> Table:
        """The metrics of all launches or ranges, a row each. Times are those of the first run (ns)."""
        of_ranges = any(isinstance(counted, Range) for counted, _ in self.values)
        what, number = ("range", "number") if of_ranges else ("kernel", "launch")
        columns = (
            Column(what, "text"), Column(number), Column("time", "ns"), Column("metric", "text"),
            Column("value", "number"), Column("unit", "text", spare=True),
        )  # fmt: skip
        rows: list[tuple[Cell, ...]] = []
        for counted, values in self.values:
            if not values:  # only its instructions were counted
                continue
            title, took = counted.title, int(counted.row["end"] - counted.row["start"])
            rows += [
                (title, counted.ordinal, took, name, value, unit)
                for name, value, unit in zip(self.names, values, self.units, strict=True)
            ]
        return Table("metrics", f"Metrics of {'ranges' if of_ranges else 'launches'}", columns, rows)


def profile(
    command: Sequence[str],
    output: str | os.PathLike[str],
    *,
    lines: bool = False,
    metrics: str | None = None,
    kernel: str | None = None,
    nvtx: str | None = None,
    ranges: str | None = None,
    skip: int = 0,
    count: int | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Profile:
    """Run a command twice: once recorded, once to count hardware metrics of chosen launches, or of whole NVTX ranges.
    The capture of the first run, with the metrics, is written to ``output``.

    ``metrics`` are sets and names as ``SET|NAME,...``, :data:`DEFAULT` unless given. With ``lines`` they are counted of
    each instruction, as sums over the launches: names as ``NAME,...``, :data:`.instructions.DEFAULT` unless given. The
    command then runs once more for each kernel, for :data:`KERNELS` at most.

    ``kernel`` is a regular expression on demangled names, ``nvtx`` the name of ranges around the launch; of what is
    left in each process, the first ``skip`` launches are left out, and ``count`` taken at most. ``ranges`` is the name
    of NVTX ranges that are counted in place of launches, each as a whole and in one pass, :data:`DEFAULT_OF_RANGES`
    unless ``metrics`` are given. ``say`` is told what goes on, in sentences. Where the first run fails, nothing is
    written, and the status is its.

    Raises :class:`CutraceError` when there is no GPU, its counters may not be read, nothing is meant, a metric is
    unknown, the metrics of ranges need several passes, or the command cannot be run.
    """
    if ranges is not None and (lines or kernel or nvtx):
        raise CutraceError("ranges are counted as a whole: give them alone, without lines, kernel and nvtx")
    output = Path(output)
    check_output(output)
    installed(_LIBRARY)
    if not lines and (refused := counters_refused()):
        raise CutraceError(": ".join(refused))
    with undisturbed():
        cupti = Cupti.found()
        name = first_chip(cupti)
        if name is None:
            raise CutraceError(
                "there is no GPU here whose counters could be read: `cutrace doctor` checks this machine"
            )
        if lines:
            config = instructions.configure(cupti, name, instructions.DEFAULT if metrics is None else metrics)
        else:
            default = DEFAULT if ranges is None else DEFAULT_OF_RANGES
            with Chip(cupti, name) as chip:
                config = chip.configure(chosen(chip, default if metrics is None else metrics))
    if ranges is not None:
        config.must_fit_a_range()
    with scratch() as folder:
        began = time.monotonic()
        recording = record_command(command, folder / "run.bin", completed(Options()))
        if recording.status or recording.output is None:
            reason = f"ended with {recording.status}" if recording.status else "made no CUDA call that could be seen"
            note = f"nothing was profiled: the command {reason} in its first run"
            return Profile(config.names, config.units, notes=[note], status=recording.status)
        with load(recording.output) as trace:
            done = Profile(config.names, config.units)
            if ranges is None:
                launches, omitted = choose(trace, kernel, nvtx, skip, count)
                apart = stretches(launches)[:KERNELS] if lines else [launches]
                counted = "instructions" if lines else "launches"
                runs = [partial(_replay, command, some, done, counted) for some in apart]
                what, number, of = "launch", sum(map(len, apart)), "the instructions of " if lines else ""
                why = "inside CUDA graphs, which cannot be replayed one by one"
                if more := len(launches) - number:
                    say(
                        f"left out: {count_of(more, what)}. Instructions are counted of the {KERNELS} kernels with "
                        "most time, of each the first launches that follow each other: --kernel chooses"
                    )
            else:
                whole, omitted = nvtx_ranges.choose(trace, ranges, skip, count)
                runs = [partial(_count, command, whole, done)]
                what, number, of = "range", len(whole), ""
                why = "that began inside another one: the GPU counts one at a time"
                if any(loss.reason == "nvtx_dropped" for loss in trace.quality.losses):
                    done.notes.append("NVTX events of the first run were lost, so ranges can have other numbers there")
            how = f"{count_of(len(runs), 'more run')}" if lines else f"{count_of(config.passes, 'pass')} each"
            say(
                f"counting {count_of(len(config.names), 'metric')} of {of}{count_of(number, what)} in {how}; "
                f"the first run took {time.monotonic() - began:.1f} s"
            )
            if omitted:
                say(f"left out: {count_of(omitted, what)} {why}")
            began = time.monotonic()
            for run in runs:
                if not done.status:
                    run()
            _write(trace, done, output)
    others = "the second run" if len(runs) == 1 else f"the other {len(runs)} runs"
    say(f"{count_of(len(done.values), what)} profiled; {others} took {time.monotonic() - began:.1f} s")
    return done


def stretches(launches: Sequence[Launch]) -> list[list[Launch]]:
    """The launches of each kernel whose instructions can be counted together: in each process the first that follow
    each other. Kernels that took more time come first."""
    kernels: dict[str, list[Launch]] = defaultdict(list)
    ends: dict[tuple[str, int], int] = {}
    for launch in launches:
        key = launch.kernel, launch.process
        if ends.get(key, launch.ordinal - 1) == launch.ordinal - 1:
            ends[key] = launch.ordinal
            kernels[launch.kernel].append(launch)
    return sorted(kernels.values(), key=lambda some: -sum(int(one.row["end"] - one.row["start"]) for one in some))


def choose(
    trace: Trace, kernel: str | None, nvtx: str | None, skip: int, count: int | None
) -> tuple[list[Launch], int]:
    """The launches whose kernels ``kernel`` (a regular expression) is found in, inside NVTX ranges ``nvtx``; of each
    process all but the first ``skip``, and at most ``count``. Also how many more run inside CUDA graphs, where they
    cannot be replayed one by one.

    Raises :class:`CutraceError` when nothing is meant.
    """
    conditions = Conditions(kernel=(f"/{kernel}/",) if kernel else (), nvtx=(nvtx,) if nvtx else ())
    with selected(trace, resolve(trace, conditions)[0]) as part:
        pids = [process.pid for process in part.processes]
        wanted = {(pids[row["process"]], int(row["correlation"])) for row in part.kernels}
    launches, in_graphs = [], 0
    per_process: dict[int, int] = defaultdict(int)
    for launch in _launched(trace):
        if (trace.processes[launch.process].pid, int(launch.row["correlation"])) not in wanted:
            continue
        if trace.launches[launch.row["launch"]]["graph"]:
            in_graphs += 1
            continue
        number = per_process[launch.process]
        per_process[launch.process] += 1
        if number >= skip and (count is None or number < skip + count):
            launches.append(launch)
    if not launches:
        found = f"{count_of(sum(per_process.values()), 'launch')} met the filter"
        graphs = f", and {in_graphs} inside CUDA graphs, which cannot be replayed one by one" if in_graphs else ""
        raise CutraceError(f"nothing is left to profile: {found}{graphs}. Change --kernel, --nvtx, --skip or --count.")
    return _placed(trace, launches), in_graphs


def _placed(trace: Trace, launches: list[Launch]) -> list[Launch]:
    """The launches with their places: the second run knows them by name and number, so other processes count theirs."""
    if len(trace.processes) == 1:
        return launches
    meant = {(launch.kernel, launch.ordinal) for launch in launches}
    counting = {
        launch.process
        for launch in _launched(trace)
        if (launch.kernel, launch.ordinal) in meant and not trace.launches[launch.row["launch"]]["graph"]
    }
    places = sorted(counting, key=lambda process: trace.processes[process].pid)
    return [replace(launch, place=places.index(launch.process)) for launch in launches]


def _launched(trace: Trace) -> Iterator[Launch]:
    """The kernels of a trace in the order of their launches in each process, with their numbers."""
    kernels, configurations = trace.kernels, trace.launches
    seen: dict[tuple[int, str], int] = defaultdict(int)
    for row in kernels[np.lexsort((kernels["correlation"], kernels["process"]))]:
        configuration = configurations[row["launch"]]
        name, process = trace.strings[int(configuration["name"])], int(row["process"])
        shape = tuple(int(configuration[f"{what}_{axis}"]) for what in ("grid", "block") for axis in "xyz")
        ordinal = seen[process, name]
        if not configuration["graph"]:
            seen[process, name] += 1
        yield Launch(process, name, ordinal, row, shape)


@contextmanager
def _second_run(command: Sequence[str], done: Profile, plan: str, text: bytes, *variables: str) -> Iterator[list[Path]]:
    """Run a command again, with the profiler by these environment variables and ``text`` as its file ``plan``. Gives
    the files with the values of its processes, by process id."""
    with scratch() as folder:
        (folder / plan).write_bytes(text)
        environment = {**os.environ, **dict.fromkeys(variables, str(installed(_LIBRARY))), _PLAN: str(folder)}
        done.status = run_command(command, environment)
        yield sorted(folder.glob("*.values"), key=lambda path: int(path.stem))


def _words(done: Profile, file: Path) -> list[list[str]]:
    """The lines of a file with values as words. Errors become notes."""
    lines = [line.split("\t") for line in file.read_text(errors="surrogateescape").splitlines()]
    done.notes += [advised(words[-1]) for words in lines if words[0] == "error"]
    return [words for words in lines if words[0] != "error"]


def _replay(command: Sequence[str], launches: Sequence[Launch], done: Profile, counted: str) -> None:
    """Run a command again and count the metrics of these launches, or of their instructions."""
    planned = sorted({(launch.ordinal, launch.kernel) for launch in launches})
    head = [completed(Options()).cupti or "", counted, ",".join(done.names)]
    lines = [*head, *(f"{n} {kernel}" for n, kernel in planned)]
    text = ("\n".join(lines) + "\n").encode(errors="surrogateescape")
    with _second_run(command, done, "plan", text, CUDA) as files:
        found = _match(done, launches, [_words(done, path) for path in files])
        done.values += found
        processes = {launch.place: launch.process for launch, _ in found}
        for place, path in enumerate(files):
            counts = path.with_suffix(".instructions")
            if place in processes and counts.exists():
                lines = counts.read_text(errors="surrogateescape").splitlines()
                done.instructions += [_instruction(processes[place], line, len(done.names)) for line in lines]


def _count(command: Sequence[str], ranges: Sequence[Range], done: Profile) -> None:
    """Run a command again and count the metrics of these NVTX ranges."""
    keys, text = nvtx_ranges.plan(completed(Options()).cupti or "", done.names, ranges)
    with _second_run(command, done, "ranges", text, CUDA, NVTX) as files:
        counted = [
            {keys[int(words[0])]: (int(words[1]), tuple(map(float, words[2:]))) for words in _words(done, path)}
            for path in files
        ]
    for each in ranges:
        found = counted[each.place].get(each.key) if each.place < len(counted) else None
        if found is not None:
            done.values.append((replace(each, device=found[0]), found[1]))
    _note_missing(done, len(ranges) - len(done.values), "range")


def _instruction(process: int, line: str, metrics: int) -> Instruction:
    device, launches, function, offset, number, *rest = line.split("\t", 5 + metrics)
    values = tuple(map(float, rest[:metrics]))
    return Instruction(process, int(device), int(launches), function, int(offset), int(number), values, rest[metrics])


def _match(
    done: Profile, launches: Sequence[Launch], files: Sequence[Sequence[Sequence[str]]]
) -> list[tuple[Launch, tuple[float, ...]]]:
    """The launches with the values that the process in the place of each counted."""
    counted = [
        {(w[7], int(w[0])): (tuple(map(int, w[1:7])), tuple(map(float, w[8:]))) for w in lines} for lines in files
    ]
    matched, other = [], 0
    for launch in launches:
        found = counted[launch.place].get((launch.kernel, launch.ordinal)) if launch.place < len(counted) else None
        if found is not None and found[0] == launch.shape:
            matched.append((launch, found[1]))
        elif found is not None:
            other += 1
    if other:
        done.notes.append(
            f"{count_of(other, 'launch')} had another grid or block in the second run, and has no metrics of its own: "
            "the program does not launch the same each time"
        )
    _note_missing(done, len(launches) - len(matched) - other, "launch")
    return matched


def _note_missing(done: Profile, missing: int, what: str) -> None:
    if missing:
        done.notes.append(
            f"{count_of(missing, what)} of the first run did not come in the second, or could not be counted"
        )


def _write(trace: Trace, done: Profile, output: Path) -> None:
    """Write the capture of the first run with the metrics, as rows of ``kernel_metrics`` or ``instruction_metrics``."""
    with replacing(output) as temporary, temporary.open("wb") as file:
        for piece in trace.contents(1 << 20):
            file.write(piece)
        for process in trace.processes:
            mine = [(one, values) for one, values in done.values if one.process == process.index and values]
            of_instructions = [one for one in done.instructions if one.process == process.index]
            if not mine and not of_instructions:
                continue
            info = {key: process.info[key] for key in _WHO if key in process.info}
            with Writer(output, file=file, **info) as to:
                devices = trace.devices[trace.devices["process"] == process.index].copy()
                for column in ("name", "pci"):
                    devices[column] = [to.string(trace.strings[int(text)]) for text in devices[column]]
                to.rows("devices", devices)
                if mine:
                    to.rows("kernel_metrics", _rows(to, done, mine))
                if of_instructions:
                    to.rows("instruction_metrics", _rows_of_instructions(to, done, of_instructions))


def _rows(to: Writer, done: Profile, counted: Sequence[tuple[Launch | Range, tuple[float, ...]]]) -> np.ndarray:
    rows = np.zeros((len(counted), len(done.names)), TABLES["kernel_metrics"].dtype)
    for row, (one, values) in zip(rows, counted, strict=True):
        for column, value in {"start": one.row["start"], "end": one.row["end"], **one.columns(to)}.items():
            row[column] = value
        row["value"] = values
    _name(to, done, rows)
    return rows[np.argsort(rows["start"][:, 0], kind="stable")].reshape(-1)


def _rows_of_instructions(to: Writer, done: Profile, counted: Sequence[Instruction]) -> np.ndarray:
    rows = np.zeros((len(counted), len(done.names)), TABLES["instruction_metrics"].dtype)
    for row, one in zip(rows, counted, strict=True):
        row["device"], row["launches"], row["offset"], row["line"] = one.device, one.launches, one.offset, one.line
        row["function"], row["file"] = to.string(one.function), to.string(one.file)
        row["value"] = one.values
    _name(to, done, rows)
    by_metric: np.ndarray = rows.T.reshape(-1)
    return by_metric


def _name(to: Writer, done: Profile, rows: np.ndarray) -> None:
    rows["name"] = [to.string(name) for name in done.names]
    rows["unit"] = [to.string(unit) for unit in done.units]
