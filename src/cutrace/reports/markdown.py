"""A report as Markdown for the summary of a CI job: failures first, then figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from ..golden.compare import Row
from ..golden.model import scoped
from ..units import count_of
from .model import STATES, Case, SessionReport, State
from .text import changes, notable, remark, summary
from .values import duration, pair, short, title

#: Maxima of tests with a table, reasons, test names of a reason, and kernels: a job summary is limited to 1 MiB.
_TESTS = 50
_REASONS = 20
_NAMES = 10
_KERNELS = 10
#: Maximum number of characters in a cell.
_CELL = 400
_SYNTAX = re.compile(r"[\\`*_{}\[\]<>#!|~&$:@]|^[^\w(]")


def markdown(report: SessionReport) -> str:
    """The summary of a session in GitHub's Markdown."""
    lines = ["## cutrace", "", text(summary(report)), ""]
    about = [
        report.job,
        report.header,
        *(f"{name} {version}" for name, version in report.versions.items()),
    ]
    about += [f"commit {report.commit}"] if report.commit else []
    known = ", ".join(filter(None, about))
    if known:
        lines += [text(known), ""]
    lines += [f"> {text(note)}" for note in report.notes] + [""] * bool(report.notes)
    for case in report.drifted[:_TESTS]:
        lines += _failure(case)
    lines += _left_out(len(report.drifted), "failed test")
    updated = [
        (case, case.updated) for case in report.cases if case.state is State.UPDATED
    ]
    lines += _changed(STATES[State.UPDATED][1], updated)
    lines += _changed(
        "Better than the golden values", [(case, case.better) for case in report.better]
    )
    for state in (State.UNVERIFIED, State.UNCONFIRMED, State.MISSING, State.UNTRACED):
        lines += _why(report, state)
    lines += _slowest(report)
    return "\n".join(lines).rstrip() + "\n"


def text(plain: str, width: int = _CELL) -> str:
    """Escape text for Markdown and table cells. CommonMark does not interpret characters that are written as
    entities."""
    return _SYNTAX.sub(lambda match: f"&#{ord(match[0])};", short(plain, width))


def code(name: str, width: int = _CELL) -> str:
    """A name as code, also in tables."""
    return f"<code>{text(name, width)}</code>"


def _left_out(count: int, noun: str) -> list[str]:
    more = count - _TESTS
    if more > 0:
        return [f"and {count_of(more, noun)} more: see the other reports.", ""]
    return []


def _failure(case: Case) -> Iterator[str]:
    yield from (f"### {code(case.nodeid)}{_on(case)}", "")
    yield from (f"- not verified: {text(problem)}" for problem in case.problems)
    yield from (f"- {text(note)}" for note in case.notes)
    yield ""
    rows = notable(case.rows)
    if rows:
        yield from table(("metric", "golden", "now", "rule", ""), map(_row, rows))
    trace = case.artifacts.get("trace.pftrace")
    if trace:
        yield from (f"Trace: {code(trace)}", "")


def _on(case: Case) -> str:
    job = f", {text(case.job)}" if case.job else ""
    if case.device:
        return f" on {text(case.device)}{job}"
    return job


def _changed(heading: str, cases: list[tuple[Case, tuple[Row, ...]]]) -> Iterator[str]:
    """A table of tests with the changes in each."""
    if not cases:
        return
    yield from (
        f"<details><summary>{heading}: {count_of(len(cases), 'test')}</summary>",
        "",
    )
    changed = [(case, rows) for case, rows in cases if rows]
    cells = (
        (code(case.nodeid, 160) + _on(case), text(", ".join(changes(rows))))
        for case, rows in changed[:_TESTS]
    )
    yield from table(("test", "values"), cells, ("test", "values")) if changed else ()
    yield from _left_out(len(changed), "test")
    new = len(cases) - len(changed)
    if new:
        yield from (f"{count_of(new, 'test')} with new values.", "")
    yield from ("</details>", "")


def _row(row: Row) -> tuple[str, ...]:
    golden, now = pair(row.metric, row.golden, row.now)
    name = code(scoped(row.region, title(row.metric)))
    return (
        name,
        text(golden),
        f"**{text(now)}**" if row.failed else text(now),
        text(row.rule),
        text(remark(row)),
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Collection[str] = ("metric", "rule", "", "kernel"),
) -> Iterator[str]:
    """The lines of a table whose cells are Markdown. Columns other than ``texts`` have numbers, aligned right."""
    yield f"| {' | '.join(head)} |"
    rules = ["---" if name in texts else "--:" for name in head]
    yield f"|{'|'.join(rules)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _why(report: SessionReport, state: State) -> Iterator[str]:
    cases = [case for case in report.cases if case.state is state]
    if not cases:
        return
    yield from (
        f"<details><summary>{STATES[state][1]}: {count_of(len(cases), 'test')}</summary>",
        "",
    )
    reasons = report.reasons(state)
    for reason, count in list(reasons.items())[:_REASONS]:
        # Names of tests help only if there are few.
        mine = [
            code(case.nodeid, 160) + _on(case)
            for case in cases
            if case.why == reason and count <= _NAMES
        ]
        yield f"- {count:,} x {text(reason)}{': ' * bool(mine)}{', '.join(mine)}"
    if len(reasons) > _REASONS:
        yield f"- and {count_of(len(reasons) - _REASONS, 'other reason')}"
    yield from ("", "</details>", "")


def _slowest(report: SessionReport) -> Iterator[str]:
    """The kernels with the most time over all tests."""
    tests = Counter[str]()
    counts = Counter[str]()
    times = Counter[str]()
    for kernel in (kernel for case in report.cases for kernel in case.kernels):
        tests[kernel.name] += 1
        counts[kernel.name] += kernel.count
        times[kernel.name] += kernel.total_ns
    if not times:
        return
    yield from ("<details><summary>Kernels with the most time</summary>", "")
    longest = sorted(times, key=lambda name: (-times[name], name))[:_KERNELS]
    rows = (
        (code(n, 120), f"{tests[n]:,}", f"{counts[n]:,}", duration(times[n]))
        for n in longest
    )
    yield from table(("kernel", "tests", "launches", "time"), rows)
    yield from ("</details>", "")
