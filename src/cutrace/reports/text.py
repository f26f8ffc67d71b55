"""What the terminal shows: the text of a failure and the lines at the end of a session.

A line is a text and the name of a style. :data:`CLICK` and :data:`TERMINAL_WRITER` say what the styles look like.
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
from .model import BETTER, CONFIRM, DIFFERENT, STATES, Case, Report, State
from .values import duration, listed, pair, short, title

#: A text without line breaks, and one of "", "bad", "good", "warn", "dim", "bold".
Line = tuple[str, str]
_COLOURS = {"bad": "red", "good": "green", "warn": "yellow"}
#: Styles as keywords of ``click.style`` and ``click.secho``.
CLICK: dict[str, dict[str, Any]] = {
    "": {},
    "dim": {"dim": True},
    "bold": {"bold": True},
    **{style: {"fg": colour} for style, colour in _COLOURS.items()},
}
#: Styles as keywords of ``TerminalWriter.line`` of pytest.
TERMINAL_WRITER: dict[str, dict[str, bool]] = {
    "": {},
    "dim": {"light": True},
    "bold": {"bold": True},
    **{style: {colour: True} for style, colour in _COLOURS.items()},
}

#: Names longer than this are shortened in their middle.
NAME_WIDTH = 60
#: Metrics that the first line of a failure names, and tests that a fact of the footer names.
_METRICS, _TESTS = 4, 10
#: Tests without golden values that the footer names.
_NAMED = 3
#: Characters of a detail in a list of changes.
_DETAIL = 80
#: A time that a failure always shows.
_ALWAYS = "kernel_time_ns"
_TRACED = (State.GATED, State.TRACED, State.MISSING, State.UPDATED, State.UNCONFIRMED)


def styled(line: Line) -> str:
    """The text with the escape sequences of its style. ``click.echo`` removes them where they do not belong."""
    import click

    text, style = line
    return click.style(text, **CLICK[style]) if style and text else text


def plain(lines: Iterable[Line]) -> list[str]:
    """Lines without their styles."""
    return [text for text, _ in lines]


def failure_lines(case: Case) -> list[Line]:
    """What a failed comparison says: the metrics that changed, the trace to open, and what to do about it. The first
    line is a summary: it names the metrics."""
    on = f" on {printable(case.device)}" if case.device else ""
    many = f", {count_of(case.runs, 'run')}" if case.runs > 1 else ""
    words = [f"not verified: {names_shortened(problem)}" for problem in case.problems[:1]] + changes(case.failed_rows)
    lines = [(f"cutrace: {', '.join(words) or 'failed'}", "bad"), (f"  {printable(case.name)}{on}{many}", "bold")]
    lines += [(f"  not verified: {printable(problem)}", "bad") for problem in case.problems]
    lines += [(f"  {printable(note)}", "warn") for note in case.notes]
    lines += [(f"  {line}", style) for line, style in table_lines(notable(case.rows))]
    if trace := case.artifacts.get("trace.pftrace") or case.artifacts.get("run.bin"):
        lines.append((f"  trace     {printable(trace)}", ""))
    lines += [(f"  {line}", "") for line in _remedies(case)]
    return lines


def changes(rows: Sequence[Row]) -> list[str]:
    """Each changed metric in a few words, of many the first: ``kernel_launches 10 -> 11 (+ fill)``."""
    words = [_change(row) for row in rows[:_METRICS]]
    return words + [f"and {len(rows) - _METRICS:,} more"] * (len(rows) > _METRICS)


def _change(row: Row) -> str:
    golden, now = pair(row.metric, row.golden, row.now)
    name = short(scoped(row.region, title(row.metric)), NAME_WIDTH)
    # "+ fill x1 (new)" is "+ fill" here.
    detail = short(re.sub(r"( x1)? \((new|gone)\)", "", names_shortened(row.detail)), _DETAIL)
    if row.rule == "limit":
        names = detail.removeprefix("over the limit").removeprefix(", ")
        return f"{name} {now} ({f'limit {golden}: {names}' if names else f'limit {golden}'})"
    return f"{name} {golden} -> {now}" + (f" ({detail})" if detail else "")


def notable(rows: Sequence[Row]) -> list[Row]:
    """The rows worth a line: what failed or differs, and the kernel time whatever became of it."""

    def worth(row: Row) -> bool:
        if row.failed or row.verdict in DIFFERENT:
            return True
        found = find_metric(row.metric)
        if found is None or found.kind is not MetricClass.TIME:
            return False
        return (row.verdict is Verdict.AMBIGUOUS and row.gated) or (row.metric == _ALWAYS and not row.region)

    return [row for row in rows if worth(row)]


def table_lines(rows: Sequence[Row], *, head: Sequence[str] = ("metric", "golden", "now", "rule")) -> list[Line]:
    """One line a row under a headline, columns aligned: metric, golden value, value now, rule, remark."""
    if not rows:
        return []
    cells = [(*map(printable, head), "")]
    for row in rows:
        name = scoped(row.region, title(row.metric))
        cells.append(
            (short(name, NAME_WIDTH), *pair(row.metric, row.golden, row.now), printable(row.rule), remark(row))
        )
    wide = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = [
        f"{a:<{wide[0]}}   {b:>{wide[1]}}  {c:>{wide[2]}}   {d:<{wide[3]}}   {e}".rstrip() for a, b, c, d, e in cells
    ]
    return list(zip(lines, ["dim", *map(style_of, rows)], strict=True))


def style_of(row: Row) -> str:
    """The style of a row: bad where it fails, good where it did less, warn where it differs and does not fail, or could
    not be compared."""
    if row.failed:
        return "bad"
    if row.verdict in BETTER:
        return "good"
    return "warn" if row.verdict in (*DIFFERENT, Verdict.UNVERIFIED) else ""


def remark(row: Row) -> str:
    """What there is to say of a row: the verdict, unless the detail of a change says more, and whether it counts."""
    plainly = row.verdict is Verdict.CHANGED and row.detail and row.failed
    return " ".join(filter(None, ["" if plainly else row.verdict.value, comment(row)]))


def comment(row: Row) -> str:
    """What there is to say of a row besides its verdict."""
    words = [names_shortened(row.detail)] if row.detail else []
    if not row.gated:
        words.append("(not gated)")
    elif row.verdict in (Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW) and not row.failed:
        words.append("(does not fail)")
    return " ".join(words)


def names_shortened(text: str) -> str:
    """A sentence in which long names lack their middle."""
    return re.sub(r"\S+", lambda match: short(match[0], NAME_WIDTH), printable(text))


def footer_lines(report: Report, *, written: Sequence[str] = (), proposed: str = "", width: int = 0) -> list[Line]:
    """The lines at the end of a session: how many tests were traced, gated, unverified and not traced, and why.

    ``written`` are reports that were made, ``proposed`` the folder with candidates for golden files ("" if there are
    none). Facts are wrapped to ``width`` columns, 0 for lines of any length.
    """
    lines = [(f"cutrace: {summary(report)}", _mood(report))]
    lines += [(f"  {printable(note)}", "warn") for note in report.notes]
    facts = [*_facts(report, proposed), *(("report", path, "") for path in written)]
    label_width = max((len(label) for label, _, _ in facts), default=0)
    before = ""
    for label, words, style in facts:
        # Reasons begin with a count: their further lines stand under the words behind it.
        count = found[0] if (found := re.match(r" *[\d,]*  ", words)) else ""
        head, words = f"  {'' if label == before else label:<{label_width}}  {count}", words[len(count) :]
        fold = textwrap.TextWrapper(width, head, " " * len(head), break_on_hyphens=False)
        parts = fold.wrap(words) if width - len(head) >= 20 else []
        lines += [(part, style) for part in parts or [head + words]]
        before = label
    return lines


def summary(report: Report) -> str:
    """How many tests were traced, gated, unverified, unconfirmed and not traced, and on what."""
    counts = report.counts
    # A test that was traced can still lack a golden value for its GPU.
    lacking = sum(case.state is State.UNVERIFIED and bool(case.values) for case in report.cases)
    traced = sum(counts[state] for state in _TRACED) + lacking
    failed = f" ({len(report.drifted):,} failed)" if report.drifted else ""
    unconfirmed = f"{counts[State.UNCONFIRMED]:,} unconfirmed, " if counts[State.UNCONFIRMED] else ""
    on = f" on {', '.join(map(printable, report.devices))}" if report.devices else ""
    return (
        f"{traced:,} traced, {counts[State.GATED]:,} gated{failed}, {counts[State.UNVERIFIED]:,} unverified, "
        f"{unconfirmed}{counts[State.UNTRACED]:,} not traced{on}"
    )


def _mood(report: Report) -> str:
    counts = report.counts
    if report.drifted:
        return "bad"
    if counts[State.UNVERIFIED] or counts[State.MISSING] or counts[State.UNCONFIRMED]:
        return "warn"
    return "good" if counts[State.GATED] else "bold"


def _facts(report: Report, proposed: str) -> Iterator[tuple[str, str, str]]:
    """A label, words and a style for each fact of the footer."""
    counts = report.counts
    yield from _reasons(report, State.UNVERIFIED, "warn")
    # Those that this session wrote of one run that could not be repeated are unconfirmed too.
    written = (case.change for case in report.cases if case.state is State.UPDATED and case.change is not None)
    if count := counts[State.UNCONFIRMED] + sum(not change.observed.confirmed for change in written):
        yield "unconfirmed", f"{count:,}  {CONFIRM}", "warn"
    if better := report.better:
        words = [f"{short(case.name, NAME_WIDTH)}: {', '.join(changes(case.better))}" for case in better[:_TESTS]]
        words += [f"and {len(better) - _TESTS:,} more"] * (len(better) > _TESTS)
        # The first line says how many there are.
        number = f"{len(better):,}"
        yield from (("better", f"{' ' * len(number) if at else number}  {w}", "good") for at, w in enumerate(words))
    yield from _reasons(report, State.UNTRACED, "")
    if missing := [case for case in report.cases if case.state is State.MISSING]:
        names = listed([short(case.name, NAME_WIDTH) for case in missing], _NAMED)
        yield "no golden", f"{count_of(len(missing), 'test')}: {names}", "warn"
    if count := counts[State.UPDATED]:
        files = len({case.golden for case in report.cases if case.state is State.UPDATED and case.golden})
        where = f" in {count_of(files, 'file')}" if files else ""
        yield "updated", f"{count_of(count, 'test')}{where}: review before you commit", ""
    if proposed:
        yield "candidates", f"{proposed}; to take them over: cutrace golden accept {shlex.quote(proposed)}", ""


def top_lines(report: Report, count: int) -> list[Line]:
    """The tests with the most kernel time, for ``--cutrace-top=N``."""
    timed = [(value, case) for case in report.cases if isinstance(value := case.values.get(_ALWAYS), int) and value > 0]
    timed.sort(key=lambda item: (-item[0], item[1].nodeid))
    if not timed or count <= 0:
        return []
    cells = [("kernel time", "kernels", "test")]
    for value, case in timed[:count]:
        launches = case.values.get("kernel_launches")
        cells.append((duration(value), f"{launches:,}" if isinstance(launches, int) else "-", printable(case.nodeid)))
    wide = [max(len(line[column]) for line in cells) for column in range(2)]
    return [(f"{a:>{wide[0]}}  {b:>{wide[1]}}  {c}", "" if at else "dim") for at, (a, b, c) in enumerate(cells)]


def _reasons(report: Report, state: State, style: str) -> Iterator[tuple[str, str, str]]:
    reasons = report.reasons(state)
    wide = max((len(f"{count:,}") for count in reasons.values()), default=0)
    for reason, count in reasons.items():
        yield STATES[state][0], f"{count:>{wide},}  {printable(reason)}", style


def _remedies(case: Case) -> Iterator[str]:
    failed = case.failed_rows
    if any(row.rule == "limit" for row in failed):
        yield "if intended: raise the limit in the test's @pytest.mark.gpu_limit"
    judged = [row for row in failed if row.rule != "limit"]
    # An update writes nothing of numbers that cannot be trusted.
    if judged and not case.problems:
        # More memory and slower times replace older values only when that is asked for.
        worse = "=all" if any(row.verdict in (Verdict.WORSE, Verdict.SLOW) for row in judged) else ""
        yield f"if intended: pytest --cutrace-update{worse} {shlex.quote(printable(case.nodeid))}"
