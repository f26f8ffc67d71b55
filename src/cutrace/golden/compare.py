"""Compare measured values with a golden file: a row and a verdict for each metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..analysis.definitions import METRICS, Metric, MetricClass, Metrics, Value
from ..units import count_of
from . import statistics
from .model import (
    BREAKDOWNS,
    CODE,
    DIVIDED,
    WORK,
    Codes,
    Entry,
    Parts,
    Stored,
    Verdict,
    alternatives,
    amount,
    find_metric,
    grouped,
    has_work,
    is_counter,
    ordered,
    values_in,
)
from .rules import DEFAULTS, Rules, parse_limits
from .values import LISTED, ValueResult, compare_values, is_more

_FAILING = frozenset({Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW})
_COUNTED = (MetricClass.WORK, MetricClass.COUNTER)
#: The classes whose worst run counts.
_WORST = (*_COUNTED, MetricClass.CODE)
_NO_CODE = "no machine code was recorded; put cutrace_gate = work,counter,code into the ini file, or record with --code"
#: The verdicts on counts and codes, the worst first. The worst verdict of any run is the verdict on all runs.
_WORST_FIRST = (Verdict.CHANGED, Verdict.UNVERIFIED, Verdict.BETTER, Verdict.SAME)


@dataclass(frozen=True)
class Row:
    """The comparison of a metric of the whole window (``region`` is "") or of a region. Values are in ns, bytes or
    counts.

    Metrics with parts have one row, under the name of the total; ``detail`` says which parts differ. The golden counts
    of the names in ``unknown`` are not known in this environment.
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
    unknown: tuple[str, ...] = ()


def increases(row: Row) -> dict[str, tuple[int, int]]:
    """The names whose amounts rose in a row of work or memory, with the golden and the present amount. The name is ""
    in a row without parts and in the row of a limit. Names with an unknown golden amount are left out."""
    if not isinstance(row.now, Mapping):
        before = amount(row.golden)
        now = amount(row.now)
        if before is None or now is None or now <= before:
            return {}
        return {"": (before, now)}
    if not isinstance(row.golden, Mapping):
        return {}
    rose: dict[str, tuple[int, int]] = {}
    for name in sorted(row.now.keys() - set(row.unknown)):
        golden = row.golden.get(name, 0)
        now = amount(row.now[name]) or 0
        if is_more(golden, now):
            rose[name] = (max(alternatives(golden)), now)
    return rose


