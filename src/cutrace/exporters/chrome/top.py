"""What stands beside the events: devices, clocks, and what another tool had written there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...runbin.layout import TABLES
from ...trace import Trace
from ...trace_events import DEVICE_PROPERTIES, OWN
from .arguments import dumped
from .lines import quoted
from .places import Places

#: Tables of CUDA: a trace that has any of them is one of a GPU.
_CUDA = ("kernels", "memcpys", "memsets", "api_calls", "synchronizations", "devices", "graph_launches")


def offset_of(trace: Trace) -> int:
    """What an import added to the times of the file (ns); 0 where processes differ in that."""
    told = {process.info.get("time_offset_ns", 0) for process in trace.processes if not process.alignment.moves}
    offset = told.pop() if len(told) == 1 else 0
    return offset if isinstance(offset, int) and abs(offset) < 2**62 else 0


def devices_and_more(trace: Trace, places: Places) -> bytes:
    """The keys before the events."""
    values = metadata(trace)
    if any(trace.count(name) for name in _CUDA):
        values = {"schemaVersion": 1, "deviceProperties": _devices(trace)} | values | _versions(trace)
    base = _base_time(trace)
    if base is not None and ("schemaVersion" in values or "baseTimeNanoseconds" in values):
        values["baseTimeNanoseconds"] = base
    if len(trace.processes) > 1 and "schemaVersion" in values:
        values[OWN] = {"gpus": _gpus(trace, places)}
    return b"".join(
        b"%s: %s,\n" % (quoted(key), dumped(value).encode("utf-8", "replace")) for key, value in values.items()
    )


def behind(trace: Trace, unwritten: dict[str, int]) -> bytes:
    """What is missing, behind the events."""
    sentences = [*trace.quality.sentences()]
    sentences += [
        f"{count:,} rows of {name} are not in this file: it has no events for them" for name, count in unwritten.items()
    ]
    return (
        b",\n" + quoted(f"{OWN}_missing") + b": " + dumped(sentences).encode("utf-8", "replace") if sentences else b""
    )


def metadata(trace: Trace) -> dict[str, Any]:
    """What an imported file had beside its events."""
    out: dict[str, Any] = {}
    for process in trace.processes:
        told = process.info.get("trace_metadata")
        for key, value in told.items() if isinstance(told, dict) else ():
            if key not in ("traceEvents", OWN, f"{OWN}_missing"):
                out.setdefault(str(key), value)
    return out


def _devices(trace: Trace) -> list[dict[str, Any]]:
    """Devices in Kineto's words, and what it has none for as cutrace's own."""
    out: dict[int, dict[str, Any]] = {}
    own = [
        f.name
        for f in TABLES["devices"].fields
        if f.type in ("u32", "u64") and f.name not in DEVICE_PROPERTIES.values()
    ]
    for row in trace.devices:
        told: dict[str, Any] = {"id": int(row["device"]), "name": trace.strings[row["name"]]}
        told |= {key: int(row[f]) for key, f in DEVICE_PROPERTIES.items() if row[f] or f == "compute_minor"}
        more: dict[str, Any] = {name: int(row[name]) for name in own if row[name]}
        if row["pci"]:
            more["pci"] = trace.strings[row["pci"]]
        if row["uuid"].tobytes().strip(b"\0"):
            more["uuid"] = row["uuid"].tobytes().hex()
        out.setdefault(told["id"], told | ({OWN: more} if more else {}))
    return list(out.values())


def _versions(trace: Trace) -> dict[str, Any]:
    info = next((p.info for p in trace.processes if "cupti_version" in p.info or "driver_version" in p.info), {})
    keys = {
        "cuda_driver_version": "driver_version",
        "cuda_runtime_version": "runtime_version",
        "cupti_version": "cupti_version",
    }
    return {key: info[name] for key, name in keys.items() if isinstance(info.get(name), int)}


def _base_time(trace: Trace) -> int | None:
    """The wall clock (ns since 1970) at the moment 0 of the file."""
    known = trace.clocks[trace.clocks["realtime"] > 0]
    if not len(known):
        return None
    return int(known["realtime"][0]) - (int(known["boottime"][0]) - offset_of(trace))


def _gpus(trace: Trace, places: Places) -> list[dict[str, Any]]:
    """Which process the process ids of devices and of overheads belong to, for those that are not the first's."""
    found: dict[tuple[int, int], None] = {}
    for name in ("kernels", "memcpys", "memsets", "graph_launches", "gpu_slices", "contexts", "devices"):
        for rows in trace.blocks(name) if TABLES[name].start_field else [trace.table(name)]:
            found |= dict.fromkeys(_pairs(rows))
    gpus: list[dict[str, Any]] = [
        {"pid": places.device(process, device), "process": places.pid(process), "device": device}
        for process, device in sorted(found)
        if process
    ]
    return gpus + [{"pid": places.overhead(p.index), "process": places.pid(p.index)} for p in trace.processes[1:]]


def _pairs(rows: np.ndarray) -> list[tuple[int, int]]:
    keys = np.unique(rows["process"].astype(np.int64) << 16 | rows["device"])
    return [(key >> 16, key & 0xFFFF) for key in keys.tolist()]
