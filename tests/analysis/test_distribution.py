"""Spreads of numbers have exact sums, and quantiles within the documented error."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cutrace.analysis.distribution import NOTHING, QUANTILE_ERROR, Distributions, Spread
from support.plain_stats import same

NUMBERS = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(st.integers(0, 3000), st.integers(0, 1 << 50))), min_size=1, max_size=60
)


def spread(values: np.ndarray) -> Spread:
    found = Distributions()
    found.add(0, values)
    return found.spreads()[0]


@given(NUMBERS, st.integers(1, 9))
def test_spreads_are_those_of_the_numbers_however_they_come(numbers, piece):
    found = Distributions()
    for at in range(0, len(numbers), piece):
        part = numbers[at : at + piece]
        found.add(np.array([g for g, _ in part]), np.array([v for _, v in part]))
    for group, got in enumerate(found.spreads()):
        assert same(got, [value for g, value in numbers if g == group])


@given(st.lists(st.integers((1 << 63) - 10, (1 << 63) - 1), min_size=1, max_size=20))
def test_sums_are_exact_beyond_64_bits(numbers):
    found = spread(np.array(numbers))
    assert (found.total, found.min, found.max) == (sum(numbers), min(numbers), max(numbers))
    assert abs(found.median - (1 << 63)) <= QUANTILE_ERROR * (1 << 63)


def test_many_numbers_are_taken_in_pieces():
    values = np.random.default_rng(1).integers(0, 1 << 40, 200_000)
    found = spread(values)
    assert (found.count, found.total) == (200_000, int(values.sum()))
    assert abs(found.median - np.median(values)) <= QUANTILE_ERROR * np.median(values)
    assert np.isclose(found.std, values.std(ddof=1))


def test_groups_without_numbers_have_an_empty_spread():
    found = Distributions()
    assert found.spreads() == []
    found.add(np.array([2]), np.array([7]))
    assert found.spreads()[:2] == [NOTHING, NOTHING]
    assert not any(astuple(NOTHING))


def test_one_number_has_no_deviation():
    assert spread(np.array([5])).std == 0.0
