"""Databases of nvprof (and the Visual Profiler): CUPTI's activity records, a table for each kind.

Only API calls have a process. GPU records belong to the first process that made a call. Thread ids are values of
pthread_self(); a capture keeps 32 bits of them. :mod:`.nvprof_records` maps the tables; :mod:`.nvprof_markers` reads
NVTX, where each range has two rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from ...importers.base import Import, SourceFile, rows_of
from ...importers.row_builder import Strings, find
from ...importers.tables import ColumnBatch, Kind, Tables, rows
from ...importers.tables_sqlite import MAGIC, SqliteTables, tables_of
from ...runbin import TABLES
from . import nvprof_markers
from .nvprof_records import MAPPINGS, REDUNDANT, ROW, WHY, ids
from .reading import Reading, Target

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_THREADS = 0xFFFFFFFF
_EPOCH = 10**18  # times beyond it are of the wall clock


class Nvprof:
    """``nvprof -o FILE``"""

    name = "nvprof"
    description = "nvprof SQLite database"

    def recognizes(self, source: SourceFile) -> bool:
        if source.packed or not source.head.startswith(MAGIC):
            return False
        names = tables_of(source.path)
        return "StringTable" in names or (
            "Version" in names and any(name.startswith(_PREFIX) for name in names)
        )

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
        # Correlation ids and starts of kernels: counters read around a kernel have no time and take its start.
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
                self.out.left(name, self.tables.count(name) or 0, why=WHY.get(kind, ""))
        self._names()
        self.finish("has no usable record. Check it with nvprof --import-profile.")

    def target(self, pid: int | None = None) -> Target:
        """A process; the first one for records without a process."""
        if pid is None:
            pid = next(iter(self.targets), 0)
        if pid not in self.targets:
            writer = self.out.process(
                pid, pid=pid, name=self._process_names.get(pid, ""), time_offset_ns=0
            )
            strings = Strings(writer, self.texts)
            self.targets[pid] = Target(pid, writer, strings, strings)
        return self.targets[pid]

    def add(self, target: Target, table: str, made: np.ndarray) -> None:
        super().add(target, table, made)
        start = TABLES[table].start_field
        if (
            len(made)
            and start
            and not self._clocked
            and int(made[start].max()) > _EPOCH
        ):
            self._clocked = True
            names = ("boottime", "monotonic", "monotonic_raw", "realtime")
            target.writer.rows(
                "clocks",
                rows_of("clocks", 1, **dict.fromkeys(names, made[start].max())),
            )

    @cached_property
    def counts_kernels(self) -> bool:
        """Whether the file has counters that were read around kernels."""
        kinds = ("EVENT", "EVENT_INSTANCE", "METRIC", "METRIC_INSTANCE")
        return any(
            self.tables.count(_PREFIX + kind)
            for kind in kinds
            if _PREFIX + kind in self.tables.names
        )

    def kernel_starts(self, correlations: np.ndarray) -> np.ndarray:
        """The starts (ns) of the kernels with these correlation ids, 0 for unknown ids."""
        if not self.kernels:
            return np.zeros(len(correlations), np.uint64)
        known, starts = (
            np.concatenate(parts) for parts in zip(*self.kernels, strict=True)
        )
        self.kernels = [(known, starts)]
        at = find(known, correlations)
        return np.where(at >= 0, starts[at], 0)

    def batches(
        self, name: str, columns: dict[str, Kind]
    ) -> Iterator[tuple[Target, ColumnBatch, np.ndarray]]:
        owner = next(
            (c for c in ("processId", "cuProcessId") if c in self.tables.names[name]),
            "",
        )
        read = 0
        for batch in self.tables.batches(
            name, columns | ({owner: "integer"} if owner else {})
        ):
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
        return {number: name for kind, number, _, name in self._named if kind == 1}

    @cached_property
    def _named(self) -> list[tuple[int, int, int, str]]:
        """Names of NVTX: kind of object, the first two numbers of its id, name."""
        columns: dict[str, Kind] = {
            "objectKind": "integer",
            "objectId": "bytes",
            "name": "integer",
        }
        named = []
        for row in rows(self.tables, f"{_PREFIX}NAME", columns):
            kind = row["objectKind"]
            name = row["name"]
            if isinstance(kind, int) and isinstance(name, int):
                numbers = ids(np.array([row["objectId"] or b""], object))[0].tolist()
                named.append((kind, *numbers, self.texts[name]))
        return [
            (kind, a, b if kind != 5 else b << 32 | c, name)
            for kind, a, b, c, name in named
        ]

    def _names(self) -> None:
        for pid, threads in self.wide_threads.items():
            wide = np.array(sorted(threads), np.int64)
            writer = self.target(pid).writer
            names = [writer.string(f"pthread {number:#x}") for number in wide.tolist()]
            writer.rows(
                "threads",
                rows_of(
                    "threads", len(wide), thread=wide & _THREADS, name=names, source=1
                ),
            )
        what = f"{_PREFIX}NAME"
        for kind, first, second, name in self._named:
            writer = self.target(
                first if kind in (1, 2) and first in self.targets else None
            ).writer
            text = writer.string(name) if 1 < kind < 6 else 0
            if kind == 2:
                writer.rows(
                    "threads", rows_of("threads", 1, thread=second, name=text, source=2)
                )
            elif 2 < kind < 6:
                object_ = {3: first, 4: second, 5: second & 0xFFFFFFFF}[kind]
                context = second >> 32 & 0xFFFF if kind == 5 else 0
                row = rows_of(
                    "resource_names",
                    1,
                    name=text,
                    kind=6 - kind,
                    object=object_,
                    context=context,
                )
                writer.rows("resource_names", row)
        self.out.kept(what, len(self._named))
        count = self.tables.count(what) or 0 if what in self.tables.names else 0
        self.out.lost(what, max(count - len(self._named), 0), why="no kind or no name")


def _priority(name: str) -> tuple[int, str]:
    """The reading order: calls first because they name the processes, counters after their kernels."""
    mapping = MAPPINGS.get(name.removeprefix(_PREFIX))
    return mapping.priority if mapping else 1, name
