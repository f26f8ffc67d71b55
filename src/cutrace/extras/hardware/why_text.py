"""Answers of ``cutrace why`` as text for a terminal, as Markdown, and as objects for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ...reports import markdown as md
from ...reports.tables import key, no_style
from ...reports.tables import render as tables
from ...reports.text import styled
from ...reports.values import duration, short, size
from ...units import count_of
from .facts import Caches, Facts
from .why import SET, Answer

#: The width of text without a terminal.
_WIDTH = 100
_NAME = 160
_CACHES = {
    Caches.UNKNOWN: "caches not controlled",
    Caches.FLUSHED: "caches flushed before each pass",
    Caches.KEPT: "caches kept",
}


def about(facts: Facts) -> list[str]:
    """What was measured: time and launches, configuration, GPU and caches."""
    time = f"{duration(facts.time)} a launch"
    if facts.total:
        time += f", {facts.share:.1%} of the time of all kernels".replace("%", " %")
    launches = count_of(facts.launches, "launch")
    if facts.counted < facts.launches:
        launches += f", {facts.counted:,} counted"
    lines = [f"{time}; {launches}"]
    shape = facts.shape
    if shape is not None:
        parts = [
            f"grid {_extent(shape.grid)}",
            f"block {_extent(shape.block)}",
            f"{shape.registers} registers a thread",
        ]
        if shape.shared:
            parts.append(f"{size(shape.shared)} of shared memory a block")
        lines.append(", ".join(parts))
    lines.append(f"{facts.gpu.name or 'unknown GPU'}; {_CACHES[facts.caches]}")
    return lines


def _extent(extent: tuple[int, int, int]) -> str:
    """``4096``, ``64x8``: without dimensions of 1 at the end."""
    x, y, z = extent
    if z > 1:
        return f"{x}x{y}x{z}"
    if y > 1:
        return f"{x}x{y}"
    return f"{x}"


def missing(answer: Answer) -> str:
    """A sentence on the rules that could not be asked, "" if there are none."""
    if not answer.not_asked:
        return ""
    names = ", ".join(rule.name for rule in answer.not_asked)
    facts = answer.facts
    lacking = [rule for rule in answer.not_asked if rule.lacks(facts)]
    if lacking:
        reason = f"their metrics are in the set {SET}: profile with --metrics {SET}"
    else:
        reason = (
            "the capture lacks the launch configuration or the attributes of the GPU"
        )
    return f"Not asked: {names}; {reason}"


def said(answer: Answer) -> Iterator[tuple[str, str]]:
    """The sentence and the remedy of each finding. Causes have their share of the time. A remedy is given once."""
    given = set()
    for number, finding in enumerate(answer.findings):
        sentence = finding.sentence
        if number:
            sentence += f" (up to {100 * finding.share:.0f} % of the time)"
        remedy = ""
        if finding.remedy not in given:
            remedy = finding.remedy
        given.add(remedy)
        yield sentence, remedy
    if not answer.findings:
        yield "nothing stands out", ""


def render(answers: Sequence[Answer], form: str, width: int | None) -> Iterator[str]:
    """The blocks of kernels as ``table`` for a terminal of this ``width``, or as ``markdown``."""
    if form == "markdown":
        return markdown(answers)
    return text(answers, width)


# Text


def text(answers: Sequence[Answer], width: int | None) -> Iterator[str]:
    """The blocks of kernels for a terminal of this width; None is no terminal."""
    for number, answer in enumerate(answers):
        if number:
            yield "\n"
        yield from block(answer, width)


def block(answer: Answer, width: int | None) -> Iterator[str]:
    """The block of a kernel, in pieces of text with styles."""
    wide = width or _WIDTH
    facts = answer.facts
    yield styled((short(facts.kernel, wide), "bold")) + "\n"
    for line in about(facts):
        yield from wrapped(line, wide, "  ", "dim")
    style = "bold"
    for sentence, remedy in said(answer):
        yield from wrapped(sentence, wide, "  * ", style)
        yield from wrapped(remedy, wide, "    ", "dim")
        style = ""
    not_asked = missing(answer)
    if not_asked:
        yield from wrapped(not_asked, wide, "  ", "warn")
    for table in answer.tables:
        yield "\n"
        for piece in tables([table], "table", width=wide - 2, style=no_style):
            yield textwrap.indent(piece, "  ") if piece.endswith("\n") else piece


def wrapped(text: str, width: int, first: str, style: str = "") -> Iterator[str]:
    """A paragraph whose lines are indented as far as the text of the first one."""
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=" " * len(first)
    )
    for line in lines:
        yield styled((line, style)) + "\n"


# Markdown


def markdown(answers: Sequence[Answer]) -> Iterator[str]:
    """The blocks of kernels in GitHub's Markdown, with folded tables."""
    for answer in answers:
        facts = answer.facts
        yield f"## {md.code(facts.kernel, _NAME)}\n\n"
        for sentence, remedy in said(answer):
            line = f"* {md.text(sentence)}"
            if remedy:
                line += f"  \n  {md.text(remedy)}"
            yield line + "\n"
        yield "\n"
        lines = about(facts)
        not_asked = missing(answer)
        if not_asked:
            lines.append(not_asked)
        for line in lines:
            yield f"{md.text(line)}  \n"
        yield "\n<details><summary>Figures</summary>\n\n"
        yield from tables(answer.tables, "markdown")
        yield "\n</details>\n\n"


# JSON


def objects(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """The answers as JSON values: schemas/why.json."""
    return [_object(answer) for answer in answers]


def _object(answer: Answer) -> dict[str, Any]:
    facts = answer.facts
    shape = None
    if facts.shape is not None:
        shape = asdict(facts.shape)
    figures = {}
    for table in answer.tables:
        keys = list(map(key, table.columns))
        rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
        figures[table.name] = rows
    return {
        "kernel": facts.kernel,
        "gpu": facts.gpu.name,
        "launch": shape,
        "launches": facts.launches,
        "counted": facts.counted,
        "time_ns": facts.time,
        "total_ns": facts.total,
        "share": facts.share,
        "caches": facts.caches.name.lower(),
        "limiter": answer.limiter,
        "findings": [asdict(finding) for finding in answer.findings],
        "not_asked": [rule.name for rule in answer.not_asked],
        "tables": figures,
        "values": dict(facts.values),
    }
