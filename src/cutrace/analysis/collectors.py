"""How each part of the statistics is counted: one class a part, which takes in window after window of a sweep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .._native import Keys, Levels
from ..runbin.layout import HOST_SLICE_KINDS
from ..runbin.words import MEMORY_KINDS, OVERHEADS, SYNCHRONIZATIONS
from ..trace import Trace
from ..trace.quality import GPU_WORK
from .calls import plain_name
from .distribution import Distributions
from .names import UNKNOWN
from .overlap import GpuUses, communicates
from .projection import Projected, Projection
from .stats import (
    CallUse,
    Configuration,
    ConfigurationUse,
    CopyUse,
    CounterUse,
    ExecutionUse,
    GpuSliceUse,
    HostUse,
    KernelUse,
    LaunchUse,
    MemoryOperationUse,
    MemoryUse,
    Options,
    RangeKernels,
    RangeUse,
    Timed,
    UnifiedMemoryUse,
)
from .streams import Streams
from .sweep import Columns, Stream, Window
from .words import COPIES, GPU_SLICES, RANGE_STYLES, UNIFIED_MEMORY, word

_KERNELS = GPU_WORK.index("kernels")
_ALLOCATE, _RELEASE = 1, 2


class Collector(ABC):
    """A part of the statistics. It is given the windows of one process after the other, and asked once at the end."""

    #: The tables that windows have to have.
    tables: tuple[str, ...] = ()
    #: Whether it looks at the calls behind GPU work.
    joins: bool = False

    def __init__(self, trace: Trace, options: Options) -> None:
        self.trace, self.options = trace, options

    @abstractmethod
    def add(self, window: Window) -> None:
        """Take in a window."""

    def end(self, process: int, streams: list[Stream]) -> None:
        """All windows of the process were taken in."""
        return

    @abstractmethod
    def result(self) -> Iterable[Any]:
        """The rows of the field."""

    def text(self, number: int) -> str:
        return self.trace.strings[number]


class _Groups:
    """Groups of rows that agree in so many columns, numbered from 0 in the order of first appearance."""

    def __init__(self, columns: int) -> None:
        self._keys = Keys(columns)
        self.values: list[tuple[int, ...]] = []

    def of(self, *columns: np.ndarray) -> np.ndarray:
        """The number of each row's group."""
        numbers, new = self._keys.ids(columns)
        self.values += zip(*(column[new].tolist() for column in columns), strict=True)
        return numbers


