"""The creation of graph nodes: Trace.origins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import captures
import cutrace
from cutrace.trace.origins import OUTSIDE, UNRECORDED

DATA = Path(__file__).parents[1] / "data"

ATTENTION = "forward/layer0/attn"


@pytest.fixture
def trace(tmp_path):
    with cutrace.load(captures.replays(tmp_path / "run.bin")) as trace:
        yield trace


def texts(trace, table, rows, process=0):
    origins = trace.origins
    return [origins.text(path) for path in origins.path_of[origins.of(process, table, rows)].tolist()]


def test_replayed_work_has_the_ranges_of_its_node(trace):
    assert texts(trace, "kernels", trace.kernels[:5]) == [
        "forward/layer0", ATTENTION, "forward/layer1", "(no range)", "(not recorded)",
    ]  # fmt: skip
    assert texts(trace, "memcpys", trace.memcpys[:1]) == [ATTENTION]


def test_a_trace_without_creations_has_no_origins(tmp_path):
    with cutrace.load(captures.awkward(tmp_path / "run.bin")) as trace:
        assert trace.origins is None


def test_a_damaged_block_of_nodes_gives_no_origins(tmp_path):
    path = captures.replays(tmp_path / "run.bin")
    with cutrace.load(path) as trace:
        [block] = trace.block_infos("graph_nodes")
    data = bytearray(path.read_bytes())
    data[block.offset + 64] ^= 1  # the payload comes after a header of 64 bytes
    path.write_bytes(data)
    with cutrace.load(path) as trace:
        assert trace.origins is None
        assert trace.quality.damage
    cutrace.convert(path, tmp_path / "run.pftrace")


def test_work_outside_of_graphs_is_distinct_from_work_of_unrecorded_nodes(trace):
    numbers = trace.origins.nodes(0, np.array([0, 12345, 1], np.uint64))
    assert numbers[:2].tolist() == [OUTSIDE, UNRECORDED]
    assert trace.origins.text(OUTSIDE) == ""
    assert trace.origins.paths[int(trace.origins.path_of[numbers[2]])] == ("forward", "layer0")


def test_nodes_belong_to_processes(tmp_path):
    for pid in (1, 2):
        with captures.Capture(tmp_path / f"{pid}.bin", pid=pid) as c:
            # Both processes have the same launch configuration, so they have the same node.
            c.kernel(c.launch("_Z1av", graph_node=7), 1_000, 2_000, correlation=1)
            c.graph_node(7, 500, f"rank {pid}")
    path = captures.join(tmp_path / "run.bin", [tmp_path / "1.bin", tmp_path / "2.bin"])
    with cutrace.load(path) as trace:
        assert [texts(trace, "kernels", trace.kernels[at : at + 1], at) for at in (0, 1)] == [["rank 1"], ["rank 2"]]


def test_the_api_call_of_a_creation_is_the_outermost_of_its_thread(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        for node, (created, thread) in enumerate([(1_000, 100), (1_000, 101), (1_500, 100), (3_000, 100)], 1):
            c.graph_node(node, created, "a", thread=thread)
        c.api("cudaGraphAddChildGraphNode", 900, 1_500, correlation=1)
        c.api("cuGraphAddChildGraphNode", 950, 1_200, correlation=1, domain=1)
        c.api("cudaGraphAddKernelNode", 900, 1_100, correlation=2, thread=101)
        c.flush()  # further calls are in another block
        c.api("cudaGraphInstantiate", 2_999, 3_000, correlation=3)
    with cutrace.load(tmp_path / "run.bin") as trace:
        numbers, creations = trace.origins.creations
        found = [creations[n] for n in numbers[trace.origins.nodes(0, np.arange(1, 5, dtype=np.uint64))].tolist()]
    assert [(c.call, c.thread) for c in found] == [
        ("cudaGraphAddChildGraphNode", 100), ("cudaGraphAddKernelNode", 101), ("cudaGraphAddChildGraphNode", 100),
        ("cudaGraphInstantiate", 100),
    ]  # fmt: skip


def test_a_creation_without_a_call_has_none(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        c.graph_node(1, 1_000, "a")
        c.api("cudaLaunchKernel", 1_001, 1_002)
    with cutrace.load(tmp_path / "run.bin") as trace:
        numbers, creations = trace.origins.creations
        assert creations[numbers[2]].call == ""


def test_a_repeated_node_and_a_text_that_is_no_array_are_taken_as_they_are(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        c.graph_node(1, 1_000, "a")
        c.graph_node(1, 2_000, "b")
        for node, text in ((2, "[broken"), (3, "7"), (4, '["a"]')):
            c.add("graph_nodes", graph_node=node, ranges=text)
    with cutrace.load(tmp_path / "run.bin") as trace:
        paths = trace.origins.path_of[trace.origins.nodes(0, np.arange(1, 5, dtype=np.uint64))]
        assert [trace.origins.text(path) for path in paths.tolist()] == ["a", "[broken", "7", "a"]
        assert paths[0] == paths[3]


def test_tables_for_other_packages_name_the_ranges(trace):
    pytest.importorskip("pyarrow")
    kernels = trace.arrow("kernels").to_pydict()["created_in"]
    assert kernels[:5] == ["forward/layer0", ATTENTION, "forward/layer1", "(no range)", "(not recorded)"]
    assert trace.arrow("memcpys").to_pydict()["created_in"] == [ATTENTION] * 3
    assert "created_in" not in trace.arrow("api_calls").column_names


def test_work_outside_of_graphs_was_created_nowhere(tmp_path):
    pytest.importorskip("pyarrow")
    with cutrace.load(captures.training_steps(tmp_path / "run.bin", steps=1)) as trace:
        assert set(trace.arrow("kernels").to_pydict()["created_in"]) == {None}


def test_each_kernel_of_a_captured_model_was_created_in_a_module():
    with cutrace.load(DATA / "modules.bin") as trace:
        paths = trace.origins.path_of[trace.origins.of(0, "kernels", trace.kernels)]
        created = {trace.origins.text(path) for path in paths.tolist()} - {""}
        replayed = np.count_nonzero(paths != OUTSIDE)
    inside = ("", "/norm1", "/attention", "/attention/qkv", "/attention/out", "/norm2", "/mlp/0", "/mlp/1", "/mlp/2")
    assert created == {f"Transformer/layers.{layer}{part}" for layer in range(2) for part in inside}
    assert replayed == 100
