"""Perfetto's messages by field name.

Field numbers and wire types come from the descriptors of the ``perfetto`` package. The extensions that it does not
carry are given here, in :data:`EXTENSIONS`: this and the descriptors are all the exporter knows about numbers.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

#: How a field's value is written: the last word of the wire type, with zigzag and the two fixed sizes apart.
VARINT, ZIGZAG, FIXED32, FIXED64, BYTES, MESSAGE = "varint", "zigzag", "fixed32", "fixed64", "bytes", "message"

_WIRE_TYPES = {VARINT: 0, ZIGZAG: 0, FIXED64: 1, BYTES: 2, MESSAGE: 2, FIXED32: 5}
_F = FieldDescriptor
_CODINGS = {
    _F.TYPE_INT32: VARINT, _F.TYPE_INT64: VARINT, _F.TYPE_UINT32: VARINT, _F.TYPE_UINT64: VARINT,
    _F.TYPE_BOOL: VARINT, _F.TYPE_ENUM: VARINT, _F.TYPE_SINT32: ZIGZAG, _F.TYPE_SINT64: ZIGZAG,
    _F.TYPE_FIXED32: FIXED32, _F.TYPE_SFIXED32: FIXED32, _F.TYPE_FLOAT: FIXED32,
    _F.TYPE_FIXED64: FIXED64, _F.TYPE_SFIXED64: FIXED64, _F.TYPE_DOUBLE: FIXED64,
    _F.TYPE_STRING: BYTES, _F.TYPE_BYTES: BYTES, _F.TYPE_MESSAGE: MESSAGE,
}  # fmt: skip


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


#: Fields of messages that the perfetto package does not carry: gpu/gpu_interned_data.proto and
#: gpu/gpu_track_event.proto extend the two public messages, and their own types come with them.
EXTENSIONS: dict[str, dict[str, FieldType]] = {
    "InternedData": {
        "compute_kernels": FieldType(1000, MESSAGE, "InternedComputeKernel"),
        "compute_arg_names": FieldType(1001, MESSAGE, "InternedComputeArgName"),
    },
    "TrackEvent": {
        "gpu_correlation": FieldType(3000, MESSAGE, "GpuCorrelation"),
        "gpu_api": FieldType(3001, VARINT),
    },
    "GpuCorrelation": {
        "render_stage_submission_event_ids": FieldType(1, VARINT),
        "render_stage_wait_event_ids": FieldType(2, VARINT),
    },
    "InternedComputeKernel": {
        "iid": FieldType(1, VARINT),
        "name": FieldType(2, BYTES),
        "demangled_name": FieldType(3, BYTES),
        "arch": FieldType(4, BYTES),
        "args": FieldType(5, MESSAGE, "GpuRenderStageEvent.ExtraComputeArg"),
    },
    "InternedComputeArgName": {"iid": FieldType(1, VARINT), "name": FieldType(2, BYTES)},
}

_PREFIX = "perfetto.protos."


@cache
def fields(message: str) -> Mapping[str, FieldType]:
    """The fields of a message (``TracePacket``, ``GpuRenderStageEvent.Dim3``) by name."""
    out = dict(EXTENSIONS.get(message, {}))
    outer, *inner = message.split(".")
    kind = getattr(protos, outer, None)
    if kind is not None:
        descriptor: Descriptor = kind.DESCRIPTOR
        for name in inner:
            descriptor = descriptor.nested_types_by_name[name]
        for field in descriptor.fields:
            nested = field.message_type.full_name.removeprefix(_PREFIX) if field.message_type else ""
            is_float = field.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT)
            out[field.name] = FieldType(field.number, _CODINGS[field.type], nested, is_float)
    if not out:
        raise KeyError(f"there is no message {message}")
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
