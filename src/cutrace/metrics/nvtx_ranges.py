"""NVTX ranges that `cutrace profile --ranges` counts: which are meant, and what the second run counted of them.

A range is known by its name and domain and by its number among those in its process, in the order of their begins.
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

#: What the second run knows a range by: its domain, its name and its number.
Key = tuple[bytes, bytes, int]


@dataclass(frozen=True)
class Range:
    """An NVTX range: which of its name and domain in its process (from 0), and its row of ``nvtx_ranges``.

    ``place`` is that of its process among those with ranges of these names and numbers, by process id; ``device`` the
    GPU that counted it.
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
        """Its name, for people."""
        return self.name.decode("utf-8", "replace")

    def columns(self, to: Writer) -> dict[str, int]:
        """What a row of ``kernel_metrics`` says of it."""
        return {"device": self.device, "range": to.string(self.name)}


def choose(trace: Trace, pattern: str, skip: int, count: int | None) -> tuple[list[Range], int]:
    """The ranges that a pattern names; of each process all but the first ``skip``, and at most ``count``. Also how many
    more were left out because they begin inside another one: the GPU counts one range at a time.

    Raises :class:`CutraceError` when nothing is meant.
    """
    resolve(trace, Conditions(nvtx=(pattern,)))  # says what there is when nothing has the name
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
            continue  # it never ended
        if row["start"] < ends[process]:
            inside += 1
            continue
        ends[process] = int(row["end"])
        texts = trace.strings.bytes(domain), trace.strings.bytes(name)
        chosen[process].append(Range(process, *texts, ordinal, row))
    last = None if count is None else skip + count
    ranges = [each for some in chosen.values() for each in some[skip:last]]
    if not ranges:
        found = count_of(sum(map(len, chosen.values())), "NVTX range")
        raise CutraceError(f"nothing is left to profile: {found} met the filter. Change --ranges, --skip or --count.")
    meant: dict[tuple[bytes, bytes], int] = {}
    for each in ranges:
        meant[each.key[:2]] = min(each.ordinal, meant.get(each.key[:2], each.ordinal))
    # A process that meets one of these keys counts, wherever the range is meant.
    counting = {
        process
        for (process, domain, name), number in seen.items()
        if number > meant.get((trace.strings.bytes(domain), trace.strings.bytes(name)), number)
    }
    places = sorted(counting, key=lambda process: trace.processes[process].pid)
    return [replace(each, place=places.index(each.process)) for each in ranges], inside


def plan(cupti: str, names: Sequence[str], ranges: Sequence[Range]) -> tuple[list[Key], bytes]:
    """What to count, each key once, and as native/profiler/range_counting.h reads it."""
    keys = sorted({each.key for each in ranges})
    texts = [os.fsencode(cupti), ",".join(names).encode()]
    for domain, name, ordinal in keys:
        texts += [str(ordinal).encode(), domain, name]
    return keys, b"".join(text + b"\0" for text in texts)
