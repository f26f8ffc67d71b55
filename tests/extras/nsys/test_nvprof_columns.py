"""The destination of each column of an nvprof database. All values differ."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import cutrace
from cutrace import Trace
from databases import account, nvprof, texts

PREFIX = "CUPTI_ACTIVITY_KIND_"
CALL = {"start": 10, "end": 20, "cbid": 211, "processId": 100, "threadId": 5, "correlationId": 5}
WORK = {"start": 100, "end": 140, "deviceId": 2, "contextId": 3, "streamId": 14, "correlationId": 15}
WORKED = {"start": 100, "end": 140, "device": 2, "context": 3, "stream": 14, "correlation": 15}
KERNEL = WORK | {
    "cacheConfig": b"\x21", "registersPerThread": 21, "gridX": 22, "gridY": 23, "gridZ": 24, "blockX": 25,
    "blockY": 26, "blockZ": 27, "staticSharedMemory": 28, "dynamicSharedMemory": 29, "localMemoryPerThread": 30,
    "localMemoryTotal": 31, "name": 1, "launchType": 1, "isSharedMemoryCarveoutRequested": 1,
    "sharedMemoryCarveoutRequested": 40, "sharedMemoryExecuted": 32,
}  # fmt: skip


def load(path: Path, strings: tuple[str, ...] = (), **tables: list[dict[str, Any]]) -> Trace:
    return cutrace.load(nvprof(path / "a.nvvp", strings, **{"RUNTIME": [CALL], **tables}))


def only(trace: Trace, table: str) -> dict[str, Any]:
    (row,) = trace.table(table)
    return {name: row[name].item() for name in row.dtype.names}


@pytest.mark.parametrize("kind", ["KERNEL", "CONCURRENT_KERNEL"])
def test_kernels(tmp_path, kind):
    trace = load(tmp_path, ("_Z3addPf",), **{kind: [KERNEL]})
    row = only(trace, "kernels")
    assert row == row | WORKED
    launch = trace.launches[row["launch"]]
    found = {name: launch[name].item() for name in launch.dtype.names}
    assert trace.strings[found["name"]] == "_Z3addPf"
    assert found == found | {
        "registers": 21, "grid_x": 22, "grid_y": 23, "grid_z": 24, "block_x": 25, "block_y": 26, "block_z": 27,
        "static_shared": 28, "dynamic_shared": 29, "local_per_thread": 30, "local_total": 31, "shared_executed": 32,
        "launch_type": 1, "carveout": 40, "cache_requested": 1, "cache_executed": 2,
    }  # fmt: skip


def test_copies_fills_and_waits(tmp_path):
    copy = WORK | {"bytes": 512, "copyKind": 8, "srcKind": 3, "dstKind": 4, "flags": 3}
    peers = [
        {"srcDeviceId": 2, "srcContextId": 3, "dstDeviceId": 7, "dstContextId": 8},
        {"srcDeviceId": 7, "srcContextId": 8, "dstDeviceId": 2, "dstContextId": 3},
    ]
    trace = load(
        tmp_path,
        MEMCPY=[copy],
        MEMCPY2=[copy | {"start": 200 + 10 * at, "end": 205 + 10 * at} | peer for at, peer in enumerate(peers)],
        MEMSET=[WORK | {"value": 0xFFFF_FFFF, "bytes": 64, "flags": 2, "memoryKind": 6}],
        SYNCHRONIZATION=[{"start": 300, "end": 310, "type": 2, "correlationId": 6, "contextId": 3, "streamId": 14,
                          "cudaEventId": 9}],
        CUDA_EVENT=[{"correlationId": 7, "contextId": 3, "streamId": 14, "eventId": 9}],
        EXTERNAL_CORRELATION=[{"externalKind": 2, "externalId": 77, "correlationId": 8}],
    )  # fmt: skip
    first = {name: trace.memcpys[0][name].item() for name in trace.memcpys.dtype.names}
    assert first == first | WORKED | {
        "bytes": 512, "kind": 8, "source_memory": 3, "destination_memory": 4, "flags": 1,
    }  # fmt: skip
    devices = ["source_device", "destination_device", "peer_context"]
    assert trace.memcpys[devices].tolist() == [(2, 2, 0), (2, 7, 8), (7, 2, 8)]
    fill = only(trace, "memsets")
    assert fill == fill | WORKED | {"value": 0xFFFF_FFFF, "bytes": 64, "flags": 0, "memory": 6}
    wait = only(trace, "synchronizations")
    assert wait == wait | {
        "start": 300,
        "end": 310,
        "type": 2,
        "correlation": 6,
        "context": 3,
        "stream": 14,
        "event": 9,
    }
    event = only(trace, "cuda_events")
    assert event == event | {"correlation": 7, "context": 3, "stream": 14, "event": 9}
    outer = only(trace, "external_correlations")
    assert outer == outer | {"external": 77, "correlation": 8, "kind": 2}


def test_memory_and_overheads(tmp_path):
    trace = load(
        tmp_path, ("variable",),
        UNIFIED_MEMORY_COUNTER=[{
            "counterKind": 1, "value": 4096, "start": 20, "end": 25, "address": 7, "srcId": 8, "dstId": 9,
            "streamId": 10, "processId": 100, "flags": 2,
        }],
        MEMORY=[{
            "start": 10, "end": 0, "address": 4096, "bytes": 64, "memoryKind": 3, "processId": 100, "deviceId": 2,
            "contextId": 3, "name": 1,
        }],
        OVERHEAD=[
            {"overheadKind": 1, "objectKind": 2, "objectId": struct.pack("<III", 100, 6, 9), "start": 1, "end": 2},
            {"overheadKind": 1, "objectKind": 3, "objectId": struct.pack("<III", 100, 6, 9), "start": 3, "end": 4},
        ],
    )  # fmt: skip
    moved = only(trace, "unified_memory")
    assert moved == moved | {
        "start": 20, "end": 25, "value": 4096, "address": 7, "stream": 10, "kind": 1, "source_device": 8,
        "destination_device": 9, "flags": 2,
    }  # fmt: skip
    made = only(trace, "allocations")
    assert trace.strings[made["source"]] == "variable"
    assert made == made | {
        "time": 10,
        "operation": 1,
        "address": 4096,
        "bytes": 64,
        "memory": 3,
        "device": 2,
        "context": 3,
    }
    assert trace.overheads[["start", "end", "kind", "thread"]].tolist() == [(1, 2, 1, 6), (3, 4, 1, 0)]


def test_the_machine_and_its_modules(tmp_path):
    trace = load(
        tmp_path, ("Tesla", "_Z3addPf"),
        DEVICE=[{
            "id": 1, "globalMemorySize": 11, "globalMemoryBandwidth": 12, "computeCapabilityMajor": 3,
            "computeCapabilityMinor": 5, "numMultiprocessors": 13, "coreClockRate": 14, "l2CacheSize": 15,
            "numThreadsPerWarp": 16, "maxThreadsPerBlock": 17, "maxWarpsPerMultiprocessor": 18,
            "maxBlocksPerMultiprocessor": 19, "maxRegistersPerMultiprocessor": 20, "maxRegistersPerBlock": 21,
            "maxSharedMemoryPerMultiprocessor": 22, "maxSharedMemoryPerBlock": 23, "numMemcpyEngines": 24, "name": 1,
            "uuid": bytes(range(16)),
        }],
        CONTEXT=[{"contextId": 3, "deviceId": 1, "computeApiKind": 2, "nullStreamId": 7}],
        STREAM=[{"contextId": 3, "streamId": 13, "priority": -2, "flag": 1}],
        MODULE=[{"contextId": 3, "id": 31, "cubinSize": 32, "cubin": b"ELF"}],
        FUNCTION=[{"id": 41, "contextId": 3, "moduleId": 31, "functionIndex": 42, "name": 2}],
    )  # fmt: skip
    device = only(trace, "devices")
    assert device == device | {
        "device": 1, "memory": 11, "memory_bandwidth": 12, "compute_major": 3, "compute_minor": 5,
        "multiprocessors": 13, "core_clock": 14, "l2_cache": 15, "warp_size": 16, "max_threads_per_block": 17,
        "max_warps_per_multiprocessor": 18, "max_blocks_per_multiprocessor": 19, "registers_per_multiprocessor": 20,
        "registers_per_block": 21, "shared_per_multiprocessor": 22, "shared_per_block": 23, "copy_engines": 24,
        "max_threads_per_multiprocessor": 16 * 18,
    }  # fmt: skip
    context = only(trace, "contexts")
    assert context == context | {"context": 3, "device": 1, "compute_api": 2, "null_stream": 7}
    stream = only(trace, "streams")
    assert stream == stream | {"stream": 13, "context": 3, "type": 1, "priority": -2}
    module = only(trace, "modules")
    assert module == module | {"module": 31, "size": 32, "context": 3}
    function = only(trace, "device_functions")
    assert function == function | {"device_function": 41, "module": 31, "index": 42, "context": 3}
    assert trace.strings[function["name"]] == "_Z3addPf"


ACC = (
    "unknown", "device init", "device shutdown", "runtime shutdown", "enqueue launch", "enqueue upload",
    "enqueue download", "wait", "implicit wait", "compute construct", "update", "enter data", "exit data", "create",
    "delete", "alloc", "free", "unknown",
)  # fmt: skip
MP = ("unknown", "parallel", "task", "thread", "idle", "wait barrier", "wait taskwait", "unknown")


@pytest.mark.parametrize(
    ("table", "names", "category"),
    [("OPENACC_DATA", ACC, "OpenACC"), ("OPENACC_OTHER", ACC, "OpenACC"), ("OPENMP", MP, "OpenMP")],
)
def test_constructs_have_the_names_of_their_kinds(tmp_path, table, names, category):
    events = [
        {"start": 10 * at, "end": 10 * at + 5, "eventKind": at, "cuProcessId": 100, "cuThreadId": at % 2, "threadId": 9}
        for at in (*range(1, len(names)), 0, 999)
    ]
    events[-2] |= {"start": 100_000, "end": 100_001}
    trace = load(tmp_path, **{table: events})
    by_start = dict(zip(trace.host_slices["start"].tolist(), texts(trace, trace.host_slices), strict=True))
    assert by_start == {10 * at: names[at] for at in range(1, len(names))} | {100_000: "unknown", 9_990: "unknown"}
    threads = dict(zip(trace.host_slices["start"].tolist(), trace.host_slices["thread"].tolist(), strict=True))
    assert (threads[10], threads[20]) == (1, 9), "CUDA's number of the thread, if there is one"
    assert set(texts(trace, trace.host_slices, "category")) == {category}


def test_arguments_of_a_construct(tmp_path):
    numbers = {"deviceNumber": 1, "async": 2, "lineNo": 3, "endLineNo": 4}
    event = {"start": 10, "end": 20, "eventKind": 9, "cuProcessId": 100, "cuThreadId": 7, "externalId": 6}
    trace = load(
        tmp_path, ("main.c", "compute", "x"),
        OPENACC_DATA=[event | numbers | {"bytes": 5, "srcFile": 1, "funcName": 2, "varName": 3}],
        PREEMPTION=[{"preemptionKind": 1, "timestamp": 50, "gridId": 2, "blockX": 3, "blockY": 4, "blockZ": 5}],
    )  # fmt: skip
    row = only(trace, "host_slices")
    assert row == row | {"start": 10, "end": 20, "thread": 7, "external": 6}
    assert json.loads(trace.strings[row["arguments"]]) == numbers | {
        "bytes": 5, "srcFile": "main.c", "funcName": "compute", "varName": "x",
    }  # fmt: skip
    instant = only(trace, "instants")
    assert (instant["time"], instant["scope"], trace.strings[instant["name"]]) == (50, 1, "preemption")
    assert json.loads(trace.strings[instant["arguments"]]) == {
        "preemptionKind": 1, "gridId": 2, "blockX": 3, "blockY": 4, "blockZ": 5,
    }  # fmt: skip


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("instance", [False, True])
@pytest.mark.parametrize("noun", ["event", "metric"])
def test_counters_of_each_kind(tmp_path, noun, instance, timed):
    table = f"{'INSTANTANEOUS_' * timed}{noun.upper()}{'_INSTANCE' * instance}"
    value = struct.pack("<d", 2.5) if noun == "metric" else 25
    counter = {"id": 3, "value": value} | ({"instance": 4} if instance else {})
    counter |= {"timestamp": 33, "deviceId": 2} if timed else {"correlationId": 15}
    trace = load(tmp_path, ("k",), CONCURRENT_KERNEL=[KERNEL], **{table: [counter]})
    row = only(trace, "counters")
    assert row == row | {"time": 33 if timed else 100, "device": 2 if timed else 0xFFFF}
    assert row["value"] == (2.5 if noun == "metric" else 25.0)
    names = [trace.strings[row[field]] for field in ("name", "series", "category")]
    assert names == [f"{noun} 3", "instance 4" if instance else "", f"nvprof {noun}s"]


def test_readings_of_an_unknown_kind_and_numbers_that_are_none_are_lost(tmp_path):
    trace = load(
        tmp_path,
        ENVIRONMENT=[
            {"timestamp": 40 + kind, "environmentKind": kind, "data": struct.pack("<I", kind)} for kind in range(6)
        ],
        INSTANTANEOUS_METRIC=[
            {"id": 1, "value": struct.pack("<d", value), "timestamp": 7} for value in (float("nan"), 1.5)
        ],
    )  # fmt: skip
    assert trace.environment["kind"].tolist() == [1, 2, 3, 4]
    assert trace.counters["value"].tolist() == [1.5]
    for table, why, count in (("ENVIRONMENT", "an unknown kind", 2), ("INSTANTANEOUS_METRIC", "not a number", 1)):
        assert account(trace, PREFIX + table).lost[why].count == count


def test_names_are_of_the_object_that_their_id_says(tmp_path):
    names = {
        "program": (1, (100, 0, 0)), "thread": (2, (100, 44, 0)), "device": (3, (2, 0, 0)), "context": (4, (2, 3, 0)),
        "stream": (5, (2, 3, 14)), "nothing": (6, (1, 1, 1)),
    }  # fmt: skip
    trace = load(
        tmp_path, tuple(names),
        NAME=[{"objectKind": kind, "objectId": struct.pack("<III", *numbers), "name": at}
              for at, (kind, numbers) in enumerate(names.values(), 1)],
    )  # fmt: skip
    assert [p.name for p in trace.processes] == ["program"]
    assert trace.threads[["thread", "source"]].tolist() == [(44, 2)]
    named = zip(
        texts(trace, trace.resource_names), trace.resource_names[["kind", "object", "context"]].tolist(), strict=True
    )
    assert dict(named) == {"device": (3, 2, 0), "context": (2, 3, 0), "stream": (1, 14, 3)}
    assert account(trace, PREFIX + "NAME").kept.count == 6


def test_rows_go_to_their_process(tmp_path):
    trace = load(
        tmp_path, ("k",),
        RUNTIME=[CALL, CALL | {"processId": 200, "start": 30, "end": 40}],
        CONCURRENT_KERNEL=[KERNEL],
        OPENMP=[{"start": 50, "end": 60, "eventKind": 1, "cuProcessId": 200, "cuThreadId": 1}],
    )  # fmt: skip
    assert [p.pid for p in trace.processes] == [100, 200]
    assert sorted(trace.api_calls[["process", "start"]].tolist()) == [(0, 10), (1, 30)]
    assert trace.kernels["process"].tolist() == [0], "work has no process in the file"
    assert trace.host_slices["process"].tolist() == [1]
