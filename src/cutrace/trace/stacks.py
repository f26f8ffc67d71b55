"""Python stacks of API calls.

A stack is a frame and the stack of its caller, so stacks form a tree. Id 0 is the empty stack.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def join(rows: np.ndarray) -> np.ndarray:
    """For each row of ``stacks`` the index of the first one with equal frames. The parents of the rows are indices of
    rows; those that cannot be callers, because the file is damaged, are set to 0."""
    parents, frames = rows["parent"].astype(np.int64), rows["frame"].astype(np.int64)
    first = np.arange(len(rows))
    parents[_in_cycles(parents) & (parents >= first)] = 0  # each cycle has such a parent
    known = _with_callers(parents, frames != 0, np.logical_or)
    parents[~known[parents]] = 0
    rows["parent"] = parents
    depths = _with_callers(parents, known.astype(np.int64), np.add)
    first[~known] = 0
    order = np.argsort(depths, kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(depths[order])) + 1)
    for level in levels[1:]:  # callers first
        _, at, inverse = np.unique(first[parents[level]] << 32 | frames[level], return_index=True, return_inverse=True)
        first[level] = level[at][inverse.reshape(-1)]
    return first


def by_level(parents: np.ndarray, stacks: np.ndarray) -> list[np.ndarray]:
    """The distinct stacks of ``stacks`` and all their callers, in an order that has each caller before its callees."""
    levels = []
    level = np.unique(stacks[stacks != 0])
    while len(level):
        levels.append(level)
        callers = parents[level]
        level = np.unique(callers[callers != 0])
    return levels[::-1]


def _in_cycles(parents: np.ndarray) -> np.ndarray:
    """A mask of the stacks whose callers do not end."""
    ancestors = parents
    # Each round doubles the distance to the ancestor, and a path that ends is shorter than the table.
    for _ in range(len(parents).bit_length()):
        if not ancestors.any():
            break
        ancestors = ancestors[ancestors]
    endless: np.ndarray = ancestors != 0
    return endless


def _with_callers(
    parents: np.ndarray, values: np.ndarray, both: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """The values of each stack and all its callers, joined by ``both``. The value of stack 0 is neutral."""
    ancestors = parents
    while ancestors.any():
        values = both(values, values[ancestors])
        ancestors = ancestors[ancestors]
    return values
