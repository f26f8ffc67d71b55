"""Exports of Nsight Systems: SQLite databases, and folders or files of Arrow and Parquet tables.

All formats have the same tables. Columns are looked up by name, because they differ between versions. Unknown tables
are not imported; the account names them. :mod:`.nsys_events` maps the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import cast

import numpy as np

from ...importers.base import WITHOUT_CAPTURE, Import, SourceFile
from ...importers.row_builder import Strings, Texts
from ...importers.tables import rows
from ...importers.tables_arrow import FILE, STREAM, SUFFIXES, ArrowTables
from ...importers.tables_sqlite import MAGIC, SqliteTables, tables_of
from ...runbin import LOSS_REASONS, Writer
from . import nsys_events, nsys_nvtx, nsys_target
from .reading import BatchOfTarget, Kinds, Reading, Target, value_or
from .schema import THREAD_BITS, THREADS

# Every export has one of these tables, and other databases have none of them.
_SIGNS = frozenset(
    {
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "TARGET_INFO_SESSION_START_TIME",
        "ENUM_NSYS_EVENT_CLASS",
    }
)
_EVENTS = frozenset(
    {
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "NVTX_EVENTS",
        "OSRT_API",
    }
)

#: The table of cutrace with the losses of the exported capture.
_LOSSES = "losses"
# The earliest valid time (ns): 73 years before the start of the session.
_FLOOR = -(2**61)


class NsysSqlite:
    """``nsys export --type sqlite``"""

    name = "nsys-sqlite"
    description = "Nsight Systems SQLite export"

    def recognizes(self, source: SourceFile) -> bool:
        return (
            source.head.startswith(MAGIC)
            and not source.packed
            and is_export(tables_of(source.path))
        )

    def read(self, source: SourceFile, out: Import) -> None:
        with SqliteTables(source.path) as tables:
            _beside(source.path, out)
            NsysReading(tables, out, source.path).read()


class NsysArrow:
    """``nsys export --type arrow``, ``arrowdir`` and ``parquetdir``"""

    name = "nsys-arrow"
    description = "Nsight Systems Arrow or Parquet export"

    def recognizes(self, source: SourceFile) -> bool:
        if source.path.is_dir():
            return is_export(
                {file.stem for file in source.path.iterdir() if file.suffix in SUFFIXES}
            )
        # In an Arrow file with many tables, each schema contains the name of its table as a string.
        return source.head.startswith((STREAM, FILE)) and b"table_name" in source.head

    def read(self, source: SourceFile, out: Import) -> None:
        with ArrowTables(source.path) as tables:
            NsysReading(tables, out, source.path).read()


SQLITE = NsysSqlite()
ARROW = NsysArrow()


def is_export(names: set[str]) -> bool:
    """Whether a file with these tables is an export of nsys."""
    return bool(names & _SIGNS) or ("StringIds" in names and bool(names & _EVENTS))


class NsysReading(Reading):
    """The import of one export."""

    redundant = nsys_events.REDUNDANT

    def read(self) -> None:
        names = list(self.tables.names)
        if self._of_cutrace:
            self.out.note(WITHOUT_CAPTURE)
            self._carry_losses()
        # Tables with names come first. Tables of the whole machine come last, because their rows go to the processes
        # with events.
        nsys_target.describe(self)
        for name in sorted(names, key=lambda name: (nsys_events.priority(name), name)):
            if name == "NVTX_EVENTS":
                nsys_nvtx.convert_events(self)
            elif mapping := nsys_events.mapping(name, self.tables.names[name]):
                self.convert(name, mapping)
            else:
                self._leave(name)
        nsys_target.finish(self)
        self.finish("has no usable event. Export it again, with all tables.")

    def batches(self, name: str, columns: Kinds) -> Iterator[BatchOfTarget]:
        owner = "globalPid"
        if "globalTid" in self.tables.names[name]:
            owner = "globalTid"
        read = 0
        for batch in self.tables.batches(name, columns | {owner: "integer"}):
            keys = value_or(batch, owner, self._default)
            keys = keys >> THREAD_BITS << THREAD_BITS
            for key, part, at in batch.apart(keys):
                yield self.target(key), part, at + read
            read += batch.rows
        self.missing(name, read)

    def target(self, key: int) -> Target:
        if key not in self.targets:
            writer = self._begun(key)
            texts = Strings(writer, self.texts)
            functions = Strings(writer, self.function_names)
            self.targets[key] = Target(key, writer, texts, functions)
            nsys_target.clock(self, writer)
        return self.targets[key]

    def _begun(self, key: int) -> Writer:
        pid = key >> THREAD_BITS & THREADS
        path = ""
        if key in self.processes:
            pid, path = self.processes[key]
        info = nsys_target.info(self)
        if path:
            info["executable"] = path
        return self.out.process(
            key,
            pid=pid,
            name=PurePath(path).name,
            time_offset_ns=self.offset,
            **info,
        )

    @cached_property
    def function_names(self) -> Texts:
        """The strings as function names, without the version suffix of nsys."""
        names = Texts()
        for number, text in self.texts.items():
            names[number] = nsys_events.without_version(text)
        return names

    def thread_numbers(self, ids: np.ndarray) -> np.ndarray:
        return ids & THREADS

    @cached_property
    def processes(self) -> dict[int, tuple[int, str]]:
        """The process id and name of each process, by its serialized id."""
        processes: dict[int, tuple[int, str]] = {}
        columns: Kinds = {
            "globalPid": "integer",
            "pid": "integer",
            "name": "text",
        }
        for row in rows(self.tables, "PROCESSES", columns):
            key = row["globalPid"]
            if not isinstance(key, int):
                continue
            pid = row["pid"]
            if not isinstance(pid, int):
                pid = key >> THREAD_BITS & THREADS
            key = key >> THREAD_BITS << THREAD_BITS
            processes[key] = pid & 0xFFFFFFFF, str(row["name"] or "")
        return processes

    @cached_property
    def metadata(self) -> dict[str, str]:
        older = nsys_target.named(self.tables, "META_DATA_EXPORT")
        return older | nsys_target.named(self.tables, "EXPORT_META_DATA")

    @cached_property
    def offset(self) -> int:
        """The offset (ns) that is added to all times to make them positive. nsys counts from the start of its session,
        and some events are earlier. The offset is a whole number of seconds, so that times stay recognizable."""
        least = 1
        for name, columns in self.tables.names.items():
            column = nsys_events.time_column(name, columns)
            if column:
                first = self.tables.least(name, column, _FLOOR)
                if first is not None:
                    least = min(least, first)
        return -(-(1 - least) // 10**9) * 10**9

    @property
    def _default(self) -> int:
        """The process of rows without an owner: the first process with events."""
        return next(iter(self.targets), next(iter(self.processes), 0))

    @property
    def _of_cutrace(self) -> bool:
        return self.metadata.get("EXPORT_PRODUCT_NAME") == "cutrace"

    def _carry_losses(self) -> None:
        """Take over the losses of the capture that cutrace exported."""
        columns: Kinds = {"reason": "integer", "count": "integer", "detail": "text"}
        for row in rows(self.tables, _LOSSES, columns):
            reason = row["reason"]
            name, _ = LOSS_REASONS.get(cast(int, reason), (f"reason {reason}", ""))
            count = row["count"]
            if isinstance(count, int) and count > 0:
                self.out.carried_loss(name, count, str(row["detail"] or ""))

    def _leave(self, name: str) -> None:
        """Count the rows and durations of a table that is not imported."""
        if name in nsys_target.READ or (name == _LOSSES and self._of_cutrace):
            return  # the code that reads the table accounts for it
        what, why = nsys_events.leftover(name)
        span = _span_columns(self.tables.names[name])
        if not span:
            self.out.left(what, self.tables.count(name) or 0, 0, why)
            return
        start, end = span
        count = 0
        duration = 0
        for batch in self.tables.batches(name, {start: "integer", end: "integer"}):
            starts = batch[start]
            ends = batch[end]
            known = batch.known(start) & batch.known(end) & (ends >= starts)
            known &= (starts > _FLOOR) & (ends < -_FLOOR)
            duration += sum((ends - starts)[known].tolist())
            count += batch.rows
        self.out.left(what, count, duration, why)
        self.missing(name, count)


def _span_columns(columns: Sequence[str]) -> tuple[str, str] | None:
    """The columns with the starts and the ends of the rows of a table that is not imported."""
    for start, end in (("start", "end"), ("startedAt", "endedAt")):
        if start in columns and end in columns:
            return start, end
    return None


def _beside(path: Path, out: Import) -> None:
    """Note when the newest changes of a database are in another file, because that file is not read."""
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and beside.stat().st_size:
            out.note(
                f"{beside.name} holds changes that are not in {path.name} yet: close the program that writes it, and "
                "try again."
            )
