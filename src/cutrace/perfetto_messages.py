"""Messages of protobuf: those of Perfetto that the exporter writes or the importer reads, and those of pprof that are
written.

:data:`MESSAGES` has the names and numbers of Perfetto's .proto files. A test compares it with the descriptors of the
``perfetto`` package. cutrace does not import that package, because the import takes as long as converting half a
million events.

The build runs this file as a script, which writes the numbers as constants for the importer in C++. So only the
standard library is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

#: The fields of each message: number, name, and the coding or the name of the nested message.
MESSAGES: dict[str, str] = {
    "Trace": "1 packet TracePacket",
    "TracePacket": """
        3 trusted_uid varint, 6 clock_snapshot ClockSnapshot, 8 timestamp varint,
        10 trusted_packet_sequence_id varint, 11 track_event TrackEvent, 12 interned_data InternedData,
        13 sequence_flags varint, 36 synchronization_marker bytes, 41 incremental_state_cleared varint,
        42 previous_packet_dropped varint, 43 process_descriptor ProcessDescriptor,
        44 thread_descriptor ThreadDescriptor, 50 compressed_packets bytes, 52 gpu_counter_event GpuCounterEvent,
        53 gpu_render_stage_event GpuRenderStageEvent, 58 timestamp_clock_id varint,
        59 trace_packet_defaults TracePacketDefaults, 60 track_descriptor TrackDescriptor,
        71 gpu_mem_total_event GpuMemTotalEvent, 79 trusted_pid varint,
        87 first_packet_on_sequence varint, 89 trace_uuid TraceUuid, 98 machine_id varint,
        135 stack_sample StackSample,
        126 trace_attributes TraceAttributes, 128 gpu_info GpuInfo,
        129 generic_gpu_frequency_event GenericGpuFrequencyEvent, 133 zstd_compressed_packets bytes,
        50161 cutrace_table bytes, 50164 cutrace_capture bytes""",
    "TracePacketDefaults": """
        11 track_event_defaults TrackEventDefaults, 58 timestamp_clock_id varint,
        100 stack_sample_defaults StackSampleDefaults""",
    # The trace as a whole.
    "ClockSnapshot": "1 clocks ClockSnapshot.Clock, 2 primary_trace_clock varint",
    "ClockSnapshot.Clock": """
        1 clock_id varint, 2 timestamp varint, 3 is_incremental varint, 4 unit_multiplier_ns varint""",
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
        1 event_id varint, 2 duration varint, 3 hw_queue_id varint, 5 context varint,
        6 extra_data GpuRenderStageEvent.ExtraData, 10 submission_id varint, 11 gpu_id varint,
        13 hw_queue_iid varint, 14 stage_iid varint, 17 name bytes, 18 event_wait_ids varint, 19 kernel_iid varint,
        20 name_iid varint, 21 launch GpuRenderStageEvent.ComputeKernelLaunch, 100 cutrace_correlation varint""",
    "GpuRenderStageEvent.ComputeKernelLaunch": """
        1 grid_size GpuRenderStageEvent.Dim3, 2 workgroup_size GpuRenderStageEvent.Dim3,
        3 args GpuRenderStageEvent.ExtraComputeArg""",
    "GpuRenderStageEvent.ExtraData": "1 name bytes, 2 value bytes",
    "GpuRenderStageEvent.Dim3": "1 x varint, 2 y varint, 3 z varint",
    "GpuRenderStageEvent.ExtraComputeArg": """
        1 name_iid varint, 2 name bytes, 3 int_value varint, 4 uint_value varint, 5 double_value double,
        6 string_value bytes, 7 string_value_iid varint""",
    "GpuCounterEvent": """
        1 counter_descriptor GpuCounterDescriptor, 2 counters GpuCounterEvent.GpuCounter, 3 gpu_id varint,
        4 counter_descriptor_iid varint""",
    "GpuCounterEvent.GpuCounter": "1 counter_id varint, 2 int_value varint, 3 double_value double",
    "GpuMemTotalEvent": "1 gpu_id varint, 2 pid varint, 3 size varint",
    "GenericGpuFrequencyEvent": "1 gpu_id varint, 2 frequency_khz varint",
    "GpuCounterDescriptor": """
        1 specs GpuCounterDescriptor.GpuCounterSpec, 6 counter_groups GpuCounterDescriptor.GpuCounterGroupSpec""",
    "GpuCounterDescriptor.GpuCounterGroupSpec": "1 group_id varint, 2 name bytes, 4 counter_ids varint",
    "GpuCounterDescriptor.GpuCounterSpec": """
        1 counter_id varint, 2 name bytes, 3 description bytes, 7 numerator_units varint, 8 denominator_units varint,
        10 groups varint, 11 value_direction varint""",
    # Tracks and their events.
    "TrackDescriptor": """
        1 uuid varint, 2 name bytes, 3 process ProcessDescriptor, 4 thread ThreadDescriptor, 5 parent_uuid varint,
        8 counter CounterDescriptor, 10 static_name bytes, 11 child_ordering varint, 12 sibling_order_rank varint,
        13 atrace_name bytes, 14 description bytes, 15 sibling_merge_behavior varint""",
    "ProcessDescriptor": "1 pid varint, 2 cmdline bytes, 6 process_name bytes",
    "ThreadDescriptor": "1 pid varint, 2 tid varint, 5 thread_name bytes",
    "CounterDescriptor": """
        1 type varint, 2 categories bytes, 3 unit varint, 4 unit_multiplier varint, 5 is_incremental varint,
        6 unit_name bytes""",
    "TrackEventDefaults": """
        11 track_uuid varint, 31 extra_counter_track_uuids varint, 45 extra_double_counter_track_uuids varint""",
    "TrackEvent": """
        1 timestamp_delta_us varint, 3 category_iids varint, 4 debug_annotations DebugAnnotation,
        6 legacy_event TrackEvent.LegacyEvent, 9 type varint, 10 name_iid varint, 11 track_uuid varint,
        12 extra_counter_values varint, 16 timestamp_absolute_us varint, 22 categories bytes, 23 name bytes,
        30 counter_value varint, 31 extra_counter_track_uuids varint, 36 flow_ids_old varint,
        42 terminating_flow_ids_old varint, 44 double_counter_value double,
        45 extra_double_counter_track_uuids varint, 46 extra_double_counter_values double, 47 flow_ids fixed64,
        48 terminating_flow_ids fixed64, 3000 gpu_correlation GpuCorrelation""",
    "TrackEvent.LegacyEvent": """
        1 name_iid varint, 2 phase varint, 3 duration_us varint, 6 unscoped_id varint, 10 local_id varint,
        11 global_id varint, 12 bind_to_enclosing varint, 18 pid_override varint, 19 tid_override varint""",
    "DebugAnnotation": """
        1 name_iid varint, 2 bool_value varint, 3 uint_value varint, 4 int_value varint, 5 double_value double,
        6 string_value bytes, 7 pointer_value varint, 9 legacy_json_value bytes, 10 name bytes,
        11 dict_entries DebugAnnotation, 12 array_values DebugAnnotation, 17 string_value_iid varint""",
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

