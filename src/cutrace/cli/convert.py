"""cutrace convert: convert captures to a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .output import STDOUT, progress, say, say_written, target

if TYPE_CHECKING:
    from ..loading import Clock


@click.command()
@options.sources("CAPTURE...")
@options.output(
    "Trace to write; its ending selects the format: .pftrace, .parquet, .sqlite, .csv, .json, .folded, "
    ".speedscope.json, .pb.gz or .bin."
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
@options.compress
@options.ranges
@click.option(
    "--derived/--no-derived",
    default=True,
    help="Include derived data: NVTX on streams, counters, waits.",
)
@options.table
@click.option(
    "--by",
    type=click.Choice(["range", "stack"]),
    default="range",
    show_default=True,
    help="The frames of a flame graph: NVTX ranges and operators, or Python frames.",
)
@click.option(
    "--capture/--no-capture",
    default=None,
    help="Embed the capture in the file, so that it opens again as that capture; the default for .pftrace and .sqlite.",
)
@click.option(
    "--lenient",
    is_flag=True,
    help="End with status 0 even if parts of a source could not be used.",
)
@options.clock
@options.redact
@options.quiet
def convert(
    sources: tuple[Path, ...],
    output: Path,
    start: str | None,
    end: str | None,
    lenient: bool,
    clock: Clock,
    redact: bool,
    quiet: bool,
    **request: Any,
) -> int:
    """Convert CAPTURE, or several as one, to a trace for ui.perfetto.dev or another format.

    Traces of torch.profiler, Nsight Systems and other tools are imported. Ends with status 1 when parts of such a file
    could not be used. As CAPTURE, - is stdin; as output it is stdout, with --format.

    Times are a number with a unit (s, ms, us, ns, m; seconds without one) from the first record of the capture, or @
    and nanoseconds, as in the tables of `cutrace stats`.
    """
    from ..conversion import check_destination, write
    from ..exporters.base import Request
    from ..loading import opened
    from ..trace.selection import window

    with target(output, request["format"], "perfetto") as path:
        check_destination(path, sources, request["format"], request["table"])
        with opened(
            sources,
            redacted=redact,
            clock=clock,
            select=lambda trace: window(trace, start, end),
        ) as trace:
            said: list[str] = []
            with progress(enabled=not quiet) as advance:
                made = Request(**request, progress=advance, say=said.append)
                write(trace, path, made)
            if not quiet:
                if output != STDOUT:
                    say_written(output)
                say(*said, *trace.quality.sentences())
            if not lenient and any(file.lost for file in trace.imports):
                return 1
            return 0
