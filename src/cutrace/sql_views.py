"""Views with the names and columns of Nsight Systems' exports and of Perfetto's tables, for :mod:`cutrace.queries`.

Each view is one select over the tables of a trace; docs/internals/sql.md lists them. Ids of strings, threads and tracks
are hashes, so that no view depends on another.
"""

from __future__ import annotations

from .runbin import labels

#: The table of all strings of a trace, for ``StringIds`` alone.
STRINGS = "strings"


def _id(value: str) -> str:
    """The id of a string, null for null."""
    return (
        f"case when {value} is not null then (hash({value}::varchar) >> 1)::bigint end"
    )


def _case(column: str, names: dict[int, str]) -> str:
    """The name of a number, ``unknown`` if it has none."""
    cases = [f"when {number} then '{name}'" for number, name in names.items()]
    return f"case {column} {' '.join(cases)} else 'unknown' end"


# The machine, the process and the thread, packed as by nsys. The index of the process stands for the machine.
_GLOBAL_PID = "(((process::bigint + 1) << 48) | ((pid & 16777215) << 24))"
_GLOBAL_TID = f"({_GLOBAL_PID} | (thread & 16777215))"
_PLACE = (
    'start, "end", device as deviceId, context as contextId, stream as streamId, correlation as correlationId, '
    f"{_GLOBAL_PID} as globalPid"
)
_BASE_NAME = "string_split(short_name, '::')[-1]"
_MEMORY = "case {0} when 0 then 7 else {0}::bigint - 1 end"

_NSYS = {
    "StringIds": f"""
        select distinct {_id("value")} as id, value from (
            select value from strings
            union all select name from launches
            union all select {_BASE_NAME} from launches)
        where value != ''
        union all select 0, ''
    """,
    "CUPTI_ACTIVITY_KIND_KERNEL": f"""
        select {_PLACE}, {_id("kernels.name")} as demangledName, {_id(_BASE_NAME)} as shortName,
            launch_type + 1 as launchType, cache_executed as cacheConfig, registers as registersPerThread,
            grid_x as gridX, grid_y as gridY, grid_z as gridZ, block_x as blockX, block_y as blockY, block_z as blockZ,
            static_shared as staticSharedMemory, dynamic_shared as dynamicSharedMemory,
            local_per_thread as localMemoryPerThread, local_total as localMemoryTotal,
            shared_executed as sharedMemoryExecuted, nullif(graph_node, 0) as graphNodeId,
            nullif(graph, 0) as graphId, cluster_x as clusterX, cluster_y as clusterY, cluster_z as clusterZ
        from kernels join processes using (process)
    """,
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"""
        select {_PLACE}, bytes, kind as copyKind, {_MEMORY.format("source_memory")} as srcKind,
            {_MEMORY.format("destination_memory")} as dstKind, source_device as srcDeviceId,
            destination_device as dstDeviceId, nullif(graph_node, 0) as graphNodeId, nullif(graph, 0) as graphId
        from memcpys join processes using (process)
    """,
    "CUPTI_ACTIVITY_KIND_MEMSET": f"""
        select {_PLACE}, value, bytes, nullif(graph_node, 0) as graphNodeId, {_MEMORY.format("memory")} as memKind,
            nullif(graph, 0) as graphId
        from memsets join processes using (process)
    """,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"""
        select {_PLACE}, graph as graphId, graph as graphExecId from graph_launches join processes using (process)
    """,
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"""
        select start, "end", case domain when 1 then 1 else 0 end as eventClass, {_GLOBAL_TID} as globalTid,
            correlation as correlationId, {_id("api_calls.name")} as nameId, status as returnValue
        from api_calls join processes using (process)
    """,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"""
        select start, "end", context as contextId, nullif(stream, 0) as streamId, correlation as correlationId,
            {_GLOBAL_PID} as globalPid, type as syncType, nullif(event, 0) as eventId
        from synchronizations join processes using (process)
    """,
    "NVTX_EVENTS": f"""
        select start, "end", case kind when 1 then 60 else 59 end as eventType, nullif(range_id, 0) as rangeId,
            nullif(category, 0) as category, nullif(color, 0) as color, nvtx_ranges.name as text,
            {_GLOBAL_TID} as globalTid, coalesce({_id("domain")}, 0) as domainId, arguments as jsonText
        from nvtx_ranges join processes using (process)
        union all
        select time, null, 34, null, nullif(category, 0), nullif(color, 0), nvtx_marks.name, {_GLOBAL_TID},
            coalesce({_id("domain")}, 0), arguments
        from nvtx_marks join processes using (process)
    """,
    "CUDA_GPU_MEMORY_USAGE_EVENTS": f"""
        select time as start, {_GLOBAL_PID} as globalPid, device as deviceId, context as contextId, address, bytes,
            {_MEMORY.format("memory")} as memKind, operation::bigint - 1 as memoryOperationType,
            correlation as correlationId, stream as streamId
        from allocations join processes using (process)
    """,
    "ThreadNames": f"""
        select {_id("threads.name")} as nameId, {_GLOBAL_TID} as globalTid
        from threads join processes using (process)
    """,
    "TARGET_INFO_GPU": """
        select device as cuDevice, name, pci as busLocation, memory as totalMemory, multiprocessors as smCount,
            l2_cache as l2CacheSize, compute_major as computeMajor, compute_minor as computeMinor,
            warp_size as threadsPerWarp
        from devices
    """,
    "ENUM_CUDA_MEMCPY_OPER": "select * from (values {}) as t(id, label)".format(
        ", ".join(f"({number}, '{name}')" for number, name in labels.COPIES.items())
    ),
}

