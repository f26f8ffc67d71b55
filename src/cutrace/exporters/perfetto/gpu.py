"""Work on the GPU: one ``gpu_render_stage_event`` for each kernel, copy, fill and graph.

Everything that is the same for many events (names, launch configuration, queue) is described once for each
combination of the fields it depends on, its *style*, and encoded into a piece that the events copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import Blobs, Keys, Submissions, demangle, time_order
from ...trace import Trace
from . import schema
from .devices import Devices
from .labels import LAUNCH_TYPES, MEMCPY_KINDS, MEMORY_KINDS, label
from .naming import Names, Needs, Numbers
from .output import Output
from .sequence import Interned, Sequence
from .template import Column, Columns, Delta, Given, Pieces, Template, When

EVENT = "GpuRenderStageEvent"
LAUNCH = "GpuRenderStageEvent.ComputeKernelLaunch"
QUEUE_FIELDS = ("device", "context", "stream")
GRAPH_FIELDS = ("graph", "graph_node")


@dataclass(frozen=True)
class Style:
    """What events of one style share: fields of the event, and fields of its ``launch``."""

    event: dict[str, Any]
    launch: dict[str, Any]


@dataclass(frozen=True)
class GpuTable:
    """How a table becomes events: the fields its styles depend on, the style of a row, and the template of what is
    each row's own."""

    name: str
    style_fields: tuple[str, ...]
    style: Callable[[GpuNames, np.void, Needs], Style]
    arguments: tuple[str, ...] = ()


class GpuNames:
    """What styles are described with: the tables of the trace, and its devices."""

    def __init__(self, trace: Trace, devices: Devices, names: Names, process: int) -> None:
        self.trace, self.devices, self.names, self.process = trace, devices, names, process
        self._kernels = 0

    def described(self, kernel: dict[str, Any], needs: Needs) -> dict[str, int]:
        """The field of the event that refers to an interned kernel, whose arguments count as the event's own. Copies
        and fills have one too, for the arguments: without a name, and not among the kernels, which is what their
        stage says."""
        self._kernels += 1
        return {"kernel_iid": needs.add(Interned("compute_kernels", self._kernels, kernel))}

    def placed(self, row: np.void, stage: str, name: str, needs: Needs) -> dict[str, Any]:
        """Fields of the event that say where it ran and what it is called."""
        device, context, stream = (int(row[f]) for f in QUEUE_FIELDS)
        return {
            "hw_queue_iid": needs.add(self.devices.queue(self.process, device, context, stream)),
            "stage_iid": needs.add(self.devices.stage(stage)),
            "gpu_id": self.devices.gpu(self.process, device) or None,  # 0 is the default
            "context": needs.add(self.devices.context(self.process, context)),
            "name_iid": needs.name("event_names", name),
        }


def kernel_style(names: GpuNames, row: np.void, needs: Needs) -> Style:
    """A kernel in one launch configuration on one stream: all but the grid and block go into its interned kernel."""
    launch = names.trace.launches[int(row["launch"])]
    mangled = names.trace.strings[int(launch["name"])]
    known = int(row["launch"]) != 0
    plain = demangle(mangled) if known else "(unknown kernel)"
    device = int(row["device"])
    occupancy = names.devices.occupancy(names.process, device, launch) if known else None
    args = needs.compute_args(device=device, stream=int(row["stream"]), context=int(row["context"]))
    if known:
        grid, block = _dim(launch, "grid"), _dim(launch, "block")
        args += needs.compute_args(
            thread_count=_volume(grid) * _volume(block),
            registers_per_thread=int(launch["registers"]),
            shared_mem_static=int(launch["static_shared"]),
            shared_mem_dynamic=int(launch["dynamic_shared"]),
            shared_mem_config_size=int(launch["shared_executed"]),
            shared_mem_driver=names.devices.reserved_shared(names.process, device),
            func_cache_config=int(launch["cache_executed"]),
            func_cache_config_requested=int(launch["cache_requested"]) or None,
            local_mem_per_thread=int(launch["local_per_thread"]) or None,
            local_mem_total=int(launch["local_total"]) or None,
            cluster_size=_cluster(launch),
            max_cluster_size=int(launch["max_cluster"]) or None,
            max_active_clusters=int(launch["max_active_clusters"]) or None,
            cluster_scheduling_policy=int(launch["cluster_policy"]) or None,
            shared_mem_limit_config=int(launch["shared_limit"]) or None,
            shared_mem_carveout_pct=int(launch["carveout"]) if launch["carveout"] != 255 else None,
            launch_type=LAUNCH_TYPES.get(int(launch["launch_type"])),
            graph=int(launch["graph"]) or None,
            graph_node=int(launch["graph_node"]) or None,
        )
    if occupancy:
        args += needs.compute_args(
            waves_per_multiprocessor=occupancy.waves,
            occupancy_limit_blocks=occupancy.limit_blocks,
            occupancy_limit_warps=occupancy.limit_warps,
            occupancy_limit_registers=occupancy.limit_registers,
            occupancy_limit_shared_mem=occupancy.limit_shared,
            sm__maximum_warps_per_active_cycle_pct=occupancy.percent,
            sm__maximum_warps_avg_per_active_cycle=occupancy.warps,
        )
    kernel = {
        "name": mangled if known else plain,
        "demangled_name": plain,
        "arch": names.devices.architecture(names.process, device),
        "args": args,
    }
    event = names.placed(row, "Kernel", plain, needs) | names.described(kernel, needs)
    return Style(event, {"grid_size": grid, "workgroup_size": block} if known else {})


