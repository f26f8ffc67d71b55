"""The paths of flame graphs: nested NVTX ranges and slices of the host, or Python frames, down to GPU work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..._native import PathTimes
from ...runbin.layout import GPU_WORK
from ...trace import Trace
from ...trace.ranges import RANGE_TABLES
from ...trace.stacks import PythonStacks
from ..collection import CollectedBy, StatsCollector
from ..context import CollectorContext, Numbering
from ..distribution import Sums
from ..sweep import Groups, Stream, SweepBatch, Work
from .gpus import work_name
from .host import HOST_SLICES
from .nvtx import RANGES
from .slices import ProjectedSlices
from .stacks import OutermostCalls

_KERNELS = GPU_WORK.index("kernels")
# Ranges share one path if more range names than this differ only in their numbers.
_NUMBERED = 100
_DIGITS = re.compile(r"\d+")
# Deeper ranges around the creation of graph nodes are left out of the path.
_DEEPEST = 256


@dataclass(frozen=True)
class PathUse:
    """A path of nested NVTX ranges and slices of the host, or of Python frames, outermost first.

    For the ``kind`` "range", ``cpu_ns`` is the time that threads spent in the last range and in no range inside it, or
    in API calls of the last frame. For the kinds "kernel", "copy", "fill" and "graph", the last element is the name of
    GPU work that was launched there; ``operations`` counts this work, and ``gpu_ns`` is the sum of its times.
    """

    path: tuple[str, ...]
    kind: str
    operations: int
    gpu_ns: int
    cpu_ns: int


class _WorkLabels:
    """Numbers for the kinds and names of GPU work."""

    def __init__(self, context: CollectorContext) -> None:
        self._kernels = context.kernels
        self._groups = Groups(self._name)

    def of(self, work: Work) -> np.ndarray:
        """The number of each piece of work."""
        kernel = self._kernels.numbers.take(work.launch)
        detail = np.where(work.table == _KERNELS, kernel, work.detail)
        return self._groups.of(work.table, detail)

    def __getitem__(self, number: int) -> tuple[str, str]:
        """The kind and the name of a number."""
        return self._groups.values[number]

    def _name(self, table: int, detail: int) -> tuple[str, str]:
        if table == _KERNELS:
            return "kernel", self._kernels.names[detail]
        return work_name(table, detail)


# By range


class _RangeNames:
    """The names of ranges. ``step 1``, ``step 2``, ... are ``step #`` if there are many of them."""

    def __init__(self, trace: Trace) -> None:
        numbered = (_DIGITS.sub("#", string) for string in trace.strings)
        self._counts = Counter(numbered)
        self.by_string = Numbering.of(map(self.name, trace.strings))

    def name(self, string: str) -> str:
        """The name of a range."""
        numbered = _DIGITS.sub("#", string)
        if self._counts[numbered] > _NUMBERED:
            return numbered
        return string or "(unnamed)"