#: The same of pprof (profile.proto of github.com/google/pprof).
PPROF: dict[str, str] = {
    "pprof.Profile": """
        1 sample_type pprof.ValueType, 2 sample pprof.Sample, 4 location pprof.Location, 5 function pprof.Function,
        6 string_table bytes, 9 time_nanos varint, 10 duration_nanos varint, 13 comment varint,
        14 default_sample_type varint
    """,
    "pprof.ValueType": "1 type varint, 2 unit varint",
    "pprof.Sample": "1 location_id varint, 2 value varint",
    "pprof.Location": "1 id varint, 4 line pprof.Line",
    "pprof.Line": "1 function_id varint, 2 line varint",
    "pprof.Function": "1 id varint, 2 name varint, 3 system_name varint, 4 filename varint",
}


def cpp_header() -> str:
    """The numbers of all fields as C++: ``perfetto::TrackEvent::name`` is 23."""
    return "\n".join(_header())


def _header() -> Iterator[str]:
    yield "// The numbers of fields, made from perfetto_messages.py. Do not edit."
    yield "#pragma once"
    yield ""
    yield "#include <cstdint>"
    yield ""
    yield "namespace cutrace::perfetto {"
    yield ""
    for message, fields in MESSAGES.items():
        yield f"namespace {message.replace('.', '')} {{"
        for entry in fields.split(","):
            number, name, _ = entry.split()
            yield f"inline constexpr std::uint64_t {name} = {number};"
        yield "}"
    yield ""
    yield "}  // namespace cutrace::perfetto"
    yield ""


if __name__ == "__main__":
    header = Path(sys.argv[1])
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(cpp_header())
