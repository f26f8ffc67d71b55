"""Answers of ``cutrace why`` as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...analysis.tables import Cell, Table, columns_of
from ...reports.html import escaped, figures, page, section, sortable, table
from ...reports.tables import cell
from . import rules
from .facts import Facts
from .roofline_page import roofline_section
from .why import Why
from .why_text import KernelBlock, blocks

_FOLDER = Path(__file__).parent
#: A table with more rows is long.
_LONG = 20


def html(why: Why, source: str) -> str:
    """The page. ``source`` is the names of the captures."""
    notes = _paragraphs([f"{note}." for note in why.notes])
    number_of_kernels = len(why.answers) + len(why.changes)
    parts = [section("Kernels", figures(_overview(why), number_of_kernels, ""))]
    for number, block in enumerate(blocks(why)):
        parts.append(_section(number, block))
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


def _overview(why: Why) -> Table:
    """The list of kernels. The script of the page links each to its section."""
    columns = (
        "kernel: text, limiter: text, a launch: ns, share: 1, launches, causes: text"
    )
    rows: list[tuple[Cell, ...]] = []
    for answer in why.answers:
        facts = answer.facts
        causes = [
            finding.rule
            for finding in answer.findings
            if finding is not answer.limiting
        ]
        rows.append(
            (
                facts.kernel,
                answer.limiter,
                facts.time,
                facts.share,
                facts.launches,
                ", ".join(causes),
            )
        )
    if why.changes:
        columns = "kernel: text, before: ns, after: ns, change: 1, limiter before: text, limiter after: text"
    for change in why.changes:
        before = change.before
        after = change.after
        rows.append(
            (
                before.facts.kernel,
                before.facts.time,
                after.facts.time,
                change.time,
                before.limiter,
                after.limiter,
            )
        )
    return Table("kernels", "Kernels", columns_of(columns), rows)


# A kernel


def _section(number: int, block: KernelBlock) -> str:
    content = _paragraphs(block.about)
    findings = ""
    for line in block.lines:
        sentence = f"<b>{escaped(line.sentence)}</b>"
        findings += (
            f'<li class="{line.style}">{sentence}<p>{escaped(line.remedy)}</p></li>'
        )
    content += f"<ol class=findings>{findings}</ol>"
    if block.note:
        content += f"<p class=note>{escaped(block.note)}.</p>"
    if block.facts is not None:
        content += _bars(block.facts)
    parts = "".join(map(_table, block.tables))
    content += f"<div class=parts>{parts}</div>"
    return f"<section id=k{number}><h2 class=mono>{escaped(block.kernel)}</h2>\n{content}</section>"


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p class=note>{escaped(line)}</p>" for line in lines)


def _table(made: Table) -> str:
    """A table with its title. Readers sort and filter a long one."""
    head = [column.name for column in made.columns]
    rows = [list(map(cell, row, made.columns)) for row in made.rows]
    classes = {column.name: "text" for column in made.columns if column.is_text}
    content = table(head, rows, classes)
    if len(rows) > _LONG:
        content = sortable(content)
    return f"<div><h3>{escaped(made.title)}</h3>{content}</div>"


def _peaks(facts: Facts) -> Mapping[str, float]:
    """Throughputs as percentages of their peaks."""
    peaks = {}
    for name, metric in (("compute", rules.COMPUTE), ("memory", rules.MEMORY)):
        if metric in facts.values:
            peaks[name] = facts.values[metric]
    return peaks | rules.memory_units(facts)


def _bars(facts: Facts) -> str:
    """A bar for each throughput, with lines at the thresholds of the limiter."""
    thresholds = f'<path d="M{rules.LATENCY_BOUND:g} 0V1M{rules.NEAR_PEAK:g} 0V1"/>'
    bars = ""
    for name, percent in _peaks(facts).items():
        bar = f'<rect width="{min(percent, 100):.1f}" height="1"/>'
        picture = f'<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">{bar}{thresholds}</svg>'
        bars += f"<dt>{name}</dt><dd>{picture}{percent:.0f} %</dd>"
    return bars and f"<dl class=peaks>{bars}</dl>"
