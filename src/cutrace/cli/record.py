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
from ..collect.command import record_command
from ..collect.options import API_MODES, GRAPH_MODES, KINDS, Options, completed
from ..errors import CutraceError
from ..outputs import size_of
from ..units import count_of, format_size
from . import options
from .output import STDOUT, say, say_written

if TYPE_CHECKING:
    from ..trace import Trace


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--]",
    epilog="Kinds: " + ", ".join(KINDS) + ".",
)
@options.output(
    "Capture to write (.bin), or a trace in any format of `cutrace convert`. A .pftrace carries the capture; others "
    "have it beside them.",
    default="run.bin",
)
@click.option("--kinds", metavar="KIND,...", help="Record these kinds of activity only (listed below).")
@click.option(
    "--api",
    type=click.Choice(API_MODES),
    help="CUDA calls to record: those that launch, copy, synchronise, allocate or load; all; none.  [default: launch]",
)
@click.option(
    "--cuda-graph",
    type=click.Choice(GRAPH_MODES),
    help="Record each node of a CUDA graph, or each replay as one row, which costs less.  [default: node]",
)
@click.option("--no-nvtx", is_flag=True, help="Do not record NVTX.")
@click.option(
    "--annotate",
    multiple=True,
    metavar="NAME",
    help="Put a range around each call of a Python function: package.module.function, or patterns such as "
    "'mylib.*:step'. May be repeated.",
)
@click.option(
    "--stacks",
    metavar="KIND,...",
    help="Record the Python stacks of calls that synchronise, allocate, copy or launch: sync, alloc, copy, launch, or "
    "launch:1/N for one launch in N.",
)
@click.option("--stacks-min", metavar="TIME", help="Record stacks of calls that take at least TIME only, e.g. 20us.")
@click.option("--code", is_flag=True, help="Record hash, registers, memory and size of kernels' machine code.")
@click.option(
    "--capture-range",
    metavar="profiler|nvtx:NAME",
    help="Record only between cudaProfilerStart() and cudaProfilerStop(), or inside NVTX ranges of this name.",
)
@click.option(
    "--capture-range-end",
    metavar="stop|repeat[:N]",
    help="Record one capture range, all of them, or the first N.  [default: repeat]",
)
@click.option("--max-memory", metavar="SIZE", help="Host memory the collector may use in a process, e.g. 64MiB.")
@click.option("--max-size", metavar="SIZE", help="Size limit of a process's file, e.g. 2GiB.")
@click.option(
    "--last",
    metavar="TIME",
    help="Keep only the last TIME, e.g. 30s, before the end. SIGUSR2 writes it to run-1.bin, run-2.bin, ...",
)
@click.option("--rotate", is_flag=True, help="At --max-size drop the oldest rows instead of new ones.")
@click.option(
    "--dump-when",
    multiple=True,
    metavar="CONDITION",
    help="Write such a file when 'nvtx:NAME > 1.5s', 'nvtx:NAME > 3x median', 'gpu idle > 500ms' or 'memory > 70GiB'. "
    "Needs --last or --rotate; may be repeated.",
)
@click.option("--dump-limit", type=int, metavar="N", help="Files of each condition.  [default: 5]")
@click.option("--dump-pause", metavar="TIME", help="Least time between two files of a condition.  [default: 30s]")
@click.option("--share", is_flag=True, help="Ask for a CUPTI that serves other tools too (13.5 and later).")
@click.option(
    "--sample",
    multiple=True,
    metavar="metrics[=SET|NAME,...]|pc[=CYCLES]",
    help="Sample hardware counters of all GPUs over time: SM, tensor cores, DRAM, NVLink, PCIe, or those named. pc: "
    "sample at which instructions warps are, and why they wait there.",
)
@click.option("--interval", metavar="TIME", help="Time between two samples of metrics, e.g. 200us.  [default: 1ms]")
@options.redact
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: Path, command: tuple[str, ...], **given: Any) -> int:
    """Run COMMAND and record the CUDA and NVTX activity of its processes.

    The exit status is that of COMMAND (128 + n if signal n ended it), or 2 if it could not be run.
    """
    chosen = completed(Options.of(**arguments_of(given)))
    check_name(output)
    warn_of_others()
    recording = record_command(command, output, chosen)
    say(*(f"process {pid} still runs: {output} has what it had written by now" for pid in recording.running))
    if recording.trouble:
        say(recording.trouble)
    if recording.output is None:
        left = f" {output} is that of an earlier run." if output.exists() else ""
        if chosen.records_windows:
            say(f"nothing was recorded: {chosen.never_opened} in a process of the command.{left}")
        else:
            say(
                f"nothing was recorded: the command made no CUDA or NVTX call that could be seen.{left} "
                "`cutrace doctor` checks this machine."
            )
    else:
        if not recording.processes:
            say("the command made no CUDA or NVTX call that could be seen: there are only samples")
        summarize(recording, recording.output)
    return recording.status


