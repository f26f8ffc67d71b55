"""Hardware metrics of selected kernels, of their instructions, or of whole NVTX ranges.

libcutrace_profiler.so replays only the chosen launches, or counts the chosen ranges as a whole, and records nothing.
Kernels are chosen by name while the program runs (:mod:`.chosen`). With a timeline, ranges or instructions, the program
is recorded without counters before. That run gives the times, the launches and the ranges (:mod:`.work`).
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...analysis.tables import Cell, Table, columns_of
from ...arguments import checked
from ...collect.checks import counters_refused
from ...collect.command import record_command, run_command, signals_blocked
from ...collect.environment import CUDA, NVTX
from ...collect.library import installed
from ...collect.options import Options, completed
from ...errors import CutraceError
from ...loading import load
from ...outputs import check_output, replacing, scratch
from ...patterns import Patterns, any_matcher, several
from ...runbin.layout import CACHES, TABLES
from ...runbin.writer import Writer
from ...trace import Trace
from ...units import count_of
from . import instructions, work
from .chosen import NOTE, KernelChoice, ProcessValues, with_time
from .cupti import Cupti, advised
from .host import Chip, Config, first_chip
from .sets import chosen
from .work import CountedWork, Key, Launch, Range, placed

#: The default metrics of kernels, and of ranges.
DEFAULT = "why"
DEFAULT_OF_RANGES = "overview"
#: The largest number of kernels for counts of instructions, because each kernel needs a separate run.
KERNELS = 8
_LIBRARY = "libcutrace_profiler.so"
_PLAN = "CUTRACE_PROFILE"
# The variable with the time (ms) that launches of the second run wait for a counted launch. See
# native/profiler/inject.cpp.
_PATIENCE = "CUTRACE_PROFILE_PATIENCE_MS"
# The shortest such wait.
_LEAST_PATIENCE = 20_000
# The wait for each pass is this many times as long as the longest launch.
_TIMES_A_PASS = 10
# A kernel that counts its own instructions takes about as long as this many passes.
_PASSES_OF_LINES = 10
#: The information about a process that the part with metrics copies from the first run.
_WHO = (
    "pid",
    "parent_pid",
    "host",
    "boot_id",
    "command",
    "executable",
    "started",
    "cupti_version",
)

_Counted = TypeVar("_Counted", bound=CountedWork)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class CountedInstruction:
    """An instruction at ``offset`` bytes of a function with a mangled name. ``file`` and ``line`` are empty and 0 if
    unknown. ``values`` are sums over ``launches``. ``process`` is the index in the first run."""

    process: int
    device: int
    launches: int
    function: str
    offset: int
    line: int
    values: tuple[float, ...]
    file: str


@dataclass(frozen=True)
class Counted:
    """A launch or a range (``work``) with its ``values`` by metric. ``caches`` is the state of the caches at its start,
    a key of :data:`~cutrace.runbin.layout.CACHES`."""

    work: CountedWork
    values: tuple[float, ...]
    caches: int


@dataclass
class Profile:
    """The result of :func:`profile`. It has ``names`` and ``units`` of metrics, ``values`` of each launch or range or
    the ``instructions`` of all launches, and ``notes`` on problems. ``caches`` is the requested state. ``status`` is
    the exit status of the last run.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    caches: str
    values: list[Counted] = field(default_factory=list)
    instructions: list[CountedInstruction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    status: int = 0

    def of_process(self, process: int) -> list[Counted]:
        """The launches or ranges of a process that have values."""
        counted = []
        for one in self.values:
            has_values = bool(
                one.values
            )  # without values, only its instructions were counted
            if has_values and one.work.process == process:
                counted.append(one)
        return counted

    def table(self) -> Table:
        """The metrics of all launches or ranges, one row for each value. Times (ns) are those of the capture."""
        title = "Metrics of launches"
        identity = "kernel: text, launch"
        if any(isinstance(counted.work, Range) for counted in self.values):
            title = "Metrics of ranges"
            identity = "range: text, number"
        columns = columns_of(
            f"{identity}, time: ns, metric: text, value: number, unit: text spare, caches: text spare"
        )
        rows: list[tuple[Cell, ...]] = []
        for counted in self.values:
            if not counted.values:  # only its instructions were counted
                continue
            work = counted.work
            about = (work.title, work.number, work.time)
            values = zip(self.names, counted.values, self.units, strict=True)
            for name, value, unit in values:
                rows.append((*about, name, value, unit, CACHES[counted.caches]))
        return Table("metrics", title, columns, rows)


@checked
def profile(
    command: Sequence[str],
    output: str | os.PathLike[str],
    *,
    lines: bool = False,
    metrics: str | None = None,
    kernel: Patterns | None = None,
    nvtx: Patterns | None = None,
    ranges: str | None = None,
    skip: int = 0,
    count: int | None = None,
    caches: str | None = None,
    recorded: str | os.PathLike[str] | None = None,
    timeline: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Profile:
    """Run a command and count hardware metrics of selected launches or of whole NVTX ranges. Writes a capture with the
    counted launches and their metrics to ``output``. Their times are those of ``gpu__time_duration.sum``.

    With ``timeline``, ``nvtx``, ``ranges`` or ``lines``, the command runs twice, first without counters. The capture
    is that of the first run, including the metrics.

    ``metrics`` are sets and names as ``SET|NAME,...``; the default is :data:`DEFAULT`. With ``lines``, metrics are
    counted for each instruction and summed over the launches. ``metrics`` are then names as ``NAME,...``; the default
    is :data:`.instructions.DEFAULT`. The command runs again for each kernel, for at most :data:`KERNELS`.

    ``kernel`` are patterns of kernel names and ``nvtx`` of ranges around the launch, as in :class:`.Conditions`. In
    each process, the first ``skip`` of these launches are skipped and at most ``count`` are counted. ``ranges`` is the
    name of NVTX ranges to count instead of launches, each as a whole and in one pass. The default of ``metrics`` is
    then :data:`DEFAULT_OF_RANGES`. With ``caches="flush"``, the caches of the GPU are flushed before each pass of a
    launch or before each range. With ``caches="keep"`` they are not flushed. The default is ``flush`` for launches and
    ``keep`` for ranges. ``recorded`` is a capture of the same command by ``cutrace record``, in place of the first
    run. ``say`` receives progress messages. If the first of two runs fails, nothing is written, and the result has its
    exit status.

    Raises :class:`CutraceError` if there is no GPU, its counters cannot be read, no launch or range is selected, the
    first run lost launches, ``recorded`` lacks the start of the program or already has metrics, a metric is unknown,
    the metrics of ranges need several passes, or the command cannot be run.
    """
    if ranges is not None and (lines or kernel or nvtx):
        raise CutraceError(
            "ranges are counted as a whole: give them alone, without lines, kernel and nvtx"
        )
    if lines and caches is not None:
        raise CutraceError(
            "instructions are counted while the program runs: leave out `caches=`"
        )
    # Raises an error for a wrong pattern before the command runs.
    for patterns in (kernel, nvtx, ranges):
        any_matcher(several(patterns or ()))
    output = Path(output)
    sources = []
    if recorded is not None:
        sources.append(recorded)
    check_output(output, sources, endings=(".bin",))
    installed(_LIBRARY)
    if not lines:
        refused = counters_refused()
        if refused:
            raise CutraceError(": ".join(refused))
    config = _configured(metrics, lines=lines, of_ranges=ranges is not None)
    if caches is None:
        caches = "flush"
        if ranges is not None or lines:
            caches = "keep"
    done = Profile(config.names, config.units, caches)
    twice = timeline or lines or nvtx or ranges is not None or recorded is not None
    if not twice:
        metrics = count_of(len(config.names), "metric")
        passes = count_of(config.passes, "pass")
        say(f"counting {metrics} of the chosen launches in {passes} each")
        _count_chosen(command, output, kernel, skip, count, done, say)
        return done
    with scratch() as folder:
        first_run = None
        if recorded is None:
            began = time.monotonic()
            first = _first_run(command, folder / "run.bin", done)
            first_run = time.monotonic() - began
            if first is None:
                return done
        else:
            first = Path(recorded)
        with load(first) as trace:
            if recorded is not None:
                _refuse_parts(trace, first)
            if ranges is not None:
                counting = _count_ranges(trace, command, ranges, skip, count, done)
            else:
                _refuse_lost_launches(trace)
                launches, omitted = work.choose_launches(
                    trace,
                    kernel,
                    nvtx,
                    skip,
                    count,
                )
                if lines:
                    counting = _count_lines(trace, command, launches, done)
                else:
                    counting = _count_launches(
                        trace,
                        command,
                        launches,
                        done,
                        config.passes,
                    )
                counting.omitted = omitted
            for sentence in counting.sentences(len(config.names), first_run):
                say(sentence)
            began = time.monotonic()
            for run in counting.runs:
                if not done.status:
                    run()
            _write(trace, done, output)
    if len(counting.runs) == 1:
        others = "the second run"
    else:
        others = f"the other {len(counting.runs)} runs"
    took = time.monotonic() - began
    number = count_of(len(done.values), counting.what)
    say(f"{number} profiled; {others} took {took:.1f} s")
    return done


def _count_chosen(
    command: Sequence[str],
    output: Path,
    kernel: Patterns | None,
    skip: int,
    count: int | None,
    done: Profile,
    say: Callable[[str], None],
) -> None:
    """Run a command once, count its launches of matching kernels, and write their capture. Raises
    :class:`CutraceError` if no launch is selected."""
    choice = KernelChoice(kernel)
    limit = b"" if count is None else str(count).encode()
    keys = [((limit, b""), skip)]
    began = time.monotonic()
    with _counting_run(command, done, "chosen", keys, CUDA, choice=choice) as files:
        processes = [ProcessValues(path) for path in files]
        for process in processes:
            process.read(done.names)
    took = time.monotonic() - began
    for process in processes:
        done.notes += process.notes
    working = [process for process in processes if process.launches]
    if not working:
        if done.status:
            done.notes.append(
                f"nothing was profiled: the command ended with {done.status}"
            )
        elif not (choice.chosen and done.notes):
            for note in done.notes:
                say(note)
            choice.refuse(count_of(skip, "launch"))
        return
    _write_chosen(working, choice, done, output)
    say(f"{count_of(len(done.values), 'launch')} profiled in {took:.1f} s")


def _write_chosen(
    processes: Sequence[ProcessValues],
    choice: KernelChoice,
    done: Profile,
    output: Path,
) -> None:
    """Write a capture of the counted launches, and add their values to the profile."""
    with replacing(output) as temporary, temporary.open("wb") as file:
        for index, process in enumerate(processes):
            info = choice.processes[process.pid]
            notes = list(dict.fromkeys([NOTE, *process.notes]))
            with Writer(output, file=file, **info, notes=notes) as to:
                process.write(to)
                launches = zip(
                    process.launches, process.values, process.caches, strict=True
                )
                counted = []
                for launch, values, caches in launches:
                    work = replace(launch, process=index)
                    counted.append(Counted(work, values, caches))
                to.rows("kernel_metrics", _rows(to, done, counted))
                done.values += counted


def _first_run(command: Sequence[str], capture: Path, done: Profile) -> Path | None:
    """Record a command without counters. Returns the capture, or None with a note if there is nothing to profile."""
    recording = record_command(command, capture, completed(Options()))
    if not recording.status and recording.output is not None:
        return recording.output
    reason = "made no CUDA call that was recorded"
    if recording.status:
        reason = f"ended with {recording.status}"
    done.notes.append(f"nothing was profiled: the command {reason} in its first run")
    done.status = recording.status
    return None


def _refuse_parts(trace: Trace, path: Path) -> None:
    """Raise :class:`CutraceError` unless the capture of a first run has all launches and ranges, and no metrics."""
    if trace.kernel_metrics.size or trace.instruction_metrics.size:
        raise CutraceError(
            f"{path} already has metrics: give the capture that `cutrace record` wrote"
        )
    working = np.union1d(trace.kernels["process"], trace.nvtx_ranges["process"])
    for process in working.tolist():
        if not trace.processes[process].from_start:
            raise CutraceError(
                f"{path} does not start with the program, so launches cannot be found in another run by their numbers: "
                "record the whole program with `cutrace record`, and do not cut the capture"
            )


def _configured(metrics: str | None, *, lines: bool, of_ranges: bool) -> Config:
    """The configuration that counts these metrics on the first GPU. Raises :class:`CutraceError` if there is no GPU."""
    if metrics is None:
        if lines:
            metrics = instructions.DEFAULT
        elif of_ranges:
            metrics = DEFAULT_OF_RANGES
        else:
            metrics = DEFAULT
    # The threads that CUDA starts here would receive signals for the main thread.
    with signals_blocked(signal.valid_signals()):
        cupti = Cupti.found()
        name = first_chip(cupti)
        if name is None:
            raise CutraceError(
                "no GPU with readable counters was found: run `cutrace doctor` to check this machine"
            )
        if lines:
            return instructions.configure(cupti, name, metrics)
        with Chip(cupti, name) as chip:
            config = chip.configure(chosen(chip, metrics))
    if of_ranges:
        config.must_fit_one_pass("a range runs once")
    return config


@dataclass
class _Counting:
    """The further ``runs``, and the values of the messages before them. ``number`` launches or ranges (``what``) are
    counted in several runs or passes (``how``). ``omitted`` others are not counted, for the reason ``why``."""

    runs: Sequence[Callable[[], None]]
    what: str
    number: int
    how: str
    why: str
    omitted: int = 0
    of: str = ""
    notes: list[str] = field(default_factory=list)

    def sentences(self, metrics: int, first_run: float | None) -> Iterator[str]:
        """Yield the messages between the first run, which took ``first_run`` seconds, and the further runs."""
        yield from self.notes
        what = f"{self.of}{count_of(self.number, self.what)}"
        counting = f"counting {count_of(metrics, 'metric')} of {what} in {self.how}"
        if first_run is not None:
            counting += f"; the first run took {first_run:.1f} s"
        yield counting
        if self.omitted:
            yield f"left out: {count_of(self.omitted, self.what)} {self.why}"


_IN_GRAPHS = "inside CUDA graphs, which cannot be replayed one by one"


def _count_launches(
    trace: Trace,
    command: Sequence[str],
    launches: Sequence[Launch],
    done: Profile,
    passes: int,
) -> _Counting:
    """Count all launches in one further run."""
    places = placed(trace, launches, work.launches(trace))
    run = partial(_replay, command, *places, done, "launches", passes)
    how = f"{count_of(passes, 'pass')} each"
    return _Counting([run], "launch", len(launches), how, _IN_GRAPHS)


def _count_lines(
    trace: Trace,
    command: Sequence[str],
    launches: Sequence[Launch],
    done: Profile,
) -> _Counting:
    """Count the instructions of the kernels with the most time, each kernel in a separate run."""
    runs = []
    number = 0
    for of_kernel in stretches(launches)[:KERNELS]:
        number += len(of_kernel)
        places = placed(trace, of_kernel, work.launches(trace))
        run = partial(_replay, command, *places, done, "instructions", _PASSES_OF_LINES)
        runs.append(run)
    how = count_of(len(runs), "more run")
    counting = _Counting(
        runs,
        "launch",
        number,
        how,
        _IN_GRAPHS,
        of="the instructions of ",
    )
    left = len(launches) - number
    if left:
        counting.notes.append(
            f"left out: {count_of(left, 'launch')}. Instructions are counted for the first "
            f"consecutive launches of the {KERNELS} kernels with the most time: select others with `kernel=`"
        )
    return counting


def _count_ranges(
    trace: Trace,
    command: Sequence[str],
    pattern: str,
    skip: int,
    count: int | None,
    done: Profile,
) -> _Counting:
    """Count all ranges of a name in one further run."""
    whole, places, omitted = work.choose_ranges(trace, pattern, skip, count)
    if any(loss.reason == "nvtx_dropped" for loss in trace.quality.losses):
        done.notes.append(
            "the first run lost NVTX events, so ranges of the runs can be mismatched"
        )
    run = partial(_count, command, whole, places, done)
    why = "that began inside another one: the GPU counts one at a time"
    return _Counting([run], "range", len(whole), "1 pass each", why, omitted)


def _refuse_lost_launches(trace: Trace) -> None:
    lost = work.lost_launches(trace)
    if lost:
        raise CutraceError(
            f"nothing was profiled: launches may be missing in the first run ({'; '.join(lost)}), so the others cannot "
            "be found in a second one by their numbers. Try again, or profile a shorter run."
        )


def stretches(launches: Sequence[Launch]) -> list[list[Launch]]:
    """For each kernel, the launches that allow a common count of instructions: the first consecutive launches in each
    process. Kernels with more time come first."""
    kernels: dict[tuple[bytes, ...], list[Launch]] = defaultdict(list)
    # The number of the next consecutive launch of a kernel in a process.
    continued: dict[Key, int] = {}
    for launch in launches:
        key = (launch.names, launch.process)
        if continued.get(key, launch.number) == launch.number:
            continued[key] = launch.number + 1
            kernels[launch.names].append(launch)
    return sorted(
        kernels.values(), key=lambda group: -sum(launch.time for launch in group)
    )


@contextmanager
def _counting_run(
    command: Sequence[str],
    done: Profile,
    subject: str,
    keys: Sequence[Key],
    *variables: str,
    patience: int = _LEAST_PATIENCE,
    choice: KernelChoice | None = None,
) -> Iterator[list[Path]]:
    """Run a command and count the work with these ``keys``, or of a choice. ``variables`` inject the profiler. Yields
    the files with the values of the processes, sorted by process id.

    :param patience: the time (ms) that launches wait for a counted launch.
    """
    library = str(installed(_LIBRARY))
    with scratch() as folder:
        (folder / "plan").write_bytes(_plan(done, subject, keys))
        environment = {
            _PATIENCE: str(patience),
            **os.environ,
            **dict.fromkeys(variables, library),
            _PLAN: str(folder),
        }
        answering = nullcontext() if choice is None else choice.answering(folder)
        with answering:
            done.status = run_command(command, environment)
        yield sorted(folder.glob("*.values"), key=lambda path: int(path.stem))


def _plan(
    done: Profile,
    subject: str,
    keys: Sequence[Key],
) -> bytes:
    """The plan of a run. native/profiler/session.h describes its format."""
    cupti = completed(Options()).cupti or ""
    metrics = ",".join(done.names)
    if subject == "chosen":
        metrics = ",".join(with_time(done.names))
    texts = [os.fsencode(cupti)]
    texts += map(str.encode, (subject, metrics, done.caches))
    for names, number in keys:
        domain, name = (b"", *names)[-2:]  # a kernel has no domain
        texts += [str(number).encode(), domain, name]
    return b"".join(text + b"\0" for text in texts)


def _read_values(
    done: Profile,
    files: Sequence[Path],
    places: int,
) -> list[tuple[Path, list[list[str]]]]:
    """Read the files of the processes that counted, sorted by place. Each file has its lines split into fields. Errors
    become notes.

    A process that fails before its first launch or range also leaves a file, even without work to count.
    """
    read = []
    for path in files:
        lines = []
        for line in path.read_text(errors="surrogateescape").splitlines():
            fields = line.split("\t")
            if fields[0] == "error":
                done.notes.append(advised(fields[-1]))
            else:
                lines.append(fields)
        read.append((path, lines))
    if len(read) <= places:
        return read
    counted = [(path, lines) for path, lines in read if lines]
    if len(counted) >= places or not counted:
        return counted
    done.notes.append(
        "nothing was counted: some processes of the second run failed, so the others cannot be told apart"
    )
    return []


def _replay(
    command: Sequence[str],
    launches: Sequence[Launch],
    places: int,
    done: Profile,
    counted: str,
    passes: int,
) -> None:
    """Run a command again, and count metrics of these launches or of their instructions."""
    keys = sorted({launch.key for launch in launches})
    longest = 0  # unknown ends are 0
    for launch in launches:
        longest = max(longest, launch.time)
    patience = _LEAST_PATIENCE + _TIMES_A_PASS * passes * (longest // 1_000_000)
    with _counting_run(command, done, counted, keys, CUDA, patience=patience) as files:
        read = _read_values(done, files, places)
        results = [dict(map(_launch_values, lines)) for _, lines in read]
        processes = {}
        other = 0
        matched = _matched(done, launches, results, "launch")
        for launch, (shape, caches, values) in matched:
            if shape == launch.shape:
                done.values.append(Counted(launch, values, caches))
                processes[launch.place] = launch.process
            else:
                other += 1
        if other:
            done.notes.append(
                f"no metrics for {count_of(other, 'launch')} with another grid or block in the second run: "
                "the program does not launch the same kernels each time"
            )
        for place, (path, _) in enumerate(read):
            counts = path.with_suffix(".instructions")
            if place in processes and counts.exists():
                for line in counts.read_text(errors="surrogateescape").splitlines():
                    one = _instruction(processes[place], line, len(done.names))
                    done.instructions.append(one)


def _launch_values(
    fields: Sequence[str],
) -> tuple[Key, tuple[tuple[int, ...], int, tuple[float, ...]]]:
    """The key of a launch in the second run, then its shape, the state of the caches and its values."""
    number, *shape, caches = map(int, fields[:8])
    name = os.fsencode(fields[8])
    values = tuple(map(float, fields[9:]))
    return ((name,), number), (tuple(shape), caches, values)


def _count(
    command: Sequence[str],
    ranges: Sequence[Range],
    places: int,
    done: Profile,
) -> None:
    """Run a command again, and count metrics of these NVTX ranges."""
    keys = sorted({each.key for each in ranges})
    results = []
    with _counting_run(command, done, "ranges", keys, CUDA, NVTX) as files:
        for _, lines in _read_values(done, files, places):
            of_process = {}
            for key, gpu, caches, *values in lines:
                counted = tuple(map(float, values))
                of_process[keys[int(key)]] = (int(gpu), int(caches), counted)
            results.append(of_process)
    for each, (device, state, counted) in _matched(done, ranges, results, "range"):
        work = replace(each, device=device)
        done.values.append(Counted(work, counted, state))


def _matched(
    done: Profile,
    chosen: Sequence[_Counted],
    results: Sequence[dict[Any, _Result]],
    what: str,
) -> list[tuple[_Counted, _Result]]:
    """Pairs of work and its result in the second run. ``results`` has the results by place of the process, then by key.
    Work without a result becomes a note."""
    matched = []
    for one in chosen:
        if one.place >= len(results):
            continue
        of_process = results[one.place]
        if one.key in of_process:
            matched.append((one, of_process[one.key]))
    missing = len(chosen) - len(matched)
    if missing:
        done.notes.append(
            f"{count_of(missing, what)} of the first run did not run in the second, or could not be counted"
        )
    return matched


def _instruction(process: int, line: str, metrics: int) -> CountedInstruction:
    device, launches, function, offset, number, *rest = line.split("\t", 5 + metrics)
    *values, file = rest
    return CountedInstruction(
        process=process,
        device=int(device),
        launches=int(launches),
        function=function,
        offset=int(offset),
        line=int(number),
        values=tuple(map(float, values)),
        file=file,
    )


def _write(trace: Trace, done: Profile, output: Path) -> None:
    """Write the capture of the first run with the metrics, as rows of ``kernel_metrics`` or ``instruction_metrics``."""
    with replacing(output) as temporary, temporary.open("wb") as file:
        for piece in trace.contents(1 << 20):
            file.write(piece)
        for process in trace.processes:
            own = process.index
            counted = done.of_process(own)
            of_lines = [one for one in done.instructions if one.process == own]
            if not counted and not of_lines:
                continue
            info = {key: process.info[key] for key in _WHO if key in process.info}
            with Writer(output, file=file, **info) as to:
                to.rows("devices", _devices(to, trace, own))
                if counted:
                    to.rows("kernel_metrics", _rows(to, done, counted))
                if of_lines:
                    rows = _rows_of_instructions(to, done, of_lines)
                    to.rows("instruction_metrics", rows)


def _devices(to: Writer, trace: Trace, process: int) -> np.ndarray:
    """The devices of a process, with string ids of the part that ``to`` writes."""
    devices: np.ndarray = trace.devices[trace.devices["process"] == process].copy()
    for column in ("name", "pci"):
        texts = trace.strings.take(devices[column]).tolist()
        devices[column] = [to.string(text) for text in texts]
    return devices


def _rows(
    to: Writer,
    done: Profile,
    counted: Sequence[Counted],
) -> np.ndarray:
    shape = (len(counted), len(done.names))
    rows = np.zeros(shape, TABLES["kernel_metrics"].dtype)
    for row, one in zip(rows, counted, strict=True):
        row["start"] = one.work.row["start"]
        row["end"] = one.work.row["end"]
        for column, value in one.work.columns(to).items():
            row[column] = value
        row["value"] = one.values
        row["caches"] = one.caches
    _name(to, done, rows)
    order = np.argsort(rows["start"][:, 0], kind="stable")
    return rows[order].reshape(-1)


def _rows_of_instructions(
    to: Writer,
    done: Profile,
    counted: Sequence[CountedInstruction],
) -> np.ndarray:
    shape = (len(counted), len(done.names))
    rows = np.zeros(shape, TABLES["instruction_metrics"].dtype)
    for row, one in zip(rows, counted, strict=True):
        row["device"] = one.device
        row["launches"] = one.launches
        row["offset"] = one.offset
        row["line"] = one.line
        row["function"] = to.string(one.function)
        row["file"] = to.string(one.file)
        row["value"] = one.values
    _name(to, done, rows)
    return rows.T.reshape(-1)


def _name(to: Writer, done: Profile, rows: np.ndarray) -> None:
    rows["name"] = [to.string(name) for name in done.names]
    rows["unit"] = [to.string(unit) for unit in done.units]