class _PathCollector(StatsCollector[PathUse]):
    tables = (*GPU_WORK, "api_calls", *RANGE_TABLES)

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._times = PathTimes()
        self._names = _RangeNames(context.trace)
        # The numbers of the labels of ranges, by label; and groups of ranges with these numbers as values.
        self._labels: dict[str, int] = {}
        self._ranges = Groups(self._range_label)
        self._work = _WorkLabels(context)
        # The labels of the ranges in which graph nodes were created, by path.
        self._creations: list[list[int]] = []
        if context.trace.origins:
            for path in context.trace.origins.paths:
                names = map(self._names.name, path[:_DEEPEST])
                self._creations.append([self._label(name) for name in names])

    def _label(self, label: str) -> int:
        return self._labels.setdefault(label, len(self._labels))

    def _range_label(self, number: int, domain: int) -> int:
        name = self._names.by_string.names[number]
        if domain:
            name = f"{self.context.text(domain)}:{name}"
        return self._label(name)

    def add(self, batch: SweepBatch) -> None:
        slices = list(self._slices(batch))
        if slices:
            columns = zip(*slices, strict=True)
            self._times.add_ranges(*map(np.concatenate, columns))
        work = batch.work
        if len(work):
            calls = work.calls
            self._times.add_work(
                calls.thread,
                calls.start,
                calls.known,
                self._work.of(work),
                work.end - work.start,
                self.context.created(work),
                self._creations,
                calls.owner,
                calls.ranges.adopters(),
            )
        self._times.forget(batch.until)

    def _slices(self, batch: SweepBatch) -> Iterator[ProjectedSlices]:
        """The ranges and slices of a batch, numbered by their labels."""
        for table, grouping in (("nvtx_ranges", RANGES), ("host_slices", HOST_SLICES)):
            rows = batch.tables.get(table)
            if not rows:
                continue
            domain = np.zeros(len(rows), np.uint32)
            # Slices of the host show no category, so it does not divide them.
            if table == "nvtx_ranges":
                domain = rows["domain"]
            name = self._names.by_string.numbers.take(rows["name"])
            group = self._ranges.of(name, domain)
            labels = np.array(self._ranges.values, np.uint32)
            yield grouping.slices(rows, labels.take(group))

    def end(self, process: int, streams: list[Stream]) -> Iterable[PathUse]:
        self._times.finish(self.context.trace.end)
        return ()

    def result(self) -> Iterator[PathUse]:
        labels = list(self._labels)
        # The path of each node; parents come first.
        paths: list[tuple[str, ...]] = []
        for parent, label, *use in self._times.nodes():
            kind = "range"
            if not paths:
                paths.append(())
            elif label & PathTimes.WORK:
                kind, name = self._work[label - PathTimes.WORK]
                paths.append((*paths[parent], name))
            else:
                paths.append((*paths[parent], labels[label]))
            if any(use):
                yield PathUse(paths[-1], kind, *use)


#: GPU work and time of threads by path of nested ranges.
PATHS = CollectedBy(_PathCollector)


# By Python stack


class _StackPathCollector(StatsCollector[PathUse]):
    """Reads nothing of a trace without stacks."""

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._stacks = context.trace.python_stacks
        if self._stacks:
            self.tables = (*GPU_WORK, "api_calls")
        self._outermost = OutermostCalls()
        self._api_ns = Sums()
        self._labels = _WorkLabels(context)
        # Groups of GPU work by stack and label.
        self._work = Groups()
        self._operations = Sums()
        self._gpu_ns = Sums()

    def add(self, batch: SweepBatch) -> None:
        if not self._stacks:
            return
        calls = batch.tables.get("api_calls")
        if calls:
            at = self._outermost.of(calls)
            ids = calls["correlation"][at]
            stack = _stacks_of(self._stacks, batch.process, ids)
            self._api_ns.add(stack, (calls["end"] - calls["start"])[at])
        work = batch.work
        if len(work):
            stack = _stacks_of(self._stacks, batch.process, work.correlation)
            group = self._work.of(stack, self._labels.of(work))
            self._operations.add(group)
            self._gpu_ns.add(group, work.end - work.start)

    def end(self, process: int, streams: list[Stream]) -> Iterable[PathUse]:
        self._outermost = OutermostCalls()
        return ()

    def result(self) -> Iterator[PathUse]:
        if not self._stacks:
            return
        api_ns = self._api_ns.by_group
        for stack in np.flatnonzero(api_ns).tolist():
            if stack:
                path = _frames(self._stacks, stack)
                yield PathUse(path, "range", 0, 0, int(api_ns[stack]))
        paths: dict[int, tuple[str, ...]] = {}
        operations = self._operations.of_groups(len(self._work.values))
        gpu_ns = self._gpu_ns.of_groups(len(self._work.values))
        for group, (stack, label) in enumerate(self._work.values):
            if stack not in paths:
                paths[stack] = _frames(self._stacks, stack)
            kind, name = self._labels[label]
            path = (*paths[stack], name)
            yield PathUse(path, kind, operations[group], gpu_ns[group], 0)


def _stacks_of(
    stacks: PythonStacks, process: int, correlation: np.ndarray
) -> np.ndarray:
    stack: np.ndarray = stacks.alike.take(stacks.of(process, correlation))
    return stack.astype(np.uint32)


def _frames(stacks: PythonStacks, stack: int) -> tuple[str, ...]:
    return tuple(map(stacks.place, stacks.frames(stack)))


#: GPU work and the time of API calls by path of Python frames.
STACK_PATHS = CollectedBy(_StackPathCollector)