def check_name(output: Path) -> None:
    """Refuse stdout as the output. Say that an output will be a capture, if its ending is nearly that of a format."""
    from ..plugins import misspelt

    if output == STDOUT:
        raise click.UsageError("A recording cannot go to stdout: name a file with -o")
    if hint := misspelt(output):
        say(f"{output} will be a capture: {hint}")


def warn_of_others() -> None:
    """Say which other tools are replaced for the command."""
    for name, library in environment.others(os.environ).items():
        say(f"{name} was set to {library} by another tool: cutrace replaces it for this command")


def arguments_of(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of :meth:`Options.of` for the options of the command line."""
    arguments = dict(given)
    if arguments.pop("no_nvtx"):
        arguments["nvtx"] = False
    if "sample" in arguments:
        if len(sample := arguments["sample"]) > 1:
            raise CutraceError("CUPTI cannot sample metrics and program counters together: give --sample once")
        arguments["sample"] = sample[0] if sample else None
    return arguments


def summarize(recording: Recording, output: Path) -> None:
    """Print a line on the recording, a line for each loss and note, and on a terminal the next commands."""
    from ..loading import load
    from ..trace.quality import summed

    with load(recording.capture) as trace:
        counts = [
            count_of(recording.processes, "process"),
            count_of(trace.count("kernels"), "kernel"),
            *(count_of(n, noun) for table, noun in _NOUNS.items() if (n := trace.count(table))),
            format_size(size_of(recording.capture)),
        ]
        say(f"{recording.capture}: {', '.join(counts)}")
        # Headers and a few rows suffice for these; `cutrace info` reads the whole capture.
        say(*(f"not recorded: {count:,} {text}" for text, count in summed(trace.named_losses, trace.notes).items()))
        say(*trace.notes)
        say(*not_annotated(trace))
    if output != recording.capture:
        say_written(output)
    if sys.stderr.isatty():
        name = shlex.quote(str(recording.capture))
        say(f"next: `cutrace open {name}` or `cutrace stats {name}`")


def not_annotated(trace: Trace) -> Iterator[str]:
    """Sentences on the names of ``--annotate`` that had a range in no process. None when a process was killed."""
    options = ((process.info, process.info.get("options")) for process in trace.processes)
    asked = [info for info, given in options if isinstance(given, dict) and isinstance(given.get("annotate"), str)]
    in_place = [info["annotated"] for info in asked if isinstance(info.get("annotated"), list)]
    if not in_place:
        yield from dict.fromkeys(
            f"no function is annotated: {info['not_annotated']}" for info in asked if "not_annotated" in info
        )
    elif all("annotated" in info or "not_annotated" in info for info in asked):
        names = dict.fromkeys(name for info in asked for name in info["options"]["annotate"].split(","))
        yield from (annotate.unused(name) for name in names if not any(name in found for found in in_place))


_NOUNS = {
    "memcpys": "copy",
    "api_calls": "API call",
    "nvtx_ranges": "NVTX range",
    "nvtx_marks": "NVTX mark",
    "counters": "sampled value",
    "pc_samples": "PC sample row",
}
