"""cutrace stats: figures of a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..units import parse_duration, printable

if TYPE_CHECKING:
    from ..analysis.tables import Table

# Rows of a report on a terminal or in Markdown, unless the caller says.
_LIMIT = 20


def _list_reports(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ..analysis.reports import REPORTS

        for report in REPORTS.values():
            click.echo(f"{report.name:<22} {report.title}{'' if report.usual else ' (on request)'}")
        ctx.exit()


@click.command(short_help="Show what kernels, calls, copies, ranges and streams took.")
@click.argument("sources", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, readable=False))
@click.option("--report", "reports", multiple=True, metavar="NAME", help="Show this report; may be repeated.")
@click.option(
    "--list-reports", is_flag=True, is_eager=True, expose_value=False, callback=_list_reports, help="List all reports."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "markdown"]),
    default="table",
    show_default=True,
    help="What to write.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path, readable=False), help="File to write to; else stdout.")
@click.option(
    "--limit", type=click.IntRange(min=0), help=f"Rows of a report; 0 for all ({_LIMIT} in tables, else all)."
)
@click.option("--sort", metavar="COLUMN", help="Sort by this column, e.g. count, mean, name.")
@click.option(
    "--names",
    type=click.Choice(["stable", "full"]),
    default="stable",
    show_default=True,
    help="Kernels by stable name, or by name with template arguments.",
)
@click.option("--short", metavar="TIME", default="10us", show_default=True, help="Kernels below this time are short.")
@click.option(
    "--kernel-wait", metavar="TIME", default="30ns", show_default=True, help="Idle times below this are a kernel wait."
)
def stats(
    sources: tuple[Path, ...],
    reports: tuple[str, ...],
    form: str,
    output: Path | None,
    limit: int | None,
    sort: str | None,
    names: str,
    short: str,
    kernel_wait: str,
) -> int:
    """Show what the kernels, API calls, copies, NVTX ranges and streams of FILE, or of several as one, took.

    FILE is a capture, or a trace of another tool that cutrace reads. Without --report the usual ones are shown, as far
    as FILE has something for them.
    """
    from ..analysis.reports import tables
    from ..analysis.stats import Options
    from ..loading import opened
    from ..outputs import check_output
    from ..reports.tables import no_style, render
    from .output import put, terminal_width

    if output is not None:
        check_output(output)
    options = Options(_naming(names), parse_duration(short), parse_duration(kernel_wait))
    with opened(sources) as trace:
        found = tables(trace, reports or None, options)
        if sort is not None:
            found = _sorted(found, sort)
        if limit is None:
            limit = 0 if form in ("csv", "json") else _LIMIT
        width = terminal_width() if output is None else None
        put(render(found, form, limit=limit, width=width, style=None if output else no_style), output)
        for sentence in trace.quality.sentences():
            click.echo(f"cutrace: {printable(sentence)}", err=True)
    if not found:
        click.echo("cutrace: nothing was recorded that could be counted", err=True)
    return 0


def _naming(names: str) -> Callable[[str], str]:
    from .._native import demangle
    from ..analysis.names import normalize_kernel

    def full(name: str) -> str:
        return demangle(name) if name.startswith("_Z") else name

    return full if names == "full" else normalize_kernel


def _sorted(tables: list[Table], column: str) -> list[Table]:
    if tables and all(table.place(column) is None for table in tables):
        there = dict.fromkeys(c.name for table in tables for c in table.columns)
        raise click.UsageError(f"no report has a column {column!r}: there are {', '.join(there)}")
    return [table.sorted(column) for table in tables]
