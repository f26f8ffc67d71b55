"""What happens on the host: which tables become slices and instants, on which tracks, with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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
    label,
)
from ...runbin.layout import CONTEXT, DEVICE, HOST_SLICE_KINDS, STREAM, Field, Table
from ...runbin.layout import TABLES as LAYOUT
from ...trace import Trace
from .devices import Devices
from .naming import CUDA, DERIVED, Needs

#: Kinds of tracks. A track is (kind, key): the key is a thread id, a device, ... as the kind says.
(
    THREAD, NVTX_RANGES, SYNCHRONIZATION, OVERHEAD, JIT, UNIFIED, MEMORY, POOLS, DEVICE_STATE, OPEN_RANGES, NAMED,
    OPEN_SLICES, MOMENTS, COUNTER, GPU_SLICES, PROJECTIONS, CLOCK,
) = range(17)  # fmt: skip

#: The field with the arguments that a source gave, a JSON object's text.
TEXT = "arguments"

#: What makes a counter of a source.
COUNTER_FIELDS = ("name", "series", "category", "unit", "thread", "device")

#: Units of Perfetto's counters.
_UNITS = {"ns": 1, "count": 2, "bytes": 3, "B": 3}

_SUCCESS = 0


#: An NVTX range as one stream saw it: fields of the range, and of the stream. No table of captures: it is derived.
PROJECTED = Table(
    "projected",
    1,
    "NVTX ranges projected onto the streams that their work ran on.",
    (
        Field("start", "u64", "ns", "begin of the first work"),
        Field("end", "u64", "ns", "end of the last work"),
        *(
            field
            for field in LAYOUT["nvtx_ranges"].fields
            if field.name in ("payload", "name", "domain", "category", "color", "thread", "process", "payload_type")
        ),
        STREAM,
        CONTEXT,
        DEVICE,
    ),
)


@dataclass(frozen=True)
class TrackTable:
    """How a table becomes events on tracks.

    ``track`` is the kind of track and ``track_field`` the field that is the key of the tracks of that kind; where more
    than one field is, ``track_key`` makes the key out of a row, from fields that are among ``style_fields``. ``style``
    gives the fields of the ``TrackEvent`` that all rows with the same ``style_fields`` share. ``arguments`` are fields
    that become a debug annotation each, left out where they are 0; with ``text``, those of :data:`TEXT` stand beside
    them. ``select`` chooses the rows that this description is for. ``value`` gives what a counter is at each row. Not
    all rows are ``read_back`` from events: derived ones are no rows of a capture, and of some, events do not show all.
    ``derived_layout`` has the fields of derived rows.
    """

    name: str
    track: int
    track_field: str | None
    style_fields: tuple[str, ...]
    style: Callable[[Trace, np.void, Needs], dict[str, Any]]
    arguments: tuple[str, ...] = ()
    select: Callable[[np.ndarray], np.ndarray] | None = None
    payload: bool = False
    submits: bool = False
    track_key: Callable[[np.void], Hashable] | None = None
    text: bool = False
    kind: Literal["", "counter", "flow"] = ""
    value: Callable[[np.ndarray], np.ndarray] | None = None
    read_back: bool = True
    derived_layout: Table | None = None

    @property
    def layout(self) -> Table:
        """The fields of the rows."""
        return self.derived_layout or LAYOUT[self.name]


def _event(
    needs: Needs, name: str, categories: tuple[str, ...], annotations: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    return {
        "name_iid": needs.name("event_names", name),
        "category_iids": [needs.name("event_categories", c) for c in categories],
        "debug_annotations": annotations,
        **more,
    }


def _api_call(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    function = trace.functions[int(row["function"])]
    name = trace.strings[int(function["name"])] if row["function"] else "(unknown call)"
    category = {1: "cuda_driver", 2: "cuda_runtime"}.get(int(function["domain"]), "cuda")
    status = int(function["status"])
    returned = needs.annotations(return_value=status) if status != _SUCCESS else []
    return _event(needs, name, (category,), returned, gpu_api=CUDA)


def _nvtx(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    domain = trace.strings[int(row["domain"])]
    category = int(row["category"])
    categories: tuple[str, ...] = (f"nvtx.{domain}",) if domain else ("nvtx",)
    named = _category_name(trace, int(row["domain"]), category, int(row["process"])) if category else None
    if named:
        categories += (named,)
    annotations = needs.annotations(
        domain=domain or None,
        category=category,
        category_name=named,
        color=f"#{int(row['color']):08X}" if row["color"] else None,
    )
    return _event(needs, trace.strings[int(row["name"])], categories, annotations)


def _category_name(trace: Trace, domain: int, category: int, process: int) -> str | None:
    found = trace.category_names.get((process, domain, category))
    return None if found is None else trace.strings[found]


def _nvtx_mark(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    event = _nvtx(trace, row, needs)
    if row["source"]:
        event["category_iids"] = [needs.name("event_categories", "cutrace")]
    return event


def _synchronization(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    kind = label(SYNCHRONIZATIONS, int(row["type"]))
    annotations = needs.annotations(
        type=kind, context=int(row["context"]), status=int(row["status"]), flags=int(row["flags"])
    )
    return _event(needs, f"synchronize {kind}", ("cuda_synchronization",), annotations)


def _overhead(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    return _event(needs, label(OVERHEADS, int(row["kind"])), ("overhead",), needs.annotations(kind=int(row["kind"])))


def _jit(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    operation, entry = label(JIT_OPERATIONS, int(row["operation"])), label(JIT_ENTRIES, int(row["entry"]))
    path = trace.strings[int(row["cache_path"])] or None
    annotations = needs.annotations(operation=operation, entry=entry, device=int(row["device"]), cache_path=path)
    return _event(needs, f"JIT {operation} ({entry})", ("jit",), annotations)


def _unified_memory(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    kind = label(UNIFIED_MEMORY_KINDS, int(row["kind"]))
    annotations = needs.annotations(
        kind=int(row["kind"]),
        source_device=int(row["source_device"]),
        destination_device=int(row["destination_device"]),
        flags=int(row["flags"]),
    )
    return _event(needs, kind, ("unified_memory",), annotations)


def _allocation(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    operation, memory = label(ALLOCATIONS, int(row["operation"])), label(MEMORY_KINDS, int(row["memory"]))
    annotations = needs.annotations(
        device=int(row["device"]),
        context=int(row["context"]),
        asynchronous=int(row["flags"]) & 1,
        pool_type=POOL_TYPES.get(int(row["pool_type"])),
        source=trace.strings[int(row["source"])] or None,
    )
    return _event(needs, f"{operation} {memory} memory", ("memory",), annotations)


def _memory_pool(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    operation = label(POOL_OPERATIONS, int(row["operation"]))
    annotations = needs.annotations(pool_type=POOL_TYPES.get(int(row["pool_type"])), device=int(row["device"]))
    return _event(needs, f"pool {operation}", ("memory",), annotations)


def _environment(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    kind = label(ENVIRONMENT, int(row["kind"]))
    annotations = needs.annotations(kind=kind, device=int(row["device"]), flags=int(row["flags"]))
    return _event(needs, kind, ("environment",), annotations)


def _projected(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    event = _nvtx(trace, row, needs)
    event["category_iids"] = [needs.name("event_categories", DERIVED), *event["category_iids"]]
    return event


def _text(trace: Trace, row: np.void, field: str, otherwise: str) -> str:
    return trace.strings[int(row[field])] or otherwise


def _host_slice(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    kind = HOST_SLICE_KINDS.get(int(row["kind"]), "other")
    return _event(needs, _text(trace, row, "name", "(unnamed)"), (_text(trace, row, "category", kind),), [])


def _instant(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    return _event(needs, _text(trace, row, "name", "(unnamed)"), (_text(trace, row, "category", "instant"),), [])


def _gpu_slice(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    kind = {1: "gpu_user_annotation", 2: "nvtx"}.get(int(row["kind"]), "gpu_slice")
    return _event(needs, _text(trace, row, "name", "(unnamed)"), (_text(trace, row, "category", kind),), [])


def _counter(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    # All that its rows share is said of its track.
    return {}


def _flow(trace: Trace, row: np.void, needs: Needs) -> dict[str, Any]:
    return _event(needs, _text(trace, row, "name", "flow"), (_text(trace, row, "category", "flow"),), [])


@dataclass(frozen=True)
class Reading:
    """What an ``environment`` row of one kind says of its device: bits of ``values``, in a unit, times a factor."""

    kind: int
    name: str
    unit: str
    shift: int
    bits: int
    factor: float = 1.0

    def value(self, rows: np.ndarray) -> np.ndarray:
        bits = rows["values"] >> np.uint64(self.shift) & np.uint64((1 << self.bits) - 1)
        values: np.ndarray = bits * self.factor
        return values


READINGS = (
    Reading(1, "SM clock", "Hz", 0, 16, 1e6),
    Reading(1, "memory clock", "Hz", 16, 16, 1e6),
    Reading(2, "temperature", "°C", 0, 32),
    Reading(3, "power", "W", 0, 32, 1e-3),
    Reading(3, "power limit", "W", 32, 32, 1e-3),
    Reading(4, "fan", "%", 0, 32),
)


def _reading_table(number: int, reading: Reading) -> TrackTable:
    return TrackTable(
        "environment",
        CLOCK,
        None,
        ("device",),
        _counter,
        select=lambda rows: rows["kind"] == reading.kind,
        track_key=lambda row: (number, int(row["device"])),
        kind="counter",
        value=reading.value,
        read_back=False,
    )


_NVTX_STYLE = ("name", "domain", "category", "color", "process")

TABLES = (
    TrackTable(
        "api_calls",
        THREAD,
        "thread",
        ("function",),
        _api_call,
        ("correlation",),
        submits=True,
    ),
    TrackTable(
        "nvtx_ranges",
        THREAD,
        "thread",
        _NVTX_STYLE,
        _nvtx,
        payload=True,
        select=lambda r: r["kind"] == 0,
    ),
    TrackTable(
        "nvtx_ranges",
        NVTX_RANGES,
        "domain",
        _NVTX_STYLE,
        _nvtx,
        ("range_id", "thread", "end_thread"),
        payload=True,
        select=lambda r: r["kind"] != 0,
    ),
    TrackTable("nvtx_marks", THREAD, "thread", (*_NVTX_STYLE, "source"), _nvtx_mark, payload=True),
    TrackTable(
        "synchronizations",
        SYNCHRONIZATION,
        "context",
        ("type", "context", "status", "flags"),
        _synchronization,
        ("correlation", "stream", "event", "event_record"),
    ),
    TrackTable("overheads", OVERHEAD, "thread", ("kind",), _overhead, ("correlation",)),
    TrackTable(
        "jit",
        JIT,
        "thread",
        ("operation", "entry", "device", "cache_path"),
        _jit,
        ("correlation", "cache_size"),
    ),
    TrackTable(
        "unified_memory",
        UNIFIED,
        None,
        ("kind", "source_device", "destination_device", "flags"),
        _unified_memory,
        ("value", "address", "stream"),
    ),
    TrackTable(
        "allocations",
        MEMORY,
        "device",
        ("operation", "memory", "device", "context", "flags", "pool_type", "source"),
        _allocation,
        ("bytes", "address", "correlation", "stream", "pool", "pool_used"),
    ),
    TrackTable(
        "memory_pools",
        POOLS,
        "device",
        ("operation", "pool_type", "device"),
        _memory_pool,
        ("address", "size", "used", "release_threshold", "minimum", "correlation"),
    ),
    TrackTable("environment", DEVICE_STATE, "device", ("kind", "device", "flags"), _environment, ("values",)),
    *(_reading_table(number, reading) for number, reading in enumerate(READINGS)),
    TrackTable(
        PROJECTED.name,
        PROJECTIONS,
        None,
        (*_NVTX_STYLE, "device", "context", "stream"),
        _projected,
        ("thread",),
        payload=True,
        track_key=lambda row: tuple(int(row[f]) for f in ("device", "context", "stream", "domain")),
        read_back=False,
        derived_layout=PROJECTED,
    ),
    TrackTable(
        "host_slices",
        THREAD,
        "thread",
        ("name", "category", "kind"),
        _host_slice,
        ("external",),
        select=lambda r: r["track"] == 0,
        text=True,
    ),
    TrackTable(
        "host_slices",
        NAMED,
        "track",
        ("name", "category", "kind"),
        _host_slice,
        ("external", "thread"),
        select=lambda r: r["track"] != 0,
        text=True,
    ),
    TrackTable(
        "instants",
        THREAD,
        "thread",
        ("name", "category"),
        _instant,
        select=lambda r: (r["track"] == 0) & (r["scope"] == 0),
        text=True,
    ),
    TrackTable(
        "instants",
        NAMED,
        "track",
        ("name", "category"),
        _instant,
        ("thread",),
        select=lambda r: r["track"] != 0,
        text=True,
    ),
    TrackTable(
        "instants",
        MOMENTS,
        "scope",
        ("name", "category"),
        _instant,
        ("thread",),
        select=lambda r: (r["track"] == 0) & (r["scope"] != 0),
        text=True,
    ),
    TrackTable(
        "counters",
        COUNTER,
        None,
        COUNTER_FIELDS,
        _counter,
        track_key=lambda row: tuple(int(row[f]) for f in COUNTER_FIELDS),
        kind="counter",
        value=lambda rows: rows["value"],
    ),
    TrackTable(
        "gpu_slices",
        GPU_SLICES,
        None,
        ("name", "category", "kind", "device", "context", "stream"),
        _gpu_slice,
        ("correlation",),
        track_key=lambda row: tuple(int(row[f]) for f in ("device", "context", "stream")),
        text=True,
    ),
    TrackTable("flows", THREAD, "thread", ("name", "category"), _flow, kind="flow", read_back=False),
)

#: Tables with rows that never ended, and the kind of track that these are on: elsewhere, ends of others would end them.
OPEN = {"nvtx_ranges": OPEN_RANGES, "host_slices": OPEN_SLICES}


def never_ended(name: str, unknown: np.ndarray) -> np.ndarray:
    """Which rows without known times are slices that never ended: these are events."""
    if name not in OPEN:
        return np.zeros(len(unknown), bool)
    begun: np.ndarray = (unknown["start"] > 0) & (unknown["end"] == 0)
    return begun


#: What tracks of a kind show, where their name does not say it all.
MEANINGS = {
    SYNCHRONIZATION: "Waits for the GPU, on the host and between streams",
    OVERHEAD: "Time that CUPTI and the driver took, e.g. to load kernels and to record",
    MEMORY: "Allocations and releases",
}


def described(trace: Trace, devices: Devices, process: int, kind: int, key: Any) -> dict[str, Any]:
    """What a track other than a thread's is: fields of its ``TrackDescriptor``."""
    strings = trace.strings
    if kind == COUNTER:
        name, series, category, unit, thread, device = key
        of = [strings[name] or "counter", strings[series], f"thread {thread}" if thread else ""]
        of.append(f"device {device}" if device != 0xFFFF else "")
        return {"name": ", ".join(filter(None, of)), "counter": counter(strings[unit], strings[category] or "counter")}
    if kind == CLOCK:
        reading = READINGS[key[0]]
        return {"name": f"{reading.name}, device {key[1]}", "counter": counter(reading.unit, DERIVED, "environment")}
    if kind == PROJECTIONS:
        domain = strings[key[3]]
        name = f"NVTX {domain} on" if domain else "NVTX on"
        return {
            "name": f"{name} {devices.queue_name(process, *key[:3])}",
            "description": "Ranges, from the first begin to the last end of the work here that was launched in them",
        }
    if kind == GPU_SLICES:
        return {"name": f"annotations, {devices.queue_name(process, *key)}"}
    if kind == NVTX_RANGES:
        return {"name": f"NVTX ranges {strings[key]}" if key else "NVTX ranges"}
    if kind == NAMED:
        return {"name": strings[key] or "(unnamed)"}
    name = {
        THREAD: "unknown thread",
        OPEN_RANGES: f"NVTX ranges still open at the end, thread {key}",
        OPEN_SLICES: f"slices still open at the end, thread {key}",
        SYNCHRONIZATION: f"synchronization, context {key}",
        OVERHEAD: f"overhead, thread {key}" if key else "overhead",
        JIT: f"JIT, thread {key}" if key else "JIT",
        UNIFIED: "unified memory",
        MEMORY: f"memory, device {key}",
        POOLS: f"memory pools, device {key}",
        DEVICE_STATE: f"environment, device {key}",
        MOMENTS: "moments of the process" if key == 1 else "moments of the trace",
    }[kind]
    return {"name": name, "description": MEANINGS.get(kind)}


def counter(unit: str, *categories: str) -> dict[str, Any]:
    """What the counter of a track counts, and what it belongs to: a ``CounterDescriptor``."""
    known = {"unit": _UNITS[unit]} if unit in _UNITS else {"unit_name": unit or None}
    return {"categories": categories, **known}
