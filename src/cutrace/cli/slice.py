"""cutrace slice: a part of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ..outputs import size_of
from ..units import format_size, printable

_NAME = "Exact, a pattern with * or ?, or /a regular expression/; may be repeated."


@click.command(short_help="Cut a part out of a trace.")
@click.argument("sources", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, readable=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
    required=True,
    help="What to write: a capture (.bin), or any format that `cutrace convert` writes.",
)
@click.option("--start", metavar="TIME", help="Leave out what ends before: 1.5s after the begin, or @ and nanoseconds.")
@click.option("--end", metavar="TIME", help="Leave out what starts at this time or later.")
@click.option("--nvtx", metavar="NAME", multiple=True, help=f"What was launched in NVTX ranges of this name. {_NAME}")
@click.option(
    "--index",
    metavar="N",
    default="all",
    help="Which of these ranges in each process: a number from 0, -1 for the last, 2:5, or all.",
)
@click.option("--same-thread", is_flag=True, help="Without what other threads launched during these ranges.")
@click.option("--test", metavar="ID", multiple=True, help=f"What these tests launched. {_NAME}")
@click.option("--process", metavar="P", multiple=True, help=f"Pid, index or name. {_NAME}")
@click.option("--gpu", metavar="GPU", multiple=True, help=f"Ordinal, UUID or name. {_NAME}")
@click.option("--stream", metavar="S", multiple=True, help=f"Id or name. {_NAME}")
@click.option("--kernel", metavar="NAME", multiple=True, help=f"Mangled, demangled or normalised name. {_NAME}")
@click.option("--tables", metavar="A,B", default="", help="Keep the events of these tables only: kernels,memcpys,...")
@click.option("--without", metavar="A,B", default="", help="Leave out the events of these tables: api_calls,...")
@click.option(
    "--compress", type=click.Choice(["zstd", "deflate"]), help="Compress groups of packets of a trace for Perfetto."
)
@click.option("--table", metavar="NAME", help="The table to write, for formats that hold one.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def slice(
    sources: tuple[Path, ...],
    output: Path,
    start: str | None,
    end: str | None,
    nvtx: tuple[str, ...],
    index: str,
    same_thread: bool,
    test: tuple[str, ...],
    process: tuple[str, ...],
    gpu: tuple[str, ...],
    stream: tuple[str, ...],
    kernel: tuple[str, ...],
    tables: str,
    without: str,
    compress: Literal["zstd", "deflate"] | None,
    table: str | None,
    quiet: bool,
) -> int:
    """Cut out of FILE, or of several as one, what meets all of the conditions.

    GPU work goes with its launch: a range or a test keeps what was launched in it, whenever that ran. Conditions on GPU
    work keep the calls that launched it and the ranges around these. Without conditions everything is kept but texts
    that nothing refers to. docs/slicing.md has the rules.
    """
    from ..exporters.base import Request
    from ..slicing import Conditions, cut

    conditions = Conditions(
        start=start,
        end=end,
        nvtx=nvtx,
        index=index,
        same_thread=same_thread,
        test=test,
        process=process,
        gpu=gpu,
        stream=stream,
        kernel=kernel,
        tables=_words(tables),
        without=_words(without),
    )
    done = cut(sources, output, conditions, request=Request(compress=compress, table=table))
    if not quiet:
        told = f": {'; '.join(done.told)}" if done.told else ""
        size = format_size(size_of(output))
        click.echo(f"cutrace: {output}: {size}, {done.rows:,} of {done.total:,} rows{printable(told)}", err=True)
        if not done.rows:
            click.echo("cutrace: nothing meets all of the conditions", err=True)
    return 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
