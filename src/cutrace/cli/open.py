"""cutrace open: show a trace in ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..serving import PORT
from . import options
from .output import say

if TYPE_CHECKING:
    from ..loading import Clock


@click.command()
@click.argument("source", metavar="FILE", type=options.SOURCE)
@click.option("--no-browser", is_flag=True, help="Print the link and start no browser.")
@click.option(
    "--port",
    metavar="N",
    type=options.Integer(1, 65535),
    default=PORT,
    help=f"Port of the loopback interface; the page fetches from {PORT} only.",
)
@click.option(
    "--timeout",
    metavar="TIME",
    default="5m",
    help="How long to wait for the page to fetch the trace; 5m unless given.",
)
@options.clock
def open(source: Path, no_browser: bool, port: int, timeout: str, clock: Clock) -> None:
    """Show FILE in ui.perfetto.dev, in the browser of this machine, with the plugins for GPU compute.

    A file that Perfetto does not read is converted first. The trace does not leave the machine: the page fetches it
    from here. The command ends when the page has it.
    """
    from .. import api

    api.open(
        source,
        browser=not no_browser,
        port=port,
        timeout=timeout,
        clock=clock,
        say=_say,
    )
    say("the page has the trace")


def _say(message: str) -> None:
    # Programs need the link without a sentence.
    click.echo(message) if message.startswith("https:") else say(message)
