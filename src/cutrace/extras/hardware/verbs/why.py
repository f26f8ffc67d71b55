"""cutrace why: say why kernels are slow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....cli import options
from ....cli.output import put, put_json, say, say_written, terminal_width

if TYPE_CHECKING:
    from ....loading import Clock

#: The largest number of kernels in formats for people.
_MOST = 20


@click.command()
@click.argument("capture", metavar="CAPTURE", type=options.SOURCE)
@click.argument("other", metavar="[OTHER]", type=options.SOURCE, required=False)
@options.output("Page to write (.html), with all kernels.", required=False)
@click.option(
    "--kernel",
    metavar="NAME",
    help="Kernels of this name, as in `cutrace slice`; by default all.",
)
@options.clock
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "json"]),
    help="What to print; by default table, or nothing if a page is written.",
)
def why(
    capture: Path,
    other: Path | None,
    output: Path | None,
    kernel: str | None,
    clock: Clock,
    form: str | None,
) -> None:
    """Say why the kernels of CAPTURE are slow: sentences on what limits each, then its figures. With OTHER, the capture
    after a change, say what changed. `cutrace profile` counts the metrics.

    \b
    cutrace profile -- python train.py
    cutrace why run.bin -o why.html
    """
    from .. import api, why_text

    found = api.why(capture, other, destination=output, kernel=kernel, clock=clock)
    if form is None and output is None:
        form = "table"
    if form == "json":
        put_json("cutrace why", **why_text.objects(found))
    elif form is not None:
        first = replace(
            found, answers=found.answers[:_MOST], changes=found.changes[:_MOST]
        )
        put(why_text.render(first, form, terminal_width()))
        left = len(found.answers) + len(found.changes) - _MOST
        if left > 0:
            say(
                f"only {_MOST} kernels are shown; -o PAGE.html has {left} more, and --kernel selects kernels"
            )
    say(*found.notes)
    if output is not None:
        say_written(output)
