"""Bus bandwidth of collectives, and periods of slow transfers.

The bus bandwidth is defined as in nccl-tests: the bytes that each rank has to send and receive at least, divided by the
time of the transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np

# A slow call takes at least this many times as long as usual.
_SLOW = 2.0
# The logarithm of the time of a slow call is this many standard deviations above the median. The median absolute
# deviation estimates the standard deviation.
_DEVIATIONS = 6.0
# The smallest number of calls of one name and size with a separate usual time. Other calls use the usual time of their
# name.
_FEWEST = 8
# The smallest number of slow calls in a slow period.
_FEWEST_SLOW = 5
# A slow period has at most one other call for this many slow calls.
_OTHER = 4
# A slow period lasts at least this long (ns), or this share of the recording.
_LONG_NS = 1_000_000_000
_LONG = 0.01
# The largest probability that a recording has such a period by chance.
_CHANCE = 1e-6
_SECOND = 1_000_000_000


def bus_bytes(kinds: np.ndarray, size: np.ndarray, ranks: int) -> np.ndarray:
    """The bytes on the bus of each call. ``kinds`` are strings, ``size`` is in bytes as NCCL counts them, and ``ranks``
    is the number of ranks of the communicator. NaN for kinds without a definition and for unknown sizes (below 0)."""
    others = ranks - 1
    factors = {
        "all-reduce": 2 * others / max(ranks, 1),
        # The size is the part that one rank sends or receives.
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
    """A period (ns on the wall clock) with transfers that took ``ratio`` times as long as usual. ``groups`` are the
    indices of the groups with these transfers, and ``calls`` is the number of slow calls."""

    start: int
    end: int
    ratio: float
    calls: int
    groups: tuple[int, ...]


def slowness(names: np.ndarray, size: np.ndarray, transfer: np.ndarray) -> np.ndarray:
    """The logarithm of the ratio between the time of each transfer (ns) and the usual time. The usual time is the
    median of the calls of the same name and size."""
    logarithm = np.log(np.maximum(transfer, 1).astype(np.float64))
    usual = np.zeros(len(names))
    for name in sorted(set(names.tolist())):
        of_name = names == name
        usual[of_name] = np.median(logarithm[of_name])
        sizes, counts = np.unique(size[of_name], return_counts=True)
        for one in sizes[counts >= _FEWEST].tolist():
            alike = of_name & (size == one)
            usual[alike] = np.median(logarithm[alike])
    return logarithm - usual


def slow_times(
    group: int,
    start: np.ndarray,
    end: np.ndarray,
    slow: np.ndarray,
    span: int,
) -> list[SlowTime]:
    """The periods of slow transfers of a group. ``start`` and ``end`` are the times of its transfers (ns, ascending),
    ``slow`` is the result of :func:`slowness`, and ``span`` is the length of the recording (ns)."""
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
    """Yield the longest intervals of calls that are nearly all slow. An interval is the index of its first call and the
    index after its last call."""
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
    """Join overlapping periods of several groups into one."""
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
    """Two times on the wall clock (ns since 1970) as words of a sentence."""
    precision = "seconds"
    if end - start < 10 * _SECOND:
        precision = "milliseconds"
    words = []
    for time in (start, end):
        moment = datetime.fromtimestamp(time / _SECOND, timezone.utc)
        words.append(moment.time().isoformat(precision))
    return f"{words[0]} to {words[1]} UTC"
