"""Hardware metrics of selected kernels, of their instructions or of whole NVTX ranges: record a program without
counters, then run it again with counters.

The first run gives the times, and the launches and ranges to choose from (:mod:`.work`). In the second run,
libcutrace_profiler.so replays only the chosen launches, or counts the chosen ranges as a whole, and records nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...analysis.tables import Cell, Table, columns_of
from ...collect.checks import counters_refused
from ...collect.command import record_command, run_command, signals_blocked
from ...collect.environment import CUDA, NVTX
from ...collect.library import installed
from ...collect.options import Options, completed
from ...errors import CutraceError
from ...loading import load
from ...outputs import check_output, replacing, scratch
from ...runbin.layout import TABLES
from ...runbin.writer import Writer
from ...trace import Trace
from ...units import count_of
from . import instructions, work
from .cupti import Cupti, advised
from .host import Chip, Config, first_chip
from .sets import chosen
from .work import CountedWork, Launch, Range, placed

#: The default metrics of kernels, and of ranges.
DEFAULT = "speed-of-light,occupancy"
DEFAULT_OF_RANGES = "overview"
#: The largest number of kernels whose instructions are counted: each needs its own run.
KERNELS = 8
_LIBRARY = "libcutrace_profiler.so"
_PLAN = "CUTRACE_PROFILE"
# How long (ms) launches of the second run wait for one that is counted: at least this, and for some time of a launch in
# each pass. See native/profiler/inject.cpp.
_PATIENCE = "CUTRACE_PROFILE_PATIENCE_MS"
_LEAST_PATIENCE = 20_000
_TIMES_A_PASS = 10
# Code that counts its instructions takes as long as so many passes.
_PASSES_OF_LINES = 10
#: The information about a process that the metrics have in common with the first run.
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
    """An instruction at ``offset`` bytes of a (mangled) function: its ``file`` and ``line`` (empty and 0 if unknown),
    and its ``values``, which are sums over ``launches``. ``process`` is the index in the first run."""

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
    """The result of :func:`profile`: ``names`` and ``units`` of metrics, ``values`` of each launch or range, or the
    ``instructions`` of all launches, and ``notes`` on problems. ``status`` is the exit status of the last run.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: list[tuple[CountedWork, tuple[float, ...]]] = field(default_factory=list)
    instructions: list[CountedInstruction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    status: int = 0

    def table(self) -> Table:
        """The metrics of all launches or ranges, one row for each value. Times (ns) are from the first run."""
        of_ranges = any(isinstance(counted, Range) for counted, _ in self.values)
        what, number = ("range", "number") if of_ranges else ("kernel", "launch")
        columns = columns_of(
            f"{what}: text, {number}, time: ns, metric: text, value: number, unit: text spare"
        )
        rows: list[tuple[Cell, ...]] = []
        for counted, values in self.values:
            if not values:  # only its instructions were counted
                continue
            title = counted.title
            took = counted.time
            rows += [
                (title, counted.number, took, name, value, unit)
                for name, value, unit in zip(
                    self.names, values, self.units, strict=True
                )
            ]
        return Table(
            "metrics",
            f"Metrics of {'ranges' if of_ranges else 'launches'}",
            columns,
            rows,
        )


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
    """Run a command twice: record it, then count hardware metrics of selected launches or of whole NVTX ranges. Writes
    the capture of the first run, with the metrics, to ``output``.

    ``metrics`` are sets and names as ``SET|NAME,...``; the default is :data:`DEFAULT`. With ``lines``, metrics are
    counted for each instruction and summed over the launches. ``metrics`` are then names as ``NAME,...``; the default
    is :data:`.instructions.DEFAULT`. The command runs again for each kernel, for at most :data:`KERNELS`.

    ``kernel`` is a pattern of kernel names and ``nvtx`` one of ranges around the launch, as in :class:`.Conditions`. In
    each process, the first ``skip`` of these launches are skipped and at most ``count`` are counted. ``ranges`` is the
    name of NVTX ranges to count instead of launches, each as a whole and in one pass; the default of ``metrics`` is
    then :data:`DEFAULT_OF_RANGES`. ``say`` receives progress messages. If the first run fails, nothing is written, and
    the result has its exit status.

    Raises :class:`CutraceError` if there is no GPU, its counters cannot be read, no launch or range is selected, the
    first run lost launches, a metric is unknown, the metrics of ranges need several passes, or the command cannot be
    run.
    """
    if ranges is not None and (lines or kernel or nvtx):
        raise CutraceError(
            "ranges are counted as a whole: give them alone, without lines, kernel and nvtx"
        )
    output = Path(output)
    check_output(output, (), endings=(".bin",))
    installed(_LIBRARY)
    if not lines and (refused := counters_refused()):
        raise CutraceError(": ".join(refused))
    config = _configured(metrics, lines=lines, of_ranges=ranges is not None)
    done = Profile(config.names, config.units)
    with scratch() as folder:
        began = time.monotonic()
        recording = record_command(command, folder / "run.bin", completed(Options()))
        if recording.status or recording.output is None:
            if recording.status:
                reason = f"ended with {recording.status}"
            else:
                reason = "made no CUDA call that was recorded"
            done.notes.append(
                f"nothing was profiled: the command {reason} in its first run"
            )
            done.status = recording.status
            return done
        with load(recording.output) as trace:
            if ranges is not None:
                counting = _count_ranges(trace, command, ranges, skip, count, done)
            else:
                _refuse_lost_launches(trace)
                launches, omitted = work.choose_launches(
                    trace, kernel, nvtx, skip, count
                )
                if lines:
                    counting = _count_lines(trace, command, launches, done)
                else:
                    counting = _count_launches(
                        trace, command, launches, done, config.passes
                    )
                counting.omitted = omitted
            first_run = time.monotonic() - began
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
    say(
        f"{count_of(len(done.values), counting.what)} profiled; {others} took {time.monotonic() - began:.1f} s"
    )
    return done


def _configured(metrics: str | None, *, lines: bool, of_ranges: bool) -> Config:
    """What counts these metrics on the first GPU. Raises :class:`CutraceError` if there is none."""
    # The threads that CUDA starts here would receive signals for the main thread.
    with signals_blocked(signal.valid_signals()):
        cupti = Cupti.found()
        name = first_chip(cupti)
        if name is None:
            raise CutraceError(
                "no GPU with readable counters was found: run `cutrace doctor` to check this machine"
            )
        if lines:
            return instructions.configure(
                cupti, name, instructions.DEFAULT if metrics is None else metrics
            )
        default = DEFAULT_OF_RANGES if of_ranges else DEFAULT
        with Chip(cupti, name) as chip:
            config = chip.configure(
                chosen(chip, default if metrics is None else metrics)
            )
    if of_ranges:
        config.must_fit_one_pass("a range runs once")
    return config


@dataclass
class _Counting:
    """The further runs, and what is said about them before: ``number`` launches or ranges (``what``) are counted in
    ``how`` many runs or passes, ``omitted`` ones are not, for a reason (``why``)."""

    runs: Sequence[Callable[[], None]]
    what: str
    number: int
    how: str
    why: str
    omitted: int = 0
    of: str = ""
    notes: list[str] = field(default_factory=list)

    def sentences(self, metrics: int, first_run: float) -> Iterator[str]:
        """Yield what is said after the first run, which took so many seconds."""
        yield from self.notes
        yield (
            f"counting {count_of(metrics, 'metric')} of {self.of}{count_of(self.number, self.what)} in {self.how}; "
            f"the first run took {first_run:.1f} s"
        )
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
    """All launches in one further run."""
    places = placed(trace, launches, work.launches(trace))
    run = partial(_replay, command, *places, done, "launches", passes)
    how = f"{count_of(passes, 'pass')} each"
    return _Counting([run], "launch", len(launches), how, _IN_GRAPHS)


def _count_lines(
    trace: Trace, command: Sequence[str], launches: Sequence[Launch], done: Profile
) -> _Counting:
    """The instructions of the kernels with the most time, each kernel in a run of its own."""
    kernels = stretches(launches)[:KERNELS]
    number = sum(map(len, kernels))
    runs = []
    for of_kernel in kernels:
        places = placed(trace, of_kernel, work.launches(trace))
        runs.append(
            partial(_replay, command, *places, done, "instructions", _PASSES_OF_LINES)
        )
    how = count_of(len(runs), "more run")
    counting = _Counting(
        runs, "launch", number, how, _IN_GRAPHS, of="the instructions of "
    )
    if len(launches) > number:
        counting.notes.append(
            f"left out: {count_of(len(launches) - number, 'launch')}. Instructions are counted for the first "
            f"consecutive launches of the {KERNELS} kernels with the most time: select others with --kernel"
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
    """All ranges of a name in one further run."""
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
    """The launches of each kernel whose instructions can be counted together: the first consecutive ones of each
    process. Kernels with more time come first."""
    kernels: dict[tuple[bytes, ...], list[Launch]] = defaultdict(list)
    ends: dict[tuple[tuple[bytes, ...], int], int] = {}
    for launch in launches:
        key = launch.names, launch.process
        if ends.get(key, launch.number - 1) == launch.number - 1:
            ends[key] = launch.number
            kernels[launch.names].append(launch)
    return sorted(
        kernels.values(), key=lambda group: -sum(launch.time for launch in group)
    )


@contextmanager
def _second_run(
    command: Sequence[str],
    done: Profile,
    subject: str,
    keys: Sequence[tuple[tuple[bytes, ...], int]],
    *variables: str,
    patience: int = _LEAST_PATIENCE,
) -> Iterator[list[Path]]:
    """Run a command again with the profiler, which ``variables`` inject, and count what the keys identify. Yields the
    files with the values of the processes, sorted by process id.

    :param patience: how long (ms) launches wait for one that is counted.
    """
    texts = [
        os.fsencode(completed(Options()).cupti or ""),
        subject.encode(),
        ",".join(done.names).encode(),
    ]
    for names, number in keys:  # a kernel has no domain
        texts += [str(number).encode(), *((b"", *names)[-2:])]
    with scratch() as folder:
        (folder / "plan").write_bytes(
            b"".join(text + b"\0" for text in texts)
        )  # see native/profiler/session.h
        libraries = dict.fromkeys(variables, str(installed(_LIBRARY)))
        environment = {
            _PATIENCE: str(patience),
            **os.environ,
            **libraries,
            _PLAN: str(folder),
        }
        done.status = run_command(command, environment)
        yield sorted(folder.glob("*.values"), key=lambda path: int(path.stem))


def _read_values(
    done: Profile, files: Sequence[Path], places: int
) -> list[tuple[Path, list[list[str]]]]:
    """The files of the processes that counted, by place, with their lines split into fields. Errors become notes.

    A process that fails before its first launch or range also leaves a file, even if it would count nothing.
    """
    read = []
    for path in files:
        lines = [
            line.split("\t")
            for line in path.read_text(errors="surrogateescape").splitlines()
        ]
        done.notes += [advised(line[-1]) for line in lines if line[0] == "error"]
        read.append((path, [line for line in lines if line[0] != "error"]))
    if len(read) <= places:
        return read
    counted = [one for one in read if one[1]]
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
    longest = (
        max(0, *(launch.time for launch in launches)) // 1_000_000
    )  # an unknown end is 0
    patience = _LEAST_PATIENCE + _TIMES_A_PASS * passes * longest
    with _second_run(command, done, counted, keys, CUDA, patience=patience) as files:
        read = _read_values(done, files, places)
        results = [
            {
                ((os.fsencode(w[7]),), int(w[0])): (
                    tuple(map(int, w[1:7])),
                    tuple(map(float, w[8:])),
                )
                for w in lines
            }
            for _, lines in read
        ]
        matched = []
        other = 0
        for launch, (shape, values) in _matched(done, launches, results, "launch"):
            if shape == launch.shape:
                matched.append((launch, values))
            else:
                other += 1
        if other:
            done.notes.append(
                f"no metrics for {count_of(other, 'launch')} with another grid or block in the second run: "
                "the program does not launch the same kernels each time"
            )
        done.values += matched
        processes = {launch.place: launch.process for launch, _ in matched}
        for place, (path, _) in enumerate(read):
            counts = path.with_suffix(".instructions")
            if place in processes and counts.exists():
                lines_of = counts.read_text(errors="surrogateescape").splitlines()
                done.instructions += [
                    _instruction(processes[place], line, len(done.names))
                    for line in lines_of
                ]


def _count(
    command: Sequence[str], ranges: Sequence[Range], places: int, done: Profile
) -> None:
    """Run a command again, and count metrics of these NVTX ranges."""
    keys = sorted({each.key for each in ranges})
    with _second_run(command, done, "ranges", keys, CUDA, NVTX) as files:
        results = [
            {
                keys[int(line[0])]: (int(line[1]), tuple(map(float, line[2:])))
                for line in lines
            }
            for _, lines in _read_values(done, files, places)
        ]
    for each, (device, values) in _matched(done, ranges, results, "range"):
        done.values.append((replace(each, device=device), values))


def _matched(
    done: Profile,
    chosen: Sequence[_Counted],
    results: Sequence[dict[Any, _Result]],
    what: str,
) -> list[tuple[_Counted, _Result]]:
    """Work with its result in the second run. ``results`` has those of each process, by place and key. Work without
    one becomes a note."""
    found = (
        (one, results[one.place].get(one.key))
        for one in chosen
        if one.place < len(results)
    )
    matched = [(one, result) for one, result in found if result is not None]
    missing = len(chosen) - len(matched)
    if missing:
        done.notes.append(
            f"{count_of(missing, what)} of the first run did not run in the second, or could not be counted"
        )
    return matched


def _instruction(process: int, line: str, metrics: int) -> CountedInstruction:
    device, launches, function, offset, number, *rest = line.split("\t", 5 + metrics)
    values = tuple(map(float, rest[:metrics]))
    return CountedInstruction(
        process,
        int(device),
        int(launches),
        function,
        int(offset),
        int(number),
        values,
        rest[metrics],
    )


def _write(trace: Trace, done: Profile, output: Path) -> None:
    """Write the capture of the first run with the metrics, as rows of ``kernel_metrics`` or ``instruction_metrics``."""
    with replacing(output) as temporary, temporary.open("wb") as file:
        for piece in trace.contents(1 << 20):
            file.write(piece)
        for process in trace.processes:
            mine = [
                (one, values)
                for one, values in done.values
                if one.process == process.index and values
            ]
            of_instructions = [
                one for one in done.instructions if one.process == process.index
            ]
            if not mine and not of_instructions:
                continue
            info = {key: process.info[key] for key in _WHO if key in process.info}
            with Writer(output, file=file, **info) as to:
                devices = trace.devices[
                    trace.devices["process"] == process.index
                ].copy()
                for column in ("name", "pci"):
                    devices[column] = [
                        to.string(trace.strings[int(text)]) for text in devices[column]
                    ]
                to.rows("devices", devices)
                if mine:
                    to.rows("kernel_metrics", _rows(to, done, mine))
                if of_instructions:
                    to.rows(
                        "instruction_metrics",
                        _rows_of_instructions(to, done, of_instructions),
                    )


def _rows(
    to: Writer, done: Profile, counted: Sequence[tuple[CountedWork, tuple[float, ...]]]
) -> np.ndarray:
    rows = np.zeros((len(counted), len(done.names)), TABLES["kernel_metrics"].dtype)
    for row, (one, values) in zip(rows, counted, strict=True):
        for column, value in {
            "start": one.row["start"],
            "end": one.row["end"],
            **one.columns(to),
        }.items():
            row[column] = value
        row["value"] = values
    _name(to, done, rows)
    return rows[np.argsort(rows["start"][:, 0], kind="stable")].reshape(-1)


def _rows_of_instructions(
    to: Writer, done: Profile, counted: Sequence[CountedInstruction]
) -> np.ndarray:
    rows = np.zeros(
        (len(counted), len(done.names)), TABLES["instruction_metrics"].dtype
    )
    for row, one in zip(rows, counted, strict=True):
        row["device"], row["launches"], row["offset"], row["line"] = (
            one.device,
            one.launches,
            one.offset,
            one.line,
        )
        row["function"], row["file"] = to.string(one.function), to.string(one.file)
        row["value"] = one.values
    _name(to, done, rows)
    by_metric: np.ndarray = rows.T.reshape(-1)
    return by_metric


def _name(to: Writer, done: Profile, rows: np.ndarray) -> None:
    rows["name"] = [to.string(name) for name in done.names]
    rows["unit"] = [to.string(unit) for unit in done.units]
