"""SQLite: a database with the tables and columns of Nsight Systems' exports.

Queries for exports of nsys also work on this database. Rows without a table in nsys are in tables of cutrace. Fields
without a column in nsys are in additional columns. docs/internals/exporters.md lists both.
:mod:`cutrace.extras.nsys.schema` declares the tables. The database contains the capture, and cutrace opens it as that
capture.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from functools import cached_property
from itertools import count, repeat
from pathlib import Path

import numpy as np

from ... import embedding
from ...analysis.names import normalize_kernel
from ...embedding import SQLITE_COLUMN, SQLITE_TABLE
from ...errors import CutraceError
from ...exporters.base import Request
from ...exporters.rows import pieces
from ...runbin.layout import REFERRED, TABLES
from ...trace import Process, Trace
from ...trace.alignment import wall_clock
from ...trace.quality import losses_of_the_file
from . import schema as nsys
from .schema import THREAD_BITS, THREADS, SqlColumn, SqlTable

# Numbers from here on replace thread ids of more than 24 bits, which other tools write.
_RENUMBERED = 0x800000

# The values of a column: an array, or one object for each row.
Values = np.ndarray | Iterable[object]
_Columns = dict[str, Values]


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a database. Memory use does not grow with the trace. Raises :class:`CutraceError` for errors of
    SQLite."""
    try:
        path.touch(mode=0o600, exist_ok=False)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            # No journal is needed, because the file gets its name only when it is complete.
            for pragma in (
                "journal_mode = OFF",
                "synchronous = OFF",
                "locking_mode = EXCLUSIVE",
            ):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN")
            Database(trace, connection).write(request)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise CutraceError(
            f"cannot write {path}: {error}. Choose another folder."
        ) from None


