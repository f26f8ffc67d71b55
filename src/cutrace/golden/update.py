"""Update the golden entry of a test in one environment. The values of other environments never change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..analysis.definitions import Metric, MetricClass, Metrics
from ..errors import CutraceError
from . import statistics
from .compare import judged, kept, problems_of
from .model import (
    Count,
    Entry,
    Interval,
    Observed,
    Span,
    Stored,
    Values,
    Verdict,
    absent,
    alternatives,
    amount,
    ordered,
    scoped,
)
from .rules import DEFAULTS, Rules, Update

#: The classes that are always written. States and times are written only if they are gated.
_COUNTED = (MetricClass.WORK, MetricClass.COUNTER)


def observed(runs: Sequence[Metrics], rules: Rules = DEFAULTS, *, confirmed: bool = True) -> Observed:
    """The golden values of these runs: work and counters, unstable where the runs disagree; for gated states the range,
    for gated times the interval.

    ``confirmed`` is False for a run that could not be repeated. Raises :class:`CutraceError` if the numbers are
    unreliable.
    """
    problems = problems_of(runs)
    if problems or not runs:
        raise CutraceError(f"nothing is recorded: {'; '.join(problems) or 'the test did not run'}")
    values: dict[str, Values] = {}
    unstable: dict[str, Values] = {}
    for region in dict.fromkeys(("", *(name for run in runs for name in run.regions))):
        scopes = [kept(run, region, rules) or {} for run in runs]
        values[region] = {}
        for metric in ordered(name for scope in scopes for name in scope):
            seen = [value for scope in scopes if (value := scope.get(metric.name, absent(metric))) is not None]
            if metric.kind not in _COUNTED:
                if rules.gates(metric):
                    timed = metric.kind is MetricClass.TIME
                    values[region][metric.name] = statistics.interval(seen) if timed else Span(min(seen), max(seen))
            elif len(seen) < len(scopes) or not all(_agree(metric, seen[0], value, rules) for value in seen):
                unstable.setdefault(region, {})[metric.name] = _bounds(*seen)
            elif seen[0] or metric.kind is MetricClass.COUNTER:
                values[region][metric.name] = seen[-1]
    return Observed(values, unstable, confirmed)


def _agree(metric: Metric, one: Any, other: Any, rules: Rules) -> bool:
    """Whether the values of two runs are equal, or for hardware counters within the rules."""
    return bool(one == other) or (metric.hardware and judged(metric, one, other, rules)[0] is Verdict.SAME)


def unsettled(runs: Sequence[Metrics], rules: Rules = DEFAULTS) -> tuple[str, ...]:
    """The metrics on which these runs disagree, as ``metric`` or ``region/metric``. Gated states count too: the first
    run of a process fills caches and pools, and its range would hide increases in later runs."""
    both = observed(runs, rules)
    ranges = (
        scoped(region, name)
        for region, values in both.values.items()
        for name, value in values.items()
        if isinstance(value, Span) and value.min < value.max
    )
    return (*_names(both.unstable), *ranges)


def merged(
    entry: Entry | None, new: Observed, *, environment: str, update: Update, rules: Rules = DEFAULTS
) -> tuple[Entry, tuple[str, ...]]:
    """The entry of a test after an update, and notes on values that were not replaced.

    A value that is the same within the rules is kept, so that the file does not change. Values of one run that could
    not be repeated are confirmed by a second run that agrees; metrics on which it disagrees become unstable.
    """
    entry = entry or {}
    old = entry.get(environment)
    if old is None:
        notes = [f"{name} is unstable: runs did not agree" for name in _names(new.unstable)]
        return {**entry, environment: new}, tuple(notes)
    merge = _EntryMerge(old, new, update, rules)
    return {**entry, environment: merge.observed()}, tuple(merge.notes)


class _EntryMerge:
    """The merge of old and new values of one environment."""

    def __init__(self, old: Observed, new: Observed, update: Update, rules: Rules) -> None:
        self.old, self.new = old, new
        self.update, self.rules = update, rules
        self.notes: list[str] = []
        self.values: dict[str, Values] = {}
        self.unstable: dict[str, Values] = {}
        #: Whether old and new are two single runs of two sessions, which must agree.
        self.confirms = not old.confirmed and not new.confirmed and update.mode != "missing"
        #: Whether the new runs differ from a value that is kept.
        self.refused = False

    def observed(self) -> Observed:
        for region in dict.fromkeys((*self.old.values, *self.new.values)):
            if region in self.new.values and region in self.old.values:
                self._region(region)
            elif region in self.new.values:
                self._keep(region, self.new)
            elif self.update.mode == "missing" or self.update.only:
                self._keep(region, self.old)
                self.notes.append(f"the region {region} keeps its values: it was not entered")
        before = replace(self.old, confirmed=True)
        after = Observed(self.values, {region: values for region, values in self.unstable.items() if values})
        if self.old.confirmed:
            # A single run that changes confirmed values makes them unconfirmed until a second run agrees.
            return replace(after, confirmed=self.new.confirmed or after == before)
        return replace(after, confirmed=(self.new.confirmed or self.confirms) and not self.refused)

    def _keep(self, region: str, observed: Observed) -> None:
        self.values[region], self.unstable[region] = observed.values[region], observed.unstable.get(region, {})

    def _region(self, region: str) -> None:
        old, new = self.old.values[region], self.new.values[region]
        old_unstable, new_unstable = self.old.unstable.get(region, {}), self.new.unstable.get(region, {})
        values, unstable = self.values.setdefault(region, {}), self.unstable.setdefault(region, {})
        for metric in ordered((*old, *new, *old_unstable, *new_unstable)):
            name = metric.name
            if self.rules.ignores(metric):
                values.update({name: old[name]} if name in old else {})
                unstable.update({name: old_unstable[name]} if name in old_unstable else {})
                continue
            before, after = old.get(name, absent(metric)), new.get(name, absent(metric))
            fixed = not self.update.takes(metric) or self.update.mode == "missing"
            if fixed and name in old_unstable:
                unstable[name] = old_unstable[name]
                continue
            if name in old_unstable or name in new_unstable:
                stays = fixed or (name in old_unstable and self.update.mode != "all")
                if name in (old_unstable if stays else new_unstable):
                    if name not in old_unstable:
                        self.notes.append(f"{scoped(region, name)} is unstable now: runs did not agree")
                    seen = (old_unstable.get(name, before), new_unstable.get(name, after))
                    unstable[name] = _bounds(*(value for value in seen if value is not None))
                    continue
                if name in new_unstable:  # the mode does not allow replacing it
                    after = before
            value = self._value(region, metric, before, after, fixed)
            if value or (value is not None and metric.kind is not MetricClass.WORK):
                values[name] = value

    def _value(
        self, region: str, metric: Metric, before: Stored | None, after: Stored | None, fixed: bool
    ) -> Stored | None:
        """The value of a metric on which the new runs agree."""
        full = scoped(region, metric.name)
        if before is None or after is None:
            if before is None:
                return after if self.update.takes(metric) else None
            if not fixed and metric.kind is MetricClass.COUNTER:
                return None  # the counter is no longer measured
            return before
        # The maximum of a range is compared.
        verdict, _ = judged(metric, before, after.max if isinstance(after, Span) else after, self.rules)
        if verdict is Verdict.SAME:
            return before
        if fixed:
            self.refused |= metric.kind in _COUNTED
            if self.update.mode == "missing" and self.rules.gates(metric):
                self.notes.append(f"{full} keeps its value ({verdict.value}): --cutrace-update replaces it")
            return before
        if self.confirms and metric.kind in _COUNTED:
            self.unstable.setdefault(region, {})[metric.name] = _bounds(before, after)
            self.notes.append(f"{full} is unstable now: two sessions did not agree")
            return None
        if self.update.mode == "widen":
            return _widened(before, after)
        if self.update.mode == "all" or verdict in (Verdict.CHANGED, Verdict.BETTER, Verdict.FAST):
            return _widened(before, after) if metric.kind is MetricClass.STATE and self.update.mode != "all" else after
        if verdict is not Verdict.AMBIGUOUS:
            self.notes.append(f"{full} keeps its value ({verdict.value}): --cutrace-update=all replaces it")
        return before


def _bounds(*values: Any) -> Stored:
    """The minimum and the maximum of several values, name by name."""
    if any(isinstance(value, dict) for value in values):
        parts = [value if isinstance(value, dict) else {} for value in values]
        names = sorted({name for one in parts for name in one})
        return {name: _between(*(one.get(name, 0) for one in parts)) for name in names}
    return _between(*values)


def _between(*counts: Count) -> Count:
    every = sorted({n for count in counts for n in alternatives(count)})
    return every[0] if len(every) == 1 else (every[0], every[-1])


def _widened(before: Stored, after: Stored) -> Stored:
    """The old value with the new one as an alternative, or the range that covers both."""
    if isinstance(before, Span) and isinstance(after, Span):
        return Span(min(before.min, after.min), max(before.max, after.max))
    if isinstance(before, dict) and isinstance(after, dict):
        return {name: _either(before.get(name, 0), after.get(name, 0)) for name in sorted({**before, **after})}
    if isinstance(before, Interval | Span) or isinstance(after, Interval | Span):
        return after
    # Counts by name cannot be alternatives of a number; their sum can.
    return _either(*((amount(value) or 0) if isinstance(value, dict) else value for value in (before, after)))


def _either(before: Count, after: Count) -> Count:
    every = sorted({*alternatives(before), *alternatives(after)})
    return every[0] if len(every) == 1 else tuple(every)


def _names(regions: Mapping[str, Values]) -> Iterator[str]:
    yield from (scoped(region, name) for region, values in regions.items() for name in values)
