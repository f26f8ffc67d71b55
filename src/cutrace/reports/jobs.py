"""Merge the reports of several jobs, and compare two reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..analysis.definitions import Metric, MetricClass, Value
from ..analysis.tables import Table, columns_of
from ..golden.model import absent, amount, grouped, ordered, plain, scoped
from ..golden.values import changed_parts, compare_values
from ..units import count_of
from .model import Case, SessionReport, State
from .values import change_text, pair, title, unit_of

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
#: The ranks of states; larger is worse. Other states have rank 1. A failed case is worse than all states.
_RANKS = {State.GATED: 0, State.UPDATED: 0, State.UNTRACED: 2}
_FAILED_RANK = 3
_CHANGES = columns_of(
    "what: text, before: text, after: text, details: text, test: text"
)
_TESTS = columns_of("state: text, test: text")
#: The tables of a comparison by kind of change: their titles and their columns.
_TABLES = {
    "changed": ("Tests that changed", _CHANGES),
    "new": ("New tests", _TESTS),
    "gone": ("Tests that are gone", _TESTS),
}


def merge(reports: Sequence[tuple[str, SessionReport]]) -> SessionReport:
    """Merge the reports of several jobs, given with their labels. Cases that already have a label keep it. A single
    report gets its label and does not change otherwise."""
    if len(reports) == 1:
        label, report = reports[0]
        return replace(report, job=label)
    labels = []
    cases: list[Case] = []
    notes: list[str] = []
    starts = []
    seconds = 0.0
    commits = []
    accounts = []
    versions: dict[str, list[str]] = {}
    for label, report in reports:
        if report.account:
            accounts.append(f"{label} {report.account}")
        labels.append(label)
        cases += [replace(case, job=case.job or label) for case in report.cases]
        notes += [f"{label}: {note}" for note in report.notes]
        seconds += report.duration_s
        commits.append(report.commit)
        if report.started:
            starts.append(report.started)
        for name, version in report.versions.items():
            versions.setdefault(name, []).append(version)
    return SessionReport(
        tuple(cases),
        header=f"{count_of(len(reports), 'job')} ({', '.join(labels)})",
        started=min(starts, default=""),
        duration_s=round(seconds, 3),
        versions={name: _distinct(texts) for name, texts in versions.items()},
        notes=tuple(notes),
        commit=_distinct(commits),
        account="; ".join(accounts),
    )


def _distinct(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))


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
        before = _counts(self.before)
        return changed_parts(before, _counts(self.after), unit_of(self.metric))


def _counts(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {}


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
        if _rank(self.after) > _rank(self.before):
            return True
        return any(change.work for change in self.metrics)

    def __bool__(self) -> bool:
        return _status(self.before) != _status(self.after) or bool(self.metrics)


def compare(before: SessionReport, after: SessionReport) -> list[CaseChange]:
    """The changes by test, in the order of ``after``. Work, counters and states are compared, times are not.

    A test that occurs once in each report is compared even if its environment differs.
    """
    olds, news = _paired(before, after)
    changes = []
    for key, new in news.items():
        change = _changed(olds.pop(key, None), new)
        if change:
            changes.append(change)
    # The remaining cases of the old report are gone.
    changes += [CaseChange(case, None) for case in olds.values()]
    return changes


def failed(changes: Iterable[CaseChange], *, gone: bool = False) -> bool:
    """Whether a comparison fails. With ``gone``, a test that is gone fails it too."""
    return any(change.failed or (gone and change.after is None) for change in changes)


def tables(changes: Sequence[CaseChange]) -> list[Table]:
    """The tables of changed tests, of new tests and of tests that are gone, without empty ones."""
    rows: dict[str, list[tuple[str, ...]]] = {kind: [] for kind in _TABLES}
    for change in changes:
        if change.kind == "changed":
            rows["changed"] += _rows(change)
        else:
            case = change.case
            rows[change.kind].append((_status(case), _label(case)))
    made = []
    for kind, (heading, columns) in _TABLES.items():
        if rows[kind]:
            made.append(Table(kind, heading, columns, rows[kind]))
    return made


def verdict(
    before: SessionReport, after: SessionReport, changes: Sequence[CaseChange]
) -> str:
    """A line with the number of tests that differ and the totals of both reports."""
    kinds = Counter(change.kind for change in changes)
    tests = count_of(len(after.cases), "test")
    numbers = [f"{kinds[kind]:,} {kind}" for kind in _TABLES]
    totals = []
    for name in TOTALS:
        was = total(before.cases, name)
        now = total(after.cases, name)
        totals.append(f"{title(name)} {change_text(name, was, now)}")
    return f"{tests}: {', '.join(numbers)}; {', '.join(totals)}"


def total(cases: Iterable[Case], name: str) -> int:
    """A metric of a whole suite: the sum over its tests; for the memory level, the maximum."""
    numbers = []
    for case in cases:
        value = case.values.get(name)
        if isinstance(value, int):
            numbers.append(value)
    if name == "peak_memory_bytes":
        return max(numbers, default=0)
    return sum(numbers)


def to_json(change: CaseChange) -> dict[str, Any]:
    """A changed test as JSON values."""
    case = change.case
    both = (change.before, change.after)
    return {
        "nodeid": case.nodeid,
        "environment": case.environment,
        "job": case.job,
        "state": [one and one.state.value for one in both],
        "failing": [one and one.bad for one in both],
        "failed": change.failed,
        "metrics": list(map(_metric_to_json, change.metrics)),
    }


def _metric_to_json(change: MetricChange) -> dict[str, Any]:
    return {
        "metric": change.metric,
        "region": change.region,
        "before": plain(change.before),
        "after": plain(change.after),
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
    new_keys: dict[str, list[Key]] = {}
    for key in news:
        new_keys.setdefault(key[0], []).append(key)
    moved = {}
    for key, case in olds.items():
        test, _, _ = key
        now = new_keys.get(test, ())
        if old_counts[test] == 1 and len(now) == 1:
            key = now[0]
        moved[key] = case
    return moved, news


def _changed(old: Case | None, new: Case) -> CaseChange:
    # A test that was not traced has no values, so only the states are compared.
    if old is None or not (old.values and new.values):
        return CaseChange(old, new)
    metrics: list[MetricChange] = []
    metrics += _metrics(old, new, "")
    for region in {**old.regions, **new.regions}:
        metrics += _metrics(old, new, region)
    return CaseChange(old, new, tuple(metrics))


def _metrics(old: Case, new: Case, region: str) -> Iterator[MetricChange]:
    before = _comparable(old, region)
    after = _comparable(new, region)
    for metric in ordered({*before, *after}):
        name = metric.name
        was = before.get(name)
        now = after.get(name)
        if _differ(metric, was, now):
            work = metric.kind is not MetricClass.STATE
            yield MetricChange(name, region, was, now, work)


def _differ(metric: Metric, before: Any, after: Any) -> bool:
    """Whether the values of two reports differ. Missing work is equal to 0 or {}; a missing counter is unknown."""
    if before is None:
        before = absent(metric)
    if after is None:
        after = absent(metric)
    if before is None or after is None:
        return before is not after
    return compare_values(metric, before, after).differs


def _comparable(case: Case, region: str) -> dict[str, Any]:
    """The values of a region that two reports can compare, by metric."""
    values: Mapping[str, Value] = case.values
    if region:
        values = case.regions.get(region, {})
    # The file may have values of any type.
    types = (int, float, dict)
    known = {name: one for name, one in values.items() if isinstance(one, types)}
    totals = grouped(known)
    for metric in ordered(totals):
        if metric.kind is MetricClass.TIME:
            del totals[metric.name]
    return totals


def _rows(change: CaseChange) -> Iterator[tuple[str, ...]]:
    label = _label(change.case)
    before = _status(change.before)
    after = _status(change.after)
    if before != after:
        yield "state", before, after, change.case.reason, label
    for one in change.metrics:
        name = scoped(one.region, title(one.metric))
        was = amount(one.before or 0)
        now = amount(one.after or 0)
        old, new = pair(one.metric, was, now)
        yield name, old, new, one.detail, label


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
