"""The mapping of the tables of an Nsight Systems export to tables of a capture.

:mod:`.schema` declares the columns of GPU work, CUDA calls and similar tables. The rows of any other table with start,
end, thread and name become host slices; the name of the table gives their category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...importers.base import value_of
from ...importers.row_builder import Rows, arguments
from ...importers.tables import ColumnBatch, rows
from . import schema as nsys
from .nsys_target import device_ordinals
from .reading import Fill, Kinds, Mapping, Target, map_distinct, peer_context, value_or
from .schema import NOTHING, SqlColumn, declare

if TYPE_CHECKING:
    from .nsys import NsysReading

#: Columns that repeat other columns, and columns without a meaning outside nsys.
REDUNDANT = frozenset(
    {
        "eventClass",
        "eventId",
        "shortName",
        "demangledName",
        "deprecatedSrcId",
        "deprecatedSyncType",
        "rawTimestamp",
        "endGlobalTid",
        "globalPid",
        "globalTid",
        "nestingLevel",
    },
)


def without_version(name: str) -> str:
    """The name of a function without CUPTI's version suffix."""
    return re.sub(r"_v\d+$", "", name)


# Fields that are not declared


def _has_text(reading: NsysReading, batch: ColumnBatch, column: str) -> np.ndarray:
    """Whether each id of a column has a nonempty string in the file."""
    texts = reading.texts
    has_text = map_distinct(lambda number: bool(texts[number]), bool, batch[column])
    has_text &= batch.known(column)
    return has_text


