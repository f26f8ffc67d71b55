"""What ui.perfetto.dev shows of a trace without a click, as parameters of a link."""

from __future__ import annotations

import json
import re
from collections import Counter

from ...trace import Trace
from ...trace.quality import GPU_WORK
from .descriptors import pids, shown_name

_EXPAND = "dev.perfetto.ExpandTracksByRegex"
#: Groups inside a process, and what the page itself calls its groups of GPU work.
_GROUPS = ("GPU", "CUDA", r"GPU \d+: ranges and queues")
#: What has a meaning in an expression of JavaScript. Python also escapes spaces.
_SPECIAL = re.compile(r"[\^$.|?*+()\[\]{}]")
#: The part of the window before the first work.
_MARGIN = 0.02


def first_screen(trace: Trace) -> dict[str, str]:
    """The process with the most GPU work is expanded, and the window starts where GPUs begin to work. Without GPU work
    the first process is expanded, and the window has the whole trace."""
    work: Counter[int] = Counter()
    starts = []
    for table in GPU_WORK:
        for info in trace.block_infos(table):
            work[info.process] += info.rows
            starts.append(info.first_time)
    busiest = max(work, key=lambda process: work[process], default=0)
    title = f"{shown_name(trace.processes[busiest])} {pids(trace)[busiest]}"
    escaped = _SPECIAL.sub(r"\\\g<0>", title)
    pattern = f"^({'|'.join((escaped, *_GROUPS))})$"
    command = {"id": _EXPAND, "args": [pattern]}
    shown = {"startupCommands": json.dumps([command])}
    if starts:
        first = min(starts)
        margin = round((trace.end - first) * _MARGIN)
        shown["visStart"] = str(first - margin)
        shown["visEnd"] = str(trace.end)
    return shown
