"""What a golden file says of a test after an update in one environment. What it says of the others never changes."""

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

#: What is written of every run; states and times are written where they are gated.
_COUNTED = (MetricClass.WORK, MetricClass.COUNTER)


def observed(runs: Sequence[Metrics], rules: Rules = DEFAULTS, *, confirmed: bool = True) -> Observed:
    """What these runs showed: work and counters on which they agree, the rest of them as unstable; the range of states
    and the interval of times where these are gated.

    ``confirmed`` is False for a run that could not be repeated. Raises :class:`CutraceError` when the numbers cannot be
    trusted.
    """
    problems = problems_of(runs)
    if problems or not runs:
        raise CutraceError(f"nothing is recorded: {'; '.join(problems) or 'the test did not run'}")
    values: dict[str, Values] = {}
    unstable: dict[str, Values] = {}
    for region in dict.fromkeys(("", *(name for run in runs for name in run.regions))):
        scopes = [kept(run, region, rules) or {} for run in runs]
        values[region] = {}
        for found in ordered(name for scope in scopes for name in scope):
            seen = [value for scope in scopes if (value := scope.get(found.name, absent(found))) is not None]
            if found.kind not in _COUNTED:
                if rules.gates(found):
                    timed = found.kind is MetricClass.TIME
                    values[region][found.name] = statistics.interval(seen) if timed else Span(min(seen), max(seen))
            elif len(seen) < len(scopes) or not all(_agree(found, seen[0], value, rules) for value in seen):
                unstable.setdefault(region, {})[found.name] = _seen(*seen)
            elif seen[0] or found.kind is MetricClass.COUNTER:
                values[region][found.name] = seen[-1]
    return Observed(values, unstable, confirmed)


def _agree(found: Metric, one: Any, other: Any, rules: Rules) -> bool:
    """Whether two runs showed the same, counters of the hardware within their rule."""
    return bool(one == other) or (found.hardware and judged(found, one, other, rules)[0] is Verdict.SAME)


def unsettled(runs: Sequence[Metrics], rules: Rules = DEFAULTS) -> tuple[str, ...]:
    """The metrics on which these runs do not agree, those of regions as ``region/metric``. Of states the gated ones
    count: the first run of a process fills caches and pools, and the range that it shows would hide what later runs do
    more."""
    found = observed(runs, rules)
    ranges = (
        scoped(region, name)
        for region, values in found.values.items()
        for name, value in values.items()
        if isinstance(value, Span) and value.min < value.max
    )
    return (*_names(found.unstable), *ranges)


def merged(
    entry: Entry | None, new: Observed, *, environment: str, update: Update, rules: Rules = DEFAULTS
) -> tuple[Entry, tuple[str, ...]]:
    """The entry of a test after an update, and sentences on what was not taken over.

    What is the same within its rules keeps its old value, so that the file does not change. What was recorded from one
    run that could not be repeated is confirmed by a second one that agrees; where it does not, the metric is unstable.
    """
    entry = entry or {}
    old = entry.get(environment)
    if old is None:
        notes = [f"{name} is unstable: runs did not agree" for name in _names(new.unstable)]
        return {**entry, environment: new}, tuple(notes)
    merge = _Merge(old, new, update, rules)
    return {**entry, environment: merge.observed()}, tuple(merge.notes)


