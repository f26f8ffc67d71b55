"""Flame graphs: totals equal the totals of the statistics, and each piece of work is in the ranges around its
launch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import cutrace
from captures import DATA, ORIGIN, Capture, join, named, replays, training_steps
from cutrace.analysis import sweep
from cutrace.analysis.collection import collect
from cutrace.analysis.context import StatsOptions
from cutrace.analysis.flame import Frame, flame
from cutrace.analysis.statistics.copies import MEMORY_OPERATIONS
from cutrace.analysis.statistics.graphs import GRAPHS
from cutrace.analysis.statistics.host import HOST_SLICES
from cutrace.analysis.statistics.kernels import KERNELS
from cutrace.analysis.statistics.nvtx import RANGES
from cutrace.trace.origins import NODE_FIELDS

FILES = sorted(path for pattern in ("*.bin", "kineto*") for path in DATA.glob(pattern))


@pytest.fixture(params=[*(path.name for path in FILES), "training_steps", "awkward"])
def capture(request, tmp_path) -> Path:
    return named(request.param, tmp_path)


def own(root: Frame) -> Counter:
    """The GPU time of each path, without the time of longer paths."""
    return Counter({tuple(f.name for f in frames): frames[-1].own_gpu_ns for frames in root.walk()})


def test_totals_are_those_of_the_statistics(capture):
    with cutrace.load(capture) as trace:
        root, stats = flame(trace), collect(trace, [KERNELS, MEMORY_OPERATIONS, GRAPHS])
    by_kind = {"kernel": stats[KERNELS], "copy": stats[MEMORY_OPERATIONS], "graph": stats[GRAPHS]}
    leaves = [frames[-1] for frames in root.walk() if frames[-1].kind != "range"]
    assert not any(leaf.children for leaf in leaves)
    found = Counter()
    for leaf in leaves:
        found["copy" if leaf.kind == "fill" else leaf.kind, leaf.name] += leaf.gpu_ns
    assert +found == +Counter({(kind, use.name): use.time.total for kind, uses in by_kind.items() for use in uses})
    assert root.gpu_ns == sum(use.time.total for uses in by_kind.values() for use in uses)
    assert root.operations == sum(use.time.count for uses in by_kind.values() for use in uses)


def test_work_is_in_all_ranges_around_its_launch(capture):
    """The GPU time of a range name is the same in the frames and in the statistics, unless ranges of that name nest.

    Work of graphs is also in the ranges of its creation. JAX creates and launches graphs in ranges of the same name;
    these names are left out.
    """
    created, launched, found = Counter(), Counter(), Counter()
    with cutrace.load(capture) as trace:
        root, stats = flame(trace), collect(trace, [RANGES])
        for table in NODE_FIELDS if trace.origins else ():
            rows = getattr(trace, table)
            paths = trace.origins.path_of[trace.origins.of(0, table, rows)]
            for path, time in zip(paths.tolist(), (rows["end"] - rows["start"]).tolist(), strict=True):
                created.update(dict.fromkeys(trace.origins.paths[path], time))
    for use in stats[RANGES]:
        launched[(f"{use.domain}:" if use.domain else "") + (use.name or "(unnamed)")] += use.projected.gpu_ns
    both = (+created).keys() & (+launched).keys()
    want = created + launched
    for frames in root.walk():
        if frames[-1].kind == "range" and frames[-1].name in want:
            found[frames[-1].name] += frames[-1].gpu_ns
    assert {name: time for name, time in (+found).items() if name not in both} == {
        name: time for name, time in want.items() if name not in both
    }


def test_of_other_batches(capture, monkeypatch):
    with cutrace.load(capture) as trace:
        whole = flame(trace)
        monkeypatch.setattr(sweep, "_BATCH_ROWS", 50)
        assert flame(trace) == whole


def test_ranges_by_thread_domain_and_time_of_the_threads(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        kernel = c.launch("_Z1kv", grid=(1, 1, 1), block=(1, 1, 1))
        c.push_pop("step", 1000, 9000, thread=1)
        c.push_pop("load", 2000, 4000, thread=1, domain="io")
        c.start_end("elsewhere", 1000, 9000, range_id=1, thread=2, end_thread=3)
        c.add("host_slices", start=ORIGIN + 5000, end=ORIGIN + 6000, name="aten::mm", category="cpu_op", thread=1)
        for correlation, (thread, called) in enumerate([(1, 2500), (1, 4000), (1, 5500), (2, 5500), (1, 9000)], 1):
            c.api("cudaLaunchKernel", called, called + 10, thread=thread, correlation=correlation)
            c.kernel(
                kernel, 10_000 * correlation, 10_000 * correlation + correlation, stream=7, correlation=correlation
            )
        c.kernel(kernel, 90_000, 90_100, stream=7, correlation=99)
    with cutrace.load(c.path) as trace:
        root = flame(trace)
    assert +own(root) == {
        ("step", "io:load", "k"): 1, ("step", "k"): 2, ("step", "aten::mm", "k"): 3, ("elsewhere", "k"): 4,
        ("k",): 105,
    }  # fmt: skip
    step = root.children["range", "step"]
    assert (step.cpu_ns, step.own_cpu_ns, step.gpu_ns, step.operations) == (8000, 5000, 6, 3)
    assert root.cpu_ns == 16000  # of two threads


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4])
def test_slices_that_never_ended_have_the_work_up_to_the_end(tmp_path, kind):
    fields = {"category": "app", "thread": 1, "kind": kind}
    with Capture(tmp_path / "a.bin") as c:
        kernel = c.launch("_Z1kv")
        c.add("host_slices", start=ORIGIN + 1000, end=0, name="train", flags=1, **fields)
        c.add("host_slices", start=ORIGIN + 2000, end=ORIGIN + 3000, name="step", **fields)
        c.add("host_slices", start=ORIGIN + 1000, end=0, name="request", **(fields | {"track": "7", "kind": 5}))
        for correlation, called in enumerate((500, 2500, 5000), 1):
            c.api("cudaLaunchKernel", called, called + 10, thread=1, correlation=correlation)
            c.kernel(kernel, 9_000 + 20 * correlation, 9_001 + 21 * correlation, correlation=correlation)
    with cutrace.load(c.path) as trace:
        assert +own(flame(trace)) == {("k",): 2, ("train", "step", "k"): 3, ("train", "k"): 4}
        hosts = {use.name: use for use in HOST_SLICES.of(trace, StatsOptions())}
    assert {name: use.projected.gpu_ns for name, use in hosts.items()} == {"train": 7, "step": 3, "request": 0}
    assert (hosts["train"].time.count, hosts["train"].self_ns) == (0, 0)


def test_replayed_work_is_in_the_ranges_of_its_creation(tmp_path):
    with cutrace.load(replays(tmp_path / "run.bin")) as trace:
        assert {path: ns for path, ns in own(flame(trace)).items() if ns} == {
            ("step", "forward", "layer0", "a"): 240, ("step", "forward", "layer0", "attn", "b"): 243,
            ("step", "forward", "layer0", "attn", "[CUDA memcpy Host-to-Device]"): 150,
            ("step", "forward", "layer1", "c"): 246, ("step", "d"): 249, ("step", "e"): 252,
        }  # fmt: skip


def test_a_range_around_the_launch_and_the_creation_is_one_frame(tmp_path):
    """One range has a domain. The other range has one of many names that differ only in a number."""
    with Capture(tmp_path / "run.bin") as c:
        for i in range(101):
            c.push_pop(f"step {i}", 1_000 + 10 * i, 1_005 + 10 * i, thread=9)
        c.push_pop("step 7", 10_000, 20_000)
        c.push_pop("mm", 11_000, 12_000, domain="torch", depth=1)
        c.graph_node(1, 500, "step 3", "torch:mm", "inner")
        c.api("cudaGraphLaunch", 11_100, 11_200, correlation=1)
        c.kernel(c.launch("_Z1kv", graph_node=1), 13_000, 13_007, correlation=1)
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert +own(flame(trace)) == {("step #", "torch:mm", "inner", "k"): 7}


def test_many_names_that_differ_in_numbers_only_are_one(tmp_path):
    def own_of(count: int) -> Counter:
        with Capture(tmp_path / f"{count}.bin") as c:
            kernel = c.launch("k2", grid=(1, 1, 1), block=(1, 1, 1))
            for at in range(1, count + 1):
                c.push_pop(f"step {at}", 1000 * at, 1000 * at + 500)
                c.api("cudaLaunchKernel", 1000 * at, 1000 * at + 10, correlation=at)
                c.kernel(kernel, 1000 * at + 100, 1000 * at + 100 + at, stream=7, correlation=at)
        with cutrace.load(c.path) as trace:
            return +own(flame(trace))

    assert own_of(100) == {(f"step {at}", "k2"): at for at in range(1, 101)}
    assert own_of(101) == {("step #", "k2"): 101 * 102 // 2}


def test_equal_paths_of_processes_are_one(tmp_path):
    parts = [training_steps(tmp_path / f"{pid}.bin", steps=3, pid=pid) for pid in (100, 200)]
    roots = []
    for path in (parts[0], join(tmp_path / "both.bin", parts)):
        with cutrace.load(path) as trace:
            roots.append(own(flame(trace)))
    assert roots[1] == Counter({path: 2 * ns for path, ns in roots[0].items()})
