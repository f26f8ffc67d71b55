"""cutrace source: lines of source beside what was measured of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....cli import options
from ....cli.output import put, say_written
from ....errors import CutraceError

if TYPE_CHECKING:
    from ....loading import Clock


@click.command()
@options.sources()
@options.output("The page (.html).")
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder to look for the sources in, instead of where the program was compiled.",
)
@options.clock
def source(
    sources: tuple[Path, ...],
    output: Path,
    root: Path | None,
    clock: Clock,
) -> None:
    """Show the lines of source of FILE, or of several as one, beside their instruction counts and stall reasons.

    \b
    cutrace profile --lines -- python train.py
    cutrace source run.bin -o source.html
    """
    from ....loading import opened
    from ....outputs import check_output
    from ..source_page import html
    from ..sources import sources as measured

    check_output(output, sources, endings=(".html",))
    with opened(sources, clock=clock) as trace:
        code = measured(trace)
    if not code.files:
        raise CutraceError(
            f"nothing in {', '.join(map(str, sources))} was measured by line: use `cutrace profile --lines` or "
            "`cutrace record --sample pc`"
        )
    put([html(code, ", ".join(map(str, sources)), root)], output)
    say_written(output)
