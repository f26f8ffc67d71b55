"""The thread with the ranges around a launch, compared with a loop over all ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import RangeThreads
from range_rule import Range, owner

HOW = {"own": RangeThreads.OWN, "adopted": RangeThreads.ADOPTED, "several": RangeThreads.SEVERAL,
       "none": RangeThreads.NONE}  # fmt: skip
RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 30)), max_size=12)
LAUNCHES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 70)), max_size=25)


def add(threads: RangeThreads, ranges: list[tuple[int, int, int]]) -> None:
    rows = np.array([(thread, start, start + length) for thread, start, length in ranges], np.uint64).reshape(-1, 3)
    threads.add(rows[:, 0].astype(np.uint32), rows[:, 1], rows[:, 2])


def find(threads: RangeThreads, launches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    rows = np.array(launches, np.uint64).reshape(-1, 2)
    owners, how = threads.find(rows[:, 0].astype(np.uint32), rows[:, 1])
    return list(zip(owners.tolist(), how.tolist(), strict=True))


@given(RANGES, LAUNCHES, st.lists(st.integers(0, 70), max_size=3), st.booleans())
def test_each_launch_is_where_the_rule_says(ranges, launches, edges, adopts):
    threads = RangeThreads(adopts)
    known = [Range(0, thread, start, start + length, "", "") for thread, start, length in ranges]
    found, expected = [], []
    low = 0
    for high in [*sorted(edges), 100]:
        add(threads, [r for r in ranges if low <= r[1] < high])
        # Launches may come late, but not before the ranges around them.
        step = [(thread, time) for thread, time in launches if time < high]
        found += find(threads, step)
        expected += [owner(known, 0, thread, time, "adopted" if adopts else "own") for thread, time in step]
        low = max(low, high)
    for (thread, how), (name, wanted) in zip(found, expected, strict=True):
        assert how == HOW[name]
        if name in ("own", "adopted"):
            assert thread == wanted


def test_ranges_that_begin_where_others_end_do_not_overlap():
    threads = RangeThreads(True)
    add(threads, [(1, 0, 10), (2, 10, 10), (3, 12, 0)])
    assert find(threads, [(9, 9), (9, 10), (9, 12), (9, 20)])[:3] == [
        (1, RangeThreads.ADOPTED), (2, RangeThreads.ADOPTED), (2, RangeThreads.ADOPTED)
    ]  # fmt: skip
    assert find(threads, [(9, 20)])[0][1] == RangeThreads.NONE


def test_a_launch_long_ago_is_in_no_range():
    threads = RangeThreads(True)
    count = 2_200_000
    start = np.arange(count, dtype=np.uint64) * np.uint64(2)
    threads.add(np.ones(count, np.uint32), start, start + np.uint64(1))
    latest = int(start[-1])
    assert find(threads, [(1, latest), (2, latest)]) == [(1, RangeThreads.OWN), (1, RangeThreads.ADOPTED)]
    assert [how for _, how in find(threads, [(1, 0), (2, 0), (1, latest - 100), (1, latest - 101)])] == [
        RangeThreads.NONE, RangeThreads.NONE, RangeThreads.OWN, RangeThreads.NONE,
    ]  # fmt: skip


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        RangeThreads(True).find(np.zeros(1, np.uint32), np.zeros(2, np.uint64))
