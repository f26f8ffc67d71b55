"""A capture as one self-contained HTML page: timeline, flame graph, kernels, copies, idle time, memory.

The size of the page does not grow with the number of records. Charts divide time into parts of equal length, and
tables, lanes and frames have limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...analysis.collection import Collected, StatsCollection
from ...analysis.coverage import coverage
from ...analysis.flame import Frame, FramesBy, frames
from ...analysis.gpu import work_span
from ...analysis.statistic import Statistic, View
from ...analysis.statistics.copies import CUDA_GPU_MEM_TIME_SUM
from ...analysis.statistics.gpus import BUSY, BusyUse
from ...analysis.statistics.graphs import GRAPH_SUM
from ...analysis.statistics.kernels import CUDA_GPU_KERN_SUM
from ...analysis.statistics.memory import MEMORY_LEVELS, MEMORY_SUM, MemoryLevels
from ...analysis.statistics.nvtx import RANGE_SHARES
from ...analysis.statistics.paths import PATHS
from ...analysis.statistics.streams import IDLE_SUM, STREAMS
from ...analysis.tables import Column
from ...reports.html import data_script, escaped, figure, figures, page, section
from ...reports.tables import cell
from ...reports.values import duration, size
from ...trace import Trace
from ...trace.alignment import recorded
from ...units import count_of, format_duration, printable

_FOLDER = Path(__file__).parent

# The statistics that the page shows as tables after the flame graph.
_TABLES = (CUDA_GPU_KERN_SUM, GRAPH_SUM, CUDA_GPU_MEM_TIME_SUM)
#: The collections that the page shows.
SHOWN: tuple[StatsCollection[Any], ...] = (
    *(PATHS, RANGE_SHARES, STREAMS, BUSY, MEMORY_LEVELS),
    *CUDA_GPU_KERN_SUM.collections,
    *GRAPH_SUM.collections,
    *CUDA_GPU_MEM_TIME_SUM.collections,
    *MEMORY_SUM.collections,
)
# The tables with a count of rows in the head of the page, and the noun for a row.
_COUNTED = {
    "kernels": "kernel",
    "memcpys": "copy",
    "api_calls": "API call",
    "nvtx_ranges": "NVTX range",
}
# The largest numbers of streams in the timeline, streams in the chart of idle time, rows of a table, and frames on the
# page.
_LANES = 40
_BARS = 24
_ROWS = 50
_FRAMES = 20_000
_KINDS = ("range", "kernel", "copy", "fill", "graph")
_REASONS = {
    "busy": "busy",
    "host": "waits for the host",
    "kernel": "between consecutive kernels",
    "dependency": "waits for another stream",
    "other": "other",
}
_NOTHING_IN_COMMON = "No outermost range has the same name in both traces, so all frames below are new or gone."
# The colours of changes of GPU time. Smaller changes have shades between these colours.
_CHANGES = {
    "gone": "gone",
    "less": "half",
    "same": "the same",
    "more": "twice",
    "new": "new",
}


@dataclass(frozen=True)
class Earlier:
    """The trace with which a page compares: the root of its flame graph, its name, and sentences on what it lacks."""

    root: Frame
    name: str
    missing: tuple[str, ...]


def html(
    trace: Trace,
    collected: Collected,
    name: str,
    before: Earlier | None = None,
) -> str:
    """The page of a trace. ``collected`` has the results of :data:`SHOWN`. ``name`` is the name of the source.
    With the ``before`` trace, the flame graph shows the changes."""
    view = View(trace, collected)
    flame = frames(collected[PATHS])
    flame_title = "GPU time by range"
    notes = [coverage(collected[RANGE_SHARES])]
    earlier: Frame | None = None
    if before:
        earlier = before.root
        flame_title += f", compared with {before.name}"
        if not flame.children.keys() & earlier.children.keys():
            notes.append(_NOTHING_IN_COMMON)
    sections = [
        section("Timeline", _timeline(view)),
        section(flame_title, flame_section(earlier, notes)),
        *(_report(view, statistic) for statistic in _TABLES),
        _idle(view),
        _report(view, MEMORY_SUM),
    ]
    about = escaped(" · ".join(_about(trace)))
    sentences = [*trace.quality.sentences()]
    if before:
        sentences += [f"{before.name}: {sentence}" for sentence in before.missing]
    for sentence in dict.fromkeys(sentences):
        about += f"<p class=note>{escaped(sentence)}</p>"
    return page(
        "view",
        name,
        folder=_FOLDER,
        shared=("charts", "tables"),
        about=about,
        main="\n".join(filter(None, sections)),
        data=data_script("frames", flame_data(flame, earlier)),
    )


def flame_html(flame: Frame, by: FramesBy = "range", covered: str | None = None) -> str:
    """A page with only a flame graph. ``covered`` is a sentence on the share of the GPU time in ranges."""
    about = f"{count_of(flame.operations, 'operation')}, {duration(flame.gpu_ns)} of GPU time"
    if by == "range":
        title = "GPU time by range"
    else:
        title = "GPU time by Python stack"
    main = section(title, flame_section(None, [covered]))
    data = data_script("frames", flame_data(flame))
    return page(
        "view",
        "cutrace flame graph",
        folder=_FOLDER,
        about=escaped(about),
        main=main,
        data=data,
    )


def _about(trace: Trace) -> Iterator[str]:
    yield format_duration(trace.end - trace.start)
    began = recorded(trace.clocks, trace.start)
    if began is not None:
        yield f"recorded {began:%Y-%m-%d %H:%M:%S}"
    if len(trace.processes) > 3:
        yield count_of(len(trace.processes), "process")
    else:
        yield from (f"{process.name} ({process.pid})" for process in trace.processes)
    gpus = trace.devices["name"].tolist()
    yield from dict.fromkeys(trace.strings[number] for number in gpus)
    for table, noun in _COUNTED.items():
        rows = trace.count(table)
        if rows:
            yield count_of(rows, noun)


# Time


def _timeline(view: View) -> str:
    """The chart of the busy share of each GPU and its busiest streams, and of the held memory."""
    uses = view.collected[BUSY]
    memories = view.collected[MEMORY_LEVELS]
    if not uses and not memories:
        return ""
    gpus = []
    streams = []
    for use in uses:
        if use.stream is None:
            gpus.append(use)
        else:
            streams.append(use)
    streams.sort(key=lambda use: sum(use.parts), reverse=True)
    lanes = []
    for gpu in gpus:
        lanes.append(_busy_lane(view, gpu))
        for use in streams[:_LANES]:
            of_this_gpu = use.process == gpu.process and use.device == gpu.device
            if of_this_gpu:
                lanes.append(_busy_lane(view, use))
    lanes += [_memory_lane(view, one) for one in memories if max(one.highest) > 0]
    _, span = _span(view)
    chart = None
    if lanes:
        chart = {"kind": "lanes", "span": span, "lanes": lanes}
    note = ""
    left = len(streams) - _LANES
    if left > 0:
        note = f"<p class=note>{count_of(left, 'stream')} with less work not shown.</p>"
    return figure("time", "Busy share of GPUs and streams, and memory", chart) + note


def _span(view: View) -> tuple[int, int]:
    """The start and the length (ns) of the time of GPU work."""
    first, last = work_span(view.trace)
    return first, max(last - first, 1)


def _busy_lane(view: View, use: BusyUse) -> dict[str, Any]:
    """The busy share of a GPU or stream as a lane of charts.js."""
    _, span = _span(view)
    if use.stream:
        label = f"stream {view.stream(use.process, use.stream)}"
    else:
        label = view.gpu(use.process, use.device) + _of_process(view, use.process)
    return {
        "label": label,
        "kind": "busy",
        "part": use.stream is not None,
        "total": _share(sum(use.parts) / span),
        "unit": "1",
        "most": 1,
        "width": use.width,
        "values": [round(busy / use.width, 4) for busy in use.parts],
    }


def _memory_lane(view: View, levels: MemoryLevels) -> dict[str, Any]:
    """The held memory as a lane of charts.js."""
    first, span = _span(view)
    most = max(levels.highest)
    edges = [min(max(time - first, 0), span) for time in levels.times]
    return {
        "label": f"{levels.memory} memory, {view.gpu(levels.process, levels.device)}",
        "kind": "memory",
        "part": False,
        "total": f"up to {size(most)}",
        "unit": "bytes",
        "most": most,
        "edges": [*edges, span],
        "values": [max(level, 0) for level in levels.highest],
    }


def _of_process(view: View, process: int) -> str:
    """The name of a lane's process, which ends the label of the lane if several processes used GPUs."""
    if _several(view):
        return f", {view.process(process)}"
    return ""


