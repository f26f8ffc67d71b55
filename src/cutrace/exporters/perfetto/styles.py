"""Styles of GPU work: what many events share, told once.

A style is a combination of the fields that all of an event but its times and ids depends on (names, launch
configuration, queue). A capture can have as many styles as events, so a style is a row of numbers, encoded like the
events are, and of what few styles differ in (names, queue), its *part*, which is described by field name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import Blobs, Keys
from ...trace import Trace
from . import archive, schema
from .devices import Devices
from .naming import Names, Needs
from .output import Output
from .sequence import Sequence
from .template import Column, Columns, Given, Pieces, Template, When

EVENT = "GpuRenderStageEvent"
KERNEL = "InternedComputeKernel"
QUEUE_FIELDS = ("device", "context", "stream")
DIMS = {
    "grid_size": {axis: f"grid_{axis}" for axis in "xyz"},
    "workgroup_size": {axis: f"block_{axis}" for axis in "xyz"},
}
ABSENT = (1 << 64) - 1  # stands for a number that a style does not have


@dataclass(frozen=True)
class Share:
    """What styles of one part share: fields of the event, and fields of the interned kernel it refers to, whose
    arguments count as the event's own. Copies and fills have one too, for the arguments: without a name, and not
    among the kernels, which is what their stage says."""

    event: dict[str, Any]
    kernel: dict[str, Any]


@dataclass(frozen=True)
class GpuTable:
    """How a table becomes events: the fields its styles depend on, and of these (and of the launch configuration) the
    ones that a part depends on; the part of a row; the names of the arguments that are numbers of a style, ``ratios``
    the fractions among them, and these numbers, for rows of styles; the arguments that are each event's own."""

    name: str
    style_fields: tuple[str, ...]
    part_fields: tuple[str, ...]
    part: Callable[[GpuNames, np.void, Needs], Share]
    numbers: Callable[[GpuNames, np.ndarray], dict[str, np.ndarray]]
    counts: tuple[str, ...] = ()
    ratios: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    launch_fields: tuple[str, ...] = ()


class GpuNames:
    """What styles are described with: the tables of the trace, and its devices."""

    def __init__(self, trace: Trace, devices: Devices, names: Names, process: int) -> None:
        self.trace, self.devices, self.names, self.process = trace, devices, names, process

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


