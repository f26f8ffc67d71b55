"""API calls and the GPU work that they launched, by Python stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...runbin.layout import GPU_WORK
from ...trace.ordered import Columns
from ...trace.stacks import PythonFrame, PythonStacks
from ..calls import CALL_KINDS, call_kind
from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext
from ..distribution import Sums, sizes
from ..statistic import (
    Statistic,
    View,
    column_of,
    count_column,
    share,
    size_column,
    text_column,
    time_column,
)
from ..sweep import Groups, Stream, SweepBatch, Work

_LAUNCH = CALL_KINDS.index("launch")
_COPY = CALL_KINDS.index("copy")
_ALLOC = CALL_KINDS.index("alloc")
_FREE = CALL_KINDS.index("free")
_OTHER = CALL_KINDS.index("other")
# The assumed kind of call for GPU work whose call was not recorded, by table.
_KIND_BY_TABLE = {
    "kernels": _LAUNCH,
    "memcpys": _COPY,
    "memsets": _COPY,
    "graph_launches": _LAUNCH,
}
_KIND_OF_WORK = np.array([_KIND_BY_TABLE[table] for table in GPU_WORK], np.uint8)
_KIND_OF_OPERATION = np.array([_OTHER, _ALLOC, _FREE, _OTHER], np.uint8)
_NO_STACK = "(no Python stack)"


class OutermostCalls:
    """Finds the calls of a process that are in no other call of their correlation id, batch by batch. A runtime call
    contains driver calls with its id."""

    def __init__(self) -> None:
        # The calls that may contain calls of the next batch.
        self._ids = np.zeros(0, np.uint32)
        self._ends = np.zeros(0, np.int64)

    def of(self, calls: Columns) -> np.ndarray:
        """The indices of the outermost calls. ``calls`` ascend by start."""
        ids = calls["correlation"]
        start = calls["start"]
        end = calls["end"]
        order = np.lexsort((-end, start, ids))
        ordered = ids[order]
        first_of_id = np.append(True, ordered[1:] != ordered[:-1]) | (ordered == 0)
        outermost = np.zeros(len(ids), bool)
        outermost[order[first_of_id]] = True
        outermost &= ~np.isin(ids, self._ids)
        found = np.flatnonzero(outermost)
        last = start[-1]
        lasting = found[(end[found] >= last) & (ids[found] != 0)]
        kept = self._ends >= last
        self._ids = np.append(self._ids[kept], ids[lasting])
        self._ends = np.append(self._ends[kept], end[lasting])
        return found


@dataclass(frozen=True)
class StackUse:
    """The API calls of one ``kind`` (``CALL_KINDS``) that have the same Python stack, in any thread and process, with
    the GPU work that they launched.

    ``frames`` are outermost first, and empty for calls without a stack. ``operations`` is the number of pieces of GPU
    work; ``bytes`` is the number of bytes that the calls copied, filled, allocated or released.
    """

    frames: tuple[PythonFrame, ...]
    kind: str
    calls: int
    api_ns: int
    operations: int
    gpu_ns: int
    bytes: int

    @property
    def time(self) -> int:
        """The time (ns) of the calls and of their GPU work."""
        return self.api_ns + self.gpu_ns


class _StackCollector(StatsCollector[StackUse]):
    """Reads nothing of a trace without stacks."""

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._stacks = context.trace.python_stacks
        if self._stacks:
            self.tables = (*GPU_WORK, "api_calls", "allocations")
        # Groups of calls by kind and stack.
        self._groups = Groups()
        self._calls = Sums()
        self._api_ns = Sums()
        self._operations = Sums()
        self._gpu_ns = Sums()
        self._bytes = Sums()
        self._outermost = OutermostCalls()

    def add(self, batch: SweepBatch) -> None:
        if not self._stacks:
            return
        calls = batch.tables.get("api_calls")
        if calls:
            self._add_calls(self._stacks, batch.process, calls)
        if len(batch.work):
            self._add_work(self._stacks, batch)
        rows = batch.tables.get("allocations")
        if rows:
            kind = _KIND_OF_OPERATION.take(rows["operation"], mode="clip")
            group = self._group(self._stacks, batch.process, kind, rows["correlation"])
            self._bytes.add(group, sizes(rows["bytes"]))

    def _add_calls(self, stacks: PythonStacks, process: int, calls: Columns) -> None:
        at = self._outermost.of(calls)
        kind = self._kinds.take(calls["function"][at])
        group = self._group(stacks, process, kind, calls["correlation"][at])
        self._calls.add(group)
        self._api_ns.add(group, (calls["end"] - calls["start"])[at])

    def _add_work(self, stacks: PythonStacks, batch: SweepBatch) -> None:
        work = batch.work
        kind = self._kinds_of_work(work)
        group = self._group(stacks, batch.process, kind, work.correlation)
        self._operations.add(group)
        self._gpu_ns.add(group, work.end - work.start)
        for number, table in enumerate(GPU_WORK):
            rows = batch.tables.get(table)
            if rows and "bytes" in rows:
                # The work of a table is in the order of its rows.
                of_table = group[work.table == number]
                self._bytes.add(of_table, sizes(rows["bytes"]))

    def _kinds_of_work(self, work: Work) -> np.ndarray:
        by_call = self._kinds.take(work.calls.function)
        return np.where(work.calls.known, by_call, _KIND_OF_WORK[work.table])

    def _group(
        self,
        stacks: PythonStacks,
        process: int,
        kind: np.ndarray,
        correlation: np.ndarray,
    ) -> np.ndarray:
        stack = stacks.alike.take(stacks.of(process, correlation))
        return self._groups.of(kind, stack.astype(np.uint32))

    @cached_property
    def _kinds(self) -> np.ndarray:
        """The kind of the calls of each function of the trace."""
        trace = self.context.trace
        names = trace.strings.take(trace.functions["name"]).tolist()
        kinds = [CALL_KINDS.index(call_kind(name)) for name in names]
        return np.array(kinds, np.uint8)

    def end(self, process: int, streams: list[Stream]) -> Iterable[StackUse]:
        self._outermost = OutermostCalls()
        return ()

    def result(self) -> Iterator[StackUse]:
        """Calls without a stack have a row if other calls of their kind have a stack."""
        if not self._stacks:
            return
        groups = self._groups.values
        kinds_with_stacks = {kind for kind, stack in groups if stack}
        calls = self._calls.of_groups(len(groups))
        api_ns = self._api_ns.of_groups(len(groups))
        operations = self._operations.of_groups(len(groups))
        gpu_ns = self._gpu_ns.of_groups(len(groups))
        bytes_ = self._bytes.of_groups(len(groups))
        for group, (kind, stack) in enumerate(groups):
            if stack or kind in kinds_with_stacks:
                frames = map(self._stacks.frame, self._stacks.frames(stack))
                yield StackUse(
                    tuple(frames),
                    CALL_KINDS[kind],
                    calls[group],
                    api_ns[group],
                    operations[group],
                    gpu_ns[group],
                    bytes_[group],
                )


#: The API calls by kind and Python stack.
STACKS = CollectedBy(_StackCollector)


class _StackRow(NamedTuple):
    use: StackUse
    share: float


def _stack_rows(view: View) -> Iterator[_StackRow]:
    uses = sorted(
        view.collected[STACKS],
        key=lambda use: (-use.time, -use.calls, use.kind, use.frames),
    )
    whole = sum(use.time for use in uses)
    for use in uses:
        yield _StackRow(use, share(use.time, whole))


def _innermost_frame(view: View, row: _StackRow) -> str:
    if row.use.frames:
        return row.use.frames[-1].place
    return _NO_STACK


def _all_frames(view: View, row: _StackRow) -> str:
    """All frames, outermost first, with whole file names."""
    frames = []
    for frame in row.use.frames:
        name = f"{frame.function} ({frame.file}:{frame.line})"
        frames.append(name.replace(";", ":"))
    return ";".join(frames)


def _bytes(view: View, row: _StackRow) -> int | None:
    return row.use.bytes or None


STACK_SUM = Statistic(
    "stack_sum",
    "API calls and their GPU work by Python stack",
    _stack_rows,
    (
        column_of("share", unit="1", doc="fraction of the sum of API time + GPU time"),
        time_column("API time", "use.api_ns", doc="sum of the times of the calls"),
        time_column(
            "GPU time",
            "use.gpu_ns",
            doc="sum of the times of the work that the calls launched",
        ),
        count_column(
            "calls",
            "use.calls",
            doc="API calls; a driver call inside a runtime call is part of it",
        ),
        count_column(
            "operations",
            "use.operations",
            spare=True,
            doc="kernels, copies, fills and whole graphs that the calls launched",
        ),
        size_column(
            "bytes",
            _bytes,
            doc="bytes of these copies and fills, or bytes that the calls allocated or released",
        ),
        text_column("kind", "use.kind", doc="launch, copy, sync, alloc, free or other"),
        text_column(
            "stack",
            _all_frames,
            spare=True,
            doc="all frames, outermost first: function (file:line)",
        ),
        text_column(
            "line", _innermost_frame, doc="innermost frame, or (no Python stack)"
        ),
    ),
    needs=(STACKS,),
    doc="Which lines of Python take time in CUDA calls and launch the GPU's work. Rows are sorted by API "
    "time + GPU time.",
)
