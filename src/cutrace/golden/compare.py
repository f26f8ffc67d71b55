"""Compare measured values with a golden file: a row and a verdict for each metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ..analysis.definitions import METRICS, Metric, MetricClass, Metrics
from ..units import count_of, format_size
from . import statistics
from .model import (
    DIVIDED,
    WORK,
    Count,
    Entry,
    Interval,
    Observed,
    Span,
    Stored,
    Verdict,
    absent,
    alternatives,
    amount,
    find_metric,
    grouped,
    is_counter,
    ordered,
)
from .rules import DEFAULTS, MEMORY_FLOOR, Rules, parse_limits

_FAILING = frozenset({Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW})
_COUNTED = (MetricClass.WORK, MetricClass.COUNTER)
#: The maximum of names in a detail; the others are counted.
_LISTED = 6


@dataclass(frozen=True)
class Row:
    """The comparison of a metric of the whole window (``region`` is "") or of a region. Values are in ns, bytes or
    counts.

    Metrics with parts have one row, under the name of the total; ``detail`` says which parts differ.
    """

    metric: str
    region: str
    golden: Stored | float | None
    now: Stored | float | None
    rule: str
    verdict: Verdict
    gated: bool
    detail: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Comparison:
    """All rows of a test, notes to show before them, and the reasons why the numbers are unreliable.

    ``unconfirmed`` golden values come from one run that could not be repeated, so none of them is gated.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    unconfirmed: bool = False

    @property
    def failed(self) -> bool:
        """Whether a gated metric changed or the measurement is incomplete."""
        return bool(self.problems) or any(row.failed for row in self.rows)

    @property
    def unverified(self) -> str:
        """Why a gated metric could not be compared; "" if all were."""
        details = (row.detail for row in self.rows if row.verdict is Verdict.UNVERIFIED)
        return next(details, "").partition(":")[0]


def compare(entry: Entry, runs: Sequence[Metrics], *, environment: str, rules: Rules = DEFAULTS) -> Comparison:
    """Compare one or more runs with the golden entry of a test in an environment.

    For work and counters the worst run counts, for states the highest value; times of all runs form one interval. If
    ``environment`` is "" because no GPU was used, the first environment of the entry is used.
    """
    environment = environment or next(iter(entry), "")
    rows = list(_Judge(entry, environment, runs, rules).rows())
    observed = entry.get(environment)
    unconfirmed = observed is not None and not observed.confirmed
    if unconfirmed:
        rows = [replace(row, gated=False, failed=False) for row in rows]
    return Comparison(tuple(rows), (), problems_of(runs), unconfirmed)


def problems_of(runs: Sequence[Metrics]) -> tuple[str, ...]:
    """The reasons why the numbers of these runs are unreliable, each once."""
    return tuple(dict.fromkeys(problem for run in runs for problem in run.problems))


def limits(runs: Sequence[Metrics], budget: Mapping[str, object]) -> Comparison:
    """Compare one or more runs with upper limits (:func:`~cutrace.golden.rules.parse_limits`), without a golden file.

    The highest value of the runs counts; for times, the median.
    """
    rows = []
    for name, limit in parse_limits(budget).items():
        metric = find_metric(name)
        # A hardware counter that was not requested is unknown, not 0.
        default = None if is_counter(name) else 0
        values = [value for run in runs if isinstance(value := run.values.get(name, default), int | float)]
        if not values:
            rows.append(Row(name, "", limit, None, "limit", Verdict.WORSE, True, "not measured", True))
            continue
        timed = metric is not None and metric.kind is MetricClass.TIME
        now = statistics.interval(values).median if timed else max(values)
        over = now > limit
        breakdown = next((part.name for part in METRICS.values() if part.total == name), "")
        parts = runs[0].values.get(breakdown)
        detail = ", ".join(filter(None, ["over the limit", _listing(parts)])) if over else ""
        verdict = Verdict.WORSE if over else Verdict.SAME
        rows.append(Row(name, "", limit, now, "limit", verdict, True, detail, over))
    return Comparison(tuple(rows), (), problems_of(runs))


