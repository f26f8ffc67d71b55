"""cutrace stats: show statistics of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .output import put_tables, say, terminal_width

if TYPE_CHECKING:
    from ..loading import Clock


def _reports() -> list[str]:
    from ..analysis.reports import statistics

    lines = []
    for statistic in statistics().values():
        line = f"{statistic.name:<22} {statistic.title}"
        if not statistic.usual:
            line += " (on request)"
        lines.append(line)
    return lines


@click.command()
@options.sources()
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="NAME",
    help="Show this report; may be repeated.",
)
@options.list_reports(_reports)
@options.form(["table", "csv", "json", "markdown"], by_ending=True)
@options.output("File to write to; else stdout.", required=False)
@options.clock
@options.limit()
@click.option(
    "--sort", metavar="COLUMN", help="Sort by this column, e.g. count, mean, name."
)
@click.option(
    "--names",
    type=click.Choice(["stable", "full"]),
    default="stable",
    show_default=True,
    help="Kernels by stable name, or by name with template arguments.",
)
@click.option(
    "--short",
    metavar="TIME",
    default="10us",
    show_default=True,
    help="Kernels below this time are short.",
)
@click.option(
    "--kernel-wait",
    metavar="TIME",
    default="30ns",
    show_default=True,
    help="Idle times below this are a kernel wait.",
)
@options.ranges
@click.option(
    "--name",
    metavar="NAME",
    default="",
    help="The ranges that are steps, by name or pattern: 'step *'.",
)
def stats(
    sources: tuple[Path, ...],
    reports: tuple[str, ...],
    form: str,
    output: Path | None,
    clock: Clock,
    limit: int | None,
    **how: Any,
) -> None:
    """Show the time of the kernels, API calls, copies, NVTX ranges and streams of FILE, or of several as one.

    FILE is a capture, or a trace of another tool that cutrace reads. Without --report, a few lines say what took the
    time, and the usual reports with data in FILE follow. Tables fit a terminal; --format csv and json have all columns.
    """
    from .. import api
    from ..loading import opened
    from ..outputs import check_output
    from ..reports.headline import headline

    if output is not None:
        check_output(output, sources)
    with opened(sources, clock=clock) as trace:
        results = api.stats(trace, reports or None, **how)
        sentences = list(map(options.as_options, trace.quality.sentences()))
        head: list[str] = []
        if form == "table" and not reports:
            head = headline(results, sentences, terminal_width())
        put_tables(
            "cutrace stats",
            results,
            form,
            output,
            limit=limit,
            head=head,
            missing=sentences,
        )
        say(*sentences)
    if not results:
        say("the trace has no records to count")
