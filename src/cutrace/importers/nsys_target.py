"""What an export of Nsight Systems says of the machine: processes, threads, GPUs, contexts, streams and clocks."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runbin import TABLES, Writer
from .tables import Kind, Tables, rows

if TYPE_CHECKING:
    from .nsys import Reading

#: The tables that are read here.
READ = frozenset(
    {
        "StringIds",
        "PROCESSES",
        "ThreadNames",
        "THREAD_NUMBERS",
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "TARGET_INFO_SESSION_START_TIME",
        "TARGET_INFO_SYSTEM_ENV",
        "TARGET_INFO_GPU",
        "TARGET_INFO_CUDA_DEVICE",
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        "TARGET_INFO_CUDA_STREAM",
        "TARGET_INFO_GPU_METRICS",
        "TARGET_INFO_SOC_METRICS",
        "TARGET_INFO_NETWORK_METRICS",
        "GENERIC_EVENT_TYPES",
        "GENERIC_EVENT_SOURCES",
    }
)

_RENUMBERED: dict[str, Kind] = {"globalTid": "integer", "thread": "integer"}

_GPU: dict[str, str] = {
    "memory": "totalMemory",
    "compute_major": "computeMajor",
    "compute_minor": "computeMinor",
    "multiprocessors": "smCount",
    "l2_cache": "l2CacheSize",
    "warp_size": "threadsPerWarp",
    "max_threads_per_block": "maxThreadsPerBlock",
    "max_warps_per_multiprocessor": "maxWarpsPerSm",
    "max_blocks_per_multiprocessor": "maxBlocksPerSm",
    "registers_per_multiprocessor": "maxRegistersPerSm",
    "registers_per_block": "maxRegistersPerBlock",
    "shared_per_multiprocessor": "maxShmemPerSm",
    "shared_per_block": "maxShmemPerBlock",
    "shared_per_block_optin": "maxShmemPerBlockOptin",
    "copy_engines": "asyncEngines",
    # Columns of cutrace's own databases.
    "shared_reserved_per_block": "reservedShmemPerBlock",
    "mig": "isMig",
}


def describe(reading: Reading) -> None:
    """Account for the tables that only say what other tables mean."""
    for name in sorted(READ - {"StringIds"}):
        if name in reading.tables.names:
            count = reading.tables.count(name) or 0
            reading.out.seen(name, count)
            reading.out.kept(name, count)


def info(reading: Reading) -> dict[str, Any]:
    """More of a process description."""
    said = _named(reading.tables, "META_DATA_EXPORT") | _named(reading.tables, "EXPORT_META_DATA")
    product = " ".join(filter(None, (said.get("EXPORT_PRODUCT_NAME"), said.get("EXPORT_PRODUCT_VERSION"))))
    host = _named(reading.tables, "TARGET_INFO_SYSTEM_ENV").get("Hostname", "")
    return {"host": host} | ({"producer": product} if product else {})


def product(tables: Tables) -> str:
    """What wrote the file."""
    return _named(tables, "META_DATA_EXPORT").get("EXPORT_PRODUCT_NAME", "")


def description(reading: Reading, key: int) -> dict[str, Any]:
    """What a database of cutrace's own says of a process."""
    for row in rows(reading.tables, "PROCESSES", {"globalPid": "integer", "description": "text"}):
        if row["globalPid"] == key and isinstance(row["description"], str):
            try:
                said = json.loads(row["description"])
            except (ValueError, RecursionError):
                return {}
            return said if isinstance(said, dict) else {}
    return {}


def clock(reading: Reading, writer: Writer) -> None:
    """Write at which wall-clock time the session began, where the file says so."""
    if reading.is_own:
        return  # it has the clocks themselves
    began = next(
        (
            row["utcEpochNs"]
            for row in rows(reading.tables, "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": "integer"})
        ),
        None,
    )
    if not isinstance(began, int) or not 0 < began < 2**62:
        return
    said = _named(reading.tables, "META_DATA_EXPORT")
    shift = said.get("EXPORT_CONFIG_TIME_SHIFT") or said.get("EXPORT_PARAM_TIME_SHIFT") or "0"
    begin = int(shift) if re.fullmatch(r"[+-]?\d{1,18}", shift) else 0
    if said.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        begin += began  # times are those of the wall clock
    row = np.zeros(1, TABLES["clocks"].dtype)
    # A second into the session, so that no clock is 0.
    for name in ("boottime", "monotonic", "monotonic_raw"):
        row[name] = max(begin + reading.offset + 10**9, 1)
    row["realtime"] = began + 10**9
    writer.rows("clocks", row)


