"""GPU work: one ``gpu_render_stage_event`` for each kernel, copy, fill and graph.

A *style* is a combination of name, launch configuration and queue. It determines all fields of an event except its
times and ids. A capture can have as many styles as events, so styles are encoded from columns, like events. Styles with
equal names and queue are a *family*. Families are few and are encoded one by one, from field names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._native import Blobs, Keys, Submissions, demangle, encode_pieces
from ...analysis.occupancy import UNLIMITED, occupancy, volume
from ...runbin.labels import CACHE_CONFIGS, LAUNCH_TYPES, MEMCPY_KINDS, MEMORY_KINDS, label
from ...runbin.layout import TABLES as LAYOUT
from ...trace.rows import chosen, time_order
from . import proto
from .descriptors import Descriptors
from .packets import InternedRefs, Output, Sequence
from .proto import Columns, Delta, Each, FromColumn, Piece, SegmentPiece, Template, When

QUEUE_FIELDS = ("device", "context", "stream")
GRAPH_FIELDS = ("graph", "graph_node")
COPY_FIELDS = (
    "kind", "source_memory", "destination_memory", "flags", "source_device", "destination_device", "peer_context",
)  # fmt: skip
FILL_FIELDS = ("value", "memory", "flags")
#: Fields of the launch configuration that become text in a trace.
NAME_FIELDS = (
    "name", "launch_type", "cluster_x", "cluster_y", "cluster_z", "cache_executed", "cache_requested", "code",
)  # fmt: skip
_DIMENSIONS = {
    "grid_size": {axis: f"grid_{axis}" for axis in "xyz"},
    "workgroup_size": {axis: f"block_{axis}" for axis in "xyz"},
}
ABSENT = (1 << 64) - 1  # in a column: the style has no such number

Lists = tuple[np.ndarray, np.ndarray]  # offsets by row, and ids


@dataclass(frozen=True)
class Family:
    """The shared data of a family: name, arguments, and fields of the interned kernel. Copies and fills have an
    interned kernel without a name, for the arguments only; their stage is not *Kernel*."""

    name: str
    arguments: Mapping[str, int | str | None]
    kernel: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuTable:
    """How a table becomes events.

    A family depends on ``family_fields``, on the device, context and stream, and on ``launch_fields`` of the launch
    configuration. ``describe`` returns the family of a row. A style also depends on ``number_fields``. ``counts`` are
    the integer arguments of a style, ``ratios`` the fractional ones; ``numbers`` computes both, with one row for each
    style. ``arguments`` differ from event to event.
    """

    name: str
    stage: str
    describe: Callable[[Descriptors, int, np.void], Family]
    family_fields: tuple[str, ...] = ()
    number_fields: tuple[str, ...] = ()
    launch_fields: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    ratios: tuple[str, ...] = ()
    numbers: Callable[[Descriptors, int, np.ndarray], dict[str, np.ndarray]] = lambda *_: {}
    arguments: tuple[str, ...] = ()


def kernel_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """A kernel on one stream, with the text fields of its launch configuration."""
    trace, device = descriptors.trace, int(row["device"])
    device_row = descriptors.devices.rows.get((process, device))
    launch, known = trace.launches[int(row["launch"])], bool(row["launch"])
    mangled = trace.strings[int(launch["name"])]
    name = demangle(mangled) if known else "(unknown kernel)"
    arguments: dict[str, int | str | None] = {
        "device": device,
        "stream": int(row["stream"]),
        "context": int(row["context"]),
        "process_id": trace.processes[process].pid,
        "process_name": trace.processes[process].name,
    }
    if known:
        cluster = [int(launch[f"cluster_{axis}"]) for axis in "xyz"]
        arguments |= {
            "shared_mem_driver": None if device_row is None else int(device_row["shared_reserved_per_block"]),
            "func_cache_config": CACHE_CONFIGS.get(int(launch["cache_executed"])),
            "func_cache_config_requested": CACHE_CONFIGS.get(int(launch["cache_requested"])),
            "cluster_size": "x".join(map(str, cluster)) if any(cluster) else None,
            "launch_type": LAUNCH_TYPES.get(int(launch["launch_type"])),
            "code_hash": trace.codes.text(process, mangled, int(launch["code"])) if trace.codes else None,
        }
    names = {"name": mangled if known else name, "demangled_name": name}
    if device_row is not None and device_row["compute_major"]:
        names["arch"] = f"sm_{device_row['compute_major']}{device_row['compute_minor']}"
    return Family(name, arguments, names)


def memcpy_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """A kind of copy on one stream."""
    kind = label(MEMCPY_KINDS, int(row["kind"]))
    arguments: dict[str, int | str | None] = {name: int(row[name]) for name in QUEUE_FIELDS}
    arguments["kind"] = kind
    for name in ("source_memory", "destination_memory"):
        arguments[name] = label(MEMORY_KINDS, int(row[name]))
    arguments["asynchronous"] = int(row["flags"]) & 1 or None
    if row["kind"] == 10 or row["source_device"] != row["destination_device"]:
        arguments |= {name: int(row[name]) for name in ("source_device", "destination_device", "peer_context")}
    return Family(f"Memcpy {kind}", arguments)


def memset_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """A kind of fill on one stream."""
    arguments: dict[str, int | str | None] = {name: int(row[name]) for name in (*QUEUE_FIELDS, "value")}
    arguments |= {"memory": label(MEMORY_KINDS, int(row["memory"])), "asynchronous": int(row["flags"]) & 1 or None}
    return Family("Memset", arguments)


def graph_family(descriptors: Descriptors, process: int, row: np.void) -> Family:
    """A graph traced as a whole, on the stream it was launched into."""
    return Family(f"CUDA graph {row['graph']}", {name: int(row[name]) for name in (*QUEUE_FIELDS, "graph")})


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
#: Arguments that come from the occupancy.
OCCUPANCY_COUNTS = {
    "occupancy_limit_blocks": "limit_blocks",
    "occupancy_limit_warps": "limit_warps",
    "occupancy_limit_registers": "limit_registers",
    "occupancy_limit_shared_mem": "limit_shared",
    "sm__maximum_warps_avg_per_active_cycle": "warps",
}
OCCUPANCY_RATIOS = {"waves_per_multiprocessor": "waves", "sm__maximum_warps_per_active_cycle_pct": "percent"}


def kernel_numbers(descriptors: Descriptors, process: int, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The launch configuration and the theoretical occupancy of kernels, as columns."""
    launches = descriptors.trace.launches[rows["launch"]]
    known = rows["launch"] != 0
    blocks, threads = volume(launches, "grid"), volume(launches, "block")
    sizes = zip(SIZES, (blocks, threads, blocks * threads), strict=True)
    out = {name: _present(values, known) for name, values in sizes}
    for name, (of, nothing) in LAUNCH_COUNTS.items():
        out[name] = _present(launches[of], known if nothing is None else known & (launches[of] != nothing))
    out |= {name: np.full(len(rows), ABSENT, np.uint64) for name in OCCUPANCY_COUNTS}
    out |= {name: np.zeros(len(rows)) for name in OCCUPANCY_RATIOS}
    for device in sorted(set(rows["device"].tolist())):
        at = np.flatnonzero(known & (rows["device"] == device))
        device_row = descriptors.devices.rows.get((process, device))
        result = None if device_row is None else occupancy(device_row, launches[at])
        if result is None:
            continue
        for name, attribute in OCCUPANCY_COUNTS.items():
            values = getattr(result, attribute)
            out[name][at] = _present(values, result.known & (values != UNLIMITED))
        for name, attribute in OCCUPANCY_RATIOS.items():
            out[name][at] = getattr(result, attribute)
    return out


