"""The mapping of the tables of an nvprof database to tables of a capture.

The tables are CUPTI's activity records. Their enumerations are CUPTI's, as in a capture. Functions are callback ids;
:mod:`.callback_names` has their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...importers.row_builder import Rows, arguments
from .callback_names import DRIVER, RUNTIME
from .reading import Fill, Mapping, Target, map_distinct, peer_context
from .schema import NOTHING, declare

if TYPE_CHECKING:
    from .nvprof import NvprofReading

#: The column with the number of a row.
ROW = "_id_"

_THREADS = 0xFFFFFFFF


def packed(blobs: np.ndarray, size: int, dtype: str) -> np.ndarray:
    """The values in blobs, one row for each blob. Each blob is cut or padded to ``size`` bytes."""
    data = b"".join(blob[:size].ljust(size, b"\0") for blob in blobs.tolist())
    values = np.frombuffer(data, dtype)
    return values.reshape(len(blobs), size // values.itemsize)


def ids(blobs: np.ndarray) -> np.ndarray:
    """The three numbers of CUPTI's object ids: (process, thread) or (device, context, stream). Shape (n, 3)."""
    return packed(blobs, 12, "<u4")


# Columns that many tables share, in the notation of :mod:`cutrace.extras.nsys.schema`.
_TIMES = "start=start:time! end=end:time! "
_MOMENT = "timestamp=time:time! "
_WORK = (
    _TIMES
    + "correlationId=correlation streamId=stream contextId=context deviceId=device "
)
_COPY = (
    _WORK
    + "bytes=bytes copyKind=kind srcKind=source_memory dstKind=destination_memory flags "
)
_CALL = _TIMES + (
    "correlationId=correlation cbid=function.callback! threadId! processId returnValue=function.status:bits"
)
_KERNEL = _WORK + """
    name=launch.name:string gridX=launch.grid_x gridY=launch.grid_y gridZ=launch.grid_z blockX=launch.block_x
    blockY=launch.block_y blockZ=launch.block_z registersPerThread=launch.registers
    staticSharedMemory=launch.static_shared dynamicSharedMemory=launch.dynamic_shared
    sharedMemoryExecuted=launch.shared_executed localMemoryPerThread=launch.local_per_thread
    localMemoryTotal=launch.local_total launchType=launch.launch_type isSharedMemoryCarveoutRequested
    sharedMemoryCarveoutRequested cacheConfig:bytes
"""  # fmt: skip
_DEVICE = """
    id=device globalMemorySize=memory globalMemoryBandwidth=memory_bandwidth computeCapabilityMajor=compute_major
    computeCapabilityMinor=compute_minor numMultiprocessors=multiprocessors coreClockRate=core_clock
    l2CacheSize=l2_cache numThreadsPerWarp=warp_size maxThreadsPerBlock=max_threads_per_block
    maxWarpsPerMultiprocessor=max_warps_per_multiprocessor maxBlocksPerMultiprocessor=max_blocks_per_multiprocessor
    maxRegistersPerMultiprocessor=registers_per_multiprocessor maxRegistersPerBlock=registers_per_block
    maxSharedMemoryPerMultiprocessor=shared_per_multiprocessor maxSharedMemoryPerBlock=shared_per_block
    numMemcpyEngines=copy_engines name=name:string uuid:bytes
"""


def _kernels(reading: NvprofReading, target: Target, made: Rows) -> None:
    batch = made.batch
    launch = made.of("launch")
    launch.check("name", "cacheConfig")
    asked = batch["isSharedMemoryCarveoutRequested"] != 0
    launch.set("carveout", np.where(asked, batch["sharedMemoryCarveoutRequested"], 255))
    # The low half of the byte is the requested configuration, the high half the executed one.
    cache = packed(batch["cacheConfig"], 1, "u1")[:, 0]
    launch.rows["cache_requested"] = cache & 15
    launch.rows["cache_executed"] = cache >> 4
    if reading.counts_kernels:
        reading.kernels.append((batch["correlationId"], made.rows["start"].copy()))


def _copies(reading: NvprofReading, target: Target, made: Rows) -> None:
    made.rows["source_device"] = made.rows["destination_device"] = made.rows["device"]
    _asynchronous(reading, target, made)