def finish(reading: Reading) -> None:
    """Write what is known of the processes that have events."""
    _threads(reading)
    _devices(reading)
    _contexts(reading)
    _streams(reading)


def device_ordinals(tables: Tables) -> dict[int, int]:
    """The CUDA ordinal of each GPU that nsys numbers itself."""
    found: dict[int, int] = {}
    for row in rows(tables, "TARGET_INFO_GPU", {"id": "integer", "cuDevice": "integer"}):
        number, ordinal = row["id"], row["cuDevice"]
        if isinstance(number, int):
            found[number] = ordinal if isinstance(ordinal, int) and 0 <= ordinal < 0xFFFF else number & 0xFFFF
    return found


def renumbered(tables: Tables) -> dict[int, int]:
    """Numbers of threads that did not fit into serialized ids, by these ids, as cutrace writes them."""
    found = ((row["globalTid"], row["thread"]) for row in rows(tables, "THREAD_NUMBERS", _RENUMBERED))
    return {
        key: thread for key, thread in found if isinstance(key, int) and isinstance(thread, int) and 0 <= thread < 2**32
    }


def _threads(reading: Reading) -> None:
    columns: dict[str, Kind] = {"nameId": "integer", "globalTid": "integer", "source": "integer"}
    for row in rows(reading.tables, "ThreadNames", columns):
        thread, name = row["globalTid"], row["nameId"]
        if isinstance(thread, int) and isinstance(name, int):
            target = reading.targets.get(thread >> 24 << 24)
            if target:
                made = np.zeros(1, TABLES["threads"].dtype)
                made["thread"] = reading.thread_numbers(np.array([thread]))
                made["name"] = target.strings[np.array([name])][0]
                made["source"] = _fitting(row["source"], 16) if row["source"] is not None else 1
                target.writer.rows("threads", made)


def _devices(reading: Reading) -> None:
    ordinals = device_ordinals(reading.tables)
    numbers: dict[str, Kind] = dict.fromkeys(
        ("vmId", "id", "memoryBandwidth", "clockRate", "memoryClockRate", "maxThreadsPerSm", *_GPU.values()), "integer"
    )
    texts: dict[str, Kind] = {"name": "text", "busLocation": "text", "uuid": "text"}
    gpus = rows(reading.tables, "TARGET_INFO_GPU", numbers | texts)
    # Of a damaged table the one reading may give more rows than the other.
    ids = (row["uuid"] for row in rows(reading.tables, "TARGET_INFO_GPU", {"uuid": "bytes"}))
    made = []
    for gpu, raw in zip(gpus, itertools.chain(ids, itertools.repeat(None)), strict=False):
        if not isinstance(gpu["id"], int):
            continue
        row = np.zeros(1, TABLES["devices"].dtype)
        row["device"] = ordinals[gpu["id"]]
        for name, column in _GPU.items():
            row[name] = _fitting(gpu[column], 64 if name == "memory" else 32)
        row["memory_bandwidth"] = _fitting(gpu["memoryBandwidth"], 64) // 1000
        row["core_clock"] = _fitting(gpu["clockRate"], 64) // 1000 & 0xFFFFFFFF
        row["memory_clock"] = _fitting(gpu["memoryClockRate"], 64) // 1000 & 0xFFFFFFFF
        threads = int(row["max_warps_per_multiprocessor"][0]) * int(row["warp_size"][0])
        row["max_threads_per_multiprocessor"] = _fitting(gpu["maxThreadsPerSm"], 32) or threads & 0xFFFFFFFF
        row["uuid"] = np.void(_uuid(gpu["uuid"], raw))
        made.append((gpu["vmId"], gpu["id"], row, str(gpu["name"] or ""), str(gpu["busLocation"] or "")))
    machines = {machine for machine, *_ in made}
    seen_by = _visible(reading)
    for target in reading.targets.values():
        own = target.key >> 48 << 48
        visible = seen_by.get(target.key >> 24 & 0xFFFFFF, {})
        for machine, number, row, name, bus in made:
            if machine != own and (own in machines or reading.is_own):
                continue
            if visible and number not in visible:
                continue
            row = row.copy()
            row["device"] = visible.get(number, row["device"])
            row["name"], row["pci"] = target.writer.string(name), target.writer.string(bus)
            target.writer.rows("devices", row)


