"""The windows of a capture that marks delimit: tests, their regions, and spans of tools."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

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
    """The tests of a capture in the order of begin. A repeated name is another run of that test.

    A test without an end mark ends where the next test of its process begins, or with the capture; it is not complete.
    Raises :class:`cutrace.CutraceError` if tests overlap too much.
    """
    marks = _marks(trace)
    span = _span(trace)
    owner = owners(trace, marks)
    parts = sorted(
        _pairs(marks, "region", span) + _pairs(marks, "tool", span),
        key=lambda p: p.seen,
    )
    seen = [p.seen for p in parts]
    tests = []
    left = _MOST_PARTS
    for test in _pairs(marks, "test", span):
        window = test.window
        near = parts[bisect_left(seen, window.start) : bisect_left(seen, window.end)]
        mine = [p for p in near if owner[p.window.process] in (window.process, None)]
        left -= len(near)
        if left < 0:
            raise CutraceError(
                "tests of this capture overlap and contain more than a million marks: record fewer tests at once"
            )
        tests.append(_with_parts(window, mine))
    return tuple(sorted(tests, key=lambda w: w.start))


def whole(trace: Trace) -> Window:
    """The whole capture as one window, with all of its regions."""
    marks = _marks(trace)
    span = _span(trace)
    return _with_parts(
        Window("", *span), _pairs(marks, "region", span) + _pairs(marks, "tool", span)
    )


def owners(trace: Trace, marks: Iterable[_Mark] | None = None) -> dict[int, int | None]:
    """The owner of each process: the process to whose tests its work belongs.

    A process with tests owns itself and its descendants. The owner is None, which stands for every process with tests,
    if the capture shows no descent from one of them, for example because a shell is in between.
    """
    testing = {
        m.process
        for m in (_marks(trace) if marks is None else marks)
        if m.kind == "test"
    }
    by_pid = {(p.boot_id, p.pid): p.index for p in trace.processes}
    known: dict[int, int | None] = {index: index for index in testing}

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
            known[at] = (
                None  # ends the search if process ids were reused and the line is a cycle
            )
            line.append(at)
            at = parent(at)
        if at is not None:
            known |= dict.fromkeys(line, known[at])
    return {p.index: known[p.index] for p in trace.processes}


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
    texts = {i: parsed(trace.strings[i]) for i in np.unique(rows["name"]).tolist()}
    marks = []
    for name, time, process, thread in rows[
        ["name", "time", "process", "thread"]
    ].tolist():
        mark = texts[name]
        if mark:
            begins, kind, plain = mark
            marks.append(_Mark(time, begins, kind, plain, process, thread))
    return marks


def _pairs(marks: Iterable[_Mark], kind: str, span: tuple[int, int]) -> list[_Pair]:
    """The windows of one kind, process by process. ``span`` has the edges of windows that lack a mark."""
    mine = sorted((m for m in marks if m.kind == kind), key=lambda m: m.process)
    return [
        p
        for _, group in groupby(mine, lambda m: m.process)
        for p in _paired(list(group), kind, span)
    ]


def _paired(marks: list[_Mark], kind: str, span: tuple[int, int]) -> Iterator[_Pair]:
    begun = _Begun()
    before = span[0]
    for mark in marks:
        if mark.begins:
            begun.add(mark)
        elif (first := begun.ended_by(mark)) is not None:
            yield _pair(first, first.time, mark.time, complete=True)
        else:
            yield _pair(mark, before, mark.time)
        before = mark.time
    if kind == "test":
        begins = [m.time for m in marks if m.begins]
    else:
        begins = []
    for mark in begun.left():
        following = bisect_right(begins, mark.time)
        yield _pair(
            mark, mark.time, begins[following] if following < len(begins) else span[1]
        )


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
        # Indices into that list, by (thread, name) and by (None, name). Ended ones are dropped when they are reached.
        self._indices: dict[tuple[int | None, str], list[int]] = {}

    def add(self, mark: _Mark) -> None:
        for thread in (mark.thread, None):
            self._indices.setdefault((thread, mark.name), []).append(len(self._marks))
        self._marks.append(mark)

    def ended_by(self, end: _Mark) -> _Mark | None:
        """Remove and return the latest begin mark that this mark can end, preferably of the same thread; None if there
        is none."""
        for thread in (end.thread, None):
            indices = self._indices.get((thread, end.name), [])
            while indices:
                at = indices.pop()
                mark, self._marks[at] = self._marks[at], None
                if mark is not None:
                    return mark
        return None

    def left(self) -> Iterator[_Mark]:
        """The marks that have not ended, in the order of begin."""
        return (mark for mark in self._marks if mark is not None)


def _with_parts(window: Window, parts: Iterable[_Pair]) -> Window:
    """The window with its regions and tool spans, cut at its edges."""
    ordered = sorted(
        (replace(p, window=_cut(p.window, window)) for p in parts), key=lambda p: p.seen
    )
    spans: dict[tuple[int, int], list[Window]] = {}
    for part in ordered:
        if part.kind == "tool":
            spans.setdefault((part.window.process, part.window.thread), []).append(
                part.window
            )

    def with_tool(w: Window) -> Window:
        mine = spans.get((w.process, w.thread), ())
        return replace(
            w,
            tool=tuple(
                (s.start, s.end) for s in mine if s.start < w.end and s.end > w.start
            ),
        )

    return replace(
        with_tool(window),
        regions=tuple(with_tool(p.window) for p in ordered if p.kind == "region"),
    )


def _cut(part: Window, window: Window) -> Window:
    start = max(part.start, window.start)
    end = min(part.end, window.end)
    return replace(
        part,
        start=start,
        end=end,
        complete=part.complete and (start, end) == (part.start, part.end),
    )


def _span(trace: Trace) -> tuple[int, int]:
    """The first time (ns) of a capture and the one after its last."""
    return trace.start, min(trace.end + 1, int(LATEST))
