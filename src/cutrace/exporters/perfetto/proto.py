"""Perfetto's messages: fields by name, constant messages, and templates that take values from columns.

:data:`MESSAGES` lists the fields that the exporter writes, with the names and numbers of Perfetto's .proto files. A
test compares it with the descriptors of the ``perfetto`` package. The exporter does not import that package, because
this takes as long as converting half a million events.

:func:`encode` encodes a message from values. A :class:`Template` is a message with some values from columns. It is
compiled into a native program::

    Template("Trace", {"packet": {"timestamp": Delta("time"), "sequence_flags": 2}})
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..._native import Blobs, Program, encode_rows
from ..programs import (
    BLOB,
    CLOSE,
    DELTA,
    FIXED64S,
    GIVEN,
    OPEN,
    RAW,
    REPEATED,
    UNLESS,
    VARINTS,
    Op,
)

#: The wire type of each coding. Nested messages are coded like bytes.
_WIRE_TYPES = {"varint": 0, "fixed64": 1, "double": 1, "bytes": 2}

#: The fields of each message: number, name, and the coding or the name of the nested message.
MESSAGES: dict[str, str] = {
    "Trace": "1 packet TracePacket",
    "TracePacket": """
        6 clock_snapshot ClockSnapshot, 8 timestamp varint, 10 trusted_packet_sequence_id varint,
        11 track_event TrackEvent, 12 interned_data InternedData, 13 sequence_flags varint,
        50 compressed_packets bytes, 52 gpu_counter_event GpuCounterEvent,
        53 gpu_render_stage_event GpuRenderStageEvent, 58 timestamp_clock_id varint,
        59 trace_packet_defaults TracePacketDefaults, 60 track_descriptor TrackDescriptor, 89 trace_uuid TraceUuid,
        135 stack_sample StackSample,
        126 trace_attributes TraceAttributes, 128 gpu_info GpuInfo, 133 zstd_compressed_packets bytes,
        50164 cutrace_capture bytes""",
    "TracePacketDefaults": """
        11 track_event_defaults TrackEventDefaults, 58 timestamp_clock_id varint,
        100 stack_sample_defaults StackSampleDefaults""",
    # The trace as a whole.
    "ClockSnapshot": "1 clocks ClockSnapshot.Clock, 2 primary_trace_clock varint",
    "ClockSnapshot.Clock": "1 clock_id varint, 2 timestamp varint, 3 is_incremental varint",
    "TraceUuid": "1 msb varint, 2 lsb varint",
    "TraceAttributes": "1 attribute TraceAttributes.Attribute",
    "TraceAttributes.Attribute": "1 key bytes, 2 long_value varint, 3 string_value bytes",
    "GpuInfo": "1 gpus GpuInfo.Gpu",
    "GpuInfo.Gpu": """
        1 name bytes, 2 vendor bytes, 3 model bytes, 4 architecture bytes, 5 uuid bytes,
        6 extra_info GpuInfo.Gpu.KeyValue, 7 pci_bdf bytes""",
    "GpuInfo.Gpu.KeyValue": "1 key bytes, 2 value bytes",
    # Work on the GPU.
    "GpuRenderStageEvent": """
        1 event_id varint, 2 duration varint, 5 context varint, 10 submission_id varint, 11 gpu_id varint,
        13 hw_queue_iid varint, 14 stage_iid varint, 18 event_wait_ids varint, 19 kernel_iid varint,
        20 name_iid varint, 21 launch GpuRenderStageEvent.ComputeKernelLaunch""",
    "GpuRenderStageEvent.ComputeKernelLaunch": """
        1 grid_size GpuRenderStageEvent.Dim3, 2 workgroup_size GpuRenderStageEvent.Dim3,
        3 args GpuRenderStageEvent.ExtraComputeArg""",
    "GpuRenderStageEvent.Dim3": "1 x varint, 2 y varint, 3 z varint",
    "GpuRenderStageEvent.ExtraComputeArg": """
        1 name_iid varint, 3 int_value varint, 4 uint_value varint, 5 double_value double,
        7 string_value_iid varint""",
    "GpuCounterEvent": "2 counters GpuCounterEvent.GpuCounter, 3 gpu_id varint, 4 counter_descriptor_iid varint",
    "GpuCounterEvent.GpuCounter": "1 counter_id varint, 3 double_value double",
    "GpuCounterDescriptor": """
        1 specs GpuCounterDescriptor.GpuCounterSpec, 6 counter_groups GpuCounterDescriptor.GpuCounterGroupSpec""",
    "GpuCounterDescriptor.GpuCounterGroupSpec": "1 group_id varint, 2 name bytes, 4 counter_ids varint",
    "GpuCounterDescriptor.GpuCounterSpec": """
        1 counter_id varint, 2 name bytes, 3 description bytes, 7 numerator_units varint, 8 denominator_units varint,
        10 groups varint, 11 value_direction varint""",
    # Tracks and their events.
    "TrackDescriptor": """
        1 uuid varint, 2 name bytes, 3 process ProcessDescriptor, 4 thread ThreadDescriptor, 5 parent_uuid varint,
        8 counter CounterDescriptor, 14 description bytes""",
    "ProcessDescriptor": "1 pid varint, 2 cmdline bytes, 6 process_name bytes",
    "ThreadDescriptor": "1 pid varint, 2 tid varint, 5 thread_name bytes",
    "CounterDescriptor": "2 categories bytes, 3 unit varint, 6 unit_name bytes",
    "TrackEventDefaults": "11 track_uuid varint",
    "TrackEvent": """
        3 category_iids varint, 4 debug_annotations DebugAnnotation, 6 legacy_event TrackEvent.LegacyEvent,
        9 type varint, 10 name_iid varint, 11 track_uuid varint, 12 extra_counter_values varint,
        22 categories bytes, 23 name bytes, 30 counter_value varint, 31 extra_counter_track_uuids varint,
        44 double_counter_value double, 47 flow_ids fixed64,
        3000 gpu_correlation GpuCorrelation, 3001 gpu_api varint""",
    "TrackEvent.LegacyEvent": "2 phase varint, 6 unscoped_id varint, 12 bind_to_enclosing varint",
    "DebugAnnotation": """
        1 name_iid varint, 2 bool_value varint, 3 uint_value varint, 4 int_value varint, 5 double_value double,
        6 string_value bytes, 7 pointer_value varint, 10 name bytes, 11 dict_entries DebugAnnotation,
        12 array_values DebugAnnotation, 17 string_value_iid varint""",
    # Samples of program counters.
    "StackSample": """
        2 task_context_iid varint, 6 callstack_iid varint, 11 primary_weight varint""",
    "StackSampleDefaults": """
        1 source bytes, 2 primary_descriptor StackSample.CounterDescriptor""",
    "StackSample.CounterDescriptor": "2 name bytes, 3 unit varint",
    "StackSample.TaskContext": "1 iid varint, 2 pid varint, 4 async_id varint",
    "StackSample.AsyncContextDescriptor": "1 iid varint, 2 name bytes, 3 kind bytes",
    "Callstack": "1 iid varint, 2 frame_ids varint",
    "Frame": "1 iid varint, 2 function_name_id varint",
    "GpuCorrelation": "1 render_stage_submission_event_ids varint, 2 render_stage_wait_event_ids varint",
    # Interned data.
    "InternedData": """
        1 event_categories EventCategory, 2 event_names EventName, 3 debug_annotation_names DebugAnnotationName,
        5 function_names InternedString, 6 frames Frame, 7 callstacks Callstack,
        23 graphics_contexts InternedGraphicsContext, 24 gpu_specifications InternedGpuRenderStageSpecification,
        29 debug_annotation_string_values InternedString, 47 gpu_counter_descriptors InternedGpuCounterDescriptor,
        48 stack_sample_task_contexts StackSample.TaskContext,
        51 stack_sample_async_context_descriptors StackSample.AsyncContextDescriptor,
        1000 compute_kernels InternedComputeKernel,
        1001 compute_arg_names InternedComputeArgName""",
    "InternedGpuCounterDescriptor": "1 iid varint, 2 counter_descriptor GpuCounterDescriptor, 3 gpu_id varint",
    "EventCategory": "1 iid varint, 2 name bytes",
    "EventName": "1 iid varint, 2 name bytes",
    "DebugAnnotationName": "1 iid varint, 2 name bytes",
    "InternedString": "1 iid varint, 2 str bytes",
    "InternedGraphicsContext": "1 iid varint, 2 pid varint, 3 api varint",
    "InternedGpuRenderStageSpecification": "1 iid varint, 2 name bytes, 3 description bytes, 4 category varint",
    "InternedComputeKernel": """
        1 iid varint, 2 name bytes, 3 demangled_name bytes, 4 arch bytes, 5 args GpuRenderStageEvent.ExtraComputeArg""",
    "InternedComputeArgName": "1 iid varint, 2 name bytes",
}

_SHORT = [bytes((i,)) for i in range(0x80)]


def varint(value: int) -> bytes:
    """A number as varint. A negative number is written as its 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class FieldType(NamedTuple):
    """One field: its number, its tag, and its coding or the name of its nested message."""

    number: int
    tag: bytes
    coding: str


