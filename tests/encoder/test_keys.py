"""Dense numbers: for tuples of columns, and for the work that a call launched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Keys, Submissions

CORRELATIONS = st.lists(st.one_of(st.integers(0, 9), st.sampled_from([70_000, 2**31, 2**32 - 1])), max_size=60)


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=300), max_size=3))
def test_tuples_get_numbers_in_the_order_of_their_appearance(parts: list[list[tuple[int, int]]]) -> None:
    keys, known = Keys(2), {}
    for part in parts:
        expected, fresh = [], []
        for row, key in enumerate(part):
            if key not in known:
                known[key] = len(known)
                fresh.append(row)
            expected.append(known[key])
        a, b = np.array([k[0] for k in part], np.uint8), np.array([k[1] for k in part], np.uint64)
        numbers, new = keys.ids([a, b])
        assert numbers.tolist() == expected
        assert new.tolist() == fresh
    assert len(keys) == len(known)


@given(CORRELATIONS, CORRELATIONS, st.integers(0, 5), st.sampled_from([0, 1500, 1 << 21]))
def test_work_and_calls_meet_by_correlation(work: list[int], calls: list[int], base: int, near: int) -> None:
    submissions = Submissions(base, near)
    column = np.array(work, np.uint32)
    half = len(work) // 2
    ids = submissions.assign(column[:half]).tolist() + submissions.assign(column[half:]).tolist()
    assert len(set(ids)) == len(ids)
    assert all(base < i < submissions.end for i in ids)
    offsets, values = submissions.lists(np.array(calls, np.uint32))
    for i, call in enumerate(calls):
        expected = {n for n, c in zip(ids, work, strict=True) if c == call and c}
        assert set(values[offsets[i] : offsets[i + 1]].tolist()) == expected


def test_near_correlations_have_small_ids() -> None:
    ids = Submissions(100, 2048).assign(np.array([1, 2047, 2048, 1], np.uint32)).tolist()
    assert ids[:2] == [101, 2147]
    assert min(ids[2:]) > 2148


def test_a_call_may_launch_any_number_of_nodes() -> None:
    submissions = Submissions(0)
    ids = submissions.assign(np.repeat(np.array([7, 9], np.uint32), [1000, 300]))
    offsets, values = submissions.lists(np.array([9, 8, 7], np.uint32))
    assert offsets.tolist() == [0, 300, 300, 1300]
    assert values.tolist() == [*ids[1000:].tolist(), *ids[:1000].tolist()]
    assert len(set(ids.tolist())) == 1300


def test_columns_of_a_key_keep_their_types() -> None:
    keys = Keys(1)
    keys.ids([np.zeros(1, np.uint8)])
    with pytest.raises(ValueError, match="types of the first call"):
        keys.ids([np.zeros(1, np.uint32)])
