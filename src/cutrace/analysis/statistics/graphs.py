"""CUDA graphs: graphs traced as a whole, and the work of other graphs by the ranges in which their nodes were
created."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...trace.origins import NODE_FIELDS, OUTSIDE, UNRECORDED
from ..collection import CollectedBy, Grouping, StatsCollector, Timed, fields
from ..context import CollectorContext
from ..distribution import Distributions, Spread, Sums
from ..statistic import Statistic, count_column, text_column
from ..sweep import SweepBatch

# Graphs traced as a whole


def graph_name(graph: int) -> str:
    """The name of a graph by its id."""
    return f"graph {graph}"


def _graph_use(context: CollectorContext, key: tuple[int], time: Spread) -> Timed:
    return Timed(graph_name(key[0]), time)


#: The launches of graphs by graph.
GRAPHS = Grouping(("graph_launches",), key=fields("graph"), row=_graph_use)

GRAPH_SUM = Statistic(
    "graph_sum",
    "CUDA graphs, traced as a whole",
    GRAPHS,
    (text_column("graph", "name", doc="id of the executable graph"),),
    spread="time",
    doc="How long CUDA graphs run that were traced as a whole.",
)


# By the creation of nodes


@dataclass(frozen=True)
class GraphRangeUse(Timed):
    """Work of graph nodes that were created in the same NVTX ranges: ``path``, outermost first. ``nodes`` is the number
    of these nodes that ran, and ``replays`` the largest number of runs of a node. Both are None for nodes whose
    creation was not recorded."""

    path: tuple[str, ...]
    nodes: int | None
    replays: int | None


class _GraphRangeCollector(StatsCollector[GraphRangeUse]):
    tables = tuple(NODE_FIELDS)

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._times = Distributions()
        self._runs = Sums()

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        path = self.context.created(work)
        if path is None or work.node is None:
            return
        at = np.flatnonzero(path != OUTSIDE)
        self._times.add(path[at], (work.end - work.start)[at])
        self._runs.add(work.node[at])

    def result(self) -> Iterator[GraphRangeUse]:
        origins = self.context.trace.origins
        if not origins:
            return
        runs = self._runs.by_group
        path_of = origins.path_of[: len(runs)]
        nodes = np.bincount(path_of[runs > 0], minlength=len(origins.paths))
        replays = np.zeros(len(origins.paths), np.int64)
        np.maximum.at(replays, path_of, runs)
        for path, time in enumerate(self._times.spreads()):
            if not time.count:
                continue
            recorded = path != UNRECORDED
            yield GraphRangeUse(
                origins.text(path),
                time,
                origins.paths[path],
                nodes=int(nodes[path]) if recorded else None,
                replays=int(replays[path]) if recorded else None,
            )


#: The work of graph nodes by the ranges in which they were created.
GRAPH_RANGES = CollectedBy(_GraphRangeCollector)

GRAPH_RANGE_SUM = Statistic(
    "graph_range_sum",
    "Work of CUDA graphs by the NVTX ranges in which it was created",
    GRAPH_RANGES,
    (
        text_column(
            "created in",
            "name",
            doc="NVTX ranges around the creation of the node, outermost first; (no range) or (not recorded)",
        ),
        count_column("nodes", doc="different nodes that ran"),
        count_column("replays", spare=True, doc="runs of the node that ran most often"),
    ),
    spread="time",
    doc="Where the work of CUDA graphs was created. [Ranges of graph "
    "nodes](#ranges-of-graph-nodes) has the rules.",
)
