"""Work on the GPU: one ``gpu_render_stage_event`` for each kernel, copy, fill and graph. Here is what each kind of
work shows; what many events share is encoded once (:mod:`.styles`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import Submissions, demangle
from ...analysis.occupancy import UNLIMITED
from ...runbin.labels import CACHE_CONFIGS, LAUNCH_TYPES, MEMCPY_KINDS, MEMORY_KINDS, label
from ...trace.rows import time_order
from .devices import volume
from .naming import Needs, Numbers
from .output import Output
from .sequence import Sequence
from .styles import ABSENT, QUEUE_FIELDS, GpuNames, GpuTable, Share, Styles, present
from .template import Column, Columns, Delta, Each, Given, Pieces, Template, When

__all__ = ["TABLES", "Block", "GpuNames", "GpuWriter", "Part"]

GRAPH_FIELDS = ("graph", "graph_node")


def kernel_part(names: GpuNames, row: np.void, needs: Needs) -> Share:
    """A kernel on one stream, with what else of its launch configuration is text."""
    launch = names.trace.launches[int(row["launch"])]
    mangled = names.trace.strings[int(launch["name"])]
    known = int(row["launch"]) != 0
    plain = demangle(mangled) if known else "(unknown kernel)"
    device = int(row["device"])
    process = names.trace.processes[names.process]
    args = needs.compute_args(
        device=device,
        stream=int(row["stream"]),
        context=int(row["context"]),
        process_id=process.pid,
        process_name=process.name,
    )
    if known:
        args += needs.compute_args(
            shared_mem_driver=names.devices.reserved_shared(names.process, device),
            func_cache_config=CACHE_CONFIGS.get(int(launch["cache_executed"])),
            func_cache_config_requested=CACHE_CONFIGS.get(int(launch["cache_requested"])),
            cluster_size=_cluster(launch),
            launch_type=LAUNCH_TYPES.get(int(launch["launch_type"])),
        )
    kernel = {
        "name": mangled if known else plain,
        "demangled_name": plain,
        "arch": names.devices.architecture(names.process, device),
        "args": args,
    }
    return Share(names.placed(row, "Kernel", plain, needs), kernel)


#: Arguments that say how large a launch is: blocks, threads of a block, threads. ``launch`` has the dimensions, which
#: viewers that ask for the launch configuration do not look at.
SIZES = ("grid_size", "workgroup_size", "thread_count")
#: Arguments that are a field of the launch configuration, and the value that says nothing, None if all say something.
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
#: Arguments that are a figure of the occupancy.
OCCUPANCY_COUNTS = {
    "occupancy_limit_blocks": "limit_blocks",
    "occupancy_limit_warps": "limit_warps",
    "occupancy_limit_registers": "limit_registers",
    "occupancy_limit_shared_mem": "limit_shared",
    "sm__maximum_warps_avg_per_active_cycle": "warps",
}
OCCUPANCY_RATIOS = {"waves_per_multiprocessor": "waves", "sm__maximum_warps_per_active_cycle_pct": "percent"}


def kernel_numbers(names: GpuNames, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The launch configurations of kernels, with the occupancy that follows from them."""
    launches = names.trace.launches[rows["launch"]]
    known = rows["launch"] != 0
    blocks, threads = volume(launches, "grid"), volume(launches, "block")
    sizes = zip(SIZES, (blocks, threads, blocks * threads), strict=True)
    out = {name: present(values, known) for name, values in sizes}
    for name, (field, nothing) in LAUNCH_COUNTS.items():
        out[name] = present(launches[field], known if nothing is None else known & (launches[field] != nothing))
    out |= {name: np.full(len(rows), ABSENT, np.uint64) for name in OCCUPANCY_COUNTS}
    out |= {name: np.zeros(len(rows)) for name in OCCUPANCY_RATIOS}
    for device in sorted(set(rows["device"].tolist())):
        at = np.flatnonzero(known & (rows["device"] == device))
        found = names.devices.occupancy(names.process, device, launches[at])
        if found is None:
            continue
        for name, figure in OCCUPANCY_COUNTS.items():
            values = getattr(found, figure)
            out[name][at] = present(values, found.known & (values != UNLIMITED))
        for name, figure in OCCUPANCY_RATIOS.items():
            out[name][at] = getattr(found, figure)
    return out


