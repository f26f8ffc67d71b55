"""What becomes of which table of an nvprof database.

The tables are CUPTI's activity records as they were: their enumerations are CUPTI's, as those of a capture are.
Functions are numbers, which :mod:`.callback_names` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import callback_names
from .building import Rows, arguments
from .tables import Kind

if TYPE_CHECKING:
    from .nvprof import Reading, Target

#: The column with the number of a row.
ROW = "_id_"

_THREADS = 0xFFFFFFFF
_NOTHING = 0xFFFFFFFF  # what CUPTI writes for an id that there is not

Fill = Callable[["Reading", "Target", Rows], None]


@dataclass(frozen=True)
class Mapping:
    """How rows of a table become rows of the table ``table`` of a capture."""

    table: str
    columns: dict[str, Kind]
    fill: Fill


def ids(blobs: np.ndarray) -> np.ndarray:
    """The three numbers of CUPTI's object ids: process and thread, or device, context and stream. Shape (n, 3)."""
    return np.frombuffer(b"".join(blob[:12].ljust(12, b"\0") for blob in blobs.tolist()), "<u4").reshape(-1, 3)


def _integers(*names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, "integer")


def _taken(table: str, taken: dict[str, str], *, timed: bool = True) -> Mapping:
    """A table of which each field is a column."""

    def fill(reading: Reading, target: Target, made: Rows) -> None:
        if timed:
            made.span()
        made.take(**taken)

    return Mapping(table, _integers(*(("start", "end") if timed else ()), *taken.values()), fill)


_WORK = {"correlation": "correlationId", "stream": "streamId", "context": "contextId", "device": "deviceId"}
_COPY = _WORK | {
    "bytes": "bytes", "kind": "copyKind", "source_memory": "srcKind", "destination_memory": "dstKind"
}  # fmt: skip
_LAUNCH = {
    "grid_x": "gridX", "grid_y": "gridY", "grid_z": "gridZ",
    "block_x": "blockX", "block_y": "blockY", "block_z": "blockZ",
    "registers": "registersPerThread", "static_shared": "staticSharedMemory", "dynamic_shared": "dynamicSharedMemory",
    "shared_executed": "sharedMemoryExecuted", "local_per_thread": "localMemoryPerThread",
    "local_total": "localMemoryTotal", "launch_type": "launchType",
}  # fmt: skip
_DEVICE = {
    "device": "id", "memory": "globalMemorySize", "memory_bandwidth": "globalMemoryBandwidth",
    "compute_major": "computeCapabilityMajor", "compute_minor": "computeCapabilityMinor",
    "multiprocessors": "numMultiprocessors", "core_clock": "coreClockRate", "l2_cache": "l2CacheSize",
    "warp_size": "numThreadsPerWarp", "max_threads_per_block": "maxThreadsPerBlock",
    "max_warps_per_multiprocessor": "maxWarpsPerMultiprocessor",
    "max_blocks_per_multiprocessor": "maxBlocksPerMultiprocessor",
    "registers_per_multiprocessor": "maxRegistersPerMultiprocessor", "registers_per_block": "maxRegistersPerBlock",
    "shared_per_multiprocessor": "maxSharedMemoryPerMultiprocessor", "shared_per_block": "maxSharedMemoryPerBlock",
    "copy_engines": "numMemcpyEngines",
}  # fmt: skip


