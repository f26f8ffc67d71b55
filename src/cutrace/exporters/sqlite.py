"""SQLite: a database with the tables and columns of Nsight Systems' exports, where they exist.

What people query exports of nsys with works on it. Rows that nsys has no table for are in tables of cutrace's own
names, and fields that nsys has no column for in columns behind its own; docs/sqlite.md lists them. Nothing is left out:
:mod:`cutrace.importers.nsys` reads all of it back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import repeat
from pathlib import Path

import numpy as np

from .. import embedding
from ..analysis.names import normalize_kernel
from ..embedding import SQLITE_COLUMN, SQLITE_TABLE
from ..errors import CutraceError
from ..outputs import unwritable
from ..runbin.layout import TABLES, Table
from ..trace import Process, Trace
from .base import Request
from .rows import pieces

_COPIES = {
    "UNKNOWN": "Unknown",
    "HTOD": "Host-to-Device",
    "DTOH": "Device-to-Host",
    "HTOA": "Host-to-Array",
    "ATOH": "Array-to-Host",
    "ATOA": "Array-to-Array",
    "ATOD": "Array-to-Device",
    "DTOA": "Device-to-Array",
    "DTOD": "Device-to-Device",
    "HTOH": "Host-to-Host",
    "PTOP": "Peer-to-Peer",
    "UVM_HTOD": "Unified Host-to-Device",
    "UVM_DTOH": "Unified Device-to-Host",
    "UVM_DTOD": "Unified Device-to-Device",
}
_MEMORIES = ["Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"]
_WAITS = ["Unknown", "Event Synchronize", "Stream Wait Event", "Stream Synchronize", "Context Synchronize"]
_OVERHEADS = {
    0: ("OVERHEAD_UNDEFINED", "Undefined"),
    1: ("OVERHEAD_UNKNOWN", "Unknown"),
    2: ("OVERHEAD_DRIVER_COMPILER", "Driver JIT compiler (CUDA)"),
    3: ("OVERHEAD_CUPTI_BUFFER_FLUSH", "Buffer flush (Profiler)"),
    4: ("OVERHEAD_CUPTI_INSTRUMENTATION", "Instrumentation (Profiler)"),
    5: ("OVERHEAD_CUPTI_RESOURCE", "Resource creation/destruction (Profiler)"),
    6: ("OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING", "Runtime module loading (CUDA)"),
    7: ("OVERHEAD_LAZY_FUNCTION_LOADING", "Lazy function loading (CUDA)"),
    8: ("OVERHEAD_COMMAND_BUFFER_FULL", "Command buffer full (CUDA)"),
}
_NVTX_TYPES = {
    33: "NvtxCategory",
    34: "NvtxMark",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    75: "NvtxDomainCreate",
}


def _constant(prefix: str, label: str) -> tuple[str, str]:
    return prefix + label.upper().replace(" ", "_"), label


#: What nsys calls kinds of copies, memory, waits, overheads and NVTX events: symbol and label by number.
ENUMS: dict[str, dict[int, tuple[str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": {i: (f"CUDA_MEMCPY_KIND_{s}", t) for i, (s, t) in enumerate(_COPIES.items())},
    "ENUM_CUDA_MEM_KIND": {i: _constant("CUDA_MEMOPR_MEMORY_KIND_", label) for i, label in enumerate(_MEMORIES)},
    "ENUM_CUPTI_SYNC_TYPE": {
        i: _constant("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_", label) for i, label in enumerate(_WAITS)
    },
    "ENUM_CUPTI_OVERHEAD_TYPE": _OVERHEADS,
    "ENUM_NSYS_EVENT_TYPE": {i: (name, name) for i, name in _NVTX_TYPES.items()},
}

_THREAD_BITS = 24
_THREADS = (1 << _THREAD_BITS) - 1
# Threads with greater numbers, which other tools' threads have, are numbered from here.
_RENUMBERED = 0x800000
_HOST = 0xFFFFFFFF

# The values of a column: an array, or one value a row of any kind.
Values = np.ndarray | Iterable[object]


@dataclass(frozen=True)
class Sheet:
    """One table of the database: its name, the type of each column, and what makes rows of it from those of a table of
    the trace. Columns that it does not make are NULL."""

    name: str
    columns: dict[str, str]
    make: Callable[[Database, np.ndarray], dict[str, Values]]


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a database. Memory does not grow with it. Raises :class:`CutraceError` when it cannot be
    written."""
    try:
        path.touch(mode=0o600, exist_ok=False)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            # Nobody sees the file before it is whole.
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN")
            Database(trace, connection).write(request)
            connection.execute("COMMIT")
    except OSError as error:
        raise unwritable(path, error) from None
    except sqlite3.Error as error:
        raise CutraceError(f"cannot write {path}: {error}. Choose another place.") from None