def confirmed(first: Comparison, *again: Comparison) -> Comparison:
    """The first comparison, in which a slower time fails only if the comparisons of all other runs agree."""
    denied = {(row.metric, row.region) for c in again for row in c.rows if row.verdict is not Verdict.SLOW}
    rows = list(first.rows)
    for at, row in enumerate(rows):
        if row.verdict is Verdict.SLOW and (row.metric, row.region) in denied:
            rows[at] = replace(row, verdict=Verdict.AMBIGUOUS, failed=False, detail="not confirmed by another run")
    return replace(first, rows=tuple(rows))


def kept(run: Metrics, region: str, rules: Rules) -> dict[str, Any] | None:
    """The values of a region of a run that are not ignored, as golden files store them; None if the region was not
    entered."""
    values = run.regions.get(region) if region else run.values
    if values is None:
        return None
    totals = grouped(values)
    names = [one.name for one in ordered(totals) if not rules.ignores(one)]
    return {name: rules.without_ignored(name, totals[name]) for name in names}


def judged(metric: Metric, golden: Stored, now: Stored, rules: Rules) -> tuple[Verdict, str]:
    """The verdict on a value and its golden value, and a text that says what differs."""
    share = rules.tolerance_of(metric)
    if metric.kind is MetricClass.TIME:
        if isinstance(golden, Interval) and isinstance(now, Interval):
            return statistics.change(golden, now, share), ""
        return Verdict.AMBIGUOUS, "not comparable"
    if metric.kind is MetricClass.STATE:
        return state_verdict(metric, golden, now, share), ""
    if isinstance(golden, dict):
        parts = now if isinstance(now, dict) else {}
        detail = changes(golden, parts, metric.unit)
        if not detail:
            return Verdict.SAME, ""
        if share and (total := amount(parts) or 0) >= (least := amount(golden) or 0):
            return (Verdict.SAME if total <= least * (1 + share) else Verdict.CHANGED), detail
        more = any(_more(golden.get(key, 0), count, 0.0) for key, count in parts.items())
        return Verdict.CHANGED if more and not share else Verdict.BETTER, detail
    count = amount(now) or 0
    assert isinstance(golden, int | tuple)
    room = metric.floor if metric.hardware and share else 0
    slack = share if metric.hardware else 0.0
    if any(abs(count - one) <= max(slack * one, room) for one in alternatives(golden)):
        return Verdict.SAME, ""
    if _more(golden, count, share):
        return Verdict.CHANGED, ""
    return (Verdict.SAME if count > min(alternatives(golden)) else Verdict.BETTER), ""


