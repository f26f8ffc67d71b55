"""Answers of ``cutrace why`` as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...analysis.tables import Table
from ...reports.html import escaped, page, section, sortable, table
from ...reports.tables import cell
from ...reports.values import duration
from . import rules
from .facts import Facts
from .roofline_page import roofline_section
from .rules import Finding
from .why import Answer, KernelChange, Why
from .why_text import (
    about,
    configurations,
    limiters,
    missing,
    notable,
    said,
    time_change,
)

_FOLDER = Path(__file__).parent
#: The width of the bars, which scale with the page, and the height of a bar's line.
_BAR = 300
_LINE = 18
_LABEL = 64


def html(why: Why, source: str) -> str:
    """The page. ``source`` is the names of the captures."""
    notes = _paragraphs([f"{note}." for note in why.notes])
    parts = [_overview(why)]
    for number, answer in enumerate(why.answers):
        parts.append(_answer(number, answer))
    for number, change in enumerate(why.changes):
        parts.append(_change(number, change))
    for number, roof in enumerate(why.rooflines):
        parts.append(roofline_section(number, roof))
    return page(
        "why",
        "cutrace why",
        folder=_FOLDER,
        shared=("charts", "tables"),
        about=escaped(source) + notes,
        main="\n".join(parts),
    )


# The list of kernels


def _overview(why: Why) -> str:
    if why.changes:
        head = (
            "kernel",
            "before",
            "after",
            "change",
            "limiter before",
            "limiter after",
        )
        texts = {"kernel", "limiter before", "limiter after"}
        rows = list(map(_changed_row, why.changes))
    else:
        head = ("kernel", "limiter", "a launch", "share", "launches", "causes")
        texts = {"kernel", "limiter", "causes"}
        rows = list(map(_row, why.answers))
    body = ""
    for number, row in enumerate(rows):
        name, *others = map(escaped, row)
        cells = f'<td class="text name"><div><a href="#k{number}">{name}</a></div></td>'
        for column, word in zip(head[1:], others, strict=True):
            kind = ""
            if column in texts:
                kind = f' class="text {column}"'
            cells += f"<td{kind}>{word}</td>"
        body += f"<tr>{cells}</tr>\n"
    top = ""
    for column in head:
        kind = ""
        if column == "kernel":
            kind = ' class="text name"'
        elif column in texts:
            kind = " class=text"
        top += f"<th scope=col{kind}>{column}</th>"
    whole = f"<div class=scroll><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>"
    return section("Kernels", sortable(whole))


def _row(answer: Answer) -> tuple[str, ...]:
    facts = answer.facts
    limiting = answer.limiting
    causes = [finding.rule for finding in answer.findings if finding is not limiting]
    share = "-"
    if facts.share is not None:
        share = f"{facts.share:.1%}"
    return (
        facts.kernel,
        answer.limiter,
        duration(facts.time),
        share,
        f"{facts.launches:,}",
        ", ".join(causes),
    )


def _changed_row(change: KernelChange) -> tuple[str, ...]:
    share = "-"
    if change.time is not None:
        share = f"{change.time:+.1%}"
    return (
        change.before.facts.kernel,
        duration(change.before.facts.time),
        duration(change.after.facts.time),
        share,
        change.before.limiter,
        change.after.limiter,
    )


# A kernel


def _answer(number: int, answer: Answer) -> str:
    facts = answer.facts
    content = _paragraphs(about(facts))
    findings = ""
    for sentence, remedy in said(answer):
        findings += f"<li><b>{escaped(sentence)}</b><p>{escaped(remedy)}</p></li>"
    content += f"<ol class=findings>{findings}</ol>"
    not_asked = missing(answer)
    if not_asked:
        content += f"<p class=note>{escaped(not_asked)}.</p>"
    content += _bars(facts)
    content += _tables(answer.tables)
    return _section(number, facts.kernel, content)


def _section(number: int, kernel: str, content: str) -> str:
    return f"<section id=k{number}><h2 class=mono>{escaped(kernel)}</h2>\n{content}</section>"


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p class=note>{escaped(line)}</p>" for line in lines)


def _tables(figures: Sequence[Table]) -> str:
    """Tables side by side where there is room."""
    parts = "".join(map(_table, figures))
    return f"<div class=parts>{parts}</div>"


def _table(made: Table) -> str:
    classes = {column.name: "text" for column in made.columns if column.is_text}
    return f"<div>{_titled(made, classes)}</div>"


def _titled(made: Table, classes: Mapping[str, str]) -> str:
    """A table with its title. ``classes`` has the CSS classes of columns."""
    head = [column.name for column in made.columns]
    rows = [list(map(cell, row, made.columns)) for row in made.rows]
    return f"<h3>{escaped(made.title)}</h3>{table(head, rows, classes)}"


def _peaks(facts: Facts) -> Mapping[str, float]:
    """Throughputs as percentages of their peaks."""
    peaks = {}
    for name, metric in (("compute", rules.COMPUTE), ("memory", rules.MEMORY)):
        if metric in facts.values:
            peaks[name] = facts.values[metric]
    return peaks | rules.memory_units(facts)


def _bars(facts: Facts) -> str:
    """A bar for each throughput, with lines at the thresholds of the limiter."""
    peaks = _peaks(facts)
    if not peaks:
        return ""
    height = _LINE * len(peaks)
    bars = "".join(_bar_lines(peaks))
    lines = ""
    for threshold in (rules.LATENCY_BOUND, rules.NEAR_PEAK):
        left = _LABEL + _BAR * threshold / 100
        lines += f'<path class=threshold d="M{left:.1f} 0V{height}"/>'
    width = _LABEL + _BAR + 44
    return (
        f'<svg class=peaks viewBox="0 0 {width} {height}" role="img" aria-label="Throughputs, in percent">'
        f"{bars}{lines}</svg>"
    )


def _bar_lines(peaks: Mapping[str, float]) -> Iterator[str]:
    for number, (name, percent) in enumerate(peaks.items()):
        top = number * _LINE
        width = _BAR * min(percent, 100) / 100
        kind = "unit"
        if name in ("compute", "memory"):
            kind = "whole"
        base = top + _LINE - 5
        yield f'<text x="{_LABEL - 6}" y="{base}" text-anchor="end">{name}</text>'
        yield f'<rect class={kind} x="{_LABEL}" y="{top + 3}" width="{width:.1f}" height="{_LINE - 6}"/>'
        yield f'<text x="{_LABEL + width + 5:.1f}" y="{base}">{percent:.0f} %</text>'


# A change


def _change(number: int, change: KernelChange) -> str:
    before, after = limiters(change)
    lines = f"<dt>before<dd>{escaped(before)}<dt>after<dd><b>{escaped(after)}</b>"
    lines += _findings("gone", change.gone)
    lines += _findings("new", change.new)
    content = f"<p><b>{escaped(time_change(change))}</b></p>"
    content += _paragraphs(list(configurations(change)))
    content += f"<dl class=change>{lines}</dl>"
    figures = notable(change)
    if figures.rows:
        content += sortable(_titled(figures, {"metric": "text name"}))
    return _section(number, change.before.facts.kernel, content)


def _findings(word: str, findings: Sequence[Finding]) -> str:
    lines = ""
    for finding in findings:
        remedy = ""
        if word == "new":
            remedy = f"<p>{escaped(finding.remedy)}</p>"
        lines += f"<dt class={word}>{word}<dd>{escaped(finding.sentence)}{remedy}"
    return lines
