"""Rows of blocks: their order, and the separation of rows without known times."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cutrace.runbin import TABLES
from cutrace.trace.rows import by_value, counted, first_places, numbered, time_order, unknown_times


@given(st.lists(st.integers(0, 50), max_size=400))
def test_order_of_time(times: list[int]) -> None:
    column = np.array(times, np.uint64)
    order = time_order(column)
    if times == sorted(times):
        assert order is None
    else:
        assert order is not None
        assert order.tolist() == sorted(range(len(times)), key=lambda row: (times[row], row))


@given(st.lists(st.tuples(st.sampled_from([0, 1, 5, 2**63 - 1, 2**63]), st.sampled_from([0, 5, 9, 2**63])), max_size=3))
def test_times_that_are_unknown(times: list[tuple[int, int]]) -> None:
    slices, marks = (np.zeros(len(times), TABLES[table].dtype) for table in ("kernels", "nvtx_marks"))
    slices["start"], slices["end"] = ([t[i] for t in times] for i in (0, 1))
    marks["time"] = slices["start"]
    for table, rows, expected in (
        ("kernels", slices, [not 0 < a <= b < 2**63 for a, b in times]),
        ("nvtx_marks", marks, [not 0 < a < 2**63 for a, _ in times]),
    ):
        unknown = unknown_times(TABLES[table], rows)
        assert expected == ([False] * len(times) if unknown is None else unknown.tolist())
        assert unknown is None or any(expected)


@given(st.lists(st.integers(0, 9), max_size=12), st.sampled_from([1, 9]))
def test_values_are_counted_and_numbered_whether_they_are_few_or_many(values: list[int], times: int) -> None:
    column = np.array(values * times, np.uint32)
    expected = sorted(set(values))
    assert list(counted(column).items()) == [(value, values.count(value) * times) for value in expected]
    found, places = numbered(column)
    assert found == expected
    assert [found[place] for place in places] == column.tolist()
    distinct, first = first_places(column)
    assert distinct.tolist() == expected
    assert first.tolist() == [values.index(value) for value in expected]


def test_rows_are_found_by_value_whether_few_or_many_are_wanted() -> None:
    values = np.random.default_rng(1).integers(0, 40, 500)
    for dtype, offset in ((np.uint16, 0), (np.uint32, 1 << 20), (np.int64, -20)):
        shifted = (values + offset).astype(dtype)
        for wanted in (range(offset, offset + 3), range(offset, offset + 45)):
            found = by_value(shifted, wanted)
            assert [at.tolist() for at in found] == [np.flatnonzero(shifted == number).tolist() for number in wanted]
