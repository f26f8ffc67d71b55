"""The first view of a trace in ui.perfetto.dev, as parameters of a link."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from ...runbin.layout import GPU_WORK
from ...trace import Trace
from .descriptors import pids, shown_name

_EXPAND = "dev.perfetto.ExpandTracksByRegex"
#: The groups inside a process, as paths: the page's own groups of GPU work, and the exporter's groups beside them.
_GROUPS = r"( > GPU( > .*)?| > GPU \d+: ranges and queues)?"
#: Characters with a meaning in a regular expression of JavaScript. Python also escapes spaces.
_SPECIAL = re.compile(r"[\^$.|?*+()\[\]{}]")
#: The shares of the window before and after the work.
_MARGIN = 0.03
#: The largest number of rows of GPU work that are read to find the window. With more rows, each block counts as one
#: piece of work.
_MOST_ROWS = 1 << 20

#: Work on the GPU by its time, in ns, and the number of rows in it.
_WORK = np.dtype([("start", np.int64), ("end", np.int64), ("rows", np.int64)])


def first_screen(trace: Trace) -> dict[str, str]:
    """Expand the process with the most GPU work, and show the time in which its GPUs are busy. Without GPU work, expand
    the first process and show the whole trace."""
    rows_of: Counter[int] = Counter()
    for table in GPU_WORK:
        for info in trace.block_infos(table):
            rows_of[info.process] += info.rows
    busiest = max(rows_of, key=lambda process: rows_of[process], default=0)
    shown = {"startupCommands": json.dumps([_expand(trace, busiest)])}
    work = _work_of(trace, busiest)
    if len(work):
        start, end = _busy_window(work)
        margin = round((end - start) * _MARGIN)
        shown["visStart"] = str(max(start - margin, trace.start))
        shown["visEnd"] = str(min(end + margin, trace.end))
    return shown


def _expand(trace: Trace, process: int) -> dict[str, object]:
    """The command that expands a process."""
    name = shown_name(trace.processes[process])
    if name.startswith("/"):
        name = name.rpartition("/")[2]  # The page does the same with paths of programs.
    title = _SPECIAL.sub(r"\\\g<0>", f"{name} {pids(trace)[process]}")
    return {"id": _EXPAND, "args": [f"^(/.*/)?{title}{_GROUPS}$", "path"]}


def _busy_window(work: np.ndarray) -> tuple[int, int]:
    """The start and end of a window with at least half of the rows of work. No pause in it is longer than the rest of
    the window."""
    work = np.sort(work, order="start")
    ends = np.maximum.accumulate(work["end"])
    pauses = work["start"][1:] - ends[:-1]
    rows = np.cumsum(work["rows"])
    first = 0
    last = len(work) - 1
    while first < last:
        widest = first + int(pauses[first:last].argmax())
        whole = ends[last] - work["start"][first]
        if 2 * pauses[widest] <= whole:
            break
        before_first = rows[first] - work["rows"][first]
        before = rows[widest] - before_first
        behind = rows[last] - rows[widest]
        if 2 * max(before, behind) < rows[-1]:
            break
        if before > behind:
            last = widest
        else:
            first = widest + 1
    return int(work["start"][first]), int(ends[last])


def _work_of(trace: Trace, process: int) -> np.ndarray:
    pieces = list(_pieces(trace, process))
    if not pieces:
        return np.zeros(0, _WORK)
    return np.concatenate(pieces)


def _pieces(trace: Trace, process: int) -> Iterator[np.ndarray]:
    infos = []
    for table in GPU_WORK:
        infos += [i for i in trace.block_infos(table) if i.process == process]
    whole_blocks = sum(info.rows for info in infos) > _MOST_ROWS
    for info in infos:
        if whole_blocks:
            block = (info.first_time, info.last_time, info.rows)
            yield np.array([block], _WORK)
            continue
        rows, _ = trace.block(info)
        piece = np.ones(len(rows), _WORK)
        piece["start"] = rows["start"]
        piece["end"] = rows["end"]
        yield piece
