"""Intervals of repeated times, and whether two of them differ.

A time is slower only if its minimum exceeds the old third quartile by more than the tolerance, the change is larger
than the effect of clocks and schedulers, and, with enough runs, a rank test agrees. A time that is neither clearly
different nor the same is ambiguous.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import quantiles

from .model import Interval, Verdict

#: The number of measurements on each side from which the rank test is used.
ENOUGH = 9
#: Changes of the median up to this (ns) are ignored.
FLOOR_NS = 2000
#: The significance level of the rank test.
SIGNIFICANCE = 0.01
#: The largest sets for which the exact distribution of ranks is computed.
_COUNTABLE = 25


def interval(samples: Sequence[int | float]) -> Interval:
    """The interval of one or more times (ns)."""
    times = tuple(map(round, samples))
    least = min(times)
    if len(times) == 1:
        return Interval(least, least, least, 1)
    _, median, q3 = quantiles(times, method="inclusive")
    kept = times if len(times) >= ENOUGH else ()
    return Interval(least, round(median), round(q3), len(times), kept)


def change(old: Interval, new: Interval, tolerance: float) -> Verdict:
    """Compare two intervals; ``tolerance`` is a share, 0.05 for 5 %."""
    difference = abs(new.median - old.median)
    if difference <= FLOOR_NS:
        return Verdict.SAME
    verdict = Verdict.AMBIGUOUS
    if new.min > old.q3 * (1 + tolerance):
        verdict = Verdict.SLOW
    elif old.min > new.q3 * (1 + tolerance):
        verdict = Verdict.FAST
    elif difference <= tolerance * min(old.median, new.median):
        return Verdict.SAME
    enough = min(len(old.samples), len(new.samples)) >= ENOUGH
    if enough and mann_whitney(old.samples, new.samples) >= SIGNIFICANCE:
        return Verdict.AMBIGUOUS
    return verdict


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided probability that two sets of one or more values differ in rank as much as these by chance.

    Exact for up to 25 values each without ties, else by the normal approximation, corrected for ties and continuity.
    Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than the Other", 1947.
    """
    pairs = len(a) * len(b)
    u = sum((x > y) + (x == y) / 2 for x in a for y in b)
    extreme = max(u, pairs - u)
    ties = [count for count in Counter((*a, *b)).values() if count > 1]
    if not ties and max(len(a), len(b)) <= _COUNTABLE:
        ways = _ways(len(a), len(b))
        as_extreme = sum(ways[math.ceil(extreme) :])
        return min(1.0, 2 * as_extreme / sum(ways))
    total = len(a) + len(b)
    tied = sum(count**3 - count for count in ties)
    spread = total + 1 - tied / (total * (total - 1))
    if spread <= 0:
        return 1.0
    deviation = math.sqrt(pairs / 12 * spread)
    distance = max(0.0, extreme - pairs / 2 - 0.5)
    return math.erfc(distance / deviation / math.sqrt(2))


def _ways(n: int, m: int) -> list[int]:
    """The numbers of orders of n and m distinct values for which U is 0, 1, ..., n * m: the coefficients of a Gaussian
    binomial."""
    ways = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for at in range(n * m, m + i - 1, -1):
            ways[at] -= ways[at - m - i]
        for at in range(i, n * m + 1):
            ways[at] += ways[at - i]
    return ways
