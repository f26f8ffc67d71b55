"""Metadata of a file: devices, clocks, names, and keys from imported files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...runbin.layout import TABLES
from ...trace import Trace
from ...trace_events import DEVICE_PROPERTIES, MISSING, OWN
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


def keys_before(trace: Trace, pid_tid: PidTid) -> bytes:
    values = metadata(trace)
    if any(trace.count(name) for name in _CUDA):
        values = (
            {"schemaVersion": 1, "deviceProperties": _devices(trace)}
            | values
            | _versions(trace)
        )
    base = _base_time(trace)
    if base is not None and (
        "schemaVersion" in values or "baseTimeNanoseconds" in values
    ):
        values["baseTimeNanoseconds"] = base
    several = len(trace.processes) > 1 and "schemaVersion" in values
    values[OWN] = {"gpus": _gpus(trace, pid_tid)} if several else {}
    return b"".join(
        b"%s: %s,\n" % (quoted(key), dumped(value)) for key, value in values.items()
    )


def keys_behind(trace: Trace, unsupported: dict[str, int]) -> bytes:
    """The key after the events, which says what is missing."""
    sentences = [*trace.quality.sentences()]
    sentences += [
        f"left out, for lack of events for them: {count_of(count, 'row')} of {name}"
        for name, count in unsupported.items()
    ]
    if sentences:
        return b",\n" + quoted(MISSING) + b": " + dumped(sentences)
    return b""


def metadata(trace: Trace) -> dict[str, Any]:
    """The top-level keys of imported files."""
    out: dict[str, Any] = {}
    for process in trace.processes:
        for key, value in as_dict(process.info.get("trace_metadata")).items():
            if key not in ("traceEvents", OWN, MISSING):
                out.setdefault(str(key), value)
    return out


def _devices(trace: Trace) -> list[dict[str, Any]]:
    """Devices with Kineto's keys, and other fields as cutrace's own."""
    out: dict[int, dict[str, Any]] = {}
    own = [
        f.name
        for f in TABLES["devices"].fields
        if f.type in ("u32", "u64") and f.name not in DEVICE_PROPERTIES.values()
    ]
    for row in trace.devices:
        device: dict[str, Any] = {
            "id": int(row["device"]),
            "name": trace.strings[row["name"]],
        }
        device |= {
            key: int(row[f])
            for key, f in DEVICE_PROPERTIES.items()
            if row[f] or f == "compute_minor"
        }
        more: dict[str, Any] = {name: int(row[name]) for name in own if row[name]}
        if row["pci"]:
            more["pci"] = trace.strings[row["pci"]]
        if row["uuid"].tobytes().strip(b"\0"):
            more["uuid"] = row["uuid"].tobytes().hex()
        out.setdefault(device["id"], device | ({OWN: more} if more else {}))
    return list(out.values())


def _versions(trace: Trace) -> dict[str, Any]:
    info = next(
        (
            p.info
            for p in trace.processes
            if "cupti_version" in p.info or "driver_version" in p.info
        ),
        {},
    )
    keys = ("cuda_driver_version", "cuda_runtime_version", "cupti_version")
    named = ((key, info.get(key.removeprefix("cuda_"))) for key in keys)
    return {key: version for key, version in named if isinstance(version, int)}


def _base_time(trace: Trace) -> int | None:
    """The wall clock (ns since 1970) at time 0 of the file; None if unknown."""
    known = trace.clocks[trace.clocks["realtime"] > 0]
    if not len(known):
        return None
    return int(known["realtime"][0]) - (int(known["boottime"][0]) - offset_of(trace))


def _gpus(trace: Trace, pid_tid: PidTid) -> list[dict[str, Any]]:
    """The processes of the process ids of devices and of overheads, except those of the first process."""
    used: dict[tuple[int, int], None] = {}
    for name in (
        "kernels",
        "memcpys",
        "memsets",
        "graph_launches",
        "gpu_slices",
        "contexts",
        "devices",
    ):
        for rows in (
            trace.blocks(name) if TABLES[name].start_field else [trace.table(name)]
        ):
            used |= dict.fromkeys(_pairs(rows))
    gpus: list[dict[str, Any]] = [
        {
            "pid": pid_tid.device(process, device),
            "process": pid_tid.pid(process),
            "device": device,
        }
        for process, device in sorted(used)
        if process
    ]
    return gpus + [
        {"pid": pid_tid.overhead(p.index), "process": pid_tid.pid(p.index)}
        for p in trace.processes[1:]
    ]


def _pairs(rows: np.ndarray) -> list[tuple[int, int]]:
    keys = np.unique(rows["process"].astype(np.int64) << 16 | rows["device"])
    return [(key >> 16, key & 0xFFFF) for key in keys.tolist()]


# Names


def processes_and_threads(trace: Trace, pid_tid: PidTid) -> Iterator[bytes]:
    """Events that name processes and threads."""
    threads: dict[int, list[tuple[int, int]]] = {}
    for process_index, thread, text in trace.threads[
        ["process", "thread", "name"]
    ].tolist():
        threads.setdefault(process_index, []).append((thread, text))
    for process in trace.processes:
        where = pid_tid.where(process.index)
        # A process with a text as id has this text as name by default.
        if "source_pid" not in process.info or process.info.get("name") not in (
            process.info["source_pid"],
            "",
        ):
            yield _named("process_name", where, {"name": process.name})
        others = process.info.get("metadata_events")
        for other in others if isinstance(others, list) else ():
            if isinstance(other, dict) and isinstance(other.get("name"), str):
                tid = other.get("tid")
                ids = where if tid is None else where + b',"tid":' + dumped(tid)
                yield _named(other["name"], ids, other.get("args"))
        text_ids = as_dict(process.info.get("source_threads"))
        for thread, text in threads.get(process.index, ()):
            # A thread with a text as id has this text as name by default.
            name = trace.strings[text]
            if text_ids.get(str(thread)) != name:
                yield _named(
                    "thread_name", pid_tid.where(process.index, thread), {"name": name}
                )


def devices_and_streams(trace: Trace, pid_tid: PidTid) -> Iterator[bytes]:
    """Events that name the devices and streams of the written GPU work."""
    names = {
        (int(r["process"]), int(r["object"])): trace.strings[r["name"]]
        for r in trace.resource_names
        if r["kind"] == 1
    }
    for process, device in dict.fromkeys((p, d) for p, d, _ in pid_tid.streams):
        pid = pid_tid.device(process, device)
        where = b',"pid":%d' % pid
        of = f" of {trace.processes[process].name}" if len(trace.processes) > 1 else ""
        yield _named("process_name", where, {"name": f"GPU {device}{of}"})
        yield _named("process_labels", where, {"labels": f"GPU {device}"})
        yield _named("process_sort_index", where, {"sort_index": 5_000_000 + pid})
    for process, device, thread in pid_tid.streams:
        where = b',"pid":%d,"tid":%d' % (pid_tid.device(process, device), thread)
        stream, wait = (
            (thread - WAITS, " (sync)") if thread >= WAITS - 1 else (thread, "")
        )
        yield _named(
            "thread_name",
            where,
            {"name": names.get((process, stream), f"stream {stream}") + wait},
        )
        yield _named("thread_sort_index", where, {"sort_index": stream})


def _named(name: str, where: bytes, arguments: Any) -> bytes:
    return b',\n{"ph":"M","name":%s%s,"args":%s}' % (
        quoted(name),
        where,
        dumped(arguments or {}),
    )