@cache
def field(message: str, name: str) -> FieldType:
    """One field of a message. Raises KeyError with both names for an unknown field."""
    for entry in MESSAGES[message].split(","):
        number, field_name, coding = entry.split()
        if field_name == name:
            return FieldType(
                int(number),
                varint(int(number) << 3 | _WIRE_TYPES.get(coding, 2)),
                coding,
            )
    raise KeyError(f"{message} has no field {name}")


def encode(message: str, values: Mapping[str, Any]) -> bytes:
    """Encode a message from values by field name: numbers, text, bytes, mappings or encoded bytes for nested messages,
    lists for repeated fields. Fields that are None are left out."""
    out = bytearray()
    for name, value in values.items():
        kind = field(message, name)
        for item in value if isinstance(value, list | tuple) else (value,):
            if item is not None:
                out += kind.tag
                out += _coded(kind, item)
    return bytes(out)


def _coded(kind: FieldType, value: Any) -> bytes:
    if kind.coding == "varint":
        return varint(int(value))
    if kind.coding == "double":
        return struct.pack("<d", value)
    if kind.coding == "fixed64":
        return struct.pack("<Q", value)
    if isinstance(value, str):
        body = utf8(value)
    elif isinstance(value, Mapping):
        body = encode(kind.coding, value)
    else:
        body = bytes(value)
    return varint(len(body)) + body


