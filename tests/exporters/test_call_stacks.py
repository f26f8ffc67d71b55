"""Python stacks in traces: stacks of calls, and stacks of the launches of GPU work."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import captures
import cutrace
from captures import Capture
from contents import contents
from cutrace.exporters.perfetto import export, host_writer
from pftrace import Decoded, decode

ADD = "ops.py:7 in fused_add < train.py:42 in step < train.py:10 in main"
LOAD = "data.py:5 in load < train.py:10 in main"
#: The stacks of calls, by name and correlation id.
STACKS = {
    ("cudaLaunchKernel", 1): ADD,
    ("cuLaunchKernel", 1): ADD,
    ("cudaLaunchKernel", 2): ADD,
    ("cuLaunchKernel", 2): ADD,
    ("cudaLaunchKernel", 10): "model.py:3 in forward < train.py:10 in main",
    ("cudaGraphLaunch", 20): "train.py:60 in replay < train.py:10 in main",
    ("cudaGraphLaunch", 21): "train.py:60 in replay < train.py:10 in main",
    ("cudaMemcpyAsync", 30): LOAD,
    ("cudaMalloc", 40): LOAD,
    ("cudaFree", 41): LOAD,
    ("cudaStreamSynchronize", 50): "train.py:42 in step < train.py:10 in main",
}
#: The frames of the launches of GPU work, by name.
LAUNCHED = {
    "add": Counter({"ops.py:7 in fused_add": 2, None: 1}),
    "node": Counter({"train.py:60 in replay": 2}),
    "Memset": Counter({"train.py:60 in replay": 2}),
    "Memcpy HtoD": Counter({"data.py:5 in load": 1}),
}


def converted(run: Path, **options) -> Decoded:
    out = run.with_suffix(".pftrace")
    cutrace.convert(run, out, **options)
    return decode(out)


def launched(events) -> dict[str, Counter]:
    found: dict[str, Counter] = {}
    for name, place in events:
        found.setdefault(name, Counter())[place] += 1
    return found


@pytest.mark.parametrize("derived", [True, False])
def test_slices_of_calls_have_their_stacks(tmp_path, derived):
    trace = converted(captures.python_calls(tmp_path / "run.bin"), derived=derived)
    calls = {(s.name, s.args["correlation"]): s.args.get("stack") for s in trace.slices if "correlation" in s.args}
    assert {key: stack for key, stack in calls.items() if stack} == STACKS
    assert calls["cudaLaunchKernel", 3] is None


def test_gpu_work_has_the_line_that_launched_it(tmp_path):
    trace = converted(captures.python_calls(tmp_path / "run.bin"))
    found = launched((event.name, event.args.get("launched_at")) for event in trace.gpu)
    assert found == LAUNCHED


def test_processes_have_their_own_stacks(tmp_path):
    parts = [captures.python_calls(tmp_path / f"{pid}.bin", pid=pid, root=f"/app{pid}") for pid in (100, 200)]
    trace = converted(captures.join(tmp_path / "run.bin", parts))
    stacks = Counter(s.args["stack"] for s in trace.slices if s.name == "cudaMalloc")
    assert stacks == {f"app{pid}/data.py:5 in load < app{pid}/train.py:10 in main": 1 for pid in (100, 200)}
    places = Counter(event.args.get("launched_at") for event in trace.gpu if event.name == "add")
    assert places == {"app100/ops.py:7 in fused_add": 2, "app200/ops.py:7 in fused_add": 2, None: 2}


def test_small_windows_change_nothing(tmp_path, monkeypatch):
    run = captures.python_calls(tmp_path / "run.bin")
    whole = converted(run)
    for name in ("WINDOW", "KEPT"):
        monkeypatch.setattr(export, f"GPU_{name}", 1)
        monkeypatch.setattr(host_writer, f"HOST_{name}", 1)
    small = converted(run)
    assert Counter(s.args.get("stack") for s in small.slices) == Counter(s.args.get("stack") for s in whole.slices)
    assert [e.args.get("launched_at") for e in small.gpu] == [e.args.get("launched_at") for e in whole.gpu]


def test_stacks_are_written_once(tmp_path):
    sizes = []
    frames = [(f"/app/{'long' * 20}{depth}.py", depth, "f" * 60) for depth in range(1, 7)]
    for with_stacks in (False, True):
        with Capture(tmp_path / "run.bin") as c:
            stack = c.stack(*frames) if with_stacks else 0
            kernel = c.launch("_Z3addPf")
            for number in range(1, 1_001):
                c.api("cudaLaunchKernel", 100 * number, 100 * number + 50, correlation=number, stack=stack)
                c.kernel(kernel, 100 * number + 60, 100 * number + 90, correlation=number)
        cutrace.convert(tmp_path / "run.bin", tmp_path / "run.pftrace", capture=False)
        sizes.append((tmp_path / "run.pftrace").stat().st_size)
    # Each call only refers to the string of its stack.
    assert sizes[1] - sizes[0] < 1_000 * 9


def test_a_trace_of_another_format_has_them_too(tmp_path):
    run = captures.python_calls(tmp_path / "run.bin")
    cutrace.convert(run, tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    calls = {
        (e["name"], e["args"]["correlation"]): e["args"]["stack"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "stack" in e["args"]
    }
    assert calls == STACKS
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    names = {
        "Memset (Device)": "Memset", "Memcpy HtoD (Pageable -> Device)": "Memcpy HtoD", "add(float*)": "add",
        "node()": "node",
    }  # fmt: skip
    assert launched((names.get(e["name"], e["name"]), e["args"].get("launched at")) for e in work) == LAUNCHED


def test_a_capture_without_stacks_has_no_such_arguments(tmp_path):
    run = captures.training_steps(tmp_path / "run.bin", steps=1)
    trace = converted(run)
    assert not any("stack" in s.args for s in trace.slices)
    assert not any("launched_at" in e.args for e in trace.gpu)
    cutrace.convert(run, tmp_path / "run.json")
    assert not {'"stack"', '"launched at"'} & set((tmp_path / "run.json").read_text().replace(":", ",").split(","))


@pytest.mark.parametrize("name", ["run.pftrace", "run.json"])
def test_the_carried_capture_has_the_tables(tmp_path, name):
    run = captures.python_calls(tmp_path / "run.bin")
    cutrace.convert(run, tmp_path / name, capture=True)
    with cutrace.load(run) as trace, cutrace.load(tmp_path / name) as other:
        assert contents(other)["call_stacks"] == contents(trace)["call_stacks"]