class Styles:
    """The styles of a table, numbered as they come: a piece of each for the events, and how to tell a sequence what
    they refer to."""

    def __init__(self, table: GpuTable, names: GpuNames, output: Output) -> None:
        self._table, self._names, self._output = table, names, output
        # What neither the style nor the arguments show makes styles differ too: so each row can be read back.
        shown = (*table.style_fields, *table.arguments, "correlation")
        self._fields = (*table.style_fields, *archive.unshown(table.name, shown))
        self._keys = Keys(len(self._fields))
        self._part_keys = Keys(len(table.part_fields) + len(table.launch_fields) + bool(table.launch_fields))
        self._rows: np.ndarray | None = None  # by style, the fields it depends on
        self._parts = np.zeros(0, np.uint32)  # by style
        self._part_needs: list[Needs] = []
        self._part_events, self._part_kernels = Blobs(), Blobs()
        #: What all sequences with such styles have to know.
        self.common = Needs(names.names)
        #: By style, the fields of the event.
        self.events = Blobs()
        self._event, self._kernel = self._describe_event(), self._describe_kernel()

    def __len__(self) -> int:
        return len(self._parts)

    def field(self, name: str) -> np.ndarray:
        """One of the fields that styles depend on, by style."""
        assert self._rows is not None
        return self._rows[name]

    def ids(self, rows: np.ndarray) -> np.ndarray:
        """The style of each row."""
        ids, new = self._keys.ids([rows[f] for f in self._fields])
        if len(new):
            self._add(rows[new])
        return ids

    def intern(self, styles: np.ndarray, sequence: Sequence, sent_parts: np.ndarray) -> None:
        """Tell a sequence what styles refer to. ``sent_parts`` says by part what it has been told, and is updated."""
        parts = np.flatnonzero(np.bincount(self._parts[styles]))
        sent_parts.resize(len(self._part_needs), refcheck=False)
        for part in parts[~sent_parts[parts]].tolist():
            sequence.intern(self._part_needs[part])
        sent_parts[parts] = True
        assert self._rows is not None
        columns: Columns = dict(self._table.numbers(self._names, self._rows[styles]))
        columns |= {"iid": styles + 1, "part": self._parts[styles]}
        columns |= {"part_kernels": self._part_kernels, "prefixes": self._output.prefixes}
        columns |= {f"row.{f}": self._rows[f][styles] for f in self._fields}
        offsets, pieces = np.array([0, len(styles)], np.uint32), np.array([sequence.piece], np.uint32)
        self._output.events([self._kernel.bind(columns)], offsets, pieces, np.zeros(1, np.uint64))

    def _add(self, rows: np.ndarray) -> None:
        fields = self._fields
        first = len(self)
        parts, new = self._part_keys.ids(self._part_columns(rows))
        for row in rows[new]:
            needs = Needs(self._names.names)
            part = self._table.part(self._names, row, needs)
            self._part_events.add(schema.encode(EVENT, part.event))
            self._part_kernels.add(schema.encode(KERNEL, part.kernel))
            self._part_needs.append(needs)
        if self._rows is None:
            self._rows = np.zeros(0, [(f, rows.dtype[f]) for f in fields])
        self._rows.resize(first + len(rows), refcheck=False)
        self._parts.resize(first + len(rows), refcheck=False)
        self._parts[first:] = parts
        for f in fields:
            self._rows[f][first:] = rows[f]
        columns: Columns = {
            "iid": np.arange(first + 1, len(self) + 1),
            "part": parts,
            "part_events": self._part_events,
        }
        if self._table.launch_fields:
            launches = self._names.trace.launches[rows["launch"]]
            columns |= {name: launches[name] for dim in DIMS.values() for name in dim.values()}
            columns["launch"] = rows["launch"]
        for piece in _split(self._event.encode(columns, len(rows))):
            self.events.add(piece)

    def _part_columns(self, rows: np.ndarray) -> list[np.ndarray]:
        out = [rows[f] for f in self._table.part_fields]
        if self._table.launch_fields:
            launches = self._names.trace.launches[rows["launch"]]
            out += [launches[f] for f in self._table.launch_fields] + [rows["launch"] != 0]
        return out

    def _describe_event(self) -> Template:
        """A packet, of which only the fields of the event are used."""
        event: dict[str, Any] = {"part": Pieces("part", "part_events"), "kernel_iid": Column("iid")}
        if self._table.launch_fields:
            launch = {name: {axis: Column(c) for axis, c in dim.items()} for name, dim in DIMS.items()}
            event["launch"] = When("launch", launch)
        return Template("TracePacket", {"gpu_render_stage_event": event})

    def _describe_kernel(self) -> Template:
        def argument(name: str, kind: str) -> dict[str, Any]:
            return {"name_iid": self.common.name("compute_arg_names", name), kind: Column(name)}

        args = [When(name, argument(name, "uint_value"), unless=ABSENT) for name in self._table.counts]
        args += [
            When("occupancy_limit_blocks", argument(name, "double_value"), unless=ABSENT) for name in self._table.ratios
        ]
        name = self._table.name
        row = archive.described(name, self._table.arguments) | {archive.place(name, "process"): self._names.process}
        row |= {archive.place(name, f): Column(f"row.{f}", omit=0) for f in self._fields}
        kernel = {"iid": Column("iid"), "part": Pieces("part", "part_kernels"), "args": args, "cutrace_row": row}
        packet = {"sequence": Given("prefixes"), "interned_data": {"compute_kernels": kernel}}
        return Template("Trace", {"packet": packet})


def present(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Numbers as they stand in a column; those that are not there as ABSENT."""
    return np.where(where, values.astype(np.uint64), np.uint64(ABSENT))


def _split(packets: bytes) -> Iterator[bytes]:
    """The contents of packets that have one field, a message, each."""
    tag, at = len(schema.field("TracePacket", "gpu_render_stage_event").tag), 0
    while at < len(packets):
        at += tag
        size = shift = 0
        while True:
            byte = packets[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        yield packets[at : at + size]
        at += size
