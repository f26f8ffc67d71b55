"""cutrace slice: cut a part out of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..units import parse_words
from . import options
from .output import say, say_written, target

if TYPE_CHECKING:
    from ..loading import Clock

_NAME = "Exact, a pattern with * or ?, or /a regular expression/; may be repeated."


@click.command()
@options.sources()
@options.output(
    "What to write: a capture (.bin), or any format that `cutrace convert` writes."
)
@options.format
@click.option(
    "--start",
    metavar="TIME",
    help="Leave out rows that end before this time: 1.5s after the start of the trace, or @ns.",
)
@click.option(
    "--end", metavar="TIME", help="Leave out rows that start at this time or later."
)
@click.option(
    "--nvtx",
    metavar="NAME",
    multiple=True,
    help=f"Work launched in NVTX ranges of this name. {_NAME}",
)
@click.option(
    "--index",
    metavar="N",
    default="all",
    help="Which of these ranges in each process: a number from 0, -1 for the last, 2:5, or all.",
)
@options.ranges
@click.option(
    "--test",
    metavar="ID",
    multiple=True,
    help=f"Work that these tests launched. {_NAME}",
)
@click.option(
    "--process", metavar="P", multiple=True, help=f"Pid, index or name. {_NAME}"
)
@click.option(
    "--gpu", metavar="GPU", multiple=True, help=f"Ordinal, UUID or name. {_NAME}"
)
@click.option("--stream", metavar="S", multiple=True, help=f"Id or name. {_NAME}")
@click.option(
    "--kernel",
    metavar="NAME",
    multiple=True,
    help=f"Mangled, demangled or normalised name. {_NAME}",
)
@options.names(
    "--tables",
    metavar="A,B",
    help="Keep the events of these tables only: kernels,memcpys,...",
)
@options.names(
    "--without",
    metavar="A,B",
    help="Leave out the events of these tables: api_calls,...",
)
@options.compress
@options.table
@options.clock
@options.quiet
def slice(
    sources: tuple[Path, ...],
    output: Path,
    tables: str | None,
    without: str | None,
    clock: Clock,
    quiet: bool,
    **given: Any,
) -> None:
    """Cut out of FILE, or of several as one, the rows that meet all conditions.

    GPU work belongs to its launch: a range or a test keeps the work launched in it, even if the work ran later.
    Conditions on GPU work also keep the calls that launched it, and the ranges around these calls. Without conditions
    everything is kept except unreferenced strings. The documentation of cutrace has the rules, on the page Slicing.
    """
    from ..exporters.base import Request
    from ..slicing import Conditions, cut

    said: list[str] = []
    form = {name: given.pop(name) for name in ("format", "compress", "table")}
    request = Request(**form, say=said.append)
    given["tables"] = parse_words(tables or "")
    given["without"] = parse_words(without or "")
    conditions = Conditions(**given)
    with target(output, request.format, "capture") as path:
        done = cut(sources, path, conditions, clock=clock, request=request)
    if not quiet:
        sentences = f": {'; '.join(done.sentences)}" if done.sentences else ""
        say_written(output, f"{done.rows:,} of {done.total:,} rows{sentences}")
        if done.coverage:
            say(f"in the whole trace, {done.coverage}")
        say(*said, *done.missing)