def _kernels(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    launch = made.of("launch")
    names = batch["shortName"]
    for column in ("demangledName", "mangledName"):
        names = np.where(_has_text(reading, batch, column), batch[column], names)
    launch.rows["name"] = target.strings[names]
    launch.rows["launch_type"] = np.clip(batch["launchType"] - 1, 0, 2)
    percent = batch["sharedMemoryRequestedPercentage"]
    asked = batch.known("sharedMemoryRequestedPercentage")
    asked &= (percent >= 0) & (percent <= 100)
    launch.rows["carveout"] = np.where(asked, percent, 255)


def _copies(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    rows = made.rows
    own = rows["device"]
    from_known = batch.known("srcDeviceId")
    to_known = batch.known("dstDeviceId")
    rows["source_device"] = np.where(from_known, rows["source_device"], own)
    rows["destination_device"] = np.where(to_known, rows["destination_device"], own)
    peer = np.where(batch["copyKind"] == 10, peer_context(batch), 0)
    made.set("peer_context", peer)


def _migrations(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    kinds = batch["copyKind"]
    of_kind = [kinds == kind for kind in nsys.MIGRATION_KINDS]
    made.rows["kind"] = np.select(of_kind, list(nsys.MIGRATION_KINDS.values()))
    # nsys omits the two ends of a migration. One is the device of the row, the other is the host.
    for name, column, host_kind in (
        ("source_device", "srcDeviceId", 11),
        ("destination_device", "dstDeviceId", 12),
    ):
        default = np.where(kinds == host_kind, np.int64(NOTHING), batch["deviceId"])
        made.set(name, value_or(batch, column, default))


def _waits(reading: NsysReading, target: Target, made: Rows) -> None:
    """Set the kind of waits. The kind determines which ids CUPTI gives. Some versions of nsys number the kinds
    differently; then the ids determine the kind."""
    batch = made.batch
    made.check("syncType")
    stream_known = batch.known("streamId")
    event_known = batch.known("eventId")
    of_stream = stream_known & (batch["streamId"] & NOTHING != NOTHING)
    of_event = event_known & (batch["eventId"] & NOTHING != NOTHING)
    kind = batch["syncType"]
    fits = np.select(
        [kind == 1, kind == 2, kind == 3],
        [of_event, of_event & of_stream, of_stream & ~of_event],
        ~of_stream & ~of_event,
    )
    by_ids = np.select([of_stream & of_event, of_event, of_stream], [2, 1, 3], 4)
    wrong = stream_known & event_known & ~fits
    made.set("type", np.where(wrong, by_ids, kind))


def _calls(reading: NsysReading, target: Target, made: Rows) -> None:
    def of_runtime(name: int) -> bool:
        return reading.texts[name].lstrip("_").startswith("cuda")

    batch = made.batch
    function = made.of("function").rows
    made.check("nameId")
    # Class 0 is the runtime, class 1 the driver. The name of the function decides about other classes.
    classes = value_or(batch, "eventClass", -1)
    by_name = np.where(map_distinct(of_runtime, bool, batch["nameId"]), 2, 1)
    runtime = classes == 0
    driver = classes == 1
    function["domain"] = np.select([runtime, driver], [2, 1], by_name)
    function["name"] = target.functions[batch["nameId"]]
    function[~batch.known("nameId")] = np.zeros(1, function.dtype)


def _gpu_slices(name: str) -> Fill:
    def fill(reading: NsysReading, target: Target, made: Rows) -> None:
        made.rows["name"] = target.writer.string(name)

    return fill


def _allocations(reading: NsysReading, target: Target, made: Rows) -> None:
    made.check("localMemoryPoolAddress")
    local = made.batch["localMemoryPoolAddress"]
    imported = made.batch["importedMemoryPoolAddress"]
    is_local = local != 0
    is_imported = imported != 0
    pools = np.where(is_local, local, imported)
    made.rows["pool_type"] = np.select([is_local, is_imported], [1, 2])
    made.rows["pool"] = pools.astype(np.uint64)


def _cpu_faults(reading: NsysReading, target: Target, made: Rows) -> None:
    made.rows["end"] = made.rows["start"]
    made.rows["kind"] = 3
    made.rows["value"] = 1
    made.rows["source_device"] = NOTHING


def _gpu_faults(reading: NsysReading, target: Target, made: Rows) -> None:
    made.rows["destination_device"] = made.rows["source_device"]
    made.rows["kind"] = 4


def _overheads(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    made.check("overheadType", "overheadKind")
    by_type = nsys.overhead_kinds(batch["overheadType"])
    made.set("kind", value_or(batch, "overheadKind", by_type))


# Slices of the host


# The columns with possible names of a slice, the preferred one first, and the conversions of their values.
_NAMES = {
    "nameId": "function",
    "textId": "function",
    "text": "text",
    "name": "text",
}


def _host_slices(name: str, columns: Sequence[str]) -> Mapping:
    category, kind = _heading(name)
    named = next(column for column in _NAMES if column in columns)
    table = declare(
        name,
        "host_slices",
        "start=start:time! end=end:open globalTid=thread:thread correlationId=external category=category:text "
        f"{named}=name:{_NAMES[named]}",
    )
    more = []
    if name.startswith(_WITH_ARGUMENTS):
        other = REDUNDANT.union(column.name for column in table.columns)
        more = [column for column in columns if column not in other]
    table = replace(table, columns=table.columns + tuple(map(SqlColumn, more)))

    def fill(reading: NsysReading, target: Target, made: Rows) -> None:
        batch = made.batch
        writer = target.writer
        own = made.rows["category"]
        made.rows["category"] = np.where(own != 0, own, writer.string(category))
        made.rows["kind"] = kind
        if more:
            values = {column: _argument(reading, batch, column) for column in more}
            made.rows["arguments"] = arguments(writer, values, batch.rows)

    return Mapping(table, fill)


def _argument(reading: NsysReading, batch: ColumnBatch, column: str) -> list[object]:
    """The values of an argument, None if unknown. Ids of strings become strings."""
    values = batch[column].astype(object)
    if column in _TEXT_IDS:
        values[:] = [reading.texts[number] or None for number in values.tolist()]
    values[~batch.known(column)] = None
    return values.tolist()


_TEXT_IDS = ("srcFile", "funcName", "varName", "kernelName")
_WITH_ARGUMENTS = (
    "MPI_",
    "UCP_",
    "OPENMP_",
    "CUPTI_ACTIVITY_KIND_OPENACC_",
    "CUDA_GRAPH_",
)

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
_FAMILIES = {
    "MPI_": "MPI",
    "UCP_": "UCX",
    "OPENMP_": "OpenMP",
    "CUPTI_ACTIVITY_KIND_OPENACC_": "OpenACC",
}


def _heading(name: str) -> tuple[str, int]:
    """The category and the kind of the slices of a table."""
    if name in _HEADINGS:
        return _HEADINGS[name]
    for prefix, family in _FAMILIES.items():
        if name.startswith(prefix):
            return family, 0
    words = re.sub(r"_(API|EVENTS?)$", "", name).replace("_", " ")
    return words.title(), 0


# Counters and moments


def _metrics(table: str, category: str) -> Fill:
    def fill(reading: NsysReading, target: Target, made: Rows) -> None:
        batch = made.batch
        writer = target.writer
        made.rows["category"] = writer.string(category)
        names = _metric_names(reading, table)
        ordinals = device_ordinals(reading.tables)

        def name_of(type_id: int, metric: int) -> str:
            name = names.get((type_id, metric)) or names.get((None, metric))
            return name or f"metric {metric}"

        def name_id(type_id: int, metric: int) -> int:
            return writer.string(name_of(type_id, metric))

        def unit_id(type_id: int, metric: int) -> int:
            unit = re.search(r"\[([^\]]*)\]$", name_of(type_id, metric))
            return writer.string(unit[1] if unit else "")

        def device(type_id: int) -> int:
            gpu = type_id & 0xFF
            return ordinals.get(gpu, gpu)

        types = batch["typeId"]
        metrics = batch["metricId"]
        made.rows["name"] = map_distinct(name_id, np.int64, types, metrics)
        made.rows["unit"] = map_distinct(unit_id, np.int64, types, metrics)
        made.rows["device"] = 0xFFFF
        if category == "GPU metrics":
            made.rows["device"] = map_distinct(device, np.int64, types)

    return fill


def _metric_names(reading: NsysReading, table: str) -> dict[tuple[object, object], str]:
    """The names of metrics by type and metric. The key (None, metric) has the first name of a metric, for types without
    names."""
    columns: Kinds = {
        "typeId": "integer",
        "metricId": "integer",
        "metricName": "text",
    }
    names: dict[tuple[object, object], str] = {}
    for row in rows(reading.tables, table, columns):
        metric = row["metricId"]
        name = str(row["metricName"] or "")
        names[row["typeId"], metric] = name
        names.setdefault((None, metric), name)
    return names


def _network(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    writer = target.writer
    made.rows["category"] = writer.string("network")
    made.rows["device"] = 0xFFFF
    columns: Kinds = {
        "metricsListId": "integer",
        "metricsIdx": "integer",
        "name": "text",
    }
    names = {}
    for row in rows(reading.tables, "TARGET_INFO_NETWORK_METRICS", columns):
        names[row["metricsListId"], row["metricsIdx"]] = str(row["name"] or "")

    def name_id(of: int, metric: int) -> int:
        return writer.string(names.get((of, metric)) or f"metric {metric}")

    def series_id(interface: int, port: int) -> int:
        return writer.string(f"{interface & 0xFFFFFFFFFFFFFFFF:#x} port {port}")

    lists = batch["metricsListId"]
    metrics = batch["metricsIdx"]
    made.rows["name"] = map_distinct(name_id, np.int64, lists, metrics)
    ports = batch["portId"]
    made.rows["series"] = map_distinct(series_id, np.int64, batch["globalId"], ports)


def _diagnostics(reading: NsysReading, target: Target, made: Rows) -> None:
    made.rows["category"] = target.writer.string("diagnostic")
    made.rows["scope"] = 1


def _generic(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    writer = target.writer
    columns: Kinds = {"typeId": "integer", "nameId": "integer"}
    names: dict[object, str] = {}
    for row in rows(reading.tables, "GENERIC_EVENT_TYPES", columns):
        number = row["nameId"]
        if isinstance(number, int):
            names[row["typeId"]] = reading.texts[number]
    types = batch["typeId"].tolist()
    made.rows["name"] = [writer.string(names.get(t) or "event") for t in types]
    made.rows["category"] = writer.string("generic event")
    wrong = np.zeros(batch.rows, bool)
    for at, text in enumerate(batch["data"].tolist()):
        if isinstance(value_of(text), dict):
            made.rows["arguments"][at] = writer.string(text)
        else:
            wrong[at] = bool(text)
    made.reject(wrong, "data is not a JSON object")


_OVERHEADS = Mapping(
    nsys.OVERHEADS,
    _overheads,
    # Overheads of nsys itself have names, not kinds.
    other=_host_slices("PROFILER_OVERHEAD", ("nameId",)),
    apart=lambda batch: (
        batch.known("nameId")
        & batch.known("overheadType")
        & (batch["overheadType"] == 0)
    ),
)
_MAPPINGS = {
    mapping.table.name: mapping
    for mapping in (
        Mapping(nsys.API_CALLS, _calls, 0),
        Mapping(nsys.KERNELS, _kernels),
        # Copies that moved managed memory are migrations, not copies of the program.
        Mapping(
            nsys.MEMCPYS,
            _copies,
            other=Mapping(nsys.MIGRATIONS, _migrations),
            apart=lambda batch: np.isin(batch["copyKind"], list(nsys.MIGRATION_KINDS)),
        ),
        Mapping(nsys.MEMSETS),
        Mapping(nsys.SYNCHRONIZATIONS, _waits),
        Mapping(nsys.CUDA_EVENTS),
        Mapping(nsys.GRAPH_LAUNCHES),
        Mapping(nsys.JIT),
        Mapping(nsys.MEMORY_POOLS),
        Mapping(nsys.HOST_FUNCTIONS, _gpu_slices("host function")),
        Mapping(nsys.DECOMPRESSIONS, _gpu_slices("memory decompression")),
        _OVERHEADS,
        Mapping(nsys.ALLOCATIONS, _allocations),
        Mapping(nsys.CPU_FAULTS, _cpu_faults),
        Mapping(nsys.GPU_FAULTS, _gpu_faults),
        Mapping(
            nsys.GPU_METRICS, _metrics("TARGET_INFO_GPU_METRICS", "GPU metrics"), 2
        ),
        Mapping(
            nsys.SOC_METRICS, _metrics("TARGET_INFO_SOC_METRICS", "SoC metrics"), 2
        ),
        Mapping(nsys.NIC_METRICS, _network, 2),
        Mapping(nsys.SWITCH_METRICS, _network, 2),
        Mapping(nsys.DIAGNOSTICS, _diagnostics, 2),
        Mapping(nsys.GENERIC_EVENTS, _generic, 2),
    )
}


def mapping(name: str, columns: Sequence[str]) -> Mapping | None:
    """The mapping of a table, None if the table is not imported."""
    if name in _MAPPINGS:
        return _MAPPINGS[name]
    if name == "PROFILER_OVERHEAD" and "overheadType" in columns:
        return _OVERHEADS
    slices = {"start", "end", "globalTid"} <= set(columns)
    named = not set(_NAMES).isdisjoint(columns)
    if slices and named and not name.endswith("_WORKLOAD"):
        return _host_slices(name, columns)
    return None


def priority(name: str) -> int:
    """A sort key for the order in which tables are read. Calls come first because they name the processes."""
    if name in _MAPPINGS:
        return _MAPPINGS[name].priority
    return 1


def time_column(name: str, columns: Sequence[str]) -> str:
    """The column with the times of a table that is imported, "" for other tables."""
    if name == "CUPTI_ACTIVITY_KIND_CUDA_EVENT":
        return ""
    if name != "NVTX_EVENTS" and not mapping(name, columns):
        return ""
    for column in ("start", "timestamp"):
        if column in columns:
            return column
    return ""


def leftover(name: str) -> tuple[str, str]:
    """The name of a table that is not imported, and the reason."""
    if name.startswith("ENUM_"):
        return "ENUM_*", "constants of nsys"
    if name.startswith("TARGET_INFO_"):
        return name, "properties of the machine that no table holds"
    if name.endswith("_CALLCHAINS"):
        return name, "call stacks"
    return name, ""
