"""Lines of what GPUs did, in the words of torch.profiler: what Holistic Trace Analysis and others look for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._native import demangle
from ...analysis.occupancy import occupancy
from ...trace import Trace
from ...trace_events import MEMCPY_KINDS, MEMORY_KINDS, OWN, SYNCHRONIZATIONS
from .arguments import Arguments, dumped
from .ids import Ties
from .lines import Line, Names, Pieces, quoted
from .places import WAITS, Places

_HEAD = '{"ph":"X","cat":"%s","name":%s<blob where>,"ts":<us start>,"dur":<us duration>,"args":{'
_TIES = '<if external>"External id":<int external>,<end>'
_WHERE = '"device":<int device>,"context":<int context>,"stream":<int stream>,"correlation":<int correlation>'
_GRAPH = '<if graphed>,"graph id":<int graph>,"graph node id":<int graph_node><end>'
_ARROW = ',\n{"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":<int arrow><blob where>,"ts":<us start>}'

_KERNEL = Line(",\n" + _HEAD % ("kernel", "<blob name>") + '"queued":0,' + _TIES + _WHERE + "<blob launch>}}" + _ARROW)
_MEMCPY = Line(
    ",\n" + _HEAD % ("gpu_memcpy", "<blob name>") + _TIES + _WHERE + ',"bytes":<int bytes>'
    '<if duration>,"memory bandwidth (GB/s)":<real bandwidth><end>' + _GRAPH + "<blob own>}}" + _ARROW
)  # fmt: skip
_MEMSET = Line(
    ",\n" + _HEAD % ("gpu_memset", "<blob name>") + _TIES + _WHERE + ',"bytes":<int bytes>'
    '<if duration>,"memory bandwidth (GB/s)":<real bandwidth><end>' + _GRAPH + "<blob own>}}" + _ARROW
)  # fmt: skip
_SYNC = Line(
    ",\n" + _HEAD % ("cuda_sync", "<blob name>") + _TIES + '"cuda_sync_kind":<blob name>,'
    '<if event>"wait_on_stream":<int waited>,"wait_on_cuda_event_record_corr_id":<int record>,'
    '"wait_on_cuda_event_id":<int event>,<end>' + _WHERE + "<blob own>}}"
)  # fmt: skip
# Without a stream among its arguments: what has one is taken for GPU work.
_SLICE = Line(
    ',\n{"ph":"X","cat":<blob category>,"name":<blob name><blob where>,"ts":<us start>,"dur":<us duration>'
    '<blob beside><if args>,"args":{<blob inside><blob own>}<end>}'
)
_GRAPH_LAUNCH = Line(",\n" + _HEAD % ("graph_launch", '"graph <int graph>"') + _WHERE + ',"graph id":<int graph>}}')

#: What CUPTI says where no stream is meant, -1 to Kineto.
_NO_STREAM = 0xFFFFFFFF
_MEMCPY_NAMES = {number: name for name, number in MEMCPY_KINDS.items()}
_MEMORY_NAMES = {number: name for name, number in MEMORY_KINDS.items()}
_SYNC_NAMES = {number: name for name, number in SYNCHRONIZATIONS.items()}

#: Fields of launches that Kineto writes.
_TOLD = (
    "id",
    "name",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "graph",
    "graph_node",
)


class GpuLines:
    """Lines of rows of the tables of GPU work."""

    def __init__(
        self, trace: Trace, places: Places, ties: Ties, names: Names, arguments: Arguments, offset: int
    ) -> None:
        self._trace, self._places, self._ties, self._names, self._arguments = trace, places, ties, names, arguments
        self._offset = offset
        self._devices = {(int(d["process"]), int(d["device"])): d for d in trace.devices}
        self._kernel_names = Pieces(1, self._kernel_name)
        self._launches = Pieces(3, self._launch)
        self._copy_names = Pieces(3, self._copy_name)
        self._copies = Pieces(6, self._copy)
        self._fill_names = Pieces(1, lambda memory: quoted(f"Memset ({_memory(memory)})"))
        self._fills = Pieces(2, lambda value, flags: _own(value=value, flags=flags))
        self._waits = Pieces(1, lambda kind: quoted(_SYNC_NAMES.get(kind, "Unknown Sync")))
        self._wait_own = Pieces(4, self._wait)
        self._slice_own = Pieces(5, self._slice)
        self._categories = Pieces(2, self._category)
        events = trace.cuda_events
        self._recorded = {
            key: (stream, correlation)
            for *key_, stream, correlation in events[
                ["process", "event", "event_record", "stream", "correlation"]
            ].tolist()
            for key in [tuple(key_)]
        }
        self._device_of = {(int(c["process"]), int(c["context"])): int(c["device"]) for c in trace.contexts}

    def kernels(self, rows: np.ndarray) -> bytes:
        launches = self._trace.launches["name"][rows["launch"]]
        return _KERNEL.write(
            self._columns(rows)
            | {
                "name": self._kernel_names.ids(launches),
                "launch": self._launches.ids(rows["launch"], rows["process"], rows["device"]),
            },
            len(rows), where=self._places.gpu.blobs, name=self._kernel_names.blobs, launch=self._launches.blobs,
        )  # fmt: skip

    def memcpys(self, rows: np.ndarray) -> bytes:
        peer = rows["kind"] == MEMCPY_KINDS["PtoP"]
        peer |= rows["peer_context"] > 0
        fields = ("peer_context", "source_device", "destination_device")
        own = [np.where(peer, rows[field].astype(np.int64), -1) for field in fields]
        columns = self._columns(rows) | self._sizes(rows) | {
            "name": self._copy_names.ids(rows["kind"], rows["source_memory"], rows["destination_memory"]),
            "own": self._copies.ids(rows["flags"], *own, rows["device"], rows["context"]),
        }  # fmt: skip
        return _MEMCPY.write(
            columns, len(rows), where=self._places.gpu.blobs, name=self._copy_names.blobs, own=self._copies.blobs
        )

    def memsets(self, rows: np.ndarray) -> bytes:
        columns = self._columns(rows) | self._sizes(rows) | {
            "name": self._fill_names.ids(rows["memory"]), "own": self._fills.ids(rows["value"], rows["flags"]),
        }  # fmt: skip
        return _MEMSET.write(
            columns, len(rows), where=self._places.gpu.blobs, name=self._fill_names.blobs, own=self._fills.blobs
        )

    def synchronizations(self, rows: np.ndarray) -> bytes:
        keys = rows[["process", "event", "event_record"]].tolist()
        found = [self._recorded.get(key, (-1, -1)) if key[1] else (-1, -1) for key in keys]
        waited, record = np.array(found, np.int64).reshape(-1, 2).T
        other_record = np.where(rows["event_record"] == record, 0, rows["event_record"])
        device = [self._device_of.get(key, 0) for key in rows[["process", "context"]].tolist()]
        device_column = np.array(device, np.int64)
        nowhere = rows["stream"] == 0
        shown = rows.copy()
        shown["stream"][nowhere] = _NO_STREAM
        columns = self._columns(shown, device_column, WAITS) | {
            "name": self._waits.ids(rows["type"]), "waited": np.ascontiguousarray(waited), "event": rows["event"],
            "record": np.ascontiguousarray(record),
            "own": self._wait_own.ids(other_record, rows["status"], rows["flags"], nowhere),
        }  # fmt: skip
        return _SYNC.write(
            columns, len(rows), where=self._places.gpu.blobs, name=self._waits.blobs, own=self._wait_own.blobs
        )

    def graph_launches(self, rows: np.ndarray) -> bytes:
        return _GRAPH_LAUNCH.write(self._columns(rows), len(rows), where=self._places.gpu.blobs)

    def gpu_slices(self, rows: np.ndarray) -> bytes:
        ids = self._arguments.ids(rows["arguments"])
        fields = [np.where(rows["kind"] == 1, -1, rows["kind"].astype(np.int64))]
        fields += [rows[name] for name in ("flags", "context", "correlation")]
        told = (fields[0] >= 0) | np.any(fields[1:], axis=0)
        there = self._arguments.there(ids)
        columns = self._columns(rows) | {
            "name": self._names.ids(rows["name"]), "category": self._categories.ids(rows["category"], rows["kind"]),
            "beside": ids, "args": there | told, "inside": 2 * ids, "own": self._slice_own.ids(*fields, there),
        }  # fmt: skip
        return _SLICE.write(
            columns, len(rows), where=self._places.gpu.blobs, name=self._names.blobs, category=self._categories.blobs,
            beside=self._arguments.beside, inside=self._arguments.inside, own=self._slice_own.blobs,
        )  # fmt: skip

    def _columns(self, rows: np.ndarray, device: np.ndarray | None = None, beside: int = 0) -> dict[str, np.ndarray]:
        """What all GPU work has. ``beside`` is added to the stream for the thread that it is shown on."""
        device = rows["device"] if device is None else device
        fields = rows.dtype.names or ()
        columns: dict[str, np.ndarray] = {
            name: rows[name] for name in ("context", "correlation", "graph") if name in fields
        }
        if "graph_node" in fields:
            columns |= {"graph_node": rows["graph_node"], "graphed": (rows["graph_node"] > 0) | (rows["graph"] > 0)}
        columns["stream"] = np.ascontiguousarray(rows["stream"]).view(np.int32)
        return columns | {
            "start": rows["start"].astype(np.int64) - self._offset,
            "duration": rows["end"] - rows["start"],
            "device": device,
            "where": self._places.gpu.ids(rows["process"], device, columns["stream"].astype(np.int64) + beside),
            "external": self._ties.externals(rows),
            "arrow": self._ties.arrows(rows),
        }

    def _sizes(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        duration = rows["end"] - rows["start"]
        return {"bytes": rows["bytes"], "bandwidth": rows["bytes"] / np.maximum(duration, 1).astype(np.float64)}

    # Pieces

    def _kernel_name(self, name: int) -> bytes:
        return quoted(demangle(self._trace.strings[name]) if name else "(unknown kernel)")

    def _launch(self, launch: int, process: int, device: int) -> bytes:
        """The arguments of a launch configuration on a device, each with a comma before it."""
        row = self._trace.launches[launch]
        values = {name: int(row[name]) for name in row.dtype.names}
        grid = [values[f"grid_{axis}"] for axis in "xyz"]
        block = [values[f"block_{axis}"] for axis in "xyz"]
        shared = values["static_shared"] + values["dynamic_shared"]
        out: dict[str, Any] = {}
        # Without a grid the source did not say how the kernel was launched.
        if any(grid) or any(block) or values["registers"] or shared:
            out = {"registers per thread": values["registers"], "shared memory": shared}
            out |= self._occupancy(values, grid, block, process, device)
            out |= {"grid": grid, "block": block}
        if values["graph"] or values["graph_node"]:
            out |= {"graph id": values["graph"], "graph node id": values["graph_node"]}
        # As an import of this file reads it: without more, all shared memory is dynamic.
        usual = dict.fromkeys(values, 0) | {"dynamic_shared": shared, "carveout": 255}
        own: dict[str, Any] = {
            name: value for name, value in values.items() if name not in _TOLD and value != usual[name]
        }
        name = self._trace.strings[values["name"]]
        if values["name"] and demangle(name) != name:
            own["name"] = name
        told = dumped(out | ({OWN: own} if own else {}))[1:-1].encode("utf-8", "replace")
        return b"," * bool(told) + told

    def _occupancy(
        self, launch: dict[str, int], grid: list[int], block: list[int], process: int, device: int
    ) -> dict[str, float]:
        facts = self._devices.get((process, device))
        if facts is None or not facts["multiprocessors"]:
            return {}
        blocks, threads = math.prod(grid), math.prod(block)
        on_each = blocks / int(facts["multiprocessors"])
        out = {"blocks per SM": round(on_each, 6)}
        if facts["warp_size"]:
            out["warps per SM"] = round(on_each * -(-threads // int(facts["warp_size"])), 6)
        found = occupancy(
            threads=np.array([threads]), registers=np.array([launch["registers"]]),
            shared=np.array([launch["static_shared"] + launch["dynamic_shared"]]), grid_blocks=np.array([blocks]),
            compute_major=int(facts["compute_major"]), multiprocessors=int(facts["multiprocessors"]),
            warp_size=int(facts["warp_size"]), max_warps=int(facts["max_warps_per_multiprocessor"]),
            max_blocks=int(facts["max_blocks_per_multiprocessor"]),
            registers_per_multiprocessor=int(facts["registers_per_multiprocessor"]),
            shared_per_multiprocessor=int(facts["shared_per_multiprocessor"]),
            shared_reserved=int(facts["shared_reserved_per_block"]),
        )  # fmt: skip
        if found is not None and found.known[0]:
            # What runs at once is no more than what there is to run.
            resident = min(float(found.warps[0]), out["warps per SM"])
            out["est. achieved occupancy %"] = round(100 * resident / int(facts["max_warps_per_multiprocessor"]))
        return out

    @staticmethod
    def _copy_name(kind: int, source: int, destination: int) -> bytes:
        return quoted(f"Memcpy {_MEMCPY_NAMES.get(kind, '<unknown>')} ({_memory(source)} -> {_memory(destination)})")

    @staticmethod
    def _copy(flags: int, peer_context: int, source: int, destination: int, device: int, context: int) -> bytes:
        if peer_context < 0:
            return _own(flags=flags)
        contexts = (context, peer_context) if source == device else (peer_context, context)
        told = {
            "fromDevice": source, "inDevice": device, "toDevice": destination, "fromContext": contexts[0],
            "inContext": context, "toContext": contexts[1],
        }  # fmt: skip
        return b"," + dumped(told)[1:-1].encode() + _own(flags=flags, peer_context=peer_context)

    @staticmethod
    def _wait(record: int, status: int, flags: int, nowhere: int) -> bytes:
        own = {"event_record": record, "status": status, "flags": flags}
        return _told({name: value for name, value in own.items() if value} | ({"stream": 0} if nowhere else {}))

    @staticmethod
    def _slice(kind: int, flags: int, context: int, correlation: int, behind: int) -> bytes:
        """cutrace's own argument, with a comma before it if it comes ``behind`` another one."""
        told = {"flags": flags, "context": context, "correlation": correlation}
        told = {name: value for name, value in told.items() if value} | ({"kind": kind} if kind >= 0 else {})
        return b"," * bool(behind) + dumped({OWN: told})[1:-1].encode() if told else b""

    def _category(self, category: int, kind: int) -> bytes:
        if kind == 1 or not category:
            return b'"gpu_user_annotation"' if kind == 1 else b'"gpu_slice"'
        return quoted(self._trace.strings[category])


def _memory(number: int) -> str:
    return _MEMORY_NAMES.get(number, "Unrecognized")


def _own(**fields: int) -> bytes:
    """cutrace's own argument with the fields that are not 0, with a comma before it; empty if all are."""
    return _told({name: value for name, value in fields.items() if value})


def _told(own: dict[str, int]) -> bytes:
    """cutrace's own argument with a comma before it; empty if it says nothing."""
    return b"," + dumped({OWN: own})[1:-1].encode() if own else b""
