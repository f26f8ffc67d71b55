"""The tables of run.bin: the only definition of the rows of a capture.

It has three uses. Python converts a table to a NumPy dtype. The build runs this file as a script, which writes the C++
structs of the collector with a ``static_assert`` for each offset. The collector writes the layouts as JSON into each
capture, so that a reader of another version can read the rows.

Rows are packed, little-endian and of fixed size. Only the standard library is imported at module level, because the
build runs this file without NumPy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

FORMAT_VERSION = 1

#: Bytes, NumPy format and C++ type of each field type. ``string``, ``launch``, ``function``, ``frame`` and ``stack``
#: are references: ids of rows or strings in other blocks of the same process, 0 for none.
TYPES: dict[str, tuple[int, str, str]] = {
    "u8": (1, "u1", "std::uint8_t"),
    "u16": (2, "<u2", "std::uint16_t"),
    "u32": (4, "<u4", "std::uint32_t"),
    "u64": (8, "<u8", "std::uint64_t"),
    "i32": (4, "<i4", "std::int32_t"),
    "i64": (8, "<i8", "std::int64_t"),
    "f64": (8, "<f8", "double"),
    "bytes16": (16, "V16", "std::array<std::uint8_t, 16>"),
    "string": (4, "<u4", "std::uint32_t"),
    "launch": (4, "<u4", "std::uint32_t"),
    "function": (2, "<u2", "std::uint16_t"),
    "frame": (4, "<u4", "std::uint32_t"),
    "stack": (4, "<u4", "std::uint32_t"),
}

#: The table that each type of reference refers to.
REFERRED = {
    "launch": "launches",
    "function": "functions",
    "frame": "frames",
    "stack": "stacks",
}
REFERENCES = frozenset({"string", *REFERRED})
#: The fields of a referred table that are not shown in rows of another table.
NOT_SHOWN = frozenset({"id", "parent", "process"})


@dataclass(frozen=True)
class Field:
    """One field of a row: its name, a key of :data:`TYPES`, its unit ("" for none) and its meaning."""

    name: str
    type: str
    unit: str = ""
    doc: str = ""


@dataclass(frozen=True)
class TableLayout:
    """One table: its stable number (the block kind), its meaning, and its fields in byte order."""

    name: str
    number: int
    doc: str
    fields: tuple[Field, ...]

    @cached_property
    def offsets(self) -> dict[str, int]:
        sizes = [TYPES[f.type][0] for f in self.fields]
        return dict(
            zip(
                (f.name for f in self.fields),
                accumulate(sizes, initial=0),
                strict=False,
            )
        )

    @cached_property
    def row_size(self) -> int:
        return sum(TYPES[f.type][0] for f in self.fields)

    @cached_property
    def references(self) -> tuple[Field, ...]:
        """The fields with ids of strings and of rows of other tables."""
        found = []
        for field in self.fields:
            referred = REFERRED.get(field.type)
            own = field.name == "id" or referred == self.name
            if field.type in REFERENCES and not own:
                found.append(field)
        return tuple(found)

    def referred(self, field: Field) -> str | None:
        """For a reference, the table whose columns are shown in its place. The columns in :data:`NOT_SHOWN` are not
        shown. None for other fields."""
        table = REFERRED.get(field.type) if field.name != "id" else None
        # The parent of a stack is not shown.
        if table != self.name:
            return table
        return None

    def shows(self, field: Field) -> bool:
        """Whether a field is shown in a column of its own. The id of a stack is shown too: users find the outer frames
        by it."""
        return self.referred(field) is None or field.type == "stack"

    @cached_property
    def start_field(self) -> str | None:
        """The field with the start of a row: ``start``, or ``time`` for an instant. None for tables without times, and
        for tables about the capture itself (numbers from 64 on)."""
        if self.number >= 64:
            return None
        return next((n for n in ("start", "time") if n in self.offsets), None)

    @cached_property
    def end_field(self) -> str | None:
        """The field with the end of a row; :attr:`start_field` for an instant."""
        if self.start_field and "end" in self.offsets:
            return "end"
        return self.start_field

    @cached_property
    def dtype(self) -> np.dtype:
        import numpy as np

        return np.dtype([(f.name, TYPES[f.type][1]) for f in self.fields])

    @cached_property
    def no_rows(self) -> np.ndarray:
        """An array without rows."""
        import numpy as np

        return np.empty(0, self.dtype)


#: Block kinds that hold no table. Tables use the numbers from 16 on.
PROCESS_BLOCK = 1
STRINGS_BLOCK = 2

# A line has one or several fields: type, names, unit in brackets, and meaning after a colon.
_SHARED = """
u64 start (ns): start, on the BOOTTIME clock; 0 when the GPU did not report it
u64 end (ns): end, on the BOOTTIME clock; 0 when it is unknown
u64 time (ns): time, on the BOOTTIME clock
u32 correlation: CUPTI correlation id: joins GPU work to the API call that launched it
u16 process: index of the process in the trace; 0 on disk, readers set it
u32 stream: CUPTI stream id
u16 context: CUPTI context id
u16 device: CUDA device ordinal
u64 graph_node: id of the CUDA graph node, 0 outside graphs
u32 graph: id of the executable CUDA graph, 0 outside graphs
u32 thread: thread id of the operating system (gettid)
string function: name of the device function as CUPTI gives it (mangled)
u32 offset (bytes): offset of the instruction in the function
string file: source file of the instruction, 0 when unknown
u32 line: line in that file, from 1; 0 when unknown
string name: name in the source
string category: category in the source, 0 for none
"""
# A table starts with its name, its number and its meaning. A line without a type names fields of _SHARED.
_TABLES = """kernels 16: Kernels as the GPU ran them.
    start end correlation
    launch launch: launch configuration: name, grid, block, registers, ...
    stream process context device

