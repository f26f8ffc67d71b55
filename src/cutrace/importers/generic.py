"""Trace events of any program as rows: slices, instants, counters, asynchronous slices, flows, and metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._native import Keys
from ..trace_events import WRAP
from .base import object_of, rows_of, value_of
from .events import Events, Rule
from .timeline import ImportTimeline, Outcome, match_begin_end, readable

#: The groups of events that :class:`Generic` converts. They come last in a list of rules.
RULES = (
    Rule("instants", "iIR"),
    Rule("counters", "C", numbers=True),
    Rule("nested", "BE"),
    Rule("asynchronous", "bneSTpF"),
    Rule("flows", "stf"),
    Rule("metadata", "M"),
    Rule("slices", "X"),
)

#: The keys that these groups do not use.
_UNUSED = {
    "slices": ("id", "id text", "id2", "s", "bp"),
    "instants": ("id", "id text", "id2", "bp"),
    "counters": ("s", "bp"),
    "flows": ("s", "id2"),
    "nested": ("id", "id text", "id2", "s", "bp"),
    "asynchronous": ("s", "bp"),
}
#: Begin and end events of both kinds of asynchronous slices.
_ASYNC_BEGINS = b"bS"
_ASYNC_ENDS = b"eF"
_ASYNCHRONOUS = 5
#: Metadata events of a process that are kept with its description.
MOST_METADATA = 1000

_OPEN = np.dtype(
    [
        ("time", "u8"),
        ("process", "i8"),
        ("thread", "u4"),
        ("name", "u4"),
        ("category", "u4"),
        ("arguments", "u4"),
        ("id", "u4"),
        ("phase", "u1"),
    ]
)


class Metadata(NamedTuple):
    """A metadata event: ids of the file, arguments as JSON text, category as an id."""

    pid: int | bytes | None
    tid: int | bytes | None
    name: str
    arguments: bytes
    category: int


class Generic:
    """Converts groups of :data:`RULES` to rows of a timeline. A subclass converts further groups."""

    def __init__(self, timeline: ImportTimeline) -> None:
        self._timeline = timeline
        self._begun: list[np.ndarray] = []
        self._async: list[np.ndarray] = []
        #: The metadata of processes and threads. It may come before their first rows.
        self.metadata: list[Metadata] = []

    def begin(self, batch: list[Events]) -> None:
        """Called with each batch before its groups are converted."""

    def take(self, events: Events) -> None:
        """Write rows of the events of one group."""
        self._timeline.leave_columns(events, "key", *_UNUSED.get(events.group, ()))
        convert = getattr(self, f"_{events.group}", None)
        if convert is None:
            outcome = np.full(len(events), Outcome.PHASE, np.uint8)
        else:
            # The result is None if the method accounts for the events itself.
            outcome = convert(events)
        if outcome is not None:
            self._timeline.account_events(events, outcome)

    def finish(self, others: dict[str, Any]) -> None:
        """Write the rows that need the whole file. ``others`` are the other values of the outer object. Values that
        become rows are removed from it."""
        if self._begun:
            rows = np.concatenate(self._begun)
            keys = [rows["process"], rows["thread"]]
            self._slices_of(rows, keys, rows["phase"] == ord("B"), kind=0)
        if self._async:
            self._finish_async(np.concatenate(self._async))

    # Groups

    def _slices(self, events: Events, kind: int = 0) -> np.ndarray:
        """Write rows of ``host_slices`` of a kind; returns outcomes."""
        kept, start, end, outcome = self._timeline.spans(events)
        process, thread = self._timeline.threads(kept.threads)
        self._timeline.add(
            "host_slices",
            process,
            start=start,
            end=end,
            name=kept.names,
            category=kept.categories,
            thread=thread,
            arguments=kept.arguments,
            kind=kind,
            external=kept.integers("External id"),
            flags=end == 0,
        )
        return outcome

    def _instants(self, events: Events) -> np.ndarray:
        """Write rows of ``instants``; returns outcomes."""
        kept, time, outcome = self._timeline.starts(events)
        process, thread = self._timeline.threads(kept.threads)
        self._timeline.add(
            "instants",
            process,
            time=time,
            thread=thread,
            name=kept.names,
            category=kept.categories,
            arguments=self._with_phase(kept.arguments, kept.phases, ord("i")),
            scope=self._timeline.by_text(
                kept.ids("s"), lambda scope: {"g": 2, "p": 1}.get(scope, 0)
            ),
        )
        return outcome

    def _counters(self, events: Events) -> np.ndarray:
        kept, time, outcome = self._timeline.starts(events)
        at, series, values = kept.numbers
        finite = np.isfinite(values)
        at = at[finite]
        series = series[finite]
        values = values[finite]
        valued = np.zeros(len(kept), bool)
        valued[at] = True
        usable = np.flatnonzero(outcome == Outcome.KEPT)
        outcome[usable[~valued]] = Outcome.NO_VALUES
        process, _ = self._timeline.threads(kept.threads[at])
        rows = rows_of(
            "counters",
            len(at),
            time=time[at],
            value=values,
            series=series,
            name=self._counter_names(kept)[at],
            category=kept.categories[at],
            device=0xFFFF,
        )
        self._set_own(rows, kept.ids("own")[at])
        self._timeline.put("counters", process, rows)
        self._timeline.leave_arguments(kept.select(valued))
        return outcome

    def _set_own(self, rows: np.ndarray, own: np.ndarray) -> None:
        """Set name, unit, device and thread of counters from cutrace's own key of the event."""
        if not own.any():
            return
        values = self._timeline.by_text(own, object_of, object)
        for row in np.flatnonzero(values).tolist():
            value = values[row]
            name = value.get("name")
            unit = value.get("unit")
            device = value.get("device")
            if isinstance(name, str):
                rows["name"][row] = self._timeline.text(name)
            if isinstance(unit, str):
                rows["unit"][row] = self._timeline.text(unit)
            if isinstance(device, int) and 0 <= device < 0xFFFF:
                rows["device"][row] = device
            thread = value.get("thread")
            if isinstance(thread, int) and 0 <= thread < 1 << 32:
                rows["thread"][row] = thread
            if value.get("single") is True:
                rows["series"][row] = 0

    def _counter_names(self, events: Events) -> np.ndarray:
        """Names of counters. An id is appended, because counters of one name can have different ids."""

        def named(name: int, id_: int) -> str:
            return f"{self._timeline.one_text(name)}[{self._timeline.one_text(id_)}]"

        return self._combined(events.names, self._ids(events), named)

    def _flows(self, events: Events) -> np.ndarray:
        kept, time, outcome = self._timeline.starts(events)
        process, thread = self._timeline.threads(kept.threads)
        self._timeline.add(
            "flows",
            process,
            time=time,
            thread=thread,
            phase=kept.phases,
            name=kept.names,
            category=kept.categories,
            id=kept.integers("id"),
            text=self._unquoted(kept.ids("id text")),
            flags=self._timeline.by_text(kept.ids("bp"), lambda text: text == "e"),
        )
        self._timeline.leave_arguments(kept)
        return outcome

    # Begin and end events

    def _nested(self, events: Events) -> None:
        self._wait(events, self._begun)

    def _asynchronous(self, events: Events) -> None:
        self._wait(events, self._async)

    def _wait(self, events: Events, waiting: list[np.ndarray]) -> None:
        """Keep begin and end events until they are matched. The matching accounts for them."""
        kept, time, outcome = self._timeline.starts(events)
        rows = np.zeros(len(kept), _OPEN)
        rows["time"] = time
        rows["process"], rows["thread"] = self._timeline.threads(kept.threads)
        rows["name"] = kept.names
        rows["category"] = kept.categories
        rows["arguments"] = kept.arguments
        rows["phase"] = kept.phases
        rows["id"] = self._ids(kept)
        waiting.append(rows)
        lost = outcome != Outcome.KEPT
        self._timeline.account(
            events.phases[lost], events.categories[lost], outcome[lost]
        )

    def _finish_async(self, rows: np.ndarray) -> None:
        begins = np.isin(rows["phase"], list(_ASYNC_BEGINS))
        ends = np.isin(rows["phase"], list(_ASYNC_ENDS))
        of_slices = begins | ends
        self._moments(rows[~of_slices])
        rows = rows[of_slices]
        begins = begins[of_slices]
        # An id is global unless it is a local id of a process.
        local = self._timeline.by_text(
            rows["id"], lambda text: text.startswith('{"local"'), bool
        )
        process = np.where(local, rows["process"], -1)
        older = np.isin(rows["phase"], list(b"SF"))
        keys = [
            rows["category"],
            rows["id"],
            older,
            process,
        ]
        # An end event matches in the name too, unless end events of its track have no names.
        tracks = _numbers(keys)
        no_name = rows["name"] == 0
        of_no_name = tracks[no_name & ~begins]
        unnamed = np.isin(tracks, of_no_name)
        keys.append(np.where(unnamed, 0, rows["name"]))
        self._slices_of(rows, keys, begins, kind=_ASYNCHRONOUS)

    def _moments(self, rows: np.ndarray) -> None:
        """Write instants of asynchronous tracks."""
        arguments = self._with_phase(rows["arguments"], rows["phase"], ord("n"))
        self._timeline.add(
            "instants",
            rows["process"],
            time=rows["time"],
            thread=rows["thread"],
            name=rows["name"],
            category=rows["category"],
            track=rows["id"],
            arguments=arguments,
        )
        kept = np.full(len(rows), Outcome.KEPT, np.uint8)
        self._timeline.account(rows["phase"], rows["category"], kept)

    def _slices_of(
        self, rows: np.ndarray, keys: list[np.ndarray], begins: np.ndarray, kind: int
    ) -> None:
        """Write slices from begin and end events. A begin and an end event match only if the columns ``keys`` are
        equal."""
        starts, ends, without = match_begin_end(_numbers(keys), rows["time"], begins)
        first = rows[starts]
        last = rows[np.maximum(ends, 0)]
        ended = ends >= 0
        if kind == _ASYNCHRONOUS:
            usual_phase = ord("b")
            track = first["id"]
        else:
            usual_phase = ord("B")
            track = np.zeros(len(first), np.uint32)
        arguments = self._with_phase(first["arguments"], first["phase"], usual_phase)
        nothing = self._timeline.text("{}")
        given = last["arguments"] != nothing
        given &= ended
        of_end = np.where(given, last["arguments"], 0)
        self._timeline.add(
            "host_slices",
            first["process"],
            start=first["time"],
            end=np.where(ended, last["time"], 0),
            name=first["name"],
            category=first["category"],
            thread=first["thread"],
            kind=kind,
            flags=np.where(ended, 2, 3),
            track=track,
            arguments=self._with_end(arguments, of_end),
        )
        for name in ("name", "category", "thread", "process"):
            other = ended & (last[name] != first[name])
            if name in ("name", "category"):
                other &= last[name] != 0  # An end event need not repeat them.
            count = int(np.count_nonzero(other))
            self._timeline.out.left(
                f"{name} of ends", count, why="not as in the begin event"
            )
        outcome = np.zeros(len(rows), np.uint8)
        outcome[without] = Outcome.NO_BEGIN
        self._timeline.account(rows["phase"], rows["category"], outcome)

    # Metadata

    def _metadata(self, events: Events) -> None:
        reader = self._timeline.reader
        threads = events.threads.tolist()
        names = reader.texts(events.names)
        arguments = reader.texts(events.arguments)
        categories = events.categories.tolist()
        columns = zip(threads, names, arguments, categories, strict=True)
        for thread, name, text, category in columns:
            pid, tid = reader.threads[thread]
            decoded = name.decode("utf-8", "replace")
            self.metadata.append(Metadata(pid, tid, decoded, text, category))

    def finish_metadata(self) -> None:
        """Write names and other metadata of processes and threads from :attr:`metadata`."""
        kept: dict[int, list[dict[str, Any]]] = {}
        names: list[tuple[int, int, int]] = []
        processes: dict[int, str] = {}
        for event in self.metadata:
            values = object_of(event.arguments)
            process = self._timeline.process_index(event.pid)
            text = values.get("name") if len(values) == 1 else None
            if event.name == "process_name" and isinstance(text, str):
                processes[process] = text
            elif event.name == "thread_name" and isinstance(text, str):
                thread = self._timeline.thread_number(process, event.tid)
                names.append((process, thread, self._timeline.text(text)))
                self._timeline.named_threads.add((process, thread))
            elif len(kept.setdefault(process, [])) < MOST_METADATA:
                kept[process].append(
                    {"name": event.name, "tid": readable(event.tid), "args": values}
                )
            else:
                self._timeline.count(ord("M"), event.category, Outcome.TOO_MANY)
                continue
            self._timeline.count(ord("M"), event.category, Outcome.KEPT)
        for process, name in processes.items():
            self._timeline.writer(process).process({"name": name})
        for process, some in kept.items():
            if some:
                self._timeline.writer(process).process({"metadata_events": some})
        named = np.array(names, np.int64).reshape(-1, 3)
        of, threads, texts = named.T
        self._timeline.add("threads", of, thread=threads, name=texts, source=1)

    # Strings

    def _ids(self, events: Events) -> np.ndarray:
        """The id of each event as a string, 0 for none: a number, a string, or the JSON of a local id."""
        out = self._unquoted(events.ids("id text"))
        given = events.present("id")
        if given.any():
            numbers = events.integers("id")[given]
            out[given] = self._timeline.texts_of(numbers)
        scoped = events.ids("id2")
        out[scoped > 0] = scoped[scoped > 0]
        return out

    def _unquoted(self, texts: np.ndarray) -> np.ndarray:
        """JSON strings as strings; other JSON stays."""

        def unquoted(text: str) -> int:
            if text.startswith('"'):
                value = value_of(text)
                if isinstance(value, str):
                    return self._timeline.text(value)
            return self._timeline.text(text)

        return self._timeline.by_text(texts, unquoted, np.uint32)

    def _with_phase(
        self, arguments: np.ndarray, phases: np.ndarray, usual: int
    ) -> np.ndarray:
        """The arguments of events, with the phase added to events of an unusual phase."""
        others = np.where(phases == usual, 0, phases)
        return self._combined(
            arguments,
            others,
            lambda text, phase: self._wrapped(text, {"ph": chr(phase)}),
        )

    def _with_end(self, arguments: np.ndarray, of_end: np.ndarray) -> np.ndarray:
        """Arguments of begin events with the arguments of the end events added."""
        text_of = self._timeline.one_text
        return self._combined(
            arguments,
            of_end,
            lambda text, end: self._wrapped(text, {"end": value_of(text_of(end))}),
        )

    def _wrapped(self, arguments: int, more: dict[str, Any]) -> str:
        """Arguments (an id) with more under :data:`WRAP`."""
        values = object_of(self._timeline.one_text(arguments))
        wrap = values.get(WRAP)
        if isinstance(wrap, dict):
            more = wrap | more
        values[WRAP] = more
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    def _combined(
        self, texts: np.ndarray, more: np.ndarray, combine: Callable[[int, int], str]
    ) -> np.ndarray:
        """Strings (ids), each combined with its entry of ``more`` unless the entry is 0. Each combination is computed
        once."""
        which = np.flatnonzero(more)
        pairs = texts[which].astype(np.uint64) << np.uint64(32)
        pairs |= more[which].astype(np.uint64)
        unique, inverse = np.unique(pairs, return_inverse=True)
        combined = []
        for pair in unique.tolist():
            text = combine(pair >> 32, pair & 0xFFFFFFFF)
            combined.append(self._timeline.text(text))
        out: np.ndarray = texts.copy()
        out[which] = np.array(combined, np.uint32)[inverse]
        return out


def _numbers(keys: list[np.ndarray]) -> np.ndarray:
    """A number for each row. Rows with equal keys have equal numbers."""
    columns = [np.ascontiguousarray(column, np.int64) for column in keys]
    numbers, _ = Keys(len(keys)).ids(columns)
    return numbers
