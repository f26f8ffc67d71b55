"""Reads a Perfetto trace back with the perfetto package's own classes, as a viewer would.

Interned names, defaults, incremental clocks, compressed groups and pairs of begin and end events are resolved. The
results are slices and instants with times, names and arguments.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

CLEARED, NEEDS_STATE = 1, 2
DERIVED = "cutrace.derived"


def _extensions() -> dict[str, Any]:
    """The extensions of the gpu data source, declared again from their .proto files."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/gpu.proto", package="perfetto.protos", syntax="proto2", dependency=[protos.DESCRIPTOR.name]
    )
    scalar = descriptor_pb2.FieldDescriptorProto

    correlation = file.message_type.add(name="GpuCorrelation")
    for number, name in enumerate(("render_stage_submission_event_ids", "render_stage_wait_event_ids"), 1):
        correlation.field.add(name=name, number=number, type=scalar.TYPE_UINT64, label=scalar.LABEL_REPEATED)
    p = ".perfetto.protos."
    for name, number, extendee, typ, label, typename in (
        ("compute_kernels", 1000, "InternedData", scalar.TYPE_MESSAGE, 3, p + "InternedComputeKernel"),
        ("compute_arg_names", 1001, "InternedData", scalar.TYPE_MESSAGE, 3, p + "InternedComputeArgName"),
        ("gpu_correlation", 3000, "TrackEvent", scalar.TYPE_MESSAGE, 1, p + "GpuCorrelation"),
        ("cutrace_correlation", 100, "GpuRenderStageEvent", scalar.TYPE_UINT32, 1, ""),
    ):
        file.extension.add(
            name=name, number=number, extendee=p + extendee, type=typ, label=label, type_name=typename or None
        )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    message_factory.GetMessageClassesForFiles([file.name], pool)
    return {e.name: pool.FindExtensionByName(f"perfetto.protos.{e.name}") for e in file.extension}


EXTENSIONS = _extensions()


@dataclass
class Slice:
    """A slice or an instant. ``track`` is the descriptor of its track, and ``parents`` has the descriptors of the
    track's ancestors. ``around`` has the slices of the track around it, outermost first. In Perfetto's engine, an
    instant is also around later ones at the same time."""

    start: int
    end: int | None
    name: str
    categories: tuple[str, ...]
    args: dict[str, Any]
    track: Any
    parents: tuple[Any, ...]
    instant: bool = False
    submits: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    around: tuple[Slice, ...] = field(default=(), repr=False, compare=False)

    @property
    def pid(self) -> int:
        for t in (self.track, *self.parents):
            if t.HasField("thread"):
                return int(t.thread.pid)
            if t.HasField("process"):
                return int(t.process.pid)
        return 0

    @property
    def is_call(self) -> bool:
        """Whether it is a call of the CUDA API."""
        return bool({"cuda", "cuda_runtime", "cuda_driver"} & set(self.categories))

    @property
    def tid(self) -> int:
        return next((int(t.thread.tid) for t in (self.track, *self.parents) if t.HasField("thread")), 0)


@dataclass
class GpuEvent:
    """A gpu_render_stage_event with all its referenced data."""

    start: int
    end: int
    event_id: int
    name: str
    stage: str
    queue: str
    queue_iid: int
    category: int
    pid: int
    api: int
    gpu: int
    submission: int
    kernel: Any | None
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: dict[str, Any]
    waits: tuple[int, ...] = ()


@dataclass
class Sample:
    """A value of a counter. ``track`` is as in a slice."""

    time: int
    value: float
    categories: tuple[str, ...]
    track: Any
    parents: tuple[Any, ...]

    @property
    def name(self) -> str:
        return str(self.track.name)


@dataclass
class Step:
    """A step of a flow on the track of a thread."""

    time: int
    phase: str
    id: int
    encloses: bool
    name: str
    categories: tuple[str, ...]
    tid: int


