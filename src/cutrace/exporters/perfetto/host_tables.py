"""Host events: map tables to slices, instants, counters and flows, with their tracks and arguments.

:data:`TABLES` describes the tables. A :class:`HostEvents` belongs to one table. It numbers the combinations of the
rows, and turns blocks of rows into chunks. A chunk has the columns for a template. :class:`HostTracks` has the tracks
of a group of processes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from ..._native import Blobs, Keys, Program
from ...runbin.labels import (
    ALLOCATIONS,
    ENVIRONMENT,
    JIT_ENTRIES,
    JIT_OPERATIONS,
    MEMORY_KINDS,
    OVERHEADS,
    POOL_OPERATIONS,
    POOL_TYPES,
    SYNCHRONIZATIONS,
    UNIFIED_MEMORY_KINDS,
    allocation_notes,
    label,
)
from ...runbin.layout import HOST_SLICE_KINDS, SHARED, Field, TableLayout
from ...runbin.layout import TABLES as LAYOUT
from ...trace import Trace
from ...trace.ordered import NEVER
from ...trace.ranges import LEVEL_OF_CALLS, levels_of
from ...trace.rows import chosen
from . import placing, proto
from .descriptors import DERIVED, Descriptors, counter
from .packets import Interned, InternedNames, InternedRefs, Output
from .placing import BY_RANK, BesideStream, TrackGroup
from .proto import Columns, Delta, Each, FromColumn, Piece, SegmentPiece, Template, When

#: Integers up to this one are exact as floats.
_EXACT = float(1 << 53)

#: NVTX ranges projected onto one stream. The rows are derived; no capture has this table.
PROJECTED = TableLayout(
    "projected",
    1,
    "NVTX ranges projected onto the streams that their work ran on.",
    (
        Field("start", "u64", "ns", "start of the first work"),
        Field("end", "u64", "ns", "end of the last work"),
        Field(
            "adopted",
            "u32",
            "",
            "how much of the work other threads launched; 1: none, 2: all, 3: some",
        ),
        *(
            field
            for field in LAYOUT["nvtx_ranges"].fields
            if field.name
            in (
                "payload",
                "name",
                "domain",
                "category",
                "color",
                "thread",
                "process",
                "payload_type",
                "arguments",
                "depth",
            )
        ),
        *(SHARED[name] for name in ("stream", "context", "device")),
    ),
)

#: Slices over the work of a graph launch on one stream, for one range around the creation of its nodes. The rows are
#: derived; no capture has this table.
REPLAYED = TableLayout(
    "replayed",
    1,
    "NVTX ranges around the creation of graph nodes, projected onto the streams of replays.",
    (
        Field("start", "u64", "ns", "start of the first work"),
        Field("end", "u64", "ns", "end of the last work"),
        Field(
            "range",
            "u32",
            "",
            "number of the path of the range and the ranges around it",
        ),
        *(SHARED[name] for name in ("stream", "context", "device", "process")),
    ),
)


#: Arguments of an event by name. Arguments that are 0 or None are omitted.
StyleArguments = Mapping[str, int | str | None]


class EventStyle(NamedTuple):
    """The shared data of the events of one style: name, categories and arguments. Arguments that are 0 or None are
    omitted."""

    name: str
    categories: tuple[str, ...]
    arguments: StyleArguments = {}


#: A value of a derived counter. The rows are derived; no capture has this table.
COUNTED = TableLayout(
    "counted",
    1,
    "Values of counters that are derived from records.",
    (
        Field("time", "u64", "ns", "start of the value"),
        Field("value", "f64", "", "value"),
        Field("counter", "u32", "", "number of the counter in the trace"),
        SHARED["process"],
    ),
)

#: Returns the ``TrackDescriptor`` fields of a process's track with a key. Tables with the same function share tracks.
DescribeTrack = Callable[[Descriptors, int, Any], dict[str, Any]]
#: Returns the level of each row (uint16). Of two slices with equal times, the outer slice has the lower level.
Levels = Callable[[Trace, np.ndarray], np.ndarray]
#: Returns the style of a row.
Describe = Callable[[Trace, np.void], EventStyle]


class HostTable(NamedTuple):
    """The description of a table's events on tracks.

    ``track`` describes its tracks. The key of a track is the value of ``track_fields``: 0 without fields, a tuple for
    several. ``describe`` reads the ``style_fields``; counters have no style. Each of ``arguments`` becomes a debug
    annotation, omitted where it is 0. ``strings`` has fields with a string for each value; the string becomes a debug
    annotation, omitted where it is empty. Rows of a table with ``text`` can have arguments in :data:`TEXT`. Rows of a
    ``counted`` table can have hardware metrics. ``select`` returns the mask of the rows that this description is for.
    ``levels`` returns the order in which slices with equal times nest. On one level, inner rows come later, or first
    with ``inner_first``. Rows of an ``open`` table are slices that never ended. ``derived`` has the fields of derived
    rows.
    """

    name: str
    track: DescribeTrack
    track_fields: tuple[str, ...] = ()
    style_fields: tuple[str, ...] = ()
    describe: Describe | None = None
    arguments: tuple[str, ...] = ()
    strings: Mapping[str, tuple[str, ...]] = {}
    kind: Literal["", "counter", "flow"] = ""
    select: Callable[[np.ndarray], np.ndarray] | None = None
    levels: Levels | None = None
    inner_first: bool = False
    text: bool = False
    payload: bool = False
    counted: bool = False
    submits: bool = False
    open: bool = False
    derived: TableLayout | None = None

    @property
    def layout(self) -> TableLayout:
        return self.derived or LAYOUT[self.name]

    @property
    def begins(self) -> bool:
        """Whether each row has a begin and an end event."""
        return "end" in self.layout.offsets and not self.open


_DRIVER = 1


def _levels_of_ranges(trace: Trace, rows: np.ndarray) -> np.ndarray:
    return levels_of("nvtx_ranges", rows)


def _levels_of_calls(trace: Trace, rows: np.ndarray) -> np.ndarray:
    levels = np.full(len(rows), LEVEL_OF_CALLS, np.uint16)
    levels += trace.functions["domain"].take(rows["function"]) == _DRIVER
    return levels


def _levels_of_slices(trace: Trace, rows: np.ndarray) -> np.ndarray:
    return levels_of("host_slices", rows)


#: The categories of calls by their domain.
_CALL_CATEGORIES = {1: "cuda_driver", 2: "cuda_runtime"}


def _numbers(row: np.void, *names: str) -> dict[str, int]:
    return {name: int(row[name]) for name in names}


def _api_call(trace: Trace, row: np.void) -> EventStyle:
    function = trace.functions[int(row["function"])]
    name = "(unknown call)"
    if row["function"]:
        name = trace.strings[function["name"]]
    category = _CALL_CATEGORIES.get(int(function["domain"]), "cuda")
    arguments = {"return_value": int(function["status"])}
    return EventStyle(name, (category,), arguments)


def _nvtx(trace: Trace, row: np.void) -> EventStyle:
    domain = trace.strings[row["domain"]]
    categories = [f"nvtx.{domain}" if domain else "nvtx"]
    arguments: dict[str, int | str | None] = {"domain": domain or None}
    category = int(row["category"])
    if category:
        arguments["category"] = category
        key = (int(row["process"]), int(row["domain"]), category)
        category_name = trace.strings[trace.category_names.get(key, 0)]
        if category_name:
            arguments["category_name"] = category_name
            categories.append(category_name)
    if row["color"]:
        arguments["color"] = f"#{int(row['color']):08X}"
    return EventStyle(trace.strings[row["name"]], tuple(categories), arguments)


def _nvtx_mark(trace: Trace, row: np.void) -> EventStyle:
    style = _nvtx(trace, row)
    if row["source"]:
        return style._replace(categories=("cutrace",))
    return style


def _projected(trace: Trace, row: np.void) -> EventStyle:
    style = _nvtx(trace, row)
    return style._replace(categories=(DERIVED, *style.categories))


def _replayed(trace: Trace, row: np.void) -> EventStyle:
    assert trace.origins
    _, names = trace.origins.levels
    return EventStyle(names[row["range"]], (DERIVED, "nvtx"))


def _synchronization(trace: Trace, row: np.void) -> EventStyle:
    kind = label(SYNCHRONIZATIONS, int(row["type"]))
    arguments: StyleArguments = {
        "type": kind,
        **_numbers(row, "context", "status", "flags"),
    }
    return EventStyle(f"synchronize {kind}", ("cuda_synchronization",), arguments)


def _overhead(trace: Trace, row: np.void) -> EventStyle:
    kind = label(OVERHEADS, int(row["kind"]))
    return EventStyle(kind, ("overhead",), _numbers(row, "kind"))


def _jit(trace: Trace, row: np.void) -> EventStyle:
    operation = label(JIT_OPERATIONS, int(row["operation"]))
    entry = label(JIT_ENTRIES, int(row["entry"]))
    arguments: StyleArguments = {
        "operation": operation,
        "entry": entry,
        "device": int(row["device"]),
        "cache_path": trace.strings[row["cache_path"]] or None,
    }
    return EventStyle(f"JIT {operation} ({entry})", ("jit",), arguments)


def _unified_memory(trace: Trace, row: np.void) -> EventStyle:
    kind = label(UNIFIED_MEMORY_KINDS, int(row["kind"]))
    numbers = _numbers(row, "kind", "source_device", "destination_device", "flags")
    return EventStyle(kind, ("unified_memory",), numbers)


def _allocation(trace: Trace, row: np.void) -> EventStyle:
    operation = label(ALLOCATIONS, int(row["operation"]))
    memory = label(MEMORY_KINDS, int(row["memory"]))
    flags = int(row["flags"])
    arguments: StyleArguments = {
        "device": int(row["device"]),
        "context": int(row["context"]),
        "asynchronous": flags & 1,
        "pool_type": POOL_TYPES.get(int(row["pool_type"])),
        **allocation_notes(flags),
        "source": trace.strings[row["source"]] or None,
    }
    return EventStyle(f"{operation} {memory} memory", ("memory",), arguments)


def _memory_pool(trace: Trace, row: np.void) -> EventStyle:
    operation = label(POOL_OPERATIONS, int(row["operation"]))
    arguments: StyleArguments = {
        "pool_type": POOL_TYPES.get(int(row["pool_type"])),
        "device": int(row["device"]),
    }
    return EventStyle(f"pool {operation}", ("memory",), arguments)


def _environment(trace: Trace, row: np.void) -> EventStyle:
    kind = label(ENVIRONMENT, int(row["kind"]))
    arguments: StyleArguments = {"kind": kind, **_numbers(row, "device", "flags")}
    return EventStyle(kind, ("environment",), arguments)


def _source_event(
    category: str, kinds: Mapping[int, str] = {}, name: str = "(unnamed)"
) -> Describe:
    """Make styles with the name and category of the source. The default name is ``name``. The default category is the
    entry of ``kinds`` for the row's kind, else ``category``."""

    def describe(trace: Trace, row: np.void) -> EventStyle:
        row_category = trace.strings[row["category"]]
        if not row_category and kinds:
            row_category = kinds.get(int(row["kind"]), "")
        row_name = trace.strings[row["name"]]
        return EventStyle(row_name or name, (row_category or category,))

    return describe


