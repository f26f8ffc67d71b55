"""API calls and the GPU work that they launched, summed by Python stack."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from ..trace import Trace
from ..trace.ordered import Columns
from ..trace.quality import GPU_WORK
from ..trace.stacks import PythonStacks
from .calls import CALL_KINDS, call_kind
from .distribution import Sums, grown, sizes
from .stats import StackUse
from .sweep import Groups, SweepBatch, Work

_LAUNCH, _COPY, _ALLOC, _FREE, _OTHER = map(
    CALL_KINDS.index, ("launch", "copy", "alloc", "free", "other")
)
# The kind of the call of GPU work whose call was not recorded, by table.
_KIND_OF_WORK = np.array(
    [_COPY if table in ("memcpys", "memsets") else _LAUNCH for table in GPU_WORK],
    np.uint8,
)
_KIND_OF_OPERATION = np.array([_OTHER, _ALLOC, _FREE, _OTHER], np.uint8)
_MEASURES = ("calls", "api_ns", "operations", "gpu_ns", "bytes")


class OutermostCalls:
    """Finds the calls of a process that are in no other call of their correlation id, batch by batch: a runtime call
    contains driver calls with its id."""

    def __init__(self) -> None:
        # The calls that may contain calls of the next batch.
        self._ids = np.zeros(0, np.uint32)
        self._ends = np.zeros(0, np.int64)

    def of(self, calls: Columns) -> np.ndarray:
        """The indices of the outermost ones of some calls, which ascend by start."""
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


class StackSums:
    """The sums of calls and GPU work by kind of call and Python stack, over all processes."""

    def __init__(self, trace: Trace, stacks: PythonStacks) -> None:
        self._trace = trace
        self._stacks = stacks
        self._groups = Groups()
        self._sums = {measure: Sums() for measure in _MEASURES}
        self._outermost = OutermostCalls()

    def add(self, batch: SweepBatch) -> None:
        """Add the rows of a batch."""
        calls = batch.tables.get("api_calls")
        if calls:
            self._add_calls(batch.process, calls)
        if len(batch.work):
            self._add_work(batch)
        allocations = batch.tables.get("allocations")
        if allocations:
            kind = _KIND_OF_OPERATION.take(allocations["operation"], mode="clip")
            group = self._group(batch.process, kind, allocations["correlation"])
            self._sums["bytes"].add(group, sizes(allocations["bytes"]))

    def end_process(self) -> None:
        """Forget the calls of a process."""
        self._outermost = OutermostCalls()

    def uses(self) -> Iterator[StackUse]:
        """The sums of each kind and stack, and of the other calls of the kinds of which some have a stack."""
        with_stack = {kind for kind, stack in self._groups.values if stack}
        size = len(self._groups.values)
        sums = [
            grown(self._sums[measure].by_group, size).tolist() for measure in _MEASURES
        ]
        for (kind, stack), *values in zip(self._groups.values, *sums, strict=True):
            if stack or kind in with_stack:
                frames = tuple(map(self._stacks.frame, self._stacks.frames(stack)))
                yield StackUse(frames, CALL_KINDS[kind], *values)

    def _add_calls(self, process: int, calls: Columns) -> None:
        at = self._outermost.of(calls)
        kind = self._kinds.take(calls["function"][at])
        group = self._group(process, kind, calls["correlation"][at])
        self._sums["calls"].add(group)
        self._sums["api_ns"].add(group, (calls["end"] - calls["start"])[at])

    def _add_work(self, batch: SweepBatch) -> None:
        work = batch.work
        group = self._group(batch.process, self._kinds_of_work(work), work.correlation)
        self._sums["operations"].add(group)
        self._sums["gpu_ns"].add(group, work.end - work.start)
        for number, table in enumerate(GPU_WORK):
            rows = batch.tables.get(table)
            if rows and "bytes" in rows:
                # The work of a table is in the order of its rows.
                self._sums["bytes"].add(
                    group[work.table == number], sizes(rows["bytes"])
                )

    def _kinds_of_work(self, work: Work) -> np.ndarray:
        return np.where(
            work.calls.known,
            self._kinds.take(work.calls.function),
            _KIND_OF_WORK[work.table],
        )

    def _group(
        self, process: int, kind: np.ndarray, correlation: np.ndarray
    ) -> np.ndarray:
        stack = self._stacks.alike.take(self._stacks.of(process, correlation))
        return self._groups.of(kind, stack.astype(np.uint32))

    @cached_property
    def _kinds(self) -> np.ndarray:
        """The kind of the calls of each function of the trace."""
        names = self._trace.strings.take(self._trace.functions["name"]).tolist()
        return np.array([CALL_KINDS.index(call_kind(name)) for name in names], np.uint8)


class StackPaths:
    """GPU work and the time of API calls by Python frames, for flame graphs."""

    def __init__(self, stacks: PythonStacks) -> None:
        self._stacks = stacks
        self._outermost = OutermostCalls()
        self._api_ns = Sums()
        self._work = Groups()
        self._operations = Sums()
        self._gpu_ns = Sums()

    def add(self, batch: SweepBatch, label: np.ndarray | None) -> None:
        """Add the rows of a batch. ``label`` has a number for each piece of its work."""
        calls = batch.tables.get("api_calls")
        if calls:
            at = self._outermost.of(calls)
            stack = self._of(batch.process, calls["correlation"][at])
            self._api_ns.add(stack, (calls["end"] - calls["start"])[at])
        if label is not None:
            work = batch.work
            group = self._work.of(self._of(batch.process, work.correlation), label)
            self._operations.add(group)
            self._gpu_ns.add(group, work.end - work.start)

    def end_process(self) -> None:
        """Forget the calls of a process."""
        self._outermost = OutermostCalls()

    def calls(self) -> Iterator[tuple[int, int]]:
        """Each stack with calls, and their time (ns)."""
        for stack in np.flatnonzero(self._api_ns.by_group).tolist():
            yield stack, int(self._api_ns.by_group[stack])

    def work(self) -> Iterator[tuple[int, int, int, int]]:
        """Each stack and label with work: its number of pieces and its time (ns)."""
        sums = (self._operations.by_group.tolist(), self._gpu_ns.by_group.tolist())
        for (stack, label), operations, gpu_ns in zip(
            self._work.values, *sums, strict=True
        ):
            yield stack, label, operations, gpu_ns

    def _of(self, process: int, correlation: np.ndarray) -> np.ndarray:
        stack: np.ndarray = self._stacks.alike.take(
            self._stacks.of(process, correlation)
        )
        return stack.astype(np.uint32)