@dataclass
class Decoded:
    """A decoded trace. ``derived`` has the slices that are not records but are derived from records."""

    slices: list[Slice] = field(default_factory=list)
    derived: list[Slice] = field(default_factory=list)
    counters: list[Sample] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    gpu: list[GpuEvent] = field(default_factory=list)
    tracks: dict[int, Any] = field(default_factory=dict)
    gpus: list[Any] = field(default_factory=list)
    clocks: list[dict[int, int]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    packets: Counter[str] = field(default_factory=Counter)
    written: list[int] = field(default_factory=list)  # times of track events, in the order of the file


class _Sequence:
    def __init__(self) -> None:
        self.valid = False
        self.interned: dict[tuple[str, int], Any] = {}
        self.clock_id = 0
        self.track = 0
        self.anchored = 0
        self.clocks: dict[int, int] = {}

    def clear(self) -> None:
        self.valid, self.interned, self.clock_id, self.track = True, {}, 0, 0


def packets(path: Path) -> Iterator[Any]:
    """Yield all packets of a file. Compressed groups are unpacked."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    trace = protos.Trace()
    trace.ParseFromString(data)
    for packet in trace.packet:
        group = None
        if packet.HasField("compressed_packets"):
            group = zlib.decompress(packet.compressed_packets)
        elif packet.HasField("zstd_compressed_packets"):
            group = zstandard.ZstdDecompressor().decompress(packet.zstd_compressed_packets)
        if group is None:
            yield packet
            continue
        inner = protos.Trace()
        inner.ParseFromString(group)
        yield from inner.packet


def decode(path: Path) -> Decoded:
    """Decode everything in a trace. Fails on events that an importer would silently drop."""
    out = Decoded()
    sequences: dict[int, _Sequence] = defaultdict(_Sequence)
    events: list[tuple[int, int, Any, int, dict[tuple[str, int], Any]]] = []
    for order, packet in enumerate(packets(path)):
        sequence = sequences[packet.trusted_packet_sequence_id]
        assert packet.trusted_packet_sequence_id, "a packet without a sequence"
        if packet.sequence_flags & CLEARED:
            sequence.clear()
        if packet.HasField("trace_packet_defaults"):
            sequence.clock_id = packet.trace_packet_defaults.timestamp_clock_id
            sequence.track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField("interned_data"):
            _intern(sequence, packet.interned_data)
        if packet.HasField("clock_snapshot"):
            read = {c.clock_id: c.timestamp for c in packet.clock_snapshot.clocks}
            for clock in packet.clock_snapshot.clocks:
                if clock.is_incremental:
                    assert 64 <= clock.clock_id < 128
                    assert sequence.anchored <= read[6], "snapshots of a clock go back"
                    sequence.anchored = sequence.clocks[clock.clock_id] = read[6]
            if not any(c.is_incremental for c in packet.clock_snapshot.clocks):
                out.clocks.append(read)
        if packet.sequence_flags & NEEDS_STATE:
            assert sequence.valid, "state is needed before it was begun"
        if packet.HasField("track_descriptor"):
            out.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("gpu_info"):
            out.gpus = list(packet.gpu_info.gpus)
        if packet.HasField("trace_attributes"):
            for a in packet.trace_attributes.attribute:
                out.attributes[a.key] = a.string_value if a.HasField("string_value") else a.long_value
        if packet.HasField("track_event") or packet.HasField("gpu_render_stage_event"):
            time = packet.timestamp
            clock = packet.timestamp_clock_id or sequence.clock_id
            if clock >= 64:
                sequence.clocks[clock] += time
                time = sequence.clocks[clock]
            assert time > 0, "a packet at time 0 is dropped"
            state = sequence.interned
            events.append((time, order, packet, sequence.track, state))
            if packet.HasField("track_event"):
                out.written.append(time)
        out.packets[packet.WhichOneof("data") or "none"] += 1
    _play(out, events)
    ids = [e.event_id for e in out.gpu]
    assert len(ids) == len(set(ids)), "event ids repeat"
    return out


def _intern(sequence: _Sequence, data: Any) -> None:
    lists = {f.name: value for f, value in data.ListFields()}
    for name, entries in lists.items():
        for entry in entries:
            assert entry.iid > 0
            before = sequence.interned.setdefault((name, entry.iid), entry)
            assert before == entry, f"{name} {entry.iid} means two things"


def _play(out: Decoded, events: list[Any]) -> None:
    open_slices: dict[int, list[Slice]] = defaultdict(list)
    moments: dict[int, list[Slice]] = defaultdict(list)
    for time, _, packet, default, state in sorted(events, key=lambda e: e[:2]):
        if packet.HasField("gpu_render_stage_event"):
            out.gpu.append(_gpu_event(time, packet.gpu_render_stage_event, state))
            continue
        event = packet.track_event
        uuid = event.track_uuid or default
        track = out.tracks[uuid]
        for extra, value in zip(event.extra_counter_track_uuids, event.extra_counter_values, strict=True):
            counter = out.tracks[extra]
            assert counter.HasField("counter")
            categories = tuple(counter.counter.categories)
            out.counters.append(Sample(time, float(value), categories, counter, _above(out, counter)))
        assert len(event.extra_counter_values) <= 8, "an importer drops the event"
        if event.type == 2:
            open_slices[uuid].pop().end = time
            moments[uuid] = []
            continue
        parents = _above(out, track)
        categories = (*(state["event_categories", i].name for i in event.category_iids), *event.categories)
        if event.type == 4:
            assert track.HasField("counter")
            out.counters.append(Sample(time, _counted(event), tuple(track.counter.categories), track, parents))
            continue
        name = state["event_names", event.name_iid].name if event.name_iid else event.name
        if event.HasField("legacy_event"):
            step = event.legacy_event
            phase, tid = chr(step.phase), track.thread.tid
            out.steps.append(Step(time, phase, step.unscoped_id, step.bind_to_enclosing, name, categories, tid))
            continue
        correlation = event.Extensions[EXTENSIONS["gpu_correlation"]]
        s = Slice(
            time,
            time if event.type == 3 else None,
            name,
            categories,
            {_name(a, state): _value(a, state) for a in event.debug_annotations},
            track,
            parents,
            event.type == 3,
            tuple(correlation.render_stage_submission_event_ids),
            tuple(correlation.render_stage_wait_event_ids),
        )
        moments[uuid] = [each for each in moments[uuid] if each.start == time]
        s.around = (*open_slices[uuid], *moments[uuid])
        if s.instant:
            moments[uuid].append(s)
        (out.derived if DERIVED in categories else out.slices).append(s)
        if event.type == 1:
            open_slices[uuid].append(s)
    for stack in open_slices.values():
        assert all("still open" in s.track.name for s in stack), "a slice has no end"


def _above(out: Decoded, track: Any) -> tuple[Any, ...]:
    """The tracks above a track, the nearest first."""
    parents = []
    while track.parent_uuid:
        track = out.tracks[track.parent_uuid]
        parents.append(track)
    return tuple(parents)


def _gpu_event(time: int, event: Any, state: dict[tuple[str, int], Any]) -> GpuEvent:
    queue = state["gpu_specifications", event.hw_queue_iid]
    stage = state["gpu_specifications", event.stage_iid]
    context = state["graphics_contexts", event.context]
    kernel = state["compute_kernels", event.kernel_iid] if event.kernel_iid else None
    args = {}
    for arg in (*(kernel.args if kernel else ()), *event.launch.args):
        args[state["compute_arg_names", arg.name_iid].name] = _value(arg, state)
    dims = [tuple(args.get(f"launch.{size}.{a}", 0) for a in "xyz") for size in ("grid_size", "workgroup_size")]
    return GpuEvent(
        time, time + event.duration, event.event_id, state["event_names", event.name_iid].name, stage.name, queue.name,
        event.hw_queue_iid, stage.category, context.pid, context.api, event.gpu_id,
        event.Extensions[EXTENSIONS["cutrace_correlation"]], kernel, dims[0], dims[1], args,
        tuple(event.event_wait_ids),
    )  # fmt: skip


def _name(annotation: Any, state: dict[tuple[str, int], Any]) -> str:
    if annotation.name_iid:
        return str(state["debug_annotation_names", annotation.name_iid].name)
    return str(annotation.name)


def _counted(event: Any) -> float:
    """The value of a counter, from any of its fields."""
    return float(event.counter_value if event.HasField("counter_value") else event.double_counter_value)


def _value(arg: Any, state: dict[tuple[str, int], Any]) -> Any:
    kind = arg.WhichOneof("value")
    if kind == "string_value_iid":
        return state["debug_annotation_string_values", arg.string_value_iid].str.decode()
    if kind is None and getattr(arg, "array_values", None):
        return [_value(item, state) for item in arg.array_values]
    if kind is None:
        return {_name(item, state): _value(item, state) for item in getattr(arg, "dict_entries", ())}
    return getattr(arg, kind)
