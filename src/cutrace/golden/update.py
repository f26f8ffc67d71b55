"""Update the golden entry of a test in one environment. In other environments only the counts of the project's own
kernels change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..analysis.definitions import METRICS, Metric, MetricClass, Metrics
from ..errors import CutraceError
from . import statistics
from .compare import kept, problems_of
from .model import (
    CODE,
    Codes,
    Count,
    Entry,
    Observed,
    Parts,
    Span,
    Stored,
    Values,
    Verdict,
    absent,
    alternatives,
    copy_metric,
    ordered,
    scoped,
    values_in,
)
from .rules import DEFAULTS, Rules, Update
from .values import compare_values

#: The classes that are always written. States and times are written only if they are gated.
_COUNTED = (MetricClass.WORK, MetricClass.COUNTER)


#: The metric that has counts by kernel.
_KERNELS = "kernel_launches"


def observed(
    runs: Sequence[Metrics], rules: Rules = DEFAULTS, *, confirmed: bool = True
) -> Observed:
    """The golden values of these runs. Work and counters are unstable where the runs disagree. Gated states become
    ranges, and gated times become intervals.

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
        scopes = []
        names: set[str] = set()
        for run in runs:
            values = kept(run, region, rules) or {}
            scopes.append(values)
            names.update(values)
        for metric in ordered(names):
            _observe(metric, region, scopes, rules, found)
    return found


def _observe(
    metric: Metric,
    region: str,
    scopes: Sequence[Mapping[str, Any]],
    rules: Rules,
    found: Observed,
) -> None:
    """Add the values of one metric in all runs to the observed values."""
    name = metric.name
    stable = found.values[region]
    seen = values_in(scopes, metric)
    if metric.kind is MetricClass.CODE:
        _observe_codes(region, seen, found)
        return
    if metric.kind not in _COUNTED:
        if not rules.gates(metric):
            return
        if metric.kind is MetricClass.TIME:
            stable[name] = statistics.interval(seen)
        else:
            stable[name] = Span(min(seen), max(seen))
        return
    agreed = all(_agree(metric, seen[0], value, rules) for value in seen)
    if not agreed or len(seen) < len(scopes):
        found.unstable.setdefault(region, {})[name] = _bounds(seen)
    elif seen[0] or metric.kind is MetricClass.COUNTER:
        stable[name] = seen[-1]


def _observe_codes(region: str, seen: Sequence[Codes], found: Observed) -> None:
    """Add the machine code of the kernels whose code is known in all runs."""
    names = set(seen[0].by_kernel)
    for codes in seen:
        names &= codes.known.by_kernel.keys()
    if not names:
        return
    runs = [codes.of(names) for codes in seen]
    for run in runs:
        if compare_values(METRICS[CODE], runs[0], run).differs:
            found.unstable.setdefault(region, {})[CODE] = _bounds(runs)
            return
    found.values[region][CODE] = runs[-1]


def _agree(metric: Metric, one: Any, other: Any, rules: Rules) -> bool:
    """Whether the values of two runs are equal, or for hardware counters within the rules."""
    if one == other or not metric.hardware:
        return bool(one == other)
    tolerance = rules.tolerance_for(metric)
    return not compare_values(metric, one, other, tolerance).differs


def disputed(found: Observed) -> tuple[str, ...]:
    """The metrics on which the observed runs disagree. They include gated states, because the first run of a process
    fills caches and pools: its range would hide increases in later runs."""
    ranges: dict[str, Values] = {}
    for region, values in found.values.items():
        ranges[region] = {}
        for name, value in values.items():
            if isinstance(value, Span) and value.min < value.max:
                ranges[region][name] = value
    return (*_names(found.unstable), *_names(ranges))


def merged(
    entry: Entry | None,
    new: Observed,
    *,
    environment: str,
    update: Update,
    rules: Rules = DEFAULTS,
) -> tuple[Entry, tuple[str, ...]]:
    """The entry of a test after an update, and notes on values that were not replaced.

    A value that is the same within the rules is kept, so that the file does not change. A second run confirms the
    values of a run that could not be repeated. Metrics on which the two runs disagree become unstable.
    """
    entry = entry or {}
    old = entry.get(environment)
    if old is None:
        unstable = _names(new.unstable)
        notes = [f"{name} is unstable: runs did not agree" for name in unstable]
        return {**entry, environment: new}, tuple(notes)
    merge = _EntryMerge(old, new, update, rules)
    return {**entry, environment: merge.observed()}, tuple(merge.notes)


def own_kernels_changed(
    entry: Entry, environment: str, after: Observed, rules: Rules
) -> Entry:
    """The changed values of other environments when the values of one environment become ``after``. Only the counts of
    the project's own kernels change, because they are the same in all environments. Counts that differed before
    stay."""
    changed: Entry = {}
    before = entry.get(environment)
    if before is None:  # A new environment has no old values in common with others.
        return changed
    for name, observed in entry.items():
        if name == environment:
            continue
        regions = {}
        for region, values in observed.values.items():
            old = _own_kernels(before.values.get(region, {}), rules)
            new = _own_kernels(after.values.get(region, {}), rules)
            regions[region] = values
            if old != new and old == _own_kernels(values, rules):
                others = {
                    name: count
                    for name, count in _kernels(values).items()
                    if name not in old
                }
                regions[region] = {**values, _KERNELS: {**others, **new}}
                if not regions[region][_KERNELS]:
                    del regions[region][_KERNELS]
        if regions != observed.values:
            changed[name] = replace(observed, values=regions)
    return changed


