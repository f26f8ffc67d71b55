"""Columns from protobuf, and which end ends which begin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Nesting, Unpacker

NUMBER, ENTER, EACH, REPORT = range(4)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


#: A row has a number (1) and an inner message (2) with another (1); entries (3) have two numbers; 4 is reported.
PLAN = [
    (-1, [(1, NUMBER, 0, True), (2, ENTER, 1, False), (3, EACH, 2, False), (4, REPORT, 0, False)]),
    (-1, [(1, NUMBER, 1, False)]),
    (0, [(1, NUMBER, 0, False), (2, NUMBER, 1, False)]),
]


def unpacker() -> Unpacker:
    return Unpacker(PLAN, 2, [2])


def test_rows_have_the_numbers_of_their_fields_and_zero_for_others():
    data = message(1, number(1, 7), message(2, number(1, 1 << 63))) + message(1, number(1, 8))
    consumed, broken, bad, columns, _, *_ = unpacker().read(data)
    assert (consumed, broken, bad) == (len(data), False, 0)
    assert [c.tolist() for c in columns] == [[7, 8], [1 << 63, 0]]


def test_entries_know_their_row():
    entry = message(3, number(1, 5), number(2, 6))
    data = message(1, number(1, 1), entry, entry) + message(1, number(1, 2)) + message(1, entry, number(1, 3))
    *_, groups, _, _, _ = unpacker().read(data)
    ((rows, columns),) = groups
    assert rows.tolist() == [0, 0, 2]
    assert [c.tolist() for c in columns] == [[5, 5, 5], [6, 6, 6]]


def test_what_is_no_row_leaves_nothing_but_its_place_if_it_is_reported():
    data = message(1, message(3, number(1, 5))) + message(1, number(1, 1)) + message(1, message(4, b"text"))
    _, _, _, columns, groups, begins, sizes, before = unpacker().read(data)
    assert columns[0].tolist() == [1]
    assert groups[0][0].tolist() == []
    ((begin,), (size,), (rows,)) = (begins, sizes, before)
    assert (data[begin : begin + size], rows) == (message(4, b"text"), 1)


def test_fixed_numbers_are_read_and_unknown_fields_are_skipped():
    data = message(1, b"\x09" + b"\x01" * 8, b"\x2d" + bytes(4), b"\x31" + bytes(8), message(9, b"x"), number(10, 1))
    assert [c.tolist() for c in unpacker().read(data)[3]] == [[0x0101010101010101], [0]]


def test_a_message_that_is_not_whole_waits_for_the_rest():
    data = message(1, number(1, 7))
    for size in range(len(data)):
        assert unpacker().read(data[:size])[:3] == (0, False, 0)
    assert unpacker().read(data + data[:1])[0] == len(data)


@pytest.mark.parametrize(
    "body",
    [
        b"\x08",  # a number without end
        b"\x08" + b"\xff" * 10 + b"\x01",  # a number of more than ten bytes
        b"\x12\x05\x08",  # a message longer than the one around it
        b"\x09\x00",  # a fixed number cut off
        b"\x0b",  # a group
        b"\x00\x00",  # field 0
        b"\x0a\x01x",  # bytes where a number is wanted... as nothing that is read
        b"\x10\x01",  # a number where a message is wanted
        b"\x12\x01\x08",  # a nested message that is cut off
    ],
)
def test_a_message_that_is_none_is_left_out_and_counted(body):
    data = message(1, number(1, 1)) + message(1, message(3, number(1, 9)), body) + message(1, number(1, 2))
    consumed, broken, bad, columns, groups, *_ = unpacker().read(data)
    assert (consumed, broken, bad) == (len(data), False, 1)
    assert columns[0].tolist() == [1, 2]
    assert groups[0][0].tolist() == []


@pytest.mark.parametrize("rest", [b"\x12\x00", b"\x0a" + b"\xff" * 11, message(1, b"")[:1] + varint(1 << 40)])
def test_what_is_no_message_of_the_stream_ends_it(rest):
    data = message(1, number(1, 1))
    consumed, broken, *_ = unpacker().read(data + rest)
    assert (consumed, broken) == (len(data), True)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_harm(data):
    consumed, _, _, columns, groups, begins, sizes, before = unpacker().read(data)
    assert consumed <= len(data)
    assert len(columns[0]) == len(columns[1])
    assert all(row < len(columns[0]) for row in groups[0][0].tolist())
    assert all(b + s <= consumed for b, s in zip(begins.tolist(), sizes.tolist(), strict=True))
    assert len(before) == len(begins)


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=50))
def test_numbers_of_all_sizes_come_back(values):
    data = b"".join(message(1, number(1, value)) for value in values)
    assert unpacker().read(data)[3][0].tolist() == values


def test_one_call_returns_no_more_than_enough():
    enough, data = 1 << 18, message(1, number(1, 1))
    consumed, broken, _, columns, *_ = unpacker().read(data * (enough + 5))
    assert (consumed, broken, len(columns[0])) == (enough * len(data), False, enough)
    entries = message(1, message(3, b""))
    *_, groups, _, _, _ = unpacker().read(message(1, number(1, 1), message(3, b"")) * (enough + 5) + entries)
    assert len(groups[0][0]) == enough


def test_a_message_with_too_many_entries_is_left_out():
    consumed, _, bad, columns, groups, *_ = unpacker().read(message(1, message(3, b"") * ((1 << 20) + 1), number(1, 1)))
    assert (consumed > 0, bad, len(columns[0]), len(groups[0][0])) == (True, 1, 0, 0)


@pytest.mark.parametrize(
    "plan",
    [
        [],
        [(-1, [(1, NUMBER, 5, False)])],
        [(-1, [(1, ENTER, 7, False)])],
        [(-1, [(1, ENTER, 0, False)])],
        [(3, [])],
        [(-1, [(1, EACH, 1, False)]), (-1, [])],
        [(-1, [(1, ENTER, 1, False)]), (0, [])],
        [(-1, [(1, 9, 0, False)])],
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan):
    with pytest.raises(ValueError):  # noqa: PT011
        Unpacker(plan, 2, [2])


# Nesting

BEGIN, END, OTHER = 1, 2, 0


def test_an_end_ends_the_last_begin_of_its_track():
    nesting = Nesting()
    tracks = np.array([1, 1, 2, 1, 2, 1, 1], np.uint64)
    phases = np.array([BEGIN, BEGIN, BEGIN, END, END, END, END], np.uint8)
    assert nesting.feed(tracks, phases).tolist() == [-1, -1, -1, 1, 2, 0, -1]


def test_numbers_go_on_over_calls():
    nesting = Nesting()
    one = np.array([7], np.uint64)
    assert nesting.feed(one, np.array([BEGIN], np.uint8)).tolist() == [-1]
    assert nesting.feed(one, np.array([OTHER], np.uint8)).tolist() == [-1]
    assert nesting.open == 1
    assert nesting.feed(one, np.array([END], np.uint8)).tolist() == [0]
    assert nesting.open == 0


def test_what_is_open_is_told_once():
    nesting = Nesting()
    nesting.feed(np.array([1, 2, 1], np.uint64), np.array([BEGIN] * 3, np.uint8))
    assert nesting.take_open().tolist() == [0, 1, 2]
    assert nesting.take_open().tolist() == []
    assert nesting.feed(np.array([1], np.uint64), np.array([END], np.uint8)).tolist() == [-1]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([BEGIN, END, OTHER])), max_size=60))
def test_it_is_a_stack_for_each_track(events):
    stacks: dict[int, list[int]] = {}
    wanted = []
    for i, (track, phase) in enumerate(events):
        stack = stacks.setdefault(track, [])
        if phase == BEGIN:
            stack.append(i)
        wanted.append(stack.pop() if phase == END and stack else -1)
    tracks, phases = (np.array([e[k] for e in events], kind) for k, kind in ((0, np.uint64), (1, np.uint8)))
    assert Nesting().feed(tracks, phases).tolist() == wanted


def test_columns_of_other_kinds_are_refused():
    with pytest.raises(TypeError, match="incompatible"):
        Nesting().feed(np.zeros(1, np.uint32), np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="equal lengths"):
        Nesting().feed(np.zeros(1, np.uint64), np.zeros(2, np.uint8))
    with pytest.raises(TypeError, match="incompatible"):
        unpacker().read(np.zeros(4, np.uint64)[::2])
