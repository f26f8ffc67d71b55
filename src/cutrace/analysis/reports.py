"""The reports of ``cutrace stats`` and their tables. docs/stats.md defines the columns.

Reports that ``nsys stats`` also has bear the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from ..errors import CutraceError, did_you_mean
from ..trace import Trace
from ..trace.capture_ranges import time_within
from . import listings
from .collectors import collect
from .distribution import Spread
from .gpu import GpuUse, StreamUse
from .kernel_metrics import metric_uses, range_metric_uses
from .sources import line_metrics, sampled_lines, stall_uses
from .stats import DEFAULTS, HostUse, RangeKernels, StackUse, Stats, StatsOptions
from .sweep import Stream
from .tables import Cell, Column, Table, Unit

_STREAM, _DEVICE = 1, 3
_NO_STACK = "(no Python stack)"
# The options of users by field of StatsOptions.
_OPTIONS = {"names": "names", "short_ns": "short", "consecutive_ns": "kernel-wait"}


@dataclass(frozen=True)
class ReportField:
    """A column, and a function that makes its cell from the object of a row."""

    column: Column
    cell: Callable[[View, Any], Cell]


@dataclass(frozen=True)
class ReportSpec:
    """A report: ``parts`` are the fields of :class:`.stats.Stats` that it needs, ``rows`` returns the objects of its
    rows. ``usual`` reports are shown by default. With ``spread``, the columns of this spread, in ``unit``, come first,
    and rows are sorted by ``weight``, largest first; their share is that of the weight. ``options`` are the fields of
    :class:`.stats.StatsOptions` that change the rows."""

    name: str
    title: str
    parts: tuple[str, ...]
    rows: Callable[[View], Iterable[Any]]
    fields: tuple[ReportField, ...]
    spread: Callable[[Any], Spread] | None
    weight: Callable[[Any], int]
    unit: Unit = "ns"
    usual: bool = True
    listing: bool = False
    options: tuple[str, ...] = ()

    def table(self, view: View) -> Table:
        """The table of the report."""
        spreads = _spread(self.unit) if self.spread else ()
        columns = (*spreads, *(field.column for field in self.fields))
        uses = ((use, tuple(field.cell(view, use) for field in self.fields)) for use in self.rows(view))
        rows: Iterable[tuple[Cell, ...]] = (cells for _, cells in uses)
        if self.spread:
            listed = [(self.weight(use), self.spread(use), cells) for use, cells in uses]
            listed.sort(key=lambda row: (-row[0], -row[1].count, _sort_key(row[2])))
            whole = sum(weight for weight, _, _ in listed)
            rows = ((_share(weight, whole), s.total, s.count, s.mean, s.median, s.min, s.max, s.std, *cells)
                    for weight, s, cells in listed)  # fmt: skip
        return Table(self.name, self.title, columns, rows if self.listing else list(rows), self.listing)


def _sort_key(cells: tuple[Cell, ...]) -> tuple[tuple[bool, Cell], ...]:
    """Cells without a value come first."""
    return tuple((cell is not None, cell) for cell in cells)


class View:
    """Statistics, with the names of processes, GPUs and streams."""

    def __init__(self, trace: Trace, stats: Stats) -> None:
        self.trace, self.stats = trace, stats
        rows = trace.resource_names[["process", "kind", "context", "object", "name"]].tolist()
        self._named = {
            (process, kind, 0 if kind == _DEVICE else context, number): trace.strings[name]
            for process, kind, context, number, name in rows
        }
        devices = trace.devices[["process", "device", "name"]].tolist()
        self._devices = {(process, device): trace.strings[name] for process, device, name in devices}
        contexts: dict[int, set[int]] = {}
        for use in stats.streams:
            contexts.setdefault(use.process, set()).add(use.stream.context)
        self._several_contexts = {process for process, numbers in contexts.items() if len(numbers) > 1}

    @property
    def span(self) -> int:
        """The length (ns) of the capture."""
        return self.stats.end - self.stats.start

    def process(self, index: int) -> str:
        """The name of a process: ``train.py (4711)``."""
        process = self.trace.processes[index]
        return f"{process.name} ({process.pid})"

    def gpu(self, process: int, device: int) -> str:
        """The number of a GPU in the process, and its name: ``0 NVIDIA H200``."""
        name = self._named.get((process, _DEVICE, 0, device)) or self._devices.get((process, device), "")
        return f"{device} {name}".strip()

    def stream(self, process: int, stream: Stream) -> str:
        """The number and the name of a stream, with its context if the process has several: ``13 copies``."""
        name = self._named.get((process, _STREAM, stream.context, stream.stream), "")
        context = f"{stream.context}/" if process in self._several_contexts else ""
        return f"{context}{stream.stream} {name}".strip()


def tables(trace: Trace, names: Sequence[str] | None = None, options: StatsOptions = DEFAULTS) -> list[Table]:
    """The tables of these reports; by default of the usual ones that have rows. Raises :class:`cutrace.CutraceError`
    for an unknown report."""
    chosen = [report(name) for name in names] if names is not None else [r for r in REPORTS.values() if r.usual]
    parts = list(dict.fromkeys(part for r in chosen for part in r.parts))
    view = View(trace, collect(trace, parts, options))
    made = [r.table(view) for r in chosen]
    return [table for table in made if names is not None or table.rows]


def refuse_unused(names: Sequence[str], options: StatsOptions) -> None:
    """Raise :class:`cutrace.CutraceError` for an option that differs from its default and that none of these reports
    uses."""
    used = {field for name in names for field in report(name).options}
    for field, option in _OPTIONS.items():
        if field not in used and getattr(options, field) != getattr(DEFAULTS, field):
            users = ", ".join(r.name for r in REPORTS.values() if field in r.options)
            raise CutraceError(f"{', '.join(names)} does not use --{option}: leave it out, or ask for one of {users}")


def report(name: str) -> ReportSpec:
    """The report of this name. Raises :class:`cutrace.CutraceError` if there is none."""
    if name not in REPORTS:
        hint = did_you_mean(name, REPORTS, "`cutrace stats --list-reports` lists all.")
        raise CutraceError(f"there is no report {name!r}: {hint}")
    return REPORTS[name]


# Parts of several reports


def _spread(unit: Unit) -> tuple[Column, ...]:
    spare = (Column(name, unit, spare=True) for name in ("median", "min", "max", "stddev"))
    return (Column("share", "1"), Column("total", unit), Column("count"), Column("mean", unit), *spare)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _field(
    name: str, cell: str | Callable[[View, Any], Cell] = "", spare: bool = False, *, unit: Unit = "text"
) -> ReportField:
    """A column whose cell is an attribute of the row's object (default: the one named like the column), or the result
    of a function of it."""
    if isinstance(cell, str):
        get = attrgetter(cell or name)
        return ReportField(Column(name, unit, spare), lambda view, use: get(use))
    return ReportField(Column(name, unit, spare), cell)


_text = _field
_count, _ns, _bytes = partial(_field, unit=""), partial(_field, unit="ns"), partial(_field, unit="bytes")
_number, _moment = partial(_field, unit="number"), partial(_field, unit="moment")


def _part(name: str, part: str, whole: str | Callable[[View, Any], float], spare: bool = False) -> ReportField:
    """The share of an attribute in another one."""
    of, get = attrgetter(part), attrgetter(whole) if isinstance(whole, str) else None
    return _field(name, lambda v, x: _share(of(x), get(x) if get else whole(v, x)), spare, unit="1")  # type: ignore[operator]


def _report(
    name: str,
    title: str,
    part: str | tuple[str, ...],
    *fields: ReportField,
    rows: Callable[[View], Iterable[Any]] | None = None,
    where: Callable[[Any], object] = lambda use: True,
    order: Callable[[Any], Any] | None = None,
    spread: str = "",
    weight: str = "",
    **more: Any,
) -> ReportSpec:
    """A report. Its rows are those of a field of the statistics that satisfy ``where``, sorted by ``order``, unless
    ``rows`` returns them. ``spread`` and ``weight`` are names of attributes."""

    def chosen(view: View) -> list[Any]:
        uses = [use for use in getattr(view.stats, str(part)) if where(use)]
        return sorted(uses, key=order) if order else uses

    parts = part if isinstance(part, tuple) else (part,)
    get = attrgetter(spread) if spread else None
    return ReportSpec(
        name, title, parts, rows or chosen, fields, spread=get, weight=attrgetter(weight or f"{spread}.total"), **more
    )


_summed = partial(_report, spread="time")


def _size(size: tuple[int, int, int]) -> str:
    return "x".join(map(str, size))


def _range(v: View, x: Any) -> str:
    """The domain and the name of a range, as Nsight Systems writes them; the default domain has an empty name."""
    return f"{x.domain}:{x.range if isinstance(x, RangeKernels) else x.name}"


class _StackRow(NamedTuple):
    use: StackUse
    share: float

    @property
    def line(self) -> str:
        """The innermost frame."""
        return self.use.frames[-1].place if self.use.frames else _NO_STACK

    @property
    def stack(self) -> str:
        """All frames, outermost first, with whole file names."""
        frames = (f"{frame.function} ({frame.file}:{frame.line})" for frame in self.use.frames)
        return ";".join(frame.replace(";", ":") for frame in frames)


def _stack_rows(view: View) -> Iterator[_StackRow]:
    uses = sorted(view.stats.stacks, key=lambda use: (-use.time, -use.calls, use.kind, use.frames))
    whole = sum(use.time for use in uses)
    yield from (_StackRow(use, _share(use.time, whole)) for use in uses)


_BANDWIDTH = _field(
    "bandwidth", lambda v, x: x.bytes.total * 1_000_000_000 / x.time.total if x.time.total else None, unit="bytes/s"
)
_PROCESS = _text("process", lambda v, x: v.process(x.process))
_ANY_PROCESS = _text("process", lambda v, x: v.process(x.process), spare=True)
_GPU = _text("GPU", lambda v, x: v.gpu(x.process, x.device))
_ANY_GPU = _text("GPU", lambda v, x: v.gpu(x.process, x.device), spare=True)
_GPU_OF_STREAM = _text("GPU", lambda v, x: v.gpu(x.process, x.stream.device), spare=True)
_STREAM_FIELDS = (_ANY_PROCESS, _GPU_OF_STREAM, _text("stream", lambda v, x: v.stream(x.process, x.stream)))


def _of_system(use: HostUse) -> bool:
    return use.kind == "system call"


class _CategorizedWork(NamedTuple):
    category: str
    name: str
    time: Spread


def _gpu_work(view: View) -> Iterator[_CategorizedWork]:
    s = view.stats
    for category, uses in (("kernel", s.kernels), ("memory", s.memory_operations), ("graph", s.graphs)):
        yield from (_CategorizedWork(category, use.name, use.time) for use in uses)


class _Communication(NamedTuple):
    process: int
    device: int
    communication: str
    time: int
    hidden: int


def _communication(view: View) -> Iterator[_Communication]:
    """Each kind of communication on each GPU, and both together if there are both."""
    for g in view.stats.gpus:
        parts = {"kernels": g.communication, "copies": g.copies}
        if all(part.time for part in parts.values()):
            parts["both"] = g.both
        yield from (_Communication(g.process, g.device, k, p.time, p.hidden) for k, p in parts.items() if p.time)


def _measured(uses: Callable[[Trace, Callable[[str], str]], Iterable[Any]]) -> Callable[[View], Iterable[Any]]:
    """Rows that are read from the trace, with the names of functions as the user wants them."""
    return lambda view: uses(view.trace, view.stats.options.names)


def _span(view: View, use: GpuUse | StreamUse) -> int:
    """The time (ns) from the first work to the last, without the time between the windows of a capture range."""
    return use.last - use.first - time_within(view.trace.unrecorded(use.process), use.first, use.last)


_DURATION = _ns("duration", lambda v, e: e.end - e.start)
_ON_STREAM = (_ANY_PROCESS, _GPU_OF_STREAM, _text("stream", lambda v, e: v.stream(e.process, e.stream), spare=True))

_GPU_TRACE = (
    _moment("start"), _DURATION, _count("correlation"),
    _text("grid", lambda v, e: _size(e.shape.grid) if e.shape else "", spare=True),
    _text("block", lambda v, e: _size(e.shape.block) if e.shape else "", spare=True),
    _count("registers", lambda v, e: e.shape.registers if e.shape else None, spare=True),
    _bytes("shared", lambda v, e: sum(e.shape.shared) if e.shape else None, spare=True),
    _bytes("bytes"), *_ON_STREAM, _text("created in", "created_in", spare=True), _text("name"),
)  # fmt: skip
_API_TRACE = (
    _moment("start"), _DURATION, _count("correlation"), _count("status", spare=True), _ANY_PROCESS, _count("thread"),
    _text("name"),
)  # fmt: skip
_EXECUTION_TRACE = (
    _moment("call start", "call.start"), _ns("call", lambda v, e: e.call.end - e.call.start),
    _moment("start", spare=True), _ns("queue", lambda v, e: max(e.start - e.call.end, 0)),
    _ns("kernel", lambda v, e: e.end - e.start), _ns("total", lambda v, e: e.end - e.call.start, spare=True),
    _ANY_PROCESS, _count("thread", "call.thread", spare=True), *_ON_STREAM[1:], _text("api", "call.name"),
    _text("name"),
)  # fmt: skip
# The spreads of each time of a launch.
_EXECUTIONS = tuple(
    _ns(f"{kind} {what}", f"{time}.{attribute}", what != "mean" or kind == "total")
    for kind, time in (("total", "total"), ("call", "call"), ("queue", "queue"), ("kernel", "time"))
    for what, attribute in {"mean": "mean", "median": "median", "min": "min", "max": "max", "stddev": "std"}.items()
)


def _gpu_events(view: View) -> Iterator[listings.GpuEvent]:
    return listings.gpu_events(view.trace, view.stats.options)


_NAMES = ("names",)

#: All reports, in the order in which they are shown.
REPORTS: dict[str, ReportSpec] = {
    r.name: r
    for r in (
        _report(
            "gpu_sum", "GPUs", "gpus", _PROCESS, _GPU,
            _count("kernels", lambda v, g: g.counts["kernels"] + g.counts["graph_launches"]),
            _ns("kernel time", "kernel_ns"), _ns("compute", spare=True), _ns("busy"),
            _part("busy share", "busy", _span),
            _count("copies", lambda v, g: g.counts["memcpys"], spare=True),
            _count("fills", lambda v, g: g.counts["memsets"], spare=True),
            _ns("idle", lambda v, g: _span(v, g) - g.busy, spare=True), _ns("span", _span, spare=True),
        ),
        _report(
            "stream_sum", "Streams", "streams",
            *_STREAM_FIELDS, _count("kernels", lambda v, s: s.counts["kernels"]),
            _count("copies", lambda v, s: s.counts["memcpys"]), _count("fills", lambda v, s: s.counts["memsets"]),
            _count("graphs", lambda v, s: s.counts["graph_launches"], spare=True), _ns("busy"),
            _part("busy share", "busy", _span), _ns("span", _span, spare=True),
        ),
        _report(
            "idle_sum", "Idle time of streams, by what they waited for", "streams",
            *_STREAM_FIELDS, _count("gaps", "idle.gaps", spare=True), _ns("idle", "idle.total"),
            *(_ns(reason, f"idle.{reason}") for reason in ("host", "kernel", "dependency", "other")),
            _part("host share", "idle.host", "idle.total", spare=True), options=("consecutive_ns",),
        ),
        _report(
            "overlap_sum", "Communication behind computation", "gpus",
            _ANY_PROCESS, _ANY_GPU, _text("communication"), _ns("time"), _ns("hidden"),
            _ns("exposed", lambda v, x: x.time - x.hidden), _part("hidden share", "hidden", "time"),
            rows=_communication,
        ),
        _report(
            "queue_sum", "Queues of launches", "streams",
            *_STREAM_FIELDS, _count("launches", "queue.at_launch.count"), _number("mean", "queue.mean"),
            _number("mean at launch", "queue.at_launch.mean"),
            _number("median at launch", "queue.at_launch.median", spare=True),
            _count("min", "queue.at_launch.min", spare=True), _count("max", "queue.at_launch.max"),
            _ns("full", "queue.full"), _part("full share", "queue.full", lambda v, s: v.span, spare=True),
            where=attrgetter("queue.at_launch.count"),
        ),
        _report(
            "launch_sum", "Launches of kernels (medians)", "launches", _PROCESS, _count("launches", "call.count"),
            *(_ns(time, f"{time}.median") for time in ("call", "latency", "queue")),
            *(_ns(f"max {time}", f"{time}.max", spare=True) for time in ("call", "latency", "queue")),
            _part("short", "short", "call.count"), _part("bound", "bound", "call.count"),
            _count("kernels", spare=True), _count("early", spare=True), options=("short_ns",),
        ),
        _summed("cuda_gpu_kern_sum", "Kernels", "kernels", _text("name"), options=_NAMES),
        _summed(
            "cuda_gpu_kern_gb_sum", "Kernels by launch configuration", "configurations",
            _text("grid", lambda v, x: _size(x.configuration.grid)),
            _text("block", lambda v, x: _size(x.configuration.block)),
            _text("cluster", lambda v, x: _size(x.configuration.cluster) if any(x.configuration.cluster) else "", True),
            _count("registers", "configuration.registers", spare=True),
            _bytes("shared", lambda v, x: sum(x.configuration.shared), spare=True),
            _text("name", "configuration.name"), usual=False, options=_NAMES,
        ),
        _report(
            "short_kern_sum", "Short kernels", "kernels",
            _count("short"), _count("count", "time.count"), _part("short share", "short", "time.count"),
            _ns("total", "time.total"), _ns("mean", "time.mean"), _ns("median", "time.median", spare=True),
            _text("name"), where=attrgetter("short"), order=lambda k: (-k.short, k.name), usual=False,
            options=(*_NAMES, "short_ns"),
        ),
        _summed("cuda_api_sum", "API calls", "api", _count("failed", spare=True), _text("name")),
        _report(
            "cuda_kern_exec_sum", "Launch, queue and run of kernels", "executions", _count("count", "time.count"),
            *_EXECUTIONS, _text("api"), _text("kernel"), order=lambda x: (-x.total.total, x.api, x.kernel), usual=False,
            options=_NAMES,
        ),
        _summed("cuda_gpu_mem_time_sum", "Copies and fills by time", "memory_operations", _BANDWIDTH, _text("name")),
        _report(
            "cuda_gpu_mem_size_sum", "Copies and fills by size", "memory_operations", _text("name"),
            spread="bytes", unit="bytes",
        ),
        _report(
            "copy_size_sum", "Copies by kinds of memory and size", "copies",
            _text("direction"), _text("from", "source"), _text("to", "destination"), _bytes("at least", "at_least"),
            _count("count", "time.count"), _bytes("bytes", "bytes.total"), _ns("time", "time.total"),
            _ns("mean time", "time.mean", spare=True), _BANDWIDTH,
            order=attrgetter("direction", "source", "destination", "at_least"), usual=False,
        ),
        _summed(
            "cuda_gpu_sum", "GPU work", ("kernels", "memory_operations", "graphs"), _text("category"), _text("name"),
            rows=_gpu_work, usual=False, options=_NAMES,
        ),
        _summed("graph_sum", "CUDA graphs, traced as a whole", "graphs", _text("graph", "name")),
        _summed(
            "graph_range_sum", "Work of CUDA graphs by the NVTX ranges in which it was created", "graph_ranges",
            _text("created in", "name"), _count("nodes"), _count("replays"),
        ),
        _report(
            "stack_sum", "API calls and their GPU work by Python stack", ("stacks",), _field("share", unit="1"),
            _ns("API time", "use.api_ns"), _ns("GPU time", "use.gpu_ns"), _count("calls", "use.calls"),
            _count("operations", "use.operations", spare=True), _bytes("bytes", lambda v, row: row.use.bytes or None),
            _text("kind", "use.kind"), _text("stack", spare=True), _text("line"), rows=_stack_rows,
        ),
        _summed("sync_sum", "Synchronisations", "synchronizations", _text("kind", "name")),
        _summed("nvtx_sum", "NVTX ranges", "ranges", _text("style", spare=True), _text("range", _range)),
        _report(
            "nvtx_gpu_proj_sum", "NVTX ranges on the GPU", "ranges", _count("operations", "projected.operations"),
            _ns("GPU time", "projected.gpu_ns"), _ns("CPU time", "time.total"), _text("style", spare=True),
            _text("range", _range), where=attrgetter("projected.time.count"), spread="projected.time",
        ),
        _summed(
            "nvtx_kern_sum", "Kernels by NVTX range", "range_kernels", _text("style", spare=True),
            _text("range", _range), _text("kernel"), usual=False, options=_NAMES,
        ),
        _report(
            "nccl_sum", "Calls of NCCL by size", "nccl", _ns("CPU time", "time.total", spare=True),
            _text("communicator", lambda v, use: "" if use.communicator is None else str(use.communicator)),
            _count("rank"), _count("root", spare=True), _text("reduction", spare=True), _text("name"),
            spread="bytes", unit="bytes",
        ),
        _summed(
            "host_sum", "Operators and other slices of the host", "host", _ns("self", "self_ns"),
            _ns("GPU time", "projected.gpu_ns"), _text("kind"), _text("name"), where=lambda h: not _of_system(h),
            weight="self_ns",
        ),
        _summed("osrt_sum", "Calls of the operating system", "host", _text("name"), where=_of_system),
        _summed("gpu_slice_sum", "Annotations on the GPU", "gpu_slices", _text("kind"), _text("name")),
        _report(
            "um_sum", "Unified memory", "unified_memory", _text("kind", "name"), _count("count", "time.count"),
            _bytes("bytes", lambda v, u: u.value.total if u.in_bytes else None),
            _count("value", lambda v, u: None if u.in_bytes else u.value.total), _ns("time", "time.total"),
            order=lambda u: (-u.time.total, u.name),
        ),
        _report(
            "memory_sum", "Memory", "memory", _ANY_PROCESS, _ANY_GPU, _text("memory"), _bytes("peak"), _bytes("net"),
            _count("allocations", spare=True), _bytes("allocated", spare=True), _count("frees", spare=True),
            _bytes("freed", spare=True),
        ),
        _report(
            "counter_sum", "Counters", "counters", _ANY_PROCESS,
            _text("GPU", lambda v, c: "" if c.device == 0xFFFF else v.gpu(c.process, c.device), spare=True),
            _text("counter", lambda v, c: f"{c.name} {c.series}" if c.series else c.name),
            _text("unit"), _count("samples"), *(_number(name) for name in ("min", "mean", "max", "total")),
            order=attrgetter("process", "name", "series", "device"),
        ),
        _report(
            "kernel_metrics", "Hardware metrics of kernels", (), _text("kernel", "name"), _text("metric"),
            _count("launches", "count"), *(_number(name) for name in ("mean", "min", "max")), _text("unit"),
            rows=_measured(metric_uses), options=_NAMES,
        ),
        _report(
            "range_metrics", "Hardware metrics of NVTX ranges", (), _text("range", "name"), _text("metric"),
            _count("ranges", "count"), *(_number(name) for name in ("mean", "min", "max")), _text("unit"),
            rows=lambda view: range_metric_uses(view.trace),
        ),
        _report(
            "instruction_line_sum", "Hardware metrics of instructions, by line of source", (),
            _field("share", unit="1"), _number("value"), _text("metric"), _text("unit", spare=True),
            _text("line", "place.text"), _text("file", "place.file", spare=True), _text("function", "place.function"),
            _count("instructions", spare=True), _count("launches", spare=True), rows=_measured(line_metrics),
            options=_NAMES,
        ),
        _report(
            "pc_stall_sum", "PC samples by function and stall reason", (), _field("share", unit="1"), _count("samples"),
            _count("not issued", "not_issued"), _text("stall"), _text("function"), rows=_measured(stall_uses),
            options=_NAMES,
        ),
        _report(
            "pc_line_sum", "PC samples by line", (), _field("share", unit="1"), _count("samples"),
            _count("not issued", "not_issued"), _text("stall"), _text("line", "place.text"),
            _text("function", "place.function"), rows=_measured(sampled_lines), options=_NAMES,
        ),
        _summed(
            "overhead_sum", "Overheads of the driver and of tracing", "overheads", _text("kind", "name"), usual=False
        ),
        _report(
            "cuda_gpu_trace", "GPU work, one row each", (), *_GPU_TRACE, rows=_gpu_events,
            usual=False, listing=True, options=_NAMES,
        ),
        _report(
            "cuda_api_trace", "API calls, one row each", (), *_API_TRACE,
            rows=lambda view: listings.calls(view.trace), usual=False, listing=True,
        ),
        _report(
            "cuda_kern_exec_trace", "Launch, queue and run of each kernel", (), *_EXECUTION_TRACE,
            rows=lambda view: (e for e in _gpu_events(view) if e.shape and e.call),
            usual=False, listing=True, options=_NAMES,
        ),
    )
}  # fmt: skip
