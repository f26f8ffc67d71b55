"""Intervals of repeated times, and whether two of them differ.

A time is slower only if three conditions hold: its minimum exceeds the old third quartile by more than the tolerance,
the change is larger than the effect of clocks and schedulers, and a rank test agrees (with enough runs). A time is
ambiguous if it is not the same and not clearly different.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .model import Interval, Verdict

#: The smallest number of measurements on each side for the rank test.
ENOUGH = 9
#: Changes of the median up to this (ns) are ignored.
FLOOR_NS = 2000
#: The significance level of the rank test.
SIGNIFICANCE = 0.01
#: The maximum size of sets whose exact distribution of ranks is computed.
_COUNTABLE = 25


def interval(samples: Sequence[int | float]) -> Interval:
    """The interval of one or more times (ns)."""
    times = tuple(map(round, samples))
    count = len(times)
    least = min(times)
    if count == 1:
        return Interval(least, least, least, 1)
    from statistics import quantiles  # Most sessions do not need it.

    _, median, q3 = quantiles(times, method="inclusive")
    summary = Interval(least, round(median), round(q3), count)
    if count < ENOUGH:
        return summary
    return replace(summary, samples=times)


def change(old: Interval, new: Interval, tolerance: float) -> Verdict:
    """Compare two intervals; ``tolerance`` is a share, 0.05 for 5 %."""
    difference = abs(new.median - old.median)
    if difference <= FLOOR_NS:
        return Verdict.SAME
    factor = 1 + tolerance
    verdict = Verdict.AMBIGUOUS
    if new.min > old.q3 * factor:
        verdict = Verdict.SLOW
    elif old.min > new.q3 * factor:
        verdict = Verdict.FAST
    elif difference <= tolerance * min(old.median, new.median):
        return Verdict.SAME
    enough = min(len(old.samples), len(new.samples)) >= ENOUGH
    if enough and mann_whitney(old.samples, new.samples) >= SIGNIFICANCE:
        return Verdict.AMBIGUOUS
    return verdict


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value of the rank test on two sets of one or more values.

    The result is exact for up to 25 values each without ties. Otherwise it is the normal approximation, corrected for
    ties and continuity. Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger
    than the Other", 1947.
    """
    n = len(a)
    m = len(b)
    pairs = n * m
    u = 0.0
    for x in a:
        less = sum(y < x for y in b)
        equal = sum(y == x for y in b)
        u += less + equal / 2
    extreme = max(u, pairs - u)
    frequencies = Counter((*a, *b))
    total = n + m
    if len(frequencies) == total and max(n, m) <= _COUNTABLE:
        ways = _ways(n, m)
        as_extreme = sum(ways[math.ceil(extreme) :])
        return min(1.0, 2 * as_extreme / sum(ways))
    tied = sum(count**3 - count for count in frequencies.values())
    spread = total + 1 - tied / (total * (total - 1))
    if spread <= 0:
        return 1.0
    deviation = math.sqrt(pairs / 12 * spread)
    middle = pairs / 2
    distance = max(0.0, extreme - middle - 0.5)
    score = distance / deviation
    return math.erfc(score / math.sqrt(2))


def _ways(n: int, m: int) -> list[int]:
    """The numbers of orders of n and m distinct values for which U is 0, 1, ..., n * m: the coefficients of a Gaussian
    binomial."""
    most = n * m
    ways = [0] * (most + 1)
    ways[0] = 1
    for i in range(1, n + 1):
        for at in range(most, m + i - 1, -1):
            ways[at] -= ways[at - m - i]
        for at in range(i, most + 1):
            ways[at] += ways[at - i]
    return ways
