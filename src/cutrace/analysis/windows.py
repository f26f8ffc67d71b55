"""The windows between marks of a capture: tests, their regions, and spans of tools."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..errors import CutraceError
from ..trace import Trace
from ..trace.rows import LATEST
from .marks import Window, parsed

# The source of the NVTX rows of cutrace.mark().
_FROM_MARK = 1
# Regions and tool spans, summed over tests. Real suites have some thousands.
_MOST_PARTS = 1_000_000


def windows(trace: Trace) -> tuple[Window, ...]:
    """The tests of a capture in the order of their start. A repeated name is another run of that test.

    A test without an end mark ends at the start of the next test of its process, or with the capture. It is not
    complete. Raises :class:`cutrace.CutraceError` if tests overlap too much.
    """
    marks = _marks(trace)
    span = _span(trace)
    owner = owners(trace, marks)
    parts = _parts(marks, span)
    parts.sort(key=lambda part: part.seen)
    seen = [part.seen for part in parts]
    tests = []
    left = _MOST_PARTS
    for test in _pairs(marks, "test", span):
        window = test.window
        first = bisect_left(seen, window.start)
        last = bisect_left(seen, window.end)
        left -= last - first
        if left < 0:
            raise CutraceError(
                "tests of this capture overlap and contain more than a million marks: record fewer tests at once"
            )
        owning = (window.process, None)
        near = parts[first:last]
        mine = [part for part in near if owner[part.window.process] in owning]
        tests.append(_with_parts(window, mine))
    tests.sort(key=lambda window: window.start)
    return tuple(tests)


def whole(trace: Trace) -> Window:
    """The whole capture as one window, with all of its regions."""
    span = _span(trace)
    return _with_parts(Window("", *span), _parts(_marks(trace), span))


def owners(trace: Trace, marks: Iterable[_Mark] | None = None) -> dict[int, int | None]:
    """The owner of each process: the process to whose tests its work belongs.

    A process with tests owns itself and its descendants. If the capture does not show a descent from a process with
    tests, the owner is None: every process with tests. A shell in between hides the descent, for example.
    """
    if marks is None:
        marks = _marks(trace)
    known: dict[int, int | None] = {}
    for mark in marks:
        if mark.kind == "test":
            known[mark.process] = mark.process
    by_pid = {(p.boot_id, p.pid): p.index for p in trace.processes}

    def parent(index: int) -> int | None:
        process = trace.processes[index]
        pid = process.info.get("parent_pid")
        if isinstance(pid, int):
            return by_pid.get((process.boot_id, pid))
        return None

    for process in trace.processes:
        line: list[int] = []
        at: int | None = process.index
        while at is not None and at not in known:
            # If process ids were reused, the line of parents can be a cycle. This entry ends the search.
            known[at] = None
            line.append(at)
            at = parent(at)
        if at is not None:
            known |= dict.fromkeys(line, known[at])
    return {process.index: known[process.index] for process in trace.processes}


# Marks


@dataclass(frozen=True)
class _Mark:
    time: int
    begins: bool
    kind: str
    name: str
    process: int
    thread: int


@dataclass(frozen=True)
class _Pair:
    """A window, and the time of its first mark in the capture."""

    kind: str
    window: Window
    seen: int


def _marks(trace: Trace) -> list[_Mark]:
    """The marks of a capture that delimit windows, in the order of time."""
    rows = trace.nvtx_marks
    rows = rows[rows["source"] == _FROM_MARK]
    # Marks with equal times stay in the order in which they were set.
    rows = rows[np.argsort(rows["time"], kind="stable")]
    names = np.unique(rows["name"]).tolist()
    texts = {name: parsed(trace.strings[name]) for name in names}
    marks = []
    columns = rows[["name", "time", "process", "thread"]]
    for name, time, process, thread in columns.tolist():
        mark = texts[name]
        if mark:
            begins, kind, plain = mark
            marks.append(_Mark(time, begins, kind, plain, process, thread))
    return marks


def _parts(marks: Iterable[_Mark], span: tuple[int, int]) -> list[_Pair]:
    """The regions and the spans of tools."""
    return _pairs(marks, "region", span) + _pairs(marks, "tool", span)


def _pairs(marks: Iterable[_Mark], kind: str, span: tuple[int, int]) -> list[_Pair]:
    """The windows of one kind, process by process. ``span`` has the edges of windows that lack a mark."""
    by_process: dict[int, list[_Mark]] = {}
    for mark in marks:
        if mark.kind == kind:
            by_process.setdefault(mark.process, []).append(mark)
    pairs: list[_Pair] = []
    for _, own in sorted(by_process.items()):
        pairs += _paired(own, kind, span)
    return pairs


def _paired(marks: list[_Mark], kind: str, span: tuple[int, int]) -> Iterator[_Pair]:
    begun = _Begun()
    before, last = span
    for mark in marks:
        if mark.begins:
            begun.add(mark)
        else:
            first = begun.ended_by(mark)
            if first is None:
                yield _pair(mark, before, mark.time)
            else:
                yield _pair(first, first.time, mark.time, complete=True)
        before = mark.time
    # A test without an end mark ends at the start of the next test.
    edges = []
    if kind == "test":
        edges = [mark.time for mark in marks if mark.begins]
    for mark in begun.left():
        following = bisect_right(edges, mark.time)
        end = last
        if following < len(edges):
            end = edges[following]
        yield _pair(mark, mark.time, end)


def _pair(mark: _Mark, start: int, end: int, *, complete: bool = False) -> _Pair:
    """The window whose first mark is ``mark``."""
    window = Window(
        mark.name, start, end, mark.process, complete=complete, thread=mark.thread
    )
    return _Pair(mark.kind, window, mark.time)


class _Begun:
    """The begin marks of one kind whose windows have not ended."""

    def __init__(self) -> None:
        self._marks: list[_Mark | None] = []
        # Indices into the list of marks, by (thread, name) and by (None, name). Indices of ended marks are dropped
        # later.
        self._indices: dict[tuple[int | None, str], list[int]] = {}

    def add(self, mark: _Mark) -> None:
        for thread in (mark.thread, None):
            self._indices.setdefault((thread, mark.name), []).append(len(self._marks))
        self._marks.append(mark)

    def ended_by(self, end: _Mark) -> _Mark | None:
        """Remove and return the latest begin mark that this mark can end, or None. Marks of the same thread come
        first."""
        for thread in (end.thread, None):
            indices = self._indices.get((thread, end.name), [])
            while indices:
                at = indices.pop()
                mark = self._marks[at]
                self._marks[at] = None
                if mark is not None:
                    return mark
        return None

    def left(self) -> Iterator[_Mark]:
        """The begin marks whose windows have not ended, in the order of time."""
        return (mark for mark in self._marks if mark is not None)


def _with_parts(window: Window, parts: Iterable[_Pair]) -> Window:
    """The window with its regions and tool spans, cut at its edges."""
    regions = []
    tools: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for part in sorted(parts, key=lambda part: part.seen):
        cut = _cut(part.window, window)
        if part.kind == "region":
            regions.append(cut)
        else:
            thread = (cut.process, cut.thread)
            tools.setdefault(thread, []).append((cut.start, cut.end))

    def with_tool(one: Window) -> Window:
        spans = []
        for start, end in tools.get((one.process, one.thread), ()):
            if start < one.end and end > one.start:
                spans.append((start, end))
        return replace(one, tool=tuple(spans))

    return replace(with_tool(window), regions=tuple(map(with_tool, regions)))


def _cut(part: Window, window: Window) -> Window:
    start = max(part.start, window.start)
    end = min(part.end, window.end)
    uncut = start == part.start and end == part.end
    return replace(part, start=start, end=end, complete=part.complete and uncut)


def _span(trace: Trace) -> tuple[int, int]:
    """The first time (ns) of a capture, and the time after its last."""
    return trace.start, min(trace.end + 1, int(LATEST))
