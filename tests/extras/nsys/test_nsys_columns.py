"""The destination of each column of an export. All values differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cutrace
from cutrace import Trace
from databases import account, global_pid, global_tid, kernel, nsys, texts

WHERE = {
    "globalPid": global_pid(100), "deviceId": 2, "contextId": 3, "streamId": 14, "correlationId": 15,
}  # fmt: skip
PLACE = {"start": 100, "end": 140, **WHERE}
PLACED = {"start": 100, "end": 140, "device": 2, "context": 3, "stream": 14, "correlation": 15}


def only(trace: Trace, table: str) -> dict[str, Any]:
    (row,) = trace.table(table)
    return {name: row[name].item() for name in row.dtype.names}


def load(path: Path, strings: tuple[str, ...] = (), **tables: list[dict[str, Any]]) -> Trace:
    return cutrace.load(nsys(path / "a.sqlite", strings, **tables))


def test_kernels(tmp_path):
    trace = load(
        tmp_path, ("short", "demangled", "mangled"),
        CUPTI_ACTIVITY_KIND_KERNEL=[PLACE | {
            "shortName": 1, "demangledName": 2, "mangledName": 3, "launchType": 3, "cacheConfig": 1,
            "registersPerThread": 21, "gridX": 22, "gridY": 23, "gridZ": 24, "blockX": 25, "blockY": 26, "blockZ": 27,
            "staticSharedMemory": 28, "dynamicSharedMemory": 29, "localMemoryPerThread": 30, "localMemoryTotal": 31,
            "sharedMemoryExecuted": 32, "graphNodeId": 33, "sharedMemoryLimitConfig": 1, "graphId": 34, "clusterX": 2,
            "clusterY": 3, "clusterZ": 4, "clusterSchedulingPolicy": 1, "maxPotentialClusterSize": 8,
            "maxActiveClusters": 9, "sharedMemoryRequestedPercentage": 50, "cacheRequested": 2,
        }],
    )  # fmt: skip
    assert PLACED.items() <= only(trace, "kernels").items()
    launch = trace.launches[only(trace, "kernels")["launch"]]
    found = {name: launch[name].item() for name in launch.dtype.names if name != "name"}
    assert trace.strings[launch["name"]] == "mangled"
    assert found == found | {
        "launch_type": 2, "cache_executed": 1, "registers": 21, "grid_x": 22, "grid_y": 23, "grid_z": 24,
        "block_x": 25, "block_y": 26, "block_z": 27, "static_shared": 28, "dynamic_shared": 29,
        "local_per_thread": 30, "local_total": 31, "shared_executed": 32, "graph_node": 33, "shared_limit": 1,
        "graph": 34, "cluster_x": 2, "cluster_y": 3, "cluster_z": 4, "cluster_policy": 1, "max_cluster": 8,
        "max_active_clusters": 9, "carveout": 50, "cache_requested": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ({"shortName": 1, "demangledName": 2, "mangledName": 3}, "mangled"),
        ({"shortName": 1, "demangledName": 2, "mangledName": 99}, "demangled"),
        ({"shortName": 1, "demangledName": None, "mangledName": None}, "short"),
    ],
)
def test_the_name_of_a_kernel_is_the_most_exact_one_that_has_a_text(tmp_path, names, shown):
    strings = ("short", "demangled", "mangled")
    trace = load(tmp_path, strings, CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20, **names)])
    assert trace.strings[trace.launches["name"][1]] == shown


@pytest.mark.parametrize(("asked", "carveout"), [(0, 0), (100, 100), (101, 255), (-1, 255), (None, 255)])
def test_the_requested_share_of_shared_memory(tmp_path, asked, carveout):
    trace = load(tmp_path, ("k",), CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20, sharedMemoryRequestedPercentage=asked)])
    assert trace.launches["carveout"][1] == carveout


@pytest.mark.parametrize(("number", "kind"), [(None, 0), (0, 0), (1, 0), (2, 1), (3, 2), (9, 2)])
def test_the_type_of_a_launch(tmp_path, number, kind):
    trace = load(tmp_path, ("k",), CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20, launchType=number)])
    assert trace.launches["launch_type"][1] == kind


def test_copies_fills_graphs_and_waits(tmp_path):
    copy = PLACE | {
        "bytes": 512,
        "copyKind": 1,
        "srcKind": 0,
        "dstKind": 2,
        "graphNodeId": 5,
        "graphId": 6,
        "isAsync": 1,
    }
    trace = load(
        tmp_path,
        CUPTI_ACTIVITY_KIND_MEMCPY=[
            copy,
            copy | {"start": 200, "end": 210, "copyKind": 10, "srcDeviceId": 2, "dstDeviceId": 7, "srcContextId": 3,
                    "dstContextId": 8},
            copy | {"start": 300, "end": 310, "copyKind": 10, "srcDeviceId": 7, "dstDeviceId": 2, "srcContextId": 8,
                    "dstContextId": 3},
        ],
        CUPTI_ACTIVITY_KIND_MEMSET=[
            PLACE | {"value": -1, "bytes": 64, "graphNodeId": 5, "memKind": 2, "graphId": 6, "isAsync": 1}
        ],
        CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[PLACE | {"graphId": 4, "graphExecId": 9}],
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=[
            PLACE | {"syncType": 2, "eventId": 31, "eventSyncId": 32, "returnValue": 33}
        ],
        CUPTI_ACTIVITY_KIND_CUDA_EVENT=[WHERE | {"timestamp": 77, "eventId": 41, "eventSyncId": 42}],
    )  # fmt: skip
    copies = trace.memcpys
    assert PLACED.items() <= {name: copies[0][name].item() for name in copies.dtype.names}.items()
    columns = ["bytes", "kind", "source_memory", "destination_memory", "graph_node", "graph", "flags"]
    assert copies[columns][0].tolist() == (512, 1, 1, 3, 5, 6, 1)
    devices = ["source_device", "destination_device", "peer_context"]
    assert copies[devices].tolist() == [(2, 2, 0), (2, 7, 8), (7, 2, 8)]
    fill = only(trace, "memsets")
    assert fill == fill | PLACED | {
        "value": 0xFFFFFFFF,
        "bytes": 64,
        "graph_node": 5,
        "memory": 3,
        "graph": 6,
        "flags": 1,
    }
    graph = only(trace, "graph_launches")
    assert graph == graph | PLACED | {"graph": 9}
    wait = only(trace, "synchronizations")
    assert wait == wait | {"start": 100, "end": 140, "context": 3, "stream": 14, "correlation": 15, "type": 2,
                           "event": 31, "event_record": 32, "status": 33}  # fmt: skip
    event = only(trace, "cuda_events")
    assert event == event | {"device_time": 77, "context": 3, "stream": 14, "correlation": 15, "event": 41,
                             "event_record": 42}  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "destination"), [(11, 0xFFFFFFFF, 2), (12, 2, 0xFFFFFFFF), (13, 2, 2)])
def test_migrations_are_between_the_gpu_and_the_host(tmp_path, kind, source, destination):
    moved = PLACE | {"bytes": 4096, "copyKind": kind, "migrationCause": 5, "virtualAddress": 1 << 20}
    trace = load(tmp_path, CUPTI_ACTIVITY_KIND_MEMCPY=[moved])
    row = only(trace, "unified_memory")
    assert row == row | {"start": 100, "end": 140, "stream": 14, "value": 4096, "flags": 5, "address": 1 << 20,
                         "source_device": source, "destination_device": destination}  # fmt: skip
    assert row["kind"] == {11: 1, 12: 2, 13: 8}[kind]
    assert not len(trace.memcpys)
    (tmp_path / "named").mkdir()
    named = load(tmp_path / "named", CUPTI_ACTIVITY_KIND_MEMCPY=[moved | {"srcDeviceId": 5, "dstDeviceId": 6}])
    assert named.unified_memory[["source_device", "destination_device"]].tolist() == [(5, 6)]


def test_calls_have_the_domain_of_their_class_or_else_of_their_name(tmp_path):
    call = {"start": 10, "end": 20, "globalTid": global_tid(100, 7), "correlationId": 3, "returnValue": -2,
            "callbackId": 211}  # fmt: skip
    names = ("cudaLaunchKernel_v7000", "cuLaunchKernel", "__cudaRegister")
    calls = [call | {"nameId": name, "eventClass": of} for name in (1, 2, 3) for of in (0, 1, 9, None)]
    trace = load(tmp_path, names, CUPTI_ACTIVITY_KIND_RUNTIME=calls)
    functions = trace.functions[trace.api_calls["function"]]
    assert functions["domain"].tolist() == [2, 1, 2, 2, 2, 1, 1, 1, 2, 1, 2, 2]
    assert set(functions["status"].tolist()) == {0xFFFFFFFE}
    assert set(functions["callback"].tolist()) == {211}
    assert texts(trace, functions)[::4] == ["cudaLaunchKernel", "cuLaunchKernel", "__cudaRegister"]


def test_allocations_have_the_pool_that_they_are_of(tmp_path):
    made = {
        "start": 10, "globalPid": global_pid(100), "deviceId": 2, "contextId": 3, "address": 4, "bytes": 5,
        "memKind": 2, "memoryOperationType": 0, "correlationId": 6, "streamId": 7, "isAsync": 1,
        "localMemoryPoolUtilizedSize": 8, "source": "libtorch.so",
    }  # fmt: skip
    pools = [{}, {"localMemoryPoolAddress": 11}, {"importedMemoryPoolAddress": 12},
             {"localMemoryPoolAddress": 13, "importedMemoryPoolAddress": 14}]  # fmt: skip
    trace = load(tmp_path, CUDA_GPU_MEMORY_USAGE_EVENTS=[
        {"localMemoryPoolAddress": None, "importedMemoryPoolAddress": None} | made | pool for pool in pools
    ])  # fmt: skip
    assert trace.allocations[["pool_type", "pool"]].tolist() == [(0, 0), (1, 11), (2, 12), (1, 13)]
    columns = ["time", "device", "context", "address", "bytes", "memory", "operation", "correlation", "stream", "flags",
               "pool_used"]  # fmt: skip
    assert trace.allocations[columns][0].tolist() == (10, 2, 3, 4, 5, 3, 1, 6, 7, 1, 8)
    assert texts(trace, trace.allocations, "source") == ["libtorch.so"] * 4


def test_pools_and_faults(tmp_path):
    trace = load(
        tmp_path,
        CUDA_GPU_MEMORY_POOL_EVENTS=[{
            "start": 5, "globalPid": global_pid(100), "deviceId": 2, "address": 3, "operationType": 1, "poolType": 2,
            "correlationId": 6, "minBytesToKeep": 7, "localMemoryPoolReleaseThreshold": 8, "localMemoryPoolSize": 9,
            "localMemoryPoolUtilizedSize": 10,
        }],
        CUDA_UM_CPU_PAGE_FAULT_EVENTS=[{"start": 30, "globalPid": global_pid(100), "address": 8192}],
        CUDA_UM_GPU_PAGE_FAULT_EVENTS=[{
            "start": 40, "end": 45, "globalPid": global_pid(100), "deviceId": 2, "address": 4096,
            "numberOfPageFaults": 6, "faultAccessType": 3,
        }],
    )  # fmt: skip
    pool = only(trace, "memory_pools")
    assert pool == pool | {
        "time": 5, "device": 2, "address": 3, "operation": 1, "pool_type": 2, "correlation": 6, "minimum": 7,
        "release_threshold": 8, "size": 9, "used": 10,
    }  # fmt: skip
    columns = ["start", "end", "kind", "value", "address", "flags", "source_device", "destination_device"]
    assert trace.unified_memory[columns].tolist() == [
        (30, 30, 3, 1, 8192, 0, 0xFFFFFFFF, 0), (40, 45, 4, 6, 4096, 3, 2, 2),
    ]  # fmt: skip


def test_work_of_other_kinds_is_slices_of_the_gpu(tmp_path):
    trace = load(
        tmp_path,
        CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH=[PLACE],
        CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS=[PLACE | {"start": 200, "end": 220}],
    )
    assert texts(trace, trace.gpu_slices) == ["host function", "memory decompression"]
    first = trace.gpu_slices[0]
    assert {name: first[name].item() for name in PLACED} == PLACED


@pytest.mark.parametrize("table", ["NET_NIC_METRIC", "NET_IB_SWITCH_METRIC"])
def test_network_metrics_are_counters_of_ports(tmp_path, table):
    metric = {"globalId": 0x1F, "portId": 2, "metricsListId": 4, "metricsIdx": 1}
    trace = load(
        tmp_path, ("k",),
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)],
        TARGET_INFO_NETWORK_METRICS=[
            {"metricsListId": 4, "metricsIdx": 0, "name": "other"},
            {"metricsListId": 4, "metricsIdx": 1, "name": "Bytes sent"},
            {"metricsListId": 5, "metricsIdx": 1, "name": "of another list"},
            {"metricsListId": 4, "metricsIdx": 3, "name": ""},
        ],
        **{table: [
            metric | {"start": 11, "end": 12, "value": 700},
            metric | {"start": 13, "end": 14, "value": 800, "globalId": -1, "portId": 1},
            metric | {"start": 15, "end": 16, "value": 900, "metricsIdx": 3},
            metric | {"start": 17, "end": 18, "value": 950, "metricsIdx": 2},
            metric | {"start": 19, "end": 20, "value": None},
        ]},
    )  # fmt: skip
    rows = trace.counters
    assert rows[["time", "value", "device"]].tolist() == [
        (11, 700.0, 0xFFFF), (13, 800.0, 0xFFFF), (15, 900.0, 0xFFFF), (17, 950.0, 0xFFFF),
    ]  # fmt: skip
    assert texts(trace, rows) == ["Bytes sent", "Bytes sent", "metric 3", "metric 2"]
    assert texts(trace, rows, "series") == ["0x1f port 2", "0xffffffffffffffff port 1", "0x1f port 2", "0x1f port 2"]
    assert set(texts(trace, rows, "category")) == {"network"}
    told = account(trace, table)
    assert (told.kept.count, sum(tally.count for tally in told.lost.values())) == (4, 1)


def test_metrics_of_the_machine_have_no_gpu(tmp_path):
    trace = load(
        tmp_path, ("k",),
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)],
        TARGET_INFO_SOC_METRICS=[
            {"typeId": 0x1201, "metricId": 3, "metricName": "Power [W]"},
            {"typeId": 0x1301, "metricId": 3, "metricName": "Other [V]"},
        ],
        SOC_METRICS=[
            {"timestamp": 15, "typeId": 0x1201, "metricId": 3, "value": 7.5},
            {"timestamp": 16, "typeId": 0x1301, "metricId": 3, "value": 8.5},
            {"timestamp": 17, "typeId": 0x1401, "metricId": 3, "value": 9.5},
        ],
    )  # fmt: skip
    assert trace.counters[["time", "value", "device"]].tolist() == [
        (15, 7.5, 0xFFFF), (16, 8.5, 0xFFFF), (17, 9.5, 0xFFFF),
    ]  # fmt: skip
    assert texts(trace, trace.counters) == ["Power [W]", "Other [V]", "Power [W]"], "of any type, if of none of its own"
    assert texts(trace, trace.counters, "unit") == ["W", "V", "W"]
    assert set(texts(trace, trace.counters, "category")) == {"SoC metrics"}


def test_diagnostics_and_generic_events_are_instants(tmp_path):
    trace = load(
        tmp_path, ("k", "irq"),
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)],
        DIAGNOSTIC_EVENT=[{"timestamp": 11, "text": "buffer full"}, {"timestamp": 12, "text": None}],
        GENERIC_EVENT_TYPES=[{"typeId": 5, "nameId": 2}, {"typeId": 6, "nameId": None}],
        GENERIC_EVENTS=[
            {"timestamp": 21, "typeId": 5, "globalTid": global_tid(100, 9), "data": '{"vector": 3}'},
            {"timestamp": 22, "typeId": 6, "globalTid": global_tid(100, 9), "data": None},
            {"timestamp": 23, "typeId": 7, "globalTid": global_tid(100, 9), "data": "[1]"},
        ],
    )  # fmt: skip
    rows = trace.instants
    assert rows[["time", "scope"]].tolist() == [(11, 1), (21, 0), (22, 0)]
    assert rows["thread"].tolist()[1:] == [9, 9]
    assert texts(trace, rows) == ["buffer full", "irq", "event"]
    assert texts(trace, rows, "category") == ["diagnostic", "generic event", "generic event"]
    assert [json.loads(text or "{}") for text in texts(trace, rows, "arguments")] == [{}, {"vector": 3}, {}]
    lost = account(trace, "GENERIC_EVENTS").lost
    assert {why: tally.count for why, tally in lost.items()} == {"data is not a JSON object": 1}
    assert sum(tally.count for tally in account(trace, "DIAGNOSTIC_EVENT").lost.values()) == 1


def test_slices_of_libraries_have_the_category_of_their_table(tmp_path):
    call = {"start": 10, "end": 20, "globalTid": global_tid(100, 101)}
    tables = {
        "OSRT_API": ("OS runtime", 4), "SYSCALL": ("system call", 4), "CUDNN_EVENTS": ("cuDNN", 0),
        "CUBLAS_EVENTS": ("cuBLAS", 0), "CUDA_GRAPH_EVENTS": ("CUDA graph", 0),
        "CUDA_GRAPH_NODE_EVENTS": ("CUDA graph node", 0), "CUDA_HOST_CALLBACK": ("CUDA host callback", 0),
        "PROFILER_OVERHEAD": ("profiler overhead", 0), "MPI_COLLECTIVES_EVENTS": ("MPI", 0),
        "UCP_EVENTS": ("UCX", 0), "OPENMP_EVENT_KIND_TASK": ("OpenMP", 0),
        "CUPTI_ACTIVITY_KIND_OPENACC_DATA": ("OpenACC", 0), "VULKAN_DEBUG_API": ("Vulkan Debug", 0),
        "OTHER_EVENT": ("Other", 0),
    }  # fmt: skip
    rows = {name: [call | {"nameId": at}] for at, name in enumerate(tables, 1)}
    trace = load(tmp_path, tuple(tables), **rows)
    found = trace.host_slices
    named = zip(texts(trace, found, "category"), found["kind"].tolist(), strict=True)
    assert dict(zip(texts(trace, found), named, strict=True)) == tables


def test_arguments_of_a_slice_are_its_other_columns(tmp_path):
    call = {"start": 10, "end": 20, "globalTid": global_tid(100, 101), "eventClass": 3, "nestingLevel": 1}
    trace = load(
        tmp_path, ("name", "main.f90", "compute", "x", "kernel_1"),
        CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH=[
            call
            | {"nameId": 1, "srcFile": 2, "funcName": 3, "varName": 4, "kernelName": 5, "lineNo": 12, "bytes": None},
        ],
        CUDNN_EVENTS=[call | {"nameId": 1, "lineNo": 4}],
        MPI_START_WAIT_EVENTS=[call | {"textId": 1, "requests": 3, "category": "told"}],
    )  # fmt: skip
    arguments = dict(
        zip(texts(trace, trace.host_slices, "category"), texts(trace, trace.host_slices, "arguments"), strict=True)
    )
    assert {category: json.loads(text or "{}") for category, text in arguments.items()} == {
        "OpenACC": {
            "srcFile": "main.f90", "funcName": "compute", "varName": "x", "kernelName": "kernel_1", "lineNo": 12,
        },
        "cuDNN": {},
        "told": {"requests": 3},
    }  # fmt: skip


def test_tables_without_a_place_say_why(tmp_path):
    trace = load(
        tmp_path, ("k",),
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)],
        ENUM_SOMETHING=[{"id": 1, "name": "A"}, {"id": 2, "name": "B"}],
        TARGET_INFO_NEW=[{"key": 1}],
        CUDA_CALLCHAINS=[{"id": 1, "symbol": 1}] * 3,
        VULKAN_WORKLOAD=[{"start": 1, "end": 3, "globalTid": 1, "nameId": 1}],
    )  # fmt: skip
    why = {name: {reason: tally.count for reason, tally in account(trace, name).left.items()} for name in (
        "ENUM_*", "TARGET_INFO_NEW", "CUDA_CALLCHAINS", "VULKAN_WORKLOAD",
    )}  # fmt: skip
    assert why == {
        "ENUM_*": {"constants of nsys": 2}, "TARGET_INFO_NEW": {"properties of the machine that no table holds": 1},
        "CUDA_CALLCHAINS": {"call stacks": 3}, "VULKAN_WORKLOAD": {"": 1},
    }  # fmt: skip


def test_the_machine_is_described(tmp_path):
    trace = load(
        tmp_path, ("k", "loader"),
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)],
        TARGET_INFO_GPU=[{
            "vmId": 1, "id": 0, "name": "NVIDIA H200", "busLocation": "0000:19:00.0", "l2CacheSize": 11,
            "totalMemory": 12, "memoryBandwidth": 13_000, "clockRate": 14_000, "smCount": 15, "cuDevice": 0,
            "maxRegistersPerBlock": 16, "maxShmemPerBlock": 17, "maxShmemPerBlockOptin": 18, "maxShmemPerSm": 19,
            "maxRegistersPerSm": 20, "threadsPerWarp": 21, "asyncEngines": 22, "maxWarpsPerSm": 23,
            "maxBlocksPerSm": 24, "maxThreadsPerBlock": 25, "computeMajor": 9, "computeMinor": 1,
            "maxThreadsPerSm": 26, "memoryClockRate": 27_000, "reservedShmemPerBlock": 28, "isMig": 1,
        }],
        TARGET_INFO_CUDA_CONTEXT_INFO=[
            {"nullStreamId": 7, "hwId": 0, "vmId": 1, "processId": 100, "deviceId": 0, "contextId": 3, "computeApi": 1}
        ],
        ThreadNames=[{"nameId": 2, "globalTid": global_tid(100, 105), "source": 2}],
    )  # fmt: skip
    device = only(trace, "devices")
    assert device == device | {
        "device": 0, "l2_cache": 11, "memory": 12, "memory_bandwidth": 13, "core_clock": 14, "multiprocessors": 15,
        "registers_per_block": 16, "shared_per_block": 17, "shared_per_block_optin": 18,
        "shared_per_multiprocessor": 19, "registers_per_multiprocessor": 20, "warp_size": 21, "copy_engines": 22,
        "max_warps_per_multiprocessor": 23, "max_blocks_per_multiprocessor": 24, "max_threads_per_block": 25,
        "compute_major": 9, "compute_minor": 1, "max_threads_per_multiprocessor": 26, "memory_clock": 27,
        "shared_reserved_per_block": 28, "mig": 1,
    }  # fmt: skip
    assert [trace.strings[device[name]] for name in ("name", "pci")] == ["NVIDIA H200", "0000:19:00.0"]
    context = only(trace, "contexts")
    assert context == context | {"context": 3, "device": 0, "null_stream": 7, "compute_api": 1}
    thread = only(trace, "threads")
    assert (thread["thread"], thread["source"], trace.strings[thread["name"]]) == (105, 2, "loader")
