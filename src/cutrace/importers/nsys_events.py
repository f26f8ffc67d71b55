"""What becomes of which table of an Nsight Systems export.

Work of the GPU, calls of CUDA and their like have tables of their own in a capture. Every other table whose rows have
a start, an end, a thread and a name is of slices of the host; what is known of its family says under which heading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..runbin import TABLES
from ..runbin.layout import Table
from .building import Rows, arguments, distinct, text_ids
from .nsys_target import device_ordinals
from .tables import Batch, Kind, rows

if TYPE_CHECKING:
    from .nsys import Reading, Target

Fill = Callable[["Reading", "Target", Rows], None]

#: Columns that repeat what others say, or mean nothing outside nsys.
REDUNDANT = frozenset(
    {
        "eventClass", "eventId", "shortName", "demangledName", "deprecatedSrcId", "deprecatedSyncType", "rawTimestamp",
        "endGlobalTid", "globalPid", "nestingLevel",
    }
)  # fmt: skip

_NOTHING = 0xFFFFFFFF  # what CUPTI writes for an id that there is not


@dataclass(frozen=True)
class Mapping:
    """How rows of a table become rows of the table ``table`` of a capture: the columns that are read, and what sets
    the fields."""

    table: str
    columns: dict[str, Kind]
    fill: Fill
    priority: int = 1

    def owner(self, columns: Sequence[str]) -> str:
        """The column that says whose a row is."""
        return "globalTid" if "globalTid" in columns else "globalPid"


def without_version(name: str) -> str:
    """The name of a function without the version that CUPTI puts behind it."""
    return re.sub(r"_v\d+$", "", name)


def _integers(*names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, "integer")


# Work of the GPU

_LAUNCH = {
    "grid_x": "gridX", "grid_y": "gridY", "grid_z": "gridZ",
    "block_x": "blockX", "block_y": "blockY", "block_z": "blockZ",
    "cluster_x": "clusterX", "cluster_y": "clusterY", "cluster_z": "clusterZ",
    "registers": "registersPerThread", "static_shared": "staticSharedMemory", "dynamic_shared": "dynamicSharedMemory",
    "shared_executed": "sharedMemoryExecuted", "local_per_thread": "localMemoryPerThread",
    "local_total": "localMemoryTotal", "graph_node": "graphNodeId", "graph": "graphId",
    "cache_requested": "cacheRequested", "cache_executed": "cacheConfig", "shared_limit": "sharedMemoryLimitConfig",
    "cluster_policy": "clusterSchedulingPolicy", "max_cluster": "maxPotentialClusterSize",
    "max_active_clusters": "maxActiveClusters",
}  # fmt: skip

_WORK = {"correlation": "correlationId", "stream": "streamId", "context": "contextId", "device": "deviceId"}


def _kernels(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(**_WORK)
    batch = made.batch
    launch = Rows("launches", batch)
    launch.take(**_LAUNCH)
    names = np.where(batch.known("mangledName"), batch["mangledName"], batch["demangledName"])
    names = np.where(batch.known("mangledName") | batch.known("demangledName"), names, batch["shortName"])
    launch.rows["name"] = target.strings[names]
    launch.rows["launch_type"] = np.clip(batch["launchType"] - 1, 0, 2)
    percent = batch["sharedMemoryRequestedPercentage"]
    asked = batch.known("sharedMemoryRequestedPercentage") & (percent >= 0) & (percent <= 100)
    launch.rows["carveout"] = np.where(asked, percent, 255)
    made.adopt(launch)
    made.rows["launch"] = target.launches.ids(launch.rows)


def _copies(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(
        **_WORK, bytes="bytes", graph_node="graphNodeId", graph="graphId", kind="copyKind", flags="isAsync",
        source_device="srcDeviceId", destination_device="dstDeviceId",
    )  # fmt: skip
    batch = made.batch
    _memory_kind(made, "source_memory", "srcKind")
    _memory_kind(made, "destination_memory", "dstKind")
    for name, column in (("source_device", "srcDeviceId"), ("destination_device", "dstDeviceId")):
        made.rows[name] = np.where(batch.known(column), made.rows[name], made.rows["device"])
    peer = np.where(batch["srcContextId"] == batch["contextId"], batch["dstContextId"], batch["srcContextId"])
    made.set("peer_context", np.where(batch["copyKind"] == 10, peer, 0))


def _memsets(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(**_WORK, bytes="bytes", graph_node="graphNodeId", graph="graphId", flags="isAsync")
    made.check("value")
    made.rows["value"] = made.batch["value"].astype(np.uint32)  # of any sign
    _memory_kind(made, "memory", "memKind")


def _memory_kind(made: Rows, name: str, column: str) -> None:
    """nsys counts kinds of memory from 0 (pageable) and has 7 for the unknown one, which is CUPTI's 0."""
    made.check(column)
    kinds = made.batch[column]
    made.set(name, np.where(made.batch.known(column) & (kinds != 7), kinds + 1, 0))


