"""What importers of timelines share: processes and threads with ids of any kind, texts, times, and the account.

A :class:`Timeline` takes rows whose texts are ids of the reader, and writes them with the ids of the capture of each
process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from .._native import Keys
from ..runbin import TABLES, Writer
from .base import Import, object_of, rows_of
from .events import EventReader, Events, Flag

#: Ids from here on stand for processes and threads whose id in the file is no number that an operating system gives.
#: They fit into 31 bits, as ids of threads have to for some viewers.
FIRST_MADE_UP = 2_000_000_000

#: Row times have to be above 0. The times of a file that begins before the first of these (ns), by what comes first in
#: it, are shifted by a multiple of the second; those that begin before the third have something wrong with them.
_EARLIEST, _SHIFT, _ABSURD = 10**9, 10**15, -(10**17)
_LATEST = 2**63 - 1
#: Processes of a file that are told apart: each has a file of its own while the capture is made.
MOST_PROCESSES = 200


class Fate(IntEnum):
    """What became of an event: the word of the account, and why."""

    word: str
    why: str

    def __new__(cls, number: int, word: str, why: str = "") -> Fate:
        fate = int.__new__(cls, number)
        fate._value_, fate.word, fate.why = number, word, why
        return fate

    KEPT = 0, "kept"
    NO_TIME = 1, "lost", "no time"
    BAD_TIME = 2, "lost", "the time is no number"
    BAD_DURATION = 3, "lost", "the duration is no number"
    NEGATIVE = 4, "lost", "the duration is negative"
    RANGE = 5, "lost", "the time is beyond 64 bits"
    # A recording that begins in the middle of a program has such ends.
    NO_BEGIN = 6, "left", "an end without a begin"
    FULL = 7, "lost", "more functions than a capture can tell apart"
    NO_VALUES = 8, "lost", "no value is a number"
    PHASE = 9, "left", "a capture has nothing like this phase"
    REDUNDANT = 10, "left", "correlation ids say the same"
    OF_DEVICE = 11, "left", "a capture has devices and streams of its own"
    TOO_MANY = 12, "left", "more than are kept of a process"


def sums(values: np.ndarray, groups: np.ndarray, count: int) -> list[int]:
    """The exact sums of int64 by group (below ``count``), which may be beyond 64 bits."""
    high, low = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(high, groups, values >> 32)
    np.add.at(low, groups, values & 0xFFFFFFFF)
    return [(h << 32) + rest for h, rest in zip(high.tolist(), low.tolist(), strict=True)]


@dataclass
class _Process:
    """A process of the file, and how its texts are numbered in the capture."""

    writer: Writer
    texts: np.ndarray = field(default_factory=lambda: np.zeros(1024, np.uint32))
    made_up: dict[int | bytes | None, int] = field(default_factory=dict)


class Timeline:
    """A capture that is being made of timed events. ``label`` names a kind of events, for the account, by phase and
    category."""

    def __init__(self, out: Import, reader: EventReader, label: Callable[[str, str], str]) -> None:
        self.out, self.reader, self._label = out, reader, label
        self._processes: list[_Process] = []
        self._index_of: dict[Any, int] = {}
        self._thread_process = np.zeros(0, np.int64)
        self._thread_id = np.zeros(0, np.uint32)
        self._shared: int | None = None
        self._offset: int | None = None
        self._distinct: dict[str, Keys] = {}
        #: A moment (row time) near the begin of the file; 0 when it has no times.
        self.first = 0
        self._leftovers: dict[str, Counter[int]] = {}
        self._fates: dict[tuple[int, int, int], list[int]] = {}

    # Processes and threads

    def process_index(self, pid: Any) -> int:
        """The process with this id in the file: an int, bytes (a text) or None (an event without one). Beyond the first
        :data:`MOST_PROCESSES`, all are one, in which a thread is what a process and a thread of the file are."""
        if pid in self._index_of:
            return self._index_of[pid]
        if len(self._processes) >= MOST_PROCESSES:
            if self._shared is None:
                self._shared = self._begin_process(FIRST_MADE_UP + len(self._processes), "other processes", None)
                self.out.note(f"The file has more than {MOST_PROCESSES} processes: those beyond are shown as one.")
            return self._shared
        if isinstance(pid, int) and 0 <= pid < FIRST_MADE_UP:
            index = self._begin_process(pid, "")
        else:
            name = _readable(pid) if isinstance(pid, bytes) else ""
            index = self._begin_process(FIRST_MADE_UP + len(self._processes), name, _readable(pid))
        self._index_of[pid] = index
        return index

    def _begin_process(self, number: int, name: str, *source_pid: Any) -> int:
        index = len(self._processes)
        info = {"source_pid": source_pid[0]} if source_pid else {}
        key = ("timeline", index)
        self._processes.append(
            _Process(self.out.process(key, pid=number, name=name, time_offset_ns=self.offset, **info))
        )
        return index

    def known_process(self, pid: Any) -> bool:
        """Whether there are rows of this process."""
        return pid in self._index_of

    def writer(self, process: int) -> Writer:
        """The writer of a process, by its index."""
        return self._processes[process].writer

    @property
    def process_count(self) -> int:
        return len(self._processes)

    def thread_number(self, process: int, tid: Any, pid: Any = None) -> int:
        """The number of a thread in the capture: its id where that is one, else one that is made up. Where processes
        are shown as one, ``pid`` belongs to it."""
        if process == self._shared:
            tid = b"%s/%s" % tuple(i if isinstance(i, bytes) else str(i).encode() for i in (pid, tid))
        if isinstance(tid, int) and 0 <= tid < FIRST_MADE_UP:
            return tid
        made_up = self._processes[process].made_up
        return made_up.setdefault(tid, FIRST_MADE_UP + len(made_up))

    def threads(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Processes and numbers of the reader's threads with these indices."""
        new = len(indices) and int(indices.max()) >= len(self._thread_id)
        if new or (self._thread_process[indices] < 0).any():
            self._learn_threads(np.unique(indices))
        return self._thread_process[indices], self._thread_id[indices]

    def _learn_threads(self, indices: np.ndarray) -> None:
        known = self.reader.threads
        more = len(known) - len(self._thread_id)
        self._thread_process = np.append(self._thread_process, np.full(more, -1, np.int64))
        self._thread_id = np.append(self._thread_id, np.zeros(more, np.uint32))
        for index in indices[self._thread_process[indices] < 0].tolist():
            pid, tid = known[index]
            process = self._thread_process[index] = self.process_index(pid)
            self._thread_id[index] = self.thread_number(process, tid, pid)

    # Texts

    def text(self, text: bytes | str) -> int:
        """The id of a text that the file need not have; 0 for an empty one."""
        return self.reader.scanner.text_id(text.encode("utf-8", "replace") if isinstance(text, str) else text)

    def by_text(self, ids: np.ndarray, make: Callable[[str], Any], kind: Any = np.int64) -> np.ndarray:
        """What ``make`` makes of each text, once a text, as an array of type ``kind``."""
        which, inverse = np.unique(ids, return_inverse=True)
        made = np.empty(len(which), kind)
        for i, text in enumerate(self.reader.texts(which)):
            made[i] = make(text.decode("utf-8", "replace"))
        return made[inverse]

    def one_text(self, text: int) -> str:
        """The text with this id."""
        return self.reader.texts(np.array([text]))[0].decode("utf-8", "replace")

    def _written(self, process: _Process, ids: np.ndarray) -> np.ndarray:
        """Ids of the reader as those of the capture."""
        if len(process.texts) < self.reader.scanner.text_count:
            more = max(self.reader.scanner.text_count, 2 * len(process.texts)) - len(process.texts)
            process.texts = np.append(process.texts, np.zeros(more, np.uint32))
        missing = ids[(process.texts[ids] == 0) & (ids != 0)]
        if len(missing):
            new = np.unique(missing)
            process.texts[new] = [process.writer.string(text) for text in self.reader.texts(new)]
        found: np.ndarray = process.texts[ids]
        return found

    # Times

    @property
    def offset(self) -> int:
        """What is added to the file's times (ns)."""
        return self._offset or 0

    def begin(self, batch: Iterable[Events]) -> None:
        """Settle how times are shifted, by the first events of the file."""
        if self._offset is None:
            timed = [e.times[((e.flags & Flag.TIME) > 0) & (e.times > _ABSURD)] for e in batch]
            first = min((int(times.min()) for times in timed if len(times)), default=None)
            if first is not None:
                shift = 0 if first >= _EARLIEST else (1 - min(first, 0) // _SHIFT) * _SHIFT
                self._offset, self.first = shift, first + shift

    def starts(self, events: Events) -> tuple[Events, np.ndarray, np.ndarray]:
        """The events that have a usable begin, their begins as row times, and the fates of all events."""
        fate = np.zeros(len(events), np.uint8)
        fate[(events.times < 1 - self.offset) | (events.times > _LATEST - self.offset)] = Fate.RANGE
        fate[(events.flags & Flag.TIME) == 0] = Fate.NO_TIME
        fate[(events.flags & Flag.BAD_TIME) > 0] = Fate.BAD_TIME
        kept = events.select(fate == Fate.KEPT)
        return kept, (kept.times + np.int64(self.offset)).astype(np.uint64), fate

    def spans(self, events: Events) -> tuple[Events, np.ndarray, np.ndarray, np.ndarray]:
        """The events that have usable times, their begins and ends (0 for one without a duration) as row times, and
        the fates of all events."""
        kept, start, fate = self.starts(events)
        timed = (kept.flags & Flag.DURATION) > 0
        durations = np.where(timed, kept.durations, 0)
        found = np.zeros(len(kept), np.uint8)
        found[(kept.flags & Flag.BAD_DURATION) > 0] = Fate.BAD_DURATION
        found[durations > _LATEST - start.astype(np.int64)] = Fate.RANGE
        found[durations < 0] = Fate.NEGATIVE
        fate[fate == Fate.KEPT] = found
        good = found == Fate.KEPT
        end = np.where(timed, start + durations.astype(np.uint64), 0).astype(np.uint64)
        return kept.select(good), start[good], end[good], fate

    # Rows

    def add(self, table: str, processes: np.ndarray, **fields: Any) -> None:
        """:meth:`put` for rows with these fields."""
        self.put(table, processes, rows_of(table, len(processes), **fields))

    def add_once(self, table: str, processes: np.ndarray, **fields: Any) -> None:
        """:meth:`add` for each combination of a process and fields that was not added before."""
        if not len(processes):
            return
        columns = {name: np.broadcast_to(values, processes.shape) for name, values in fields.items()}
        _, first = self.distinct(table, processes, *columns.values())
        self.add(table, processes[first], **{name: values[first] for name, values in columns.items()})

    def distinct(self, table: str, *columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Number the combinations of values that columns have, from 0, over all calls for a table. Returns the number
        of each row, and the rows whose combinations are new."""
        keys = self._distinct.setdefault(table, Keys(len(columns)))
        return keys.ids([np.ascontiguousarray(column, np.int64) for column in columns])

    def put(self, table: str, processes: np.ndarray, rows: np.ndarray) -> None:
        """Write rows; their texts are ids of the reader, and ``processes`` says whose they are."""
        if not len(rows):
            return
        texts = [f.name for f in TABLES[table].fields if f.type == "string"]
        if (processes != processes[0]).any():
            order = np.argsort(processes, kind="stable")
            processes, rows = processes[order], rows[order]
        cuts = np.flatnonzero(processes[1:] != processes[:-1]) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
            part, process = rows[begin:end], self._processes[int(processes[begin])]
            for name in texts:
                part[name] = self._written(process, part[name])
            process.writer.rows(table, part)

    # The account

    def account(self, phases: np.ndarray, categories: np.ndarray, fates: np.ndarray, durations: Any = 0) -> None:
        """These events were seen, and this became of them. ``durations`` are 0 where an event has none."""
        if not len(phases):
            return
        durations = np.broadcast_to(np.int64(durations), phases.shape)
        key = (
            phases.astype(np.uint64) << np.uint64(40)
            | categories.astype(np.uint64) << np.uint64(8)
            | fates.astype(np.uint64)
        )
        which, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        totals = sums(durations, inverse, len(which))
        for kind, count, duration in zip(which.tolist(), counts.tolist(), totals, strict=True):
            tally = self._fates.setdefault((kind >> 40, kind >> 8 & 0xFFFFFFFF, kind & 0xFF), [0, 0])
            tally[0] += count
            tally[1] += duration

    def account_events(self, events: Events, fates: np.ndarray) -> None:
        """:meth:`account` for whole events."""
        durations = np.where((events.flags & Flag.DURATION) > 0, events.durations, 0)
        self.account(events.phases, events.categories, fates, durations)

    def leave_arguments(self, events: Events) -> None:
        """The arguments of these events that nobody wanted have no place in a capture."""
        arguments = events.arguments[events.arguments > 0]
        if len(arguments):
            known = self._leftovers.setdefault(self.kind(int(events.phases[0]), int(events.categories[0])), Counter())
            ids, counts = np.unique(arguments, return_counts=True)
            known.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))

    def leave_columns(self, events: Events, noun: str, *columns: str) -> None:
        """What these columns say, each a ``noun`` (key, argument), has no place in a capture."""
        for column in columns:
            if count := events.count(column):
                kind = self.kind(int(events.phases[0]), int(events.categories[0]))
                self.leave(f"{noun} {column.removesuffix(' text')} of {kind}", count)

    def leave(self, what: str, count: int, why: str = "") -> None:
        """So many things that are no events (a key, an argument) have no place in a capture."""
        if count:
            self.out.seen(what, count)
            self.out.left(what, count, why=why)

    def kind(self, phase: int, category: int) -> str:
        """What events of a phase and category (an id) are called in the account."""
        return self._label(chr(phase), self.one_text(category))

    # The end

    def finish(self) -> None:
        """Write what is known of processes, and the account."""
        fates = list(Fate)
        for (phase, category, fate), (count, duration) in self._fates.items():
            what = self.kind(phase, category)
            self.out.seen(what, count, duration)
            if fate == Fate.KEPT:
                self.out.kept(what, count, duration)
            else:
                getattr(self.out, fates[fate].word)(what, count, duration, why=fates[fate].why)
        for what, texts in self._leftovers.items():
            names: Counter[str] = Counter()
            for text, count in zip(self.reader.texts(np.array(list(texts))), texts.values(), strict=True):
                names.update(dict.fromkeys(object_of(text), count))
            for name, count in names.items():
                self.leave(f"argument {name} of {what}", count)
        for process in self._processes:
            if process.made_up:
                process.writer.process({"source_threads": {str(n): _readable(t) for t, n in process.made_up.items()}})
                named = {thread: tid for tid, thread in process.made_up.items() if tid is not None}
                texts_of = (tid if isinstance(tid, bytes) else str(tid).encode() for tid in named.values())
                names_of = [process.writer.string(text) for text in texts_of]
                rows = rows_of("threads", len(named), thread=list(named), name=names_of, source=1)
                process.writer.rows("threads", rows)


def _readable(id_: Any) -> Any:
    return id_.decode("utf-8", "replace") if isinstance(id_, bytes) else id_
