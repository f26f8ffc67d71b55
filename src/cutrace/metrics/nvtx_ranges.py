"""Select the NVTX ranges that `cutrace profile --ranges` counts, and write the plan for the second run.

A range is identified by its domain, its name, and its number among such ranges of its process, in the order of their
begins.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import CutraceError
from ..runbin.writer import Writer
from ..slicing import Conditions, matcher, resolve
from ..trace import Trace
from ..units import count_of

#: Identifies a range in the second run: its domain, its name and its number.
Key = tuple[bytes, bytes, int]


@dataclass(frozen=True)
class Range:
    """An NVTX range: its number among the ranges of its domain and name in its process (from 0), and its row of
    ``nvtx_ranges``.

    ``place`` is the index of its process among the processes with selected ranges, sorted by process id. ``device`` is
    the GPU that counted it.
    """

    process: int
    domain: bytes
    name: bytes
    ordinal: int
    row: np.void
    place: int = 0
    device: int = 0

    @property
    def key(self) -> Key:
        return self.domain, self.name, self.ordinal

    @property
    def title(self) -> str:
        """Its name."""
        return self.name.decode("utf-8", "replace")

    def columns(self, to: Writer) -> dict[str, int]:
        """The columns of ``kernel_metrics`` that identify it."""
        return {"device": self.device, "range": to.string(self.name)}


def choose(trace: Trace, pattern: str, skip: int, count: int | None) -> tuple[list[Range], int, int]:
    """The ranges whose names match a pattern: in each process at most ``count`` after the first ``skip``. Also returns
    the number of processes that count ranges, and of ranges left out because they begin inside another one: the GPU
    counts one range at a time.

    Raises :class:`CutraceError` if no range is selected.
    """
    resolve(trace, Conditions(nvtx=(pattern,)))  # raises an error that lists the ranges if none matches
    matches = matcher(pattern)
    rows = trace.nvtx_ranges
    ids = [name for name in np.unique(rows["name"]).tolist() if name and matches(trace.strings[name])]
    rows = rows[np.isin(rows["name"], ids)]
    seen: dict[tuple[int, int, int], int] = defaultdict(int)
    ends: dict[int, int] = defaultdict(int)
    chosen: dict[int, list[Range]] = defaultdict(list)
    inside = 0
    for row in rows[np.lexsort((rows["start"], rows["process"]))]:
        process, domain, name = int(row["process"]), int(row["domain"]), int(row["name"])
        ordinal = seen[process, domain, name]
        seen[process, domain, name] += 1
        if not row["end"]:
            continue  # the range never ended
        if row["start"] < ends[process]:
            inside += 1
            continue
        ends[process] = int(row["end"])
        texts = trace.strings.bytes(domain), trace.strings.bytes(name)
        chosen[process].append(Range(process, *texts, ordinal, row))
    last = None if count is None else skip + count
    ranges = [each for some in chosen.values() for each in some[skip:last]]
    if not ranges:
        hits = count_of(sum(map(len, chosen.values())), "NVTX range")
        raise CutraceError(f"nothing is left to profile: {hits} met the filter. Change --ranges, --skip or --count.")
    lowest: dict[tuple[bytes, bytes], int] = {}
    for each in ranges:
        lowest[each.key[:2]] = min(each.ordinal, lowest.get(each.key[:2], each.ordinal))
    # Every process with a range of these keys counts it, also if the range was selected in another process.
    counting = {
        process
        for (process, domain, name), number in seen.items()
        if number > lowest.get((trace.strings.bytes(domain), trace.strings.bytes(name)), number)
    }
    places = sorted(counting, key=lambda process: trace.processes[process].pid)
    return [replace(each, place=places.index(each.process)) for each in ranges], len(places), inside


def plan(cupti: str, names: Sequence[str], ranges: Sequence[Range]) -> tuple[list[Key], bytes]:
    """The distinct keys of ranges, and the plan in the format of native/profiler/range_counting.h."""
    keys = sorted({each.key for each in ranges})
    texts = [os.fsencode(cupti), ",".join(names).encode()]
    for domain, name, ordinal in keys:
        texts += [str(ordinal).encode(), domain, name]
    return keys, b"".join(text + b"\0" for text in texts)
