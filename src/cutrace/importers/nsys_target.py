"""The machine in an export of Nsight Systems: threads, GPUs, contexts, streams and clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import nsys
from ..nsys import SqlTable
from ..runbin import TABLES, Writer
from .base import rows_of
from .reading import Target, kinds
from .tables import Kind, Tables, rows

if TYPE_CHECKING:
    from .nsys import NsysReading

#: The tables that are read here, and those that hold names for others.
READ = frozenset(
    {
        "StringIds", "PROCESSES", "THREAD_NUMBERS", "META_DATA_EXPORT", "EXPORT_META_DATA",
        "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_CUDA_DEVICE",
        "TARGET_INFO_GPU_METRICS", "TARGET_INFO_SOC_METRICS", "TARGET_INFO_NETWORK_METRICS", "GENERIC_EVENT_TYPES",
        "GENERIC_EVENT_SOURCES", *(t.name for t in (nsys.THREAD_NAMES, nsys.DEVICES, nsys.CONTEXTS, nsys.STREAMS)),
    }
)  # fmt: skip


def describe(reading: NsysReading) -> None:
    """Account for the tables that only describe other tables."""
    for name in sorted(READ - {"StringIds"}):
        if name in reading.tables.names:
            reading.out.kept(name, reading.tables.count(name) or 0)


def info(reading: NsysReading) -> dict[str, Any]:
    """Keys of the process description."""
    product = " ".join(filter(None, map(reading.metadata.get, ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION"))))
    host = named(reading.tables, "TARGET_INFO_SYSTEM_ENV").get("Hostname", "")
    return {"host": host} | ({"producer": product} if product else {})


def clock(reading: NsysReading, writer: Writer) -> None:
    """Write the wall-clock time of the session's begin, if the file has it."""
    if reading.is_own:
        return  # the file has a table of clocks
    sessions = rows(reading.tables, "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": "integer"})
    began = next((row["utcEpochNs"] for row in sessions), None)
    if not isinstance(began, int) or not 0 < began < 2**62:
        return
    metadata = reading.metadata
    shift = metadata.get("EXPORT_CONFIG_TIME_SHIFT") or metadata.get("EXPORT_PARAM_TIME_SHIFT") or "0"
    begin = int(shift) if re.fullmatch(r"[+-]?\d{1,18}", shift) else 0
    if metadata.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        begin += began  # times are wall-clock times
    # A second into the session, so that no clock is 0.
    now = max(begin + reading.offset + 10**9, 1)
    clocks = rows_of("clocks", 1, boottime=now, monotonic=now, monotonic_raw=now, realtime=began + 10**9)
    writer.rows("clocks", clocks)


def finish(reading: NsysReading) -> None:
    """Write threads, devices, contexts and streams of the processes that have events."""
    for thread in _rows(reading, nsys.THREAD_NAMES):
        match thread:
            case {"globalTid": int(key), "nameId": int(name)}:
                if target := reading.targets.get(key >> nsys.THREAD_BITS << nsys.THREAD_BITS):
                    made = _numbers(nsys.THREAD_NAMES, thread, source=1)
                    made["thread"] = reading.thread_numbers(np.array([key]))
                    made["name"] = target.strings[np.array([name])][0]
                    target.writer.rows("threads", made)
    _devices(reading)
    for table in (nsys.CONTEXTS, nsys.STREAMS):
        for row in _rows(reading, table):
            if target := _owner(reading, row):
                target.writer.rows(table.table, _numbers(table, row, compute_api=1))


def device_ordinals(tables: Tables) -> dict[int, int]:
    """The CUDA ordinal of each GPU by nsys's number."""
    ordinals: dict[int, int] = {}
    for row in rows(tables, nsys.DEVICES.name, {"id": "integer", "cuDevice": "integer"}):
        number, ordinal = row["id"], row["cuDevice"]
        if isinstance(number, int):
            ordinals[number] = ordinal if isinstance(ordinal, int) and 0 <= ordinal < 0xFFFF else number & 0xFFFF
    return ordinals


