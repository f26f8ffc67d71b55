"""What happens on the host: which tables become slices and instants, on which tracks, with which arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...trace import Trace
from .labels import (
    ALLOCATIONS,
    ENVIRONMENT,
    JIT_ENTRIES,
    JIT_OPERATIONS,
    MEMORY_KINDS,
    OVERHEADS,
    POOL_OPERATIONS,
    POOL_TYPES,
    SYNCHRONIZATIONS,
    UNIFIED_MEMORY,
    label,
)
from .naming import CUDA, Needs

#: Kinds of tracks. A track is (kind, number): the number is a thread id, a device, ... as the kind says.
(THREAD, NVTX_RANGES, SYNCHRONIZATION, OVERHEAD, JIT, UNIFIED, MEMORY, POOLS, DEVICE_STATE, OPEN_RANGES) = range(10)

_SUCCESS = 0


@dataclass(frozen=True)
class TrackTable:
    """How a table becomes slices (instants for a table without ends) on tracks.

    ``track`` is the kind of track and ``track_field`` the field that numbers the tracks of that kind.
    ``style`` gives the fields of the ``TrackEvent`` that all rows with the same ``style_fields`` share.
    ``arguments`` are fields that become a debug annotation each, left out where they are 0. ``select`` chooses the
    rows that this description is for.
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
    kind = label(UNIFIED_MEMORY, int(row["kind"]))
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
)


def track_name(trace: Trace, kind: int, number: int) -> str:
    """What a track other than a thread's is called."""
    if kind == NVTX_RANGES:
        return f"NVTX ranges {trace.strings[number]}" if number else "NVTX ranges"
    return {
        THREAD: "unknown thread",
        OPEN_RANGES: f"NVTX ranges still open at the end, thread {number}",
        SYNCHRONIZATION: f"synchronization, context {number}",
        OVERHEAD: f"overhead, thread {number}" if number else "overhead",
        JIT: f"JIT, thread {number}" if number else "JIT",
        UNIFIED: "unified memory",
        MEMORY: f"memory, device {number}",
        POOLS: f"memory pools, device {number}",
        DEVICE_STATE: f"environment, device {number}",
    }[kind]
