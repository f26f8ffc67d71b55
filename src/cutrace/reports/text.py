"""What the terminal shows: the text of a failure and the lines at the end of a session. Plain text, without colours."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ..analysis.metrics import Gate
from ..golden import Row, Verdict
from ..golden.model import metric, scoped
from ..units import count_of, printable
from .model import Case, Report, State
from .values import duration, pair, short, title

#: Names longer than this are shortened in their middle.
NAME_WIDTH = 60
#: A time that a failure always shows.
_ALWAYS = "kernel_time_ns"
_TRACED = (State.GATED, State.TRACED, State.MISSING, State.UPDATED)


def failure(case: Case, *, update: str = "pytest --cutrace --cutrace-update") -> str:
    """What a failed comparison says: the metrics that changed, the trace to open, and what to do about it."""
    on = f"  on {printable(case.gpu)}" if case.gpu else ""
    many = f", {count_of(case.runs, 'run')}" if case.runs > 1 else ""
    lines = [f"cutrace: {printable(case.name)}{on}{many}"]
    lines += [f"  not verified: {printable(problem)}" for problem in case.problems]
    lines += [f"  {printable(note)}" for note in case.notes]
    lines += [f"  {line}" for line in table(told(case.rows))]
    if trace := case.artifacts.get("trace.pftrace") or case.artifacts.get("run.bin"):
        lines.append(f"  trace     {printable(trace)}")
    lines += [f"  {line}" for line in _remedies(case, update)]
    return "\n".join(lines)


def told(rows: Sequence[Row]) -> list[Row]:
    """The rows worth a line: what failed or differs, and the kernel time whatever became of it."""

    def worth(row: Row) -> bool:
        if row.failed or row.verdict not in (Verdict.SAME, Verdict.NEW, Verdict.UNSTABLE, Verdict.AMBIGUOUS):
            return True
        found = metric(row.metric)
        if found is None or found.gate is not Gate.TIME:
            return False
        return (row.verdict is Verdict.AMBIGUOUS and row.gated) or (row.metric == _ALWAYS and not row.region)

    return [row for row in rows if worth(row)]


def table(rows: Sequence[Row], *, head: tuple[str, str, str, str] = ("metric", "golden", "now", "rule")) -> list[str]:
    """One line a row under a headline, columns aligned: metric, golden value, value now, rule, what there is to say."""
    if not rows:
        return []
    cells = [(*map(printable, head), "")]
    for row in rows:
        name = scoped(row.region, title(row.metric))
        cells.append(
            (short(name, NAME_WIDTH), *pair(row.metric, row.golden, row.now), printable(row.rule), remark(row))
        )
    wide = [max(len(line[column]) for line in cells) for column in range(4)]
    return [
        f"{a:<{wide[0]}}   {b:>{wide[1]}}  {c:>{wide[2]}}   {d:<{wide[3]}}   {e}".rstrip() for a, b, c, d, e in cells
    ]


def remark(row: Row) -> str:
    """What there is to say of a row: the verdict, unless the detail of a change says more, and whether it counts."""
    plainly = row.verdict is Verdict.CHANGED and row.detail and row.failed
    return " ".join(filter(None, ["" if plainly else row.verdict.value, said(row)]))


def said(row: Row) -> str:
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


def footer(report: Report, *, written: Sequence[str] = (), proposed: str = "") -> list[str]:
    """The lines at the end of a session: how many tests were traced, gated, unverified and not traced, and why.

    ``written`` are reports that were made, ``proposed`` the folder with candidates of missing golden files.
    """
    counts = report.counts
    drifted = len(report.drifted)
    traced = sum(counts[state] for state in _TRACED)
    failed = f" ({drifted:,} failed)" if drifted else ""
    on = f" on {', '.join(map(printable, report.gpus))}" if report.gpus else ""
    lines = [
        f"cutrace: {traced:,} traced, {counts[State.GATED]:,} gated{failed}, {counts[State.UNVERIFIED]:,} unverified, "
        f"{counts[State.UNTRACED]:,} not traced{on}"
    ]
    lines += [f"  {printable(note)}" for note in report.notes]
    facts = [
        *_reasons(report, State.UNVERIFIED, "unverified"),
        *_reasons(report, State.UNTRACED, "not traced"),
    ]
    if counts[State.MISSING]:
        where = f": candidates are in {proposed}; cutrace golden accept {shlex.quote(proposed)}" if proposed else ""
        facts.append(("no golden", f"{count_of(counts[State.MISSING], 'test')}{where}"))
    if counts[State.UPDATED]:
        facts.append(("golden", f"{count_of(counts[State.UPDATED], 'file')} written: review before you commit"))
    facts += [("report", path) for path in written]
    width = max((len(label) for label, _ in facts), default=0)
    # A label that is the same as the one above it is not said twice.
    before = ""
    for label, words in facts:
        lines.append(f"  {label if label != before else '':<{width}}  {printable(words)}")
        before = label
    return lines


def top(report: Report, count: int) -> list[str]:
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
    return [f"{a:>{wide[0]}}  {b:>{wide[1]}}  {c}" for a, b, c in cells]


def _reasons(report: Report, state: State, label: str) -> Iterator[tuple[str, str]]:
    for reason, count in report.reasons(state).items():
        yield label, f"{count:,}  {printable(reason)}"


def _remedies(case: Case, update: str) -> Iterator[str]:
    failed = [row for row in case.rows if row.failed]
    if any(row.rule == "limit" for row in failed):
        yield "if intended: raise the limit in the test's @pytest.mark.gpu_limit"
    judged = [row for row in failed if row.rule != "limit"]
    # An update writes nothing of numbers that cannot be trusted.
    if judged and not case.problems:
        # More memory and slower times replace older values only when that is asked for.
        worse = "=all" if any(row.verdict in (Verdict.WORSE, Verdict.SLOW) for row in judged) else ""
        yield f"if intended: {update}{worse} {shlex.quote(printable(case.nodeid))}"
