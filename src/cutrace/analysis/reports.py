"""The reports of ``cutrace stats`` and their tables. docs/stats.md defines the columns.

Reports that ``nsys stats`` also has bear the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

from .. import plugins
from ..errors import CutraceError, did_you_mean
from ..trace import Trace
from ..trace.capture_ranges import time_within
from . import listings
from .collectors import collect
from .distribution import Spread
from .gpu import GpuUse, StreamUse
from .stats import DEFAULTS, HostUse, RangeKernels, StackUse, Stats, StatsOptions
from .sweep import Stream
from .tables import Cell, Column, Table, Unit

_STREAM = 1
_DEVICE = 3
_NO_STACK = "(no Python stack)"
# The options of users by field of StatsOptions.
_OPTIONS = {
    "names": "names",
    "short_ns": "short",
    "consecutive_ns": "kernel-wait",
    "ranges": "ranges",
}


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
        uses = (
            (use, tuple(field.cell(view, use) for field in self.fields))
            for use in self.rows(view)
        )
        rows: Iterable[tuple[Cell, ...]] = (cells for _, cells in uses)
        if self.spread:
            listed = [
                (self.weight(use), self.spread(use), cells) for use, cells in uses
            ]
            listed.sort(key=lambda row: (-row[0], -row[1].count, _sort_key(row[2])))
            whole = sum(weight for weight, _, _ in listed)
            rows = (
                (
                    _share(weight, whole),
                    s.total,
                    s.count,
                    s.mean,
                    s.median,
                    s.min,
                    s.max,
                    s.std,
                    *cells,
                )
                for weight, s, cells in listed
            )
        return Table(
            self.name,
            self.title,
            columns,
            rows if self.listing else list(rows),
            self.listing,
        )


def _sort_key(cells: tuple[Cell, ...]) -> tuple[tuple[bool, Cell], ...]:
    """Cells without a value come first."""
    return tuple((cell is not None, cell) for cell in cells)


class View:
    """Statistics, with the names of processes, GPUs and streams."""

    def __init__(self, trace: Trace, stats: Stats) -> None:
        self.trace = trace
        self.stats = stats
        rows = trace.resource_names[
            ["process", "kind", "context", "object", "name"]
        ].tolist()
        self._named = {
            (process, kind, 0 if kind == _DEVICE else context, number): trace.strings[
                name
            ]
            for process, kind, context, number, name in rows
        }
        devices = trace.devices[["process", "device", "name"]].tolist()
        self._devices = {
            (process, device): trace.strings[name] for process, device, name in devices
        }
        contexts: dict[int, set[int]] = {}
        for use in stats.streams:
            contexts.setdefault(use.process, set()).add(use.stream.context)
        self._several_contexts = {
            process for process, numbers in contexts.items() if len(numbers) > 1
        }

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
        name = self._named.get((process, _DEVICE, 0, device)) or self._devices.get(
            (process, device), ""
        )
        return f"{device} {name}".strip()

    def stream(self, process: int, stream: Stream) -> str:
        """The number and the name of a stream, with its context if the process has several: ``13 copies``."""
        name = self._named.get((process, _STREAM, stream.context, stream.stream), "")
        context = f"{stream.context}/" if process in self._several_contexts else ""
        return f"{context}{stream.stream} {name}".strip()


@cache
def statistics() -> dict[str, ReportSpec]:
    """All statistics by name: those of the core, of the extras and of other packages."""
    added = (
        *plugins.of_extras("cutrace_statistics"),
        *plugins.others("cutrace_statistics"),
    )
    by_name: dict[str, ReportSpec] = {}
    for one in (*STATISTICS, *added):
        by_name.setdefault(one.name, one)
    return by_name


def tables(
    trace: Trace, names: Sequence[str] | None = None, options: StatsOptions = DEFAULTS
) -> list[Table]:
    """The tables of these reports; by default of the usual ones that have rows. Raises :class:`cutrace.CutraceError`
    for an unknown report."""
    if names is not None:
        chosen = [report(name) for name in names]
    else:
        chosen = [known for known in statistics().values() if known.usual]
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
            users = ", ".join(
                r.name for r in statistics().values() if field in r.options
            )
            raise CutraceError(
                f"{', '.join(names)} does not use --{option}: leave it out, or ask for one of {users}"
            )


def report(name: str) -> ReportSpec:
    """The report of this name. Raises :class:`cutrace.CutraceError` if there is none."""
    known = statistics().get(name)
    if known is None:
        hint = did_you_mean(
            name, statistics(), "`cutrace stats --list-reports` lists all."
        )
        raise CutraceError(f"there is no report {name!r}: {hint}")
    return known


# Parts of several reports


def _spread(unit: Unit) -> tuple[Column, ...]:
    spare = (
        Column(name, unit, spare=True) for name in ("median", "min", "max", "stddev")
    )
    return (
        Column("share", "1"),
        Column("total", unit),
        Column("count"),
        Column("mean", unit),
        *spare,
    )


def _share(part: float, whole: float) -> float:
    if whole:
        return part / whole
    return 0.0


def column_of(
    name: str,
    cell: str | Callable[[View, Any], Cell] = "",
    spare: bool = False,
    *,
    unit: Unit = "text",
) -> ReportField:
    """A column whose cell is an attribute of the row's object (default: the one named like the column), or the result
    of a function of it."""
    if isinstance(cell, str):
        get = attrgetter(cell or name)
        return ReportField(Column(name, unit, spare), lambda view, use: get(use))
    return ReportField(Column(name, unit, spare), cell)


text_column = column_of
count_column = partial(column_of, unit="")
time_column = partial(column_of, unit="ns")
size_column = partial(column_of, unit="bytes")
number_column = partial(column_of, unit="number")
moment_column = partial(column_of, unit="moment")


def _part(
    name: str, part: str, whole: str | Callable[[View, Any], float], spare: bool = False
) -> ReportField:
    """The share of an attribute in another one."""
    part_of = attrgetter(part)
    whole_of: Callable[[View, Any], float]
    if isinstance(whole, str):
        attribute = attrgetter(whole)
        whole_of = lambda view, use: attribute(use)  # noqa: E731
    else:
        whole_of = whole
    return column_of(
        name,
        lambda view, use: _share(part_of(use), whole_of(view, use)),
        spare,
        unit="1",
    )


def statistic(
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
        if order:
            return sorted(uses, key=order)
        return uses

    parts = part if isinstance(part, tuple) else (part,)
    get = attrgetter(spread) if spread else None
    return ReportSpec(
        name,
        title,
        parts,
        rows or chosen,
        fields,
        spread=get,
        weight=attrgetter(weight or f"{spread}.total"),
        **more,
    )


summed = partial(statistic, spread="time")


def _size(size: tuple[int, int, int]) -> str:
    return "x".join(map(str, size))


def _range(v: View, x: Any) -> str:
    """The domain and the name of a range, as Nsight Systems writes them; the default domain has an empty name."""
    return f"{x.domain}:{x.range if isinstance(x, RangeKernels) else x.name}"


def _time_of_shares(v: View, x: Any) -> int:
    return sum(share.gpu_ns for share in v.stats.range_shares)


class _StackRow(NamedTuple):
    use: StackUse
    share: float

    @property
    def line(self) -> str:
        """The innermost frame."""
        if self.use.frames:
            return self.use.frames[-1].place
        return _NO_STACK

    @property
    def stack(self) -> str:
        """All frames, outermost first, with whole file names."""
        frames = (
            f"{frame.function} ({frame.file}:{frame.line})" for frame in self.use.frames
        )
        return ";".join(frame.replace(";", ":") for frame in frames)


def _stack_rows(view: View) -> Iterator[_StackRow]:
    uses = sorted(
        view.stats.stacks, key=lambda use: (-use.time, -use.calls, use.kind, use.frames)
    )
    whole = sum(use.time for use in uses)
    yield from (_StackRow(use, _share(use.time, whole)) for use in uses)


_BANDWIDTH = column_of(
    "bandwidth",
    lambda v, x: x.bytes.total * 1_000_000_000 / x.time.total if x.time.total else None,
    unit="bytes/s",
)
_PROCESS = text_column("process", lambda v, x: v.process(x.process))
_ANY_PROCESS = text_column("process", lambda v, x: v.process(x.process), spare=True)
_GPU = text_column("GPU", lambda v, x: v.gpu(x.process, x.device))
_ANY_GPU = text_column("GPU", lambda v, x: v.gpu(x.process, x.device), spare=True)
_GPU_OF_STREAM = text_column(
    "GPU", lambda v, x: v.gpu(x.process, x.stream.device), spare=True
)
_STREAM_FIELDS = (
    _ANY_PROCESS,
    _GPU_OF_STREAM,
    text_column("stream", lambda v, x: v.stream(x.process, x.stream)),
)


def _of_system(use: HostUse) -> bool:
    return use.kind == "system call"


class _CategorizedWork(NamedTuple):
    category: str
    name: str
    time: Spread


def _gpu_work(view: View) -> Iterator[_CategorizedWork]:
    s = view.stats
    for category, uses in (
        ("kernel", s.kernels),
        ("memory", s.memory_operations),
        ("graph", s.graphs),
    ):
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
        yield from (
            _Communication(g.process, g.device, k, p.time, p.hidden)
            for k, p in parts.items()
            if p.time
        )


def _span(view: View, use: GpuUse | StreamUse) -> int:
    """The time (ns) from the first work to the last, without the time between the windows of a capture range."""
    return (
        use.last
        - use.first
        - time_within(view.trace.unrecorded(use.process), use.first, use.last)
    )


_DURATION = time_column("duration", lambda v, e: e.end - e.start)
_ON_STREAM = (
    _ANY_PROCESS,
    _GPU_OF_STREAM,
    text_column("stream", lambda v, e: v.stream(e.process, e.stream), spare=True),
)

_GPU_TRACE = (
    moment_column("start"),
    _DURATION,
    count_column("correlation"),
    text_column(
        "grid", lambda v, e: _size(e.shape.grid) if e.shape else "", spare=True
    ),
    text_column(
        "block", lambda v, e: _size(e.shape.block) if e.shape else "", spare=True
    ),
    count_column(
        "registers", lambda v, e: e.shape.registers if e.shape else None, spare=True
    ),
    size_column(
        "shared", lambda v, e: sum(e.shape.shared) if e.shape else None, spare=True
    ),
    size_column("bytes"),
    *_ON_STREAM,
    text_column("created in", "created_in", spare=True),
    text_column("name"),
)
_API_TRACE = (
    moment_column("start"),
    _DURATION,
    count_column("correlation"),
    count_column("status", spare=True),
    _ANY_PROCESS,
    count_column("thread"),
    text_column("name"),
)
_EXECUTION_TRACE = (
    moment_column("call start", "call.start"),
    time_column("call", lambda v, e: e.call.end - e.call.start),
    moment_column("start", spare=True),
    time_column("queue", lambda v, e: max(e.start - e.call.end, 0)),
    time_column("kernel", lambda v, e: e.end - e.start),
    time_column("total", lambda v, e: e.end - e.call.start, spare=True),
    _ANY_PROCESS,
    count_column("thread", "call.thread", spare=True),
    *_ON_STREAM[1:],
    text_column("api", "call.name"),
    text_column("name"),
)
# The spreads of each time of a launch.
_EXECUTIONS = tuple(
    time_column(
        f"{kind} {what}", f"{time}.{attribute}", what != "mean" or kind == "total"
    )
    for kind, time in (
        ("total", "total"),
        ("call", "call"),
        ("queue", "queue"),
        ("kernel", "time"),
    )
    for what, attribute in {
        "mean": "mean",
        "median": "median",
        "min": "min",
        "max": "max",
        "stddev": "std",
    }.items()
)


def _gpu_events(view: View) -> Iterator[listings.GpuEvent]:
    return listings.gpu_events(view.trace, view.stats.options)


_NAMES = ("names",)

#: The statistics of the core, in the order in which they are shown.
STATISTICS: tuple[ReportSpec, ...] = (
    statistic(
        "gpu_sum",
        "GPUs",
        "gpus",
        _PROCESS,
        _GPU,
        count_column(
            "kernels", lambda v, g: g.counts["kernels"] + g.counts["graph_launches"]
        ),
        time_column("kernel time", "kernel_ns"),
        time_column("compute", spare=True),
        time_column("busy"),
        _part("busy share", "busy", _span),
        count_column("copies", lambda v, g: g.counts["memcpys"], spare=True),
        count_column("fills", lambda v, g: g.counts["memsets"], spare=True),
        time_column("idle", lambda v, g: _span(v, g) - g.busy, spare=True),
        time_column("span", _span, spare=True),
    ),
    statistic(
        "stream_sum",
        "Streams",
        "streams",
        *_STREAM_FIELDS,
        count_column("kernels", lambda v, s: s.counts["kernels"]),
        count_column("copies", lambda v, s: s.counts["memcpys"]),
        count_column("fills", lambda v, s: s.counts["memsets"]),
        count_column("graphs", lambda v, s: s.counts["graph_launches"], spare=True),
        time_column("busy"),
        _part("busy share", "busy", _span),
        time_column("span", _span, spare=True),
    ),
    statistic(
        "idle_sum",
        "Idle time of streams, by what they waited for",
        "streams",
        *_STREAM_FIELDS,
        count_column("gaps", "idle.gaps", spare=True),
        time_column("idle", "idle.total"),
        *(
            time_column(reason, f"idle.{reason}")
            for reason in ("host", "kernel", "dependency", "other")
        ),
        _part("host share", "idle.host", "idle.total", spare=True),
        options=("consecutive_ns",),
    ),
    statistic(
        "overlap_sum",
        "Communication behind computation",
        "gpus",
        _ANY_PROCESS,
        _ANY_GPU,
        text_column("communication"),
        time_column("time"),
        time_column("hidden"),
        time_column("exposed", lambda v, x: x.time - x.hidden),
        _part("hidden share", "hidden", "time"),
        rows=_communication,
    ),
    statistic(
        "queue_sum",
        "Queues of launches",
        "streams",
        *_STREAM_FIELDS,
        count_column("launches", "queue.at_launch.count"),
        number_column("mean", "queue.mean"),
        number_column("mean at launch", "queue.at_launch.mean"),
        number_column("median at launch", "queue.at_launch.median", spare=True),
        count_column("min", "queue.at_launch.min", spare=True),
        count_column("max", "queue.at_launch.max"),
        time_column("full", "queue.full"),
        _part("full share", "queue.full", lambda v, s: v.span, spare=True),
        where=attrgetter("queue.at_launch.count"),
    ),
    statistic(
        "launch_sum",
        "Launches of kernels (medians)",
        "launches",
        _PROCESS,
        count_column("launches", "call.count"),
        *(time_column(time, f"{time}.median") for time in ("call", "latency", "queue")),
        *(
            time_column(f"max {time}", f"{time}.max", spare=True)
            for time in ("call", "latency", "queue")
        ),
        _part("short", "short", "call.count"),
        _part("bound", "bound", "call.count"),
        count_column("kernels", spare=True),
        count_column("early", spare=True),
        options=("short_ns",),
    ),
    summed(
        "cuda_gpu_kern_sum", "Kernels", "kernels", text_column("name"), options=_NAMES
    ),
    summed(
        "cuda_gpu_kern_gb_sum",
        "Kernels by launch configuration",
        "configurations",
        text_column("grid", lambda v, x: _size(x.configuration.grid)),
        text_column("block", lambda v, x: _size(x.configuration.block)),
        text_column(
            "cluster",
            lambda v, x: (
                _size(x.configuration.cluster) if any(x.configuration.cluster) else ""
            ),
            True,
        ),
        count_column("registers", "configuration.registers", spare=True),
        size_column("shared", lambda v, x: sum(x.configuration.shared), spare=True),
        text_column("name", "configuration.name"),
        usual=False,
        options=_NAMES,
    ),
    statistic(
        "short_kern_sum",
        "Short kernels",
        "kernels",
        count_column("short"),
        count_column("count", "time.count"),
        _part("short share", "short", "time.count"),
        time_column("total", "time.total"),
        time_column("mean", "time.mean"),
        time_column("median", "time.median", spare=True),
        text_column("name"),
        where=attrgetter("short"),
        order=lambda k: (-k.short, k.name),
        usual=False,
        options=(*_NAMES, "short_ns"),
    ),
    summed(
        "cuda_api_sum",
        "API calls",
        "api",
        count_column("failed", spare=True),
        text_column("name"),
    ),
    statistic(
        "cuda_kern_exec_sum",
        "Launch, queue and run of kernels",
        "executions",
        count_column("count", "time.count"),
        *_EXECUTIONS,
        text_column("api"),
        text_column("kernel"),
        order=lambda x: (-x.total.total, x.api, x.kernel),
        usual=False,
        options=_NAMES,
    ),
    summed(
        "cuda_gpu_mem_time_sum",
        "Copies and fills by time",
        "memory_operations",
        _BANDWIDTH,
        text_column("name"),
    ),
    statistic(
        "cuda_gpu_mem_size_sum",
        "Copies and fills by size",
        "memory_operations",
        text_column("name"),
        spread="bytes",
        unit="bytes",
    ),
    statistic(
        "copy_size_sum",
        "Copies by kinds of memory and size",
        "copies",
        text_column("direction"),
        text_column("from", "source"),
        text_column("to", "destination"),
        size_column("at least", "at_least"),
        count_column("count", "time.count"),
        size_column("bytes", "bytes.total"),
        time_column("time", "time.total"),
        time_column("mean time", "time.mean", spare=True),
        _BANDWIDTH,
        order=attrgetter("direction", "source", "destination", "at_least"),
        usual=False,
    ),
    summed(
        "cuda_gpu_sum",
        "GPU work",
        ("kernels", "memory_operations", "graphs"),
        text_column("category"),
        text_column("name"),
        rows=_gpu_work,
        usual=False,
        options=_NAMES,
    ),
    summed(
        "graph_sum",
        "CUDA graphs, traced as a whole",
        "graphs",
        text_column("graph", "name"),
    ),
    summed(
        "graph_range_sum",
        "Work of CUDA graphs by the NVTX ranges in which it was created",
        "graph_ranges",
        text_column("created in", "name"),
        count_column("nodes"),
        count_column("replays"),
    ),
    statistic(
        "stack_sum",
        "API calls and their GPU work by Python stack",
        ("stacks",),
        column_of("share", unit="1"),
        time_column("API time", "use.api_ns"),
        time_column("GPU time", "use.gpu_ns"),
        count_column("calls", "use.calls"),
        count_column("operations", "use.operations", spare=True),
        size_column("bytes", lambda v, row: row.use.bytes or None),
        text_column("kind", "use.kind"),
        text_column("stack", spare=True),
        text_column("line"),
        rows=_stack_rows,
    ),
    summed(
        "sync_sum", "Synchronisations", "synchronizations", text_column("kind", "name")
    ),
    summed(
        "nvtx_sum",
        "NVTX ranges",
        "ranges",
        text_column("style", spare=True),
        text_column("range", _range),
        where=attrgetter("time.count"),
    ),
    statistic(
        "nvtx_gpu_share",
        "GPU work in NVTX ranges and outside",
        "range_shares",
        text_column("range", "how"),
        count_column("operations"),
        time_column("GPU time", "gpu_ns"),
        _part("share", "gpu_ns", _time_of_shares),
        options=("ranges",),
    ),
    statistic(
        "nvtx_gpu_proj_sum",
        "NVTX ranges on the GPU",
        "ranges",
        count_column("operations", "projected.operations"),
        time_column("GPU time", "projected.gpu_ns"),
        time_column("CPU time", "time.total"),
        text_column("style", spare=True),
        text_column("range", _range),
        where=attrgetter("projected.time.count"),
        spread="projected.time",
        options=("ranges",),
    ),
    summed(
        "nvtx_kern_sum",
        "Kernels by NVTX range",
        "range_kernels",
        text_column("style", spare=True),
        text_column("range", _range),
        text_column("kernel"),
        usual=False,
        options=(*_NAMES, "ranges"),
    ),
    statistic(
        "nccl_sum",
        "Calls of NCCL by size",
        "nccl",
        time_column("CPU time", "time.total", spare=True),
        text_column(
            "communicator",
            lambda v, use: "" if use.communicator is None else str(use.communicator),
        ),
        count_column("rank"),
        count_column("root", spare=True),
        text_column("reduction", spare=True),
        text_column("name"),
        spread="bytes",
        unit="bytes",
    ),
    summed(
        "host_sum",
        "Operators and other slices of the host",
        "host",
        time_column("self", "self_ns"),
        time_column("GPU time", "projected.gpu_ns"),
        text_column("kind"),
        text_column("name"),
        where=lambda h: not _of_system(h),
        weight="self_ns",
    ),
    summed(
        "osrt_sum",
        "Calls of the operating system",
        "host",
        text_column("name"),
        where=_of_system,
    ),
    summed(
        "gpu_slice_sum",
        "Annotations on the GPU",
        "gpu_slices",
        text_column("kind"),
        text_column("name"),
    ),
    statistic(
        "um_sum",
        "Unified memory",
        "unified_memory",
        text_column("kind", "name"),
        count_column("count", "time.count"),
        size_column("bytes", lambda v, u: u.value.total if u.in_bytes else None),
        count_column("value", lambda v, u: None if u.in_bytes else u.value.total),
        time_column("time", "time.total"),
        order=lambda u: (-u.time.total, u.name),
    ),
    statistic(
        "memory_sum",
        "Memory",
        "memory",
        _ANY_PROCESS,
        _ANY_GPU,
        text_column("memory"),
        size_column("peak"),
        size_column("net"),
        count_column("allocations", spare=True),
        size_column("allocated", spare=True),
        count_column("frees", spare=True),
        size_column("freed", spare=True),
    ),
    statistic(
        "counter_sum",
        "Counters",
        "counters",
        _ANY_PROCESS,
        text_column(
            "GPU",
            lambda v, c: "" if c.device == 0xFFFF else v.gpu(c.process, c.device),
            spare=True,
        ),
        text_column(
            "counter", lambda v, c: f"{c.name} {c.series}" if c.series else c.name
        ),
        text_column("unit"),
        count_column("samples"),
        *(number_column(name) for name in ("min", "mean", "max", "total")),
        order=attrgetter("process", "name", "series", "device"),
    ),
    summed(
        "overhead_sum",
        "Overheads of the driver and of tracing",
        "overheads",
        text_column("kind", "name"),
        usual=False,
    ),
    statistic(
        "cuda_gpu_trace",
        "GPU work, one row each",
        (),
        *_GPU_TRACE,
        rows=_gpu_events,
        usual=False,
        listing=True,
        options=_NAMES,
    ),
    statistic(
        "cuda_api_trace",
        "API calls, one row each",
        (),
        *_API_TRACE,
        rows=lambda view: listings.calls(view.trace),
        usual=False,
        listing=True,
    ),
    statistic(
        "cuda_kern_exec_trace",
        "Launch, queue and run of each kernel",
        (),
        *_EXECUTION_TRACE,
        rows=lambda view: (e for e in _gpu_events(view) if e.shape and e.call),
        usual=False,
        listing=True,
        options=_NAMES,
    ),
)