def _peer_copies(reading: NvprofReading, target: Target, made: Rows) -> None:
    made.set("peer_context", peer_context(made.batch))
    _asynchronous(reading, target, made)


def _asynchronous(reading: NvprofReading, target: Target, made: Rows) -> None:
    made.check("flags")
    made.rows["flags"] = made.batch["flags"] & 1


def _calls(domain: int, kind: str, names: dict[int, str]) -> Fill:
    def fill(reading: NvprofReading, target: Target, made: Rows) -> None:
        def name_id(number: int) -> int:
            name = names.get(number) or f"{kind} function {number}"
            return target.writer.string(name)

        batch = made.batch
        threads = batch["threadId"]
        made.rows["thread"] = threads & _THREADS
        wide = threads > _THREADS
        for pid in np.unique(batch["processId"]).tolist():
            own = np.unique(threads[wide & (batch["processId"] == pid)])
            known = reading.wide_threads.setdefault(pid & 0xFFFFFFFF, set())
            known.update(own.tolist())
        function = made.of("function").rows
        function["name"] = map_distinct(name_id, np.int64, batch["cbid"])
        function["domain"] = domain

    return fill


def _overheads(reading: NvprofReading, target: Target, made: Rows) -> None:
    of_thread = made.batch["objectKind"] == 2
    threads = ids(made.batch["objectId"])[:, 1]
    made.rows["thread"] = np.where(of_thread, threads, 0)


def _unified_memory(reading: NvprofReading, target: Target, made: Rows) -> None:
    # CPU page faults are instants.
    instants = made.rows["end"] == 0
    made.rows["end"][instants] = made.rows["start"][instants]


def _allocations(reading: NvprofReading, target: Target, made: Rows) -> None:
    made.moment("start", until="end")
    made.rows["operation"] = 1
    # The row also has the time of the release, if the memory was released.
    freed = (made.batch["end"] > 0) & made.usable
    released = made.rows[freed]
    released["time"] = made.batch["end"][freed]
    released["operation"] = 2
    reading.add(target, "allocations", released)


def _environment(reading: NvprofReading, target: Target, made: Rows) -> None:
    batch = made.batch
    words = packed(batch["data"], 20, "<u4").astype(np.uint64)
    low = words & np.uint64(0xFFFF)
    high = words << np.uint64(16)
    high &= np.uint64(NOTHING)
    clocks = low[:, 0] | high[:, 1]
    link = low[:, 2] | high[:, 3]
    speed = clocks | link << np.uint64(32)
    power = words[:, 0] | words[:, 1] << np.uint64(32)
    kind = batch["environmentKind"]
    of_speed = kind == 1
    of_power = kind == 3
    made.rows["values"] = np.select([of_speed, of_power], [speed, power], words[:, 0])
    made.rows["flags"] = np.where(of_speed, words[:, 4], 0)
    made.reject((kind < 1) | (kind > 4), "an unknown kind")


def _devices(reading: NvprofReading, target: Target, made: Rows) -> None:
    fields = made.rows
    fields["max_threads_per_multiprocessor"] = (
        fields["max_warps_per_multiprocessor"] * fields["warp_size"]
    )
    fields["uuid"] = packed(made.batch["uuid"], 16, "V16")[:, 0]


def _preemptions(reading: NvprofReading, target: Target, made: Rows) -> None:
    made.rows["name"] = target.writer.string("preemption")
    made.rows["scope"] = 1
    columns = ("preemptionKind", "gridId", "blockX", "blockY", "blockZ")
    values = {name: made.batch[name].tolist() for name in columns}
    made.rows["arguments"] = arguments(target.writer, values, made.batch.rows)


_OPENACC = (
    "device init",
    "device shutdown",
    "runtime shutdown",
    "enqueue launch",
    "enqueue upload",
    "enqueue download",
    "wait",
    "implicit wait",
    "compute construct",
    "update",
    "enter data",
    "exit data",
    "create",
    "delete",
    "alloc",
    "free",
)
_OPENMP = ("parallel", "task", "thread", "idle", "wait barrier", "wait taskwait")
_ARGUMENT_NUMBERS = (
    "deviceNumber",
    "async",
    "lineNo",
    "endLineNo",
    "bytes",
    "numGangs",
    "numWorkers",
    "vectorLength",
)
_ARGUMENT_TEXTS = ("srcFile", "funcName", "varName", "kernelName")


