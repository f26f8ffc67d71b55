"""Update the golden entry of a test in one environment. The values of other environments never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..analysis.definitions import Metric, MetricClass, Metrics
from ..errors import CutraceError
from . import statistics
from .compare import kept, problems_of
from .model import (
    Count,
    Entry,
    Interval,
    Observed,
    Parts,
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
from .values import compare_values

#: The classes that are always written. States and times are written only if they are gated.
_COUNTED = (MetricClass.WORK, MetricClass.COUNTER)


def observed(
    runs: Sequence[Metrics], rules: Rules = DEFAULTS, *, confirmed: bool = True
) -> Observed:
    """The golden values of these runs: work and counters, unstable where the runs disagree; for gated states the range,
    for gated times the interval.

    ``confirmed`` is False for a run that could not be repeated. Raises :class:`CutraceError` if the numbers are
    unreliable.
    """
    problems = problems_of(runs)
    if problems or not runs:
        raise CutraceError(
            f"nothing is recorded: {'; '.join(problems) or 'the test did not run'}"
        )
    found = Observed(confirmed=confirmed)
    regions = [""]
    for run in runs:
        regions.extend(run.regions)
    for region in dict.fromkeys(regions):
        found.values[region] = {}
        scopes = [kept(run, region, rules) or {} for run in runs]
        for metric in ordered(name for scope in scopes for name in scope):
            _observe(metric, region, scopes, rules, found)
    return found


def _observe(
    metric: Metric,
    region: str,
    scopes: Sequence[Mapping[str, Any]],
    rules: Rules,
    found: Observed,
) -> None:
    """Add the values of one metric in all runs to the observed ones."""
    values = [scope.get(metric.name, absent(metric)) for scope in scopes]
    seen = [value for value in values if value is not None]
    if metric.kind not in _COUNTED:
        if rules.gates(metric):
            timed = metric.kind is MetricClass.TIME
            found.values[region][metric.name] = (
                statistics.interval(seen) if timed else Span(min(seen), max(seen))
            )
        return
    everywhere = len(seen) == len(scopes)
    if not everywhere or not all(
        _agree(metric, seen[0], value, rules) for value in seen
    ):
        found.unstable.setdefault(region, {})[metric.name] = _bounds(*seen)
    elif seen[0] or metric.kind is MetricClass.COUNTER:
        found.values[region][metric.name] = seen[-1]


def _agree(metric: Metric, one: Any, other: Any, rules: Rules) -> bool:
    """Whether the values of two runs are equal, or for hardware counters within the rules."""
    if one == other:
        return True
    return (
        metric.hardware
        and not compare_values(metric, one, other, rules.tolerance_for(metric)).differs
    )


def unsettled(runs: Sequence[Metrics], rules: Rules = DEFAULTS) -> tuple[str, ...]:
    """The metrics on which these runs disagree, as ``metric`` or ``region/metric``. Gated states count too: the first
    run of a process fills caches and pools, and its range would hide increases in later runs."""
    found = observed(runs, rules)
    disputed = _names(found.unstable)
    for region, values in found.values.items():
        for name, value in values.items():
            if isinstance(value, Span) and value.min < value.max:
                disputed.append(scoped(region, name))
    return tuple(disputed)


def merged(
    entry: Entry | None,
    new: Observed,
    *,
    environment: str,
    update: Update,
    rules: Rules = DEFAULTS,
) -> tuple[Entry, tuple[str, ...]]:
    """The entry of a test after an update, and notes on values that were not replaced.

    A value that is the same within the rules is kept, so that the file does not change. Values of one run that could
    not be repeated are confirmed by a second run that agrees; metrics on which it disagrees become unstable.
    """
    entry = entry or {}
    old = entry.get(environment)
    if old is None:
        notes = tuple(
            f"{name} is unstable: runs did not agree" for name in _names(new.unstable)
        )
        return {**entry, environment: new}, notes
    merge = _EntryMerge(old, new, update, rules)
    return {**entry, environment: merge.observed()}, tuple(merge.notes)


class _EntryMerge:
    """The merge of old and new values of one environment."""

    def __init__(
        self, old: Observed, new: Observed, update: Update, rules: Rules
    ) -> None:
        self.old = old
        self.new = new
        self.update = update
        self.rules = rules
        self.notes: list[str] = []
        self.values: dict[str, Values] = {}
        self.unstable: dict[str, Values] = {}
        #: Whether old and new are two single runs of two sessions, which must agree.
        self.confirms = (
            not old.confirmed and not new.confirmed and update.mode != "missing"
        )
        #: Whether the new runs differ from a value that is kept.
        self.refused = False

    def observed(self) -> Observed:
        for region in dict.fromkeys((*self.old.values, *self.new.values)):
            if region not in self.old.values:
                self._keep(region, self.new)
            elif region in self.new.values:
                self._region(region)
            elif self.update.mode == "missing" or self.update.only:
                self._keep(region, self.old)
                self.notes.append(
                    f"the region {region} keeps its values: it was not entered"
                )
        unstable = {
            region: values for region, values in self.unstable.items() if values
        }
        after = Observed(self.values, unstable)
        if not self.old.confirmed:
            confirmed = (self.new.confirmed or self.confirms) and not self.refused
            return replace(after, confirmed=confirmed)
        # A single run that changes confirmed values makes them unconfirmed until a second run agrees.
        unchanged = after == replace(self.old, confirmed=True)
        return replace(after, confirmed=self.new.confirmed or unchanged)

    def _keep(self, region: str, observed: Observed) -> None:
        self.values[region] = observed.values[region]
        self.unstable[region] = observed.unstable.get(region, {})

    def _region(self, region: str) -> None:
        old = self.old.values[region]
        new = self.new.values[region]
        old_unstable = self.old.unstable.get(region, {})
        new_unstable = self.new.unstable.get(region, {})
        self.values[region] = {}
        self.unstable[region] = {}
        for metric in ordered((*old, *new, *old_unstable, *new_unstable)):
            if self.rules.ignores(metric):
                self._keep_metric(region, metric.name)
            else:
                self._metric(region, metric)

    def _keep_metric(self, region: str, name: str) -> None:
        for before, after in (
            (self.old.values, self.values),
            (self.old.unstable, self.unstable),
        ):
            if name in before.get(region, {}):
                after[region][name] = before[region][name]

    def _metric(self, region: str, metric: Metric) -> None:
        """Merge one metric: it becomes or stays unstable, or it gets a value."""
        name = metric.name
        before = self.old.values[region].get(name, absent(metric))
        after = self.new.values[region].get(name, absent(metric))
        old_unstable = self.old.unstable.get(region, {})
        new_unstable = self.new.unstable.get(region, {})
        fixed = not self.update.takes(metric) or self.update.mode == "missing"
        if name in old_unstable:
            if fixed:
                self.unstable[region][name] = old_unstable[name]
                return
            if name in new_unstable or self.update.mode != "all":
                self._unstable(
                    region, name, old_unstable[name], new_unstable.get(name, after)
                )
                return
        elif name in new_unstable:
            if not fixed:
                self.notes.append(
                    f"{scoped(region, name)} is unstable now: runs did not agree"
                )
                self._unstable(region, name, before, new_unstable[name])
                return
            after = before  # the mode does not allow replacing it
        value = self._value(region, metric, before, after, fixed)
        if value or (value is not None and metric.kind is not MetricClass.WORK):
            self.values[region][name] = value

    def _unstable(self, region: str, name: str, *seen: Stored | None) -> None:
        """Write the bounds of all that was seen of a metric."""
        self.unstable[region][name] = _bounds(
            *(value for value in seen if value is not None)
        )

    def _value(
        self,
        region: str,
        metric: Metric,
        before: Stored | None,
        after: Stored | None,
        fixed: bool,
    ) -> Stored | None:
        """The value of a metric on which the new runs agree."""
        if before is None:
            if self.update.takes(metric):
                return after
            return None
        if after is None:
            gone = (
                metric.kind is MetricClass.COUNTER and not fixed
            )  # the counter is no longer measured
            if gone:
                return None
            return before
        verdict = compare_values(
            metric, before, after, self.rules.tolerance_for(metric)
        ).verdict
        if verdict is Verdict.SAME:
            return before
        full = scoped(region, metric.name)
        counted = metric.kind in _COUNTED
        if fixed:
            self.refused |= counted
            if self.update.mode == "missing" and self.rules.gates(metric):
                self.notes.append(
                    f"{full} keeps its value ({verdict.value}): --cutrace-update replaces it"
                )
            return before
        if self.confirms and counted:
            self._unstable(region, metric.name, before, after)
            self.notes.append(f"{full} is unstable now: two sessions did not agree")
            return None
        if self.update.mode == "all":
            return after
        if self.update.mode == "widen":
            return _widened(before, after)
        if verdict in (Verdict.CHANGED, Verdict.BETTER, Verdict.FAST):
            if metric.kind is MetricClass.STATE:
                return _widened(before, after)
            return after
        if verdict is not Verdict.AMBIGUOUS:
            self.notes.append(
                f"{full} keeps its value ({verdict.value}): --cutrace-update=all replaces it"
            )
        return before


def _bounds(*values: Any) -> Stored:
    """The minimum and the maximum of several values, name by name."""
    if not any(isinstance(value, dict) for value in values):
        return _between(*values)
    # A value that is not counted by name has none of the names.
    parts = [value if isinstance(value, dict) else {} for value in values]
    names: set[str] = set()
    for part in parts:
        names.update(part)
    bounds: Parts = {}
    for name in sorted(names):
        bounds[name] = _between(*(one.get(name, 0) for one in parts))
    return bounds


def _between(*counts: Count) -> Count:
    """The lowest and the highest of several counts, one number if they are equal."""
    every = _all_alternatives(counts)
    if len(every) == 1:
        return every[0]
    return (every[0], every[-1])


def _either(*counts: Count) -> Count:
    """All of several counts as alternatives, one number if they are equal."""
    every = _all_alternatives(counts)
    if len(every) == 1:
        return every[0]
    return tuple(every)


def _all_alternatives(counts: Sequence[Count]) -> list[int]:
    every: set[int] = set()
    for count in counts:
        every.update(alternatives(count))
    return sorted(every)


def _widened(before: Stored, after: Stored) -> Stored:
    """The old value with the new one as an alternative, or the range that covers both."""
    if isinstance(before, Span) and isinstance(after, Span):
        return Span(min(before.min, after.min), max(before.max, after.max))
    if isinstance(before, Interval | Span) or isinstance(after, Interval | Span):
        return after
    if isinstance(before, dict) and isinstance(after, dict):
        return {
            name: _either(before.get(name, 0), after.get(name, 0))
            for name in sorted({**before, **after})
        }
    return _either(_without_names(before), _without_names(after))


def _without_names(value: Count | Parts) -> Count:
    """A count; of counts by name, which cannot be alternatives of a number, their sum."""
    if isinstance(value, dict):
        return amount(value) or 0
    return value


def _names(regions: Mapping[str, Values]) -> list[str]:
    return [
        scoped(region, name) for region, values in regions.items() for name in values
    ]