def _kernels(values: Values) -> Parts:
    """The counts by kernel of a region; none if the value is one number."""
    parts = values.get(_KERNELS)
    if isinstance(parts, dict):
        return parts
    return {}


def _own_kernels(values: Values, rules: Rules) -> Parts:
    """The counts of the project's own kernels in a region."""
    kernels = _kernels(values).items()
    return {name: count for name, count in kernels if rules.owns(name)}


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
        self.merged = Observed()
        #: Whether old and new are two single runs of two sessions. They must agree.
        self.confirms = (
            not old.confirmed and not new.confirmed and update.mode != "missing"
        )
        #: Whether the new runs differ from a value that is kept.
        self.refused = False

    def observed(self) -> Observed:
        for region in {**self.old.values, **self.new.values}:
            if region not in self.old.values:
                self._keep(region, self.new)
            elif region in self.new.values:
                self._region(region)
            elif self.update.mode == "missing" or self.update.only:
                self._keep(region, self.old)
                self.notes.append(
                    f"the region {region} keeps its values: it was not entered"
                )
        after = self.merged
        if not self.old.confirmed:
            confirmed = (self.new.confirmed or self.confirms) and not self.refused
            return replace(after, confirmed=confirmed)
        # A single run that changes confirmed values makes them unconfirmed until a second run agrees.
        unchanged = after == replace(self.old, confirmed=True)
        return replace(after, confirmed=self.new.confirmed or unchanged)

    def _keep(self, region: str, observed: Observed) -> None:
        self.merged.values[region] = observed.values[region]
        unstable = observed.unstable.get(region)
        if unstable:
            self.merged.unstable[region] = unstable

    def _region(self, region: str) -> None:
        self.merged.values[region] = {}
        names = self.old.metrics(region) | self.new.metrics(region)
        for metric in ordered(names):
            if self.rules.ignores(metric):
                copy_metric(region, metric.name, self.old, self.merged)
            else:
                self._metric(region, metric)

    def _metric(self, region: str, metric: Metric) -> None:
        """Merge one metric: it becomes or stays unstable, or it gets a value."""
        name = metric.name
        nothing = absent(metric)
        before = self.old.values[region].get(name, nothing)
        after = self.new.values[region].get(name, nothing)
        old_unstable = self.old.unstable.get(region, {})
        new_unstable = self.new.unstable.get(region, {})
        mode = self.update.mode
        fixed = mode == "missing" or not self.update.takes(metric)
        if name in old_unstable:
            if fixed:
                copy_metric(region, name, self.old, self.merged)
                return
            if name in new_unstable or mode != "all":
                seen = new_unstable.get(name, after)
                self._unstable(region, name, old_unstable[name], seen)
                return
        elif name in new_unstable:
            if not fixed:
                self.notes.append(
                    f"{scoped(region, name)} is unstable now: runs did not agree"
                )
                self._unstable(region, name, before, new_unstable[name])
                return
            after = before  # The mode does not replace it.
        value = self._value(region, metric, before, after, fixed)
        if value or (value is not None and metric.kind is not MetricClass.WORK):
            self.merged.values[region][name] = value

    def _unstable(self, region: str, name: str, *seen: Stored | None) -> None:
        """Write the bounds of all values that were seen of a metric."""
        known = [value for value in seen if value is not None]
        unstable = self.merged.unstable.setdefault(region, {})
        unstable[name] = _bounds(known)

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
            if metric.kind is MetricClass.COUNTER and not fixed:
                return None  # The counter is no longer measured.
            return before
        tolerance = self.rules.tolerance_for(metric)
        verdict = compare_values(metric, before, after, tolerance).verdict
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
        if verdict in (Verdict.CHANGED, Verdict.BETTER, Verdict.FAST):
            if metric.kind is MetricClass.STATE:
                return _widened(before, after)
            return after
        if verdict is not Verdict.AMBIGUOUS:
            self.notes.append(
                f"{full} keeps its value ({verdict.value}): --cutrace-update=all replaces it"
            )
        return before


def _bounds(values: Sequence[Any]) -> Stored:
    """The minimum and the maximum of several values, name by name. For codes, all codes that were seen."""
    if isinstance(values[0], Codes):
        return _all_codes(values)
    parts = [value for value in values if isinstance(value, dict)]
    if not parts:
        return _between(values)
    if len(parts) < len(values):
        parts.append({})  # A value without counts by name counts 0 for each name.
    names: set[str] = set()
    for part in parts:
        names.update(part)
    bounds: Parts = {}
    for name in sorted(names):
        bounds[name] = _between([part.get(name, 0) for part in parts])
    return bounds


def _all_codes(seen: Sequence[Codes]) -> Codes:
    """The codes of each kernel in any of these values."""
    every: dict[str, set[str]] = {}
    for codes in seen:
        for name, of_kernel in codes.by_kernel.items():
            every.setdefault(name, set()).update(of_kernel)
    return Codes({name: tuple(sorted(seen)) for name, seen in every.items()})


def _between(counts: Sequence[Count]) -> Count:
    """The lowest and the highest of several counts, one number if they are equal."""
    every: set[int] = set()
    for count in counts:
        every.update(alternatives(count))
    if len(every) == 1:
        return every.pop()
    return (min(every), max(every))


def _widened(before: Stored, after: Stored) -> Span:
    """The range that covers two ranges of a state."""
    assert isinstance(before, Span)
    assert isinstance(after, Span)
    least = min(before.min, after.min)
    most = max(before.max, after.max)
    return Span(least, most)


def _names(regions: Mapping[str, Values]) -> list[str]:
    """The display names of all metrics of these regions."""
    names: list[str] = []
    for region, values in regions.items():
        names += [scoped(region, name) for name in values]
    return names