def memcpy_style(names: GpuNames, row: np.void, needs: Needs) -> Style:
    """A kind of copy on one stream."""
    kind, source, destination = (int(row[f]) for f in ("kind", "source_memory", "destination_memory"))
    peer = kind == 10 or row["source_device"] != row["destination_device"]
    args = needs.compute_args(
        **{f: int(row[f]) for f in QUEUE_FIELDS},
        kind=label(MEMCPY_KINDS, kind),
        source_memory=label(MEMORY_KINDS, source),
        destination_memory=label(MEMORY_KINDS, destination),
        asynchronous=int(row["flags"]) & 1 or None,
        source_device=int(row["source_device"]) if peer else None,
        destination_device=int(row["destination_device"]) if peer else None,
        peer_context=int(row["peer_context"]) if peer else None,
        graph=int(row["graph"]) or None,
        graph_node=int(row["graph_node"]) or None,
    )
    event = names.placed(row, "Memcpy", f"Memcpy {label(MEMCPY_KINDS, kind)}", needs)
    return Style(event | names.described({"args": args}, needs), {})


def memset_style(names: GpuNames, row: np.void, needs: Needs) -> Style:
    """A kind of fill on one stream."""
    args = needs.compute_args(
        **{f: int(row[f]) for f in QUEUE_FIELDS},
        value=int(row["value"]),
        memory=label(MEMORY_KINDS, int(row["memory"])),
        asynchronous=int(row["flags"]) & 1 or None,
        graph=int(row["graph"]) or None,
        graph_node=int(row["graph_node"]) or None,
    )
    return Style(names.placed(row, "Memset", "Memset", needs) | names.described({"args": args}, needs), {})


def graph_style(names: GpuNames, row: np.void, needs: Needs) -> Style:
    """A graph traced as a whole, on the stream it was launched into."""
    graph = int(row["graph"])
    args = needs.compute_args(**{f: int(row[f]) for f in QUEUE_FIELDS}, graph=graph)
    event = names.placed(row, "CUDA graph", f"CUDA graph {graph}", needs)
    return Style(event | names.described({"args": args}, needs), {})


COPY_FIELDS = (
    "kind", "source_memory", "destination_memory", "flags", "source_device", "destination_device", "peer_context",
)  # fmt: skip
TABLES = (
    GpuTable("kernels", ("launch", *QUEUE_FIELDS), kernel_style),
    GpuTable("memcpys", (*COPY_FIELDS, *GRAPH_FIELDS, *QUEUE_FIELDS), memcpy_style, ("bytes", "bandwidth")),
    GpuTable("memsets", ("value", "memory", "flags", *GRAPH_FIELDS, *QUEUE_FIELDS), memset_style, ("bytes",)),
    GpuTable("graph_launches", ("graph", *QUEUE_FIELDS), graph_style),
)


