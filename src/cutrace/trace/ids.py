"""Maps from the ids of one process to the ids of the trace.

Each process of a capture numbers its strings, launch configurations and functions by itself. The trace has one table
of each. The map of the first process is nearly always the identity, and then its rows need no copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._native import exceeds


class IdMap(NamedTuple):
    """Ids of one process (``local``, ascending) and the same ids in the trace (``to``)."""

    local: np.ndarray
    to: np.ndarray
    identity: bool

    @classmethod
    def build(cls, local: list[int] | np.ndarray, to: list[int] | np.ndarray) -> IdMap:
        """A map from parallel lists. The last entry of a repeated id counts. Id 0 stays 0."""
        keys = np.asarray(local, np.uint32)
        values = np.asarray(to, np.uint32)
        later = keys[1:]
        if not (later > keys[:-1]).all():
            # unique() keeps the first of equal keys, so reverse the lists to keep the last.
            keys, at = np.unique(keys[::-1], return_index=True)
            values = values[::-1][at]
        if len(keys) and keys[0] == 0:
            keys = keys[1:]
            values = values[1:]
        counting = np.arange(1, len(keys) + 1, dtype=np.uint32)
        same = (keys == counting) & (values == counting)
        return cls(keys, values, bool(same.all()))

    def keeps(self, ids: np.ndarray) -> bool:
        """Whether :meth:`apply` returns the ids unchanged, so that no copy is needed."""
        return self.identity and not exceeds(ids, len(self.local))

    def apply(self, ids: np.ndarray) -> np.ndarray:
        """The ids in the trace, uint32; 0 for an unknown id."""
        if not len(self.local):
            return np.zeros(len(ids), np.uint32)
        at = np.searchsorted(self.local, ids)
        at[at == len(self.local)] = 0
        found = self.to[at]
        found[self.local[at] != ids] = 0
        return found
