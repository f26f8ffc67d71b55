"""The parts that importers of timelines share: processes and threads with ids of any type, strings, times, and the
account.

An :class:`ImportTimeline` takes rows with the reader's string ids, and writes them with the string ids of each process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np

from .._native import Keys
from ..runbin import TABLES, Writer
from ..runbin.writer import NewIds
from ..trace_events import NO_PROCESS
from .base import Import, object_of, rows_of
from .events import EventReader, Events, Flag

#: The first id that cutrace assigns to processes and threads if their id in the file is not an id of an operating
#: system. Assigned ids fit into 31 bits, because some viewers need this for threads.
FIRST_MADE_UP = 2_000_000_000

#: The times of rows must be above 0. If the first events of a file start before _EARLIEST (ns), a multiple of _SHIFT is
#: added to all times. Times before _ABSURD are errors.
_EARLIEST = 10**9
_SHIFT = 10**15
_ABSURD = -(10**17)
_LATEST = 2**63 - 1
#: The largest number of processes: each needs an open file during the import.
MOST_PROCESSES = 200


class Outcome(IntEnum):
    """The outcome of an event: the method of the account that counts it, and the reason."""

    method: str
    why: str

    def __new__(cls, number: int, method: str, why: str = "") -> Outcome:
        outcome = int.__new__(cls, number)
        outcome._value_ = number
        outcome.method = method
        outcome.why = why
        return outcome

    KEPT = 0, "kept"
    NO_TIME = 1, "lost", "no time"
    BAD_TIME = 2, "lost", "the time is not a number"
    BAD_DURATION = 3, "lost", "the duration is not a number"
    NEGATIVE = 4, "lost", "the duration is negative"
    RANGE = 5, "lost", "the time is beyond 64 bits"
    # A recording that starts in the middle of a program has end events without begin events.
    NO_BEGIN = 6, "left", "an end without a start"
    FULL = 7, "lost", "more functions than a capture can hold"
    NO_VALUES = 8, "lost", "no value is a number"
    PHASE = 9, "left", "no table holds events of this phase"
    REDUNDANT = 10, "left", "correlation ids have the same information"
    OF_DEVICE = 11, "left", "a capture has its own tables of devices and streams"
    TOO_MANY = 12, "left", "more than the limit of a process"


_OUTCOMES = tuple(Outcome)


def sums(values: np.ndarray, groups: np.ndarray, count: int) -> list[int]:
    """The exact sums of int64 values by group (below ``count``). Sums may exceed 64 bits."""
    high = np.zeros(count, np.int64)
    low = np.zeros(count, np.int64)
    np.add.at(high, groups, values >> 32)
    np.add.at(low, groups, values & 0xFFFFFFFF)
    halves = zip(high.tolist(), low.tolist(), strict=True)
    return [(upper << 32) + lower for upper, lower in halves]


def match_begin_end(
    keys: np.ndarray, times: np.ndarray, begins: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Match begin and end events. An end event matches the last open begin event of its key.

    ``keys`` (a number, such as a thread), ``times`` and ``begins`` (bool) have one entry for each event. Events of the
    same time keep their order. Returns three arrays of indices: of the begin events, of the end event of each (-1 for
    none), and of the end events without a begin event. The indices have no particular order.
    """
    order = np.lexsort((times, keys))
    steps = np.where(begins[order], 1, -1)
    # Events of earlier keys shift all depths of a key by the same number.
    depth = np.cumsum(steps)
    keys = keys[order]
    level = np.where(begins[order], depth, depth + 1)
    # Begin and end events alternate in one level of a key. Only the first event can be an end event without a begin
    # event.
    nested = np.lexsort((level, keys))
    order = order[nested]
    keys = keys[nested]
    level = level[nested]
    first = np.ones(len(order), bool)
    first[1:] = keys[1:] != keys[:-1]
    first[1:] |= level[1:] != level[:-1]
    is_begin = begins[order]
    starts = np.flatnonzero(is_begin)
    following = np.append(np.where(first, -1, order), -1)
    without = order[first & ~is_begin]
    return order[starts], following[starts + 1], without


@dataclass
class _Process:
    """A process of the file, its string ids in the capture by ids of the reader, and its assigned thread ids."""

    writer: Writer
    texts: NewIds
    made_up: dict[int | bytes | None, int] = field(default_factory=dict)


