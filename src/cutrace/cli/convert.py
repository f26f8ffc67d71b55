"""cutrace convert: captures to a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from ..outputs import size_of
from ..units import format_size, printable


@click.command(short_help="Turn captures into a trace for ui.perfetto.dev.")
@click.argument(
    "sources", nargs=-1, required=True, metavar="CAPTURE...", type=click.Path(path_type=Path, readable=False)
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
    required=True,
    help="Trace to write; its ending says the format: .pftrace, .pftrace.gz, ... (docs/cli.md lists all).",
)
@click.option("--start", metavar="TIME", help="Leave out what ends before: 1.5s after the begin, or @ and nanoseconds.")
@click.option("--end", metavar="TIME", help="Leave out what starts at this time or later.")
@click.option(
    "--compress", type=click.Choice(["zstd", "deflate"]), help="Compress groups of packets; Perfetto reads both."
)
@click.option(
    "--derived/--no-derived", default=True, help="Show what follows from records: NVTX on streams, counters, waits."
)
@click.option("--table", metavar="NAME", help="The table to write, for formats that hold one.")
@click.option(
    "--capture/--no-capture",
    default=None,
    help="Carry the capture in the file, so that it opens again as that capture; "
    "the default for a .pftrace that is not compressed.",
)
@click.option("--lenient", is_flag=True, help="End with status 0 even if parts of a source could not be used.")
@click.option("--redact", is_flag=True, help="Leave out command lines, host names and paths.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def convert(
    sources: tuple[Path, ...],
    output: Path,
    start: str | None,
    end: str | None,
    compress: Literal["zstd", "deflate"] | None,
    derived: bool,
    table: str | None,
    capture: bool | None,
    lenient: bool,
    redact: bool,
    quiet: bool,
) -> int:
    """Turn CAPTURE, or several as one, into a trace for ui.perfetto.dev or another format.

    What is no capture is imported: traces of torch.profiler, Nsight Systems and others. Ends with status 1 when parts
    of such a file could not be used.

    Times are a number with a unit (s, ms, us, ns, m; seconds without one) from the first record of the capture, or @
    and nanoseconds, as the tables of `cutrace stats` show them.
    """
    from ..conversion import check_destination, write
    from ..exporters.base import Request
    from ..loading import opened
    from ..slicing import moment
    from ..trace import Trace
    from ..trace.selection import Selection, window

    def select(trace: Trace) -> Selection | None:
        first, last = (None if text is None else moment(trace, text) for text in (start, end))
        if first is not None and last is not None and last <= first:
            raise click.UsageError("--end is not after --start")
        return window(trace, first, last)

    check_destination(output, sources)
    with opened(sources, redacted=redact, select=select) as trace:
        with _progress(shown=not quiet and sys.stderr.isatty()) as progress:
            request = Request(compress=compress, derived=derived, table=table, capture=capture, progress=progress)
            write(trace, output, request)
        if not quiet:
            click.echo(f"cutrace: {output}: {format_size(size_of(output))}", err=True)
            for sentence in trace.quality.sentences():
                click.echo(f"cutrace: {printable(sentence)}", err=True)
        return 1 if not lenient and any(file.lost for file in trace.imports) else 0


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on the terminal."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("converting"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("converting", total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance
