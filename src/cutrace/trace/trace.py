"""A capture as NumPy tables.

Reading a table takes three steps. Ids of processes become ids of the trace (:mod:`.ids`). Times of other machines move
to the clock of the first machine (:mod:`.alignment`). Rows without known times are set apart. Where no step changes
anything, a table is a view of the file's bytes.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._native import Keys, exceeds
from ..errors import CutraceError, did_you_mean
from ..runbin.blocks import BlockInfo, Damage
from ..runbin.layout import (
    LOSS_REASONS,
    REFERRED,
    STRINGS_BLOCK,
    TABLES,
    TableLayout,
)
from ..runbin.reader import MOST_REPEATED, Reader
from ..runbin.writer import as_words
from ..units import Time, count_of, html_table, parse_moment, printable
from . import arrow, capture_ranges, stacks
from .alignment import Alignment, alignments
from .codes import KernelCodes
from .ids import IdMap
from .imported import Imported, imported
from .nccl import NcclCalls
from .origins import Origins
from .process import Process, clock_of, describe
from .quality import EarlyStart, Loss, Quality, early_starts, unfinished
from .rows import (
    LATEST,
    OPEN_TABLES,
    TIMES,
    apart,
    by_value,
    changed,
    chosen,
    copied,
    joined,
    never_ended,
    unknown_times,
)
from .stacks import PythonStacks
from .strings import StringTable
from .tables import TraceTables

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class _Interned(NamedTuple):
    """An interned table: its rows by id of the trace, and the id map of each process."""

    rows: np.ndarray
    maps: list[IdMap]


#: The kind of streams in ``resource_names``.
_STREAM = 1


class Trace(TraceTables):
    """A capture, opened by :func:`cutrace.load`.

    Every table is an attribute: ``trace.kernels`` is a structured NumPy array of one dimension with a row for each
    kernel, and ``trace.kernels["start"]`` is a column. Times are nanoseconds of BOOTTIME (uint64), and sizes are bytes.
    ``process`` is an index of :attr:`processes`. Columns such as ``name`` hold ids of :attr:`strings`.
    ``trace.launches[kernels["launch"]]`` and ``trace.functions[api_calls["function"]]`` resolve other references;
    ``frames`` and ``stacks`` are used in the same way. Row 0 of these tables means "unknown".

    Rows are in the order of the file, not of time. Tables are read on first use and kept. Read a table that does not
    fit in memory with :meth:`blocks`. Reading a closed trace raises :class:`cutrace.CutraceError`.
    """

    def __init__(
        self,
        reader: Reader,
        files: ExitStack | None = None,
        sources: Sequence[Path] = (),
    ) -> None:
        """``files`` holds the temporary files of the trace; :meth:`close` removes them. ``sources`` are the files that
        the user opened, if they differ from the file of the reader."""
        self._reader = reader
        self._sources = tuple(sources) or (reader.path,)
        self._release = weakref.finalize(self, files.close) if files else None
        self._tables: dict[str, np.ndarray] = {}
        self._unknown: dict[str, np.ndarray] = {}
        self._interned: dict[str, _Interned] = {}
        # The number of rows with unknown times in each block; negative if the block is not counted yet.
        self._set_apart = np.full(len(reader.offsets), -1, np.int64)

    @property
    def path(self) -> Path:
        """The file of the capture. It is temporary where files were imported, joined or cut."""
        return self._reader.path

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that the trace was opened from. A part of a trace has the files of the whole."""
        return self._sources

    # Whole tables

    def table(self, name: str) -> np.ndarray:
        """All rows of a table with known times, as a structured array of one dimension. ``name`` is a key of
        ``cutrace.runbin.TABLES``. Raises :class:`cutrace.CutraceError` when there is no such table."""
        self._check(name)
        if name in REFERRED.values():
            return self._referred(name).rows
        if name not in self._tables:
            self._read(name)
        return self._tables[name]

    def unknown(self, name: str) -> np.ndarray:
        """The rows of a table without known times, as an array of the same type as from :meth:`table`. Their start is
        0, their end is 2^63 or later, or they end before they start."""
        self._check(name)
        if name not in self._unknown:
            indices = self._indices(name)
            indices = indices[self._set_apart[indices] != 0]
            parts = [self._split(index)[1] for index in indices.tolist()]
            self._unknown[name] = joined(TABLES[name].dtype, parts)
        return self._unknown[name]

    def count(self, name: str) -> int:
        """The number of rows of a table, unknown times included. Reads no rows."""
        self._check(name)
        rows = self._reader.headers["rows"][self._indices(name)]
        return int(rows.sum(dtype=np.int64))

    # Tables for other packages

    def arrow(self, name: str) -> pyarrow.Table:
        """All rows of a table with known times as a ``pyarrow.Table``.

        Strings replace ids, as dictionary columns; id 0 is null. The columns of ``launches`` and ``functions`` replace
        the references of ``kernels`` and ``api_calls``; the columns of the innermost frame follow the id of a stack.
        Names of kernels are demangled. Times (ns) and sizes are int64. Tables with a ``start`` and an ``end`` have a
        ``duration``. Raises :class:`cutrace.CutraceError` when there is no such table, or pyarrow is not installed.
        """
        self._check(name)
        return arrow.table(self, name)

    def payloads(self, name: str = "nvtx_ranges") -> pyarrow.Table:
        """The rows of ``nvtx_ranges`` or ``nvtx_marks`` with extended payloads as a ``pyarrow.Table``: the columns of
        the table, and one for each field of the payloads instead of ``arguments``.

        Fields of nested structs have names such as ``outer.inner``. A field has a number behind its name if there is
        another column of this name, in any case. Lists and fields of mixed types are JSON strings. Raises
        :class:`cutrace.CutraceError` for another table, or when pyarrow is not installed.
        """
        self._check(name)
        return arrow.payloads(self, name)

    def df(self, name: str) -> pandas.DataFrame:
        """The table of :meth:`arrow` as a ``pandas.DataFrame``, with strings as categories. Raises
        :class:`cutrace.CutraceError` when pandas is not installed."""
        return arrow.pandas(self.arrow(name))

    def pl(self, name: str) -> polars.DataFrame:
        """The table of :meth:`arrow` as a ``polars.DataFrame``. Raises :class:`cutrace.CutraceError` when polars is not
        installed."""
        return arrow.polars(self.arrow(name))

    # Tables in pieces

    def blocks(
        self, name: str, start: Time | None = None, end: Time | None = None
    ) -> Iterator[np.ndarray]:
        """The rows of a table with known times, for captures that do not fit in memory: one array, as of :meth:`table`,
        for each block of the file (about 1 MiB). With ``start`` or ``end``, as in :func:`cutrace.convert`, blocks
        entirely outside are skipped; other blocks are whole.
        """
        first = self.moment(start)
        after = self.moment(end)
        for index in self._within(name, first, after).tolist():
            yield self._split(index)[0]

    def block_infos(
        self, name: str, start: int | None = None, end: int | None = None
    ) -> list[BlockInfo]:
        """The headers of the blocks that :meth:`blocks` reads, in the same order. ``start``, ``end`` and the times of
        the headers are ns of the trace."""
        indices = self._within(name, start, end)
        infos = [self._reader.block(i) for i in indices.tolist()]
        if not self._moves:
            return infos
        first, last = self._block_times
        firsts = first[indices].clip(0).tolist()
        lasts = last[indices].clip(0).tolist()
        moved = []
        for info, first_time, last_time in zip(infos, firsts, lasts, strict=True):
            moved.append(replace(info, first_time=first_time, last_time=last_time))
        return moved

    def infos_by_process(
        self, names: Iterable[str]
    ) -> list[dict[str, list[BlockInfo]]]:
        """The result of :meth:`block_infos` for these tables, by process and table."""
        infos: list[dict[str, list[BlockInfo]]] = [{} for _ in self.processes]
        for name in names:
            for info in self.block_infos(name):
                infos[info.process].setdefault(name, []).append(info)
        return infos

    def block(self, info: BlockInfo) -> tuple[np.ndarray, np.ndarray]:
        """The rows of one block of :meth:`block_infos`: the rows with known times, and the other rows."""
        return self._split(info.index)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damage found so far in the file. Damage inside a block is found when the block is read."""
        return self._reader.damage

    # Data that the tables refer to

    @property
    def recordings(self) -> list[tuple[int, int]]:
        """The instance and the pid of each process. Copies of a capture share both; slices of a capture do not."""
        return self._reader.recordings

    @cached_property
    def processes(self) -> tuple[Process, ...]:
        """The processes of the capture, in the order of the file."""
        processes = []
        recordings = self._reader.recordings
        for index, info in enumerate(self._reader.processes):
            _, pid = recordings[index]
            alignment = self._alignments[index]
            processes.append(describe(index, pid, info, alignment, self.clock))
        return tuple(processes)

    @cached_property
    def imports(self) -> tuple[Imported, ...]:
        """The imported files of the trace, with the accounts of their events; empty for a capture."""
        files = []
        for index, info in enumerate(self._reader.processes):
            file = imported(index, info)
            if file:
                files.append(file)
        return tuple(files)

    @cached_property
    def strings(self) -> StringTable:
        """All strings of the capture by id."""
        return self._strings[0]

    @cached_property
    def category_names(self) -> dict[tuple[int, int, int], int]:
        """The last name (an id of :attr:`strings`) of each NVTX category, by process, domain and category."""
        rows = self.nvtx_categories[["process", "domain", "category", "name"]]
        names = {}
        for *category, name in rows.tolist():
            names[tuple(category)] = name
        return names

    @cached_property
    def device_rows(self) -> dict[tuple[int, int], np.void]:
        """The rows of :attr:`devices`, by process and ordinal."""
        rows = {}
        for row in self.devices:
            device = (int(row["process"]), int(row["device"]))
            rows[device] = row
        return rows

    @cached_property
    def thread_names(self) -> dict[tuple[int, int], str]:
        """The last name of each named thread, by process and thread. Names from NVTX replace those of the operating
        system."""
        by_source = np.argsort(self.threads["source"], kind="stable")
        rows = self.threads[by_source]
        names = {}
        for process, thread, name in rows[["process", "thread", "name"]].tolist():
            names[process, thread] = self.strings[name]
        return names

    @cached_property
    def stream_names(self) -> dict[tuple[int, int, int], str]:
        """The last name of each named stream, by process, context and stream."""
        rows = self.resource_names
        rows = rows[rows["kind"] == _STREAM]
        names = {}
        for *stream, name in rows[["process", "context", "object", "name"]].tolist():
            names[tuple(stream)] = self.strings[name]
        return names

    @cached_property
    def origins(self) -> Origins | None:
        """Where the graph nodes of the trace were created; None if no creation was recorded."""
        # A damaged block has a count and no rows.
        if self.count("graph_nodes") and len(self.graph_nodes):
            return Origins(self)
        return None

    @cached_property
    def nccl(self) -> NcclCalls:
        """The known facts about the calls of NCCL among the NVTX ranges: communicator, rank, bytes, root, reduction."""
        return NcclCalls(self)

    @cached_property
    def python_stacks(self) -> PythonStacks | None:
        """The Python stacks of the API calls of the trace; None if there are none."""
        if self.count("call_stacks") and len(self.stacks) > 1:
            return PythonStacks(self)
        return None

    @cached_property
    def codes(self) -> KernelCodes | None:
        """The machine code of the kernels of the trace; None if the recording lacks the option for it."""
        asked = any(process.records_code for process in self.processes)
        if asked or (self.count("kernel_codes") and len(self.kernel_codes)):
            return KernelCodes(self)
        return None

    # The capture as a whole

    @property
    def start(self) -> int:
        """The first time (ns) of all records; 0 in a capture without records."""
        return self._span[0]

    @property
    def end(self) -> int:
        """The last time (ns) of all records; 0 in a capture without records."""
        return self._span[1]

    def moment(self, time: Time | None) -> int | None:
        """The time (ns) of a moment, given as for :func:`cutrace.convert`, on the clock of the tables; None for
        None."""
        if time is None:
            return None
        return parse_moment(time, self.start)

    @property
    def quality(self) -> Quality:
        """The missing and the uncertain data. Reads each block that was not read before."""
        unknown = {}
        for name, table in TABLES.items():
            rows = 0
            if table.start_field:
                rows = self._count_unknown(name)
            if rows:
                unknown[name] = rows
        lasting = {}
        for name in OPEN_TABLES:
            if unknown.get(name):
                still_open = never_ended(name, self.unknown(name))
                lasting[name] = int(still_open.sum())
        self._reader.read_rest()
        return replace(self.told_losses, unknown=unknown, never_ended=lasting)

    @property
    def told_losses(self) -> Quality:
        """The :attr:`quality` without its counts of rows with unknown times. Reads no block."""
        incomplete = [p.index for p in self.processes if not p.complete]
        return Quality(
            unknown={},
            losses=self.named_losses,
            damage=self._reader.damage,
            incomplete=tuple(incomplete),
            notes=self.notes,
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The sentences of the collector about its processes, and the sentences on capture ranges, each once."""
        notes: list[str] = []
        for process in self.processes:
            notes += process.info.get("notes", ())
        notes += capture_ranges.sentences(self.processes, self.end)
        return tuple(dict.fromkeys(notes))

    def unrecorded(self, process: int | None = None) -> list[tuple[int, int]]:
        """The times (start and end, ns) between windows of a capture range, when ``process`` was not recorded. Without
        ``process``: the times when no process was recorded."""
        if process is None:
            chosen = self.processes
        else:
            chosen = self.processes[process : process + 1]
        return capture_ranges.unrecorded(chosen)

    @cached_property
    def named_losses(self) -> tuple[Loss, ...]:
        """The losses that the collector counted, one for each reason, detail and process, and a loss for each process
        whose capture was not closed. Reads only the table ``losses``."""
        return (*self._named(self.losses), *unfinished(self.processes))

    @cached_property
    def early_starts(self) -> dict[str, EarlyStart]:
        """The GPU work that seems to start before its launch, by table."""
        return early_starts(self)

    @property
    def size(self) -> int:
        """The size of the file, in bytes."""
        return self._reader.size

    def contents(self, size: int) -> Iterator[bytes]:
        """The bytes of the file, at most ``size`` at a time. Raises :class:`cutrace.BadCapture` when the file got
        shorter."""
        return self._reader.contents(size)

    def close(self) -> None:
        """Close the file, and remove it if it is temporary. Tables already read stay valid."""
        self._reader.close()
        if self._release:
            self._release()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """The file and the row counts of its main tables."""
        return f"<Trace of {self._about()}>"

    def _repr_html_(self) -> str:
        """The row counts of all tables, for notebooks."""
        counts = []
        for name in TABLES:
            rows = self.count(name)
            if rows:
                counts.append((name, f"{rows:,}"))
        return html_table(f"Trace of {self._about()}", ("table", "rows"), counts)

    def _about(self) -> str:
        nouns = {
            "kernels": "kernel",
            "memcpys": "copy",
            "api_calls": "API call",
            "nvtx_ranges": "NVTX range",
        }
        parts = [count_of(len(self._reader.processes), "process")]
        for table, noun in nouns.items():
            rows = self.count(table)
            if rows:
                parts.append(count_of(rows, noun))
        sources = ", ".join(map(str, self._sources))
        return printable(f"{sources}: {', '.join(parts)}")

    # How it is made

    def _check(self, name: str) -> None:
        if not isinstance(name, str) or name not in TABLES:
            every = f"the tables are {', '.join(TABLES)}"
            hint = did_you_mean(str(name), TABLES, every)
            raise CutraceError(f"there is no table {name!r}: {hint}")

    def _indices(self, name: str) -> np.ndarray:
        return self._reader.indices(TABLES[name].number)

    def _within(self, name: str, start: int | None, end: int | None) -> np.ndarray:
        self._check(name)
        indices = self._indices(name)
        if start is None and end is None:
            return indices
        if not len(indices) or TABLES[name].start_field is None:
            return indices
        first, last = self._block_times
        inside = np.ones(len(indices), bool)
        if start is not None:
            inside &= last[indices] >= start
        if end is not None:
            inside &= first[indices] < end
        return indices[inside]

    def _read(self, name: str) -> None:
        """Read a whole table. The rows with unknown times are a separate array."""
        table = TABLES[name]
        indices = self._indices(name)
        if not len(indices):
            self._tables[name] = table.no_rows
            self._unknown[name] = table.no_rows
            return
        rows, sizes = self._gather(table, indices)
        unknown = unknown_times(table, rows)
        self._tables[name], self._unknown[name] = apart(rows, unknown)
        self._set_apart[indices] = 0
        if unknown is not None:
            before = np.append(0, np.cumsum(unknown))
            ends = np.cumsum(sizes)
            starts = ends - sizes
            self._set_apart[indices] = before[ends] - before[starts]

    def _gather(
        self, table: TableLayout, indices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of many blocks, with the ids and the clock of the trace, and the row count of each block. A capture
        may have only a few rows in each block, so the work for each block is small."""
        parts = [self._reader.read(index) for index in indices.tolist()]
        sizes = np.array([len(part) for part in parts], np.int64)
        rows = joined(table.dtype, parts)
        if len(self._reader.processes) == 1:
            return self._resolve(table, rows, 0), sizes
        owners = self._reader.process_of[indices]
        processes = np.flatnonzero(np.bincount(owners)).tolist()
        if len(processes) == 1:
            return self._resolve(table, rows, processes[0]), sizes
        if not rows.flags.writeable:
            rows = copied(rows)
        rows_by_process = by_value(np.repeat(owners, sizes), processes)
        for process, at in zip(processes, rows_by_process, strict=True):
            of_process = chosen(rows, at)
            rows[at] = self._resolve(table, of_process, process)
        return rows, sizes

    def _named(self, rows: np.ndarray) -> Iterator[Loss]:
        keys = rows[["reason", "detail", "process"]]
        keys, inverse = np.unique(keys, return_inverse=True)
        counts = np.zeros(len(keys), np.uint64)
        np.add.at(counts, inverse, rows["count"])
        for number, (reason, detail, process) in enumerate(keys.tolist()):
            name = f"reason {reason}"
            meaning = "record lost for a reason unknown here"
            if reason in LOSS_REASONS:
                name, meaning = LOSS_REASONS[reason]
            lost = int(counts[number])
            yield Loss(name, meaning, lost, self.strings[detail], process)

    def _split(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a block with known times, and the other rows."""
        table = self._reader.table(index)
        process = int(self._reader.process_of[index])
        rows = self._resolve(table, self._reader.read(index), process)
        parts = apart(rows, unknown_times(table, rows))
        self._set_apart[index] = len(parts[1])
        return parts

    def _count_unknown(self, name: str) -> int:
        indices = self._indices(name)
        for index in indices[self._set_apart[indices] < 0].tolist():
            self._split(index)
        return int(self._set_apart[indices].sum())

    def _resolve(
        self, table: TableLayout, rows: np.ndarray, process: int
    ) -> np.ndarray:
        """Rows of a process with the ids and the clock of the trace; a copy only where something changes."""
        changes: dict[str, np.ndarray | int] = {}
        # The format has process 0 on disk, but a damaged or foreign file may have another number.
        if "process" in table.offsets and (process or exceeds(rows["process"], 0)):
            changes["process"] = process
        # References to rows of the same table are resolved when the whole table is known.
        for f in table.references:
            ids = rows[f.name]
            resolver = self._map(f.type, process)
            if not resolver.keeps(ids):
                changes[f.name] = resolver.apply(ids)
        alignment = self._alignments[process]
        if alignment.moves:
            for name in TIMES:
                if name in table.offsets:
                    changes[name] = alignment.moved(rows[name])
        return changed(rows, changes)

    def _map(self, kind: str, process: int) -> IdMap:
        if kind == "string":
            return self._strings[1][process]
        return self._referred(REFERRED[kind]).maps[process]

    @cached_property
    def _strings(self) -> tuple[StringTable, list[IdMap]]:
        table = StringTable()
        local: list[list[int]] = [[] for _ in self._reader.processes]
        to: list[list[int]] = [[] for _ in self._reader.processes]
        for index in self._reader.indices(STRINGS_BLOCK).tolist():
            strings = self._reader.strings(index)
            process = int(self._reader.process_of[index])
            for number, text in strings or ():
                local[process].append(number)
                to[process].append(table.add(text))
        return table, list(map(IdMap.build, local, to))

    def _referred(self, name: str) -> _Interned:
        if name not in self._interned:
            self._interned[name] = self._collect(name)
        return self._interned[name]

    def _collect(self, name: str) -> _Interned:
        """The distinct rows of an interned table, and the id map of each process."""
        table = TABLES[name]
        indices = self._reader.indices(table.number)
        read, sizes = self._gather(table, indices)
        processes = range(len(self._reader.processes))
        if len(processes) == 1 and read.nbytes <= MOST_REPEATED:
            return _interned_again(name, read.tobytes())
        rows = _after_unknown(table, read)
        del read  # There can be many rows.
        by_process = [np.arange(1, len(rows))]
        if len(processes) > 1:
            owners_of_blocks = self._reader.process_of[indices]
            owners = np.repeat(owners_of_blocks, sizes)
            by_process = [at + 1 for at in by_value(owners, processes)]
        return _interned(table, rows, by_process)

    @cached_property
    def _clocks(self) -> tuple[str, list[Alignment]]:
        """The boot from which times count, and the alignment of each process with it."""
        reader = self._reader
        boots = [clock_of(info) for info in reader.processes]
        if not boots:
            return "", []
        if len(set(boots)) == 1:
            return boots[0], [Alignment()] * len(boots)
        snapshots: dict[str, list[np.ndarray]] = {boot: [] for boot in boots}
        for index in self._indices("clocks").tolist():
            boot = boots[int(reader.process_of[index])]
            snapshots[boot].append(reader.read(index))
        timed = self._timed & (reader.headers["first_time"] > 0)
        owners = reader.process_of[timed].tolist()
        first_times = reader.headers["first_time"][timed].tolist()
        begins: dict[str, int] = {}
        for process, first in zip(owners, first_times, strict=True):
            boot = boots[process]
            begins[boot] = min(begins.get(boot, first), first)
        rows = {}
        for boot, parts in snapshots.items():
            rows[boot] = joined(TABLES["clocks"].dtype, parts)
        clock, by_boot = alignments(rows, begins)
        return clock, [by_boot[boot] for boot in boots]

    @property
    def clock(self) -> str:
        """The id of the boot from which the times of the trace count."""
        return self._clocks[0]

    @property
    def _alignments(self) -> list[Alignment]:
        return self._clocks[1]

    @cached_property
    def _moves(self) -> bool:
        return any(alignment.moves for alignment in self._alignments)

    @cached_property
    def _timed(self) -> np.ndarray:
        """A mask of the blocks that hold rows with times."""
        timed_kinds = [table.number for table in TABLES.values() if table.start_field]
        return np.isin(self._reader.headers["kind"], timed_kinds)

    @cached_property
    def _block_times(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and last time of each block, as signed integers, clipped to ``LATEST``."""
        first = self._times_of_blocks("first_time")
        return first, self._times_of_blocks("last_time")

    def _times_of_blocks(self, header: str) -> np.ndarray:
        times: np.ndarray = np.minimum(self._reader.headers[header], LATEST)
        if self._moves:
            # Later times could overflow when moved.
            known = times < LATEST >> np.uint64(1)
            processes = range(len(self._alignments))
            of_process = by_value(self._reader.process_of, processes)
            for alignment, at in zip(self._alignments, of_process, strict=True):
                moved = alignment.moved(times[at])
                times[at] = np.where(known[at], moved, LATEST)
        return times.view(np.int64)

    @cached_property
    def _span(self) -> tuple[int, int]:
        chosen = self._timed & (self._reader.headers["first_time"] > 0)
        if not chosen.any():
            return 0, 0
        first, last = self._block_times
        start = max(int(first[chosen].min()), 0)
        end = max(int(last[chosen].max()), start)
        return start, end


def _after_unknown(table: TableLayout, read: np.ndarray) -> np.ndarray:
    """A copy of the rows of an interned table after row 0, which means "unknown"."""
    return joined(table.dtype, [np.zeros(1, table.dtype), read])


@lru_cache(maxsize=16)
def _interned_again(name: str, data: bytes) -> _Interned:
    """The interned table of one process. The captures of a test suite repeat the same rows."""
    table = TABLES[name]
    rows = _after_unknown(table, np.frombuffer(data, table.dtype))
    return _interned(table, rows, [np.arange(1, len(rows))])


def _interned(
    table: TableLayout, rows: np.ndarray, by_process: list[np.ndarray]
) -> _Interned:
    """The distinct rows of an interned table, and the id map of each process. ``by_process`` has the indices of the
    rows of each process. Overwrites ``rows``."""
    local = rows["id"].copy()
    rows["id"] = 0
    numbers = np.arange(len(rows))
    if table.name == "stacks":
        for at in by_process:
            place = IdMap.build(local[at], at)
            parents = rows["parent"][at]
            rows["parent"][at] = place.apply(parents)
        first = stacks.join(rows)
    else:
        first = _first_equal(table, rows)
    # Keep equal rows once, in the order of their first appearance, so that ids of the first process do not change.
    to = numbers
    unique = rows
    kept = first == numbers
    if not kept.all():
        places = np.cumsum(kept) - 1
        to = places[first]
        unique = chosen(rows, kept)
    unique["id"] = numbers[: len(unique)]
    if table.name == "stacks":
        unique["parent"] = to[unique["parent"]]
    unique.flags.writeable = False
    maps = [IdMap.build(local[at], to[at]) for at in by_process]
    return _Interned(unique, maps)


def _first_equal(table: TableLayout, rows: np.ndarray) -> np.ndarray:
    """For each row, the index of the first row that is equal to it. An empty row belongs to no process."""
    if "process" in table.offsets:
        processes = rows["process"].copy()
        rows["process"] = 0
        empty = np.zeros(1, table.dtype)
        rows["process"] = np.where(rows == empty, 0, processes)
    if _all_differ(rows):
        return np.arange(len(rows))
    words = as_words(rows)
    columns = list(words.T)
    numbers, first = Keys(len(columns)).ids(columns)
    return first[numbers]


def _all_differ(rows: np.ndarray) -> bool:
    """Whether no two of these rows are equal. Always False for many rows, which would need a sort."""
    if len(rows) > 64:
        return False
    data = rows.tobytes()
    size = rows.dtype.itemsize
    distinct = set()
    for at in range(0, len(data), size):
        distinct.add(data[at : at + size])
    return len(distinct) == len(rows)


def load(
    path: str | os.PathLike[str],
    files: ExitStack | None = None,
    sources: Sequence[Path] = (),
) -> Trace:
    """Open a capture (a run.bin file) as a :class:`Trace`; :func:`cutrace.load` opens other files too. Closing the
    trace closes ``files``. ``sources`` are the files that the capture was made of.

    Raises :class:`cutrace.errors.BadCapture` (a :class:`cutrace.CutraceError`) when the file holds nothing usable.
    """
    with ExitStack() as unless_open:
        if files:
            unless_open.enter_context(files)
        trace = Trace(Reader(path), files, sources)
        unless_open.pop_all()
    return trace
