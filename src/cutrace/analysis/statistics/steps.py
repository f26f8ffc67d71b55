"""Steps of a program: where the wall clock of each one went, on each GPU, and the energy that the GPU took.

A step is a range whose name the user gives. docs/stats.md defines the parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import CutraceError, did_you_mean
from ...patterns import matcher
from ...trace import Trace
from ...trace.launches import REMEMBERED_BITS
from ...trace.ordered import Columns
from ...trace.quality import GPU_WORK
from ...trace.ranges import RANGE_TABLES, are_ranges
from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext
from ..gpu import COMMUNICATE, COMPUTE
from ..intervals import GrowingIntervals, Intervals
from ..power import Power
from ..statistic import (
    GPU,
    SPARE_PROCESS,
    Statistic,
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
PARTS = (
    "compute",
    "communication",
    "copies",
    "launch",
    "synchronisation",
    "other",
    "host",
)
# The names in an error.
_SHOWN = 8


@dataclass(frozen=True)
class Step:
    """A step on one GPU of its process; ``device`` is None if the process has no GPU work. ``start`` and ``end`` (ns)
    are those of its range, ``parts`` the times (ns) of :data:`PARTS`, which add up to ``wall``. ``behind`` (ns) is how
    long after the step the GPU finished what had been launched until its end."""

    process: int
    device: int | None
    name: str
    start: int
    end: int
    parts: tuple[int, ...]
    behind: int

    @property
    def wall(self) -> int:
        return self.end - self.start


class _Ranges(NamedTuple):
    """Steps as parallel arrays: start, end (ns) and the number of the name."""

    start: np.ndarray
    end: np.ndarray
    name: np.ndarray

    def at(self, mask: np.ndarray) -> _Ranges:
        return _Ranges(*(column[mask] for column in self))

    def joined(self, more: _Ranges) -> _Ranges:
        return _Ranges(*map(np.append, self, more))


_NO_RANGES = _Ranges(*[np.zeros(0, np.int64)] * 3)


class _GpuInSteps:
    """What a GPU did, and what was under way for it. ``latest`` has for each waiting step the last end of work that was
    launched before the end of the step."""

    def __init__(self, steps: int) -> None:
        self.compute = GrowingIntervals()
        self.communication = GrowingIntervals()
        self.copies = GrowingIntervals()
        self.launches = GrowingIntervals()
        self.unknown = GrowingIntervals()
        self.reached: int | None = None
        self.latest = np.zeros(steps, np.int64)

    def sets(self) -> tuple[GrowingIntervals, ...]:
        return (
            self.compute,
            self.communication,
            self.copies,
            self.launches,
            self.unknown,
        )

    def run(self, kind: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """Add work by its kind, ascending by start."""
        compute = kind == COMPUTE
        communication = kind == COMMUNICATE
        copies = ~(compute | communication)
        self.compute.add(start[compute], end[compute])
        self.communication.add(start[communication], end[communication])
        self.copies.add(start[copies], end[copies])

    def wait(self, known: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """Note the idle time before work whose launch is not ``known``."""
        if self.reached is None:
            # Nothing is known about the time before the first work.
            self.reached = int(start[0])
        reached = np.maximum.accumulate(np.append(self.reached, end))
        self.reached = int(reached[-1])
        # Work that starts at one time waited equally long.
        firsts = np.searchsorted(start, start)
        before = reached[firsts]
        self.unknown.add(before[~known], start[~known])

    def launched(self, called: np.ndarray, end: np.ndarray, steps: _Ranges) -> None:
        """Note the ends of work that was launched at these times, for the steps."""
        order = np.argsort(called, kind="stable")
        latest = np.maximum.accumulate(end[order])
        count = np.searchsorted(called[order], steps.end)
        some = count > 0
        self.latest[some] = np.maximum(self.latest[some], latest[count[some] - 1])


class _StepCollector(StatsCollector[Step]):
    """Collects the steps of a process. A step is split when no more of its work can come: a million calls later."""

    each_process = True
    #: Calls that are made before a step is split.
    WAITED = 1 << REMEMBERED_BITS

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._name = context.options.name
        if self._name:
            self.tables = (*GPU_WORK, "api_calls", *RANGE_TABLES)
        self._matches = matcher(self._name)
        self._waiting = _NO_RANGES
        self._gpus: dict[int, _GpuInSteps] = {}
        self._syncs = GrowingIntervals()
        # The number of calls at some times (ns), and of all calls so far; the start of the latest GPU work.
        self._counts: deque[tuple[int, int]] = deque()
        self._calls = 0
        self._latest_work = 0
        # The names of steps, with their numbers.
        self._names: dict[str, int] = {}
        # Steps that were split: the ranges, and the parts and `behind` by GPU, None for none.
        self._split: list[tuple[_Ranges, dict[int | None, np.ndarray]]] = []
        self._unrecorded: Intervals | None = None

    def _begin(self, process: int) -> None:
        """Take what is known of a process from the start."""
        if self._unrecorded is None:
            unrecorded = np.array(
                self.context.trace.unrecorded(process), np.int64
            ).reshape(-1, 2)
            self._unrecorded = Intervals(unrecorded[:, 0], unrecorded[:, 1])
            self._await(self._regions(process))

    def add(self, batch: SweepBatch) -> None:
        if not self._name:
            return
        self._begin(batch.process)
        for table in RANGE_TABLES:
            rows = batch.tables.get(table)
            if rows:
                self._await(self._matching(table, rows))
        calls = batch.tables.get("api_calls")
        if calls:
            waits = self.context.waiting_functions.take(calls["function"])
            self._syncs.add(calls["start"][waits], calls["end"][waits])
            self._calls += len(calls)
            self._counts.append((int(calls["start"][-1]), self._calls))
        if len(batch.work):
            self._add_work(batch.work)
        self._split_old()

    def _regions(self, process: int) -> _Ranges:
        """The regions between marks of a process whose names match."""
        mine = [
            region
            for region in self.context.regions
            if region.process == process and region.complete
        ]
        found = [
            (r.start, r.end, self._number(r.name))
            for r in mine
            if self._matches(r.name)
        ]
        columns = np.array(found, np.int64).reshape(-1, 3)
        return _Ranges(*columns.T)

    def _matching(self, table: str, rows: Columns) -> _Ranges:
        """The ranges among rows of a table whose names match. Those that never end are no steps."""
        found = are_ranges(table, rows)
        found &= rows["end"] != FOREVER
        found &= self.context.trace.strings.take(rows["name"], self._matches).astype(
            bool
        )
        names = self.context.trace.strings.take(rows["name"][found], self._number)
        return _Ranges(rows["start"][found], rows["end"][found], names.astype(np.int64))

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _await(self, steps: _Ranges) -> None:
        self._waiting = self._waiting.joined(steps)
        for gpu in self._gpus.values():
            # All work of earlier batches was launched before these steps ended.
            latest = np.full(len(steps.start), gpu.reached or 0)
            gpu.latest = np.append(gpu.latest, latest)

    def _add_work(self, work: Work) -> None:
        self._latest_work = int(work.start[-1])
        calls = work.calls
        kinds = self.context.kinds.of(work.table, work.launch)
        waits = self.context.waiting_functions.take(calls.function)
        # A call that waits for its work is no launch any more when this has started.
        launched = np.where(waits, work.start, np.maximum(work.start, calls.end))
        called = np.where(calls.known, np.minimum(calls.start, work.start), work.start)
        for device in np.unique(work.device).tolist():
            gpu = self._gpus.get(device)
            if gpu is None:
                gpu = self._gpus[device] = _GpuInSteps(len(self._waiting.start))
            mine = work.device == device
            start = work.start[mine]
            end = work.end[mine]
            known = calls.known[mine]
            gpu.run(kinds[mine], start, end)
            gpu.wait(known, start, end)
            gpu.launched(called[mine], end, self._waiting)
            gpu.launches.add(calls.start[mine][known], launched[mine][known])

    def _split_old(self) -> None:
        """Split the steps after whose end many calls were made, and forget the time up to the others."""
        time = 0
        while self._counts and self._calls - self._counts[0][1] >= self.WAITED:
            time, _ = self._counts.popleft()
        time = min(time, self._latest_work)
        old = self._waiting.end < time
        if not old.any():
            return
        self._split_steps(old)
        until = min(int(self._waiting.start.min(initial=time)), time)
        self._syncs.forget(until)
        for gpu in self._gpus.values():
            for moments in gpu.sets():
                moments.forget(until)

    def _split_steps(self, chosen: np.ndarray) -> None:
        steps = self._waiting.at(chosen)
        self._waiting = self._waiting.at(~chosen)
        by_gpu: dict[int | None, np.ndarray] = {None: self._parts(steps, None)}
        for device, gpu in self._gpus.items():
            by_gpu[device] = self._parts(steps, gpu)
            by_gpu[device][-1] = np.maximum(gpu.latest[chosen] - steps.end, 0)
            gpu.latest = gpu.latest[~chosen]
        self._split.append((steps, by_gpu))

    def _parts(self, steps: _Ranges, gpu: _GpuInSteps | None) -> np.ndarray:
        """A column for each step: the times of :data:`PARTS`, and 0."""
        unrecorded = self._unrecorded or Intervals.none()
        syncs = self._syncs.united()
        if gpu is None:
            nothing = Intervals.none()
            sets = [nothing, nothing, nothing, nothing, syncs, unrecorded]
        else:
            *work, unknown = [moments.united() for moments in gpu.sets()]
            sets = [*work, syncs, unknown | unrecorded]
        covered = Intervals.none()
        length = np.zeros(len(steps.start), np.int64)
        columns = []
        for moments in sets:
            covered = covered | moments
            longer = covered.within(steps.start, steps.end)
            columns.append(longer - length)
            length = longer
        columns.append(steps.end - steps.start - length)
        columns.append(np.zeros_like(length))
        return np.array(columns)

    def end(self, process: int, streams: list[Stream]) -> Iterator[Step]:
        if not self._name:
            return
        self._begin(process)
        if len(self._waiting.start):
            self._split_steps(np.ones(len(self._waiting.start), bool))
        names = list(self._names)
        gpus: list[int | None] = [*sorted(self._gpus)] or [None]
        for device in gpus:
            for steps, by_gpu in self._split:
                # A GPU that had no work yet was idle.
                columns = by_gpu.get(device, by_gpu[None])
                values = zip(
                    *(column.tolist() for column in (*steps, *columns)), strict=True
                )
                for start, end, name, *parts, behind in values:
                    yield Step(
                        process, device, names[name], start, end, tuple(parts), behind
                    )


#: The steps of each process, on each GPU that it uses, with the option ``name``.
STEPS = CollectedBy(_StepCollector)


# Reports


class PartUse(NamedTuple):
    """A part of the wall clock of all steps of a process on one GPU: ``times`` (ns) by step. ``wall`` (ns) is that of
    all steps; None for times that are no part of it."""

    process: int
    device: int | None
    part: str
    times: np.ndarray
    wall: int | None

    @property
    def steps(self) -> int:
        return len(self.times)

    @property
    def total(self) -> int:
        return int(self.times.sum())

    @property
    def mean(self) -> float:
        return float(self.times.mean())

    @property
    def p50(self) -> float:
        return float(np.percentile(self.times, 50))

    @property
    def p99(self) -> float:
        return float(np.percentile(self.times, 99))


def _steps(view: View) -> Sequence[Step]:
    """The steps. Raises :class:`cutrace.CutraceError` if a name is given and no step has it."""
    name = view.collected.options.name
    steps = view.collected[STEPS]
    if name and not steps:
        raise CutraceError(_no_step(view.trace, name))
    return steps


def _no_step(trace: Trace, name: str) -> str:
    """Why there is no step of this name."""
    ended, open_ = _range_names(trace)
    matches = matcher(name)
    if any(map(matches, open_)):
        return f"no range named {name} ended: its steps have no known time. Record until a step has ended"
    if not ended:
        return (
            f"no range is named {name}, because the trace has no ranges: put an NVTX range around each step, such as "
            "torch.cuda.nvtx.range('step'), and record again"
        )
    there = f"there are {', '.join(ended[:_SHOWN])}"
    if len(ended) > _SHOWN:
        there += f" and {len(ended) - _SHOWN} more"
    return f"no range is named {name}: {did_you_mean(name, ended, there)}"


def _range_names(trace: Trace) -> tuple[list[str], list[str]]:
    """The names of ranges that ended, and of those that never did, in the order of first appearance."""
    ended: dict[str, None] = {}
    still_open: dict[str, None] = {}
    for table in RANGE_TABLES:
        rows = trace.table(table)
        unknown = trace.unknown(table)
        for known, names in ((rows, ended), (unknown, still_open)):
            ids = known["name"][are_ranges(table, known)]
            names |= dict.fromkeys(trace.strings.take(ids))
    ended |= dict.fromkeys(region.name for region in whole(trace).regions)
    return list(ended), list(still_open)


def _by_gpu(view: View) -> Iterator[list[Step]]:
    """The steps of each process on each GPU."""
    gpus: dict[tuple[int, int | None], list[Step]] = {}
    for step in _steps(view):
        gpus.setdefault((step.process, step.device), []).append(step)
    yield from gpus.values()


def _part_uses(view: View) -> Iterator[PartUse]:
    for steps in _by_gpu(view):
        gpu = steps[0].process, steps[0].device
        walls = np.array([step.wall for step in steps])
        wall = int(walls.sum())
        by_part = np.array([step.parts for step in steps]).T
        for part, times in zip(PARTS, by_part, strict=True):
            yield PartUse(*gpu, part, times, wall)
        yield PartUse(*gpu, "wall clock", walls, wall)
        behind = np.array([step.behind for step in steps])
        yield PartUse(*gpu, "GPU behind", behind, None)


def _gpu(view: View, use: Any) -> str:
    if use.device is None:
        return ""
    return view.gpu(use.process, use.device)


def _share(view: View, use: Any) -> float | None:
    if use.wall is None:
        return None
    return share(use.total, use.wall)


STEP_SUM = Statistic(
    "step_sum",
    "Where steps spent their time",
    _part_uses,
    (
        SPARE_PROCESS,
        text_column("GPU", _gpu, spare=True),
        text_column("part"),
        column_of("share", _share, unit="1"),
        time_column("total"),
        count_column("steps"),
        time_column("mean"),
        time_column("p50"),
        time_column("p99"),
    ),
    needs=(STEPS,),
    usual=False,
    options=("name",),
)


# Single steps


class StepEnergy(NamedTuple):
    """A step, and the energy that its GPU took in its time; None if samples do not cover it."""

    step: Step
    joules: float | None


def _energies(view: View) -> list[StepEnergy]:
    power = Power(view.trace)
    found: list[StepEnergy] = []
    for steps in _by_gpu(view):
        process, device = steps[0].process, steps[0].device
        joules = [None] * len(steps)
        if device is not None:
            start = np.array([step.start for step in steps])
            end = np.array([step.end for step in steps])
            energy = power.joules(process, device, start, end).astype(object)
            energy[energy != energy] = None  # NaN: samples do not cover the step
            joules = energy.tolist()
        found += map(StepEnergy, steps, joules)
    return found


def _in_order(view: View) -> list[StepEnergy]:
    return sorted(_energies(view), key=lambda one: (one.step.start, one.step.process))


def _part(number: int) -> Callable[[View, Any], int]:
    def time(view: View, use: Any) -> int:
        part: int = use.step.parts[number]
        return part

    return time


STEP_TRACE = Statistic(
    "step_trace",
    "Steps one by one",
    _in_order,
    (
        moment_column("start", "step.start"),
        text_column(
            "process", lambda view, use: view.process(use.step.process), spare=True
        ),
        text_column("GPU", lambda view, use: _gpu(view, use.step), spare=True),
        text_column("step", "step.name"),
        time_column("wall clock", "step.wall"),
        *(time_column(part, _part(number)) for number, part in enumerate(PARTS)),
        time_column("GPU behind", "step.behind"),
        number_column("joules"),
    ),
    needs=(STEPS,),
    usual=False,
    listing=True,
    options=("name",),
)


# Energy


class EnergyUse(NamedTuple):
    """The energy (J) of the steps of a process on one GPU: ``joules`` and ``seconds`` of those that samples cover, of
    all ``steps``."""

    process: int
    device: int
    steps: int
    joules: np.ndarray
    seconds: np.ndarray


def _energy_uses(view: View) -> Iterator[EnergyUse]:
    gpus: dict[tuple[int, int], list[StepEnergy]] = {}
    for one in _energies(view):
        if one.step.device is not None:
            gpus.setdefault((one.step.process, one.step.device), []).append(one)
    for gpu, energies in gpus.items():
        known = [one for one in energies if one.joules is not None]
        joules = np.array([one.joules for one in known], float)
        seconds = np.array([one.step.wall for one in known]) / 1e9
        yield EnergyUse(*gpu, len(energies), joules, seconds)


def _of_joules(
    figure: Callable[[np.ndarray], Any],
) -> Callable[[View, Any], float | None]:
    """A cell that has a figure of the known energies; None if there are none."""

    def cell(view: View, use: Any) -> float | None:
        if not len(use.joules):
            return None
        return float(figure(use.joules))

    return cell


def _watts(view: View, use: Any) -> float | None:
    time = float(use.seconds.sum())
    if not time:
        return None
    return float(use.joules.sum()) / time


STEP_ENERGY_SUM = Statistic(
    "step_energy_sum",
    "Energy of steps",
    _energy_uses,
    (
        SPARE_PROCESS,
        GPU,
        count_column("steps"),
        count_column("known", lambda view, use: len(use.joules)),
        number_column("joules", _of_joules(np.sum)),
        number_column("mean", _of_joules(np.mean)),
        number_column("p50", _of_joules(np.median)),
        number_column("p99", _of_joules(lambda joules: np.percentile(joules, 99))),
        number_column("watts", _watts),
    ),
    needs=(STEPS,),
    usual=False,
    options=("name",),
)
