"""The tables of GPU work: the data of kernels, copies, fills and graphs in the trace, except times and ids.

A *style* is a combination of name, launch configuration and queue. A *family* has the styles that differ only in names
and numbers. A capture can have as many styles as events, so names and numbers are columns. Families are few and are
described one by one, from field names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ...analysis.occupancy import UNLIMITED, occupancy, volume
from ...runbin.labels import (
    CACHE_CONFIGS,
    LAUNCH_TYPES,
    MEMCPY_KINDS,
    MEMORY_KINDS,
    label,
)
from .descriptors import Descriptors

QUEUE_FIELDS = ("device", "context", "stream")
GRAPH_FIELDS = ("graph", "graph_node")
COPY_FIELDS = (
    "kind",
    "source_memory",
    "destination_memory",
    "flags",
    "source_device",
    "destination_device",
    "peer_context",
)
FILL_FIELDS = ("value", "memory", "flags")
#: The fields of the launch configuration that are strings in a trace, except the name and the code.
TEXT_FIELDS = (
    "launch_type",
    "cluster_x",
    "cluster_y",
    "cluster_z",
    "cache_executed",
    "cache_requested",
)
ABSENT = (1 << 64) - 1  # in a column: the style has no such number


class Family(NamedTuple):
    """The shared data of a family: arguments, fields of the interned kernel, and the name. The name is missing if
    styles differ in it. Copies and fills have an interned kernel without a name, for the arguments only; their stage is
    not *Kernel*.
    """

    arguments: Mapping[str, int | str | None]
    name: str = ""
    kernel: Mapping[str, str] = {}


class GpuTable(NamedTuple):
    """The description of a table's events.

    A family depends on the device, on ``family_fields``, and on ``launch_fields`` of the launch configuration, if rows
    have one. ``describe`` returns the family of a row. A style also depends on the queue, on ``number_fields``, and on
    the name in the launch configuration. ``counts`` are the integer arguments of a style, and ``ratios`` its fractional
    arguments. ``numbers`` computes both, with one row for each style. ``arguments`` differ from event to event.
    """

    name: str
    stage: str
    describe: Callable[[Descriptors, int, np.void], Family]
    family_fields: tuple[str, ...] = ()
    number_fields: tuple[str, ...] = ()
    launch_fields: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    ratios: tuple[str, ...] = ()
    numbers: Callable[[Descriptors, int, np.ndarray], dict[str, np.ndarray]] = (
        lambda *_: {}
    )
    arguments: tuple[str, ...] = ()

    @property
    def launched(self) -> bool:
        """Whether rows have a launch configuration."""
        return bool(self.launch_fields)


def kernel_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """The family of kernels whose launch configurations have equal strings."""
    trace = descriptors.trace
    device = (process, int(row["device"]))
    device_row = trace.device_rows.get(device)
    arguments: dict[str, int | str | None] = {
        "process_id": trace.processes[process].pid,
        "process_name": trace.processes[process].name,
    }
    if row["launch"]:
        launch = trace.launches[int(row["launch"])]
        if device_row is not None:
            reserved = int(device_row["shared_reserved_per_block"])
            arguments["shared_mem_driver"] = reserved
        executed = int(launch["cache_executed"])
        requested = int(launch["cache_requested"])
        arguments["func_cache_config"] = CACHE_CONFIGS.get(executed)
        arguments["func_cache_config_requested"] = CACHE_CONFIGS.get(requested)
        cluster = [int(launch[f"cluster_{axis}"]) for axis in "xyz"]
        if any(cluster):
            arguments["cluster_size"] = "x".join(map(str, cluster))
        launch_type = int(launch["launch_type"])
        arguments["launch_type"] = LAUNCH_TYPES.get(launch_type)
    if device_row is None or not device_row["compute_major"]:
        return Family(arguments)
    arch = f"sm_{device_row['compute_major']}{device_row['compute_minor']}"
    return Family(arguments, kernel={"arch": arch})


def memcpy_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """A kind of copy."""
    kind = label(MEMCPY_KINDS, int(row["kind"]))
    arguments: dict[str, int | str | None] = {"kind": kind}
    for name in ("source_memory", "destination_memory"):
        arguments[name] = label(MEMORY_KINDS, int(row[name]))
    arguments["asynchronous"] = int(row["flags"]) & 1 or None
    if row["kind"] == 10 or row["source_device"] != row["destination_device"]:
        for name in ("source_device", "destination_device", "peer_context"):
            arguments[name] = int(row[name])
    return Family(arguments, f"Memcpy {kind}")


def memset_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """A kind of fill."""
    arguments: dict[str, int | str | None] = {
        "value": int(row["value"]),
        "memory": label(MEMORY_KINDS, int(row["memory"])),
        "asynchronous": int(row["flags"]) & 1 or None,
    }
    return Family(arguments, "Memset")


def graph_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """The family of graphs that were traced as a whole."""
    return Family({"graph": int(row["graph"])}, f"CUDA graph {row['graph']}")


#: Arguments for the size of a launch: blocks, threads of a block, threads.
SIZES = ("grid_size", "workgroup_size", "thread_count")
#: Arguments with the dimensions of a launch, and their fields of the launch configuration. Viewers give these names to
#: the fields of an event's ``launch``. Arguments of the kernel have the same names and are stored once.
DIMENSIONS = {
    **{f"launch.grid_size.{axis}": f"grid_{axis}" for axis in "xyz"},
    **{f"launch.workgroup_size.{axis}": f"block_{axis}" for axis in "xyz"},
}
#: Arguments that are a field of the launch configuration, and the value that is omitted (None: no value).
LAUNCH_COUNTS: dict[str, tuple[str, int | None]] = {
    "registers_per_thread": ("registers", None),
    "shared_mem_static": ("static_shared", None),
    "shared_mem_dynamic": ("dynamic_shared", None),
    "shared_mem_config_size": ("shared_executed", None),
    "local_mem_per_thread": ("local_per_thread", 0),
    "local_mem_total": ("local_total", 0),
    "max_cluster_size": ("max_cluster", 0),
    "max_active_clusters": ("max_active_clusters", 0),
    "cluster_scheduling_policy": ("cluster_policy", 0),
    "shared_mem_limit_config": ("shared_limit", 0),
    "shared_mem_carveout_pct": ("carveout", 255),
    "graph": ("graph", 0),
    "graph_node": ("graph_node", 0),
}
#: Arguments of a feature that CUPTI reports for each kernel. The field is 0 for kernels without the feature.
FEATURES = {
    "local_mem_total": "local_per_thread",
    "cluster_scheduling_policy": "cluster_x",
}
#: Arguments from the computed occupancy.
OCCUPANCY_COUNTS = {
    "occupancy_limit_blocks": "limit_blocks",
    "occupancy_limit_warps": "limit_warps",
    "occupancy_limit_registers": "limit_registers",
    "occupancy_limit_shared_mem": "limit_shared",
    "sm__maximum_warps_avg_per_active_cycle": "warps",
}
OCCUPANCY_RATIOS = {
    "waves_per_multiprocessor": "waves",
    "sm__maximum_warps_per_active_cycle_pct": "percent",
}


def kernel_numbers(
    descriptors: Descriptors, process: int, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """The launch configuration and the theoretical occupancy of kernels, as columns."""
    launches = descriptors.trace.table("launches")[rows["launch"]]
    known = rows["launch"] != 0
    blocks = volume(launches, "grid")
    threads = volume(launches, "block")
    out = {
        "grid_size": _present(blocks, known),
        "workgroup_size": _present(threads, known),
        "thread_count": _present(blocks * threads, known),
    }
    for name, column in DIMENSIONS.items():
        out[name] = _present(launches[column], known)
    for name, (column, nothing) in LAUNCH_COUNTS.items():
        values = launches[column]
        says_something = known
        if nothing is not None:
            says_something = known & (values != nothing)
        if name in FEATURES:
            says_something = says_something & (launches[FEATURES[name]] != 0)
        out[name] = _present(values, says_something)
    for name in OCCUPANCY_COUNTS:
        out[name] = np.full(len(rows), ABSENT, np.uint64)
    for name in OCCUPANCY_RATIOS:
        out[name] = np.zeros(len(rows))
    for device in sorted(set(rows["device"].tolist())):
        device_row = descriptors.trace.device_rows.get((process, device))
        if device_row is None:
            continue
        at = np.flatnonzero(known & (rows["device"] == device))
        result = occupancy(device_row, launches[at])
        if result is None:
            continue
        for name, attribute in OCCUPANCY_COUNTS.items():
            values = getattr(result, attribute)
            limits = result.known & (values != UNLIMITED)
            out[name][at] = _present(values, limits)
        for name, attribute in OCCUPANCY_RATIOS.items():
            out[name][at] = getattr(result, attribute)
    return out


def graph_numbers(
    descriptors: Descriptors, process: int, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """The graph and the graph node of GPU work."""
    return {name: _present(rows[name], rows[name] != 0) for name in GRAPH_FIELDS}


def _present(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """A column of numbers, ABSENT where ``where`` is false."""
    numbers = values.astype(np.uint64)
    return np.where(where, numbers, np.uint64(ABSENT))


TABLES = (
    GpuTable(
        "kernels",
        "Kernel",
        kernel_family,
        number_fields=("launch",),
        launch_fields=TEXT_FIELDS,
        counts=(*SIZES, *DIMENSIONS, *LAUNCH_COUNTS, *OCCUPANCY_COUNTS),
        ratios=tuple(OCCUPANCY_RATIOS),
        numbers=kernel_numbers,
    ),
    GpuTable(
        "memcpys",
        "Memcpy",
        memcpy_family,
        COPY_FIELDS,
        GRAPH_FIELDS,
        counts=GRAPH_FIELDS,
        numbers=graph_numbers,
        arguments=("bytes", "bandwidth"),
    ),
    GpuTable(
        "memsets",
        "Memset",
        memset_family,
        FILL_FIELDS,
        GRAPH_FIELDS,
        counts=GRAPH_FIELDS,
        numbers=graph_numbers,
        arguments=("bytes",),
    ),
    GpuTable("graph_launches", "CUDA graph", graph_family, ("graph",)),
)