def graph_numbers(names: GpuNames, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The graph and the node that work comes from."""
    return {name: present(rows[name], rows[name] != 0) for name in GRAPH_FIELDS}


def no_numbers(names: GpuNames, rows: np.ndarray) -> dict[str, np.ndarray]:
    return {}


def memcpy_part(names: GpuNames, row: np.void, needs: Needs) -> Share:
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
    )
    event = names.placed(row, "Memcpy", f"Memcpy {label(MEMCPY_KINDS, kind)}", needs)
    return Share(event, {"args": args})


def memset_part(names: GpuNames, row: np.void, needs: Needs) -> Share:
    """A kind of fill on one stream."""
    args = needs.compute_args(
        **{f: int(row[f]) for f in QUEUE_FIELDS},
        value=int(row["value"]),
        memory=label(MEMORY_KINDS, int(row["memory"])),
        asynchronous=int(row["flags"]) & 1 or None,
    )
    return Share(names.placed(row, "Memset", "Memset", needs), {"args": args})


def graph_part(names: GpuNames, row: np.void, needs: Needs) -> Share:
    """A graph traced as a whole, on the stream it was launched into."""
    graph = int(row["graph"])
    args = needs.compute_args(**{f: int(row[f]) for f in QUEUE_FIELDS}, graph=graph)
    event = names.placed(row, "CUDA graph", f"CUDA graph {graph}", needs)
    return Share(event, {"args": args})


COPY_FIELDS = (
    "kind", "source_memory", "destination_memory", "flags", "source_device", "destination_device", "peer_context",
)  # fmt: skip
FILL_FIELDS = ("value", "memory", "flags")
TABLES = (
    GpuTable(
        "kernels", ("launch", *QUEUE_FIELDS), QUEUE_FIELDS, kernel_part, kernel_numbers,
        counts=(*SIZES, *LAUNCH_COUNTS, *OCCUPANCY_COUNTS), ratios=tuple(OCCUPANCY_RATIOS),
        launch_fields=(
            "name", "launch_type", "cluster_x", "cluster_y", "cluster_z", "cache_executed", "cache_requested",
        ),
    ),
    GpuTable(
        "memcpys", (*COPY_FIELDS, *GRAPH_FIELDS, *QUEUE_FIELDS), (*COPY_FIELDS, *QUEUE_FIELDS), memcpy_part,
        graph_numbers, counts=GRAPH_FIELDS, arguments=("bytes", "bandwidth"),
    ),
    GpuTable(
        "memsets", (*FILL_FIELDS, *GRAPH_FIELDS, *QUEUE_FIELDS), (*FILL_FIELDS, *QUEUE_FIELDS), memset_part,
        graph_numbers, counts=GRAPH_FIELDS, arguments=("bytes",),
    ),
    GpuTable("graph_launches", ("graph", *QUEUE_FIELDS), ("graph", *QUEUE_FIELDS), graph_part, no_numbers),
)  # fmt: skip


@dataclass
class Block:
    """A block of GPU work on its way: its rows with, by row, their style, the id of the event, and what is computed.
    They are in the order of their begin, or ``order`` says what that is. ``written`` of them are in parts."""

    writer: GpuWriter
    rows: np.ndarray
    styles: np.ndarray
    ids: np.ndarray
    computed: dict[str, np.ndarray]
    order: np.ndarray | None = None
    written: int = 0


@dataclass(frozen=True)
class Part:
    """The rows of a block from ``begin`` to ``end``."""

    block: Block
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def rows(self) -> np.ndarray:
        return self.block.rows[self.begin : self.end]

    @property
    def styles(self) -> np.ndarray:
        return self.block.styles[self.begin : self.end]

    @property
    def ids(self) -> np.ndarray:
        return self.block.ids[self.begin : self.end]

    def computed(self, column: str) -> np.ndarray | None:
        """What was computed for the rows under this name, if it was."""
        values = self.block.computed.get(column)
        return None if values is None else values[self.begin : self.end]


class GpuWriter:
    """Writes the rows of one table of one process, part by part."""

    def __init__(
        self, table: GpuTable, names: GpuNames, submissions: Submissions, numbers: Numbers, output: Output
    ) -> None:
        self.table, self._submissions = table, submissions
        self._numbers, self._output = numbers, output
        self.styles = Styles(table, names, output)
        self._common = self.styles.common
        self._templates: dict[bool, Template] = {}
        self._template(waits=False)  # tells the common part what it refers to
        self._open()

    def _template(self, *, waits: bool) -> Template:
        if waits not in self._templates:
            self._templates[waits] = self._describe(waits)
        return self._templates[waits]

    def _describe(self, waits: bool) -> Template:
        launch: dict[str, Any] = {"args": []}
        for name in self.table.arguments:
            arg = {"name_iid": self._common.name("compute_arg_names", name), "uint_value": Column(name)}
            launch["args"].append(When(name, arg))
        event: dict[str, Any] = {
            "event_id": Column("event_id"),
            "duration": Column("duration"),
            "submission_id": Column("correlation", omit=0),
            "pieces": Pieces("style", "event_pieces"),
        }
        if waits:
            event["event_wait_ids"] = Each("wait_offsets", "waits")
        if self.table.arguments:
            event["launch"] = launch
        packet = {
            "sequence": Given("prefixes"),
            "timestamp": Delta("start"),
            "gpu_render_stage_event": event,
        }
        return Template("Trace", {"packet": packet})

    def block(self, rows: np.ndarray) -> Block:
        """A block, ready to be taken apart. Its events get ids."""
        order = time_order(rows["start"])
        if order is not None:
            # As plain bytes: whole rows, not field by field.
            rows = rows.view(f"V{rows.itemsize}").take(order).view(rows.dtype)
        return self._block(rows, None)

    def whole(self, rows: np.ndarray) -> Part:
        """All rows of a block at once. Their events get ids."""
        order = time_order(rows["start"])
        return Part(self._block(rows, None if order is None else order.astype(np.uint32)), 0, len(rows))

    def _block(self, rows: np.ndarray, order: np.ndarray | None) -> Block:
        computed = {"duration": rows["end"] - rows["start"]}
        if "bandwidth" in self.table.arguments:
            computed["bandwidth"] = _bandwidth(rows["bytes"], computed["duration"])
        ids = self._submissions.assign(rows["correlation"])
        return Block(self, rows, self.styles.ids(rows), ids, computed, order)

    def part(self, block: Block, until: int) -> Part:
        """The rows of a block that begin before a moment and were not in a part yet."""
        starts, end = block.rows["start"], len(block.rows)
        if starts[-1] >= until:
            end = int(np.searchsorted(np.ascontiguousarray(starts), np.uint64(until)))
        part = Part(block, block.written, end)
        block.written = end
        return part

    def write(self, part: Part, waits: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        """Write a part. ``waits`` are ids of the events that each row of its block waited for, as (offsets, ids)."""
        block, rows = part.block, part.block.rows
        first = int(rows["start"][part.begin if block.order is None else block.order[part.begin]])
        if first < self._sequence.anchored:
            # Blocks come in the order of their first times; this one's header did not tell the truth.
            self._open()
        fresh = self._sequence.time < 0
        self._sequence.anchor(first)
        if fresh:
            self._sequence.intern(self._common)
        self._sent.resize(len(self.styles), refcheck=False)
        used = np.bincount(part.styles, minlength=len(self.styles)) > 0
        unsent = np.flatnonzero(used & ~self._sent)
        if len(unsent):
            self.styles.intern(unsent, self._sequence, self._sent_parts)
            self._sent |= used
        columns: Columns = {
            "start": rows["start"],
            "event_id": block.ids,
            "correlation": rows["correlation"],
            "style": block.styles,
            "event_pieces": self.styles.events,
            "prefixes": self._output.prefixes,
        }
        columns |= {name: rows[name] for name in self.table.arguments if name not in block.computed} | block.computed
        if waits:
            columns["wait_offsets"], columns["waits"] = waits
        offsets, clock = np.array([0, part.end], np.uint32), np.array([first], np.uint64)
        pieces = np.array([self._sequence.piece], np.uint32)
        template = self._template(waits=waits is not None)
        self._output.events([template.bind(columns)], offsets, pieces, clock, rows=block.order, first=part.begin)
        self._sequence.time = int(clock[0])

    def _open(self) -> None:
        self._sequence = Sequence(self._numbers.sequence(), self._output)
        # By style and by part, whether the sequence has its entries.
        self._sent, self._sent_parts = np.zeros(0, bool), np.zeros(0, bool)


def _bandwidth(size: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Bytes a second of each copy; 0, which is not shown, for a copy without duration."""
    out = np.zeros(len(size))
    np.divide(size * 1e9, duration, out=out, where=duration > 0)
    return np.rint(np.minimum(out, 2.0**63), out).astype(np.uint64)


def _cluster(launch: np.void) -> str | None:
    size = [int(launch[f"cluster_{axis}"]) for axis in "xyz"]
    return "x".join(map(str, size)) if any(size) else None
