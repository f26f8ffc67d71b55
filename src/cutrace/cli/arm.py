"""cutrace arm: run a command on standby."""

from __future__ import annotations

import os
import signal
from typing import Any

import click

from ..collect import environment
from ..collect.command import find_command
from ..collect.options import Options, completed
from ..errors import CutraceError
from . import options
from .record import KINDS_OF_ACTIVITY, warn_of_others


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--]",
    epilog=KINDS_OF_ACTIVITY,
)
@options.recording("arm")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def arm(command: tuple[str, ...], **given: Any) -> None:
    """Run COMMAND so that `cutrace attach` can record its processes at any time. It records nothing by itself.

    The options are defaults for `cutrace attach`. COMMAND replaces this process, so it has its pid.
    """
    executable = find_command(command[0])
    variables = environment.injection(completed(Options.of(**given)), None)
    warn_of_others()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these signals, and the command would inherit this.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(executable, command, {**os.environ, **variables})
    except OSError as error:
        raise CutraceError(
            f"cannot run {command[0]}: {error.strerror}. Check that it runs without cutrace."
        ) from None
