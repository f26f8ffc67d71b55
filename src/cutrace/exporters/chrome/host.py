"""Events of the host as lines of JSON: calls, NVTX, slices, instants, counters, flows, and memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...runbin.labels import (
    ALLOCATIONS,
    JIT_OPERATIONS,
    POOL_OPERATIONS,
    UNIFIED_MEMORY_KINDS,
    allocation_notes,
)
from ...trace.rows import LATEST, changes
from ...trace_events import HOST_CATEGORIES, OVERHEADS, OWN
from ..rows import payload_columns
from .lines import Column, Line, Pieces, dumped, members, own, quoted
from .shared import Shared

_CALL = Line(
    ',\n{"ph":"X","cat":<blob category>,"name":<blob name><blob where>,"ts":<us start>,"dur":<us duration>,"args":{'
    '<if external_id>"External id":<int external_id>,<end><if cbid>"cbid":<int cbid>,<end>'
    '"correlation":<int correlation><blob stack><if status>,"'
    + OWN
    + '":{"status":<int status>}<end>}}'
    '<if starts>,\n{"ph":"s","cat":"ac2g","name":"ac2g","id":<int arrow><blob where>,"ts":<us start>}<end>'
)
_SAID = (
    '"args":{<if domain>"domain":<blob domain>,<end><if category>"category":<int category>,<end>'
    '<if color>"color":<int color>,<end>'
    '<if payload_type><if is_unsigned>"payload":<int unsigned>,<end><if is_signed>"payload":<int signed>,<end>'
    '<if is_float>"payload":<real float>,<end><if inexact>"payload bits":<int bits>,<end>'
    '"payload type":<int payload_type>,<end>'
)
_PUSHED = Line(
    ',\n{"ph":"X","cat":"nvtx","name":<blob name><blob where>,"ts":<us start><if ended>,"dur":<us duration><end>,'
    + _SAID
    + '"depth":<int depth><blob fields>}}'
)
_STARTED = Line(
    ',\n{"ph":"b","cat":"nvtx","id":<int number>,"name":<blob name><blob where>,"ts":<us start>,'
    + _SAID
    + '"range id":<int range_id><blob fields>}}'
    '<if ended>,\n{"ph":"e","cat":"nvtx","id":<int number>,"name":<blob name><blob end_where>,"ts":<us stop>}<end>'
)
_MARK = Line(
    ',\n{"ph":"i","s":"t","cat":"nvtx","name":<blob name><blob where>,"ts":<us time>,'
    + _SAID
    + '"source":<int source><blob fields>}}'
)
_SLICE = Line(
    ',\n{"ph":"X"<if category>,"cat":<blob cat><end>,"name":<blob name><blob where>,"ts":<us start>'
    '<if ended>,"dur":<us duration><end><blob beside><if args>,"args":{'
    '<if external>"External id":<int external><end><blob inside>}<end>}'
)
_BEGIN = Line(
    ',\n{"ph":"<blob phase>"<if category>,"cat":<blob cat><end>,"name":<blob name><blob where>,"ts":<us time>'
    '<if track><blob id><end><if begin><blob beside><if args>,"args":{<blob inside>}<end><end>'
    "<if end><blob of_end><end>}"
)
_INSTANT = Line(
    ',\n{"ph":"<blob phase>"<if scoped>,"s":"<blob scope>"<end><if category>,"cat":<blob cat><end>,"name":<blob name>'
    '<blob where>,"ts":<us time><if track><blob id><end><blob beside><if args>,"args":{<blob inside>}<end>}'
)
_COUNTER = Line(
    '<if first>,\n{"ph":"C"<if category>,"cat":<blob cat><end>,"name":<blob name><blob where>,"ts":<us time>'
    '<blob own>,"args":{<end>'
    "<blob series>:<real value><if more>,<end><if last>}}<end>"
)
_FLOW = Line(
    ',\n{"ph":"<blob phase>"<if enclosing>,"bp":"e"<end>,"id":<if numbered><int id><end><if text><blob id_text><end>'
    '<if category>,"cat":<blob cat><end>,"name":<blob name><blob where>,"ts":<us time>}'
)
_OVERHEAD = Line(
    ',\n{"ph":"X","cat":"overhead","name":<blob name><blob where>,"ts":<us start>,"dur":<us duration>'
    '<if correlation>,"args":{"correlation":<int correlation>}<end>}'
)

_ALLOCATION = Line(
    ',\n{"ph":"i","s":"p","cat":"allocation","name":<blob name><blob where>,"ts":<us time>,"args":{'
    '"address":<int address>,"bytes":<int bytes>,"device":<int device>,"context":<int context>,'
    '"correlation":<int correlation>,"memory":<int memory><blob notes>}}'
)
_POOL = Line(
    ',\n{"ph":"i","s":"p","cat":"memory_pool","name":<blob name><blob where>,"ts":<us time>,'
    '"args":{"address":<int address>,"size":<int size>,"used":<int used>,"device":<int device>,'
    '"correlation":<int correlation>}}'
)
_UNIFIED = Line(
    ',\n{"ph":"i","s":"p","cat":"unified_memory","name":<blob name><blob where>,"ts":<us start>,"args":{'
    '"duration (us)":<us duration>,"value":<int value>,"address":<int address>,"source":<int source_device>,'
    '"destination":<int destination_device>,"flags":<int flags>}}'
)
_JIT = Line(
    ',\n{"ph":"i","s":"t","cat":"jit","name":<blob name><blob where>,"ts":<us start>,'
    '"args":{"duration (us)":<us duration>,"cache size":<int cache_size>,"correlation":<int correlation>,'
    '"device":<int device>}}'
)
#: By table: the template of its lines, the field that names its events, and the arguments of :func:`_memory_name`.
MEMORY = {
    "allocations": (_ALLOCATION, "operation", ("allocation", ALLOCATIONS, "")),
    "memory_pools": (
        _POOL,
        "operation",
        ("memory pool", POOL_OPERATIONS, "memory pool "),
    ),
    "unified_memory": (_UNIFIED, "kind", ("unified memory", UNIFIED_MEMORY_KINDS, "")),
    "jit": (_JIT, "operation", ("JIT", JIT_OPERATIONS, "")),
}

#: Arguments of NVTX events that are not fields of a payload.
_NVTX_ARGUMENTS = frozenset(
    (
        "domain",
        "category",
        "color",
        "payload",
        "payload bits",
        "payload type",
        "depth",
        "range id",
        "source",
    )
)
_NO_DEVICE = 0xFFFF
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_OVERHEAD_NAMES = {number: name for name, number in OVERHEADS.items()}


def _phase(code: int) -> bytes:
    """The letter of a phase. A damaged capture can have other codes, which are written as instants."""
    letter = bytes([code])
    return letter if letter.isalpha() else b"i"


class HostJson:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._trace = shared.trace
        self._ranges = 0
        strings = shared.trace.strings
        # Piece 0 stands for no domain, so that <if domain> is false for it.
        self._domain_names = Pieces(
            1, lambda domain: quoted(strings[domain]) if domain else b""
        )
        self._domain_names(np.zeros(1, np.int64))
        self._domains = Pieces(
            1, lambda domain: b'"cuda_driver"' if domain == 1 else b'"cuda_runtime"'
        )
        self._calls = Pieces(1, lambda name: quoted(strings[name] or "(unknown call)"))
        self._categories = Pieces(2, self._category)
        self._counter_names = Pieces(3, self._counter_name)
        self._counter_own = Pieces(5, self._counter_told)
        self._series = Pieces(1, lambda text: quoted(strings[text] or "value"))
        self._phases = Pieces(1, _phase)
        self._scopes = Pieces(1, lambda scope: b"tpg"[scope : scope + 1] or b"t")
        self._tracks = Pieces(1, self._track)
        self._fields = Pieces(1, self._payload_fields)
        self._overheads = Pieces(
            1, lambda kind: quoted(_OVERHEAD_NAMES.get(kind, "Unrecognized"))
        )
        self._allocation_notes = Pieces(
            1, lambda flags: members(allocation_notes(flags))
        )
        self._memory_names: dict[str, Pieces] = {}
        for table, (_, _, names) in MEMORY.items():
            self._memory_names[table] = Pieces(1, _memory_name(*names))

    def api_calls(self, rows: np.ndarray) -> bytes:
        functions = self._trace.functions[rows["function"]]
        return self._shared.write(
            _CALL,
            rows,
            category=self._domains(functions["domain"]),
            name=self._calls(functions["name"]),
            cbid=functions["callback"],
            status=functions["status"],
            starts=self._shared.correlations.starts_work(rows),
        )

    def nvtx_ranges(self, rows: np.ndarray) -> bytes:
        """Start/end ranges may overlap and cross threads, so they become asynchronous slices."""
        started = rows["kind"] != 0
        pushed = rows[~started]
        rows = rows[started]
        lines = self._shared.write(_PUSHED, pushed, **self._nvtx(pushed))
        numbers = np.arange(self._ranges, self._ranges + len(rows))
        self._ranges += len(rows)
        return lines + self._shared.write(
            _STARTED,
            rows,
            **self._nvtx(rows),
            range_id=rows["range_id"].astype(np.int64),
            number=numbers,
            end_where=self._shared.pid_tid.host(rows["process"], rows["end_thread"]),
        )

    def nvtx_marks(self, rows: np.ndarray) -> bytes:
        return self._shared.write(_MARK, rows, **self._nvtx(rows))

    def _nvtx(self, rows: np.ndarray) -> dict[str, Column]:
        """The common columns of NVTX ranges and marks."""
        payload = payload_columns(rows)
        is_float = payload["is_float"]
        is_signed = payload["is_signed"]
        is_unsigned = payload["is_unsigned"]
        unsigned = payload["unsigned"].view(np.int64)
        number = np.where(is_signed, payload["signed"], unsigned)
        bits = np.ascontiguousarray(rows["payload"]).view(np.int64)
        # A reader with signed integers would change these.
        inexact = is_float | (number != bits)
        inexact |= is_unsigned & (number < 0)
        known = is_float | is_signed | is_unsigned
        return {
            **payload,
            "is_signed": is_signed | ~known,
            "inexact": inexact,
            "bits": bits,
            "domain": self._domain_names(rows["domain"]),
            "fields": self._fields(rows["arguments"]),
        }

    def host_slices(self, rows: np.ndarray) -> bytes:
        apart = (rows["flags"] & 2) > 0
        lines = self._complete(rows[~apart])
        return lines + self._begins_and_ends(rows[apart])

    def _complete(self, rows: np.ndarray) -> bytes:
        ids = self._shared.arguments.ids(rows["arguments"])
        external = rows["external"] > 0
        columns = self._described(rows, ids, external)
        columns["args"] = np.asarray(columns["args"]) | external
        return self._shared.write(_SLICE, rows, **columns)

    def _begins_and_ends(self, rows: np.ndarray) -> bytes:
        """Slices as two events each, in an order from which any reader pairs them correctly."""
        if not len(rows):
            return b""
        ended = rows["end"] > 0
        every = np.arange(len(rows))
        which = np.append(every, np.flatnonzero(ended))
        begin = np.arange(len(which)) < len(rows)
        start = rows["start"][which]
        beyond = LATEST + np.uint64(1)
        end = np.where(ended, rows["end"], beyond)
        end = end[which]
        length = end - start
        time = np.where(begin, start, end)
        # At equal times: first end events, of the latest slice first; then begin events, of the longest slice first;
        # then empty slices, each begin event before its end event.
        empty = length == 0
        step = begin.astype(np.int64)
        step[empty] = 2
        inner = length.astype(np.int64)
        most = np.iinfo(np.int64).max
        inner = np.where(begin, most - inner, inner)
        inner[empty] = 0
        place = np.where(begin | empty, which, -which)
        order = np.lexsort((~begin, place, inner, step, time))
        which = which[order]
        begin = begin[order]
        time = time[order]
        rows = rows[which]
        ids = self._shared.arguments.ids(rows["arguments"])
        asynchronous = rows["kind"] == 5
        older = self._shared.arguments.phases(ids) == ord("S")
        style = np.where(older, 2, 1)
        style[~asynchronous] = 0
        letters = np.array([list(b"EB"), list(b"eb"), list(b"FS")])
        letters = letters[style, begin.astype(np.int64)]
        return self._shared.write(
            _BEGIN,
            rows,
            **self._described(rows, ids),
            phase=self._phases(letters),
            time=self._shared.at(time),
            begin=begin,
            end=~begin,
            track=rows["track"] > 0,
            id=self._tracks(rows["track"]),
        )

    def instants(self, rows: np.ndarray) -> bytes:
        ids = self._shared.arguments.ids(rows["arguments"])
        tracked = rows["track"] > 0
        phases = self._shared.arguments.phases(ids)
        usual = np.where(tracked, ord("n"), ord("i"))
        return self._shared.write(
            _INSTANT,
            rows,
            **self._described(rows, ids),
            phase=self._phases(np.where(phases > 0, phases, usual)),
            scoped=~tracked,
            scope=self._scopes(rows["scope"]),
            track=tracked,
            id=self._tracks(rows["track"]),
        )

    def counters(self, rows: np.ndarray) -> bytes:
        """The values of one counter at one time become one event."""
        first = _event_of_counter(rows)
        last = np.append(first[1:], True)
        return self._shared.write(
            _COUNTER,
            rows,
            first=first,
            last=last,
            more=~last,
            cat=self._shared.names(rows["category"]),
            name=self._counter_names(rows["name"], rows["device"], rows["thread"]),
            series=self._series(rows["series"]),
            own=self._counter_own(
                rows["name"],
                rows["device"],
                rows["thread"],
                rows["unit"],
                rows["series"] == 0,
            ),
        )

    def flows(self, rows: np.ndarray) -> bytes:
        return self._shared.write(
            _FLOW,
            rows,
            phase=self._phases(rows["phase"]),
            enclosing=rows["flags"] & 1,
            numbered=rows["text"] == 0,
            id_text=self._shared.names(rows["text"]),
            cat=self._shared.names(rows["category"]),
        )

    def overheads(self, rows: np.ndarray) -> bytes:
        where = self._shared.pid_tid.overheads(rows["process"], rows["thread"])
        return self._shared.write(
            _OVERHEAD, rows, name=self._overheads(rows["kind"]), where=where
        )

    def memory(self, table: str, rows: np.ndarray) -> bytes:
        """Memory events become instants. Slices would overlap other slices of their thread."""
        line, field, _ = MEMORY[table]
        thread = np.zeros(len(rows), np.int64)
        if table == "jit":
            thread = rows["thread"]
        columns: dict[str, Column] = {
            "where": self._shared.pid_tid.host(rows["process"], thread),
            "name": self._memory_names[table](rows[field]),
        }
        if table == "allocations":
            columns["notes"] = self._allocation_notes(rows["flags"])
        return self._shared.write(line, rows, **columns)

    # Columns and pieces

    def _described(
        self, rows: np.ndarray, ids: np.ndarray, behind: np.ndarray | int = 0
    ) -> dict[str, Column]:
        """The common columns of slices and instants."""
        kinds = np.zeros(len(rows), np.uint8)
        if "kind" in (rows.dtype.names or ()):
            kinds = rows["kind"]
        of_kind = np.isin(kinds, list(HOST_CATEGORIES))
        columns = self._shared.arguments.columns(ids, behind)
        columns["category"] = (rows["category"] > 0) | of_kind
        columns["cat"] = self._categories(rows["category"], kinds)
        return columns

    def _category(self, category: int, kind: int) -> bytes:
        text = self._trace.strings[category]
        return quoted(text or HOST_CATEGORIES.get(kind, ""))

    def _counter_name(self, name: int, device: int, thread: int) -> bytes:
        """The name of a counter. Counters of a process need different names, because viewers ignore the thread of a
        counter."""
        text = self._trace.strings[name]
        if device != _NO_DEVICE:
            text += f" (GPU {device})"
        if thread:
            text += f" (thread {thread})"
        return quoted(text)

    def _counter_told(
        self, name: int, device: int, thread: int, unit: int, single: int
    ) -> bytes:
        """cutrace's own key of a counter, after a comma. It holds the fields that trace events lack."""
        fields: dict[str, Any] = {}
        if single:
            fields["single"] = True
        if unit:
            fields["unit"] = self._trace.strings[unit]
        if device != _NO_DEVICE:
            fields["device"] = device
        if thread:
            fields["thread"] = thread
        if device != _NO_DEVICE or thread:
            fields["name"] = self._trace.strings[name]
        return own(fields)

    def _payload_fields(self, text: int) -> bytes:
        """The fields of extended payloads, preceded by a comma. A field is renamed if another argument has its name."""
        if not text:
            return b""
        value = _json(self._trace.strings[text])
        if not isinstance(value, dict):
            value = {"arguments": value}
        fields = {}
        for name, field in value.items():
            taken = name in _NVTX_ARGUMENTS
            if name == "payload" and not isinstance(field, int):
                taken = False  # A reader would take a number for the plain payload.
            if taken:
                name = f"{name} (field)"
            fields[name] = field
        return members(fields)

    def _track(self, track: int) -> bytes:
        """The key of the id of an asynchronous track: a number, a string, or an object with the scope of the id."""
        text = self._trace.strings[track]
        if text.startswith("{"):
            value = _json(text)
            if isinstance(value, dict):
                return b',"id2":' + dumped(value)
        if _NUMBER.fullmatch(text):
            return b',"id":' + text.encode()
        return b',"id":' + quoted(text)


def _memory_name(
    what: str, labels: dict[int, str], prefix: str
) -> Callable[[int], bytes]:
    return lambda number: quoted(
        prefix + labels[number] if number and number in labels else f"{what} {number}"
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _event_of_counter(rows: np.ndarray) -> np.ndarray:
    """A mask of the rows that start a new event. A row starts one if its time or counter differs, or if the event
    already has its series."""
    keys = ("time", "process", "thread", "name", "category", "device")
    first = changes(*(rows[key] for key in keys))
    group = np.cumsum(first)
    order = np.lexsort((rows["series"], group))
    run = changes(group[order], rows["series"][order])
    if run.all():
        return first
    # The number of earlier rows of the same series in the group. A new event starts where the maximum of this number
    # rises.
    place = np.arange(len(rows))
    run_start = np.maximum.accumulate(np.where(run, place, 0))
    again = np.zeros(len(rows), np.int64)
    again[order] = place - run_start
    rank = again + group * (len(rows) + 1)
    highest = np.maximum.accumulate(rank)
    first |= changes(highest)
    return first
