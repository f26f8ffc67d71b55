"""A CUDA graph with two branches (tests/data/make/programs/graph.cu), recorded node by node and as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Record = Callable[..., Any]


def test_each_node_of_each_replay(record: Record, programs: Path) -> None:
    recorded = record([programs / "graph"])
    report, trace = recorded.report, recorded.trace
    replays = report["replays"]
    assert recorded.kernel_counts() == Counter({n: c * replays for n, c in report["kernels"].items()})
    assert recorded.copies() == {kind: [n * replays, b * replays] for kind, (n, b) in report["copied"].items()}
    assert len(trace.memsets) == replays
    recorded.assert_lossless()


def test_nodes_of_a_replay_share_its_launch(record: Record, programs: Path) -> None:
    recorded = record([programs / "graph"])
    report, kernels = recorded.report, recorded.trace.kernels
    calls = recorded.launching_calls(kernels)
    assert set(recorded.call_counts(calls)) == {"cudaGraphLaunch"}
    nodes = sum(report["kernels"].values())
    _, sizes = np.unique(kernels["correlation"], return_counts=True)
    assert sizes.tolist() == [nodes] * report["replays"]


def test_kernels_know_their_node_and_graph(record: Record, programs: Path) -> None:
    recorded = record([programs / "graph"])
    launches = recorded.trace.launches[recorded.trace.kernels["launch"]]
    assert len(np.unique(launches["graph"])) == 1
    assert launches["graph"].min() > 0
    assert len(np.unique(launches["graph_node"])) == sum(recorded.report["kernels"].values())


def test_one_row_a_replay(record: Record, programs: Path) -> None:
    recorded = record([programs / "graph"], "--cuda-graph", "graph")
    launches = recorded.trace.graph_launches
    assert len(launches) == recorded.report["replays"]
    assert len(recorded.trace.kernels) == 0
    assert (launches["end"] > launches["start"]).all()
    assert set(recorded.call_counts(recorded.launching_calls(launches))) == {"cudaGraphLaunch"}


@pytest.mark.parametrize("node", ["empty", "host", "fill", "event", "memory"])
@pytest.mark.parametrize("mode", ["node", "graph"])
def test_a_first_graph_without_kernels(record: Record, programs: Path, node: str, mode: str) -> None:
    recorded = record([programs / "first_graph", node], "--cuda-graph", mode)
    assert recorded.report["replays"] == 3
    assert recorded.call_counts()["cudaGraphLaunch"] == 3
    recorded.assert_lossless()


def test_graphs_of_a_window_are_recorded_by_node(record: Record, programs: Path) -> None:
    recorded = record([programs / "first_graph", "windows"], "--cuda-graph", "graph", "--capture-range", "profiler")
    assert recorded.report["replays"] == 3
    assert recorded.kernel_counts() == {"add": 3}
    assert "CUDA graphs were recorded by node" in recorded.stderr
