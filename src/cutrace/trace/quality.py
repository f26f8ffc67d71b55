"""What a trace cannot say: losses, unknown times, and GPU work that seems to start before its launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .._native import Calls
from ..runbin.blocks import Damage

if TYPE_CHECKING:
    from .process import Process
    from .trace import Trace

#: Tables of GPU work that an API call launched.
GPU_WORK = ("kernels", "memcpys", "memsets", "graph_launches")

# Launches remembered while their GPU work is looked for: 2^20.
_REMEMBERED_BITS = 20


@dataclass(frozen=True)
class Loss:
    """``count`` records (or what ``reason`` counts) that the capture does not hold.

    ``reason`` is a name of ``LOSS_REASONS`` or ``not_closed`` (see :func:`unfinished`), ``meaning`` its sentence,
    ``detail`` what it is about, ``process`` whose capture it is.
    """

    reason: str
    meaning: str
    count: int
    detail: str
    process: int


def unfinished(processes: Iterable[Process]) -> Iterator[Loss]:
    """A loss for each process whose capture was not closed in order, with the bound of what it may lack.

    The collector cannot count what a process takes with it that leaves by ``os._exit``, a signal or SIGKILL, nor what
    one that still runs has yet to write.
    """
    for process in processes:
        if not process.complete:
            bound = f"process {process.pid} ({process.name}): at most its last {process.flush_ms} ms and a flush"
            meaning = "process was killed or still runs: its capture was not closed in order and may lack its end"
            yield Loss("not_closed", meaning, 1, bound, process.index)


@dataclass(frozen=True)
class EarlyStart:
    """GPU work whose start lies before the start of the API call that launched it: an error of CUPTI's clock
    conversion, which cutrace reports and never repairs. ``checked`` rows had their launch in reach."""

    checked: int
    count: int
    largest_ns: int


@dataclass(frozen=True)
class Quality:
    """How far a trace can be trusted.

    ``unknown`` counts, by table, the rows set apart because their times are not known (``Trace.unknown`` has
    them); ``losses`` and ``damage`` say what is not in the file, or in it and unreadable; ``incomplete`` has the
    indices of processes whose capture was not closed in order; ``notes`` are the collector's own sentences.
    """

    unknown: dict[str, int]
    losses: tuple[Loss, ...]
    damage: tuple[Damage, ...]
    incomplete: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def lossless(self) -> bool:
        """True when everything that was to be recorded is here, with its times."""
        return not (self.losses or self.damage or any(self.unknown.values()))

    def sentences(self) -> Iterator[str]:
        """One line for each thing that is missing, for people."""
        for loss in self.losses:
            detail = f" ({loss.detail})" if loss.detail else ""
            yield f"{loss.count:,} {loss.meaning}{detail}"
        for table, count in self.unknown.items():
            if count:
                yield f"{count:,} {table} without known times were set apart"
        for d in self.damage:
            rows = f", {d.rows:,} rows" if d.rows else ""
            where = f" at byte {d.offset:,} ({d.size:,} bytes{rows})" if d.size else ""
            yield f"{d.reason}{where}"
        yield from self.notes


def early_starts(trace: Trace) -> dict[str, EarlyStart]:
    """Compare the start of all GPU work with the start of its API call, table by table.

    Streams over the blocks of one process after the other with bounded memory: launches are remembered in a ring by
    correlation id, so a row whose launch is more than a million launches away is not checked.
    """
    processes, out = trace.infos_by_process((*GPU_WORK, "api_calls")), {}
    for table in GPU_WORK:
        checked = count = largest = 0
        for blocks in processes:
            launches = Calls(_REMEMBERED_BITS)
            unread = sorted(blocks.get("api_calls", []), key=lambda info: -info.first_time)
            for info in sorted(blocks.get(table, []), key=lambda info: info.last_time):
                while unread and unread[-1].first_time <= info.last_time:
                    rows = trace.block(unread.pop())[0]
                    launches.add(rows["correlation"], rows["start"], rows["thread"])
                rows = trace.block(info)[0]
                known, called, *_ = launches.find(rows["correlation"])
                lead = called[known] - rows["start"][known].astype(np.int64)
                early = lead[lead > 0]
                checked, count = checked + len(lead), count + len(early)
                largest = max(largest, int(early.max(initial=0)))
        if checked:
            out[table] = EarlyStart(checked, count, largest)
    return out
