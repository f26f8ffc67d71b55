"""Exports of Nsight Systems: SQLite databases, and folders or files of Arrow and Parquet tables.

All have the same tables of the same columns. Columns are found by name, since they differ between versions; a table
that nobody here knows is left out by name. :mod:`.nsys_events` says what becomes of which table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np

from ..errors import BadCapture
from ..nsys import THREAD_BITS, THREADS
from ..runbin import Writer
from . import nsys_events, nsys_nvtx, nsys_target
from .base import Import, Source, object_of
from .reading import Mapping, Reading, Target
from .row_builder import Strings, Texts
from .tables import Batch, Kind, rows
from .tables_arrow import FILE, STREAM, SUFFIXES, ArrowTables
from .tables_sqlite import MAGIC, SqliteTables, tables_of

# One of these is in every export, and in no other database.
_SIGNS = frozenset({"META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SESSION_START_TIME", "ENUM_NSYS_EVENT_CLASS"})
_EVENTS = frozenset({"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API"})

# Times before this (ns before the begin of the session, 73 years) are no times.
_FLOOR = -(2**61)
# Columns with the begin and the end of rows of a table that is left out.
_SPANS = (("start", "end"), ("startedAt", "endedAt"))


class NsysSqlite:
    """``nsys export --type sqlite``"""

    name = "nsys-sqlite"
    description = "Nsight Systems SQLite export"

    def recognizes(self, source: Source) -> bool:
        return source.head.startswith(MAGIC) and not source.packed and is_export(tables_of(source.path))

    def read(self, source: Source, out: Import) -> None:
        with SqliteTables(source.path) as tables:
            _beside(source.path, out)
            NsysReading(tables, out, source.path).read()


class NsysArrow:
    """``nsys export --type arrow``, ``arrowdir`` and ``parquetdir``"""

    name = "nsys-arrow"
    description = "Nsight Systems Arrow or Parquet export"

    def recognizes(self, source: Source) -> bool:
        if source.path.is_dir():
            return is_export({file.stem for file in source.path.iterdir() if file.suffix in SUFFIXES})
        # The tables of one Arrow file are in its schemas, which have their names as text.
        return source.head.startswith((STREAM, FILE)) and b"table_name" in source.head

    def read(self, source: Source, out: Import) -> None:
        with ArrowTables(source.path) as tables:
            NsysReading(tables, out, source.path).read()


SQLITE, ARROW = NsysSqlite(), NsysArrow()


def is_export(names: set[str]) -> bool:
    """Whether a file with these tables is an export of nsys."""
    return bool(names & _SIGNS) or ("StringIds" in names and bool(names & _EVENTS))


class NsysReading(Reading):
    """One export on its way into a capture."""

    redundant = nsys_events.REDUNDANT

    def read(self) -> None:
        """Convert all tables. Raises :class:`BadCapture` when no event could be used."""
        names = list(self.tables.names)
        # What names things comes first. Tables of the whole machine come last, when it is known whose it was.
        nsys_target.describe(self)
        for key in self.processes if self.is_own else ():
            self.target(key)
        for name in sorted(names, key=lambda name: (nsys_events.priority(name), name)):
            if name == "NVTX_EVENTS":
                nsys_nvtx.convert_events(self)
            elif mapping := nsys_events.mapping(name, self.tables.names[name]):
                self._convert(name, mapping)
            else:
                self._leave(name)
        nsys_target.finish(self)
        for name, damage in self.tables.damage.items():
            self.out.damaged(name, damage)
        if not self.rows_kept and not self.is_own:
            raise BadCapture(f"{self.path} has no event that can be used. Export it again, with all tables.")

    def batches(self, name: str, columns: dict[str, Kind], owner: str) -> Iterator[tuple[Target, Batch, np.ndarray]]:
        """The rows of a table, those of each process apart, and where in the table they are. ``owner`` is the column
        with the id of their process or thread. Rows that damage hides are counted as lost."""
        read = 0
        for batch in self.tables.batches(name, columns | {owner: "integer"}):
            if not batch.rows:
                continue
            ids = np.where(batch.known(owner), batch[owner] >> THREAD_BITS << THREAD_BITS, self._default)
            places = np.arange(read, read + batch.rows)
            read += batch.rows
            # One process is the rule.
            keys = ids[:1].tolist() if (ids == ids[0]).all() else np.unique(ids).tolist()
            for key in keys:
                chosen = ids == key
                whole = len(keys) == 1
                yield self.target(key), batch if whole else batch.select(chosen), places if whole else places[chosen]
        self.missing(name, read)

    def target(self, key: int) -> Target:
        """The process that a serialized id stands for."""
        if key not in self.targets:
            writer = self._begun(key)
            texts, functions = Strings(writer, self.texts), Strings(writer, self.function_names)
            self.targets[key] = Target(key, writer, texts, functions)
            nsys_target.clock(self, writer)
        return self.targets[key]

    def _begun(self, key: int) -> Writer:
        pid, path, description = self.processes.get(key, (key >> THREAD_BITS & THREADS, "", ""))
        if self.is_own:
            return self.out.restored(key, object_of(description), pid)
        info = nsys_target.info(self) | ({"executable": path} if path else {})
        return self.out.process(key, pid=pid, name=PurePath(path).name, time_offset_ns=self.offset, **info)

    @cached_property
    def function_names(self) -> Texts:
        """The same texts as names of functions: without the version that nsys has behind them."""
        if self.is_own:
            return self.texts
        return Texts({number: nsys_events.without_version(text) for number, text in self.texts.items()})

    def thread_numbers(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of the threads that serialized ids stand for."""
        keys, threads = self._renumbered
        if not len(keys):
            return ids & THREADS
        at = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
        return np.where(keys[at] == ids, threads[at], ids & THREADS)

    @cached_property
    def _renumbered(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of threads that did not fit into serialized ids, by these ids, as cutrace writes them."""
        columns: dict[str, Kind] = {"globalTid": "integer", "thread": "integer"}
        found = {}
        for row in rows(self.tables, "THREAD_NUMBERS", columns) if self.is_own else ():
            match row:
                case {"globalTid": int(key), "thread": int(thread)} if 0 <= thread < 2**32:
                    found[key] = thread
        keys, threads = np.array(sorted(found.items()), np.int64).reshape(-1, 2).T
        return keys, threads

    @cached_property
    def processes(self) -> dict[int, tuple[int, str, str]]:
        """Process id, name and cutrace's description by the serialized id of the process."""
        found: dict[int, tuple[int, str, str]] = {}
        columns: dict[str, Kind] = {"globalPid": "integer", "pid": "integer", "name": "text", "description": "text"}
        for row in rows(self.tables, "PROCESSES", columns):
            match row:
                case {"globalPid": int(key), "pid": pid, "name": name, "description": description}:
                    number = pid if isinstance(pid, int) else key >> THREAD_BITS & THREADS
                    key = key >> THREAD_BITS << THREAD_BITS
                    found[key] = number & 0xFFFFFFFF, str(name or ""), str(description or "")
        return found

    @cached_property
    def about(self) -> dict[str, str]:
        """What the file says of its export."""
        return {
            name: value
            for table in ("META_DATA_EXPORT", "EXPORT_META_DATA")
            for name, value in nsys_target.named(self.tables, table).items()
        }

    @cached_property
    def is_own(self) -> bool:
        """Whether cutrace wrote the file."""
        return self.about.get("EXPORT_PRODUCT_NAME") == "cutrace"

    @cached_property
    def offset(self) -> int:
        """What is added to all times (ns) so that they are positive: nsys counts from the begin of its session, and
        some events were before it. Whole seconds, so that times still look alike."""
        if self.is_own:
            return 0
        least = 1
        for name, columns in self.tables.names.items():
            time = nsys_events.time_column(name, columns)
            first = self.tables.least(name, time, _FLOOR) if time else None
            least = least if first is None else min(least, first)
        return -(-(1 - least) // 10**9) * 10**9

    @property
    def _default(self) -> int:
        """The process of rows that do not say which: the first with events."""
        return next(iter(self.targets), next(iter(self.processes), 0))

    def _convert(self, name: str, mapping: Mapping) -> None:
        owner = "globalTid" if "globalTid" in self.tables.names[name] else "globalPid"
        for target, batch, _ in self.batches(name, mapping.columns, owner):
            for part, chosen in mapping.parts(batch):
                self.write(name, target, part.rows(self, target, chosen))
        self.leave_columns(name, {*mapping.columns, owner})

    def _leave(self, name: str) -> None:
        """Count a table that has no place in a capture, with the time that its rows took."""
        if name in nsys_target.READ:
            return  # accounted for where it is read
        what, why = nsys_events.leftover(name)
        columns = self.tables.names[name]
        start, end = next((pair for pair in _SPANS if set(pair) <= set(columns)), ("", ""))
        count, duration = self.tables.count(name) or 0 if not start else 0, 0
        for batch in self.tables.batches(name, {start: "integer", end: "integer"}) if start else ():
            starts, ends = batch[start], batch[end]
            known = batch.known(start) & batch.known(end) & (ends >= starts) & (starts > _FLOOR) & (ends < -_FLOOR)
            duration += sum((ends - starts)[known].tolist())
            count += batch.rows
        self.out.seen(what, count, duration)
        self.out.left(what, count, duration, why)
        if start:
            self.missing(name, count)


def _beside(path: Path, out: Import) -> None:
    """Say when the newest changes of a database are in another file, which is not read."""
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and beside.stat().st_size:
            out.note(
                f"{beside.name} holds changes that are not in {path.name} yet: close what writes it, and try again."
            )
