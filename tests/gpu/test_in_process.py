"""Recording from inside a Python program, also when another tool in the process uses CUPTI."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutrace

Python = Callable[..., Any]
Needs = Callable[..., None]


@pytest.fixture(autouse=True)
def _needs_torch(needs: Needs) -> None:
    needs("torch")


RECORD = """
import json, torch, cutrace
x = torch.zeros(1024, device="cuda")
for _ in range(5):
    x.add_(1)
torch.cuda.synchronize()
with cutrace.record("run.bin"):
    with torch.cuda.nvtx.range("inside"):
        for _ in range(20):
            x.add_(1)
    torch.cuda.synchronize()
for _ in range(5):
    x.add_(1)
torch.cuda.synchronize()
print(json.dumps({"value": x[0].item()}))
"""


def test_record_holds_the_block_and_nothing_else(python: Python) -> None:
    recorded = python(RECORD)
    assert recorded.report == {"value": 30.0}
    assert len(recorded.trace.kernels) == 20
    ranges = recorded.trace.nvtx_ranges
    assert list(recorded.trace.strings.take(ranges["name"])) == ["inside"]
    recorded.launching_calls(recorded.trace.kernels)
    recorded.assert_lossless()


TWICE = """
import torch, cutrace
x = torch.zeros(1024, device="cuda")
@cutrace.record("run.bin")
def step(times):
    for _ in range(times):
        x.add_(1)
    torch.cuda.synchronize()
step(3)
step(4)
print("{}")
"""


def test_a_decorated_function_is_recorded_anew_each_time(python: Python) -> None:
    recorded = python(TWICE)
    assert recorded.report == {}
    assert len(recorded.trace.kernels) == 3
    with cutrace.load(recorded.path.with_name("run-1.bin")) as second:
        assert len(second.kernels) == 4


ARM = """
import torch, cutrace
capture = cutrace.arm("run.bin")
x = torch.zeros(1024, device="cuda")
for _ in range(10):
    x.add_(1)
torch.cuda.synchronize()
print("{}")
"""


def test_arm_records_from_the_first_cuda_call_to_the_end_of_the_program(python: Python) -> None:
    recorded = python(ARM)
    assert recorded.report == {}
    assert sum(count for name, count in recorded.kernel_counts().items() if "elementwise" in name) >= 10
    recorded.assert_lossless()


ARM_IDLE = """
import torch, cutrace
capture = cutrace.arm("run.bin")
assert not torch.cuda.is_initialized()
assert capture.stop() is None
print("{}")
"""


def test_arm_does_not_initialise_cuda(python: Python) -> None:
    recorded = python(ARM_IDLE)
    assert recorded.report == {}
    assert not recorded.path.exists()


PROFILER_FIRST = """
import json, torch, cutrace
from torch.profiler import ProfilerActivity, profile
x = torch.zeros(1024, device="cuda")
with profile(activities=[ProfilerActivity.CUDA]) as profiler:
    try:
        with cutrace.record("run.bin"):
            x.add_(1)
            torch.cuda.synchronize()
        said = None
    except cutrace.CutraceError as error:
        said = str(error)
    for _ in range(5):
        x.add_(1)
    torch.cuda.synchronize()
seen = sum("elementwise" in event.name for event in profiler.events())
print(json.dumps({"said": said, "seen": seen}))
"""


def test_while_torch_profiler_holds_cupti_cutrace_says_so_and_stands_aside(python: Python) -> None:
    report = python(PROFILER_FIRST).report
    if report["said"] is None:
        pytest.skip("this CUPTI serves several subscribers")
    assert "CUPTI" in report["said"]
    assert report["seen"] >= 5


AGAIN = """
import json, torch, cutrace
x = torch.zeros(1024, device="cuda")
x.add_(1)
for api, path in (("launch", "run.bin"), ("all", "all.bin"), ("launch", "third.bin")):
    with cutrace.record(path, api=api):
        for _ in range(3):
            x.add_(1)
        torch.cuda.synchronize()
def names(path):
    trace = cutrace.load(path)
    return sorted(set(trace.strings.take(trace.functions[trace.api_calls["function"]]["name"])))