def utf8(value: str) -> bytes:
    """The bytes of a string."""
    return value.encode("utf-8", "replace")


Columns = dict[str, "np.ndarray | Blobs"]


@dataclass(frozen=True)
class FromColumn:
    """The value of a column. The field is omitted where the column holds ``omit``. With ``event`` the column has an
    entry for each event instead of each row."""

    name: str
    omit: int | None = None
    event: bool = False


@dataclass(frozen=True)
class Delta:
    """The difference to the previous ``Delta`` of the segment, of any template. ``event`` is that of
    :class:`FromColumn`."""

    name: str
    event: bool = False


@dataclass(frozen=True)
class Each:
    """A repeated field: the list ``values[offsets[row]:offsets[row + 1]]``. ``event`` as for :class:`FromColumn`."""

    offsets: str
    values: str
    event: bool = False


@dataclass(frozen=True)
class Piece:
    """Encoded fields from the :class:`Blobs` bound as ``table``, by the id in column ``ids``. The key in the
    description is ignored, because the fields have their own numbers."""

    ids: str
    table: str


@dataclass(frozen=True)
class String:
    """A string from the :class:`Blobs` bound as ``table``, by the id in column ``ids``."""

    ids: str
    table: str


@dataclass(frozen=True)
class SegmentPiece:
    """Encoded fields that all events of a segment share: the segment's entry of the :class:`Blobs` bound as ``table``.
    The key in the description is ignored."""

    table: str


@dataclass(frozen=True)
class When:
    """A value that is omitted where a column is ``unless``."""

    column: str
    value: Any
    unless: int = 0