def named(
    template: str, description: str | None = None, place: Mapping[str, Any] = {}
) -> DescribeTrack:
    """Make tracks with a name template: the key replaces ``{}``."""
    return lambda descriptors, process, key: {
        "name": template.format(key),
        "description": description,
        **place,
    }


def of_thread(name: str, description: str | None = None) -> DescribeTrack:
    """Make tracks by thread, with the thread in the name if it is known."""

    def describe(descriptors: Descriptors, process: int, thread: int) -> dict[str, Any]:
        track_name = f"{name}, thread {thread}" if thread else name
        return {
            "name": track_name,
            "description": description,
            **placing.among_costs(0),
        }

    return describe


def _named_track(descriptors: Descriptors, process: int, text: int) -> dict[str, Any]:
    return {"name": descriptors.trace.strings[text] or "(unnamed)"}


def _domain_track(
    descriptors: Descriptors, process: int, domain: int
) -> dict[str, Any]:
    if not domain:
        return {"name": "NVTX ranges"}
    return {"name": f"NVTX ranges {descriptors.trace.strings[domain]}"}


def _counter_track(
    descriptors: Descriptors, process: int, key: tuple[int, ...]
) -> dict[str, Any]:
    strings = descriptors.trace.strings
    name, series, category, unit, thread, device = key
    parts = [strings[name] or "counter"]
    if series:
        parts.append(strings[series])
    if thread:
        parts.append(f"thread {thread}")
    if device != 0xFFFF:
        parts.append(f"device {device}")
    descriptor = counter(strings[unit], strings[category] or "counter")
    return {"name": ", ".join(parts), "counter": descriptor}