def _several(view: View) -> bool:
    """Whether several processes used GPUs, so that labels need their names."""
    return len({use.process for use in view.collected[STREAMS]}) > 1


def _share(share: float) -> str:
    return cell(share, Column("", "1"))


# Tables


def _report(view: View, statistic: Statistic, picture: str = "") -> str:
    """A report as a table, with ``picture`` above. Spare columns are left out, except for the process if it is
    needed."""
    made = statistic.table(view)
    needed = ""
    if _several(view):
        needed = "process"
    chosen = []
    for at, column in enumerate(made.columns):
        if not column.spare or column.name == needed:
            chosen.append(at)
    columns = tuple(made.columns[at] for at in chosen)
    rows = [tuple(row[at] for at in chosen) for row in made.rows]
    shown = replace(made, columns=columns, rows=rows)
    more = f"and {{:,}} more: cutrace stats --report {statistic.name} shows all"
    return section(made.title, picture + figures(shown, _ROWS, more))


def _idle(view: View) -> str:
    """A chart and a table of streams: the busy share of the time, and the idle share by reason."""
    uses = sorted(view.collected[STREAMS], key=lambda use: use.busy, reverse=True)
    if not uses:
        return ""
    labels = []
    shares: dict[str, list[float]] = {words: [] for words in _REASONS.values()}
    for use in uses[:_BARS]:
        span = max(use.last - use.first, 1)
        stream = view.stream(use.process, use.stream)
        process = _of_process(view, use.process)
        labels.append(f"stream {stream}{process}, {_share(use.busy / span)} busy")
        for reason, words in _REASONS.items():
            if reason == "busy":
                ns = use.busy
            else:
                ns = getattr(use.idle, reason)
            shares[words].append(ns / span)
    series = [{"name": words, "values": values} for words, values in shares.items()]
    chart = {"kind": "bars", "unit": "1", "labels": labels, "series": series}
    picture = figure("idle", "Busy time and idle time of streams", chart)
    return _report(view, IDLE_SUM, picture)


