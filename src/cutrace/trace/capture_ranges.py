"""Captures of windows: the recorded times, and the times between them.

With a capture range (docs/howto/long-runs.md) a process is recorded only in the windows that its program opens.
``Process.windows`` has the windows. The time between windows is neither a loss nor idle time, because nothing is known
about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..units import count_of, format_duration
from .process import Process

#: A time, from its start to its end (ns).
Interval = tuple[int, int]


def sentences(processes: Sequence[Process], end: int) -> Iterator[str]:
    """A sentence for each capture range. ``end`` is the end of the trace. It closes the windows of killed processes."""
    of_ranges: dict[str, list[Process]] = {}
    for process in processes:
        if process.capture_range:
            of_ranges.setdefault(process.capture_range, []).append(process)
    for name, those in of_ranges.items():
        windows = 0
        recorded = 0
        total = 0
        for process in those:
            windows += len(process.windows)
            recorded += len(process.windows) > 0
            for window in process.windows:
                total += max((window.end or end) - window.start, 0)
        if not windows:
            yield f"the capture range {name!r} never opened: nothing was recorded"
            continue
        what = count_of(windows, "window")
        if len(processes) != 1:
            what += f" of {count_of(recorded, 'process')}"
        what += f", {format_duration(total)} in all"
        yield f"only the capture range {name!r} was recorded ({what}): nothing is known about the time outside"


def unrecorded(processes: Iterable[Process]) -> list[Interval]:
    """The times between windows in which no process was recorded, in order. The list is empty if a process has no
    capture range."""
    recorded: list[Interval] = []
    for process in processes:
        if not process.capture_range:
            return []
        for window in process.windows:
            # A process that was killed in a window has no later window.
            end = _UNKNOWN
            if window.end:
                end = max(window.read, window.end)
            recorded.append((window.start, end))
    if not recorded:
        return []
    recorded.sort()
    gaps = []
    last = recorded[0][1]
    for start, end in recorded:
        if last < start:
            gaps.append((last, start))
        last = max(last, end)
    return gaps


def time_within(intervals: Iterable[Interval], start: int, end: int) -> int:
    """The time (ns) of intervals between ``start`` and ``end``."""
    total = 0
    for first, last in intervals:
        inside = min(last, end) - max(first, start)
        total += max(inside, 0)
    return total


# Later than all times.
_UNKNOWN = 1 << 63