def named(tables: Tables, table: str) -> dict[str, str]:
    """A table of names and values as a dict."""
    pairs = ((row["name"], row["value"]) for row in rows(tables, table, {"name": "text", "value": "text"}))
    return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, str)}


def _rows(reading: NsysReading, table: SqlTable) -> Iterator[dict[str, object]]:
    return rows(reading.tables, table.name, kinds(table))


def _numbers(table: SqlTable, row: dict[str, object], **defaults: int) -> np.ndarray:
    """One row of a capture with the numbers of a row of an export. Missing numbers are 0, or from ``defaults``."""
    made = np.zeros(1, TABLES[table.table].dtype)
    for column in table.columns:
        if column.field and column.conversion in ("number", "thousand"):
            value = row[column.name]
            number = _fitting(defaults.get(column.field) if value is None else value, 64)
            number //= 1000 if column.conversion == "thousand" else 1
            made[column.field] = np.array([number], np.uint64).astype(made.dtype[column.field])
    return made


def _devices(reading: NsysReading) -> None:
    ordinals = device_ordinals(reading.tables)
    made = []
    for gpu in _rows(reading, nsys.DEVICES):
        if not isinstance(gpu["id"], int):
            continue
        row = _numbers(nsys.DEVICES, gpu)
        row["device"] = ordinals[gpu["id"]]
        if not row["max_threads_per_multiprocessor"][0]:
            threads = int(row["max_warps_per_multiprocessor"][0]) * int(row["warp_size"][0])
            row["max_threads_per_multiprocessor"] = threads & 0xFFFFFFFF
        row["uuid"] = np.void(_uuid(gpu["uuid"]))
        made.append((gpu["vmId"], gpu["id"], row, str(gpu["name"] or ""), str(gpu["busLocation"] or "")))
    machines = {machine for machine, *_ in made}
    seen_by = _visible(reading)
    for target in reading.targets.values():
        own = target.key >> 48 << 48
        visible = seen_by.get(target.key >> nsys.THREAD_BITS & nsys.THREADS, {})
        for machine, number, row, name, bus in made:
            if machine != own and (own in machines or reading.is_own):
                continue
            if visible and number not in visible:
                continue
            row = row.copy()
            row["device"] = visible.get(number, row["device"])
            row["name"], row["pci"] = target.writer.string(name), target.writer.string(bus)
            target.writer.rows("devices", row)


def _visible(reading: NsysReading) -> dict[int, dict[int, int]]:
    """The CUDA ordinals that a process gives to its visible GPUs, by process id and nsys's number."""
    ordinals: dict[int, dict[int, int]] = {}
    columns: dict[str, Kind] = {"gpuId": "integer", "cudaId": "integer", "pid": "integer"}
    for row in () if reading.is_own else rows(reading.tables, "TARGET_INFO_CUDA_DEVICE", columns):
        match row:
            case {"gpuId": int(gpu), "cudaId": int(ordinal), "pid": int(pid)} if 0 <= ordinal < 0xFFFF:
                ordinals.setdefault(pid & nsys.THREADS, {})[gpu] = ordinal
    return ordinals


def _owner(reading: NsysReading, row: dict[str, object]) -> Target | None:
    """The process with events that a row names by the parts of its serialized id, None without one."""
    hardware, machine, pid = (_fitting(row[name], 24) for name in ("hwId", "vmId", "processId"))
    key = hardware << 56 | machine << 48 | pid << nsys.THREAD_BITS
    return reading.targets.get(key if key < 2**63 else key - 2**64)


def _fitting(value: object, bits: int) -> int:
    """The lower ``bits`` bits of a number, 0 for other values."""
    return value & (1 << bits) - 1 if isinstance(value, int) else 0


def _uuid(value: object) -> bytes:
    if isinstance(value, bytes):
        return value if len(value) == 16 else bytes(16)
    digits = re.sub(r"[^0-9a-fA-F]", "", str(value or "").removeprefix("GPU-").removeprefix("MIG-"))
    return bytes.fromhex(digits) if len(digits) == 32 else bytes(16)