class Database:
    """A database that is being written."""

    def __init__(self, trace: Trace, connection: sqlite3.Connection) -> None:
        self.trace = trace
        self._connection = connection
        self._made: set[str] = set()
        self._renumbered: dict[tuple[int, int], int] = {}
        #: Ids of strings that the trace lacks. They follow the string ids of the trace.
        self._more: dict[str, int] = {}

    def write(self, request: Request) -> None:
        names = [name for name in TABLES if name not in ("launches", "functions")]
        total = sum(self.trace.count(name) for name in names)
        done = 0
        self._describe()
        for name in names:
            for piece in pieces(self.trace, name):
                for rows in piece:
                    for table, part in _tables(name, rows):
                        self.insert(table, part)
                    done += len(rows)
                if request.progress:
                    request.progress(min(done, total), total)
        self._add_losses()
        texts = enumerate([*self.trace.strings, *self._more])
        self.add("StringIds", {"id": "INTEGER PRIMARY KEY", "value": "TEXT"}, texts)
        if self._renumbered:
            ids = self._process_ids.tolist()
            threads = []
            for (process, thread), number in self._renumbered.items():
                threads.append((ids[process] | number, thread))
            columns = {"globalTid": "INTEGER", "thread": "INTEGER"}
            self.add("THREAD_NUMBERS", columns, threads)
        if request.capture is not False:
            blobs = ((piece,) for piece in embedding.pieces(self.trace))
            self.add(SQLITE_TABLE, {SQLITE_COLUMN: "BLOB"}, blobs)

    def insert(self, table: SqlTable, rows: np.ndarray) -> None:
        """Add rows of the trace to a table. Unknown columns are NULL."""
        if not len(rows):
            return
        values = {c.name: self._values(c, rows) for c in table.columns if c.field}
        more = _MORE.get(table)
        if more:
            values |= more(self, rows)
        types = {}
        listed: list[Iterable[object]] = []
        for column in table.columns:
            types[column.name] = column.sql_type
            of_column = values.get(column.name, repeat(None, len(rows)))
            if isinstance(of_column, np.ndarray):
                of_column = _listed(of_column)
            listed.append(of_column)
        self.add(table.name, types, zip(*listed, strict=True))

    def _add_losses(self) -> None:
        """Add the losses that only the file of the capture shows. Reading the other tables has found them."""
        table = nsys.own("losses")
        types = {column.name: column.sql_type for column in table.columns}
        for row in losses_of_the_file(self.trace):
            row["process"] = int(self._process_ids[row["process"]])
            values = [row[column.field] for column in table.columns]
            self.add(table.name, types, [values])

    def add(
        self,
        name: str,
        columns: dict[str, str],
        rows: Iterable[Sequence[object]],
    ) -> None:
        """Add rows to a table. The first call creates the table."""
        if name not in self._made:
            self._made.add(name)
            fields = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
            self._connection.execute(f'CREATE TABLE "{name}" ({fields})')
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)

    def _values(self, column: SqlColumn, rows: np.ndarray) -> Values:
        """The values of a column, converted by its ``conversion``."""
        if column.conversion == "process":
            return self.process_ids(rows)
        if column.conversion == "thread":
            return self.thread_ids(rows, column.field)
        values: np.ndarray
        if column.of:
            referred = self.trace.table(REFERRED[column.of])
            values = referred[column.field][rows[column.of]]
        else:
            values = rows[column.field]
        match column.conversion:
            case "null" | "id" | "color":
                return _or_null(values)
            case "open":
                return _where(rows["flags"] & 1 == 0, values)
            case "text":
                return self.texts(values, required=column.required)
            case "memory":
                values = np.where(values == 0, 7, values.astype(np.int64) - 1)
            case "less":
                values = values.astype(np.int64) - 1
            case "thousand":
                values = values.astype(np.int64) * 1000
            case "uuid":
                return (bytes(value) for value in values.tolist())
        return values

    # Ids

    def process_ids(self, rows: np.ndarray) -> np.ndarray:
        """The serialized ids of the processes of rows."""
        return self._process_ids[rows["process"]]

    def thread_ids(self, rows: np.ndarray, name: str) -> np.ndarray:
        """The serialized ids of the threads of rows. They have 24 bits for the thread."""
        threads = rows[name].astype(np.int64)
        large = np.flatnonzero(threads > THREADS)
        keys, inverse = np.unique(
            np.stack([rows["process"][large], threads[large]], axis=1),
            axis=0,
            return_inverse=True,
        )
        numbers = []
        for process, thread in keys.tolist():
            unused = _RENUMBERED + len(self._renumbered)
            numbers.append(self._renumbered.setdefault((process, thread), unused))
        threads[large] = np.array(numbers, np.int64)[inverse.reshape(-1)]
        return self.process_ids(rows) | threads

    def texts(self, ids: np.ndarray, *, required: bool = True) -> Iterator[str | None]:
        """The strings with these ids. No string is NULL where none is ``required``, as in the views of SQL."""
        used = np.unique(ids).tolist()
        known: dict[int, str | None] = {}
        for number in used:
            known[number] = self.trace.strings[number]
        if not required:
            known[0] = None
        return map(known.__getitem__, ids.tolist())

    def text_id(self, text: str) -> int:
        """The id of a string. A string that the trace lacks is added."""
        known = self.trace.strings.find(text)
        if known is not None:
            return known
        unused = len(self.trace.strings) + len(self._more)
        return self._more.setdefault(text, unused)

    def gpu_ids(self, devices: np.ndarray) -> list[int]:
        """The numbers of GPUs: the CUDA ordinal, or an unused number if a GPU of another process has that ordinal."""
        return [self._gpus[key] for key in devices[["process", "device"]].tolist()]

    @cached_property
    def _gpus(self) -> dict[tuple[int, int], int]:
        keys = dict.fromkeys(self.trace.devices[["process", "device"]].tolist())
        free = count(max((device for _, device in keys), default=0) + 1)
        taken: set[int] = set()
        numbers = {}
        for process, device in keys:
            number = device
            if device in taken:
                number = next(free)
            numbers[process, device] = number
            taken.add(device)
        return numbers

    @cached_property
    def kernel_names(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the demangled name and of the base name of each launch configuration."""
        from ..._native import demangle

        names = self.trace.launches["name"]
        full = np.zeros(len(names), np.int64)
        short = np.zeros(len(names), np.int64)
        for at, number in enumerate(names.tolist()):
            name = self.trace.strings[number]
            base = normalize_kernel(name).rsplit("::", 1)[-1]
            full[at] = self.text_id(demangle(name))
            short[at] = self.text_id(base)
        return full, short

    @cached_property
    def _process_ids(self) -> np.ndarray:
        ids = [_process_id(process) for process in self.trace.processes]
        return np.array(ids, np.int64)

    # Metadata

    def _describe(self) -> None:
        from importlib.metadata import version

        about = {
            "EXPORT_PRODUCT_NAME": "cutrace",
            "EXPORT_PRODUCT_VERSION": version("cutrace"),
        }
        self.add("META_DATA_EXPORT", {"name": "TEXT", "value": "TEXT"}, about.items())
        columns = {"id": "INTEGER PRIMARY KEY", "name": "TEXT", "label": "TEXT"}
        for name, values in nsys.ENUMS.items():
            rows = [(number, *texts) for number, texts in values.items()]
            self.add(name, columns, rows)
        self._describe_processes()
        began = wall_clock(self.trace.clocks)
        if began is not None:
            columns = {"utcEpochNs": "INTEGER", "utcTime": "TEXT"}
            self.add("TARGET_INFO_SESSION_START_TIME", columns, [(began, _utc(began))])
        start = self.trace.start
        end = self.trace.end
        columns = _integers("globalVid", "duration", "startTime", "stopTime")
        self.add("ANALYSIS_DETAILS", columns, [(1 << 48, end - start, start, end)])
        devices = self.trace.devices
        if len(devices):
            columns = _integers("gpuId", "cudaId", "pid", "numMultiprocessors")
            pids = self.process_ids(devices) >> THREAD_BITS & THREADS
            gpus = zip(
                self.gpu_ids(devices),
                devices["device"].tolist(),
                pids.tolist(),
                devices["multiprocessors"].tolist(),
                strict=True,
            )
            self.add("TARGET_INFO_CUDA_DEVICE", columns, gpus)
        self._name_domains()

    def _describe_processes(self) -> None:
        columns = {
            "globalPid": "INTEGER",
            "pid": "INTEGER",
            "name": "TEXT",
            "description": "TEXT",
        }
        rows = []
        for process in self.trace.processes:
            info = {
                key: value for key, value in process.info.items() if key != "tables"
            }
            description = json.dumps(info, ensure_ascii=False)
            rows.append((_process_id(process), process.pid, process.name, description))
        self.add("PROCESSES", columns, rows)

    def _name_domains(self) -> None:
        """Write the NVTX domains that each process uses. The id of a domain is the id of its name."""
        used: set[tuple[int, int]] = set()
        for name in ("nvtx_ranges", "nvtx_marks", "nvtx_categories"):
            for rows in self.trace.blocks(name):
                used.update(np.unique(rows[["process", "domain"]]).tolist())
        columns = {c.name: c.sql_type for c in nsys.NVTX_RANGES.columns}
        listed = []
        for process, domain in sorted(used):
            if not domain:
                continue
            values = {
                "start": self.trace.start,
                "eventType": nsys.NVTX_DOMAIN,
                "text": self.trace.strings[domain],
                "globalTid": int(self._process_ids[process]),
                "domainId": domain,
            }
            listed.append([values.get(column) for column in columns])
        if listed:
            self.add(nsys.NVTX_RANGES.name, columns, listed)


def _process_id(process: Process) -> int:
    """The serialized id of a process. In nsys it contains machine, process and thread. Each process gets a separate
    machine number, because processes of several machines may have the same process id."""
    return (process.index + 1) << 48 | (process.pid & THREADS) << THREAD_BITS


def _integers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "INTEGER")


def _utc(ns: int) -> str:
    """Format a time of the wall clock (ns since 1970) in UTC, to the second. Returns "" for times outside the
    calendar."""
    try:
        time = datetime.fromtimestamp(ns // 10**9, timezone.utc)
        return time.strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


def _listed(values: np.ndarray) -> list[object]:
    if values.dtype == np.uint64:
        values = values.astype(np.int64)  # integers of SQLite are signed
    return values.tolist()


def _where(known: np.ndarray, values: np.ndarray) -> Iterable[object]:
    """The values, with NULL in place of unknown ones."""
    if not known.any():
        return repeat(None, len(values))
    listed = _listed(values)
    for unknown in np.flatnonzero(~known).tolist():
        listed[unknown] = None
    return listed


def _or_null(values: np.ndarray) -> Iterable[object]:
    """The values, with NULL in place of 0."""
    return _where(values != 0, values)


# Columns that are computed from fields


def _kernels(database: Database, rows: np.ndarray) -> _Columns:
    launches = database.trace.launches
    launch = rows["launch"]
    full, short = database.kernel_names
    carveout = launches["carveout"][launch]
    return {
        "demangledName": full[launch],
        "shortName": short[launch],
        "launchType": launches["launch_type"][launch] + 1,
        "sharedMemoryRequestedPercentage": _where(carveout != 255, carveout),
    }


def _copies(database: Database, rows: np.ndarray) -> _Columns:
    peer = rows["kind"] == 10
    return {
        "srcContextId": rows["context"],
        "dstContextId": np.where(peer, rows["peer_context"], rows["context"]),
    }


def _migrations(database: Database, rows: np.ndarray) -> _Columns:
    source = rows["source_device"]
    destination = rows["destination_device"]
    kind = rows["kind"]
    to_device = kind == 1
    to_host = kind == 2
    return {
        "deviceId": np.where(destination == nsys.NOTHING, source, destination),
        "contextId": repeat(0, len(rows)),
        "copyKind": np.select([to_device, to_host], [11, 12], 13),
        "srcKind": repeat(7, len(rows)),
        "dstKind": repeat(7, len(rows)),
    }


def _calls(database: Database, rows: np.ndarray) -> _Columns:
    functions = database.trace.functions[rows["function"]]
    return {
        "eventClass": np.where(functions["domain"] == 1, 1, 0),
        "nameId": _where(rows["function"] != 0, functions["name"]),
    }


def _events(database: Database, rows: np.ndarray) -> _Columns:
    """The common columns of marks and ranges."""
    columns: _Columns = {"domainId": rows["domain"]}
    for kind, (column, dtype) in nsys.PAYLOADS.items():
        known = rows["payload_type"] == kind
        if known.any():
            bits = np.ascontiguousarray(rows["payload"])
            if np.dtype(dtype).itemsize == 8:
                values = bits.view(dtype)
            else:
                values = bits.astype(np.uint32).view(dtype)
            columns[column] = _where(known, values)
    return columns


def _ranges(database: Database, rows: np.ndarray) -> _Columns:
    types = np.where(rows["kind"] == 1, nsys.NVTX_START_END, nsys.NVTX_PUSH_POP)
    return _events(database, rows) | {"eventType": types}


def _marks(database: Database, rows: np.ndarray) -> _Columns:
    return _events(database, rows) | {"eventType": repeat(nsys.NVTX_MARK, len(rows))}


def _categories(database: Database, rows: np.ndarray) -> _Columns:
    return {
        "start": repeat(database.trace.start, len(rows)),
        "eventType": repeat(nsys.NVTX_CATEGORY, len(rows)),
        "globalTid": database.process_ids(rows),
        "domainId": rows["domain"],
    }


def _allocations(database: Database, rows: np.ndarray) -> _Columns:
    imported = rows["pool_type"] == 2
    pool = rows["pool"]
    return {
        "isAsync": rows["flags"] & 1,
        "localMemoryPoolAddress": _or_null(np.where(imported, 0, pool)),
        "importedMemoryPoolAddress": _or_null(np.where(imported, pool, 0)),
    }


def _overheads(database: Database, rows: np.ndarray) -> _Columns:
    types = nsys.overhead_types(rows["kind"].astype(np.int64))
    labels = nsys.ENUMS["ENUM_CUPTI_OVERHEAD_TYPE"]
    names = []
    for number in types.tolist():
        _, label = labels.get(number, labels[1])
        names.append(database.text_id(label))
    return {
        "nameId": names,
        "overheadType": types,
        "overheadKind": rows["kind"],
    }


def _devices(database: Database, rows: np.ndarray) -> _Columns:
    return {
        "vmId": database.process_ids(rows) >> 48 << 48,
        "id": database.gpu_ids(rows),
    }


def _id_parts(database: Database, rows: np.ndarray) -> _Columns:
    keys = database.process_ids(rows)
    return {
        "hwId": keys >> 56 & 0xFF,
        "vmId": keys >> 48 & 0xFF,
        "processId": keys >> THREAD_BITS & THREADS,
    }


_MORE: dict[SqlTable, Callable[[Database, np.ndarray], _Columns]] = {
    nsys.KERNELS: _kernels,
    nsys.MEMCPYS: _copies,
    nsys.MIGRATIONS: _migrations,
    nsys.API_CALLS: _calls,
    nsys.SYNCHRONIZATIONS: lambda database, rows: {"syncType": rows["type"]},
    nsys.NVTX_RANGES: _ranges,
    nsys.NVTX_MARKS: _marks,
    nsys.NVTX_CATEGORIES: _categories,
    nsys.ALLOCATIONS: _allocations,
    nsys.OVERHEADS: _overheads,
    nsys.SYSTEM_CALLS: lambda database, rows: {"eventClass": repeat(27, len(rows))},
    nsys.DEVICES: _devices,
    nsys.CONTEXTS: _id_parts,
    nsys.STREAMS: _id_parts,
}


def _tables(name: str, rows: np.ndarray) -> Iterator[tuple[SqlTable, np.ndarray]]:
    """Split the rows of a table of the trace by their table of the database."""
    if name == "unified_memory":
        kinds = rows["kind"]
        on_cpu = (
            (kinds == 3)
            & (rows["start"] == rows["end"])
            & (rows["value"] == 1)
            & (rows["flags"] == 0)
            & (rows["source_device"] == nsys.NOTHING)
            & (rows["destination_device"] == 0)
            & (rows["stream"] == 0)
        )
        on_gpu = (
            (kinds == 4)
            & (rows["source_device"] == rows["destination_device"])
            & (rows["stream"] == 0)
        )
        moved = np.isin(kinds, list(nsys.MIGRATION_KINDS.values()))
        other = ~(moved | on_cpu | on_gpu)
        yield nsys.MIGRATIONS, rows[moved]
        yield nsys.CPU_FAULTS, rows[on_cpu]
        yield nsys.GPU_FAULTS, rows[on_gpu]
        yield nsys.own(name), rows[other]
    elif name == "host_slices":
        calls = (
            (rows["kind"] == 4)
            & (rows["arguments"] == 0)
            & (rows["track"] == 0)
            & (rows["flags"] <= 1)
        )
        yield nsys.SYSTEM_CALLS, rows[calls]
        yield nsys.own(name), rows[~calls]
    else:
        yield nsys.BY_TABLE.get(name) or nsys.own(name), rows
