"""The fake GPU and cutrace as installed: a capture shows the work of a program on the fake GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cutrace
from support.fakedriver import FakeDriver, build


def run(driver: FakeDriver, program: str, *arguments: object, launcher: tuple[str, ...] = ()) -> str:
    """Run a Python program on the fake GPU. Returns its output."""
    prelude = "import json, os, sys, time\nimport cutrace, fakegpu\n"
    command = [*launcher, sys.executable, "-c", prelude + program, *map(str, arguments)]
    done = subprocess.run(command, env=driver.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def armed(driver: FakeDriver, program: str, path: Path, **options: object) -> cutrace.Trace:
    """Run a program that first arms cutrace. Returns its capture."""
    run(driver, f"armed = cutrace.arm(sys.argv[1], **{options!r})\n{program}\narmed.stop()", path)
    return cutrace.load(path)


def calls(trace: cutrace.Trace) -> list[str]:
    rows = np.sort(trace.api_calls, order="correlation")
    return [trace.strings[int(name)] for name in trace.functions[rows["function"]]["name"]]


def test_what_a_program_does_is_what_its_capture_says(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
address = fakegpu.malloc(1 << 20)
fakegpu.copy("HtoD", 4096)
fakegpu.memset(64, value=255)
for _ in range(3):
    fakegpu.launch("axpy", grid=(4, 2), block=256, duration_ns=5000)
fakegpu.synchronize("cudaStreamSynchronize", stream=7)
fakegpu.copy("DtoH", 4, call="cudaMemcpy")
fakegpu.free(address)
"""
    trace = armed(fake_driver, program, tmp_path / "run.bin")
    assert calls(trace) == [
        "cudaMalloc", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaLaunchKernel", "cudaLaunchKernel", "cudaLaunchKernel",
        "cudaStreamSynchronize", "cudaMemcpy", "cudaFree",
    ]  # fmt: skip
    kernels = np.sort(trace.kernels, order="start")
    assert (kernels["end"] - kernels["start"]).tolist() == [5000] * 3
    assert (kernels["start"][1:] >= kernels["end"][:-1]).all()
    launches = np.sort(trace.api_calls, order="correlation")[3:6]
    assert (kernels["correlation"] == launches["correlation"]).all()
    assert (kernels["start"] > launches["start"]).all()
    wait = np.sort(trace.api_calls, order="correlation")[6]
    assert wait["end"] >= kernels["end"].max(), "a synchronising call waits"
    assert sorted(trace.memcpys["bytes"].tolist()) == [4, 4096]
    assert sorted(trace.memcpys["flags"].tolist()) == [0, 1]
    assert trace.memsets[["bytes", "value"]].tolist() == [(64, 255)]
    assert np.sort(trace.allocations, order="time")[["operation", "bytes"]].tolist() == [(1, 1 << 20), (2, 1 << 20)]
    (device,) = trace.devices
    assert trace.strings[int(device["name"])] == "NVIDIA FAKE"
    assert (device["compute_major"], device["multiprocessors"]) == (9, 132)
    assert trace.streams["stream"].tolist() == [7]
    assert trace.contexts["null_stream"].tolist() == [7]
    assert trace.losses.size == 0