def graph_numbers(descriptors: Descriptors, process: int, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The graph and the graph node of GPU work."""
    return {name: _present(rows[name], rows[name] != 0) for name in GRAPH_FIELDS}


def _present(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """A column of numbers, ABSENT where ``where`` is false."""
    return np.where(where, values.astype(np.uint64), np.uint64(ABSENT))


TABLES = (
    GpuTable(
        "kernels", "Kernel", kernel_family, number_fields=("launch",), launch_fields=NAME_FIELDS,
        counts=(*SIZES, *LAUNCH_COUNTS, *OCCUPANCY_COUNTS), ratios=tuple(OCCUPANCY_RATIOS), numbers=kernel_numbers,
    ),
    GpuTable(
        "memcpys", "Memcpy", memcpy_family, COPY_FIELDS, GRAPH_FIELDS, counts=GRAPH_FIELDS, numbers=graph_numbers,
        arguments=("bytes", "bandwidth"),
    ),
    GpuTable(
        "memsets", "Memset", memset_family, FILL_FIELDS, GRAPH_FIELDS, counts=GRAPH_FIELDS, numbers=graph_numbers,
        arguments=("bytes",),
    ),
    GpuTable("graph_launches", "CUDA graph", graph_family, ("graph",)),
)  # fmt: skip


class KeyIndex:
    """Numbers for the combinations of some fields, in order of appearance. ``keys`` has the combination of each
    number."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields
        self.keys: list[tuple[int, ...]] = []
        self._numbers = Keys(len(fields))

    def of(self, rows: np.ndarray) -> np.ndarray:
        numbers, new = self._numbers.ids([rows[f] for f in self.fields])
        self.keys += zip(*(rows[f][new].tolist() for f in self.fields), strict=True)
        return numbers


class StyleIndex:
    """The styles of one table in one process, numbered in order of appearance. ``queues`` numbers the streams."""

    def __init__(
        self, table: GpuTable, descriptors: Descriptors, process: int, output: Output, queues: KeyIndex
    ) -> None:
        self.table, self._descriptors, self._process, self._output = table, descriptors, process, output
        self._queues = queues
        family_fields = (*table.family_fields, *QUEUE_FIELDS)
        self.fields = fields = (*table.number_fields, *family_fields)
        self._stacks = descriptors.trace.python_stacks
        self._styles = self.keys()
        # A family also depends on whether the launch configuration is known, on the creation of the graph node, and on
        # the Python frame of the launch.
        self._families = Keys(len(family_fields) + len(table.launch_fields) + 3)
        self._family_fields = family_fields
        self._rows = np.zeros(0, [(f, LAYOUT[table.name].dtype[f]) for f in fields])
        self._origins = descriptors.trace.origins
        # By style.
        self._family_of = np.zeros(0, np.uint32)
        #: The path of the ranges in which the graph node was created.
        self.path_of = np.zeros(0, np.uint32)
        self.queue_of = np.zeros(0, np.uint32)
        # By family.
        self._refs: list[InternedRefs] = []
        self._event_pieces, self._kernel_pieces = Blobs(), Blobs()
        #: By style, the encoded fields of the event.
        self.events = Blobs()
        #: The interned entries that every sequence with such styles needs.
        self.common = InternedRefs(output.names)
        self._event, self._kernel = self._event_template(), self._kernel_template()

    def __len__(self) -> int:
        return len(self._family_of)

    def keys(self) -> Keys:
        """Keys for :meth:`columns`."""
        return Keys(len(self.fields) + (self._stacks is not None))

    def columns(self, rows: np.ndarray, frames: np.ndarray | None) -> list[np.ndarray]:
        """The columns that make the style of rows. ``frames`` are those of :meth:`frames`."""
        columns = [rows[f] for f in self.fields]
        return columns if frames is None else [*columns, frames]

    def frames(self, rows: np.ndarray) -> np.ndarray | None:
        """The innermost Python frame of the launching call of each row, 0 if unknown; None in a trace without stacks.
        Thread-safe."""
        if self._stacks is None:
            return None
        return self._stacks.innermost(self._stacks.of(self._process, rows["correlation"]))

    def of(self, rows: np.ndarray, frames: np.ndarray | None) -> np.ndarray:
        """The styles of rows."""
        styles, new = self._styles.ids(self.columns(rows, frames))
        if len(new):
            self._add(rows[new], np.zeros(len(new), np.uint32) if frames is None else frames[new])
        return styles

    def intern(self, styles: np.ndarray, sequence: Sequence, sent: np.ndarray) -> None:
        """Write the interned entries of styles to a sequence. ``sent`` says for each family whether the sequence has
        its entries; it is updated."""
        sent.resize(len(self._refs), refcheck=False)
        families = np.flatnonzero(np.bincount(self._family_of[styles]))
        for family in families[~sent[families]].tolist():
            sequence.intern(self._refs[family])
        sent[families] = True
        columns: Columns = dict(self.table.numbers(self._descriptors, self._process, self._rows[styles]))
        columns |= {"iid": styles + 1, "family": self._family_of[styles]}
        columns |= {"kernels": self._kernel_pieces, "prefixes": self._output.prefixes}
        self._output.events([self._kernel.bind(columns)], [sequence], np.array([0, len(styles)], np.uint32))

    def _add(self, rows: np.ndarray, frames: np.ndarray) -> None:
        first = len(self)
        launches = self._descriptors.trace.launches[rows["launch"]] if self.table.launch_fields else None
        columns = [rows[f] for f in self._family_fields]
        known = np.zeros(len(rows), bool)
        if launches is not None:
            columns += [launches[f] for f in self.table.launch_fields]
            known = rows["launch"] != 0
        path = creation = np.zeros(len(rows), np.uint32)
        if self._origins:
            nodes = self._origins.of(self._process, self.table.name, rows)
            path, creation = self._origins.path_of[nodes], self._origins.creations[0][nodes]
        self.path_of = np.append(self.path_of, path)
        families, new = self._families.ids([*columns, known, creation, frames])
        for row, number, frame in zip(rows[new], creation[new].tolist(), frames[new].tolist(), strict=True):
            self._add_family(row, number, frame)
        self._rows.resize(first + len(rows), refcheck=False)
        for f in self._rows.dtype.names or ():
            self._rows[f][first:] = rows[f]
        self._family_of = np.append(self._family_of, families)
        self.queue_of = np.append(self.queue_of, self._queues.of(rows))
        bound: Columns = {"iid": np.arange(first + 1, len(self) + 1), "family": families, "events": self._event_pieces}
        if launches is not None:
            bound |= {name: launches[name] for dim in _DIMENSIONS.values() for name in dim.values()}
            bound["launch"] = rows["launch"]
        encode_pieces(self.events, self._event.bind(bound), len(rows))

    def _created(self, number: int) -> dict[str, int | str | None]:
        """The arguments of a creation of graph nodes."""
        if not number or not self._origins:
            return {}
        path, thread, call = self._origins.creations[1][number]
        text = self._origins.text(path)
        return {"created_in": text, "created_by": f"{call or 'a call'}, thread {thread}" if thread else None}

    def _launched(self, frame: int) -> dict[str, int | str | None]:
        """The argument of the Python frame of a launch."""
        return {"launched_at": self._stacks.place(frame)} if frame and self._stacks else {}

    def _add_family(self, row: np.void, creation: int, frame: int) -> None:
        devices, process = self._descriptors.devices, self._process
        device, context, stream = (int(row[f]) for f in QUEUE_FIELDS)
        family, refs = self.table.describe(self._descriptors, process, row), InternedRefs(self._output.names)
        arguments = {**family.arguments, **self._created(creation), **self._launched(frame)}
        kernel = {**family.kernel, "args": refs.compute_args(arguments)}
        event = {
            "hw_queue_iid": refs.add(devices.queue(process, device, context, stream)),
            "stage_iid": refs.add(devices.stage(self.table.stage)),
            "gpu_id": devices.gpu(process, device) or None,  # 0 is the default
            "context": refs.add(devices.context(process, context)),
            "name_iid": refs.name("event_names", family.name),
        }
        self._event_pieces.add(proto.encode("GpuRenderStageEvent", event))
        self._kernel_pieces.add(proto.encode("InternedComputeKernel", kernel))
        self._refs.append(refs)

    def _event_template(self) -> Template:
        event: dict[str, Any] = {"family": Piece("family", "events"), "kernel_iid": FromColumn("iid")}
        if self.table.launch_fields:
            launch = {name: {axis: FromColumn(c) for axis, c in dim.items()} for name, dim in _DIMENSIONS.items()}
            event["launch"] = When("launch", launch)
        return Template("GpuRenderStageEvent", event)

    def _kernel_template(self) -> Template:
        def argument(name: str, kind: str) -> dict[str, Any]:
            return {"name_iid": self.common.name("compute_arg_names", name), kind: FromColumn(name)}

        args = [When(name, argument(name, "uint_value"), unless=ABSENT) for name in self.table.counts]
        args += [
            When("occupancy_limit_blocks", argument(name, "double_value"), unless=ABSENT) for name in self.table.ratios
        ]
        kernel = {"iid": FromColumn("iid"), "family": Piece("family", "kernels"), "args": args}
        packet = {"sequence": SegmentPiece("prefixes"), "interned_data": {"compute_kernels": kernel}}
        return Template("Trace", {"packet": packet})


@dataclass(frozen=True)
class GpuRows:
    """The rows of a block in the order of their begin. ``kinds`` numbers the styles of these rows in order of
    appearance, and ``first`` has the first row of each. ``frames`` (:meth:`StyleIndex.frames`) and the ``computed``
    columns are by row."""

    rows: np.ndarray
    frames: np.ndarray | None
    kinds: np.ndarray
    first: np.ndarray
    computed: dict[str, np.ndarray]


@dataclass
class GpuBlock:
    """A block of rows in the order of their begin. ``styles``, the event ``ids`` and the ``computed`` columns are by
    row. The first ``written`` rows are in parts."""

    index: StyleIndex
    rows: np.ndarray
    styles: np.ndarray
    ids: np.ndarray
    computed: dict[str, np.ndarray]
    written: int = 0

    def before(self, moment: int) -> GpuPart:
        """The rows that begin before ``moment`` and are not in a part yet."""
        starts, end = self.rows["start"], len(self.rows)
        if starts[-1] >= moment:
            end = int(np.searchsorted(np.ascontiguousarray(starts), np.uint64(moment)))
        part = GpuPart(self, self.written, end)
        self.written = end
        return part


@dataclass(frozen=True)
class GpuPart:
    """The rows of a block from ``begin`` to ``end``."""

    block: GpuBlock
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
    def queues(self) -> np.ndarray:
        """The number of each row's stream."""
        return self.block.index.queue_of.take(self.styles)

    @property
    def paths(self) -> np.ndarray:
        """The number of the path (:class:`cutrace.trace.origins.Origins`) of each row's graph node."""
        return self.block.index.path_of.take(self.styles)

    def computed(self, column: str) -> np.ndarray:
        return self.block.computed[column][self.begin : self.end]


class GpuEvents:
    """Writes the rows of one table of one process, part by part."""

    def __init__(self, index: StyleIndex, output: Output, submissions: Submissions) -> None:
        self._table, self._index, self._output, self._submissions = index.table, index, output, submissions
        self._common = index.common
        # _template also adds the names of the arguments to index.common.
        self._templates = {waits: self._template(waits) for waits in (False, True)}
        self._open()

    def prepare(self, rows: np.ndarray) -> GpuRows:
        """What does not depend on other blocks; thread-safe."""
        order = time_order(rows["start"])
        rows = rows if order is None else chosen(rows, order)
        computed = {"duration": rows["end"] - rows["start"]}
        if "bandwidth" in self._table.arguments:
            computed["bandwidth"] = _bandwidth(rows["bytes"], computed["duration"])
        frames = self._index.frames(rows)
        return GpuRows(rows, frames, *self._index.keys().ids(self._index.columns(rows, frames)), computed)

    def block(self, part: GpuRows) -> GpuBlock:
        """A block, whose styles get numbers and whose events get ids."""
        frames = None if part.frames is None else part.frames[part.first]
        styles = self._index.of(chosen(part.rows, part.first), frames).take(part.kinds)
        return GpuBlock(
            self._index, part.rows, styles, self._submissions.assign(part.rows["correlation"]), part.computed
        )

    def write(self, part: GpuPart, waits: Lists | None = None) -> None:
        """Write a part. ``waits`` has the ids of the events that each row of its block waited for."""
        block, rows = part.block, part.block.rows
        first = int(rows["start"][part.begin])
        if first < self._sequence.anchored:
            # Blocks come in the order of the first times in their headers. The header of this one was wrong.
            self._open()
        fresh = self._sequence.time < 0
        self._sequence.anchor(first)
        if fresh:
            self._sequence.intern(self._common)
        self._sent.resize(len(self._index), refcheck=False)
        used = np.bincount(part.styles, minlength=len(self._index)) > 0
        unsent = np.flatnonzero(used & ~self._sent)
        if len(unsent):
            self._index.intern(unsent, self._sequence, self._sent_families)
            self._sent |= used
        columns: Columns = {
            "start": rows["start"],
            "event_id": block.ids,
            "correlation": rows["correlation"],
            "style": block.styles,
            "styles": self._index.events,
            "prefixes": self._output.prefixes,
        }
        columns |= {name: rows[name] for name in self._table.arguments if name not in block.computed} | block.computed
        if waits:
            columns["wait_offsets"], columns["waits"] = waits
        stream, offsets = self._templates[waits is not None].bind(columns), np.array([part.begin, part.end], np.uint32)
        self._output.events([stream], [self._sequence], offsets, rows["start"])

    def _open(self) -> None:
        self._sequence = self._output.sequence()
        # By style and by family: whether the sequence has the interned entries.
        self._sent, self._sent_families = np.zeros(0, bool), np.zeros(0, bool)

    def _template(self, waits: bool) -> Template:
        args = []
        for name in self._table.arguments:
            iid = self._common.name("compute_arg_names", name)
            args.append(When(name, {"name_iid": iid, "uint_value": FromColumn(name)}))
        event: dict[str, Any] = {
            "event_id": FromColumn("event_id"),
            "duration": FromColumn("duration"),
            "submission_id": FromColumn("correlation", omit=0),
            "style": Piece("style", "styles"),
        }
        if waits:
            event["event_wait_ids"] = Each("wait_offsets", "waits")
        if args:
            event["launch"] = {"args": args}
        packet = {
            "sequence": SegmentPiece("prefixes"),
            "timestamp": Delta("start"),
            "gpu_render_stage_event": event,
        }
        return Template("Trace", {"packet": packet})


def _bandwidth(size: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Bytes per second of each copy; 0 for a copy without duration, which omits the argument."""
    out = np.zeros(len(size))
    np.divide(size * 1e9, duration, out=out, where=duration > 0)
    return np.rint(np.minimum(out, 2.0**63), out).astype(np.uint64)
