"""cutrace roofline: draw kernels against the limits of the GPU."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import CutraceError
from . import options
from .output import put, say, say_written


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
    from ..analysis.roofline import rooflines
    from ..loading import opened
    from ..outputs import check_output
    from ..reports.roofline import html, svg

    if output.suffix not in (".html", ".svg"):
        raise CutraceError(f"cannot tell the format of {output}: write a name that ends in .html or .svg")
    check_output(output)
    with opened(sources) as trace:
        roofs = rooflines(trace)
    put([html(roofs, ", ".join(map(str, sources))) if output.suffix == ".html" else svg(roofs)], output)
    for note in dict.fromkeys(note for roof in roofs for note in roof.notes):
        say(note)
    say_written(output)
