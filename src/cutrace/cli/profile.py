"""cutrace profile: hardware metrics of chosen kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CutraceError
from ..units import count_of
from . import options
from .output import put, say, say_written, terminal_width

if TYPE_CHECKING:
    from ..analysis.tables import Cell, Table
    from ..metrics.profiling import Profile

_DEFAULT = "speed-of-light,occupancy"


@click.command(context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] [--]")
@options.output("Capture to write (.bin), with the metrics beside what was recorded.", default="run.bin")
@click.option(
    "--metrics", "names", metavar="SET|NAME,...", default=_DEFAULT, show_default=True,
    help="What to count: sets and names of `cutrace metrics`.",
)  # fmt: skip
@click.option("--kernel", metavar="REGEX", help="Kernels whose demangled name this is found in; else all.")
@click.option(
    "--nvtx", metavar="RANGE", help="Only launches inside NVTX ranges of this name, as `cutrace slice` takes it."
)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out the first so many launches that match.")
@click.option("--count", type=click.IntRange(min=1), help="Profile at most so many launches that match.")
@options.form(["table", "csv", "json", "markdown"])
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def profile(
    output: Path,
    names: str,
    kernel: str | None,
    nvtx: str | None,
    skip: int,
    count: int | None,
    form: str,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND twice: once recorded, once to count hardware metrics of the launches that the filters choose.

    In the second run each chosen launch is replayed as often as the metrics need passes; the memory that it writes is
    restored in between, so COMMAND computes the same. The times in the capture are those of the first run. --skip and
    --count are of each process. COMMAND has to launch the same in both runs. The exit status is that of COMMAND.
    """
    from ..collect.command import record_command
    from ..collect.options import Options, completed
    from ..loading import load
    from ..metrics import profiling
    from ..metrics.cupti import Cupti
    from ..metrics.host import Chip, first_chip
    from ..metrics.sets import chosen
    from ..outputs import check_output, scratch

    check_output(output)
    cupti = Cupti.found()
    name = first_chip(cupti)
    if name is None:
        raise CutraceError("there is no GPU here whose counters could be read: `cutrace doctor` checks this machine")
    with Chip(cupti, name) as chip:
        config = chip.configure(chosen(chip, names))
    with scratch() as folder:
        began = time.monotonic()
        recording = record_command(command, folder / "run.bin", completed(Options()))
        first = time.monotonic() - began
        if recording.status or recording.output is None:
            reason = f"ended with {recording.status}" if recording.status else "made no CUDA call that could be seen"
            say(f"nothing was profiled: the command {reason} in its first run")
            return recording.status or 2
        with load(recording.output) as trace:
            launches, in_graphs = profiling.choose(trace, kernel, nvtx, skip, count)
            say(
                f"counting {count_of(len(config.names), 'metric')} of {count_of(len(launches), 'launch')} in "
                f"{count_of(config.passes, 'pass')} each; the first run took {first:.1f} s"
            )
            if in_graphs:
                say(
                    f"left out: {count_of(in_graphs, 'launch')} inside CUDA graphs, which cannot be replayed one by one"
                )
            began = time.monotonic()
            done = profiling.profile(command, launches, config)
            second = time.monotonic() - began
            profiling.write(trace, done, output)
    for note in dict.fromkeys(done.notes):
        say(note)
    say_written(output, f", {count_of(len(done.values), 'launch')} profiled; the second run took {second:.1f} s")
    put(_pieces(done, form), None)
    return done.status or (0 if done.values else 2)


def _pieces(done: Profile, form: str) -> Iterator[str]:
    from ..reports.tables import render

    return render([_table(done)], form, width=terminal_width()) if done.values else iter(())


def _table(done: Profile) -> Table:
    from .._native import demangle
    from ..analysis.names import normalize_kernel
    from ..analysis.tables import Column, Table
    from ..metrics.profiling import unit_of

    columns = (
        Column("kernel", "text"), Column("launch"), Column("time", "ns"), Column("metric", "text"),
        Column("value", "number"), Column("unit", "text", spare=True),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for launch, values in done.values:
        kernel, took = normalize_kernel(demangle(launch.kernel)), int(launch.row["end"] - launch.row["start"])
        rows += [
            (kernel, launch.ordinal, took, name, value, unit_of(name))
            for name, value in zip(done.names, values, strict=True)
        ]
    return Table("metrics", "Metrics of launches", columns, rows)
