"""Steps of a program: the parts of the wall clock of each step on each GPU, and the energy of the GPU.

The user gives the name of the ranges that are steps. docs/reference/statistics.md defines the parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ...errors import CutraceError, did_you_mean
from ...patterns import matcher
from ...runbin.layout import GPU_WORK
from ...trace import Trace
from ...trace.intervals import GrowingIntervals, Intervals
from ...trace.launches import REMEMBERED_BITS
from ...trace.ordered import Columns
from ...trace.ranges import RANGE_TABLES, are_ranges
from ...trace.rows import distinct
from ...units import first_names
from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext
from ..gpu import COMMUNICATE, COMPUTE, COPY, FILL
from ..statistic import (
    GPU,
    GPU_DOC,
    SPARE_PROCESS,
    Statistic,
    StatisticColumn,
    View,
    column_of,
    count_column,
    moment_column,
    number_column,
    share,
    text_column,
    time_column,
)
from ..sweep import Stream, SweepBatch, Work
from ..windows import whole
from .slices import FOREVER

#: The parts of a step's wall clock. A moment belongs to the first part that applies.
_PART_DOCS = {
    "compute": "a kernel that does not communicate ran, or a whole graph",
    "communication": "a communication kernel ran and nothing computed",
    "copies": "a copy or fill ran, and no kernel",
    "launch": "the GPU was idle, and a launch for it was under way",
    "synchronisation": "the GPU was idle, and a thread was in a call that waits for it",
    "other": "the GPU was idle for a reason that is not known",
    "host": "the GPU had no work and waited for the program",
}
PARTS = tuple(_PART_DOCS)
# The parts that a narrow terminal keeps.
_MAIN_PARTS = ("compute", "launch", "host")
# The kinds of GPU work that the first parts measure.
_KINDS = (COMPUTE, COMMUNICATE, COPY | FILL)
# The flags of ranges that started before the window of their file, or ended after it.
_IN_PART = 2 | 4
# The number of names in an error.
_SHOWN = 8


@dataclass(frozen=True)
class Step:
    """A step on one GPU of its process; ``device`` is None if the process has no GPU work. ``start`` and ``end`` (ns)
    are the times of its range. ``parts`` has the time (ns) of each of :data:`PARTS`; they add up to ``wall``.
    ``behind`` (ns) is the time from the end of the step to the end of the work launched before. ``joules`` is the
    energy of the GPU, None if samples of its power do not cover the step."""

    process: int
    device: int | None
    name: str
    start: int
    end: int
    parts: tuple[int, ...]
    behind: int
    joules: float | None

    @property
    def wall(self) -> int:
        return self.end - self.start


class _Ranges(NamedTuple):
    """Steps as parallel arrays: start, end (ns) and name."""

    start: np.ndarray
    end: np.ndarray
    name: np.ndarray

    @classmethod
    def none(cls) -> _Ranges:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty)

    def at(self, mask: np.ndarray) -> _Ranges:
        return _Ranges(*(column[mask] for column in self))

    def joined(self, more: _Ranges) -> _Ranges:
        columns = map(np.append, self, more)
        return _Ranges(*columns)


class _GpuWork(NamedTuple):
    """GPU work as parallel arrays, ascending by ``start`` (ns): its kind, whether its launch is known, and the start
    (``called``) and the end (``launched``) of the launch."""

    kind: np.ndarray
    start: np.ndarray
    end: np.ndarray
    known: np.ndarray
    called: np.ndarray
    launched: np.ndarray

    def at(self, mask: np.ndarray) -> _GpuWork:
        return _GpuWork(*(column[mask] for column in self))


class _GpuInSteps:
    """The times in which a GPU was ``busy`` (by kind), the times in which launches for it were in progress, and the
    times in which it was idle for an ``unknown`` reason. ``latest`` has for each waiting step the last end of work that
    was launched before the end of the step."""

    def __init__(self, steps: int) -> None:
        self.busy = [GrowingIntervals() for _ in _KINDS]
        self.launches = GrowingIntervals()
        self.unknown = GrowingIntervals()
        self.reached: int | None = None
        self.latest = np.zeros(steps, np.int64)

    def moments(self) -> list[GrowingIntervals]:
        """All known times."""
        return [*self.busy, self.launches, self.unknown]

    def add(self, work: _GpuWork, steps: _Ranges) -> None:
        """Add work. ``steps`` are the waiting steps."""
        for kind, moments in zip(_KINDS, self.busy, strict=True):
            is_kind = work.kind & kind
            of_kind = work.at(is_kind > 0)
            moments.add(of_kind.start, of_kind.end)
        launched = work.at(work.known)
        self.launches.add(launched.called, launched.launched)
        self._add_unknown(work)
        self._add_latest(work, steps)

    def _add_unknown(self, work: _GpuWork) -> None:
        """Note the idle time before work whose launch is not known."""
        start = work.start
        if self.reached is None:
            # The time before the first work is not known.
            self.reached = int(start[0])
        ends = np.append(self.reached, work.end)
        reached = np.maximum.accumulate(ends)
        self.reached = int(reached[-1])
        # Work that starts at one time waited equally long.
        firsts = np.searchsorted(start, start)
        idle_since = reached[firsts]
        unknown = ~work.known
        self.unknown.add(idle_since[unknown], start[unknown])

    def _add_latest(self, work: _GpuWork, steps: _Ranges) -> None:
        """Note the end of work for the waiting steps that end after its launch."""
        # The clocks of host and GPU differ: work may seem to start before its call.
        called = np.minimum(work.called, work.start)
        order = np.argsort(called, kind="stable")
        called = called[order]
        ends = work.end[order]
        latest = np.maximum.accumulate(ends)
        latest = np.append(0, latest)
        launched = np.searchsorted(called, steps.end)
        now = latest[launched]
        self.latest = np.maximum(self.latest, now)

    def await_steps(self, count: int) -> None:
        """Add ``count`` waiting steps. All work so far was launched before the end of these steps."""
        reached = self.reached or 0
        latest = np.full(count, reached)
        self.latest = np.append(self.latest, latest)


class _SplitSteps(NamedTuple):
    """Steps that were split. By GPU, ``times`` has the times of each of :data:`PARTS`, and ``behind``. The key None
    holds steps of processes without a GPU."""

    steps: _Ranges
    times: dict[int | None, list[np.ndarray]]


class _StepCollector(StatsCollector[Step]):
    """Collects the steps of a process. A step is split a million calls later, when no more of its work can come."""

    each_process = True
    #: The number of calls after a step before it is split.
    WAITED = 1 << REMEMBERED_BITS

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._name = context.options.name
        if self._name:
            self.tables = (*GPU_WORK, "api_calls", *RANGE_TABLES)
        self._matches = matcher(self._name)
        self._waiting = _Ranges.none()
        # The key None stands for GPUs without work so far.
        self._gpus: dict[int | None, _GpuInSteps] = {None: _GpuInSteps(0)}
        self._syncs = GrowingIntervals()
        self._unrecorded: Intervals | None = None
        # The number of calls up to some times (ns), the number of all calls so far, and the start of the latest GPU
        # work.
        self._counts: deque[tuple[int, int]] = deque()
        self._calls = 0
        self._latest_work = 0
        self._split: list[_SplitSteps] = []

    def add(self, batch: SweepBatch) -> None:
        if not self._name:
            return
        self._start(batch.process)
        for table in RANGE_TABLES:
            rows = batch.tables.get(table)
            if rows:
                steps = self._matching(table, rows)
                self._await(steps)
        calls = batch.tables.get("api_calls")
        if calls:
            self._add_calls(calls)
        if len(batch.work):
            self._add_work(batch.work)
        self._split_old()

    def _start(self, process: int) -> None:
        """Read the data of the trace about a process as a whole."""
        if self._unrecorded is not None:
            return
        unrecorded = self.context.trace.unrecorded(process)
        times = np.array(unrecorded, np.int64).reshape(-1, 2)
        start, end = times.T
        self._unrecorded = Intervals(start, end)
        steps = self._regions(process)
        self._await(steps)

    def _regions(self, process: int) -> _Ranges:
        """The regions between marks of a process whose names match."""
        starts = []
        ends = []
        names = []
        for region in self.context.regions:
            if region.process != process:
                continue
            if region.complete and self._matches(region.name):
                starts.append(region.start)
                ends.append(region.end)
                names.append(region.name)
        start = np.array(starts, np.int64)
        end = np.array(ends, np.int64)
        return _Ranges(start, end, np.array(names, object))

    def _matching(self, table: str, rows: Columns) -> _Ranges:
        """The ranges among rows of a table whose names match. Ranges that never end, or are in several files, are no
        steps."""
        take = self.context.trace.strings.take
        start = rows["start"]
        end = rows["end"]
        names = rows["name"]
        matches = take(names, self._matches)
        found = are_ranges(table, rows)
        found &= end != FOREVER
        if table == "nvtx_ranges":
            in_part = rows["flags"] & _IN_PART
            found &= in_part == 0
        found &= matches.astype(bool)
        texts = take(names[found])
        return _Ranges(start[found], end[found], texts)

    def _await(self, steps: _Ranges) -> None:
        self._waiting = self._waiting.joined(steps)
        for gpu in self._gpus.values():
            gpu.await_steps(len(steps.start))

    def _add_calls(self, calls: Columns) -> None:
        waits = self.context.waiting_functions.take(calls["function"])
        start = calls["start"]
        end = calls["end"]
        self._syncs.add(start[waits], end[waits])
        self._calls += len(calls)
        latest = int(start[-1])
        self._counts.append((latest, self._calls))

    def _add_work(self, work: Work) -> None:
        calls = work.calls
        start = work.start
        known = calls.known
        kind = self.context.kinds.of(work.table, work.launch)
        waits = self.context.waiting_functions.take(calls.function)
        # A call that waits for its work counts as a launch only until the work starts.
        launched = np.maximum(start, calls.end)
        launched = np.where(waits, start, launched)
        called = np.where(known, calls.start, start)
        everything = _GpuWork(kind, start, work.end, known, called, launched)
        self._latest_work = int(start[-1])
        devices = distinct(work.device)
        for device in devices.tolist():
            if device not in self._gpus:
                waiting = len(self._waiting.start)
                self._gpus[device] = _GpuInSteps(waiting)
            gpu = self._gpus[device]
            is_mine = work.device == device
            mine = everything.at(is_mine)
            gpu.add(mine, self._waiting)

    def _split_old(self) -> None:
        """Split the steps that ended :attr:`WAITED` calls ago. Forget the times before the remaining steps."""
        until = 0
        while self._counts:
            time, calls = self._counts[0]
            if self._calls - calls < self.WAITED:
                break
            until = min(time, self._latest_work)
            self._counts.popleft()
        old = self._waiting.end < until
        if not old.any():
            return
        self._split_steps(old)
        first = self._waiting.start.min(initial=until)
        self._forget(int(first))

    def _forget(self, time: int) -> None:
        self._syncs.forget(time)
        for gpu in self._gpus.values():
            for moments in gpu.moments():
                moments.forget(time)

    def _split_steps(self, chosen: np.ndarray) -> None:
        """Split the waiting steps of a mask."""
        steps = self._waiting.at(chosen)
        self._waiting = self._waiting.at(~chosen)
        times = {}
        for device, gpu in self._gpus.items():
            latest = gpu.latest
            behind = latest[chosen] - steps.end
            behind = np.maximum(behind, 0)
            gpu.latest = latest[~chosen]
            parts = self._parts(steps, gpu)
            times[device] = [*parts, behind]
        split = _SplitSteps(steps, times)
        self._split.append(split)

    def _parts(self, steps: _Ranges, gpu: _GpuInSteps) -> Iterator[np.ndarray]:
        """The times of each of :data:`PARTS`, by step."""
        known = [*gpu.busy, gpu.launches, self._syncs, gpu.unknown]
        sets = [moments.united() for moments in known]
        if self._unrecorded is not None:
            sets[-1] |= self._unrecorded
        covered = Intervals.none()
        before = np.zeros_like(steps.start)
        for moments in sets:
            covered |= moments
            length = covered.within(steps.start, steps.end)
            yield length - before
            before = length
        yield steps.end - steps.start - before

    def end(self, process: int, streams: list[Stream]) -> Iterator[Step]:
        if not self._name:
            return
        self._start(process)
        waiting = self._waiting.start
        all_left = np.ones(len(waiting), bool)
        self._split_steps(all_left)
        devices = list(self._gpus)
        if len(devices) > 1:
            devices.remove(None)
        for device in devices:
            for split in self._split:
                yield from self._on_gpu(process, device, split)

    def _on_gpu(
        self, process: int, device: int | None, split: _SplitSteps
    ) -> Iterator[Step]:
        # A GPU without work so far was idle.
        idle = split.times[None]
        times = split.times.get(device, idle)
        steps = split.steps
        joules = self.context.power.joules(process, device, steps.start, steps.end)
        columns = [column.tolist() for column in (*steps, *times)]
        for *row, energy in zip(*columns, joules, strict=True):
            start, end, name, *parts, behind = row
            yield Step(process, device, name, start, end, tuple(parts), behind, energy)


#: The steps of each process, on each GPU that it uses, with the option ``name``.
STEPS = CollectedBy(_StepCollector)


def _steps(view: View) -> Sequence[Step]:
    """The steps in the order of time. Raises :class:`cutrace.CutraceError` if a name is given and no step has it."""
    name = view.collected.options.name
    steps = view.collected[STEPS]
    if name and not steps:
        absent = _no_step(view.trace, name)
        raise CutraceError(view.trace.quality.doubt(absent))
    return sorted(steps, key=attrgetter("start", "process"))


def _no_step(trace: Trace, name: str) -> str:
    """The reason why there is no step of this name."""
    ended, never_ended = _range_names(trace)
    matches = matcher(name)
    if any(map(matches, never_ended)):
        return f"no range named {name} ended: its steps have no known time. Record until a step has ended"
    if not ended:
        return (
            f"no range is named {name}, because the trace has no ranges: put an NVTX range around each step, such as "
            "torch.cuda.nvtx.range('step'), and record again"
        )
    there = f"there are {first_names(ended, _SHOWN)}"
    return f"no range is named {name}: {did_you_mean(name, ended, there)}"


def _range_names(trace: Trace) -> tuple[list[str], list[str]]:
    """The names of ranges that ended, and the names of ranges that never ended, in the order of first appearance."""
    ended: dict[str, None] = {}
    never_ended: dict[str, None] = {}
    for table in RANGE_TABLES:
        known = trace.table(table)
        unknown = trace.unknown(table)
        for rows, names in ((known, ended), (unknown, never_ended)):
            ranges = rows[are_ranges(table, rows)]
            found = trace.strings.take(ranges["name"])
            names |= dict.fromkeys(found)
    for region in whole(trace).regions:
        ended[region.name] = None
    return list(ended), list(never_ended)


# Single steps


def _gpu(view: View, use: Any) -> str:
    if use.device is None:
        return ""
    return view.gpu(use.process, use.device)


def _part(part: str) -> StatisticColumn:
    """The column of a part of each step."""
    place = PARTS.index(part)

    def time(view: View, use: Any) -> int:
        return use.parts[place]

    spare = part not in _MAIN_PARTS
    return time_column(part, time, spare=spare, doc=_PART_DOCS[part])


_WHICH_GPU = (SPARE_PROCESS, text_column("GPU", _gpu, spare=True, doc=GPU_DOC))

STEP_TRACE = Statistic(
    "step_trace",
    "Steps one by one",
    _steps,
    (
        moment_column("start", doc="start of the step"),
        *_WHICH_GPU,
        text_column("step", "name", doc="name of the range"),
        time_column("wall clock", "wall", doc="time of the range on the host"),
        *map(_part, PARTS),
        time_column(
            "GPU behind",
            "behind",
            spare=True,
            doc="time from the end of the step until the GPU has finished the work launched before it",
        ),
        number_column(
            "joules",
            spare=True,
            doc="energy of the GPU during the step, where power was sampled",
        ),
    ),
    needs=(STEPS,),
    usual=False,
    listing=True,
    options=("name",),
    doc="Where the wall clock of each step went: one row per step and GPU. [Steps](#steps) "
    "defines the parts.",
)


# All steps of a process on one GPU


class _Figures:
    """The sum, mean, median and 99th percentile of some numbers; None without numbers."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self._numbers = np.array(list(numbers))
        self.count = len(self._numbers)
        self.total = self._of(np.sum)
        self.mean = self._of(np.mean)
        self.p50 = self._of(np.median)
        self.p99 = self._of(lambda numbers: np.percentile(numbers, 99))

    def _of(self, figure: Callable[[np.ndarray], Any]) -> Any:
        if not self.count:
            return None
        return figure(self._numbers).item()


