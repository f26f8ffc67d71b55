"""API calls of launched work, found by correlation id among the newest calls."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Calls, Levels

CALLS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 50), st.integers(1, 3)), max_size=20)
WORK = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 80), st.integers(0, 20), st.integers(0, 2)), max_size=30)


def columns(rows: list[tuple[int, ...]], types: str) -> list[np.ndarray]:
    return [np.array([row[i] for row in rows], f"<u{size}") for i, size in enumerate(types)]


def merged(parts: list[list[np.ndarray]]) -> list[tuple[int, ...]]:
    """The rows of parts, sorted by start. Among rows with equal starts, rows of the last read part come first, else
    rows of the first part."""
    rows = [list(zip(*(column.tolist() for column in part), strict=True)) for part in parts]
    out: list[tuple[int, ...]] = []
    at = [0] * len(rows)
    current = 0
    while any(place < len(part) for place, part in zip(at, rows, strict=True)):
        order = [current, *(i for i in range(len(rows)) if i != current)]
        current = min((i for i in order if at[i] < len(rows[i])), key=lambda i: rows[i][at[i]][1])
        out.append(rows[current][at[current]])
        at[current] += 1
    return out


@given(CALLS, WORK)
def test_work_goes_to_its_call(calls: list[tuple[int, int, int]], work: list[tuple[int, int, int, int]]) -> None:
    known = Calls(6)
    known.add(*columns(calls, "484"))
    first: dict[int, tuple[int, int]] = {}
    for id_, start, thread in calls:
        if id_ and (id_ not in first or start < first[id_][0]):
            first[id_] = start, thread
    rows = sorted([(id_, start, start + length, queue) for id_, start, length, queue in work], key=lambda row: row[1])
    parts = [columns(rows[::2], "4884"), columns(rows[1::2], "4884")]
    levels, expected_levels = Levels(0, 200, 3, 1000), Levels(0, 200, 3, 1000)
    known.launch(parts, levels, np.arange(3, dtype=np.uint32))

    queued: dict[int, int] = {}
    latest: dict[int, int] = {}
    for id_, begin, _, queue in merged(parts):
        if id_ in first and latest.get(queue) != id_:
            queued[queue] = max(min(first[id_][0], begin), queued.get(queue, 0))
            if queued[queue] < begin:
                one = np.array([queue], np.uint32)
                times = [np.array([t], np.uint64) for t in (queued[queue], begin, 1)]
                expected_levels.add_stretches(one, np.arange(3, dtype=np.uint32), *times)
        latest[queue] = id_
    for queue in range(3):
        assert [x.tolist() for x in levels.values(queue)[:2]] == [x.tolist() for x in expected_levels.values(queue)[:2]]

    own = [end - begin for id_, begin, end, _ in rows if id_ in first]
    none = [end - begin for id_, begin, end, _ in rows if id_ not in first]
    assert known.shares() == [(len(own), sum(own)), (0, 0), (0, 0), (len(none), sum(none))]


LONG_CALLS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 9), st.integers(0, 9), st.integers(1, 3), st.integers(0, 5)),
    max_size=20,
)


@given(LONG_CALLS, st.lists(st.integers(0, 15), max_size=9), st.integers(1, 20))
def test_calls_are_found_again(calls, wanted, piece):
    """If several calls have one id, the outer call is found: the first call, or the longest one if several start
    together."""
    known = Calls(6)
    rows = [(id_, start, start + length, thread, function) for id_, start, length, thread, function in calls]
    for at in range(0, len(rows), piece):
        ids, starts, ends, threads, functions = columns(rows[at : at + piece], "48842")
        known.add(ids, starts, threads, ends, functions)
    found = list(zip(*(column.tolist() for column in known.find(np.array(wanted, np.uint32))), strict=True))
    for id_, (there, start, end, thread, function, _, _) in zip(wanted, found, strict=True):
        mine = [(s, -e, t, f) for i, s, e, t, f in rows if i == id_ and i]
        assert there == bool(mine)
        if mine:
            outer = min((s, e) for s, e, _, _ in mine)
            assert (start, -end, thread, function) in mine
            assert (start, -end) == outer
        else:
            assert (start, end, thread, function) == (0, 0, 0, 0)


def test_a_call_that_was_forgotten_is_none() -> None:
    known = Calls(2)
    known.add(*columns([(1, 10, 7), (5, 20, 8)], "484"))
    there, starts, _, threads, *_ = known.find(np.array([1, 5], np.uint32))
    assert (there.tolist(), starts.tolist(), threads.tolist()) == ([False, True], [0, 20], [0, 8])


def resident() -> int:
    """The memory of this process (bytes)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_is_taken_where_calls_are() -> None:
    """A capture may have thousands of processes with a few calls each, so memory is allocated only for used slots."""
    before = resident()
    processes = [Calls(20) for _ in range(64)]
    for known in processes:
        known.add(*columns([(1, 10, 7)], "484"), *columns([(20, 3)], "82"))
    assert resident() - before < 64 << 20
    assert all(known.find(np.ones(1, np.uint32))[0].all() for known in processes)


def test_what_does_not_fit_is_refused() -> None:
    known, levels = Calls(4), Levels(0, 99, 3, 9)
    for bits in (25, 32, 64):
        with pytest.raises(ValueError, match="can be kept"):
            Calls(bits)
    with pytest.raises(TypeError, match="incompatible"):
        known.add(*columns([(1, 10, 7)], "488"))
    with pytest.raises(ValueError, match="equal lengths"):
        known.add(*columns([(1, 10, 7)], "48"), np.zeros(2, np.uint32))
    with pytest.raises(IndexError, match="queue"):
        known.launch([columns([(1, 30, 40, 1)], "4884")], levels, np.zeros(1, np.uint32))
