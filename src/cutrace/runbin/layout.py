"""The tables of run.bin: the one definition of every row that a capture holds.

Three readers share it. Python turns a table into a NumPy dtype; the build runs this file as a script and
gets the C++ structs of the collector with a ``static_assert`` for each offset; the collector writes the
same description as JSON into each capture, so that a reader of another version knows the rows it finds.

Rows are packed, little-endian and of fixed size. Only the standard library is imported at module level,
since the build runs this file before NumPy is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

FORMAT_VERSION = 1

#: Bytes, NumPy format and C++ type of each field type. ``string``, ``launch`` and ``function`` are
#: references: an id that another block of the same process explains, 0 where there is none.
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
}

REFERENCES = frozenset({"string", "launch", "function"})
#: The types of fields that refer to rows of another table, and that table.
REFERRED = {"launch": "launches", "function": "functions"}


@dataclass(frozen=True)
class Field:
    """One field of a row: its name, a key of :data:`TYPES`, its unit ("" for none) and its meaning."""

    name: str
    type: str
    unit: str = ""
    doc: str = ""

    @property
    def size(self) -> int:
        return TYPES[self.type][0]


@dataclass(frozen=True)
class Table:
    """One table: a stable number (the block kind), fields in the order of their bytes, and its meaning."""

    name: str
    number: int
    doc: str
    fields: tuple[Field, ...]
    offsets: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        offsets, at = {}, 0
        for f in self.fields:
            offsets[f.name] = at
            at += f.size
        object.__setattr__(self, "offsets", offsets)

    @cached_property
    def row_size(self) -> int:
        return sum(f.size for f in self.fields)

    @cached_property
    def start_field(self) -> str | None:
        """The field a row begins at (``start``, or ``time`` of an instant), None for a table without times and
        for those that speak of the capture itself (numbers from 64 on)."""
        if self.number >= 64:
            return None
        return next((n for n in ("start", "time") if n in self.offsets), None)

    @cached_property
    def end_field(self) -> str | None:
        """The field a row ends at; that of :attr:`start_field` for an instant."""
        return "end" if self.start_field and "end" in self.offsets else self.start_field

    @cached_property
    def dtype(self) -> np.dtype:
        import numpy as np

        return np.dtype([(f.name, TYPES[f.type][1]) for f in self.fields])


def _t(name: str, number: int, doc: str, *fields: Field) -> Table:
    return Table(name, number, doc, fields)


# Fields that many tables share.
START = Field("start", "u64", "ns", "begin, on the BOOTTIME clock; 0 when the GPU did not report it")
END = Field("end", "u64", "ns", "end, on the BOOTTIME clock; 0 when it is unknown")
TIME = Field("time", "u64", "ns", "when, on the BOOTTIME clock")
CORRELATION = Field("correlation", "u32", "", "CUPTI correlation id: joins GPU work to the API call that launched it")
PROCESS = Field("process", "u16", "", "0 on disk; a reader puts the index of the process in the file here")
STREAM = Field("stream", "u32", "", "CUPTI stream id")
CONTEXT = Field("context", "u16", "", "CUPTI context id")
DEVICE = Field("device", "u16", "", "CUDA device ordinal")
GRAPH_NODE = Field("graph_node", "u64", "", "id of the CUDA graph node, 0 outside graphs")
GRAPH = Field("graph", "u32", "", "id of the executable CUDA graph, 0 outside graphs")
THREAD = Field("thread", "u32", "", "thread id of the operating system (gettid)")

#: Block kinds that hold no table. Tables use the numbers from 16 on.
PROCESS_BLOCK = 1
STRINGS_BLOCK = 2

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        _t(
            "kernels",
            16,
            "Kernels as the GPU ran them.",
            START,
            END,
            CORRELATION,
            Field("launch", "launch", "", "launch configuration: name, grid, block, registers, ..."),
            STREAM,
            PROCESS,
            CONTEXT,
            DEVICE,
        ),
        _t(
            "memcpys",
            17,
            "Copies, peer-to-peer ones included.",
            START,
            END,
            Field("bytes", "u64", "bytes", "bytes copied"),
            GRAPH_NODE,
            CORRELATION,
            STREAM,
            GRAPH,
            PROCESS,
            CONTEXT,
            DEVICE,
            Field("peer_context", "u16", "", "context of the other device of a peer copy"),
            Field("source_device", "u16", "", "device copied from, equal to device unless it is a peer copy"),
            Field("destination_device", "u16", "", "device copied to, likewise"),
            Field("kind", "u8", "", "CUpti_ActivityMemcpyKind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, ..."),
            Field("source_memory", "u8", "", "CUpti_ActivityMemoryKind of the source: 1 pageable, 2 pinned, 3 device"),
            Field("destination_memory", "u8", "", "CUpti_ActivityMemoryKind of the destination"),
            Field("flags", "u8", "", "1: asynchronous"),
        ),
        _t(
            "memsets",
            18,
            "Memory fills.",
            START,
            END,
            Field("bytes", "u64", "bytes", "bytes set"),
            GRAPH_NODE,
            CORRELATION,
            STREAM,
            GRAPH,
            Field("value", "u32", "", "the value written"),
            PROCESS,
            CONTEXT,
            DEVICE,
            Field("memory", "u8", "", "CUpti_ActivityMemoryKind"),
            Field("flags", "u8", "", "1: asynchronous"),
        ),
        _t(
            "api_calls",
            19,
            "Calls of the CUDA runtime and driver API.",
            START,
            END,
            CORRELATION,
            THREAD,
            Field("function", "function", "", "which call, and the value it returned"),
            PROCESS,
        ),
        _t(
            "nvtx_ranges",
            20,
            "NVTX ranges, push/pop and start/end.",
            START,
            END,
            Field("payload", "u64", "", "bits of the payload, read by payload_type"),
            Field("range_id", "u64", "", "id of a start/end range, 0 for push/pop"),
            Field("name", "string", "", "message"),
            Field("domain", "string", "", "name of the domain, 0 for the default domain"),
            Field("category", "u32", "", "category id within the domain, 0 for none"),
            Field("color", "u32", "", "ARGB, 0 for none"),
            THREAD,
            Field("end_thread", "u32", "", "thread that ended the range"),
            PROCESS,
            Field("depth", "u16", "", "push/pop ranges of the thread and domain around this one"),
            Field("kind", "u8", "", "0 push/pop, 1 start/end"),
            Field("payload_type", "u8", "", "nvtxPayloadType_t: 0 none, 1 u64, 2 i64, 3 f64, 4 u32, 5 i32, 6 f32"),
            Field("flags", "u16", "", "1: still open when the capture ended (end is 0)"),
        ),
        _t(
            "nvtx_marks",
            21,
            "NVTX marks.",
            TIME,
            Field("payload", "u64", "", "bits of the payload, read by payload_type"),
            Field("name", "string", "", "message"),
            Field("domain", "string", "", "name of the domain, 0 for the default domain"),
            Field("category", "u32", "", "category id within the domain, 0 for none"),
            Field("color", "u32", "", "ARGB, 0 for none"),
            THREAD,
            PROCESS,
            Field("payload_type", "u8", "", "nvtxPayloadType_t"),
            Field("source", "u8", "", "0 NVTX, 1 cutrace.mark()"),
        ),
        _t(
            "synchronizations",
            22,
            "Waits of the host or of a stream for GPU work.",
            START,
            END,
            Field("event_record", "u64", "", "which recording of the event was waited for, 0 where CUPTI does not say"),
            CORRELATION,
            STREAM,
            Field("event", "u32", "", "CUDA event id, 0 for none"),
            Field("status", "u32", "", "CUresult or cudaError_t, 0 where CUPTI does not say"),
            PROCESS,
            CONTEXT,
            Field("type", "u8", "", "1 event, 2 stream wait event, 3 stream, 4 context"),
            Field("flags", "u8", "", ""),
        ),
        _t(
            "cuda_events",
            23,
            "CUDA events recorded into streams.",
            Field("device_time", "u64", "ns", "GPU clock at the event where CUPTI gives it, else 0"),
            Field("event_record", "u64", "", "which recording of the event"),
            CORRELATION,
            STREAM,
            Field("event", "u32", "", "CUDA event id"),
            PROCESS,
            CONTEXT,
        ),
        _t(
            "allocations",
            24,
            "Device and pinned memory taken and given back.",
            TIME,
            Field("address", "u64", "", "virtual address"),
            Field("bytes", "u64", "bytes", "size"),
            Field("pool", "u64", "", "address of the memory pool, 0 outside pools"),
            Field("pool_used", "u64", "bytes", "bytes in use in the pool after the operation"),
            CORRELATION,
            STREAM,
            Field("source", "string", "", "shared object that asked, where CUPTI says"),
            PROCESS,
            CONTEXT,
            DEVICE,
            Field("operation", "u8", "", "1 allocate, 2 release"),
            Field("memory", "u8", "", "CUpti_ActivityMemoryKind"),
            Field("flags", "u8", "", "1: stream-ordered (asynchronous)"),
            Field("pool_type", "u8", "", "0 none, 1 local, 2 imported"),
        ),
        _t(
            "memory_pools",
            25,
            "Memory pools created, trimmed and destroyed.",
            TIME,
            Field("address", "u64", "", "address of the pool"),
            Field("size", "u64", "bytes", "size of the pool"),
            Field("used", "u64", "bytes", "bytes in use"),
            Field("release_threshold", "u64", "bytes", "release threshold"),
            Field("minimum", "u64", "bytes", "bytes kept by a trim"),
            CORRELATION,
            PROCESS,
            DEVICE,
            Field("operation", "u8", "", "1 created, 2 destroyed, 3 trimmed"),
            Field("pool_type", "u8", "", "1 local, 2 imported"),
        ),
        _t(
            "overheads",
            26,
            "Time that the driver's compiler, CUPTI and its buffers took from the program.",
            START,
            END,
            THREAD,
            CORRELATION,
            Field("kind", "u32", "", "CUpti_ActivityOverheadKind"),
            PROCESS,
        ),
        _t(
            "graph_launches",
            27,
            "CUDA graphs traced as a whole (graph-level tracing).",
            START,
            END,
            CORRELATION,
            STREAM,
            GRAPH,
            PROCESS,
            CONTEXT,
            DEVICE,
        ),
        _t(
            "external_correlations",
            28,
            "Ids of other systems that were current at an API call.",
            Field("external", "u64", "", "the other system's id"),
            CORRELATION,
            Field("kind", "u32", "", "CUpti_ExternalCorrelationKind"),
            PROCESS,
        ),
        _t(
            "unified_memory",
            29,
            "Unified-memory migrations, page faults and throttling.",
            START,
            END,
            Field("value", "u64", "bytes", "bytes moved, or count, as kind says"),
            Field("address", "u64", "", "virtual address"),
            STREAM,
            Field("kind", "u32", "", "CUpti_ActivityUnifiedMemoryCounterKind"),
            Field("source_device", "u32", "", "device moved from; 0xffffffff is the host"),
            Field("destination_device", "u32", "", "device moved to"),
            Field("flags", "u32", "", "cause or access type, as kind says"),
            PROCESS,
        ),
        _t(
            "jit",
            30,
            "Compilations at run time.",
            START,
            END,
            Field("cache_size", "u64", "bytes", "size of the cached binary"),
            CORRELATION,
            THREAD,
            Field("cache_path", "string", "", "where the binary is cached"),
            PROCESS,
            DEVICE,
            Field("entry", "u8", "", "CUpti_ActivityJitEntryType: 1 PTX to cubin, 2 NVVM IR to PTX"),
            Field("operation", "u8", "", "CUpti_ActivityJitOperationType: 1 cache load, 2 cache store, 3 compile"),
        ),
        _t(
            "environment",
            31,
            "Clocks, temperature, power and fan of a device.",
            TIME,
            Field("values", "u64", "", "four 16-bit or two 32-bit readings, as kind says (docs/run-bin.md)"),
            Field("flags", "u32", "", "clock-limit reasons of a speed row"),
            Field(
                "kind", "u8", "", "1 speed (SM MHz, memory MHz), 2 temperature (C), 3 power (mW, limit mW), 4 fan (%)"
            ),
            Field("unused", "u8", "", ""),
            PROCESS,
            DEVICE,
        ),
        _t(
            "host_slices",
            32,
            "Slices of the host that neither CUDA nor NVTX reported: CPU operators, Python functions, system calls.",
            START,
            END,
            Field("external", "u64", "", "id that ties it to other records (Kineto's External id), 0 for none"),
            Field("name", "string", "", ""),
            Field("category", "string", "", ""),
            Field("arguments", "string", "", "text of a JSON object, 0 for none"),
            Field("track", "string", "", "name or id of the track it is on, 0 for its thread's own"),
            THREAD,
            PROCESS,
            Field("kind", "u8", "", "a key of HOST_SLICE_KINDS"),
            Field("flags", "u8", "", "1: never ended (end is 0), 2: the source had its begin and end apart"),
        ),
        _t(
            "instants",
            33,
            "Moments of the host that NVTX did not report.",
            TIME,
            Field("name", "string", "", ""),
            Field("category", "string", "", ""),
            Field("arguments", "string", "", "text of a JSON object, 0 for none"),
            Field("track", "string", "", "name or id of the track it is on, 0 for its thread's own"),
            THREAD,
            PROCESS,
            Field("scope", "u8", "", "0 thread, 1 process, 2 everything"),
            Field("unused", "u8", "", ""),
        ),
        _t(
            "counters",
            34,
            "Values of counters, each holding until the next one.",
            TIME,
            Field("value", "f64", "", "in the unit that unit says"),
            Field("name", "string", "", "name of the counter"),
            Field("series", "string", "", "which of the values that share the name, 0 when there is one"),
            Field("category", "string", "", ""),
            Field("unit", "string", "", "0 when the source does not say"),
            Field("thread", "u32", "", "thread it is about, 0 for the whole process"),
            PROCESS,
            Field("device", "u16", "", "CUDA device ordinal it is about, 0xffff for none"),
        ),
        _t(
            "gpu_slices",
            35,
            "Slices of streams that are no work themselves, such as annotations seen on the GPU.",
            START,
            END,
            Field("name", "string", "", ""),
            Field("category", "string", "", ""),
            Field("arguments", "string", "", "text of a JSON object, 0 for none"),
            CORRELATION,
            STREAM,
            PROCESS,
            CONTEXT,
            DEVICE,
            Field("kind", "u8", "", "0 other, 1 annotation of the host, 2 NVTX range"),
            Field("flags", "u8", "", ""),
        ),
        _t(
            "flows",
            36,
            "Steps of arrows between slices; those with one id and category are one arrow.",
            TIME,
            Field("id", "u64", "", "id of the arrow where that is a number"),
            Field("text", "string", "", "id of the arrow where it is none, else 0"),
            Field("name", "string", "", ""),
            Field("category", "string", "", ""),
            THREAD,
            PROCESS,
            Field("phase", "u8", "", "ASCII code: s begins, t goes on, f ends"),
            Field("flags", "u8", "", "1: ends at the slice around it, not at the next one"),
        ),
        _t(
            "launches",
            48,
            "Launch configurations, each written before the first row that refers to it.",
            Field("id", "u32", "", "what the launch field of a kernel holds; from 1"),
            Field("name", "string", "", "kernel name as CUPTI gives it (mangled)"),
            Field("grid_x", "u32", "blocks", ""),
            Field("grid_y", "u32", "blocks", ""),
            Field("grid_z", "u32", "blocks", ""),
            Field("block_x", "u32", "threads", ""),
            Field("block_y", "u32", "threads", ""),
            Field("block_z", "u32", "threads", ""),
            Field("cluster_x", "u32", "blocks", "0 without clusters"),
            Field("cluster_y", "u32", "blocks", ""),
            Field("cluster_z", "u32", "blocks", ""),
            Field("registers", "u32", "per thread", ""),
            Field("static_shared", "u32", "bytes", "static shared memory of a block"),
            Field("dynamic_shared", "u32", "bytes", "dynamic shared memory of a block"),
            Field(
                "shared_executed", "u32", "bytes", "shared memory set aside for a block, the driver's share included"
            ),
            Field("local_per_thread", "u32", "bytes", "local memory of a thread"),
            Field("local_total", "u64", "bytes", "local memory set aside for the kernel"),
            GRAPH_NODE,
            GRAPH,
            Field("cache_requested", "u8", "", "CUfunc_cache asked for"),
            Field("cache_executed", "u8", "", "CUfunc_cache used"),
            Field("launch_type", "u8", "", "0 regular, 1 cooperative, 2 cooperative on several devices"),
            Field("carveout", "u8", "%", "shared memory carve-out asked for, 255 for none"),
            Field("shared_limit", "u32", "", "CUpti_FuncShmemLimitConfig"),
            Field("cluster_policy", "u32", "", "CUclusterSchedulingPolicy"),
            Field("max_cluster", "u32", "blocks", "largest cluster that could have been used"),
            Field("max_active_clusters", "u32", "clusters", "clusters that could be resident together"),
        ),
        _t(
            "functions",
            49,
            "API functions with the value they returned, each written once a process.",
            Field("id", "function", "", "what the function field of an API call holds; from 1"),
            Field("domain", "u16", "", "1 driver, 2 runtime"),
            Field("callback", "u32", "", "CUPTI callback id of the function in its domain"),
            Field("status", "u32", "", "CUresult or cudaError_t returned; 0 is success"),
            Field("name", "string", "", "name of the function, without version suffix"),
        ),
        _t(
            "devices",
            50,
            "The GPUs that the process saw.",
            Field("uuid", "bytes16", "", ""),
            Field("memory", "u64", "bytes", "global memory"),
            Field("memory_bandwidth", "u64", "KB/s", "peak"),
            Field("name", "string", "", ""),
            Field("pci", "string", "", "PCI address, domain:bus:device.function"),
            Field("compute_major", "u32", "", ""),
            Field("compute_minor", "u32", "", ""),
            Field("multiprocessors", "u32", "", ""),
            Field("core_clock", "u32", "kHz", ""),
            Field("memory_clock", "u32", "kHz", ""),
            Field("l2_cache", "u32", "bytes", ""),
            Field("warp_size", "u32", "threads", ""),
            Field("max_threads_per_block", "u32", "", ""),
            Field("max_threads_per_multiprocessor", "u32", "", ""),
            Field("max_warps_per_multiprocessor", "u32", "", ""),
            Field("max_blocks_per_multiprocessor", "u32", "", ""),
            Field("registers_per_multiprocessor", "u32", "", ""),
            Field("registers_per_block", "u32", "", ""),
            Field("shared_per_multiprocessor", "u32", "bytes", ""),
            Field("shared_per_block", "u32", "bytes", ""),
            Field("shared_per_block_optin", "u32", "bytes", ""),
            Field("shared_reserved_per_block", "u32", "bytes", "the driver's share"),
            Field("copy_engines", "u32", "", ""),
            Field("mig", "u32", "", "1 when this is a MIG instance"),
            PROCESS,
            DEVICE,
        ),
        _t(
            "contexts",
            51,
            "CUDA contexts.",
            Field("null_stream", "u32", "", "id of the default stream"),
            Field("compute_api", "u16", "", "CUpti_ActivityComputeApiKind: 1 CUDA, 2 CUDA under MPS"),
            PROCESS,
            CONTEXT,
            DEVICE,
        ),
        _t(
            "streams",
            52,
            "CUDA streams.",
            STREAM,
            Field("priority", "i32", "", ""),
            Field("type", "u16", "", "CUpti_ActivityStreamFlag: 1 default, 2 non-blocking, 3 null"),
            PROCESS,
            CONTEXT,
        ),
        _t(
            "threads",
            53,
            "Names of threads; the last row of a thread holds, NVTX before the operating system.",
            THREAD,
            Field("name", "string", "", ""),
            PROCESS,
            Field("source", "u16", "", "1 operating system, 2 NVTX"),
        ),
        _t(
            "resource_names",
            54,
            "Names that the program gave to CUDA objects through NVTX.",
            Field("object", "u64", "", "stream id, context id, device ordinal or event id, as kind says"),
            Field("name", "string", "", ""),
            PROCESS,
            CONTEXT,
            Field("kind", "u16", "", "1 stream, 2 context, 3 device, 4 event"),
        ),
        _t(
            "nvtx_categories",
            55,
            "Names of NVTX categories.",
            Field("domain", "string", "", "name of the domain, 0 for the default domain"),
            Field("category", "u32", "", ""),
            Field("name", "string", "", ""),
            PROCESS,
        ),
        _t(
            "modules",
            56,
            "Modules that were loaded (on request).",
            Field("module", "u32", "", ""),
            Field("size", "u32", "bytes", "size of the cubin"),
            PROCESS,
            CONTEXT,
        ),
        _t(
            "device_functions",
            57,
            "Functions of loaded modules (on request).",
            Field("device_function", "u32", "", ""),
            Field("module", "u32", "", ""),
            Field("index", "u32", "", "index in the module"),
            Field("name", "string", "", ""),
            PROCESS,
            CONTEXT,
        ),
        _t(
            "clocks",
            64,
            "The clocks of the machine, read together.",
            Field("boottime", "u64", "ns", ""),
            Field("monotonic", "u64", "ns", ""),
            Field("monotonic_raw", "u64", "ns", ""),
            Field("realtime", "u64", "ns", ""),
            Field("spread", "u64", "ns", "time between the first and the last reading of this row"),
            PROCESS,
        ),
        _t(
            "losses",
            65,
            "What was not recorded, and why; rows add up.",
            TIME,
            Field("count", "u64", "", "records, ranges or bytes, as reason says"),
            Field("reason", "u16", "", "a key of LOSS_REASONS"),
            PROCESS,
            Field("detail", "string", "", "activity kind, file or error this is about"),
        ),
    )
}

#: Why something is missing. Numbers are stable; the words are what `cutrace info` and a converted trace say.
LOSS_REASONS: dict[int, tuple[str, str]] = {
    1: ("cupti_dropped", "records that CUPTI dropped because it had no buffer"),
    2: ("memory_limit", "records thrown away because the collector's memory limit was reached"),
    3: ("unknown_time", "records whose start or end the GPU did not report"),
    4: ("nvtx_unmatched_pop", "NVTX pops and range ends without a push or start"),
    5: ("nvtx_dropped", "NVTX events thrown away because a thread's buffer was full"),
    6: ("nvtx_open", "NVTX ranges still open when the capture ended"),
    7: ("size_limit", "rows not written because the file reached its size limit"),
    8: ("write_error", "rows not written because the file could not be written"),
    9: ("kind_refused", "activity kinds that CUPTI refused to record"),
    10: ("unknown_record", "records of a kind that this collector does not know"),
    11: ("table_limit", "names or launch configurations that found no room"),
    12: ("let_go", "older rows let go, because only the newest were to be kept"),
    13: ("unreadable", "events of the imported file that could not be used"),
}

#: What a row of ``host_slices`` is.
HOST_SLICE_KINDS: dict[int, str] = {
    0: "other",
    1: "operator",
    2: "annotation",
    3: "python",
    4: "system call",
    5: "asynchronous",
}


def schema() -> dict[str, object]:
    """The layouts as the JSON object that each capture carries under ``tables``."""
    return {
        t.name: {
            "number": t.number,
            "row_size": t.row_size,
            "fields": [[f.name, f.type, t.offsets[f.name], f.unit] for f in t.fields],
        }
        for t in TABLES.values()
    }


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def cpp_header() -> str:
    """C++ structs of all tables, with the assertions that keep them equal to the dtypes read in Python."""
    out = [
        "// Made by src/cutrace/runbin/layout.py at build time: change that file, not this one.",
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
        struct = _camel(t.name)
        out += [
            "",
            f"// {t.doc}",
            f"struct {struct} {{",
            f"  static constexpr std::uint16_t kTable = {t.number};",
            f'  static constexpr const char* kName = "{t.name}";',
        ]
        out += [f"  {TYPES[f.type][2]} {f.name}{{}};" for f in t.fields]
        out += ["};", f"static_assert(sizeof({struct}) == {t.row_size});"]
        out += [f"static_assert(offsetof({struct}, {f.name}) == {t.offsets[f.name]});" for f in t.fields]
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
    import argparse

    parser = argparse.ArgumentParser(description="Write the C++ header of run.bin's rows.")
    parser.add_argument("header", type=Path)
    args = parser.parse_args()
    text = cpp_header()
    if not args.header.exists() or args.header.read_text() != text:
        args.header.parent.mkdir(parents=True, exist_ok=True)
        args.header.write_text(text)
