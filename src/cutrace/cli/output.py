"""How verbs print: sentences on stderr, tables on stdout or in a file that is there whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from ..outputs import replacing, size_of
from ..units import format_size, printable


def say(message: str) -> None:
    """One sentence for the user, on stderr."""
    click.echo(f"cutrace: {printable(message)}", err=True)


def say_written(output: Path, more: str = "") -> None:
    """What was written, with its size."""
    say(f"{output}: {format_size(size_of(output))}{more}")


def put(pieces: Iterable[str], output: Path | None) -> None:
    """Write text in pieces. What UTF-8 cannot hold is escaped. Who reads stdout may stop when they have enough."""
    if output is None:
        try:
            for piece in pieces:
                click.echo(piece, nl=False)
        except BrokenPipeError:
            # Python would complain once more when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    with (
        replacing(output) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        file.writelines(pieces)


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is, None when it is none: then lines may have any length."""
    if not sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80
