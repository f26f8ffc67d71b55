"""What a trace cannot say: losses, unknown times, and GPU work that seems to start before its launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..runbin.blocks import Damage

if TYPE_CHECKING:
    from .process import Process
    from .trace import Trace

#: Tables of GPU work that an API call launched.
GPU_WORK = ("kernels", "memcpys", "memsets", "graph_launches")

# Launches remembered while their GPU work is looked for; a power of two.
_REMEMBERED = 1 << 20


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

    Streams over the blocks with bounded memory: launches are remembered in a ring by correlation id, so a row whose
    launch is more than a million launches away in the file is not checked.
    """
    out = {}
    for table in GPU_WORK:
        infos = trace.block_infos(table)
        if not infos:
            continue
        checked = count = largest = 0
        launches = _Launches(trace)
        for info, rows in zip(infos, trace.blocks(table), strict=True):
            launches.read_until(info.last_time)
            lead = launches.lead(rows)
            checked += len(lead)
            early = lead[lead > 0]
            count += len(early)
            largest = max(largest, int(early.max())) if len(early) else largest
        if checked:
            out[table] = EarlyStart(checked, count, largest)
    return out


class _Launches:
    """The start of recent API calls by correlation id."""

    def __init__(self, trace: Trace) -> None:
        self._infos = iter(trace.block_infos("api_calls"))
        self._blocks = trace.blocks("api_calls")
        self._next = next(self._infos, None)
        self._key = np.zeros(_REMEMBERED, np.uint64)
        self._start = np.zeros(_REMEMBERED, np.uint64)

    def read_until(self, time: int) -> None:
        while self._next is not None and self._next.first_time <= time:
            rows = next(self._blocks)
            slot = rows["correlation"] & np.uint32(_REMEMBERED - 1)
            # Runtime calls come around the driver calls they make under the same id: the later, outer one stays.
            self._key[slot] = _key(rows)
            self._start[slot] = rows["start"]
            self._next = next(self._infos, None)

    def lead(self, rows: np.ndarray) -> np.ndarray:
        """How far (ns, signed) each row whose launch is remembered starts before it."""
        slot = rows["correlation"] & np.uint32(_REMEMBERED - 1)
        known = self._key[slot] == _key(rows)
        lead: np.ndarray = self._start[slot[known]].astype(np.int64) - rows["start"][known].astype(np.int64)
        return lead


def _key(rows: np.ndarray) -> np.ndarray:
    key: np.ndarray = (rows["process"].astype(np.uint64) + np.uint64(1)) << np.uint64(32) | rows["correlation"]
    return key
