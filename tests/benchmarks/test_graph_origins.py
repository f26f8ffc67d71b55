"""The comparison of benchmarks/graph_origins.py, on synthetic captures of a step with three kernels."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cutrace
from captures import Capture

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = [("T", "layers.0"), ("T", "layers.0"), ("T",)]


@pytest.fixture(scope="module")
def graph_origins() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("graph_origins", BENCHMARKS / "graph_origins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(BENCHMARKS))
    return module


def eager(path: Path) -> Path:
    with Capture(path) as c:
        kernels = [c.launch(f"_Z1{name}v") for name in "abc"]
        for step in range(20):
            now = 10_000 + 1_000 * step
            for i, kernel in enumerate(kernels):
                c.api("cudaLaunchKernel", now + 100 * i, now + 100 * i + 5, correlation=3 * step + i + 1)
                c.kernel(kernel, now + 100 * i + 50, now + 100 * i + 60, correlation=3 * step + i + 1)
            c.push_pop("T", now - 5, now + 300, depth=1)
            c.push_pop("layers.0", now - 3, now + 150, depth=2)
        c.push_pop("measured", 5_000, 100_000)
        c.kernel(kernels[0], 1_000, 1_010, correlation=1_000)  # before the measured steps
    return path


def replayed(path: Path, modules: list[tuple[str, ...]]) -> Path:
    with Capture(path) as c:
        kernels = [c.launch(f"_Z1{name}v", graph_node=i) for i, name in enumerate("abc", 1)]
        for i, ranges in enumerate(modules, 1):
            c.graph_node(i, 10 + i, *ranges)
        for step in range(20):
            now = 10_000 + 1_000 * step
            c.api("cudaGraphLaunch", now, now + 5, correlation=step + 1)
            for i, kernel in enumerate(kernels):
                c.kernel(kernel, now + 100 * i + 50, now + 100 * i + 60, correlation=step + 1)
        c.push_pop("measured", 5_000, 100_000)
    return path


@pytest.mark.parametrize(
    ("modules", "share", "without"), [(MODULES, 1.0, 0), ([*MODULES[:2], ("U",)], 2 / 3, 0), (MODULES[:2], 2 / 3, 20)]
)
def test_replays_are_compared_with_an_eager_run(tmp_path, graph_origins, modules, share, without):
    with cutrace.load(eager(tmp_path / "a.bin")) as a, cutrace.load(replayed(tmp_path / "b.bin", modules)) as b:
        one, other = graph_origins.kernels(a), graph_origins.kernels(b)
    found = graph_origins.compared(one, other)
    assert (found["kernels"], found["kernels_eager"], found["ns"]) == (60, 60, 600)
    assert found["share"] == pytest.approx(share)
    assert graph_origins.known(other)["replayed_without_module"] == without
    assert graph_origins.by_module(one) == {"T": 200, "T/layers.0": 400}


def test_blocks_are_compared_with_those_of_the_launch(tmp_path, graph_origins):
    with cutrace.load(eager(tmp_path / "a.bin")) as a:
        one = graph_origins.kernels(a)
    blocks = [kernel._replace(replayed=True) for kernel in one if len(kernel.ranges) > 1]
    assert graph_origins.in_blocks(one, blocks) == {"share": 1.0, "ns": 400, "same_order": True}
    elsewhere = [kernel._replace(ranges=("T", "layers.1")) for kernel in blocks[:1]] + blocks[1:]
    assert graph_origins.in_blocks(one, elsewhere) == {"share": 390 / 400, "ns": 400, "same_order": False}


def test_a_kernel_of_another_name_is_compared_with_the_one_in_its_place(tmp_path, graph_origins):
    with cutrace.load(eager(tmp_path / "a.bin")) as a, cutrace.load(replayed(tmp_path / "b.bin", MODULES)) as b:
        one, other = graph_origins.kernels(a)[:3], graph_origins.kernels(b)[:3]
    one[1] = one[1]._replace(name="b of another library")
    found = graph_origins.mapped(one, other)
    assert found == {"ns": 30, "same_ns": 30, "differences": {}}


def test_a_kernel_that_only_the_replay_has_is_a_difference(tmp_path, graph_origins):
    with cutrace.load(eager(tmp_path / "a.bin")) as a, cutrace.load(replayed(tmp_path / "b.bin", MODULES)) as b:
        one, other = graph_origins.kernels(a), graph_origins.kernels(b)
    found = graph_origins.mapped([kernel for kernel in one[:3] if kernel.name != "b"], other[:3])
    assert (found["ns"], found["same_ns"]) == (30, 20)
    assert found["differences"] == {"b: T/layers.0, eager: no such kernel": 10}
