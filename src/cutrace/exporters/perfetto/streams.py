"""Rows of host tables on their way to events: which template, which track, which constant part."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import numpy as np

from ..._native import Blobs, Keys, Submissions
from ...trace import Trace
from . import archive, schema
from .arguments import UNSHARED, Arguments
from .arrows import Arrows
from .naming import Names, Needs
from .sequence import Interned
from .template import Column, Columns, Delta, Each, Given, Pieces, Template, When
from .tracks import TEXT, TrackTable
from .values import FIELDS, counted
from .waits import CallWaits

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4

#: The columns that hold NVTX payloads of one kind, and the field of a debug annotation that shows them.
_PAYLOADS = {"unsigned": "uint_value", "signed": "int_value", "float": "double_value"}

#: Where ids of arrows begin that are texts in the source.
_TEXT_IDS = np.uint64(1 << 63)

#: Arguments that viewers are to show as addresses.
_POINTERS = frozenset(("address", "pool"))


def packet(event: dict[str, Any]) -> dict[str, Any]:
    """A packet of a track's sequence around a ``TrackEvent``."""
    # What differs from packet to packet stands together, behind what does not: so it compresses best.
    return {"sequence": Given("bare_prefixes"), "timestamp": Delta("time", event=True), "track_event": event}


def _track(lanes: bool) -> dict[str, Any]:
    """The field that says which track; where no slice was moved to another lane, the default of the sequence does."""
    return {"track_uuid": Column("track", omit=0, event=True)} if lanes else {}


@cache
def end_template(lanes: bool) -> Template:
    """The end of a slice, of whatever table."""
    return Template("Trace", {"packet": packet({"type": SLICE_END, **_track(lanes)})})


@cache
def counter_template(whole: bool) -> Template:
    """A value of a counter, of one that is not ``whole`` as a float."""
    return Template("Trace", {"packet": packet({"type": COUNTER, **FIELDS[whole]})})


class Stream:
    """One description of a table, with what was seen of it.

    A *combination* is a track together with a style: rows refer to it by number, and through it to their track
    (:attr:`group_of`) and to the constant part of their event (:attr:`pieces`).
    """

    def __init__(
        self,
        table: TrackTable,
        trace: Trace,
        names: Names,
        arguments: Arguments,
        arrows: Arrows,
        track_of: Callable[[int, Hashable, list[Interned]], int],
    ) -> None:
        self.table, self._trace, self._names, self._track_of = table, trace, names, track_of
        self._arrows = arrows
        layout = table.layout
        self.instant = "end" not in layout.offsets
        self.start_field = layout.start_field or ""
        self.pieces = Blobs()
        # What neither the style nor the arguments show makes styles differ too: so each row can be read back.
        payload = ("payload",) if table.payload else ()
        shown = (*table.style_fields, *table.arguments, *payload, table.track_field, TEXT)
        unshown = archive.unshown(table.name, shown) if table.read_back else ()
        self._fields = (*table.style_fields, *unshown)
        self._arguments = arguments if table.text else None
        self._keys = Keys(1 + len(self._fields) + table.text)
        self._groups: list[int] = []
        #: By combination, the fields that its rows share.
        self.keys: list[dict[str, int]] = []
        self._group_of = np.zeros(0, np.uint32)
        self._styles: dict[tuple[Any, ...], tuple[bytes, list[Interned]]] = {}
        self._common = Needs(names)
        self._templates: dict[tuple[bool, bool, bool, bool], Template] = {}
        # Entries of interned data are known before the first row, whichever template it takes.
        self.template(payload=table.payload, waits=False, lanes=False)

    def template(self, *, payload: bool, waits: bool, lanes: bool, whole: bool = False) -> Template:
        """The template for rows of which some have payloads, waited for work, or are on another lane than the first;
        for counters, whether all values are whole."""
        key = payload, waits, lanes, whole
        if key not in self._templates:
            self._templates[key] = self._describe(*key)
        return self._templates[key]

    @property
    def group_of(self) -> np.ndarray:
        """The number of the track of each combination."""
        if len(self._group_of) < len(self._groups):
            self._group_of = np.array(self._groups, np.uint32)
        return self._group_of

    def _describe(self, payload: bool, waits: bool, lanes: bool, whole: bool) -> Template:
        if self.table.kind == "counter":
            return counter_template(whole)
        annotations: list[Any] = []
        for name in self.table.arguments:
            iid = self._common.name("debug_annotation_names", name)
            kind = "pointer_value" if name in _POINTERS else "uint_value"
            annotations.append(When(name, {"name_iid": iid, kind: Column(name)}))
        if payload:
            iid = self._common.name("debug_annotation_names", "payload")
            for column, kind in _PAYLOADS.items():
                annotations.append(When(f"is_{column}", {"name_iid": iid, kind: Column(column)}))
        event: dict[str, Any] = {
            "type": INSTANT if self.instant else SLICE_BEGIN,
            **_track(lanes),
            "pieces": Pieces("combination", "pieces"),
            "debug_annotations": annotations,
        }
        if self.table.kind == "flow":
            # A step of an arrow is no event of its own: viewers attach it to a slice around it, or to the next one.
            bind = Column("bind_to_enclosing", omit=0)
            event["type"] = None
            event["legacy_event"] = {"phase": Column("phase"), "unscoped_id": Column("id"), "bind_to_enclosing": bind}
        if self.table.text:
            event["text"] = Pieces("text", "texts")
        if self.table.submits:
            ids = {"render_stage_submission_event_ids": Each("submission_offsets", "submissions")}
            if waits:
                ids["render_stage_wait_event_ids"] = Each("wait_offsets", "waits")
            event["gpu_correlation"] = When("correlated", ids)
        return Template("Trace", {"packet": packet(event)})

    def chunk(self, rows: np.ndarray, submissions: Submissions, waits: CallWaits) -> Chunk:
        """Rows, ready to be laid out and encoded. Their columns are views of ``rows`` where possible."""
        table = self.table
        number = rows[table.track_field] if table.track_field else np.broadcast_to(np.uint32(0), len(rows))
        columns: Columns = {name: rows[name] for name in table.arguments}
        keys = [number, *(rows[f] for f in self._fields)]
        if self._arguments:
            keys.append(self._arguments.shared_of[rows[TEXT]])
            columns["text"], columns["texts"] = self._arguments.piece_of[rows[TEXT]], self._arguments.pieces
        combinations, new = self._keys.ids(keys)
        common = keys[-1][new].tolist() if self._arguments else [0] * len(new)
        for row, track, shares in zip(rows[new], number[new].tolist(), common, strict=True):
            self._combine(row, track, shares)
        payload = bool(table.payload and rows["payload_type"].any())
        columns["combination"], columns["pieces"] = combinations, self.pieces
        if payload:
            columns |= _payload_columns(rows)
        whole = False
        if table.value:
            whole, columns["value"] = counted(table.value(rows))
        if table.kind == "flow":
            columns |= _flow_columns(rows, self._arrows)
        waited = waits.lists(rows["correlation"]) if table.submits else None
        if table.submits:
            offsets, ids = submissions.lists(rows["correlation"])
            columns |= {"submission_offsets": offsets, "submissions": ids, "correlated": np.diff(offsets)}
        if waited:
            columns["wait_offsets"], columns["waits"] = waited
            columns["correlated"] = np.diff(offsets) | np.diff(waited[0])
        return Chunk(self, payload, waited is not None, whole, columns, combinations, rows)

    def _combine(self, row: np.void, track: int, shares: int) -> None:
        key = (*(row[f].item() for f in self._fields), shares)
        known = self._styles.get(key)
        if known is None:
            table = self.table
            read_back = table.read_back and table.kind != "counter" and shares != UNSHARED
            style = (table.name, table.track, table.arguments, key) if read_back else None
            needs = Needs(self._names, style)
            event = table.style(self._trace, row, needs)
            if self._arguments:
                event["debug_annotations"] = [*event["debug_annotations"], *self._arguments.annotate(shares, needs)]
            if read_back:
                shown = (*table.arguments, *(("payload",) if table.payload else ()))
                told = archive.row(table.name, row, self._fields, shown, table.track_field)
                if self._arguments:
                    told[archive.place(table.name, TEXT)] = shares or None
                needs.append(Interned("cutrace_rows", event["name_iid"], told))
            known = self._styles[key] = schema.encode("TrackEvent", event), [*self._common, *needs]
        piece, entries = known
        self.pieces.add(piece)
        self.keys.append(dict(zip(self._fields, key, strict=False)))
        key_of = self.table.track_key
        self._groups.append(self._track_of(self.table.track, key_of(row) if key_of else track, entries))


