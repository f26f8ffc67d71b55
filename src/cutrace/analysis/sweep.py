"""One process of a capture in the order of time, some hundred thousand rows at once, whatever the size of the capture.

A window has the rows of each table that begin in it. Blocks are read when the sweep comes to them and stay until all of
their rows have begun; those that reach far ahead are let go when there are too many, and read again later.

GPU work is joined to the API call that launched it by its correlation id. Calls are remembered in a ring by that id, so
the call of work is found unless a million ids lie between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from .._native import Keys, time_order
from ..runbin.blocks import BlockInfo
from ..runbin.layout import TABLES
from ..trace import Trace
from .work import GPU_TABLES

#: Fields of a table as arrays, one element a row, ascending by the begin of the row. Times are int64.
Columns = dict[str, np.ndarray]

#: A moment behind all others.
NEVER = (1 << 63) - 1

# Rows of a window, about; rows that are kept for later windows, in bytes; calls that are remembered.
_WINDOW_ROWS = 1 << 17
_KEPT_BYTES = 64 << 20
_REMEMBERED = 1 << 20
# Clocks of host and GPU agree to this (ns): work may seem to begin so long before its call.
_CLOCK_ERROR = 10_000_000


@dataclass(frozen=True)
class Calls:
    """The API call behind each row of GPU work: whether it is ``known``, and then its ``start`` and ``end`` (ns),
    ``thread`` and ``function``; 0 where it is not."""

    known: np.ndarray
    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    function: np.ndarray

    def __getitem__(self, at: np.ndarray | slice) -> Calls:
        return Calls(self.known[at], self.start[at], self.end[at], self.thread[at], self.function[at])


@dataclass(frozen=True)
class Work:
    """GPU work of all tables, ascending by ``start`` (ns): parallel arrays. ``table`` is the index in
    :data:`.work.GPU_TABLES`, ``stream`` a number of :attr:`Sweep.streams`, ``launch`` the launch configuration of a
    kernel, else 0."""

    start: np.ndarray
    end: np.ndarray
    table: np.ndarray
    stream: np.ndarray
    device: np.ndarray
    correlation: np.ndarray
    launch: np.ndarray
    calls: Calls

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Window:
    """What begins in one stretch of time: rows by table, and all GPU work together. Rows of the host run 10 ms ahead of
    those of the GPU, so that a call is there before its work is, however the clocks differ."""

    tables: dict[str, Columns]
    work: Work


@dataclass(frozen=True)
class Stream:
    """A stream of the process, by CUDA's numbers."""

    device: int
    context: int
    stream: int


class Sweep:
    """Windows over one process; iterate over it once. ``infos`` are its blocks by table, as
    :func:`blocks_by_process` finds them. :attr:`streams` are the streams seen so far, which ``Work.stream`` numbers."""

    def __init__(self, trace: Trace, process: int, infos: Mapping[str, Sequence[BlockInfo]]) -> None:
        self._infos = infos
        self._shift = trace.processes[process].clock_offset
        self._readers = {name: InOrder(trace, name, blocks, self._shift) for name, blocks in infos.items()}
        self._calls = _Remembered()
        self._stream_keys = Keys(3)
        self.streams: list[Stream] = []

    def __iter__(self) -> Iterator[Window]:
        for until in self._edges():
            ahead = min(until + _CLOCK_ERROR, NEVER)
            tables = {n: reader.take(until if n in GPU_TABLES else ahead) for n, reader in self._readers.items()}
            if "api_calls" in tables:
                self._calls.add(tables["api_calls"])
            yield Window(tables, self._work(tables))

    def _edges(self) -> list[int]:
        """Where windows end: at the begins of blocks, so that each window has about as many rows."""
        infos = sorted(
            (max(info.first_time + self._shift, 0), info.rows) for infos in self._infos.values() for info in infos
        )
        edges, rows = [], 0
        for time, more in infos:
            if rows >= _WINDOW_ROWS and time > (edges[-1] if edges else 0):
                edges.append(time)
                rows = 0
            rows += more
        return [*edges, NEVER] if infos else []

    def _work(self, tables: dict[str, Columns]) -> Work:
        parts = [(number, tables[name]) for number, name in enumerate(GPU_TABLES) if name in tables]
        sizes = [len(rows["start"]) for _, rows in parts]

        def joined(field: str, dtype: type) -> np.ndarray:
            columns = [rows.get(field) for _, rows in parts]
            filled = [np.zeros(n, dtype) if c is None else c for c, n in zip(columns, sizes, strict=True)]
            return filled[0] if len(filled) == 1 else np.concatenate([np.zeros(0, dtype), *filled])

        start, device, context = joined("start", np.int64), joined("device", np.uint16), joined("context", np.uint16)
        columns = [
            start,
            joined("end", np.int64),
            np.repeat(np.array([number for number, _ in parts], np.uint8), sizes),
            self._number(device, context, joined("stream", np.uint32)),
            device,
            joined("correlation", np.uint32),
            joined("launch", np.uint32),
        ]
        if sum(size > 0 for size in sizes) > 1:
            order = np.argsort(start, kind="stable")  # a merge of rising runs
            columns = [column.take(order) for column in columns]
        return Work(*columns, calls=self._calls.find(columns[5]))

    def _number(self, *columns: np.ndarray) -> np.ndarray:
        numbers, new = self._stream_keys.ids(columns)
        for at in new.tolist():
            self.streams.append(Stream(*(int(column[at]) for column in columns)))
        return numbers.astype(np.uint16) if len(self.streams) <= 1 << 16 else numbers


