"""Names, ids and tracks that the whole trace shares.

Interned ids mean something only within a packet sequence; here they are given out once for the whole trace, so
that a piece of an event, once encoded, fits every sequence that has been told its entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from ...trace import Process, Trace
from .sequence import Interned

#: Values of InternedGraphicsContext.Api and of GpuApi.
CUDA = 4

#: The category of events that are no records themselves, but follow from records.
DERIVED = "cutrace.derived"


#: The field that holds the text of an entry, where it is not ``name``.
_TEXT = {"debug_annotation_string_values": "str"}


class Names:
    """Interned ids of names, by field of InternedData."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[tuple[str, Hashable], int]] = {}

    def entry(self, field: str, name: str, of: Hashable = None) -> Interned:
        """The entry of a name, with a new id if it was not there; ``of`` tells equal names apart."""
        ids = self._ids.setdefault(field, {})
        iid = ids.setdefault((name, of), len(ids) + 1)
        return Interned(field, iid, {_TEXT.get(field, "name"): name})


class Needs(list[Interned]):
    """The interned entries that an event refers to, gathered while its constant part is described. With ``style`` the
    name of the event has an id that no other style has, so that the id says which style it is."""

    def __init__(self, names: Names, style: Hashable = None) -> None:
        super().__init__()
        self._names, self._style = names, style

    def name(self, field: str, name: str) -> int:
        """The id of a name."""
        entry = self._names.entry(field, name, self._style if field == "event_names" else None)
        self.append(entry)
        return entry.iid

    def add(self, entry: Interned) -> int:
        """The id of an entry that was made elsewhere."""
        self.append(entry)
        return entry.iid

    def annotations(self, /, **values: int | float | str | None) -> list[dict[str, Any]]:
        """Debug annotations, without those that are None or 0."""
        return [self._argument("debug_annotation_names", n, v) for n, v in values.items() if v is not None and v != 0]

    def compute_args(self, /, **values: int | float | str | None) -> list[dict[str, Any]]:
        """Arguments of a kernel or a launch, without those that are None."""
        return [self._argument("compute_arg_names", n, v) for n, v in values.items() if v is not None]

    def _argument(self, field: str, name: str, value: int | float | str) -> dict[str, Any]:
        out: dict[str, Any] = {"name_iid": self.name(field, name)}
        if isinstance(value, str):
            out["string_value_iid"] = self.name("debug_annotation_string_values", value)
        elif isinstance(value, float):
            out["double_value"] = value
        else:
            out["uint_value" if value >= 0 else "int_value"] = value
        return out


class Numbers:
    """Numbers that must not repeat in one trace: packet sequences and track uuids."""

    def __init__(self) -> None:
        self._sequence = 1  # the sequence of packets about the trace as a whole
        self._uuid = 0

    def sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def uuid(self) -> int:
        self._uuid += 1
        return self._uuid


def pids(trace: Trace) -> list[int]:
    """A process id for each process of the trace. Viewers know processes by this number, so a process whose pid was
    another's too (on another machine, or reused) gets one that no system gives out."""
    taken: set[int] = set()
    out = []
    for process in trace.processes:
        pid = process.pid
        if pid in taken or not 0 < pid < 1 << 31:
            pid = next(p for p in range((1 << 30) + process.index, 1 << 31) if p not in taken)
        taken.add(pid)
        out.append(pid)
    return out


class ThreadNames:
    """The name of each thread: the last one given, NVTX before the operating system."""

    def __init__(self, trace: Trace) -> None:
        self._names: dict[tuple[int, int], str] = {}
        for row in trace.threads[np.argsort(trace.threads["source"], kind="stable")]:
            self._names[int(row["process"]), int(row["thread"])] = trace.strings[int(row["name"])]

    def get(self, process: int, thread: int) -> str | None:
        return self._names.get((process, thread))


def process_label(process: Process, pid: int) -> str:
    """What tells a process from the others in the name of a queue."""
    return f"{process.name} ({pid})"


def lost_sentences(
    trace: Trace, unknown: dict[str, int], spilled: int, detached: int, unsought: int, unlooked: int
) -> Iterator[tuple[str, int]]:
    """What is missing or was moved, as (sentence, count), for the notices of the trace."""
    losses: Counter[tuple[str, str]] = Counter()
    for loss in trace.named_losses:
        losses[loss.meaning, loss.detail] += loss.count
    for (meaning, detail), count in losses.items():
        yield f"{meaning} ({detail})" if detail else meaning, count
    for table, count in unknown.items():
        if count:
            yield f"{table} without known times, not shown", count
    for damage in trace.damage:
        yield f"{damage.reason} at byte {damage.offset} of the capture, {damage.size} bytes", damage.rows
    for process in trace.processes:
        notes = process.info.get("notes")
        for note in notes if isinstance(notes, list) else ():
            yield str(note), 0
    if spilled:
        yield "slices that overlap others of their thread, shown on a track of their own", spilled
    if detached:
        yield "steps of arrows that lie in no slice, not shown", detached
    if unsought:
        yield "synchronizations, too many to look for what they waited for", unsought
    if unlooked:
        yield "NVTX ranges on streams, too many to look for the work in them", unlooked
