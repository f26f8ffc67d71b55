"""cutrace redact: make a capture that others may see."""

from __future__ import annotations

from pathlib import Path

import click

from . import options
from .output import say_written, target


@click.command()
@click.argument("source", metavar="FILE", type=options.SOURCE)
@options.output(
    "What to write: a capture (.bin), or any format that `cutrace convert` writes."
)
def redact(source: Path, output: Path) -> None:
    """Write FILE without command lines, host names and paths, for others.

    Names of kernels and NVTX texts of the program stay, except paths in them: see docs/privacy.md.
    """
    from .. import api

    with target(output, None, "capture") as path:
        api.redact(source, path)
    say_written(output)
