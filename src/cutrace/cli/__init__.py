"""The command line. Each verb is a module, imported on call: ``cutrace --help`` imports none."""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from .. import plugins
from ..errors import CutraceError
from ..outputs import no_room
from ..plugins import Verb
from ..units import printable
from .options import Group, as_options, shown

#: The verbs of the core, each with its line in --help. A verb is the function with its name, in the module with its
#: name.
VERBS = {
    "record": "Run a command and record its GPU work.",
    "arm": "Run a command so that `cutrace attach` can record it at any time.",
    "attach": "Record a process that runs already.",
    "ps": "List the processes that `cutrace attach` can record.",
    "convert": "Convert captures to a trace for ui.perfetto.dev.",
    "info": "Show the contents of a capture.",
    "stats": "Show statistics of kernels, calls, copies, ranges and streams.",
    "sql": "Answer a question in SQL about the tables of a trace.",
    "diff": "Compare two traces, or captures with a golden file.",
    "slice": "Cut a part out of a trace.",
    "open": "Show a trace in ui.perfetto.dev.",
    "report": "Merge and compare reports of several jobs or commits.",
    "golden": "Create, check and accept golden files.",
    "doctor": "Check whether this machine can record, and what to do if not.",
}

#: Verbs of earlier versions, each with a sentence on its replacement.
MOVED = {
    "check": "The verb check is now a part of diff: cutrace diff GOLDEN.toml CAPTURE...",
    "demo": "The verb demo is gone: record a program of your own, or convert a capture of tests/data",
    "redact": "The verb redact is now an option: cutrace convert --redact FILE -o OUT",
    "roofline": "The verb roofline is now a part of a page: cutrace why FILE -o PAGE",
    "source": "The verb source is now an option: cutrace view --lines FILE... -o PAGE",
}


def _own_verbs() -> list[Verb]:
    lines = VERBS.items()
    core = []
    for name, line in lines:
        core.append(Verb(name, line, f"{__name__}.{name}:{name}"))
    return [*core, *plugins.of_extras("cutrace_verbs")]


def _all_verbs() -> list[Verb]:
    """The verbs of the core, of the extras and of other packages. If several verbs have the same name, the first one
    counts."""
    by_name: dict[str, Verb] = {}
    for verb in (*_own_verbs(), *plugins.others("cutrace_verbs")):
        by_name.setdefault(verb.name, verb)
    return list(by_name.values())


class _Verbs(Group):
    moved = MOVED

    def instead_of(self, name: str, similar: str) -> str:
        from .elsewhere import instead_of_verb

        return instead_of_verb(name, similar)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb.name for verb in _all_verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _named(_own_verbs(), cmd_name)
        if verb is None:
            verb = _named(plugins.others("cutrace_verbs"), cmd_name)
        if verb is None:
            return None
        module, _, function = verb.command.partition(":")
        try:
            command: click.Command = getattr(import_module(module), function)
        except (ImportError, AttributeError) as error:
            if module.startswith(f"{__package__.partition('.')[0]}."):
                raise
            raise CutraceError(
                f"the verb {verb.name} cannot be loaded: {error}. Update its package."
            ) from error
        command.short_help = verb.help
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb.name, verb.help) for verb in _all_verbs()])


def _named(verbs: Iterable[Verb], name: str) -> Verb | None:
    return next((verb for verb in verbs if verb.name == name), None)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    None,
    "-V",
    "--version",
    package_name="cutrace",
    message="cutrace %(version)s",
    help="Show the version.",
)
def cli() -> None:
    """Record what a program does on NVIDIA GPUs and view it in Perfetto.

    \b
    cutrace record -o run.bin -- python train.py
    cutrace convert run.bin -o run.pftrace
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0, the status that a verb returns, or 2 with one sentence on stderr."""
    # Output to a closed stdout is lost. This is an error.
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:  # Python sets a closed stream to None
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Signals raise an exception, so that half-written files are removed. A signal that the caller ignores (nohup)
        # stays ignored.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    status = status_of(arguments)
    try:
        sys.stderr.flush()
    except OSError:
        # Python would try again at its exit, and then change the status.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    sys.exit(status)


def _end(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def status_of(
    arguments: list[str] | None, defaults: dict[str, Any] | None = None
) -> int:
    """Run the command line. Returns the status that a verb returns, or 2 after one sentence on stderr. ``defaults`` are
    other defaults of options, by verb."""
    # click.echo() removes colours unless the output is a terminal. These variables remove them on a terminal, too.
    color = None
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        color = False

    def complain(message: object, *_: object, **__: object) -> int:
        head = click.style("cutrace:", fg="red")
        with suppress(OSError):  # stderr is full or closed
            # A name in a capture can have any characters.
            sentence = printable(shown(as_options(str(message))))
            click.echo(f"{head} {sentence}", err=True, color=color)
        return 2

    with warnings.catch_warnings():
        warnings.showwarning = complain  # type: ignore[assignment]
        try:
            status: int | None = cli.main(
                arguments,
                prog_name="cutrace",
                standalone_mode=False,
                color=color,
                default_map=defaults,
            )
            return status or 0
        except click.UsageError as error:
            from .elsewhere import instead_of_option

            message = instead_of_option(error)
            if not message:
                # Click puts choices on lines of their own.
                message = " ".join(error.format_message().split())
            if not message.endswith((".", "?")):
                message += "."
            path = "cutrace"
            if error.ctx:
                path = error.ctx.command_path
            return complain(f"{message} See `{path} --help`.")
        except click.ClickException as error:
            return complain(error.format_message())
        except (CutraceError, MemoryError, ImportError, OSError) as error:
            return complain(_sentence(error))
        except (click.exceptions.Abort, KeyboardInterrupt):
            return 130


def _sentence(error: Exception) -> str:
    """Return the message for an error. Raises the error again if it is a bug of cutrace."""
    from .output import unwritable_stdout

    text = str(error)
    if isinstance(error, CutraceError):
        return text
    # The messages of the loader of libraries when there is not enough memory.
    if (
        isinstance(error, MemoryError)
        or "failed to map segment" in text
        or "Cannot allocate memory" in text
    ):
        return "there is not enough memory: raise its limit (ulimit -v), or take a part of the trace (cutrace slice)"
    if not isinstance(error, OSError):
        raise error
    if _of_echo(error):
        return str(unwritable_stdout(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and not error.filename:
        return str(no_room(error.strerror))
    if isinstance(error, FileNotFoundError) and not error.filename:
        return "the current folder does not exist any more: change to another one"
    sentence = error.strerror or text
    if error.filename:
        sentence += f": {error.filename}"
    return sentence


def _of_echo(error: OSError) -> bool:
    """Whether the error is from click's output, such as the help of a verb."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and step.tb_frame.f_code.co_name == "echo"
