"""Text for the terminal: failures and the lines at the end of a session.

A line is a string and the name of a style. :data:`CLICK` and :data:`TERMINAL_WRITER` define the styles.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..analysis.definitions import MetricClass
from ..golden.compare import Row
from ..golden.model import CODE, Verdict, find_metric, scoped
from ..units import count_of, first_names, first_of, printable
from .model import (
    BETTER,
    CONFIRM,
    DIFFERENT,
    STATES,
    AddedWork,
    Case,
    SessionReport,
    State,
)
from .values import pair, short, title, unit_of, value_text

#: A string without line breaks, and its style: "", "bad", "good", "warn", "dim" or "bold".
Line = tuple[str, str]
#: A fact of the footer: its label, its string and its style.
Fact = tuple[str, str, str]
#: Styles as arguments of ``click.style`` and ``click.secho``.
CLICK: dict[str, dict[str, Any]] = {
    "": {},
    "bad": {"fg": "red"},
    "good": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "dim": {"dim": True},
    "bold": {"bold": True},
}
#: Styles as arguments of ``TerminalWriter.line`` of pytest.
TERMINAL_WRITER: dict[str, dict[str, bool]] = {
    "": {},
    "bad": {"red": True},
    "good": {"green": True},
    "warn": {"yellow": True},
    "dim": {"light": True},
    "bold": {"bold": True},
}

#: Names longer than this are shortened in the middle.
NAME_WIDTH = 60
#: Maximum of metrics in the first line of a failure, and of tests in a fact of the footer.
_METRICS = 4
_TESTS = 10
#: Maximum of call sites of added work.
_SITES = 3
#: Maximum of tests without golden values that the footer names.
_NAMED = 3
#: Maximum length of a detail in a list of changes.
_DETAIL = 80
#: The metric of time that failures always show.
_ALWAYS = "kernel_time_ns"
#: Verdicts that fail a gated row, unless its rule says otherwise.
_FAILING = (Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW)
_TRACED = (State.GATED, State.TRACED, State.MISSING, State.UPDATED, State.UNCONFIRMED)


def styled(line: Line) -> str:
    """A line as a string with the escape sequences of its style. ``click.echo`` removes them if the output is not a
    terminal."""
    import click

    text, style = line
    if style and text:
        return click.style(text, **CLICK[style])
    return text


def plain(lines: Iterable[Line]) -> list[str]:
    """Lines without their styles."""
    return [text for text, _ in lines]


def failure_lines(case: Case, arguments: str = "") -> list[Line]:
    """The lines of a failed comparison: a summary with the changed metrics, a table, the trace to open, and the next
    steps. ``arguments`` selects the test, quoted for a shell; it is its id unless given."""
    test = printable(case.name)
    if case.device:
        test += f" on {printable(case.device)}"
    if case.runs > 1:
        test += f", {count_of(case.runs, 'run')}"
    lines = [(f"cutrace: {headline(case)}", "bad"), (f"  {test}", "bold")]
    lines += _indented(added_lines(case), "bad")
    lines += _indented([f"not verified: {one}" for one in case.problems], "bad")
    lines += _indented(case.notes, "warn")
    for line, style in table_lines(notable(case.rows)):
        lines.append((f"  {line}", style))
    trace = case.artifacts.get("trace.pftrace") or case.artifacts.get("run.bin")
    if trace:
        lines += _indented([f"trace     {trace}"], "")
    arguments = arguments or shlex.quote(printable(case.nodeid))
    return lines + _indented(remedies([case], arguments), "")


def added_lines(case: Case) -> list[str]:
    """The added work, with the lines of Python that launched it: ``+ cast ops.py:42 in f <- test_ops.py:17``."""
    labels = [short(names_shortened(work.change), NAME_WIDTH) for work in case.added]
    width = max(map(len, labels), default=0)
    lines = []
    for label, work in zip(labels, case.added, strict=True):
        for site in _sites(work):
            lines.append(f"{label:<{width}}   {site}")
            label = ""
    return lines


def _sites(work: AddedWork) -> Iterator[str]:
    """The first call sites: ``2x ops.py:42 in f  <- test_ops.py:17``. A single piece of work has no number."""
    shown = work.sites[:_SITES]
    others = len(work.sites) - len(shown) + work.others
    several = len(work.sites) > 1
    for site in shown:
        words = [site.place or "no Python frame"]
        if unit_of(work.metric) == "bytes":
            words.insert(0, value_text(work.metric, site.bytes))
        elif several or site.count > 1:
            words.insert(0, f"{site.count:,}x")
        if site.test:
            words.append(f" <- {site.test}")
        yield " ".join(words)
    if others:
        yield f"and {count_of(others, 'more place')}"


def headline(case: Case) -> str:
    """The differences of a failed test, or the reason why it has no golden values."""
    first = changes(case.failed_rows)
    if case.problems:
        first.insert(0, f"not verified: {names_shortened(case.problems[0])}")
    return ", ".join(first) or case.reason or "failed"


def _indented(texts: Iterable[str], style: str) -> list[Line]:
    return [(f"  {printable(text)}", style) for text in texts]


def changes(rows: Sequence[Row]) -> list[str]:
    """The first changed metrics as short strings: ``kernel_launches 10 -> 11 (+ fill)``."""
    return first_of(list(map(_change, without_repeats(rows))), _METRICS)


def _change(row: Row) -> str:
    golden, now = pair(row.metric, row.golden, row.now)
    name = metric_name(row)
    detail = short(brief(row.detail), _DETAIL)
    if row.metric == CODE and detail:
        return detail  # The numbers of kernels are not useful.
    if row.rule == "limit":
        limit = f"limit {golden}"
        names = detail.removeprefix("over the limit").removeprefix(", ")
        if names:
            limit += f": {names}"
        return f"{name} {now} ({limit})"
    change = f"{name} {golden} -> {now}"
    if detail:
        change += f" ({detail})"
    return change


def brief(detail: str) -> str:
    """The detail of a row, without parts that follow from its values: ``+ fill x1 (new)`` becomes ``+ fill``."""
    return re.sub(r"( x1)? \((new|gone)\)", "", names_shortened(detail))


def metric_name(row: Row) -> str:
    """The name of a metric in tables, with its region."""
    return short(scoped(row.region, title(row.metric)), NAME_WIDTH)


def notable(rows: Sequence[Row]) -> list[Row]:
    """The rows to show: rows that fail or differ, and the kernel time."""
    return without_repeats(list(filter(_is_notable, rows)))


def without_repeats(rows: Sequence[Row]) -> list[Row]:
    """The rows without repetitions. A region's row has no detail if the row of the whole test has the same detail. A
    region's golden value is left out if a limit of the same metric failed."""
    listed_above = {(row.metric, row.detail) for row in rows if not row.region}
    over = {
        (row.region, row.metric) for row in rows if row.failed and row.rule == "limit"
    }
    shown = []
    for row in rows:
        if row.region and row.rule != "limit" and (row.region, row.metric) in over:
            continue
        if row.region and (row.metric, row.detail) in listed_above:
            row = replace(row, detail="")
        shown.append(row)
    return shown


