"""Slices of any kind, in any windows, become begin and end events that nest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Lanes

SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def replay(slices: list[tuple[int, int, int]], cuts: list[int]) -> tuple[list[tuple[int, int, int, int]], Lanes]:
    """The slices as a viewer sees them, as (group, lane, start, end), after going through windows."""
    lanes = Lanes()
    groups, starts, lengths = (np.array([s[i] for s in slices], np.uint64) for i in range(3))
    groups, ends = groups.astype(np.uint32), starts + lengths
    stacks: dict[tuple[int, int], list[int]] = {}
    seen, last, begin = [], {}, 0
    for until in [*sorted(cuts), 2**64 - 1]:
        lanes.add(3, groups, starts, ends, begin, until)
        lanes.close(until)
        touched, offsets, streams, rows, times, lane = lanes.take()
        for i, group in enumerate(touched.tolist()):
            for e in range(offsets[i], offsets[i + 1]):
                time, key = int(times[e]), (group, int(lane[e]))
                assert time >= last.get(group, 0)
                last[group] = time
                if streams[e] == Lanes.END:
                    seen.append((*key, stacks[key].pop(), time))
                else:
                    assert streams[e] == 3
                    assert (starts[rows[e]], groups[rows[e]]) == (time, group)
                    stacks.setdefault(key, []).append(time)
        begin = until
    assert not any(stacks.values())
    return seen, lanes


@given(SLICES, st.lists(st.integers(1, 40), max_size=4))
def test_every_slice_comes_out_once(slices: list[tuple[int, int, int]], cuts: list[int]) -> None:
    seen, _ = replay(slices, cuts)
    assert sorted((g, s, e) for g, _, s, e in seen) == sorted((g, s, s + d) for g, s, d in slices)


@given(SLICES)
def test_windows_change_nothing(slices: list[tuple[int, int, int]]) -> None:
    assert sorted(replay(slices, [])[0]) == sorted(replay(slices, [3, 9, 10, 25])[0])


def test_what_nests_stays_on_the_first_lane() -> None:
    seen, lanes = replay([(0, 0, 10), (0, 2, 3), (0, 5, 5), (0, 10, 0), (0, 10, 4), (0, 0, 0)], [])
    assert {lane for _, lane, *_ in seen} == {0}
    assert lanes.spilled().tolist() == [0]


def test_what_overlaps_goes_to_another_lane_and_is_counted() -> None:
    seen, lanes = replay([(1, 0, 10), (1, 5, 10), (1, 6, 3), (1, 16, 1)], [])
    assert sorted(seen) == [(1, 0, 0, 10), (1, 0, 6, 9), (1, 0, 16, 17), (1, 1, 5, 15)]
    assert lanes.spilled().tolist() == [0, 1]


def test_what_is_deeper_than_viewers_go_continues_on_another_lane() -> None:
    slices = [(0, i, 5000 - 2 * i) for i in range(1200)]
    seen, lanes = replay(slices, [])
    deepest = {lane: sum(1 for _, at, *_ in seen if at == lane) for lane in range(3)}
    assert all(0 < count < 512 for count in deepest.values())
    assert sum(deepest.values()) == 1200
    assert lanes.spilled().tolist() == [1200 - deepest[0]]


def test_instants_lie_inside_the_slices_that_begin_with_them() -> None:
    lanes = Lanes()
    group, time = np.zeros(1, np.uint32), np.array([5], np.uint64)
    lanes.add(1, group, time, None)
    lanes.add(0, group, time, time + np.uint64(2))
    lanes.close(100)
    *_, streams, _, times, _ = lanes.take()
    assert list(zip(streams.tolist(), times.tolist(), strict=True)) == [(0, 5), (1, 5), (Lanes.END, 7)]


def test_rows_outside_the_window_wait() -> None:
    lanes = Lanes()
    start = np.array([1, 5, 9, 7], np.uint64)
    assert lanes.add(0, np.zeros(4, np.uint32), start, start, 2, 6) == 7
    lanes.close(6)
    assert lanes.take()[3].tolist() == [1, 0]


def test_windows_are_taken_in_the_order_in_which_they_were_closed() -> None:
    lanes = Lanes()
    group, start = np.zeros(1, np.uint32), np.array([1], np.uint64)
    for number in range(3):
        lanes.add(number, group, start + np.uint64(10 * number), start + np.uint64(10 * number + 5))
        lanes.close(10 * number + 3)
    lanes.close(2**64 - 1)
    taken = [lanes.take()[2].tolist() for _ in range(4)]
    assert taken == [[0], [Lanes.END, 1], [Lanes.END, 2], [Lanes.END]]
    with pytest.raises(ValueError, match="no window"):
        lanes.take()


def test_rows_may_name_their_group_by_a_table() -> None:
    lanes = Lanes()
    starts, ends = np.array([1, 2, 3], np.uint64), np.array([9, 9, 9], np.uint64)
    lanes.add(0, np.array([0, 1, 2], np.uint32), starts, ends, group_of=np.array([5, 0, 5], np.uint32))
    lanes.close(4)
    groups, offsets, _, rows, *_ = lanes.take()
    assert groups.tolist() == [0, 5]
    assert offsets.tolist() == [0, 1, 3]
    assert rows.tolist() == [1, 0, 2]


def test_a_row_whose_group_is_not_in_the_table() -> None:
    one = np.array([1], np.uint64)
    with pytest.raises(IndexError, match="no group for 7"):
        Lanes().add(0, np.array([7], np.uint32), one, one, group_of=np.array([0], np.uint32))


def test_a_slice_that_ends_before_it_begins() -> None:
    with pytest.raises(ValueError, match="before it begins"):
        Lanes().add(0, np.zeros(1, np.uint32), np.array([5], np.uint64), np.array([4], np.uint64))