def _projection_track(
    descriptors: Descriptors, process: int, key: tuple[int, int, int, int]
) -> dict[str, Any]:
    device, context, stream_id, domain_id = key
    queue = device, context, stream_id
    domain = descriptors.trace.strings[domain_id]
    stream = descriptors.devices.queue_name(process, *queue)
    return {
        "name": f"NVTX {domain} on {stream}" if domain else f"NVTX on {stream}",
        "description": "Each range, from the first start to the last end of the work on this stream launched in it",
        **placing.beside_stream(descriptors, process, queue, BesideStream.RANGES),
    }


def _replay_track(
    descriptors: Descriptors, process: int, key: tuple[int, int, int]
) -> dict[str, Any]:
    stream = descriptors.devices.queue_name(process, *key)
    return {
        "name": f"NVTX of graph nodes on {stream}",
        "description": "The ranges in which the graph nodes of replayed work were created",
        **placing.beside_stream(descriptors, process, key, BesideStream.GRAPH_RANGES),
    }


def _counted_track(
    descriptors: Descriptors, process: int, number: int
) -> dict[str, Any]:
    return descriptors.counters[number]


def _moments_track(
    descriptors: Descriptors, process: int, scope: int
) -> dict[str, Any]:
    return {"name": "moments of the process" if scope == 1 else "moments of the trace"}


