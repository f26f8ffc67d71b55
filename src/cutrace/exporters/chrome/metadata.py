"""Metadata of a file: devices, clocks, names, and keys from imported files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...runbin.layout import TABLES
from ...trace import Trace
from ...trace.alignment import wall_clock
from ...trace_events import DEVICE_PROPERTIES, LOSSES, MISSING, NO_PROCESS, OWN
from ...units import count_of
from .lines import dumped, quoted
from .shared import WAITS, PidTid, as_dict, offset_of

#: The tables of CUDA. A trace with rows in any of them gets the keys of a GPU trace.
_CUDA = (
    "kernels",
    "memcpys",
    "memsets",
    "api_calls",
    "synchronizations",
    "devices",
    "graph_launches",
)
#: The tables that name the GPU of a row.
_OF_DEVICES = (
    "kernels",
    "memcpys",
    "memsets",
    "graph_launches",
    "gpu_slices",
    "contexts",
    "devices",
)


def keys_before(trace: Trace, pid_tid: PidTid) -> bytes:
    values: dict[str, Any] = {}
    if any(map(trace.count, _CUDA)):
        values["schemaVersion"] = 1
        values["deviceProperties"] = _devices(trace)
        values |= metadata(trace)
        values |= _versions(trace)
    else:
        values |= metadata(trace)
    of_gpus = "schemaVersion" in values
    began = wall_clock(trace.clocks)
    if began is not None and (of_gpus or "baseTimeNanoseconds" in values):
        values["baseTimeNanoseconds"] = began + offset_of(trace)
    values[OWN] = {}
    if of_gpus and trace.processes:
        values[OWN]["process"] = pid_tid.pid(0)
    if of_gpus and len(trace.processes) > 1:
        values[OWN]["gpus"] = _gpus(trace, pid_tid)
    lines = b""
    for key, value in values.items():
        lines += b"%s: %s,\n" % (quoted(key), dumped(value))
    return lines


def keys_behind(trace: Trace, unsupported: dict[str, int]) -> bytes:
    """The keys after the events. They list missing data."""
    left = []
    for name, count in unsupported.items():
        rows = count_of(count, "row")
        left.append(f"left out, because no event can hold them: {rows} of {name}")
    quality = trace.quality
    sentences = [*quality.sentences(), *left]
    if not sentences:
        return b""
    keys = b""
    for key, value in ((MISSING, sentences), (LOSSES, quality.carried(left))):
        keys += b",\n" + quoted(key) + b": " + dumped(value)
    return keys


def metadata(trace: Trace) -> dict[str, Any]:
    """The top-level keys of imported files."""
    out: dict[str, Any] = {}
    for process in trace.processes:
        for key, value in as_dict(process.info.get("trace_metadata")).items():
            if key not in ("traceEvents", OWN, MISSING, LOSSES):
                out.setdefault(str(key), value)
    return out


def _devices(trace: Trace) -> list[dict[str, Any]]:
    """Devices with Kineto's keys, and other fields as cutrace's own."""
    out: dict[int, dict[str, Any]] = {}
    of_kineto = DEVICE_PROPERTIES.values()
    numbers = [f.name for f in TABLES["devices"].fields if f.type in ("u32", "u64")]
    own = [name for name in numbers if name not in of_kineto]
    for row in trace.devices:
        ordinal = int(row["device"])
        if ordinal in out:
            continue
        device: dict[str, Any] = {"id": ordinal, "name": trace.strings[row["name"]]}
        for key, field in DEVICE_PROPERTIES.items():
            if row[field] or field == "compute_minor":
                device[key] = int(row[field])
        more: dict[str, Any] = {name: int(row[name]) for name in own if row[name]}
        if row["pci"]:
            more["pci"] = trace.strings[row["pci"]]
        uuid = row["uuid"].tobytes()
        if uuid.strip(b"\0"):
            more["uuid"] = uuid.hex()
        if more:
            device[OWN] = more
        out[ordinal] = device
    return list(out.values())


def _versions(trace: Trace) -> dict[str, Any]:
    """The versions of the first process that has them, by key of Kineto."""
    for process in trace.processes:
        info = process.info
        if "cupti_version" not in info and "driver_version" not in info:
            continue
        versions = {
            "cuda_driver_version": info.get("driver_version"),
            "cuda_runtime_version": info.get("runtime_version"),
            "cupti_version": info.get("cupti_version"),
        }
        return {key: n for key, n in versions.items() if isinstance(n, int)}
    return {}


def _gpus(trace: Trace, pid_tid: PidTid) -> list[dict[str, Any]]:
    """The process ids that stand for devices and overheads, by process. Ids of the first process are left out."""
    used: set[tuple[int, int]] = set()
    for name in _OF_DEVICES:
        for rows in trace.blocks(name):
            used |= _pairs(rows)
    gpus: list[dict[str, Any]] = []
    for process, device in sorted(used):
        if process:
            pid = pid_tid.device(process, device)
            of = pid_tid.pid(process)
            gpus.append({"pid": pid, "process": of, "device": device})
    for other in trace.processes[1:]:
        pid = pid_tid.overhead(other.index)
        gpus.append({"pid": pid, "process": pid_tid.pid(other.index)})
    return gpus


def _pairs(rows: np.ndarray) -> set[tuple[int, int]]:
    keys = np.unique(rows["process"].astype(np.int64) << 16 | rows["device"])
    return {(key >> 16, key & 0xFFFF) for key in keys.tolist()}


# Names


def processes_and_threads(trace: Trace, pid_tid: PidTid) -> Iterator[bytes]:
    """Events that name processes and threads."""
    threads: dict[int, list[tuple[int, int]]] = {}
    thread_rows = trace.threads[["process", "thread", "name"]]
    for process_index, thread, text in thread_rows.tolist():
        threads.setdefault(process_index, []).append((thread, text))
    for process in trace.processes:
        info = process.info
        where = pid_tid.where(process.index)
        # If the id of a process is a string, the string is its default name.
        if "source_pid" not in info or info.get("name") not in (
            info["source_pid"],
            NO_PROCESS,
            "",
        ):
            yield _named("process_name", where, {"name": process.name})
        yield from _imported_metadata(info.get("metadata_events"), where)
        text_ids = as_dict(info.get("source_threads"))
        for thread, text in threads.get(process.index, ()):
            # If the id of a thread is a string, the string is its default name.
            name = trace.strings[text]
            if text_ids.get(str(thread)) != name:
                where = pid_tid.where(process.index, thread)
                yield _named("thread_name", where, {"name": name})


def _imported_metadata(events: Any, process: bytes) -> Iterator[bytes]:
    """The other metadata events of an imported file. ``process`` has the ids of their process."""
    if not isinstance(events, list):
        return
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("name"), str):
            continue
        where = process
        tid = event.get("tid")
        if tid is not None:
            where += b',"tid":' + dumped(tid)
        yield _named(event["name"], where, event.get("args"))


def devices_and_streams(trace: Trace, pid_tid: PidTid) -> Iterator[bytes]:
    """Events that name the devices and streams of the written GPU work."""
    names: dict[tuple[int, int], str] = {}
    for (process, _, stream), name in trace.stream_names.items():
        names[process, stream] = name
    for process, device in dict.fromkeys((p, d) for p, d, _ in pid_tid.streams):
        pid = pid_tid.device(process, device)
        where = b',"pid":%d' % pid
        label = f"GPU {device}"
        name = label
        if len(trace.processes) > 1:
            name += f" of {trace.processes[process].name}"
        yield _named("process_name", where, {"name": name})
        yield _named("process_labels", where, {"labels": label})
        yield _named("process_sort_index", where, {"sort_index": 5_000_000 + pid})
    for process, device, thread in pid_tid.streams:
        where = b',"pid":%d,"tid":%d' % (pid_tid.device(process, device), thread)
        waits = thread >= WAITS - 1
        stream = thread - WAITS if waits else thread
        name = names.get((process, stream), f"stream {stream}")
        if waits:
            name += " (sync)"
        yield _named("thread_name", where, {"name": name})
        yield _named("thread_sort_index", where, {"sort_index": stream})


def _named(name: str, where: bytes, arguments: Any) -> bytes:
    name_json = quoted(name)
    arguments_json = dumped(arguments or {})
    return b',\n{"ph":"M","name":%s%s,"args":%s}' % (name_json, where, arguments_json)
