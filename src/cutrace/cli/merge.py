"""cutrace merge: many traces on one timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ..outputs import size_of
from ..units import format_size, printable


@click.command(short_help="Put the traces of ranks and machines on one timeline.")
@click.argument("sources", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, readable=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
    required=True,
    help="What to write: a capture (.bin), an archive of one trace a file for Perfetto (.tar), or any format that "
    "`cutrace convert` writes.",
)
@click.option(
    "--name", "names", metavar="NAME", multiple=True, help="Name of a rank, once for each FILE in their order."
)
@click.option("--ranks", is_flag=True, help="Name them rank 0, rank 1, ... in the order of the files.")
@click.option(
    "--compress", type=click.Choice(["zstd", "deflate"]), help="Compress groups of packets of a trace for Perfetto."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def merge(
    sources: tuple[Path, ...],
    output: Path,
    names: tuple[str, ...],
    ranks: bool,
    compress: Literal["zstd", "deflate"] | None,
    quiet: bool,
) -> int:
    """Put FILE..., one of each rank or machine, on the timeline of the first.

    Files of one machine share its clock; machines are aligned by their wall clocks, as far as clock snapshots tell. A
    line for each file says how, and how well. Ranks get the names given, or the rank that a file tells, or its name.
    """
    if names and ranks:
        raise click.UsageError("--name and --ranks exclude each other")
    from ..exporters.base import Request
    from ..merging import merge as write

    done = write(sources, output, names=names, number=ranks, request=Request(compress=compress))
    if not quiet:
        for rank in done:
            click.echo(f"cutrace: {printable(rank.sentence())}", err=True)
        click.echo(f"cutrace: {output}: {format_size(size_of(output))}", err=True)
    return 0
