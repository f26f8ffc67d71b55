"""Matching of begin and end events: an end matches the last open begin of its key."""

from __future__ import annotations

import numpy as np


def match_begin_end(
    keys: np.ndarray, times: np.ndarray, begins: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Match begins and ends.

    ``keys`` (a number, such as a thread), ``times`` and ``begins`` (bool) have one entry an event; events of the same
    time keep their order. Returns indices: of the begins, of the end of each begin (-1 where there is none), and of the
    ends without a begin. The indices have no particular order.
    """
    order = np.lexsort((times, keys))
    keys, begins = keys[order], begins[order]
    unmatched = _unmatched(keys, begins)
    without = order[unmatched]
    order, keys, begins = order[~unmatched], keys[~unmatched], begins[~unmatched]
    depth = np.cumsum(np.where(begins, 1, -1))
    level = np.where(begins, depth, depth + 1)  # open begins shift all levels of later keys equally
    # Within one level of one key, begins and ends alternate.
    nested = np.lexsort((level, keys))
    order, keys, begins, level = order[nested], keys[nested], begins[nested], level[nested]
    starts = np.flatnonzero(begins)
    following = starts + 1
    ended = following < len(order)
    inside = following[ended]
    ended[ended] = ~begins[inside] & (keys[inside] == keys[inside - 1]) & (level[inside] == level[inside - 1])
    ends = np.full(len(starts), -1, np.int64)
    ends[ended] = order[following[ended]]
    return order[starts], ends, without


def _unmatched(keys: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """A mask of the ends without a begin, for events in order of key and time."""
    depth = np.cumsum(np.where(begins, 1, -1)).astype(np.int64)
    if not len(depth):
        return np.zeros(0, bool)
    # The depth within each key: it is 0 before the key's first event.
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    sizes = np.diff(np.append(firsts, len(keys)))
    before = np.repeat(depth[firsts] - np.where(begins[firsts], 1, -1), sizes)
    depth -= before
    # The lowest depth so far within the key, 0 at most. Steps larger than any depth separate the keys.
    step = np.repeat(np.arange(len(firsts), dtype=np.int64), sizes) * -(2 * len(keys) + 2)
    lowest = np.minimum.accumulate(np.minimum(depth, 0) + step) - step
    previous = np.append(0, lowest[:-1])
    previous[firsts] = 0
    return np.asarray(~begins & (depth < np.minimum(previous, 0)))
