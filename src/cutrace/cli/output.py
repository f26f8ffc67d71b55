"""Output of verbs: sentences on stderr, and tables on stdout or in a file. A file is complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CutraceError
from ..outputs import scratch, size_of, write_pieces
from ..units import format_size, printable
from .options import ROWS, as_options

if TYPE_CHECKING:
    from ..analysis.tables import Cell, Table

#: ``-`` as an output.
STDOUT = Path("-")
_PIECE = 1 << 20
# The formats that a terminal can show, by name.
_TEXT = ("chrome", "csv", "folded", "speedscope")


def say(*sentences: str) -> None:
    """Print sentences for the user on stderr, one on each line."""
    for sentence in sentences:
        _echo(f"cutrace: {printable(as_options(sentence))}")


def end_line() -> None:
    """End the line on which the terminal shows ``^C``."""
    _echo("")


def _echo(line: str) -> None:
    # A full or closed stderr does not change the status of a verb.
    with suppress(OSError):
        click.echo(line, err=True)


def say_written(output: Path, more: str = "") -> None:
    """Report the written file, with its size and ``more`` facts."""
    facts = []
    if output != STDOUT:
        facts.append(format_size(size_of(output)))
    if more:
        facts.append(more)
    if facts:
        say(f"{output}: {', '.join(facts)}")


@contextmanager
def target(output: Path, format: str | None, default: str) -> Iterator[Path]:
    """Yield the path of the trace to write. For ``-`` it is a temporary file of the named format, or of the ``default``
    format. It is copied to stdout at the end."""
    if output != STDOUT:
        yield output
        return
    from ..plugins import exporter

    chosen = exporter(output, format or default)
    if chosen.folder:
        raise click.UsageError(
            f"{chosen.description} cannot go to stdout: name a folder"
        )
    if sys.stdout.isatty() and chosen.name not in _TEXT:
        raise click.UsageError("- is stdout: redirect it to a file or a program")
    with scratch() as folder:
        path = folder / f"stdout{chosen.suffixes[0]}"
        yield path
        with path.open("rb") as file, _to_stdout():
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.flush()


@contextmanager
def progress(
    doing: str = "converting", *, enabled: bool
) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on the terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(doing),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


def put(pieces: Iterable[str], output: Path | None = None) -> None:
    """Write a string, given in pieces. Without an output it goes to stdout. Characters that UTF-8 cannot hold are
    escaped. A closed stdout is not an error."""
    if output is not None and output != STDOUT:
        write_pieces(output, pieces)
        return
    with _to_stdout():
        for piece in pieces:
            click.echo(piece, nl=False)


def put_json(kind: str, **values: object) -> None:
    """Print an object as JSON."""
    put([json.dumps({"format": 1, "kind": kind, **values}, indent=2), "\n"])


def put_tables(
    kind: str,
    tables: Sequence[Table],
    form: str,
    output: Path | None = None,
    *,
    limit: int | None = 0,
    style: Callable[[Table, tuple[Cell, ...]], str] | None = None,
    head: Sequence[str] = (),
    verdict: str = "",
    missing: Sequence[str] | None = None,
    whole: bool = False,
    **about: object,
) -> None:
    """Write tables in a format of :func:`cutrace.reports.tables.render`, with its parameters. On stdout they fit the
    terminal and have styles. ``limit`` None means 20 rows in formats for people. In these formats, ``head`` are the
    first lines and ``verdict`` is the last line. ``missing`` are sentences on missing data, for JSON, Markdown and
    files. Text on stdout lacks them, because verbs print them on stderr. With ``whole``, an error in the rows leaves
    stdout empty. JSON also has the ``kind``, and ``about`` with facts on all tables."""
    from ..reports.tables import no_style, notes, render

    to_stdout = output in (None, STDOUT)
    if limit is None:
        limit = ROWS
        if form in ("csv", "json"):
            limit = 0
    width = None
    if to_stdout:
        width = terminal_width()
        style = style or no_style
    else:
        style = None
    if missing is not None:
        about["missing"] = list(missing)
    pieces = render(
        tables,
        form,
        limit=limit,
        width=width,
        about={"kind": kind, **about},
        style=style,
    )
    if head:
        pieces = chain([f"{line}\n" for line in (*head, "")], pieces)
    if missing and (form == "markdown" or not to_stdout):
        pieces = chain(pieces, notes(map(as_options, missing), form))
    if verdict and form != "json":
        pieces = chain(pieces, ["\n" * bool(tables), f"{verdict}\n"])
    if not (whole and to_stdout):
        put(pieces, output)
        return
    with scratch() as folder:
        write_pieces(folder / "stdout", pieces)
        with (folder / "stdout").open(encoding="utf-8", newline="") as file:
            put(iter(lambda: file.read(_PIECE), ""))


@contextmanager
def _to_stdout() -> Iterator[None]:
    """Ignore a closed stdout. Raise :class:`CutraceError` for other errors of stdout."""
    try:
        yield
    except OSError as error:
        if error.filename:  # The error is from a file that is read at the same time.
            raise
        refused = unwritable_stdout(error)
        if not isinstance(error, BrokenPipeError):
            raise refused from None


def unwritable_stdout(error: OSError) -> CutraceError:
    """Return the error for a stdout that cannot be written, and drop its buffered output."""
    # Otherwise Python would report the error again when it closes stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    reason = error.strerror or "it is closed"
    return CutraceError(
        f"cannot write to stdout: {reason}. Redirect it to another place."
    )


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout. None without a terminal: lines may then have any length."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None