#: Copies that the driver made to bring managed memory where it was touched, and CUPTI's counters of the same.
_MIGRATIONS = {11: 1, 12: 2, 13: 8}


def _migrations(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    batch = made.batch
    made.take(value="bytes", address="virtualAddress", stream="streamId", flags="migrationCause")
    kinds = batch["copyKind"]
    made.rows["kind"] = np.select([kinds == kind for kind in _MIGRATIONS], list(_MIGRATIONS.values()))
    # nsys leaves out where a page came from and went to: the one end is the device, the other the host.
    for name, column, ends_at_host in (("source_device", "srcDeviceId", 11), ("destination_device", "dstDeviceId", 12)):
        told = np.where(kinds == ends_at_host, np.int64(_NOTHING), batch["deviceId"])
        made.set(name, np.where(batch.known(column), batch[column], told))


def _synchronizations(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    batch = made.batch
    made.take(correlation="correlationId", context="contextId", status="returnValue")
    made.check("syncType")
    for name, column in (("stream", "streamId"), ("event", "eventId"), ("event_record", "eventSyncId")):
        made.set(name, _known_id(reading, made, column))
    # Which ids CUPTI gives depends on the kind of wait, and some versions of nsys number the kinds in another way.
    of_stream = batch.known("streamId") & (batch["streamId"] & _NOTHING != _NOTHING)
    of_event = batch.known("eventId") & (batch["eventId"] & _NOTHING != _NOTHING)
    kind, told = batch["syncType"], batch.known("streamId") & batch.known("eventId")
    fits = np.select(
        [kind == 1, kind == 2, kind == 3], [of_event, of_event, of_stream & ~of_event], ~of_stream & ~of_event
    )
    by_ids = np.select([of_stream & of_event, of_event, of_stream], [2, 1, 3], 4)
    made.set("type", np.where(told & ~fits, by_ids, kind))


def _known_id(reading: Reading, made: Rows, column: str) -> np.ndarray:
    """Ids, 0 where there is none: of any size, "none" is -1."""
    made.check(column)
    ids = made.batch[column]
    if reading.is_own:
        return ids
    known: np.ndarray = np.where((ids == -1) | (ids == _NOTHING), 0, ids)
    return known


def _events(reading: Reading, target: Target, made: Rows) -> None:
    made.need("eventId")
    made.take(
        correlation="correlationId", stream="streamId", context="contextId", event="eventId", device_time="timestamp"
    )  # fmt: skip
    made.set("event_record", _known_id(reading, made, "eventSyncId"))


def _graphs(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(**_WORK)
    batch = made.batch
    made.set("graph", np.where(batch.known("graphExecId"), batch["graphExecId"], batch["graphId"]))


def _gpu_slices(name: str) -> Fill:
    def fill(reading: Reading, target: Target, made: Rows) -> None:
        made.span()
        made.take(**_WORK)
        made.rows["name"] = target.writer.string(name)

    return fill


# Calls


def _calls(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    batch = made.batch
    made.take(correlation="correlationId")
    made.rows["thread"] = reading.thread_numbers(batch["globalTid"])
    made.check("nameId", "returnValue")
    function = np.zeros(batch.rows, TABLES["functions"].dtype)
    function["status"] = batch["returnValue"].astype(np.uint32)
    # Classes 0 and 1 are the runtime and the driver; of others only the name tells.
    places, inverse = np.unique(batch["nameId"], return_inverse=True)
    runtime = np.array([reading.texts[number].lstrip("_").startswith("cuda") for number in places.tolist()], bool)
    classes = np.where(batch.known("eventClass"), batch["eventClass"], -1)
    by_name = np.where(runtime, 2, 1)[inverse.reshape(-1)]
    function["domain"] = np.select([classes == 0, classes == 1], [2, 1], by_name)
    function["name"] = target.functions[batch["nameId"]]
    function["callback"] = np.where(batch.known("callbackId"), batch["callbackId"], 0).astype(np.uint32)
    function[~batch.known("nameId")] = np.zeros(1, function.dtype)
    made.rows["function"] = target.calls.ids(function)


def _host_slices(name: str, columns: Sequence[str]) -> Mapping:
    category, kind = _heading(name)
    text = next((c for c in ("nameId", "textId", "text", "name") if c in columns), "")
    used: dict[str, Kind] = _integers("start", "end", "globalTid", "correlationId")
    used[text] = "text" if text in ("text", "name") else "integer"
    used["category"] = "text"
    told = [c for c in columns if name.startswith(_WITH_ARGUMENTS) and c not in REDUNDANT and c not in used]

    def fill(reading: Reading, target: Target, made: Rows) -> None:
        made.span(open_ended=True)
        batch, writer = made.batch, target.writer
        made.take(external="correlationId")
        made.rows["flags"] = batch.columns["end"].null
        made.rows["thread"] = reading.thread_numbers(batch["globalTid"])
        named = text_ids(writer, batch["category"])
        made.rows["category"], made.rows["kind"] = np.where(named != 0, named, writer.string(category)), kind
        made.rows["name"] = text_ids(writer, batch[text]) if used[text] == "text" else target.functions[batch[text]]
        if told:
            values = {column: _told(reading, batch.columns[column].known, batch[column], column) for column in told}
            made.rows["arguments"] = arguments(writer, values, batch.rows)

    return Mapping("host_slices", used | _integers(*told), fill)


def _told(reading: Reading, known: np.ndarray, values: np.ndarray, column: str) -> list[object]:
    """The values of an argument; texts for the numbers of texts."""
    if column in ("srcFile", "funcName", "varName", "kernelName"):
        return [reading.texts[v] or None if k else None for k, v in zip(known.tolist(), values.tolist(), strict=True)]
    return [v if k else None for k, v in zip(known.tolist(), values.tolist(), strict=True)]


_WITH_ARGUMENTS = ("MPI_", "UCP_", "OPENMP_", "CUPTI_ACTIVITY_KIND_OPENACC_", "CUDA_GRAPH_")

_HEADINGS = {
    "OSRT_API": ("OS runtime", 4),
    "SYSCALL": ("system call", 4),
    "CUDNN_EVENTS": ("cuDNN", 0),
    "CUBLAS_EVENTS": ("cuBLAS", 0),
    "CUDA_GRAPH_EVENTS": ("CUDA graph", 0),
    "CUDA_GRAPH_NODE_EVENTS": ("CUDA graph node", 0),
    "CUDA_HOST_CALLBACK": ("CUDA host callback", 0),
    "PROFILER_OVERHEAD": ("profiler overhead", 0),
}
_FAMILIES = {"MPI_": "MPI", "UCP_": "UCX", "OPENMP_": "OpenMP", "CUPTI_ACTIVITY_KIND_OPENACC_": "OpenACC"}


def _heading(name: str) -> tuple[str, int]:
    """Category and kind of the slices of a table."""
    if name in _HEADINGS:
        return _HEADINGS[name]
    family = next((family for begin, family in _FAMILIES.items() if name.startswith(begin)), "")
    return family or re.sub(r"_(API|EVENTS?)$", "", name).replace("_", " ").title(), 0


# Memory


def _allocations(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("start")
    batch = made.batch
    made.take(
        **_WORK, address="address", bytes="bytes", flags="isAsync", pool="localMemoryPoolAddress",
        pool_used="localMemoryPoolUtilizedSize",
    )  # fmt: skip
    made.set("operation", batch["memoryOperationType"] + 1)
    imported = batch["importedMemoryPoolAddress"]
    made.rows["pool_type"] = np.select([batch["localMemoryPoolAddress"] != 0, imported != 0], [1, 2])
    made.rows["pool"] = np.where(made.rows["pool"] != 0, made.rows["pool"], imported.astype(np.uint64))
    _memory_kind(made, "memory", "memKind")
    made.rows["source"] = text_ids(target.writer, batch["source"])


def _pools(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("start")
    made.take(
        address="address", size="localMemoryPoolSize", used="localMemoryPoolUtilizedSize", minimum="minBytesToKeep",
        release_threshold="localMemoryPoolReleaseThreshold", correlation="correlationId", device="deviceId",
        operation="operationType", pool_type="poolType",
    )  # fmt: skip


def _cpu_faults(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("start", "start")
    made.take(address="address")
    made.rows["end"], made.rows["kind"], made.rows["value"] = made.rows["start"], 3, 1
    made.rows["source_device"] = _NOTHING


def _gpu_faults(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(
        address="address", value="numberOfPageFaults", source_device="deviceId", destination_device="deviceId",
        flags="faultAccessType",
    )  # fmt: skip
    made.rows["kind"] = 4


# Overheads and compilations


def _overheads(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(correlation="correlationId")
    batch = made.batch
    made.check("overheadType", "overheadKind")
    told = batch["overheadType"]
    kinds = np.where(told > 2, (told - 2) << 16, np.maximum(told - 1, 0))
    # Greater numbers than those of nsys are CUPTI's own; so are those in cutrace's column.
    kinds = np.where(told > 0xFFFF, told, kinds)
    made.set("kind", np.where(batch.known("overheadKind"), batch["overheadKind"], kinds))
    made.rows["thread"] = reading.thread_numbers(batch["globalTid"])


def _compilations(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(
        correlation="correlationId", device="deviceId", entry="jitEntryType", operation="jitOperationType",
        cache_size="cacheSize",
    )  # fmt: skip
    made.rows["thread"] = reading.thread_numbers(made.batch["globalTid"])
    made.rows["cache_path"] = text_ids(target.writer, made.batch["cachePath"])


# Counters and moments


def _metrics(table: str, category: str) -> Fill:
    def fill(reading: Reading, target: Target, made: Rows) -> None:
        made.moment("timestamp")
        made.need("value")
        batch, writer = made.batch, target.writer
        made.set("value", batch["value"])
        made.rows["category"] = writer.string(category)
        names = _metric_names(reading, table)
        keys = np.stack([batch["typeId"], batch["metricId"]], axis=1)
        first, inverse = distinct(np.ascontiguousarray(keys).view("i8,i8").reshape(-1))
        found = [names.get((t, m)) or names.get((None, m)) or f"metric {m}" for t, m in keys[first].tolist()]
        made.rows["name"] = np.array([writer.string(name) for name in found])[inverse]
        units = [re.search(r"\[([^\]]*)\]$", name) for name in found]
        made.rows["unit"] = np.array([writer.string(unit[1] if unit else "") for unit in units])[inverse]
        ordinals = device_ordinals(reading.tables)
        gpus = [t & 0xFF for t in keys[first][:, 0].tolist()]
        devices = [ordinals.get(gpu, gpu) if category == "GPU metrics" else 0xFFFF for gpu in gpus]
        made.rows["device"] = np.array(devices)[inverse]

    return fill


def _metric_names(reading: Reading, table: str) -> dict[tuple[object, object], str]:
    columns: dict[str, Kind] = {"typeId": "integer", "metricId": "integer", "metricName": "text"}
    found: dict[tuple[object, object], str] = {}
    for row in rows(reading.tables, table, columns):
        found[row["typeId"], row["metricId"]] = str(row["metricName"] or "")
        found.setdefault((None, row["metricId"]), str(row["metricName"] or ""))
    return found


def _network(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("start")
    made.need("value")
    batch, writer = made.batch, target.writer
    made.set("value", batch["value"])
    made.rows["category"], made.rows["device"] = writer.string("network"), 0xFFFF
    columns: dict[str, Kind] = {"metricsListId": "integer", "metricsIdx": "integer", "name": "text"}
    found = rows(reading.tables, "TARGET_INFO_NETWORK_METRICS", columns)
    names = {(row["metricsListId"], row["metricsIdx"]): str(row["name"] or "") for row in found}
    keys = list(zip(batch["metricsListId"].tolist(), batch["metricsIdx"].tolist(), strict=True))
    made.rows["name"] = [writer.string(names.get(key) or f"metric {key[1]}") for key in keys]
    made.rows["series"] = [
        writer.string(f"{number & 0xFFFFFFFFFFFFFFFF:#x} port {port}")
        for number, port in zip(batch["globalId"].tolist(), batch["portId"].tolist(), strict=True)
    ]


def _diagnostics(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("timestamp")
    made.need("text")
    made.rows["name"] = text_ids(target.writer, made.batch["text"])
    made.rows["category"], made.rows["scope"] = target.writer.string("diagnostic"), 1


def _generic(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("timestamp")
    batch, writer = made.batch, target.writer
    columns: dict[str, Kind] = {"typeId": "integer", "nameId": "integer"}
    types = {r["typeId"]: r["nameId"] for r in rows(reading.tables, "GENERIC_EVENT_TYPES", columns)}
    names = [reading.texts[number] if isinstance(number := types.get(t), int) else "" for t in batch["typeId"].tolist()]
    made.rows["name"] = [writer.string(name or "event") for name in names]
    made.rows["category"] = writer.string("generic event")
    made.rows["thread"] = reading.thread_numbers(batch["globalTid"])
    made.rows["arguments"] = [writer.string(text if _is_object(text) else "") for text in batch["data"].tolist()]
    made.reject(
        np.array([bool(t) and not _is_object(t) for t in batch["data"].tolist()], bool), "data is no JSON object"
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict) if text else False
    except (ValueError, RecursionError):
        return False


def _own(table: Table) -> Mapping:
    """A table that cutrace added to a database of its own: a column for each field."""
    kinds: dict[str, Kind] = {"string": "text", "f64": "real"}
    fields = [f for f in table.fields if f.name != "process"]

    def fill(reading: Reading, target: Target, made: Rows) -> None:
        for f in fields:
            made.need(f.name)
            if f.type == "string":
                made.rows[f.name] = text_ids(target.writer, made.batch[f.name])
            else:
                made.set(f.name, made.batch[f.name])
        made.lasts()

    return Mapping(table.name, {f.name: kinds.get(f.type, "integer") for f in fields}, fill)


_TIMED = _integers("start", "end")
_PLACED = _TIMED | _integers(*_WORK.values())
_FIXED = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": Mapping(
        "api_calls",
        _TIMED | _integers("globalTid", "correlationId", "nameId", "returnValue", "callbackId", "eventClass"),
        _calls,
        0,
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": Mapping(
        "kernels",
        _PLACED
        | _integers("mangledName", "demangledName", "shortName", "launchType", "sharedMemoryRequestedPercentage")
        | _integers(*_LAUNCH.values()),
        _kernels,
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": Mapping(
        "memcpys",
        _PLACED
        | _integers("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "srcContextId", "dstDeviceId")
        | _integers("dstContextId", "migrationCause", "graphNodeId", "virtualAddress", "isAsync", "graphId"),
        _copies,
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": Mapping(
        "memsets", _PLACED | _integers("value", "bytes", "graphNodeId", "graphId", "memKind", "isAsync"), _memsets
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": Mapping(
        "synchronizations",
        _PLACED | _integers("syncType", "eventId", "eventSyncId", "returnValue"),
        _synchronizations,
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": Mapping(
        "cuda_events", _integers(*_WORK.values(), "timestamp", "eventId", "eventSyncId"), _events
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": Mapping(
        "graph_launches", _PLACED | _integers("graphId", "graphExecId"), _graphs
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH": Mapping(
        "gpu_slices", _PLACED, _gpu_slices("host function")
    ),
    "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS": Mapping("gpu_slices", _PLACED, _gpu_slices("memory decompression")),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": Mapping(
        "overheads",
        _TIMED
        | _integers("globalTid", "correlationId", "nameId", "overheadType", "overheadKind")
        | {"category": "text"},
        _overheads,
    ),
    "CUPTI_ACTIVITY_KIND_JIT": Mapping(
        "jit",
        _TIMED
        | _integers("globalTid", "correlationId", "deviceId", "jitEntryType", "jitOperationType", "cacheSize")
        | {"cachePath": "text"},
        _compilations,
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": Mapping(
        "allocations",
        _integers("start", *_WORK.values(), "address", "bytes", "memKind", "memoryOperationType", "isAsync")
        | _integers("localMemoryPoolAddress", "localMemoryPoolUtilizedSize", "importedMemoryPoolAddress")
        | {"source": "text"},
        _allocations,
    ),
    "CUDA_GPU_MEMORY_POOL_EVENTS": Mapping(
        "memory_pools",
        _integers("start", "deviceId", "address", "operationType", "poolType", "correlationId", "minBytesToKeep")
        | _integers("localMemoryPoolReleaseThreshold", "localMemoryPoolSize", "localMemoryPoolUtilizedSize"),
        _pools,
    ),
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": Mapping("unified_memory", _integers("start", "address"), _cpu_faults),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": Mapping(
        "unified_memory",
        _TIMED | _integers("deviceId", "address", "numberOfPageFaults", "faultAccessType"),
        _gpu_faults,
    ),
    "GPU_METRICS": Mapping(
        "counters",
        _integers("timestamp", "typeId", "metricId") | {"value": "real"},
        _metrics("TARGET_INFO_GPU_METRICS", "GPU metrics"),
        2,
    ),
    "SOC_METRICS": Mapping(
        "counters",
        _integers("timestamp", "typeId", "metricId") | {"value": "real"},
        _metrics("TARGET_INFO_SOC_METRICS", "SoC metrics"),
        2,
    ),
    "DIAGNOSTIC_EVENT": Mapping("instants", _integers("timestamp") | {"text": "text"}, _diagnostics, 2),
    "GENERIC_EVENTS": Mapping(
        "instants", _integers("timestamp", "typeId", "globalTid") | {"data": "text"}, _generic, 2
    ),
}  # fmt: skip
_NETWORK = Mapping(
    "counters",
    _integers("start", "globalId", "portId", "metricsListId", "metricsIdx") | {"value": "real"},
    _network,
    2,
)
_OF_NSYS = _host_slices("PROFILER_OVERHEAD", ("nameId",))
_MIGRATED = Mapping("unified_memory", _FIXED["CUPTI_ACTIVITY_KIND_MEMCPY"].columns, _migrations)


def mapping(name: str, columns: Sequence[str]) -> Mapping | None:
    """What to do with a table, None when it has no place in a capture."""
    if name in _FIXED:
        return _FIXED[name]
    if name in TABLES and "globalPid" in columns:
        return _own(TABLES[name])
    if name in ("NET_NIC_METRIC", "NET_IB_SWITCH_METRIC"):
        return _NETWORK
    if name == "PROFILER_OVERHEAD" and "overheadType" in columns:
        return _FIXED["CUPTI_ACTIVITY_KIND_OVERHEAD"]
    named = {"nameId", "textId", "text", "name"} & set(columns)
    if named and {"start", "end", "globalTid"} <= set(columns) and not name.endswith("_WORKLOAD"):
        return _host_slices(name, columns)
    return None


def priority(name: str) -> int:
    """Tables with a lower one are read earlier: calls say which processes there are."""
    return _FIXED[name].priority if name in _FIXED else 2 if name.startswith("NET_") else 1


def time_column(name: str, columns: Sequence[str]) -> str:
    """The column with the times of a table that is converted, "" for others."""
    if name != "NVTX_EVENTS" and not mapping(name, columns):
        return ""
    return next((c for c in ("start", "timestamp") if c in columns and name != "CUPTI_ACTIVITY_KIND_CUDA_EVENT"), "")


def span_columns(columns: Sequence[str]) -> tuple[str, str]:
    """The columns with the begin and the end of rows of a table that is left out."""
    for start, end in (("start", "end"), ("startedAt", "endedAt")):
        if start in columns and end in columns:
            return start, end
    return "", ""


def leftover(name: str) -> tuple[str, str]:
    """What a table that is left out is called, and why it is."""
    if name.startswith("ENUM_"):
        return "ENUM_*", "constants of nsys"
    if name.startswith("TARGET_INFO_"):
        return name, "facts of the machine that a capture has no place for"
    if name.endswith("_CALLCHAINS"):
        return name, "call stacks"
    return name, ""


def parts(mapping: Mapping, batch: Batch) -> Iterator[tuple[Mapping, Batch]]:
    """The rows of a table by what becomes of them: copies that moved managed memory are no copies of the program, and
    overheads that only nsys knows have names, not kinds."""
    if mapping.table == "memcpys":
        other, apart = _MIGRATED, np.isin(batch["copyKind"], list(_MIGRATIONS))
    elif mapping.table == "overheads":
        other, apart = _OF_NSYS, batch.known("nameId") & batch.known("overheadType") & (batch["overheadType"] == 0)
    else:
        other, apart = mapping, np.zeros(0, bool)
    if not apart.any():
        yield mapping, batch
        return
    yield other, batch.select(apart)
    if not apart.all():
        yield mapping, batch.select(~apart)
