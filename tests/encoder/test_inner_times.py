"""The time of slices in their direct inner slices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import InnerTimes

SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 30), st.integers(0, 3)), max_size=25)


def model(slices: list[tuple[int, int, int, int]]) -> dict[int, int]:
    """Compute it slice by slice. The innermost open slice of a thread gives the time until either slice ends."""
    inner: dict[int, int] = {}
    open_slices: dict[int, list[tuple[int, int]]] = {}
    for thread, start, length, group in slices:
        stack = open_slices.setdefault(thread, [])
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            end, around = stack[-1]
            inner[around] = inner.get(around, 0) + min(end, start + length) - start
        stack.append((start + length, group))
    return inner


@given(SLICES, st.integers(1, 9))
def test_of_any_slices_taken_in_by_pieces(slices, moments):
    ordered = sorted(slices, key=lambda s: (s[1], -s[2]))
    times = InnerTimes()
    edges = sorted({0, len(ordered), *(i for i in range(1, len(ordered)) if ordered[i][1] != ordered[i - 1][1])})
    edges = sorted({*edges[::moments], 0, len(ordered)})
    for begin, end in pairwise(edges):
        part = sorted(ordered[begin:end], key=lambda s: s[1])
        thread, start, length, group = (np.array(column) for column in zip(*part, strict=True))
        times.add(thread.astype(np.uint32), start, start + length, group.astype(np.uint32))
    found = dict(enumerate(times.times().tolist()))
    expected = model(ordered)
    assert {group: time for group, time in found.items() if time} == expected


def test_slices_of_one_moment_lie_in_the_longest():
    times = InnerTimes()
    times.add(np.zeros(3, np.uint32), np.zeros(3, np.int64), np.array([5, 9, 7]), np.array([0, 1, 2], np.uint32))
    assert times.times().tolist() == [0, 7, 5]


def test_slices_of_another_process_lie_in_none_before():
    times = InnerTimes()
    one = np.zeros(1, np.uint32)
    times.add(one, np.array([0]), np.array([100]), one)
    times.finish()
    times.add(one, np.array([10]), np.array([20]), one)
    assert times.times().tolist() == []


def test_columns_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        InnerTimes().add(np.zeros(1, np.uint32), np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.uint32))
