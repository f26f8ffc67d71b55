"""cutrace profile: count hardware metrics of chosen kernels or NVTX ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....cli import options
from ....cli.output import put, put_tables, say, say_written, terminal_width

if TYPE_CHECKING:
    from ....analysis.tables import Cell, Table
    from ..profiling import Profile

#: The largest number of lines of source for each metric in a table for people.
_MAX_LINES = 10
#: The number of columns that are equal in all rows of a launch or range.
_OF_WORK = 3
#: The largest number of kernels in formats for people.
_MAX_KERNELS = 5


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--]",
)
@options.output(
    "Capture to write (.bin), with the recording and the metrics.", default="run.bin"
)
@click.option(
    "--lines",
    is_flag=True,
    help="Count by line of source, if the program has line information (nvcc -lineinfo), else by instruction.",
)
@options.names(
    "--metrics",
    metavar="SET|NAME,...",
    help="What to count: sets and names from `cutrace metrics`; by default the set why, with --ranges the set "
    "overview. With --lines, names from `cutrace metrics list --lines`; by default instructions of warps and threads.",
)
@click.option(
    "--kernel",
    metavar="NAME",
    help="Kernels of this name, as in `cutrace slice`; by default all.",
)
@click.option(
    "--nvtx",
    metavar="RANGE",
    help="Only launches in NVTX ranges of this name, as in `cutrace slice`.",
)
@click.option(
    "--ranges",
    metavar="NAME",
    help="Count whole NVTX ranges of this name, each in one pass, and no kernels.",
)
@click.option(
    "--skip",
    type=options.COUNT,
    metavar="N",
    default=0,
    help="Skip the first N matches of each process.",
)
@click.option(
    "--count",
    type=options.Integer(min=1),
    metavar="N",
    help="Profile at most N matches of each process.",
)
@click.option(
    "--caches",
    type=click.Choice(["flush", "keep"]),
    help="Flush the caches of the GPU before each pass of a launch or before each range, or keep their contents. By "
    "default launches flush them, and --ranges keeps them.",
)
@click.option(
    "--recorded",
    type=options.SOURCE,
    metavar="FILE",
    help="Add the metrics to this capture of COMMAND by `cutrace record`, which has its timeline.",
)
@click.option(
    "--timeline",
    is_flag=True,
    help="Run COMMAND twice, and record the first run: the capture has all its work, with the times of that run.",
)
@options.form(["table", "csv", "json", "markdown"])
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def profile(output: Path, command: tuple[str, ...], form: str, **how: Any) -> int:
    """Run COMMAND and count hardware metrics of the chosen launches or ranges.

    Each chosen launch is replayed once for each pass of the metrics. The memory is restored in between, so COMMAND
    computes the same results. The capture has the counted launches, with the times of their counted runs. --skip and
    --count apply to each process. The exit status is that of COMMAND.

    With --timeline, --nvtx, --ranges or --lines, COMMAND runs twice: the first run is recorded without counters, and
    gives the times and the other work in the capture. COMMAND has to launch the same work in both runs. With
    --recorded, a capture that `cutrace record` wrote without --capture-range, --last and --rotate takes the place of
    the first run.

    With --lines nothing is replayed: the launches run with code that counts its own instructions, and COMMAND runs once
    more for each kernel.

    --ranges counts all GPU work in a range, CUDA graphs included, and replays nothing: its metrics have to fit into one
    pass.
    """
    from ....analysis.reports import tables as by_name
    from ....loading import load
    from .. import profiling

    done = profiling.profile(command, output, say=say, **how)
    say(*dict.fromkeys(done.notes))
    if not done.values:
        return done.status or 2
    say_written(output)
    if form in ("table", "markdown") and _answers(done, how):
        _put_answers(output, form)
        return done.status
    tables = [done.table()]
    if how["lines"]:
        with load(output) as trace:
            tables = by_name(trace, ["instruction_line_sum"])
        if form == "table":
            tables = [_hottest(table) for table in tables]
            say(
                f"only {_MAX_LINES} lines are shown; `cutrace stats --report instruction_line_sum {output}` has all"
            )
    elif form == "table":
        tables = [_named_once(table) for table in tables]
    put_tables("cutrace profile", tables, form)
    return done.status


def _answers(done: Profile, how: Mapping[str, Any]) -> bool:
    """Whether kernels were counted with the metrics of the set why."""
    from ..why import suffices

    return not how["lines"] and how["ranges"] is None and suffices(done.names)


def _put_answers(output: Path, form: str) -> None:
    """Print the blocks of the kernels with the most time."""
    from ....loading import load
    from .. import why, why_text

    with load(output) as trace:
        answers = why.answers(trace)
        losses = tuple(trace.quality.sentences())
    first = why.Why(tuple(answers[:_MAX_KERNELS]), notes=losses)
    put(why_text.render(first, form, terminal_width()))
    left = len(answers) - _MAX_KERNELS
    if left > 0:
        say(
            f"only {_MAX_KERNELS} kernels are shown; `cutrace why {output}` has {left} more"
        )
    say(*losses)


def _named_once(table: Table) -> Table:
    """The table, with the name, number and time of a launch or range only in its first row."""
    rows: list[tuple[Cell, ...]] = []
    last: tuple[Cell, ...] = ()
    for row in table.rows:
        work = row[:_OF_WORK]
        if work == last:
            row = ("",) * _OF_WORK + row[_OF_WORK:]
        rows.append(row)
        last = work
    return replace(table, rows=rows)


def _hottest(table: Table) -> Table:
    """The first lines of each metric."""
    by_metric: dict[Cell, list[tuple[Cell, ...]]] = {}
    for row in table.rows:
        by_metric.setdefault(row[table.place("metric") or 0], []).append(row)
    return replace(
        table, rows=[row for rows in by_metric.values() for row in rows[:_MAX_LINES]]
    )
