"""The work inside slices, compared with plain loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Projections

TIMES = st.integers(0, 30)
#: A home, a start and a length.
SLICES = st.lists(st.tuples(st.integers(0, 2), TIMES, TIMES), max_size=30)
#: A home, a call, a queue, a start after the call, and a time.
WORK = st.lists(st.tuples(st.integers(0, 3), TIMES, st.integers(0, 2), TIMES, TIMES), max_size=40)


class Use(NamedTuple):
    start: int
    end: int
    first: int
    last: int
    operations: int
    time: int
    kinds: int


def columns(rows: list[tuple[int, ...]], count: int, types: str) -> list[np.ndarray]:
    table = np.array(rows, np.int64).reshape(-1, count)
    return [table[:, at].astype(kind) for at, kind in enumerate(types.split())]


def added(projections: Projections, slices: list[tuple[int, int, int]], first: int = 0) -> None:
    rows = [(home, start, start + length, first + i) for i, (home, start, length) in enumerate(slices)]
    projections.add(*columns(rows, 4, "u8 i8 i8 i8"))


def launched(projections: Projections, work: list[tuple[int, ...]]) -> set[tuple[int, int]]:
    rows = [
        (home, called, queue, called + wait, called + wait + time, 1 + called % 2)
        for home, called, queue, wait, time in work
    ]
    found = projections.launch(*columns(rows, 6, "u8 i8 u4 i8 i8 u1"), pairs=True)
    assert found is not None
    return set(zip(*(column.tolist() for column in found), strict=True))


def taken(projections: Projections, until: int | None = None) -> tuple[int, dict[tuple[int, int], Use]]:
    before, (number, start, end, queue, *rest) = projections.take(until)
    uses = map(Use, *(column.tolist() for column in (start, end, *rest)))
    return before, dict(zip(zip(number.tolist(), queue.tolist(), strict=True), uses, strict=True))


def plain(slices: list[tuple[int, int, int]], work: list[tuple[int, ...]]) -> dict[tuple[int, int], Use]:
    uses: dict[tuple[int, int], Use] = {}
    for number, (home, start, length) in enumerate(slices):
        for of, called, queue, wait, time in work:
            if of == home and start <= called < start + length:
                begin = called + wait
                use = uses.get((number, queue), Use(start, start + length, begin, begin, 0, 0, 0))
                uses[number, queue] = use._replace(
                    first=min(use.first, begin),
                    last=max(use.last, begin + time),
                    operations=use.operations + 1,
                    time=use.time + time,
                    kinds=use.kinds | 1 + called % 2,
                )
    return uses


@given(SLICES, WORK, WORK)
def test_work_belongs_to_all_slices_around_its_call(slices, work, later):
    projections = Projections(1 << 17)
    added(projections, slices[::2])
    added(projections, slices[1::2], len(slices[::2]))
    of_number = slices[::2] + slices[1::2]
    pairs = launched(projections, work)
    launched(projections, later)
    assert pairs == {
        (number, row)
        for number, (home, start, length) in enumerate(of_number)
        for row, (of, called, *_) in enumerate(work)
        if of == home and start <= called < start + length
    }
    assert taken(projections)[1] == plain(of_number, work + later)
    assert taken(projections)[1] == {}


def test_work_that_is_spread_over_many_slices_is_found():
    slices = [(0, 10 * i, 10) for i in range(1_000)] + [(0, 0, 10_000)]
    work = [(0, 5, 0, 1, 1), (0, 5_005, 0, 1, 1), (0, 9_995, 0, 1, 1)]
    projections = Projections(1 << 17)
    added(projections, slices)
    launched(projections, work)
    assert taken(projections)[1] == plain(slices, work)


def test_the_newest_slices_that_ended_are_kept():
    slices = [(0, 10 * i, 8) for i in range(100)] + [(1, 0, 1 << 40)]
    projections = Projections(10)
    added(projections, slices)
    launched(projections, [(0, 10 * i, 0, 0, 5) for i in range(100)])
    before, uses = taken(projections, until=400)
    assert before == 299  # The slices of 300 to 390 ended before 400.
    assert sorted(uses) == [(number, 0) for number in range(30)]
    assert taken(projections, until=401) == (0, {})
    launched(projections, [(0, 291, 0, 1, 1), (0, 301, 0, 1, 1), (1, 301, 0, 1, 1)])
    _, uses = taken(projections)
    assert sorted(uses) == [(number, 0) for number in range(30, 101)]
    assert uses[30, 0].operations == 2


def test_few_slices_stay():
    projections = Projections(10)
    added(projections, [(0, 0, 5)] * 20)
    launched(projections, [(0, 1, 0, 1, 1)])
    assert taken(projections, until=1_000) == (0, {})
    assert len(taken(projections)[1]) == 20
