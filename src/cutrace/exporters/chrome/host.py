"""Lines of what the host did: calls, NVTX, slices, instants, counters, arrows."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from ..._native import Blobs
from ...trace import Trace
from ...trace_events import HOST_CATEGORIES, OVERHEADS, OWN
from .arguments import Arguments, dumped
from .ids import Ties
from .lines import Line, Names, Pieces, quoted
from .places import Places

_CALL = Line(
    ',\n{"ph":"X","cat":<blob category>,"name":<blob name><blob where>,"ts":<us start>,"dur":<us duration>,"args":{'
    '<if external>"External id":<int external>,<end><if cbid>"cbid":<int cbid>,<end>"correlation":<int correlation>'
    '<if status>,"' + OWN + '":{"status":<int status>}<end>}}'
    '<if starts>,\n{"ph":"s","cat":"ac2g","name":"ac2g","id":<int arrow><blob where>,"ts":<us start>}<end>'
)
_SAID = (
    '"args":{<if domain>"domain":<blob domain>,<end><if category>"category":<int category>,<end>'
    '<if color>"color":<int color>,<end>'
    '<if payload_type>"payload":<int payload>,"payload type":<int payload_type>,<end>'
)
_PUSHED = Line(
    ',\n{"ph":"X","cat":"nvtx","name":<blob name><blob where>,"ts":<us start><if ended>,"dur":<us duration><end>,'
    + _SAID + '"depth":<int depth>}}'
)  # fmt: skip
_STARTED = Line(
    ',\n{"ph":"b","cat":"nvtx","id":<int number>,"name":<blob name><blob where>,"ts":<us start>,'
    + _SAID + '"range id":<int range_id>}}'
    '<if ended>,\n{"ph":"e","cat":"nvtx","id":<int number>,"name":<blob name><blob end_where>,"ts":<us stop>}<end>'
)  # fmt: skip
_MARK = Line(
    ',\n{"ph":"i","s":"t","cat":"nvtx","name":<blob name><blob where>,"ts":<us time>,'
    + _SAID
    + '"source":<int source>}}'
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

_NO_DEVICE = 0xFFFF
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_OVERHEAD_NAMES = {number: name for name, number in OVERHEADS.items()}


class HostLines:
    """Lines of rows of the tables of the host."""

    def __init__(
        self, trace: Trace, places: Places, ties: Ties, names: Names, arguments: Arguments, offset: int
    ) -> None:
        self._trace, self._places, self._ties, self._names, self._arguments = trace, places, ties, names, arguments
        self._offset, self._ranges = offset, 0
        # A domain's id is the piece's, so that 0 means none.
        self._domain_names = Pieces(1, lambda domain: quoted(trace.strings[domain]) if domain else b"")
        self._domain_names.ids(np.zeros(1, np.int64))
        self._domains = Pieces(1, lambda domain: b'"cuda_driver"' if domain == 1 else b'"cuda_runtime"')
        self._calls = Pieces(1, lambda name: quoted(trace.strings[name] if name else "(unknown call)"))
        self._categories = Pieces(2, self._category)
        self._counter_names = Pieces(2, self._counter_name)
        self._counter_own = Pieces(4, self._counter_told)
        self._series = Pieces(1, lambda text: quoted(trace.strings[text] if text else "value"))
        self._phases = Pieces(1, lambda phase: bytes([phase]))
        self._scopes = Pieces(1, lambda scope: b"tpg"[scope : scope + 1] or b"t")
        self._tracks = Pieces(1, self._track)
        self._overheads = Pieces(1, lambda kind: quoted(_OVERHEAD_NAMES.get(kind, "Unrecognized")))

    def api_calls(self, rows: np.ndarray) -> bytes:
        functions = self._trace.functions[rows["function"]]
        return _CALL.write(
            self._span(rows)
            | {
                "category": self._domains.ids(functions["domain"]), "name": self._calls.ids(functions["name"]),
                "where": self._places.host.ids(rows["process"], rows["thread"]), "external": self._ties.externals(rows),
                "cbid": functions["callback"], "correlation": rows["correlation"], "status": functions["status"],
                "starts": self._ties.starts_work(rows), "arrow": self._ties.arrows(rows),
            },
            len(rows), category=self._domains.blobs, name=self._calls.blobs, where=self._places.host.blobs,
        )  # fmt: skip

    def nvtx_ranges(self, rows: np.ndarray) -> bytes:
        pushed = rows["kind"] == 0
        return self._nvtx_pushed(rows[pushed]) + self._nvtx_started(rows[~pushed])

    def _nvtx_pushed(self, rows: np.ndarray) -> bytes:
        columns = self._said(rows) | self._span(rows) | {"depth": rows["depth"]}
        return _PUSHED.write(columns, len(rows), **self._said_blobs())

    def _nvtx_started(self, rows: np.ndarray) -> bytes:
        """Ranges that threads start and end for one another overlap, so they are asynchronous slices."""
        numbers = np.arange(self._ranges, self._ranges + len(rows))
        self._ranges += len(rows)
        columns = self._said(rows) | self._span(rows) | {
            "range_id": rows["range_id"].astype(np.int64), "stop": self._at(rows["end"]), "number": numbers,
            "end_where": self._places.host.ids(rows["process"], rows["end_thread"]),
        }  # fmt: skip
        return _STARTED.write(columns, len(rows), end_where=self._places.host.blobs, **self._said_blobs())

    def nvtx_marks(self, rows: np.ndarray) -> bytes:
        columns = self._said(rows) | {"time": self._at(rows["time"]), "source": rows["source"]}
        return _MARK.write(columns, len(rows), **self._said_blobs())

    def _said(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """What ranges and marks of NVTX have."""
        columns = {name: rows[name] for name in ("category", "color", "payload_type")}
        return columns | {
            "name": self._names.ids(rows["name"]), "where": self._places.host.ids(rows["process"], rows["thread"]),
            "domain": self._domain_names.ids(rows["domain"]), "payload": rows["payload"].astype(np.int64),
        }  # fmt: skip

    def _said_blobs(self) -> dict[str, Blobs]:
        return {"name": self._names.blobs, "where": self._places.host.blobs, "domain": self._domain_names.blobs}

    def host_slices(self, rows: np.ndarray) -> bytes:
        apart = (rows["flags"] & 2) > 0
        return self._complete(rows[~apart]) + self._begins_and_ends(rows[apart])

    def _complete(self, rows: np.ndarray) -> bytes:
        ids = self._arguments.ids(rows["arguments"])
        external = rows["external"]
        columns = self._described(rows, ids) | self._span(rows) | {
            "external": external, "inside": 2 * ids + (external > 0),
            "args": self._arguments.there(ids) | (external > 0),
        }  # fmt: skip
        return _SLICE.write(columns, len(rows), **self._described_blobs())

    def _begins_and_ends(self, rows: np.ndarray) -> bytes:
        """Slices as two events, in an order that puts them together again, whoever reads them."""
        if not len(rows):
            return b""
        ended = rows["end"] > 0
        which = np.append(np.arange(len(rows)), np.flatnonzero(ended))
        begin = np.append(np.ones(len(rows), bool), np.zeros(int(ended.sum()), bool))
        start, end = rows["start"][which], np.where(ended, rows["end"], 1 << 63)[which]
        length = end - start
        time = np.where(begin, start, end)
        # At one moment: first what ends there, the last begun first; then what begins, the longest first; then what
        # begins and ends there, each end behind its begin.
        empty = length == 0
        step = np.where(empty, 2, np.where(begin, 1, 0))
        inner = np.where(begin, np.iinfo(np.int64).max - length.astype(np.int64), length.astype(np.int64))
        place = np.where(begin | empty, which, -which)
        order = np.lexsort((~begin, place, np.where(empty, 0, inner), step, time))
        which, begin, time = which[order], begin[order], time[order]
        rows = rows[which]
        ids = self._arguments.ids(rows["arguments"])
        asynchronous, older = rows["kind"] == 5, self._arguments.phases(ids) == ord("S")
        style = np.where(asynchronous, np.where(older, 2, 1), 0)
        letters = np.array([list(b"EB"), list(b"eb"), list(b"FS")])[style, begin.astype(np.int64)]
        columns = self._described(rows, ids) | {
            "phase": self._phases.ids(letters), "time": self._at(time), "begin": begin, "end": ~begin, "of_end": ids,
            "track": rows["track"] > 0, "id": self._tracks.ids(rows["track"]), "inside": 2 * ids,
            "args": self._arguments.there(ids),
        }  # fmt: skip
        return _BEGIN.write(
            columns,
            len(rows),
            **self._described_blobs(),
            phase=self._phases.blobs,
            id=self._tracks.blobs,
            of_end=self._arguments.of_end,
        )

    def instants(self, rows: np.ndarray) -> bytes:
        ids = self._arguments.ids(rows["arguments"])
        tracked = rows["track"] > 0
        told = self._arguments.phases(ids)
        letters = np.where(told > 0, told, np.where(tracked, ord("n"), ord("i")))
        columns = self._described(rows, ids) | {
            "phase": self._phases.ids(letters), "scoped": ~tracked, "scope": self._scopes.ids(rows["scope"]),
            "time": self._at(rows["time"]), "track": tracked, "id": self._tracks.ids(rows["track"]), "inside": 2 * ids,
            "args": self._arguments.there(ids),
        }  # fmt: skip
        return _INSTANT.write(
            columns,
            len(rows),
            **self._described_blobs(),
            phase=self._phases.blobs,
            scope=self._scopes.blobs,
            id=self._tracks.blobs,
        )

    def counters(self, rows: np.ndarray) -> bytes:
        """Values of one counter at one moment are one event."""
        first = _event_of_counter(rows)
        last = np.append(first[1:], True)
        columns = {
            "first": first, "last": last, "more": ~last, "category": rows["category"] > 0,
            "cat": self._names.ids(rows["category"]), "name": self._counter_names.ids(rows["name"], rows["device"]),
            "where": self._places.host.ids(rows["process"], rows["thread"]), "time": self._at(rows["time"]),
            "series": self._series.ids(rows["series"]), "value": rows["value"],
            "own": self._counter_own.ids(rows["name"], rows["device"], rows["unit"], rows["series"] == 0),
        }  # fmt: skip
        return _COUNTER.write(
            columns, len(rows), own=self._counter_own.blobs, cat=self._names.blobs,
            name=self._counter_names.blobs, where=self._places.host.blobs,
            series=self._series.blobs,
        )  # fmt: skip

    def flows(self, rows: np.ndarray) -> bytes:
        columns = {
            "phase": self._phases.ids(rows["phase"]), "enclosing": rows["flags"] & 1, "numbered": rows["text"] == 0,
            "id": rows["id"], "text": rows["text"], "id_text": self._names.ids(rows["text"]),
            "category": rows["category"], "cat": self._names.ids(rows["category"]),
            "name": self._names.ids(rows["name"]),
            "where": self._places.host.ids(rows["process"], rows["thread"]), "time": self._at(rows["time"]),
        }  # fmt: skip
        return _FLOW.write(
            columns, len(rows), phase=self._phases.blobs, id_text=self._names.blobs, cat=self._names.blobs,
            name=self._names.blobs, where=self._places.host.blobs,
        )  # fmt: skip

    def overheads(self, rows: np.ndarray) -> bytes:
        columns = self._span(rows) | {
            "name": self._overheads.ids(rows["kind"]), "correlation": rows["correlation"],
            "where": self._places.overheads.ids(rows["process"], rows["thread"]),
        }  # fmt: skip
        return _OVERHEAD.write(columns, len(rows), name=self._overheads.blobs, where=self._places.overheads.blobs)

    # Columns and pieces

    def _at(self, times: np.ndarray) -> np.ndarray:
        return times.astype(np.int64) - self._offset

    def _span(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        ended = rows["end"] > 0
        return {
            "start": self._at(rows["start"]),
            "duration": np.where(ended, rows["end"] - rows["start"], 0),
            "ended": ended,
        }

    def _described(self, rows: np.ndarray, ids: np.ndarray) -> dict[str, np.ndarray]:
        """What slices and moments have."""
        kinds = rows["kind"] if "kind" in (rows.dtype.names or ()) else np.zeros(len(rows), np.uint8)
        return {
            "category": (rows["category"] > 0) | np.isin(kinds, list(HOST_CATEGORIES)),
            "cat": self._categories.ids(rows["category"], kinds),
            "name": self._names.ids(rows["name"]),
            "where": self._places.host.ids(rows["process"], rows["thread"]),
            "beside": ids,
        }

    def _described_blobs(self) -> dict[str, Blobs]:
        return {
            "cat": self._categories.blobs, "name": self._names.blobs, "where": self._places.host.blobs,
            "beside": self._arguments.beside, "inside": self._arguments.inside,
        }  # fmt: skip

    def _category(self, category: int, kind: int) -> bytes:
        return quoted(self._trace.strings[category] if category else HOST_CATEGORIES.get(kind, ""))

    def _counter_name(self, name: int, device: int) -> bytes:
        text = self._trace.strings[name]
        return quoted(text if device == _NO_DEVICE else f"{text} (GPU {device})")

    def _counter_told(self, name: int, device: int, unit: int, single: int) -> bytes:
        """What of a counter has no key, with a comma before it."""
        told: dict[str, Any] = {"single": True} if single else {}
        if unit:
            told["unit"] = self._trace.strings[unit]
        if device != _NO_DEVICE:
            told |= {"device": device, "name": self._trace.strings[name]}
        return b"," + dumped({OWN: told})[1:-1].encode("utf-8", "replace") if told else b""

    def _track(self, track: int) -> bytes:
        """The id of an asynchronous track as its key: a number, a text, or the object that says whose id it is."""
        text = self._trace.strings[track]
        if text.startswith("{"):
            return (
                b',"id2":' + dumped(value).encode()
                if isinstance(value := _json(text), dict)
                else b',"id":' + quoted(text)
            )
        return b',"id":' + (text.encode() if _NUMBER.fullmatch(text) else quoted(text))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _event_of_counter(rows: np.ndarray) -> np.ndarray:
    """Which rows begin a new event: those of another moment or counter, and a series that the event has already."""
    keys = ("time", "process", "thread", "name", "category", "device")
    first = np.ones(len(rows), bool)
    first[1:] = np.any([rows[key][1:] != rows[key][:-1] for key in keys], axis=0)
    group = np.cumsum(first)
    order = np.lexsort((rows["series"], group))
    same = (group[order][1:] == group[order][:-1]) & (rows["series"][order][1:] == rows["series"][order][:-1])
    if not same.any():
        return first
    # How often the series came before in its group: whenever that rises, an event begins.
    run = np.append(True, ~same)
    again = np.zeros(len(rows), np.int64)
    again[order] = np.arange(len(rows)) - np.maximum.accumulate(np.where(run, np.arange(len(rows)), 0))
    highest = np.maximum.accumulate(again + group * (len(rows) + 1))
    return np.asarray(first | np.append(False, highest[1:] > highest[:-1]))
