"""The reports of ``cutrace stats``: what each one is, and its table. docs/stats.md says what the columns mean.

Those that ``nsys stats`` has too have its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..errors import CutraceError
from ..trace import Trace
from . import listings
from .distribution import Spread
from .stats import DEFAULTS, HostUse, Options, Stats, collect
from .sweep import Stream
from .tables import Cell, Column, Table, Unit

Rows = list[tuple[Cell, ...]]
_STREAM, _DEVICE = 1, 3


@dataclass(frozen=True)
class Report:
    """A report: ``parts`` are the fields of :class:`.stats.Stats` that it shows; ``usual`` says that it is shown
    without being asked for. ``build`` makes the columns and the rows of its table."""

    name: str
    title: str
    parts: tuple[str, ...]
    build: Callable[[View], tuple[tuple[Column, ...], Iterable[tuple[Cell, ...]]]]
    usual: bool = True
    listing: bool = False


class View:
    """Statistics with the names of what they are about."""

    def __init__(self, trace: Trace, stats: Stats) -> None:
        self.trace, self.stats = trace, stats
        self._named: dict[tuple[int, int, int, int], str] = {}
        for row in trace.resource_names:
            context = 0 if row["kind"] == _DEVICE else int(row["context"])
            key = int(row["process"]), int(row["kind"]), context, int(row["object"])
            self._named[key] = trace.strings[int(row["name"])]
        self._devices = {
            (int(row["process"]), int(row["device"])): trace.strings[int(row["name"])] for row in trace.devices
        }

    @property
    def span(self) -> int:
        """The length (ns) of the capture."""
        return self.stats.end - self.stats.start

    def process(self, index: int) -> str:
        """A process: ``train.py (4711)``."""
        process = self.trace.processes[index]
        return f"{process.name} ({process.pid})"

    def gpu(self, process: int, device: int) -> str:
        """A GPU by its number in the process: ``0 NVIDIA H200``."""
        name = self._named.get((process, _DEVICE, 0, device)) or self._devices.get((process, device), "")
        return f"{device} {name}".strip()

    def stream(self, process: int, stream: Stream) -> str:
        """A stream by its number and name, with its context if there is more than one: ``13 copies``."""
        name = self._named.get((process, _STREAM, stream.context, stream.stream), "")
        contexts = {use.stream.context for use in self.stats.streams if use.process == process}
        context = f"{stream.context}/" if len(contexts) > 1 else ""
        return f"{context}{stream.stream} {name}".strip()


def tables(trace: Trace, names: Sequence[str] | None = None, options: Options = DEFAULTS) -> list[Table]:
    """The tables of these reports, of all usual ones unless given, of which those without rows are left out. Raises
    :class:`cutrace.CutraceError` for a report that does not exist."""
    chosen = [report(name) for name in names] if names is not None else [r for r in REPORTS.values() if r.usual]
    parts = list(dict.fromkeys(part for r in chosen for part in r.parts))
    view = View(trace, collect(trace, parts, options))
    found = []
    for one in chosen:
        columns, rows = one.build(view)
        table = Table(one.name, one.title, columns, rows, one.listing)
        if names is not None or rows:
            found.append(table)
    return found


def report(name: str) -> Report:
    """The report of this name."""
    if name not in REPORTS:
        import difflib

        close = difflib.get_close_matches(name, REPORTS, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`cutrace stats --list-reports` has all."
        raise CutraceError(f"there is no report {name!r}: {hint}")
    return REPORTS[name]


# Columns and cells that many reports have


def _spread(unit: Unit, *, share: bool = True, total: bool = True) -> tuple[Column, ...]:
    columns = (
        Column("share", "1"),
        Column("total", unit),
        Column("count"),
        Column("mean", unit),
        Column("median", unit, spare=True),
        Column("min", unit, spare=True),
        Column("max", unit, spare=True),
        Column("stddev", unit, spare=True),
    )
    left_out = {name for name, kept in (("share", share), ("total", total)) if not kept}
    return tuple(column for column in columns if column.name not in left_out)


def _cells(spread: Spread, whole: int | None = None, *, total: bool = True) -> tuple[Cell, ...]:
    share: tuple[Cell, ...] = () if whole is None else (_share(spread.total, whole),)
    sums: tuple[Cell, ...] = (spread.total,) if total else ()
    measures = (spread.count, spread.mean, spread.median, spread.min, spread.max, spread.std)
    return (*share, *sums, *measures)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _text(*names: str, spare: bool = False) -> tuple[Column, ...]:
    return tuple(Column(name, "text", spare) for name in names)


def _by_total(rows: Iterable[tuple[Spread, tuple[Cell, ...]]]) -> Rows:
    """Rows of spreads with their words: with shares, the longest first."""
    listed = sorted(rows, key=lambda row: (-row[0].total, -row[0].count, row[1]))
    whole = sum(spread.total for spread, _ in listed)
    return [(*_cells(spread, whole), *words) for spread, words in listed]


Built = tuple[tuple[Column, ...], Iterable[tuple[Cell, ...]]]


# The reports


def _kernels(view: View) -> Built:
    return (*_spread("ns"), *_text("name")), _by_total((k.time, (k.name,)) for k in view.stats.kernels)


def _configurations(view: View) -> Built:
    shape = (*_text("grid", "block"), *_text("cluster", spare=True), Column("registers", spare=True))
    words = (*shape, Column("shared", "bytes", spare=True), *_text("name"))
    rows = []
    for use in view.stats.configurations:
        c = use.configuration
        cluster = _dim(c.cluster) if any(c.cluster) else None
        rows.append((use.time, (_dim(c.grid), _dim(c.block), cluster or "", c.registers, sum(c.shared), c.name)))
    return (*_spread("ns"), *words), _by_total(rows)


def _dim(size: tuple[int, int, int]) -> str:
    return "x".join(map(str, size))


def _api(view: View) -> Built:
    columns = (*_spread("ns"), Column("failed", spare=True), *_text("name"))
    return columns, _by_total((c.time, (c.failed, c.name)) for c in view.stats.api)


def _gpu_work(view: View) -> Built:
    s = view.stats
    rows = [(use.time, (category, use.name)) for category, uses in (
        ("kernel", s.kernels), ("memory", s.memory_operations), ("graph", s.graphs)) for use in uses]  # fmt: skip
    return (*_spread("ns"), *_text("category", "name")), _by_total(rows)


def _memory_times(view: View) -> Built:
    return (*_spread("ns"), *_text("name")), _by_total((m.time, (m.name,)) for m in view.stats.memory_operations)


def _memory_sizes(view: View) -> Built:
    columns = (*_spread("bytes"), *_text("name"))
    return columns, _by_total((m.bytes, (m.name,)) for m in view.stats.memory_operations)


def _copies(view: View) -> Built:
    columns = (
        *_text("direction"), *_text("from", "to"), Column("at least", "bytes"), Column("count"),
        Column("bytes", "bytes"), Column("time", "ns"), Column("mean time", "ns", spare=True),
        Column("bandwidth", "bytes/s"),
    )  # fmt: skip
    rows: Rows = []
    for c in sorted(view.stats.copies, key=lambda c: (c.direction, c.source, c.destination, c.at_least)):
        bandwidth = c.bytes.total * 1_000_000_000 / c.time.total if c.time.total else None
        words = (c.direction, c.source, c.destination, c.at_least)
        rows.append((*words, c.time.count, c.bytes.total, c.time.total, c.time.mean, bandwidth))
    return columns, rows


def _ranges(view: View) -> Built:
    words = (*_text("style", spare=True), *_text("range"))
    return (*_spread("ns"), *words), _by_total((r.time, (r.style, _range(r.domain, r.name))) for r in view.stats.ranges)


def _range(domain: str, name: str) -> str:
    """As Nsight Systems writes it: the default domain has no name."""
    return f"{domain}:{name}"


def _projected(view: View) -> Built:
    columns = (
        *_spread("ns"), Column("operations"), Column("GPU time", "ns"), Column("CPU time", "ns"),
        *_text("style", spare=True), *_text("range"),
    )  # fmt: skip
    rows = (
        (
            r.projected.time,
            (r.projected.operations, r.projected.gpu_ns, r.time.total, r.style, _range(r.domain, r.name)),
        )
        for r in view.stats.ranges
        if r.projected.time.count
    )
    return columns, _by_total(rows)


def _range_kernels(view: View) -> Built:
    columns = (*_spread("ns"), *_text("style", spare=True), *_text("range", "kernel"))
    rows = ((r.time, (r.style, _range(r.domain, r.range), r.kernel)) for r in view.stats.range_kernels)
    return columns, _by_total(rows)


def _host(view: View) -> Built:
    columns = (*_spread("ns"), Column("GPU time", "ns"), *_text("kind"), *_text("name"))
    rows = ((h.time, (h.projected.gpu_ns, h.kind, h.name)) for h in view.stats.host if not _of_system(h))
    return columns, _by_total(rows)


def _system_calls(view: View) -> Built:
    return (*_spread("ns"), *_text("name")), _by_total((h.time, (h.name,)) for h in view.stats.host if _of_system(h))


def _of_system(use: HostUse) -> bool:
    return use.kind == "system call"


def _gpu_slices(view: View) -> Built:
    columns = (*_spread("ns"), *_text("kind", "name"))
    return columns, _by_total((g.time, (g.kind, g.name)) for g in view.stats.gpu_slices)


def _gpus(view: View) -> Built:
    columns = (
        *_text("process", "GPU"), Column("kernels"), Column("kernel time", "ns"), Column("compute", "ns", spare=True),
        Column("busy", "ns"), Column("busy share", "1"), Column("copies", spare=True), Column("fills", spare=True),
        Column("idle", "ns", spare=True), Column("span", "ns", spare=True),
    )  # fmt: skip
    rows: Rows = []
    for g in view.stats.gpus:
        span, counts = g.last - g.first, g.counts
        kernels = counts["kernels"] + counts["graph_launches"]
        rows.append((
            view.process(g.process), view.gpu(g.process, g.device), kernels, g.kernel_ns, g.compute, g.busy,
            _share(g.busy, span), counts["memcpys"], counts["memsets"], span - g.busy, span,
        ))  # fmt: skip
    return columns, rows


def _overlap(view: View) -> Built:
    columns = (
        *_text("process", "GPU", spare=True), *_text("communication"), Column("time", "ns"), Column("hidden", "ns"),
        Column("exposed", "ns"), Column("hidden share", "1"),
    )  # fmt: skip
    rows: Rows = []
    for g in view.stats.gpus:
        parts = [("kernels", g.communication), ("copies", g.copies)]
        if all(part.time for _, part in parts):
            parts.append(("both", g.both))
        for name, part in parts:
            if part.time:
                numbers = (part.time, part.hidden, part.time - part.hidden, _share(part.hidden, part.time))
                rows.append((view.process(g.process), view.gpu(g.process, g.device), name, *numbers))
    return columns, rows


_WHERE = (*_text("process", spare=True), *_text("GPU", spare=True), *_text("stream"))


def _where(view: View, process: int, stream: Stream) -> tuple[Cell, ...]:
    return view.process(process), view.gpu(process, stream.device), view.stream(process, stream)


def _streams(view: View) -> Built:
    columns = (
        *_WHERE, Column("kernels"), Column("copies"), Column("fills"), Column("graphs", spare=True),
        Column("busy", "ns"), Column("busy share", "1"), Column("span", "ns", spare=True),
    )  # fmt: skip
    rows: Rows = []
    for s in view.stats.streams:
        counts = (s.counts[table] for table in ("kernels", "memcpys", "memsets", "graph_launches"))
        span = s.last - s.first
        rows.append((*_where(view, s.process, s.stream), *counts, s.busy, _share(s.busy, span), span))
    return columns, rows


def _idle(view: View) -> Built:
    columns = (
        *_WHERE, Column("gaps", spare=True), Column("idle", "ns"), Column("host", "ns"), Column("kernel", "ns"),
        Column("dependency", "ns"), Column("other", "ns"), Column("host share", "1", spare=True),
    )  # fmt: skip
    rows: Rows = []
    for s in view.stats.streams:
        i = s.idle
        numbers = (i.gaps, i.total, i.host, i.kernel, i.dependency, i.other, _share(i.host, i.total))
        rows.append((*_where(view, s.process, s.stream), *numbers))
    return columns, rows


def _queues(view: View) -> Built:
    columns = (
        *_WHERE, Column("launches"), Column("mean", "number"), Column("mean at launch", "number"),
        Column("median at launch", "number", spare=True), Column("min", spare=True), Column("max"),
        Column("full", "ns"), Column("full share", "1", spare=True),
    )  # fmt: skip
    rows: Rows = []
    for s in view.stats.streams:
        at = s.queue.at_launch
        if at.count:
            full = (s.queue.full, _share(s.queue.full, view.span))
            numbers = (at.count, s.queue.mean, at.mean, at.median, at.min, at.max)
            rows.append((*_where(view, s.process, s.stream), *numbers, *full))
    return columns, rows


def _launches(view: View) -> Built:
    columns = (
        *_text("process"), Column("launches"), Column("call", "ns"), Column("latency", "ns"), Column("queue", "ns"),
        Column("max call", "ns", spare=True), Column("max latency", "ns", spare=True),
        Column("max queue", "ns", spare=True), Column("short", "1"), Column("bound", "1"),
        Column("kernels", spare=True), Column("early", spare=True),
    )  # fmt: skip
    rows: Rows = []
    for x in view.stats.launches:
        medians = (x.call.median, x.latency.median, x.queue.median, x.call.max, x.latency.max, x.queue.max)
        shares = (_share(x.short, x.call.count), _share(x.bound, x.call.count))
        rows.append((view.process(x.process), x.call.count, *medians, *shares, x.kernels, x.early))
    return columns, rows


def _short_kernels(view: View) -> Built:
    columns = (
        Column("short"), Column("count"), Column("short share", "1"), Column("total", "ns"), Column("mean", "ns"),
        Column("median", "ns", spare=True), *_text("name"),
    )  # fmt: skip
    uses = sorted((k for k in view.stats.kernels if k.short), key=lambda k: (-k.short, k.name))
    rows: Rows = []
    for k in uses:
        t = k.time
        rows.append((k.short, t.count, k.short / t.count, t.total, t.mean, t.median, k.name))
    return columns, rows


def _executions(view: View) -> Built:
    kinds = ("total", "call", "queue", "kernel")
    columns = (
        Column("count"),
        *(Column(f"{kind} {what}", "ns", spare=what != "mean" or kind == "total")
          for kind in kinds for what in ("mean", "median", "min", "max", "stddev")),
        *_text("api", "kernel"),
    )  # fmt: skip
    rows: Rows = []
    for x in sorted(view.stats.executions, key=lambda x: (-x.total.total, x.api, x.kernel)):
        spreads = (x.total, x.call, x.queue, x.time)
        numbers = (number for s in spreads for number in (s.mean, s.median, s.min, s.max, s.std))
        rows.append((x.time.count, *numbers, x.api, x.kernel))
    return columns, rows


def _synchronizations(view: View) -> Built:
    return (*_spread("ns"), *_text("kind")), _by_total((s.time, (s.name,)) for s in view.stats.synchronizations)


def _overheads(view: View) -> Built:
    return (*_spread("ns"), *_text("kind")), _by_total((o.time, (o.name,)) for o in view.stats.overheads)


def _graphs(view: View) -> Built:
    return (*_spread("ns"), *_text("graph")), _by_total((g.time, (g.name,)) for g in view.stats.graphs)


def _unified_memory(view: View) -> Built:
    columns = (*_text("kind"), Column("count"), Column("bytes", "bytes"), Column("value"), Column("time", "ns"))
    rows: Rows = []
    for u in sorted(view.stats.unified_memory, key=lambda u: (-u.time.total, u.name)):
        sums = (u.value.total, None) if u.in_bytes else (None, u.value.total)
        rows.append((u.name, u.time.count, *sums, u.time.total))
    return columns, rows


def _counters(view: View) -> Built:
    columns = (
        *_text("process", spare=True), *_text("counter"), *_text("unit"), Column("samples"), Column("min", "number"),
        Column("mean", "number"), Column("max", "number"),
    )  # fmt: skip
    rows: Rows = []
    for c in sorted(view.stats.counters, key=lambda c: (c.process, c.name, c.series)):
        name = f"{c.name} {c.series}" if c.series else c.name
        rows.append((view.process(c.process), name, c.unit, c.samples, c.min, c.mean, c.max))
    return columns, rows


def _memory(view: View) -> Built:
    columns = (
        *_text("process", "GPU", spare=True), *_text("memory"), Column("peak", "bytes"), Column("net", "bytes"),
        Column("allocations", spare=True),
        Column("allocated", "bytes", spare=True), Column("frees", spare=True), Column("freed", "bytes", spare=True),
    )  # fmt: skip
    rows: Rows = []
    for m in view.stats.memory:
        numbers = (m.peak, m.net, m.allocations, m.allocated, m.frees, m.freed)
        rows.append((view.process(m.process), view.gpu(m.process, m.device), m.memory, *numbers))
    return columns, rows


_GPU_TRACE = (
    Column("start", "moment"), Column("duration", "ns"), Column("correlation"), *_text("grid", "block", spare=True),
    Column("registers", spare=True), Column("shared", "bytes", spare=True), Column("bytes", "bytes"),
    *_text("process", spare=True), *_text("GPU", "stream", spare=True), *_text("name"),
)  # fmt: skip
_API_TRACE = (
    Column("start", "moment"), Column("duration", "ns"), Column("correlation"), Column("status", spare=True),
    *_text("process", spare=True), Column("thread"), *_text("name"),
)  # fmt: skip
_EXECUTION_TRACE = (
    Column("call start", "moment"), Column("call", "ns"), Column("start", "moment", spare=True), Column("queue", "ns"),
    Column("kernel", "ns"), Column("total", "ns", spare=True), *_text("process", spare=True),
    Column("thread", spare=True), *_text("GPU", "stream", spare=True), *_text("api", "name"),
)  # fmt: skip


def _gpu_trace(view: View) -> Built:
    def row(e: listings.GpuEvent) -> tuple[Cell, ...]:
        where = (view.process(e.process), view.gpu(e.process, e.stream.device), view.stream(e.process, e.stream))
        shape: tuple[Cell, ...] = ("", "", None, None)
        if e.shape:
            shape = (_dim(e.shape.grid), _dim(e.shape.block), e.shape.registers, e.shape.shared)
        return (e.start, e.end - e.start, e.correlation, *shape, e.bytes, *where, e.name)

    return _GPU_TRACE, map(row, listings.gpu_events(view.trace, view.stats.options))


def _api_trace(view: View) -> Built:
    def row(e: listings.Call) -> tuple[Cell, ...]:
        return (e.start, e.end - e.start, e.correlation, e.status, view.process(e.process), e.thread, e.name)

    return _API_TRACE, map(row, listings.calls(view.trace))


def _execution_trace(view: View) -> Built:
    def row(e: listings.GpuEvent) -> tuple[Cell, ...]:
        call = e.call
        assert call is not None
        where = (view.process(e.process), call.thread, view.gpu(e.process, e.stream.device))
        times = (call.start, call.end - call.start, e.start, max(e.start - call.end, 0), e.end - e.start)
        return (*times, e.end - call.start, *where, view.stream(e.process, e.stream), call.name, e.name)

    events = listings.gpu_events(view.trace, view.stats.options)
    return _EXECUTION_TRACE, (row(e) for e in events if e.shape and e.call)


#: All reports, in the order in which they are shown.
REPORTS: dict[str, Report] = {
    r.name: r
    for r in (
        Report("gpu_sum", "GPUs", ("gpus",), _gpus),
        Report("stream_sum", "Streams", ("streams",), _streams),
        Report("idle_sum", "Idle time of streams, by what they waited for", ("streams",), _idle),
        Report("overlap_sum", "Communication behind computation", ("gpus",), _overlap),
        Report("queue_sum", "Queues of launches", ("streams",), _queues),
        Report("launch_sum", "Launches of kernels (medians)", ("launches",), _launches),
        Report("cuda_gpu_kern_sum", "Kernels", ("kernels",), _kernels),
        Report("cuda_gpu_kern_gb_sum", "Kernels by launch configuration", ("configurations",), _configurations, False),
        Report("short_kern_sum", "Short kernels", ("kernels",), _short_kernels, False),
        Report("cuda_api_sum", "API calls", ("api",), _api),
        Report("cuda_kern_exec_sum", "Launch, queue and run of kernels", ("executions",), _executions, False),
        Report("cuda_gpu_mem_time_sum", "Copies and fills by time", ("memory_operations",), _memory_times),
        Report("cuda_gpu_mem_size_sum", "Copies and fills by size", ("memory_operations",), _memory_sizes),
        Report("copy_size_sum", "Copies by kinds of memory and size", ("copies",), _copies, False),
        Report("cuda_gpu_sum", "GPU work", ("kernels", "memory_operations", "graphs"), _gpu_work, False),
        Report("graph_sum", "CUDA graphs, traced as a whole", ("graphs",), _graphs),
        Report("sync_sum", "Synchronisations", ("synchronizations",), _synchronizations),
        Report("nvtx_sum", "NVTX ranges", ("ranges",), _ranges),
        Report("nvtx_gpu_proj_sum", "NVTX ranges on the GPU", ("ranges",), _projected),
        Report("nvtx_kern_sum", "Kernels by NVTX range", ("range_kernels",), _range_kernels, False),
        Report("host_sum", "Operators and other slices of the host", ("host",), _host),
        Report("osrt_sum", "Calls of the operating system", ("host",), _system_calls),
        Report("gpu_slice_sum", "Annotations on the GPU", ("gpu_slices",), _gpu_slices),
        Report("um_sum", "Unified memory", ("unified_memory",), _unified_memory),
        Report("memory_sum", "Memory", ("memory",), _memory),
        Report("counter_sum", "Counters", ("counters",), _counters),
        Report("overhead_sum", "Overheads of the driver and of tracing", ("overheads",), _overheads, False),
        Report("cuda_gpu_trace", "GPU work, one row each", (), _gpu_trace, False, True),
        Report("cuda_api_trace", "API calls, one row each", (), _api_trace, False, True),
        Report("cuda_kern_exec_trace", "Launch, queue and run of each kernel", (), _execution_trace, False, True),
    )
}
