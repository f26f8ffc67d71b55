"""cutrace batch: report over the traces of many ranks or runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ....cli import options
from ....cli.output import STDOUT, progress, put_tables, say
from ....units import count_of

# The largest numbers of sentences about findings and about files.
_SENTENCES = 12
_FILES = 5
_SHOWN = {"skipped": "unchanged"}


def _reports() -> list[str]:
    from ..running import ALL, batch_reports

    lines = [f"{report.name:<14} {report.title}" for report in batch_reports().values()]
    return [*lines, f"{ALL:<14} All of these with an index, reading each file once"]


@click.command()
@click.argument("report")
@options.sources(required=False, type=options.URL_OR_SOURCE)
@options.output("Folder for the parts of the reports and their pages.")
@options.list_reports(_reports)
@click.option(
    "--mode",
    type=click.Choice(["processes", "sequential", "dask"]),
    default="processes",
    show_default=True,
    help="Where files are read.",
)
@click.option(
    "--workers",
    type=options.Integer(min=1),
    metavar="N",
    help="Processes; as many as cores by default.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Address or scheduler file of Dask, for --mode dask.",
)
@click.option(
    "--wait",
    default="30s",
    metavar="TIME",
    help="How long to wait for a worker of Dask; 30s by default.",
)
@click.option(
    "--job",
    default="",
    metavar="NAME",
    help="Job of all FILEs; by default the job in FILE, or its folder.",
)
@click.option(
    "--name",
    default="",
    metavar="PATTERN",
    help="Kernel, range or step of `pace`.",
)
@click.option(
    "--baseline",
    multiple=True,
    type=options.URL_OR_SOURCE,
    metavar="FILE",
    help="Trace to compare with; may be repeated.",
)
@options.clock
@options.form(["table", "csv", "json", "markdown"])
@options.limit()
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="Print only the tables and the missing data.",
)
def batch(
    report: str,
    sources: tuple[Path | str, ...],
    output: Path,
    form: str,
    limit: int | None,
    quiet: bool,
    **how: Any,
) -> int:
    """Report over FILE..., the traces of many ranks or runs. `all` runs every report that has what it needs.

    Each FILE is read once, by one of several processes; the folder keeps the partial results as Parquet, and a second
    run reads only new and changed files. A FILE that is damaged or lacks records is listed,
    and the exit status is 1. `--list-reports` lists the reports.
    """
    from .. import api

    if not sources:  # the only word can be REPORT or FILE
        raise click.UsageError(
            "Name a report and then files: --list-reports lists the reports"
        )
    if output == STDOUT:
        raise click.UsageError(
            "The folder of a batch cannot go to stdout: name a folder with -o"
        )
    tell = None
    if not quiet:
        tell = say
    with progress("reading", enabled=not quiet) as advance:
        result = api.batch(
            report,
            sources,
            output,
            progress=advance,
            say=tell,
            **how,
        )
    put_tables(
        "cutrace batch",
        result.reports,
        form,
        limit=limit,
        report=report,
        sentences=result.sentences,
        missing=result.missing,
        files=[asdict(file) for file in result.files if file.notes],
    )
    page = output / f"{_page(report)}.html"
    if not quiet:
        say(*result.sentences[:_SENTENCES])
        more = len(result.sentences) - _SENTENCES
        if more > 0:
            say(f"{count_of(more, 'more sentence')}: see {page}")
    bad = [file for file in result.files if file.bad]
    for file in bad[:_FILES]:
        say(f"{file.source}: {'; '.join(file.notes)}")
    more = len(bad) - _FILES
    if more > 0:
        manifest = output / f"{report}.manifest.json"
        files = count_of(more, "more file")
        say(f"{files} damaged or incomplete: see {manifest}")
    say(*result.missing)
    if not quiet:
        states = Counter(file.state for file in result.files)
        counts = []
        for state, count in states.items():
            counts.append(f"{count:,} {_SHOWN.get(state, state)}")
        say(f"{page}: {', '.join(counts)}")
    if bad:
        return 1
    return 0


def _page(report: str) -> str:
    """The name of the page that has all sentences."""
    from ..running import ALL

    if report == ALL:
        return "index"
    return report
