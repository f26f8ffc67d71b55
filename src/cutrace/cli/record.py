"""cutrace record: run a command under the collector."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..collect import Recording, annotate, environment
from ..collect.command import recording_of
from ..collect.join import output_name
from ..collect.options import KINDS, Options, completed
from ..outputs import size_of
from ..units import count_of, format_size
from . import options
from .output import STDOUT, say, say_written

if TYPE_CHECKING:
    from ..trace import Trace


#: The last lines of the help of each verb that records.
KINDS_OF_ACTIVITY = f"Kinds: {', '.join(KINDS)}."


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--]",
    epilog=KINDS_OF_ACTIVITY,
)
@options.output(
    "Capture to write (.bin), or a trace in any format of `cutrace convert`. A .pftrace or .pftrace.gz embeds the "
    "capture; others have it beside them. In the name, %q{NAME} stands for an environment variable, %h for the host, "
    "%p for the process id, %i for the first free number.",
    default="run.bin",
)
@options.recording("record")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: Path, command: tuple[str, ...], **given: Any) -> int:
    """Run COMMAND and record the CUDA and NVTX activity of its processes.

    The exit status is the status of COMMAND (128 + n if signal n ended it), or 2 if it could not be run.
    """
    chosen = completed(Options.of(**given))
    output = output_name(output)
    check_name(output)
    warn_of_others()
    # The status of the command is returned even if Ctrl-C was pressed twice.
    with recording_of(command, output, chosen) as recording:
        _report(recording, output, chosen)
    return recording.status


def _report(recording: Recording, output: Path, chosen: Options) -> None:
    """Print a summary of the recording, or the reason why it is empty."""
    for pid in recording.running:
        say(f"process {pid} still runs: {output} has what it had written by now")
    if recording.output is None:
        say(f"nothing was recorded: {_why_nothing(recording, chosen)}")
        if output.exists():
            say(f"{output} is from an earlier run")
        return
    if recording.trouble:
        say(recording.trouble)
    if not recording.processes:
        say(
            "the command made no CUDA or NVTX call that could be seen: there are only samples"
        )
    summarize(recording)


def _why_nothing(recording: Recording, chosen: Options) -> str:
    if recording.trouble:
        return recording.trouble
    if chosen.records_windows:
        return f"{chosen.never_opened} in a process of the command."
    return (
        "the command made no CUDA or NVTX call that could be seen. "
        "`cutrace doctor` checks this machine."
    )


def check_name(output: Path) -> None:
    """Refuse stdout as the output."""
    if output == STDOUT:
        raise click.UsageError("A recording cannot go to stdout: name a file with -o")


def warn_of_others() -> None:
    """Warn of other tools, and of an outer recording, that cutrace replaces for the command."""
    if environment.recorded(os.environ):
        say(
            "this command is inside a recording by `cutrace record` or cutrace.arm(), which will lack its processes"
        )
    for name, library in environment.others(os.environ).items():
        say(
            f"{name} was set to {library} by another tool: cutrace replaces it for this command"
        )


def summarize(recording: Recording) -> None:
    """Print a line for each file of the recording, and a line for each loss and note. On a terminal, also print the
    next commands."""
    for part in recording.windows or (recording,):
        _summarize_file(part)


def _summarize_file(recording: Recording) -> None:
    from ..loading import load
    from ..trace.quality import summed

    with load(recording.capture) as trace:
        counts = [count_of(recording.processes, "process")]
        for table, noun in _NOUNS.items():
            rows = trace.count(table)
            if rows or table == "kernels":
                counts.append(count_of(rows, noun))
        counts.append(format_size(size_of(recording.capture)))
        say(f"{recording.capture}: {', '.join(counts)}")
        # Headers and a few rows suffice for these lines. `cutrace info` reads the whole capture.
        for text in summed(trace.named_losses, trace.notes):
            say(f"not recorded: {text}")
        say(*trace.notes)
        say(*not_annotated(trace))
    if recording.output not in (None, recording.capture):
        say_written(recording.output)
    if sys.stderr.isatty():
        name = shlex.quote(str(recording.capture))
        say(f"next: `cutrace open {name}` or `cutrace stats {name}`")


def not_annotated(trace: Trace) -> Iterator[str]:
    """Sentences on names of ``--annotate`` that matched no call in any process. There is no sentence if a process was
    killed."""
    names: dict[str, None] = {}
    annotated: list[Any] = []
    failures: dict[str, None] = {}
    killed = False
    any_annotated = False
    for process in trace.processes:
        info = process.info
        given = info.get("options")
        if not isinstance(given, dict):
            continue
        asked = given.get("annotate")
        if not isinstance(asked, str):
            continue
        names.update(dict.fromkeys(asked.split(",")))
        found = info.get("annotated")
        if isinstance(found, list):
            any_annotated = True
            annotated += found
        if "not_annotated" in info:
            failures[f"no function is annotated: {info['not_annotated']}"] = None
        elif "annotated" not in info:
            killed = True
    if not any_annotated:
        yield from failures
    elif not killed:
        for name in names:
            if name not in annotated:
                yield annotate.unused(name)


#: The tables whose rows are counted, with the nouns of the rows. The number of kernels is shown even if it is 0.
_NOUNS = {
    "kernels": "kernel",
    "memcpys": "copy",
    "api_calls": "API call",
    "nvtx_ranges": "NVTX range",
    "nvtx_marks": "NVTX mark",
    "counters": "sampled value",
    "pc_samples": "PC sample row",
}
