"""Text for the terminal: failures and the lines at the end of a session.

A line is a text and the name of a style. :data:`CLICK` and :data:`TERMINAL_WRITER` define the styles.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..analysis.definitions import MetricClass
from ..golden.compare import Row
from ..golden.model import Verdict, find_metric, scoped
from ..units import count_of, printable
from .model import BETTER, CONFIRM, DIFFERENT, STATES, Case, SessionReport, State
from .values import duration, listed, pair, short, title

#: A text without line breaks, and one of "", "bad", "good", "warn", "dim", "bold".
Line = tuple[str, str]
_COLOURS = {"bad": "red", "good": "green", "warn": "yellow"}
#: Styles as arguments of ``click.style`` and ``click.secho``.
CLICK: dict[str, dict[str, Any]] = {
    "": {},
    "dim": {"dim": True},
    "bold": {"bold": True},
    **{style: {"fg": colour} for style, colour in _COLOURS.items()},
}
#: Styles as arguments of ``TerminalWriter.line`` of pytest.
TERMINAL_WRITER: dict[str, dict[str, bool]] = {
    "": {},
    "dim": {"light": True},
    "bold": {"bold": True},
    **{style: {colour: True} for style, colour in _COLOURS.items()},
}

#: Names longer than this are shortened in the middle.
NAME_WIDTH = 60
#: Maximum of metrics in the first line of a failure, and of tests in a fact of the footer.
_METRICS = 4
_TESTS = 10
#: Maximum of tests without golden values that the footer names.
_NAMED = 3
#: Maximum length of a detail in a list of changes.
_DETAIL = 80
#: The time that failures always show.
_ALWAYS = "kernel_time_ns"
_TRACED = (State.GATED, State.TRACED, State.MISSING, State.UPDATED, State.UNCONFIRMED)


def styled(line: Line) -> str:
    """The text with the escape sequences of its style. ``click.echo`` removes them if the output is not a terminal."""
    import click

    text, style = line
    if style and text:
        return click.style(text, **CLICK[style])
    return text


def plain(lines: Iterable[Line]) -> list[str]:
    """Lines without their styles."""
    return [text for text, _ in lines]


def failure_lines(case: Case) -> list[Line]:
    """The lines of a failed comparison: a summary with the changed metrics, a table, the trace to open, and what to do
    next."""
    on = f" on {printable(case.device)}" if case.device else ""
    many = f", {count_of(case.runs, 'run')}" if case.runs > 1 else ""
    texts = [
        f"not verified: {names_shortened(problem)}" for problem in case.problems[:1]
    ] + changes(case.failed_rows)
    lines = [
        (f"cutrace: {', '.join(texts) or 'failed'}", "bad"),
        (f"  {printable(case.name)}{on}{many}", "bold"),
    ]
    lines += [
        (f"  not verified: {printable(problem)}", "bad") for problem in case.problems
    ]
    lines += [(f"  {printable(note)}", "warn") for note in case.notes]
    lines += [(f"  {line}", style) for line, style in table_lines(notable(case.rows))]
    trace = case.artifacts.get("trace.pftrace") or case.artifacts.get("run.bin")
    if trace:
        lines.append((f"  trace     {printable(trace)}", ""))
    lines += [(f"  {line}", "") for line in _remedies(case)]
    return lines


def changes(rows: Sequence[Row]) -> list[str]:
    """The first changed metrics as short texts: ``kernel_launches 10 -> 11 (+ fill)``."""
    texts = [_change(row) for row in rows[:_METRICS]]
    return texts + [f"and {len(rows) - _METRICS:,} more"] * (len(rows) > _METRICS)


def _change(row: Row) -> str:
    golden, now = pair(row.metric, row.golden, row.now)
    name = short(scoped(row.region, title(row.metric)), NAME_WIDTH)
    # Shorten "+ fill x1 (new)" to "+ fill".
    detail = short(
        re.sub(r"( x1)? \((new|gone)\)", "", names_shortened(row.detail)), _DETAIL
    )
    if row.rule == "limit":
        names = detail.removeprefix("over the limit").removeprefix(", ")
        return f"{name} {now} ({f'limit {golden}: {names}' if names else f'limit {golden}'})"
    return f"{name} {golden} -> {now}" + (f" ({detail})" if detail else "")


def notable(rows: Sequence[Row]) -> list[Row]:
    """The rows to show: those that fail or differ, and always the kernel time."""

    def worth(row: Row) -> bool:
        if row.failed or row.verdict in DIFFERENT:
            return True
        metric = find_metric(row.metric)
        if metric is None or metric.kind is not MetricClass.TIME:
            return False
        return (row.verdict is Verdict.AMBIGUOUS and row.gated) or (
            row.metric == _ALWAYS and not row.region
        )

    return [row for row in rows if worth(row)]


def table_lines(
    rows: Sequence[Row], *, head: Sequence[str] = ("metric", "golden", "now", "rule")
) -> list[Line]:
    """A head and a line for each row, with aligned columns: metric, golden value, current value, rule, remark."""
    if not rows:
        return []
    cells = [(*map(printable, head), "")]
    for row in rows:
        name = scoped(row.region, title(row.metric))
        cells.append(
            (
                short(name, NAME_WIDTH),
                *pair(row.metric, row.golden, row.now),
                printable(row.rule),
                remark(row),
            )
        )
    wide = [max(map(len, words)) for words in zip(*cells, strict=True)]
    lines = []
    for metric, golden, now, rule, comment in cells:
        line = f"{metric:<{wide[0]}}   {golden:>{wide[1]}}  {now:>{wide[2]}}   {rule:<{wide[3]}}   {comment}"
        lines.append(line.rstrip())
    return list(zip(lines, ["dim", *map(style_of, rows)], strict=True))


def style_of(row: Row) -> str:
    """The style of a row: "bad" if it fails, "good" if it is better, "warn" if it differs without failing or could not
    be compared."""
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
    return " ".join(filter(None, ["" if implied else row.verdict.value, comment(row)]))


def comment(row: Row) -> str:
    """The detail of a row, and whether it is not gated or does not fail."""
    texts = [names_shortened(row.detail)] if row.detail else []
    if not row.gated:
        texts.append("(not gated)")
    elif (
        row.verdict in (Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW) and not row.failed
    ):
        texts.append("(does not fail)")
    return " ".join(texts)


def names_shortened(text: str) -> str:
    """A sentence in which long names are shortened in the middle."""
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
    lines = [(f"cutrace: {summary(report)}", _mood(report))]
    lines += [(f"  {printable(note)}", "warn") for note in report.notes]
    facts = [*_facts(report, proposed), *(("report", path, "") for path in written)]
    label_width = max((len(label) for label, _, _ in facts), default=0)
    before = ""
    for label, text, style in facts:
        # Reasons begin with a count. Continuation lines are aligned with the words after it.
        match = re.match(r" *[\d,]*  ", text)
        count = match[0] if match else ""
        head = f"  {'' if label == before else label:<{label_width}}  {count}"
        text = text[len(count) :]
        fold = textwrap.TextWrapper(
            width, head, " " * len(head), break_on_hyphens=False
        )
        parts = fold.wrap(text) if width - len(head) >= 20 else []
        lines += [(part, style) for part in parts or [head + text]]
        before = label
    return lines


def summary(report: SessionReport) -> str:
    """The numbers of tests that were traced, gated, unverified, unconfirmed and not traced, and the GPUs."""
    counts = report.counts
    # A traced test may be unverified, because a golden value for its GPU is missing.
    lacking = sum(
        case.state is State.UNVERIFIED and bool(case.values) for case in report.cases
    )
    traced = sum(counts[state] for state in _TRACED) + lacking
    failed = f" ({len(report.drifted):,} failed)" if report.drifted else ""
    if counts[State.UNCONFIRMED]:
        unconfirmed = f"{counts[State.UNCONFIRMED]:,} unconfirmed, "
    else:
        unconfirmed = ""
    on = f" on {', '.join(map(printable, report.devices))}" if report.devices else ""
    return (
        f"{traced:,} traced, {counts[State.GATED]:,} gated{failed}, {counts[State.UNVERIFIED]:,} unverified, "
        f"{unconfirmed}{counts[State.UNTRACED]:,} not traced{on}"
    )


def _mood(report: SessionReport) -> str:
    counts = report.counts
    if report.drifted:
        return "bad"
    if counts[State.UNVERIFIED] or counts[State.MISSING] or counts[State.UNCONFIRMED]:
        return "warn"
    if counts[State.GATED]:
        return "good"
    return "bold"


def _facts(report: SessionReport, proposed: str) -> Iterator[tuple[str, str, str]]:
    """A label, a text and a style for each fact of the footer."""
    counts = report.counts
    yield from _reasons(report, State.UNVERIFIED, "warn")
    # Values that this session wrote from one run are unconfirmed too.
    written = (
        case.change
        for case in report.cases
        if case.state is State.UPDATED and case.change is not None
    )
    count = counts[State.UNCONFIRMED] + sum(
        not change.observed.confirmed for change in written
    )
    if count:
        yield "unconfirmed", f"{count:,}  {CONFIRM}", "warn"
    better = report.better
    if better:
        texts = [
            f"{short(case.name, NAME_WIDTH)}: {', '.join(changes(case.better))}"
            for case in better[:_TESTS]
        ]
        texts += [f"and {len(better) - _TESTS:,} more"] * (len(better) > _TESTS)
        # The first line has the number.
        number = f"{len(better):,}"
        for text in texts:
            yield "better", f"{number}  {text}", "good"
            number = " " * len(number)
    yield from _reasons(report, State.UNTRACED, "")
    missing = [case for case in report.cases if case.state is State.MISSING]
    if missing:
        names = listed([short(case.name, NAME_WIDTH) for case in missing], _NAMED)
        yield "no golden", f"{count_of(len(missing), 'test')}: {names}", "warn"
    count = counts[State.UPDATED]
    if count:
        files = len(
            {
                case.golden
                for case in report.cases
                if case.state is State.UPDATED and case.golden
            }
        )
        where = f" in {count_of(files, 'file')}" if files else ""
        yield (
            "updated",
            f"{count_of(count, 'test')}{where}: review before you commit",
            "",
        )
    if proposed:
        yield (
            "candidates",
            f"{proposed}; to accept them: cutrace golden accept {shlex.quote(proposed)}",
            "",
        )


def top_lines(report: SessionReport, count: int) -> list[Line]:
    """The tests with the most kernel time, for ``--cutrace-top=N``."""
    timed = []
    for case in report.cases:
        value = case.values.get(_ALWAYS)
        if isinstance(value, int) and value > 0:
            timed.append((value, case))
    timed.sort(key=lambda item: (-item[0], item[1].nodeid))
    if not timed or count <= 0:
        return []
    cells = [("kernel time", "kernels", "test")]
    for value, case in timed[:count]:
        launches = case.values.get("kernel_launches")
        cells.append(
            (
                duration(value),
                f"{launches:,}" if isinstance(launches, int) else "-",
                printable(case.nodeid),
            )
        )
    wide = [max(map(len, words)) for words in zip(*cells, strict=True)]
    lines = [
        f"{time:>{wide[0]}}  {launches:>{wide[1]}}  {test}"
        for time, launches, test in cells
    ]
    return [(lines[0], "dim"), *((line, "") for line in lines[1:])]


def _reasons(
    report: SessionReport, state: State, style: str
) -> Iterator[tuple[str, str, str]]:
    reasons = report.reasons(state)
    wide = max((len(f"{count:,}") for count in reasons.values()), default=0)
    for reason, count in reasons.items():
        yield STATES[state][0], f"{count:>{wide},}  {printable(reason)}", style


def _remedies(case: Case) -> Iterator[str]:
    failed = case.failed_rows
    if any(row.rule == "limit" for row in failed):
        yield "if intended: raise the limit in the test's @pytest.mark.gpu_limit"
    judged = [row for row in failed if row.rule != "limit"]
    # An update does not write unreliable numbers.
    if judged and not case.problems:
        # Only --cutrace-update=all replaces values with more memory or slower times.
        if any(row.verdict in (Verdict.WORSE, Verdict.SLOW) for row in judged):
            worse = "=all"
        else:
            worse = ""
        yield f"if intended: pytest --cutrace-update{worse} {shlex.quote(printable(case.nodeid))}"
