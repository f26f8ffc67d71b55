"""The tables and columns of Nsight Systems' exports. The SQLite exporter writes them, and the importer reads them.

Each table is declared once, in the order of its columns. A column is written ``name=field:conversion!``:

* ``field`` is the field of the capture that the column holds. ``launch.`` or ``function.`` before it selects a field of
  the row's launch configuration or function. A column without a field needs code in exporter and importer.
* ``conversion`` is a key of :data:`CONVERSIONS`; without one, numbers are unchanged.
* ``!`` means required: a row without a value is unusable. Other columns are optional: no value means 0. A column that
  the whole table lacks is 0 or unknown, even if it is required.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ...runbin import TABLES, labels
from ...runbin.labels import MEMCPY_KINDS, spelled, titled

#: The conversions and their effects from the capture to nsys. The exporter and the importer each have a function for
#: conversions that change a value.
CONVERSIONS = {
    "number": "the number unchanged",
    "null": "NULL in place of 0",
    "bits": "32 bits, which nsys may write with a sign",
    "color": "32 bits, NULL in place of 0",
    "id": "NULL in place of 0; nsys may write -1 for none",
    "time": "ns; the importer moves times before the session",
    "open": "an end, NULL for an open range (flags & 1)",
    "real": "a floating-point number",
    "text": "the text of a string id",
    "string": "a row of StringIds",
    "function": "a row of StringIds; nsys adds a version to names of functions",
    "process": "a serialized process id",
    "thread": "a serialized thread id",
    "memory": "nsys counts kinds of memory from 0 (pageable) and has 7 for the unknown kind",
    "less": "nsys counts from 0, CUPTI from 1",
    "thousand": "Hz for kHz, bytes for KB",
    "override": "overrides the earlier column of the same field",
    "uuid": "16 bytes",
    "bytes": "bytes",
    "-": "only nsys has it: NULL, and left out by the importer",
}
_SQL_TYPES = {"text": "TEXT", "uuid": "TEXT", "real": "REAL"}

#: A serialized thread id has the machine (16 bits), the process (24 bits) and the thread (24 bits).
THREAD_BITS = 24
THREADS = (1 << THREAD_BITS) - 1
#: CUPTI's value for a missing id, and for the host as a device.
NOTHING = 0xFFFFFFFF
#: ``eventType`` of NVTX_EVENTS.
NVTX_CATEGORY = 33
NVTX_MARK = 34
NVTX_THREAD = 39
NVTX_PUSH_POP = 59
NVTX_START_END = 60
NVTX_DOMAIN = 75
#: ``copyKind`` of the driver's copies that migrate managed memory, and the corresponding kind in ``unified_memory``.
MIGRATION_KINDS = {11: 1, 12: 2, 13: 8}
#: The column of an NVTX payload by its ``payload_type``, and the type of its value.
PAYLOADS = {
    1: ("uint64Value", "u8"),
    2: ("int64Value", "u8"),
    3: ("doubleValue", "f8"),
    4: ("uint32Value", "u4"),
    5: ("int32Value", "i4"),
    6: ("floatValue", "f4"),
}


@dataclass(frozen=True)
class SqlColumn:
    """One column, as in the docstring of this module. ``of`` is "launch" or "function" for a field of the row's launch
    configuration or function."""

    name: str
    field: str = ""
    conversion: str = "number"
    required: bool = False
    of: str = ""

    @property
    def sql_type(self) -> str:
        return _SQL_TYPES.get(self.conversion, "INTEGER")

    @property
    def used(self) -> bool:
        """Whether a capture has a field for the column."""
        return self.conversion != "-"


@dataclass(frozen=True, eq=False)
class SqlTable:
    """A table of an export: its name, the table of the capture with its rows, and its columns."""

    name: str
    table: str
    columns: tuple[SqlColumn, ...]


def declare(name: str, table: str, columns: str) -> SqlTable:
    """Parse a table from the string that declares its columns."""
    return SqlTable(name, table, tuple(map(_column, columns.split())))


def _column(text: str) -> SqlColumn:
    name, _, conversion = text.rstrip("!").partition(":")
    name, _, field = name.partition("=")
    of, _, field = field.rpartition(".")
    return SqlColumn(name, field, conversion or "number", text.endswith("!"), of)


def _also(other: SqlTable, table: str, columns: str) -> SqlTable:
    """Declare that rows of another table of the capture also go into the table ``other``. Its remaining columns are
    empty for these rows."""
    own = {c.name: c for c in map(_column, columns.split())}
    return SqlTable(
        other.name,
        table,
        tuple(
            own.get(c.name, SqlColumn(c.name, "", c.conversion)) for c in other.columns
        ),
    )


_TIMES = "start=start:time! end=end:time! "
_PROCESS = "globalPid=process:process "
_THREAD = "globalTid=thread:thread "
_PLACE = (
    _TIMES
    + "deviceId=device contextId=context streamId=stream correlationId=correlation "
    + _PROCESS
)

KERNELS = declare(
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "kernels",
    _PLACE + """
    demangledName shortName mangledName=launch.name:string launchType cacheConfig=launch.cache_executed
    registersPerThread=launch.registers gridX=launch.grid_x gridY=launch.grid_y gridZ=launch.grid_z
    blockX=launch.block_x blockY=launch.block_y blockZ=launch.block_z staticSharedMemory=launch.static_shared
    dynamicSharedMemory=launch.dynamic_shared localMemoryPerThread=launch.local_per_thread
    localMemoryTotal=launch.local_total sharedMemoryExecuted=launch.shared_executed graphNodeId=launch.graph_node:null
    sharedMemoryLimitConfig=launch.shared_limit graphId=launch.graph:null clusterX=launch.cluster_x
    clusterY=launch.cluster_y clusterZ=launch.cluster_z clusterSchedulingPolicy=launch.cluster_policy
    maxPotentialClusterSize=launch.max_cluster maxActiveClusters=launch.max_active_clusters
    sharedMemoryRequestedPercentage cacheRequested=launch.cache_requested
    """,
)  # fmt: skip
MEMCPYS = declare(
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memcpys",
    _PLACE + """
    bytes=bytes copyKind=kind srcKind=source_memory:memory dstKind=destination_memory:memory srcDeviceId=source_device
    srcContextId dstDeviceId=destination_device dstContextId migrationCause graphNodeId=graph_node:null virtualAddress
    graphId=graph:null isAsync=flags
    """,
)  # fmt: skip
MIGRATIONS = _also(
    MEMCPYS,
    "unified_memory",
    _TIMES + _PROCESS + """
    streamId=stream bytes=value srcDeviceId=source_device dstDeviceId=destination_device migrationCause=flags
    virtualAddress=address
    """,
)  # fmt: skip
MEMSETS = declare(
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "memsets",
    _PLACE
    + "value=value:bits bytes=bytes graphNodeId=graph_node:null memKind=memory:memory graphId=graph:null "
    "isAsync=flags",
)
API_CALLS = declare(
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "api_calls",
    _TIMES
    + "eventClass "
    + _THREAD
    + "correlationId=correlation nameId returnValue=function.status:bits "
    "callchainId:- callbackId=function.callback:bits",
)
SYNCHRONIZATIONS = declare(
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "synchronizations",
    _TIMES + "deviceId contextId=context streamId=stream:id correlationId=correlation " + _PROCESS +
    "syncType eventId=event:id eventSyncId=event_record:id returnValue=status",
)  # fmt: skip
CUDA_EVENTS = declare(
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    "cuda_events",
    "timestamp=device_time:null deviceId contextId=context streamId=stream correlationId=correlation " + _PROCESS +
    "eventId=event! eventSyncId=event_record:id",
)  # fmt: skip
GRAPH_LAUNCHES = declare(
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "graph_launches",
    _PLACE + "graphId=graph graphExecId=graph:override",
)
NVTX_RANGES = declare(
    "NVTX_EVENTS",
    "nvtx_ranges",
    "start=start:time! end=end:open eventType rangeId=range_id:null category=category:color color=color:color "
    "text=name:text "
    + _THREAD
    + "endGlobalTid=end_thread:thread textId domainId uint64Value int64Value "
    "doubleValue:real uint32Value int32Value floatValue:real jsonTextId jsonText=arguments:text source depth=depth",
)
NVTX_MARKS = _also(
    NVTX_RANGES,
    "nvtx_marks",
    "start=time:time! category=category:color color=color:color text=name:text jsonText=arguments:text "
    "source=source:null " + _THREAD,
)
NVTX_CATEGORIES = _also(
    NVTX_RANGES, "nvtx_categories", "category=category text=name:text"
)
ALLOCATIONS = declare(
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
    "allocations",
    "start=time:time! " + _PROCESS + """
    deviceId=device contextId=context address=address pc:- bytes=bytes memKind=memory:memory
    memoryOperationType=operation:less name:- correlationId=correlation streamId=stream localMemoryPoolAddress
    localMemoryPoolReleaseThreshold:- localMemoryPoolSize:- localMemoryPoolUtilizedSize=pool_used:null
    importedMemoryPoolAddress importedMemoryPoolProcessId:- isAsync=flags source=source:text
    """,
)  # fmt: skip
MEMORY_POOLS = declare(
    "CUDA_GPU_MEMORY_POOL_EVENTS",
    "memory_pools",
    "start=time:time! " + _PROCESS + """
    deviceId=device address=address operationType=operation poolType=pool_type correlationId=correlation
    minBytesToKeep=minimum localMemoryPoolReleaseThreshold=release_threshold localMemoryPoolSize=size
    localMemoryPoolUtilizedSize=used
    """,
)  # fmt: skip
CPU_FAULTS = declare(
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS",
    "unified_memory",
    "start=start:time! " + _PROCESS + "address=address",
)
GPU_FAULTS = declare(
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS",
    "unified_memory",
    _TIMES
    + _PROCESS
    + "deviceId=source_device address=address numberOfPageFaults=value faultAccessType=flags",
)
OVERHEADS = declare(
    "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "overheads",
    _TIMES
    + "eventClass:- "
    + _THREAD
    + "correlationId=correlation nameId overheadType overheadKind",
)
JIT = declare(
    "CUPTI_ACTIVITY_KIND_JIT",
    "jit",
    _TIMES + "eventClass:- " + _THREAD + """
    correlationId=correlation nameId:- overheadType:- jitEntryType=entry jitOperationType=operation deviceId=device
    jitOperationCorrelationId:- cacheSize=cache_size cachePath=cache_path:text
    """,
)  # fmt: skip
SYSTEM_CALLS = declare(
    "OSRT_API",
    "host_slices",
    "start=start:time! end=end:open eventClass "
    + _THREAD
    + "nameId=name:function returnValue:- nestingLevel:- "
    "callchainId:- correlationId=external:null category=category:text",
)
DEVICES = declare(
    "TARGET_INFO_GPU",
    "devices",
    """
    vmId id name=name:text busLocation=pci:text isDiscrete:- l2CacheSize=l2_cache totalMemory=memory
    memoryBandwidth=memory_bandwidth:thousand clockRate=core_clock:thousand smCount=multiprocessors uuid=uuid:uuid
    cuDevice=device maxRegistersPerBlock=registers_per_block maxShmemPerBlock=shared_per_block
    maxShmemPerBlockOptin=shared_per_block_optin maxShmemPerSm=shared_per_multiprocessor
    maxRegistersPerSm=registers_per_multiprocessor threadsPerWarp=warp_size asyncEngines=copy_engines
    maxWarpsPerSm=max_warps_per_multiprocessor maxBlocksPerSm=max_blocks_per_multiprocessor
    maxThreadsPerBlock=max_threads_per_block computeMajor=compute_major computeMinor=compute_minor
    maxThreadsPerSm=max_threads_per_multiprocessor memoryClockRate=memory_clock:thousand
    reservedShmemPerBlock=shared_reserved_per_block isMig=mig
    """,
)
CONTEXTS = declare(
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "contexts",
    "nullStreamId=null_stream hwId vmId processId deviceId=device contextId=context computeApi=compute_api",
)
STREAMS = declare(
    "TARGET_INFO_CUDA_STREAM",
    "streams",
    "streamId=stream hwId vmId processId contextId=context priority=priority:bits flag=type",
)
THREAD_NAMES = declare(
    "ThreadNames",
    "threads",
    "nameId=name:string priority:- " + _THREAD + "source=source",
)

_WHOLE = (
    KERNELS,
    MEMCPYS,
    MEMSETS,
    API_CALLS,
    SYNCHRONIZATIONS,
    CUDA_EVENTS,
    GRAPH_LAUNCHES,
    NVTX_RANGES,
    NVTX_MARKS,
    NVTX_CATEGORIES,
    ALLOCATIONS,
    MEMORY_POOLS,
    OVERHEADS,
    JIT,
    DEVICES,
    CONTEXTS,
    STREAMS,
    THREAD_NAMES,
)
#: The tables of a capture with all rows in one table of an export.
BY_TABLE = {table.table: table for table in _WHOLE}

# Tables that the exporter does not write.
HOST_FUNCTIONS = declare(
    "CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH", "gpu_slices", _PLACE
)
DECOMPRESSIONS = declare("CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS", "gpu_slices", _PLACE)
GPU_METRICS = declare(
    "GPU_METRICS", "counters", "timestamp=time:time! typeId metricId value=value:real!"
)
SOC_METRICS = replace(GPU_METRICS, name="SOC_METRICS")
NIC_METRICS = declare(
    "NET_NIC_METRIC",
    "counters",
    "start=time:time! globalId portId metricsListId metricsIdx value=value:real!",
)
SWITCH_METRICS = replace(NIC_METRICS, name="NET_IB_SWITCH_METRIC")
DIAGNOSTICS = declare(
    "DIAGNOSTIC_EVENT", "instants", "timestamp=time:time! text=name:text!"
)
GENERIC_EVENTS = declare(
    "GENERIC_EVENTS", "instants", "timestamp=time:time! typeId " + _THREAD + "data:text"
)


@cache
def own(table: str) -> SqlTable:
    """Declare the SQL table of a capture table that has no counterpart in nsys. Both tables have the same name and the
    same fields."""
    how = {"string": ":text!", "f64": ":real"}
    fields = (
        f"{f.name}={f.name}{how.get(f.type, '!')}"
        for f in TABLES[table].fields
        if f.name != "process"
    )
    return declare(table, table, _PROCESS + " ".join(fields))


def overhead_types(kinds: np.ndarray) -> np.ndarray:
    """Convert CUPTI's kinds of overheads to the kinds of nsys. CUPTI numbers them 0, 1 and then by multiples of 2^16;
    nsys numbers them from 1."""
    return np.select(
        [kinds < 2, kinds & 0xFFFF == 0], [kinds + 1, (kinds >> 16) + 2], 1
    )


def overhead_kinds(types: np.ndarray) -> np.ndarray:
    """Invert :func:`overhead_types`. Numbers without a counterpart in nsys stay unchanged."""
    return np.select(
        [types > 0xFFFF, types > 2],
        [types, (types - 2) << 16],
        np.maximum(types - 1, 0),
    )


def _symbols(prefix: str, names: dict[int, str]) -> dict[int, tuple[str, str]]:
    """Return the symbol and the label by number."""
    return {
        number: (prefix + name.upper().replace(" ", "_"), name)
        for number, name in sorted(names.items())
    }


def _copies() -> dict[int, tuple[str, str]]:
    symbols = {
        number: (f"CUDA_MEMCPY_KIND_{kind.upper()}", spelled(kind))
        for number, kind in MEMCPY_KINDS.items()
    }
    for number, kind in MIGRATION_KINDS.items():
        label = labels.UNIFIED_MEMORY_KINDS[kind].removeprefix("migration ")
        symbols[number] = (
            f"CUDA_MEMCPY_KIND_UVM_{label.upper()}",
            f"Unified {spelled(label)}",
        )
    return symbols


_OVERHEADS = (
    "Undefined",
    "Unknown",
    "Driver JIT compiler (CUDA)",
    "Buffer flush (Profiler)",
    "Instrumentation (Profiler)",
    "Resource creation/destruction (Profiler)",
    "Runtime module loading (CUDA)",
    "Lazy function loading (CUDA)",
    "Command buffer full (CUDA)",
)
_NVTX_TYPES = {
    NVTX_CATEGORY: "NvtxCategory",
    NVTX_MARK: "NvtxMark",
    NVTX_PUSH_POP: "NvtxPushPopRange",
    NVTX_START_END: "NvtxStartEndRange",
    NVTX_DOMAIN: "NvtxDomainCreate",
}

#: nsys's kinds of copies, memory, waits, overheads and NVTX events: the symbol and the label by number.
ENUMS: dict[str, dict[int, tuple[str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": _copies(),
    "ENUM_CUDA_MEM_KIND": _symbols(
        "CUDA_MEMOPR_MEMORY_KIND_",
        {
            (number - 1) % 8: titled(kind)
            for number, kind in labels.MEMORY_KINDS.items()
            if number < 8
        },
    ),
    "ENUM_CUPTI_SYNC_TYPE": _symbols(
        "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_",
        {
            n: titled(kind) + " Synchronize" * (n in (1, 3, 4))
            for n, kind in labels.SYNCHRONIZATIONS.items()
        },
    ),
    "ENUM_CUPTI_OVERHEAD_TYPE": {
        number: (f"OVERHEAD_{kind.upper().replace(' ', '_')}", label)
        for number, (kind, label) in enumerate(
            zip(["undefined", *labels.OVERHEADS.values()], _OVERHEADS, strict=False)
        )
    },
    "ENUM_NSYS_EVENT_TYPE": {
        number: (name, name) for number, name in _NVTX_TYPES.items()
    },
}