def _gpu_slice_track(
    descriptors: Descriptors, process: int, key: tuple[int, int, int]
) -> dict[str, Any]:
    device, _, stream = key
    context = descriptors.devices.known_context(process, *key)
    queue = device, context, stream
    name = descriptors.devices.queue_name(process, *queue)
    place = placing.beside_stream(descriptors, process, queue, BesideStream.ANNOTATIONS)
    return {"name": f"annotations, {name}", **place}


THREAD = Descriptors.thread
_NVTX_FIELDS = ("name", "domain", "category", "color", "process")

# The shared parts of descriptions of one table.
_RANGE = HostTable(
    "nvtx_ranges",
    THREAD,
    ("thread",),
    _NVTX_FIELDS,
    _nvtx,
    levels=_levels_of_ranges,
    inner_first=True,  # A row is written when its range ends.
    payload=True,
    counted=True,
    text=True,
)
_CROSSING = _RANGE._replace(arguments=("range_id", "thread", "end_thread"))
_SLICE = HostTable(
    "host_slices",
    THREAD,
    ("thread",),
    ("name", "category", "kind"),
    _source_event("other", HOST_SLICE_KINDS),
    ("external",),
    levels=_levels_of_slices,
    text=True,
)
_INSTANT = HostTable(
    "instants",
    THREAD,
    ("thread",),
    ("name", "category"),
    _source_event("instant"),
    text=True,
)

TABLES: tuple[HostTable, ...] = (
    HostTable(
        "api_calls",
        THREAD,
        ("thread",),
        ("function",),
        _api_call,
        ("correlation",),
        levels=_levels_of_calls,
        submits=True,
    ),
    _RANGE._replace(select=lambda r: r["kind"] == 0),
    _CROSSING._replace(
        track=_domain_track,
        track_fields=("domain",),
        select=lambda r: r["kind"] != 0,
    ),
    HostTable(
        "nvtx_marks",
        THREAD,
        ("thread",),
        (*_NVTX_FIELDS, "source"),
        _nvtx_mark,
        payload=True,
        text=True,
    ),
    HostTable(
        "synchronizations",
        named(
            "synchronization, context {}",
            "Waits for the GPU, on the host and between streams",
            placing.among_costs(1),
        ),
        ("context",),
        ("type", "context", "status", "flags"),
        _synchronization,
        ("correlation", "stream", "event", "event_record"),
    ),
    HostTable(
        "overheads",
        of_thread(
            "overhead",
            "Time in CUPTI and the driver, e.g. to load kernels and to record",
        ),
        ("thread",),
        ("kind",),
        _overhead,
        ("correlation",),
    ),
    HostTable(
        "jit",
        of_thread("JIT"),
        ("thread",),
        ("operation", "entry", "device", "cache_path"),
        _jit,
        ("correlation", "cache_size"),
    ),
    HostTable(
        "unified_memory",
        named("unified memory", place=placing.in_memory(3)),
        (),
        ("kind", "source_device", "destination_device", "flags"),
        _unified_memory,
        ("value", "address", "stream"),
    ),
    HostTable(
        "allocations",
        named("memory, device {}", "Allocations and releases", placing.in_memory(1)),
        ("device",),
        ("operation", "memory", "device", "context", "flags", "pool_type", "source"),
        _allocation,
        ("bytes", "address", "correlation", "stream", "pool", "pool_used"),
    ),
    HostTable(
        "memory_pools",
        named("memory pools, device {}", place=placing.in_memory(2)),
        ("device",),
        ("operation", "pool_type", "device"),
        _memory_pool,
        ("address", "size", "used", "release_threshold", "minimum", "correlation"),
    ),
    HostTable(
        "environment",
        named("environment, device {}", place=placing.in_environment(0)),
        ("device",),
        ("kind", "device", "flags"),
        _environment,
        ("values",),
    ),
    HostTable(
        PROJECTED.name,
        _projection_track,
        ("device", "context", "stream", "domain"),
        _NVTX_FIELDS,
        _projected,
        ("thread",),
        strings={"adopted": ("", "", "all", "some")},
        levels=_levels_of_ranges,
        payload=True,
        text=True,
        derived=PROJECTED,
    ),
    HostTable(
        REPLAYED.name,
        _replay_track,
        ("device", "context", "stream"),
        ("range",),
        _replayed,
        derived=REPLAYED,
    ),
    HostTable(
        COUNTED.name,
        _counted_track,
        ("counter",),
        kind="counter",
        derived=COUNTED,
    ),
    _SLICE._replace(select=lambda r: r["track"] == 0),
    _SLICE._replace(
        track=_named_track,
        track_fields=("track",),
        arguments=("external", "thread"),
        select=lambda r: r["track"] != 0,
    ),
    _INSTANT._replace(select=lambda r: (r["track"] == 0) & (r["scope"] == 0)),
    _INSTANT._replace(
        track=_named_track,
        track_fields=("track",),
        arguments=("thread",),
        select=lambda r: r["track"] != 0,
    ),
    _INSTANT._replace(
        track=_moments_track,
        track_fields=("scope",),
        arguments=("thread",),
        select=lambda r: (r["track"] == 0) & (r["scope"] != 0),
    ),
    HostTable(
        "counters",
        _counter_track,
        ("name", "series", "category", "unit", "thread", "device"),
        kind="counter",
    ),
    HostTable(
        "gpu_slices",
        _gpu_slice_track,
        ("device", "context", "stream"),
        ("name", "category", "kind"),
        _source_event("gpu_slice", {1: "gpu_user_annotation", 2: "nvtx"}),
        ("correlation",),
        text=True,
    ),
    HostTable(
        "flows",
        THREAD,
        ("thread",),
        ("name", "category"),
        _source_event("flow", name="flow"),
        kind="flow",
    ),
)

