"""Rows of a capture in the order of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import put_columns, time_order, times_known


@given(st.lists(st.integers(0, 50), max_size=400))
def test_order_of_time(times: list[int]) -> None:
    column = np.array(times, np.uint64)
    order = time_order(column)
    if times == sorted(times):
        assert order is None
    else:
        assert order.tolist() == np.argsort(times, kind="stable").tolist()
        assert column[order].tolist() == sorted(times)
        assert sorted(zip(time_order(column, places=True).tolist(), times, strict=True)) == list(
            enumerate(sorted(times))
        )


@given(st.lists(st.lists(st.integers(0, 2000), max_size=200), max_size=7))
def test_order_of_runs(runs: list[list[int]]) -> None:
    times = np.concatenate([np.zeros(1, np.uint64), *(np.sort(np.array(run, np.uint64)) for run in runs)])
    order = time_order(times)
    assert (np.arange(len(times)) if order is None else order).tolist() == np.argsort(times, kind="stable").tolist()


@given(st.lists(st.tuples(st.sampled_from([0, 1, 5, 2**63 - 1, 2**63]), st.sampled_from([0, 5, 9, 2**63])), max_size=3))
def test_times_that_are_known(times: list[tuple[int, int]]) -> None:
    starts, ends = (np.array([t[i] for t in times], np.uint64) for i in (0, 1))
    assert times_known(starts, ends) == all(0 < a <= b < 2**63 for a, b in times)
    assert times_known(starts, None) == all(0 < a < 2**63 for a, _ in times)


PACKED = np.dtype([("a", "u1"), ("b", "<u8"), ("c", "<u2"), ("d", "<u4")])  # fields at odd places


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 255), max_size=9), st.booleans()), max_size=4),
    st.booleans(),
    st.randoms(),
)
def test_columns_come_together_in_an_order(parts, placed, random):
    columns, orders, expected = [], [], []
    for values, ordered in parts:
        rows = np.zeros(len(values), PACKED)
        for field in PACKED.names:
            rows[field] = values
        order = random.choices(range(len(values)), k=random.randint(0, 9)) if ordered and values else None
        columns.append(rows)
        orders.append(None if order is None else np.array(order, np.uint32))
        expected += values if order is None else [values[i] for i in order]
    places = list(range(len(expected)))
    if placed:
        random.shuffle(places)
    for field in PACKED.names:
        out = np.empty(len(expected), PACKED[field])
        put_columns(out, [rows[field] for rows in columns], orders, np.array(places, np.uint32) if placed else None)
        assert out[places].tolist() == expected


@pytest.mark.parametrize(
    ("columns", "orders", "places"),
    [
        ([np.zeros(3, np.uint32)], [None], None),
        ([np.zeros(2, np.uint64)], [None], None),
        ([np.zeros(2, np.uint32)], [np.array([0, 2], np.uint32)], None),
        ([np.zeros(2, np.uint32)], [None], np.array([0, 2], np.uint32)),
        ([np.zeros(2, np.uint32)], [None], np.array([0], np.uint32)),
        ([np.zeros(2, np.uint32)], [np.array([0, 1])], None),
        ([np.zeros(2, np.uint32)], [], None),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, orders, places):
    with pytest.raises((ValueError, IndexError)):
        put_columns(np.empty(2, np.uint32), columns, orders, places)
