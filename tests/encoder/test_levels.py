"""Counters from their changes. A counter with few changes has all its values, others have means over intervals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Levels, MemoryTotals

FIRST, LAST = 1000, 1999
NONE = 2**32 - 1
CHANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(FIRST, LAST), st.integers(0, 1000)), min_size=1, max_size=30
)


def add(levels: Levels, changes: list[tuple[int, int, int]], factors: tuple[int, int, int] = (1, -1, 2)) -> None:
    keys, times, amounts = (np.array([c[i] for c in changes], t) for i, t in enumerate(("<u4", "<u8", "<u8")))
    levels.add(keys, np.arange(3, dtype=np.uint32), np.array(factors, np.int64), times, amounts)


def values(changes: list[tuple[int, int, int]], series: int, factor: int) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    value = 0
    for time in sorted({t for s, t, _ in changes if s == series}):
        value += factor * sum(a for s, t, a in changes if (s, t) == (series, time))
        out.append((time, value))
    return out


@given(CHANGES)
def test_every_value_of_few_changes(changes: list[tuple[int, int, int]]) -> None:
    levels = Levels(FIRST, LAST, 4, 100)
    add(levels, changes)
    for series, factor in enumerate((1, -1, 2)):
        times, means, highest, exact = levels.values(series)
        assert exact
        assert list(zip(times.tolist(), means.tolist(), strict=True)) == values(changes, series, factor)
        assert highest.tolist() == means.tolist()


@given(CHANGES, st.integers(0, 6), st.integers(0, 29))
def test_means_of_many_changes(changes: list[tuple[int, int, int]], bits: int, kept: int) -> None:
    if kept >= len(changes):
        return
    levels = Levels(FIRST, LAST, bits, kept)
    add(levels, changes[:5])
    add(levels, changes[5:] or [(0, FIRST, 0)])
    for series, factor in enumerate((1, -1, 2)):
        times, means, _, exact = levels.values(series)
        assert not exact
        if not len(times):
            assert not values(changes, series, factor)
            continue
        assert len(times) <= 1 << bits
        width = int(times[1] - times[0]) if len(times) > 1 else 1 << 10
        assert times.tolist() == [FIRST + i * width for i in range(len(times))]
        curve = [(0, 0), *values(changes, series, factor), (1 << 60, 0)]
        for begin, mean in zip(times.tolist(), means.tolist(), strict=True):
            area = sum(
                value * max(0, min(after, begin + width) - max(at, begin))
                for (at, value), (after, _) in pairwise(curve)
            )
            assert mean == pytest.approx(area / width, rel=1e-9, abs=1e-6)


@given(st.lists(st.tuples(st.integers(FIRST, LAST), st.integers(0, 400), st.integers(0, 9)), min_size=1, max_size=30))
def test_stretches_are_two_changes(stretches: list[tuple[int, int, int]]) -> None:
    begins, lengths, amounts = (np.array([s[i] for s in stretches], np.uint64) for i in range(3))
    keys, series = np.zeros(len(stretches), np.uint32), np.zeros(1, np.uint32)
    for kept in (0, 1000):
        one, other = Levels(FIRST, LAST, 3, kept), Levels(FIRST, LAST, 3, kept)
        one.add_stretches(keys, series, begins, begins + lengths, amounts)
        other.add(keys, series, np.array([1], np.int64), begins, amounts)
        other.add(keys, series, np.array([-1], np.int64), begins + lengths, amounts)
        (times, means, _, _), (expected_times, expected, _, _) = one.values(0), other.values(0)
        assert times.tolist() == expected_times.tolist()
        assert np.allclose(means, expected, rtol=1e-9, atol=1e-6)


@given(CHANGES)
def test_highest_values_of_changes_in_order(changes: list[tuple[int, int, int]]) -> None:
    changes = sorted(changes, key=lambda c: c[1])
    levels = Levels(FIRST, LAST, 3, 0)
    for change in changes:
        add(levels, [change])
    for series, factor in enumerate((1, -1, 2)):
        times, _, highest, _ = levels.values(series)
        value, at = 0, 0
        mine = [(t, factor * a) for s, t, a in changes if s == series]
        for begin, found in zip(times.tolist(), highest.tolist(), strict=True):
            most = value
            while at < len(mine) and mine[at][0] < begin + (1 << 7):
                value += mine[at][1]
                most, at = max(most, value), at + 1
            assert found == most


@given(CHANGES, st.sampled_from([0, 100]))
def test_without_means_a_value_is_the_highest(changes: list[tuple[int, int, int]], kept: int) -> None:
    one, other = Levels(FIRST, LAST, 3, kept, False), Levels(FIRST, LAST, 3, kept)
    add(one, changes)
    add(other, changes)
    times, values, highest, exact = one.values(1)
    expected_times, _, expected, expected_exact = other.values(1)
    assert exact == expected_exact
    assert times.tolist() == expected_times.tolist()
    assert values.tolist() == highest.tolist() == expected.tolist()


def test_sums_change_with_the_counters_of_their_keys() -> None:
    levels, sums = Levels(FIRST, LAST, 4, 100), Levels(FIRST, LAST, 4, 100)
    keys, times, amounts = np.array([0, 1, 2], "<u4"), np.array([1100, 1200, 1300], "<u8"), np.array([5, 6, 7], "<u8")
    series = np.array([0, 1, NONE], np.uint32)
    of_key = np.array([0, NONE, 0], np.uint32)
    levels.add(keys, series, np.ones(3, np.int64), times, amounts, (sums, of_key))
    assert levels.values(0)[1].tolist() == [5.0]
    assert levels.values(1)[1].tolist() == [6.0]
    assert sums.values(0)[1].tolist() == [5.0, 12.0]
    with pytest.raises(ValueError, match="equal lengths"):
        levels.add(keys, series, np.ones(3, np.int64), times, amounts, (sums, of_key[:2]))


def test_keys_without_a_counter() -> None:
    levels = Levels(FIRST, LAST, 4, 100)
    keys, times, amounts = np.array([0, 1], np.uint32), np.array([1100, 1200], np.uint64), np.array([5, 6], np.uint64)
    levels.add(keys, np.array([NONE, 0], np.uint32), np.ones(2, np.int64), times, amounts)
    assert levels.values(0)[1].tolist() == [6.0]


def test_times_outside_count_at_the_edges() -> None:
    levels = Levels(FIRST, LAST, 2, 0)
    add(levels, [(0, 1, 8), (0, 10**18, 8)])
    assert levels.values(0)[1].tolist() == [8.0, 8.0, 8.0, 8.0]


@pytest.mark.parametrize("kept", [0, 100])
def test_sums_beyond_64_bits_wrap_around(kept: int) -> None:
    levels = Levels(FIRST, LAST, 2, kept)
    add(levels, [(2, FIRST, 2**64 - 1), (2, FIRST + 1, 2**63)])
    assert np.isfinite(levels.values(2)[1]).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="last >= first"):
        Levels(2, 1, 3, 0)
    levels = Levels(FIRST, LAST, 4, 0)
    one = np.zeros(1, np.uint32)
    time = np.array([FIRST], np.uint64)
    with pytest.raises(IndexError, match="no counter"):
        levels.add(one + np.uint32(1), one, np.ones(1, np.int64), time, time)
    with pytest.raises(IndexError, match="too many"):
        levels.add(one, one + np.uint32(Levels.MOST), np.ones(1, np.int64), time, time)
    with pytest.raises(ValueError, match="equal lengths"):
        levels.add(one, one, np.ones(2, np.int64), time, time)
    with pytest.raises(TypeError, match="incompatible"):
        levels.add(one, one, np.ones(1, np.int64), time, time.astype(np.int32))


def test_memory_is_counted_by_group() -> None:
    totals = MemoryTotals()
    groups, operations = np.array([0, 1, 0, 0, 0], np.uint32), np.array([1, 2, 1, 2, 9], np.uint8)
    sizes = np.array([5, 7, 6, 4, 100], np.uint64)
    for _ in range(2):
        totals.add(groups, operations, sizes)
    assert totals.rows() == [(4, 22, 2, 8, 18, 14), (0, 0, 2, 14, 0, -14)]
    totals.add(np.array([2], np.uint32), np.array([1], np.uint8), np.array([2**64 - 1], np.uint64))
    assert totals.rows()[2] == (1, 2**63 - 1, 0, 0, 2**63 - 1, 2**63 - 1)
    with pytest.raises(ValueError, match="equal lengths"):
        totals.add(groups, operations, sizes[:1])
