"""How much of what is taken and given back is in use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace._native import Levels

TAKE, GIVE = 1, 2
OPERATIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1 << 40)), max_size=60)


@given(OPERATIONS, st.integers(1, 9))
def test_levels_are_what_was_taken_less_what_was_given_back(operations, piece):
    levels = Levels(TAKE, GIVE)
    for at in range(0, len(operations), piece):
        groups, kinds, amounts = zip(*operations[at : at + piece], strict=True)
        levels.add(np.array(groups, np.uint32), np.array(kinds, np.uint8), np.array(amounts))
    for group, found in enumerate(levels.levels()):
        mine = [(kind, amount) for g, kind, amount in operations if g == group]
        taken, given_back = ([amount for kind, amount in mine if kind == which] for which in (TAKE, GIVE))
        steps = [{TAKE: amount, GIVE: -amount}.get(kind, 0) for kind, amount in mine]
        highest = max([0, *np.cumsum(steps).tolist()])
        assert found == (len(taken), sum(taken), len(given_back), sum(given_back), highest, sum(steps))


def test_sums_beyond_64_bits_do_no_harm():
    levels = Levels(TAKE, GIVE)
    most = np.full(3, (1 << 63) - 1)
    levels.add(np.zeros(3, np.uint32), np.full(3, TAKE, np.uint8), most)
    assert levels.levels()[0][0] == 3


def test_columns_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        Levels(TAKE, GIVE).add(np.zeros(1, np.uint32), np.zeros(2, np.uint8), np.zeros(1, np.int64))
