"""Time by path of nested ranges, compared with a model that checks every range at every moment."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutrace._native import PathTimes

RANGES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 30), st.integers(0, 3)), max_size=12)
WORK = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 70), st.booleans(), st.integers(0, 2), st.integers(0, 9)), max_size=25
)
TYPES = np.uint32, np.int64, np.int64, np.uint32
WORK_TYPES = np.uint32, np.int64, bool, np.uint32, np.int64


def columns(rows, types):
    return [np.array([row[i] for row in rows], dtype) for i, dtype in enumerate(types)]


def add_ranges(times: PathTimes, ranges) -> None:
    times.add_ranges(
        *columns([(thread, start, start + length, label) for thread, start, length, label in ranges], TYPES)
    )


def around(ranges, thread: int, time: int) -> tuple[int, ...]:
    """The labels of the ranges that are open at a time, outermost first."""
    open_now = [r for r in ranges if r[0] == thread and r[1] <= time < r[1] + r[2]]
    return tuple(label for _, _, _, label in sorted(open_now, key=lambda r: (r[1], -r[2])))


def found(times: PathTimes) -> tuple[Counter, Counter, Counter]:
    """The operations and the GPU time by path and label of work, and the time of threads by path."""
    paths: list[tuple[int, ...]] = [()]
    operations, gpu, cpu = Counter(), Counter(), Counter()
    for node, (parent, label, *use) in enumerate(times.nodes()):
        if node:
            paths.append((*paths[parent], label))
        operations[paths[-1]] += use[0]
        gpu[paths[-1]] += use[1]
        cpu[paths[-1]] += use[2]
    return +operations, +gpu, +cpu


@settings(deadline=None)
@given(RANGES, WORK, st.integers(1, 4))
def test_of_any_ranges_and_work_taken_in_by_pieces(ranges, work, pieces):
    times = PathTimes()
    edges = [0, *(70 * piece // pieces for piece in range(1, pieces)), 100]
    for low, high in pairwise(edges):
        add_ranges(times, [r for r in ranges if low <= r[1] < high])
        times.add_work(*columns([w for w in work if low <= w[1] < high], WORK_TYPES))
    times.finish()
    operations, gpu, cpu = Counter(), Counter(), Counter()
    for thread, called, known, label, ns in work:
        path = (*(around(ranges, thread, called) if known else ()), PathTimes.WORK | label)
        operations[path] += 1
        gpu[path] += ns
    for thread in (0, 1):
        for moment in range(80):
            if path := around(ranges, thread, moment):
                cpu[path] += 1
    assert found(times) == (operations, +gpu, cpu)


ADOPTERS = [[], [(0, [0])], [(0, [1])], [(1, [0, 1])], [(0, [1]), (1, [0])]]


@settings(deadline=None)
@given(
    RANGES, st.lists(st.integers(0, 1), min_size=12, max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 70), st.integers(0, len(ADOPTERS) - 1)), max_size=25),
)  # fmt: skip
def test_ranges_that_adopt_are_around_those_of_the_thread(ranges, domains, work):
    """In some domains, ranges of other threads adopt work."""
    times = PathTimes()
    domains = domains[: len(ranges)]
    rows = [(thread, start, start + length, label) for thread, start, length, label in ranges]
    times.add_ranges(*columns(rows, TYPES), np.array(domains, np.uint32))
    made = columns([(thread, called, True, 0, 1) for thread, called, _ in work], WORK_TYPES)
    times.add_work(*made, owners=np.array([owner for *_, owner in work], np.uint32), adopters=ADOPTERS)
    times.finish()
    operations = Counter()
    for thread, called, owner in work:
        path: list[int] = []
        for adopter, of_domains in ADOPTERS[owner]:
            adopting = [r for r, domain in zip(ranges, domains, strict=True) if domain in of_domains]
            path += around(adopting, adopter, called)
        operations[(*path, *around(ranges, thread, called), PathTimes.WORK)] += 1
    assert found(times)[0] == operations


def test_adopters_that_do_not_exist_are_refused():
    with pytest.raises(IndexError, match="adopters"):
        PathTimes().add_work(*columns([(1, 50, True, 0, 7)], WORK_TYPES), owners=np.ones(1, np.uint32), adopters=[[]])


def test_ranges_of_another_process_contain_no_later_work():
    times = PathTimes()
    add_ranges(times, [(1, 0, 100, 5)])
    times.finish()
    times.add_work(*columns([(1, 50, True, 0, 7)], WORK_TYPES))
    assert found(times) == ({(PathTimes.WORK,): 1}, {(PathTimes.WORK,): 7}, {(5,): 100})


def test_ranges_deeper_than_the_limit_are_left_out():
    times = PathTimes()
    add_ranges(times, [(0, start, 1000 - start, start) for start in range(300)])
    times.add_work(*columns([(0, 400, True, 0, 3)], WORK_TYPES))
    times.finish()
    assert found(times)[1] == {(*range(256), PathTimes.WORK): 3}


def test_ranges_that_were_added_ahead_of_work_are_kept():
    times = PathTimes()
    count = 300_000
    start = np.arange(count, dtype=np.int64) * 2
    labels = np.zeros(count, np.uint32)
    for until in (0, 1_000):
        times.add_ranges(labels, start, start + 1, labels)
        start += 2 * count
        times.add_work(*columns([(0, until, True, 0, 1)], WORK_TYPES))
        times.forget(until)
    times.finish()
    assert found(times)[0] == {(0, PathTimes.WORK): 2}


def test_paths_beyond_the_limit_count_for_the_range_around_them():
    times = PathTimes()
    count = (1 << 17) + 50
    label, start = np.arange(count, dtype=np.uint32), np.arange(count, dtype=np.int64) * 2
    times.add_ranges(np.zeros(count, np.uint32), start, start + 1, label)
    times.add_work(*columns([(0, 2 * (count - 1), True, 0, 3)], WORK_TYPES))
    times.finish()
    parents, _, operations, gpu, _ = map(np.array, zip(*times.nodes(), strict=True))
    assert len(parents) == 1 << 17
    assert (operations[0], gpu[0]) == (1, 3)


def work_of_nodes(*rows) -> list[np.ndarray]:
    """Work of one nanosecond each, from rows of thread, call and creation."""
    made = columns([(thread, called, called >= 0, 0, 1) for thread, called, _ in rows], WORK_TYPES)
    return [*made, np.array([created for _, _, created in rows], np.uint32)]


def test_work_of_graph_nodes_is_below_the_ranges_of_their_creation():
    times = PathTimes()
    add_ranges(times, [(1, 0, 100, 5), (1, 10, 50, 6)])
    # Work outside graphs, a creation inside ranges, an unknown launch, and the same once more.
    times.add_work(*work_of_nodes((1, 20, 0), (1, 20, 1), (2, -1, 1), (1, 20, 1)), [[], [7, 8]])
    times.finish()
    w = PathTimes.WORK
    assert found(times)[0] == {(5, 6, w): 1, (5, 6, 7, 8, w): 2, (7, 8, w): 1}


def test_ranges_of_a_creation_that_are_around_the_launch_too_are_not_repeated():
    times = PathTimes()
    add_ranges(times, [(1, 0, 100, 5), (1, 10, 50, 6)])
    creations = [[], [5, 6, 7], [9, 6, 7], [5, 7], [7, 5], [6, 5, 6]]
    times.add_work(*work_of_nodes(*((1, 20, number) for number in range(6))), creations)
    times.finish()
    w = PathTimes.WORK
    assert found(times)[0] == {(5, 6, w): 3, (5, 6, 7, w): 3}


def test_a_creation_that_does_not_exist_is_refused():
    with pytest.raises(IndexError, match="creation"):
        PathTimes().add_work(*work_of_nodes((1, 20, 2)), [[], [1]])
    with pytest.raises(ValueError, match="equal lengths"):
        PathTimes().add_work(*work_of_nodes((1, 20, 0))[:5], np.zeros(2, np.uint32), [[]])


def test_columns_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        PathTimes().add_ranges(*columns([(0, 0, 1, 0)], TYPES)[:3], np.zeros(2, np.uint32))
