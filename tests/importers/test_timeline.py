"""Matching of starts and ends, compared with a stack for each key."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cutrace.importers.timeline import match_begin_end


def with_stacks(keys: list[int], times: list[int], begins: list[bool]) -> tuple[set[tuple[int, int]], set[int]]:
    """Match starts with ends by stacks. Returns pairs of start and end (-1 for none), and the ends without a start."""
    stacks: dict[int, list[int]] = {}
    pairs, without = {}, set()
    for i in sorted(range(len(keys)), key=lambda i: (times[i], i)):
        stack = stacks.setdefault(keys[i], [])
        if begins[i]:
            stack.append(i)
            pairs[i] = -1
        elif stack:
            pairs[stack.pop()] = i
        else:
            without.add(i)
    return set(pairs.items()), without


@pytest.mark.parametrize("seed", range(100))
def test_any_begins_and_ends(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((0, 1, 2, 5, 30, 200))
    keys = [rng.choice((0, 1, 7)) for _ in range(count)]
    times = [rng.randrange(rng.choice((1, 10, 1000))) for _ in range(count)]
    begins = [rng.random() < rng.choice((0.2, 0.5, 0.8)) for _ in range(count)]
    starts, ends, without = match_begin_end(
        np.array(keys, np.int64), np.array(times, np.uint64), np.array(begins, bool)
    )
    expected = with_stacks(keys, times, begins)
    assert (set(zip(starts.tolist(), ends.tolist(), strict=True)), set(without.tolist())) == expected
