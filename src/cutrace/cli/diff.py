"""cutrace diff: compare two traces, captures with a golden file, or golden files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import CutraceError
from . import options
from .output import put_tables, say

if TYPE_CHECKING:
    from ..analysis.tables import Cell, Table

# The options for each kind of comparison, by the name of their parameter.
_OF_TRACES = {
    *("with_before", "with_after", "output", "fail_on", "tolerance"),
    *("everything", "clock", "limit"),
}
_OF_RUNS = {
    *("test", "gate", "tolerance", "ignore", "own", "environment", "variant"),
}


@click.command()
@click.argument("before", metavar="BEFORE", type=options.SOURCE)
@click.argument(
    "after", metavar="AFTER...", type=options.SOURCE, nargs=-1, required=True
)
@click.option(
    "--with-before",
    multiple=True,
    type=options.FILE,
    metavar="FILE",
    help="Another file of the trace BEFORE; may be repeated.",
)
@click.option(
    "--with-after",
    multiple=True,
    type=options.FILE,
    metavar="FILE",
    help="Another file of the trace AFTER; may be repeated.",
)
@options.form(["text", "json", "markdown"], by_ending=True)
@options.output("File to write to; else stdout.", required=False)
@options.names(
    "--fail-on",
    default=["exact"],
    show_default=True,
    metavar="ASPECTS",
    help="Differences that fail: counts, bytes, launches, memory, time, code; exact (the first three), all, none.",
)
@click.option(
    "--tolerance",
    multiple=True,
    metavar="NAME=SHARE",
    help="Largest accepted difference of an aspect (time=10%), or of a metric of a golden file (kernels=5%).",
)
@click.option("--all", "everything", is_flag=True, help="Also show equal rows.")
@options.clock
@options.limit()
@click.option(
    "--test",
    metavar="NODEID",
    help="With a golden file: the test to compare; else all tests that the captures mark.",
)
@options.names(
    "--gate",
    default=[options.GATE],
    show_default=True,
    help="With a golden file: metrics and classes that fail, or none; with the word less, decreases fail too.",
)
@options.ignore
@click.option(
    "--own",
    multiple=True,
    metavar="PATTERN",
    help="With a golden file: kernels that apply in every environment: 'mylib::*'.",
)
@click.option(
    "--environment",
    metavar="NAME",
    help="With a golden file: environment to compare with, e.g. sm_90; else the capture's.",
)
@options.variant
def diff(
    before: Path,
    after: tuple[Path, ...],
    form: str,
    **given: Any,
) -> int:
    """Show what changed from BEFORE to AFTER: kernels, API calls, copies, synchronisations, memory.

    BEFORE and AFTER are captures, or traces of other tools that cutrace reads. Ends with status 1 when an aspect of
    --fail-on differs.

    BEFORE may be a golden file (.toml). Then each AFTER is a capture of one run, and the tests in it are compared with
    their golden values; a capture without marks of tests is compared as a whole. Ends with status 1 if a metric of
    --gate changed or could not be compared.

    Two golden files, or two folders of them, are compared with each other. Ends with status 1 if they differ.
    """
    if _are_goldens(before, after):
        _refuse(form, (), "two golden files")
        from .golden import put_differences

        return put_differences(before, after[0], form)
    if _is_golden(before):
        _refuse(form, _OF_RUNS, "a golden file and captures")
        from .golden_runs import compare_runs

        rules = {name: given[name] for name in _OF_RUNS}
        return compare_runs(after, before, form=form, **rules)
    if any(map(_is_golden, after)):
        raise CutraceError(
            "a golden file comes before the captures: cutrace diff golden.toml run.bin"
        )
    if len(after) > 1:
        raise click.UsageError(
            "A trace is compared with one other: add files of one trace by --with-before and --with-after"
        )
    _refuse("", _OF_TRACES, "two traces")
    traces = {name: given[name] for name in _OF_TRACES}
    return _compare_traces(before, after[0], form, **traces)


def _is_golden(path: Path) -> bool:
    """Whether the path is a golden file, or a folder of them."""
    from ..golden import golden_files

    if path.is_dir():
        return any(golden_files(path))
    return path.suffix == ".toml"


def _are_goldens(before: Path, after: Sequence[Path]) -> bool:
    """Whether two golden files or folders are compared. One of two folders may have lost all its golden files."""
    if len(after) > 1:
        return False
    sides = (before, after[0])
    if all(side.is_dir() for side in sides):
        return any(map(_is_golden, sides))
    return all(map(_is_golden, sides))


def _refuse(form: str, accepted: Collection[str], what: str) -> None:
    """Refuse given options of another kind of comparison."""
    ctx = click.get_current_context()
    if form == "markdown":
        raise click.UsageError(f"--format markdown is not for {what}")
    for name in sorted((_OF_TRACES | _OF_RUNS).difference(accepted)):
        source = ctx.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            flag = {"everything": "all"}.get(name, name.replace("_", "-"))
            raise click.UsageError(f"--{flag} is not for {what}")


def _compare_traces(
    before: Path,
    after: Path,
    form: str,
    *,
    with_before: tuple[Path, ...],
    with_after: tuple[Path, ...],
    output: Path | None,
    everything: bool,
    limit: int | None,
    **rules: Any,
) -> int:
    from .. import api
    from ..golden.captures import parse_aspects
    from ..outputs import check_output

    sides = [before, *with_before], [after, *with_after]
    if output is not None:
        check_output(output, [*sides[0], *sides[1]])
    comparison = api.diff(*sides, **rules)
    # A trace may be compared with itself.
    notes: dict[str, None] = {}
    for side, sentences in zip((before, after), comparison.notes, strict=True):
        notes.update((f"{side}: {sentence}", None) for sentence in sentences)
    say(*notes)
    failing = {aspect.value for aspect in parse_aspects(rules["fail_on"])}

    def style(table: Table, row: tuple[Cell, ...]) -> str:
        column = table.place("differs")
        if column is None or not row[column]:
            return ""
        differs = str(row[column]).split(", ")
        if failing.isdisjoint(differs):
            return "warn"
        return "bad"

    put_tables(
        "cutrace diff",
        comparison.reports(everything=everything),
        form,
        output,
        limit=limit,
        style=style,
        verdict=comparison.verdict,
        before=str(before),
        after=str(after),
        failed=comparison.failed,
        missing=list(notes),
    )
    return int(comparison.failed)
