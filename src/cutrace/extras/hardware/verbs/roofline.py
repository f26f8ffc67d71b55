"""cutrace roofline: draw kernels against the limits of the GPU."""

from __future__ import annotations

from pathlib import Path

import click

from ....cli import options
from ....cli.output import say, say_written


@click.command()
@options.sources()
@options.output("The picture: .html (with tables) or .svg.")
def roofline(sources: tuple[Path, ...], output: Path) -> None:
    """Draw the kernels of FILE, or of several as one, against the ceilings of their GPU. `cutrace profile` counts their
    operations and bytes.

    \b
    cutrace profile --metrics flops -- python train.py
    cutrace roofline run.bin -o roofline.html
    """
    from .. import api

    say(
        *dict.fromkeys(
            note for roof in api.roofline(sources, output) for note in roof.notes
        )
    )
    say_written(output)
