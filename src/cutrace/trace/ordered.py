"""Rows of several tables in the order of time, with bounded memory.

A file has its blocks in the order of their completion. The rows of a block are in any order. A block is read when the
time reaches it and stays in memory until all of its rows were taken. If too many blocks are in memory, the blocks whose
remaining rows start latest are dropped and read again later.

:class:`Ordered` has the rows of tables of a trace. :class:`BlockOrder` is the same for blocks of any source.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..runbin.blocks import BlockInfo
from ..runbin.layout import TABLES, TableLayout
from .rows import chosen, time_order, with_open
from .trace import Trace

#: A time after all others.
NEVER = (1 << 64) - 1

#: The largest number of bytes of rows in memory.
KEPT_BYTES = 64 << 20

_MANY = 1 << 30


class TimedSource(Protocol):
    """The source of a block. ``first_time`` is the start of its first row (ns)."""

    @property
    def first_time(self) -> int: ...

    @property
    def payload_size(self) -> int: ...


S = TypeVar("S", bound=TimedSource)
T = TypeVar("T")


class Limits(NamedTuple):
    """The limits of a window and of the blocks that stay in memory for later windows, in bytes and blocks."""

    window_bytes: int
    window_blocks: int = _MANY
    kept_bytes: int = 1 << 62
    kept_blocks: int = _MANY


@dataclass
class LiveBlock(Generic[S, T]):
    """A block in memory: its source, the starts of its rows (ns, in any order), and its content as it was read. All
    rows that start before ``taken`` have been taken. ``order`` is its number among the blocks."""

    order: int
    source: S
    starts: np.ndarray
    content: T
    taken: int

    def __post_init__(self) -> None:
        self.last = int(self.starts.max())

    @property
    def next_start(self) -> int:
        """The first start of the rows that were not taken."""
        if not self.taken:
            return int(self.starts.min())
        taken = self.starts.dtype.type(self.taken)
        return int(self.starts[self.starts >= taken].min())


@dataclass(eq=False)
class _Waiting(Generic[S]):
    """A block that is not in memory, and the start of its first remaining row."""

    time: int
    order: int
    source: S
    taken: int = 0

    def __lt__(self, other: _Waiting[S]) -> bool:
        return (self.time, self.order) < (other.time, other.order)


class BlockOrder(Generic[S, T]):
    """Blocks whose rows are taken in windows of time.

    ``read`` returns the starts of a block's rows and its content, or None if it has no rows; it is called again for a
    block that was dropped. A window starts at the end of the previous window. :meth:`fill` reads its blocks, and
    :meth:`advance` ends it.

    The ``first_time`` of a source can be wrong: its block can have earlier rows. With ``apart``, such a block is set
    apart, and :meth:`left_over` starts with it again. Otherwise its early rows are taken late.
    """

    def __init__(
        self,
        sources: Iterable[S],
        read: Callable[[S], tuple[np.ndarray, T] | None],
        limits: Limits,
        *,
        apart: bool = False,
    ) -> None:
        self._read = read
        self._limits = limits
        self._apart = apart
        self._number = count()
        self._waiting: list[_Waiting[S]] = []
        for source in sources:
            number = next(self._number)
            self._waiting.append(_Waiting(source.first_time, number, source))
        heapq.heapify(self._waiting)
        self._late: list[_Waiting[S]] = []
        #: The start of the window.
        self.begin = 0
        #: The blocks in memory.
        self.live: list[LiveBlock[S, T]] = []

    @property
    def done(self) -> bool:
        """Whether no rows are left."""
        return not self._waiting and not self.live

    @property
    def ended(self) -> bool:
        """Whether the last window has ended."""
        return self.begin == NEVER

    @property
    def next_time(self) -> int:
        """The first start of the rows that are not in memory; :data:`NEVER` if all are."""
        if self._waiting:
            return self._waiting[0].time
        return NEVER

    @property
    def size(self) -> int:
        """The bytes of the blocks in memory."""
        return sum(block.source.payload_size for block in self.live)

    def fill(self) -> int:
        """Read the blocks of a window. Returns its end; a window can be empty."""
        size = 0
        first = self.next_time
        while self._waiting and len(self.live) < self._limits.window_blocks:
            if size >= self._limits.window_bytes and self.next_time > first:
                break
            size += self._waiting[0].source.payload_size
            self._read_next()
        if self.next_time <= self.begin and self.live:
            # Many blocks start at the same time. They are taken in parts.
            return self.begin + 1
        return max(self.next_time, self.begin)

    def read_before(self, until: int) -> None:
        """Read all blocks with rows that start before a time."""
        while self._waiting and (self.next_time < until or until == NEVER):
            self._read_next()

    def advance(self, until: int) -> None:
        """End the window: all rows that start before ``until`` were taken."""
        for block in self.live:
            block.taken = until
        self.live = [block for block in self.live if block.last >= until]
        if self._too_many():
            self.live.sort(key=lambda block: block.next_start)
        while self._too_many():
            dropped = self.live.pop()
            waiting = _Waiting(dropped.next_start, dropped.order, dropped.source, until)
            heapq.heappush(self._waiting, waiting)
        self.begin = until

    def release(self) -> None:
        """Forget the blocks in memory. All of their rows must have been taken. The start of the window stays."""
        self.live = []

    def left_over(self) -> BlockOrder[S, T] | None:
        """A new order of the blocks that were set apart, from their first rows; None if there are none."""
        if not self._late:
            return None
        rest: BlockOrder[S, T] = BlockOrder((), self._read, self._limits, apart=True)
        rest._waiting = self._late
        rest._number = self._number
        heapq.heapify(rest._waiting)
        return rest

    def _read_next(self) -> None:
        waiting = heapq.heappop(self._waiting)
        made = self._read(waiting.source)
        if made is None:
            return
        block = LiveBlock(waiting.order, waiting.source, *made, waiting.taken)
        if self._apart and self.begin:
            first = block.next_start
            if first < self.begin:
                number = next(self._number)
                late = _Waiting(first, number, waiting.source, waiting.taken)
                self._late.append(late)
                return
        self.live.append(block)

    def _too_many(self) -> bool:
        return (
            self.size > self._limits.kept_bytes
            or len(self.live) > self._limits.kept_blocks
        )


class MergeByTime:
    """The merge of the rows of several parts by start (ns, int64)."""

    def __init__(self, starts: list[np.ndarray]) -> None:
        self._order: np.ndarray | None = None
        if len(starts) == 1:
            self.start = starts[0]
            return
        self.start = np.concatenate([np.zeros(0, np.int64), *starts])
        self._order = time_order(self.start)
        if self._order is not None:
            self.start = self.start.take(self._order)

    def column(self, dtype: npt.DTypeLike, parts: Sequence[np.ndarray]) -> np.ndarray:
        """A column of the merged rows, from the columns of the parts."""
        if not parts:
            return np.zeros(0, dtype)
        column = np.concatenate(parts, dtype=dtype, casting="unsafe")
        if self._order is None:
            return column
        return column.take(self._order)


#: Rows of a block, ascending by start, and the starts (ns, int64).
_Sorted = tuple[np.ndarray, np.ndarray]


class Columns:
    """Rows of a table, ascending by start, as arrays by field that are made on first use. Times are int64."""

    def __init__(self, table: TableLayout, parts: list[_Sorted]) -> None:
        self._table = table
        self._parts = [rows for rows, _ in parts]
        self._merge = MergeByTime([start for _, start in parts])
        self._made = {table.start_field or "": self._merge.start}

    def __len__(self) -> int:
        return len(self._merge.start)

    def __contains__(self, field: str) -> bool:
        return field in self._table.offsets

    def __getitem__(self, field: str) -> np.ndarray:
        if field not in self._made:
            dtype: npt.DTypeLike = self._table.dtype[field]
            if field == self._table.end_field:
                dtype = np.int64
            parts = [rows[field] for rows in self._parts]
            self._made[field] = self._merge.column(dtype, parts)
        return self._made[field]


class Ordered:
    """The rows with known times of some tables, in the order of their starts. ``infos`` are blocks by table. With
    ``open_rows`` rows that never end are among them (:func:`.rows.with_open`)."""

    def __init__(
        self,
        trace: Trace,
        infos: Mapping[str, Iterable[BlockInfo]],
        window_bytes: int = 1 << 24,
        *,
        open_rows: bool = False,
    ) -> None:
        self._trace = trace
        self._open_rows = open_rows
        self.tables = tuple(infos)
        limits = Limits(window_bytes, kept_bytes=KEPT_BYTES)
        blocks = chain.from_iterable(infos.values())
        self._blocks = BlockOrder(blocks, self._sorted, limits)

    def take(self, until: int) -> dict[str, Columns]:
        """The rows by table that start before ``until`` (ns) and were not taken before."""
        self._blocks.read_before(until)
        parts: dict[str, list[_Sorted]] = {name: [] for name in self.tables}
        for block in self._blocks.live:
            start = block.starts
            begin = 0
            if block.taken:
                begin = int(np.searchsorted(start, block.taken))
            end = len(start)
            if until <= block.last:
                end = int(np.searchsorted(start, until))
            if end > begin:
                taken = (block.content[begin:end], start[begin:end])
                parts[block.source.table or ""].append(taken)
        self._blocks.advance(until)
        return {name: Columns(TABLES[name], parts[name]) for name in self.tables}

    def windows(self) -> Iterator[dict[str, Columns]]:
        """All rows, in windows of about the same size."""
        until = 0
        while until < NEVER:
            until = self._blocks.fill()
            yield self.take(until)

    def _sorted(self, info: BlockInfo) -> tuple[np.ndarray, np.ndarray] | None:
        """The starts and the rows of a block, ascending by start."""
        rows, unknown = self._trace.block(info)
        if self._open_rows:
            rows = with_open(info.table or "", rows, unknown)
        if not len(rows):
            return None
        start = rows[TABLES[info.table or ""].start_field]
        start = start.astype(np.int64)
        order = time_order(start)
        if order is None:
            return (start, rows)
        return (start[order], chosen(rows, order))
