"""Differences of two sets of times, compared with a simple count of ranks."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.golden import Interval, Verdict
from cutrace.golden.statistics import change, interval, mann_whitney


def test_an_interval_holds_the_least_the_median_and_the_third_quartile():
    assert interval([1000, 3000, 2000, 5000, 4000]) == Interval(1000, 3000, 4000, 5)
    assert interval([7]) == Interval(7, 7, 7, 1)
    assert interval([10, 20]) == Interval(10, 15, 18, 2)


def test_samples_are_kept_when_there_are_enough_for_a_rank_test():
    assert interval(range(8)).samples == ()
    assert interval([9, 8, 7, 6, 5, 4, 3, 2, 1]).samples == (9, 8, 7, 6, 5, 4, 3, 2, 1)


@given(st.lists(st.integers(0, 2**50), min_size=1))
def test_an_interval_is_in_order(samples):
    found = interval(samples)
    assert min(samples) == found.min <= found.median <= found.q3 <= max(samples)


OLD = Interval(100_000, 103_000, 106_000, 5)
CASES = {
    "the same": (Interval(100_000, 103_000, 106_000, 5), Verdict.SAME),
    "within the tolerance": (Interval(102_000, 106_000, 109_000, 5), Verdict.SAME),
    "slower than the third quartile and the tolerance": (Interval(111_301, 112_000, 113_000, 5), Verdict.SLOW),
    "just at the tolerance": (Interval(111_300, 112_000, 113_000, 5), Verdict.AMBIGUOUS),
    "slower but for the best run": (Interval(104_000, 120_000, 125_000, 5), Verdict.AMBIGUOUS),
    "faster than the least and the tolerance": (Interval(90_000, 94_000, 95_000, 5), Verdict.FAST),
    "faster but for the third quartile": (Interval(80_000, 90_000, 99_000, 5), Verdict.AMBIGUOUS),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule_of_intervals(case):
    new, verdict = CASES[case]
    assert change(OLD, new, 0.05) is verdict


def test_two_microseconds_are_no_change():
    old, new = interval([1000] * 3), interval([3000] * 3)
    assert change(old, new, 0.05) is Verdict.SAME
    assert change(old, interval([3001] * 3), 0.05) is Verdict.SLOW
    assert change(interval([3001] * 3), old, 0.05) is Verdict.FAST


def test_faster_is_slower_seen_from_the_other_side():
    slow = Interval(111_301, 112_000, 113_000, 5)
    assert change(OLD, slow, 0.05) is Verdict.SLOW
    assert change(slow, OLD, 0.05) is Verdict.FAST


def test_with_enough_samples_ranks_have_to_agree():
    # Five of the old runs were slower than all new ones. The interval does not show this.
    old = (100_000,) * 7 + (200_000,) * 5
    new = interval([120_000] * 9)
    assert mann_whitney(old, new.samples) > 0.01
    assert change(Interval(100_000, 100_000, 100_000, 12), new, 0.05) is Verdict.SLOW
    assert change(Interval(100_000, 100_000, 100_000, 12, old), new, 0.05) is Verdict.AMBIGUOUS
    assert change(interval([100_000 + i for i in range(9)]), new, 0.05) is Verdict.SLOW


def counted(a: list[int], b: list[int]) -> float:
    """The two-sided probability that U is at least as far from its middle, over all ways to assign the values to the
    two sets."""
    values, middle = [*a, *b], len(a) * len(b) / 2

    def distance(first: set[int]) -> float:
        ours = [values[i] for i in first]
        others = [values[i] for i in range(len(values)) if i not in first]
        return abs(sum((x > y) + (x == y) / 2 for x, y in product(ours, others)) - middle)

    seen = distance(set(range(len(a))))
    ways = [distance(set(chosen)) >= seen for chosen in combinations(range(len(values)), len(a))]
    return sum(ways) / len(ways)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=10, unique=True), st.data())
def test_without_ties_the_probability_is_that_of_all_orders(values, data):
    size = data.draw(st.integers(1, len(values) - 1))
    a, b = values[:size], values[size:]
    assert mann_whitney(a, b) == pytest.approx(counted(a, b))


def test_known_values():
    # Complete separation occurs in 2 of C(2n, n) orders.
    assert mann_whitney(range(5), range(5, 10)) == pytest.approx(2 / 252)
    assert mann_whitney(range(9), range(9, 18)) == pytest.approx(2 / 48620)
    assert mann_whitney([1, 3], [2, 4]) == pytest.approx(4 / 6)


def test_with_ties_the_normal_approximation_is_close_to_all_orders():
    a, b = [1, 2, 2, 3, 3, 4, 5, 5, 6], [3, 4, 4, 5, 6, 6, 7, 8, 8]
    assert mann_whitney(a, b) == pytest.approx(counted(a, b), abs=0.005)
    a, b = [1, 2, 2, 3, 4, 5, 6], [3, 3, 4, 5, 6, 7, 7]
    assert mann_whitney(a, b) == pytest.approx(counted(a, b), abs=0.005)


def test_large_sets_go_over_into_the_approximation_smoothly():
    def shifted(n: int) -> float:
        return mann_whitney([2 * i for i in range(n)], [2 * i + 9 for i in range(n)])

    assert shifted(26) == pytest.approx(shifted(25), rel=0.1)


def test_what_is_all_the_same_differs_in_nothing():
    assert mann_whitney([5] * 9, [5] * 9) == 1.0


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_a_probability_is_one_and_has_no_sides(a, b):
    assert 0 < mann_whitney(a, b) <= 1
    assert mann_whitney(a, b) == pytest.approx(mann_whitney(b, a))