def changes(golden: Mapping[str, Count], now: Mapping[str, Count], unit: str = "") -> str:
    """The names whose counts differ, increases first: ``+ fill, - gemm x2 (gone)``; bytes as sizes."""
    pairs = ((name, golden.get(name, 0), amount(now.get(name)) or 0) for name in {**golden, **now})
    differing = [(name, old, new) for name, old, new in pairs if new not in alternatives(old)]
    differing.sort(key=lambda pair: (not _more(pair[1], pair[2], 0.0), pair[0]))
    texts = [_change(name, max(alternatives(old)), new, unit) for name, old, new in differing]
    more = [f"and {len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return ", ".join(texts[:_LISTED] + more)


class _Judge:
    """Makes the rows of one comparison.

    In an environment in which the test was recorded, the golden values are those recorded there. In any other, a golden
    value applies if two or more environments have it and all agree; for counts by name this applies to each name.
    Kernels of the project itself apply if one environment has them.
    """

    def __init__(self, entry: Entry, environment: str, runs: Sequence[Metrics], rules: Rules) -> None:
        self.environment, self.runs, self.rules = environment, runs, rules
        self.certain = environment in entry
        self.sources: Sequence[Observed] = (
            [entry[environment]] if self.certain else [one for one in entry.values() if one.confirmed]
        )
        # Whether the golden file has GPU work and the runs have none.
        self.nothing = any(amount(self._golden("", name)[0]) for name in WORK) and not any(
            run.values.get(name) for run in runs for name in WORK
        )

    def rows(self) -> Iterator[Row]:
        written = (one.values for one in self.sources)
        for region in dict.fromkeys(("", *chain(*written, *(run.regions for run in self.runs)))):
            scopes = [kept(run, region, self.rules) for run in self.runs]
            entered = any(values is not None for values in scopes)
            known = {n for one in self.sources for v in (one.values, one.unstable) for n in v.get(region, ())}
            seen = {name for values in scopes for name, value in (values or {}).items() if self._matters(name, value)}
            for metric in ordered(known | seen):
                # Runs that did not enter a region did no work in it.
                values = [(scope or {}).get(metric.name, absent(metric)) for scope in scopes if entered]
                values = [value for value in values if value is not None]
                row = None if self.rules.ignores(metric) else self._row(metric, region, values, metric.name in known)
                if row is not None:
                    yield row

    def _matters(self, name: str, value: object) -> bool:
        """Whether a value without a golden value has a row. Absent work and states that are not gated have none."""
        metric = find_metric(name)
        return bool(value) or (metric is not None and metric.kind is not MetricClass.WORK and self.rules.gates(metric))

    def _row(self, metric: Metric, region: str, values: list[Any], written: bool) -> Row | None:
        name = metric.name
        golden, closed = self._golden(region, name)
        seen = next((one.unstable[region][name] for one in self.sources if name in one.unstable.get(region, ())), None)
        # Show the first run for work and counters, the highest value for states, one interval for times.
        now = values[0] if values else None
        if values and metric.kind not in _COUNTED:
            now = statistics.interval(values) if metric.kind is MetricClass.TIME else max(values)
        if metric.kind is MetricClass.WORK and not now and not golden and not written:
            return None
        gated = self.rules.gates(metric)

        def row(verdict: Verdict, detail: str = "", *, gated: bool = gated, failed: bool = False) -> Row:
            unknown = golden == {} and not closed  # the count of every name is unknown
            expected = seen if seen is not None else None if unknown else golden
            return Row(name, region, expected, now, self.rules.label(metric), verdict, gated, detail, failed)

        if seen is not None:
            return row(Verdict.UNSTABLE, "runs did not agree", gated=False)
        if golden is None:
            if not gated:
                return row(Verdict.NEW) if metric.kind in _COUNTED else None
            if now is None:
                return None
            return row(Verdict.UNVERIFIED, self._missing(region, name), failed=self.rules.strict)
        if now is None and not golden and not closed:
            return None
        if now is None:
            detail = "not measured" if region in {"", *(r for run in self.runs for r in run.regions)} else "not entered"
            return row(Verdict.CHANGED, detail, failed=gated)
        if metric.kind not in _COUNTED:
            verdict, detail = judged(metric, golden, now, self.rules)
        else:
            verdict, detail, now = self._worst(metric, golden, values, closed, region)
            if verdict is Verdict.BETTER and self.nothing and not region:
                verdict, detail = Verdict.CHANGED, "no GPU work was seen" if name in WORK else detail
            if verdict is Verdict.UNVERIFIED and not gated:
                verdict = Verdict.NEW
        less = verdict is Verdict.BETTER and (self.rules.fail_less or self.rules.strict)
        unverified = self.rules.strict and verdict is Verdict.UNVERIFIED
        return row(verdict, detail, failed=gated and (verdict in _FAILING or less or unverified))

    def _worst(
        self, metric: Metric, golden: Stored, values: Sequence[Any], closed: bool, region: str
    ) -> tuple[Verdict, str, Any]:
        """The verdict on the worst of several runs, the detail and the value. The detail says how many runs have this
        verdict if not all do."""
        results = []
        for value in values:
            left: set[str] = set()
            if isinstance(golden, dict) and not closed:
                known = {key for parts in self._values(region, metric.name) for key in parts}
                unknown = {*known, *value} - golden.keys()
                left = {key for key in unknown if key in known or not self._own(key, metric.name)}
                value = {key: count for key, count in value.items() if key not in left}
            verdict, detail = judged(metric, golden, value, self.rules)
            if left and verdict is not Verdict.CHANGED:
                names = ", ".join(sorted(left)[:_LISTED])
                verdict, detail = Verdict.UNVERIFIED, f"{self._missing(region, metric.name)}: {names}"
            results.append((verdict, detail))
        order = (Verdict.CHANGED, Verdict.UNVERIFIED, Verdict.BETTER, Verdict.SAME)
        at = min(range(len(results)), key=lambda i: order.index(results[i][0]))
        verdict, detail = results[at]
        alike = sum(one is verdict for one, _ in results)
        if alike < len(results):
            # A metric that changed in some runs only needs another investigation than one that always changed.
            often = f"in {alike} of {count_of(len(results), 'run')}"
            detail = f"{detail} ({often})" if detail else often
        return verdict, detail, values[at]

    def _golden(self, region: str, name: str) -> tuple[Stored | None, bool]:
        """The golden value (None if none applies), and whether counts by name are complete, so that missing names count
        0."""
        values = self._values(region, name)
        if not values or len(values) < len(self.sources):
            return None, False
        if self.certain or (len(values) > 1 and all(value == values[0] for value in values)):
            return values[0], True
        if name in DIVIDED and all(isinstance(value, dict) for value in values):
            every = dict(chain.from_iterable(parts.items() for parts in values))
            agreed = {key: n for key, n in every.items() if all(parts.get(key, 0) == n for parts in values)}
            return {key: n for key, n in agreed.items() if len(values) > 1 or self._own(key, name)}, False
        return None, False

    def _missing(self, region: str, name: str) -> str:
        if not self.certain and self.environment:
            return f"no golden for {self.environment}"
        if region and all(region not in one.values for one in self.sources):
            return f"no golden for the region {region}"
        return f"no golden value of {name}"

    def _values(self, region: str, name: str) -> list[Any]:
        scopes = [one.values[region] for one in self.sources if region in one.values]
        metric = find_metric(name)
        values = [scope.get(name, None if metric is None else absent(metric)) for scope in scopes]
        return [self.rules.without_ignored(name, value) for value in values if value is not None]

    def _own(self, key: str, name: str) -> bool:
        return name == "kernel_launches" and self.rules.owns(key)


def state_verdict(metric: Metric, golden: Stored, now: Stored, share: float) -> Verdict:
    """Compare a state with its golden value or range. Bytes differ if they leave it by more than ``share`` and more
    than 1 MiB; other states above it by more than ``share``, and below it always."""
    least, most = (golden.min, golden.max) if isinstance(golden, Span) else (amount(golden) or 0, amount(golden) or 0)
    value = amount(now) or 0
    room = max(share * abs(most), MEMORY_FLOOR) if metric.unit == "bytes" else share * most
    if value > most + room:
        return Verdict.WORSE
    # Fewer frees may be a leak, so they are worse.
    if value < least - (room if metric.unit == "bytes" else 0):
        return Verdict.WORSE if metric.name.endswith("frees") else Verdict.BETTER
    return Verdict.SAME


def _more(golden: Count, now: Count, share: float) -> bool:
    known, count = alternatives(golden), amount(now) or 0
    # A count between two alternatives matches neither.
    return count > max(known) * (1 + share) or (min(known) < count < max(known) and not share)


def _change(name: str, before: int, now: int, unit: str) -> str:
    if unit == "bytes":
        return f"{name} {format_size(before)} -> {format_size(now)}"
    by = abs(now - before)
    text = f"{'-' if now < before else '+'} {name}{f' x{by}' if by > 1 else ''}"
    return text if before and now else f"{text} ({'gone' if now == 0 else 'new'})"


def _listing(parts: object) -> str:
    """The parts of a total with the largest counts."""
    if not isinstance(parts, Mapping):
        return ""
    named = sorted(((count, name) for name, count in parts.items() if count), key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{name} x{count}" if count > 1 else name for count, name in named[:_LISTED])