class GpuWriter:
    """Writes the rows of one table of one process, block by block in rising order of their first times."""

    def __init__(
        self, table: GpuTable, names: GpuNames, submissions: Submissions, numbers: Numbers, output: Output
    ) -> None:
        self._table, self._names, self._submissions = table, names, submissions
        self._numbers, self._output = numbers, output
        self._keys = Keys(len(table.style_fields))
        self._event, self._launch = Blobs(), Blobs()
        self._needs: list[Needs] = []
        self._common = Needs(names.names)
        self._template = self._describe()
        self._open()

    def _describe(self) -> Template:
        launch: dict[str, Any] = {"pieces": Pieces("style", "launch_pieces"), "args": []}
        for name in self._table.arguments:
            arg = {"name_iid": self._common.name("compute_arg_names", name), "uint_value": Column(name)}
            launch["args"].append(When(name, arg))
        event: dict[str, Any] = {
            "event_id": Column("event_id"),
            "duration": Column("duration"),
            "submission_id": Column("correlation", omit=0),
            "pieces": Pieces("style", "event_pieces"),
        }
        if self._table.arguments:
            event["launch"] = launch
        packet = {
            "sequence": Given("prefixes"),
            "timestamp": Delta("start"),
            "gpu_render_stage_event": event,
        }
        return Template("Trace", {"packet": packet})

    def write(self, rows: np.ndarray) -> None:
        """Write the rows of a block."""
        order = time_order(rows["start"])
        first = int(rows["start"][0 if order is None else order[0]])
        if first < self._sequence.anchored:
            # Blocks come in the order of their first times; this one's header did not tell the truth.
            self._open()
        fresh = self._sequence.time < 0
        self._sequence.anchor(first)
        if fresh:
            self._sequence.intern(self._common)
        styles, new = self._keys.ids([rows[f] for f in self._table.style_fields])
        for row in rows[new]:
            self._add_style(row)
        self._sent.resize(len(self._needs), refcheck=False)
        used = np.bincount(styles, minlength=len(self._needs)) > 0
        for style in np.flatnonzero(used & ~self._sent).tolist():
            self._sequence.intern(self._needs[style])
        self._sent |= used
        columns: Columns = {
            "start": rows["start"],
            "event_id": self._submissions.assign(rows["correlation"]),
            "duration": rows["end"] - rows["start"],
            "correlation": rows["correlation"],
            "style": styles,
            "event_pieces": self._event,
            "launch_pieces": self._launch,
            "prefixes": self._output.prefixes,
        }
        for name in self._table.arguments:
            columns[name] = _bandwidth(rows) if name == "bandwidth" else rows[name]
        offsets, clock = np.array([0, len(rows)], np.uint32), np.array([first], np.uint64)
        pieces = np.array([self._sequence.piece], np.uint32)
        self._output.events([self._template.bind(columns)], offsets, pieces, clock, rows=order)
        self._sequence.time = int(clock[0])

    def _open(self) -> None:
        self._sequence = Sequence(self._numbers.sequence(), self._output)
        self._sent = np.zeros(0, bool)  # by style, whether the sequence has its entries

    def _add_style(self, row: np.void) -> None:
        needs = Needs(self._names.names)
        style = self._table.style(self._names, row, needs)
        # Without arguments of each row, the launch is as constant as the rest.
        whole = {} if self._table.arguments or not style.launch else {"launch": style.launch}
        self._event.add(schema.encode(EVENT, style.event | whole))
        self._launch.add(schema.encode(LAUNCH, style.launch))
        self._needs.append(needs)


def _bandwidth(rows: np.ndarray) -> np.ndarray:
    """Bytes a second of each copy; 0, which is not shown, for a copy without duration."""
    duration = (rows["end"] - rows["start"]).astype(np.float64)
    out = np.zeros(len(rows))
    np.divide(rows["bytes"] * 1e9, duration, out=out, where=duration > 0)
    return np.rint(np.minimum(out, 2.0**63), out).astype(np.uint64)


def _dim(launch: np.void, name: str) -> dict[str, int]:
    return {axis: int(launch[f"{name}_{axis}"]) for axis in "xyz"}


def _volume(dim: dict[str, int]) -> int:
    return dim["x"] * dim["y"] * dim["z"]


def _cluster(launch: np.void) -> str | None:
    size = [int(launch[f"cluster_{axis}"]) for axis in "xyz"]
    return "x".join(map(str, size)) if any(size) else None
