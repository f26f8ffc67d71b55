"""All events of a Chrome JSON file: a capture has one row of each kind, and the test lists the event of each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cutrace
from captures import ORIGIN, Capture


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """The JSON of a capture, with times from ORIGIN in ns."""
    with Capture(tmp_path / "a.bin", command=["train"]) as c:
        c.device()
        c.context()
        c.thread(100, "main")
        c.add("resource_names", kind=1, object=8, context=1, name="copies")
        axpy = c.launch(
            "_ZN3lib4axpyILi4EEEvPKfPf", grid=(2, 3, 4), block=(5, 6, 7), registers=40, static_shared=100,
            dynamic_shared=28, local_per_thread=16, cluster_x=2, cluster_y=1, cluster_z=1, graph_node=9, graph=3,
        )  # fmt: skip
        stack = c.stack(("/app/a.py", 3, "main"), ("/app/b.py", 5, "step"))
        c.api("cudaLaunchKernel_v7000", 100, 190, correlation=1, stack=stack)
        c.api("cudaGraphLaunch", 200, 310, correlation=2, thread=101, status=3)
        c.api("cuMemAlloc", 400, 470, domain=1)
        c.kernel(axpy, 1000, 2500, correlation=1)
        c.kernel(c.launch("plain"), 2600, 2700, correlation=2)
        c.memcpy(3000, 3400, 4096, correlation=4, stream=8, kind=8, source=3, destination=4, flags=1)
        c.memcpy(3500, 3600, 128, stream=8, kind=10, source=3, destination=3, peer_context=2)
        c.memset(3700, 3800, 512, value=7, correlation=6, stream=8)
        c.work("graph_launches", 4000, 4500, correlation=7, graph=3)
        c.add("synchronizations", start=ORIGIN + 490, end=ORIGIN + 700, type=3, stream=8, context=1, correlation=8)
        c.add("synchronizations", start=ORIGIN + 710, end=ORIGIN + 730, type=2, stream=8, event=4, context=1,
              correlation=9)  # fmt: skip
        c.push_pop("outer", 90, 500, domain="lib", color=0xFF00FF00, category=3, payload=5, payload_type=4)
        c.push_pop("open", 95, None)
        c.start_end("batch", 10, 5000, range_id=7, thread=100, end_thread=101)
        c.mark("tick", 97, payload=0x4004000000000000, payload_type=3)
        c.add("allocations", time=ORIGIN + 20, address=1 << 40, bytes=1 << 20, operation=1, memory=3, context=1,
              correlation=10)  # fmt: skip
        c.add("allocations", time=ORIGIN + 30, address=1 << 40, bytes=1 << 20, operation=2, memory=3, context=1)
        c.add("memory_pools", time=ORIGIN + 25, address=7, size=1 << 20, used=1 << 10, operation=1, pool_type=1)
        c.add("overheads", start=ORIGIN + 600, end=ORIGIN + 900, kind=1 << 16, thread=100)
        c.add("unified_memory", start=ORIGIN + 50, end=ORIGIN + 60, value=4096, kind=1, source_device=0xFFFFFFFF,
              address=1 << 30)  # fmt: skip
        c.add("jit", start=ORIGIN + 5, end=ORIGIN + 90, operation=3, entry=1, cache_size=9, thread=100)
        c.add("counters", time=ORIGIN + 5, name="power", unit="W", value=2.5, device=0)
        c.add("counters", time=ORIGIN + 6, name="load", series="one", value=7.0, device=0xFFFF)
        c.add("host_slices", start=ORIGIN + 100, end=ORIGIN + 300, name="aten::mm", category="operator",
              arguments='{"shape": [1, 2]}', thread=100, kind=1, external=77)  # fmt: skip
        c.add("gpu_slices", start=ORIGIN + 1000, end=ORIGIN + 2000, name="annotation", category="a", stream=7,
              context=1, correlation=1)  # fmt: skip
        c.add("instants", time=ORIGIN + 111, name="moment", category="x", thread=100, scope=1, arguments='{"a": 1}')
        c.add("environment", time=ORIGIN + 7, kind=2, values=63)
        c.loss(1, 42, "kernel")
        c.clocks()
    cutrace.convert(tmp_path / "a.bin", tmp_path / "a.json")
    found: dict[str, Any] = json.loads((tmp_path / "a.json").read_text())
    for event in found["traceEvents"]:
        for name, begin in (("ts", ORIGIN), ("dur", 0)):
            if name in event:
                event[name] = round(event[name] * 1000) - begin
    return found


def events(document: dict[str, Any], *phases: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] in phases]


GPU = {"ph": "X", "pid": 0}
ON_7 = {"device": 0, "context": 1, "stream": 7}
ON_8 = {"device": 0, "context": 1, "stream": 8}
GPU_EVENTS: list[dict[str, Any]] = [
    {
        "cat": "kernel", "name": "void lib::axpy<4>(float const*, float*)", "tid": 7, "ts": 1000, "dur": 1500,
        "args": {
            "queued": 0, **ON_7, "correlation": 1, "launched at": "b.py:5 in step", "registers per thread": 40,
            "shared memory": 128, "blocks per SM": pytest.approx(24 / 132, abs=1e-6),
            "warps per SM": pytest.approx(24 * 7 / 132, abs=1e-6), "est. achieved occupancy %": 2,
            "grid": [2, 3, 4], "block": [5, 6, 7], "graph id": 3, "graph node id": 9,
            "cutrace": {
                "cluster_x": 2, "cluster_y": 1, "cluster_z": 1, "static_shared": 100, "dynamic_shared": 28,
                "local_per_thread": 16, "name": "_ZN3lib4axpyILi4EEEvPKfPf",
            },
        },
    },
    {
        "cat": "kernel", "name": "plain", "tid": 7, "ts": 2600, "dur": 100,
        "args": {
            "queued": 0, **ON_7, "correlation": 2, "registers per thread": 32, "shared memory": 0,
            "blocks per SM": pytest.approx(1 / 132, abs=1e-6), "warps per SM": pytest.approx(1 / 132, abs=1e-6),
            "est. achieved occupancy %": 0, "grid": [1, 1, 1], "block": [32, 1, 1],
        },
    },
    {
        "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Array)", "tid": 8, "ts": 3000, "dur": 400,
        "args": {**ON_8, "correlation": 4, "bytes": 4096, "memory bandwidth (GB/s)": 10.24, "cutrace": {"flags": 1}},
    },
    {
        "cat": "gpu_memcpy", "name": "Memcpy PtoP (Device -> Device)", "tid": 8, "ts": 3500, "dur": 100,
        "args": {
            **ON_8, "correlation": 0, "bytes": 128, "memory bandwidth (GB/s)": 1.28, "fromDevice": 0, "inDevice": 0,
            "toDevice": 0, "fromContext": 1, "inContext": 1, "toContext": 2, "cutrace": {"peer_context": 2},
        },
    },
    {
        "cat": "gpu_memset", "name": "Memset (Device)", "tid": 8, "ts": 3700, "dur": 100,
        "args": {**ON_8, "correlation": 6, "bytes": 512, "memory bandwidth (GB/s)": 5.12, "cutrace": {"value": 7}},
    },
    {
        "cat": "cuda_sync", "name": "Stream Sync", "tid": 1_000_008, "ts": 490, "dur": 210,
        "args": {"cuda_sync_kind": "Stream Sync", **ON_8, "correlation": 8},
    },
    {
        "cat": "cuda_sync", "name": "Stream Wait Event", "tid": 1_000_008, "ts": 710, "dur": 20,
        "args": {
            "cuda_sync_kind": "Stream Wait Event", "wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1,
            "wait_on_cuda_event_id": 4, **ON_8, "correlation": 9,
        },
    },
    {
        "cat": "graph_launch", "name": "graph 3", "tid": 7, "ts": 4000, "dur": 500,
        "args": {**ON_7, "correlation": 7, "graph id": 3},
    },
    {
        "cat": "a", "name": "annotation", "tid": 7, "ts": 1000, "dur": 1000,
        "args": {"cutrace": {"context": 1, "correlation": 1, "kind": 0}},
    },
]  # fmt: skip
HOST = {"ph": "X", "pid": 100, "tid": 100}
HOST_EVENTS: list[dict[str, Any]] = [
    {
        "cat": "cuda_runtime", "name": "cudaLaunchKernel_v7000", "ts": 100, "dur": 90,
        "args": {"cbid": 211, "correlation": 1, "stack": "b.py:5 in step < a.py:3 in main"},
    },
    {
        "cat": "cuda_runtime", "name": "cudaGraphLaunch", "tid": 101, "ts": 200, "dur": 110,
        "args": {"cbid": 211, "correlation": 2, "cutrace": {"status": 3}},
    },
    {
        "cat": "cuda_driver", "name": "cuMemAlloc", "ts": 400, "dur": 70, "args": {"cbid": 211, "correlation": 0},
    },
    {
        "cat": "nvtx", "name": "outer", "ts": 90, "dur": 410,
        "args": {"domain": "lib", "category": 3, "color": 0xFF00FF00, "payload": 5, "payload type": 4, "depth": 0},
    },
    {"cat": "nvtx", "name": "open", "ts": 95, "args": {"depth": 0}},
    {
        "cat": "operator", "name": "aten::mm", "ts": 100, "dur": 200, "args": {"External id": 77, "shape": [1, 2]},
    },
    {"cat": "overhead", "name": "Buffer Flush", "pid": -1, "ts": 600, "dur": 300},
]  # fmt: skip
OTHERS: list[dict[str, Any]] = [
    {"ph": "b", "cat": "nvtx", "id": 0, "name": "batch", "pid": 100, "tid": 100, "ts": 10, "args": {"range id": 7}},
    {"ph": "e", "cat": "nvtx", "id": 0, "name": "batch", "pid": 100, "tid": 101, "ts": 5000},
    {
        "ph": "i", "s": "t", "cat": "nvtx", "name": "tick", "pid": 100, "tid": 100, "ts": 97,
        "args": {"payload": 2.5, "payload bits": 0x4004000000000000, "payload type": 3, "source": 0},
    },
    {"ph": "i", "s": "p", "cat": "x", "name": "moment", "pid": 100, "tid": 100, "ts": 111, "args": {"a": 1}},
    {
        "ph": "C", "name": "power (GPU 0)", "pid": 100, "tid": 0, "ts": 5, "args": {"value": 2.5},
        "cutrace": {"single": True, "unit": "W", "device": 0, "name": "power"},
    },
    {"ph": "C", "name": "load", "pid": 100, "tid": 0, "ts": 6, "args": {"one": 7}},
    {
        "ph": "i", "s": "p", "cat": "allocation", "name": "allocate", "pid": 100, "tid": 0, "ts": 20,
        "args": {"address": 1 << 40, "bytes": 1 << 20, "device": 0, "context": 1, "correlation": 10, "memory": 3},
    },
    {
        "ph": "i", "s": "p", "cat": "allocation", "name": "release", "pid": 100, "tid": 0, "ts": 30,
        "args": {"address": 1 << 40, "bytes": 1 << 20, "device": 0, "context": 1, "correlation": 0, "memory": 3},
    },
    {
        "ph": "i", "s": "p", "cat": "memory_pool", "name": "memory pool created", "pid": 100, "tid": 0, "ts": 25,
        "args": {"address": 7, "size": 1 << 20, "used": 1 << 10, "device": 0, "correlation": 0},
    },
    {
        "ph": "i", "s": "p", "cat": "unified_memory", "name": "migration HtoD", "pid": 100, "tid": 0, "ts": 50,
        "args": {
            "duration (us)": 0.01, "value": 4096, "address": 1 << 30, "source": 0xFFFFFFFF, "destination": 0,
            "flags": 0,
        },
    },
    {
        "ph": "i", "s": "t", "cat": "jit", "name": "compile", "pid": 100, "tid": 100, "ts": 5,
        "args": {"duration (us)": 0.085, "cache size": 9, "correlation": 0, "device": 0},
    },
]  # fmt: skip
NAMES: list[dict[str, Any]] = [
    {"name": "process_name", "pid": 100, "args": {"name": "train"}},
    {"name": "thread_name", "pid": 100, "tid": 100, "args": {"name": "main"}},
    {"name": "process_name", "pid": 0, "args": {"name": "GPU 0"}},
    {"name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
    {"name": "process_sort_index", "pid": 0, "args": {"sort_index": 5_000_000}},
    {"name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    {"name": "thread_sort_index", "pid": 0, "tid": 7, "args": {"sort_index": 7}},
    {"name": "thread_name", "pid": 0, "tid": 8, "args": {"name": "copies"}},
    {"name": "thread_sort_index", "pid": 0, "tid": 8, "args": {"sort_index": 8}},
    {"name": "thread_name", "pid": 0, "tid": 1_000_008, "args": {"name": "copies (sync)"}},
    {"name": "thread_sort_index", "pid": 0, "tid": 1_000_008, "args": {"sort_index": 8}},
]


def test_work_of_the_gpu_and_slices_of_the_host(document):
    expected = [GPU | event for event in GPU_EVENTS] + [HOST | event for event in HOST_EVENTS]
    assert events(document, "X") == expected


def test_ranges_across_threads_moments_and_counters(document):
    assert events(document, "b", "e", "i", "C") == OTHERS


def test_arrows_lead_from_calls_to_their_work(document):
    arrow = {"cat": "ac2g", "name": "ac2g"}
    ends = [(1, 7, 1000), (2, 7, 2600), (4, 8, 3000), (6, 8, 3700)]
    assert events(document, "f") == [
        {"ph": "f", "bp": "e", **arrow, "id": number, "pid": 0, "tid": stream, "ts": time}
        for number, stream, time in ends
    ]
    assert events(document, "s") == [
        {"ph": "s", **arrow, "id": number, "pid": 100, "tid": thread, "ts": time}
        for number, thread, time in ((1, 100, 100), (2, 101, 200))
    ]


def test_processes_threads_and_streams_have_names_and_an_order(document):
    assert events(document, "M") == [{"ph": "M"} | event for event in NAMES]


def test_the_gpu_and_what_is_missing_are_described(document):
    (device,) = document["deviceProperties"]
    del device["cutrace"]
    assert device == {
        "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_121_545_728, "computeMajor": 9, "computeMinor": 0,
        "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65_536, "warpSize": 32,
        "sharedMemPerBlock": 49_152, "numSms": 132, "regsPerMultiprocessor": 65_536, "sharedMemPerBlockOptin": 232_448,
        "sharedMemPerMultiprocessor": 233_472,
    }  # fmt: skip
    assert (document["schemaVersion"], document["baseTimeNanoseconds"]) == (1, 1_700_000_000_000_000_000)
    assert document["cutrace_missing"] == [
        "42 records that CUPTI dropped because it had no buffer (kernel)",
        "1 row of nvtx_ranges that never ended: they last to the end of their process, and sums leave out their "
        "own time",
        "left out, because no event can hold them: 1 row of environment",
        "left out, because no event can hold them: 1 row of call_stacks",
    ]
