"""How much of what is taken and given back is in use, by group."""

from __future__ import annotations

import numpy as np


class Levels:
    """Takes in operations in the order of time. Groups are small numbers; ``take`` and ``give`` are the operations that
    change a level, others do nothing."""

    def __init__(self, take: int, give: int) -> None:
        self._take, self._give = take, give
        self._levels = np.zeros((6, 0), np.int64)

    def add(self, group: np.ndarray, operation: np.ndarray, amount: np.ndarray) -> None:
        """Take in operations: parallel arrays, not empty; amounts are int64."""
        if group[0] != group[-1] or (group != group[0]).any():
            # NumPy sorts small types in linear time.
            order = np.argsort(group.astype(np.uint16) if group.max() < 1 << 16 else group, kind="stable")
            group, operation, amount = group[order], operation[order], amount[order]
        more = int(group[-1]) + 1 - self._levels.shape[1]
        self._levels = np.pad(self._levels, ((0, 0), (0, max(more, 0))))
        taken, given = amount * (operation == self._take), amount * (operation == self._give)
        begins = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
        which = group[begins]
        takes, gives = (np.add.reduceat(operation == kind, begins, dtype=np.int64) for kind in (self._take, self._give))
        sums = np.array([takes, np.add.reduceat(taken, begins), gives, np.add.reduceat(given, begins)])
        before, change = self._levels[5, which], sums[1] - sums[3]
        # The highest level of a group, from what all groups before it changed together.
        highest = np.maximum.reduceat(np.cumsum(taken - given), begins) - (np.cumsum(change) - change)
        self._levels[:4, which] += sums
        self._levels[4, which] = np.maximum(self._levels[4, which], highest + before)
        self._levels[5, which] = before + change

    def levels(self) -> list[tuple[int, ...]]:
        """By group: (times taken, amount taken, times given back, amount given back, highest level, last level)."""
        return [tuple(numbers) for numbers in self._levels.T.tolist()]