#: Slices that never ended have separate tracks. On other tracks, the end event of another slice would end them.
OPEN_TABLES = (
    _CROSSING._replace(
        track=named("NVTX ranges still open at the end, thread {}"),
        open=True,
    ),
    _SLICE._replace(
        track=named("slices still open at the end, thread {}"),
        open=True,
    ),
)


#: Value of TrackDescriptor.SiblingMergeBehavior.
NOT_MERGED = 2

SLICE_BEGIN = 1
SLICE_END = 2
INSTANT = 3
COUNTER_VALUE = 4

#: The columns with NVTX payloads of one kind, and the field of a debug annotation for each.
_PAYLOADS = {"unsigned": "uint_value", "signed": "int_value", "float": "double_value"}

#: Arguments that viewers show as addresses.
_POINTERS = frozenset(("address", "pool"))


def _packet(event: dict[str, Any], extra: bool = False) -> Template:
    """A packet with a ``TrackEvent``. The track is omitted where it is the default of the sequence. With ``extra``, the
    event also has the values of counters at its time."""
    # Constant bytes come first, then all varying bytes. This order compresses best.
    prefix = SegmentPiece("bare_prefixes")
    event = {**event, "track_uuid": FromColumn("track", omit=0, event=True)}
    if extra:
        tracks = Each("extra_offsets", "extra_tracks", event=True)
        values = Each("extra_offsets", "extra_values", event=True)
        event["extra_counter_track_uuids"] = tracks
        event["extra_counter_values"] = values
    packet = {
        "sequence": prefix,
        "timestamp": Delta("time", event=True),
        "track_event": event,
    }
    return Template("Trace", {"packet": packet})


@cache
def end_template(extra: bool) -> Template:
    """The end of a slice of any table."""
    return _packet({"type": SLICE_END}, extra)


@cache
def counter_template(whole: bool, extra: bool) -> Template:
    """A value of a counter. A ``whole`` number takes half as many bytes."""
    field = "counter_value" if whole else "double_counter_value"
    return _packet({"type": COUNTER_VALUE, field: FromColumn("value")}, extra)


def counter_values(values: np.ndarray) -> np.ndarray:
    """The values of counters, as int64 if all are integers."""
    # No integer is equal to -0.0 with its sign.
    negative_zero = (values == 0) & np.signbit(values)
    exact = np.rint(values) == values
    exact &= np.abs(values) <= _EXACT
    if np.all(exact & ~negative_zero):
        return values.astype(np.int64)
    return values


