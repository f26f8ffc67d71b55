"""cutrace merge: put many traces on one timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....cli import options
from ....cli.output import say, say_written, target

if TYPE_CHECKING:
    from ....loading import Clock


@click.command()
@options.sources()
@options.output(
    "What to write: a capture (.bin), an archive for Perfetto with a trace for each FILE (.tar), or any format that "
    "`cutrace convert` writes."
)
@options.format
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Name of a rank, once for each FILE in their order.",
)
@click.option(
    "--ranks",
    is_flag=True,
    help="Name the ranks rank 0, rank 1, ... in the order of the files.",
)
@options.compress
@options.clock
@options.quiet
def merge(
    sources: tuple[Path, ...],
    output: Path,
    names: tuple[str, ...],
    ranks: bool,
    clock: Clock,
    quiet: bool,
    **request: Any,
) -> None:
    """Put FILE..., one for each rank or machine, on one timeline.

    The timeline is the clock of the first FILE. If times would be negative on this clock, it is the clock of the
    machine that booted first.

    Files of one machine share its clock. Machines are aligned by their wall clocks, if there are clock snapshots. A
    line for each file says how it was aligned, and how well. A rank is named by --name, else by the rank in its file,
    else by the name of its file.
    """
    if names and ranks:
        raise click.UsageError("--name and --ranks exclude each other")
    from ....exporters.base import Request
    from ..merging import merge as write

    lacking: list[str] = []
    with target(output, request["format"], "capture") as path:
        done = write(
            sources,
            path,
            names=names,
            number=ranks,
            clock=clock,
            request=Request(**request, say=lacking.append),
        )
    if not quiet:
        say(*(rank.sentence() for rank in done))
        say_written(output)
        say(*lacking)
