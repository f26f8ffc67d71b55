"""cutrace open: a trace in ui.perfetto.dev."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ..errors import CutraceError
from ..serving import PORT, UI, Server
from ..units import format_duration, parse_duration, printable

# How files begin that Perfetto reads as they are: its own traces (of packets, field 1), ZIP and TAR.
_TRACE, _ZIP, _TAR, _TAR_AT = b"\x0a", b"PK\x03\x04", b"ustar", 257


@click.command(short_help="Show a trace in ui.perfetto.dev.")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, readable=False))
@click.option("--no-browser", is_flag=True, help="Print the link and start no browser.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=PORT,
    help=f"Port of the loopback interface; {PORT} is the one that the page may fetch from.",
)
@click.option(
    "--timeout",
    metavar="TIME",
    default="5m",
    help="Give up when nobody has fetched the trace by then; 5m unless given.",
)
def open(source: Path, no_browser: bool, port: int, timeout: str) -> int:
    """Show FILE in ui.perfetto.dev, in the browser of this machine, with the plugins for GPU compute.

    What is no trace for Perfetto is converted first. The trace does not leave the machine: the page fetches it from
    here. Ends when it was fetched.
    """
    patience = parse_duration(timeout)
    with _for_perfetto(source) as path, Server(path, port=port) as server:
        if no_browser:
            click.echo(server.link)
        else:
            click.echo(f"cutrace: opening {server.link}", err=True)
            if not webbrowser.open_new_tab(server.link):
                click.echo("cutrace: no browser could be started: open the link yourself", err=True)
        if port != PORT:
            click.echo(
                f"cutrace: {UI} fetches from port {port} only while its flag 'Relax Content Security Policy for "
                "127.0.0.1:*' is on",
                err=True,
            )
        if not server.serve(patience / 1e9):
            raise CutraceError(
                f"nobody fetched the trace in {format_duration(patience)}: open the link in a browser here"
            )
    click.echo("cutrace: the page has the trace", err=True)
    return 0


@contextmanager
def _for_perfetto(source: Path) -> Iterator[Path]:
    """A file that Perfetto reads: the source, or a temporary trace made of it."""
    from ..importers.base import Source

    head = Source.at(source).head
    if head.startswith((_TRACE, _ZIP)) or head.startswith(_TAR, _TAR_AT):
        yield source
        return
    from ..conversion import write
    from ..loading import opened
    from ..outputs import scratch

    with scratch() as folder, opened(source) as trace:
        path = folder / f"{source.name.partition('.')[0] or 'run'}.pftrace"
        write(trace, path)
        for sentence in trace.quality.sentences():
            click.echo(f"cutrace: {printable(sentence)}", err=True)
        yield path