class Database:
    """A database that is being written."""

    def __init__(self, trace: Trace, connection: sqlite3.Connection) -> None:
        self.trace, self._connection = trace, connection
        self._made: set[str] = set()
        self._renumbered: dict[tuple[int, int], int] = {}
        #: Texts that the trace does not have, by their ids behind its own.
        self._more: dict[str, int] = {}

    def write(self, request: Request) -> None:
        names = [name for name in TABLES if name not in ("launches", "functions")]
        total = sum(self.trace.count(name) for name in names)
        done = 0
        self._describe()
        for name in names:
            for piece in pieces(self.trace, name):
                for rows in (piece.rows, piece.unknown):
                    for sheet, part in _sheets(name, rows):
                        self.insert(sheet, part)
                    done += len(rows)
                if request.progress:
                    request.progress(min(done, total), total)
        texts = enumerate([*self.trace.strings, *self._more])
        self.add("StringIds", {"id": "INTEGER PRIMARY KEY", "value": "TEXT"}, texts)
        if self._renumbered:
            numbers = ((self._thread_id(p, number), thread) for (p, thread), number in self._renumbered.items())
            self.add("THREAD_NUMBERS", {"globalTid": "INTEGER", "thread": "INTEGER"}, numbers)
        if request.capture:
            self.add(SQLITE_TABLE, {SQLITE_COLUMN: "BLOB"}, ((piece,) for piece in embedding.pieces(self.trace)))

    def insert(self, sheet: Sheet, rows: np.ndarray) -> None:
        """Add rows of the trace to a table."""
        if not len(rows):
            return
        made = sheet.make(self, rows)
        values = (made.get(name, repeat(None, len(rows))) for name in sheet.columns)
        columns = (_listed(column) if isinstance(column, np.ndarray) else column for column in values)
        self.add(sheet.name, sheet.columns, zip(*columns, strict=True))

    def add(self, name: str, columns: dict[str, str], rows: Iterable[Sequence[object]]) -> None:
        """Add rows to a table, which is made when it is not there yet."""
        if name not in self._made:
            self._made.add(name)
            fields = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
            self._connection.execute(f'CREATE TABLE "{name}" ({fields})')
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)

    # What rows refer to

    def process_ids(self, rows: np.ndarray) -> np.ndarray:
        """Serialized ids of the processes of rows."""
        found: np.ndarray = self._process_ids[rows["process"]]
        return found

    def thread_ids(self, rows: np.ndarray, name: str = "thread") -> np.ndarray:
        """Serialized ids of threads of rows, which have 24 bits for the number of a thread."""
        threads = rows[name].astype(np.int64)
        great = np.flatnonzero(threads > _THREADS)
        keys, inverse = np.unique(
            np.stack([rows["process"][great], threads[great]], axis=1), axis=0, return_inverse=True
        )
        numbers = [self._renumbered.setdefault((p, t), _RENUMBERED + len(self._renumbered)) for p, t in keys.tolist()]
        threads[great] = np.array(numbers, np.int64)[inverse.reshape(-1)]
        return self.process_ids(rows) | threads

    def texts(self, ids: np.ndarray) -> Iterator[str]:
        """The texts of string ids."""
        known = {number: self.trace.strings[number] for number in np.unique(ids).tolist()}
        return map(known.__getitem__, ids.tolist())

    def text_id(self, text: str) -> int:
        """The id of a text."""
        known = self.trace.strings.find(text)
        return self._more.setdefault(text, len(self.trace.strings) + len(self._more)) if known is None else known

    def gpu_ids(self, devices: np.ndarray) -> list[int]:
        """What GPUs are numbered: as CUDA does, or behind all of these numbers where another process has that one."""
        return [self._gpus[key] for key in devices[["process", "device"]].tolist()]

    @cached_property
    def _gpus(self) -> dict[tuple[int, int], int]:
        keys = dict.fromkeys(self.trace.devices[["process", "device"]].tolist())
        free = max((device for _, device in keys), default=0) + 1
        found: dict[tuple[int, int], int] = {}
        taken: set[int] = set()
        for process, device in keys:
            found[process, device] = free if device in taken else device
            free += device in taken
            taken.add(device)
        return found

    @cached_property
    def kernel_names(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the demangled and of the base name of each launch configuration."""
        from .._native import demangle

        names = [self.trace.strings[number] for number in self.trace.launches["name"].tolist()]
        full = np.array([self.text_id(demangle(name)) for name in names], np.int64)
        short = np.array([self.text_id(normalize_kernel(name).rsplit("::", 1)[-1]) for name in names], np.int64)
        return full, short

    def _thread_id(self, process: int, number: int) -> int:
        return int(self._process_ids[process]) | number

    @cached_property
    def _process_ids(self) -> np.ndarray:
        return np.array([_process_id(process) for process in self.trace.processes], np.int64)

    # What is not of rows

    def _describe(self) -> None:
        from importlib.metadata import version

        about = {"EXPORT_PRODUCT_NAME": "cutrace", "EXPORT_PRODUCT_VERSION": version("cutrace")}
        self.add("META_DATA_EXPORT", {"name": "TEXT", "value": "TEXT"}, about.items())
        for name, values in ENUMS.items():
            columns = {"id": "INTEGER PRIMARY KEY", "name": "TEXT", "label": "TEXT"}
            self.add(name, columns, [(number, *texts) for number, texts in values.items()])
        processes = (
            (_process_id(process), process.pid, process.name, json.dumps(_description(process), ensure_ascii=False))
            for process in self.trace.processes
        )
        columns = {"globalPid": "INTEGER", "pid": "INTEGER", "name": "TEXT", "description": "TEXT"}
        self.add("PROCESSES", columns, processes)
        clocks = self.trace.clocks
        if len(clocks):
            began = int(clocks["realtime"][0]) - int(clocks["boottime"][0])
            columns = {"utcEpochNs": "INTEGER", "utcTime": "TEXT"}
            self.add("TARGET_INFO_SESSION_START_TIME", columns, [(began, _utc(began))])
        start, end = self.trace.start, self.trace.end
        columns = dict.fromkeys(("globalVid", "duration", "startTime", "stopTime"), "INTEGER")
        self.add("ANALYSIS_DETAILS", columns, [(1 << 48, end - start, start, end)])
        self._list_devices()
        self._name_domains()

    def _list_devices(self) -> None:
        devices = self.trace.devices
        columns = {"gpuId": "INTEGER", "cudaId": "INTEGER", "pid": "INTEGER", "numMultiprocessors": "INTEGER"}
        if len(devices):
            pids = self._process_ids[devices["process"]] >> _THREAD_BITS & _THREADS
            told = (devices["device"], pids, devices["multiprocessors"])
            rows = zip(self.gpu_ids(devices), *(column.tolist() for column in told), strict=True)
            self.add("TARGET_INFO_CUDA_DEVICE", columns, rows)

    def _name_domains(self) -> None:
        """NVTX domains have the numbers of their names; a process defines those that it uses."""
        used: set[tuple[int, int]] = set()
        for name in ("nvtx_ranges", "nvtx_marks", "nvtx_categories"):
            for rows in self.trace.blocks(name):
                used.update(np.unique(rows[["process", "domain"]]).tolist())
        domains = [
            (self.trace.start, 75, self.trace.strings[domain], int(self._process_ids[process]), domain)
            for process, domain in sorted(used)
            if domain
        ]
        if domains:
            columns = ("start", "eventType", "text", "globalTid", "domainId")
            blank = [dict(zip(columns, row, strict=True)) for row in domains]
            self.add(_NVTX.name, _NVTX.columns, [[row.get(column) for column in _NVTX.columns] for row in blank])


def _process_id(process: Process) -> int:
    """nsys packs the machine, the process and the thread into one number. Each process is on a machine of its own,
    since processes of several machines may share a number."""
    return (process.index + 1) << 48 | (process.pid & _THREADS) << _THREAD_BITS


def _utc(ns: int) -> str:
    """A moment of the wall clock in UTC, to the second."""
    try:
        return datetime.fromtimestamp(ns // 10**9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""  # no moment of any calendar


def _description(process: Process) -> dict[str, object]:
    # A process whose times were shifted is on the clock of the first one now, which has another boot.
    left = ("tables", "boot_id") if process.clock_offset else ("tables",)
    return {key: value for key, value in process.info.items() if key not in left}


def _listed(values: np.ndarray) -> list[object]:
    # SQL's numbers are signed.
    listed: list[object] = (values.astype(np.int64) if values.dtype == np.uint64 else values).tolist()
    return listed


def _or_null(values: np.ndarray) -> Iterable[object]:
    """The values, NULL for 0, which stands for none."""
    return [value or None for value in _listed(values)] if values.any() else repeat(None, len(values))


def _where(known: np.ndarray, values: np.ndarray) -> Iterable[object]:
    """The values, NULL where they are not known."""
    if known.all():
        return _listed(values)
    return [value if right else None for value, right in zip(_listed(values), known.tolist(), strict=True)]


# Work of the GPU

_INTEGER = "INTEGER"


def _integers(names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), _INTEGER)


_LAUNCH = {
    "registersPerThread": "registers", "gridX": "grid_x", "gridY": "grid_y", "gridZ": "grid_z", "blockX": "block_x",
    "blockY": "block_y", "blockZ": "block_z", "staticSharedMemory": "static_shared",
    "dynamicSharedMemory": "dynamic_shared", "localMemoryPerThread": "local_per_thread",
    "localMemoryTotal": "local_total", "sharedMemoryExecuted": "shared_executed",
    "sharedMemoryLimitConfig": "shared_limit", "clusterX": "cluster_x", "clusterY": "cluster_y",
    "clusterZ": "cluster_z", "clusterSchedulingPolicy": "cluster_policy", "maxPotentialClusterSize": "max_cluster",
    "maxActiveClusters": "max_active_clusters", "cacheConfig": "cache_executed", "cacheRequested": "cache_requested",
}  # fmt: skip


def _timed(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {"start": rows["start"], "end": rows["end"], "globalPid": database.process_ids(rows)}


def _placed(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _timed(database, rows) | {
        "deviceId": rows["device"],
        "contextId": rows["context"],
        "streamId": rows["stream"],
        "correlationId": rows["correlation"],
    }


def _kernels(database: Database, rows: np.ndarray) -> dict[str, Values]:
    launches, launch = database.trace.launches, rows["launch"]
    full, short = database.kernel_names
    carveout = launches["carveout"][launch]
    return (
        _placed(database, rows)
        | {column: launches[name][launch] for column, name in _LAUNCH.items()}
        | {
            "demangledName": full[launch],
            "shortName": short[launch],
            "mangledName": launches["name"][launch],
            "launchType": launches["launch_type"][launch] + 1,
            "graphNodeId": _or_null(launches["graph_node"][launch]),
            "graphId": _or_null(launches["graph"][launch]),
            "sharedMemoryRequestedPercentage": _where(carveout != 255, carveout),
        }
    )


def _copies(database: Database, rows: np.ndarray) -> dict[str, Values]:
    peer = rows["kind"] == 10
    return _placed(database, rows) | {
        "bytes": rows["bytes"],
        "copyKind": rows["kind"],
        "srcKind": _memory_kind(rows["source_memory"]),
        "dstKind": _memory_kind(rows["destination_memory"]),
        "srcDeviceId": rows["source_device"],
        "dstDeviceId": rows["destination_device"],
        "srcContextId": rows["context"],
        "dstContextId": np.where(peer, rows["peer_context"], rows["context"]),
        "graphNodeId": _or_null(rows["graph_node"]),
        "graphId": _or_null(rows["graph"]),
        "isAsync": rows["flags"],
    }


def _memory_kind(kinds: np.ndarray) -> np.ndarray:
    """nsys counts kinds of memory from 0 (pageable) and has 7 for the unknown one, which is CUPTI's 0."""
    return np.where(kinds == 0, 7, kinds.astype(np.int64) - 1)


def _memsets(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _placed(database, rows) | {
        "value": rows["value"],
        "bytes": rows["bytes"],
        "graphNodeId": _or_null(rows["graph_node"]),
        "graphId": _or_null(rows["graph"]),
        "memKind": _memory_kind(rows["memory"]),
        "isAsync": rows["flags"],
    }


def _migrations(database: Database, rows: np.ndarray) -> dict[str, Values]:
    source, destination = rows["source_device"], rows["destination_device"]
    return _timed(database, rows) | {
        "deviceId": np.where(destination == _HOST, source, destination),
        "contextId": repeat(0, len(rows)),
        "streamId": rows["stream"],
        "bytes": rows["value"],
        "copyKind": np.select([rows["kind"] == 1, rows["kind"] == 2], [11, 12], 13),
        "srcKind": repeat(7, len(rows)),
        "dstKind": repeat(7, len(rows)),
        "srcDeviceId": source,
        "dstDeviceId": destination,
        "migrationCause": rows["flags"],
        "virtualAddress": rows["address"],
    }


def _synchronizations(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _timed(database, rows) | {
        "contextId": rows["context"],
        "streamId": _or_null(rows["stream"]),
        "correlationId": rows["correlation"],
        "syncType": rows["type"],
        "eventId": _or_null(rows["event"]),
        "eventSyncId": _or_null(rows["event_record"]),
        "returnValue": rows["status"],
    }


def _events(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {
        "timestamp": _or_null(rows["device_time"]),
        "contextId": rows["context"],
        "streamId": rows["stream"],
        "correlationId": rows["correlation"],
        "globalPid": database.process_ids(rows),
        "eventId": rows["event"],
        "eventSyncId": _or_null(rows["event_record"]),
    }


def _graphs(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _placed(database, rows) | {"graphId": rows["graph"], "graphExecId": rows["graph"]}


# Calls and NVTX


def _calls(database: Database, rows: np.ndarray) -> dict[str, Values]:
    functions = database.trace.functions[rows["function"]]
    return {
        "start": rows["start"],
        "end": rows["end"],
        "eventClass": np.where(functions["domain"] == 1, 1, 0),
        "globalTid": database.thread_ids(rows),
        "correlationId": rows["correlation"],
        "nameId": _where(rows["function"] != 0, functions["name"]),
        "returnValue": functions["status"],
        "callbackId": functions["callback"],
    }


_PAYLOADS = {
    1: ("uint64Value", np.uint64), 2: ("int64Value", np.uint64), 3: ("doubleValue", np.float64),
    4: ("uint32Value", np.uint32), 5: ("int32Value", np.int32), 6: ("floatValue", np.float32),
}  # fmt: skip


def _described(database: Database, rows: np.ndarray) -> dict[str, Values]:
    """What marks and ranges share."""
    made: dict[str, Values] = {
        "category": _or_null(rows["category"]),
        "color": _or_null(rows["color"]),
        "text": database.texts(rows["name"]),
        "globalTid": database.thread_ids(rows),
        "domainId": rows["domain"],
    }
    for kind, (column, dtype) in _PAYLOADS.items():
        told = rows["payload_type"] == kind
        if told.any():
            bits = np.ascontiguousarray(rows["payload"])
            values = bits.view(dtype) if np.dtype(dtype).itemsize == 8 else bits.astype(np.uint32).view(dtype)
            made[column] = _where(told, values)
    return made


def _ranges(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _described(database, rows) | {
        "start": rows["start"],
        "end": _where(rows["flags"] & 1 == 0, rows["end"]),
        "eventType": np.where(rows["kind"] == 1, 60, 59),
        "rangeId": _or_null(rows["range_id"]),
        "endGlobalTid": database.thread_ids(rows, "end_thread"),
        "depth": rows["depth"],
    }


def _marks(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _described(database, rows) | {
        "start": rows["time"],
        "eventType": repeat(34, len(rows)),
        "source": _or_null(rows["source"]),
    }


def _categories(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {
        "start": repeat(database.trace.start, len(rows)),
        "eventType": repeat(33, len(rows)),
        "category": rows["category"],
        "text": database.texts(rows["name"]),
        "globalTid": database.process_ids(rows),
        "domainId": rows["domain"],
    }


def _system_calls(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {
        "start": rows["start"],
        "end": _where(rows["flags"] & 1 == 0, rows["end"]),
        "eventClass": repeat(27, len(rows)),
        "globalTid": database.thread_ids(rows),
        "nameId": rows["name"],
        "correlationId": _or_null(rows["external"]),
        "category": database.texts(rows["category"]),
    }


# Memory, overheads and compilations


def _allocations(database: Database, rows: np.ndarray) -> dict[str, Values]:
    imported = rows["pool_type"] == 2
    pool = rows["pool"]
    return {
        "start": rows["time"],
        "globalPid": database.process_ids(rows),
        "deviceId": rows["device"],
        "contextId": rows["context"],
        "streamId": rows["stream"],
        "address": rows["address"],
        "bytes": rows["bytes"],
        "memKind": _memory_kind(rows["memory"]),
        "memoryOperationType": rows["operation"].astype(np.int64) - 1,
        "correlationId": rows["correlation"],
        "localMemoryPoolAddress": _or_null(np.where(imported, 0, pool)),
        "localMemoryPoolUtilizedSize": _or_null(rows["pool_used"]),
        "importedMemoryPoolAddress": _or_null(np.where(imported, pool, 0)),
        "isAsync": rows["flags"],
        "source": database.texts(rows["source"]),
    }


def _pools(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {
        "start": rows["time"],
        "globalPid": database.process_ids(rows),
        "deviceId": rows["device"],
        "address": rows["address"],
        "operationType": rows["operation"],
        "poolType": rows["pool_type"],
        "correlationId": rows["correlation"],
        "minBytesToKeep": rows["minimum"],
        "localMemoryPoolReleaseThreshold": rows["release_threshold"],
        "localMemoryPoolSize": rows["size"],
        "localMemoryPoolUtilizedSize": rows["used"],
    }


def _overheads(database: Database, rows: np.ndarray) -> dict[str, Values]:
    # nsys counts kinds from 1, and those of the profiler, which are multiples of 2^16, behind the first two.
    kinds = rows["kind"].astype(np.int64)
    types = np.select([kinds < 2, kinds & 0xFFFF == 0], [kinds + 1, (kinds >> 16) + 2], 1)
    return {
        "start": rows["start"],
        "end": rows["end"],
        "globalTid": database.thread_ids(rows),
        "correlationId": rows["correlation"],
        "nameId": [database.text_id(_OVERHEADS.get(kind, ("", "Unknown"))[1]) for kind in types.tolist()],
        "overheadType": types,
        "overheadKind": rows["kind"],
    }


def _compilations(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {
        "start": rows["start"],
        "end": rows["end"],
        "globalTid": database.thread_ids(rows),
        "correlationId": rows["correlation"],
        "jitEntryType": rows["entry"],
        "jitOperationType": rows["operation"],
        "deviceId": rows["device"],
        "cacheSize": rows["cache_size"],
        "cachePath": database.texts(rows["cache_path"]),
    }


# Names and facts


def _devices(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {
        "vmId": database.process_ids(rows) >> 48 << 48,
        "id": database.gpu_ids(rows),
        "name": database.texts(rows["name"]),
        "busLocation": database.texts(rows["pci"]),
        "l2CacheSize": rows["l2_cache"],
        "totalMemory": rows["memory"],
        "memoryBandwidth": rows["memory_bandwidth"].astype(np.int64) * 1000,
        "clockRate": rows["core_clock"].astype(np.int64) * 1000,
        "smCount": rows["multiprocessors"],
        "uuid": (bytes(uuid) for uuid in rows["uuid"].tolist()),
        "cuDevice": rows["device"],
        "maxRegistersPerBlock": rows["registers_per_block"],
        "maxShmemPerBlock": rows["shared_per_block"],
        "maxShmemPerBlockOptin": rows["shared_per_block_optin"],
        "maxShmemPerSm": rows["shared_per_multiprocessor"],
        "maxRegistersPerSm": rows["registers_per_multiprocessor"],
        "threadsPerWarp": rows["warp_size"],
        "asyncEngines": rows["copy_engines"],
        "maxWarpsPerSm": rows["max_warps_per_multiprocessor"],
        "maxBlocksPerSm": rows["max_blocks_per_multiprocessor"],
        "maxThreadsPerBlock": rows["max_threads_per_block"],
        "computeMajor": rows["compute_major"],
        "computeMinor": rows["compute_minor"],
        "maxThreadsPerSm": rows["max_threads_per_multiprocessor"],
        "memoryClockRate": rows["memory_clock"].astype(np.int64) * 1000,
        "reservedShmemPerBlock": rows["shared_reserved_per_block"],
        "isMig": rows["mig"],
    }


def _parts(database: Database, rows: np.ndarray) -> dict[str, Values]:
    keys = database.process_ids(rows)
    return {"hwId": keys >> 56 & 0xFF, "vmId": keys >> 48 & 0xFF, "processId": keys >> _THREAD_BITS & _THREADS}


def _contexts(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _parts(database, rows) | {
        "nullStreamId": rows["null_stream"],
        "deviceId": rows["device"],
        "contextId": rows["context"],
        "computeApi": rows["compute_api"],
    }


def _streams(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return _parts(database, rows) | {
        "streamId": rows["stream"],
        "contextId": rows["context"],
        "priority": rows["priority"],
        "flag": rows["type"],
    }


def _threads(database: Database, rows: np.ndarray) -> dict[str, Values]:
    return {"nameId": rows["name"], "globalTid": database.thread_ids(rows), "source": rows["source"]}


_PLACE = "start end deviceId contextId streamId correlationId globalPid "
_KERNEL = Sheet(
    "CUPTI_ACTIVITY_KIND_KERNEL",
    _integers(
        _PLACE + "demangledName shortName mangledName launchType cacheConfig registersPerThread gridX gridY gridZ "
        "blockX blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal "
        "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig graphId clusterX clusterY clusterZ "
        "clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage "
        "cacheRequested"
    ),
    _kernels,
)
_COPIED = _integers(
    _PLACE + "bytes copyKind srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause "
    "graphNodeId virtualAddress graphId isAsync"
)
_NVTX = Sheet(
    "NVTX_EVENTS",
    _integers("start end eventType rangeId category color")
    | {"text": "TEXT"}
    | _integers("globalTid endGlobalTid textId domainId uint64Value int64Value")
    | {"doubleValue": "REAL"}
    | _integers("uint32Value int32Value")
    | {"floatValue": "REAL"}
    | _integers("source depth"),
    _ranges,
)
_CPU_FAULTS = Sheet(
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
    _integers("start globalPid address"),
    lambda database, rows: {
        "start": rows["start"], "globalPid": database.process_ids(rows), "address": rows["address"],
    },
)  # fmt: skip
_GPU_FAULTS = Sheet(
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
    _integers("start end globalPid deviceId address numberOfPageFaults faultAccessType"),
    lambda database, rows: _timed(database, rows) | {
        "deviceId": rows["source_device"], "address": rows["address"], "numberOfPageFaults": rows["value"],
        "faultAccessType": rows["flags"],
    },
)  # fmt: skip
_MIGRATED = Sheet("CUPTI_ACTIVITY_KIND_MEMCPY", _COPIED, _migrations)
_SYSTEM_CALLS = Sheet(
    "OSRT_API",
    _integers("start end eventClass globalTid nameId returnValue nestingLevel callchainId correlationId")
    | {"category": "TEXT"},
    _system_calls,
)

#: The tables of the trace that nsys has a table for.
SHEETS: dict[str, Sheet] = {
    "kernels": _KERNEL,
    "memcpys": Sheet("CUPTI_ACTIVITY_KIND_MEMCPY", _COPIED, _copies),
    "memsets": Sheet(
        "CUPTI_ACTIVITY_KIND_MEMSET", _integers(_PLACE + "value bytes graphNodeId memKind graphId isAsync"), _memsets
    ),
    "api_calls": Sheet(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        _integers("start end eventClass globalTid correlationId nameId returnValue callchainId callbackId"),
        _calls,
    ),
    "nvtx_ranges": _NVTX,
    "nvtx_marks": Sheet(_NVTX.name, _NVTX.columns, _marks),
    "nvtx_categories": Sheet(_NVTX.name, _NVTX.columns, _categories),
    "synchronizations": Sheet(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        _integers(_PLACE + "syncType eventId eventSyncId returnValue"),
        _synchronizations,
    ),
    "cuda_events": Sheet(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        _integers("timestamp deviceId contextId streamId correlationId globalPid eventId eventSyncId"),
        _events,
    ),
    "graph_launches": Sheet("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _integers(_PLACE + "graphId graphExecId"), _graphs),
    "allocations": Sheet(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        _integers(
            "start globalPid deviceId contextId address pc bytes memKind memoryOperationType name correlationId "
            "streamId localMemoryPoolAddress localMemoryPoolReleaseThreshold localMemoryPoolSize "
            "localMemoryPoolUtilizedSize importedMemoryPoolAddress importedMemoryPoolProcessId isAsync"
        )
        | {"source": "TEXT"},
        _allocations,
    ),
    "memory_pools": Sheet(
        "CUDA_GPU_MEMORY_POOL_EVENTS",
        _integers(
            "start globalPid deviceId address operationType poolType correlationId minBytesToKeep "
            "localMemoryPoolReleaseThreshold localMemoryPoolSize localMemoryPoolUtilizedSize"
        ),
        _pools,
    ),
    "overheads": Sheet(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        _integers("start end eventClass globalTid correlationId nameId overheadType overheadKind"),
        _overheads,
    ),
    "jit": Sheet(
        "CUPTI_ACTIVITY_KIND_JIT",
        _integers(
            "start end eventClass globalTid correlationId nameId overheadType jitEntryType jitOperationType deviceId "
            "jitOperationCorrelationId cacheSize"
        )
        | {"cachePath": "TEXT"},
        _compilations,
    ),
    "devices": Sheet(
        "TARGET_INFO_GPU",
        _integers("vmId id")
        | {"name": "TEXT", "busLocation": "TEXT"}
        | _integers("isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount")
        | {"uuid": "TEXT"}
        | _integers(
            "cuDevice maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm "
            "threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock computeMajor computeMinor "
            "maxThreadsPerSm memoryClockRate reservedShmemPerBlock isMig"
        ),
        _devices,
    ),
    "contexts": Sheet(
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        _integers("nullStreamId hwId vmId processId deviceId contextId computeApi"),
        _contexts,
    ),
    "streams": Sheet(
        "TARGET_INFO_CUDA_STREAM", _integers("streamId hwId vmId processId contextId priority flag"), _streams
    ),
    "threads": Sheet("ThreadNames", _integers("nameId priority globalTid source"), _threads),
}


def _sheets(name: str, rows: np.ndarray) -> Iterator[tuple[Sheet, np.ndarray]]:
    """The rows of a table of the trace, by the table of the database that they go into."""
    if name == "unified_memory":
        kinds = rows["kind"]
        moment = (kinds == 3) & (rows["start"] == rows["end"]) & (rows["value"] == 1) & (rows["flags"] == 0)
        moment &= (rows["source_device"] == _HOST) & (rows["destination_device"] == 0) & (rows["stream"] == 0)
        of_gpu = (kinds == 4) & (rows["source_device"] == rows["destination_device"]) & (rows["stream"] == 0)
        moved = np.isin(kinds, (1, 2, 8))
        yield from ((_MIGRATED, rows[moved]), (_CPU_FAULTS, rows[moment]), (_GPU_FAULTS, rows[of_gpu]))
        rest = rows[~(moved | moment | of_gpu)]
    elif name == "host_slices":
        calls = (rows["kind"] == 4) & (rows["arguments"] == 0) & (rows["track"] == 0) & (rows["flags"] <= 1)
        yield _SYSTEM_CALLS, rows[calls]
        rest = rows[~calls]
    elif name in SHEETS:
        yield SHEETS[name], rows
        return
    else:
        rest = rows
    yield _own(TABLES[name]), rest


def _own(table: Table) -> Sheet:
    """A table that nsys does not have: of the trace's name, with its fields as columns."""
    fields = [f for f in table.fields if f.name != "process"]
    kinds = {"string": "TEXT", "f64": "REAL"}

    def make(database: Database, rows: np.ndarray) -> dict[str, Values]:
        made: dict[str, Values] = {
            f.name: database.texts(rows[f.name]) if f.type == "string" else rows[f.name] for f in fields
        }
        if table.name == "clocks":
            # Times of the database are all on the clock of the first process.
            offsets = np.array([process.clock_offset for process in database.trace.processes], np.int64)
            made["boottime"] = rows["boottime"].astype(np.int64) + offsets[rows["process"]]
        return made | {"globalPid": database.process_ids(rows)}

    return Sheet(table.name, {"globalPid": _INTEGER} | {f.name: kinds.get(f.type, _INTEGER) for f in fields}, make)
