"""GPU work as lines of JSON, with the categories and arguments of torch.profiler that other tools expect."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from ..._native import demangle
from ...analysis.occupancy import occupancy
from ...trace import Trace
from ...trace.origins import OUTSIDE
from ...trace_events import (
    CREATED_IN,
    MEMCPY_KINDS,
    MEMORY_KINDS,
    OWN,
    SYNCHRONIZATIONS,
)
from .lines import Column, Line, Pieces, members, own, quoted
from .shared import WAITS, Shared, find

_HEAD = '{"ph":"X","cat":"%s","name":%s<blob where>,"ts":<us start>,"dur":<us duration>,"args":{'
_EXTERNAL = '<if external_id>"External id":<int external_id>,<end>'
_WHERE = '"device":<int device>,"context":<int context>,"stream":<int stream>,"correlation":<int correlation>'
_OF_WORK = _WHERE + "<blob launched>"
_GRAPH = '<if graphed>,"graph id":<int graph>,"graph node id":<int graph_node><blob created><end>'
# Work without a known call has no arrow.
_ARROW = (
    '<if correlation>,\n{"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":<int arrow>'
    '<blob where>,"ts":<us start>}<end>'
)

_KERNEL = Line(
    ",\n"
    + _HEAD % ("kernel", "<blob name>")
    + '"queued":0,'
    + _EXTERNAL
    + _OF_WORK
    + "<blob launch>}}"
    + _ARROW
)
_MEMORY = (
    _EXTERNAL
    + _OF_WORK
    + ',"bytes":<int bytes>'
    + '<if duration>,"memory bandwidth (GB/s)":<real bandwidth><end>'
    + _GRAPH
    + "<blob own>}}"
    + _ARROW
)
_MEMCPY = Line(",\n" + _HEAD % ("gpu_memcpy", "<blob name>") + _MEMORY)
_MEMSET = Line(",\n" + _HEAD % ("gpu_memset", "<blob name>") + _MEMORY)
_SYNC = Line(
    ",\n"
    + _HEAD % ("cuda_sync", "<blob name>")
    + _EXTERNAL
    + '"cuda_sync_kind":<blob name>,'
    '<if event>"wait_on_stream":<int waited>,"wait_on_cuda_event_record_corr_id":<int record>,'
    '"wait_on_cuda_event_id":<int event>,<end>' + _WHERE + "<blob own>}}"
)
# The event has no argument "stream", because tools treat events with this argument as GPU work.
_SLICE = Line(
    ',\n{"ph":"X","cat":<blob category>,"name":<blob name><blob where>,"ts":<us start>,"dur":<us duration>'
    '<blob beside><if args>,"args":{<blob inside><blob own>}<end>}'
)
_GRAPH_LAUNCH = Line(
    ",\n"
    + _HEAD % ("graph_launch", '"graph <int graph>"')
    + _OF_WORK
    + ',"graph id":<int graph>}}'
)

#: CUPTI's stream of records without a stream, -1 in Kineto's files.
_NO_STREAM = 0xFFFFFFFF
_MEMCPY_NAMES = {number: name for name, number in MEMCPY_KINDS.items()}
_MEMORY_NAMES = {number: name for name, number in MEMORY_KINDS.items()}
_SYNC_NAMES = {number: name for name, number in SYNCHRONIZATIONS.items()}

#: The fields of launches that Kineto writes.
_WRITTEN = (
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


class GpuJson:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._trace = shared.trace
        self._device_of: dict[tuple[int, int], int] = {}
        for context in self._trace.contexts:
            key = (int(context["process"]), int(context["context"]))
            self._device_of[key] = int(context["device"])
        self._kernel_names = Pieces(1, self._kernel_name)
        self._launches = Pieces(3, self._launch)
        self._copy_names = Pieces(3, self._copy_name)
        self._copies = Pieces(6, self._copy)
        self._created = Pieces(1, self._creation)
        self._fill_names = Pieces(1, self._fill_name)
        self._fills = Pieces(2, self._fill)
        self._waits = Pieces(1, self._wait_name)
        self._wait_own = Pieces(4, self._wait)
        self._slice_own = Pieces(5, self._slice)
        self._categories = Pieces(2, self._category)

    def kernels(self, rows: np.ndarray) -> bytes:
        return self._shared.write(
            _KERNEL,
            rows,
            **self._columns(rows),
            name=self._kernel_names(self._trace.launches["name"][rows["launch"]]),
            launch=self._launches(rows["launch"], rows["process"], rows["device"]),
        )

    def memcpys(self, rows: np.ndarray) -> bytes:
        name = self._copy_names(
            rows["kind"],
            rows["source_memory"],
            rows["destination_memory"],
        )
        peer = rows["kind"] == MEMCPY_KINDS["PtoP"]
        peer |= rows["peer_context"] > 0
        copy = self._copies(
            rows["flags"],
            np.where(peer, rows["peer_context"].astype(np.int64), -1),
            rows["source_device"],
            rows["destination_device"],
            rows["device"],
            rows["context"],
        )
        created = self._created(self._paths("memcpys", rows))
        return self._shared.write(
            _MEMCPY, rows, **self._columns(rows), name=name, own=copy, created=created
        )

    def memsets(self, rows: np.ndarray) -> bytes:
        name = self._fill_names(rows["memory"])
        fill = self._fills(rows["value"], rows["flags"])
        created = self._created(self._paths("memsets", rows))
        return self._shared.write(
            _MEMSET, rows, **self._columns(rows), name=name, own=fill, created=created
        )

    def synchronizations(self, rows: np.ndarray) -> bytes:
        waited, record = self._recorded.of(rows)
        other_record = np.where(rows["event_record"] == record, 0, rows["event_record"])
        contexts = rows[["process", "context"]].tolist()
        device = [self._device_of.get(context, 0) for context in contexts]
        nowhere = rows["stream"] == 0
        placed = rows.copy()
        placed["stream"][nowhere] = _NO_STREAM
        columns = self._columns(placed, np.array(device, np.int64), WAITS)
        columns["name"] = self._waits(rows["type"])
        columns["own"] = self._wait_own(
            other_record, rows["status"], rows["flags"], nowhere
        )
        return self._shared.write(_SYNC, rows, **columns, waited=waited, record=record)

    def graph_launches(self, rows: np.ndarray) -> bytes:
        return self._shared.write(_GRAPH_LAUNCH, rows, **self._columns(rows))

    def gpu_slices(self, rows: np.ndarray) -> bytes:
        columns = self._columns(rows)
        columns["category"] = self._categories(rows["category"], rows["kind"])
        ids = self._shared.arguments.ids(rows["arguments"])
        columns |= self._shared.arguments.columns(ids)
        kind = np.where(rows["kind"] == 1, -1, rows["kind"].astype(np.int64))
        fields = [rows[name] for name in ("flags", "context", "correlation")]
        has_own = (kind >= 0) | np.any(fields, axis=0)
        has_arguments = np.asarray(columns["args"])
        columns["args"] = has_arguments | has_own
        columns["own"] = self._slice_own(kind, *fields, has_arguments)
        return self._shared.write(_SLICE, rows, **columns)

    @cached_property
    def _recorded(self) -> _Recorded:
        return _Recorded(self._trace)

    def _columns(
        self, rows: np.ndarray, device: np.ndarray | None = None, beside: int = 0
    ) -> dict[str, Column]:
        """The columns of all GPU work. The thread id is the stream plus ``beside``."""
        if device is None:
            device = rows["device"]
        stream = np.ascontiguousarray(rows["stream"]).view(np.int32)
        thread = stream.astype(np.int64) + beside
        where = self._shared.pid_tid.gpu(rows["process"], device, thread)
        return {"device": device, "stream": stream, "where": where}

    # Pieces

    def _kernel_name(self, name: int) -> bytes:
        if not name:
            return quoted("(unknown kernel)")
        return quoted(demangle(self._trace.strings[name]))

    def _launch(self, launch: int, process: int, device: int) -> bytes:
        """The arguments of a launch configuration on a device, each preceded by a comma."""
        row = self._trace.launches[launch]
        values = {name: int(row[name]) for name in row.dtype.names or ()}
        grid = [values[f"grid_{axis}"] for axis in "xyz"]
        block = [values[f"block_{axis}"] for axis in "xyz"]
        shared = values["static_shared"] + values["dynamic_shared"]
        out: dict[str, Any] = {}
        # The launch configuration is unknown if all these fields are 0.
        if any(grid) or any(block) or values["registers"] or shared:
            out = {"registers per thread": values["registers"], "shared memory": shared}
            out |= self._occupancy(launch, grid, block, process, device)
            out |= {"grid": grid, "block": block}
        if values["graph"] or values["graph_node"]:
            out |= {"graph id": values["graph"], "graph node id": values["graph_node"]}
        origins = self._trace.origins
        if origins:
            node = origins.of_launches(process)[launch]
            path = int(origins.path_of[node])
            if path != OUTSIDE:
                out[CREATED_IN] = origins.text(path)
        name = self._trace.strings[values["name"]]
        codes = self._trace.codes
        if codes:
            out["code hash"] = codes.text(process, name, values["code"])
        # The values that an import of this file would derive: it treats all shared memory as dynamic.
        assumed = {"dynamic_shared": shared, "carveout": 255}
        more: dict[str, Any] = {
            field: value
            for field, value in values.items()
            if field not in _WRITTEN and value != assumed.get(field, 0)
        }
        if values["name"] and demangle(name) != name:
            more["name"] = name
        if more:
            out[OWN] = more
        return members(out)

    def _paths(self, table: str, rows: np.ndarray) -> np.ndarray:
        """The paths of the ranges in which the graph nodes of rows were created."""
        origins = self._trace.origins
        if origins:
            return origins.path_of[origins.of_rows(table, rows)]
        return np.full(len(rows), OUTSIDE, np.uint32)

    def _creation(self, path: int) -> bytes:
        origins = self._trace.origins
        if origins and path != OUTSIDE:
            return members({CREATED_IN: origins.text(path)})
        return b""

    def _occupancy(
        self, launch: int, grid: list[int], block: list[int], process: int, device: int
    ) -> dict[str, float]:
        gpu = self._trace.device_rows.get((process, device))
        if gpu is None or not gpu["multiprocessors"]:
            return {}
        blocks_per_sm = math.prod(grid) / int(gpu["multiprocessors"])
        out = {"blocks per SM": round(blocks_per_sm, 6)}
        if gpu["warp_size"]:
            threads = math.prod(block)
            warps_per_block = -(-threads // int(gpu["warp_size"]))
            out["warps per SM"] = round(blocks_per_sm * warps_per_block, 6)
        row = self._trace.launches[launch : launch + 1]
        limits = occupancy(gpu, row)
        if limits is not None and limits.known[0]:
            # A small grid has fewer warps than fit on the device.
            resident = min(float(limits.warps[0]), out["warps per SM"])
            most = int(gpu["max_warps_per_multiprocessor"])
            out["est. achieved occupancy %"] = round(100 * resident / most)
        return out

    @staticmethod
    def _copy_name(kind: int, source: int, destination: int) -> bytes:
        name = _MEMCPY_NAMES.get(kind, "<unknown>")
        return quoted(f"Memcpy {name} ({_memory(source)} -> {_memory(destination)})")

    @staticmethod
    def _fill_name(memory: int) -> bytes:
        return quoted(f"Memset ({_memory(memory)})")

    @staticmethod
    def _fill(value: int, flags: int) -> bytes:
        return own(value=value, flags=flags)

    @staticmethod
    def _copy(
        flags: int,
        peer_context: int,
        source: int,
        destination: int,
        device: int,
        context: int,
    ) -> bytes:
        if peer_context < 0:
            return own(flags=flags)
        if source == device:
            contexts = (context, peer_context)
        else:
            contexts = (peer_context, context)
        peers = {
            "fromDevice": source,
            "inDevice": device,
            "toDevice": destination,
            "fromContext": contexts[0],
            "inContext": context,
            "toContext": contexts[1],
        }
        return members(peers) + own(flags=flags, peer_context=peer_context)

    @staticmethod
    def _wait_name(kind: int) -> bytes:
        return quoted(_SYNC_NAMES.get(kind, "Unknown Sync"))

    @staticmethod
    def _wait(record: int, status: int, flags: int, nowhere: int) -> bytes:
        stream = {}
        if nowhere:
            stream["stream"] = 0
        return own(stream, event_record=record, status=status, flags=flags)

    @staticmethod
    def _slice(
        kind: int, flags: int, context: int, correlation: int, behind: int
    ) -> bytes:
        """cutrace's own argument. A comma precedes it if it comes ``behind`` another argument."""
        known_kind = {}
        if kind >= 0:
            known_kind["kind"] = kind
        fields = own(known_kind, flags=flags, context=context, correlation=correlation)
        if behind:
            return fields
        return fields.removeprefix(b",")

    def _category(self, category: int, kind: int) -> bytes:
        if kind == 1:
            return b'"gpu_user_annotation"'
        if not category:
            return b'"gpu_slice"'
        return quoted(self._trace.strings[category])


