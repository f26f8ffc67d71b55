"""Sweep over one process of a capture in the order of time, in batches of some hundred thousand rows.

A batch has the rows of each table that start in an interval (:mod:`cutrace.trace.ordered`).

GPU work has the API call that launched it (:mod:`cutrace.trace.launches`), unless there are a million later calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._native import Keys
from ..runbin.blocks import BlockInfo
from ..runbin.layout import GPU_WORK
from ..trace import Trace
from ..trace.launches import (
    CLOCK_ERROR,
    REMEMBERED_BITS,
    LaunchCalls,
    NewestCalls,
)
from ..trace.ordered import NEVER, Columns, MergeByTime, Ordered
from ..trace.ranges import RANGE_TABLES, Ranges, RangesBy
from ..trace.rows import LATEST

# Approximate rows of a batch.
_BATCH_ROWS = 1 << 17
# The fields that identify a stream, with their types.
_STREAM = (("device", np.uint16), ("context", np.uint16), ("stream", np.uint32))
# The field of :attr:`Work.detail`.
_DETAILS = {"memcpys": "kind", "graph_launches": "graph"}


class Groups:
    """Groups of rows with equal values in all columns, numbered from 0 in the order of first appearance. ``values`` has
    the result of ``make`` for the values of each group."""

    def __init__(self, make: Callable[..., Any] = lambda *values: values) -> None:
        self._make = make
        self._keys: Keys | None = None
        self.values: list[Any] = []

    def of(self, *columns: np.ndarray) -> np.ndarray:
        """The group of each row."""
        if self._keys is None:
            self._keys = Keys(len(columns))
        numbers, new = self._keys.ids(columns)
        self.values += map(self._make, *(column[new].tolist() for column in columns))
        return numbers


@dataclass(frozen=True)
class Work:
    """GPU work of all tables as parallel arrays, ascending by ``start`` (ns). ``table`` is the index in
    :data:`cutrace.trace.quality.GPU_WORK`, ``stream`` the index in :attr:`Sweep.streams`, ``launch`` the launch
    configuration of a kernel, else 0. ``detail`` is the kind of a copy or the graph of a graph launch, else 0. ``node``
    is the number of the graph node in ``Trace.origins``, None in a trace without origins."""

    start: np.ndarray
    end: np.ndarray
    table: np.ndarray
    stream: np.ndarray
    device: np.ndarray
    correlation: np.ndarray
    launch: np.ndarray
    detail: np.ndarray
    node: np.ndarray | None
    calls: LaunchCalls

    def __len__(self) -> int:
        return len(self.start)


class SweepBatch:
    """The rows of a process that start in one interval, by table, and all GPU work together. Rows of the host are 10 ms
    ahead of GPU work, so a call comes before its work in spite of clock errors. All GPU work that starts before
    ``until`` (ns) is in this batch or an earlier one. A batch is valid until the next batch."""

    def __init__(
        self,
        process: int,
        until: int,
        tables: dict[str, Columns],
        work: Callable[[dict[str, Columns]], Work],
    ) -> None:
        self.process = process
        self.until = until
        self.tables = tables
        self._make = work

    @cached_property
    def work(self) -> Work:
        """The rows of all tables of GPU work, with their launching calls."""
        return self._make(self.tables)


@dataclass(frozen=True)
class Stream:
    """A stream of the process, by CUDA's numbers."""

    device: int
    context: int
    stream: int


class Sweep:
    """The batches of one process; iterate once. ``infos`` are its blocks by table. Without ``joins`` no calls are
    looked up, so all :attr:`Work.calls` are unknown. With ``ranges="own"`` ranges adopt no work. Ranges and slices that
    never end have :data:`cutrace.trace.rows.LATEST` as their end. :attr:`streams` are the streams seen so far, indexed
    by ``Work.stream``."""

    def __init__(
        self,
        trace: Trace,
        infos: Mapping[str, Sequence[BlockInfo]],
        *,
        joins: bool = True,
        ranges: RangesBy = "adopted",
    ) -> None:
        self._infos = infos
        self._joins = joins
        self._origins = trace.origins
        self._process = 0
        of_gpu = {}
        of_host = {}
        for name, blocks in infos.items():
            if name in GPU_WORK:
                of_gpu[name] = blocks
            else:
                of_host[name] = blocks
            if blocks:
                self._process = blocks[0].process
        self._gpu = Ordered(trace, of_gpu)
        self._host = Ordered(trace, of_host, open_rows=True)
        self._ranges = Ranges(ranges)
        # Allocating the memory of many calls takes longer than a sweep over a small file.
        bits = 0
        if joins and "api_calls" in infos:
            bits = REMEMBERED_BITS
        self._calls = NewestCalls(bits, self._ranges)
        self._numbers = Groups(Stream)
        self.streams: list[Stream] = self._numbers.values

    def __iter__(self) -> Iterator[SweepBatch]:
        for until in self._edges():
            ahead = min(until + CLOCK_ERROR, NEVER)
            tables = {**self._gpu.take(until), **self._host.take(ahead)}
            if self._joins and "api_calls" in tables:
                self._add_calls(tables)
            last = min(until, int(LATEST))
            yield SweepBatch(self._process, last, tables, self._work)

    def _add_calls(self, tables: dict[str, Columns]) -> None:
        for table in RANGE_TABLES:
            if table in tables:
                self._ranges.add(table, tables[table])
        self._calls.add(tables["api_calls"])

    def _edges(self) -> list[int]:
        """The ends of batches. They are starts of blocks, chosen so that batches have about the same number of rows."""
        begins: list[tuple[int, int]] = []
        for infos in self._infos.values():
            begins += [(info.first_time, info.rows) for info in infos]
        if not begins:
            return []
        begins.sort()
        edges: list[int] = []
        last = 0
        rows = 0
        for time, more in begins:
            if rows >= _BATCH_ROWS and time > last:
                last = time
                edges.append(time)
                rows = 0
            rows += more
        edges.append(NEVER)
        return edges

    def _work(self, tables: dict[str, Columns]) -> Work:
        parts = []
        of_table = []
        streams = []
        details = []
        nodes = []
        for number, name in enumerate(GPU_WORK):
            rows = tables.get(name)
            if not rows:
                continue
            parts.append(rows)
            of_table.append(np.full(len(rows), number, np.uint8))
            stream = [_column(rows, field, dtype) for field, dtype in _STREAM]
            streams.append(self._numbers.of(*stream))
            details.append(_column(rows, _DETAILS.get(name, ""), np.uint32))
            if self._origins:
                nodes.append(self._origins.of(self._process, name, rows))
        merge = MergeByTime([rows["start"] for rows in parts])

        def merged(dtype: type, columns: list[np.ndarray]) -> np.ndarray:
            if len(columns) == 1:
                return columns[0]
            return merge.column(dtype, columns)

        def joined(field: str, dtype: type) -> np.ndarray:
            return merged(dtype, [_column(rows, field, dtype) for rows in parts])

        node = None
        if self._origins:
            node = merged(np.uint32, nodes)
        correlation = joined("correlation", np.uint32)
        return Work(
            start=merge.start,
            end=joined("end", np.int64),
            table=merged(np.uint8, of_table),
            stream=merged(np.uint32, streams),
            device=joined("device", np.uint16),
            correlation=correlation,
            launch=joined("launch", np.uint32),
            detail=merged(np.uint32, details),
            node=node,
            calls=self._calls.find(correlation),
        )


def _column(rows: Columns, field: str, dtype: type) -> np.ndarray:
    """A column of a table; zeros if the table has no column of this name."""
    if field in rows:
        return rows[field]
    return np.zeros(len(rows), dtype)
