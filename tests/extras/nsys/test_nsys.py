"""Import of Nsight Systems exports: every row is imported, omitted by name, or counted as lost."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace
from cutrace import BadCapture, Trace
from cutrace.extras.nsys.schema import NOTHING
from databases import NSYS, account, global_pid, global_tid, kernel, nsys, spans, texts

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


# A real export


def test_every_row_of_a_real_export_is_accounted_for() -> None:
    trace = cutrace.load(NSYS)
    expected = Counter[str]()
    durations = Counter[str]()
    for name, (count, duration) in spans(NSYS).items():
        what = "ENUM_*" if name.startswith("ENUM_") else name
        expected[what] += count
        durations[what] += duration
    accounts = {a.what: a for a in trace.imports[0].accounts if " of " not in a.what}

    assert {what: (a.seen.count, a.seen.duration_ns) for what, a in accounts.items()} == {
        what: (count, durations[what]) for what, count in expected.items() if count
    }
    assert all(a.balanced for a in trace.imports[0].accounts)
    assert trace.imports[0].lost == 0
    assert trace.imports[0].format == "nsys-sqlite"


def test_a_real_export_says_what_plain_queries_say() -> None:
    trace = cutrace.load(NSYS)
    with closing(sqlite3.connect(f"{NSYS.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        copies = database.execute(
            "SELECT start, end, bytes, virtualAddress, migrationCause, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY"
        ).fetchall()
        calls = database.execute(
            "SELECT start, end, correlationId, globalTid % 0x1000000, value FROM CUPTI_ACTIVITY_KIND_RUNTIME "
            "JOIN StringIds ON id = nameId"
        ).fetchall()
        kernels = database.execute(
            "SELECT start, end, correlationId, streamId, contextId, deviceId, value, gridX, blockX, registersPerThread "
            f"FROM {KERNEL} JOIN StringIds ON id = mangledName"
        ).fetchall()

    moved = trace.unified_memory
    kinds = {11: 1, 12: 2, 13: 8}
    assert Counter(moved[["start", "end", "value", "address", "flags", "kind"]].tolist()) == Counter(
        (*row[:5], kinds[row[5]]) for row in copies
    )
    assert len(moved) == 72
    assert len(trace.memcpys) == 0
    assert set(moved["source_device"][moved["kind"] == 1].tolist()) == {0xFFFFFFFF}

    rows = trace.api_calls
    functions = trace.functions[rows["function"]]
    assert Counter(zip(*(rows[f].tolist() for f in ("start", "end", "correlation", "thread")), texts(trace, functions),
                       strict=True)) == Counter((*row[:4], row[4].rpartition("_v")[0]) for row in calls)  # fmt: skip

    k = trace.kernels
    launches = trace.launches[k["launch"]]
    columns = [k[f].tolist() for f in ("start", "end", "correlation", "stream", "context", "device")]
    more = [launches[f].tolist() for f in ("grid_x", "block_x", "registers")]
    assert list(zip(*columns, texts(trace, launches), *more, strict=True)) == kernels


def test_a_real_export_names_its_process_gpus_and_threads() -> None:
    trace = cutrace.load(NSYS)

    assert [(p.pid, p.name) for p in trace.processes] == [(3628, "add_block")]
    assert sorted(trace.devices["device"].tolist()) == [0, 1]
    assert texts(trace, trace.devices) == ["NVIDIA GeForce RTX 2080 Ti"] * 2
    assert trace.devices["multiprocessors"].tolist() == [68, 68]
    assert trace.devices["core_clock"].tolist() == [1_575_000] * 2
    assert trace.devices["memory_bandwidth"].tolist() == [616_000_000] * 2
    assert trace.streams["priority"].tolist().count(-5) == 1
    assert trace.contexts[["context", "device", "null_stream"]].tolist() == [(1, 0, 7)]
    assert dict(zip(trace.threads["thread"].tolist(), texts(trace, trace.threads), strict=True))[3628] == "add_block"


def test_times_stay_and_the_clock_says_when_the_session_began() -> None:
    trace = cutrace.load(NSYS)
    clock = trace.clocks[0]

    assert trace.kernels["start"].tolist() == [292_650_462]
    assert int(clock["realtime"]) - int(clock["boottime"]) == 1_717_063_098_555_996_243


def test_a_wait_is_what_its_ids_say() -> None:
    # This version records cudaDeviceSynchronize() as a wait for an event, but records no event and no stream.
    trace = cutrace.load(NSYS)

    assert trace.synchronizations[["type", "stream", "event"]].tolist() == [(4, 0, 0)]


@pytest.mark.parametrize("written", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("stream", "event", "kind"), [(NOTHING, 2, 1), (13, 2, 2), (13, NOTHING, 3), (NOTHING, NOTHING, 4)]
)
def test_the_ids_of_a_wait_say_its_kind_in_versions_with_other_numbers(
    tmp_path: Path, stream: int, event: int, kind: int, written: int
) -> None:
    # A version of 2022 wrote kind 2 for both cudaEventSynchronize() and cudaStreamSynchronize().
    wait = {"start": 10, "end": 20, "globalPid": global_pid(100), "contextId": 1, "correlationId": 3}
    wait["syncType"] = written
    if (stream, event, written) == (13, 2, 1):
        kind = 1  # a wait for an event may have the event's stream
    path = nsys(
        tmp_path / "a.sqlite", CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=[wait | {"streamId": stream, "eventId": event}]
    )
    assert cutrace.load(path).synchronizations["type"].tolist() == [kind]


# Tables


def test_columns_are_found_by_name_and_may_be_missing(tmp_path: Path) -> None:
    # In the first versions, kernels have no process and no mangled name.
    path = nsys(
        tmp_path / "a.sqlite", ["f(int)", "cudaLaunchKernel_v7000"],
        CUPTI_ACTIVITY_KIND_RUNTIME=[
            {"globalTid": global_tid(9, 10), "end": 30, "start": 20, "nameId": 2, "correlationId": 3, "returnValue": 0}
        ],
        CUPTI_ACTIVITY_KIND_KERNEL=[{"streamId": 7, "end": 60, "start": 40, "shortName": 1, "correlationId": 3}],
    )  # fmt: skip
    trace = cutrace.load(path)

    assert trace.kernels[["start", "end", "stream", "process"]].tolist() == [(40, 60, 7, 0)]
    assert texts(trace, trace.launches[trace.kernels["launch"]]) == ["f(int)"]
    assert trace.launches[1]["carveout"] == 255
    assert [p.pid for p in trace.processes] == [9]
    assert trace.functions[1][["domain", "status"]].tolist() == (2, 0)


def test_a_table_without_the_column_of_ends_has_unknown_ends(tmp_path: Path) -> None:
    """If a column exists, a row without a value is lost. If the column does not exist, the value is unknown."""
    row = kernel(-500, 20)
    del row["end"]
    path = nsys(
        tmp_path / "a.sqlite", ["f"],
        CUPTI_ACTIVITY_KIND_KERNEL=[row],
        CUPTI_ACTIVITY_KIND_MEMSET=[row | {"end": 30, "bytes": 4}, row | {"end": None, "bytes": 4}],
        CUPTI_ACTIVITY_KIND_MEMCPY=[row | {"end": None, "bytes": 4, "copyKind": 1, "srcKind": 0, "dstKind": 2}] * 2,
    )  # fmt: skip
    trace = cutrace.load(path)

    assert trace.unknown("kernels")[["start", "end"]].tolist() == [(10**9 - 500, 0)]
    assert trace.memsets["end"].tolist() == [10**9 + 30]
    assert not trace.count("memcpys")
    assert account(trace, "CUPTI_ACTIVITY_KIND_MEMSET").lost["no end"].count == 1
    assert account(trace, "CUPTI_ACTIVITY_KIND_MEMCPY").lost["no end"].count == 2


def test_events_before_the_session_move_all_times_by_whole_seconds(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "a.sqlite", ["f"],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(-1_200_000_000, -1_100_000_000), kernel(0, 5)],
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": 1_700_000_000_000_000_000}],
    )  # fmt: skip
    trace = cutrace.load(path)

    assert trace.processes[0].info["time_offset_ns"] == 2_000_000_000
    assert trace.kernels["start"].tolist() == [800_000_000, 2_000_000_000]
    lead = int(trace.clocks["realtime"][0]) - int(trace.clocks["boottime"][0])
    assert lead == 1_700_000_000_000_000_000 - 2_000_000_000


@pytest.mark.parametrize(
    ("metadata", "shift"),
    [
        ({}, 0),
        ({"EXPORT_CONFIG_TIME_SHIFT": "-500"}, -500),
        ({"EXPORT_PARAM_TIME_SHIFT": "+700"}, 700),
        ({"EXPORT_PARAM_TIME_SHIFT": "soon"}, 0),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true"}, 1_700_000_000_000_000_000),
    ],
)
def test_the_wall_clock_is_that_of_shifted_times(tmp_path: Path, metadata: dict[str, str], shift: int) -> None:
    began = 1_700_000_000_000_000_000
    told = {"EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems", **metadata}
    path = nsys(
        tmp_path / "a.sqlite", ["f"],
        META_DATA_EXPORT=[{"name": name, "value": value} for name, value in told.items()],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(max(shift, 0), max(shift, 0) + 5)],
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": began}],
    )  # fmt: skip
    trace = cutrace.load(path)
    offset = trace.processes[0].info["time_offset_ns"]
    lead = int(trace.clocks["realtime"][0]) - int(trace.clocks["boottime"][0])
    assert lead == began - shift - offset


def test_copies_have_the_memory_kinds_of_cupti(tmp_path: Path) -> None:
    copy = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 1, "globalPid": global_pid(100)}
    path = nsys(
        tmp_path / "a.sqlite",
        CUPTI_ACTIVITY_KIND_MEMCPY=[
            copy | {"start": 1, "end": 2, "bytes": 8, "copyKind": 1, "srcKind": 0, "dstKind": 2},
            copy | {"start": 3, "end": 4, "bytes": 8, "copyKind": 2, "srcKind": 7, "dstKind": 1},
            copy | {"start": 5, "end": 6, "bytes": 8, "copyKind": 10, "srcKind": 2, "dstKind": 2, "srcDeviceId": 0,
                    "srcContextId": 1, "dstDeviceId": 1, "dstContextId": 2},
        ],
        CUPTI_ACTIVITY_KIND_MEMSET=[copy | {"start": 7, "end": 9, "bytes": 64, "value": 255, "memKind": 2}],
    )  # fmt: skip
    trace = cutrace.load(path)

    fields = ["kind", "source_memory", "destination_memory", "source_device", "destination_device", "peer_context"]
    assert trace.memcpys[fields].tolist() == [(1, 1, 3, 0, 0, 0), (2, 0, 2, 0, 0, 0), (10, 3, 3, 0, 1, 2)]
    assert trace.memsets[["bytes", "value", "memory"]].tolist() == [(64, 255, 3)]


def test_a_kernel_without_its_mangled_name_has_its_demangled_one(tmp_path: Path) -> None:
    kernels = [kernel(10, 20, mangledName=name, demangledName=1, shortName=2) for name in (None, 0, 99, 3)]
    kernels.append(kernel(10, 20, demangledName=99, shortName=2))
    path = nsys(tmp_path / "a.sqlite", ["f(int)", "f", "_Z1fi"], CUPTI_ACTIVITY_KIND_KERNEL=kernels)
    with cutrace.load(path) as trace:
        names = trace.launches["name"][trace.kernels["launch"]]
        assert [trace.strings[name] for name in names] == ["f(int)", "f(int)", "f(int)", "_Z1fi", "f"]


def test_a_negative_size_is_lost(tmp_path: Path) -> None:
    copy = {"start": 5, "end": 9, "globalPid": global_pid(100), "copyKind": 1, "streamId": 7}
    copies = [copy | {"bytes": size} for size in (4, -5)]
    path = nsys(tmp_path / "a.sqlite", CUPTI_ACTIVITY_KIND_MEMCPY=copies)
    with cutrace.load(path) as trace:
        assert trace.memcpys["bytes"].tolist() == [4]
        assert [(loss.detail, loss.count) for loss in trace.quality.losses] == [
            ("CUPTI_ACTIVITY_KIND_MEMCPY: bytes out of range", 1)
        ]


def test_memory_and_faults(tmp_path: Path) -> None:
    place = {"globalPid": global_pid(100), "deviceId": 0, "contextId": 1}
    path = nsys(
        tmp_path / "a.sqlite",
        CUDA_GPU_MEMORY_USAGE_EVENTS=[
            place | {"start": 10, "address": 4096, "bytes": 512, "memKind": 2, "memoryOperationType": 0},
            place | {"start": 20, "address": 4096, "bytes": 512, "memKind": 2, "memoryOperationType": 1, "name": "x"},
        ],
        CUDA_GPU_MEMORY_POOL_EVENTS=[
            place | {"start": 5, "address": 1, "operationType": 1, "poolType": 1, "localMemoryPoolSize": 1 << 20}
        ],
        CUDA_UM_CPU_PAGE_FAULT_EVENTS=[place | {"start": 30, "address": 8192, "CpuInstruction": 3}],
        CUDA_UM_GPU_PAGE_FAULT_EVENTS=[
            place | {"start": 40, "end": 45, "address": 8192, "numberOfPageFaults": 6, "faultAccessType": 2}
        ],
    )  # fmt: skip
    trace = cutrace.load(path)

    assert trace.allocations[["time", "operation", "memory", "bytes"]].tolist() == [(10, 1, 3, 512), (20, 2, 3, 512)]
    assert trace.memory_pools[["time", "operation", "size"]].tolist() == [(5, 1, 1 << 20)]
    faults = trace.unified_memory
    assert faults[["start", "end", "kind", "value", "flags"]].tolist() == [(30, 30, 3, 1, 0), (40, 45, 4, 6, 2)]
    assert account(trace, "CpuInstruction of CUDA_UM_CPU_PAGE_FAULT_EVENTS").left[""].count == 1
    assert account(trace, "name of CUDA_GPU_MEMORY_USAGE_EVENTS").left[""].count == 1


def test_calls_of_the_system_and_of_libraries_are_host_slices(tmp_path: Path) -> None:
    call = {"globalTid": global_tid(100, 101), "eventClass": 27}
    path = nsys(
        tmp_path / "a.sqlite", ["poll", "MPI_Send", "cudnnConvolutionForward", "frobnicate"],
        OSRT_API=[call | {"start": 1, "end": 9, "nameId": 1, "returnValue": 0, "nestingLevel": 0}],
        MPI_P2P_EVENTS=[call | {"start": 2, "end": None, "textId": 2, "tag": 7, "size": 4096, "remoteRank": 1}],
        CUDNN_EVENTS=[call | {"start": 3, "end": 4, "nameId": 3}],
        SOME_NEW_API=[call | {"start": 5, "end": 7, "nameId": 4}],
    )  # fmt: skip
    trace = cutrace.load(path)
    rows = trace.host_slices
    found = zip(texts(trace, rows), texts(trace, rows, "category"), rows["kind"].tolist(), strict=True)

    assert sorted(found) == [
        ("cudnnConvolutionForward", "cuDNN", 0), ("frobnicate", "Some New", 0), ("poll", "OS runtime", 4),
    ]  # fmt: skip
    assert set(rows["thread"].tolist()) == {101}
    still_open = trace.unknown("host_slices")
    assert texts(trace, still_open) == ["MPI_Send"]
    assert still_open["flags"].tolist() == [1]
    assert json.loads(texts(trace, still_open, "arguments")[0]) == {"tag": 7, "size": 4096, "remoteRank": 1}


def test_overheads_have_the_kinds_of_cupti_or_the_names_of_nsys(tmp_path: Path) -> None:
    """nsys numbers the kinds differently. Overheads of nsys itself have number 0 and a name."""
    row = {"start": 10, "end": 20, "globalTid": global_tid(100, 7), "correlationId": 0, "nameId": 2}
    path = nsys(
        tmp_path / "a.sqlite",
        ["TLS allocation", "whatever"],
        CUPTI_ACTIVITY_KIND_OVERHEAD=[row | {"overheadType": kind} for kind in (1, 2, 6, 8, 3 << 16)],
        PROFILER_OVERHEAD=[row | {"overheadType": 0, "nameId": 1}, row | {"overheadType": 3}],
    )
    trace = cutrace.load(path)

    assert trace.overheads["kind"].tolist() == [0, 1, 4 << 16, 6 << 16, 3 << 16, 1 << 16]
    assert [trace.strings[s] for s in trace.host_slices["name"]] == ["TLS allocation"]
    assert [trace.strings[s] for s in trace.host_slices["category"]] == ["profiler overhead"]
    assert list(trace.imports[0].leftovers()) == []
    assert all(account.balanced for account in trace.imports[0].accounts)


@pytest.mark.parametrize("none", [-1, 0xFFFFFFFF, None])
def test_ids_that_there_are_not_are_0(tmp_path: Path, none: int | None) -> None:
    wait = {"start": 10, "end": 20, "globalPid": global_pid(100), "contextId": 1, "correlationId": 3, "syncType": 4}
    path = nsys(
        tmp_path / "a.sqlite",
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=[wait | {"streamId": none, "eventId": none, "eventSyncId": none}],
    )
    row = cutrace.load(path).synchronizations[0]

    assert (row["stream"], row["event"], row["event_record"], row["type"]) == (0, 0, 0, 4)


def test_metrics_are_counters_of_the_gpu_that_they_are_of(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "a.sqlite", ["f"],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)],
        TARGET_INFO_GPU=[{"id": 0, "cuDevice": 1, "name": "A"}, {"id": 1, "cuDevice": 0, "name": "B"}],
        TARGET_INFO_GPU_METRICS=[{"typeId": 0x1200, "metricId": 3, "metricName": "SMs Active [Throughput %]"}],
        GPU_METRICS=[{"timestamp": 15, "typeId": 0x1200, "metricId": 3, "value": 97},
                     {"timestamp": 16, "typeId": 0x1200, "metricId": 4, "value": 1}],
    )  # fmt: skip
    trace = cutrace.load(path)
    rows = trace.counters

    assert rows[["time", "value", "device"]].tolist() == [(15, 97.0, 1), (16, 1.0, 1)]
    assert texts(trace, rows) == ["SMs Active [Throughput %]", "metric 4"]
    assert texts(trace, rows, "unit") == ["Throughput %", ""]
    assert rows["process"].tolist() == [0, 0]


def test_a_process_has_the_gpus_that_it_saw(tmp_path: Path) -> None:
    """The CUDA ordinal of a GPU depends on the process."""
    path = nsys(
        tmp_path / "a.sqlite",
        ["k"],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20, globalPid=global_pid(pid)) for pid in (100, 200, 300)],
        TARGET_INFO_GPU=[{"id": 0, "cuDevice": 0, "name": "A"}, {"id": 1, "cuDevice": 1, "name": "B"}],
        TARGET_INFO_CUDA_DEVICE=[{"gpuId": 1, "cudaId": 0, "pid": 100}, {"gpuId": 0, "cudaId": 0, "pid": 200}],
    )
    trace = cutrace.load(path)
    found = {(trace.processes[d["process"]].pid, int(d["device"]), trace.strings[d["name"]]) for d in trace.devices}

    assert found == {(100, 0, "B"), (200, 0, "A"), (300, 0, "A"), (300, 1, "B")}


def test_a_stream_whose_values_do_not_fit_is_lost(tmp_path: Path) -> None:
    stream = {"streamId": 7, "hwId": 0, "vmId": 1, "processId": 100, "contextId": 1, "priority": 2**32 - 5, "flag": 1}
    # Nothing is written for a process without events.
    streams = [stream, stream | {"streamId": 8, "flag": 1 << 16}, stream | {"processId": 101}]
    path = nsys(
        tmp_path / "a.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)], TARGET_INFO_CUDA_STREAM=streams
    )  # fmt: skip
    trace = cutrace.load(path)
    told = account(trace, "TARGET_INFO_CUDA_STREAM")

    assert trace.streams[["stream", "priority", "type"]].tolist() == [(7, -5, 1)]
    assert (told.kept.count, {why: tally.count for why, tally in told.lost.items()}) == (2, {"type out of range": 1})


def test_rows_go_to_the_process_that_they_name(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "a.sqlite", ["f", "main", "worker"],
        PROCESSES=[{"globalPid": global_pid(p, m), "pid": p, "name": f"/bin/p{p}"} for p, m in ((100, 1), (100, 2))],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(1, 2), kernel(3, 4, globalPid=global_pid(100, 2)), kernel(5, 6)],
        ThreadNames=[{"nameId": 2, "globalTid": global_tid(100, 100)},
                     {"nameId": 3, "globalTid": global_tid(100, 100, 2)}],
    )  # fmt: skip
    trace = cutrace.load(path)

    assert sorted(trace.kernels[["process", "start"]].tolist()) == [(0, 1), (0, 5), (1, 3)]
    assert [(p.pid, p.name) for p in trace.processes] == [(100, "p100")] * 2
    names = zip(trace.threads["process"].tolist(), texts(trace, trace.threads), strict=True)
    assert sorted(names) == [(0, "main"), (1, "worker")]


def test_what_has_no_place_is_named_with_its_rows_and_time(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "a.sqlite", ["f"],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20, qmdPreexitDone=5)],
        FUTURE_EVENTS=[{"start": 5, "end": 8}, {"start": 1, "end": 2}],
        COMPOSITE_EVENTS=[{"id": 1, "start": 4, "cpuCycles": 9}],
    )  # fmt: skip
    trace = cutrace.load(path)
    left = account(trace, "FUTURE_EVENTS")

    assert (left.left[""].count, left.left[""].duration_ns) == (2, 4)
    assert account(trace, "COMPOSITE_EVENTS").left[""].count == 1
    assert account(trace, f"qmdPreexitDone of {KERNEL}").left[""].count == 1


# NVTX


def nvtx(**fields: Any) -> dict[str, Any]:
    columns = {"end": None, "eventType": 59, "rangeId": None, "category": None, "color": None, "text": None,
               "globalTid": global_tid(100, 101), "endGlobalTid": None, "textId": None, "domainId": 0,
               "uint64Value": None, "int64Value": None, "doubleValue": None, "uint32Value": None, "int32Value": None,
               "floatValue": None}  # fmt: skip
    return columns | fields


def nvtx_trace(path: Path, *events: dict[str, Any]) -> Trace:
    return cutrace.load(nsys(path, ["registered", "domain name"], NVTX_EVENTS=list(events)))


def test_nvtx_texts_domains_categories_and_colours(tmp_path: Path) -> None:
    trace = nvtx_trace(
        tmp_path / "a.sqlite",
        nvtx(start=10, end=20, text="step", color=0xFF00FF00, category=3),
        nvtx(start=12, end=14, textId=1, domainId=5),
        nvtx(start=15, text="here", eventType=34),
        nvtx(start=1, textId=2, domainId=5, eventType=75),
        nvtx(start=2, text="loading", category=3, eventType=33),
        nvtx(start=3, text="loader", eventType=39),
    )
    rows = trace.nvtx_ranges

    assert texts(trace, rows) == ["step", "registered"]
    assert texts(trace, rows, "domain") == ["", "domain name"]
    assert rows[["category", "color", "thread", "end_thread", "depth", "kind"]].tolist() == [
        (3, 0xFF00FF00, 101, 101, 0, 0), (0, 0, 101, 101, 0, 0),
    ]  # fmt: skip
    assert texts(trace, trace.nvtx_marks) == ["here"]
    assert trace.nvtx_marks["time"].tolist() == [15]
    assert texts(trace, trace.nvtx_categories) == ["loading"]
    assert trace.threads[["thread", "source"]].tolist() == [(101, 2)]
    assert account(trace, "NVTX_EVENTS").kept.count == 6


def test_nvtx_payloads(tmp_path: Path) -> None:
    trace = nvtx_trace(
        tmp_path / "a.sqlite",
        nvtx(start=10, end=11, text="a", uint64Value=-1),
        nvtx(start=12, end=13, text="a", int64Value=-5),
        nvtx(start=14, end=15, text="a", doubleValue=2.5),
        nvtx(start=16, end=17, text="a", uint32Value=0),
        nvtx(start=18, end=19, text="a", int32Value=-1),
        nvtx(start=20, end=21, text="a", floatValue=1.5),
        # Versions that write no NULL.
        nvtx(start=22, end=23, text="a", uint64Value=0, int64Value=0, doubleValue=0.0, uint32Value=7, int32Value=0),
        nvtx(start=24, end=25, text="a", uint64Value=0, int64Value=0, doubleValue=0.0, uint32Value=0, int32Value=0),
    )

    assert trace.nvtx_ranges[["payload_type", "payload"]].tolist() == [
        (1, 2**64 - 1), (2, 2**64 - 5), (3, 0x4004000000000000), (4, 0), (5, 0xFFFFFFFF), (6, 0x3FC00000), (4, 7),
        (0, 0),
    ]  # fmt: skip


def test_nvtx_ranges_across_threads_nested_and_never_ended(tmp_path: Path) -> None:
    trace = nvtx_trace(
        tmp_path / "a.sqlite",
        nvtx(start=10, end=90, text="batch", eventType=60, rangeId=4, endGlobalTid=global_tid(100, 102)),
        nvtx(start=20, end=80, text="outer"),
        nvtx(start=30, end=40, text="inner"),
        nvtx(start=40, end=40, text="empty"),
        nvtx(start=35, end=39, text="other thread", globalTid=global_tid(100, 103)),
        nvtx(start=50, end=None, text="open"),
    )
    rows = {trace.strings[r["name"]]: r for r in trace.nvtx_ranges}

    assert rows["batch"][["kind", "range_id", "thread", "end_thread", "depth"]].tolist() == (1, 4, 101, 102, 0)
    assert [int(rows[name]["depth"]) for name in ("outer", "inner", "empty", "other thread")] == [0, 1, 1, 0]
    assert trace.unknown("nvtx_ranges")[["start", "end", "flags"]].tolist() == [(50, 0, 1)]


def test_depths_are_those_of_a_stack() -> None:
    from cutrace.extras.nsys.nsys_nvtx import depths

    random = np.random.default_rng(5)
    starts, ends, expected, group = [], [], [], []
    for thread in range(3):
        stack: list[int] = []
        for now in range(400):
            if stack and random.random() < 0.45:
                ends[stack.pop()] = now
            else:
                expected.append(len(stack))
                stack.append(len(starts))
                starts.append(now)
                ends.append(-1)
                group.append(thread)
        while stack:
            ends[stack.pop()] = 400
    shuffled = random.permutation(len(starts))
    columns = (np.array(column)[shuffled] for column in (starts, ends, group))

    assert depths(*columns).tolist() == np.array(expected)[shuffled].tolist()


def test_empty_ranges_are_inside_the_range_that_starts_with_them() -> None:
    from cutrace.extras.nsys.nsys_nvtx import depths

    # Starts and ends: an empty range; a range with two empty ranges and one range inside; a range with an empty range
    # at its start.
    ranges = [(5, 5), (10, 40), (10, 10), (20, 20), (30, 40), (50, 60), (50, 50)]
    starts, ends = np.array(ranges).T
    assert depths(starts, ends).tolist() == [0, 0, 1, 1, 1, 0, 1]


# Nodes of CUDA graphs

THREAD = global_tid(9, 10)


def push(start: int, end: int | None, text: str, thread: int = THREAD, kind: int = 59) -> dict[str, Any]:
    return {"start": start, "end": end, "eventType": kind, "globalTid": thread, "text": text}


def node(start: int, number: int, original: int | None = None, thread: int = THREAD) -> dict[str, Any]:
    return {
        "start": start, "end": start + 1, "nameId": 1, "globalTid": thread, "graphNodeId": number,
        "originalGraphNodeId": original,
    }  # fmt: skip


def replays(path: Path, nodes: list[dict[str, Any]]) -> Path:
    return nsys(
        path, ["Graph Node Creation", "k", "layer"],
        NVTX_EVENTS=[
            push(100, 200, "forward"), {**push(120, 150, ""), "text": None, "textId": 3}, push(90, None, "epoch"),
            push(100, 200, "a start/end range", kind=60), push(100, 400, "another thread", THREAD + 1),
            push(290, 310, "instantiate"),
        ],
        CUDA_GRAPH_NODE_EVENTS=nodes,
        CUPTI_ACTIVITY_KIND_KERNEL=[
            kernel(500 + 10 * i, 505 + 10 * i, shortName=2, globalPid=global_pid(9), graphNodeId=number)
            for i, number in enumerate((65, 97, 66, 67, 0))
        ],
    )  # fmt: skip


def test_replayed_work_has_the_ranges_in_which_its_node_was_created(tmp_path: Path) -> None:
    path = replays(
        tmp_path / "a.sqlite",
        [
            node(130, 1), node(250, 2),
            # Copies of nodes. One copy has a second row without the original, one is a copy of a copy, and one has an
            # unknown original.
            node(300, 65), node(301, 65, 1), node(302, 97, 65), node(303, 66, 2), node(304, 67, 99),
        ],
    )  # fmt: skip
    trace = cutrace.load(path)
    nodes, origins = trace.graph_nodes, trace.origins

    assert nodes[["graph_node", "original", "created", "thread"]].tolist() == [
        (1, 0, 130, 10), (2, 0, 250, 10), (65, 1, 130, 10), (66, 2, 250, 10), (97, 1, 130, 10),
    ]  # fmt: skip
    assert origins is not None
    paths = origins.path_of[origins.of(0, "kernels", trace.kernels)]
    assert [origins.text(path) for path in paths.tolist()] == [
        "epoch/forward/layer", "epoch/forward/layer", "epoch", "(not recorded)", "",
    ]  # fmt: skip
    assert account(trace, "CUDA_GRAPH_NODE_EVENTS").kept.count == 7  # the rows of host_slices


def test_copies_that_do_not_name_their_original_have_no_origin(tmp_path: Path) -> None:
    nodes = [node(130, 1), node(302, 65)]
    for row in nodes:
        del row["originalGraphNodeId"]
    assert cutrace.load(replays(tmp_path / "a.sqlite", nodes)).origins is None


def test_a_cycle_of_copies_in_a_damaged_table_has_no_origin(tmp_path: Path) -> None:
    path = replays(tmp_path / "a.sqlite", [node(130, 1), node(300, 65, 66), node(301, 66, 65), node(302, 97, 97)])
    assert cutrace.load(path).graph_nodes["graph_node"].tolist() == [1]


# Damaged files


def test_rows_that_cannot_be_used_are_counted_and_the_rest_is_there(tmp_path: Path) -> None:
    path = nsys(
        tmp_path / "a.sqlite", ["f"],
        CUPTI_ACTIVITY_KIND_KERNEL=[
            kernel(10, 20), kernel(30, 25), kernel(None, 5), kernel(40, None), kernel("soon", 5),
            kernel(50, 60, gridX="x"),
            kernel(2**63 - 5, 2**63 - 1), kernel(-(2**63), 4), kernel(70, 80, streamId=2**40), kernel(1.5, 3),
            kernel(90, 95),
        ],
    )  # fmt: skip
    trace = cutrace.load(path)
    told = account(trace, KERNEL)

    assert trace.kernels["start"].tolist() == [10, 2**63 - 5, 90]
    assert (told.seen.count, told.kept.count) == (11, 3)
    assert {why: tally.count for why, tally in told.lost.items()} == {
        "it ends before it starts": 1, "no start": 1, "no end": 1, "start of a wrong type": 2, "start out of range": 1,
        "gridX of a wrong type": 1, "stream out of range": 1,
    }  # fmt: skip
    assert told.balanced
    assert trace.imports[0].lost == 8
    assert sum(loss.count for loss in trace.quality.losses) == 8


@pytest.mark.parametrize("value", [None, -1, 0, 2**63 - 1, -(2**63), 1.5, float("inf"), "text", b"\0\1", ""])
def test_no_value_of_any_column_is_an_error(tmp_path: Path, value: object) -> None:
    events = {
        "CUPTI_ACTIVITY_KIND_MEMCPY": {"bytes": 8, "copyKind": 11, "srcKind": 0, "virtualAddress": 4},
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": {"syncType": 1, "eventId": 1},
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {"graphId": 1, "graphExecId": 2},
        "CUDA_GPU_MEMORY_USAGE_EVENTS": {"address": 1, "bytes": 1, "memKind": 2, "memoryOperationType": 0},
        "CUPTI_ACTIVITY_KIND_RUNTIME": {"globalTid": global_tid(100, 100), "nameId": 1, "returnValue": 0},
        "OSRT_API": {"globalTid": global_tid(100, 100), "nameId": 1},
        "GPU_METRICS": {"timestamp": 1, "typeId": 1, "metricId": 1, "value": 1},
        "NVTX_EVENTS": nvtx(text="a", rangeId=1, textId=1, doubleValue=1.0),
        "CUDA_GRAPH_NODE_EVENTS": {**node(30, 1), "globalTid": global_tid(100, 100)},
        "TARGET_INFO_GPU": {"id": 0, "cuDevice": 0, "name": "A", "uuid": "GPU-0", "totalMemory": 1},
        "TARGET_INFO_CUDA_STREAM": {"streamId": 7, "hwId": 0, "vmId": 1, "processId": 100, "priority": 0},
        "PROCESSES": {"globalPid": global_pid(100), "pid": 100, "name": "p"},
        "ThreadNames": {"nameId": 1, "globalTid": global_tid(100, 100)},
    }
    base = kernel(10, 20)
    tables = {KERNEL: [base, *(base | {column: value} for column in base)]}
    for name, row in events.items():
        whole = base | row
        tables[name] = [whole, *(whole | {column: value} for column in whole)]
    trace = cutrace.load(nsys(tmp_path / "a.sqlite", ["f"], **tables))

    assert trace.imports[0].accounts
    assert all(a.balanced for a in trace.imports[0].accounts)
    for name in (KERNEL, *events):
        assert account(trace, name).kept.count >= 1


def test_a_file_that_is_cut_off_gives_what_can_be_read(tmp_path: Path) -> None:
    rows = [kernel(i * 10, i * 10 + 5) for i in range(1, 5001)]
    whole = nsys(tmp_path / "whole.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=rows).read_bytes()
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[: len(whole) // 2])
    trace = cutrace.load(path)
    told = account(trace, KERNEL)
    readable = []
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as database:
        database.execute("PRAGMA writable_schema = ON")
        with pytest.raises(sqlite3.DatabaseError, match="malformed"):
            readable += database.execute(f"SELECT start FROM {KERNEL}")
    assert 500 < len(readable) < 4500

    assert trace.kernels["start"].tolist() == [start for (start,) in readable]
    assert told.lost["the file is damaged"].count >= 1
    assert told.balanced
    assert any("damaged" in note for note in trace.quality.notes)


def test_tables_in_front_of_those_that_are_cut_off_are_there(tmp_path: Path) -> None:
    """The directory of tables is not at the start of a database, so its end is lost with the end of the file."""
    others = {f"OTHER_TABLE_{i:03}": [{f"column_{c:02}": 1 for c in range(20)}] for i in range(60)}
    whole = nsys(tmp_path / "whole.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)], **others).read_bytes()
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    trace = cutrace.load(path)

    assert len(trace.kernels) == 1
    assert account(trace, "the list of tables").lost["the file is damaged"].count == 1
    assert trace.imports[0].lost >= 1
    assert any("the list of tables is damaged" in note for note in trace.quality.notes)


def test_a_missing_table_of_strings_is_told(tmp_path: Path) -> None:
    path = nsys(tmp_path / "a.sqlite", CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20), kernel(30, 40)])
    trace = cutrace.load(path)
    assert account(trace, "StringIds").lost["rows refer to strings that are not there"].count == 1
    assert account(trace, "StringIds").balanced
    assert trace.quality.lacks_records


def test_names_that_are_lost_are_counted(tmp_path: Path) -> None:
    names = [f"kernel {i} " + "x" * 400 for i in range(100)]
    whole = nsys(tmp_path / "whole.sqlite", CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)], Z=[{"z": 1}])
    with closing(sqlite3.connect(whole)) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.executemany("INSERT INTO StringIds (value) VALUES (?)", [(name,) for name in names])
        database.commit()
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole.read_bytes()[:-8192])
    trace = cutrace.load(path)

    assert account(trace, "StringIds").lost["the file is damaged"].count >= 1
    assert account(trace, "StringIds").balanced


def test_a_database_that_somebody_writes_is_read_and_stays_as_it_is(tmp_path: Path) -> None:
    path = nsys(tmp_path / "a.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)])
    before = path.read_bytes(), path.stat().st_mtime_ns
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        trace = cutrace.load(path)

    assert len(trace.kernels) == 1
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]


def test_changes_that_are_in_another_file_are_spoken_of(tmp_path: Path) -> None:
    path = nsys(tmp_path / "a.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)])
    (tmp_path / "a.sqlite-wal").write_bytes(b"changes")
    trace = cutrace.load(path)

    assert any("a.sqlite-wal" in note for note in trace.quality.notes)


def test_half_the_tables_are_enough(tmp_path: Path) -> None:
    path = nsys(tmp_path / "a.sqlite", CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)])
    trace = cutrace.load(path)

    assert len(trace.kernels) == 1
    assert texts(trace, trace.launches[trace.kernels["launch"]]) == [""]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"SQLite format 3\0" + bytes(4000), "a.sqlite"),
        (b"SQLite format 3\0", "a.sqlite"),
        (b"SQLite format 3\0" + b"\xff" * 8000, "a.sqlite"),
    ],
)
def test_what_is_no_database_is_told_in_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    with pytest.raises(BadCapture, match=said):
        cutrace.load(path)


def test_a_database_of_another_tool_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE songs (title)")
    with pytest.raises(BadCapture, match="neither Nsight Systems nor nvprof"):
        cutrace.load(path)


def test_an_export_without_events_is_told(tmp_path: Path) -> None:
    path = nsys(tmp_path / "a.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=[kernel(30, 20)])
    with pytest.raises(BadCapture, match="no usable event"):
        cutrace.load(path)
