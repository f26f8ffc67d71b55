"""Perfetto's messages by field name.

:data:`MESSAGES` lists what the exporter writes, as Perfetto's .proto files have it: this table is all that it knows
about field numbers. A test compares the table with the descriptors of the ``perfetto`` package, which is not needed to
convert: loading it takes as long as converting half a million events.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

#: How a field's value is written: the last word of the wire type, with zigzag and the two fixed sizes apart.
VARINT, ZIGZAG, FIXED32, FIXED64, BYTES, MESSAGE = "varint", "zigzag", "fixed32", "fixed64", "bytes", "message"

_WIRE_TYPES = {VARINT: 0, ZIGZAG: 0, FIXED64: 1, BYTES: 2, MESSAGE: 2, FIXED32: 5}

#: Fields that a row of a table may have at most.
MOST_FIELDS = 32

#: By message, its fields: number, name, and the coding or, for a nested message, the name of that. ``double`` is a
#: fixed64 that holds a floating-point number.
MESSAGES: dict[str, str] = {
    "Trace": "1 packet TracePacket",
    "TracePacket": """
        6 clock_snapshot ClockSnapshot, 8 timestamp varint, 10 trusted_packet_sequence_id varint,
        11 track_event TrackEvent, 12 interned_data InternedData, 13 sequence_flags varint,
        50 compressed_packets bytes, 53 gpu_render_stage_event GpuRenderStageEvent, 58 timestamp_clock_id varint,
        59 trace_packet_defaults TracePacketDefaults, 60 track_descriptor TrackDescriptor, 89 trace_uuid TraceUuid,
        126 trace_attributes TraceAttributes, 128 gpu_info GpuInfo, 133 zstd_compressed_packets bytes,
        50161 cutrace_table CutraceTable, 50164 cutrace_capture bytes""",
    "TracePacketDefaults": "11 track_event_defaults TrackEventDefaults, 58 timestamp_clock_id varint",
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
    # Tracks and what is on them.
    "TrackDescriptor": """
        1 uuid varint, 2 name bytes, 3 process ProcessDescriptor, 4 thread ThreadDescriptor, 5 parent_uuid varint,
        8 counter CounterDescriptor, 14 description bytes, 50161 cutrace_number varint,
        50162 cutrace_process varint, 50163 cutrace_row CutraceRow""",
    "ProcessDescriptor": "1 pid varint, 2 cmdline bytes, 6 process_name bytes",
    "ThreadDescriptor": "1 pid varint, 2 tid varint, 5 thread_name bytes",
    "CounterDescriptor": "2 categories bytes, 3 unit varint, 6 unit_name bytes",
    "TrackEventDefaults": "11 track_uuid varint",
    "TrackEvent": """
        3 category_iids varint, 4 debug_annotations DebugAnnotation, 6 legacy_event TrackEvent.LegacyEvent,
        9 type varint, 10 name_iid varint, 11 track_uuid varint, 22 categories bytes, 23 name bytes,
        30 counter_value varint, 44 double_counter_value double, 47 flow_ids fixed64,
        3000 gpu_correlation GpuCorrelation, 3001 gpu_api varint""",
    "TrackEvent.LegacyEvent": "2 phase varint, 6 unscoped_id varint, 12 bind_to_enclosing varint",
    "DebugAnnotation": """
        1 name_iid varint, 2 bool_value varint, 3 uint_value varint, 4 int_value varint, 5 double_value double,
        6 string_value bytes, 7 pointer_value varint, 10 name bytes, 11 dict_entries DebugAnnotation,
        12 array_values DebugAnnotation, 17 string_value_iid varint""",
    "GpuCorrelation": "1 render_stage_submission_event_ids varint, 2 render_stage_wait_event_ids varint",
    # Interned data.
    "InternedData": """
        1 event_categories EventCategory, 2 event_names EventName, 3 debug_annotation_names DebugAnnotationName,
        23 graphics_contexts InternedGraphicsContext, 24 gpu_specifications InternedGpuRenderStageSpecification,
        29 debug_annotation_string_values InternedString, 1000 compute_kernels InternedComputeKernel,
        1001 compute_arg_names InternedComputeArgName, 50161 cutrace_rows CutraceRow""",
    "EventCategory": "1 iid varint, 2 name bytes",
    "EventName": "1 iid varint, 2 name bytes",
    "DebugAnnotationName": "1 iid varint, 2 name bytes",
    "InternedString": "1 iid varint, 2 str bytes",
    "InternedGraphicsContext": "1 iid varint, 2 pid varint, 3 api varint",
    "InternedGpuRenderStageSpecification": "1 iid varint, 2 name bytes, 3 description bytes, 4 category varint",
    "InternedComputeKernel": """
        1 iid varint, 2 name bytes, 3 demangled_name bytes, 4 arch bytes, 5 args GpuRenderStageEvent.ExtraComputeArg,
        50161 cutrace_row CutraceRow""",
    "InternedComputeArgName": "1 iid varint, 2 name bytes",
    # cutrace's own, which viewers skip: archive.py says what for.
    "CutraceTable": "1 number varint, 2 rows varint, 3 data bytes, 4 first varint",
    "CutraceRow": "1 iid varint, 2 table varint, 3 track_field varint, 4 arguments varint, "
    + ", ".join(f"{5 + i} field_{i} varint" for i in range(MOST_FIELDS)),
}

#: Fields and messages of gpu/gpu_interned_data.proto and gpu/gpu_track_event.proto, which extend the two public
#: messages: the perfetto package does not carry them.
EXTENSIONS = frozenset(
    (
        "InternedData.compute_kernels",
        "InternedData.compute_arg_names",
        "TrackEvent.gpu_correlation",
        "TrackEvent.gpu_api",
        "GpuCorrelation",
        "InternedComputeKernel",
        "InternedComputeArgName",
        "TracePacket.cutrace_table",
        "TracePacket.cutrace_capture",
        "TrackDescriptor.cutrace_number",
        "TrackDescriptor.cutrace_process",
        "TrackDescriptor.cutrace_row",
        "InternedData.cutrace_rows",
        "InternedComputeKernel.cutrace_row",
        "CutraceTable",
        "CutraceRow",
    )
)

_SHORT = [bytes((i,)) for i in range(0x80)]


def varint(value: int) -> bytes:
    """A number as varint; negative ones as their 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass(frozen=True)
