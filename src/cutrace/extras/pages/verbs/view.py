"""cutrace view: write a page of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ....cli import options
from ....cli.output import say_written


@click.command()
@click.argument("source", metavar="FILE", type=options.SOURCE)
@click.argument("other", metavar="[OTHER]", type=options.SOURCE, required=False)
@options.output("The page (.html).", default="page.html")
@options.ranges
@options.clock
def view(source: Path, other: Path | None, output: Path, **how: Any) -> None:
    """Write one page of FILE: timeline, flame graph of GPU time by range, kernels, copies, idle time, memory.

    With OTHER, an earlier trace, the flame graph shows what changed: frames that take more time are red, frames that
    take less are blue. The page needs no server and no network.

    \b
    cutrace view run.bin -o page.html
    cutrace view after.bin before.bin -o change.html
    """
    from .. import api

    api.view(source, output, other=other, **how)
    say_written(output)
