"""Failures by their cause. Tests have the same cause if their metrics differ in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..analysis.definitions import MetricClass
from ..golden.compare import Row
from ..golden.model import find_metric
from ..units import count_of, first_of, printable
from .model import Case, State
from .text import Line, brief, changes, headline, metric_name, remedies

#: The maximum of test names in a block, and the maximum of blocks.
NAMED = 5
_BLOCKS = 10


@dataclass(frozen=True)
class Cause:
    """A cause of failures: ``text`` names the metrics with their changes, ``cases`` are the tests in their order."""

    text: str
    cases: tuple[Case, ...]


def cause_of(case: Case) -> str:
    """The cause of a test that drifted or lacks golden values, "" for any other test. Equal causes are equal strings.

    Rows with parts, such as kernels, are equal if they name the same parts. Totals do not count then. If the whole test
    differs, its regions do not count.
    """
    if case.drifted:
        rows = case.failed_rows
        of_test = [row for row in rows if not row.region]
        causes = [_cause_of_row(row) for row in of_test or rows]
        return ", ".join([*case.problems[:1], *causes])
    if case.state is State.MISSING:
        return case.reason
    return ""


def _cause_of_row(row: Row) -> str:
    metric = find_metric(row.metric)
    name = metric_name(row)
    if metric is not None and metric.kind is MetricClass.TIME:
        return f"{name} {row.verdict.value}"
    if row.detail and row.rule != "limit":
        return f"{name} ({brief(row.detail)})"
    return changes([row])[0]


def by_cause(cases: Iterable[Case]) -> list[Cause]:
    """The causes of these cases. The cause of the most tests comes first. Cases without a cause are left out."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        cause = cause_of(case)
        if cause:
            groups.setdefault(cause, []).append(case)
    causes = []
    for cause, group in groups.items():
        text = _common_text(cause, group)
        causes.append(Cause(text, tuple(group)))
    return sorted(causes, key=lambda cause: -len(cause.cases))


def _common_text(cause: str, cases: Sequence[Case]) -> str:
    """The changes of these cases if they are equal, else their common part."""
    texts = {headline(case) for case in cases}
    if len(texts) == 1:
        return texts.pop()
    return cause


def repeated_failure(case: Case, first: str) -> list[Line]:
    """The failure message of a test with the same cause as an earlier test, ``first``."""
    return [(f"cutrace: {headline(case)}: same cause as {printable(first)}", "bad")]


def cause_lines(
    causes: Sequence[Cause],
    argument: Callable[[str], str],
    selection: Callable[[Sequence[str]], str],
    *,
    named: bool = True,
) -> Iterator[Line]:
    """A block for each cause of several failures: the changes, the first tests, and the command that updates all of
    them.

    ``argument`` returns the argument of pytest for the id of a test, and ``selection`` the quoted arguments that select
    exactly these ids. Without ``named``, the tests are left out.
    """
    shared = [cause for cause in causes if len(cause.cases) > 1]
    for cause in shared[:_BLOCKS]:
        ids = [case.nodeid for case in cause.cases]
        tests = count_of(len(ids), "test")
        yield f"  {tests} failed: {printable(cause.text)}", "bad"
        if named:
            for line in first_of(list(map(argument, ids)), NAMED):
                yield f"    {printable(line)}", ""
        for remedy in remedies(cause.cases, selection(ids)):
            yield f"    {remedy}", ""
    others = len(shared) - _BLOCKS
    if others > 0:
        yield f"  and {count_of(others, 'cause')} more", "bad"