class _StepsOnGpu(NamedTuple):
    process: int
    device: int | None
    steps: list[Step]


class PartUse(NamedTuple):
    """A part of the wall clock of all steps of a process on one GPU: the figures of its ``time`` (ns), and its
    ``share``. The share is None for times outside of the wall clock."""

    process: int
    device: int | None
    part: str
    time: _Figures
    share: float | None


def _by_gpu(view: View) -> list[_StepsOnGpu]:
    """The steps of each process on each GPU, in this order."""
    gpus: dict[tuple[int, int | None], _StepsOnGpu] = {}
    for step in _steps(view):
        gpu = (step.process, step.device)
        if gpu not in gpus:
            gpus[gpu] = _StepsOnGpu(*gpu, [])
        of_gpu = gpus[gpu].steps
        of_gpu.append(step)
    by_number = attrgetter("process", "device")
    return sorted(gpus.values(), key=by_number)


def _part_uses(view: View) -> Iterator[PartUse]:
    for process, device, steps in _by_gpu(view):
        wall = _Figures(step.wall for step in steps)
        by_part = zip(*(step.parts for step in steps), strict=True)
        for part, times in zip(PARTS, by_part, strict=True):
            figures = _Figures(times)
            of_wall = share(figures.total, wall.total)
            yield PartUse(process, device, part, figures, of_wall)
        yield PartUse(process, device, "wall clock", wall, 1.0)
        behind = _Figures(step.behind for step in steps)
        yield PartUse(process, device, "GPU behind", behind, None)


