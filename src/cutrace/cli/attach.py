"""cutrace attach: record a process that runs already."""

from __future__ import annotations

import itertools
import signal
from copy import copy
from pathlib import Path
from typing import Any

import click

from ..collect import Attachment, Options
from ..collect.command import signals_blocked
from ..errors import CutraceError
from ..units import parse_duration
from . import options
from .arm import arm
from .output import say
from .record import arguments_of, check_name, record, summarize


def _shared() -> list[click.Parameter]:
    """The options of `cutrace record`. Those of `cutrace arm` have no defaults here."""
    shared = [copy(option) for option in record.params if option.name not in ("output", "command")]
    given_before = {option.name for option in arm.params}
    for option in shared:
        if isinstance(option, click.Option) and option.help and option.name in given_before:
            option.help = option.help.partition("  [default:")[0]
    return shared


@click.command(params=_shared(), epilog=record.epilog)
@options.output(
    "Capture to write (.bin), or a trace in any format of `cutrace convert`, as for `cutrace record`.",
    default="run.bin",
)
@click.option("--for", "duration", metavar="TIME", help="Stop after this time, e.g. 10s.  [default: until Ctrl-C]")
@click.argument("pid", type=click.IntRange(min=1))
def attach(pid: int, output: Path, duration: str | None, **given: Any) -> None:
    """Record the CUDA and NVTX activity of process PID, which `cutrace arm` has started, until Ctrl-C or its end.

    The process goes on afterwards, and can be recorded again. Options that are not given are those of `cutrace arm`.
    """
    seconds = None if duration is None else parse_duration(duration) / 1e9
    attachment = Attachment(pid, output, Options.of(**arguments_of(given)))
    check_name(output)
    attachment.start()
    # A dump is for recordings of the newest rows, which `cutrace arm` may have asked for.
    signal.signal(signal.SIGUSR2, lambda *_: _dump(attachment))
    until = "Ctrl-C ends it" if seconds is None else f"for {duration}, or until Ctrl-C"
    try:
        with signals_blocked({signal.SIGUSR2}):  # its handler prints, too
            say(f"recording process {pid}: {until}")
        ended = attachment.wait(seconds)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if ended:
            say(f"process {pid} has ended")
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM, SIGHUP: the capture is written all the same
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        click.echo(err=True)
    recording = attachment.stop()
    for running in recording.running:
        say(f"process {running} still writes: {output} has what it had written by now")
    if recording.trouble:
        say(recording.trouble)
    if recording.output is None:
        raise CutraceError(f"nothing was recorded of process {pid}: run `cutrace ps`")
    summarize(recording, recording.output)


def _dump(attachment: Attachment) -> None:
    """Write a dump to the first free name of ``run-1.bin``, ``run-2.bin``, ..."""
    path = attachment.path.with_suffix(".bin")
    name = next(
        name for n in itertools.count(1) if not (name := path.with_name(f"{path.stem}-{n}{path.suffix}")).exists()
    )
    try:
        say(f"{name} holds the newest rows" if attachment.dump(name) else "there is nothing to dump yet")
    except CutraceError as error:
        say(str(error))
