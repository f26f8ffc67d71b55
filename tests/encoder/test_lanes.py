"""Slices of any kind, in any windows, become begin and end events that nest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Lanes

#: For each stream, whether its events join others. Events that end a slice have a separate stream after the others.
JOINS = bytes(4)
END = len(JOINS)

SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def take(lanes: Lanes, joins: bytes = JOINS, most_joined: int = 0) -> tuple[Any, Any, Any]:
    """The groups of a window (number, events, lanes), its events, and the joined events. Tracks are lane numbers."""
    *groups, first = lanes.groups()
    events, joined = lanes.take(joins, most_joined, np.arange(groups[2].sum(), dtype=np.uint32))
    assert first == min(events[2].tolist(), default=2**64 - 1)
    return groups, events, joined


def replay(slices: list[tuple[int, int, int]], cuts: list[int]) -> tuple[list[tuple[int, int, int, int]], Lanes]:
    """Pass slices through windows. Returns them as a viewer sees them: (group, lane, start, end)."""
    lanes = Lanes()
    groups, starts, lengths = (np.array([s[i] for s in slices], np.uint64) for i in range(3))
    groups, ends = groups.astype(np.uint32), starts + lengths
    stacks: dict[tuple[int, int], list[int]] = {}
    seen, last, begin = [], 0, 0
    for until in [*sorted(cuts), 2**64 - 1]:
        lanes.add(3, groups, starts, ends, begin, until)
        lanes.close(until)
        (touched, counts, used), (streams, rows, times, tracks), joined = take(lanes)
        assert counts.sum() == len(times)
        assert not len(joined[0])
        keys = [(group, lane) for group, n in zip(touched.tolist(), used.tolist(), strict=True) for lane in range(n)]
        for e, time in enumerate(times.tolist()):
            key = keys[tracks[e]]
            assert time >= last
            last = time
            if streams[e] == END:
                seen.append((*key, stacks[key].pop(), time))
            else:
                assert streams[e] == 3
                assert (starts[rows[e]], groups[rows[e]]) == (time, key[0])
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
    streams, _, times, _ = take(lanes)[1]
    assert list(zip(streams.tolist(), times.tolist(), strict=True)) == [(0, 5), (1, 5), (END, 7)]


def test_rows_outside_the_window_wait() -> None:
    lanes = Lanes()
    start = np.array([1, 5, 9, 7], np.uint64)
    lanes.add(0, np.zeros(4, np.uint32), start, start, 2, 6)
    lanes.close(6)
    assert take(lanes)[1][1].tolist() == [1, 0]


def test_windows_are_taken_in_the_order_in_which_they_were_closed() -> None:
    lanes = Lanes()
    group, start = np.zeros(1, np.uint32), np.array([1], np.uint64)
    for number in range(3):
        lanes.add(number, group, start + np.uint64(10 * number), start + np.uint64(10 * number + 5))
        lanes.close(10 * number + 3)
    lanes.close(2**64 - 1)
    taken = [take(lanes)[1][0].tolist() for _ in range(4)]
    assert taken == [[0], [END, 1], [END, 2], [END]]
    with pytest.raises(ValueError, match="no window"):
        lanes.groups()


def test_rows_may_name_their_group_by_a_table() -> None:
    lanes = Lanes()
    starts, ends = np.array([1, 2, 3], np.uint64), np.array([9, 9, 9], np.uint64)
    lanes.add(0, np.array([0, 1, 2], np.uint32), starts, ends, group_of=np.array([5, 0, 5], np.uint32))
    lanes.close(4)
    (groups, counts, _), (_, rows, _, tracks), _ = take(lanes)
    assert groups.tolist() == [0, 5]
    assert counts.tolist() == [1, 2]
    assert rows.tolist() == [0, 1, 2]
    assert tracks.tolist() == [1, 0, 1]


def test_events_at_one_time_are_in_the_order_of_groups() -> None:
    lanes = Lanes()
    lanes.add(0, np.array([2, 0, 1], np.uint32), np.full(3, 4, np.uint64), None)
    lanes.close(5)
    assert take(lanes)[1][1].tolist() == [1, 2, 0]


def test_events_join_the_first_event_at_their_time() -> None:
    lanes = Lanes()
    for stream, times in enumerate(([3, 7], [3, 3, 5, 7], [3])):
        starts = np.array(times, np.uint64)
        lanes.add(stream, np.full(len(starts), stream, np.uint32), starts, None)
    lanes.close(9)
    _, (streams, rows, times, tracks), (joined, joined_rows, offsets, joined_tracks) = take(lanes, b"\0\1\0", 1)
    # The second event of stream 1 at time 3 exceeds the limit of joined events, and time 5 has no other event.
    assert list(zip(times.tolist(), streams.tolist(), strict=True)) == [(3, 4), (3, 1), (3, 2), (5, 1), (7, 4)]
    assert (rows.tolist(), tracks.tolist()) == ([0, 1, 0, 2, 1], [0, 1, 2, 1, 0])
    assert offsets.tolist() == [0, 1, 1, 1, 1, 2]
    assert (joined.tolist(), joined_rows.tolist(), joined_tracks.tolist()) == ([1, 1], [0, 3], [1, 1])


def test_instants_outside_all_slices_are_left_out() -> None:
    lanes = Lanes()
    groups = np.array([0, 0, 0, 0, 1], np.uint32)
    lanes.add(0, groups[:1], np.array([2], np.uint64), np.array([6], np.uint64))
    inside = np.array([True, True, True, False, True])
    lanes.add(1, groups, np.array([1, 2, 6, 7, 3], np.uint64), None, inside=inside)
    lanes.close(9)
    groups, (streams, rows, *_), _ = take(lanes)
    assert list(zip(streams.tolist(), rows.tolist(), strict=True)) == [(0, 0), (1, 1), (END, 0), (1, 3)]
    assert groups[0].tolist() == [0]
    assert lanes.outside == 3


def test_a_row_whose_group_is_not_in_the_table() -> None:
    one = np.array([1], np.uint64)
    with pytest.raises(IndexError, match="no group for 7"):
        Lanes().add(0, np.array([7], np.uint32), one, one, group_of=np.array([0], np.uint32))


def test_a_slice_that_ends_before_it_begins() -> None:
    with pytest.raises(ValueError, match="before it begins"):
        Lanes().add(0, np.zeros(1, np.uint32), np.array([5], np.uint64), np.array([4], np.uint64))
