"""Collectors: each computes one part of the statistics from the batches of a sweep."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, repeat, zip_longest
from typing import Any

import numpy as np

from .._native import (
    BusyParts,
    GpuTimes,
    InnerTimes,
    Levels,
    MemoryTotals,
    PathTimes,
    StreamTimes,
)
from ..errors import CutraceError
from ..runbin import labels
from ..runbin.labels import known_label
from ..runbin.layout import HOST_SLICE_KINDS
from ..trace import Trace
from ..trace.nccl import NcclCall
from ..trace.ordered import Columns
from ..trace.origins import NODE_FIELDS, OUTSIDE, UNRECORDED
from ..trace.quality import GPU_WORK
from ..trace.ranges import ADOPTED, NONE, OWN, RANGE_TABLES, SEVERAL, are_ranges
from ..trace.rows import LATEST
from . import gpu, stats
from .call_stacks import StackPaths, StackSums
from .calls import UNKNOWN_CALL, plain_name
from .distribution import NOTHING, Distributions, Spread, Sums, grown, sizes
from .names import UNKNOWN
from .projection import Projected, Projection
from .stats import DEFAULTS, Stats, StatsOptions
from .sweep import Groups, Stream, Sweep, SweepBatch, Work

_KERNELS = GPU_WORK.index("kernels")
_ALLOCATE = 1
_RELEASE = 2
# The end of rows that never end.
_FOREVER = int(LATEST)
# More names of ranges than this that differ in numbers only have one path.
_NUMBERED = 100
_DIGITS = re.compile(r"\d+")
# The ranges of a creation of graph nodes beyond this depth have no path of their own.
_DEEPEST = 256
# Parts of the time of GPU work, for values over time.
_PARTS = 400
_CONFIGURATION = (
    *(f"{what}_{axis}" for what in ("grid", "block", "cluster") for axis in "xyz"),
    *("registers", "static_shared", "dynamic_shared"),
)


@dataclass(frozen=True)
class Numbering:
    """Numbers of the distinct names of ``launches`` or ``functions``: ``numbers`` by row, ``names`` by number."""

    numbers: np.ndarray
    names: list[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> Numbering:
        known: dict[str, int] = {}
        numbers = np.array(
            [known.setdefault(name, len(known)) for name in names], np.uint32
        )
        return cls(numbers, list(known))


class CollectorContext:
    """The trace, the options and the tables of names that the collectors of one call share."""

    def __init__(self, trace: Trace, options: StatsOptions) -> None:
        self.trace = trace
        self.options = options
        self.text = trace.strings.__getitem__

    @cached_property
    def kernels(self) -> Numbering:
        """The names of kernels by launch configuration."""
        names = self.trace.strings.take(
            self.trace.launches["name"], self.options.names
        ).tolist()
        return Numbering.of(name or UNKNOWN for name in names)

    @cached_property
    def ranges(self) -> Numbering:
        """The names of ranges by string id. ``step 1``, ``step 2``, ... are ``step #`` if there are many of them."""
        return Numbering.of(map(self.range_name, self.trace.strings))

    @cached_property
    def _numbered(self) -> Counter[str]:
        """The number of texts that differ in numbers only."""
        return Counter(_DIGITS.sub("#", text) for text in self.trace.strings)

    def range_name(self, text: str) -> str:
        """The name of a range, with ``#`` in place of numbers if there are many that differ in them."""
        short = _DIGITS.sub("#", text)
        if self._numbered[short] > _NUMBERED:
            return short
        return text or "(unnamed)"

    @cached_property
    def functions(self) -> Numbering:
        """The names of API functions."""
        names = self.trace.strings.take(
            self.trace.functions["name"], plain_name
        ).tolist()
        return Numbering.of(name or UNKNOWN_CALL for name in names)

    @cached_property
    def configurations(self) -> tuple[np.ndarray, list[stats.Configuration]]:
        """The number of each launch configuration of the trace, and the distinct ones by number."""
        groups = Groups(self._configuration)
        launches = self.trace.launches
        return groups.of(
            self.kernels.numbers, *(launches[field] for field in _CONFIGURATION)
        ), groups.values

    def _configuration(self, name: int, *fields: int) -> stats.Configuration:
        gx, gy, gz, bx, by, bz, cx, cy, cz, registers, static, dynamic = fields
        shape = (gx, gy, gz), (bx, by, bz), (cx, cy, cz)
        return stats.Configuration(
            self.kernels.names[name], *shape, registers, (static, dynamic)
        )

    def created(self, work: Work) -> np.ndarray | None:
        """The path of the ranges in which the graph node of each piece of work was created (``Trace.origins``); None in
        a trace without origins."""
        origins = self.trace.origins
        if origins is None or work.node is None:
            return None
        return origins.path_of.take(work.node)

    @cached_property
    def kinds(self) -> gpu.Kinds:
        """The kinds of GPU work."""
        return gpu.Kinds(self.trace)


