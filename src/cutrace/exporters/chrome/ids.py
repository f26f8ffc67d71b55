"""What ties records together: External ids by correlation id, and calls to the GPU work that they started."""

from __future__ import annotations

import numpy as np

from ...trace import Trace
from ...trace_events import EXTERNAL_KIND

#: Tables with GPU work that a call started.
GPU_WORK = ("kernels", "memcpys", "memsets")


class Ties:
    """Lookups over whole tables, by process and correlation id as one number."""

    def __init__(self, trace: Trace) -> None:
        keys = [_key(rows) for name in GPU_WORK for rows in trace.blocks(name)]
        keys = [key for key in keys if len(key)]
        self._work = np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.uint64)
        externals = trace.external_correlations
        externals = externals[externals["kind"] == EXTERNAL_KIND]
        self._keys, at = np.unique(_key(externals), return_index=True)
        self._externals = externals["external"][at]

    def externals(self, rows: np.ndarray) -> np.ndarray:
        """The External id of each row, 0 where there is none."""
        if not len(self._keys):
            return np.zeros(len(rows), np.uint64)
        keys = _key(rows)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._externals[at], 0)

    def starts_work(self, calls: np.ndarray) -> np.ndarray:
        """Which API calls started GPU work."""
        keys = _key(calls)
        if not len(self._work):
            return np.zeros(len(keys), bool)
        at = np.minimum(np.searchsorted(self._work, keys), len(self._work) - 1)
        return np.asarray((self._work[at] == keys) & (calls["correlation"] > 0))

    @staticmethod
    def arrows(rows: np.ndarray) -> np.ndarray:
        """The ids of arrows from calls to work: correlation ids, apart for each process."""
        return _key(rows)


def _key(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows["process"].astype(np.uint64) << np.uint64(32) | rows["correlation"].astype(np.uint64))
