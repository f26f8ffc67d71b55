"""Answers of ``cutrace why`` as blocks for people, as text for a terminal, as Markdown, and as JSON objects."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from ...analysis.tables import Table
from ...reports import markdown as md
from ...reports.tables import no_style, notes, row_objects
from ...reports.tables import render as tables
from ...reports.text import styled
from ...reports.values import duration, short, size
from ...units import count_of
from .facts import Facts
from .roofline import Roofline
from .why import Answer, KernelChange, Why

#: The width of text without a terminal.
_WIDTH = 100
_NAME = 160
_CACHES = {
    "unknown": "caches unknown or different by launch",
    "flushed": "caches flushed before each pass",
    "kept": "caches kept",
}


def about(facts: Facts) -> list[str]:
    """Lines on the measured kernel: time and launches, the full name, launch configuration, GPU and caches."""
    time = f"{duration(facts.time)} a launch"
    if facts.total and facts.share is not None:
        time += f", {facts.share:.1%} of the time of all kernels".replace("%", " %")
    launches = count_of(facts.launches, "launch")
    if facts.counted < facts.launches:
        launches += f", {facts.counted:,} counted"
    lines = [f"{time}; {launches}"]
    if facts.full_name not in ("", facts.kernel):
        lines.append(short(facts.full_name, _NAME))
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
    lines.append(_setting(facts))
    return lines


def _setting(facts: Facts) -> str:
    return f"{facts.gpu.name or 'unknown GPU'}; {_CACHES[facts.caches]}"


def _extent(extent: tuple[int, int, int]) -> str:
    """Format an extent without trailing dimensions of 1: ``4096``, ``64x8``."""
    x, y, z = extent
    if z > 1:
        return f"{x}x{y}x{z}"
    if y > 1:
        return f"{x}x{y}"
    return f"{x}"


def missing(answer: Answer) -> str:
    """A sentence on the rules without their metrics, "" if there are none."""
    if not answer.not_asked:
        return ""
    by_reason: dict[str, list[str]] = {}
    for rule in answer.not_asked:
        by_reason.setdefault(rule.lacks(answer.facts), []).append(rule.name)
    parts = []
    for reason, names in by_reason.items():
        parts.append(f"{', '.join(names)} ({reason})")
    return f"Not asked: {'; '.join(parts)}"


@dataclass(frozen=True)
class BlockLine:
    """A sentence of a block, its ``remedy``, and its ``style`` in text."""

    sentence: str
    remedy: str = ""
    style: str = ""


@dataclass(frozen=True)
class KernelBlock:
    """What people see of a kernel, or of a change of it: ``lines`` with findings, lines ``about`` it, a ``note`` on
    missing metrics, and ``tables`` of figures. ``facts`` are None for a change."""

    kernel: str
    about: Sequence[str]
    lines: Sequence[BlockLine]
    tables: Sequence[Table]
    note: str = ""
    facts: Facts | None = None


def blocks(why: Why) -> list[KernelBlock]:
    """The blocks of all answers and changes."""
    return [*map(block, why.answers), *map(change_block, why.changes)]


def block(answer: Answer) -> KernelBlock:
    """The block of a kernel. Sentences on causes give their share of the time. A repeated remedy is left out."""
    facts = answer.facts
    lines = []
    given = set()
    style = "bold"
    for finding in answer.findings:
        sentence = finding.sentence
        if finding is not answer.limiting:
            sentence += f" (up to {100 * finding.share:.0f} % of the time)"
        remedy = ""
        if finding.remedy not in given:
            remedy = finding.remedy
        given.add(remedy)
        lines.append(BlockLine(sentence, remedy, style))
        style = ""
    if not lines:
        lines.append(BlockLine("nothing stands out in these metrics", style=style))
    return KernelBlock(
        facts.kernel,
        about(facts),
        lines,
        answer.tables,
        missing(answer),
        facts,
    )


def change_block(change: KernelChange) -> KernelBlock:
    """The block of a kernel before and after a change."""
    style = ""
    if change.time is not None:
        style = "good" if change.time < 0 else "bad"
    lines = [
        BlockLine(time_change(change), style=style),
        BlockLine(f"before: {_limiter(change.before)}"),
        BlockLine(f"after: {_limiter(change.after)}", style="bold"),
    ]
    lines += [BlockLine(f"gone: {one.sentence}", style="good") for one in change.gone]
    lines += [
        BlockLine(f"new: {one.sentence}", one.remedy, "bad") for one in change.new
    ]
    tables = [table for table in [notable(change)] if table.rows]
    return KernelBlock(
        change.before.facts.kernel,
        list(configurations(change)),
        lines,
        tables,
    )


def render(why: Why, form: str, width: int | None) -> Iterator[str]:
    """The blocks of kernels in the format ``table``, for a terminal of this ``width``, or ``markdown``."""
    if form == "markdown":
        return markdown(why)
    return text(why, width)


def _limiter(answer: Answer) -> str:
    if answer.limiting is None:
        return "unknown"
    return answer.limiting.sentence


def time_change(change: KernelChange) -> str:
    """``34.2us -> 20.1us a launch (-41.2 %)``."""
    before = duration(change.before.facts.time)
    after = duration(change.after.facts.time)
    line = f"{before} -> {after} a launch"
    if change.time is not None:
        line += f" ({100 * change.time:+.1f} %)"
    return line


def configurations(change: KernelChange) -> Iterator[str]:
    """The full name, the launch configuration, and GPU and caches. Lines that differ are given before and after the
    change."""
    before = about(change.before.facts)[1:]
    after = about(change.after.facts)[1:]
    for old, new in zip_longest(before, after, fillvalue=""):
        if old == new:
            yield old
        else:
            yield f"{old} -> {new}"
    if change.before.facts.caches != change.after.facts.caches:
        yield (
            "the caches were in different states: bytes and throughputs of DRAM and L2 do not compare"
        )


def notable(change: KernelChange) -> Table:
    """The table of values that changed by 1 % or more."""
    rows = []
    for row in change.values.rows:
        share = row[3]
        if row[1] != row[2] and (share is None or abs(float(share)) >= _LEAST_CHANGE):
            rows.append(row)
    return replace(change.values, title=_CHANGED_VALUES, rows=rows)


#: Smaller relative changes of values are left out in formats for people.
_LEAST_CHANGE = 0.01
_CHANGED_VALUES = "Values that changed by 1 % or more"


# Text


def text(why: Why, width: int | None) -> Iterator[str]:
    """The blocks of kernels for a terminal of this width; None without a terminal."""
    every = blocks(why)
    common = list(_common(every))
    for line in common:
        yield from wrapped(line, width or _WIDTH, "", "dim")
    if common:
        yield "\n"
    for number, one in enumerate(every):
        if number:
            yield "\n"
        yield from text_block(one, width, common)


def _common(every: Sequence[KernelBlock]) -> Iterator[str]:
    """Yield the lines that are equal for several kernels: GPU and caches, and the rules without their metrics."""
    if len(every) < 2:
        return
    settings = {one.about[-1] for one in every}
    lacks = {one.note for one in every}
    for lines in (settings, lacks):
        if len(lines) == 1 and "" not in lines:
            yield from lines


def text_block(
    block: KernelBlock, width: int | None, common: Sequence[str] = ()
) -> Iterator[str]:
    """A block as strings with styles. It lacks the lines that are ``common`` to all blocks."""
    wide = width or _WIDTH
    yield styled((short(block.kernel, wide), "bold")) + "\n"
    for line in block.about:
        if line not in common:
            yield from wrapped(line, wide, "  ", "dim")
    for said in block.lines:
        yield from wrapped(said.sentence, wide, "  * ", said.style)
        yield from wrapped(said.remedy, wide, "    ", "dim")
    if block.note not in common:
        yield from wrapped(block.note, wide, "  ", "warn")
    for table in block.tables:
        yield "\n"
        yield from _indented(table, wide)


def _indented(table: Table, width: int) -> Iterator[str]:
    for piece in tables([table], "table", width=width - 2, style=no_style):
        yield textwrap.indent(piece, "  ")


def wrapped(text: str, width: int, first: str, style: str = "") -> Iterator[str]:
    """Wrap a paragraph. Its lines are indented by the width of ``first``."""
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=" " * len(first)
    )
    for line in lines:
        yield styled((line, style)) + "\n"


# Markdown


def markdown(why: Why) -> Iterator[str]:
    """The blocks of kernels in GitHub's Markdown. Tables are folded."""
    for block in blocks(why):
        yield f"## {md.code(block.kernel, _NAME)}\n\n"
        for said in block.lines:
            line = f"* {md.text(said.sentence)}"
            if said.remedy:
                line += f"  \n  {md.text(said.remedy)}"
            yield line + "\n"
        yield "\n"
        for line in filter(None, (*block.about, block.note)):
            yield f"{md.text(line)}  \n"
        yield "\n<details><summary>Figures</summary>\n\n"
        yield from tables(block.tables, "markdown")
        yield "\n</details>\n\n"
    yield from notes(why.notes, "markdown")


