"""Databases of nvprof and the Visual Profiler: CUPTI's activity records, one table for each kind.

Only API calls have a process. GPU records belong to the first process that made a call. Thread ids are values of
pthread_self(); a capture keeps 32 bits of them. :mod:`.nvprof_records` maps the tables. :mod:`.nvprof_markers` reads
NVTX, with two rows for each range.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from ...importers.base import Import, SourceFile, rows_of
from ...importers.row_builder import Strings, find
from ...importers.tables import Tables, rows
from ...importers.tables_sqlite import MAGIC, SqliteTables, tables_of
from ...runbin import TABLES
from . import nvprof_markers
from .nvprof_records import MAPPINGS, REDUNDANT, ROW, WHY, ids
from .reading import BatchOfTarget, Kinds, Reading, Target

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_THREADS = 0xFFFFFFFF
_EPOCH = 10**18  # larger times are on the wall clock
# CUpti_ActivityObjectKind
_PROCESS = 1
_THREAD = 2
_DEVICE = 3
_CONTEXT = 4
_STREAM = 5
# The kind of each object in the table resource_names.
_RESOURCES = {_DEVICE: 3, _CONTEXT: 2, _STREAM: 1}


class Nvprof:
    """``nvprof -o FILE``"""

    name = "nvprof"
    description = "nvprof SQLite database"

    def recognizes(self, source: SourceFile) -> bool:
        if source.packed or not source.head.startswith(MAGIC):
            return False
        names = tables_of(source.path)
        if "StringTable" in names:
            return True
        return "Version" in names and any(name.startswith(_PREFIX) for name in names)

    def read(self, source: SourceFile, out: Import) -> None:
        with SqliteTables(source.path) as tables:
            NvprofReading(tables, out, source.path).read()


NVPROF = Nvprof()


class NvprofReading(Reading):
    """The import of one database."""

    string_table = ("StringTable", ROW)
    redundant = REDUNDANT

    def __init__(self, tables: Tables, out: Import, path: Path) -> None:
        super().__init__(tables, out, path)
        self._clocked = False
        # Correlation ids and starts of kernels. Counters that were read around a kernel have no time and take its
        # start.
        self.kernels: list[tuple[np.ndarray, np.ndarray]] = []
        self.wide_threads: dict[int, set[int]] = {}

    def read(self) -> None:
        for name in sorted(self.tables.names, key=_priority):
            kind = name.removeprefix(_PREFIX)
            if kind in MAPPINGS:
                self.convert(name, MAPPINGS[kind])
            elif kind == "MARKER":
                nvprof_markers.convert(self, name)
            elif kind not in ("StringTable", "MARKER_DATA", "NAME"):
                why = WHY.get(kind, "")
                self.out.left(name, self._count(name), why=why)
        self._names()
        self.finish("has no usable record. Check it with nvprof --import-profile.")

    def target(self, pid: int | None = None) -> Target:
        """The process with this id, or the first process for records without a process."""
        if pid is None:
            pid = next(iter(self.targets), 0)
        if pid not in self.targets:
            writer = self.out.process(
                pid,
                pid=pid,
                name=self._process_names.get(pid, ""),
                time_offset_ns=0,
            )
            strings = Strings(writer, self.texts)
            self.targets[pid] = Target(pid, writer, strings, strings)
        return self.targets[pid]

    def add(self, target: Target, table: str, made: np.ndarray) -> None:
        super().add(target, table, made)
        start = TABLES[table].start_field
        if self._clocked or not start or not len(made):
            return
        latest = made[start].max()
        if int(latest) > _EPOCH:
            self._clocked = True
            clocks = rows_of(
                "clocks",
                1,
                boottime=latest,
                monotonic=latest,
                monotonic_raw=latest,
                realtime=latest,
            )
            target.writer.rows("clocks", clocks)

    @cached_property
    def counts_kernels(self) -> bool:
        """Whether the file has counters that were read around kernels."""
        kinds = ("EVENT", "EVENT_INSTANCE", "METRIC", "METRIC_INSTANCE")
        return any(self._count(_PREFIX + kind) for kind in kinds)

    def _count(self, name: str) -> int:
        """The number of rows of a table; 0 if it is unknown or there is no such table."""
        if name not in self.tables.names:
            return 0
        return self.tables.count(name) or 0

    def kernel_starts(self, correlations: np.ndarray) -> np.ndarray:
        """The starts (ns) of the kernels with these correlation ids, 0 for unknown ids."""
        if not self.kernels:
            return np.zeros(len(correlations), np.uint64)
        ids, times = zip(*self.kernels, strict=True)
        known = np.concatenate(ids)
        starts = np.concatenate(times)
        self.kernels = [(known, starts)]
        at = find(known, correlations)
        return np.where(at >= 0, starts[at], 0)

    def batches(self, name: str, columns: Kinds) -> Iterator[BatchOfTarget]:
        owner = ""
        for column in ("cuProcessId", "processId"):
            if column in self.tables.names[name]:
                owner = column
        if owner:
            columns = columns | {owner: "integer"}
        read = 0
        for batch in self.tables.batches(name, columns):
            if owner:
                pids = batch[owner] & 0xFFFFFFFF
            else:
                pids = np.full(batch.rows, next(iter(self.targets), 0))
            for pid, part, at in batch.apart(pids):
                yield self.target(pid), part, at + read
            read += batch.rows
        self.missing(name, read)

    @cached_property
    def _process_names(self) -> dict[int, str]:
        return {pid: name for kind, pid, _, name in self._named if kind == _PROCESS}

    @cached_property
    def _named(self) -> list[tuple[int, int, int, str]]:
        """Names from NVTX: kind of object, the first two numbers of its id, name. The second number of a stream has its
        context in the upper half."""
        columns: Kinds = {
            "objectKind": "integer",
            "objectId": "bytes",
            "name": "integer",
        }
        named = []
        for row in rows(self.tables, f"{_PREFIX}NAME", columns):
            kind = row["objectKind"]
            name = row["name"]
            if isinstance(kind, int) and isinstance(name, int):
                blob = np.array([row["objectId"] or b""], object)
                first, second, third = ids(blob)[0].tolist()
                if kind == _STREAM:
                    second = second << 32 | third
                named.append((kind, first, second, self.texts[name]))
        return named

    def _names(self) -> None:
        for pid, threads in self.wide_threads.items():
            wide = np.array(sorted(threads), np.int64)
            writer = self.target(pid).writer
            names = [writer.string(f"pthread {number:#x}") for number in wide.tolist()]
            narrow = wide & _THREADS
            made = rows_of("threads", len(wide), thread=narrow, name=names, source=1)
            writer.rows("threads", made)
        for kind, first, second, name in self._named:
            self._write_name(kind, first, second, name)
        table = f"{_PREFIX}NAME"
        read = len(self._named)
        self.out.kept(table, read)
        unread = max(self._count(table) - read, 0)
        self.out.lost(table, unread, why="no kind or no name")

    def _write_name(self, kind: int, first: int, second: int, name: str) -> None:
        """Write a row of :attr:`_named`."""
        owner = None
        if kind in (_PROCESS, _THREAD) and first in self.targets:
            owner = first
        writer = self.target(owner).writer
        if kind == _THREAD:
            text = writer.string(name)
            row = rows_of("threads", 1, thread=second, name=text, source=2)
            writer.rows("threads", row)
        if kind not in _RESOURCES:
            return
        context = 0
        if kind == _DEVICE:
            number = first
        else:
            number = second & 0xFFFFFFFF
        if kind == _STREAM:
            context = second >> 32 & 0xFFFF
        row = rows_of(
            "resource_names",
            1,
            name=writer.string(name),
            kind=_RESOURCES[kind],
            object=number,
            context=context,
        )
        writer.rows("resource_names", row)


def _priority(name: str) -> tuple[int, str]:
    """A sort key for the order in which tables are read. Calls come first because they name the processes. Counters
    come after their kernels."""
    mapping = MAPPINGS.get(name.removeprefix(_PREFIX))
    if mapping:
        return mapping.priority, name
    return 1, name
