"""Trace events of any program as rows: slices, instants, counters, asynchronous slices, arrows, and metadata.

What the typed tables of CUDA have no place for goes here, whatever format it was written for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native import Keys
from ..runbin import TABLES
from ..trace_events import WRAP
from .events import Events, Rule
from .match_begin_end import match_begin_end
from .timeline import Fate, Timeline, value_of

#: Groups of events that :class:`Generic` takes, for the end of a list of rules.
RULES = (
    Rule("instants", "iIR"),
    Rule("counters", "C", numbers=True),
    Rule("nested", "BE"),
    Rule("asynchronous", "bneSTpF"),
    Rule("flows", "stf"),
    Rule("metadata", "M"),
    Rule("slices", "X"),
)

#: Async begins, ends and the moments between, of both kinds of them.
_ASYNC_BEGINS, _ASYNC_ENDS = b"bS", b"eF"
_ASYNCHRONOUS = 5
#: Metadata events of a process that are kept with its description.
MOST_METADATA = 1000

_OPEN = np.dtype(
    [
        ("time", "u8"), ("process", "i8"), ("thread", "u4"), ("name", "u4"), ("category", "u4"), ("arguments", "u4"),
        ("id", "u4"), ("phase", "u1"), ("fate", "u1"),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Metadata:
    """A metadata event: ids as the file has them, arguments as JSON text, category as an id."""

    pid: int | bytes | None
    tid: int | bytes | None
    name: str
    arguments: bytes
    category: int


class Generic:
    """Turns groups of :data:`RULES` into rows of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._begun: list[np.ndarray] = []
        self._async: list[np.ndarray] = []
        #: What was said of processes and threads, which may be said before there are any rows of them.
        self.metadata: list[Metadata] = []
        # How many of them there were by category and fate.
        self._told: Counter[tuple[int, Fate]] = Counter()

    def take(self, events: Events) -> None:
        """Rows of the events of one group."""
        {
            "slices": self._slices,
            "instants": self._instants,
            "counters": self._counters,
            "flows": self._flows,
            "nested": self._nested,
            "asynchronous": self._asynchronous,
            "metadata": self._metadata,
        }.get(events.group, self._unknown)(events)

    def finish(self) -> None:
        """Rows of what had to wait for the end of the file."""
        self._finish_nested()
        self._finish_async()

    # Groups

    def _slices(self, events: Events) -> None:
        fate = self.slices(events, 0)
        self._timeline.leave_columns(events, "key", "id", "id text", "id2", "s", "bp")
        self._timeline.account_events(events, fate)

    def slices(self, events: Events, kind: int, external: np.ndarray | None = None) -> np.ndarray:
        """Rows of ``host_slices`` of a kind; returns fates."""
        start, end, fate = self._timeline.spans(events)
        kept = fate == Fate.KEPT
        process, thread = self._timeline.threads(events.threads[kept])
        rows = np.zeros(int(kept.sum()), TABLES["host_slices"].dtype)
        rows["start"], rows["end"] = start[kept], end[kept]
        rows["name"], rows["category"] = events.names[kept], events.categories[kept]
        rows["arguments"], rows["thread"], rows["kind"] = events.arguments[kept], thread, kind
        if external is not None:
            rows["external"] = external[kept]
        rows["flags"] = rows["end"] == 0
        self._timeline.put("host_slices", process, rows)
        return fate

    def _instants(self, events: Events) -> None:
        fate = self.instants(events)
        self._timeline.leave_columns(events, "key", "id", "id text", "id2", "bp")
        self._timeline.account_events(events, fate)

    def instants(self, events: Events) -> np.ndarray:
        """Rows of ``instants``; returns fates."""
        time, fate = self._timeline.starts(events)
        kept = fate == Fate.KEPT
        process, thread = self._timeline.threads(events.threads[kept])
        rows = np.zeros(int(kept.sum()), TABLES["instants"].dtype)
        rows["time"], rows["thread"] = time[kept], thread
        rows["name"], rows["category"] = events.names[kept], events.categories[kept]
        arguments = self._with_phase(events.arguments, events.phases, ord("i"))
        rows["arguments"] = arguments[kept]
        rows["scope"] = self._timeline.by_text(events.ids("s")[kept], lambda scope: {"g": 2, "p": 1}.get(scope, 0))
        self._timeline.put("instants", process, rows)
        return fate

    def _counters(self, events: Events) -> None:
        time, fate = self._timeline.starts(events)
        at, series, values = events.numbers
        finite = np.isfinite(values)
        at, series, values = at[finite], series[finite], values[finite]
        valued = np.zeros(len(events), bool)
        valued[at] = True
        fate[(fate == Fate.KEPT) & ~valued] = Fate.NO_VALUES
        used = fate[at] == Fate.KEPT
        at = at[used]
        process, _ = self._timeline.threads(events.threads[at])
        rows = np.zeros(len(at), TABLES["counters"].dtype)
        rows["time"], rows["value"], rows["series"] = time[at], values[used], series[used]
        rows["name"], rows["category"] = self._counter_names(events)[at], events.categories[at]
        rows["device"] = 0xFFFF
        self._set_own(rows, events.ids("own")[at])
        self._timeline.put("counters", process, rows)
        self._timeline.leave_columns(events, "key", "s", "bp")
        self._timeline.leave_arguments(events, fate)
        self._timeline.account_events(events, fate)

    def _set_own(self, rows: np.ndarray, own: np.ndarray) -> None:
        """What a counter is about and its unit, as cutrace writes them beside the event."""
        if not own.any():
            return
        told = self._timeline.by_text(own, lambda text: value_of(text) if text else None, object)
        which = np.flatnonzero([isinstance(value, dict) for value in told])
        for row, value in zip(which.tolist(), told[which], strict=True):
            name, unit, device = value.get("name"), value.get("unit"), value.get("device")
            if isinstance(name, str):
                rows["name"][row] = self._timeline.text(name)
            if isinstance(unit, str):
                rows["unit"][row] = self._timeline.text(unit)
            if isinstance(device, int) and 0 <= device < 0xFFFF:
                rows["device"][row] = device
            if value.get("single") is True:
                rows["series"][row] = 0

    def _counter_names(self, events: Events) -> np.ndarray:
        """Names of counters; where they have an id, it tells those of one name apart."""
        ids = self._ids(events)
        if not ids.any():
            return events.names
        names: np.ndarray = events.names.copy()
        which = np.flatnonzero(ids)
        pairs, inverse = np.unique(names[which].astype(np.uint64) << np.uint64(32) | ids[which], return_inverse=True)
        texts = [
            f"{self._timeline.one_text(p >> 32)}[{self._timeline.one_text(p & 0xFFFFFFFF)}]" for p in pairs.tolist()
        ]
        names[which] = np.array([self._timeline.text(text) for text in texts], np.uint32)[inverse]
        return names

    def _flows(self, events: Events) -> None:
        fate = self.flows(events)
        self._timeline.leave_columns(events, "key", "s", "id2")
        self._timeline.leave_arguments(events, fate)
        self._timeline.account_events(events, fate)

    def flows(self, events: Events) -> np.ndarray:
        """Rows of ``flows``; returns fates."""
        time, fate = self._timeline.starts(events)
        kept = fate == Fate.KEPT
        process, thread = self._timeline.threads(events.threads[kept])
        rows = np.zeros(int(kept.sum()), TABLES["flows"].dtype)
        rows["time"], rows["thread"], rows["phase"] = time[kept], thread, events.phases[kept]
        rows["name"], rows["category"] = events.names[kept], events.categories[kept]
        rows["id"] = events.integers("id").astype(np.uint64)[kept]
        texts = self._unquoted(events.ids("id text"))
        rows["text"] = texts[kept]
        rows["flags"] = self._timeline.by_text(events.ids("bp")[kept], lambda text: text == "e")
        self._timeline.put("flows", process, rows)
        return fate

    def _unknown(self, events: Events) -> None:
        self._timeline.account_events(events, np.full(len(events), Fate.PHASE, np.uint8))

    # Begins and ends

    def _open(self, events: Events) -> np.ndarray:
        """What of begins and ends is needed when they are put together."""
        rows = np.zeros(len(events), _OPEN)
        rows["time"], rows["fate"] = self._timeline.starts(events)
        rows["process"], rows["thread"] = self._timeline.threads(events.threads)
        rows["name"], rows["category"] = events.names, events.categories
        rows["arguments"], rows["phase"], rows["id"] = events.arguments, events.phases, self._ids(events)
        return rows

    def _nested(self, events: Events) -> None:
        self._timeline.leave_columns(events, "key", "id", "id text", "id2", "s", "bp")
        self._begun.append(self._open(events))

    def _asynchronous(self, events: Events) -> None:
        self._timeline.leave_columns(events, "key", "s", "bp")
        self._async.append(self._open(events))

    def _finish_nested(self) -> None:
        if self._begun:
            rows = np.concatenate(self._begun)
            self._begun.clear()
            usable = np.flatnonzero(rows["fate"] == Fate.KEPT)
            keys = _numbered(rows["process"][usable], rows["thread"][usable])
            self._slices_of(rows, usable, keys, rows["phase"][usable] == ord("B"), kind=0)

    def _finish_async(self) -> None:
        if not self._async:
            return
        rows = np.concatenate(self._async)
        self._async.clear()
        usable = np.flatnonzero(rows["fate"] == Fate.KEPT)
        phases = rows["phase"][usable]
        begins, ends = np.isin(phases, list(_ASYNC_BEGINS)), np.isin(phases, list(_ASYNC_ENDS))
        moments = rows[usable[~begins & ~ends]]
        self._async_instants(moments)
        usable, begins = usable[begins | ends], begins[begins | ends]
        # The older kind goes by the name too. An id is of the whole trace, unless it says that it is of its process.
        older = np.isin(rows["phase"][usable], list(b"SF"))
        local = self._which(rows["id"][usable], lambda text: text.startswith('{"local"'))
        keys = _numbered(
            rows["category"][usable], rows["id"][usable], np.where(older, rows["name"][usable], 0), older,
            np.where(local, rows["process"][usable], -1),
        )  # fmt: skip
        self._slices_of(rows, usable, keys, begins, kind=_ASYNCHRONOUS)

    def _slices_of(self, rows: np.ndarray, usable: np.ndarray, keys: np.ndarray, begins: np.ndarray, kind: int) -> None:
        """Slices of begins and ends; ``keys`` says which of them may belong together."""
        starts, ends, without = match_begin_end(keys, rows["time"][usable], begins)
        rows["fate"][usable[without]] = Fate.NO_BEGIN
        first, last = rows[usable[starts]], rows[usable[np.maximum(ends, 0)]]
        ended = ends >= 0
        slices = np.zeros(len(first), TABLES["host_slices"].dtype)
        for name in ("name", "category", "thread"):
            slices[name] = first[name]
        slices["start"], slices["end"] = first["time"], np.where(ended, last["time"], 0)
        slices["kind"], slices["flags"] = kind, np.where(ended, 2, 3)
        slices["track"] = first["id"] if kind == _ASYNCHRONOUS else 0
        arguments = self._with_phase(first["arguments"], first["phase"], ord("b" if kind == _ASYNCHRONOUS else "B"))
        slices["arguments"] = self._with_end(arguments, np.where(ended, last["arguments"], 0))
        for name in ("name", "category", "thread", "process"):
            other = ended & (last[name] != first[name]) & ((last[name] != 0) | (name in ("thread", "process")))
            self._timeline.leave(f"{name} of ends", int(other.sum()), why="not that of the begin")
        self._timeline.put("host_slices", first["process"], slices)
        self._timeline.account(rows["phase"], rows["category"], np.zeros(len(rows), np.int64), rows["fate"])

    def _async_instants(self, rows: np.ndarray) -> None:
        out = np.zeros(len(rows), TABLES["instants"].dtype)
        for name in ("time", "name", "category", "thread"):
            out[name] = rows[name]
        out["track"] = rows["id"]
        out["arguments"] = self._with_phase(rows["arguments"], rows["phase"], ord("n"))
        self._timeline.put("instants", rows["process"], out)

    # Metadata

    def _metadata(self, events: Events) -> None:
        threads = self._timeline.reader.threads
        names, arguments = self._timeline.texts(events.names), self._timeline.texts(events.arguments)
        for thread, name, text, category in zip(
            events.threads.tolist(), names, arguments, events.categories.tolist(), strict=True
        ):
            pid, tid = threads[thread]
            self.metadata.append(Metadata(pid, tid, name.decode("utf-8", "replace"), text, category))

    def finish_metadata(self) -> None:
        """Names and the like of the processes and threads, from what was collected in :attr:`metadata`."""
        kept: dict[int, list[dict[str, Any]]] = {}
        names: list[tuple[int, int, bytes]] = []
        processes: dict[int, str] = {}
        for event in self.metadata:
            values = value_of(event.arguments)
            values = values if isinstance(values, dict) else {}
            process = self._timeline.process_index(event.pid)
            text = values.get("name")
            if event.name == "process_name" and isinstance(text, str) and len(values) == 1:
                processes[process] = text
            elif event.name == "thread_name" and isinstance(text, str) and len(values) == 1:
                names.append(
                    (process, self._timeline.thread_number(process, event.tid), text.encode("utf-8", "replace"))
                )
            elif len(kept.setdefault(process, [])) < MOST_METADATA:
                tid = event.tid.decode("utf-8", "replace") if isinstance(event.tid, bytes) else event.tid
                kept[process].append({"name": event.name, "tid": tid, "args": values})
            else:
                self.tell(event, Fate.TOO_MANY)
                continue
            self.tell(event, Fate.KEPT)
        for process, name in processes.items():
            self._timeline.writer(process).process({"name": name})
        for process, some in kept.items():
            if some:
                self._timeline.writer(process).process({"metadata_events": some})
        rows = np.zeros(len(names), TABLES["threads"].dtype)
        for row, (_, thread, text) in zip(rows, names, strict=True):
            row["thread"], row["name"], row["source"] = thread, self._timeline.text(text), 1
        self._timeline.put("threads", np.array([process for process, _, _ in names], np.int64), rows)
        for (category, fate), count in self._told.items():
            phases, categories = np.full(count, ord("M"), np.uint8), np.full(count, category, np.uint32)
            self._timeline.account(phases, categories, np.zeros(count, np.int64), np.full(count, fate, np.uint8))

    def tell(self, event: Metadata, fate: Fate) -> None:
        """Say what became of a metadata event, before :meth:`finish_metadata`."""
        self._told[event.category, fate] += 1

    # Texts

    def _ids(self, events: Events) -> np.ndarray:
        """The id of each event as a text, 0 for none: a number, a text, or the JSON of an id of a process."""
        out = self._unquoted(events.ids("id text"))
        given = events.present("id")
        if given.any():
            numbers, inverse = np.unique(events.integers("id")[given], return_inverse=True)
            out[given] = np.array([self._timeline.text(str(n)) for n in numbers.tolist()], np.uint32)[inverse]
        scoped = events.ids("id2")
        out[scoped > 0] = scoped[scoped > 0]
        return out

    def _unquoted(self, texts: np.ndarray) -> np.ndarray:
        """JSON strings as their texts; other JSON stays."""

        def unquoted(text: str) -> int:
            value = value_of(text) if text.startswith('"') else None
            return self._timeline.text(value if isinstance(value, str) else text)

        return self._timeline.by_text(texts, unquoted, np.uint32)

    def _which(self, texts: np.ndarray, test: Callable[[str], bool]) -> np.ndarray:
        """Which of the texts pass a test."""
        return self._timeline.by_text(texts, test, bool)

    def _with_phase(self, arguments: np.ndarray, phases: np.ndarray, usual: int) -> np.ndarray:
        """Arguments that say the phase of an event where it is another than usual."""
        return self._wrapped(arguments, np.where(phases == usual, 0, phases), lambda p: {"ph": chr(p)})

    def _with_end(self, arguments: np.ndarray, of_end: np.ndarray) -> np.ndarray:
        """Arguments of begins that hold those of the ends, too."""
        return self._wrapped(arguments, of_end, lambda text: {"end": value_of(self._timeline.one_text(text))})

    def _wrapped(self, arguments: np.ndarray, more: np.ndarray, say: Callable[[int], dict[str, Any]]) -> np.ndarray:
        """Arguments with more in them where ``more`` is not 0, each combination once."""
        which = np.flatnonzero(more)
        if not len(which):
            return arguments
        keys = arguments[which].astype(np.uint64) << np.uint64(32) | more[which].astype(np.uint64)
        unique, inverse = np.unique(keys, return_inverse=True)
        texts = []
        for key in unique.tolist():
            told = value_of(self._timeline.one_text(key >> 32)) if key >> 32 else {}
            told = told if isinstance(told, dict) else {}
            wrap = told.get(WRAP)
            told[WRAP] = (wrap if isinstance(wrap, dict) else {}) | say(key & 0xFFFFFFFF)
            texts.append(self._timeline.text(json.dumps(told, ensure_ascii=False, separators=(",", ":"))))
        out: np.ndarray = arguments.copy()
        out[which] = np.array(texts, np.uint32)[inverse]
        return out


def _numbered(*columns: np.ndarray) -> np.ndarray:
    """A number for each row of columns, the same for equal ones."""
    keys = Keys(len(columns))
    return keys.ids([np.ascontiguousarray(column, np.int64) for column in columns])[0]