_PREFIXED = frozenset((VARINTS, FIXED64S, DELTA, BLOB, OPEN, GIVEN))
_TAG_SIZE = 8  # bytes for the tag of an operation
_OF_CODING = {"varint": VARINTS, "fixed64": FIXED64S, "double": FIXED64S}


class Template:
    """A compiled description. A description is a mapping as for :func:`encode`; a value may also be one of the classes
    above. ``columns`` are the names that :meth:`bind` needs."""

    def __init__(self, message: str, description: Mapping[str, Any]) -> None:
        self.columns: list[str] = []
        self.program = Program(self._compile(message, description))

    def bind(self, columns: Columns) -> tuple[Program, list[np.ndarray | Blobs]]:
        """The program and its columns, for the native functions."""
        return self.program, [columns[name] for name in self.columns]

    def rows(self, columns: Columns, count: int) -> bytes:
        """The messages of so many rows, one after the other."""
        return encode_rows(self.bind(columns), count)

    def _column(self, name: str) -> int:
        if name not in self.columns:
            self.columns.append(name)
        return self.columns.index(name)

    def _compile(self, message: str, description: Mapping[str, Any]) -> list[Op]:
        items = (
            (name, v if isinstance(v, list | tuple) else (v,))
            for name, v in description.items()
        )
        return self._joined(
            self._field(message, name, value)
            for name, values in items
            for value in values
        )

    def _joined(self, parts: Iterable[list[Op]]) -> list[Op]:
        """Concatenate operations. Adjacent constant bytes are merged, and moved into the next tag if they fit."""
        out: list[Op] = []
        raw = b""
        for part in parts:
            if part and part[0].kind == RAW:
                raw += part[0].raw
                continue
            if raw and part:
                first = part[0]
                if (
                    first.kind in _PREFIXED
                    and not first.optional
                    and len(raw) + len(first.tag) <= _TAG_SIZE
                ):
                    part = [first._replace(tag=raw + first.tag), *part[1:]]
                else:
                    out.append(Op(RAW, raw=raw))
                raw = b""
            out += part
        if raw:
            return [*out, Op(RAW, raw=raw)]
        return out

    def _field(self, message: str, name: str, value: Any) -> list[Op]:
        """The operations of a field. A constant is one operation, which comes first."""
        if isinstance(value, Piece):
            return [
                Op(
                    BLOB,
                    column=self._column(value.ids),
                    column2=self._column(value.table),
                )
            ]
        if isinstance(value, SegmentPiece):
            return [Op(GIVEN, column=self._column(value.table))]
        if isinstance(value, When):
            at = self._column(value.column)
            body = self._joined([self._field(message, name, value.value)])
            return [
                Op(
                    UNLESS,
                    column=at,
                    optional=True,
                    omit=value.unless & (1 << 64) - 1,
                    skip=len(body),
                ),
                *body,
            ]
        kind = field(message, name)
        if isinstance(value, FromColumn):
            omit = (value.omit or 0) & (1 << 64) - 1
            code = _OF_CODING[kind.coding]
            column = self._column(value.name)
            return [
                Op(code, kind.tag, column, 0, value.omit is not None, value.event, omit)
            ]
        if isinstance(value, Delta):
            return [Op(DELTA, kind.tag, self._column(value.name), event=value.event)]
        if isinstance(value, String):
            piece = Op(
                BLOB, column=self._column(value.ids), column2=self._column(value.table)
            )
            return [Op(OPEN, kind.tag), piece, Op(CLOSE)]
        if isinstance(value, Each):
            return [
                Op(
                    REPEATED,
                    kind.tag,
                    self._column(value.offsets),
                    self._column(value.values),
                    event=value.event,
                )
            ]
        if isinstance(value, Mapping):
            body = self._compile(kind.coding, value)
            if any(op.kind != RAW for op in body):
                return [Op(OPEN, kind.tag), *body, Op(CLOSE)]
        if value is None:
            return []
        return [Op(RAW, raw=encode(message, {name: value}))]