memcpys 17: Copies, including peer-to-peer copies.
    start end
    u64 bytes (bytes): bytes copied
    graph_node correlation stream graph process context device
    u16 peer_context: context of the other device of a peer copy
    u16 source_device: device copied from, equal to device unless it is a peer copy
    u16 destination_device: device copied to, equal to device unless it is a peer copy
    u8 kind: CUpti_ActivityMemcpyKind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, ...
    u8 source_memory: CUpti_ActivityMemoryKind of the source: 1 pageable, 2 pinned, 3 device
    u8 destination_memory: CUpti_ActivityMemoryKind of the destination
    u8 flags: 1: asynchronous

memsets 18: Memory fills.
    start end
    u64 bytes (bytes): bytes set
    graph_node correlation stream graph
    u32 value: the value written
    process context device
    u8 memory: CUpti_ActivityMemoryKind
    u8 flags: 1: asynchronous

api_calls 19: Calls of the CUDA runtime and driver API.
    start end correlation thread
    function function: the called function and the value it returned
    process

nvtx_ranges 20: NVTX ranges, push/pop and start/end.
    start end
    u64 payload: bits of the payload, read by payload_type
    u64 range_id: id of a start/end range, 0 for push/pop
    string name: message
    string domain: name of the domain, 0 for the default domain
    u32 category: category id within the domain, 0 for none
    u32 color: ARGB, 0 for none
    thread
    u32 end_thread: thread that ended the range
    process
    u16 depth: number of push/pop ranges of the same thread and domain around this one
    u8 kind: 0 push/pop, 1 start/end
    u8 payload_type: nvtxPayloadType_t: 0 none, 1 u64, 2 i64, 3 f64, 4 u32, 5 i32, 6 f32
    u16 flags: 1: still open when the capture ended (end is 0), 2: started before the file's window, 4: went on after it
    string arguments: fields of the extended payloads, as a JSON object; 0 for none

nvtx_marks 21: NVTX marks.
    time
    u64 payload: bits of the payload, read by payload_type
    string name: message
    string domain: name of the domain, 0 for the default domain
    u32 category: category id within the domain, 0 for none
    u32 color: ARGB, 0 for none
    thread process
    u8 payload_type: nvtxPayloadType_t
    u8 source: 0 NVTX, 1 cutrace.mark()
    string arguments: fields of the extended payloads, as a JSON object; 0 for none

synchronizations 22: Waits of the host or of a stream for GPU work.
    start end
    u64 event_record: number of the awaited recording of the event, 0 when CUPTI does not report it
    correlation stream
    u32 event: CUDA event id, 0 for none
    u32 status: CUresult or cudaError_t, 0 when CUPTI does not report it
    process context
    u8 type: 1 event, 2 stream wait event, 3 stream, 4 context
    u8 flags: 0

cuda_events 23: CUDA events recorded into streams.
    u64 device_time (ns): GPU clock at the event, 0 when CUPTI does not report it
    u64 event_record: number of this recording of the event
    correlation stream
    u32 event: CUDA event id
    process context