# JSON


def objects(why: Why) -> dict[str, Any]:
    """The values of the JSON. schemas/why.json describes them."""
    return {
        "kernels": list(map(_object, why.answers)),
        "changes": list(map(_change_object, why.changes)),
        "rooflines": list(map(_roofline_object, why.rooflines)),
        "notes": list(why.notes),
    }


def _change_object(change: KernelChange) -> dict[str, Any]:
    return {
        "kernel": change.before.facts.kernel,
        "time_change": change.time,
        "before": _object(change.before),
        "after": _object(change.after),
        "gone": list(map(asdict, change.gone)),
        "new": list(map(asdict, change.new)),
        "values": list(row_objects(change.values)),
    }


def _roofline_object(roof: Roofline) -> dict[str, Any]:
    """A roofline. Its points also have operations per second, bytes per second and operations per byte."""
    made = asdict(roof)
    for values, point in zip(made["points"], roof.points, strict=True):
        values |= {
            "time_ns": values.pop("time"),
            "operations_per_second": point.rate,
            "bytes_per_second": point.traffic,
            "operations_per_byte": point.intensity,
        }
    made["gpu"]["clock_hz"] = made["gpu"].pop("clock")
    made["gpu"]["bytes_per_second"] = made["gpu"].pop("bandwidth")
    return made


def _object(answer: Answer) -> dict[str, Any]:
    facts = answer.facts
    shape = None
    if facts.shape is not None:
        shape = asdict(facts.shape)
    figures = {table.name: list(row_objects(table)) for table in answer.tables}
    return {
        "kernel": facts.kernel,
        "full_name": facts.full_name,
        "gpu": facts.gpu.name,
        "launch": shape,
        "launches": facts.launches,
        "counted": facts.counted,
        "time_ns": facts.time,
        "total_ns": facts.total,
        "share": facts.share,
        "caches": facts.caches,
        "limiter": answer.limiter,
        "findings": list(map(asdict, answer.findings)),
        "not_asked": [rule.name for rule in answer.not_asked],
        "tables": figures,
        "values": dict(facts.values),
    }
