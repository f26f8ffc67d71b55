"""A report as Markdown, fit for the summary of a CI job: what failed first, the rest in figures."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from ..golden import Row
from ..golden.model import scoped
from ..units import count_of
from .model import UNKNOWN, Case, Report, State
from .text import footer, remark, told
from .values import duration, pair, short, title

#: Tests with a table of their own, and reasons that are listed: a job summary has room for 1 MiB.
_TESTS, _REASONS, _NAMES, _KERNELS = 50, 20, 10, 10
#: Characters of a cell.
_CELL = 400
_SYNTAX = re.compile(r"[\\`*_{}\[\]<>#!|~&$:@]|^[^\w(]")


def markdown(report: Report) -> str:
    """The summary of a session, in GitHub's Markdown."""
    lines = ["## cutrace", "", text(footer(Report(report.cases))[0].removeprefix("cutrace: ")), ""]
    about = [report.header, *(f"{name} {version}" for name, version in report.versions.items())]
    if known := ", ".join(filter(None, about)):
        lines += [text(known), ""]
    lines += [f"> {text(note)}" for note in report.notes] + [""] * bool(report.notes)
    drifted = report.drifted
    for case in drifted[:_TESTS]:
        lines += _failure(case)
    if len(drifted) > _TESTS:
        lines += [f"and {count_of(len(drifted) - _TESTS, 'failed test')} more: the other reports have all.", ""]
    for state, words in (
        (State.UNVERIFIED, "Not verified"),
        (State.MISSING, "Without a golden file"),
        (State.UPDATED, "Golden files written"),
        (State.UNTRACED, "Not traced"),
    ):
        lines += _why(report, state, words)
    lines += _slowest(report)
    return "\n".join(lines).rstrip() + "\n"


def text(words: str, width: int = _CELL) -> str:
    """Words that stay words: nothing in them is markup, or the end of a cell. CommonMark takes no character that is
    written as an entity for syntax."""
    return _SYNTAX.sub(lambda match: f"&#{ord(match[0])};", short(words, width))


def code(words: str, width: int = _CELL) -> str:
    """A name as code, in a table too."""
    return f"<code>{text(words, width)}</code>"


def _failure(case: Case) -> Iterator[str]:
    on = f" on {text(case.gpu)}" if case.gpu else ""
    yield from (f"### {code(case.nodeid)}{on}", "")
    yield from (f"- not verified: {text(problem)}" for problem in case.problems)
    yield from (f"- {text(note)}" for note in case.notes)
    yield ""
    if rows := told(case.rows):
        yield from table(("metric", "golden", "now", "rule", ""), map(_row, rows))
    if trace := case.artifacts.get("trace.pftrace"):
        yield from (f"Trace: {code(trace)}", "")


def _row(row: Row) -> tuple[str, ...]:
    golden, now = pair(row.metric, row.golden, row.now)
    name = code(scoped(row.region, title(row.metric)))
    said = text(remark(row))
    return name, golden, f"**{text(now)}**" if row.failed else text(now), text(row.rule), said


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str] = ("metric", "rule", "", "kernel")
) -> Iterator[str]:
    """The lines of a table; its cells are Markdown. Numbers, which all columns but those of ``words`` hold, stand on
    the right."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' if name in words else '--:' for name in head)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _why(report: Report, state: State, words: str) -> Iterator[str]:
    cases = [case for case in report.cases if case.state is state]
    if not cases:
        return
    yield from (f"<details><summary>{words}: {count_of(len(cases), 'test')}</summary>", "")
    reasons = report.reasons(state)
    for reason, count in list(reasons.items())[:_REASONS]:
        mine = [case for case in cases if (case.reason or UNKNOWN) == reason]
        # Of few tests the names help; of many the number.
        names = ": " + ", ".join(code(case.nodeid, 160) for case in mine[:_NAMES]) if count <= _NAMES else ""
        yield f"- {count:,} x {text(reason)}{names}"
    if len(reasons) > _REASONS:
        yield f"- and {count_of(len(reasons) - _REASONS, 'other reason')}"
    yield from ("", "</details>", "")


def _slowest(report: Report) -> Iterator[str]:
    """The kernels of all tests together: what the suite spends the GPU on."""
    total: dict[str, tuple[int, int, int]] = {}
    for case in report.cases:
        for kernel in case.kernels:
            tests, count, time = total.get(kernel.name, (0, 0, 0))
            total[kernel.name] = tests + 1, count + kernel.count, time + kernel.total_ns
    if not total:
        return
    yield from ("<details><summary>Kernels with the most time</summary>", "")
    longest = sorted(total.items(), key=lambda item: (-item[1][2], item[0]))[:_KERNELS]
    rows = ((code(n, 120), f"{tests:,}", f"{count:,}", duration(time)) for n, (tests, count, time) in longest)
    yield from table(("kernel", "tests", "launches", "time"), rows)
    yield from ("</details>", "")