allocations 24: Allocations and releases of device and pinned memory.
    time
    u64 address: virtual address; handle of an array, or of physical memory (cuMemCreate); 0: static variables, graphs
    u64 bytes (bytes): size, 0 when it is unknown
    u64 pool: address of the memory pool, as in memory_pools, 0 outside pools
    u64 pool_used (bytes): bytes in use in the pool after the operation, 0 when unknown
    correlation stream
    string source: shared object of the caller, 0 when CUPTI does not report it
    process context device
    u8 operation: 1 allocate, 2 release
    u8 memory: CUpti_ActivityMemoryKind, or 128: physical memory of a device (cuMemCreate)
    u8 flags: 1: stream-ordered, 2: of unknown size, its allocation was not recorded, 4: freed with its context
    u8 pool_type: 0 none, 1 local, 2 imported

memory_pools 25: Memory pools created (seen for the first time), trimmed and destroyed.
    time
    u64 address: address of the pool, where its memory starts
    u64 size (bytes): what it has of the system, 0 for imported pools
    u64 used (bytes): bytes in use
    u64 release_threshold (bytes): release threshold
    u64 minimum (bytes): bytes that a trim keeps
    correlation process device
    u8 operation: 1 created, 2 destroyed, 3 trimmed
    u8 pool_type: 1 local, 2 imported

overheads 26: Overhead of the driver's compiler, of CUPTI and of its buffers.
    start end thread correlation
    u32 kind: CUpti_ActivityOverheadKind
    process

graph_launches 27: Launches of CUDA graphs that CUPTI traced as a whole (graph-level tracing).
    start end correlation stream graph process context device

external_correlations 28: External correlation ids that were current at an API call.
    u64 external: id from another system
    correlation
    u32 kind: CUpti_ExternalCorrelationKind
    process

unified_memory 29: Unified-memory migrations, page faults and throttling.
    start end
    u64 value (bytes): bytes moved, or a count, depending on kind
    u64 address: virtual address
    stream
    u32 kind: CUpti_ActivityUnifiedMemoryCounterKind
    u32 source_device: device moved from; 0xffffffff is the host
    u32 destination_device: device moved to
    u32 flags: cause or access type, depending on kind
    process

jit 30: Compilations at run time.
    start end
    u64 cache_size (bytes): size of the cached binary
    correlation thread
    string cache_path: path of the cached binary
    process device
    u8 entry: CUpti_ActivityJitEntryType: 1 PTX to cubin, 2 NVVM IR to PTX
    u8 operation: CUpti_ActivityJitOperationType: 1 cache load, 2 cache store, 3 compile

environment 31: Clocks, temperature, power and fan of a device.
    time
    u64 values: four 16-bit or two 32-bit readings, depending on kind (docs/internals/run-bin.md)
    u32 flags: clock-limit reasons of a speed row
    u8 kind: 1 speed (SM MHz, memory MHz), 2 temperature (C), 3 power (mW, limit mW), 4 fan (%)
    u8 unused: 0
    process device