class StatsCollector(ABC):
    """A part of the statistics. It receives the batches of one process after another."""

    #: The tables that batches must contain. If they include GPU work and calls, the call of each piece of work is
    #: looked up.
    tables: tuple[str, ...] = ()
    #: Whether each process gets a collector of its own.
    each_process: bool = False

    def __init__(self, context: CollectorContext) -> None:
        self.context = context

    @abstractmethod
    def add(self, batch: SweepBatch) -> None:
        """Add a batch."""

    def end(self, process: int, streams: list[Stream]) -> Iterable[Any]:
        """Called after the last batch of a process. Returns the rows of the field that are complete."""
        return ()

    def result(self) -> Iterable[Any]:
        """Called after the last process. Returns the rows of the field that no call of :meth:`end` returned."""
        return ()


class Codes(StatsCollector):
    """The machine code of the kernels of each name, which is recorded by launch configuration."""

    def add(self, batch: SweepBatch) -> None:
        """Rows of events have no code of their own."""

    def result(self) -> Iterator[stats.CodeUse]:
        codes = self.context.trace.codes
        if codes is None:
            return
        for name, kernel in codes.by_name(self.context.options.names).items():
            yield stats.CodeUse(name or UNKNOWN, kernel.codes, kernel.unknown)


def _duration(rows: Columns) -> np.ndarray:
    duration: np.ndarray = rows["end"] - rows["start"]
    return duration


