"""The quality of a trace: losses, unknown times, and GPU work that seems to start before its launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runbin.blocks import Damage
from ..runbin.layout import GPU_WORK, LOSS_REASONS
from ..units import count_of
from .launches import REMEMBERED_BITS, CallBlocks

if TYPE_CHECKING:
    from .process import Process
    from .trace import Trace

# Losses that the program or its user caused: ranges without a start or an end, and rows older than the rows to keep.
_INTENDED = ("nvtx_open", "nvtx_unmatched_pop", "let_go")
_MEANINGS = dict(LOSS_REASONS.values())
_NUMBERS = {name: number for number, (name, _) in LOSS_REASONS.items()}


@dataclass(frozen=True)
class Loss:
    """A number (``count``) of records that the capture does not hold. Some reasons count other things.

    ``reason`` is a name of ``LOSS_REASONS``, ``meaning`` describes the counted things. ``detail`` names the activity
    kind, file or error. ``process`` is the index of the process.
    """

    reason: str
    meaning: str
    count: int
    detail: str
    process: int


def counted_loss(count: int, meaning: str) -> str:
    """The count and the meaning of a loss: ``2 records that CUPTI dropped``. The first word of ``meaning`` is the
    noun."""
    noun, _, rest = meaning.partition(" ")
    return f"{count_of(count, noun)} {rest}"


def summed(losses: Iterable[Loss], notes: Sequence[str]) -> dict[str, int]:
    """The counts of losses over all processes, by a sentence with count, meaning and detail. Refused kinds of activity
    are left out if ``notes`` name them, because the note also has the error."""
    counts: Counter[str] = Counter()
    for loss in losses:
        named = (
            f"CUPTI refused to record {loss.detail} (",
            f"{loss.detail} is not recorded: ",
        )
        if loss.reason != "kind_refused" or not any(
            text.startswith(named) for text in notes
        ):
            text = loss.meaning
            if loss.detail:
                text += f" ({loss.detail})"
            counts[text] += loss.count
    counted = {}
    for text, count in counts.items():
        counted[counted_loss(count, text)] = count
    return counted


def located(damage: Damage) -> str:
    """The reason of a damage, with its position and extent if a part of the file is unusable."""
    if not damage.size:
        return damage.reason
    extent = count_of(damage.size, "byte")
    if damage.rows:
        extent += f", {count_of(damage.rows, 'row')}"
    return f"{damage.reason} at byte {damage.offset:,} ({extent})"


def unfinished(processes: Iterable[Process]) -> Iterator[Loss]:
    """A loss for each process whose capture was not closed in order. The loss limits the time that may be missing.

    The collector cannot count the unwritten rows of such a process: it still runs, or ended by ``os._exit`` or a
    signal.
    """
    for process in processes:
        if not process.complete:
            bound = f"process {process.pid} ({process.name}): at most its last {process.flush_ms} ms and a flush"
            yield Loss("not_closed", _MEANINGS["not_closed"], 1, bound, process.index)


def unreadable(damage: Iterable[Damage]) -> Iterator[Loss]:
    """A loss for each damage. A damage without a known number of rows counts as one. No process is known, so it is the
    first."""
    for part in damage:
        lost = max(part.rows, 1)
        yield Loss("unreadable", _MEANINGS["unreadable"], lost, part.reason, 0)


@dataclass(frozen=True)
class EarlyStart:
    """GPU work that starts before the API call that launched it. The cause is an error of CUPTI's clock conversion.
    cutrace reports it and never repairs it. ``checked`` is the number of rows whose launch was found."""

    checked: int
    count: int
    largest_ns: int


@dataclass(frozen=True)
class Quality:
    """The missing and the uncertain data of a trace.

    ``unknown`` counts, by table, the rows without known times (``Trace.unknown`` has them). ``never_ended`` counts the
    rows among these that start and never end. ``losses`` are records missing from the file, ``damage`` is an unreadable
    part of it. ``incomplete`` has the indices of processes whose capture was not closed in order. ``notes`` are
    sentences of the collector.
    """

    unknown: dict[str, int]
    losses: tuple[Loss, ...]
    damage: tuple[Damage, ...]
    incomplete: tuple[int, ...]
    notes: tuple[str, ...]
    never_ended: dict[str, int] = field(default_factory=dict)

    @property
    def lossless(self) -> bool:
        """Whether the trace has no losses, no damage and no unknown times."""
        return not (self.losses or self.damage or any(self.unknown.values()))

    @property
    def lacks_records(self) -> bool:
        """Whether records are lost. Ranges that never ended, and older rows with ``--last``, do not count."""
        return not self._lost.lossless

    @property
    def _lost(self) -> Quality:
        """The part of the quality that is about lost records."""
        losses = [loss for loss in self.losses if loss.reason not in _INTENDED]
        unknown = Counter(self.unknown)
        unknown.subtract(self.never_ended)
        return replace(
            self,
            unknown=unknown,
            losses=tuple(losses),
            notes=(),
            never_ended={},
        )

    def doubt(self, absent: str) -> str:
        """The sentence of an error that something is ``absent`` in the trace. If records are lost, it may be among
        them, so the first loss follows."""
        first = next(self._lost.sentences(), "")
        if not first:
            return absent
        if absent[-1] not in ".?":
            absent += "."
        return f"{absent} The trace lacks records: {first}"

    def of(self, processes: Collection[int]) -> Quality:
        """The quality of some processes. Damage and unknown times are not counted by process, so they stay."""
        chosen = set(processes)
        losses = [loss for loss in self.losses if loss.process in chosen]
        incomplete = chosen.intersection(self.incomplete)
        indices = tuple(sorted(incomplete))
        return replace(self, losses=tuple(losses), incomplete=indices)

    def carried(self, notes: Iterable[str]) -> dict[str, Any]:
        """What a file without its capture says about its losses, as JSON. :meth:`.importers.base.Import.carried` reads
        it. ``notes`` are sentences about data that the file cannot hold."""
        every = (*self.losses, *unreadable(self.damage))
        losses = [(loss.reason, loss.count, loss.detail) for loss in every]
        for table, unknown in self.unknown.items():
            count = unknown - self.never_ended.get(table, 0)
            detail = f"{table} without known times"
            if count:
                losses.append(("unreadable", count, detail))
        return {
            "losses": losses,
            "notes": [*self.notes, *notes],
        }

    def sentences(self) -> Iterator[str]:
        """One sentence for each kind of loss, damage and note."""
        yield from summed(self.losses, self.notes)
        for table, unknown in self.unknown.items():
            lasting = self.never_ended.get(table, 0)
            count = unknown - lasting
            if count:
                yield f"{count_of(count, 'row')} of {table} without known times: sums and timelines leave them out"
            if lasting:
                yield (
                    f"{count_of(lasting, 'row')} of {table} that never ended: they last to the end of their process, "
                    "and sums leave out their own time"
                )
        yield from map(located, self.damage)
        yield from self.notes


def losses_of_the_file(trace: Trace) -> list[dict[str, Any]]:
    """The losses that the file of a trace shows and its table ``losses`` lacks: processes whose capture was not closed,
    and damage. They are rows of that table, with strings in place of ids. Reads all blocks."""
    rows = []
    for loss in (*unfinished(trace.processes), *unreadable(trace.quality.damage)):
        row = {
            "time": 0,
            "count": loss.count,
            "reason": _NUMBERS[loss.reason],
            "process": loss.process,
            "detail": loss.detail,
        }
        rows.append(row)
    return rows


def early_starts(trace: Trace) -> dict[str, EarlyStart]:
    """Compare the start of all GPU work with the start of its API call, table by table.

    Memory is bounded: the last 2^20 calls of a process are remembered. A row whose call is forgotten is not checked.
    """
    processes = trace.infos_by_process((*GPU_WORK, "api_calls"))
    out = {}
    for table in GPU_WORK:
        checked = 0
        count = 0
        largest = 0
        for blocks in processes:
            infos = blocks.get(table)
            if not infos:
                continue
            of_calls = blocks.get("api_calls", ())
            calls = CallBlocks(trace.block, of_calls, REMEMBERED_BITS)
            for info in sorted(infos, key=lambda info: info.last_time):
                calls.read_until(info.last_time + 1)
                rows, _ = trace.block(info)
                found = calls.find(rows["correlation"])
                known = found.known
                starts = rows["start"][known].astype(np.int64)
                lead = found.start[known] - starts
                early = lead[lead > 0]
                checked += len(lead)
                count += len(early)
                largest = max(largest, int(early.max(initial=0)))
        if checked:
            out[table] = EarlyStart(checked, count, largest)
    return out