@dataclass(frozen=True)
class Comparison:
    """All rows of a test, notes to show before them, and the reasons why the numbers are unreliable.

    ``unconfirmed``: the golden values come from one run that could not be repeated, so they are not gated.
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
        """The reason why a gated metric could not be compared; "" if all were compared."""
        for row in self.rows:
            if row.verdict is Verdict.UNVERIFIED:
                reason, _, _ = row.detail.partition(":")
                return reason
        return ""


def compare(
    entry: Entry, runs: Sequence[Metrics], *, environment: str, rules: Rules = DEFAULTS
) -> Comparison:
    """Compare one or more runs with the golden entry of a test in an environment.

    For work and counters the worst run counts, for states the highest value. The times of all runs form one interval.
    If ``environment`` is "" because no GPU was used, the first environment of the entry is used.
    """
    environment = environment or next(iter(entry), "")
    rows = list(_EntryComparer(entry, environment, runs, rules).rows())
    problems = problems_of(runs)
    observed = entry.get(environment)
    if observed is None or observed.confirmed:
        return Comparison(tuple(rows), problems=problems)
    rows = [replace(row, gated=False, failed=False) for row in rows]
    return Comparison(tuple(rows), problems=problems, unconfirmed=True)


def problems_of(runs: Sequence[Metrics]) -> tuple[str, ...]:
    """The reasons why the numbers of these runs are unreliable, each once."""
    problems: dict[str, None] = {}
    for run in runs:
        problems.update(dict.fromkeys(run.problems))
    return tuple(problems)


def limits(
    runs: Sequence[Metrics], budget: Mapping[str, object], region: str = ""
) -> Comparison:
    """Compare one or more runs, or a region of them, with upper limits (:func:`~cutrace.golden.rules.parse_limits`),
    without a golden file.

    The highest value of the runs counts; for times, the median. The limits of a region that no run entered are
    unverified.
    """
    limits = parse_limits(budget)
    scopes = [run.values for run in runs]
    if region:
        scopes = [run.regions[region] for run in runs if region in run.regions]
    rows = [_limit_row(name, region, limit, scopes) for name, limit in limits.items()]
    return Comparison(tuple(rows), (), problems_of(runs))


def _limit_row(
    name: str, region: str, limit: int | float, scopes: Sequence[Mapping[str, Value]]
) -> Row:
    now = _limited(name, scopes)
    verdict = Verdict.WORSE
    detail = ""
    if region and not scopes:
        verdict = Verdict.UNVERIFIED
        detail = f"a region with limits was not entered: {region}"
    elif now is None:
        detail = "not measured"
    elif now <= limit:
        verdict = Verdict.SAME
    else:
        detail = "over the limit"
        listing = _listing(scopes[0].get(BREAKDOWNS.get(name, "")))
        if listing:
            detail += f", {listing}"
    return Row(
        name,
        region,
        golden=limit,
        now=now,
        rule="limit",
        verdict=verdict,
        gated=True,
        detail=detail,
        failed=verdict is Verdict.WORSE,
    )


def _limited(name: str, scopes: Sequence[Mapping[str, Value]]) -> int | float | None:
    """The value that is compared with a limit; None if no run has a value."""
    values = []
    for scope in scopes:
        value = scope.get(name)
        if value is None and not _is_unknown(name):
            value = 0
        if isinstance(value, int | float):
            values.append(value)
    if not values:
        return None
    metric = find_metric(name)
    if metric is not None and metric.kind is MetricClass.TIME:
        return statistics.interval(values).median
    return max(values)


def _is_unknown(name: str) -> bool:
    """Whether a metric without a value is unknown, and not 0. It is unknown if it is a hardware counter that was not
    requested, or if all other windows have the metric."""
    metric = METRICS.get(name)
    return is_counter(name) or (metric is not None and metric.always)


def confirmed(first: Comparison, *again: Comparison) -> Comparison:
    """The first comparison. A slower time fails in it only if the comparisons of all other runs agree."""
    denied: set[tuple[str, str]] = set()
    for comparison in again:
        for row in comparison.rows:
            if row.verdict is not Verdict.SLOW:
                denied.add((row.metric, row.region))
    rows = []
    for row in first.rows:
        if row.verdict is Verdict.SLOW and (row.metric, row.region) in denied:
            row = replace(
                row,
                verdict=Verdict.AMBIGUOUS,
                failed=False,
                detail="not confirmed by another run",
            )
        rows.append(row)
    return replace(first, rows=tuple(rows))


def kept(run: Metrics, region: str, rules: Rules) -> dict[str, Any] | None:
    """The values of a region of a run that are not ignored, as golden files store them; None if the region was not
    entered."""
    values = run.values
    if region:
        if region not in run.regions:
            return None
        values = run.regions[region]
    compared = {}
    for name, value in grouped(values).items():
        metric = find_metric(name)
        if metric is not None and not rules.ignores(metric):
            compared[name] = rules.without_ignored(name, value)
    if run.codes and not region and not rules.ignores(METRICS[CODE]):
        compared[CODE] = rules.without_ignored(CODE, Codes(dict(run.codes)))
    return compared


@dataclass(frozen=True)
class _ComparedMetric:
    """A metric of a region with its golden value and the values of the runs.

    ``golden`` is None if no golden value applies here. With ``complete``, the count of a name that the golden value
    lacks is 0, otherwise unknown. ``unstable`` has the values on which runs disagreed. ``now`` is the value to show.
    """

    metric: Metric
    region: str
    golden: Stored | None
    complete: bool
    unstable: Stored | None
    values: Sequence[Any]
    now: Any
    gated: bool

    @property
    def unknown(self) -> bool:
        """Whether the golden count of every name is unknown."""
        return self.golden == {} and not self.complete

    @property
    def expected(self) -> Stored | None:
        """The value to show as the golden one."""
        if self.unstable is not None:
            return self.unstable
        if self.unknown:
            return None
        return self.golden


class _EntryComparer:
    """Makes the rows of one comparison.

    An environment in which the test was recorded has its own golden values. In other environments, a golden value
    applies if at least two environments have it and all agree. For counts by name this rule applies to each name. For
    kernels of the project itself, one environment is enough.
    """

    def __init__(
        self, entry: Entry, environment: str, runs: Sequence[Metrics], rules: Rules
    ) -> None:
        self._environment = environment
        self._runs = runs
        self._rules = rules
        self._recorded_here = environment in entry
        self._sources = [one for one in entry.values() if one.confirmed]
        if self._recorded_here:
            self._sources = [entry[environment]]
        gates_code = rules.gates(METRICS[CODE]) and not rules.ignores(METRICS[CODE])
        self._lacks_code = gates_code and any(map(_has_no_code, runs))
        worked = any(has_work(run.values) for run in runs)
        self._work_is_gone = self._has_golden_work() and not worked

    def rows(self) -> Iterator[Row]:
        for region in self._regions():
            known = self._known(region)
            scopes = [kept(run, region, self._rules) for run in self._runs]
            if all(scope is None for scope in scopes):
                scopes = []
            # A run that did not enter a region did no work in it.
            values_of_runs = [scope or {} for scope in scopes]
            seen = self._seen(values_of_runs)
            for metric in ordered(known | seen):
                if self._rules.ignores(metric):
                    continue
                values = values_in(values_of_runs, metric)
                compared = self._compared(metric, region, values)
                if not self._omitted(compared, written=metric.name in known):
                    yield self._row(compared)

    def _regions(self) -> list[str]:
        regions = [""]
        for source in self._sources:
            regions.extend(source.values)
        for run in self._runs:
            regions.extend(run.regions)
        return list(dict.fromkeys(regions))

    def _known(self, region: str) -> set[str]:
        """The metrics with a golden value in a region."""
        names: set[str] = set()
        for source in self._sources:
            names.update(source.metrics(region))
        if self._lacks_code and not region:
            names.add(CODE)
        return names

    def _seen(self, values_of_runs: Sequence[Mapping[str, Any]]) -> set[str]:
        """The metrics with a row but without a golden value: work and counters above 0, and all gated metrics except
        work."""
        names = set()
        for values in values_of_runs:
            for name, value in values.items():
                metric = find_metric(name)
                assert metric is not None
                counts = value and metric.kind in _COUNTED
                required = metric.kind is not MetricClass.WORK
                if counts or (required and self._rules.gates(metric)):
                    names.add(metric.name)
        return names

    def _compared(
        self, metric: Metric, region: str, values: Sequence[Any]
    ) -> _ComparedMetric:
        golden, complete = self._golden(region, metric)
        unstable = None
        for source in reversed(self._sources):
            unstable = source.unstable.get(region, {}).get(metric.name, unstable)
        gated = self._rules.gates(metric)
        return _ComparedMetric(
            metric,
            region,
            golden,
            complete,
            unstable,
            values,
            _shown(metric, values),
            gated,
        )

    def _omitted(self, compared: _ComparedMetric, *, written: bool) -> bool:
        """Whether a metric has no row, because there is nothing to compare or to report."""
        kind = compared.metric.kind
        if kind is MetricClass.CODE and compared.now is None:
            return not self._lacks_code
        noted = compared.now or compared.golden or written
        if kind is MetricClass.WORK and not noted:
            return True
        if compared.unstable is not None:
            return False
        if compared.golden is not None:
            return compared.now is None and compared.unknown
        if compared.gated:
            return compared.now is None
        return kind not in _COUNTED

    def _row(self, compared: _ComparedMetric) -> Row:
        metric = compared.metric
        golden = compared.golden
        now = compared.now
        if compared.unstable is not None:
            result = ValueResult(Verdict.UNSTABLE, "runs did not agree")
        elif metric.kind is MetricClass.CODE and now is None:
            result = ValueResult(Verdict.UNVERIFIED, _NO_CODE)
        elif golden is None and compared.gated:
            why = self._why_missing(compared.region, metric.name)
            result = ValueResult(Verdict.UNVERIFIED, why)
        elif golden is None:
            result = ValueResult(Verdict.NEW)
        elif now is None:
            why = self._why_not_measured(compared.region)
            result = ValueResult(Verdict.CHANGED, why)
        elif metric.kind in _WORST:
            result, now = self._worst(compared, golden)
        else:
            tolerance = self._rules.tolerance_for(metric)
            result = compare_values(metric, golden, now, tolerance)
        return self._made(compared, result, now)

    def _made(self, compared: _ComparedMetric, result: ValueResult, now: Any) -> Row:
        """The row of a result. This method alone decides whether the row is gated and fails."""
        gated = compared.gated and result.verdict is not Verdict.UNSTABLE
        return Row(
            compared.metric.name,
            compared.region,
            compared.expected,
            now,
            self._rules.label(compared.metric),
            result.verdict,
            gated,
            result.detail,
            gated and self._fails(result.verdict),
            result.unknown,
        )

    def _fails(self, verdict: Verdict) -> bool:
        """Whether a gated metric with this verdict fails the test."""
        if verdict is Verdict.BETTER:
            return self._rules.fail_less
        return verdict in _FAILING

    def _worst(
        self, compared: _ComparedMetric, golden: Stored
    ) -> tuple[ValueResult, Any]:
        """The result and the value of the worst of several runs. If not all runs have this verdict, the detail has
        their number."""
        values = compared.values
        results = [self._counted(compared, golden, value) for value in values]
        verdicts = [result.verdict for result in results]
        verdict = min(verdicts, key=_WORST_FIRST.index)
        worst = verdicts.index(verdict)
        detail = results[worst].detail
        alike = verdicts.count(verdict)
        runs = len(verdicts)
        if alike < runs:
            # A metric that changed in some runs needs another investigation than a metric that always changed.
            often = f"in {alike} of {count_of(runs, 'run')}"
            if detail:
                detail += f" ({often})"
            else:
                detail = often
        if verdict is Verdict.BETTER and self._work_is_gone and not compared.region:
            verdict = Verdict.CHANGED
            if compared.metric.name in WORK:
                detail = "no GPU work was seen"
        if verdict is Verdict.UNVERIFIED and not compared.gated:
            verdict = Verdict.NEW
        unknown = results[worst].unknown
        return ValueResult(verdict, detail, unknown), values[worst]

    def _counted(
        self, compared: _ComparedMetric, golden: Stored, value: Any
    ) -> ValueResult:
        """The result of one run. Names whose count is unknown here are not compared."""
        metric = compared.metric
        if isinstance(golden, Codes):
            return _compare_codes(metric, golden, value)
        unknown: set[str] = set()
        if isinstance(golden, dict) and not compared.complete:
            unknown = self._unknown_names(compared.region, metric, golden, value)
            value = {name: value[name] for name in value if name not in unknown}
        tolerance = self._rules.tolerance_for(metric)
        result = compare_values(metric, golden, value, tolerance)
        result = replace(result, unknown=tuple(sorted(unknown)))
        if not unknown or result.verdict is Verdict.CHANGED:
            return result
        names = ", ".join(result.unknown[:LISTED])
        why = self._why_missing(compared.region, metric.name)
        return replace(result, verdict=Verdict.UNVERIFIED, detail=f"{why}: {names}")

    def _unknown_names(
        self, region: str, total: Metric, golden: Parts, value: Mapping[str, int]
    ) -> set[str]:
        """The names of a total without a golden count for this environment."""
        elsewhere: set[str] = set()
        for parts in self._values(region, total):
            elsewhere.update(parts)
        elsewhere -= golden.keys()
        here = value.keys() - golden.keys()
        return elsewhere.union(name for name in here if not self._own(name, total.name))

    def _golden(self, region: str, metric: Metric) -> tuple[Stored | None, bool]:
        """The golden value (None if no value applies), and whether its counts by name are complete. In complete counts,
        missing names count 0."""
        name = metric.name
        values = self._values(region, metric)
        if not values or len(values) < len(self._sources):
            return None, False
        first = values[0]
        if self._recorded_here:
            return first, True
        if name == CODE:  # Environments agree on code only by chance.
            return None, False
        if len(values) > 1 and values.count(first) == len(values):
            return first, True
        if name in DIVIDED and all(isinstance(value, dict) for value in values):
            return self._agreed(name, values), False
        return None, False

    def _agreed(self, total: str, values: Sequence[Parts]) -> Parts:
        """The counts by name on which all environments agree. If there is a single environment, only its counts of the
        project's own kernels."""
        agreed: Parts = {}
        several = len(values) > 1
        for parts in values:
            for name, count in parts.items():
                everywhere = all(other.get(name, 0) == count for other in values)
                if everywhere and (several or self._own(name, total)):
                    agreed[name] = count
        return agreed

    def _values(self, region: str, metric: Metric) -> list[Any]:
        """The golden values of a metric in all sources that have the region."""
        scopes = [
            source.values[region] for source in self._sources if region in source.values
        ]
        values = values_in(scopes, metric)
        return [self._rules.without_ignored(metric.name, value) for value in values]

    def _own(self, kernel: str, total: str) -> bool:
        return total == "kernel_launches" and self._rules.owns(kernel)

    def _has_golden_work(self) -> bool:
        """Whether the golden values of the whole window have GPU work."""
        for name in WORK:
            golden, _ = self._golden("", METRICS[name])
            if amount(golden):
                return True
        return False

    def _why_missing(self, region: str, name: str) -> str:
        if not self._recorded_here and self._environment:
            return f"no golden for {self._environment}"
        if region and all(region not in source.values for source in self._sources):
            return f"no golden for the region {region}"
        return f"no golden value of {name}"

    def _why_not_measured(self, region: str) -> str:
        if region and all(region not in run.regions for run in self._runs):
            return "not entered"
        return "not measured"