def test_calls_have_the_ids_of_cuptis_headers(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.launch("k", call="cuLaunchKernel")
fakegpu.launch("k", call="cudaLaunchKernelExC")
fakegpu.api("cudaGetDevice")
"""
    trace = armed(fake_driver, program, tmp_path / "run.bin")
    known = {(int(row["domain"]), int(row["callback"])) for row in trace.functions[1:]}
    assert known == {(1, 307), (2, 430)}, "cudaGetDevice is not in the collector's list"


def test_a_graph_launch_has_one_correlation_id(fake_driver: FakeDriver, tmp_path: Path) -> None:
    trace = armed(fake_driver, 'fakegpu.graph_launch(["a", "b", "c"])', tmp_path / "run.bin")
    assert calls(trace) == ["cudaGraphLaunch"]
    assert set(trace.kernels["correlation"].tolist()) == set(trace.api_calls["correlation"].tolist())
    assert len(set(trace.launches[1:]["graph_node"].tolist())) == 3
    trace = armed(fake_driver, "fakegpu.graph_launch(3, duration_ns=100)", tmp_path / "whole.bin", cuda_graph="graph")
    assert trace.kernels.size == 0
    assert (trace.graph_launches["end"] - trace.graph_launches["start"]).tolist() == [300]


def test_a_captured_graph_has_the_ranges_of_its_capture(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
import nvtx
fakegpu.init()
with cutrace.record(sys.argv[1]):
    fakegpu.begin_capture()
    with nvtx.annotate("forward"):
        with nvtx.annotate("layer", domain="mine"):
            fakegpu.launch("a")
        fakegpu.memset()
    fakegpu.launch("b")
    graph = fakegpu.instantiate(fakegpu.end_capture())
    for _ in range(3):
        fakegpu.replay(graph, duration_ns=100)
    fakegpu.synchronize()
with cutrace.record(sys.argv[2]):
    fakegpu.replay(graph)
    fakegpu.synchronize()
"""
    pytest.importorskip("nvtx")
    paths = [tmp_path / "first.bin", tmp_path / "second.bin"]
    run(fake_driver, program, *paths)
    trace = cutrace.load(paths[0])
    assert trace.kernels.size == 6
    assert trace.memsets.size == 3
    ranges = {
        int(row["graph_node"]): json.loads(trace.strings[int(row["ranges"])] or "[]") for row in trace.graph_nodes
    }
    of_kernels = {
        trace.strings[int(launch["name"])]: ranges.pop(int(launch["graph_node"])) for launch in trace.launches[1:]
    }
    assert of_kernels == {"a": ["forward", "mine:layer"], "b": []}
    assert list(ranges.values()) == [["forward"]]
    (captured,) = (row for row in trace.api_calls if row["start"] <= trace.graph_nodes[0]["created"] <= row["end"])
    assert trace.strings[int(trace.functions[captured["function"]]["name"])] == "cudaLaunchKernel"
    assert cutrace.load(paths[1]).graph_nodes.size == 0, "the graph is older than the recording"


def test_detached_work_starts_after_what_follows_it(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.launch("late", delay_ns=20_000_000, detached=True)
fakegpu.synchronize()
cutrace.mark("the next test")
time.sleep(0.03)
"""
    trace = armed(fake_driver, program, tmp_path / "run.bin")
    (mark,) = trace.nvtx_marks
    (kernel,) = trace.kernels
    assert kernel["start"] > mark["time"]


def test_faults_are_what_a_capture_reports(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.deliver_at_flush_only()
fakegpu.launch("endless", end=False)
fakegpu.drop(5)
fakegpu.synchronize()
fakegpu.flush_takes(20)
"""
    trace = armed(fake_driver, program, tmp_path / "run.bin")
    assert sorted((loss.reason, loss.count) for loss in trace.quality.losses) == [
        ("cupti_dropped", 5),
        ("unknown_time", 1),
    ]
    assert trace.unknown("kernels").size == 1


def test_held_by_another_tool(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.hold_cupti()
cutrace.arm(sys.argv[1])
fakegpu.launch("unseen")
cutrace.mark("seen")
"""
    run(fake_driver, program, tmp_path / "run.bin")
    trace = cutrace.load(tmp_path / "run.bin")
    assert trace.kernels.size == 0
    assert trace.nvtx_marks.size == 1
    assert any("another tool holds CUPTI" in note for note in trace.quality.notes)


def test_it_can_be_recorded_in_the_middle_and_twice(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
fakegpu.launch("before")
for path in sys.argv[1:]:
    with cutrace.record(path):
        fakegpu.launch("inside", duration_ns=700)
    fakegpu.launch("between")
"""
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    run(fake_driver, program, *paths)
    for path in paths:
        trace = cutrace.load(path)
        assert (trace.kernels["end"] - trace.kernels["start"]).tolist() == [700]
        assert trace.devices.size == trace.contexts.size == 1


def test_children_are_recorded_by_the_command_line_too(fake_driver: FakeDriver, tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    program = """
import subprocess
fakegpu.launch("parent")
subprocess.run([sys.executable, "-c", "import fakegpu; fakegpu.launch('child'); fakegpu.synchronize()"], check=True)
"""
    run(fake_driver, program, launcher=(sys.executable, "-m", "cutrace", "record", "-o", str(path)))
    trace = cutrace.load(path)
    assert len(trace.processes) == 2
    assert trace.kernels.size == 2


def test_cuda_does_not_survive_a_fork(fake_driver: FakeDriver) -> None:
    program = """
fakegpu.init()
if os.fork() == 0:
    try:
        fakegpu.launch("k")
    except RuntimeError as error:
        print(json.dumps(str(error)), flush=True)
    os._exit(0)
os.wait()
"""
    assert json.loads(run(fake_driver, program)) == "cudaLaunchKernel: CUresult 3"


def test_it_is_built_once(fake_driver: FakeDriver) -> None:
    cache = fake_driver.directory.parent
    before = (fake_driver.libraries / "libcuda.so.1").stat().st_mtime_ns
    assert build(cache) == fake_driver
    assert (fake_driver.libraries / "libcuda.so.1").stat().st_mtime_ns == before
    assert sorted(p.name for p in cache.iterdir() if p.is_dir() and p.name.startswith("tmp")) == []


def test_a_wrong_name_is_an_error(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
armed = cutrace.arm(sys.argv[1])
try:
    fakegpu.api("cudaLaunchRocket")
except RuntimeError as error:
    print(error)
"""
    assert "cudaLaunchRocket" in run(fake_driver, program, tmp_path / "run.bin")


def test_the_real_libraries_are_refused(fake_driver: FakeDriver) -> None:
    environment = {**fake_driver.environment(), "LD_LIBRARY_PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", "import fakegpu; fakegpu.init()"], env=environment, capture_output=True, text=True
    )
    if "cannot open shared object" in done.stderr:
        pytest.skip("this machine has no driver")
    assert "FakeDriver.environment()" in done.stderr


def test_the_environment_keeps_what_there_was(fake_driver: FakeDriver) -> None:
    out = fake_driver.environment({"PYTHONPATH": "/mine", "HOME": "/home"})
    assert out["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
    assert out["LD_LIBRARY_PATH"] == str(fake_driver.libraries)
    assert out["HOME"] == "/home"