host_slices 32: Host slices from sources other than CUDA and NVTX: CPU operators, Python functions, system calls.
    start end
    u64 external: id that other records share (Kineto's External id), 0 for none
    name category
    string arguments: a JSON object, 0 for none
    string track: name or id of the track, 0 for the track of the thread
    thread process
    u8 kind: a key of HOST_SLICE_KINDS
    u8 flags: 1: never ended (end is 0), 2: the source had separate begin and end events

instants 33: Host instants from sources other than NVTX.
    time name category
    string arguments: a JSON object, 0 for none
    string track: name or id of the track, 0 for the track of the thread
    thread process
    u8 scope: 0 thread, 1 process, 2 whole trace
    u8 unused: 0

counters 34: Values of counters. A value holds until the next one.
    time
    f64 value: in unit; NaN when unknown from this time on
    string name: name of the counter
    string series: name of the series, when several series share the counter's name; else 0
    category
    string unit: 0 when unknown
    u32 thread: thread of the counter, 0 for the whole process
    process
    u16 device: CUDA device ordinal of the counter, 0xffff for none

kernel_metrics 37: Values of hardware metrics of kernels and of NVTX ranges, counted in a separate run.
    start end
    f64 value: in unit
    string name: name of the metric
    string unit: 0 for none
    correlation process device
    string range: name of the counted NVTX range, 0 for a kernel
    u8 caches: a key of CACHES

pc_samples 38: PC samples by instruction and stall reason, summed over an interval.
    start end
    u64 samples: number of samples
    u64 not_issued: samples taken when the scheduler issued no instruction
    device function offset file line
    string stall: stall reason, CUPTI's name without smsp__pcsamp_warps_issue_stalled_
    process

instruction_metrics 39: Values of hardware metrics of instructions, counted in a separate run and summed over launches.
    f64 value: in unit
    string name: name of the metric
    string unit: 0 for none
    u32 launches: number of counted launches in which the function ran
    device function offset file line process

call_stacks 40: Python stacks of API calls.
    correlation
    stack stack: the Python frames at the call
    thread process

kernel_codes 43: Machine code of kernels, each once in a context (on request).
    u64 code: hash of the machine code of the kernel and of the functions that it calls
    string name: kernel name (mangled)
    u32 module: CUPTI id of the first module that had it
    u32 index: index of the function in that module
    u32 size (bytes): machine code without called functions
    u32 registers (per thread): registers
    u32 static_shared (bytes): static shared memory of a block
    u32 local_per_thread (bytes): local memory of a thread, called functions included
    process context
    u16 architecture: 90 for sm_90

gpu_slices 35: Slices of streams that are not GPU work, such as annotations on GPU streams.
    start end name category
    string arguments: a JSON object, 0 for none
    correlation stream process context device
    u8 kind: 0 other, 1 annotation of the host, 2 NVTX range
    u8 flags: 0

flows 36: Steps of flows between slices. Steps with equal id and category belong to one flow.
    time
    u64 id: id of the flow, if it is a number
    string text: id of the flow, if it is a string; else 0
    name category thread process
    u8 phase: ASCII code: s begin, t step, f end
    u8 flags: 1: ends at the slice around it, not at the next slice

launches 48: Launch configurations, each written before the first row that refers to it.
    u32 id: value of the launch field of kernels; from 1
    string name: kernel name as CUPTI gives it (mangled)
    u32 grid_x grid_y grid_z (blocks): size of the grid
    u32 block_x block_y block_z (threads): size of a block
    u32 cluster_x (blocks): size of a cluster; 0 without clusters
    u32 cluster_y cluster_z (blocks): size of a cluster
    u32 registers (per thread): registers
    u32 static_shared (bytes): static shared memory of a block
    u32 dynamic_shared (bytes): dynamic shared memory of a block
    u32 shared_executed (bytes): shared memory reserved for a block, including the driver's share
    u32 local_per_thread (bytes): local memory of a thread
    u64 local_total (bytes): local memory reserved for the kernel
    graph_node graph
    u8 cache_requested: CUfunc_cache requested
    u8 cache_executed: CUfunc_cache used
    u8 launch_type: 0 regular, 1 cooperative, 2 cooperative on several devices
    u8 carveout (%): shared memory carve-out requested, 255 for none
    u32 shared_limit: CUpti_FuncShmemLimitConfig
    u32 cluster_policy: CUclusterSchedulingPolicy
    u32 max_cluster (blocks): largest possible cluster
    u32 max_active_clusters (clusters): largest number of resident clusters
    u64 code: hash of the machine code (kernel_codes has more of it), 0 when it is not known

functions 49: API functions with a returned value, each written once per process.
    function id: value of the function field of API calls; from 1
    u16 domain: 1 driver, 2 runtime
    u32 callback: CUPTI callback id of the function in its domain
    u32 status: CUresult or cudaError_t returned; 0 is success
    string name: name of the function, without version suffix

devices 50: The GPUs that are visible to the process.
    bytes16 uuid: UUID of the GPU, or of the MIG instance
    u64 memory (bytes): global memory
    u64 memory_bandwidth (KB/s): peak
    string name: name of the GPU
    string pci: PCI address, domain:bus:device.function
    u32 compute_major compute_minor: compute capability
    u32 multiprocessors: number of multiprocessors
    u32 core_clock memory_clock (kHz): clock rate, as CUPTI gives it
    u32 l2_cache (bytes): size of the L2 cache
    u32 warp_size (threads): size of a warp
    u32 max_threads_per_block max_threads_per_multiprocessor max_warps_per_multiprocessor: limit
    u32 max_blocks_per_multiprocessor registers_per_multiprocessor registers_per_block: limit
    u32 shared_per_multiprocessor shared_per_block (bytes): shared memory
    u32 shared_per_block_optin (bytes): shared memory of a block that asks for more
    u32 shared_reserved_per_block (bytes): the driver's share
    u32 copy_engines: number of copy engines
    u32 mig: 1 for a MIG instance
    process device

contexts 51: CUDA contexts.
    u32 null_stream: id of the default stream
    u16 compute_api: CUpti_ActivityComputeApiKind: 1 CUDA, 2 CUDA under MPS
    process context device

streams 52: CUDA streams.
    stream
    i32 priority: priority; smaller numbers come first
    u16 type: CUpti_ActivityStreamFlag: 1 default, 2 non-blocking, 3 null
    process context

threads 53: Names of threads. The last row of a thread wins; NVTX names win over names of the operating system.
    thread
    string name: name of the thread
    process
    u16 source: 1 operating system, 2 NVTX

resource_names 54: Names of CUDA objects from NVTX.
    u64 object: stream id, context id, device ordinal or event id, depending on kind
    string name: name of the object
    process context
    u16 kind: 1 stream, 2 context, 3 device, 4 event

nvtx_categories 55: Names of NVTX categories.
    string domain: name of the domain, 0 for the default domain
    u32 category: id of the category in the domain
    string name: name of the category
    process

modules 56: Loaded modules (on request).
    u32 module: CUPTI id of the module
    u32 size (bytes): size of the cubin
    process context

device_functions 57: Functions of loaded modules (on request).
    u32 device_function: CUPTI id of the function
    u32 module: CUPTI id of the module
    u32 index: index in the module
    string name: name of the function (mangled)
    process context

graph_nodes 58: Where nodes of CUDA graphs were created, each written before the first row of its work.
    u64 created (ns): when the node or the original of its copies was created, on the BOOTTIME clock
    graph_node
    u64 original: id of the first node in the chain of copies, 0 when the node is no copy
    string ranges: names of the NVTX ranges around the creation, outermost first, as a JSON array; 0 for none
    thread process

frames 59: Python frames, each written before the first stack that refers to it.
    u32 id: value of the frame field of stacks; from 1
    string file: file name of the code object, 0 when unknown
    string function: name of the function
    u32 line: line that ran, from 1; 0 when unknown
    process

stacks 60: Python stacks as a tree, each written after its parent and before the first row that refers to it.
    u32 id: value of the stack field of call_stacks; from 1
    stack parent: the stack of the caller, 0 for the outermost frame that is known
    frame frame: the innermost frame
    process

clocks 64: The clocks of the machine, read together.
    u64 boottime monotonic monotonic_raw realtime (ns): reading of this clock
    u64 spread (ns): time between the first and the last reading of this row
    process

losses 65: Losses by reason. The counts of rows add up.
    time
    u64 count: number of records, ranges or bytes, depending on reason
    u16 reason: a key of LOSS_REASONS
    process
    string detail: activity kind, file or error
"""


def fields(text: str, shared: Mapping[str, Field]) -> tuple[Field, ...]:
    """Parse fields in the notation of :data:`_TABLES`. A line without a type names fields of ``shared``."""
    parsed: list[Field] = []
    for line in text.strip().splitlines():
        described, _, doc = line.partition(": ")
        names, _, unit = described.partition(" (")
        kind, *rest = names.split()
        if kind in TYPES:
            parsed += [Field(name, kind, unit.rstrip(")"), doc) for name in rest]
        else:
            parsed += [shared[name] for name in (kind, *rest)]
    return tuple(parsed)


#: Fields that many tables share, by name.
SHARED: dict[str, Field] = {f.name: f for f in fields(_SHARED, {})}


def _tables() -> Iterator[TableLayout]:
    for text in _TABLES.split("\n\n"):
        head, _, lines = text.partition("\n")
        title, _, doc = head.partition(": ")
        name, number = title.split()
        yield TableLayout(name, int(number), doc, fields(lines, SHARED))


TABLES: dict[str, TableLayout] = {t.name: t for t in _tables()}
BY_NUMBER: dict[int, TableLayout] = {t.number: t for t in TABLES.values()}
#: Tables of GPU work that API calls launch.
GPU_WORK = ("kernels", "memcpys", "memsets", "graph_launches")

#: The reasons of losses: number, name and meaning. The meaning starts with the noun to count. Numbers are stable.
LOSS_REASONS: dict[int, tuple[str, str]] = {
    1: ("cupti_dropped", "record that CUPTI dropped because it had no buffer"),
    2: (
        "memory_limit",
        "record dropped because the collector's memory limit was reached",
    ),
    3: ("unknown_time", "record whose start or end the GPU did not report"),
    4: ("nvtx_unmatched_pop", "end of an NVTX range without a push or start"),
    5: (
        "nvtx_dropped",
        "row of NVTX events or graph nodes dropped because a thread's buffer was full or in use",
    ),
    6: ("nvtx_open", "range of NVTX still open when the capture ended"),
    7: ("size_limit", "row not written because the file reached its size limit"),
    8: ("write_error", "row not written because the file could not be written"),
    9: ("kind_refused", "kind of activity that CUPTI refused to record"),
    10: ("unknown_record", "record of a kind that this collector does not know"),
    11: (
        "table_limit",
        "row of names, launch configurations or graph nodes dropped because a table was full",
    ),
    12: ("let_go", "row dropped to keep only the newest"),
    13: ("unreadable", "event of the source file that could not be used"),
    14: (
        "samples_lost",
        "sample of hardware counters dropped because the GPU's buffer was full",
    ),
    15: (
        "kept_back",
        "buffer that CUPTI kept at the end, because a call or GPU work in it had not ended",
    ),
    16: (
        "stacks_dropped",
        "stack of a call dropped for lack of room, or because it could not be read",
    ),
    17: (
        "name_unknown",
        "kernel without a name, because this CUPTI mixes up names after a module was unloaded",
    ),
    18: (
        "nvtx_undecoded",
        "part of NVTX payloads, counters and deferred events that could not be read",
    ),
    19: ("code_unknown", "module whose machine code could not be read"),
    20: (
        "not_closed",
        "process killed or still running, or with a file that was cut: "
        "the capture was not closed in order and may lack its end",
    ),
}

#: The state of the GPU's caches when the work of a row of ``kernel_metrics`` started.
CACHES: dict[int, str] = {0: "unknown", 1: "flushed", 2: "kept"}

#: The kinds of the rows of ``host_slices``.
HOST_SLICE_KINDS: dict[int, str] = {
    0: "other", 1: "operator", 2: "annotation", 3: "python", 4: "system call", 5: "asynchronous"
}  # fmt: skip


def schema() -> dict[str, object]:
    """The layouts as a JSON object, which each capture has under the key ``tables``."""
    layouts: dict[str, object] = {}
    for table in TABLES.values():
        fields = [
            [field.name, field.type, table.offsets[field.name], field.unit]
            for field in table.fields
        ]
        layouts[table.name] = {
            "number": table.number,
            "row_size": table.row_size,
            "fields": fields,
        }
    return layouts


def cpp_header() -> str:
    """C++ structs of all tables, with assertions that their layout equals the NumPy dtypes."""
    out = [
        "// Generated by src/cutrace/runbin/layout.py: change that file, not this one.",
        "#pragma once",
        "#include <array>",
        "#include <cstddef>",
        "#include <cstdint>",
        "",
        "namespace cutrace::rows {",
        "",
        f"inline constexpr std::uint16_t kFormatVersion = {FORMAT_VERSION};",
        f"inline constexpr std::uint16_t kProcessBlock = {PROCESS_BLOCK};",
        f"inline constexpr std::uint16_t kStringsBlock = {STRINGS_BLOCK};",
        "",
        "enum class Loss : std::uint16_t {",
        *(f"  {name} = {number}," for number, (name, _) in LOSS_REASONS.items()),
        "};",
        "",
        "#pragma pack(push, 1)",
    ]
    for t in TABLES.values():
        struct = t.name.title().replace("_", "")
        out += [
            "",
            f"// {t.doc}",
            f"struct {struct} {{",
            f"  static constexpr std::uint16_t kTable = {t.number};",
            f'  static constexpr const char* kName = "{t.name}";',
        ]
        out += [f"  {TYPES[f.type][2]} {f.name}{{}};" for f in t.fields]
        out += ["};", f"static_assert(sizeof({struct}) == {t.row_size});"]
        out += [
            f"static_assert(offsetof({struct}, {f.name}) == {t.offsets[f.name]});"
            for f in t.fields
        ]
    out += [
        "",
        "#pragma pack(pop)",
        "",
        "// The same layouts as JSON, for the process block of each capture.",
        f'inline constexpr char kTablesJson[] = R"json({json.dumps(schema(), separators=(",", ":"))})json";',
        "",
        "}  // namespace cutrace::rows",
        "",
    ]
    return "\n".join(out)


if __name__ == "__main__":
    header = Path(sys.argv[1])
    text = cpp_header()
    if not header.exists() or header.read_text() != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
