"""The tables of a trace as attributes, and their columns, for type checkers and editors.

Made from runbin/layout.py by tests/table_types.py: change these files.
"""

# fmt: off

from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

_Value = TypeVar("_Value", bound=np.generic)
_Column: TypeAlias = np.ndarray[tuple[int], np.dtype[_Value]]
_Index: TypeAlias = int | np.integer[Any]
_Choice: TypeAlias = slice | list[int] | list[bool] | np.ndarray[Any, np.dtype[np.integer[Any] | np.bool_]]


class Kernels(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Kernels as the GPU ran them. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``launch``: launch configuration: name, grid, block, registers, ...
    * ``stream``: CUPTI stream id
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``device``: CUDA device ordinal
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "launch", "stream"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Kernels: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Memcpys(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Copies, including peer-to-peer copies. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``bytes`` (bytes): bytes copied
    * ``graph_node``: id of the CUDA graph node, 0 outside graphs
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stream``: CUPTI stream id
    * ``graph``: id of the executable CUDA graph, 0 outside graphs
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``device``: CUDA device ordinal
    * ``peer_context``: context of the other device of a peer copy
    * ``source_device``: device copied from, equal to device unless it is a peer copy
    * ``destination_device``: device copied to, equal to device unless it is a peer copy
    * ``kind``: CUpti_ActivityMemcpyKind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, ...
    * ``source_memory``: CUpti_ActivityMemoryKind of the source: 1 pageable, 2 pinned, 3 device
    * ``destination_memory``: CUpti_ActivityMemoryKind of the destination
    * ``flags``: 1: asynchronous
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "bytes", "graph_node"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "stream", "graph"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal[
        "process", "context", "device", "peer_context", "source_device", "destination_device"
    ], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal[
        "kind", "source_memory", "destination_memory", "flags"
    ], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Memcpys: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Memsets(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Memory fills. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``bytes`` (bytes): bytes set
    * ``graph_node``: id of the CUDA graph node, 0 outside graphs
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stream``: CUPTI stream id
    * ``graph``: id of the executable CUDA graph, 0 outside graphs
    * ``value``: the value written
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``device``: CUDA device ordinal
    * ``memory``: CUpti_ActivityMemoryKind
    * ``flags``: 1: asynchronous
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "bytes", "graph_node"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "stream", "graph", "value"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["memory", "flags"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Memsets: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class ApiCalls(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Calls of the CUDA runtime and driver API. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``thread``: thread id of the operating system (gettid)
    * ``function``: the called function and the value it returned
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "thread"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["function", "process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> ApiCalls: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class NvtxRanges(np.ndarray[tuple[int], np.dtype[np.void]]):
    """NVTX ranges, push/pop and start/end. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``payload``: bits of the payload, read by payload_type
    * ``range_id``: id of a start/end range, 0 for push/pop
    * ``name``: message; id of a string
    * ``domain``: name of the domain, 0 for the default domain; id of a string
    * ``category``: category id within the domain, 0 for none
    * ``color``: ARGB, 0 for none
    * ``thread``: thread id of the operating system (gettid)
    * ``end_thread``: thread that ended the range
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``depth``: number of push/pop ranges of the same thread and domain around this one
    * ``kind``: 0 push/pop, 1 start/end
    * ``payload_type``: nvtxPayloadType_t: 0 none, 1 u64, 2 i64, 3 f64, 4 u32, 5 i32, 6 f32
    * ``flags``: 1: still open when the capture ended (end is 0), 2: started before the file's window, 4: went on after
      it
    * ``arguments``: fields of the extended payloads, as a JSON object; 0 for none; id of a string
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "payload", "range_id"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "domain", "category", "color", "thread", "end_thread", "arguments"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "depth", "flags"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["kind", "payload_type"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> NvtxRanges: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class NvtxMarks(np.ndarray[tuple[int], np.dtype[np.void]]):
    """NVTX marks. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``payload``: bits of the payload, read by payload_type
    * ``name``: message; id of a string
    * ``domain``: name of the domain, 0 for the default domain; id of a string
    * ``category``: category id within the domain, 0 for none
    * ``color``: ARGB, 0 for none
    * ``thread``: thread id of the operating system (gettid)
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``payload_type``: nvtxPayloadType_t
    * ``source``: 0 NVTX, 1 cutrace.mark()
    * ``arguments``: fields of the extended payloads, as a JSON object; 0 for none; id of a string
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["time", "payload"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "domain", "category", "color", "thread", "arguments"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["payload_type", "source"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> NvtxMarks: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Synchronizations(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Waits of the host or of a stream for GPU work. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``event_record``: number of the awaited recording of the event, 0 when CUPTI does not report it
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stream``: CUPTI stream id
    * ``event``: CUDA event id, 0 for none
    * ``status``: CUresult or cudaError_t, 0 when CUPTI does not report it
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``type``: 1 event, 2 stream wait event, 3 stream, 4 context
    * ``flags``: 0
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "event_record"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "stream", "event", "status"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["type", "flags"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Synchronizations: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class CudaEvents(np.ndarray[tuple[int], np.dtype[np.void]]):
    """CUDA events recorded into streams. Columns:

    * ``device_time`` (ns): GPU clock at the event, 0 when CUPTI does not report it
    * ``event_record``: number of this recording of the event
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stream``: CUPTI stream id
    * ``event``: CUDA event id
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["device_time", "event_record"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "stream", "event"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> CudaEvents: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Allocations(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Allocations and releases of device and pinned memory. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``address``: virtual address; handle of an array, or of physical memory (cuMemCreate); 0: static variables, graphs
    * ``bytes`` (bytes): size, 0 when it is unknown
    * ``pool``: address of the memory pool, as in memory_pools, 0 outside pools
    * ``pool_used`` (bytes): bytes in use in the pool after the operation, 0 when unknown
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stream``: CUPTI stream id
    * ``source``: shared object of the caller, 0 when CUPTI does not report it; id of a string
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``device``: CUDA device ordinal
    * ``operation``: 1 allocate, 2 release
    * ``memory``: CUpti_ActivityMemoryKind, or 128: physical memory of a device (cuMemCreate)
    * ``flags``: 1: stream-ordered, 2: of unknown size, its allocation was not recorded, 4: freed with its context
    * ``pool_type``: 0 none, 1 local, 2 imported
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["time", "address", "bytes", "pool", "pool_used"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "stream", "source"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["operation", "memory", "flags", "pool_type"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Allocations: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class MemoryPools(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Memory pools created (seen for the first time), trimmed and destroyed. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``address``: address of the pool, where its memory starts
    * ``size`` (bytes): what it has of the system, 0 for imported pools
    * ``used`` (bytes): bytes in use
    * ``release_threshold`` (bytes): release threshold
    * ``minimum`` (bytes): bytes that a trim keeps
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``device``: CUDA device ordinal
    * ``operation``: 1 created, 2 destroyed, 3 trimmed
    * ``pool_type``: 1 local, 2 imported
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal[
        "time", "address", "size", "used", "release_threshold", "minimum"
    ], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["operation", "pool_type"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> MemoryPools: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Overheads(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Overhead of the driver's compiler, of CUPTI and of its buffers. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``thread``: thread id of the operating system (gettid)
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``kind``: CUpti_ActivityOverheadKind
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["thread", "correlation", "kind"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Overheads: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class GraphLaunches(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Launches of CUDA graphs that CUPTI traced as a whole (graph-level tracing). Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stream``: CUPTI stream id
    * ``graph``: id of the executable CUDA graph, 0 outside graphs
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``device``: CUDA device ordinal
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "stream", "graph"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> GraphLaunches: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class ExternalCorrelations(np.ndarray[tuple[int], np.dtype[np.void]]):
    """External correlation ids that were current at an API call. Columns:

    * ``external``: id from another system
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``kind``: CUpti_ExternalCorrelationKind
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["external"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "kind"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> ExternalCorrelations: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class UnifiedMemory(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Unified-memory migrations, page faults and throttling. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``value`` (bytes): bytes moved, or a count, depending on kind
    * ``address``: virtual address
    * ``stream``: CUPTI stream id
    * ``kind``: CUpti_ActivityUnifiedMemoryCounterKind
    * ``source_device``: device moved from; 0xffffffff is the host
    * ``destination_device``: device moved to
    * ``flags``: cause or access type, depending on kind
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "value", "address"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "stream", "kind", "source_device", "destination_device", "flags"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> UnifiedMemory: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Jit(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Compilations at run time. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``cache_size`` (bytes): size of the cached binary
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``thread``: thread id of the operating system (gettid)
    * ``cache_path``: path of the cached binary; id of a string
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``device``: CUDA device ordinal
    * ``entry``: CUpti_ActivityJitEntryType: 1 PTX to cubin, 2 NVVM IR to PTX
    * ``operation``: CUpti_ActivityJitOperationType: 1 cache load, 2 cache store, 3 compile
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "cache_size"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["correlation", "thread", "cache_path"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["entry", "operation"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Jit: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Environment(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Clocks, temperature, power and fan of a device. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``values``: four 16-bit or two 32-bit readings, depending on kind (docs/internals/run-bin.md)
    * ``flags``: clock-limit reasons of a speed row
    * ``kind``: 1 speed (SM MHz, memory MHz), 2 temperature (C), 3 power (mW, limit mW), 4 fan (%)
    * ``unused``: 0
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``device``: CUDA device ordinal
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["time", "values"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["flags"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["kind", "unused"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: Literal["process", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Environment: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class HostSlices(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Host slices from sources other than CUDA and NVTX: CPU operators, Python functions, system calls. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``external``: id that other records share (Kineto's External id), 0 for none
    * ``name``: name in the source; id of a string
    * ``category``: category in the source, 0 for none; id of a string
    * ``arguments``: a JSON object, 0 for none; id of a string
    * ``track``: name or id of the track, 0 for the track of the thread; id of a string
    * ``thread``: thread id of the operating system (gettid)
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``kind``: a key of HOST_SLICE_KINDS
    * ``flags``: 1: never ended (end is 0), 2: the source had separate begin and end events
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "external"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "category", "arguments", "track", "thread"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["kind", "flags"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> HostSlices: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Instants(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Host instants from sources other than NVTX. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``name``: name in the source; id of a string
    * ``category``: category in the source, 0 for none; id of a string
    * ``arguments``: a JSON object, 0 for none; id of a string
    * ``track``: name or id of the track, 0 for the track of the thread; id of a string
    * ``thread``: thread id of the operating system (gettid)
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``scope``: 0 thread, 1 process, 2 whole trace
    * ``unused``: 0
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["time"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "category", "arguments", "track", "thread"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["scope", "unused"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Instants: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Counters(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Values of counters. A value holds until the next one. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``value``: in unit; NaN when unknown from this time on
    * ``name``: name of the counter; id of a string
    * ``series``: name of the series, when several series share the counter's name; else 0; id of a string
    * ``category``: category in the source, 0 for none; id of a string
    * ``unit``: 0 when unknown; id of a string
    * ``thread``: thread of the counter, 0 for the whole process
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``device``: CUDA device ordinal of the counter, 0xffff for none
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["time"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["value"], /) -> _Column[np.float64]: ...
    @overload
    def __getitem__(self, key: Literal["name", "series", "category", "unit", "thread"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Counters: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class KernelMetrics(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Values of hardware metrics of kernels and of NVTX ranges, counted in a separate run. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``value``: in unit
    * ``name``: name of the metric; id of a string
    * ``unit``: 0 for none; id of a string
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``device``: CUDA device ordinal
    * ``range``: name of the counted NVTX range, 0 for a kernel; id of a string
    * ``caches``: a key of CACHES
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["value"], /) -> _Column[np.float64]: ...
    @overload
    def __getitem__(self, key: Literal["name", "unit", "correlation", "range"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["caches"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> KernelMetrics: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class PcSamples(np.ndarray[tuple[int], np.dtype[np.void]]):
    """PC samples by instruction and stall reason, summed over an interval. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``samples``: number of samples
    * ``not_issued``: samples taken when the scheduler issued no instruction
    * ``device``: CUDA device ordinal
    * ``function``: name of the device function as CUPTI gives it (mangled); id of a string
    * ``offset`` (bytes): offset of the instruction in the function
    * ``file``: source file of the instruction, 0 when unknown; id of a string
    * ``line``: line in that file, from 1; 0 when unknown
    * ``stall``: stall reason, CUPTI's name without smsp__pcsamp_warps_issue_stalled_; id of a string
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end", "samples", "not_issued"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["device", "process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["function", "offset", "file", "line", "stall"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> PcSamples: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class InstructionMetrics(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Values of hardware metrics of instructions, counted in a separate run and summed over launches. Columns:

    * ``value``: in unit
    * ``name``: name of the metric; id of a string
    * ``unit``: 0 for none; id of a string
    * ``launches``: number of counted launches in which the function ran
    * ``device``: CUDA device ordinal
    * ``function``: name of the device function as CUPTI gives it (mangled); id of a string
    * ``offset`` (bytes): offset of the instruction in the function
    * ``file``: source file of the instruction, 0 when unknown; id of a string
    * ``line``: line in that file, from 1; 0 when unknown
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["value"], /) -> _Column[np.float64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "unit", "launches", "function", "offset", "file", "line"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["device", "process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> InstructionMetrics: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class CallStacks(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Python stacks of API calls. Columns:

    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stack``: the Python frames at the call
    * ``thread``: thread id of the operating system (gettid)
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["correlation", "stack", "thread"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> CallStacks: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class KernelCodes(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Machine code of kernels, each once in a context (on request). Columns:

    * ``code``: hash of the machine code of the kernel and of the functions that it calls
    * ``name``: kernel name (mangled); id of a string
    * ``module``: CUPTI id of the first module that had it
    * ``index``: index of the function in that module
    * ``size`` (bytes): machine code without called functions
    * ``registers`` (per thread): registers
    * ``static_shared`` (bytes): static shared memory of a block
    * ``local_per_thread`` (bytes): local memory of a thread, called functions included
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``architecture``: 90 for sm_90
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["code"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "module", "index", "size", "registers", "static_shared", "local_per_thread"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context", "architecture"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> KernelCodes: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class GpuSlices(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Slices of streams that are not GPU work, such as annotations on GPU streams. Columns:

    * ``start`` (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
    * ``end`` (ns): end, on the BOOTTIME clock; 0 when it is unknown
    * ``name``: name in the source; id of a string
    * ``category``: category in the source, 0 for none; id of a string
    * ``arguments``: a JSON object, 0 for none; id of a string
    * ``correlation``: CUPTI correlation id: joins GPU work to the API call that launched it
    * ``stream``: CUPTI stream id
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``device``: CUDA device ordinal
    * ``kind``: 0 other, 1 annotation of the host, 2 NVTX range
    * ``flags``: 0
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["start", "end"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "category", "arguments", "correlation", "stream"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["kind", "flags"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> GpuSlices: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Flows(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Steps of flows between slices. Steps with equal id and category belong to one flow. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``id``: id of the flow, if it is a number
    * ``text``: id of the flow, if it is a string; else 0; id of a string
    * ``name``: name in the source; id of a string
    * ``category``: category in the source, 0 for none; id of a string
    * ``thread``: thread id of the operating system (gettid)
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``phase``: ASCII code: s begin, t step, f end
    * ``flags``: 1: ends at the slice around it, not at the next slice
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["time", "id"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["text", "name", "category", "thread"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["phase", "flags"], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Flows: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Launches(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Launch configurations, each written before the first row that refers to it. Columns:

    * ``id``: value of the launch field of kernels; from 1
    * ``name``: kernel name as CUPTI gives it (mangled); id of a string
    * ``grid_x`` (blocks): size of the grid
    * ``grid_y`` (blocks): size of the grid
    * ``grid_z`` (blocks): size of the grid
    * ``block_x`` (threads): size of a block
    * ``block_y`` (threads): size of a block
    * ``block_z`` (threads): size of a block
    * ``cluster_x`` (blocks): size of a cluster; 0 without clusters
    * ``cluster_y`` (blocks): size of a cluster
    * ``cluster_z`` (blocks): size of a cluster
    * ``registers`` (per thread): registers
    * ``static_shared`` (bytes): static shared memory of a block
    * ``dynamic_shared`` (bytes): dynamic shared memory of a block
    * ``shared_executed`` (bytes): shared memory reserved for a block, including the driver's share
    * ``local_per_thread`` (bytes): local memory of a thread
    * ``local_total`` (bytes): local memory reserved for the kernel
    * ``graph_node``: id of the CUDA graph node, 0 outside graphs
    * ``graph``: id of the executable CUDA graph, 0 outside graphs
    * ``cache_requested``: CUfunc_cache requested
    * ``cache_executed``: CUfunc_cache used
    * ``launch_type``: 0 regular, 1 cooperative, 2 cooperative on several devices
    * ``carveout`` (%): shared memory carve-out requested, 255 for none
    * ``shared_limit``: CUpti_FuncShmemLimitConfig
    * ``cluster_policy``: CUclusterSchedulingPolicy
    * ``max_cluster`` (blocks): largest possible cluster
    * ``max_active_clusters`` (clusters): largest number of resident clusters
    * ``code``: hash of the machine code (kernel_codes has more of it), 0 when it is not known
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal[
        "id", "name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "cluster_x", "cluster_y",
        "cluster_z", "registers", "static_shared", "dynamic_shared", "shared_executed", "local_per_thread", "graph",
        "shared_limit", "cluster_policy", "max_cluster", "max_active_clusters"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["local_total", "graph_node", "code"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "cache_requested", "cache_executed", "launch_type", "carveout"
    ], /) -> _Column[np.uint8]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Launches: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Functions(np.ndarray[tuple[int], np.dtype[np.void]]):
    """API functions with a returned value, each written once per process. Columns:

    * ``id``: value of the function field of API calls; from 1
    * ``domain``: 1 driver, 2 runtime
    * ``callback``: CUPTI callback id of the function in its domain
    * ``status``: CUresult or cudaError_t returned; 0 is success
    * ``name``: name of the function, without version suffix; id of a string
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["id", "domain"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["callback", "status", "name"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Functions: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Devices(np.ndarray[tuple[int], np.dtype[np.void]]):
    """The GPUs that are visible to the process. Columns:

    * ``uuid``: UUID of the GPU, or of the MIG instance
    * ``memory`` (bytes): global memory
    * ``memory_bandwidth`` (KB/s): peak
    * ``name``: name of the GPU; id of a string
    * ``pci``: PCI address, domain:bus:device.function; id of a string
    * ``compute_major``: compute capability
    * ``compute_minor``: compute capability
    * ``multiprocessors``: number of multiprocessors
    * ``core_clock`` (kHz): clock rate, as CUPTI gives it
    * ``memory_clock`` (kHz): clock rate, as CUPTI gives it
    * ``l2_cache`` (bytes): size of the L2 cache
    * ``warp_size`` (threads): size of a warp
    * ``max_threads_per_block``: limit
    * ``max_threads_per_multiprocessor``: limit
    * ``max_warps_per_multiprocessor``: limit
    * ``max_blocks_per_multiprocessor``: limit
    * ``registers_per_multiprocessor``: limit
    * ``registers_per_block``: limit
    * ``shared_per_multiprocessor`` (bytes): shared memory
    * ``shared_per_block`` (bytes): shared memory
    * ``shared_per_block_optin`` (bytes): shared memory of a block that asks for more
    * ``shared_reserved_per_block`` (bytes): the driver's share
    * ``copy_engines``: number of copy engines
    * ``mig``: 1 for a MIG instance
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``device``: CUDA device ordinal
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["uuid"], /) -> _Column[np.void]: ...
    @overload
    def __getitem__(self, key: Literal["memory", "memory_bandwidth"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal[
        "name", "pci", "compute_major", "compute_minor", "multiprocessors", "core_clock", "memory_clock",
        "l2_cache", "warp_size", "max_threads_per_block", "max_threads_per_multiprocessor",
        "max_warps_per_multiprocessor", "max_blocks_per_multiprocessor", "registers_per_multiprocessor",
        "registers_per_block", "shared_per_multiprocessor", "shared_per_block", "shared_per_block_optin",
        "shared_reserved_per_block", "copy_engines", "mig"
    ], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Devices: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Contexts(np.ndarray[tuple[int], np.dtype[np.void]]):
    """CUDA contexts. Columns:

    * ``null_stream``: id of the default stream
    * ``compute_api``: CUpti_ActivityComputeApiKind: 1 CUDA, 2 CUDA under MPS
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``device``: CUDA device ordinal
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["null_stream"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["compute_api", "process", "context", "device"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Contexts: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Streams(np.ndarray[tuple[int], np.dtype[np.void]]):
    """CUDA streams. Columns:

    * ``stream``: CUPTI stream id
    * ``priority``: priority; smaller numbers come first
    * ``type``: CUpti_ActivityStreamFlag: 1 default, 2 non-blocking, 3 null
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["stream"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["priority"], /) -> _Column[np.int32]: ...
    @overload
    def __getitem__(self, key: Literal["type", "process", "context"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Streams: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Threads(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Names of threads. The last row of a thread wins; NVTX names win over names of the operating system. Columns:

    * ``thread``: thread id of the operating system (gettid)
    * ``name``: name of the thread; id of a string
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``source``: 1 operating system, 2 NVTX
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["thread", "name"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "source"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Threads: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class ResourceNames(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Names of CUDA objects from NVTX. Columns:

    * ``object``: stream id, context id, device ordinal or event id, depending on kind
    * ``name``: name of the object; id of a string
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    * ``kind``: 1 stream, 2 context, 3 device, 4 event
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["object"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["name"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context", "kind"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> ResourceNames: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class NvtxCategories(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Names of NVTX categories. Columns:

    * ``domain``: name of the domain, 0 for the default domain; id of a string
    * ``category``: id of the category in the domain
    * ``name``: name of the category; id of a string
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["domain", "category", "name"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> NvtxCategories: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Modules(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Loaded modules (on request). Columns:

    * ``module``: CUPTI id of the module
    * ``size`` (bytes): size of the cubin
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["module", "size"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Modules: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class DeviceFunctions(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Functions of loaded modules (on request). Columns:

    * ``device_function``: CUPTI id of the function
    * ``module``: CUPTI id of the module
    * ``index``: index in the module
    * ``name``: name of the function (mangled); id of a string
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``context``: CUPTI context id
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["device_function", "module", "index", "name"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process", "context"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> DeviceFunctions: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class GraphNodes(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Where nodes of CUDA graphs were created, each written before the first row of its work. Columns:

    * ``created`` (ns): when the node or the original of its copies was created, on the BOOTTIME clock
    * ``graph_node``: id of the CUDA graph node, 0 outside graphs
    * ``original``: id of the first node in the chain of copies, 0 when the node is no copy
    * ``ranges``: names of the NVTX ranges around the creation, outermost first, as a JSON array; 0 for none; id of a
      string
    * ``thread``: thread id of the operating system (gettid)
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["created", "graph_node", "original"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["ranges", "thread"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> GraphNodes: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Frames(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Python frames, each written before the first stack that refers to it. Columns:

    * ``id``: value of the frame field of stacks; from 1
    * ``file``: file name of the code object, 0 when unknown; id of a string
    * ``function``: name of the function; id of a string
    * ``line``: line that ran, from 1; 0 when unknown
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["id", "file", "function", "line"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Frames: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Stacks(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Python stacks as a tree, each written after its parent and before the first row that refers to it. Columns:

    * ``id``: value of the stack field of call_stacks; from 1
    * ``parent``: the stack of the caller, 0 for the outermost frame that is known
    * ``frame``: the innermost frame
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["id", "parent", "frame"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Stacks: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Clocks(np.ndarray[tuple[int], np.dtype[np.void]]):
    """The clocks of the machine, read together. Columns:

    * ``boottime`` (ns): reading of this clock
    * ``monotonic`` (ns): reading of this clock
    * ``monotonic_raw`` (ns): reading of this clock
    * ``realtime`` (ns): reading of this clock
    * ``spread`` (ns): time between the first and the last reading of this row
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal[
        "boottime", "monotonic", "monotonic_raw", "realtime", "spread"
    ], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Clocks: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class Losses(np.ndarray[tuple[int], np.dtype[np.void]]):
    """Losses by reason. The counts of rows add up. Columns:

    * ``time`` (ns): time, on the BOOTTIME clock
    * ``count``: number of records, ranges or bytes, depending on reason
    * ``reason``: a key of LOSS_REASONS
    * ``process``: index of the process in the trace; 0 on disk, readers set it
    * ``detail``: activity kind, file or error; id of a string
    """
    @overload  # type: ignore[override]
    def __getitem__(self, key: Literal["time", "count"], /) -> _Column[np.uint64]: ...
    @overload
    def __getitem__(self, key: Literal["reason", "process"], /) -> _Column[np.uint16]: ...
    @overload
    def __getitem__(self, key: Literal["detail"], /) -> _Column[np.uint32]: ...
    @overload
    def __getitem__(self, key: _Choice, /) -> Losses: ...
    @overload
    def __getitem__(self, key: _Index, /) -> np.void: ...
    @overload
    def __getitem__(self, key: list[str], /) -> _Column[np.void]: ...

class TraceTables:
    """The tables of a trace."""
    @property
    def kernels(self) -> Kernels:
        """Kernels as the GPU ran them."""
    @property
    def memcpys(self) -> Memcpys:
        """Copies, including peer-to-peer copies."""
    @property
    def memsets(self) -> Memsets:
        """Memory fills."""
    @property
    def api_calls(self) -> ApiCalls:
        """Calls of the CUDA runtime and driver API."""
    @property
    def nvtx_ranges(self) -> NvtxRanges:
        """NVTX ranges, push/pop and start/end."""
    @property
    def nvtx_marks(self) -> NvtxMarks:
        """NVTX marks."""
    @property
    def synchronizations(self) -> Synchronizations:
        """Waits of the host or of a stream for GPU work."""
    @property
    def cuda_events(self) -> CudaEvents:
        """CUDA events recorded into streams."""
    @property
    def allocations(self) -> Allocations:
        """Allocations and releases of device and pinned memory."""
    @property
    def memory_pools(self) -> MemoryPools:
        """Memory pools created (seen for the first time), trimmed and destroyed."""
    @property
    def overheads(self) -> Overheads:
        """Overhead of the driver's compiler, of CUPTI and of its buffers."""
    @property
    def graph_launches(self) -> GraphLaunches:
        """Launches of CUDA graphs that CUPTI traced as a whole (graph-level tracing)."""
    @property
    def external_correlations(self) -> ExternalCorrelations:
        """External correlation ids that were current at an API call."""
    @property
    def unified_memory(self) -> UnifiedMemory:
        """Unified-memory migrations, page faults and throttling."""
    @property
    def jit(self) -> Jit:
        """Compilations at run time."""
    @property
    def environment(self) -> Environment:
        """Clocks, temperature, power and fan of a device."""
    @property
    def host_slices(self) -> HostSlices:
        """Host slices from sources other than CUDA and NVTX: CPU operators, Python functions, system calls."""
    @property
    def instants(self) -> Instants:
        """Host instants from sources other than NVTX."""
    @property
    def counters(self) -> Counters:
        """Values of counters. A value holds until the next one."""
    @property
    def kernel_metrics(self) -> KernelMetrics:
        """Values of hardware metrics of kernels and of NVTX ranges, counted in a separate run."""
    @property
    def pc_samples(self) -> PcSamples:
        """PC samples by instruction and stall reason, summed over an interval."""
    @property
    def instruction_metrics(self) -> InstructionMetrics:
        """Values of hardware metrics of instructions, counted in a separate run and summed over launches."""
    @property
    def call_stacks(self) -> CallStacks:
        """Python stacks of API calls."""
    @property
    def kernel_codes(self) -> KernelCodes:
        """Machine code of kernels, each once in a context (on request)."""
    @property
    def gpu_slices(self) -> GpuSlices:
        """Slices of streams that are not GPU work, such as annotations on GPU streams."""
    @property
    def flows(self) -> Flows:
        """Steps of flows between slices. Steps with equal id and category belong to one flow."""
    @property
    def launches(self) -> Launches:
        """Launch configurations, each written before the first row that refers to it."""
    @property
    def functions(self) -> Functions:
        """API functions with a returned value, each written once per process."""
    @property
    def devices(self) -> Devices:
        """The GPUs that are visible to the process."""
    @property
    def contexts(self) -> Contexts:
        """CUDA contexts."""
    @property
    def streams(self) -> Streams:
        """CUDA streams."""
    @property
    def threads(self) -> Threads:
        """Names of threads. The last row of a thread wins; NVTX names win over names of the operating system."""
    @property
    def resource_names(self) -> ResourceNames:
        """Names of CUDA objects from NVTX."""
    @property
    def nvtx_categories(self) -> NvtxCategories:
        """Names of NVTX categories."""
    @property
    def modules(self) -> Modules:
        """Loaded modules (on request)."""
    @property
    def device_functions(self) -> DeviceFunctions:
        """Functions of loaded modules (on request)."""
    @property
    def graph_nodes(self) -> GraphNodes:
        """Where nodes of CUDA graphs were created, each written before the first row of its work."""
    @property
    def frames(self) -> Frames:
        """Python frames, each written before the first stack that refers to it."""
    @property
    def stacks(self) -> Stacks:
        """Python stacks as a tree, each written after its parent and before the first row that refers to it."""
    @property
    def clocks(self) -> Clocks:
        """The clocks of the machine, read together."""
    @property
    def losses(self) -> Losses:
        """Losses by reason. The counts of rows add up."""
