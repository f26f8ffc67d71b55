"""cutrace diff: compare two traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .output import put_tables, say

if TYPE_CHECKING:
    from ..analysis.tables import Cell, Table


@click.command()
@click.argument("a", metavar="A", type=options.SOURCE)
@click.argument("b", metavar="B", type=options.SOURCE)
@click.option(
    "--with-a",
    multiple=True,
    type=options.FILE,
    metavar="FILE",
    help="Another file of A; may be repeated.",
)
@click.option(
    "--with-b",
    multiple=True,
    type=options.FILE,
    metavar="FILE",
    help="Another file of B; may be repeated.",
)
@options.form(["text", "json", "markdown"], by_ending=True)
@options.output("File to write to; else stdout.", required=False)
@click.option(
    "--fail-on",
    default="exact",
    show_default=True,
    metavar="ASPECTS",
    help="What ends with status 1: counts, bytes, launches, memory, time, code; exact (the first three), all, none.",
)
@click.option(
    "--tolerance",
    multiple=True,
    metavar="ASPECT=SHARE",
    help="Largest accepted difference, e.g. time=10% or counts=0.01.",
)
@click.option("--all", "everything", is_flag=True, help="Also show what is the same.")
@options.clock
@options.limit()
def diff(
    a: Path,
    b: Path,
    with_a: tuple[Path, ...],
    with_b: tuple[Path, ...],
    form: str,
    output: Path | None,
    everything: bool,
    limit: int | None,
    **rules: Any,
) -> int:
    """Show what changed from A to B: kernels, API calls, copies, synchronisations, memory.

    A and B are captures, or traces of other tools that cutrace reads. Ends with status 1 when an aspect of --fail-on
    differs.
    """
    from .. import api
    from ..golden.captures import parse_aspects
    from ..outputs import check_output

    if output is not None:
        check_output(output, [a, b, *with_a, *with_b])
    comparison = api.diff([a, *with_a], [b, *with_b], **rules)
    for side, sentences in zip((a, b), comparison.notes, strict=True):
        say(*(f"{side}: {sentence}" for sentence in sentences))
    failing = {aspect.value for aspect in parse_aspects(rules["fail_on"])}

    def style(table: Table, row: tuple[Cell, ...]) -> str:
        column = table.place("differs")
        if column is None or not row[column]:
            return ""
        differs = str(row[column]).split(", ")
        if failing.isdisjoint(differs):
            return "warn"
        return "bad"

    tables = comparison.reports(everything=everything)
    about: dict[str, Any] = {"a": str(a), "b": str(b), "failed": comparison.failed}
    put_tables(
        "cutrace diff",
        tables,
        form,
        output,
        limit=limit,
        style=style,
        verdict=comparison.verdict,
        **about,
    )
    return int(comparison.failed)