class FieldType:
    """One field: its number, how its value is coded, and for a nested message the name of that message."""

    number: int
    coding: str
    message: str = ""
    is_float: bool = False
    tag: bytes = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", varint(self.number << 3 | _WIRE_TYPES[self.coding]))


@cache
def fields(message: str) -> Mapping[str, FieldType]:
    """The fields of a message (``TracePacket``, ``GpuRenderStageEvent.Dim3``) by name."""
    try:
        described = MESSAGES[message]
    except KeyError:
        raise KeyError(f"there is no message {message}") from None
    out = {}
    for one in described.split(","):
        number, name, kind = one.split()
        if kind in MESSAGES:
            out[name] = FieldType(int(number), MESSAGE, kind)
        elif kind == "double":
            out[name] = FieldType(int(number), FIXED64, is_float=True)
        else:
            out[name] = FieldType(int(number), kind)
    return out


def field(message: str, name: str) -> FieldType:
    """One field of a message; KeyError names both when there is none."""
    try:
        return fields(message)[name]
    except KeyError:
        raise KeyError(f"{message} has no field {name}") from None


def encode(message: str, values: Mapping[str, Any]) -> bytes:
    """A message from values by field name: numbers, text, bytes, mappings for nested messages, lists for repeated
    fields. Fields that are None are left out."""
    out = bytearray()
    for name, value in values.items():
        kind = field(message, name)
        for item in value if isinstance(value, list | tuple) else (value,):
            if item is not None:
                out += kind.tag
                out += _coded(kind, item)
    return bytes(out)


def _coded(kind: FieldType, value: Any) -> bytes:
    if kind.coding == MESSAGE:
        body = encode(kind.message, value)
        return varint(len(body)) + body
    if kind.coding == BYTES:
        body = value.encode("utf-8", "replace") if isinstance(value, str) else bytes(value)
        return varint(len(body)) + body
    if kind.coding == ZIGZAG:
        return varint(value << 1 ^ value >> 63)
    if kind.coding == FIXED64:
        return struct.pack("<d", value) if kind.is_float else struct.pack("<Q", value & (1 << 64) - 1)
    if kind.coding == FIXED32:
        return struct.pack("<f", value) if kind.is_float else struct.pack("<I", value & (1 << 32) - 1)
    return varint(int(value))
