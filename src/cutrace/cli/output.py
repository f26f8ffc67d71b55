"""Output of verbs: sentences on stderr, tables on stdout or in a file, which is complete or absent."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ..outputs import replacing, scratch, size_of
from ..units import format_size, printable

#: ``-`` as an output.
STDOUT = Path("-")
_PIECE = 1 << 20
# The formats that a terminal can show, by name.
_TEXT = ("chrome", "csv", "folded", "speedscope")


def say(message: str) -> None:
    """Print one sentence for the user on stderr."""
    click.echo(f"cutrace: {printable(message)}", err=True)


def say_written(output: Path, more: str = "") -> None:
    """Report the written file, with its size."""
    say(f"{output}: {'' if output == STDOUT else format_size(size_of(output))}{more}")


@contextmanager
def target(output: Path, format: str | None, default: str) -> Iterator[Path]:
    """Yield the path of the trace to write. For ``-`` it is a temporary file that is copied to stdout at the end, of
    the named format, or of the ``default`` one."""
    if output != STDOUT:
        yield output
        return
    from ..plugins import exporter

    chosen = exporter(output, format or default)
    if chosen.folder:
        raise click.UsageError(f"{chosen.description} cannot go to stdout: name a folder")
    if sys.stdout.isatty() and chosen.name not in _TEXT:
        raise click.UsageError("- is stdout: redirect it to a file or a program")
    with scratch() as folder:
        path = folder / f"stdout{chosen.suffixes[0]}"
        yield path
        try:
            with path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.flush()
        except BrokenPipeError:
            _ignore_stdout()


@contextmanager
def progress(doing: str = "converting", *, enabled: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on the terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


def put(pieces: Iterable[str], output: Path | None) -> None:
    """Write text in pieces. What UTF-8 cannot hold is escaped. A closed stdout is not an error."""
    if output is None or output == STDOUT:
        try:
            for piece in pieces:
                click.echo(piece, nl=False)
        except BrokenPipeError:
            _ignore_stdout()
        return
    with (
        replacing(output) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        file.writelines(pieces)


def put_whole(pieces: Iterable[str], output: Path | None) -> None:
    """Like :func:`put`, but if making a piece raises an error, nothing was written to stdout either."""
    if output is not None and output != STDOUT:
        put(pieces, output)
        return
    with scratch() as folder:
        path = folder / "stdout"
        put(pieces, path)
        with path.open(encoding="utf-8", newline="") as file:
            put(iter(lambda: file.read(_PIECE), ""), None)


def _ignore_stdout() -> None:
    # Otherwise Python would report the closed pipe again when it closes stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout, None without a terminal: then lines may have any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