def _constructs(category: str, kinds: tuple[str, ...]) -> Mapping:
    def fill(reading: NvprofReading, target: Target, made: Rows) -> None:
        batch = made.batch
        writer = target.writer
        made.rows["category"] = writer.string(category)
        known = batch["eventKind"].clip(0, len(kinds) + 1)
        names = [writer.string(text) for text in ("unknown", *kinds, "unknown")]
        made.rows["name"] = np.array(names)[known]
        thread = batch["cuThreadId"]
        thread = np.where(thread != 0, thread, batch["threadId"])
        made.rows["thread"] = thread & _THREADS
        values: dict[str, list[object]] = {}
        for column in _ARGUMENT_NUMBERS:
            values[column] = [number or None for number in batch[column].tolist()]
        for column in _ARGUMENT_TEXTS:
            numbers = batch[column].tolist()
            values[column] = [reading.texts[number] or None for number in numbers]
        made.rows["arguments"] = arguments(writer, values, batch.rows)

    columns = (
        "eventKind!",
        "threadId",
        "cuThreadId",
        "externalId=external",
        *_ARGUMENT_NUMBERS,
        *_ARGUMENT_TEXTS,
    )
    return Mapping(declare("", "host_slices", _TIMES + " ".join(columns)), fill)


def _counters(noun: str, *, timed: bool, per_instance: bool) -> Mapping:
    """The mapping of counters or metrics. If they have no time, they were read around a kernel and take its start."""
    metric = noun == "metric"

    def fill(reading: NvprofReading, target: Target, made: Rows) -> None:
        batch = made.batch
        writer = target.writer
        if not timed:
            made.rows["time"] = reading.kernel_starts(batch["correlationId"])
            made.reject(made.rows["time"] == 0, "its kernel is missing")
            made.rows["device"] = 0xFFFF
        values = batch["value"]
        if metric:
            values = _numbers(values)
        made.rows["value"] = values
        made.reject(~np.isfinite(made.rows["value"]), "not a number")
        made.rows["category"] = writer.string(f"nvprof {noun}s")
        ids = batch["id"].tolist()
        made.rows["name"] = [writer.string(f"{noun} {number}") for number in ids]
        if per_instance:
            instances = batch["instance"].tolist()
            made.rows["series"] = [writer.string(f"instance {i}") for i in instances]

    columns = "id! value!"
    if metric:
        columns = "id! value:bytes!"
    if per_instance:
        columns += " instance"
    if timed:
        columns += f" {_MOMENT} deviceId=device"
        priority = 1
    else:
        columns += " correlationId"
        priority = 2
    return Mapping(declare("", "counters", columns), fill, priority)


def _all_counters() -> dict[str, Mapping]:
    """The mappings of counters and metrics, by kind of record."""
    mappings = {}
    for noun in ("event", "metric"):
        for timed in (False, True):
            for per_instance in (False, True):
                kind = noun.upper()
                if timed:
                    kind = f"INSTANTANEOUS_{kind}"
                if per_instance:
                    kind = f"{kind}_INSTANCE"
                mappings[kind] = _counters(noun, timed=timed, per_instance=per_instance)
    return mappings


def _numbers(blobs: np.ndarray) -> np.ndarray:
    """The values of metrics, which are 64-bit floats or integers. The file lacks their type. Bits below 2^52 count as
    an integer, because as a float they would be smaller than any measured value."""
    whole = packed(blobs, 8, "<u8")[:, 0]
    floating = packed(blobs, 8, "<f8")[:, 0]
    return np.where(whole < 1 << 52, whole.astype(np.float64), floating)


def _mapping(
    table: str,
    columns: str,
    fill: Fill | None = None,
    priority: int = 1,
) -> Mapping:
    return Mapping(declare("", table, columns), fill, priority)