def _kernels(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(**_WORK)
    batch = made.batch
    launch = Rows("launches", batch)
    launch.take(**_LAUNCH)
    launch.check("name", "cacheConfig")
    launch.rows["name"] = target.strings[batch["name"]]
    asked = batch["isSharedMemoryCarveoutRequested"] != 0
    launch.set("carveout", np.where(asked, batch["sharedMemoryCarveoutRequested"], 255))
    # A byte: what was asked for below, what was used above.
    cache = np.array([blob[0] if blob else 0 for blob in batch["cacheConfig"].tolist()], np.uint8)
    launch.rows["cache_requested"], launch.rows["cache_executed"] = cache & 15, cache >> 4
    made.adopt(launch)
    made.rows["launch"] = target.launches.ids(launch.rows)
    if reading.counts_kernels:
        reading.kernels.append((batch["correlationId"], made.rows["start"].copy()))


def _copies(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(**_COPY)
    made.rows["source_device"] = made.rows["destination_device"] = made.rows["device"]
    _asynchronous(made)


def _peer_copies(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(**_COPY, source_device="srcDeviceId", destination_device="dstDeviceId")
    batch = made.batch
    own = batch["srcContextId"] == batch["contextId"]
    made.set("peer_context", np.where(own, batch["dstContextId"], batch["srcContextId"]))
    _asynchronous(made)


def _memsets(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(**_WORK, bytes="bytes", memory="memoryKind")
    made.check("value")
    made.rows["value"] = made.batch["value"].astype(np.uint32)
    _asynchronous(made)


def _asynchronous(made: Rows) -> None:
    made.check("flags")
    made.rows["flags"] = made.batch["flags"] & 1


def _calls(domain: int, names: dict[int, str]) -> Fill:
    kind = "runtime" if domain == 2 else "driver"

    def fill(reading: Reading, target: Target, made: Rows) -> None:
        made.span()
        made.take(correlation="correlationId")
        made.need("cbid", "threadId")
        made.check("returnValue")
        batch = made.batch
        made.rows["thread"] = batch["threadId"] & _THREADS
        for pid in np.unique(batch["processId"]).tolist():
            wide = batch["threadId"][(batch["threadId"] > _THREADS) & (batch["processId"] == pid)]
            reading.wide_threads.setdefault(pid & 0xFFFFFFFF, set()).update(np.unique(wide).tolist())
        function = Rows("functions", batch)
        function.set("callback", batch["cbid"])
        function.rows["status"], function.rows["domain"] = batch["returnValue"].astype(np.uint32), domain
        numbers, inverse = np.unique(batch["cbid"], return_inverse=True)
        texts = [target.writer.string(names.get(n) or f"{kind} function {n}") for n in numbers.tolist()]
        function.rows["name"] = np.array(texts)[inverse.reshape(-1)]
        made.adopt(function)
        made.rows["function"] = target.calls.ids(function.rows)

    return fill


def _synchronizations(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(correlation="correlationId", context="contextId", type="type")
    for name, column in (("stream", "streamId"), ("event", "cudaEventId")):
        made.check(column)
        number = made.batch[column] & _NOTHING
        made.set(name, np.where(number == _NOTHING, 0, number))


def _overheads(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(kind="overheadKind")
    of_thread = made.batch["objectKind"] == 2
    made.rows["thread"] = np.where(of_thread, ids(made.batch["objectId"])[:, 1], 0)


def _unified_memory(reading: Reading, target: Target, made: Rows) -> None:
    made.span()
    made.take(
        value="value", address="address", stream="streamId", kind="counterKind", source_device="srcId",
        destination_device="dstId", flags="flags",
    )  # fmt: skip
    # Faults of the processor are moments.
    made.rows["end"] = np.where((made.rows["end"] == 0), made.rows["start"], made.rows["end"])


def _allocations(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("start", until="end")
    made.take(address="address", bytes="bytes", memory="memoryKind", device="deviceId", context="contextId")
    made.rows["operation"] = 1
    made.rows["source"] = target.strings[made.batch["name"]]
    # The same row says when it was given back, if it was.
    freed = (made.batch["end"] > 0) & made.usable
    released = made.rows[freed]
    released["time"], released["operation"] = made.batch["end"][freed], 2
    reading.add(target, "allocations", released)


def _environment(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("timestamp")
    made.take(device="deviceId", kind="environmentKind")
    made.need("data")
    batch = made.batch
    data = b"".join(blob[:20].ljust(20, b"\0") for blob in batch["data"].tolist())
    words = np.frombuffer(data, "<u4").reshape(-1, 5).astype(np.uint64)
    low, high = words & np.uint64(0xFFFF), words << np.uint64(16)
    high &= np.uint64(_NOTHING)
    speed = low[:, 0] | high[:, 1] | (low[:, 2] | high[:, 3]) << np.uint64(32)
    power = words[:, 0] | words[:, 1] << np.uint64(32)
    kind = batch["environmentKind"]
    made.rows["values"] = np.select([kind == 1, kind == 3], [speed, power], words[:, 0])
    made.rows["flags"] = np.where(kind == 1, words[:, 4], 0)
    made.reject((kind < 1) | (kind > 4), "an unknown kind")


def _devices(reading: Reading, target: Target, made: Rows) -> None:
    made.take(**_DEVICE)
    batch, fields = made.batch, made.rows
    fields["name"] = target.strings[batch["name"]]
    fields["max_threads_per_multiprocessor"] = fields["max_warps_per_multiprocessor"] * fields["warp_size"]
    uuids = [blob[:16].ljust(16, b"\0") for blob in batch["uuid"].tolist()]
    fields["uuid"] = np.array([np.void(uuid) for uuid in uuids], "V16")


def _streams(reading: Reading, target: Target, made: Rows) -> None:
    made.take(stream="streamId", context="contextId", type="flag")
    made.rows["priority"] = made.batch["priority"].astype(np.uint32).view(np.int32)


def _functions(reading: Reading, target: Target, made: Rows) -> None:
    made.take(device_function="id", module="moduleId", index="functionIndex", context="contextId")
    made.rows["name"] = target.strings[made.batch["name"]]


def _preemptions(reading: Reading, target: Target, made: Rows) -> None:
    made.moment("timestamp")
    made.rows["name"], made.rows["scope"] = target.writer.string("preemption"), 1
    told = {name: made.batch[name].tolist() for name in ("preemptionKind", "gridId", "blockX", "blockY", "blockZ")}
    made.rows["arguments"] = arguments(target.writer, told, made.batch.rows)


_OPENACC = (
    "device init", "device shutdown", "runtime shutdown", "enqueue launch", "enqueue upload", "enqueue download",
    "wait", "implicit wait", "compute construct", "update", "enter data", "exit data", "create", "delete", "alloc",
    "free",
)  # fmt: skip
_OPENMP = ("parallel", "task", "thread", "idle", "wait barrier", "wait taskwait")
_TOLD_NUMBERS = ("deviceNumber", "async", "lineNo", "endLineNo", "bytes", "numGangs", "numWorkers", "vectorLength")
_TOLD_TEXTS = ("srcFile", "funcName", "varName", "kernelName")


def _constructs(category: str, kinds: tuple[str, ...]) -> Mapping:
    def fill(reading: Reading, target: Target, made: Rows) -> None:
        made.span()
        made.need("eventKind")
        batch, writer = made.batch, target.writer
        made.take(external="externalId")
        made.rows["category"] = writer.string(category)
        known = batch["eventKind"].clip(0, len(kinds) + 1)
        texts = [writer.string(text) for text in ("unknown", *kinds, "unknown")]
        made.rows["name"] = np.array(texts)[known]
        made.rows["thread"] = np.where(batch["cuThreadId"] != 0, batch["cuThreadId"], batch["threadId"]) & _THREADS
        told: dict[str, list[object]] = {name: [v or None for v in batch[name].tolist()] for name in _TOLD_NUMBERS}
        told |= {name: [reading.texts[v] or None for v in batch[name].tolist()] for name in _TOLD_TEXTS}
        made.rows["arguments"] = arguments(writer, told, batch.rows)

    columns = ("start", "end", "eventKind", "threadId", "cuThreadId", "externalId", *_TOLD_NUMBERS, *_TOLD_TEXTS)
    return Mapping("host_slices", _integers(*columns), fill)


def _counters(noun: str, *, timed: bool, per_instance: bool) -> Mapping:
    """Counts and metrics. Those without a time were read around a kernel: they are told at its begin."""
    metric = noun == "metric"

    def fill(reading: Reading, target: Target, made: Rows) -> None:
        made.need("id", "value")
        batch, writer = made.batch, target.writer
        if timed:
            made.moment("timestamp")
            made.take(device="deviceId")
        else:
            made.rows["time"] = reading.kernel_starts(batch["correlationId"])
            made.reject(made.rows["time"] == 0, "its kernel is not there")
            made.rows["device"] = 0xFFFF
        made.rows["value"] = _numbers(batch["value"]) if metric else batch["value"]
        made.reject(~np.isfinite(made.rows["value"]), "no number")
        made.rows["category"] = writer.string(f"nvprof {noun}s")
        made.rows["name"] = [writer.string(f"{noun} {number}") for number in batch["id"].tolist()]
        if per_instance:
            made.rows["series"] = [writer.string(f"instance {number}") for number in batch["instance"].tolist()]

    time = ("timestamp", "deviceId") if timed else ("correlationId",)
    columns = _integers("id", *time, *(("instance",) if per_instance else ()))
    return Mapping("counters", columns | {"value": "bytes" if metric else "integer"}, fill)


def _numbers(blobs: np.ndarray) -> np.ndarray:
    """Values of metrics, which are floating or whole numbers of 64 bits; the file does not say which. A floating number
    that looks like a whole one is smaller than any that is measured."""
    data = b"".join(blob[:8].ljust(8, b"\0") for blob in blobs.tolist())
    whole = np.frombuffer(data, "<u8")
    floating = np.frombuffer(data, "<f8")
    return np.where(whole < 1 << 52, whole.astype(np.float64), floating)


_KERNELS = Mapping(
    "kernels",
    _integers("start", "end", "name", "isSharedMemoryCarveoutRequested", "sharedMemoryCarveoutRequested")
    | _integers(*_WORK.values(), *_LAUNCH.values())
    | {"cacheConfig": "bytes"},
    _kernels,
)
_CALL = _integers("start", "end", "cbid", "correlationId", "processId", "threadId", "returnValue")
_COPIED = _integers("start", "end", "flags", *_COPY.values())
_ACC = _constructs("OpenACC", _OPENACC)
MAPPINGS: dict[str, Mapping] = {
    "RUNTIME": Mapping("api_calls", _CALL, _calls(2, callback_names.RUNTIME)),
    "DRIVER": Mapping("api_calls", _CALL, _calls(1, callback_names.DRIVER)),
    "KERNEL": _KERNELS,
    "CONCURRENT_KERNEL": _KERNELS,
    "CDP_KERNEL": _KERNELS,
    "MEMCPY": Mapping("memcpys", _COPIED, _copies),
    "MEMCPY2": Mapping(
        "memcpys",
        _COPIED | _integers("srcDeviceId", "dstDeviceId", "srcContextId", "dstContextId"),
        _peer_copies,
    ),
    "MEMSET": Mapping(
        "memsets", _integers("start", "end", *_WORK.values(), "bytes", "memoryKind", "value", "flags"), _memsets
    ),
    "SYNCHRONIZATION": Mapping(
        "synchronizations",
        _integers("start", "end", "correlationId", "contextId", "type", "streamId", "cudaEventId"),
        _synchronizations,
    ),
    "CUDA_EVENT": _taken(
        "cuda_events",
        {"correlation": "correlationId", "stream": "streamId", "context": "contextId", "event": "eventId"},
        timed=False,
    ),
    "OVERHEAD": Mapping(
        "overheads", _integers("start", "end", "overheadKind", "objectKind") | {"objectId": "bytes"}, _overheads
    ),
    "UNIFIED_MEMORY_COUNTER": Mapping(
        "unified_memory",
        _integers("start", "end", "value", "address", "streamId", "counterKind", "srcId", "dstId", "flags"),
        _unified_memory,
    ),
    "MEMORY": Mapping(
        "allocations",
        _integers("start", "end", "address", "bytes", "memoryKind", "deviceId", "contextId", "name"),
        _allocations,
    ),
    "ENVIRONMENT": Mapping(
        "environment", _integers("timestamp", "deviceId", "environmentKind") | {"data": "bytes"}, _environment
    ),
    "EXTERNAL_CORRELATION": _taken(
        "external_correlations",
        {"external": "externalId", "correlation": "correlationId", "kind": "externalKind"},
        timed=False,
    ),
    "DEVICE": Mapping("devices", _integers(*_DEVICE.values(), "name") | {"uuid": "bytes"}, _devices),
    "CONTEXT": _taken(
        "contexts",
        {"context": "contextId", "device": "deviceId", "compute_api": "computeApiKind", "null_stream": "nullStreamId"},
        timed=False,
    ),
    "STREAM": Mapping("streams", _integers("streamId", "contextId", "flag", "priority"), _streams),
    "MODULE": _taken("modules", {"module": "id", "size": "cubinSize", "context": "contextId"}, timed=False),
    "FUNCTION": Mapping(
        "device_functions", _integers("id", "moduleId", "functionIndex", "contextId", "name"), _functions
    ),
    "PREEMPTION": Mapping(
        "instants", _integers("timestamp", "preemptionKind", "gridId", "blockX", "blockY", "blockZ"), _preemptions
    ),
    "OPENACC_DATA": _ACC,
    "OPENACC_LAUNCH": _ACC,
    "OPENACC_OTHER": _ACC,
    "OPENMP": _constructs("OpenMP", _OPENMP),
    "EVENT": _counters("event", timed=False, per_instance=False),
    "EVENT_INSTANCE": _counters("event", timed=False, per_instance=True),
    "METRIC": _counters("metric", timed=False, per_instance=False),
    "METRIC_INSTANCE": _counters("metric", timed=False, per_instance=True),
    "INSTANTANEOUS_EVENT": _counters("event", timed=True, per_instance=False),
    "INSTANTANEOUS_EVENT_INSTANCE": _counters("event", timed=True, per_instance=True),
    "INSTANTANEOUS_METRIC": _counters("metric", timed=True, per_instance=False),
    "INSTANTANEOUS_METRIC_INSTANCE": _counters("metric", timed=True, per_instance=True),
}

#: Calls say which processes there are; what speaks of kernels comes after them.
ORDER = {"RUNTIME": 0, "DRIVER": 0} | dict.fromkeys(("EVENT", "EVENT_INSTANCE", "METRIC", "METRIC_INSTANCE"), 2)

#: Columns that repeat what others say, or mean nothing outside the file.
REDUNDANT = frozenset({ROW, "version", "processId", "cuProcessId", "cubin", "completed"})

_SOURCE_LEVEL = "counts of source lines, not of time"
#: Why tables have no place in a capture.
WHY = {
    "Version": "the version of the file",
    "PCIE": "how the machine is wired",
    "NVLINK": "how the machine is wired",
    "DEVICE_ATTRIBUTE": "facts of the machine that a capture has no place for",
} | dict.fromkeys(
    (
        "SOURCE_LOCATOR", "GLOBAL_ACCESS", "SHARED_ACCESS", "BRANCH", "INSTRUCTION_EXECUTION",
        "INSTRUCTION_CORRELATION", "PC_SAMPLING", "PC_SAMPLING_RECORD_INFO",
    ),
    _SOURCE_LEVEL,
)  # fmt: skip
