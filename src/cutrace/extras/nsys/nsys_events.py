"""The mapping of the tables of an Nsight Systems export to tables of a capture.

:mod:`.schema` declares the columns of GPU work, CUDA calls and similar tables. The rows of any other table with start,
end, thread and name become host slices; the name of the table gives their category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..._native import Keys
from ...importers.base import value_of
from ...importers.row_builder import Rows, arguments
from ...importers.tables import ColumnBatch, Kind, rows
from . import schema as nsys
from .nsys_target import device_ordinals
from .reading import Fill, Mapping, Target
from .schema import NOTHING, SqlColumn, SqlTable, declare

if TYPE_CHECKING:
    from .nsys import NsysReading

#: Columns that repeat other columns, or mean nothing outside nsys.
REDUNDANT = frozenset(
    {
        "eventClass", "eventId", "shortName", "demangledName", "deprecatedSrcId", "deprecatedSyncType", "rawTimestamp",
        "endGlobalTid", "globalPid", "globalTid", "nestingLevel",
    }
)  # fmt: skip


def without_version(name: str) -> str:
    """The name of a function without CUPTI's version suffix."""
    return re.sub(r"_v\d+$", "", name)


# Fields that are not declared


def _has_text(reading: NsysReading, batch: ColumnBatch, column: str) -> np.ndarray:
    """Whether each id of a column is that of a string in the file."""
    ids, inverse = np.unique(batch[column], return_inverse=True)
    known = np.array([bool(reading.texts[number]) for number in ids.tolist()], bool)
    has_text: np.ndarray = batch.known(column) & known[inverse.reshape(-1)]
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
    asked = (
        batch.known("sharedMemoryRequestedPercentage")
        & (percent >= 0)
        & (percent <= 100)
    )
    launch.rows["carveout"] = np.where(asked, percent, 255)