def _is_notable(row: Row) -> bool:
    if row.failed or row.verdict in DIFFERENT:
        return True
    metric = find_metric(row.metric)
    if metric is None or metric.kind is not MetricClass.TIME:
        return False
    if row.verdict is Verdict.AMBIGUOUS and row.gated:
        return True
    return row.metric == _ALWAYS and not row.region


def table_lines(
    rows: Sequence[Row], *, head: Sequence[str] = ("metric", "golden", "now", "rule")
) -> list[Line]:
    """A head and a line for each row, with aligned columns: metric, golden value, current value, rule, remark."""
    if not rows:
        return []
    cells = [(*map(printable, head), "")]
    styles = ["dim"]
    for row in rows:
        name = metric_name(row)
        golden, now = pair(row.metric, row.golden, row.now)
        cells.append((name, golden, now, printable(row.rule), remark(row)))
        styles.append(style_of(row))
    a, b, c, d, _ = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for words, style in zip(cells, styles, strict=True):
        metric, golden, now, rule, comment = words
        line = f"{metric:<{a}}   {golden:>{b}}  {now:>{c}}   {rule:<{d}}   {comment}"
        lines.append((line.rstrip(), style))
    return lines


def style_of(row: Row) -> str:
    """The style of a row: "bad" if the row fails, "good" if it is better, "warn" if it differs without a failure or
    could not be compared."""
    if row.failed:
        return "bad"
    if row.verdict in BETTER:
        return "good"
    if row.verdict in (*DIFFERENT, Verdict.UNVERIFIED):
        return "warn"
    return ""


def remark(row: Row) -> str:
    """The verdict of a row, unless its detail implies it, and its comment."""
    implied = row.verdict is Verdict.CHANGED and row.detail and row.failed
    words = [comment(row)]
    if not implied:
        words.insert(0, row.verdict.value)
    return " ".join(filter(None, words))


def comment(row: Row) -> str:
    """The detail of a row, and a word if the row is not gated or does not fail."""
    texts = []
    if row.detail:
        texts.append(names_shortened(row.detail))
    if not row.gated:
        texts.append("(not gated)")
    elif row.verdict in _FAILING and not row.failed:
        texts.append("(does not fail)")
    return " ".join(texts)