class SharedArguments(Protocol):
    """Arguments that many rows share, in numbered sets."""

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The number of the set of each row."""

    def shared(self, number: int, refs: InternedRefs) -> list[dict[str, Any]]:
        """The debug annotations of a set. Adds the interned entries that they need to ``refs``."""


class HostEvents:
    """One description of a table of a process, with the combinations of its rows. ``text`` says whether rows have
    arguments in :data:`TEXT`; ``shared`` has the sources of arguments that rows share.

    A *combination* is a track and a style. Rows refer to it by number. By combination, ``tracks`` has the key of the
    track, ``pieces`` the encoded constant fields of the event, and ``refs`` the interned entries that these fields
    refer to.
    """

    def __init__(
        self,
        table: HostTable,
        process: int,
        trace: Trace,
        names: InternedNames,
        text: bool,
        shared: Sequence[SharedArguments],
    ) -> None:
        self.table = table
        self.process = process
        self._trace = trace
        self._names = names
        self._text = text
        self._shared = shared
        self.pieces = Blobs()
        self.tracks: list[int | tuple[int, ...]] = []
        self.refs: list[list[Interned]] = []
        fields = (*table.track_fields, *table.style_fields)
        self._fields = tuple(dict.fromkeys(fields))
        self._keys = Keys(len(self._fields) + len(shared))
        self._styles: dict[tuple[Any, ...], tuple[bytes, list[Interned]]] = {}
        self._common = InternedRefs(names)
        #: By field of ``HostTable.strings``, the encoded debug annotation of each value.
        self.strings = {}
        for name, strings in table.strings.items():
            self.strings[f"{name} strings"] = self._annotated(name, strings)
        self._templates: dict[tuple[bool, bool, bool], Template] = {}
        # _describe also adds the names of the arguments to _common. The first row needs them.
        self.template(payload=table.payload, waits=False, extra=False)

    def template(self, *, payload: bool, waits: bool, extra: bool) -> Template:
        """The template for chunks with NVTX payloads, waits for GPU work, or extra counter values."""
        key = payload, waits, extra
        if key not in self._templates:
            self._templates[key] = self._describe(*key)
        return self._templates[key]

    def select(self, rows: np.ndarray) -> HostRows:
        """The rows of a block that this description is for; thread-safe."""
        if self.table.select:
            selected = self.table.select(rows)
            if not selected.all():
                rows = chosen(rows, selected)
        # Copy the column, because the layout of each window reads all starts.
        start_field = self.table.layout.start_field or ""
        starts = rows[start_field].copy()
        levels = None
        if self.table.levels:
            levels = self.table.levels(self._trace, rows)
        if self._shared:
            return HostRows(self, rows, starts, levels, None, None)
        columns = [rows[field] for field in self._fields]
        kinds, first = Keys(len(columns)).ids(columns)
        return HostRows(self, rows, starts, levels, kinds, first)

    def chunk(self, part: HostRows, columns: Future[Columns]) -> HostChunk:
        """Make a chunk of rows. ``columns`` are the columns for their template; encoding waits for them."""
        rows = part.rows
        if part.first is not None:
            rows = chosen(rows, part.first)
        keys = [rows[field] for field in self._fields]
        sets = [source.numbers(rows) for source in self._shared]
        combinations, new = self._keys.ids([*keys, *sets])
        for at in new.tolist():
            sets_of_row = tuple(int(numbers[at]) for numbers in sets)
            self._combine(rows[at], sets_of_row)
        if part.kinds is not None:
            combinations = combinations.take(part.kinds)
        return HostChunk(
            self, part.rows, part.starts, part.levels, combinations, columns
        )

    def _combine(self, row: np.void, sets: tuple[int, ...]) -> None:
        table = self.table
        values = [row[field].item() for field in table.style_fields]
        key = (*values, *sets)
        if key not in self._styles:
            self._styles[key] = self._style(row, sets)
        piece, refs = self._styles[key]
        self.pieces.add(piece)
        self.refs.append(refs)
        track = tuple(int(row[f]) for f in table.track_fields)
        if len(track) == 1:
            self.tracks.append(track[0])
        else:
            self.tracks.append(track or 0)

    def _style(
        self, row: np.void, sets: tuple[int, ...]
    ) -> tuple[bytes, list[Interned]]:
        """The encoded constant fields of an event, and the interned entries that it needs."""
        if not self.table.describe:
            return b"", []
        style = self.table.describe(self._trace, row)
        refs = InternedRefs(self._names)
        name = refs.name("event_names", style.name)
        categories = [refs.name("event_categories", each) for each in style.categories]
        annotations = refs.annotations(style.arguments)
        for source, number in zip(self._shared, sets, strict=True):
            annotations += source.shared(number, refs)
        event = {
            "name_iid": name,
            "category_iids": categories,
            "debug_annotations": annotations,
        }
        return proto.encode("TrackEvent", event), [*self._common, *refs]

    def _annotated(self, name: str, strings: Iterable[str]) -> Blobs:
        """The encoded debug annotation of each string; nothing for an empty one."""
        pieces = Blobs()
        for string in strings:
            annotations = self._common.annotations({name: string or None})
            pieces.add(proto.encode("TrackEvent", {"debug_annotations": annotations}))
        return pieces

    def _describe(self, payload: bool, waits: bool, extra: bool) -> Template:
        table = self.table
        annotations: list[Any] = []
        for name in table.arguments:
            iid = self._common.name("debug_annotation_names", name)
            kind = "pointer_value" if name in _POINTERS else "uint_value"
            annotations.append(When(name, {"name_iid": iid, kind: FromColumn(name)}))
        if payload:
            iid = self._common.name("debug_annotation_names", "payload")
            for column, kind in _PAYLOADS.items():
                annotation = {"name_iid": iid, kind: FromColumn(column)}
                annotations.append(When(f"is_{column}", annotation))
        event: dict[str, Any] = {
            "type": SLICE_BEGIN if "end" in table.layout.offsets else INSTANT,
            "pieces": Piece("combination", "pieces"),
            "debug_annotations": annotations,
        }
        if table.kind == "flow":
            # A step of a flow has no event type: viewers attach it to the slice around it, or to the next slice.
            bind = FromColumn("bind_to_enclosing", omit=0)
            event["type"] = None
            event["legacy_event"] = {
                "phase": FromColumn("phase"),
                "unscoped_id": FromColumn("id"),
                "bind_to_enclosing": bind,
            }
        if self._text:
            event["text"] = Piece("text", "texts")
        for name in table.strings:
            event[name] = Piece(name, f"{name} strings")
        if table.submits:
            submitted = Each("submission_offsets", "submissions")
            ids = {"render_stage_submission_event_ids": submitted}
            if waits:
                ids["render_stage_wait_event_ids"] = Each("wait_offsets", "waits")
            event["gpu_correlation"] = When("correlated", ids)
        return _packet(event, extra)


class HostRows(NamedTuple):
    """Some rows of a block. ``kinds`` numbers their combinations in order of appearance, and ``first`` has the first
    row of each. Both are missing for rows with arguments of the source: their combinations are numbered later, in
    order."""

    events: HostEvents
    rows: np.ndarray
    starts: np.ndarray
    levels: np.ndarray | None
    kinds: np.ndarray | None
    first: np.ndarray | None


class HostChunk(NamedTuple):
    """Some rows of a table, the combination of each, and the columns for their template."""

    events: HostEvents
    rows: np.ndarray
    starts: np.ndarray
    levels: np.ndarray | None
    combinations: np.ndarray
    columns: Future[Columns]

    @property
    def end(self) -> np.ndarray | None:
        """The ends of slices, :data:`NEVER` for a slice that never ended. None for instants."""
        if self.events.table.begins:
            return self.rows["end"]
        if self.events.table.open:
            return np.full(len(self.rows), NEVER, np.uint64)
        return None

    @property
    def whole(self) -> bool:
        """Whether all values are integers; for counters only."""
        return np.asarray(self.columns.result()["value"]).dtype.kind != "f"

    def bind(self, by_event: Columns) -> tuple[Program, list[np.ndarray | Blobs]]:
        """The template, bound to the columns of the chunk and to the columns by event."""
        columns = self.columns.result() | by_event
        extra = "extra_offsets" in columns
        if self.events.table.kind == "counter":
            return counter_template(self.whole, extra).bind(columns)
        columns |= {"combination": self.combinations, "pieces": self.events.pieces}
        columns |= self.events.strings
        template = self.events.template(
            payload="is_unsigned" in columns, waits="waits" in columns, extra=extra
        )
        return template.bind(columns)


@dataclass
class Track:
    """A group of slices that Lanes nests into lanes. Each lane is one track of the trace."""

    uuid: int
    kind: DescribeTrack
    descriptor: dict[str, Any]
    # The interned entries to write before the next event.
    waiting: list[Interned] = field(default_factory=list)
    # The uuids of the described tracks, by lane.
    lanes: list[int] = field(default_factory=list)


class TrackNews(NamedTuple):
    """A new combination: the number, process, kind and key of its track, and the interned entries that it needs."""

    number: int
    process: int
    kind: DescribeTrack
    key: Any
    refs: list[Interned]


class HostTracks:
    """The tracks below the tracks of processes, by number. ``parents`` has the track uuid of each process. The events
    of all tracks are on one packet sequence in rising time, so viewers need not sort them.

    :meth:`of` numbers tracks and :meth:`add` creates new tracks. So one thread can number tracks while another thread
    writes an earlier window.
    """

    def __init__(
        self, output: Output, descriptors: Descriptors, parents: Sequence[int]
    ) -> None:
        self._output = output
        self._descriptors = descriptors
        self._parents = parents
        # Descriptors have a separate sequence, because viewers assign events without a thread to the last thread that
        # their sequence described.
        self._described = output.sequence()
        self._groups: dict[tuple[int, TrackGroup], int] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the tracks. Later events are on new tracks and a new sequence, and may have earlier times."""
        self.tracks: list[Track] = []
        self.sequence = self._output.sequence()
        self.default = 0  # The uuid of the sequence's default track.
        self._news: list[TrackNews] = []
        self._numbers: dict[tuple[int, DescribeTrack, Any], int] = {}
        self._of_events: dict[HostEvents, np.ndarray] = {}

    def of(self, events: HostEvents) -> np.ndarray:
        """The number of the track of each combination."""
        known = self._of_events.get(events, np.zeros(0, np.uint32))
        process = events.process
        kind = events.table.track
        if len(known) < len(events.tracks):
            new = []
            for at in range(len(known), len(events.tracks)):
                key = events.tracks[at]
                number = self._numbers.setdefault(
                    (process, kind, key), len(self._numbers)
                )
                new.append(number)
                news = TrackNews(number, process, kind, key, events.refs[at])
                self._news.append(news)
            known = np.append(known, np.array(new, np.uint32))
            self._of_events[events] = known
        return known

    def news(self) -> list[TrackNews]:
        """The combinations that are new since the last call."""
        news = self._news
        self._news = []
        return news

    def add(self, news: Iterable[TrackNews]) -> None:
        """Create the tracks of new combinations, and queue the interned entries of these."""
        for number, process, kind, key, refs in news:
            if number == len(self.tracks):
                descriptor = dict(kind(self._descriptors, process, key))
                if "thread" not in descriptor:
                    group = descriptor.pop("group", None)
                    descriptor["parent_uuid"] = self._parent(process, group)
                self.tracks.append(Track(self._output.uuid(), kind, descriptor))
            self.tracks[number].waiting += refs

    def prepare(
        self,
        groups: np.ndarray,
        counts: np.ndarray,
        lanes: np.ndarray,
        first: int,
        instant_lanes: np.ndarray,
    ) -> np.ndarray:
        """Write the descriptors and interned entries for a window that starts at the time ``first`` (ns). ``groups``
        are its tracks. By track, ``counts`` has the number of events, ``lanes`` the number of lanes, and
        ``instant_lanes`` the index of the last lane with instants. Returns the uuids of all these lanes; 0 is the
        default track, which is the track with the most events."""
        if not len(groups):
            return np.zeros(0, np.uint32)
        if self.sequence.time < 0:
            self.sequence.anchor(first)
        tracks = [self.tracks[group] for group in groups.tolist()]
        most = tracks[int(counts.argmax())].uuid
        if most != self.default:
            self.default = most
            self.sequence.defaults({"track_event_defaults": {"track_uuid": most}})
        uuids: list[int] = []
        numbers = zip(tracks, lanes.tolist(), instant_lanes.tolist(), strict=True)
        for track, used, last_with_instants in numbers:
            self._describe(track, used, last_with_instants)
            self.sequence.intern(track.waiting)
            track.waiting.clear()
            uuids += track.lanes[:used]
        out = np.array(uuids, np.uint32)
        out[out == most] = 0
        return out

    def _parent(self, process: int, group: TrackGroup | None) -> int:
        """The uuid of a process, or of one of its groups, which is described at its first use."""
        parent = self._parents[process]
        if group is None:
            return parent
        if (process, group) not in self._groups:
            uuid = self._output.uuid()
            self._groups[process, group] = uuid
            descriptor = {
                "uuid": uuid,
                "parent_uuid": parent,
                "name": group.name,
                "description": group.description,
                "child_ordering": BY_RANK,
            }
            self._described.packet({"track_descriptor": descriptor})
        return self._groups[process, group]

    def _describe(self, track: Track, used: int, last_with_instants: int) -> None:
        """Write the descriptors of the first ``used`` lanes."""
        if not track.lanes:
            track.lanes.append(track.uuid)
            descriptor = {"uuid": track.uuid, **track.descriptor}
            self._described.packet({"track_descriptor": descriptor})
        while len(track.lanes) < used:
            # The track for slices that do not nest is a child of a thread's track, and a sibling of any other track.
            parent = track.descriptor.get("parent_uuid", track.uuid)
            name = track.descriptor.get("name", "overlapping slices")
            uuid = self._output.uuid()
            track.lanes.append(uuid)
            rank = track.descriptor.get("sibling_order_rank")
            descriptor = {
                "uuid": uuid,
                "parent_uuid": parent,
                "name": name,
                "sibling_order_rank": rank,
            }
            if len(track.lanes) <= last_with_instants + 1:
                # Viewers merge tracks, and would put all their instants on one track.
                descriptor["sibling_merge_behavior"] = NOT_MERGED
            self._described.packet({"track_descriptor": descriptor})


