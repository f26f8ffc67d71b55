"""A report as Markdown for the summary of a CI job: failures first, then figures."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ..golden.compare import Row
from ..golden.model import scoped
from ..units import count_of, printable
from .causes import Cause, by_cause
from .model import STATES, Case, SessionReport, State
from .text import added_lines, changes, notable, remark, remarks, summary
from .values import duration, pair, short, title

#: The maximum size of a job summary on GitHub, and the smallest limit, in bytes.
LIMIT = 1 << 20
LEAST = 16 << 10
#: The bytes reserved for the line about left-out sections.
_REST = 100
#: The maxima of causes or tests with a table, of names of failed tests, of reasons, of test names of a reason, and of
#: kernels.
_TESTS = 50
_FAILED_NAMES = 2000
_REASONS = 20
_NAMES = 10
_KERNELS = 10
#: Maximum number of characters in a cell.
_CELL = 400
_END_OF_DETAILS = ("</details>", "")
# "_" inside a word is no markup.
_SYNTAX = re.compile(r"[\\`*{}\[\]<>#!|~&$:@]|(?<![^\W_])_|_(?![^\W_])|^[^\w(]")


@dataclass(frozen=True)
class Download:
    """How a reader of the summary of a report downloads its files.

    ``command`` downloads the files of the summary's folder into ``folder``. ``candidates`` are folders of candidates,
    relative to ``folder``. ``page`` is the address of the HTML page. Each is empty if there is none.
    """

    command: str = ""
    folder: str = ""
    page: str = ""
    candidates: tuple[str, ...] = ()

    def path(self, name: str) -> str:
        """The path of a downloaded file, quoted for a shell."""
        return shlex.quote(f"{self.folder}/{name}")


def markdown(
    report: SessionReport, download: Download | None = None, limit: int = LIMIT
) -> str:
    """The summary of a session in GitHub's Markdown, at most ``limit`` bytes (16 KiB or more). Sections without room
    are left out.

    With a ``download``, each failure has the command that opens its trace.
    """
    download = download or Download()
    lines = list(_head(report, download))
    room = limit - _REST - _size(lines)
    left_out = 0
    for section in _sections(report, download):
        size = _size(section)
        if size <= room:
            lines += section
            room -= size
        else:
            left_out += 1
    if left_out:
        lines.append(f"{count_of(left_out, 'section')} left out: see the other reports")
    return "\n".join(lines).rstrip() + "\n"


def _size(lines: Iterable[str]) -> int:
    """The number of bytes of these lines."""
    return sum(len(line.encode()) + 1 for line in lines)


def _head(report: SessionReport, download: Download) -> Iterator[str]:
    """The totals, and facts about the session."""
    yield "## cutrace"
    yield ""
    yield text(summary(report))
    yield ""
    if report.account:
        yield text(f"Golden values {report.account}")
        yield ""
    about = [report.job, report.header]
    for name, version in report.versions.items():
        about.append(f"{name} {version}")
    if report.commit:
        about.append(f"commit {report.commit}")
    known = ", ".join(filter(None, about))
    if known:
        yield text(known)
        yield ""
    if download.page:
        address = quote(download.page, safe=":/?&=#%+,@")
        yield f"[All tests, with their timelines]({address})"
        yield ""


def _sections(report: SessionReport, download: Download) -> Iterator[list[str]]:
    """The lines of each section, the most important sections first."""
    for note in report.notes[:_TESTS]:
        yield [f"> {text(note)}", ""]
    if download.command:
        yield _first_steps(download)
    yield from _failures(by_cause(report.drifted), download)
    updated = [case for case in report.cases if case.state is State.UPDATED]
    _, heading = STATES[State.UPDATED]
    yield list(_changed(heading, updated, lambda case: case.updated))
    heading = "Better than the golden values"
    yield list(_changed(heading, report.better, lambda case: case.better))
    heading = "Other machine code"
    yield list(_changed(heading, report.other_code, lambda case: case.other_code))
    for state in (State.UNVERIFIED, State.UNCONFIRMED, State.MISSING, State.UNTRACED):
        yield list(_why(report, state))
    yield list(_unequal_runs(report.cases))
    yield list(_slowest(report))


def text(plain: str, width: int = _CELL) -> str:
    """Escape a string for Markdown and table cells. CommonMark does not interpret characters that are written as
    entities."""
    return _SYNTAX.sub(lambda match: f"&#{ord(match[0])};", short(plain, width))


def code(name: str, width: int = _CELL) -> str:
    """A name as code, also in tables."""
    return f"<code>{text(name, width)}</code>"


def _code_block(strings: Iterable[str], language: str = "sh") -> list[str]:
    """Lines as a block that can be copied and keeps its columns."""
    lines = list(map(printable, strings))
    fence = "```"
    while fence in "\n".join(lines):
        fence += "`"
    return [f"{fence}{language}", *lines, fence, ""]


def _left_out(count: int, noun: str) -> list[str]:
    """The line about the items that are left out."""
    more = count - _TESTS
    if more > 0:
        return [f"and {count_of(more, noun)} more: see the other reports.", ""]
    return []


def _first_steps(download: Download) -> list[str]:
    """The commands that download the files and accept the candidates."""
    commands = [download.command]
    sentence = "Get the files:"
    for folder in download.candidates:
        commands.append(f"cutrace golden accept --dry-run {download.path(folder)}")
        sentence = "Get the files, and see what accepting the candidates would change:"
    return [sentence, "", *_code_block(commands)]


def _failures(causes: Sequence[Cause], download: Download) -> Iterator[list[str]]:
    """A section for each cause."""
    if not causes:
        return
    shown = causes[:_TESTS]
    names = _FAILED_NAMES // len(shown)
    for cause in shown:
        yield list(_failure(cause, names, download))
    others = sum(len(cause.cases) for cause in causes[_TESTS:])
    yield _left_out(_TESTS + others, "failed test")


def _failure(cause: Cause, names: int, download: Download) -> Iterator[str]:
    """The section of a cause: the details of its first test, and the names of at most ``names`` tests."""
    case = cause.cases[0]
    tests = len(cause.cases)
    if tests == 1:
        yield f"### {code(case.nodeid)}{_on(case)}"
        yield ""
    else:
        yield f"### {count_of(tests, 'test')}: {text(cause.text)}"
        yield ""
        yield f"The first is {_test(case)}:"
        yield ""
    for problem in case.problems:
        yield f"- not verified: {text(problem)}"
    for note in case.notes:
        yield f"- {text(note)}"
    yield ""
    added = added_lines(case)
    if added:
        yield from _code_block(added, "text")
    rows = notable(case.rows)
    if rows:
        yield from table(("metric", "golden", "now", "rule", ""), map(_row, rows))
    trace = case.artifacts.get("trace.pftrace")
    if trace and download.command:
        yield from _code_block([f"cutrace open {download.path(trace)}"])
    elif trace:
        yield f"Trace: {code(trace)}"
        yield ""
    if tests > 1:
        yield from _details("Failed for this cause", tests)
        for case in cause.cases[:names]:
            yield f"- {_test(case)}"
        if tests > names:
            yield f"- and {tests - names:,} more: see the other reports"
        yield ""
        yield from _END_OF_DETAILS


def _on(case: Case) -> str:
    """The place of a test's run: its GPU and its job."""
    where = ""
    if case.device:
        where = f" on {text(case.device)}"
    if case.job:
        where += f", {text(case.job)}"
    return where