_KERNELS = _mapping("kernels", _KERNEL, _kernels)
_ACC = _constructs("OpenACC", _OPENACC)
#: Mappings by kind of record. Tables with a lower priority are read earlier.
MAPPINGS: dict[str, Mapping] = {
    "RUNTIME": _mapping("api_calls", _CALL, _calls(2, "runtime", RUNTIME), 0),
    "DRIVER": _mapping("api_calls", _CALL, _calls(1, "driver", DRIVER), 0),
    "KERNEL": _KERNELS,
    "CONCURRENT_KERNEL": _KERNELS,
    "CDP_KERNEL": _KERNELS,
    "MEMCPY": _mapping("memcpys", _COPY, _copies),
    "MEMCPY2": _mapping(
        "memcpys",
        _COPY
        + "srcDeviceId=source_device dstDeviceId=destination_device srcContextId dstContextId",
        _peer_copies,
    ),
    "MEMSET": _mapping(
        "memsets",
        _WORK + "bytes=bytes memoryKind=memory value=value:bits flags",
        _asynchronous,
    ),
    "SYNCHRONIZATION": _mapping(
        "synchronizations",
        _TIMES
        + "correlationId=correlation contextId=context type=type streamId=stream:id cudaEventId=event:id",
    ),
    "CUDA_EVENT": _mapping(
        "cuda_events",
        "correlationId=correlation streamId=stream contextId=context eventId=event",
    ),
    "OVERHEAD": _mapping(
        "overheads", _TIMES + "overheadKind=kind objectKind objectId:bytes", _overheads
    ),
    "UNIFIED_MEMORY_COUNTER": _mapping(
        "unified_memory",
        _TIMES
        + "value=value address=address streamId=stream counterKind=kind srcId=source_device "
        "dstId=destination_device flags=flags",
        _unified_memory,
    ),
    "MEMORY": _mapping(
        "allocations",
        "start end address=address bytes=bytes memoryKind=memory deviceId=device contextId=context name=source:string",
        _allocations,
    ),
    "ENVIRONMENT": _mapping(
        "environment",
        _MOMENT + "deviceId=device environmentKind=kind data:bytes!",
        _environment,
    ),
    "EXTERNAL_CORRELATION": _mapping(
        "external_correlations",
        "externalId=external correlationId=correlation externalKind=kind",
    ),
    "DEVICE": _mapping("devices", _DEVICE, _devices),
    "CONTEXT": _mapping(
        "contexts",
        "contextId=context deviceId=device computeApiKind=compute_api nullStreamId=null_stream",
    ),
    "STREAM": _mapping(
        "streams", "streamId=stream contextId=context flag=type priority=priority:bits"
    ),
    "MODULE": _mapping("modules", "id=module cubinSize=size contextId=context"),
    "FUNCTION": _mapping(
        "device_functions",
        "id=device_function moduleId=module functionIndex=index contextId=context name=name:string",
    ),
    "PREEMPTION": _mapping(
        "instants", _MOMENT + "preemptionKind gridId blockX blockY blockZ", _preemptions
    ),
    "OPENACC_DATA": _ACC,
    "OPENACC_LAUNCH": _ACC,
    "OPENACC_OTHER": _ACC,
    "OPENMP": _constructs("OpenMP", _OPENMP),
    **_all_counters(),
}

#: Columns that repeat other columns, and columns without a meaning outside the file.
REDUNDANT = frozenset(
    {ROW, "version", "processId", "cuProcessId", "cubin", "completed"}
)

_SOURCE_LEVEL = "counts by source line, without times"
#: The reasons why some tables are not imported.
WHY = {
    "Version": "the version of the file",
    "PCIE": "topology of the machine",
    "NVLINK": "topology of the machine",
    "DEVICE_ATTRIBUTE": "properties of the machine that no table holds",
} | dict.fromkeys(
    (
        "SOURCE_LOCATOR",
        "GLOBAL_ACCESS",
        "SHARED_ACCESS",
        "BRANCH",
        "INSTRUCTION_EXECUTION",
        "INSTRUCTION_CORRELATION",
        "PC_SAMPLING",
        "PC_SAMPLING_RECORD_INFO",
    ),
    _SOURCE_LEVEL,
)
