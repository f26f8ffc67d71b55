"""An index of GPU work by the API call that launched it. The metrics of windows are computed from it.

Work belongs to the time of its launch. So each row has a time ``when``: the start of the API call with its correlation
id, or its own start if no such call was recorded. Rows are sorted by this time, so two binary searches find the rows of
a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from ..runbin.layout import GPU_WORK, TABLES
from ..trace import Trace
from ..trace.launches import Launches
from ..trace.rows import LATEST, spanned, time_order
from ..trace.strings import StringTable
from .calls import (
    UNKNOWN_CALL,
    call_kind,
    finds_variable,
    launches_graph,
    loads_code,
    plain_name,
    synchronizes,
)
from .windows import owners

#: The tables whose rows have the correlation id of a call: GPU work and allocations.
TABLES_WITH_CALLS = (*GPU_WORK, "allocations")

Intervals = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class WorkRows:
    """Rows of one table, ascending by ``when`` (ns, int64). ``call`` is the index of the API call in
    :attr:`Index.calls`, -1 if it was not recorded; ``timed`` is False for rows without known times."""

    rows: np.ndarray
    when: np.ndarray
    call: np.ndarray
    timed: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: slice | np.ndarray) -> WorkRows:
        return WorkRows(self.rows[at], self.when[at], self.call[at], self.timed[at])

    @property
    def with_times(self) -> np.ndarray:
        """The rows whose times are known."""
        if not len(self.rows) or self.timed.all():
            return self.rows
        return self.rows[self.timed]


@dataclass(frozen=True)
class WorkSelection:
    """Part of a capture: outermost API calls, ascending by start, and rows by table. The ``call`` of an API call is its
    own index."""

    calls: WorkRows
    tables: dict[str, WorkRows]

    def __getitem__(self, table: str) -> WorkRows:
        return self.tables[table]

    def within(self, intervals: Intervals) -> WorkSelection:
        """The calls and the work launched within these intervals, which do not overlap."""

        def cut(part: WorkRows) -> WorkRows:
            if not len(part):
                return part
            edges = np.searchsorted(part.when, times)
            if len(edges) == 1:
                first, last = edges[0].tolist()
                return part[first:last]
            return part[spanned(edges[:, 0], edges[:, 1])]

        times = np.asarray(intervals, np.int64).reshape(-1, 2)
        return self._each(cut)

    def of_processes(self, processes: Iterable[int]) -> WorkSelection:
        """The calls and the work of these processes."""
        indices = np.fromiter(processes, np.int64)

        def chosen(part: WorkRows) -> WorkRows:
            if not len(part):
                return part
            return part[np.isin(part.rows["process"], indices)]

        return self._each(chosen)

    def without_calls(self, excluded: np.ndarray) -> WorkSelection:
        """The selection without the calls of a mask over :attr:`Index.calls` and without the work that they
        launched."""
        # The last entry is for index -1, so that work without a call stays.
        kept = np.append(~excluded, True)
        return self._each(lambda part: part[kept[part.call]])

    def _each(self, change: Callable[[WorkRows], WorkRows]) -> WorkSelection:
        tables = {name: change(part) for name, part in self.tables.items()}
        return WorkSelection(change(self.calls), tables)


@dataclass(frozen=True)
class Function:
    """Properties of API functions, as arrays by the function's id in the capture. Captures with equal functions share
    the arrays."""

    name: np.ndarray
    kind: np.ndarray
    synchronizes: np.ndarray
    launches_graph: np.ndarray
    loads_code: np.ndarray
    finds_variable: np.ndarray


@dataclass(frozen=True)
class Index:
    """The calls and the work of a capture, from which windows are cut. ``lost`` counts rows of GPU work without a time
    and without a recorded launch: they may belong to any window. ``owner`` is the result of :func:`.windows.owners`.
    ``function_status`` has the status of the calls of each function. ``loading`` marks the calls that copy into
    variables of a module while it is loaded (:func:`_loading`). ``default_streams`` has the legacy default streams by
    process index << 16 | context."""

    everything: WorkSelection
    loading: np.ndarray
    functions: Function
    function_status: np.ndarray
    launch_name: np.ndarray
    strings: StringTable
    owner: dict[int, int | None]
    default_streams: dict[int, int]
    lost: int

    @property
    def calls(self) -> np.ndarray:
        """All outermost API calls, ascending by start."""
        return self.everything.calls.rows

    def kernel_names(self, kernels: np.ndarray) -> np.ndarray:
        """The string ids of the recorded names of kernels."""
        return self.launch_name[kernels["launch"]]

    def function_name(self, number: int) -> str:
        """The name of an API function; number 0 stands for calls that were not recorded."""
        return self.functions.name[number] or UNKNOWN_CALL

    def processes_of(self, process: int) -> list[int]:
        """The processes whose work can belong to a window of this process."""
        owns = (process, None)
        owners = self.owner.items()
        return [one for one, owner in owners if one == process or owner in owns]


# An index refers to tables, but not to the trace: this cache must not keep traces alive.
_INDICES: WeakKeyDictionary[Trace, Index] = WeakKeyDictionary()


def index_of(trace: Trace) -> Index:
    """The index of a trace, made on first use."""
    if trace not in _INDICES:
        _INDICES[trace] = _index(trace)
    return _INDICES[trace]


def _index(trace: Trace) -> Index:
    launches = Launches(trace).outermost()
    calls = launches.calls
    tables = {}
    lost = 0
    for name in TABLES_WITH_CALLS:
        known = trace.table(name)
        unknown = trace.unknown(name)
        if not len(known) and not len(unknown):
            # A test suite has thousands of windows, most with rows in one or two tables only.
            tables[name] = _no_work(name)
            continue
        rows = known
        if len(unknown):
            rows = np.concatenate([known, unknown])
        timed = np.ones(len(rows), bool)
        timed[len(known) :] = False
        call = launches.of(rows)
        own = rows[TABLES[name].start_field or ""]
        when = np.where(own > LATEST, 0, own).astype(np.int64)
        launched = call >= 0
        when[launched] = launches.starts[call[launched]]
        lost += int(((when == 0) & ~timed).sum())
        part = WorkRows(rows, when, call, timed)
        order = time_order(when)
        if order is not None:
            part = part[order]
        tables[name] = part
    numbers = np.arange(len(calls))
    known_times = np.ones(len(calls), bool)
    call_rows = WorkRows(calls, launches.starts, numbers, known_times)
    # The work of a single process belongs to its own tests.
    owner: dict[int, int | None] = {0: 0}
    if len(trace.processes) > 1:
        owner = owners(trace)
    names = trace.functions["name"].tolist()
    functions = _functions(tuple(trace.strings[name] for name in names))
    return Index(
        WorkSelection(call_rows, tables),
        _loading(functions, calls),
        functions,
        trace.functions["status"],
        trace.launches["name"],
        trace.strings,
        owner,
        _default_streams(trace),
        lost,
    )


@cache
def _no_work(table: str) -> WorkRows:
    no_times = np.empty(0, np.int64)
    return WorkRows(TABLES[table].no_rows, no_times, no_times, np.empty(0, bool))


def _loading(functions: Function, calls: np.ndarray) -> np.ndarray:
    """A mask of the calls that copy into a variable of a module that their thread has loaded since its last launch.

    A library such as cuFFT unloads its modules together with its plans, and sets the variables of modules each time
    that it loads them. So the number of these copies depends on the other plans of the process.
    """
    mask = np.zeros(len(calls), bool)
    finds = functions.finds_variable
    if not finds[calls["function"]].any():
        return mask
    copies = functions.kind == "copy"
    launches = functions.kind == "launch"
    loads = functions.loads_code

    thread = threads_of(calls)
    order = np.argsort(thread, kind="stable")  # Calls ascend by start.
    thread = thread[order]
    function = calls["function"][order]
    place = np.arange(len(calls))
    new_thread = np.append(True, thread[1:] != thread[:-1])
    loaded = np.maximum.accumulate(np.where(loads[function], place, -1))
    ended = np.maximum.accumulate(np.where(launches[function] | new_thread, place, -1))
    behind_address = np.append(False, finds[function][:-1]) & ~new_thread
    mask[order] = copies[function] & behind_address & (loaded >= ended)
    return mask


def threads_of(calls: np.ndarray) -> np.ndarray:
    """The process and the thread of each call as one number."""
    return calls["process"].astype(np.uint64) << np.uint64(32) | calls["thread"]


def _default_streams(trace: Trace) -> dict[int, int]:
    streams = {}
    columns = trace.contexts[["process", "context", "null_stream"]]
    for process, context, stream in columns.tolist():
        streams[process << 16 | context] = stream
    return streams


@lru_cache(maxsize=16)
def _functions(names: tuple[str, ...]) -> Function:
    """The properties of the functions of these names. The captures of a test suite repeat the same names."""

    def each(fact: Callable[[str], object], dtype: type) -> np.ndarray:
        return np.array([fact(name) for name in names], dtype)

    return Function(
        name=each(plain_name, object),
        kind=each(call_kind, object),
        synchronizes=each(synchronizes, bool),
        launches_graph=each(launches_graph, bool),
        loads_code=each(loads_code, bool),
        finds_variable=each(finds_variable, bool),
    )
