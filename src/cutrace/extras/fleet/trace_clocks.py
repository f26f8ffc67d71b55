"""The clock errors of an open trace, from the collectives in it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...analysis.gpu import communicates
from ...trace import Trace
from ...trace.alignment import Alignment
from .collectives import calls
from .matching import Job
from .model import BatchOptions, Part, RankTrace


@dataclass(frozen=True)
class _PartOfTrace(Part):
    """A part in memory, without a file."""

    content: Any = None

    def table(self) -> Any:
        return self.content


def clock_errors_of(trace: Trace) -> dict[int, int]:
    """The time (ns) that the clock of each process is ahead of the clock of the trace, from the ends of collectives.
    Processes with an unknown error are left out. Without pyarrow, the result is empty."""
    names = trace.strings.take(trace.launches["name"], communicates)
    boots = {process.boot_id for process in trace.processes}
    if len(boots) < 2 or not names.any() or not find_spec("pyarrow"):
        return {}
    parts = []
    for process in trace.processes:
        rank = RankTrace(trace, (process.index,))
        part = _PartOfTrace(
            path=Path(),
            label=process.name,
            job="",
            rank=process.index,
            source="",
            clock=Alignment(),
            host=process.host,
            boot=process.boot_id,
            content=calls(rank, BatchOptions(), on_wall_clock=False),
        )
        if part.content.num_rows:
            parts.append(part)
    of_clock = [row for row, part in enumerate(parts) if part.boot == trace.clock]
    if not of_clock:
        return {}
    job = Job.of(parts)
    reference = of_clock[0]
    comparable = job.comparable(int(job.clocks[reference]))
    by_process = {}
    by_boot = {}
    for row, part in enumerate(parts):
        if int(job.clocks[row]) in comparable:
            error = round(job.ahead[row] - job.ahead[reference])
            by_process[part.rank] = error
            by_boot[part.boot] = error
    # Processes without collectives have the error of their boot's clock.
    for process in trace.processes:
        if process.boot_id and process.boot_id in by_boot:
            by_process[process.index] = by_boot[process.boot_id]
    return by_process