class SpoolBlock(NamedTuple):
    """Some rows of a spool, with the attributes of a :class:`BlockInfo`."""

    spool: Spool
    layout: TableLayout
    process: int
    first_time: int
    payload_size: int
    offset: int

    @property
    def table(self) -> str:
        return self.layout.name

    def read(self) -> np.ndarray:
        self.spool.file.seek(self.offset)
        data = self.spool.file.read(self.payload_size)
        return np.frombuffer(data, self.layout.dtype)


class Spool:
    """Blocks of rows that one pass makes and a later pass writes, in memory or, above :data:`KEPT_BYTES`, in an unnamed
    file. The end of the ``with`` block discards the rows."""

    #: The largest number of bytes in memory.
    KEPT_BYTES = 8 << 20

    def __init__(self) -> None:
        self.blocks: list[SpoolBlock] = []
        self.file = tempfile.SpooledTemporaryFile(self.KEPT_BYTES)  # noqa: SIM115 (closed with the spool)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, table: TableLayout, rows: np.ndarray) -> None:
        """Append a block of rows of a table and of one process."""
        if len(rows):
            self.file.seek(0, os.SEEK_END)
            block = SpoolBlock(
                self,
                table,
                process=int(rows["process"][0]),
                first_time=int(rows[table.start_field].min()),
                payload_size=rows.nbytes,
                offset=self.file.tell(),
            )
            self.blocks.append(block)
            self.file.write(rows.tobytes())