def _changed(
    heading: str, cases: Sequence[Case], rows_of: Callable[[Case], Sequence[Row]]
) -> Iterator[str]:
    """A table of tests with the changes in each."""
    if not cases:
        return
    yield from _details(heading, len(cases))
    cells = []
    for case in cases:
        rows = rows_of(case)
        if rows:
            values = ", ".join(changes(rows))
            cells.append((_test(case), text(values)))
    if cells:
        yield from table(("test", "values"), cells[:_TESTS], ("test", "values"))
    yield from _left_out(len(cells), "test")
    new = len(cases) - len(cells)
    if new:
        yield f"{count_of(new, 'test')} with new values."
        yield ""
    yield from _END_OF_DETAILS


def _details(heading: str, tests: int) -> Iterator[str]:
    """The lines before a part that is folded away."""
    yield f"<details><summary>{heading}: {count_of(tests, 'test')}</summary>"
    yield ""


def _row(row: Row) -> tuple[str, ...]:
    name = scoped(row.region, title(row.metric))
    golden, now = pair(row.metric, row.golden, row.now)
    marked = text(now)
    if row.failed:
        marked = f"**{marked}**"
    return code(name), text(golden), marked, text(row.rule), text(remark(row))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Collection[str] = ("metric", "rule", "", "kernel"),
) -> Iterator[str]:
    """The lines of a table whose cells are Markdown. Columns other than ``texts`` have numbers, aligned right."""
    yield f"| {' | '.join(head)} |"
    rules = ["---" if name in texts else "--:" for name in head]
    yield f"|{'|'.join(rules)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _why(report: SessionReport, state: State) -> Iterator[str]:
    cases = [case for case in report.cases if case.state is state]
    if not cases:
        return
    _, heading = STATES[state]
    yield from _details(heading, len(cases))
    reasons = report.reasons(state)
    for reason, count in list(reasons.items())[:_REASONS]:
        line = f"- {count:,} x {text(reason)}"
        # Names of tests are useful only if there are few.
        if count <= _NAMES:
            names = [_test(case) for case in cases if case.why == reason]
            line += f": {', '.join(names)}"
        yield line
    others = len(reasons) - _REASONS
    if others > 0:
        yield f"- and {count_of(others, 'other reason')}"
    yield ""
    yield from _END_OF_DETAILS


def _unequal_runs(cases: Iterable[Case]) -> Iterator[str]:
    """Tests with different runs: the first run differs from the others, or all differ."""
    lines = []
    for case in cases:
        said = "; ".join(remarks(case))
        if said:
            lines.append(f"- {_test(case)}: {text(said)}")
    if not lines:
        return
    yield from _details("Different from run to run", len(lines))
    yield from lines[:_TESTS]
    yield ""
    yield from _left_out(len(lines), "test")
    yield from _END_OF_DETAILS


def _test(case: Case) -> str:
    """A test and the place of its run."""
    return code(case.nodeid, 160) + _on(case)


def _slowest(report: SessionReport) -> Iterator[str]:
    """The kernels with the most time over all tests."""
    tests = Counter[str]()
    counts = Counter[str]()
    times = Counter[str]()
    for case in report.cases:
        for kernel in case.kernels:
            name = kernel.name
            tests[name] += 1
            counts[name] += kernel.count
            times[name] += kernel.total_ns
    if not times:
        return
    yield "<details><summary>Kernels with the most time</summary>"
    yield ""
    slowest = sorted(times, key=lambda name: (-times[name], name))
    rows = []
    for name in slowest[:_KERNELS]:
        row = (
            code(name, 120),
            f"{tests[name]:,}",
            f"{counts[name]:,}",
            duration(times[name]),
        )
        rows.append(row)
    yield from table(("kernel", "tests", "launches", "time"), rows)
    yield from _END_OF_DETAILS
