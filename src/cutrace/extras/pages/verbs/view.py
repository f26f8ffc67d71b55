"""cutrace view: write a page of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....cli import options
from ....cli.output import say_written
from ....errors import CutraceError
from ....plugins import of_extras

if TYPE_CHECKING:
    from ....loading import Clock
    from ....trace.ranges import RangesBy


@click.command()
@options.sources("[BEFORE] FILE")
@options.output("The page (.html).", default="page.html")
@click.option(
    "--lines",
    is_flag=True,
    help="Instead show lines of source, with their instruction counts and stall reasons.",
)
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --lines: the folder of the sources, instead of where the program was compiled.",
)
@options.ranges
@options.clock
def view(
    sources: tuple[Path, ...],
    output: Path,
    lines: bool,
    root: Path | None,
    ranges: RangesBy,
    clock: Clock,
) -> None:
    """Write one page of FILE: timeline, flame graph of GPU time by range, kernels, copies, idle time, memory.

    With BEFORE, an earlier trace, the flame graph shows what changed: frames that take more time are red, frames that
    take less are blue. The page needs no server and no network.

    With --lines it has the lines of source that `cutrace profile --lines` counted or `cutrace record --sample pc`
    sampled, the hottest first. Several files are then one trace.

    \b
    cutrace view run.bin -o page.html
    cutrace view before.bin after.bin -o change.html
    """
    from .. import api

    if root is not None and not lines:
        raise click.UsageError("--root is the folder of sources: add --lines")
    if lines:
        _write_lines(sources, output, root, clock)
    elif len(sources) > 2:
        raise click.UsageError("Name one file, or two: before, after")
    else:
        *earlier, source = sources
        before = earlier[0] if earlier else None
        api.view(source, output, before=before, ranges=ranges, clock=clock)
    say_written(output)


def _write_lines(
    sources: tuple[Path, ...], output: Path, root: Path | None, clock: Clock
) -> None:
    pages = of_extras("cutrace_line_pages")
    if not pages:
        raise CutraceError(
            "this build of cutrace has no page of lines: install it with hardware metrics"
        )
    pages[0](sources, output, root=root, clock=clock)
