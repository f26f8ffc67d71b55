"""Synchronising calls that a limit allows: calls below a Python frame that matches ``allow``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..analysis.call_sites import counted_work
from ..analysis.definitions import Metrics, Value
from ..analysis.marks import Window
from ..golden import Budget, Row
from ..golden.decide import MeasuredRun
from ..golden.model import scoped
from ..patterns import any_matcher
from ..trace import Trace
from ..trace.stacks import PythonFrame
from ..units import count_of
from .added import Project, frames_of

#: The metric whose limit can allow calls.
_METRIC = "sync_calls"
#: The place of calls without a Python stack. No pattern allows them.
_NO_FRAME = "no Python frame"

#: Synchronising calls by region and place.
WaitsByRegion = Mapping[str, Mapping[str, int]]


def waits_that_count(
    trace: Trace, window: Window, budgets: Mapping[str, Budget], project: Project
) -> dict[str, dict[str, int]]:
    """The synchronising calls of a window that count for limits with allowed places, by region and place. A call does
    not count if a frame of its stack is at an allowed place."""
    waits = {}
    for region, budget in budgets.items():
        if budget.allowed:
            matches = any_matcher(budget.allowed)
            waits[region] = _by_place(trace, window, region, matches, project)
    return waits


def _by_place(
    trace: Trace,
    window: Window,
    region: str,
    allowed: Callable[[str], bool],
    project: Project,
) -> dict[str, int]:
    counts = Counter[str]()
    work = counted_work(trace, window, _METRIC, region=region)
    stacks, calls = np.unique(work.stack, return_counts=True)
    for stack, count in zip(stacks.tolist(), calls.tolist(), strict=True):
        frames = frames_of(trace, stack)
        if not frames:
            counts[_NO_FRAME] += count
        elif not any(map(allowed, _names(frames, project))):
            place, _ = project.place_of(frames)
            counts[place] += count
    return dict(counts)


def _names(frames: Sequence[PythonFrame], project: Project) -> Iterator[str]:
    """The strings that a pattern may match: line, function and qualified function of each frame."""
    for frame in frames:
        file = project.shown(frame.file)
        yield f"{file}:{frame.line}"
        yield f"{file}:{frame.function}"
        yield f"{file}:{frame.function.rpartition('.')[2]}"


def without_allowed(metrics: Metrics, waits: WaitsByRegion) -> Metrics | None:
    """The metrics for limits with allowed places: ``sync_calls`` is the number of calls that count, ``syncs`` has them
    by place. None if limits judge the metrics as they are."""
    if not waits:
        return None
    values = metrics.values
    regions = dict(metrics.regions)
    for region, by_place in waits.items():
        counted: dict[str, Value] = {
            _METRIC: sum(by_place.values()),
            "syncs": dict(by_place),
        }
        if not region:
            values = {**values, **counted}
        elif region in regions:
            regions[region] = {**regions[region], **counted}
    return replace(metrics, values=values, regions=regions)


class AllowedCalls(NamedTuple):
    """The allowed calls in a case: notes, and the number of calls in all runs by list of places."""

    notes: tuple[str, ...]
    by_list: dict[str, int]


def allowed_calls(
    budgets: Mapping[str, Budget],
    judged: MeasuredRun,
    runs: Sequence[MeasuredRun | None],
    why_no_stacks: str,
) -> AllowedCalls:
    """The calls that limits leave out in the judged run and in all runs. ``why_no_stacks`` is the reason why calls have
    no Python stacks, "" if none is known."""
    if why_no_stacks:
        return AllowedCalls((f"no call is allowed: {why_no_stacks}",), {})
    notes = []
    by_list: dict[str, int] = {}
    for region, budget in budgets.items():
        if not budget.allowed:
            continue
        places = ", ".join(budget.allowed)
        left_out = sum(_allowed(run, region) for run in runs)
        by_list[places] = by_list.get(places, 0) + left_out
        in_judged = _allowed(judged, region)
        if in_judged:
            name = scoped(region, _METRIC)
            calls = count_of(in_judged, "call")
            notes.append(
                f"{name} leaves out {calls} at allowed places: {budget.reason}"
            )
    return AllowedCalls(tuple(notes), by_list)


def without_places(rows: Sequence[Row], budgets: Mapping[str, Budget]) -> list[Row]:
    """Leave out the rows of limits with allowed places, because they name places of calls."""
    others = []
    for row in rows:
        budget = budgets.get(row.region)
        of_limit = row.rule == "limit" and row.metric == _METRIC
        if not of_limit or budget is None or not budget.allowed:
            others.append(row)
    return others


def _allowed(run: MeasuredRun | None, region: str) -> int:
    """The number of allowed synchronising calls in a run, or in its regions of this name."""
    if run is None or run.limited is None:
        return 0
    return _waits(run.metrics, region) - _waits(run.limited, region)


def _waits(metrics: Metrics, region: str) -> int:
    values = metrics.values
    if region:
        values = metrics.regions.get(region, {})
    count = values.get(_METRIC, 0)
    assert isinstance(count, int)
    return count