def _numbered(labels: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """A number for each label, equal ones the same, and the labels by number."""
    known = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.array([known[label] for label in labels], np.uint32), list(known)


def _kernel_names(trace: Trace, name: Callable[[str], str]) -> tuple[np.ndarray, list[str]]:
    """By launch configuration the number of its kernel's name, and the names by number."""
    strings, which = np.unique(trace.launches["name"], return_inverse=True)
    numbers, names = _numbered([name(trace.strings[i]) or UNKNOWN for i in strings.tolist()])
    return numbers[which.reshape(-1)], names


def _function_names(trace: Trace) -> tuple[np.ndarray, list[str]]:
    """The same by API function."""
    return _numbered([plain_name(n) or "(unknown call)" for n in trace.strings.take(trace.functions["name"]).tolist()])


def _duration(rows: Columns) -> np.ndarray:
    duration: np.ndarray = rows["end"] - rows["start"]
    return duration


def _rows(window: Window, table: str) -> Columns | None:
    """The rows of a table; None when there are none."""
    return window.tables.get(table) or None


def _sizes(numbers: np.ndarray) -> np.ndarray:
    """Numbers of bytes as signed integers; what no machine has is the most that 63 bits hold."""
    sizes: np.ndarray = np.minimum(numbers, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
    return sizes


class Kernels(Collector):
    tables = ("kernels",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._group, self._names = _kernel_names(trace, options.names)
        self._times = Distributions()
        self._short = np.zeros(len(self._names), np.int64)

    def add(self, window: Window) -> None:
        if rows := _rows(window, "kernels"):
            group, duration = self._group.take(rows["launch"]), _duration(rows)
            self._times.add(group, duration)
            self._short += np.bincount(group[duration < self.options.short_ns], minlength=len(self._names))

    def result(self) -> Iterator[KernelUse]:
        for name, time, short in zip(self._names, self._times.spreads(), self._short.tolist(), strict=False):
            if time.count:
                yield KernelUse(name, time, short)


_DIMS = tuple(f"{what}_{axis}" for what in ("grid", "block", "cluster") for axis in "xyz")


class Configurations(Collector):
    tables = ("kernels",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        names, self._names = _kernel_names(trace, options.names)
        fields = (*_DIMS, "registers", "static_shared", "dynamic_shared")
        self._groups = _Groups(1 + len(fields))
        self._group = self._groups.of(names, *(trace.launches[f] for f in fields))
        self._times = Distributions()

    def add(self, window: Window) -> None:
        if rows := _rows(window, "kernels"):
            self._times.add(self._group.take(rows["launch"]), _duration(rows))

    def result(self) -> Iterator[ConfigurationUse]:
        for key, time in zip(self._groups.values, self._times.spreads(), strict=False):
            if time.count:
                name, gx, gy, gz, bx, by, bz, cx, cy, cz, registers, static, dynamic = key
                grid, block, cluster = (gx, gy, gz), (bx, by, bz), (cx, cy, cz)
                found = Configuration(self._names[name], grid, block, cluster, registers, (static, dynamic))
                yield ConfigurationUse(found, time)


class Api(Collector):
    tables = ("api_calls",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._group, self._names = _function_names(trace)
        self._failing = trace.functions["status"] != 0
        self._times = Distributions()
        self._failed = np.zeros(len(self._names), np.int64)

    def add(self, window: Window) -> None:
        if rows := _rows(window, "api_calls"):
            group = self._group.take(rows["function"])
            self._times.add(group, _duration(rows))
            failed = self._failing.take(rows["function"])
            if failed.any():
                self._failed += np.bincount(group[failed], minlength=len(self._names))

    def result(self) -> Iterator[CallUse]:
        for name, time, failed in zip(self._names, self._times.spreads(), self._failed.tolist(), strict=False):
            if time.count:
                yield CallUse(name, time, failed)


class MemoryOperations(Collector):
    tables = ("memcpys", "memsets")

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        # Kinds of copies have one byte; 256 stands for fills.
        self._times, self._bytes = Distributions(), Distributions()

    def add(self, window: Window) -> None:
        for table in self.tables:
            if rows := _rows(window, table):
                kind = rows["kind"] if table == "memcpys" else 256
                self._times.add(kind, _duration(rows))
                self._bytes.add(kind, _sizes(rows["bytes"]))

    def result(self) -> Iterator[MemoryOperationUse]:
        for kind, (time, size) in enumerate(zip(self._times.spreads(), self._bytes.spreads(), strict=True)):
            if time.count:
                name = "[CUDA memset]" if kind == 256 else f"[CUDA memcpy {word(COPIES, kind)}]"
                yield MemoryOperationUse(name, time, size)


class Copies(Collector):
    tables = ("memcpys",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._groups = _Groups(4)
        self._times, self._bytes = Distributions(), Distributions()

    def add(self, window: Window) -> None:
        if rows := _rows(window, "memcpys"):
            sizes = _sizes(rows["bytes"])
            # frexp() gives the number of bits: of a float64 up to 2^53 exactly, and beyond there are no copies.
            bits = np.frexp(sizes.astype(np.float64))[1].astype(np.uint8)
            group = self._groups.of(rows["kind"], rows["source_memory"], rows["destination_memory"], bits)
            self._times.add(group, _duration(rows))
            self._bytes.add(group, sizes)

    def result(self) -> Iterator[CopyUse]:
        parts = zip(self._groups.values, self._times.spreads(), self._bytes.spreads(), strict=True)
        for (kind, source, destination, bits), time, size in parts:
            at_least = 1 << (bits - 1) if bits else 0
            memories = word(MEMORY_KINDS, source), word(MEMORY_KINDS, destination)
            yield CopyUse(word(COPIES, kind), *memories, at_least, time, size)


class _Sliced(Collector):
    """Slices of the host of one table by ``fields``, with what they have on the GPU."""

    joins = True
    table: str = ""
    fields: tuple[str, ...] = ()

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self.groups = _Groups(len(self.fields))
        self.times, self.projection = Distributions(), Projection()

    def add(self, window: Window) -> None:
        if rows := _rows(window, self.table):
            group = self.groups.of(*(rows[name] for name in self.fields))
            self.times.add(group, _duration(rows))
            at = self.projects(rows)
            slices = (rows["thread"], rows["start"], rows["end"], group)
            self.projection.add(*(slices if at.all() else (column[at] for column in slices)))
        if len(window.work):
            self.launch(window)

    def launch(self, window: Window) -> None:
        self.projection.launch(window.work)

    @abstractmethod
    def projects(self, rows: Columns) -> np.ndarray:
        """Which slices are on one thread from begin to end, so that it is said what was launched in them."""

    def end(self, process: int, streams: list[Stream]) -> None:
        self.projection.finish()

    def found(self) -> Iterator[tuple[tuple[int, ...], Any, Projected]]:
        projected = self.projection.projected()
        for number, (key, time) in enumerate(zip(self.groups.values, self.times.spreads(), strict=True)):
            yield key, time, projected[number] if number < len(projected) else Projected()


class Ranges(_Sliced):
    tables = (*GPU_WORK, "api_calls", "nvtx_ranges")
    table, fields = "nvtx_ranges", ("name", "domain", "kind")

    def projects(self, rows: Columns) -> np.ndarray:
        on_one: np.ndarray = rows["thread"] == rows["end_thread"]
        return on_one

    def result(self) -> Iterator[RangeUse]:
        for (name, domain, style), time, projected in self.found():
            yield RangeUse(self.text(name), time, self.text(domain), word(RANGE_STYLES, style), projected)


class RangeKernelUses(Ranges):
    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._kernel, self._kernels = _kernel_names(trace, options.names)

    def launch(self, window: Window) -> None:
        work = window.work
        name = np.where(work.table == _KERNELS, self._kernel.take(work.launch).astype(np.int64), -1)
        self.projection.launch(work, name)

    def result(self) -> Iterator[RangeKernels]:  # type: ignore[override]
        for group, kernel, time in self.projection.kernels():
            name, domain, style = self.groups.values[group]
            yield RangeKernels(
                self.text(name), self.text(domain), word(RANGE_STYLES, style), self._kernels[kernel], time
            )


class Host(_Sliced):
    tables = (*GPU_WORK, "api_calls", "host_slices")
    table, fields = "host_slices", ("name", "category", "kind")
    _asynchronous = next(number for number, kind in HOST_SLICE_KINDS.items() if kind == "asynchronous")

    def projects(self, rows: Columns) -> np.ndarray:
        on_thread: np.ndarray = (rows["track"] == 0) & (rows["kind"] != self._asynchronous)
        return on_thread

    def result(self) -> Iterator[HostUse]:
        for (name, category, kind), time, projected in self.found():
            yield HostUse(self.text(name), time, word(HOST_SLICE_KINDS, kind), self.text(category), projected)


class GpuSlices(Collector):
    tables = ("gpu_slices",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._groups, self._times = _Groups(3), Distributions()

    def add(self, window: Window) -> None:
        if rows := _rows(window, "gpu_slices"):
            self._times.add(self._groups.of(rows["name"], rows["category"], rows["kind"]), _duration(rows))

    def result(self) -> Iterator[GpuSliceUse]:
        for (name, category, kind), time in zip(self._groups.values, self._times.spreads(), strict=True):
            yield GpuSliceUse(self.text(name), time, GPU_SLICES.get(kind, "other"), self.text(category))


class StreamUses(Collector):
    tables = (*GPU_WORK, "api_calls")
    joins = True

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._found: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        options = self.options
        self._streams = Streams(consecutive_ns=options.consecutive_ns, full_queue=options.full_queue)

    def add(self, window: Window) -> None:
        self._streams.add(window)

    def end(self, process: int, streams: list[Stream]) -> None:
        self._found += self._streams.uses(process, streams)
        self._begin()

    def result(self) -> list[Any]:
        return self._found


class Gpus(Collector):
    tables = GPU_WORK

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        strings, which = np.unique(trace.launches["name"], return_inverse=True)
        names = np.array([communicates(trace.strings[i]) for i in strings.tolist()], bool)
        self._communicating = names[which.reshape(-1)]
        self._uses = GpuUses(self._communicating)
        self._found: list[Any] = []

    def add(self, window: Window) -> None:
        self._uses.add(window)

    def end(self, process: int, streams: list[Stream]) -> None:
        self._found += self._uses.uses(process)
        self._uses = GpuUses(self._communicating)

    def result(self) -> list[Any]:
        return self._found


class _Launched:
    """The kernels of a window whose calls are known: arrays with times in ns, as :class:`.stats.LaunchUse` has them.
    ``all`` is the number of all kernels."""

    def __init__(self, window: Window) -> None:
        work, calls = window.work, window.work.calls
        kernel = work.table == _KERNELS
        self.all = int(np.count_nonzero(kernel))
        kernel &= calls.known
        self._at = None if kernel.all() else np.flatnonzero(kernel)
        start, end, called, returned = (self._of(column) for column in (work.start, work.end, calls.start, calls.end))
        self.time, self.call = end - start, returned - called
        self.latency, self.queue = start - called, np.maximum(start - returned, 0)
        self._work = work

    def __len__(self) -> int:
        return len(self.time)

    @property
    def launch(self) -> np.ndarray:
        return self._of(self._work.launch)

    @property
    def function(self) -> np.ndarray:
        return self._of(self._work.calls.function)

    def _of(self, column: np.ndarray) -> np.ndarray:
        return column if self._at is None else column.take(self._at)


class Launches(Collector):
    tables = ("kernels", "api_calls")
    joins = True

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._found: list[LaunchUse] = []
        self._begin()

    def _begin(self) -> None:
        self._call, self._latency, self._queue = Distributions(), Distributions(), Distributions()
        self._kernels = self._bound = self._short = self._early = 0

    def add(self, window: Window) -> None:
        found = _Launched(window)
        self._kernels += found.all
        if not len(found):
            return
        for times, values in (
            (self._call, found.call),
            (self._latency, np.maximum(found.latency, 0)),
            (self._queue, found.queue),
        ):
            times.add(0, values)
        self._bound += int(np.count_nonzero(found.time < found.call))
        self._short += int(np.count_nonzero(found.time < self.options.short_ns))
        self._early += int(np.count_nonzero(found.latency < 0))

    def end(self, process: int, streams: list[Stream]) -> None:
        if len(self._call):
            call, latency, queue = (part.spreads()[0] for part in (self._call, self._latency, self._queue))
            self._found.append(
                LaunchUse(process, self._kernels, call, latency, queue, self._bound, self._short, self._early)
            )
        self._begin()

    def result(self) -> list[LaunchUse]:
        return self._found


class Executions(Collector):
    tables = ("kernels", "api_calls")
    joins = True

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._kernel, self._kernels = _kernel_names(trace, options.names)
        self._function, self._functions = _function_names(trace)
        self._groups = _Groups(2)
        self._times = tuple(Distributions() for _ in range(4))

    def add(self, window: Window) -> None:
        found = _Launched(window)
        if not len(found):
            return
        group = self._groups.of(self._function.take(found.function), self._kernel.take(found.launch))
        total = np.maximum(found.latency + found.time, 0)
        for times, values in zip(self._times, (found.call, found.queue, found.time, total), strict=True):
            times.add(group, values)

    def result(self) -> Iterator[ExecutionUse]:
        for (function, kernel), *spreads in zip(
            self._groups.values, *(times.spreads() for times in self._times), strict=True
        ):
            yield ExecutionUse(self._functions[function], self._kernels[kernel], *spreads)


class _Kinds(Collector):
    """Rows of one table with a begin and an end, by one field that is a number with a word."""

    field: str = "kind"
    words: dict[int, str] = {}

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._groups, self._times = _Groups(1), Distributions()

    def add(self, window: Window) -> None:
        if rows := _rows(window, self.tables[0]):
            self._times.add(self._groups.of(rows[self.field]), _duration(rows))

    def result(self) -> Iterator[Timed]:
        for (kind,), time in zip(self._groups.values, self._times.spreads(), strict=True):
            yield Timed(word(self.words, kind), time)


class Synchronizations(_Kinds):
    tables, field, words = ("synchronizations",), "type", SYNCHRONIZATIONS


class Overheads(_Kinds):
    tables, field, words = ("overheads",), "kind", OVERHEADS


class Graphs(_Kinds):
    tables, field = ("graph_launches",), "graph"

    def result(self) -> Iterator[Timed]:
        for (graph,), time in zip(self._groups.values, self._times.spreads(), strict=True):
            yield Timed(f"graph {graph}", time)


class UnifiedMemory(Collector):
    tables = ("unified_memory",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._groups = _Groups(1)
        self._times, self._values = Distributions(), Distributions()

    def add(self, window: Window) -> None:
        if rows := _rows(window, "unified_memory"):
            group = self._groups.of(rows["kind"])
            self._times.add(group, _duration(rows))
            self._values.add(group, _sizes(rows["value"]))

    def result(self) -> Iterator[UnifiedMemoryUse]:
        for (kind,), time, value in zip(
            self._groups.values, self._times.spreads(), self._values.spreads(), strict=True
        ):
            name, in_bytes = UNIFIED_MEMORY.get(kind, (f"unknown ({kind})", False))
            yield UnifiedMemoryUse(name, time, value, in_bytes)


class Counters(Collector):
    tables = ("counters",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._found: list[CounterUse] = []
        self._begin()

    def _begin(self) -> None:
        self._groups = _Groups(3)
        self._count, self._sum = np.zeros(0), np.zeros(0)
        self._min, self._max = np.zeros(0), np.zeros(0)

    def add(self, window: Window) -> None:
        rows = _rows(window, "counters")
        if not rows:
            return
        group, value = self._groups.of(rows["name"], rows["series"], rows["unit"]), rows["value"]
        finite = np.isfinite(value)
        group, value = group[finite], value[finite]
        more = len(self._groups.values) - len(self._count)
        for name, nothing in (("_count", 0.0), ("_sum", 0.0), ("_min", np.inf), ("_max", -np.inf)):
            setattr(self, name, np.append(getattr(self, name), np.full(more, nothing)))
        self._count += np.bincount(group, minlength=len(self._count))
        with np.errstate(over="ignore", invalid="ignore"):  # a counter may be at the ends of floating point
            self._sum += np.bincount(group, weights=value, minlength=len(self._count))
        np.minimum.at(self._min, group, value)
        np.maximum.at(self._max, group, value)

    def end(self, process: int, streams: list[Stream]) -> None:
        columns = (self._count, self._sum, self._min, self._max)
        for key, count, total, least, most in zip(
            self._groups.values, *(column.tolist() for column in columns), strict=True
        ):
            if count:
                name, series, unit = (self.text(number) for number in key)
                self._found.append(CounterUse(process, name, series, unit, int(count), least, total / count, most))
        self._begin()

    def result(self) -> list[CounterUse]:
        return self._found


class Memory(Collector):
    tables = ("allocations",)

    def __init__(self, trace: Trace, options: Options) -> None:
        super().__init__(trace, options)
        self._found: list[MemoryUse] = []
        self._begin()

    def _begin(self) -> None:
        self._groups, self._levels = _Groups(2), Levels(_ALLOCATE, _RELEASE)

    def add(self, window: Window) -> None:
        if rows := _rows(window, "allocations"):
            group = self._groups.of(rows["device"], rows["memory"])
            self._levels.add(group, rows["operation"], _sizes(rows["bytes"]))

    def end(self, process: int, streams: list[Stream]) -> None:
        for (device, memory), numbers in zip(self._groups.values, self._levels.levels(), strict=True):
            self._found.append(MemoryUse(process, device, word(MEMORY_KINDS, memory), *numbers))
        self._begin()

    def result(self) -> list[MemoryUse]:
        return self._found


#: The class of each field of :class:`.stats.Stats`.
COLLECTORS: dict[str, type[Collector]] = {
    "kernels": Kernels,
    "configurations": Configurations,
    "api": Api,
    "memory_operations": MemoryOperations,
    "copies": Copies,
    "ranges": Ranges,
    "range_kernels": RangeKernelUses,
    "host": Host,
    "gpu_slices": GpuSlices,
    "streams": StreamUses,
    "gpus": Gpus,
    "launches": Launches,
    "executions": Executions,
    "synchronizations": Synchronizations,
    "overheads": Overheads,
    "unified_memory": UnifiedMemory,
    "counters": Counters,
    "memory": Memory,
    "graphs": Graphs,
}