def _visible(reading: Reading) -> dict[int, dict[int, int]]:
    """By process id the GPUs that the process saw, by their numbers, and what CUDA numbered them in it."""
    found: dict[int, dict[int, int]] = {}
    columns: dict[str, Kind] = {"gpuId": "integer", "cudaId": "integer", "pid": "integer"}
    for row in () if reading.is_own else rows(reading.tables, "TARGET_INFO_CUDA_DEVICE", columns):
        gpu, ordinal, pid = row["gpuId"], row["cudaId"], row["pid"]
        if isinstance(gpu, int) and isinstance(ordinal, int) and isinstance(pid, int) and 0 <= ordinal < 0xFFFF:
            found.setdefault(pid & 0xFFFFFF, {})[gpu] = ordinal
    return found


def _contexts(reading: Reading) -> None:
    columns = ("nullStreamId", "hwId", "vmId", "processId", "deviceId", "contextId", "computeApi")
    for row in rows(reading.tables, "TARGET_INFO_CUDA_CONTEXT_INFO", dict.fromkeys(columns, "integer")):
        target = _owner(reading, row)
        if target:
            made = np.zeros(1, TABLES["contexts"].dtype)
            made["null_stream"] = _fitting(row["nullStreamId"], 32)
            made["compute_api"] = _fitting(row["computeApi"], 16) if row["computeApi"] is not None else 1
            made["context"], made["device"] = _fitting(row["contextId"], 16), _fitting(row["deviceId"], 16)
            target.writer.rows("contexts", made)


def _streams(reading: Reading) -> None:
    columns = ("streamId", "hwId", "vmId", "processId", "contextId", "priority", "flag")
    for row in rows(reading.tables, "TARGET_INFO_CUDA_STREAM", dict.fromkeys(columns, "integer")):
        target = _owner(reading, row)
        if target:
            made = np.zeros(1, TABLES["streams"].dtype)
            priority = np.array([_fitting(row["priority"], 64)], np.uint64)
            made["stream"], made["priority"] = _fitting(row["streamId"], 32), priority.astype(np.uint32).view(np.int32)
            made["type"], made["context"] = _fitting(row["flag"], 16), _fitting(row["contextId"], 16)
            target.writer.rows("streams", made)


def _owner(reading: Reading, row: dict[str, object]) -> Any:
    """The process with events that a row with parts of a serialized id is about."""
    hardware, machine, pid = (_fitting(row[name], 24) for name in ("hwId", "vmId", "processId"))
    key = hardware << 56 | machine << 48 | pid << 24
    return reading.targets.get(key if key < 2**63 else key - 2**64)


def _named(tables: Tables, table: str) -> dict[str, str]:
    """A table of names and values."""
    found = ((row["name"], row["value"]) for row in rows(tables, table, {"name": "text", "value": "text"}))
    return {name: value for name, value in found if isinstance(name, str) and isinstance(value, str)}


def _fitting(value: object, bits: int) -> int:
    """A number of so many bits, 0 for what is none."""
    return value & (1 << bits) - 1 if isinstance(value, int) else 0


def _uuid(text: object, raw: object) -> bytes:
    if isinstance(raw, bytes) and len(raw) == 16:
        return raw
    digits = re.sub(r"[^0-9a-fA-F]", "", str(text or "").removeprefix("GPU-").removeprefix("MIG-"))
    return bytes.fromhex(digits) if len(digits) == 32 else bytes(16)
