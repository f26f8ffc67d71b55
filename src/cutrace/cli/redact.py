"""cutrace redact: a capture to show to others."""

from __future__ import annotations

from pathlib import Path

import click

from ..units import format_size


@click.command(short_help="Write a capture without command lines, host names and paths.")
@click.argument("source", metavar="CAPTURE", type=click.Path(path_type=Path, readable=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
    required=True,
    help="Capture to write.",
)
def redact(source: Path, output: Path) -> int:
    """Write CAPTURE without command lines, host names and paths, to show it to others.

    Names of kernels and what the program itself told NVTX stay, but for paths in them: see docs/privacy.md.
    """
    from ..runbin.redaction import redact as write

    write(source, output)
    click.echo(f"cutrace: {output}: {format_size(output.stat().st_size)}", err=True)
    return 0
