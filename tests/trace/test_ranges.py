"""The nested ranges around launches, compared with a loop over all ranges."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cutrace.runbin.layout import TABLES
from cutrace.trace.ranges import ADOPTED, NONE, OWN, SEVERAL, Ranges, nest_number
from range_rule import Range, owners

HOW = {"own": OWN, "adopted": ADOPTED, "several": SEVERAL, "none": NONE}
# Ranges of several threads and domains.
RANGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(1, 30), st.sampled_from([0, 7, 5])), max_size=12
)
LAUNCHES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 70)), max_size=25)


def rows_of(ranges: list[tuple[int, int, int, int]]) -> np.ndarray:
    rows = np.zeros(len(ranges), TABLES["nvtx_ranges"].dtype)
    for row, (thread, start, length, domain) in zip(rows, ranges, strict=True):
        row["thread"], row["start"], row["end"], row["domain"] = thread, start, start + length, domain
    return rows


@given(RANGES, LAUNCHES, st.integers(0, 70), st.sampled_from(["adopted", "own"]))
def test_each_launch_is_where_the_rule_says_in_each_domain(ranges, launches, edge, by):
    known = Ranges(by)
    plain = [Range(0, thread, start, start + length, "", str(domain)) for thread, start, length, domain in ranges]
    for low, high in ((0, edge), (edge, 100)):
        known.add("nvtx_ranges", rows_of([r for r in ranges if low <= r[1] < high]))
        step = [(thread, time) for thread, time in launches if low <= time < high]
        columns = np.array(step, np.uint64).reshape(-1, 2)
        found, how = known.owners(columns[:, 0].astype(np.uint32), columns[:, 1])
        at, nests = known.members(found)
        pairs = list(zip(np.arange(len(step))[at].tolist(), nests.tolist(), strict=True))
        assert pairs == sorted(pairs, key=lambda pair: pair[0])
        for place, (thread, time) in enumerate(step):
            way, expected = owners(plain, 0, thread, time, by)
            assert how[place] == HOW[way]
            here = [nest for of_launch, nest in pairs if of_launch == place]
            assert sorted(here) == sorted(nest_number(of, int(domain)) for of, domain in expected)
            adopted = {(nest.thread, str(nest.domain)): nest.adopted for nest in known.sets[found[place]]}
            assert adopted == {nest: nest[0] != thread for nest in expected}
            adopters = {(of, str(domain)) for of, numbers in known.adopters()[found[place]] for domain in numbers}
            assert adopters == {nest for nest, is_adopted in adopted.items() if is_adopted}


def test_a_set_of_nests_has_one_number():
    known = Ranges()
    known.add("nvtx_ranges", rows_of([(1, 0, 100, 0), (1, 10, 20, 5), (2, 10, 20, 7)]))
    times = np.array([5, 15, 35, 15, 5], np.uint64)
    for _ in range(2):
        found, _ = known.owners(np.ones(5, np.uint32), times)
        assert found.tolist() == [found[0], found[1], found[0], found[1], found[0]]
    assert sorted(map(len, known.sets)) == [0, 1, 2, 3]