class ImportTimeline:
    """A capture that is being built from timed events. ``label`` names a kind of events for the account, by phase and
    category."""

    def __init__(
        self, out: Import, reader: EventReader, label: Callable[[str, str], str]
    ) -> None:
        self.out = out
        self.reader = reader
        self._label = label
        self._processes: list[_Process] = []
        self._index_of: dict[Any, int] = {}
        self._thread_process = np.zeros(0, np.int64)
        self._thread_id = np.zeros(0, np.uint32)
        self._shared: int | None = None
        self._offset: int | None = None
        self._distinct: dict[str, Keys] = {}
        #: The threads, by process and number, that have a name in the file.
        self.named_threads: set[tuple[int, int]] = set()
        #: A time (of rows) near the start of the file; 0 if the file has no times.
        self.first = 0
        self._leftovers: dict[str, Counter[int]] = {}
        # The numbers of events that became rows, by category.
        self._kept: Counter[int] = Counter()

    # Processes and threads

    def process_index(self, pid: Any) -> int:
        """The index of the process with this id in the file: an int, bytes (a string) or None (no id). All processes
        after the first :data:`MOST_PROCESSES` share one process, with a thread for each of their threads."""
        if pid in self._index_of:
            return self._index_of[pid]
        made_up = FIRST_MADE_UP + len(self._processes)
        if len(self._processes) >= MOST_PROCESSES:
            if self._shared is None:
                self._shared = self._begin_process(
                    made_up, "other processes", source_pid=None
                )
                self.out.note(
                    f"The file has more than {MOST_PROCESSES} processes: the others are shown as one."
                )
            return self._shared
        if _is_usual(pid):
            index = self._begin_process(pid, "")
        else:
            source_pid = readable(pid)
            name = f"process {source_pid}"
            if pid in (None, b""):
                name = NO_PROCESS
            elif isinstance(pid, bytes):
                name = source_pid
            index = self._begin_process(made_up, name, source_pid=source_pid)
        self._index_of[pid] = index
        return index

    def _begin_process(self, number: int, name: str, **info: Any) -> int:
        index = len(self._processes)
        key = ("timeline", index)
        writer = self.out.process(
            key, pid=number, name=name, time_offset_ns=self.offset, **info
        )
        texts = NewIds(lambda ids: list(map(writer.string, self.reader.texts(ids))))
        self._processes.append(_Process(writer, texts))
        return index

    def known_process(self, pid: Any) -> bool:
        """Whether this process has rows."""
        return pid in self._index_of

    def writer(self, process: int) -> Writer:
        return self._processes[process].writer

    def foreign_ids(self, process: int, correlations: np.ndarray) -> None:
        """:meth:`.Import.foreign_ids` of a process."""
        self.out.foreign_ids(("timeline", process), correlations)

    @property
    def process_count(self) -> int:
        return len(self._processes)

    def thread_number(self, process: int, tid: Any, pid: Any = None) -> int:
        """The thread id in the capture: the file's id if it is a valid number, else an assigned one. In the shared
        process, ``pid`` is part of the thread's id."""
        if process == self._shared:
            tid = _as_bytes(pid) + b"/" + _as_bytes(tid)
        if _is_usual(tid):
            return int(tid)
        made_up = self._processes[process].made_up
        return made_up.setdefault(tid, FIRST_MADE_UP + len(made_up))

    def threads(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Processes and thread ids for indices of the reader's threads."""
        known = len(self._thread_id)
        new = len(indices) and int(indices.max()) >= known
        if new or (self._thread_process[indices] < 0).any():
            self._learn_threads(np.unique(indices))
        return self._thread_process[indices], self._thread_id[indices]

    def _learn_threads(self, indices: np.ndarray) -> None:
        known = self.reader.threads
        more = len(known) - len(self._thread_id)
        unknown = np.full(more, -1, np.int64)
        self._thread_process = np.append(self._thread_process, unknown)
        self._thread_id = np.append(self._thread_id, np.zeros(more, np.uint32))
        new = indices[self._thread_process[indices] < 0]
        for index in new.tolist():
            pid, tid = known[index]
            process = self.process_index(pid)
            self._thread_process[index] = process
            self._thread_id[index] = self.thread_number(process, tid, pid)

    # Strings

    def text(self, text: bytes | str) -> int:
        """The id of any string, which need not be in the file; 0 for an empty one."""
        if isinstance(text, str):
            text = text.encode("utf-8", "replace")
        return self.reader.scanner.text_id(text)

    def texts_of(self, numbers: np.ndarray) -> np.ndarray:
        """The ids of numbers as strings."""
        which, inverse = np.unique(numbers, return_inverse=True)
        texts = [self.text(str(number)) for number in which.tolist()]
        return np.array(texts, np.uint32)[inverse]

    def by_text(
        self, ids: np.ndarray, make: Callable[[str], Any], kind: Any = np.int64
    ) -> np.ndarray:
        """Apply ``make`` to strings, once for each distinct string. Returns an array of type ``kind``."""
        which, inverse = np.unique(ids, return_inverse=True)
        made = np.empty(len(which), kind)
        for i, text in enumerate(self.reader.texts(which)):
            made[i] = make(text.decode("utf-8", "replace"))
        return made[inverse]

    def one_text(self, text: int) -> str:
        (value,) = self.reader.texts(np.array([text]))
        return value.decode("utf-8", "replace")

    # Times

    @property
    def offset(self) -> int:
        """The offset (ns) added to the file's times."""
        return self._offset or 0

    def begin(self, batch: Iterable[Events]) -> None:
        """Determine the offset of times from the first events of the file."""
        if self._offset is not None:
            return
        times = [np.zeros(0, np.int64)]
        for events in batch:
            timed = (events.flags & Flag.TIME) > 0
            times.append(events.times[timed & (events.times > _ABSURD)])
        known = np.concatenate(times)
        if not len(known):
            return
        first = int(known.min())
        self._offset = 0
        if first < _EARLIEST:
            shifts = 1 - min(first, 0) // _SHIFT
            self._offset = shifts * _SHIFT
        self.first = first + self._offset

    def starts(self, events: Events) -> tuple[Events, np.ndarray, np.ndarray]:
        """The events with a usable time, their times in rows, and the outcomes of all events."""
        outcome = np.zeros(len(events), np.uint8)
        earliest = 1 - self.offset
        latest = _LATEST - self.offset
        untimed = (events.flags & Flag.TIME) == 0
        unusable = (events.flags & Flag.BAD_TIME) > 0
        outcome[events.times < earliest] = Outcome.RANGE
        outcome[events.times > latest] = Outcome.RANGE
        outcome[untimed] = Outcome.NO_TIME
        outcome[unusable] = Outcome.BAD_TIME
        kept = events.select(outcome == Outcome.KEPT)
        offset = np.int64(self.offset)
        start = kept.times + offset
        return kept, start.astype(np.uint64), outcome

    def spans(
        self, events: Events
    ) -> tuple[Events, np.ndarray, np.ndarray, np.ndarray]:
        """The events with usable times, their starts and ends in rows (an end is 0 without a duration), and the
        outcomes of all events."""
        kept, start, outcome = self.starts(events)
        timed = (kept.flags & Flag.DURATION) > 0
        durations = np.where(timed, kept.durations, 0)
        of_kept = np.zeros(len(kept), np.uint8)
        unusable = (kept.flags & Flag.BAD_DURATION) > 0
        of_kept[unusable] = Outcome.BAD_DURATION
        left = _LATEST - start.astype(np.int64)
        of_kept[durations > left] = Outcome.RANGE
        of_kept[durations < 0] = Outcome.NEGATIVE
        outcome[outcome == Outcome.KEPT] = of_kept
        good = of_kept == Outcome.KEPT
        end = start + durations.astype(np.uint64)
        end[~timed] = 0
        return kept.select(good), start[good], end[good], outcome

    # Rows

    def add(self, table: str, processes: np.ndarray, **fields: Any) -> None:
        """:meth:`put` for rows with these fields."""
        self.put(table, processes, rows_of(table, len(processes), **fields))

    def add_once(self, table: str, processes: np.ndarray, **fields: Any) -> None:
        """:meth:`add` rows for new combinations of a process and fields."""
        if not len(processes):
            return
        columns = {}
        for name, values in fields.items():
            columns[name] = np.broadcast_to(values, processes.shape)
        _, first = self.distinct(table, processes, *columns.values())
        new = {name: values[first] for name, values in columns.items()}
        self.add(table, processes[first], **new)

    def distinct(
        self, table: str, *columns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Number the distinct combinations of column values from 0, over all calls for a table. Returns the number of
        each row, and the rows with new combinations."""
        keys = self._distinct.setdefault(table, Keys(len(columns)))
        return keys.ids([np.ascontiguousarray(column, np.int64) for column in columns])

    def put(self, table: str, processes: np.ndarray, rows: np.ndarray) -> None:
        """Write rows whose strings are ids of the reader. ``processes`` has the process index of each row."""
        if not len(rows):
            return
        texts = [f.name for f in TABLES[table].fields if f.type == "string"]
        if (processes != processes[0]).any():
            order = np.argsort(processes, kind="stable")
            processes = processes[order]
            rows = rows[order]
        differs = processes[1:] != processes[:-1]
        cuts = np.flatnonzero(differs) + 1
        edges = [0, *cuts.tolist(), len(rows)]
        for begin, end in pairwise(edges):
            part = rows[begin:end]
            process = self._processes[int(processes[begin])]
            for name in texts:
                part[name] = process.texts[part[name]]
            process.writer.rows(table, part)

    # The account

    def account(
        self,
        phases: np.ndarray,
        categories: np.ndarray,
        outcomes: np.ndarray,
        durations: Any = 0,
    ) -> None:
        """Count events and their outcomes. ``durations`` are 0 for events without one."""
        if not len(phases):
            return
        durations = np.broadcast_to(np.int64(durations), phases.shape)
        key = phases.astype(np.uint64) << np.uint64(40)
        key |= categories.astype(np.uint64) << np.uint64(8)
        key |= outcomes.astype(np.uint64)
        which, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        totals = sums(durations, inverse, len(which))
        sums_of = zip(which.tolist(), counts.tolist(), totals, strict=True)
        for kind, count, duration in sums_of:
            phase = kind >> 40
            category = kind >> 8 & 0xFFFFFFFF
            self.count(phase, category, kind & 0xFF, count, duration)

    def count(
        self, phase: int, category: int, outcome: int, count: int = 1, duration: int = 0
    ) -> None:
        """Count events of one kind with one outcome; ``duration`` is the sum of their durations."""
        how = _OUTCOMES[outcome]
        self.out.count(how.method, self.kind(phase, category), count, duration, how.why)
        if how is Outcome.KEPT:
            self._kept[category] += count

    def kept_of(self, category: str) -> int:
        """The number of events of a category that became rows."""
        return self._kept[self.text(category)]

    def account_events(self, events: Events, outcomes: np.ndarray) -> None:
        """:meth:`account` for whole events."""
        timed = (events.flags & Flag.DURATION) > 0
        durations = np.where(timed, events.durations, 0)
        self.account(events.phases, events.categories, outcomes, durations)

    def leave_arguments(self, events: Events) -> None:
        """Count the other arguments of these events as left out."""
        arguments = events.arguments[events.arguments > 0]
        if len(arguments):
            known = self._leftovers.setdefault(self.kind_of(events), Counter())
            ids, counts = np.unique(arguments, return_counts=True)
            known.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))

    def leave_columns(self, events: Events, noun: str, *columns: str) -> None:
        """Count the values of these columns as left out. ``noun`` is key or argument."""
        for column in columns:
            count = events.count(column)
            if count:
                name = column.removesuffix(" text")
                self.out.left(f"{noun} {name} of {self.kind_of(events)}", count)

    def kind(self, phase: int, category: int) -> str:
        """The name in the account of events of a phase and category (an id)."""
        return self._label(chr(phase), self.one_text(category))

    def kind_of(self, events: Events) -> str:
        """The kind of events of one phase and category."""
        phase = int(events.phases[0])
        return self.kind(phase, int(events.categories[0]))

    # The end

    def finish(self) -> None:
        """Count the arguments that are left out, and write the names of threads with assigned ids."""
        for what, texts in self._leftovers.items():
            names: Counter[str] = Counter()
            arguments = self.reader.texts(np.array(list(texts)))
            for text, count in zip(arguments, texts.values(), strict=True):
                names.update(dict.fromkeys(object_of(text), count))
            for name, count in names.items():
                self.out.left(f"argument {name} of {what}", count)
        for index, process in enumerate(self._processes):
            if process.made_up:
                self._write_made_up(index, process)

    def _write_made_up(self, index: int, process: _Process) -> None:
        """Write the file's ids of threads that have assigned ids. They become the names of threads without a name."""
        source_threads = {}
        threads = []
        names = []
        for tid, thread in process.made_up.items():
            source_threads[str(thread)] = readable(tid)
            if tid is not None and (index, thread) not in self.named_threads:
                threads.append(thread)
                name = _as_bytes(tid)
                names.append(process.writer.string(name))
        process.writer.process({"source_threads": source_threads})
        rows = rows_of("threads", len(threads), thread=threads, name=names, source=1)
        process.writer.rows("threads", rows)


def _is_usual(id_: Any) -> bool:
    """Whether an id of the file can be an id of an operating system."""
    if not isinstance(id_, int):
        return False
    return 0 <= id_ < FIRST_MADE_UP


def _as_bytes(id_: int | bytes | None) -> bytes:
    if isinstance(id_, bytes):
        return id_
    return str(id_).encode()


def readable(id_: Any) -> Any:
    if isinstance(id_, bytes):
        return id_.decode("utf-8", "replace")
    return id_
