"""The share of the GPU time that belongs to ranges. Each output that sums by range has one sentence about it.

docs/concepts.md has the rule by which work belongs to ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..trace.ranges import ADOPTED, NONE, OWN, SEVERAL

#: The names of the ways in which work belongs to ranges, and their parts of the sentence.
RANGE_WAYS = {
    OWN: ("own", "in ranges of the launching thread"),
    ADOPTED: ("adopted", "adopted from threads without a range"),
    SEVERAL: ("several", "with several candidates"),
    NONE: ("none", "in no range"),
}


@dataclass(frozen=True)
class RangeShare:
    """The GPU work that belongs to ranges in one way. ``how`` is "own" for ranges of the launching thread, and
    "adopted" for ranges of the only thread with an open range. Work belongs to no range if several threads have an open
    range ("several"), or if no thread has one or the call is not known ("none"). If domains differ, the first of the
    four counts. ``gpu_ns`` is the sum of the times of the work."""

    how: str
    operations: int
    gpu_ns: int


def range_shares(uses: Iterable[Sequence[int]]) -> Iterator[RangeShare]:
    """The shares from the number of operations and the time (ns) of each way, in the order ``OWN``, ``ADOPTED``,
    ``SEVERAL``, ``NONE``."""
    for way, (operations, gpu_ns) in enumerate(uses):
        name, _ = RANGE_WAYS[way]
        yield RangeShare(name, int(operations), int(gpu_ns))


def coverage(found: Iterable[RangeShare]) -> str | None:
    """The sentence about some shares. None without GPU time, and for a trace without ranges, which has no shares."""
    times = {share.how: share.gpu_ns for share in found}
    total = sum(times.values())
    if not total:
        return None
    parts = [
        f"{_percent(times.get(name, 0) / total)} {words}"
        for name, words in RANGE_WAYS.values()
    ]
    return f"GPU time by range: {', '.join(parts)}"


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "under 0.1 %"
    if 0.999 < share < 1:
        return "over 99.9 %"
    return f"{100 * share:.1f} %".replace(".0 %", " %")
