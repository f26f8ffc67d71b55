"""Selecting rows of a trace by time, process, thread, device, stream, kernel and table.

A row has to meet all conditions. Four rules relate rows of different tables:

* A row with a correlation id, such as GPU work, is selected with its API call.
* Work of graph nodes is selected with the launch of its graph, or by the ranges in which its nodes were created.
* Conditions on GPU work (device, stream, kernel) also select the calls that launched it, and the ranges and slices of
  the host around these calls.
* A condition on time applies to each row by itself and selects the rows that touch that time.

Blocks are read one at a time. A number for each API call stays in memory, and only when calls decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np

from ..errors import CutraceError
from ..runbin.blocks import BlockInfo
from ..runbin.layout import GPU_WORK, REFERRED, TABLES
from ..units import Time, format_duration
from .launches import Launches, LaunchTimes, OwnedCalls, ProcessIds
from .origins import NODE_FIELDS
from .ranges import RangesBy, nest_number
from .rows import LATEST, OPEN_TABLES, chosen, joined, never_ended
from .trace import Trace

#: Tables of facts about processes and their devices: every selection includes their rows.
FACTS = frozenset(
    (
        "devices",
        "contexts",
        "streams",
        "threads",
        "resource_names",
        "nvtx_categories",
        "modules",
        "device_functions",
        "graph_nodes",
        "clocks",
        "losses",
        "instruction_metrics",
        "kernel_codes",
    )
)
#: Tables whose rows are written only when other rows refer to them.
INTERNED = frozenset(REFERRED.values())
#: Tables without times: a row is selected with the call or the work of its correlation id.
_FOLLOWING = ("cuda_events", "external_correlations", "call_stacks")
#: ``source`` of the marks that cut a capture into tests.
_CUTRACE_MARK = 1


class Stretch(NamedTuple):
    """An interval of a process, ``start`` <= time < ``end`` (ns). If ``thread`` is not 0, it is an interval of a range
    of this thread in an NVTX ``domain`` (the string id of its name)."""

    process: int
    start: int
    end: int
    thread: int = 0
    domain: int = 0


@dataclass(frozen=True)
class Selection:
    """Conditions on the rows of a trace. A field that is None is no condition.

    ``start``, ``end`` (ns): rows that touch that time. ``processes``: indices. ``stretches``: calls that start in a
    stretch, the GPU work that they launched, and other rows of the process that touch a stretch. ``created`` adds work
    of graph nodes and its calls: it is a mask of the paths of ``Trace.origins`` in which the nodes were created. With
    ``ranges`` the stretches are ranges of threads, and :class:`.ranges.Ranges` decides which launches belong to them.
    ``devices`` and ``streams``: pairs of a process and a device ordinal or stream id. ``kernels``: a mask of the launch
    configurations of the trace. ``tables``: names of tables, facts excluded.
    """

    start: int | None = None
    end: int | None = None
    processes: frozenset[int] | None = None
    stretches: tuple[Stretch, ...] | None = None
    created: np.ndarray | None = field(default=None, compare=False)
    ranges: RangesBy | None = None
    devices: frozenset[tuple[int, int]] | None = None
    streams: frozenset[tuple[int, int]] | None = None
    kernels: np.ndarray | None = field(default=None, compare=False)
    tables: frozenset[str] | None = None

    @property
    def of_work(self) -> bool:
        """Whether there are conditions on GPU work."""
        return (
            self.devices is not None
            or self.streams is not None
            or self.kernels is not None
        )

    @property
    def of_rows(self) -> bool:
        """Whether there are any conditions."""
        conditions = (
            self.start,
            self.end,
            self.processes,
            self.stretches,
            self.created,
            self.tables,
        )
        return self.of_work or any(condition is not None for condition in conditions)

    @property
    def of_time(self) -> bool:
        return self.start is not None or self.end is not None


def refuse_empty(trace: Trace) -> NoReturn:
    """Raise the error for a selection without rows. Tables of facts and the marks around tests are not counted."""
    duration = format_duration(trace.end - trace.start)
    span = f"{duration}, from @{trace.start} to @{trace.end}"
    absent = (
        f"nothing is selected: no row meets all conditions. The trace spans {span}; `cutrace info` shows its processes "
        "and GPUs"
    )
    raise CutraceError(trace.quality.doubt(absent))


def window(
    trace: Trace, start: Time | None = None, end: Time | None = None
) -> Selection | None:
    """The selection of rows that touch the time from ``start`` to ``end``; None for the whole trace. Times are given as
    for :func:`cutrace.units.parse_moment`.

    Raises :class:`CutraceError` when the end is not after the start.
    """
    if start is None and end is None:
        return None
    first = trace.moment(start)
    after = trace.moment(end)
    if first is not None and after is not None and after <= first:
        raise CutraceError(
            f"the window from {first} to {after} ns is empty: give an end after the start"
        )
    return Selection(first, after)


def window_text(trace: Trace, selection: Selection) -> str:
    """The window of a selection, from the start of the trace."""
    start = since_begin(trace, selection.start, "its start")
    end = since_begin(trace, selection.end, "its end")
    return f"from {start} to {end}"


def since_begin(trace: Trace, time: int | None, unlimited: str = "") -> str:
    """The time from the start of the trace; ``unlimited`` without a time."""
    if time is None:
        return unlimited
    duration = format_duration(abs(time - trace.start))
    if time < trace.start:
        return f"-{duration}"
    return duration


def cut_note(conditions: Iterable[str]) -> str:
    """The note of a part of a trace."""
    return f"cut out of a longer recording: {'; '.join(conditions)}"


class SelectedRows:
    """The selected rows of a trace, block by block."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self._trace = trace
        self._selection = selection

    @property
    def blocks(self) -> list[BlockInfo]:
        """The blocks that can have selected rows, in the order of the file."""
        tables = self._selection.tables
        blocks: list[BlockInfo] = []
        for table in TABLES:
            selected = tables is None or table in tables
            if table in FACTS or (selected and table not in INTERNED):
                blocks += self._infos(table)
        return sorted(blocks, key=lambda info: info.offset)

    def block(self, info: BlockInfo) -> np.ndarray:
        """The selected rows of one of :attr:`blocks`. Rows with unknown times are last. The array is a read-only view
        of the file where possible, else a copy."""
        table = info.table or ""
        process = self._owner(info)
        known, unknown = self._trace.block(info)
        parts = [
            self._selected(table, process, known, True),
            self._selected(table, process, unknown, False),
        ]
        return joined(TABLES[table].dtype, parts)

    def unchosen(self, info: BlockInfo, rows: np.ndarray) -> int:
        """The number of selected rows of a block that do not meet the conditions: conditions on GPU work keep all marks
        around tests."""
        if info.table != "nvtx_marks" or not self._selection.of_work:
            return 0
        return int(np.count_nonzero(rows["source"] == _CUTRACE_MARK))

    def _infos(self, table: str) -> list[BlockInfo]:
        s = self._selection
        start = s.start
        end = s.end
        if table in FACTS or table in _FOLLOWING:
            start = None
            end = None
        elif table in OPEN_TABLES:
            # A row that never ended reaches beyond the last time of its block.
            start = None
        infos = self._trace.block_infos(table, start, end)
        if s.processes is None:
            return infos
        return [info for info in infos if self._owner(info) in s.processes]

    def _owner(self, info: BlockInfo) -> int:
        """The process that the rows of a block describe. Metrics of kernels are written under a later description of
        the same process."""
        written_after = ("kernel_metrics", "instruction_metrics")
        if info.table in written_after:
            return self._first[info.process]
        return info.process

    @cached_property
    def _first(self) -> list[int]:
        """For each process, the index of the first process with the same identity."""
        known: dict[object, int] = {}
        processes = self._trace.processes
        return [known.setdefault(p.identity, p.index) for p in processes]

    def _selected(
        self, table: str, process: int, rows: np.ndarray, timed: bool
    ) -> np.ndarray:
        """The selected rows of some rows; the same array if all are."""
        if not len(rows):
            return rows
        mask = self._mask(table, process, rows, timed)
        if mask is None or mask.all():
            return rows
        return chosen(rows, mask)

    def _mask(
        self, table: str, process: int, rows: np.ndarray, timed: bool
    ) -> np.ndarray | None:
        """A mask of the selected rows; None when all are."""
        s = self._selection
        conditions = s.of_time or s.stretches is not None or s.of_work
        if table == "graph_nodes" and (conditions or s.tables is not None):
            return np.isin(rows["graph_node"], self._nodes[process], kind="sort")
        if table in FACTS:
            return None
        masks: list[np.ndarray] = []
        if table in _FOLLOWING:
            if conditions:
                masks.append(self._kept.has(process, rows["correlation"]))
        else:
            if s.of_time:
                masks.append(self._in_time(*_span(table, rows, timed)))
            if s.stretches is not None:
                masks.append(self._launched(table, process, rows, timed))
            if s.of_work:
                masks.append(self._with_work(table, process, rows))
        if masks:
            return np.logical_and.reduce(masks)
        return None

    # Time

    def _in_time(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        after = self._selection.start or 0
        before = self._selection.end
        mask: np.ndarray = end >= _as_time(after)
        if before is None:
            return mask
        return mask & (start < _as_time(before))

    # Stretches

    def _launched(
        self, table: str, process: int, rows: np.ndarray, timed: bool
    ) -> np.ndarray:
        """Rows with a call that starts in a stretch, and rows without a call that touch a stretch."""
        start, end = _span(table, rows, timed)
        of_gpus = table == "counters" and self._samples_gpus(process)
        if of_gpus:
            return self._stretches.touched_in_any(start, end)
        if table in GPU_WORK or table == "api_calls":
            # Work and calls belong to the stretch in which they start, so that adjacent stretches share none.
            end = np.minimum(start, end)
        # A range that adopts launches may be around events of any thread.
        if self._selection.ranges == "adopted":
            threads = None
        else:
            threads = threads_of(table, rows)
        own = self._stretches.touched(process, start, end, threads)
        if self._selection.ranges and table in GPU_WORK:
            own[:] = False  # Work without a known call is in no range.
        if "correlation" not in TABLES[table].offsets:
            return own
        calls_inside, calls_outside = self._calls
        inside = calls_inside.has(process, rows["correlation"])
        outside = calls_outside.has(process, rows["correlation"])
        mask: np.ndarray = inside | (own & ~outside)
        if self._selection.created is not None:
            if table == "api_calls":
                mask |= self._replays.has(process, rows["correlation"])
            elif table in NODE_FIELDS:
                mask |= self._created(table, process, rows)
        return mask

    def _samples_gpus(self, process: int) -> bool:
        """Whether a process only samples the GPUs that other processes use."""
        info = self._trace.processes[process].info
        return "sampled" in info

    def _created(self, table: str, process: int, rows: np.ndarray) -> np.ndarray:
        """Rows of work of graph nodes that were created in the selected ranges."""
        origins = self._trace.origins
        wanted = self._selection.created
        if not origins or wanted is None:
            return np.zeros(len(rows), bool)
        nodes = origins.of(process, table, rows)
        return wanted[origins.path_of[nodes]]

    @cached_property
    def _replays(self) -> ProcessIds:
        """The correlation ids of the work that is selected because of the creation of its nodes."""

        def parts() -> Iterator[tuple[int, np.ndarray]]:
            for table in NODE_FIELDS:
                for info in self._infos(table):
                    for rows in self._trace.block(info):
                        created = self._created(table, info.process, rows)
                        yield info.process, rows[created]

        return Launches(self._trace).ids(parts())

    @cached_property
    def _nodes(self) -> defaultdict[int, np.ndarray]:
        """The graph nodes of the selected work, by process."""
        wanted = self._selection.tables
        nodes: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        for table, field_name in NODE_FIELDS.items():
            if wanted is not None and table not in wanted:
                continue
            for process, rows in self._rows((table,)):
                ids = rows[field_name]
                if field_name == "launch":
                    ids = self._trace.launches["graph_node"][ids]
                nodes[process].append(np.unique(ids))
        found: defaultdict[int, np.ndarray] = defaultdict(
            lambda: np.zeros(0, np.uint64)
        )
        for process, parts in nodes.items():
            found[process] = np.concatenate(parts)
        return found

    @cached_property
    def _stretches(self) -> _Stretches:
        # An empty range contains no rows, but touches the rows around it.
        lasting = []
        for stretch in self._selection.stretches or ():
            end = max(stretch.end, stretch.start + 1)
            lasting.append(stretch._replace(end=end))
        return _Stretches(tuple(lasting))

    @cached_property
    def _calls(self) -> tuple[ProcessIds, ProcessIds]:
        """The ids of calls in a stretch, and of the other calls."""
        stretches = _Stretches(self._selection.stretches or ())

        def inside(calls: OwnedCalls) -> np.ndarray:
            starts = calls.rows["start"]
            if calls.nests is None:
                threads = calls.rows["thread"]
                return stretches.touched(calls.process, starts, starts, threads)
            at, nests = calls.nests
            here = stretches.around(calls.process, starts[at], nests)
            if isinstance(at, slice):
                return here
            mask = np.zeros(len(starts), bool)
            mask[at[here]] = True
            return mask

        return Launches(self._trace).divided(inside, self._selection.ranges)

    # Work

    def _with_work(self, table: str, process: int, rows: np.ndarray) -> np.ndarray:
        if table in GPU_WORK:
            return self._fits(table, process, rows)
        if table == "api_calls":
            return self._work.has(process, rows["correlation"])
        if table in OPEN_TABLES:
            return self._around_work(table, process, rows)
        if table == "nvtx_marks":
            return rows["source"] == _CUTRACE_MARK
        mask = self._fits(table, process, rows)
        if "correlation" in TABLES[table].offsets:
            mask |= self._work.has(process, rows["correlation"])
        return mask

    def _fits(self, table: str, process: int, rows: np.ndarray) -> np.ndarray:
        """Rows that meet the conditions on GPU work by their own fields."""
        s = self._selection
        fields = TABLES[table].offsets
        mask: np.ndarray = np.ones(len(rows), bool)
        if s.kernels is not None and table == "pc_samples":
            names = self._trace.launches["name"][s.kernels]
            mask &= np.isin(rows["function"], names)
        elif s.kernels is not None and "launch" in fields:
            mask &= s.kernels[rows["launch"]]
        elif s.kernels is not None:
            mask[:] = False
        if s.devices is not None:
            mask &= self._on_device(table, process, rows)
        if s.streams is not None and "stream" in fields:
            mask &= self._streams.has(process, rows["stream"])
        elif s.streams is not None:
            mask[:] = False
        return mask

    def _on_device(self, table: str, process: int, rows: np.ndarray) -> np.ndarray:
        fields = TABLES[table].offsets
        if "device" in fields:
            return self._devices.has(process, rows["device"])
        if "context" in fields:
            return self._contexts.has(process, rows["context"])
        if "source_device" in fields:
            source = self._devices.has(process, rows["source_device"])
            destination = self._devices.has(process, rows["destination_device"])
            return source | destination
        return np.zeros(len(rows), bool)

    @cached_property
    def _streams(self) -> ProcessIds:
        return ProcessIds(self._selection.streams or ())

    @cached_property
    def _devices(self) -> ProcessIds:
        return ProcessIds(self._selection.devices or ())

    @cached_property
    def _contexts(self) -> ProcessIds:
        """The contexts of the selected devices."""
        rows = self._trace.contexts
        rows = rows[self._devices.has(rows["process"], rows["device"])]
        return ProcessIds([(rows["process"], rows["context"])])

    @cached_property
    def _work(self) -> ProcessIds:
        return Launches(self._trace).ids(self._rows(GPU_WORK))

    @cached_property
    def _kept(self) -> ProcessIds:
        return Launches(self._trace).ids(self._rows(("api_calls", *GPU_WORK)))

    @cached_property
    def _launch_times(self) -> dict[int, LaunchTimes]:
        """By process, the launch times of the selected work; in a trace without calls, its starts."""
        has_calls = bool(self._trace.count("api_calls"))
        times = defaultdict(list)
        for process, rows in self._rows(("api_calls",) if has_calls else GPU_WORK):
            threads = rows["thread"] if has_calls else None
            times[process].append((rows["start"], threads))
        return {process: LaunchTimes(parts) for process, parts in times.items()}

    def _around_work(self, table: str, process: int, rows: np.ndarray) -> np.ndarray:
        """Ranges and slices of the host with a launch of selected work."""
        times = self._launch_times.get(process)
        if times is None:
            return np.zeros(len(rows), bool)
        end = rows["end"]
        end = np.where(end == 0, LATEST, end)  # never ended
        return times.inside(rows["start"], end, threads_of(table, rows))

    def _rows(self, tables: tuple[str, ...]) -> Iterator[tuple[int, np.ndarray]]:
        """The selected rows of tables, whether or not the tables themselves are selected."""
        for table in tables:
            for info in self._infos(table):
                known, unknown = self._trace.block(info)
                for rows, timed in ((known, True), (unknown, False)):
                    yield info.process, self._selected(table, info.process, rows, timed)


def _as_time(time: int) -> np.uint64:
    beyond = int(LATEST) + 1
    return np.uint64(min(max(time, 0), beyond))


def _span(table: str, rows: np.ndarray, timed: bool) -> tuple[np.ndarray, np.ndarray]:
    """The starts and ends of rows. A row that never ended ends at the latest time. A row without a known start gets an
    empty span, which touches no time: it starts at the latest time and ends at 0."""
    layout = TABLES[table]
    start = rows[layout.start_field]
    end = rows[layout.end_field]
    if timed:
        return start, end
    unended = never_ended(table, rows)
    return np.where(unended, start, LATEST), np.where(unended, LATEST, 0).astype(
        np.uint64
    )


def threads_of(table: str, rows: np.ndarray) -> np.ndarray | None:
    """The threads that rows belong to, 0 for rows of a whole process; None for tables without threads."""
    fields = TABLES[table].offsets
    if "thread" not in fields:
        return None
    if table == "nvtx_ranges":
        return np.where(rows["kind"] == 1, 0, rows["thread"])
    if "track" in fields:
        return np.where(rows["track"] != 0, 0, rows["thread"])
    return rows["thread"]


class _Stretches:
    """Stretches by process and nest, prepared for many lookups."""

    def __init__(self, stretches: tuple[Stretch, ...]) -> None:
        # By process, thread and domain: the starts and ends of stretches.
        self._edges: dict[int, dict[tuple[int, int], np.ndarray]] = {}
        pairs = defaultdict(list)
        for s in stretches:
            pairs[s.process, s.thread, s.domain].append((s.start, s.end))
        for (process, thread, domain), spans in pairs.items():
            edges = np.array(united(spans), np.int64)
            of_process = self._edges.setdefault(process, {})
            of_process[thread, domain] = edges

    def touched(
        self,
        process: int,
        start: np.ndarray,
        end: np.ndarray,
        threads: np.ndarray | None,
    ) -> np.ndarray:
        """A mask of the times of a process that touch one of its stretches. Rows without a thread can touch stretches
        of any thread."""
        mask = np.zeros(len(start), bool)
        for (thread, _), edges in self._edges.get(process, {}).items():
            inside = _touching(edges, start, end)
            if thread and threads is not None:
                inside &= (threads == thread) | (threads == 0)
            mask |= inside
        return mask

    def around(self, process: int, times: np.ndarray, nests: np.ndarray) -> np.ndarray:
        """A mask of the times in nests of a process that are in one of its stretches."""
        mask = np.zeros(len(times), bool)
        for (thread, domain), edges in self._edges.get(process, {}).items():
            inside = _touching(edges, times, times)
            if thread:
                inside &= nests == nest_number(thread, domain)
            mask |= inside
        return mask

    def touched_in_any(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """A mask of the times that touch a stretch of any process."""
        mask = np.zeros(len(start), bool)
        for process in self._edges:
            here = self.touched(process, start, end, None)
            mask |= here
        return mask


def _touching(edges: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A mask of the times that touch a stretch; ``edges`` are the starts and ends of stretches without overlaps."""
    # Only the first stretch that ends after the start matters.
    start = start.astype(np.int64)
    end = end.astype(np.int64)
    begins = edges[:, 0]
    ends = edges[:, 1]
    first = np.searchsorted(ends, start, "right")
    last = len(edges) - 1
    mask: np.ndarray = first <= last
    mask &= begins[np.minimum(first, last)] <= end
    return mask


def united(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of intervals, as intervals without overlaps, ascending."""
    united: list[tuple[int, int]] = []
    for start, end in sorted(pairs):
        if united and start <= united[-1][1]:
            first, last = united[-1]
            united[-1] = (first, max(last, end))
        else:
            united.append((start, end))
    return united