def blocks_by_process(trace: Trace, tables: Sequence[str]) -> list[dict[str, list[BlockInfo]]]:
    """The blocks of these tables, for each process of the trace."""
    found: list[dict[str, list[BlockInfo]]] = [{} for _ in trace.processes]
    for table in tables:
        for info in trace.block_infos(table):
            found[info.process].setdefault(table, []).append(info)
    return found


class InOrder:
    """The rows of one table in the order in which they begin, of the blocks of one process."""

    def __init__(self, trace: Trace, table: str, infos: Sequence[BlockInfo], shift: int = 0) -> None:
        self._trace, self._table, self._begin = trace, TABLES[table], TABLES[table].start_field or ""
        self._order = count()
        self._waiting = [_Waiting(max(info.first_time + shift, 0), next(self._order), info) for info in infos]
        heapq.heapify(self._waiting)
        self._live: list[_Live] = []

    def take(self, until: int) -> Columns:
        """The rows that begin before ``until`` (ns) and were not taken before."""
        while self._waiting and (self._waiting[0].time < until or until >= NEVER):
            self._read(heapq.heappop(self._waiting))
        parts = [part for live in self._live if (part := live.take(until))]
        self._live = [live for live in self._live if live.left]
        self._let_go(until)
        if not parts:
            return self._columns(np.empty(0, self._table.dtype))
        if len(parts) == 1:
            return parts[0]
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return _ordered(whole, self._begin)

    def _read(self, block: _Waiting) -> None:
        rows, _ = self._trace.block(block.info)
        if len(rows):
            columns = _ordered(self._columns(rows), self._begin)
            self._live.append(_Live(block.info, columns, columns[self._begin], block.taken))

    def _columns(self, rows: np.ndarray) -> Columns:
        times = (self._table.start_field, self._table.end_field)
        columns = {name: np.ascontiguousarray(rows[name]) for name in self._table.offsets if name != "process"}
        return {name: column.view(np.int64) if name in times else column for name, column in columns.items()}

    def _let_go(self, until: int) -> None:
        """Keep what begins first, up to a size, and one block in any case."""
        self._live.sort(key=lambda live: live.next)
        size = 0
        for number, live in enumerate(self._live):
            size += live.info.payload_size
            if number and size > _KEPT_BYTES:
                for late in self._live[number:]:
                    heapq.heappush(self._waiting, _Waiting(late.next, next(self._order), late.info, late.taken))
                del self._live[number:]
                break


@dataclass(order=True)
class _Waiting:
    """A block of which ``taken`` rows were taken; the others begin at ``time`` or later."""

    time: int
    order: int
    info: BlockInfo = field(compare=False)
    taken: int = field(compare=False, default=0)


@dataclass
class _Live:
    """A block in memory."""

    info: BlockInfo
    columns: Columns
    start: np.ndarray
    taken: int

    @property
    def left(self) -> bool:
        return self.taken < len(self.start)

    @property
    def next(self) -> int:
        return int(self.start[self.taken])

    def take(self, until: int) -> Columns:
        end = len(self.start) if until >= NEVER else int(np.searchsorted(self.start, until))
        begin, self.taken = self.taken, max(end, self.taken)
        return {name: column[begin:end] for name, column in self.columns.items()} if end > begin else {}


class _Remembered:
    """The latest API calls by correlation id."""

    def __init__(self) -> None:
        self._mask = np.uint32(_REMEMBERED - 1)
        self._key = np.zeros(_REMEMBERED, np.uint32)
        self._start, self._end = np.zeros(_REMEMBERED, np.int64), np.zeros(_REMEMBERED, np.int64)
        self._thread, self._function = np.zeros(_REMEMBERED, np.uint32), np.zeros(_REMEMBERED, np.uint16)

    def add(self, calls: Columns) -> None:
        """Remember calls that ascend by start. Of calls under one id, which lie in each other, the outer one stays."""
        key = calls["correlation"]
        slot = key & self._mask
        new = (key != 0) & (self._key.take(slot) != key)
        if not new.all():
            calls = {name: column[new] for name, column in calls.items()}
            key, slot = key[new], slot[new]
        start, end = calls["start"], calls["end"]
        self._write(slot, key, calls)
        if ((self._start.take(slot) != start) | (self._end.take(slot) != end)).any():
            # What is written last stays, and that is to be the first, of those of one moment the longest.
            order = np.lexsort((end, -start))
            self._write(slot[order], key[order], {name: column[order] for name, column in calls.items()})

    def _write(self, slot: np.ndarray, key: np.ndarray, calls: Columns) -> None:
        self._key[slot] = key
        self._start[slot], self._end[slot] = calls["start"], calls["end"]
        self._thread[slot], self._function[slot] = calls["thread"], calls["function"]

    def find(self, correlation: np.ndarray) -> Calls:
        """The calls with these ids."""
        slot = correlation & self._mask
        known = (self._key.take(slot) == correlation) & (correlation != 0)
        columns = [column.take(slot) for column in (self._start, self._end, self._thread, self._function)]
        if not known.all():
            columns = [np.where(known, column, 0) for column in columns]
        return Calls(known, *columns)


def _ordered(columns: Columns, begin: str) -> Columns:
    """The rows by their begin; rows of one moment stay in the order of the file."""
    order = time_order(columns[begin].view(np.uint64))
    return columns if order is None else {name: column.take(order) for name, column in columns.items()}