@dataclass(frozen=True)
class Grouping:
    """How rows of some ``tables`` are grouped. ``key`` returns the columns that rows of a group share, ``values`` the
    columns whose spread is computed, ``marked`` a mask of rows to count separately. ``row`` makes the result row from
    the key of a group, its spreads and, with ``marked``, the number of marked rows."""

    tables: tuple[str, ...]
    key: Callable[[CollectorContext, Columns], Sequence[np.ndarray]]
    row: Callable[..., Any]
    values: Callable[[Columns], tuple[np.ndarray, ...]] = lambda rows: (
        _duration(rows),
    )
    marked: Callable[[CollectorContext, Columns], np.ndarray] | None = None
    #: A mask of the slices whose GPU work is known: all ranges, and slices that begin and end on one thread.
    projects: Callable[[Columns], np.ndarray] = lambda rows: np.ones(len(rows), bool)

    def slices(self, rows: Columns, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """Thread, begin, end and number of the slices whose GPU work is known, and whether they are ranges."""
        ranges = are_ranges(self.tables[0], rows)
        at = self.projects(rows)
        columns = (rows["thread"], rows["start"], rows["end"], numbers, ranges)
        if at.all():
            return columns
        return tuple(column[at] for column in columns)


class Grouped(StatsCollector):
    """Groups of rows, with the spreads of some columns in each group."""

    def __init__(self, context: CollectorContext, grouping: Grouping) -> None:
        super().__init__(context)
        self.tables = (*grouping.tables, *self.tables)
        self.grouping = grouping
        self.groups = Groups()
        self._marked = Sums()
        self._spreads: tuple[Distributions, ...] = ()

    def add(self, batch: SweepBatch) -> None:
        for table in self.grouping.tables:
            rows = batch.tables.get(table)
            if rows:
                self.count(self.groups.of(*self.grouping.key(self.context, rows)), rows)

    def count(self, group: np.ndarray, rows: Columns) -> None:
        """Add rows, each with its group."""
        self.spread(group, *self.grouping.values(rows))
        if self.grouping.marked:
            self._marked.add(
                group.take(np.flatnonzero(self.grouping.marked(self.context, rows)))
            )

    def spread(self, group: np.ndarray, *values: np.ndarray) -> None:
        """Add values of rows to the spreads of their groups."""
        self._spreads = self._spreads or tuple(Distributions() for _ in values)
        for spread, numbers in zip(self._spreads, values, strict=True):
            spread.add(group, numbers)

    def result(self) -> Iterator[Any]:
        # The last groups may have no values.
        spreads = (chain(spread.spreads(), repeat(NOTHING)) for spread in self._spreads)
        for key, *values in zip(
            self.groups.values, *spreads, *self.more(), strict=False
        ):
            yield self.grouping.row(self.context, key, *values)

    def more(self) -> tuple[Iterable[Any], ...]:
        """Further arguments of :attr:`Grouping.row`, each by group."""
        if self.grouping.marked:
            return (chain(self._marked.by_group.tolist(), repeat(0)),)
        return ()


def _times_and_bytes(rows: Columns) -> tuple[np.ndarray, ...]:
    return _duration(rows), sizes(rows["bytes"])


_FILL = 256  # kinds of copies are 0 to 255


def _operations(c: CollectorContext, rows: Columns) -> tuple[np.ndarray]:
    """The kind of each copy or fill."""
    return (
        rows["kind"].astype(np.uint16)
        if "kind" in rows
        else np.full(len(rows), _FILL, np.uint16),
    )


def _operation_name(kind: int) -> str:
    if kind == _FILL:
        return "[CUDA memset]"
    return f"[CUDA memcpy {known_label(labels.COPIES, kind)}]"


@lru_cache(maxsize=4096)
def work_name(table: int, detail: int) -> tuple[str, str]:
    """The kind and the name of GPU work that is no kernel, by its table's index in ``GPU_WORK`` and its
    :attr:`Work.detail`."""
    kind = {"memcpys": "copy", "memsets": "fill", "graph_launches": "graph"}[
        GPU_WORK[table]
    ]
    return kind, f"graph {detail}" if kind == "graph" else _operation_name(
        _FILL if kind == "fill" else detail
    )


def _copy(c: CollectorContext, rows: Columns) -> tuple[np.ndarray, ...]:
    # The exponent of frexp() is the number of bits, exact up to 2^53.
    bits = np.frexp(sizes(rows["bytes"]).astype(np.float64))[1].astype(np.uint8)
    return rows["kind"], rows["source_memory"], rows["destination_memory"], bits


def _copies(
    c: CollectorContext, key: tuple[int, ...], time: Spread, size: Spread
) -> stats.CopyUse:
    kind, source, destination, bits = key
    memories = (
        known_label(labels.MEMORY_KINDS, source),
        known_label(labels.MEMORY_KINDS, destination),
    )
    return stats.CopyUse(
        known_label(labels.COPIES, kind),
        *memories,
        1 << (bits - 1) if bits else 0,
        time,
        size,
    )


def _unified(
    c: CollectorContext, key: tuple[int, ...], time: Spread, value: Spread
) -> stats.UnifiedMemoryUse:
    name, in_bytes = labels.UNIFIED_MEMORY.get(key[0], (f"unknown ({key[0]})", False))
    return stats.UnifiedMemoryUse(name, time, value, in_bytes)


def _fields(*names: str) -> Callable[[CollectorContext, Columns], Sequence[np.ndarray]]:
    return lambda c, rows: [rows[name] for name in names]


def _kinds(table: str, field: str, names: dict[int, str]) -> Grouping:
    """Rows by one numeric field whose values have ``names``."""
    return Grouping(
        (table,),
        _fields(field),
        lambda c, key, time: stats.Timed(known_label(names, key[0]), time),
    )


class Sliced(Grouped):
    """Slices of the host, with the GPU work launched in them."""

    tables = (*GPU_WORK, "api_calls", *RANGE_TABLES)

    def __init__(self, context: CollectorContext, grouping: Grouping) -> None:
        super().__init__(context, grouping)
        self.ranges = Projection(adopts=True)
        self._others = Projection()

    def add(self, batch: SweepBatch) -> None:
        super().add(batch)
        if len(batch.work):
            self.launch(batch)

    def count(self, group: np.ndarray, rows: Columns) -> None:
        ended = rows["end"] != _FOREVER
        self.spread(group[ended], _duration(rows)[ended])
        self.spend(*self.grouping.slices(rows, group))

    def spend(self, *slices: np.ndarray) -> None:
        """Add slices whose GPU work is known, each with its group (:meth:`Grouping.slices`)."""
        *columns, ranges = slices
        for projection, at in ((self.ranges, ranges), (self._others, ~ranges)):
            if at.any():
                projection.add(*(column[at] for column in columns))

    def launch(self, batch: SweepBatch) -> None:
        self.ranges.launch(batch.work)
        self._others.launch(batch.work)

    def end(self, process: int, streams: list[Stream]) -> Iterable[Any]:
        self.ranges.finish()
        self._others.finish()
        return ()

    def more(self) -> tuple[Iterable[Any], ...]:
        # A group has ranges or other slices, but not both.
        both = zip_longest(
            self.ranges.projected(), self._others.projected(), fillvalue=Projected()
        )
        projected = (
            of_ranges if of_ranges.operations else of_others
            for of_ranges, of_others in both
        )
        return (chain(projected, repeat(Projected())),)


class RangeKernelUses(Sliced):
    """The kernels launched in the slices of each group, by name."""

    def launch(self, batch: SweepBatch) -> None:
        work = batch.work
        names = self.context.kernels.numbers
        name = np.where(
            work.table == _KERNELS, names.take(work.launch).astype(np.int64), -1
        )
        self.ranges.launch(work, name)

    def result(self) -> Iterator[stats.RangeKernels]:
        for group, kernel, time in self.ranges.kernels():
            name, domain, style = _range(self.context, self.groups.values[group])
            yield stats.RangeKernels(
                name, domain, style, self.context.kernels.names[kernel], time
            )


def _range(c: CollectorContext, key: tuple[int, ...]) -> tuple[str, str, str]:
    return c.text(key[0]), c.text(key[1]), known_label(labels.RANGE_STYLES, key[2])


def _nccl(
    c: CollectorContext,
    key: tuple[int, ...],
    time: Spread,
    size: Spread,
    call: NcclCall,
) -> stats.NcclUse:
    return stats.NcclUse(
        c.text(key[0]),
        time,
        size,
        call.communicator,
        call.rank,
        call.root,
        call.reduction,
    )


def _ranges(
    c: CollectorContext, key: tuple[int, ...], time: Spread, projected: Projected
) -> stats.RangeUse:
    name, domain, style = _range(c, key)
    return stats.RangeUse(name, time, domain, style, projected)


class Host(Sliced):
    """Slices that importers read, with the time of each that is not in a slice directly inside it."""

    def __init__(self, context: CollectorContext, grouping: Grouping) -> None:
        super().__init__(context, grouping)
        self._inner = InnerTimes()

    def spend(self, *slices: np.ndarray) -> None:
        super().spend(*slices)
        thread, start, end, group, _ = slices
        ended = end != _FOREVER
        self._inner.add(thread[ended], start[ended], end[ended], group[ended])

    def end(self, process: int, streams: list[Stream]) -> Iterable[Any]:
        self._inner.finish()
        return super().end(process, streams)

    def more(self) -> tuple[Iterable[Any], ...]:
        return (*super().more(), chain(self._inner.times().tolist(), repeat(0)))


def _host(
    c: CollectorContext,
    key: tuple[int, ...],
    time: Spread,
    projected: Projected,
    inner: int,
) -> stats.HostUse:
    kind = known_label(HOST_SLICE_KINDS, key[2])
    category = c.text(key[1])
    return stats.HostUse(
        c.text(key[0]), time, kind, category, projected, time.total - inner
    )


class Paths(StatsCollector):
    """GPU work and time of threads by path of nested NVTX ranges and slices of the host."""

    tables = (*GPU_WORK, "api_calls", *RANGE_TABLES)

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        # Ranges get labels by their texts, work kinds and names.
        self._times, self._ranges = PathTimes(), Groups(self._range)
        self._work = Groups(partial(_name_of_work, context))
        self._labels: dict[str, int] = {}
        origins = context.trace.origins
        paths = origins.paths if origins else ()
        self._creations = [
            [self._label(context.range_name(name)) for name in path[:_DEEPEST]]
            for path in paths
        ]

    def _label(self, text: str) -> int:
        return self._labels.setdefault(text, len(self._labels))

    def add(self, batch: SweepBatch) -> None:
        slices = []
        for table, grouping in (("nvtx_ranges", _RANGES), ("host_slices", _HOST)):
            rows = batch.tables.get(table)
            if rows:
                # Slices of the host show no category, so it does not divide them.
                if table == "nvtx_ranges":
                    domain = rows["domain"]
                else:
                    domain = np.zeros(len(rows), np.uint32)
                group = self._ranges.of(
                    self.context.ranges.numbers.take(rows["name"]), domain
                )
                slices.append(
                    grouping.slices(
                        rows, np.array(self._ranges.values, np.uint32).take(group)
                    )
                )
        if slices:
            self._times.add_ranges(*map(np.concatenate, zip(*slices, strict=True)))
        if len(work := batch.work):
            names = self.context.kernels.numbers.take(work.launch)
            label = self._work.of(
                work.table, np.where(work.table == _KERNELS, names, work.detail)
            )
            calls = work.calls
            created = self.context.created(work)
            called = calls.thread, calls.start, calls.known
            owned = calls.owner, calls.how
            self._times.add_work(
                *called, label, work.end - work.start, created, self._creations, *owned
            )

    def _range(self, number: int, domain: int) -> int:
        text = self.context.ranges.names[number]
        return self._label(f"{self.context.text(domain)}:{text}" if domain else text)

    def end(self, process: int, streams: list[Stream]) -> Iterable[Any]:
        self._times.finish(self.context.trace.end)
        return ()

    def result(self) -> Iterator[stats.PathUse]:
        paths: list[tuple[str, ...]] = [()]
        texts = list(self._labels)
        for node, (parent, label, *use) in enumerate(self._times.nodes()):
            kind = "range"
            if label & PathTimes.WORK:
                kind, name = self._work.values[label - PathTimes.WORK]
            elif node:
                name = texts[label]
            if node:
                paths.append((*paths[parent], name))
            if any(use):
                yield stats.PathUse(paths[-1], kind, *use)


def _name_of_work(
    context: CollectorContext, table: int, number: int
) -> tuple[str, str]:
    """The kind and the name of GPU work, by the number of its name or by its :attr:`Work.detail`."""
    if table == _KERNELS:
        return ("kernel", context.kernels.names[number])
    return work_name(table, number)


class Stacks(StatsCollector):
    """API calls and their GPU work by Python stack. Reads nothing of a trace without stacks."""

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        stacks = context.trace.python_stacks
        self._sums = StackSums(context.trace, stacks) if stacks else None
        self.tables = (*GPU_WORK, "api_calls", "allocations") if stacks else ()

    def add(self, batch: SweepBatch) -> None:
        if self._sums:
            self._sums.add(batch)

    def end(self, process: int, streams: list[Stream]) -> Iterable[Any]:
        if self._sums:
            self._sums.end_process()
        return ()

    def result(self) -> Iterable[stats.StackUse]:
        if self._sums:
            return self._sums.uses()
        return ()


class PathsOfStacks(StatsCollector):
    """GPU work and the time of API calls by path of Python frames. Reads nothing of a trace without stacks."""

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._stacks = context.trace.python_stacks
        self._sums = StackPaths(self._stacks) if self._stacks else None
        self.tables = (*GPU_WORK, "api_calls") if self._stacks else ()
        self._work = Groups(partial(_name_of_work, context))

    def add(self, batch: SweepBatch) -> None:
        if not self._sums:
            return
        label = None
        if len(work := batch.work):
            names = self.context.kernels.numbers.take(work.launch)
            label = self._work.of(
                work.table, np.where(work.table == _KERNELS, names, work.detail)
            )
        self._sums.add(batch, label)

    def end(self, process: int, streams: list[Stream]) -> Iterable[Any]:
        if self._sums:
            self._sums.end_process()
        return ()

    def result(self) -> Iterator[stats.PathUse]:
        if not self._sums:
            return
        for stack, api_ns in self._sums.calls():
            if stack:
                yield stats.PathUse(self._path(stack), "range", 0, 0, api_ns)
        paths: dict[int, tuple[str, ...]] = {}
        for stack, label, operations, gpu_ns in self._sums.work():
            if stack not in paths:
                paths[stack] = self._path(stack)
            kind, name = self._work.values[label]
            yield stats.PathUse((*paths[stack], name), kind, operations, gpu_ns, 0)

    def _path(self, stack: int) -> tuple[str, ...]:
        if self._stacks:
            return tuple(map(self._stacks.place, self._stacks.frames(stack)))
        return ()


class GraphRanges(StatsCollector):
    """Work of graph nodes by the ranges in which they were created."""

    tables = tuple(NODE_FIELDS)

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._times = Distributions()
        self._runs = Sums()

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        path = self.context.created(work)
        if path is None or work.node is None:
            return
        at = np.flatnonzero(path != OUTSIDE)
        self._times.add(path[at], (work.end - work.start)[at])
        self._runs.add(work.node[at])

    def result(self) -> Iterator[stats.GraphRangeUse]:
        origins = self.context.trace.origins
        if not origins:
            return
        runs = self._runs.by_group
        path_of = origins.path_of[: len(runs)]
        nodes = np.bincount(path_of[runs > 0], minlength=len(origins.paths))
        replays = np.zeros(len(origins.paths), np.int64)
        np.maximum.at(replays, path_of, runs)
        for path, time in enumerate(self._times.spreads()):
            if time.count:
                known: tuple[int | None, int | None]
                if path != UNRECORDED:
                    known = (int(nodes[path]), int(replays[path]))
                else:
                    known = (None, None)
                yield stats.GraphRangeUse(
                    origins.text(path), time, origins.paths[path], *known
                )


class RangeShares(StatsCollector):
    """GPU work by how it belongs to ranges. Nothing of a trace without ranges."""

    tables = (*GPU_WORK, "api_calls", *RANGE_TABLES)

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._has_ranges = False
        self._operations = np.zeros(NONE + 1, np.int64)
        self._gpu_ns = np.zeros(NONE + 1, np.int64)

    def add(self, batch: SweepBatch) -> None:
        for table in RANGE_TABLES:
            rows = batch.tables.get(table)
            if rows and are_ranges(table, rows).any():
                self._has_ranges = True
        work = batch.work
        how = np.where(work.calls.known, work.calls.how, NONE)
        time = work.end - work.start
        for kind in range(NONE + 1):
            mine = how == kind
            self._operations[kind] += np.count_nonzero(mine)
            self._gpu_ns[kind] += time[mine].sum()

    def result(self) -> Iterator[stats.RangeShare]:
        if not self._has_ranges:
            return
        kinds = {OWN: "own", ADOPTED: "adopted", SEVERAL: "several", NONE: "none"}
        for kind, name in kinds.items():
            yield stats.RangeShare(
                name, int(self._operations[kind]), int(self._gpu_ns[kind])
            )


class NcclUses(Grouped):
    """Calls of NCCL whose size is known."""

    def __init__(self, context: CollectorContext, grouping: Grouping) -> None:
        super().__init__(context, grouping)
        # The calls without their sizes, by number.
        self._kinds: dict[NcclCall, int] = {}

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("nvtx_ranges")
        if not rows:
            return
        number = self.context.trace.nccl.of_rows(rows)
        calls = self.context.trace.nccl.calls
        kinds = [
            self._kinds.setdefault(call._replace(bytes=None), len(self._kinds))
            for call in calls
        ]
        size = np.array([-1 if call.bytes is None else call.bytes for call in calls])[
            number
        ]
        sized = (size >= 0) & (rows["end"] != _FOREVER)
        group = self.groups.of(
            rows["name"][sized], np.array(kinds, np.uint32)[number[sized]]
        )
        self.spread(group, _duration(rows)[sized], size[sized])

    def more(self) -> tuple[Iterable[Any], ...]:
        kinds = list(self._kinds)
        return ([kinds[kind] for _, kind in self.groups.values],)


_ASYNCHRONOUS = next(
    number for number, kind in HOST_SLICE_KINDS.items() if kind == "asynchronous"
)


class StreamUses(StatsCollector):
    tables = (*GPU_WORK, "api_calls")
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        options = context.options
        self._times = StreamTimes(
            options.consecutive_ns,
            gpu.RELEASE_NS,
            options.full_queue,
            gpu.LONGEST_QUEUE,
        )
        self._lengths = Distributions()

    def add(self, batch: SweepBatch) -> None:
        work, calls = batch.work, batch.work.calls
        called = (calls.known, calls.start, calls.end)
        queued = self._times.add(
            work.start, work.end, work.table, work.stream, work.correlation, *called
        )
        self._lengths.add(*queued)

    def end(self, process: int, streams: list[Stream]) -> Iterator[gpu.StreamUse]:
        lengths = [*self._lengths.spreads(), *(NOTHING for _ in streams)]
        unrecorded = self.context.trace.unrecorded(process)
        for stream, at_launch, use in zip(
            streams, lengths, self._times.uses(), strict=False
        ):
            counts, first, last, busy, idle, gaps, (high, low), span, full = use
            queue = gpu.Queue(
                at_launch, (high << 64 | low) / span if span > 0 else 0.0, full
            )
            by_table = dict(zip(GPU_WORK, counts, strict=True))
            waits = gpu.Idle(*(*idle, gaps)).without(unrecorded, first, last)
            yield gpu.StreamUse(
                process, stream, by_table, first, last, busy, waits, queue
            )


class GpuUses(StatsCollector):
    tables = GPU_WORK
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._times = GpuTimes()

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        kinds = self.context.kinds.of(work.table, work.launch)
        self._times.add(
            work.device.astype(np.uint32), work.start, work.end, work.table, kinds
        )

    def end(self, process: int, streams: list[Stream]) -> Iterator[gpu.GpuUse]:
        for device, counts, spent, first, last, times in self._times.uses():
            yield gpu.GpuUse(
                process,
                device,
                dict(zip(GPU_WORK, counts, strict=True)),
                spent[_KERNELS],
                first,
                last,
                busy=times[gpu.ANY_WORK],
                compute=times[gpu.COMPUTE],
                communication=gpu.overlap(times, gpu.COMMUNICATE),
                copies=gpu.overlap(times, gpu.COPY),
                both=gpu.overlap(times, gpu.COMMUNICATE | gpu.COPY),
            )


class _Launched:
    """The kernels of a batch whose calls were recorded: parallel arrays with the times (ns) of
    :class:`.stats.LaunchUse`. ``all`` is the number of kernels with and without a recorded call."""

    def __init__(self, batch: SweepBatch) -> None:
        work, calls = batch.work, batch.work.calls
        kernel = work.table == _KERNELS
        self.all = int(np.count_nonzero(kernel))
        kernel &= calls.known
        self._at = None if kernel.all() else np.flatnonzero(kernel)
        start, end, called, returned = map(
            self.of, (work.start, work.end, calls.start, calls.end)
        )
        self.time = end - start
        self.call = returned - called
        self.latency = start - called
        self.queue = np.maximum(start - returned, 0)

    def of(self, column: np.ndarray) -> np.ndarray:
        """The part of a column of :attr:`SweepBatch.work` that belongs to these kernels."""
        if self._at is None:
            return column
        return column.take(self._at)


class LaunchUses(StatsCollector):
    tables = ("kernels", "api_calls")
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._times = tuple(Distributions() for _ in range(3))
        self._kernels = self._bound = self._short = self._early = 0

    def add(self, batch: SweepBatch) -> None:
        kernels = _Launched(batch)
        values = kernels.call, np.maximum(kernels.latency, 0), kernels.queue
        for times, column in zip(self._times, values, strict=True):
            times.add(0, column)
        self._kernels += kernels.all
        self._bound += int(np.count_nonzero(kernels.time < kernels.call))
        self._short += int(
            np.count_nonzero(kernels.time < self.context.options.short_ns)
        )
        self._early += int(np.count_nonzero(kernels.latency < 0))

    def end(self, process: int, streams: list[Stream]) -> Iterable[stats.LaunchUse]:
        if all(map(len, self._times)):
            call, latency, queue = (times.spreads()[0] for times in self._times)
            yield stats.LaunchUse(
                process,
                self._kernels,
                call,
                latency,
                queue,
                self._bound,
                self._short,
                self._early,
            )


class Executions(Grouped):
    tables = ("kernels", "api_calls")

    def add(self, batch: SweepBatch) -> None:
        kernels = _Launched(batch)
        c = self.context
        if len(kernels.time):
            function = kernels.of(batch.work.calls.function)
            launch = kernels.of(batch.work.launch)
            group = self.groups.of(
                c.functions.numbers.take(function), c.kernels.numbers.take(launch)
            )
            total = np.maximum(kernels.latency + kernels.time, 0)
            self.spread(group, kernels.call, kernels.queue, kernels.time, total)


class Counters(StatsCollector):
    tables = ("counters",)
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._groups = Groups()
        # By counter: number of samples, sum, minimum, maximum.
        self._values = np.zeros((4, 0))
        # By counter: the time integral (value x ns), and the last value and its time.
        self._held = np.zeros((2, 0))
        self._times = np.zeros(0, np.int64)

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("counters")
        if rows:
            group = self._groups.of(
                rows["device"], rows["name"], rows["series"], rows["unit"]
            )
            value = rows["value"]
            self._hold(group, rows["time"].astype(np.int64), value)
            finite = np.isfinite(value)
            group = group[finite]
            value = value[finite]
            size = len(self._groups.values)
            self._values = grown(
                self._values, size, np.array([[0], [0], [np.inf], [-np.inf]])
            )
            count, total, least, most = self._values
            count += np.bincount(group, minlength=size)
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # sums of huge values may overflow
                total += np.bincount(group, weights=value, minlength=size)
            np.minimum.at(least, group, value)
            np.maximum.at(most, group, value)

    def _hold(self, group: np.ndarray, time: np.ndarray, value: np.ndarray) -> None:
        """Add each value times the time (ns) until the next sample of its counter. Rows are in the order of time."""
        size = len(self._groups.values)
        self._held, self._times = grown(self._held, size), grown(self._times, size)
        total, last = self._held
        # Counter by counter: the last sample of earlier batches, then the new ones.
        group = np.append(np.arange(size), group)
        time = np.append(self._times, time)
        value = np.append(last, value)
        order = np.argsort(group, kind="stable")
        group = group[order]
        time = time[order]
        value = value[order]
        ends = np.flatnonzero(np.append(group[1:] != group[:-1], True))
        lasts = np.diff(time, append=time[-1:])
        lasts[ends] = 0
        known = np.isfinite(value)
        with np.errstate(over="ignore", invalid="ignore"):
            total += np.bincount(
                group[known], weights=value[known] * lasts[known], minlength=size
            )
        self._times, last[:] = time[ends], value[ends]

    def end(self, process: int, streams: list[Stream]) -> Iterable[stats.CounterUse]:
        for key, values, held in zip(
            self._groups.values,
            self._values.T.tolist(),
            self._held[0].tolist(),
            strict=True,
        ):
            count, total, least, most = values
            if count:
                name, series, unit = map(self.context.text, key[1:])
                amount = held / 1e9 if unit.endswith("/s") else None
                spread = least, total / count, most
                yield stats.CounterUse(
                    process, key[0], name, series, unit, int(count), *spread, amount
                )


class Memory(StatsCollector):
    tables = ("allocations",)
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._groups = Groups()
        self._totals = MemoryTotals()

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("allocations")
        if rows:
            group = self._groups.of(rows["device"], rows["memory"])
            self._totals.add(group, rows["operation"], rows["bytes"])

    def end(self, process: int, streams: list[Stream]) -> Iterable[stats.MemoryUse]:
        for (device, memory), totals in zip(
            self._groups.values, self._totals.rows(), strict=True
        ):
            yield stats.MemoryUse(
                process, device, known_label(labels.MEMORY_KINDS, memory), *totals
            )


def _changes(rows: Columns) -> np.ndarray:
    """The bytes of each row of ``allocations``: positive if allocated, negative if released."""
    operation = rows["operation"]
    signs = (operation == _ALLOCATE).astype(np.int8) - (operation == _RELEASE)
    changes: np.ndarray = sizes(rows["bytes"]) * signs
    return changes


class Busy(StatsCollector):
    tables = GPU_WORK
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        span = gpu.work_span(context.trace)
        self._gpus = BusyParts(*span, _PARTS)
        self._streams = BusyParts(*span, _PARTS)

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        self._gpus.add(work.device.astype(np.uint32), work.start, work.end)
        self._streams.add(work.stream, work.start, work.end)

    def end(self, process: int, streams: list[Stream]) -> Iterator[stats.BusyUse]:
        gpus, by_stream = (
            times.busy().reshape(-1, _PARTS) for times in (self._gpus, self._streams)
        )
        width = self._gpus.width
        for device, parts in enumerate(gpus.tolist()):
            if any(stream.device == device for stream in streams):
                yield stats.BusyUse(process, device, None, width, tuple(parts))
        for stream, parts in zip(streams, by_stream.tolist(), strict=False):
            yield stats.BusyUse(process, stream.device, stream, width, tuple(parts))


class MemoryOverTime(StatsCollector):
    tables = ("allocations",)
    each_process = True

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._groups = Groups()
        self._levels = Levels(*gpu.work_span(context.trace), _PARTS.bit_length(), 0)

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("allocations")
        if rows:
            group = self._groups.of(rows["device"], rows["memory"])
            number = np.arange(len(self._groups.values), dtype=np.uint32)
            counter = np.where(
                number < Levels.MOST, number, np.uint32(0xFFFFFFFF)
            )  # no counter
            self._levels.add(
                group,
                counter,
                np.ones(len(number), np.int64),
                rows["time"],
                _changes(rows),
            )

    def end(self, process: int, streams: list[Stream]) -> Iterator[stats.MemoryLevels]:
        for group, (device, memory) in enumerate(self._groups.values[: Levels.MOST]):
            times, _, highest, _ = self._levels.values(group)
            levels = tuple(map(int, highest.tolist()))
            name = known_label(labels.MEMORY_KINDS, memory)
            yield stats.MemoryLevels(
                process, device, name, tuple(times.tolist()), levels
            )


def _on_one_thread(rows: Columns) -> np.ndarray:
    """A mask of the ranges, and of the other slices of the host that begin and end on one thread."""
    others = (
        (rows["track"] == 0)
        & (rows["kind"] != _ASYNCHRONOUS)
        & (rows["end"] != _FOREVER)
    )
    mask: np.ndarray = others | are_ranges("host_slices", rows)
    return mask


_RANGES = Grouping(
    ("nvtx_ranges",),
    _fields("name", "domain", "kind"),
    _ranges,
)
_HOST = Grouping(
    ("host_slices",),
    _fields("name", "category", "kind"),
    _host,
    projects=_on_one_thread,
)

_GROUPINGS = {
    "kernels": Grouping(
        ("kernels",),
        lambda c, rows: (c.kernels.numbers.take(rows["launch"]),),
        lambda c, key, time, short: stats.KernelUse(
            c.kernels.names[key[0]], time, short
        ),
        marked=lambda c, rows: _duration(rows) < c.options.short_ns,
    ),
    "configurations": Grouping(
        ("kernels",),
        lambda c, rows: (c.configurations[0].take(rows["launch"]),),
        lambda c, key, time: stats.ConfigurationUse(c.configurations[1][key[0]], time),
    ),
    "api": Grouping(
        ("api_calls",),
        lambda c, rows: (c.functions.numbers.take(rows["function"]),),
        lambda c, key, time, failed: stats.CallUse(
            c.functions.names[key[0]], time, failed
        ),
        marked=lambda c, rows: c.trace.functions["status"].take(rows["function"]) != 0,
    ),
    "memory_operations": Grouping(
        ("memcpys", "memsets"),
        _operations,
        lambda c, key, time, size: stats.MemoryOperationUse(
            _operation_name(key[0]), time, size
        ),
        _times_and_bytes,
    ),
    "copies": Grouping(("memcpys",), _copy, _copies, _times_and_bytes),
    "gpu_slices": Grouping(
        ("gpu_slices",),
        _fields("name", "category", "kind"),
        lambda c, key, time: stats.GpuSliceUse(
            c.text(key[0]), time, labels.GPU_SLICES.get(key[2], "other"), c.text(key[1])
        ),
    ),
    "synchronizations": _kinds("synchronizations", "type", labels.SYNCHRONIZATIONS),
    "overheads": _kinds("overheads", "kind", labels.OVERHEADS),
    "unified_memory": Grouping(
        ("unified_memory",),
        _fields("kind"),
        _unified,
        lambda rows: (_duration(rows), sizes(rows["value"])),
    ),
    "graphs": Grouping(
        ("graph_launches",),
        _fields("graph"),
        lambda c, key, time: stats.Timed(f"graph {key[0]}", time),
    ),
}

#: The factory of the collector of each field of :class:`.stats.Stats`.
COLLECTORS: dict[str, Callable[[CollectorContext], StatsCollector]] = {
    **{
        part: partial(Grouped, grouping=grouping)
        for part, grouping in _GROUPINGS.items()
    },
    "codes": Codes,
    "ranges": partial(Sliced, grouping=_RANGES),
    "range_kernels": partial(RangeKernelUses, grouping=_RANGES),
    "range_shares": RangeShares,
    "paths": Paths,
    "graph_ranges": GraphRanges,
    "nccl": partial(NcclUses, grouping=Grouping(("nvtx_ranges",), _fields(), _nccl)),
    "stacks": Stacks,
    "stack_paths": PathsOfStacks,
    "host": partial(Host, grouping=_HOST),
    "streams": StreamUses,
    "gpus": GpuUses,
    "launches": LaunchUses,
    "executions": partial(
        Executions,
        grouping=Grouping(
            (),
            _fields(),
            lambda c, key, *times: stats.ExecutionUse(
                c.functions.names[key[0]], c.kernels.names[key[1]], *times
            ),
        ),
    ),
    "counters": Counters,
    "memory": Memory,
    "busy": Busy,
    "memory_levels": MemoryOverTime,
}


def collect(
    trace: Trace, parts: Iterable[str] | None = None, options: StatsOptions = DEFAULTS
) -> Stats:
    """Compute the statistics of a trace. ``parts`` names the fields of :class:`Stats` to fill (default: all); only the
    tables that they need are read. Raises :class:`cutrace.CutraceError` for an unknown name."""
    fields = tuple(COLLECTORS) if parts is None else tuple(dict.fromkeys(parts))
    for part in fields:
        if part not in COLLECTORS:
            raise CutraceError(
                f"there are no statistics {part!r}: use one of {', '.join(COLLECTORS)}"
            )
    context = CollectorContext(trace, options)
    collectors = {part: COLLECTORS[part](context) for part in fields}
    tables = tuple(
        dict.fromkeys(table for c in collectors.values() for table in c.tables)
    )
    joins = any(
        "api_calls" in c.tables and not set(GPU_WORK).isdisjoint(c.tables)
        for c in collectors.values()
    )
    rows: dict[str, list[Any]] = {part: [] for part in fields}
    for process, infos in enumerate(trace.infos_by_process(tables)):
        sweep = Sweep(trace, infos, joins=joins, ranges=options.ranges)
        for batch in sweep:
            for collector in collectors.values():
                collector.add(batch)
        for part, collector in collectors.items():
            rows[part] += collector.end(process, sweep.streams)
            if collector.each_process:
                collectors[part] = COLLECTORS[part](context)
    for part, collector in collectors.items():
        rows[part] += collector.result()
    return Stats(
        trace.start,
        trace.end,
        options,
        **{part: tuple(uses) for part, uses in rows.items()},
    )