def names_shortened(text: str) -> str:
    """A sentence in which long names are shortened in the middle."""
    if len(text) <= NAME_WIDTH:
        return printable(text)
    return re.sub(r"\S+", lambda match: short(match[0], NAME_WIDTH), printable(text))


def footer_lines(
    report: SessionReport,
    *,
    written: Sequence[str] = (),
    proposed: str = "",
    width: int = 0,
) -> list[Line]:
    """The lines at the end of a session: numbers of tests by state, with reasons.

    ``written`` are the paths of written reports, ``proposed`` is the folder with candidates for golden files ("" if
    there are none). Lines are wrapped to ``width`` columns, 0 for no limit.
    """
    lines = _summary_lines(report)
    facts = list(_facts(report, proposed))
    facts += [("report", path, "") for path in written]
    label_width = max((len(label) for label, _, _ in facts), default=0)
    before = ""
    for label, text, style in facts:
        shown = label
        if label == before:
            shown = ""  # Adjacent facts share a label.
        wrapped = _wrapped(f"  {shown:<{label_width}}  ", text, width)
        lines += [(line, style) for line in wrapped]
        before = label
    return lines


def _summary_lines(report: SessionReport) -> list[Line]:
    """The numbers and the notes, with which a footer begins."""
    numbers = (f"cutrace: {summary(report)}", _mood(report))
    return [numbers, *_indented(report.notes, "warn")]


def short_footer_lines(report: SessionReport, *, width: int) -> list[Line]:
    """The footer of a quiet session: the numbers, the notes, and one line for each kind of fact."""
    lines = _summary_lines(report)
    facts: dict[str, list[str]] = {}
    for label, text, _ in _facts(report):
        words = text.split()
        facts.setdefault(label, []).append(" ".join(words))
    for label, texts in facts.items():
        lines.append((_joined(label, texts, width), ""))
    return lines


def _joined(label: str, facts: Sequence[str], width: int) -> str:
    """A line with as many facts as fit. The first fact is always in it."""
    line = f"  {label}: {facts[0]}"
    for number, fact in enumerate(facts[1:], 1):
        others = len(facts) - number
        if len(f"{line}; {fact}; and {others} more") > width:
            return short(f"{line}; and {others} more", width)
        line += f"; {fact}"
    return short(line, width)


def _wrapped(label: str, text: str, width: int) -> list[str]:
    """A labelled string in lines of this width. Reasons start with a count, and continuation lines are aligned after
    the count."""
    count = re.match(r" *[\d,]*  ", text)
    if count:
        label += count[0]
        text = text[count.end() :]
    if width - len(label) < 20:
        return [label + text]
    indent = " " * len(label)
    fold = textwrap.TextWrapper(width, label, indent, break_on_hyphens=False)
    return fold.wrap(text) or [label + text]


def summary(report: SessionReport) -> str:
    """The numbers of tests that were traced, gated, unverified, unconfirmed and not traced, and the GPUs."""
    traced = 0
    for case in report.cases:
        # A traced test is also unverified if a golden value for its GPU is missing.
        unverified = case.state is State.UNVERIFIED and bool(case.values)
        traced += unverified or case.state in _TRACED
    counts = report.counts
    gated = f"{counts[State.GATED]:,} gated"
    failed = len(report.drifted)
    if failed:
        gated += f" ({failed:,} failed)"
    numbers = [
        f"{traced:,} traced",
        gated,
        f"{counts[State.UNVERIFIED]:,} unverified",
    ]
    unconfirmed = counts[State.UNCONFIRMED]
    if unconfirmed:
        numbers.append(f"{unconfirmed:,} unconfirmed")
    numbers.append(f"{counts[State.UNTRACED]:,} not traced")
    line = ", ".join(numbers)
    devices = ", ".join(map(printable, report.devices))
    if devices:
        line += f" on {devices}"
    return line


def _mood(report: SessionReport) -> str:
    if report.drifted:
        return "bad"
    states = {case.state for case in report.cases}
    if states & {State.UNVERIFIED, State.MISSING, State.UNCONFIRMED}:
        return "warn"
    if State.GATED in states:
        return "good"
    return "bold"


def _facts(report: SessionReport, proposed: str = "") -> Iterator[Fact]:
    """Yield a label, a string and a style for each fact of the footer."""
    if report.account:
        yield "golden", report.account, ""
    yield from _reasons(report, State.UNVERIFIED, "warn")
    count = report.counts[State.UNCONFIRMED] + _updates_from_one_run(report)
    if count:
        yield "unconfirmed", f"{count:,}  {CONFIRM}", "warn"
    yield from _changed("better", report.better, lambda case: case.better, "good")
    yield from _changed(
        "other code", report.other_code, lambda case: case.other_code, "warn"
    )
    yield from _first_runs(report)
    yield from _unused_lists(report)
    yield from _reasons(report, State.UNTRACED, "")
    missing = _named(report, State.MISSING)
    if missing:
        tests = count_of(len(missing), "test")
        yield "no golden", f"{tests}: {first_names(missing, _NAMED)}", "warn"
    yield from _updated(report)
    if proposed:
        # The command has its own line, so that it can be copied.
        yield "candidates", proposed, ""
        yield "accept them", f"cutrace golden accept {shlex.quote(proposed)}", ""


