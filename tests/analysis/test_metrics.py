"""Metrics of windows: each metric, the work of a window, problems that make values unreliable, and the
documentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace
from captures import ORIGIN, Capture, awkward, join, training_steps
from cutrace.analysis.definitions import METRICS, MetricClass, Metrics
from cutrace.analysis.marks import begin, end
from cutrace.analysis.metrics import measure, union, work_by_thread
from cutrace.analysis.windows import whole, windows

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


@pytest.fixture
def measured(tmp_path) -> Callable[..., Metrics]:
    """Measures the test in a capture that a function writes. The test lasts from 100 to 1,000."""

    def run(write: Callable[[Capture], None], *, more: tuple[Path, ...] = (), **options: Any) -> Metrics:
        path = tmp_path / "a.bin"
        with Capture(path, **options.pop("info", {"ended": 1})) as c:
            c.device()
            c.mark(begin("test", "t"), 100, source=1)
            write(c)
            c.mark(end("test", "t"), 1_000, source=1)
        with cutrace.load(join(tmp_path / "joined.bin", [path, *more])) as trace:
            (window,) = (w for w in windows(trace) if w.process == 0)
            return measure(trace, window, **options)

    return run


def launched(c: Capture, name: str, at: int, *, correlation: int, call: str = "cudaLaunchKernel", **where: int) -> None:
    """Add a kernel of 50 ns. By default it starts 20 ns after the start of its launch."""
    thread = where.pop("thread", 100)
    start = where.pop("start", at + 20)
    c.api(call, at, at + 10, thread=thread, correlation=correlation)
    c.kernel(c.launch(name), start, start + 50, correlation=correlation, **where)


def nonzero(metrics: Metrics) -> dict[str, object]:
    return {k: v for k, v in metrics.values.items() if v}


# Counted events


def test_a_window_without_work_has_zeros(measured):
    found = measured(lambda c: None)
    assert nonzero(found) == {}
    assert list(found.values) == [m.name for m in METRICS.values() if m.always]
    assert (found.problems, found.gpus, found.gpu_records) == ((), (), 0)


def test_kernels_are_counted_by_stable_name(measured):
    def write(c):
        launched(c, "_ZN1a1fILi1EEEvv", 200, correlation=1)
        launched(c, "_ZN1a1fILi2EEEvv", 300, correlation=2)
        launched(c, "", 400, correlation=3)

    values = measured(write).values
    assert values["kernels"] == {"(unknown kernel)": 1, "a::f": 2}
    assert values["kernel_launches"] == 3


def test_kernels_can_be_named_and_ignored_otherwise(measured):
    def write(c):
        launched(c, "_Z6warmupv", 200, correlation=1)
        launched(c, "_Z4workv", 300, correlation=2)

    values = measured(write, normalize=str.upper, ignore=["*WARM*"]).values
    assert values["kernels"] == {"_Z4WORKV": 1}
    assert values["kernel_time_ns"] == values["busy_ns"] == 50
    assert measured(write, ignore=["WARM*"]).values["kernel_launches"] == 2


def test_kernels_of_a_graph_count_with_its_launch(measured):
    def write(c):
        c.api("cudaGraphLaunch", 200, 210, correlation=5)
        c.api("cudaGraphLaunch", 220, 230, correlation=6, status=700)  # failed
        for node in range(3):
            c.kernel(c.launch("_Z4nodev", graph=1, graph_node=node), 2_000 + node, 2_010 + node, correlation=5)
        c.memcpy(2_100, 2_200, 64, correlation=5, graph=1)
        c.memset(2_200, 2_210, 32, correlation=5, graph=1)

    found = nonzero(measured(write))
    assert found["graph_launches"] == 1
    assert found["kernels"] == {"node": 3}
    assert (found["memcpy_h2d_bytes"], found["memset_bytes"]) == (64, 32)
    assert found["launch_latency_ns"] == 1_800


def test_graphs_that_were_traced_whole_count_once(measured):
    def write(c):
        c.api("cudaGraphLaunch", 200, 210, correlation=5)
        c.add("graph_launches", start=ORIGIN + 300, end=ORIGIN + 400, correlation=5, stream=7, graph=1, context=1)
        c.add("graph_launches", start=ORIGIN + 500, end=ORIGIN + 600, stream=7, graph=1, context=1)

    found = measured(write)
    assert found.values["graph_launches"] == 2
    assert found.values["busy_ns"] == 200
    assert found.without_launch == 1


def test_waits_are_counted_by_function(measured):
    def write(c):
        c.api("cudaStreamSynchronize", 200, 300)
        c.api("cudaStreamSynchronize_ptsz", 300, 310)
        c.api("cudaMemcpy", 310, 400, correlation=3)
        c.api("cudaMemcpyAsync", 400, 410, correlation=4)
        c.api("cudaDeviceSynchronize", 410, 420, status=700)  # failed calls count, too
        c.api("cudaFree", 420, 430)

    found = measured(write).values
    assert found["syncs"] == {"cudaDeviceSynchronize": 1, "cudaMemcpy": 1, "cudaStreamSynchronize": 2}
    assert found["sync_calls"] == 4


def copied(c: Capture, at: int, correlation: int, **where: int) -> None:
    c.api("cuMemcpyHtoD_v2", at, at + 5, correlation=correlation, **where)
    c.memcpy(at + 1, at + 4, 8, correlation=correlation)


def test_copies_into_variables_while_a_module_is_loaded_do_not_count(measured):
    def write(c):
        c.api("cuModuleLoadData", 200, 210)
        c.api("cuMemAlloc_v2", 210, 215)
        copied(c, 220, 1)  # no variable
        for at, correlation in ((230, 2), (250, 3)):
            c.api("cuModuleGetGlobal_v2", at, at + 5)
            copied(c, at + 10, correlation)
        copied(c, 262, 4)  # no variable
        c.api("cuModuleGetGlobal_v2", 270, 275, thread=101)
        copied(c, 280, 5, thread=101)  # this thread loaded nothing
        launched(c, "k", 300, correlation=6, call="cuLaunchKernel")
        c.api("cuModuleGetGlobal_v2", 400, 405)
        copied(c, 410, 7)  # after the launch, so the program made this copy

    found = measured(write).values
    assert found["syncs"] == {"cuMemcpyHtoD": 4}
    assert (found["memcpy_count"], found["memcpy_bytes"]) == (4, 32)
    assert found["memcpy_h2d_count"] == 4
    assert "memcpy_d2h_count" not in found
    assert found["kernel_launches"] == 1


def test_memory_is_that_of_devices_from_the_begin_of_the_window_on(measured):
    def write(c):
        steps = [
            (50, 1 << 30, 1, 3),
            (200, 100, 1, 3),
            (210, 50, 2, 3),
            (220, 70, 1, 5),
            (230, 70, 2, 5),
            (240, 5, 1, 4),
        ]
        for time, size, operation, memory in steps:
            c.add("allocations", time=ORIGIN + time, bytes=size, operation=operation, memory=memory, context=1)
        # Pinned memory, and memory that the driver allocates for the variables of a module.
        c.add("allocations", time=ORIGIN + 250, bytes=1 << 20, operation=1, memory=2, context=1)
        c.add("allocations", time=ORIGIN + 260, bytes=1 << 20, operation=2, memory=2, context=1)
        c.add("allocations", time=ORIGIN + 270, bytes=1 << 20, operation=1, memory=6, context=1)

    found = measured(write).values
    assert (found["allocations"], found["frees"]) == (3, 2)
    assert (found["pinned_allocations"], found["pinned_frees"]) == (1, 1)
    assert (found["peak_memory_bytes"], found["net_memory_bytes"]) == (120, 55)


def test_allocations_are_known_by_the_function_that_took_them(measured):
    def write(c):
        c.api("cudaMalloc_v3020", 200, 210, correlation=1)
        c.add("allocations", time=ORIGIN + 205, bytes=8, operation=1, memory=3, context=1, correlation=1)
        c.add("allocations", time=ORIGIN + 300, bytes=8, operation=1, memory=3, context=1)
        c.add("allocations", time=ORIGIN + 310, bytes=8, operation=2, memory=3, context=1)

    found = measured(write).values
    assert found["allocators"] == {"(unknown call)": 1, "cudaMalloc": 1}


def test_streams_are_those_of_a_context(measured):
    def write(c):
        launched(c, "k", 200, correlation=1, stream=7)
        launched(c, "k", 300, correlation=2, stream=7)
        launched(c, "k", 400, correlation=3, stream=7, context=2, device=1)
        c.memset(500, 510, 4, stream=9)

    assert measured(write).values["streams_used"] == 3


def test_work_on_the_default_stream_of_its_context(measured):
    def write(c):
        c.context()
        c.add("contexts", context=2, device=1, null_stream=147, compute_api=1)
        launched(c, "k", 200, correlation=1, stream=7)
        c.memset(300, 310, 4, stream=7)
        c.memcpy(310, 320, 4, stream=9)
        launched(c, "k", 400, correlation=2, stream=147, context=2, device=1)
        launched(c, "k", 500, correlation=3, stream=7, context=2, device=1)

    assert measured(write).values["default_stream_work"] == 3


def test_the_default_stream_of_a_context_that_the_capture_lacks_is_unknown(measured):
    def write(c):
        c.context()
        launched(c, "k", 200, correlation=1, stream=7)
        launched(c, "k", 300, correlation=2, stream=7, context=2, device=1)

    assert "default_stream_work" not in measured(write).values


def test_copies_of_pageable_memory(measured):
    def write(c):
        for kind, source, destination in (
            (1, 1, 3), (1, 2, 3), (1, 5, 3), (2, 3, 1), (2, 3, 2), (3, 1, 4), (4, 4, 1), (8, 3, 3), (9, 1, 1),
        ):  # fmt: skip
            c.memcpy(200, 210, 4, kind=kind, source=source, destination=destination)

    assert measured(write).values["pageable_copies"] == 4


def test_work_by_thread(tmp_path):
    with Capture(tmp_path / "a.bin", ended=1) as c:
        launched(c, "k", 200, correlation=1, thread=100)
        launched(c, "k", 300, correlation=2, thread=101)
        c.api("cudaMemsetAsync", 400, 410, thread=101, correlation=3)
        c.memset(500, 510, 4, correlation=3)
        c.memset(600, 610, 4)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert work_by_thread(trace, whole(trace), {101: "a", 102: "b"}) == {"a": 2}


# The contents of a window


def test_work_whose_launch_was_not_recorded_counts_by_its_start(measured):
    def write(c):
        c.kernel(c.launch("k"), 500, 600, correlation=77)
        c.kernel(c.launch("k"), 1_500, 1_600, correlation=78)
        c.memset(500, 600, 4)
        launched(c, "k", 700, correlation=1)

    found = measured(write)
    assert (found.values["kernel_launches"], found.gpu_records, found.without_launch) == (2, 3, 2)


def test_what_the_tool_did_itself_does_not_count(measured):
    def write(c):
        c.mark(begin("tool", ""), 200, source=1)
        c.api("cudaDeviceSynchronize", 210, 250)
        launched(c, "tool", 260, correlation=1)
        launched(c, "test", 270, correlation=2, thread=101)  # at the same time in another thread
        c.mark(end("tool", ""), 300, source=1)
        launched(c, "test", 310, correlation=3)

    found = measured(write).values
    assert found["kernels"] == {"test": 2}
    assert found["sync_calls"] == 0


def child(path: Path, name: str, at: int, **info: Any) -> Path:
    with Capture(path, **({"pid": 200, "parent_pid": 100, "ended": 1} | info)) as c:
        c.device()
        launched(c, name, at, correlation=1)
    return path


def test_a_worker_with_tests_of_its_own_does_not_count_with_others(measured, tmp_path):
    with Capture(tmp_path / "b.bin", pid=300, ended=1) as c:
        c.mark(begin("test", "other"), 10, source=1)
        launched(c, "other", 500, correlation=1)
        c.mark(end("test", "other"), 900, source=1)
    grandchild = child(tmp_path / "c.bin", "child of other", 500, pid=301, parent_pid=300)
    found = measured(lambda c: launched(c, "own", 200, correlation=1), more=(tmp_path / "b.bin", grandchild))
    assert found.values["kernels"] == {"own": 1}


def test_regions_have_metrics_of_their_own_and_add_up_by_name(measured):
    def write(c):
        for first, last in (
            (200, 300),
            (220, 260),
            (500, 600),
        ):  # the first two are nested
            c.mark(begin("region", "step"), first, source=1)
            c.mark(end("region", "step"), last, source=1)
        c.mark(begin("region", "idle"), 700, source=1)
        c.mark(end("region", "idle"), 800, source=1)
        for number, at in enumerate((210, 230, 270, 400, 550)):
            launched(c, "k", at, correlation=number + 1, start=5_000 + 60 * number)

    found = measured(write)
    assert found.values["kernel_launches"] == 5
    assert {name: values["kernel_launches"] for name, values in found.regions.items()} == {"step": 4, "idle": 0}
    assert found.regions["step"]["busy_ns"] == 200


def graph_in_regions(c):
    """Each of two regions captures a graph with a kernel. One capture is inside an NVTX range. An old graph is replayed
    later."""
    for name, first, last in (("attention", 200, 300), ("mlp", 300, 400), ("head", 500, 510), ("replay", 600, 700)):
        c.mark(begin("region", name), first, source=1)
        c.mark(end("region", name), last, source=1)
    c.graph_node(1, 200)
    c.graph_node(2, 300)
    c.graph_node(3, 450, "model", "head")
    c.graph_node(5, 299, "mlp")
    for number in (1, 2):
        called = 510 + 100 * number
        c.api("cudaGraphLaunch", called, called + 5, correlation=number)
        for node, name in enumerate(("a", "b", "c", "old"), 1):
            kernel = c.launch(name, graph_node=node)
            c.kernel(kernel, 1_000 * number + 10 * node, 1_000 * number + 10 * node + 5, correlation=number)
        c.memcpy(1_000 * number + 90, 1_000 * number + 95, 64, correlation=number, graph_node=5)


def test_work_of_graphs_counts_in_the_regions_of_its_creation(measured):
    found = measured(graph_in_regions)
    assert found.values["kernels"] == {"a": 2, "b": 2, "c": 2, "old": 2}
    assert {name: values["kernels"] for name, values in found.regions.items()} == {
        "attention": {"a": 2}, "mlp": {"b": 2}, "head": {"c": 2}, "replay": {"a": 1, "b": 1, "c": 1, "old": 1},
    }  # fmt: skip
    # This copy was created in a region, and in a range with the name of another region.
    assert {name: values["memcpy_count"] for name, values in found.regions.items()} == {
        "attention": 2, "mlp": 2, "head": 0, "replay": 1,
    }  # fmt: skip
    assert {name: values["graph_launches"] for name, values in found.regions.items()} == {
        "attention": 0, "mlp": 0, "head": 0, "replay": 1,
    }  # fmt: skip


def test_a_region_can_be_measured_alone(tmp_path):
    with Capture(tmp_path / "a.bin", ended=1) as c:
        c.mark(begin("test", "t"), 100, source=1)
        c.mark(begin("region", "r"), 200, source=1)
        launched(c, "k", 300, correlation=1)
        c.mark(end("region", "r"), 400, source=1)
    with cutrace.load(tmp_path / "a.bin") as trace:
        (test,) = windows(trace)
        found = measure(trace, test.regions[0])
    assert found.values["kernels"] == {"k": 1}
    assert found.problems == ()  # the region has ended, though the test has not


def test_windows_of_one_capture_share_nothing(tmp_path):
    with Capture(tmp_path / "a.bin", ended=1) as c:
        for number in range(5):
            c.mark(begin("test", f"t{number}"), 1_000 * number, source=1)
            for launch in range(number):
                launched(c, "k", 1_000 * number + 10 * launch, correlation=10 * number + launch + 1, start=9_000)
            c.mark(end("test", f"t{number}"), 1_000 * number + 500, source=1)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert [measure(trace, w).values["kernel_launches"] for w in windows(trace)] == [0, 1, 2, 3, 4]


# Hardware


def test_the_devices_that_were_used_are_named(measured):
    def write(c):
        c.device(1, uuid=bytes(16), name="NVIDIA L4", compute_major=8, compute_minor=9)
        c.device(2, uuid=bytes(range(16)), name="NVIDIA idle")
        launched(c, "k", 200, correlation=1, device=1)

    found = measured(write, info={"ended": 1, "runtime_version": 12080, "driver_version": 13000, "driver": "580.65"})
    assert found.gpus == ("NVIDIA L4",)
    assert found.facts == {"compute capability": "8.9", "clock": "1980 MHz", "driver": "580.65", "cuda": "12.8"}


def test_a_device_that_two_processes_used_is_named_once(measured, tmp_path):
    found = measured(lambda c: launched(c, "own", 200, correlation=1), more=(child(tmp_path / "1.bin", "k", 500),))
    assert (found.gpus, found.problems, found.values["streams_used"]) == (("NVIDIA H200",), (), 2)


# Problems that make numbers unreliable


def test_losses_since_the_begin_are_problems(measured):
    def write(c):
        c.loss(1, 40, "activity records", time=50)
        c.loss(1, 2, "activity records", time=500)
        c.loss(1, 3, "activity records", time=1_500)
        c.loss(5, 9, "NVTX events", time=500)
        c.loss(9, 1, "pool", time=500)

    (problem,) = measured(write).problems
    assert problem == "5 records that CUPTI dropped because it had no buffer (activity records)"


def test_losses_without_a_time_are_problems_of_every_window(measured):
    (problem,) = measured(lambda c: c.add("losses", count=3, reason=13, detail="damaged block")).problems
    assert problem == "3 events of the source file that could not be used (damaged block)"


@pytest.mark.parametrize(
    ("refused", "problems"),
    [("kernel", 1), ("a part of memory: 2 calls", 1), ("GPU activity", 1), ("pool", 0), ("a part of pool: 2 calls", 0)],
)
def test_a_kind_that_was_refused_later_is_a_problem_if_metrics_need_it(measured, refused, problems):
    found = measured(lambda c: c.loss(9, 1, refused, time=500)).problems
    assert len(found) == problems


def test_rows_that_were_let_go_are_a_problem_of_a_whole_capture(tmp_path):
    with Capture(tmp_path / "a.bin", ended=1) as c:
        launched(c, "k", 200, correlation=1)
        c.mark(begin("test", "t"), 300, source=1)
        c.mark(end("test", "t"), 400, source=1)
        c.loss(12, 7, "kernels", time=400)
    with cutrace.load(tmp_path / "a.bin") as trace:
        (test,) = windows(trace)
        assert measure(trace, test).problems == ()
        (problem,) = measure(trace, whole(trace)).problems
    assert problem == "7 rows dropped to keep only the newest (kernels)"


def test_work_without_times_counts_and_is_a_problem(measured):
    def write(c):
        c.api("cudaLaunchKernel", 200, 210, correlation=1)
        c.add("kernels", start=ORIGIN + 300, end=0, launch=c.launch("k"), correlation=1, stream=7, context=1)
        launched(c, "k", 400, correlation=2)

    found = measured(write)
    assert found.values["kernel_launches"] == 2
    assert found.values["kernel_time_ns"] == 50
    assert found.problems == ("1 row of kernels without known times",)


def test_work_that_may_belong_anywhere_is_a_problem_of_every_window(measured):
    def write(c):
        launch = c.launch("k")
        for impossible in (0, 1 << 63):
            c.add("kernels", start=impossible, end=impossible, launch=launch, stream=7, context=1)
        c.add("memcpys", start=0, end=0, kind=1, bytes=8, stream=7, context=1)
        # One kernel has only a time, the other one only a launch.
        launched(c, "k", 400, correlation=2)
        c.api("cudaLaunchKernel", 500, 510, correlation=3)
        c.add("kernels", start=0, end=0, launch=launch, correlation=3, stream=7, context=1)

    found = measured(write)
    assert found.values["kernel_launches"] == 2
    assert found.problems == (
        "1 row of kernels without known times",
        "3 records of GPU work without a time and a launch, which may belong to any test",
    )


def test_missing_marks_are_problems(tmp_path):
    with Capture(tmp_path / "a.bin", ended=1) as c:
        c.mark(begin("test", "t"), 100, source=1)
        c.mark(begin("region", "r"), 200, source=1)
    with cutrace.load(tmp_path / "a.bin") as trace:
        problems = measure(trace, windows(trace)[0]).problems
    assert [p.split(" ")[:4] for p in problems] == [["a", "mark", "of", "'t'"], ["region", "'r'", "was", "not"]]


def test_a_process_that_was_not_closed_is_a_problem(measured, tmp_path):
    with Capture(tmp_path / "2.bin", pid=400, command=["server"], parent_pid=100) as c:
        # A killed process does not write the end of its capture.
        c.writer.close = lambda: (c.writer._file.close(), c.writer._part.rename(c.path))
    (problem,) = measured(lambda c: None, more=(tmp_path / "2.bin",)).problems
    assert "killed or still running" in problem
    assert problem.endswith("(process 400 (server): at most its last 100 ms and a flush)")


def test_kinds_that_were_not_recorded_are_a_problem_and_say_who_holds_cupti(measured):
    info = {"ended": 1, "kinds": ["nvtx"], "notes": ["CUPTI is in use by Nsight", "run alone"]}
    (problem,) = measured(lambda c: None, info=info).problems
    assert re.fullmatch(
        r"process \d+ \(.+\) recorded no kernels, copies, memory fills, API calls, allocations: "
        r"CUPTI is in use by Nsight; run alone",
        problem,
    )
    info = {"ended": 1, "kinds": ["kernel", "memcpy", "memset", "api", "nvtx"]}
    (problem,) = measured(lambda c: None, info=info).problems
    assert problem.endswith("recorded no allocations")


def test_damage_is_a_problem(tmp_path):
    path = training_steps(tmp_path / "a.bin")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with cutrace.load(path) as trace:
        assert any("damaged" in p for p in measure(trace, whole(trace)).problems)


# Whole captures


def test_a_capture_with_everything_unpleasant_is_measured(tmp_path):
    with cutrace.load(awkward(tmp_path / "a.bin")) as trace:
        found = measure(trace, whole(trace))
        assert found.values["kernel_launches"] == trace.count("kernels")
        assert found.values["graph_launches"] == 3 + 3  # copies by calls, and by a whole graph without a call
        assert found.gpu_records == sum(trace.count(t) for t in ("kernels", "memcpys", "memsets", "graph_launches"))


REAL = {
    "cpp_streams.bin": {"kernel_launches": 41, "memcpy_count": 28, "memset_count": 2, "sync_calls": 20,
                        "allocations": 6, "frees": 6, "pinned_allocations": 2, "streams_used": 5,
                        "default_stream_work": 9, "pageable_copies": 2},
    "cuda_core.bin": {"kernel_launches": 52, "syncs": {"cuStreamSynchronize": 2}, "allocations": 2,
                      "peak_memory_bytes": 2 << 20, "net_memory_bytes": 0},
    "cuda_graph.bin": {"kernels": {"join": 20, "left": 80, "right": 80}, "graph_launches": 20, "memcpy_h2d_count": 20,
                       "memcpy_d2h_count": 20, "memset_count": 20, "memset_bytes": 20 << 20},
    "cuda_graph_whole.bin": {"kernels": {}, "graph_launches": 20},
    "processes.bin": {"kernel_launches": 48, "syncs": {"cudaDeviceSynchronize": 3, "cudaStreamSynchronize": 3},
                      "allocations": 18, "streams_used": 3},
    # PyTorch's pool has 12 allocations. CUPTI also lists the 706 variables of modules, which do not count.
    "torch_step.bin": {"kernel_launches": 166, "memcpy_h2d_count": 14, "memcpy_d2h_count": 4, "allocations": 12,
                       "syncs": {"cudaDeviceSynchronize": 1, "cudaStreamSynchronize": 10}, "streams_used": 2,
                       "default_stream_work": 176, "pageable_copies": 6},
    "triton.bin": {"kernel_launches": 59, "memset_count": 1, "sync_calls": 5, "allocations": 2},
}  # fmt: skip


@pytest.mark.parametrize("capture", REAL)
def test_real_captures(capture):
    with cutrace.load(DATA / capture) as trace:
        found = measure(trace, whole(trace))
    assert {name: found.values[name] for name in REAL[capture]} == REAL[capture]
    assert (found.problems, found.gpus, found.without_launch) == ((), ("NVIDIA H200",), 0)


def test_nothing_of_a_trace_is_kept_when_it_is_gone(tmp_path):
    import gc
    import weakref

    trace = cutrace.load(training_steps(tmp_path / "a.bin"))
    measure(trace, whole(trace))
    gone = weakref.ref(trace)
    trace.close()
    del trace
    gc.collect()
    assert gone() is None


# The documentation


CODED = {"options": {"code": "1"}, "ended": 1}


def coded(c: Capture, name: str, at: int, *, correlation: int, code: int) -> None:
    """A kernel with known machine code."""
    c.add("kernel_codes", name=name, code=code, registers=32, size=512, architecture=90, context=1)
    c.api("cudaLaunchKernel", at, at + 10, thread=100, correlation=correlation)
    c.kernel(c.launch(name, code=code), at + 20, at + 70, correlation=correlation)


def test_codes_are_those_of_the_kernels_of_the_window_by_stable_name(measured):
    def write(c):
        coded(c, "_Z4axpyIfEvPT_", 200, correlation=1, code=2)
        coded(c, "_Z4axpyIfEvPT_", 300, correlation=2, code=1)
        launched(c, "fill", 400, correlation=3)
        coded(c, "later", 2_000, correlation=4, code=3)

    found = measured(write, info=CODED)
    described = ("0000000000000001 registers=32 bytes=512", "0000000000000002 registers=32 bytes=512")
    assert found.codes == {"axpy": described, "fill": ("unknown",)}
    assert list(found.codes) == list(found.values["kernels"])


def test_without_a_recording_of_code_there_are_none(measured):
    assert measured(lambda c: launched(c, "k", 200, correlation=1)).codes is None
    assert measured(lambda c: None, info=CODED).codes == {}


def test_every_metric_that_a_window_has_is_listed(measured):
    def write(c):
        c.context()
        launched(c, "k", 200, correlation=1)
        for kind in (1, 2, 8, 9, 10, 0):
            c.memcpy(300, 310, 4, kind=kind)

    # A capture has no hardware counters, and codes are not numbers.
    listed = [name for name, found in METRICS.items() if not found.hardware and name != "code"]
    assert list(measured(write).values) == listed


def test_the_documentation_explains_every_class():
    text = (ROOT / "docs" / "internals" / "metrics.md").read_text()
    assert re.findall(r"^\* `(\w+)` (?:depends|is)", text, re.MULTILINE) == [kind.value for kind in MetricClass]


def test_a_part_and_its_total_are_of_one_class_and_unit():
    parts = [found for found in METRICS.values() if found.total]
    assert {found.total for found in parts} == {
        "kernel_launches", "memcpy_count", "memcpy_bytes", "sync_calls", "allocations",
    }  # fmt: skip
    assert all((p.kind, p.unit) == (METRICS[p.total].kind, METRICS[p.total].unit) for p in parts)


@pytest.mark.parametrize("times", [1, 20])
def test_time_of_overlapping_work_counts_once_whether_it_is_little_or_much(times):
    """A repeated interval adds no time."""
    rng = np.random.default_rng(times)
    for count in range(12):
        starts = rng.integers(0, 60, count)
        lengths = rng.integers(0, 9, count)
        intervals = np.array([starts, starts + lengths], np.uint64)
        covered: set[int] = set()
        for start, end_of in intervals.T.tolist():
            covered.update(range(start, end_of))
        assert union(np.tile(intervals, times)) == len(covered)