def _memory(number: int) -> str:
    return _MEMORY_NAMES.get(number, "Unrecognized")


class _Recorded:
    """The stream and the correlation id of each recorded event that a synchronization waits for."""

    def __init__(self, trace: Trace) -> None:
        keys = [np.zeros(0, "S24")]
        for rows in trace.blocks("synchronizations"):
            with_event = rows[rows["event"] > 0]
            keys.append(_event_keys(with_event))
        self._keys = np.unique(np.concatenate(keys))
        shape = (len(self._keys), 2)
        self._records = np.full(shape, -1, np.int64)
        if not len(self._keys):
            return
        for rows in trace.blocks("cuda_events"):
            known, at = find(self._keys, _event_keys(rows))
            for column, field in enumerate(("stream", "correlation")):
                values = rows[field][known]
                self._records[at[known], column] = values

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each wait, the stream and the correlation id of its event; -1 if they are unknown."""
        known, at = find(self._keys, _event_keys(rows))
        both = np.full((len(rows), 2), -1, np.int64)
        both[known] = self._records[at[known]]
        both[rows["event"] == 0] = -1
        waited, record = np.ascontiguousarray(both.T)
        return waited, record


def _event_keys(rows: np.ndarray) -> np.ndarray:
    """A key for each recording of an event: process, event and record."""
    fields = np.empty((len(rows), 3), ">u8")
    for column, field in enumerate(("process", "event", "event_record")):
        fields[:, column] = rows[field]
    return fields.view("S24").reshape(-1)
