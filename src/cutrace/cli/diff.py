"""cutrace diff: what changed from one trace to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..units import printable

if TYPE_CHECKING:
    from ..analysis.stats import Stats
    from ..analysis.tables import Cell, Table

_LIMIT = 20
_File = click.Path(path_type=Path, readable=False)


@click.command(short_help="Compare what two traces did.")
@click.argument("a", metavar="A", type=_File)
@click.argument("b", metavar="B", type=_File)
@click.option("--with-a", multiple=True, type=_File, metavar="FILE", help="Another file of A; may be repeated.")
@click.option("--with-b", multiple=True, type=_File, metavar="FILE", help="Another file of B; may be repeated.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="What to write.",
)
@click.option("-o", "--output", type=_File, help="File to write to; else stdout.")
@click.option(
    "--fail-on",
    default="exact",
    show_default=True,
    metavar="ASPECTS",
    help="What ends with status 1: counts, bytes, launches, memory, time; exact (the first three), all, none.",
)
@click.option(
    "--tolerance",
    multiple=True,
    metavar="ASPECT=SHARE",
    help="What does not count as different, e.g. time=10% or counts=0.01.",
)
@click.option("--all", "everything", is_flag=True, help="Show what is the same too.")
@click.option("--limit", type=click.IntRange(min=0), help=f"Rows of a table; 0 for all ({_LIMIT}, in JSON all).")
def diff(
    a: Path,
    b: Path,
    with_a: tuple[Path, ...],
    with_b: tuple[Path, ...],
    form: str,
    output: Path | None,
    fail_on: str,
    tolerance: tuple[str, ...],
    everything: bool,
    limit: int | None,
) -> int:
    """Show what changed from A to B: kernels, API calls, copies, synchronisations, memory.

    A and B are captures, or traces of other tools that cutrace reads. Ends with status 1 when something differs that
    --fail-on names.
    """
    from ..golden.captures import (
        CaptureRules,
        compare_captures,
        difference_tables,
        parse_aspects,
        parse_tolerances,
        verdict,
    )
    from ..outputs import check_output
    from ..reports.tables import render
    from .output import put, terminal_width

    rules = CaptureRules(parse_aspects(fail_on), parse_tolerances(tolerance))
    if output is not None:
        check_output(output)
    before, after = _collected([a, *with_a], [b, *with_b])
    comparison = compare_captures(before, after, rules)
    tables = difference_tables(comparison, everything=everything)
    if form == "json":
        about = {"kind": "cutrace diff", "a": str(a), "b": str(b), "failed": comparison.failed}
        put(render(tables, form, limit=limit or 0, about=about), output)
    else:
        width = terminal_width() if output is None else None
        failing = {aspect.value for aspect in rules.fail_on}

        def style(table: Table, row: tuple[Cell, ...]) -> str:
            place = table.place("differs")
            differs = str(row[place] or "").split(", ") if place is not None else []
            return "bad" if failing & set(differs) else "warn" if any(differs) else ""

        shown = render(
            tables,
            "table" if form == "text" else form,
            limit=_LIMIT if limit is None else limit,
            width=width,
            style=None if output else style,
        )
        put((*shown, "\n" * bool(tables), f"{verdict(comparison)}\n"), output)
    return 1 if comparison.failed else 0


def _collected(*sides: list[Path]) -> list[Stats]:
    """The statistics of each side, in threads: reading and counting are NumPy's work, which runs at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    from ..analysis.stats import collect
    from ..golden.captures import PARTS
    from ..loading import opened

    def collected(sources: list[Path]) -> tuple[Stats, list[str]]:
        with opened(sources) as trace:
            return collect(trace, PARTS), list(trace.quality.sentences())

    with ThreadPoolExecutor(len(sides)) as pool:
        found = list(pool.map(collected, sides))
    for sources, (_, sentences) in zip(sides, found, strict=True):
        for sentence in sentences:
            click.echo(f"cutrace: {sources[0]}: {printable(sentence)}", err=True)
    return [stats for stats, _ in found]
