"""cutrace profile on a GPU: the values follow from the work of a program, and the program computes the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cutrace

BYTES = 4 << 26
PROGRAM = f"""
import json, sys, torch
x = torch.arange({BYTES // 4}, device="cuda", dtype=torch.float32)
y = torch.zeros_like(x)
for _ in range(3):
    torch.add(x, 1, out=y)
    y.mul_(2)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y.mul_(0.5)
graph.replay()
torch.cuda.synchronize()
print(json.dumps({{"sum": float(y.double().sum())}}))
"""
NAMES = ("dram__bytes_read.sum", "dram__bytes_write.sum", "sm__inst_executed.sum", "gpu__time_duration.sum")


def profile(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    program = [sys.executable, "-c", PROGRAM]
    command = [sys.executable, "-m", "cutrace", "profile", "--metrics", f"{','.join(NAMES)},speed-of-light",
               "--kernel", "/elementwise/", *options, "--", *program]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done, folder / "run.bin"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    return profile(tmp_path_factory.mktemp("once"))


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    return profile(tmp_path_factory.mktemp("profile"), "--timeline")


def rows(path: Path) -> list[dict[str, Any]]:
    with cutrace.load(path) as trace:
        return trace.arrow("kernel_metrics").to_pylist()


def test_the_program_computes_the_same_while_its_kernels_are_replayed(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    sums = [json.loads(line)["sum"] for line in profiled[0].stdout.splitlines() if line.startswith('{"sum"')]
    assert len(sums) == 2
    assert sums[0] == sums[1]


def test_bytes_and_instructions_are_those_of_the_kernels(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    read = [row["value"] for row in rows(profiled[1]) if row["name"] == NAMES[0] and row["value"] > BYTES / 2]
    assert len(read) >= 6  # three of add and three of mul
    assert all(abs(value / BYTES - 1) < 0.02 for value in read), read
    by_kernel: dict[tuple[int, str], set[float]] = {}
    with cutrace.load(profiled[1]) as trace:
        launches = {int(k["correlation"]): int(k["launch"]) for k in trace.kernels}
    for row in rows(profiled[1]):
        if row["name"] == NAMES[2]:
            by_kernel.setdefault((launches[row["correlation"]], row["name"]), set()).add(row["value"])
    assert all(len(values) == 1 for values in by_kernel.values()), by_kernel


def test_times_are_those_of_the_run_without_counters(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    with cutrace.load(profiled[1]) as trace:
        own = {(int(k["correlation"]), int(k["start"]), int(k["end"])) for k in trace.kernels}
    assert {(row["correlation"], row["start"], row["end"]) for row in rows(profiled[1])} <= own


def test_launches_inside_graphs_are_left_out_and_said(
    profiled: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    assert "left out: 1 launch inside CUDA graphs" in profiled[0].stderr


#: Columns of launches that the driver tells as CUPTI does. CUPTI tells two more registers of some kernels.
DESCRIBED = ("name", "grid_x", "block_x", "static_shared", "dynamic_shared", "local_per_thread", "cluster_x")


def test_one_run_counts_the_same_launches_as_two(
    once: tuple[subprocess.CompletedProcess[str], Path], profiled: tuple[subprocess.CompletedProcess[str], Path]
) -> None:
    sums = [[line for line in run[0].stdout.splitlines() if line.startswith('{"sum"')] for run in (once, profiled)]
    assert sums[0] * 2 == sums[1]
    assert "left out: kernels of CUDA graphs" in once[0].stderr
    values = []
    described = []
    for _, path in (once, profiled):
        values.append([(row["name"], row["value"]) for row in rows(path) if row["name"] == NAMES[2]])
        with cutrace.load(path) as trace:
            counted = {row["correlation"] for row in trace.arrow("kernel_metrics").to_pylist()}
            kernels = [row for row in trace.arrow("kernels").to_pylist() if row["correlation"] in counted]
            described.append([{column: row[column] for column in DESCRIBED} for row in kernels])
    assert values[0] == values[1]
    assert described[0] == described[1]


def test_one_run_knows_the_gpu_and_the_counted_times(
    once: tuple[subprocess.CompletedProcess[str], Path], profiled: tuple[subprocess.CompletedProcess[str], Path]
) -> None:
    devices = []
    for _, path in (once, profiled):
        with cutrace.load(path) as trace:
            devices.append(trace.arrow("devices").to_pylist()[0])
    differing = {
        name: (devices[0][name], devices[1][name]) for name in devices[1] if devices[0][name] != devices[1][name]
    }
    assert not differing
    times = [row for row in rows(once[1]) if row["name"] == "gpu__time_duration.sum"]
    assert all(row["duration"] == round(row["value"]) for row in times)


#: Kernels that change memory while three threads launch continuously: managed memory if there is an argument.
CHANGES = r"""
import ctypes, cupy, json, sys, threading, time

module = cupy.RawModule(code='''
extern "C" __global__ void changes(float* device, int* pinned, int* managed) {
  if (threadIdx.x + blockIdx.x == 0) { device[0] += 1; pinned[0] += 1; managed[0] += 1; }
}
extern "C" __global__ void noise(float* x) { x[threadIdx.x + blockIdx.x * blockDim.x] += 1; }
''')
changes, noise = map(module.get_function, ("changes", "noise"))
device = cupy.zeros(1, cupy.float32)
pinned = cupy.cuda.alloc_pinned_memory(64)
managed = (cupy.cuda.malloc_managed if sys.argv[1:] else cupy.cuda.alloc)(64)
managed.memset(0, 64)
host = ctypes.cast(pinned.ptr, ctypes.POINTER(ctypes.c_int))
host[0] = 0
over = False
noises = []

def launch():
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        buffer = cupy.zeros(1 << 16, cupy.float32)
        launches = 0
        while not over:
            noise((256,), (256,), (buffer,))
            launches += 1
            if launches % 64 == 0:
                stream.synchronize()
        stream.synchronize()
        noises.append(bool((buffer == launches).all()))

threads = [threading.Thread(target=launch) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(3):
    changes((256,), (256,), (device, pinned.ptr, managed.ptr))
    time.sleep(0.1)
over = True
for thread in threads:
    thread.join()
cupy.cuda.Device().synchronize()
there = ctypes.c_int()
cupy.cuda.runtime.memcpy(ctypes.addressof(there), managed.ptr, 4, cupy.cuda.runtime.memcpyDeviceToHost)
print("computed", json.dumps([float(device[0]), host[0], there.value, noises]))
"""
#: A kernel that waits for a kernel of another thread.
INTERLOCKED = r"""
import cupy, threading, time

module = cupy.RawModule(code='''
extern "C" __global__ void waits(volatile int* flag) { while (*flag == 0) {} }
extern "C" __global__ void sets(int* flag) { *flag = 1; }
''')
waits, sets = map(module.get_function, ("waits", "sets"))
flag = cupy.zeros(1, cupy.int32)
cupy.cuda.Device().synchronize()

def wait():
    with cupy.cuda.Stream(non_blocking=True) as stream:
        waits((1,), (1,), (flag,))
        stream.synchronize()

waiting = threading.Thread(target=wait)
waiting.start()
time.sleep(1)
with cupy.cuda.Stream(non_blocking=True) as stream:
    sets((1,), (1,), (flag,))
    stream.synchronize()
waiting.join()
"""


def profile_with_caches(
    folder: Path, caches: str, kernel: str, program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("cupy")
    command = [sys.executable, "-m", "cutrace", "profile", "--metrics", "speed-of-light,memory", "--caches", caches,
               "--kernel", kernel, "--format", "csv", "--", sys.executable, "-c", program, *arguments]  # fmt: skip
    environment = os.environ | {"CUTRACE_PROFILE_PATIENCE_MS": "2000"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("caches", "arguments", "state"),
    [("flush", [], 1), ("keep", [], 2), ("flush", ["managed"], 2)],
)
def test_what_a_program_computes_is_the_same_beside_other_threads(
    tmp_path: Path, caches: str, arguments: list[str], state: int
) -> None:
    done = profile_with_caches(tmp_path, caches, "changes", CHANGES, *arguments)
    assert done.returncode == 0, done.stderr
    computed = [line for line in done.stdout.splitlines() if line.startswith("computed")]
    assert computed == ["computed [3.0, 3, 3, [true, true, true]]"]
    counted = {(row["correlation"], row["caches"]) for row in rows(tmp_path / "run.bin")}
    assert [each for _, each in counted] == [state] * 3
    assert ("the caches were kept: the program uses memory" in done.stderr) == bool(arguments)


@pytest.mark.parametrize("caches", ["flush", "keep"])
def test_a_kernel_that_waits_for_another_one_ends_in_a_sentence(tmp_path: Path, caches: str) -> None:
    done = profile_with_caches(tmp_path, caches, "waits", INTERLOCKED)
    assert "launch 0 of waits" in done.stderr
    assert "such as those of NCCL, cannot be counted: choose others (--kernel)" in done.stderr
