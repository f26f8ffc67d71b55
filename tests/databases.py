"""Databases for tests, as nsys and nvprof write them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from cutrace import Trace
from cutrace.trace.imported import Account

DATA = Path(__file__).parent / "data"
#: A real export. It has one kernel, 72 migrations of managed memory, 6 calls and one wait.
NSYS = DATA / "nsys-2024.4-unified-memory.sqlite"

Rows = Sequence[Mapping[str, Any]]


def account(trace: Trace, what: str) -> Account:
    """The account of the rows of a table, or of a column."""
    return next(a for a in trace.imports[0].accounts if a.what == what)


def texts(trace: Trace, rows: np.ndarray, field: str = "name") -> list[str]:
    """The strings of a column."""
    return [trace.strings[number] for number in rows[field].tolist()]


def global_pid(pid: int, machine: int = 1) -> int:
    """The serialized id of a process in nsys."""
    return machine << 48 | pid << 24


def global_tid(pid: int, tid: int, machine: int = 1) -> int:
    """The serialized id of a thread in nsys."""
    return global_pid(pid, machine) | tid


def nsys(path: Path, strings: Sequence[str] = (), **tables: Rows) -> Path:
    """Write an export with these tables. Their columns are the keys of their rows. ``strings`` get ids from 1."""
    told = {"META_DATA_EXPORT": [{"name": "EXPORT_PRODUCT_NAME", "value": "NVIDIA Nsight Systems"}]}
    texts = [{"id": i + 1, "value": text} for i, text in enumerate(strings)]
    with closing(sqlite3.connect(path)) as database:
        for name, rows in (told | ({"StringIds": texts} if texts else {}) | tables).items():
            columns = list(dict.fromkeys(column for row in rows for column in row))
            # Columns have no types, so that SQLite does not convert values.
            database.execute(f'CREATE TABLE "{name}" ({", ".join(f"{chr(34)}{c}{chr(34)}" for c in columns)})')
            marks = ", ".join("?" * len(columns))
            values = [[row.get(column) for column in columns] for row in rows]
            database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', values)
        database.commit()
    return path


def kernel(start: int, end: int, **more: Any) -> dict[str, Any]:
    """A row of CUPTI_ACTIVITY_KIND_KERNEL for process 100."""
    return {
        "start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 5,
        "globalPid": global_pid(100), "demangledName": 1, "shortName": 1, "mangledName": None, "registersPerThread": 16,
        "gridX": 4, "gridY": 1, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1, "staticSharedMemory": 0,
        "dynamicSharedMemory": 1024, "localMemoryPerThread": 0, "localMemoryTotal": 0, "gridId": 1,
    } | more  # fmt: skip


def nvprof(path: Path, strings: Sequence[str] = (), **tables: Rows) -> Path:
    """Write a database with all tables of nvprof. ``RUNTIME=[...]`` are rows of CUPTI_ACTIVITY_KIND_RUNTIME. Missing
    values of a row are 0, or empty bytes. ``strings`` get ids from 1."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript((DATA / "nvprof-schema.sql").read_text())
        database.execute("INSERT INTO Version VALUES (11)")
        database.executemany("INSERT INTO StringTable (value) VALUES (?)", [(text,) for text in strings])
        for kind, rows in tables.items():
            name = f"CUPTI_ACTIVITY_KIND_{kind}"
            columns = [c for c in database.execute(f"PRAGMA table_info({name})").fetchall() if c[1] != "_id_"]
            for row in rows:
                assert set(row) <= {c[1] for c in columns}, f"{set(row)} are no columns of {name}"
                values = [row.get(c[1], b"" if c[2] == "BLOB" else 0) for c in columns]
                names = ", ".join(f'"{c[1]}"' for c in columns)
                database.execute(f"INSERT INTO {name} ({names}) VALUES ({', '.join('?' * len(values))})", values)
        database.commit()
    return path


def spans(path: Path) -> dict[str, tuple[int, int]]:
    """The number of rows and the sum of end - start, for each table of a database."""
    found = {}
    with closing(sqlite3.connect(path)) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {c[1] for c in database.execute(f'PRAGMA table_info("{name}")')}
            duration = 'total("end" - "start")' if {"start", "end"} <= columns else "0"
            count, total = database.execute(f'SELECT count(*), {duration} FROM "{name}"').fetchone()
            if not name.startswith("sqlite_"):
                found[name] = (count, int(total))
    return found