STEP_SUM = Statistic(
    "step_sum",
    "Where steps spent their time",
    _part_uses,
    (
        *_WHICH_GPU,
        text_column(
            "part",
            doc="wall clock, or a part of it: compute, communication, copies, launch, synchronisation, other, host",
        ),
        column_of("share", unit="1", doc="fraction of the wall clock of all steps"),
        time_column("total", "time.total", spare=True, doc="sum over the steps"),
        count_column("steps", "time.count", spare=True, doc="number of steps"),
        time_column("mean", "time.mean", doc="total / steps"),
        time_column("p50", "time.p50", spare=True, doc="median"),
        time_column("p99", "time.p99", doc="99th percentile"),
    ),
    needs=(STEPS,),
    usual=False,
    options=("name",),
    doc="Where the wall clock of steps went. [Steps](#steps) defines the parts.",
)


class EnergyUse(NamedTuple):
    """The number of ``steps`` of a process on one GPU, and the energy (J) and the power (W) of the steps whose energy
    is known."""

    process: int
    device: int
    steps: int
    energy: _Figures
    watts: float | None


def _energy_uses(view: View) -> Iterator[EnergyUse]:
    for process, device, steps in _by_gpu(view):
        if device is None:
            continue
        joules = []
        time = 0
        for step in steps:
            if step.joules is not None:
                joules.append(step.joules)
                time += step.wall
        watts = None
        if time:
            watts = sum(joules) / time * 1e9
        figures = _Figures(joules)
        yield EnergyUse(process, device, len(steps), figures, watts)


STEP_ENERGY_SUM = Statistic(
    "step_energy_sum",
    "Energy of steps",
    _energy_uses,
    (
        SPARE_PROCESS,
        GPU,
        count_column("steps", doc="number of steps"),
        count_column("known", "energy.count", doc="steps with known energy"),
        number_column("joules", "energy.total", doc="sum over the known steps"),
        number_column("mean", "energy.mean", doc="joules / known"),
        number_column("p50", "energy.p50", doc="median, in J"),
        number_column("p99", "energy.p99", doc="99th percentile, in J"),
        number_column("watts", doc="joules / time of the known steps"),
    ),
    needs=(STEPS,),
    usual=False,
    options=("name",),
    doc="How much energy steps take on each GPU, where power was sampled.",
)
