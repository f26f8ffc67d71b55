"""Merge the reports of several jobs, and compare two reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..analysis.definitions import Metric, MetricClass, Value
from ..analysis.tables import Column, Table
from ..golden.model import absent, amount, grouped, ordered, plain, scoped
from ..golden.values import changed_parts, compare_values
from ..units import count_of
from .model import Case, SessionReport, State
from .values import pair, title, unit_of

#: The key of a case in a report: its test, its environment and its job.
Key = tuple[str, str, str]
#: The metrics in the last line of a comparison and in trends, with their titles there.
TOTALS = {
    "kernel_launches": "kernel launches",
    "memcpy_count": "copies",
    "sync_calls": "synchronising calls",
    "peak_memory_bytes": "peak memory",
    "kernel_time_ns": "kernel time",
}
#: Ranks of states, larger is worse; other states have rank 1. A failed case is worse than all states.
_RANKS = {State.GATED: 0, State.UPDATED: 0, State.UNTRACED: 2}
_FAILED_RANK = 3
_COLUMNS = tuple(
    Column(name, "text") for name in ("what", "before", "after", "details", "test")
)


def merge(reports: Sequence[tuple[str, SessionReport]]) -> SessionReport:
    """Merge the reports of several jobs, given with their labels. Cases that already have a label keep it."""
    cases = [
        replace(case, job=case.job or label)
        for label, report in reports
        for case in report.cases
    ]

    def distinct(texts: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(filter(None, texts)))

    jobs = [report for _, report in reports]
    labels = ", ".join(label for label, _ in reports)
    starts = [report.started for report in jobs if report.started]
    notes = [f"{label}: {note}" for label, report in reports for note in report.notes]
    versions = {}
    for name in dict.fromkeys(name for report in jobs for name in report.versions):
        versions[name] = distinct(report.versions.get(name, "") for report in jobs)
    return SessionReport(
        tuple(cases),
        header=f"{count_of(len(reports), 'job')} ({labels})",
        started=min(starts, default=""),
        duration_s=round(sum(report.duration_s for report in jobs), 3),
        versions=versions,
        notes=tuple(notes),
        commit=distinct(report.commit for report in jobs),
    )


@dataclass(frozen=True)
class MetricChange:
    """A changed metric of the whole window (``region`` is "") or of a region. Values are numbers, or counts by name."""

    metric: str
    region: str
    before: Any
    after: Any
    work: bool

    @property
    def detail(self) -> str:
        """The changed counts by name: ``+ fill x2, - gemm (gone)``."""
        before = self.before if isinstance(self.before, Mapping) else {}
        after = self.after if isinstance(self.after, Mapping) else {}
        return changed_parts(before, after, unit_of(self.metric))


@dataclass(frozen=True)
class CaseChange:
    """A test in two reports. A new test has no ``before``, and a test that is gone has no ``after``."""

    before: Case | None
    after: Case | None
    metrics: tuple[MetricChange, ...] = ()

    @property
    def case(self) -> Case:
        case = self.after or self.before
        assert case is not None
        return case

    @property
    def kind(self) -> str:
        """``new``, ``gone`` or ``changed``."""
        if self.before is None:
            return "new"
        if self.after is not None:
            return "changed"
        return "gone"

    @property
    def failed(self) -> bool:
        """Whether its work or a counter changed, or its state became worse."""
        if self.before is None or self.after is None:
            return False
        return any(change.work for change in self.metrics) or _rank(self.after) > _rank(
            self.before
        )

    def __bool__(self) -> bool:
        return _status(self.before) != _status(self.after) or bool(self.metrics)


def compare(before: SessionReport, after: SessionReport) -> list[CaseChange]:
    """The changes by test, in the order of ``after``. Work, counters and states are compared, times are not.

    A test that occurs once in each report is compared even if its environment differs.
    """
    olds, news = _paired(before, after)
    changes = [_changed(olds.get(key), case) for key, case in news.items()]
    changes += [CaseChange(case, None) for key, case in olds.items() if key not in news]
    return list(filter(None, changes))


def failed(changes: Iterable[CaseChange], *, gone: bool = False) -> bool:
    """Whether a comparison fails; with ``gone``, also because of a test that is gone."""
    return any(change.failed or (gone and change.after is None) for change in changes)


def tables(changes: Sequence[CaseChange]) -> list[Table]:
    """The tables of changed tests, of new tests and of tests that are gone, without empty ones."""
    both = [
        row
        for change in changes
        if change.before and change.after
        for row in _rows(change)
    ]
    new = [
        (_status(change.case), _label(change.case))
        for change in changes
        if not change.before
    ]
    gone = [
        (_status(change.case), _label(change.case))
        for change in changes
        if not change.after
    ]
    columns = (Column("state", "text"), Column("test", "text"))
    parts = (
        Table("changed", "Tests that changed", _COLUMNS, both),
        Table("new", "New tests", columns, new),
        Table("gone", "Tests that are gone", columns, gone),
    )
    return [table for table in parts if table.rows]


def verdict(
    before: SessionReport, after: SessionReport, changes: Sequence[CaseChange]
) -> str:
    """A line with the number of tests that differ and the totals of both reports."""
    kinds = Counter(change.kind for change in changes)
    numbers = ", ".join(
        f"{kinds[kind]:,} {kind}" for kind in ("changed", "new", "gone")
    )
    totals = []
    for name in TOTALS:
        values = pair(name, total(before.cases, name), total(after.cases, name))
        totals.append(
            f"{title(name)} {' -> '.join(values) if values[0] != values[1] else values[0]}"
        )
    return f"{count_of(len(after.cases), 'test')}: {numbers}; {', '.join(totals)}"


def total(cases: Iterable[Case], name: str) -> int:
    """A metric of a whole suite: the sum over its tests; for the memory level, the maximum."""
    values = [case.values.get(name) for case in cases]
    numbers = [value for value in values if isinstance(value, int)]
    if name == "peak_memory_bytes":
        return max(numbers, default=0)
    return sum(numbers)


def to_json(change: CaseChange) -> dict[str, Any]:
    """A changed test as JSON values."""
    case = change.case
    both = (change.before, change.after)
    metrics = []
    for one in change.metrics:
        values = {"before": plain(one.before), "after": plain(one.after)}
        metrics.append({"metric": one.metric, "region": one.region, **values})
    return {
        "nodeid": case.nodeid,
        "environment": case.environment,
        "job": case.job,
        "state": [one and one.state.value for one in both],
        "failing": [one and one.bad for one in both],
        "failed": change.failed,
        "metrics": metrics,
    }


def keys(cases: Iterable[Case]) -> dict[Key, Case]:
    return {(case.nodeid, case.environment, case.job): case for case in cases}


def _paired(
    before: SessionReport, after: SessionReport
) -> tuple[dict[Key, Case], dict[Key, Case]]:
    """The cases of both reports by key. If a test occurs once in each, the old case gets the key of the new one."""
    olds = keys(before.cases)
    news = keys(after.cases)
    old_counts = Counter(test for test, _, _ in olds)
    new_counts = Counter(test for test, _, _ in news)
    once = {
        test for test, count in old_counts.items() if count == new_counts[test] == 1
    }
    now = {key[0]: key for key in news if key[0] in once}
    return {now.get(key[0], key): case for key, case in olds.items()}, news


def _changed(old: Case | None, new: Case) -> CaseChange:
    # A test that was not traced has no values; only the states are compared.
    if old is None or not (old.values and new.values):
        return CaseChange(old, new)
    regions = dict.fromkeys(("", *old.regions, *new.regions))
    return CaseChange(
        old,
        new,
        tuple(change for region in regions for change in _metrics(old, new, region)),
    )


def _metrics(old: Case, new: Case, region: str) -> Iterator[MetricChange]:
    before = _comparable(old, region)
    after = _comparable(new, region)
    for metric in ordered({*before, *after}):
        a = before.get(metric.name)
        b = after.get(metric.name)
        if _differ(metric, a, b):
            yield MetricChange(
                metric.name, region, a, b, metric.kind is not MetricClass.STATE
            )


def _differ(metric: Metric, before: Any, after: Any) -> bool:
    """Whether the values of two reports differ. Missing work is equal to 0 or {}; a missing counter is unknown."""
    old = absent(metric) if before is None else before
    new = absent(metric) if after is None else after
    if old is None or new is None:
        return old is not new
    return compare_values(metric, old, new).differs


def _comparable(case: Case, region: str) -> dict[str, Any]:
    """The values of a region that two reports can compare, by metric."""
    values: Mapping[str, Value] = case.values
    if region:
        values = case.regions.get(region, {})
    totals = grouped(
        {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float | dict)
        }
    )
    return {
        one.name: totals[one.name]
        for one in ordered(totals)
        if one.kind is not MetricClass.TIME
    }


def _rows(change: CaseChange) -> Iterator[tuple[str, ...]]:
    label = _label(change.case)
    states = _status(change.before), _status(change.after)
    if states[0] != states[1]:
        yield "state", *states, change.case.reason, label
    for one in change.metrics:
        values = pair(one.metric, amount(one.before or 0), amount(one.after or 0))
        yield scoped(one.region, title(one.metric)), *values, one.detail, label


def _label(case: Case) -> str:
    more = ", ".join(filter(None, (case.environment, case.job)))
    if more:
        return f"{case.nodeid} ({more})"
    return case.nodeid


def _status(case: Case | None) -> str:
    if case is None:
        return ""
    if case.bad:
        return f"{case.state.value}, failed"
    return case.state.value


def _rank(case: Case) -> int:
    if case.bad:
        return _FAILED_RANK
    return _RANKS.get(case.state, 1)