class Chunk:
    """Some rows of a stream, each with the number of its combination."""

    def __init__(
        self,
        stream: Stream,
        payload: bool,
        waits: bool,
        whole: bool,
        columns: Columns,
        combinations: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        self.stream, self.combinations, self.rows = stream, combinations, rows
        self._payload, self._waits, self._whole, self._columns = payload, waits, whole, columns

    @property
    def start(self) -> np.ndarray:
        return self.rows[self.stream.start_field]

    @property
    def end(self) -> np.ndarray | None:
        return None if self.stream.instant else self.rows["end"]

    def bind(self, by_event: Columns) -> Any:
        """The template with its columns, and those by event: ``track`` is among them when lanes are in use."""
        template = self.stream.template(
            payload=self._payload, waits=self._waits, lanes="track" in by_event, whole=self._whole
        )
        return template.bind(self._columns | by_event)


def _payload_columns(rows: np.ndarray) -> dict[str, np.ndarray]:
    """NVTX payloads by the type of value they become, and which rows have one of that type."""
    kind, bits = rows["payload_type"], np.ascontiguousarray(rows["payload"])
    low = bits.astype(np.uint32)
    with np.errstate(invalid="ignore"):  # a payload may be a signalling NaN, and is looked at as all types
        single = low.view(np.float32).astype(np.float64)
    return {
        "is_unsigned": np.isin(kind, (1, 4)),
        "is_signed": np.isin(kind, (2, 5)),
        "is_float": np.isin(kind, (3, 6)),
        "unsigned": np.where(kind == 4, low, bits),
        "signed": np.where(kind == 5, low.view(np.int32).astype(np.int64), bits.view(np.int64)),
        "float": np.where(kind == 6, single, bits.view(np.float64)),
    }


def _flow_columns(rows: np.ndarray, arrows: Arrows) -> Columns:
    """The steps of arrows: their phase, and an id that is a number also where the source has a text, and of one arrow
    only."""
    texts = rows["text"].astype(np.uint64) | _TEXT_IDS
    return {
        "phase": rows["phase"],
        "id": arrows.renamed(rows, np.where(rows["text"] > 0, texts, rows["id"])),
        "bind_to_enclosing": rows["flags"] & 1,
    }
