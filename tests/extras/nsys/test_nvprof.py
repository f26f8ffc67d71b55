"""Import of nvprof databases: every record is imported, omitted by name, or counted as lost."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cutrace
from cutrace import BadCapture
from databases import DATA, account, nvprof, texts

PREFIX = "CUPTI_ACTIVITY_KIND_"
EPOCH = 1_478_000_000_000_000_000
#: A result of pthread_self(). A capture keeps its low 32 bits.
THREAD = 0x7F3A_1234_5700


def call(start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "cbid": 211, "processId": 100, "threadId": THREAD, "correlationId": 5} | more


def kernel(start: int, end: int, **more: Any) -> dict[str, Any]:
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 5, "name": 1}
    shape = {"gridX": 4, "gridY": 1, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1, "registersPerThread": 16}
    return {"start": start, "end": end, "cacheConfig": b"\x31"} | place | shape | more


def test_kernels_calls_copies_and_fills(tmp_path: Path) -> None:
    path = nvprof(
        tmp_path / "a.nvvp", ["_Z3addPf"],
        CONCURRENT_KERNEL=[kernel(30, 50, staticSharedMemory=64, sharedMemoryExecuted=1024, launchType=1)],
        RUNTIME=[call(10, 20), call(21, 22, cbid=31, returnValue=2, correlationId=6)],
        DRIVER=[call(11, 12, cbid=307), call(13, 14, cbid=999_999)],
        MEMCPY=[{"start": 60, "end": 70, "bytes": 4096, "copyKind": 1, "srcKind": 1, "dstKind": 3, "flags": 1,
                 "contextId": 1, "streamId": 7, "correlationId": 6}],
        MEMCPY2=[{"start": 71, "end": 75, "bytes": 8, "copyKind": 10, "srcKind": 3, "dstKind": 3, "deviceId": 0,
                  "contextId": 1, "srcDeviceId": 0, "srcContextId": 1, "dstDeviceId": 1, "dstContextId": 2}],
        MEMSET=[{"start": 80, "end": 90, "bytes": 64, "value": 255, "memoryKind": 3, "contextId": 1}],
    )  # fmt: skip
    trace = cutrace.load(path)

    assert trace.kernels[["start", "end", "correlation", "stream", "context", "device"]].tolist() == [
        (30, 50, 5, 7, 1, 0)
    ]
    launch = trace.launches[trace.kernels["launch"]]
    assert texts(trace, launch) == ["_Z3addPf"]
    assert launch[["grid_x", "block_x", "registers", "static_shared", "shared_executed", "launch_type"]].tolist() == [
        (4, 256, 16, 64, 1024, 1)
    ]
    assert launch[["cache_requested", "cache_executed", "carveout"]].tolist() == [(1, 3, 255)]

    functions = trace.functions[trace.api_calls["function"]]
    found = zip(texts(trace, functions), functions["domain"].tolist(), functions["status"].tolist(), strict=True)
    assert sorted(found) == [
        ("cuLaunchKernel", 1, 0), ("cudaLaunchKernel", 2, 0), ("cudaMemcpy", 2, 2), ("driver function 999999", 1, 0),
    ]  # fmt: skip
    assert trace.memcpys[["kind", "bytes", "flags", "destination_device", "peer_context"]].tolist() == [
        (1, 4096, 1, 0, 0), (10, 8, 0, 1, 2),
    ]  # fmt: skip
    assert trace.memsets[["bytes", "value", "memory"]].tolist() == [(64, 255, 3)]
    assert [p.pid for p in trace.processes] == [100]


def test_wide_threads_keep_their_low_bits_and_their_whole_number_as_a_name(tmp_path: Path) -> None:
    trace = cutrace.load(nvprof(tmp_path / "a.nvvp", RUNTIME=[call(10, 20), call(30, 40, threadId=77)]))

    assert trace.api_calls["thread"].tolist() == [THREAD & 0xFFFFFFFF, 77]
    assert texts(trace, trace.threads) == [f"pthread {THREAD:#x}"]
    assert trace.threads["thread"].tolist() == [THREAD & 0xFFFFFFFF]


def test_names_that_nvtx_gave(tmp_path: Path) -> None:
    path = nvprof(
        tmp_path / "a.nvvp", ["the program", "the thread", "the stream", "the device"],
        RUNTIME=[call(10, 20)],
        NAME=[{"objectKind": 1, "objectId": struct.pack("<III", 100, 0, 0), "name": 1},
              {"objectKind": 2, "objectId": struct.pack("<II", 100, THREAD & 0xFFFFFFFF), "name": 2},
              {"objectKind": 5, "objectId": struct.pack("<III", 0, 1, 7), "name": 3},
              {"objectKind": 3, "objectId": struct.pack("<III", 2, 0, 0), "name": 4}],
    )  # fmt: skip
    trace = cutrace.load(path)

    assert [p.name for p in trace.processes] == ["the program"]
    assert texts(trace, trace.threads) == [f"pthread {THREAD:#x}", "the thread"]
    assert trace.resource_names[["kind", "object", "context"]].tolist() == [(1, 7, 1), (3, 2, 0)]
    assert texts(trace, trace.resource_names) == ["the stream", "the device"]


def marker(time: int, number: int, flags: int, *, thread: int = 5, kind: int = 2, **more: Any) -> dict[str, Any]:
    who = struct.pack("<III", 100, thread, 0)
    return {"timestamp": time, "id": number, "flags": flags, "objectKind": kind, "objectId": who} | more


def test_markers_are_marks_and_ranges(tmp_path: Path) -> None:
    path = nvprof(
        tmp_path / "a.nvvp", ["outer", "inner", "mark", "batch", "io"],
        MARKER=[
            marker(10, 1, 2, name=1), marker(90, 1, 4),
            marker(20, 2, 2, name=2, domain=5), marker(30, 2, 4),
            marker(40, 3, 2, name=2), marker(50, 3, 4),
            marker(60, 4, 1, name=3),
            marker(15, 5, 2, name=4, kind=1), marker(95, 5, 4, kind=1, thread=6),
            marker(70, 6, 2, name=2),
            marker(99, 7, 4),
            marker(80, 8, 8),
        ],
        MARKER_DATA=[{"id": 1, "flags": 2, "color": 0xFF00FF00, "category": 4, "payloadKind": 1,
                      "payload": struct.pack("<Q", 77)},
                     {"id": 4, "flags": 1, "color": 9, "payloadKind": 0, "payload": struct.pack("<d", 2.5)},
                     {"id": 1000}],
    )  # fmt: skip
    trace = cutrace.load(path)
    found = {trace.strings[row["name"]]: row for row in trace.nvtx_ranges if row["start"] != 20}

    assert found["outer"][["start", "end", "depth", "kind", "thread", "color", "category"]].tolist() == (
        10, 90, 0, 0, 5, 0xFF00FF00, 4,
    )  # fmt: skip
    assert found["outer"][["payload_type", "payload"]].tolist() == (1, 77)
    assert found["inner"][["start", "end", "depth"]].tolist() == (40, 50, 1)
    assert found["batch"][["start", "end", "kind", "range_id", "end_thread"]].tolist() == (15, 95, 1, 5, 6)
    other = trace.nvtx_ranges[trace.nvtx_ranges["start"] == 20]
    assert texts(trace, other, "domain") == ["io"]
    assert other["depth"].tolist() == [0]
    assert trace.unknown("nvtx_ranges")[["start", "end", "flags"]].tolist() == [(70, 0, 1)]
    assert trace.nvtx_marks[["time", "color", "payload_type", "payload"]].tolist() == [(60, 0, 3, 0x4004000000000000)]
    told = account(trace, PREFIX + "MARKER")
    assert told.seen.count == 12
    assert {why: t.count for why, t in told.lost.items()} == {"an end without a start": 1}
    assert {why: t.count for why, t in told.left.items()} == {"synchronisation of the host": 1}
    assert told.kept.count == 10
    assert account(trace, PREFIX + "MARKER_DATA").lost["of no mark or range"].count == 1


def test_counters_metrics_and_readings(tmp_path: Path) -> None:
    path = nvprof(
        tmp_path / "a.nvvp", ["f"],
        RUNTIME=[call(10, 20)],
        CONCURRENT_KERNEL=[kernel(30, 50)],
        EVENT=[{"id": 3, "value": 12, "correlationId": 5}, {"id": 3, "value": 12, "correlationId": 99}],
        EVENT_INSTANCE=[{"id": 3, "value": 7, "instance": 1, "correlationId": 5}],
        METRIC=[{"id": 4, "value": struct.pack("<d", 0.75), "correlationId": 5},
                {"id": 5, "value": struct.pack("<Q", 1 << 40), "correlationId": 5}],
        INSTANTANEOUS_EVENT=[{"id": 6, "value": 1, "timestamp": 33, "deviceId": 1}],
        ENVIRONMENT=[
            {"timestamp": 40, "environmentKind": 1, "data": struct.pack("<IIIII", 1755, 2619, 3, 16, 4)},
            {"timestamp": 41, "environmentKind": 2, "data": struct.pack("<I", 63)},
            {"timestamp": 42, "environmentKind": 3, "data": struct.pack("<II", 250_000, 700_000)},
        ],
    )  # fmt: skip
    trace = cutrace.load(path)
    rows = trace.counters
    found = zip(texts(trace, rows), texts(trace, rows, "series"), rows["time"].tolist(), rows["value"].tolist(),
                strict=True)  # fmt: skip

    assert sorted(found) == [
        ("event 3", "", 30, 12.0), ("event 3", "instance 1", 30, 7.0), ("event 6", "", 33, 1.0),
        ("metric 4", "", 30, 0.75), ("metric 5", "", 30, float(1 << 40)),
    ]  # fmt: skip
    assert account(trace, PREFIX + "EVENT").lost["its kernel is missing"].count == 1
    values = [1755 | 2619 << 16 | (3 | 16 << 16) << 32, 63, 250_000 | 700_000 << 32]
    assert trace.environment[["time", "kind", "values", "flags"]].tolist() == [
        (40, 1, values[0], 4), (41, 2, values[1], 0), (42, 3, values[2], 0),
    ]  # fmt: skip


def test_memory_faults_waits_and_overheads(tmp_path: Path) -> None:
    path = nvprof(
        tmp_path / "a.nvvp", ["variable"],
        RUNTIME=[call(10, 20)],
        MEMORY=[{"start": 10, "end": 90, "address": 4096, "bytes": 64, "memoryKind": 3, "processId": 100, "name": 1},
                {"start": 11, "address": 8192, "bytes": 64, "memoryKind": 3, "processId": 100}],
        UNIFIED_MEMORY_COUNTER=[
            {"counterKind": 1, "value": 4096, "start": 20, "end": 25, "address": 7, "srcId": 0xFFFFFFFF,
             "processId": 100, "flags": 2},
            {"counterKind": 3, "value": 1, "start": 30, "processId": 100},
        ],
        SYNCHRONIZATION=[{"type": 4, "start": 40, "end": 45, "contextId": 1, "streamId": 0xFFFFFFFF,
                          "cudaEventId": 0xFFFFFFFF, "correlationId": 5}],
        OVERHEAD=[{"overheadKind": 65536, "objectKind": 2, "objectId": struct.pack("<II", 100, 5), "start": 1,
                   "end": 2}],
        CUDA_EVENT=[{"correlationId": 5, "contextId": 1, "streamId": 7, "eventId": 3}],
        EXTERNAL_CORRELATION=[{"externalKind": 2, "externalId": 9, "correlationId": 5}],
    )  # fmt: skip
    trace = cutrace.load(path)

    assert sorted(trace.allocations[["time", "operation", "address"]].tolist()) == [
        (10, 1, 4096), (11, 1, 8192), (90, 2, 4096),
    ]  # fmt: skip
    assert account(trace, PREFIX + "MEMORY").kept.count == 2
    assert account(trace, PREFIX + "MEMORY").kept.duration_ns == 80
    assert trace.unified_memory[["kind", "start", "end", "value", "source_device"]].tolist() == [
        (1, 20, 25, 4096, 0xFFFFFFFF), (3, 30, 30, 1, 0),
    ]  # fmt: skip
    assert trace.synchronizations[["type", "stream", "event"]].tolist() == [(4, 0, 0)]
    assert trace.overheads[["kind", "thread"]].tolist() == [(65536, 5)]
    assert trace.cuda_events[["event", "stream"]].tolist() == [(3, 7)]
    assert trace.external_correlations[["kind", "external", "correlation"]].tolist() == [(2, 9, 5)]


def test_openacc_and_openmp_are_host_slices(tmp_path: Path) -> None:
    path = nvprof(
        tmp_path / "a.nvvp", ["a.c", "main"],
        OPENACC_LAUNCH=[{"start": 10, "end": 20, "eventKind": 4, "cuProcessId": 100, "cuThreadId": THREAD, "srcFile": 1,
                         "funcName": 2, "lineNo": 12, "numGangs": 8}],
        OPENMP=[{"start": 30, "end": 40, "eventKind": 1, "cuProcessId": 100, "cuThreadId": 9}],
    )  # fmt: skip
    trace = cutrace.load(path)
    rows = trace.host_slices

    assert texts(trace, rows) == ["enqueue launch", "parallel"]
    assert texts(trace, rows, "category") == ["OpenACC", "OpenMP"]
    assert rows["thread"].tolist() == [THREAD & 0xFFFFFFFF, 9]
    assert json.loads(texts(trace, rows, "arguments")[0]) == {
        "lineNo": 12, "numGangs": 8, "srcFile": "a.c", "funcName": "main",
    }  # fmt: skip


def test_gpus_contexts_and_streams(tmp_path: Path) -> None:
    path = nvprof(
        tmp_path / "a.nvvp", ["Tesla K40c"],
        RUNTIME=[call(10, 20)],
        DEVICE=[{"id": 1, "name": 1, "globalMemorySize": 1 << 33, "numMultiprocessors": 15, "numThreadsPerWarp": 32,
                 "maxWarpsPerMultiprocessor": 64, "uuid": bytes(range(16)), "computeCapabilityMajor": 3}],
        CONTEXT=[{"contextId": 1, "deviceId": 1, "computeApiKind": 1, "nullStreamId": 7}],
        STREAM=[{"contextId": 1, "streamId": 13, "priority": 0xFFFFFFFF, "flag": 2}],
    )  # fmt: skip
    trace = cutrace.load(path)

    fields = ["device", "memory", "multiprocessors", "max_threads_per_multiprocessor", "compute_major"]
    assert trace.devices[fields].tolist() == [(1, 1 << 33, 15, 2048, 3)]
    assert bytes(trace.devices["uuid"][0]) == bytes(range(16))
    assert texts(trace, trace.devices) == ["Tesla K40c"]
    assert trace.contexts[["context", "device", "null_stream"]].tolist() == [(1, 1, 7)]
    assert trace.streams[["stream", "priority", "type"]].tolist() == [(13, -1, 2)]


def test_times_of_the_wall_clock_say_so(tmp_path: Path) -> None:
    trace = cutrace.load(nvprof(tmp_path / "a.nvvp", RUNTIME=[call(EPOCH, EPOCH + 5)]))

    assert trace.api_calls["start"].tolist() == [EPOCH]
    assert trace.clocks["boottime"].tolist() == trace.clocks["realtime"].tolist() == [EPOCH]


def test_unknown_times_stay_unknown(tmp_path: Path) -> None:
    trace = cutrace.load(nvprof(tmp_path / "a.nvvp", RUNTIME=[call(10, 20)], CONCURRENT_KERNEL=[kernel(0, 0)]))

    assert len(trace.unknown("kernels")) == 1
    assert account(trace, PREFIX + "CONCURRENT_KERNEL").kept.count == 1


def test_each_table_is_accounted_for(tmp_path: Path) -> None:
    # A row of zeros in every table of the schema.
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript((DATA / "nvprof-schema.sql").read_text())
        names = [n for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    kinds = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    trace = cutrace.load(nvprof(tmp_path / "a.nvvp", **{kind: [{}] for kind in kinds} | {"RUNTIME": [call(10, 20)]}))
    accounts = {a.what: a for a in trace.imports[0].accounts}

    assert {kind for kind in kinds if PREFIX + kind not in accounts} == set()
    assert all(a.balanced for a in accounts.values())
    assert {kind for kind in kinds if accounts[PREFIX + kind].left} == {
        "BRANCH", "DEVICE_ATTRIBUTE", "GLOBAL_ACCESS", "INSTRUCTION_CORRELATION", "INSTRUCTION_EXECUTION", "MARKER",
        "NVLINK", "PCIE", "PC_SAMPLING", "PC_SAMPLING_RECORD_INFO", "SHARED_ACCESS", "SOURCE_LOCATOR",
    }  # fmt: skip
    assert all(accounts[PREFIX + kind].seen.count == 1 for kind in kinds)


@pytest.mark.parametrize("value", [None, -1, 2**63 - 1, -(2**63), 1.5, "text", b"\0\1", ""])
def test_no_value_of_any_column_is_an_error(tmp_path: Path, value: object) -> None:
    path = nvprof(tmp_path / "a.nvvp", ["f"], RUNTIME=[call(10, 20)])
    with closing(sqlite3.connect(path)) as database:
        names = [n for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if not name.startswith(PREFIX):
                continue
            columns = [c[1] for c in database.execute(f"PRAGMA table_info({name})")]
            # Other tools may have made the table without types and constraints.
            database.execute(f"DROP TABLE {name}")
            database.execute(f"CREATE TABLE {name} ({', '.join(chr(34) + c + chr(34) for c in columns)})")
            marks = ", ".join("?" * len(columns))
            rows = [[value if i == at else b"" if c in ("objectId", "data", "payload", "uuid", "cacheConfig") else 1
                     for i, c in enumerate(columns)] for at in range(len(columns))]  # fmt: skip
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        database.commit()
    trace = cutrace.load(path)

    assert all(a.balanced for a in trace.imports[0].accounts)
    assert account(trace, PREFIX + "RUNTIME").kept.count >= 1


def test_a_database_without_records_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadCapture, match="no usable record"):
        cutrace.load(nvprof(tmp_path / "a.nvvp", ["f"]))
