"""The origins of nodes of CUDA graphs, from an export of Nsight Systems. The origin of a node is the push/pop ranges of
the creating thread."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from ...importers.base import rows_of
from ...importers.row_builder import find
from ...importers.tables import Tables
from . import schema as nsys
from .reading import Kinds

if TYPE_CHECKING:
    from .nsys import NsysReading

_TABLE = "CUDA_GRAPH_NODE_EVENTS"
# The column of the originals is required. Without it, copies would get the ranges around the instantiation of their
# graph.
_COLUMNS: Kinds = dict.fromkeys(
    ("globalTid", "graphNodeId", "start", "originalGraphNodeId"), "integer"
)


def has_nodes(tables: Tables) -> bool:
    """Whether an export has the creation of graph nodes."""
    return set(_COLUMNS) <= set(tables.names.get(_TABLE, ()))


def write_nodes(reading: NsysReading, pushes: tuple[np.ndarray, ...]) -> None:
    """Write ``graph_nodes``. ``pushes`` are arrays of all push/pop ranges: starts, ends, serialized threads, names, and
    string ids for names that are empty.

    GPU work refers to copies of nodes. A copy has the origin of its original. It has no origin if its original is not
    in the table.
    """
    events = _events(reading)
    processes = events[0] >> nsys.THREAD_BITS << nsys.THREAD_BITS
    for key in np.unique(processes).tolist():
        thread, node, time, original = events[:, processes == key]
        order = np.lexsort((time, node))
        ids, first = np.unique(node[order], return_index=True)
        # A copy may have two rows, and one of them may lack the original.
        original = np.maximum.reduceat(original[order], first)
        thread = thread[order][first]
        time = time[order][first]
        is_original = original == 0
        root = np.where(is_original, np.arange(len(ids)), find(ids, original))
        # An original can itself be a copy. Each round doubles the number of followed steps.
        for _ in range(len(ids).bit_length()):
            root = np.where(root < 0, -1, root[root])
        recorded = (root >= 0) & is_original[root]
        ranges = np.zeros(len(ids), np.uint32)
        writer = reading.target(key).writer
        originals = np.flatnonzero(is_original)
        names = _names(reading, pushes, thread[originals], time[originals])
        for i, around in names.items():
            listed = json.dumps(around, ensure_ascii=False)
            ranges[originals[i]] = writer.string(listed)
        at = root[recorded]
        rows = rows_of(
            "graph_nodes",
            len(at),
            graph_node=ids[recorded],
            created=time[at] + reading.offset,
            ranges=ranges[at],
            original=np.where(is_original[recorded], 0, ids[at]),
            thread=reading.thread_numbers(thread[at]),
        )
        writer.rows("graph_nodes", rows)


def _events(reading: NsysReading) -> np.ndarray:
    """The usable values of :data:`_COLUMNS`, a row for each column."""
    parts = [np.zeros((len(_COLUMNS), 0), np.int64)]
    for batch in reading.tables.batches(_TABLE, _COLUMNS):
        known = batch.known("globalTid") & batch.known("graphNodeId")
        known &= batch.known("start") & (batch["start"] + reading.offset > 0)
        parts.append(np.stack([batch[name][known] for name in _COLUMNS]))
    return np.concatenate(parts, axis=1)


def _names(
    reading: NsysReading,
    pushes: tuple[np.ndarray, ...],
    threads: np.ndarray,
    times: np.ndarray,
) -> dict[int, list[str]]:
    """The names of the ranges around each moment (``times`` on ``threads``), outermost first, by the index of the
    moment."""
    names: dict[int, list[str]] = {}
    for thread in np.unique(threads).tolist():
        of_thread = pushes[2] == thread
        starts, ends, _, texts, ids = (column[of_thread] for column in pushes)
        moments = np.flatnonzero(threads == thread)
        moments = moments[np.argsort(times[moments])]
        first = np.searchsorted(times[moments], starts)
        last = np.searchsorted(times[moments], ends, "right")
        for i in np.lexsort((-ends, starts)).tolist():
            name = str(texts[i])
            if not name:
                name = reading.texts[int(ids[i])]
            for moment in moments[first[i] : last[i]].tolist():
                names.setdefault(moment, []).append(name)
    return names