print(json.dumps({"calls": [names(path) for path in ("run.bin", "all.bin", "third.bin")]}))
"""


def test_each_recording_of_a_process_has_its_own_filter_of_calls(python: Python) -> None:
    first, everything, third = python(AGAIN).report["calls"]
    assert first == third == ["cudaDeviceSynchronize", "cudaLaunchKernel"]
    assert {*first, "cudaGetLastError"} <= set(everything)


PROFILER_AFTER = """
import json, torch, cutrace
from torch.profiler import ProfilerActivity, profile
x = torch.zeros(1024, device="cuda")

def steps():
    for _ in range(5):
        x.add_(1)
    torch.cuda.synchronize()

with cutrace.record("run.bin"):
    steps()
with profile(activities=[ProfilerActivity.CUDA]) as profiler:
    steps()
seen = sum("elementwise" in event.name for event in profiler.events())
try:
    with cutrace.record("again.bin"):
        steps()
    said = ""
except cutrace.CutraceError as error:
    said = str(error)
print(json.dumps({"seen": seen, "said": said}))
"""


def test_torch_profiler_works_after_a_recording_and_keeps_cupti_from_then_on(python: Python) -> None:
    recorded = python(PROFILER_AFTER)
    assert recorded.report["seen"] == 5
    assert len(recorded.trace.kernels) == 5
    # The CUPTI subscription of torch.profiler outlives its session, so the next recording must name the holder.
    assert "torch.profiler" in recorded.report["said"]


PROFILER_DURING = """
import json, torch, cutrace
from torch.profiler import ProfilerActivity, profile
x = torch.zeros(1024, device="cuda")
with cutrace.record("run.bin"):
    with profile(activities=[ProfilerActivity.CUDA]):
        for _ in range(5):
            x.add_(1)
        torch.cuda.synchronize()
print(json.dumps({"value": x[0].item()}))
"""


def test_torch_profiler_inside_a_recording_does_not_hurt_it(python: Python) -> None:
    recorded = python(PROFILER_DURING)
    assert recorded.report == {"value": 5.0}
    assert len(recorded.trace.kernels) == 5


UNDER_RECORD = """
import json, torch
from torch.profiler import ProfilerActivity, profile
x = torch.zeros(1024, device="cuda")
with profile(activities=[ProfilerActivity.CUDA]):
    for _ in range(5):
        x.add_(1)
    torch.cuda.synchronize()
print(json.dumps({"value": x[0].item()}))
"""


def test_a_program_with_torch_profiler_in_it_can_be_recorded(record: Callable[..., Any]) -> None:
    recorded = record([sys.executable, "-c", UNDER_RECORD], limit=60)
    assert recorded.report == {"value": 5.0}
    assert sum(c for name, c in recorded.kernel_counts().items() if "elementwise" in name) >= 5


CAPTURING = """
import json, torch, cutrace
from cutrace.collect.library import collector
x = torch.zeros(1024, device="cuda")
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with cutrace.record("run.bin"):
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="global")
        x.add_(1)
        collector().synchronize()
        x.add_(1)
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
print(json.dumps({"value": x[0].item()}))
"""


def test_waiting_for_the_gpu_leaves_the_capture_of_a_stream_alone(python: Python) -> None:
    """The plugin waits in this way between tests. The graph is complete and can be replayed."""
    recorded = python(CAPTURING)
    assert recorded.report == {"value": 2.0}
    # In addition to the nodes, PyTorch fills the state of its random numbers.
    nodes = recorded.trace.launches["graph_node"][recorded.trace.kernels["launch"]]
    assert np.count_nonzero(nodes) == len(np.unique(nodes[nodes != 0])) == 2


ENDS_INSIDE = """
import json, torch, cutrace
x = torch.zeros(1024, device="cuda")
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.stream(stream):
    with cutrace.record("run.bin"):
        graph.capture_begin(capture_error_mode="global")
        x.add_(1)
    x.add_(1)
    graph.capture_end()
graph.replay()
torch.cuda.synchronize()
print(json.dumps({"value": x[0].item()}))
"""


def test_the_end_of_a_recording_leaves_the_capture_of_a_stream_alone(python: Python) -> None:
    recorded = python(ENDS_INSIDE)
    assert recorded.report == {"value": 2.0}
    assert any("did not wait for the GPU" in note for note in recorded.trace.processes[0].info["notes"])
