"""Busy time in equal parts, against a count of every nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutrace._native import BusyParts

WORK = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 30)), max_size=25)


@settings(deadline=None)
@given(WORK, st.integers(0, 20), st.integers(0, 50), st.integers(1, 9), st.integers(1, 4))
def test_of_any_work_in_any_parts(work, first, span, parts, pieces):
    times = BusyParts(first, first + span, parts)
    work = sorted(work, key=lambda w: w[1])
    for piece in range(pieces):
        some = work[piece * len(work) // pieces : (piece + 1) * len(work) // pieces]
        group, start, length = (np.array([w[i] for w in some], np.int64) for i in range(3))
        times.add(group.astype(np.uint32), start, start + length)
    width = span // parts + 1
    assert times.width == width
    expected = np.zeros((max((w[0] for w in work), default=-1) + 1, parts), int)
    for group in range(len(expected)):
        for moment in range(first, first + width * parts):
            busy = any(g == group and start <= moment < start + length for g, start, length in work)
            expected[group, (moment - first) // width] += busy
    assert times.busy().tolist() == expected.reshape(-1).tolist()


def test_the_latest_times():
    last = (1 << 63) - 1
    for first in (0, 5, last - 1):
        times = BusyParts(first, last, 400)
        times.add(np.zeros(2, np.uint32), np.array([0, last - 3]), np.array([last - 2, last]))
        assert sum(times.busy().tolist()) == last - first


def test_a_span_without_parts_or_that_ends_before_it_begins_is_refused():
    for first, last, parts in ((0, 1, 0), (1, 0, 1), (0, 1, 1 << 17)):
        with pytest.raises(ValueError, match="parts"):
            BusyParts(first, last, parts)