def _copies(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    for name, column in (
        ("source_device", "srcDeviceId"),
        ("destination_device", "dstDeviceId"),
    ):
        made.rows[name] = np.where(
            batch.known(column), made.rows[name], made.rows["device"]
        )
    peer = np.where(
        batch["srcContextId"] == batch["contextId"],
        batch["dstContextId"],
        batch["srcContextId"],
    )
    made.set("peer_context", np.where(batch["copyKind"] == 10, peer, 0))


def _migrations(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    kinds = batch["copyKind"]
    made.rows["kind"] = np.select(
        [kinds == kind for kind in nsys.MIGRATION_KINDS],
        list(nsys.MIGRATION_KINDS.values()),
    )
    # nsys leaves out the ends of a migration: one is the device, the other the host.
    for name, column, host_kind in (
        ("source_device", "srcDeviceId", 11),
        ("destination_device", "dstDeviceId", 12),
    ):
        default = np.where(kinds == host_kind, np.int64(NOTHING), batch["deviceId"])
        made.set(name, np.where(batch.known(column), batch[column], default))


def _waits(reading: NsysReading, target: Target, made: Rows) -> None:
    """The kind of a wait determines which ids CUPTI gives. Some versions of nsys number the kinds differently: then the
    ids determine the kind."""
    batch = made.batch
    made.check("syncType")
    of_stream = batch.known("streamId") & (batch["streamId"] & NOTHING != NOTHING)
    of_event = batch.known("eventId") & (batch["eventId"] & NOTHING != NOTHING)
    kind = batch["syncType"]
    both = batch.known("streamId") & batch.known("eventId")
    fits = np.select(
        [kind == 1, kind == 2, kind == 3],
        [of_event, of_event & of_stream, of_stream & ~of_event],
        ~of_stream & ~of_event,
    )
    by_ids = np.select([of_stream & of_event, of_event, of_stream], [2, 1, 3], 4)
    made.set("type", np.where(both & ~fits, by_ids, kind))


def _calls(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    function = made.of("function").rows
    made.check("nameId")
    # Classes 0 and 1 are the runtime and the driver; for other classes the name decides.
    name_ids, inverse = np.unique(batch["nameId"], return_inverse=True)
    runtime = np.array(
        [
            reading.texts[number].lstrip("_").startswith("cuda")
            for number in name_ids.tolist()
        ],
        bool,
    )
    classes = np.where(batch.known("eventClass"), batch["eventClass"], -1)
    by_name = np.where(runtime, 2, 1)[inverse.reshape(-1)]
    function["domain"] = np.select([classes == 0, classes == 1], [2, 1], by_name)
    function["name"] = target.functions[batch["nameId"]]
    function[~batch.known("nameId")] = np.zeros(1, function.dtype)


def _gpu_slices(name: str) -> Fill:
    def fill(reading: NsysReading, target: Target, made: Rows) -> None:
        made.rows["name"] = target.writer.string(name)

    return fill


def _allocations(reading: NsysReading, target: Target, made: Rows) -> None:
    made.check("localMemoryPoolAddress")
    local, imported = (
        made.batch[f"{which}MemoryPoolAddress"] for which in ("local", "imported")
    )
    made.rows["pool_type"] = np.select([local != 0, imported != 0], [1, 2])
    made.rows["pool"] = np.where(local != 0, local, imported).astype(np.uint64)


def _cpu_faults(reading: NsysReading, target: Target, made: Rows) -> None:
    made.rows["end"], made.rows["kind"], made.rows["value"] = made.rows["start"], 3, 1
    made.rows["source_device"] = NOTHING


def _gpu_faults(reading: NsysReading, target: Target, made: Rows) -> None:
    made.rows["destination_device"], made.rows["kind"] = made.rows["source_device"], 4


def _overheads(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    made.check("overheadType", "overheadKind")
    kinds = nsys.overhead_kinds(batch["overheadType"])
    made.set(
        "kind", np.where(batch.known("overheadKind"), batch["overheadKind"], kinds)
    )


# Slices of the host


def _host_slices(name: str, columns: Sequence[str]) -> Mapping:
    category, kind = _heading(name)
    text = next((c for c in ("nameId", "textId", "text", "name") if c in columns), "")
    how = "text" if text in ("text", "name") else "function"
    table = declare(
        name,
        "host_slices",
        "start=start:time! end=end:open globalTid=thread:thread correlationId=external category=category:text "
        f"{text}=name:{how}",
    )
    used = {c.name for c in table.columns}
    more = [
        c
        for c in columns
        if name.startswith(_WITH_ARGUMENTS) and c not in REDUNDANT and c not in used
    ]
    table = SqlTable(name, table.table, table.columns + tuple(map(SqlColumn, more)))

    def fill(reading: NsysReading, target: Target, made: Rows) -> None:
        batch = made.batch
        writer = target.writer
        named = made.rows["category"]
        made.rows["category"], made.rows["kind"] = (
            np.where(named != 0, named, writer.string(category)),
            kind,
        )
        if more:
            values = {c: _argument(reading, batch.known(c), batch[c], c) for c in more}
            made.rows["arguments"] = arguments(writer, values, batch.rows)

    return Mapping(table, fill)


def _argument(
    reading: NsysReading, known: np.ndarray, values: np.ndarray, column: str
) -> list[object]:
    """The values of an argument; ids of texts become texts."""
    of_texts = column in ("srcFile", "funcName", "varName", "kernelName")
    pairs = zip(known.tolist(), values.tolist(), strict=True)
    return [
        ((reading.texts[v] or None) if of_texts else v) if k else None for k, v in pairs
    ]


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
    """Category and kind of the slices of a table."""
    if name in _HEADINGS:
        return _HEADINGS[name]
    family = next(
        (family for begin, family in _FAMILIES.items() if name.startswith(begin)), ""
    )
    return family or re.sub(r"_(API|EVENTS?)$", "", name).replace("_", " ").title(), 0


# Counters and moments


def _metrics(table: str, category: str) -> Fill:
    def fill(reading: NsysReading, target: Target, made: Rows) -> None:
        batch = made.batch
        writer = target.writer
        made.rows["category"] = writer.string(category)
        names = _metric_names(reading, table)
        keys = np.stack([batch["typeId"], batch["metricId"]], axis=1)
        inverse, first = Keys(2).ids([batch["typeId"], batch["metricId"]])
        metrics = [
            names.get((t, m)) or names.get((None, m)) or f"metric {m}"
            for t, m in keys[first].tolist()
        ]
        made.rows["name"] = np.array([writer.string(name) for name in metrics])[inverse]
        units = [re.search(r"\[([^\]]*)\]$", name) for name in metrics]
        made.rows["unit"] = np.array(
            [writer.string(unit[1] if unit else "") for unit in units]
        )[inverse]
        ordinals = device_ordinals(reading.tables)
        gpus = [t & 0xFF for t in keys[first][:, 0].tolist()]
        devices = [
            ordinals.get(gpu, gpu) if category == "GPU metrics" else 0xFFFF
            for gpu in gpus
        ]
        made.rows["device"] = np.array(devices)[inverse]

    return fill


def _metric_names(reading: NsysReading, table: str) -> dict[tuple[object, object], str]:
    columns: dict[str, Kind] = {
        "typeId": "integer",
        "metricId": "integer",
        "metricName": "text",
    }
    names: dict[tuple[object, object], str] = {}
    for row in rows(reading.tables, table, columns):
        names[row["typeId"], row["metricId"]] = str(row["metricName"] or "")
        names.setdefault((None, row["metricId"]), str(row["metricName"] or ""))
    return names


def _network(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    writer = target.writer
    made.rows["category"], made.rows["device"] = writer.string("network"), 0xFFFF
    columns: dict[str, Kind] = {
        "metricsListId": "integer",
        "metricsIdx": "integer",
        "name": "text",
    }
    metrics = rows(reading.tables, "TARGET_INFO_NETWORK_METRICS", columns)
    names = {
        (row["metricsListId"], row["metricsIdx"]): str(row["name"] or "")
        for row in metrics
    }
    keys = list(
        zip(batch["metricsListId"].tolist(), batch["metricsIdx"].tolist(), strict=True)
    )
    made.rows["name"] = [
        writer.string(names.get(key) or f"metric {key[1]}") for key in keys
    ]
    made.rows["series"] = [
        writer.string(f"{number & 0xFFFFFFFFFFFFFFFF:#x} port {port}")
        for number, port in zip(
            batch["globalId"].tolist(), batch["portId"].tolist(), strict=True
        )
    ]


def _diagnostics(reading: NsysReading, target: Target, made: Rows) -> None:
    made.rows["category"], made.rows["scope"] = target.writer.string("diagnostic"), 1


def _generic(reading: NsysReading, target: Target, made: Rows) -> None:
    batch = made.batch
    writer = target.writer
    columns: dict[str, Kind] = {"typeId": "integer", "nameId": "integer"}
    types = {
        r["typeId"]: r["nameId"]
        for r in rows(reading.tables, "GENERIC_EVENT_TYPES", columns)
    }
    names = [
        reading.texts[number] if isinstance(number := types.get(t), int) else ""
        for t in batch["typeId"].tolist()
    ]
    made.rows["name"] = [writer.string(name or "event") for name in names]
    made.rows["category"] = writer.string("generic event")
    texts = batch["data"].tolist()
    objects = [isinstance(value_of(text), dict) for text in texts]
    made.rows["arguments"] = [
        writer.string(text if good else "")
        for text, good in zip(texts, objects, strict=True)
    ]
    wrong = [bool(text) and not good for text, good in zip(texts, objects, strict=True)]
    made.reject(np.array(wrong, bool), "data is not a JSON object")


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
    """The mapping of a table, None when it is left out."""
    if name in _MAPPINGS:
        return _MAPPINGS[name]
    if name == "PROFILER_OVERHEAD" and "overheadType" in columns:
        return _OVERHEADS
    named = {"nameId", "textId", "text", "name"} & set(columns)
    if (
        named
        and {"start", "end", "globalTid"} <= set(columns)
        and not name.endswith("_WORKLOAD")
    ):
        return _host_slices(name, columns)
    return None


def priority(name: str) -> int:
    """The reading order of a table, lower first: calls come first because they name the processes."""
    if name in _MAPPINGS:
        return _MAPPINGS[name].priority
    return 1


def time_column(name: str, columns: Sequence[str]) -> str:
    """The column with the times of a table that is converted, "" for others."""
    if name != "NVTX_EVENTS" and not mapping(name, columns):
        return ""
    return next(
        (
            c
            for c in ("start", "timestamp")
            if c in columns and name != "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
        ),
        "",
    )


def leftover(name: str) -> tuple[str, str]:
    """The name of a table that is left out, and the reason."""
    if name.startswith("ENUM_"):
        return "ENUM_*", "constants of nsys"
    if name.startswith("TARGET_INFO_"):
        return name, "properties of the machine that no table holds"
    if name.endswith("_CALLCHAINS"):
        return name, "call stacks"
    return name, ""
