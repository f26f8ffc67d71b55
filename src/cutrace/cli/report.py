"""cutrace report: report.json files of several jobs or commits."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import CutraceError
from ..units import count_of
from . import options

if TYPE_CHECKING:
    from ..reports.model import Case, SessionReport

_KINDS = {".json": "json", ".md": "markdown", ".html": "html"}


@click.group(cls=options.Group)
def report() -> None:
    """Merge and compare report.json files, which `pytest --cutrace --cutrace-report=json` writes."""


@report.command(short_help="Join the reports of several jobs.")
@options.sources()
@options.output("The report: .json, .md or .html.")
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Label of a job, once for each FILE, in the order of the files.",
)
@click.option(
    "--download",
    metavar="COMMAND",
    default="",
    help="For .md: the command with which a reader downloads the folder of the report. Needs --into.",
)
@click.option(
    "--into",
    "folder",
    metavar="DIR",
    default="",
    help="The folder into which --download puts the files.",
)
@click.option(
    "--page", metavar="URL", default="", help="For .md: the address of the HTML page."
)
@click.option(
    "--max-size",
    metavar="SIZE",
    default="1MiB",
    help="For .md: leave out sections beyond this size (1MiB unless given).",
)
def merge(
    sources: tuple[Path, ...],
    output: Path,
    names: tuple[str, ...],
    download: str,
    folder: str,
    page: str,
    max_size: str,
) -> None:
    """Join FILE..., the report.json of each job, in one report.

    Results of a test in different environments and jobs stay separate. Jobs get the names given, or the label in the
    report, or the name of the file or of its folder.
    """
    from ..outputs import check_output
    from ..reports import jobs, jsonfile
    from ..reports.markdown import LEAST, Download, markdown
    from ..units import format_size, parse_size

    check_output(output, sources, endings=tuple(_KINDS))
    summary = output.suffix == ".md"
    if (download or page) and not summary:
        raise click.UsageError("--download and --page are for a .md file")
    if bool(download) != bool(folder):
        raise click.UsageError("--download and --into need each other")
    if page and not page.startswith(("https://", "http://")):
        raise click.UsageError(
            f"--page {page!r} is not an address: write one that starts with https://"
        )
    limit = parse_size(max_size)
    if limit < LEAST:
        raise click.UsageError(
            f"--max-size {max_size} is too small: give {format_size(LEAST)} or more"
        )
    reports = []
    for source, (label, one) in zip(sources, _read(sources, names), strict=True):
        reports.append((label, _moved(one, source, output)))
    made = jobs.merge(reports)
    if summary:
        candidates = []
        for source in sources if download else ():
            proposed = source.parent / "proposed"
            if proposed.is_dir():
                candidates.append(os.path.relpath(proposed, output.parent))
        how = Download(download, folder, page, tuple(candidates))
        text = markdown(made, how, limit)
    else:
        text = jsonfile.rendered(made, _KINDS[output.suffix], output.parent)
    jsonfile.write(output, text)


@report.command(short_help="Show the changes from one report to another.")
@click.argument("before", metavar="BEFORE", type=options.FILE)
@click.argument("after", metavar="AFTER", type=options.FILE)
@options.form(["table", "markdown", "json"])
@options.limit(50)
@click.option(
    "--fail-on-gone", is_flag=True, help="End with status 1 also when a test is gone."
)
def compare(
    before: Path,
    after: Path,
    form: str,
    limit: int,
    fail_on_gone: bool,
) -> int:
    """Show which tests changed from BEFORE to AFTER, two report.json files: values, states, new tests and gone ones.

    Times are not compared. Ends with status 1 when the work or a counter of a test changed, or its state got worse.
    """
    from ..reports import jobs
    from ..reports.jsonfile import read_report
    from .output import put_json, put_tables

    old = read_report(before)
    new = read_report(after)
    changes = jobs.compare(old, new)
    failed = jobs.failed(changes, gone=fail_on_gone)
    if form == "json":
        by_kind: dict[str, list[Any]] = {
            "changed": [],
            "new": [],
            "gone": [],
        }
        for change in changes:
            by_kind[change.kind].append(jobs.to_json(change))
        put_json("cutrace report comparison", failed=failed, **by_kind)
    else:
        verdict = jobs.verdict(old, new, changes)
        put_tables(
            "cutrace report comparison",
            jobs.tables(changes),
            form,
            limit=limit,
            verdict=verdict,
        )
    if failed:
        return 1
    return 0


@report.command(short_help="Draw trends over the reports of several commits.")
@options.sources()
@options.output("The page (.html).")
@click.option(
    "--by-time",
    is_flag=True,
    help="Sort by the start of the sessions, not by the order of the files.",
)
def trend(sources: tuple[Path, ...], output: Path, by_time: bool) -> None:
    """Draw how the totals and tests of FILE... changed, report.json files of two commits or more, oldest first."""
    from ..outputs import check_output
    from ..reports.jsonfile import write
    from ..reports.trend import trend as page

    if len(sources) < 2:
        raise CutraceError(
            "a trend needs two reports or more: name the report.json of each commit"
        )
    check_output(output, sources, endings=(".html",))
    reports = _read(sources, ())
    if by_time:
        reports.sort(key=lambda pair: _instant(pair[1]))
    write(output, page(reports))


def _instant(one: SessionReport) -> float:
    from datetime import datetime

    try:
        return datetime.fromisoformat(one.started).timestamp()
    except ValueError:
        raise CutraceError(
            "a report does not say when it began: leave out --by-time"
        ) from None


def _read(
    sources: Sequence[Path], names: Sequence[str]
) -> list[tuple[str, SessionReport]]:
    """Return each report with its label: the given name, the label in the report, or the name of the file or its
    folder."""
    from ..reports.jsonfile import read_report

    if names and len(names) != len(sources):
        many_names = count_of(len(names), "name")
        many_files = count_of(len(sources), "file")
        raise click.UsageError(
            f"{many_names} for {many_files}: give each file one, in their order"
        )
    reports = [read_report(path) for path in sources]
    if names:
        if len(set(names)) < len(names):
            name, _ = Counter(names).most_common(1)[0]
            raise click.UsageError(
                f"two files are named {name!r}: give each a name of its own"
            )
        return list(zip(names, reports, strict=True))
    labels = [report.job for report in reports]
    if len(reports) == 1:
        return list(zip(labels, reports, strict=True))
    # Jobs of a matrix have the same label, but different folders.
    for unlike in (_name, str):
        counts = Counter(labels)
        for number, path in enumerate(sources):
            label = labels[number]
            if not label or counts[label] > 1:
                labels[number] = unlike(path)
    return list(zip(labels, reports, strict=True))


def _name(path: Path) -> str:
    """The name of the file, or of its folder if all reports have the name of this file."""
    if path.stem == "report":
        return path.resolve().parent.name
    return path.stem


def _moved(one: SessionReport, source: Path, output: Path) -> SessionReport:
    """Return the report with links relative to the folder of ``output``. Links to missing files are removed. A page
    also gets the timelines of the captures."""

    def linked(case: Case) -> Case:
        links = {}
        for name, path in case.artifacts.items():
            file = source.parent / path
            if file.exists():
                links[name] = os.path.relpath(file, output.parent)
        if output.suffix == ".html" and "run.bin" in links:
            capture = source.parent / case.artifacts["run.bin"]
            case = _pictured(case, capture)
        return replace(case, artifacts=links)

    return replace(one, cases=tuple(map(linked, one.cases)))


def _pictured(case: Case, capture: Path) -> Case:
    """Return the case with the timeline of its test, if the capture has one."""
    from ..analysis.windows import windows
    from ..loading import opened
    from ..reports.timeline import pictured

    try:
        with opened([capture]) as trace:
            last = None
            for window in windows(trace):
                if window.name == case.nodeid:
                    last = window
            if last is None:
                return case
            return pictured(case, trace, last)
    except CutraceError as error:
        click.echo(f"cutrace: {case.nodeid} has no timeline: {error}", err=True)
        return case