class _Merge:
    """The values of one environment, of which an update replaces some."""

    def __init__(self, old: Observed, new: Observed, update: Update, rules: Rules) -> None:
        self.old, self.new = old, new
        self.update, self.rules = update, rules
        self.notes: list[str] = []
        self.values: dict[str, Values] = {}
        self.unstable: dict[str, Values] = {}
        #: Whether these are the two runs, of two sessions, that have to agree.
        self.confirms = not old.confirmed and not new.confirmed and update.mode != "missing"
        #: Whether the new runs differ from a value that stays.
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
            # One run replaces what two had confirmed only where it differs; then it waits for a second one itself.
            return replace(after, confirmed=self.new.confirmed or after == before)
        return replace(after, confirmed=(self.new.confirmed or self.confirms) and not self.refused)

    def _keep(self, region: str, observed: Observed) -> None:
        self.values[region], self.unstable[region] = observed.values[region], observed.unstable.get(region, {})

    def _region(self, region: str) -> None:
        old, new = self.old.values[region], self.new.values[region]
        shaky, unsure = self.old.unstable.get(region, {}), self.new.unstable.get(region, {})
        values, unstable = self.values.setdefault(region, {}), self.unstable.setdefault(region, {})
        for found in ordered((*old, *new, *shaky, *unsure)):
            name = found.name
            if self.rules.ignores(found):
                values.update({name: old[name]} if name in old else {})
                unstable.update({name: shaky[name]} if name in shaky else {})
                continue
            before, after = old.get(name, absent(found)), new.get(name, absent(found))
            fixed = not self.update.takes(found) or self.update.mode == "missing"
            if fixed and name in shaky:
                unstable[name] = shaky[name]
                continue
            if name in shaky or name in unsure:
                stays = fixed or (name in shaky and self.update.mode != "all")
                if name in (shaky if stays else unsure):
                    if name not in shaky:
                        self.notes.append(f"{scoped(region, name)} is unstable now: runs did not agree")
                    seen = (shaky.get(name, before), unsure.get(name, after))
                    unstable[name] = _seen(*(value for value in seen if value is not None))
                    continue
                if name in unsure:  # it may not be replaced
                    after = before
            value = self._value(region, found, before, after, fixed)
            if value or (value is not None and found.kind is not MetricClass.WORK):
                values[name] = value

    def _value(
        self, region: str, found: Metric, before: Stored | None, after: Stored | None, fixed: bool
    ) -> Stored | None:
        """The value of a metric on which the new runs agree."""
        full = scoped(region, found.name)
        if before is None or after is None:
            if before is None:
                return after if self.update.takes(found) else None
            if not fixed and found.kind is MetricClass.COUNTER:
                return None  # it is not measured any more
            return before
        # Of a range the most that was seen counts.
        verdict, _ = judged(found, before, after.max if isinstance(after, Span) else after, self.rules)
        if verdict is Verdict.SAME:
            return before
        if fixed:
            self.refused |= found.kind in _COUNTED
            if self.update.mode == "missing" and self.rules.gates(found):
                self.notes.append(f"{full} keeps its value ({verdict.value}): --cutrace-update replaces it")
            return before
        if self.confirms and found.kind in _COUNTED:
            self.unstable.setdefault(region, {})[found.name] = _seen(before, after)
            self.notes.append(f"{full} is unstable now: two sessions did not agree")
            return None
        if self.update.mode == "widen":
            return _widened(before, after)
        if self.update.mode == "all" or verdict in (Verdict.CHANGED, Verdict.BETTER, Verdict.FAST):
            return _widened(before, after) if found.kind is MetricClass.STATE and self.update.mode != "all" else after
        if verdict is not Verdict.AMBIGUOUS:
            self.notes.append(f"{full} keeps its value ({verdict.value}): --cutrace-update=all replaces it")
        return before


def _seen(*values: Any) -> Stored:
    """The least and the greatest of what was seen, name by name."""
    if any(isinstance(value, dict) for value in values):
        parts = [value if isinstance(value, dict) else {} for value in values]
        names = sorted({name for one in parts for name in one})
        return {name: _between(*(one.get(name, 0) for one in parts)) for name in names}
    return _between(*values)


def _between(*counts: Count) -> Count:
    every = sorted({n for count in counts for n in alternatives(count)})
    return every[0] if len(every) == 1 else (every[0], every[-1])


def _widened(before: Stored, after: Stored) -> Stored:
    """The old value with the new one as an alternative, or the range of both."""
    if isinstance(before, Span) and isinstance(after, Span):
        return Span(min(before.min, after.min), max(before.max, after.max))
    if isinstance(before, dict) and isinstance(after, dict):
        return {name: _either(before.get(name, 0), after.get(name, 0)) for name in sorted({**before, **after})}
    if isinstance(before, Interval | Span) or isinstance(after, Interval | Span):
        return after
    # Counts by name have no alternatives; their sum has.
    return _either(*((amount(value) or 0) if isinstance(value, dict) else value for value in (before, after)))


def _either(before: Count, after: Count) -> Count:
    every = sorted({*alternatives(before), *alternatives(after)})
    return every[0] if len(every) == 1 else tuple(every)


def _names(regions: Mapping[str, Values]) -> Iterator[str]:
    yield from (scoped(region, name) for region, values in regions.items() for name in values)
