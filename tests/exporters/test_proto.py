"""The table of Perfetto's messages agrees with the perfetto package."""

import re
import subprocess
import sys

import pytest
from google.protobuf.descriptor import FieldDescriptor as F
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from cutrace.exporters.perfetto import proto
from cutrace.perfetto_messages import MESSAGES, cpp_header

_CODINGS = {
    F.TYPE_INT32: "varint", F.TYPE_INT64: "varint", F.TYPE_UINT32: "varint", F.TYPE_UINT64: "varint",
    F.TYPE_BOOL: "varint", F.TYPE_ENUM: "varint", F.TYPE_SINT32: "zigzag", F.TYPE_SINT64: "zigzag",
    F.TYPE_FIXED32: "fixed32", F.TYPE_SFIXED32: "fixed32", F.TYPE_FLOAT: "fixed32",
    F.TYPE_FIXED64: "fixed64", F.TYPE_SFIXED64: "fixed64", F.TYPE_DOUBLE: "double",
    F.TYPE_STRING: "bytes", F.TYPE_BYTES: "bytes",
}  # fmt: skip


#: Fields and messages that the perfetto package lacks. The fields of gpu/gpu_interned_data.proto and
#: gpu/gpu_track_event.proto extend the two public messages. Viewers skip the capture.
_EXTENSIONS = (
    "InternedData.compute_kernels", "InternedData.compute_arg_names", "TrackEvent.gpu_correlation",
    "GpuCorrelation", "InternedComputeKernel", "InternedComputeArgName",
    "GpuRenderStageEvent.cutrace_correlation", "TracePacket.cutrace_table", "TracePacket.cutrace_capture",
)  # fmt: skip


def descriptor(message: str):
    outer, *inner = message.split(".")
    found = getattr(protos, outer).DESCRIPTOR
    for name in inner:
        found = found.nested_types_by_name[name]
    return found


@pytest.mark.parametrize("message", [m for m in MESSAGES if m not in _EXTENSIONS])
def test_fields_are_those_of_the_descriptors(message: str) -> None:
    by_name = {f.name: f for f in descriptor(message).fields}
    for name in (described.split()[1] for described in MESSAGES[message].split(",")):
        if f"{message}.{name}" in _EXTENSIONS:
            assert name not in by_name
            continue
        known = proto.field(message, name)
        theirs = by_name[name]
        nested = theirs.message_type.full_name.removeprefix("perfetto.protos.") if theirs.message_type else ""
        assert (known.number, known.coding) == (theirs.number, nested or _CODINGS[theirs.type])


def test_the_header_for_cpp_has_the_numbers_of_all_fields() -> None:
    found = re.findall(
        r"^namespace (\w+) \{$|^inline constexpr std::uint64_t (\w+) = (\d+);$", cpp_header(), re.MULTILINE
    )
    numbers: dict[str, dict[str, int]] = {}
    for message, name, number in found:
        if message:
            fields = numbers.setdefault(message, {})
        else:
            fields[name] = int(number)
    assert numbers == {
        message.replace(".", ""): {name: int(number) for number, name, _ in (f.split() for f in entries.split(","))}
        for message, entries in MESSAGES.items()
    }


def test_a_wrong_name_is_named() -> None:
    with pytest.raises(KeyError, match="TrackEvent has no field colour"):
        proto.encode("TrackEvent", {"colour": 1})


def test_a_conversion_does_not_need_the_perfetto_package() -> None:
    code = (
        "import sys, cutrace.exporters.perfetto, cutrace._native;"
        "assert not [m for m in sys.modules if m.startswith(('google.protobuf', 'perfetto'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
