"""The ranges in which nodes of CUDA graphs were created (programs/graph_nodes.cu, and graphs of PyTorch)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutrace.trace.origins import UNRECORDED

Record = Callable[..., Any]


def paths(recorded: Any, table: str = "kernels") -> list[tuple[str, ...] | None]:
    """The ranges around the creation of each row of graph work; None for unknown ranges."""
    trace = recorded.trace
    rows = trace.table(table)
    numbers = trace.origins.of_rows(table, rows)
    of_graph = trace.launches["graph_node"][rows["launch"]] if table == "kernels" else rows["graph_node"]
    chosen = numbers[of_graph != 0]
    return [None if n == UNRECORDED else trace.origins.paths[trace.origins.path_of[n]] for n in chosen.tolist()]


def in_graphs(recorded: Any) -> np.ndarray:
    kernels = recorded.trace.kernels
    rows: np.ndarray = kernels[recorded.trace.launches["graph_node"][kernels["launch"]] != 0]
    return rows


@pytest.fixture
def graphs(record: Record, programs: Path) -> Any:
    return record([programs / "graph_nodes"])


def test_each_replayed_kernel_has_the_ranges_of_its_creation(graphs: Any) -> None:
    report = graphs.report
    names = graphs.kernel_names(in_graphs(graphs)).tolist()
    found: dict[str, set[tuple[str, ...] | None]] = {}
    for name, path in zip(names, paths(graphs), strict=True):
        found.setdefault(name, set()).add(path)
    assert found == {name: {tuple(ranges)} for name, ranges in report["ranges"].items()}
    counts = {name: names.count(name) for name in ("captured", "on_a_thread", "in_grandchild", "updated")}
    replays = report["replays"]
    # The first capture was instantiated twice, and one graph was updated.
    assert counts == {
        "captured": 2 * replays,
        "on_a_thread": 2 * replays,
        "in_grandchild": replays,
        "updated": 2 * replays,
    }
    graphs.assert_lossless()


def test_copies_and_fills_have_them_too(graphs: Any) -> None:
    assert graphs.report
    for table in ("memcpys", "memsets"):
        assert set(paths(graphs, table)) == {("forward", "layer")}


def test_nodes_have_their_thread_and_their_call(graphs: Any) -> None:
    report, trace = graphs.report, graphs.trace
    names = graphs.kernel_names(in_graphs(graphs)).tolist()
    numbers, creations = trace.origins.creations
    made = {
        name: creations[numbers[n]]
        for name, n in zip(names, trace.origins.of_rows("kernels", in_graphs(graphs)).tolist(), strict=True)
    }
    assert {name: creation.thread for name, creation in made.items()} == report["threads"]
    assert made["explicitly"].call == made["in_grandchild"].call == "cudaGraphAddKernelNode"
    assert "LaunchKernel" in made["captured"].call


def test_replays_write_no_more_rows(graphs: Any) -> None:
    nodes = graphs.trace.graph_nodes
    launches = graphs.trace.launches
    used = np.concatenate(
        [launches["graph_node"], graphs.trace.memcpys["graph_node"], graphs.trace.memsets["graph_node"]]
    )
    assert sorted(nodes["graph_node"].tolist()) == sorted(set(used[used != 0].tolist()))


_TORCH = """
import torch

def layer(x, weight):
    with torch.cuda.nvtx.range("linear"):
        x = x @ weight
    with torch.cuda.nvtx.range("activation"):
        return torch.relu(x) * 2

x = torch.randn(64, 64, device="cuda")
weights = [torch.randn(64, 64, device="cuda") for _ in range(3)]

def forward():
    y = x
    with torch.cuda.nvtx.range("forward"):
        for i, weight in enumerate(weights):
            with torch.cuda.nvtx.range(f"layer {i}"):
                y = layer(y, weight)
    return y

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    forward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    forward()
START
for _ in range(5):
    with torch.cuda.nvtx.range("step"):
        graph.replay()
torch.cuda.synchronize()
"""


def test_a_graph_of_torch(record: Record, needs: Callable[..., None], tmp_path: Path) -> None:
    needs("torch")
    program = tmp_path / "program.py"
    program.write_text(_TORCH.replace("START", ""))
    recorded = record([sys.executable, program])
    assert recorded.status == 0, recorded.stderr
    found = paths(recorded)
    wanted = {("forward", f"layer {i}", part) for i in range(3) for part in ("linear", "activation")}
    assert set(found) == wanted, sorted(map(str, set(found) ^ wanted))
    assert len(found) % 5 == 0


def test_a_graph_from_before_the_recording_has_no_origin(
    python: Callable[..., Any], needs: Callable[..., None]
) -> None:
    needs("torch")
    start = "recording = cutrace.record('run.bin').__enter__()"
    recorded = python(f"import cutrace\n{_TORCH.replace('START', start)}recording.__exit__(None, None, None)\n")
    assert recorded.status == 0, recorded.stderr
    assert len(in_graphs(recorded))
    assert recorded.trace.origins is None