# The flame graph


def flame_section(before: Frame | None, notes: Sequence[str | None]) -> str:
    """The element of the flame graph, below ``notes``. The script of the page draws it from the element ``frames``."""
    widths = {"gpu": "GPU time", "cpu": "CPU time"}
    colours = ""
    scale = ""
    if before:
        widths["before"] = "GPU time before"
        colours = "Red frames take more GPU time than before, blue ones less. "
        steps = ""
        for name, words in _CHANGES.items():
            steps += f"<span><i class={name}></i>{words}</span>"
        scale = f"<p class=legend>GPU time compared with before: {steps}</p>\n"
    buttons = ""
    pressed = "true"  # the first width is selected initially
    for key, words in widths.items():
        buttons += f'<button type=button data-width="{key}" aria-pressed={pressed}>{words}</button>'
        pressed = "false"
    above = ""
    for note in filter(None, notes):
        above += f"<p class=note>{escaped(note)}</p>\n"
    return above + (
        f'<div class=timebar>{buttons}<input type=search id=find placeholder="find a frame   ( / )" '
        'aria-label="Find a frame"><span class=hint id=found></span></div>\n'
        f"{scale}<div id=flame></div><p id=about aria-live=polite></p>\n"
        f"<p class=keys>{colours}Click a frame to fill the width with it. Keys: arrows go from frame to frame, "
        "Enter fills, Escape goes back, 0 shows all.</p>"
    )


def flame_data(flame: Frame, before: Frame | None = None) -> dict[str, Any]:
    """The largest frames as JSON values. ``names`` are all names. ``frames`` has a list of numbers for each frame,
    parents first: depth, index of the name, kind, GPU time (ns), operations and CPU time (ns). With ``before``, the
    last three follow for the earlier trace."""
    both = _merged(flame, before)
    # The indices of GPU time and CPU time, now and before.
    measures = [0, 2]
    if before is not None:
        measures = [0, 2, 3, 5]
    root_figures = both[0][3]
    wholes = {at: max(root_figures[at], 1) for at in measures}
    weights = []
    for *_, use in both:
        shares = [use[at] / whole for at, whole in wholes.items()]
        weights.append(max(shares))
    # A frame comes after its parent and is at most as large, so the parent of a kept frame is also kept.
    order = sorted(range(len(both)), key=lambda number: -weights[number])
    kept = sorted(order[:_FRAMES])
    names: dict[str, int] = {}
    listed = []
    for number in kept:
        depth, name, kind, use = both[number]
        name_index = names.setdefault(name, len(names))
        listed.append([depth, name_index, _KINDS.index(kind), *use])
    return {
        "names": list(map(printable, names)),
        "frames": listed,
        "left": len(both) - len(kept),
        "before": before is not None,
    }


def _merged(
    flame: Frame, before: Frame | None
) -> list[tuple[int, str, str, list[int]]]:
    """All frames of both graphs as depth, name, kind and figures. Parents come first, and large frames before small
    ones."""
    out: list[tuple[int, str, str, list[int]]] = []
    stack: list[tuple[int, Frame | None, Frame | None]] = [(0, flame, before)]
    while stack:
        depth, now, then = stack.pop()
        one = now or then
        assert one
        use = [*_use(now)]
        if before:
            use += _use(then)
        out.append((depth, one.name, one.kind, use))
        children_now = now.children if now else {}
        children_then = then.children if then else {}
        pairs = [
            (children_now.get(key), children_then.get(key))
            for key in children_now | children_then
        ]
        pairs.sort(key=lambda pair: max(map(_weight, pair)))
        stack += [(depth + 1, *pair) for pair in pairs]
    return out


def _use(frame: Frame | None) -> tuple[int, int, int]:
    if frame:
        return (frame.gpu_ns, frame.operations, frame.cpu_ns)
    return (0, 0, 0)


def _weight(frame: Frame | None) -> tuple[int, int]:
    if frame:
        return (frame.gpu_ns, frame.cpu_ns)
    return (0, 0)
