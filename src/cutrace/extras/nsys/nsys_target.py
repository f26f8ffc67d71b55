"""The machine in an export of Nsight Systems: threads, GPUs, contexts, streams and clocks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ...importers.base import rows_of
from ...importers.row_builder import Rows
from ...importers.tables import ColumnBatch, Tables, rows
from ...runbin import Writer
from . import schema as nsys
from .reading import Kinds, Target, convert, kinds
from .schema import SqlTable

if TYPE_CHECKING:
    from .nsys import NsysReading

#: The tables with rows that belong to processes.
_OF_PROCESSES = (nsys.THREAD_NAMES, nsys.CONTEXTS, nsys.STREAMS)
#: The tables that this module reads, and the tables with names for other tables.
READ = frozenset(
    {
        "StringIds",
        "PROCESSES",
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "TARGET_INFO_SESSION_START_TIME",
        "TARGET_INFO_SYSTEM_ENV",
        "TARGET_INFO_CUDA_DEVICE",
        "TARGET_INFO_GPU_METRICS",
        "TARGET_INFO_SOC_METRICS",
        "TARGET_INFO_NETWORK_METRICS",
        "GENERIC_EVENT_TYPES",
        "GENERIC_EVENT_SOURCES",
        nsys.DEVICES.name,
        *(t.name for t in _OF_PROCESSES),
    },
)


def describe(reading: NsysReading) -> None:
    """Account for the tables that only describe other tables."""
    for name in sorted(READ - {"StringIds", *(table.name for table in _OF_PROCESSES)}):
        if name in reading.tables.names:
            reading.out.kept(name, reading.tables.count(name) or 0)


def info(reading: NsysReading) -> dict[str, Any]:
    """Keys for the process description."""
    info = {"host": named(reading.tables, "TARGET_INFO_SYSTEM_ENV").get("Hostname", "")}
    name = reading.metadata.get("EXPORT_PRODUCT_NAME")
    version = reading.metadata.get("EXPORT_PRODUCT_VERSION")
    if name or version:
        info["producer"] = " ".join(filter(None, [name, version]))
    return info


def clock(reading: NsysReading, writer: Writer) -> None:
    """Write the wall-clock time of the start of the session, if the file has it."""
    sessions = rows(
        reading.tables, "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": "integer"}
    )
    session = next(sessions, {"utcEpochNs": None})
    began = session["utcEpochNs"]
    if not isinstance(began, int) or not 0 < began < 2**62:
        return
    metadata = reading.metadata
    begin = 0
    shift = (
        metadata.get("EXPORT_CONFIG_TIME_SHIFT")
        or metadata.get("EXPORT_PARAM_TIME_SHIFT")
        or "0"
    )
    if re.fullmatch(r"[+-]?\d{1,18}", shift):
        begin = int(shift)
    if metadata.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
        begin += began  # times are wall-clock times
    # The snapshot is one second into the session, so that no clock is 0.
    now = max(begin + reading.offset + 10**9, 1)
    clocks = rows_of(
        "clocks",
        1,
        boottime=now,
        monotonic=now,
        monotonic_raw=now,
        realtime=began + 10**9,
    )
    writer.rows("clocks", clocks)


def finish(reading: NsysReading) -> None:
    """Write threads, devices, contexts and streams of the processes that have events."""
    for table in _OF_PROCESSES:
        for batch in reading.listed(table.name, kinds(table)):
            for key, part, _ in batch.apart(_owners(batch)):
                target = reading.targets.get(key)
                if not target:
                    reading.out.kept(table.name, part.rows)
                    continue
                made = _made(reading, target, table, part, source=1, compute_api=1)
                usable = made.settle(reading.out, table.name)
                target.writer.rows(table.table, usable)
    _devices(reading)


def device_ordinals(tables: Tables) -> dict[int, int]:
    """The CUDA ordinal of each GPU, by its number in nsys."""
    ordinals: dict[int, int] = {}
    columns: Kinds = {"id": "integer", "cuDevice": "integer"}
    for row in rows(tables, nsys.DEVICES.name, columns):
        match row:
            case {"id": int(number), "cuDevice": int(ordinal)} if 0 <= ordinal < 0xFFFF:
                ordinals[number] = ordinal
            case {"id": int(number)}:
                ordinals[number] = number & 0xFFFF
    return ordinals


def named(tables: Tables, table: str) -> dict[str, str]:
    """Read a table of names and values as a dict."""
    values = {}
    for row in rows(tables, table, {"name": "text", "value": "text"}):
        match row:
            case {"name": str(name), "value": str(value)}:
                values[name] = value
    return values


def _owners(batch: ColumnBatch) -> np.ndarray:
    """The serialized process id of each row, from its thread or from the parts of the id."""
    if "globalTid" in batch.columns:
        return batch["globalTid"] >> nsys.THREAD_BITS << nsys.THREAD_BITS
    return (
        batch["hwId"] << 56
        | batch["vmId"] << 48
        | batch["processId"] << nsys.THREAD_BITS
    )


def _made(
    reading: NsysReading,
    target: Target,
    table: SqlTable,
    batch: ColumnBatch,
    **defaults: int,
) -> Rows:
    """The rows of a batch, made from the declared columns. Missing values are taken from ``defaults``, else 0."""
    made = Rows(table.table, batch)
    convert(reading, target, made, table)
    for column in table.columns:
        if column.field in defaults:
            missing = batch.columns[column.name].null
            made.rows[column.field] = np.where(
                missing, defaults[column.field], made.rows[column.field]
            )
    return made


def _devices(reading: NsysReading) -> None:
    ordinals = device_ordinals(reading.tables)
    if not ordinals:
        return
    seen_by = _visible(reading)
    for batch in reading.listed(nsys.DEVICES.name, kinds(nsys.DEVICES)):
        batch = batch.select(batch.known("id"))
        numbers = batch["id"].tolist()
        machines = batch["vmId"]
        for target in reading.targets.values():
            own = target.key >> 48 << 48
            visible = seen_by.get(target.key >> nsys.THREAD_BITS & nsys.THREADS, {})
            made = _made(reading, target, nsys.DEVICES, batch)
            rows = made.rows
            threads = rows["max_warps_per_multiprocessor"] * rows["warp_size"]
            given = rows["max_threads_per_multiprocessor"]
            rows["max_threads_per_multiprocessor"] = np.where(given > 0, given, threads)
            chosen = made.usable
            for at, number in enumerate(numbers):
                rows["device"][at] = visible.get(number, ordinals[number])
                if visible and number not in visible:
                    chosen[at] = False
            if (machines == own).any():
                chosen &= machines == own
            target.writer.rows("devices", rows[chosen])


def _visible(reading: NsysReading) -> dict[int, dict[int, int]]:
    """The CUDA ordinals that each process gives to its visible GPUs, by process id and then by the number in nsys."""
    ordinals: dict[int, dict[int, int]] = {}
    columns: Kinds = {
        "gpuId": "integer",
        "cudaId": "integer",
        "pid": "integer",
    }
    for row in rows(reading.tables, "TARGET_INFO_CUDA_DEVICE", columns):
        match row:
            case {"gpuId": int(gpu), "cudaId": int(ordinal), "pid": int(pid)} if (
                0 <= ordinal < 0xFFFF
            ):
                ordinals.setdefault(pid & nsys.THREADS, {})[gpu] = ordinal
    return ordinals