def _has_no_code(run: Metrics) -> bool:
    """Whether a run with kernels recorded no machine code."""
    return run.codes is None and bool(run.values.get("kernel_launches"))


def _compare_codes(metric: Metric, golden: Codes, measured: Codes) -> ValueResult:
    """The result of one run. Kernels whose code is known on both sides are compared. If all these codes are equal, but
    the run has a kernel without known or golden code, the result is unverified. Kernels that the run lacks change the
    number of kernels."""
    known = measured.known
    both = known.of(golden.by_kernel)
    expected = golden.of(both.by_kernel)
    result = compare_values(metric, expected, both)
    if result.differs:
        return result
    why = "the machine code of a kernel is not known"
    names = measured.unknown
    if not names:
        why = f"no golden value of {metric.name}"
        names = sorted(known.by_kernel.keys() - golden.by_kernel)
    if not names:
        return result
    return ValueResult(Verdict.UNVERIFIED, f"{why}: {', '.join(names[:LISTED])}")


def _shown(metric: Metric, values: Sequence[Any]) -> Any:
    """The value to show for several runs: the first value for work, counters and code, the highest for states, one
    interval for times. None without values."""
    if not values:
        return None
    if metric.kind is MetricClass.TIME:
        return statistics.interval(values)
    if metric.kind in _WORST:
        return values[0]
    return max(values)


def _listing(parts: object) -> str:
    """The parts of a total with the largest counts."""
    if not isinstance(parts, Mapping):
        return ""
    counted = [(-count, name) for name, count in parts.items() if count]
    counted.sort()
    texts = []
    for negative, name in counted[:LISTED]:
        text = name
        if negative != -1:
            text += f" x{-negative}"
        texts.append(text)
    return ", ".join(texts)