# The events of Perfetto: work of GPUs, and all events. Their fields identify their track.
_GPU_EVENTS = f"""
    select start as ts, duration as dur, short_name as name, 'kernel' as category, process, device, context, stream,
        null::bigint as thread, null::varchar as track, correlation from kernels
    union all select start, duration, 'Memcpy ' || {_case("kind", labels.MEMCPY_KINDS)}, 'memcpy', process, device,
        context, stream, null, null, correlation from memcpys
    union all select start, duration, 'Memset', 'memset', process, device, context, stream, null, null, correlation
        from memsets
    union all select start, duration, 'CUDA graph ' || graph, 'graph', process, device, context, stream, null, null,
        correlation from graph_launches
"""
_EVENTS = f"""
    {_GPU_EVENTS}
    union all select start, duration, name, case domain when 1 then 'cuda_driver' else 'cuda_runtime' end, process,
        null, null, null, thread, null, correlation from api_calls
    union all select start, duration, name, 'nvtx' || coalesce('.' || domain, ''), process, null, null, null,
        case kind when 0 then thread end, case kind when 1 then coalesce(domain, 'NVTX') end, null from nvtx_ranges
    union all select time, 0, name, 'nvtx' || coalesce('.' || domain, ''), process, null, null, null, thread, null, null
        from nvtx_marks
    union all select start, duration, 'synchronize ' || {_case("type", labels.SYNCHRONIZATIONS)}, 'synchronization',
        process, null, context, null, null, null, correlation from synchronizations
    union all select start, duration, name, category, process, null, null, null,
        case when track is null then thread end, track, null from host_slices
    union all select time, 0, name, category, process, null, null, null, case when track is null then thread end,
        track, null from instants
"""
_TRACK = "(hash(process, device, context, stream, thread, track) >> 1)::bigint"
_UTID = "(hash(process, thread::bigint) >> 1)::bigint"
_COUNTER_TRACK = "(hash(process, device, thread, name, series) >> 1)::bigint"
_SERIES = "name || coalesce(' ' || series, '')"
_THREADS = """
    select process, thread from threads union select process, thread from api_calls
    union select process, thread from nvtx_ranges union select process, thread from nvtx_marks
    union select process, thread from host_slices union select process, thread from instants
"""

_PERFETTO = {
    "process": "select process as id, process as upid, pid, name from processes",
    "thread": f"""
        select {_UTID} as id, {_UTID} as utid, thread as tid, any_value(threads.name) as name, process as upid,
            any_value(thread = pid) as is_main_thread
        from ({_THREADS}) left join threads using (process, thread) join processes using (process)
        group by process, thread
    """,
    "slice": f"""
        select row_number() over (order by ts, dur desc) - 1 as id, ts, dur, {_TRACK} as track_id, category, name
        from ({_EVENTS})
    """,
    "gpu_slice": f"""
        select row_number() over (order by ts, dur desc) - 1 as id, ts, dur, {_TRACK} as track_id, category, name,
            device as gpu_id, context as context_id, stream as hw_queue_id, correlation as submission_id,
            process as upid
        from ({_GPU_EVENTS})
    """,
    "track": f"""
        select distinct {_TRACK} as id,
            case when track is not null then track when stream is not null then 'Stream ' || stream end as name,
            process as upid, case when thread is not null then {_UTID} end as utid
        from ({_EVENTS})
        union all select distinct {_COUNTER_TRACK}, {_SERIES}, process, null from counters
    """,
    "thread_track": f"""
        select distinct {_TRACK} as id, {_UTID} as utid from ({_EVENTS}) where thread is not null
    """,
    "counter": f"""
        select row_number() over (order by time) - 1 as id, time as ts, value, {_COUNTER_TRACK} as track_id
        from counters
    """,
    "counter_track": f"""
        select distinct {_COUNTER_TRACK} as id, {_SERIES} as name, unit, process as upid from counters
    """,
}

#: The select of each view, by its name.
VIEWS = _NSYS | _PERFETTO