def _updates_from_one_run(report: SessionReport) -> int:
    """The number of tests whose values this session wrote from one run. They are unconfirmed, too."""
    count = 0
    for case in report.cases:
        if case.state is State.UPDATED and case.change is not None:
            count += not case.change.observed.confirmed
    return count


def _first_runs(report: SessionReport) -> Iterator[Fact]:
    """Tests with runs that differ: the first run differs from the others, or all runs differ."""
    more = 0
    unstable = 0
    for case in report.cases:
        more += case.first_did_more
        unstable += bool(case.unstable)
    if more:
        text = "did more in the first run: -v names the tests"
        yield "first runs", f"{more:,}  {text}", ""
    if unstable:
        text = "with values that differ from run to run and are not compared: -v names the tests"
        yield "unstable", f"{unstable:,}  {text}", "warn"


def _unused_lists(report: SessionReport) -> Iterator[Fact]:
    """Lists of allowed places that allowed no call of any test."""
    calls = Counter[str]()
    tests = Counter[str]()
    for case in report.cases:
        for places, count in case.allowed.items():
            calls[places] += count
            tests[places] += 1
    unused = [places for places in tests if not calls[places]]
    for places in unused[:_TESTS]:
        number = count_of(tests[places], "test")
        text = f"no call was made at {places} ({number}): correct or remove it"
        yield "allow", printable(text), "warn"


def remarks(case: Case) -> Iterator[str]:
    """Sentences on a first run that did more work, and on unstable values."""
    if case.first_did_more:
        yield "the first run did more GPU work than the judged runs"
    for metric in case.unstable:
        yield f"{metric} differs from run to run: it is not compared"


def _changed(
    label: str,
    cases: Sequence[Case],
    rows_of: Callable[[Case], Sequence[Row]],
    style: str,
) -> Iterator[Fact]:
    """The first tests with the changes of each."""
    tests = []
    for case in cases[:_TESTS]:
        name = short(case.name, NAME_WIDTH)
        values = ", ".join(changes(rows_of(case)))
        tests.append(f"{name}: {values}")
    others = len(cases) - _TESTS
    if others > 0:
        tests.append(f"and {others:,} more")
    # The number is in the first line.
    number = f"{len(cases):,}"
    for test in tests:
        yield label, f"{number}  {test}", style
        number = " " * len(number)


def _named(report: SessionReport, state: State) -> list[str]:
    """The names of the tests in a state."""
    cases = [case for case in report.cases if case.state is state]
    return [short(case.name, NAME_WIDTH) for case in cases]


def _updated(report: SessionReport) -> Iterator[Fact]:
    updated = 0
    files = set()
    for case in report.cases:
        if case.state is State.UPDATED:
            updated += 1
            files.add(case.golden)
    if not updated:
        return
    tests = count_of(updated, "test")
    files.discard("")
    if files:
        tests += f" in {count_of(len(files), 'file')}"
    yield "updated", f"{tests}: review before you commit", ""


def _reasons(report: SessionReport, state: State, style: str) -> Iterator[Fact]:
    reasons = report.reasons(state)
    label, _ = STATES[state]
    # The most frequent reason is the first.
    wide = len(f"{max(reasons.values(), default=0):,}")
    for reason, count in reasons.items():
        yield label, f"{count:>{wide},}  {printable(reason)}", style


def remedies(cases: Iterable[Case], arguments: str) -> Iterator[str]:
    """The commands for the case that the changes of these tests are intended. ``arguments`` selects the tests, quoted
    for a shell."""
    verdicts = set()
    limited: dict[str, None] = {}
    for case in cases:
        if case.state is State.MISSING:
            verdicts.add(Verdict.NEW)
        for row in case.failed_rows:
            if row.rule == "limit":
                limited[row.region] = None
            elif not case.problems:
                # An update does not write unreliable numbers.
                verdicts.add(row.verdict)
    for region in limited:
        where = "the test's @pytest.mark.gpu_limit"
        if region:
            where = f"gpu_trace.region({printable(region)!r})"
        yield f"if intended: raise the limit in {where}"
    if not verdicts:
        return
    option = "--cutrace-update"
    # Only --cutrace-update=all replaces values with more memory or slower times.
    if verdicts & {Verdict.WORSE, Verdict.SLOW}:
        option = "--cutrace-update=all"
    yield f"if intended: pytest {option} {arguments}"
