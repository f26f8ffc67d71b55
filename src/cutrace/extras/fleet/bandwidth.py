"""Bus bandwidth of collectives, and times in which transfers took long.

The bus bandwidth is that of nccl-tests: the bytes that each rank has to send and receive at least, over the time of the
transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np

# A call is slow if it takes so many times as long as the usual one, and if its logarithm is so many standard deviations
# from the median, by the median absolute deviation.
_SLOW = 2.0
_DEVIATIONS = 6.0
# Calls of one name and size have a usual time if there are as many, else those of the name have one.
_FEWEST = 8
# A slow time has as many slow calls, at most one other for so many of them, and lasts for so long (ns), or for this
# share of the recording. By chance, one recording in so many has one.
_FEWEST_SLOW = 5
_OTHER = 4
_LONG_NS = 1_000_000_000
_LONG = 0.01
_CHANCE = 1e-6
_SECOND = 1_000_000_000


def bus_bytes(kinds: np.ndarray, size: np.ndarray, ranks: int) -> np.ndarray:
    """The bytes on the bus of calls of kinds (strings) and sizes, as NCCL counts them, by a communicator of so many
    ranks; NaN for kinds without a definition and for unknown sizes (below 0)."""
    others = ranks - 1
    factors = {
        "all-reduce": 2 * others / max(ranks, 1),
        # NCCL counts what one rank sends, or receives, of the whole.
        "all-gather": float(others),
        "reduce-scatter": float(others),
        "all-to-all": float(others),
        "gather": float(others),
        "scatter": float(others),
        "broadcast": 1.0,
        "reduce": 1.0,
    }
    amount = np.full(len(kinds), np.nan)
    for kind, factor in factors.items():
        own = (kinds == kind) & (size >= 0)
        amount[own] = size[own] * factor
    return amount


@dataclass(frozen=True)
class SlowTime:
    """A time (ns on the wall clock) in which transfers of some groups (their numbers) took ``ratio`` times as long as
    usual. ``calls`` were slow."""

    start: int
    end: int
    ratio: float
    calls: int
    groups: tuple[int, ...]


def slowness(names: np.ndarray, size: np.ndarray, transfer: np.ndarray) -> np.ndarray:
    """The logarithm of the time of each transfer (ns) in relation to the usual one of calls of its name and size."""
    logarithm = np.log(np.maximum(transfer, 1).astype(np.float64))
    usual = np.zeros(len(names))
    for name in sorted(set(names.tolist())):
        of_name = names == name
        usual[of_name] = np.median(logarithm[of_name])
        sizes, counts = np.unique(size[of_name], return_counts=True)
        for one in sizes[counts >= _FEWEST].tolist():
            alike = of_name & (size == one)
            usual[alike] = np.median(logarithm[alike])
    slow: np.ndarray = logarithm - usual
    return slow


def slow_times(
    group: int,
    start: np.ndarray,
    end: np.ndarray,
    slow: np.ndarray,
    span: int,
) -> list[SlowTime]:
    """The times in which the transfers of a group took long. ``start`` and ``end`` are theirs (ns, ascending), ``slow``
    is from :func:`slowness`, ``span`` (ns) the length of the recording."""
    away = np.abs(slow - np.median(slow))
    deviation = 1.4826 * np.median(away)
    is_slow = slow > max(np.log(_SLOW), _DEVIATIONS * deviation)
    found = []
    for first, behind in _runs(is_slow):
        here = np.arange(first, behind)[is_slow[first:behind]]
        lasted = int(end[behind - 1]) - int(start[first])
        outside = len(slow) - (behind - first)
        slow_outside = is_slow.sum() - len(here)
        chance = (slow_outside + 1) / (outside + 2)
        if len(here) < _FEWEST_SLOW or lasted < min(_LONG_NS, span * _LONG):
            continue
        if len(slow) * chance ** len(here) > _CHANCE:
            continue
        ratio = float(np.exp(np.median(slow[here])))
        time = SlowTime(
            int(start[first]),
            int(end[behind - 1]),
            ratio,
            len(here),
            (group,),
        )
        found.append(time)
    return found


def _runs(is_slow: np.ndarray) -> Iterator[tuple[int, int]]:
    """Intervals of calls that are nearly all slow, the longest ones: the index of the first, and that behind the
    last."""
    waiting = [(0, len(is_slow))]
    while waiting:
        low, high = waiting.pop()
        score = np.where(is_slow[low:high], 1, -_OTHER)
        sums = np.append(0, np.cumsum(score))
        gain = sums - np.minimum.accumulate(sums)
        behind = int(gain.argmax())
        if gain[behind] < _FEWEST_SLOW:
            continue
        first = int(sums[: behind + 1].argmin())
        yield low + first, low + behind
        waiting.append((low, low + first))
        waiting.append((low + behind, high))


def merged(times: Sequence[SlowTime]) -> list[SlowTime]:
    """Times of several groups that overlap, as one."""
    together: list[SlowTime] = []
    for time in sorted(times, key=lambda time: time.start):
        if not together or time.start > together[-1].end:
            together.append(time)
            continue
        last = together[-1]
        calls = last.calls + time.calls
        ratios = last.ratio * last.calls + time.ratio * time.calls
        ratio = ratios / calls
        groups = tuple(sorted({*last.groups, *time.groups}))
        end = max(last.end, time.end)
        together[-1] = replace(
            last,
            end=end,
            ratio=ratio,
            calls=calls,
            groups=groups,
        )
    return together


def clock_times(start: int, end: int) -> str:
    """Two times on the wall clock (ns since 1970) in the words of a sentence."""
    digits = 0
    if end - start < 10 * _SECOND:
        digits = 3
    words = []
    for time in (start, end):
        seconds, rest = divmod(time, _SECOND)
        text = f"{datetime.fromtimestamp(seconds, timezone.utc):%H:%M:%S}"
        if digits:
            text += f".{rest // 10**6:03}"
        words.append(text)
    return f"{words[0]} to {words[1]} UTC"
