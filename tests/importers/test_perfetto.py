"""Import of Perfetto traces of any tool. Events that viewers show become rows."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

import captures
import cutrace
from cutrace import BadCapture
from cutrace.exporters.perfetto import proto
from cutrace.importers import perfetto
from cutrace.importers.base import SourceFile

S, MS = 10**9, 10**6
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
#: A process, two of its threads, a track below it, and two counters.
PROCESS, MAIN, WORKER, CUSTOM, USED, RATE = 1, 2, 3, 4, 5, 6


class Maker:
    """Writes a trace packet by packet."""

    def __init__(self) -> None:
        self.trace = protos.Trace()
        process = self.packet(sequence_flags=1).track_descriptor
        process.uuid, process.process.pid, process.process.process_name = PROCESS, 70, "game"
        for uuid, tid, name in ((MAIN, 70, "main"), (WORKER, 71, "worker")):
            track = self.packet().track_descriptor
            track.uuid, track.thread.pid, track.thread.tid, track.thread.thread_name = uuid, 70, tid, name
        for uuid, name in ((CUSTOM, "frames"), (USED, "memory"), (RATE, "rate")):
            track = self.packet().track_descriptor
            track.uuid, track.parent_uuid, track.name = uuid, PROCESS, name
            if uuid == USED:
                track.counter.unit = protos.CounterDescriptor.UNIT_SIZE_BYTES
            elif uuid == RATE:
                track.counter.is_incremental, track.counter.unit_multiplier, track.counter.unit_name = True, 10, "Hz"

    def packet(self, sequence: int = 1, **fields: Any) -> Any:
        packet = self.trace.packet.add(trusted_packet_sequence_id=sequence)
        for name, value in fields.items():
            setattr(packet, name, value)
        return packet

    def event(self, kind: int, track: int, time: int, name: str = "", **fields: Any) -> Any:
        event = self.packet(timestamp=S + time).track_event
        event.type, event.track_uuid = kind, track
        if name:
            event.name = name
        for key, value in fields.items():
            getattr(event, key).extend(value) if isinstance(value, list) else setattr(event, key, value)
        return event

    def write(self, path: Path) -> Path:
        path.write_bytes(self.trace.SerializeToString())
        return path


def rows(trace: cutrace.Trace, table: str, *fields: str) -> list[tuple[Any, ...]]:
    """Some fields of rows in order of time. Times count from the first second."""
    found = trace.table(table)
    columns = []
    for field in fields:
        values = found[field]
        if field in ("name", "category", "arguments", "unit", "text"):
            values = trace.strings.take(values)
        elif field in ("start", "end", "time"):
            values = values.astype("i8") - S
        columns.append(values.tolist())
    return sorted(zip(*columns, strict=True))


def balanced(trace: cutrace.Trace) -> cutrace.Trace:
    assert all(account.balanced for account in trace.imports[0].accounts)
    return trace


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_slices_of_threads_nest_and_have_their_arguments(maker, tmp_path):
    outer = maker.event(BEGIN, MAIN, 10, "outer", categories=["a", "b"])
    outer.debug_annotations.add(name="count", int_value=-5)
    outer.debug_annotations.add(name="ratio", double_value=0.5)
    nested = outer.debug_annotations.add(name="nested")
    nested.dict_entries.add(name="yes", bool_value=True)
    listed = outer.debug_annotations.add(name="listed")
    listed.array_values.add(string_value="x")
    listed.array_values.add(uint_value=1 << 63)
    maker.event(BEGIN, MAIN, 12, "inner")
    maker.event(BEGIN, WORKER, 13, "other")
    maker.event(END, MAIN, 15).debug_annotations.add(name="result", int_value=3)
    maker.event(END, MAIN, 20)
    maker.event(END, WORKER, 30)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "host_slices", "start", "end", "thread", "name", "category", "arguments") == [
            (10, 20, 70, "outer", "a,b",
             '{"count":-5,"ratio":0.5,"nested":{"yes":true},"listed":["x",9223372036854775808]}'),
            (12, 15, 70, "inner", "", '{"result":3}'),
            (13, 30, 71, "other", "", ""),
        ]  # fmt: skip
        assert [(p.pid, p.name) for p in trace.processes] == [(70, "game")]
        assert sorted(rows(trace, "threads", "thread", "name")) == [(70, "main"), (71, "worker")]
        assert trace.imports[0].lost == 0


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(BEGIN, 10), (BEGIN, 20), (END, 30), (END, 29)], [(10, 29), (20, 30)]),  # the last times are inexact
        ([(BEGIN, 10), (BEGIN, 20), (END, 20), (END, 30)], [(10, 30), (20, 20)]),
        ([(BEGIN, 10), (BEGIN, 20), (END, 19), (END, 30)], [(10, 19), (20, 30)]),  # all starts come before the ends
    ],
)
def test_an_end_is_of_the_latest_begin_unless_it_is_earlier(maker, tmp_path, times, expected):
    for kind, time in times:
        maker.event(kind, MAIN, time, "slice" if kind == BEGIN else None)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "host_slices", "start", "end") == expected


def test_an_end_with_a_name_is_of_the_slice_with_this_name(maker, tmp_path):
    for time, name in ((10, "outer"), (20, "middle"), (30, "inner")):
        maker.event(BEGIN, MAIN, time, name)
    for time, name in ((40, "another"), (50, "middle"), (60, "")):
        maker.event(END, MAIN, time, name)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        expected = [(10, 60, "outer"), (20, 50, "middle"), (30, 50, "inner")]
        assert rows(trace, "host_slices", "start", "end", "name") == expected
        assert list(trace.imports[0].leftovers()) == ["1 ends whose names no open slice has left out"]


def test_other_tracks_are_threads_with_their_name(maker, tmp_path):
    maker.event(BEGIN, CUSTOM, 10, "frame")
    maker.event(END, CUSTOM, 20)
    maker.event(INSTANT, CUSTOM, 15, "vsync", categories=["gfx"])
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        ((start, end, thread, name),) = rows(trace, "host_slices", "start", "end", "thread", "name")
        assert (start, end, name) == (10, 20, "frame")
        assert rows(trace, "instants", "time", "thread", "name", "category") == [(15, thread, "vsync", "gfx")]
        assert (thread, "frames") in rows(trace, "threads", "thread", "name")


@pytest.mark.parametrize("events", [2, 3000])
def test_descriptors_may_come_behind_the_first_events(maker, tmp_path, events):
    for time in range(events):
        maker.event(BEGIN, 21, 10 * time, "a")
        maker.event(END, 21, 10 * time + 3)
        maker.event(INSTANT, 22, 10 * time, "b")
    for uuid, parent in ((21, 23), (22, 23), (23, 24)):
        track = maker.packet().track_descriptor
        track.uuid, track.parent_uuid, track.name = uuid, parent, f"t{uuid}"
    process = maker.packet().track_descriptor
    process.uuid, process.process.pid = 24, 90
    maker.event(INSTANT, 22, 10 * events, "b")
    maker.event(INSTANT, 99, 1, "never described")
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert [row[1] for row in rows(trace, "host_slices", "start", "end")] == [10 * i + 3 for i in range(events)]
        of = Counter(trace.processes[p].pid for (p,) in rows(trace, "instants", "process"))
        # The importer does not wait forever for a missing descriptor.
        assert of[90] == (3 if events == 2 else 1)
        assert of.total() == events + 2
        assert trace.imports[0].lost == 0


def test_the_last_names_of_a_thread_and_a_process_hold(maker, tmp_path):
    for name in ("old", "new"):
        track = maker.packet().track_descriptor
        track.uuid, track.thread.pid, track.thread.tid, track.thread.thread_name = 30, 95, 96, name
        maker.event(INSTANT, 30, 10, "m")
    process = maker.packet().track_descriptor
    process.uuid, process.process.pid, process.process.process_name = 31, 95, "late"
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert [p.name for p in trace.processes if p.pid == 95] == ["late"]
        assert trace.strings.take(trace.threads["name"]).tolist() == ["old", "new"]


def test_counters_have_values_and_units(maker, tmp_path):
    maker.event(COUNTER, USED, 10, counter_value=-4)
    maker.event(COUNTER, USED, 20, double_counter_value=2.5)
    for time in (11, 12):
        maker.event(COUNTER, RATE, time, counter_value=3)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "counters", "time", "name", "value", "unit") == [
            (10, "memory", -4.0, "bytes"), (11, "rate", 30.0, "Hz"), (12, "rate", 60.0, "Hz"),
            (20, "memory", 2.5, "bytes"),
        ]  # fmt: skip


def test_counters_in_the_packet_of_another_event(maker, tmp_path):
    maker.event(
        INSTANT, MAIN, 10, "m", extra_counter_track_uuids=[USED, RATE], extra_counter_values=[-4, 3],
        extra_double_counter_track_uuids=[RATE], extra_double_counter_values=[0.5],
    )  # fmt: skip
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "instants", "time", "name") == [(10, "m")]
        found = rows(trace, "counters", "time", "name", "value", "unit")
        assert found == [(10, "memory", -4.0, "bytes"), (10, "rate", 30.0, "Hz"), (10, "rate", 35.0, "Hz")]


def test_counters_of_all_events_of_a_sequence(maker, tmp_path):
    track = maker.packet(2).track_descriptor
    track.uuid, track.parent_uuid = 7, MAIN
    track.counter.type, track.counter.is_incremental = protos.CounterDescriptor.COUNTER_THREAD_TIME_NS, True
    defaults = maker.packet(2).trace_packet_defaults.track_event_defaults
    defaults.track_uuid = MAIN
    defaults.extra_counter_track_uuids.extend([7, USED])
    defaults.extra_double_counter_track_uuids.append(CUSTOM)
    for time, cleared in ((10, False), (20, False), (30, True), (40, False)):
        packet = maker.packet(2, timestamp=S + time, incremental_state_cleared=cleared)
        event = packet.track_event
        event.type, event.name = INSTANT, "m"
        event.extra_counter_values.extend([5, 1] if time < 40 else [5])
        event.extra_double_counter_values.append(0.5)
        # Descriptors may be repeated at any time.
        maker.packet(2).track_descriptor.CopyFrom(track)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        found = rows(trace, "counters", "name", "time", "value")
        assert [row for row in found if row[0] == "thread_time"] == [
            ("thread_time", time, value) for time, value in ((10, 5), (20, 10), (30, 5), (40, 10))
        ]
        assert [row[1:] for row in found if row[0] == "memory"] == [(10, 1), (20, 1), (30, 1)]
        assert len([row for row in found if row[0] == "frames" and row[2] == 0.5]) == 4
        assert trace.imports[0].lost == 0


def test_counter_values_without_a_track_and_old_times_are_lost(maker, tmp_path):
    maker.event(INSTANT, MAIN, 10, "m", extra_counter_track_uuids=[USED], extra_counter_values=[4, 3, 2])
    maker.event(INSTANT, MAIN, 11, "old", timestamp_absolute_us=5)
    maker.event(INSTANT, MAIN, 12, "other", thread_time_absolute_us=7)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "instants", "name") == [("m",), ("other",)]
        assert trace.imports[0].lost == 3
        assert list(trace.imports[0].leftovers()) == ["1 field 17 of track events left out"]


def test_flows_connect_slices(maker, tmp_path):
    for time, flows in ((10, {"flow_ids": [9]}), (20, {"flow_ids": [9]}), (30, {"terminating_flow_ids": [9]})):
        maker.event(INSTANT, MAIN, time, "m", **flows)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        found = [(time, chr(phase), flow) for time, phase, flow in rows(trace, "flows", "time", "phase", "id")]
        assert found == [(10, "s", 9), (20, "t", 9), (30, "f", 9)]
        assert {a.what: a.kept.count for a in trace.imports[0].accounts} == {
            "instants": 3, "flows": 3, "names of tracks": 2,
        }  # fmt: skip


def test_texts_and_defaults_of_a_sequence(maker, tmp_path):
    first = maker.packet(2, sequence_flags=1)
    first.trace_packet_defaults.track_event_defaults.track_uuid = MAIN
    for number, name in ((1, "first"), (2, "second")):
        first.interned_data.event_names.add(iid=number, name=name)
    first.interned_data.debug_annotation_names.add(iid=1, name="key")
    first.interned_data.debug_annotation_string_values.add(iid=4, str=b"value")
    for iid in (1, 2):
        event = maker.packet(2, timestamp=S + iid).track_event
        event.type, event.name_iid = INSTANT, iid
        event.debug_annotations.add(name_iid=1, string_value_iid=4)
    maker.packet(2, sequence_flags=1)
    event = maker.packet(2, timestamp=S + 3).track_event
    event.type, event.name_iid = INSTANT, 1
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "instants", "time", "thread", "name", "arguments") == [
            (1, 70, "first", '{"key":"value"}'), (2, 70, "second", '{"key":"value"}'), (3, 70, "", ""),
        ]  # fmt: skip


def test_clocks_become_one(maker, tmp_path):
    snapshot = maker.packet(3).clock_snapshot
    for clock, time, more in ((6, S, {}), (3, 7 * S, {}), (1, 50 * S, {}), (64, 400, {"is_incremental": True,
                              "unit_multiplier_ns": 10}), (65, 1000, {"unit_multiplier_ns": 1000})):  # fmt: skip
        snapshot.clocks.add(clock_id=clock, timestamp=time, **more)
    for clock, time in ((0, S + 1), (3, 7 * S + 2), (64, 3), (64, 3), (65, 1001), (66, 5)):
        packet = maker.packet(3, timestamp=time)
        if clock:
            packet.timestamp_clock_id = clock
        packet.track_event.type, packet.track_event.track_uuid = INSTANT, MAIN
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "instants", "time") == [(1,), (2,), (30,), (60,), (1000,)]
        assert int(trace.clocks["realtime"][0]) - int(trace.clocks["boottime"][0]) == 49 * S
        (lost,) = trace.quality.losses
        assert (lost.count, lost.detail) == (1, "track events: its clock is not known")


def test_gaps_in_a_sequence_are_losses(maker, tmp_path):
    for sequence, time, dropped in ((2, 1, 1), (2, 2, 0), (3, 3, 1), (2, 4, 1), (2, 5, 1)):
        packet = maker.packet(sequence, timestamp=S + time, previous_packet_dropped=dropped)
        packet.track_event.type, packet.track_event.track_uuid = INSTANT, MAIN
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "instants", "time") == [(1,), (2,), (3,), (4,), (5,)]
        (lost,) = trace.quality.losses
        assert (lost.count, lost.detail) == (2, "gaps: packets were dropped during the recording")


def test_events_in_the_form_of_old_chrome(maker, tmp_path):
    event = maker.event(0, MAIN, 10, "complete")
    event.legacy_event.phase, event.legacy_event.duration_us = ord("X"), 2
    for phase, time in (("b", 20), ("e", 30)):
        event = maker.event(0, MAIN, time, "async", categories=["c"])
        event.legacy_event.phase, event.legacy_event.global_id = ord(phase), 5
        event.legacy_event.tid_override = 99
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "host_slices", "start", "end", "name", "thread", "kind") == [
            (10, 2010, "complete", 70, 0), (20, 30, "async", 99, 5),
        ]  # fmt: skip


def test_gpu_work_of_another_tool(maker, tmp_path):
    packet = maker.packet(timestamp=S + 10)
    packet.interned_data.graphics_contexts.add(iid=8, pid=70)
    for iid, name in ((1, "Queue 4"), (2, "Fragment")):
        packet.interned_data.gpu_specifications.add(iid=iid, name=name)
    event = packet.gpu_render_stage_event
    event.duration, event.gpu_id, event.context, event.submission_id = 5, 1, 8, 33
    event.hw_queue_iid, event.stage_iid, event.command_buffer_handle = 1, 2, 7
    event.extra_data.add(name="pass", value="shadows")
    for name, value in (("a", 4), ("b", 5)):
        event.launch.args.add(name=name, uint_value=value)
    maker.event(INSTANT, MAIN, 5, "m")
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        fields = ("start", "end", "name", "device", "stream", "correlation", "process")
        assert rows(trace, "gpu_slices", *fields) == [(10, 15, "Fragment", 1, 4, 33, 0)]
        assert len(trace.processes) == 1
        (arguments,) = rows(trace, "gpu_slices", "arguments")[0]
        assert json.loads(arguments) == {"pass": "shadows", "a": 4, "b": 5}
        assert list(trace.imports[0].leftovers()) == ["1 field 12 of GPU events left out"]


def arguments_of(trace: cutrace.Trace, table: str = "instants") -> list[Any]:
    return [json.loads(text) if text else None for (text,) in rows(trace, table, "arguments")]


@pytest.mark.parametrize("compress", ["zstd", "deflate", None])
def test_a_cut_trace_without_a_whole_packet_is_called_damaged(tmp_path, compress):
    path = tmp_path / f"a.pftrace{'' if compress else '.gz'}"
    cutrace.convert(captures.DATA / "triton.bin", path, compress=compress, capture=False)
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(BadCapture, match="is cut off or damaged"):
        cutrace.load(path)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_numbers_with_a_fraction_are_written_as_python_writes_them(tmp_path, numbers):
    maker = Maker()
    event = maker.event(INSTANT, MAIN, 1, "m")
    for i, number in enumerate(numbers):
        event.debug_annotations.add(name=f"n{i}", double_value=number)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        ((text,),) = rows(trace, "instants", "arguments")
        assert text == json.dumps({f"n{i}": number for i, number in enumerate(numbers)}, separators=(",", ":"))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=20),
    st.lists(st.sampled_from([b"\xe2\x82", b"\xf0\x9f", b"\xed\xa0", b"\xc3", b"\x80", b"a", b'"'])),
)
def test_bytes_that_are_no_text_are_replaced_as_in_python(tmp_path, some, parts):
    maker = Maker()
    maker.event(INSTANT, MAIN, 1, "#" * 40).debug_annotations.add(name="k", string_value="#" * 50)
    data = maker.trace.SerializeToString()
    name = some.ljust(40, b".")
    value = b"".join(parts)[:50].rjust(50, b" ")
    path = tmp_path / "x.pftrace"
    path.write_bytes(data.replace(b"#" * 50, value).replace(b"#" * 40, name))
    with balanced(cutrace.load(path)) as trace:
        assert rows(trace, "instants", "name") == [(name.decode("utf-8", "replace"),)]
        assert arguments_of(trace) == [{"k": value.decode("utf-8", "replace")}]


def test_values_of_arguments(maker, tmp_path):
    event = maker.event(INSTANT, MAIN, 1, "m")
    for name, more in (
        ("infinite", {"double_value": float("-inf")}), ("no", {"bool_value": False}), ("none", {}),
        ("pointer", {"pointer_value": (1 << 64) - 1}), ("legacy", {"legacy_json_value": '{"a": 1}'}),
        ("text", {"string_value": 'é\n"\\\x7f\0'}), ("twice", {"int_value": 1}), ("twice", {"int_value": 2}),
    ):  # fmt: skip
        event.debug_annotations.add(name=name, **more)
    listed = event.debug_annotations.add(name="deep").dict_entries.add(name="list")
    listed.array_values.add().array_values.add(int_value=1)
    listed.array_values.add().dict_entries.add(name="x", int_value=2)
    for value in (1, 2):
        event.debug_annotations[-1].dict_entries.add(name="same", int_value=value)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert arguments_of(trace) == [
            {
                "infinite": "-Infinity", "no": False, "none": None, "pointer": (1 << 64) - 1, "legacy": '{"a": 1}',
                "text": 'é\n"\\\x7f\0', "twice": 2, "deep": {"list": [[1], {"x": 2}], "same": 2},
            }
        ]  # fmt: skip


def test_ids_times_and_durations_beyond_64_bits(maker, tmp_path):
    snapshot = maker.packet(3).clock_snapshot
    snapshot.clocks.add(clock_id=6, timestamp=S)
    snapshot.clocks.add(clock_id=64, timestamp=0, unit_multiplier_ns=(1 << 64) - 1)
    for time in (0, 1, (1 << 64) - 1):
        packet = maker.packet(3, timestamp=time, timestamp_clock_id=64)
        packet.track_event.type, packet.track_event.track_uuid = INSTANT, MAIN
    work = maker.packet(timestamp=S + 5).gpu_render_stage_event
    work.duration, work.name = (1 << 64) - 1, "w"
    track = maker.packet().track_descriptor
    track.uuid, track.thread.pid, track.thread.tid = 40, -1, -2
    maker.event(INSTANT, 40, 7, "of -1", flow_ids=[(1 << 64) - 1])
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "instants", "time", "name") == [(0, ""), (7, "of -1")]
        assert rows(trace, "flows", "text") == [(str((1 << 64) - 1),)]
        assert [p.info["source_pid"] for p in trace.processes if "source_pid" in p.info] == [str((1 << 64) - 1)]
        lost = {loss.detail: loss.count for loss in trace.quality.losses}
        assert lost == {"instants: the time is not a number": 2, "GPU slices: the duration is not a number": 1}


def test_differences_of_integers_are_added_up_exactly(maker, tmp_path):
    for time, value in enumerate((1 << 53, 1, 1, -(1 << 53))):
        maker.event(COUNTER, RATE, time, counter_value=value)
    maker.event(COUNTER, RATE, 9, double_counter_value=0.25)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        values = [value for _, value in rows(trace, "counters", "time", "value")]
        assert values == [10.0 * (1 << 53), float(10 * (1 << 53) + 10), float(10 * (1 << 53) + 20), 20.0, 22.5]


def test_ids_of_old_chrome(maker, tmp_path):
    for time, (phase, which) in enumerate(
        [("b", {"local_id": 10}), ("e", {"local_id": 10}), ("b", {"unscoped_id": 7}), ("e", {"unscoped_id": 7}),
         ("s", {"unscoped_id": 3, "bind_to_enclosing": True}), ("i", {"pid_override": 71}), ("\0", {})]
    ):  # fmt: skip
        event = maker.event(0, MAIN, time, "m")
        event.legacy_event.phase = ord(phase)
        for key, value in which.items():
            setattr(event.legacy_event, key, value)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        slices = trace.host_slices
        tracks = sorted(trace.strings.take(slices["track"]).tolist())
        assert tracks == ["7", '{"local":"0xa"}']
        assert rows(trace, "flows", "id", "flags") == [(3, 1)]
        assert sorted(p.pid for p in trace.processes) == [70, 71]
        assert [loss.detail for loss in trace.quality.losses] == ["events: no phase"]


def test_kernels_and_texts_are_forgotten_when_a_sequence_is_cleared(maker, tmp_path):
    for cleared in (False, True, False):
        packet = maker.packet(4, timestamp=S + 10, incremental_state_cleared=cleared)
        if not cleared:
            packet.interned_data.gpu_specifications.add(iid=1, name="stage")
            packet.interned_data.graphics_contexts.add(iid=1, pid=70)
        packet.gpu_render_stage_event.stage_iid, packet.gpu_render_stage_event.context = 1, 1
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        # The importer keeps contexts, because the process of a context does not change.
        assert rows(trace, "gpu_slices", "name", "process") == [("", 0), ("stage", 0), ("stage", 0)]
        assert [p.pid for p in trace.processes] == [70]


def test_more_events_than_a_batch_and_packets_over_the_edges_of_reads(maker, tmp_path):
    count = 70_000
    maker.event(BEGIN, WORKER, 0, "all")
    maker.event(INSTANT, MAIN, 0, "m").debug_annotations.add(name="filler", string_value="x" * 5_000_000)
    data = bytearray(maker.trace.SerializeToString())
    one = Maker()
    del one.trace.packet[:]
    one.event(INSTANT, MAIN, 0, "m")
    data += one.trace.SerializeToString() * count
    maker.event(END, WORKER, 9)
    data += protos.Trace(packet=[maker.trace.packet[-1]]).SerializeToString()
    path = tmp_path / "x.pftrace"
    for content in (bytes(data), protos.Trace(
        packet=[protos.TracePacket(compressed_packets=zlib.compress(bytes(data), 1))]
    ).SerializeToString()):  # fmt: skip
        path.write_bytes(content)
        with balanced(cutrace.load(path)) as trace:
            assert len(trace.instants) == count + 1
            assert rows(trace, "host_slices", "start", "end", "name") == [(0, 9, "all")]
            assert trace.imports[0].lost == 0


def test_a_packet_with_two_groups(tmp_path):
    groups = []
    for time in (5, 6):
        one = Maker()
        one.event(INSTANT, MAIN, time, f"m{time}")
        groups.append(one.trace.SerializeToString())
    packed = {"compressed_packets": zlib.compress(groups[0]), "zstd_compressed_packets": zstandard.compress(groups[1])}
    path = tmp_path / "x.pftrace"
    path.write_bytes(proto.encode("Trace", {"packet": proto.encode("TracePacket", packed)}))
    with balanced(cutrace.load(path)) as trace:
        assert rows(trace, "instants", "time", "name") == [(5, "m5"), (6, "m6")]


def test_an_end_without_a_begin_and_a_begin_without_an_end(maker, tmp_path):
    maker.event(END, MAIN, 5)
    maker.event(BEGIN, MAIN, 10, "long")
    maker.event(BEGIN, CUSTOM, 11, "longer")
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        unknown = trace.unknown("host_slices")
        assert sorted(trace.strings.take(unknown["name"])) == ["long", "longer"]
        assert set(unknown["end"]) == {0}


def test_what_has_no_place_is_named(maker, tmp_path):
    maker.event(INSTANT, MAIN, 5, "m")
    for _ in range(3):
        maker.packet().ftrace_events.cpu = 1
    maker.packet().perf_sample.cpu = 1
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        left = list(trace.imports[0].leftovers())
        assert left == ["3 ftrace events left out", "1 samples of stacks left out"]
        assert trace.imports[0].lost == 0


def test_a_trace_with_nothing_of_use_is_refused_with_what_it_holds(tmp_path):
    maker = Maker()
    maker.packet().ftrace_events.cpu = 1
    with pytest.raises(BadCapture, match=r"it holds ftrace events.*ui\.perfetto\.dev"):
        cutrace.load(maker.write(tmp_path / "x.pftrace"))


@pytest.mark.parametrize("how", ["gzip", "zstd file", "deflate", "zstd"])
def test_compressed_traces_and_groups_of_packets(maker, tmp_path, how):
    maker.event(INSTANT, MAIN, 5, "m")
    data = maker.trace.SerializeToString()
    group = protos.Trace()
    if how == "deflate":
        group.packet.add(compressed_packets=zlib.compress(data))
    elif how == "zstd":
        group.packet.add(zstd_compressed_packets=zstandard.compress(data))
    packed = {"gzip": gzip.compress, "zstd file": zstandard.compress}.get(how, lambda _: group.SerializeToString())(
        data
    )
    path = tmp_path / "x.pftrace"
    path.write_bytes(packed)
    with balanced(cutrace.load(path)) as trace:
        assert rows(trace, "instants", "time", "name") == [(5, "m")]


# Traces that cutrace wrote without their capture


@pytest.mark.parametrize("how", [{}, {"compress": "zstd"}, {"compress": "deflate"}])
def test_a_trace_of_cutrace_without_its_capture_has_what_viewers_show(tmp_path, how):
    capture = captures.training_steps(tmp_path / "run.bin", steps=3)
    cutrace.convert(capture, tmp_path / "x.pftrace", capture=False, **how)
    with cutrace.load(capture) as before, balanced(cutrace.load(tmp_path / "x.pftrace")) as after:
        for table, fields in (("kernels", ("start", "end", "correlation", "stream")), ("api_calls", ("start", "end"))):
            assert rows(after, table, *fields) == rows(before, table, *fields)
        launches = [
            sorted(t.launches[t.kernels["launch"]][["grid_x", "block_x", "registers"]].tolist())
            for t in (before, after)
        ]
        assert launches[0] == launches[1]
        assert after.imports[0].lost == 0
        assert any("cutrace wrote this file without its capture" in note for note in after.quality.notes)


@pytest.mark.parametrize("name", ["processes.bin", "ranks.bin"])
def test_gpu_work_of_a_trace_of_cutrace_is_of_its_process(tmp_path, name):
    def work(trace):
        found = []
        for table in ("kernels", "memcpys", "memsets"):
            for process, *times in trace.table(table)[["process", "start", "end"]].tolist():
                found.append((table, trace.processes[process].pid, *times))
        return sorted(found)

    cutrace.convert(captures.DATA / name, tmp_path / "x.pftrace", capture=False)
    with cutrace.load(captures.DATA / name) as before, cutrace.load(tmp_path / "x.pftrace") as after:
        assert len({pid for _, pid, *_ in work(before)}) > 1
        assert work(after) == work(before)


def test_the_account_of_a_trace_of_cutrace_names_what_became_rows(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        c.device()
        c.api("cudaLaunchKernel", 0, 10, correlation=1)
        c.api("cuMemAlloc", 20, 30, domain=1)
        c.kernel(c.launch("k"), 20, 30, correlation=1)
        c.memcpy(40, 50, 8)
        c.memset(60, 70, 8)
        c.work("graph_launches", 80, 90, graph=3)
        c.push_pop("r", 100, 110)
        c.mark("m", 120)
        c.add("counters", time=captures.ORIGIN + 5, name="power", unit="W", value=2.5, device=0)
    cutrace.convert(c.path, tmp_path / "x.pftrace", capture=False)
    with balanced(cutrace.load(tmp_path / "x.pftrace")) as trace:
        kept = {a.what: a.kept.count for a in trace.imports[0].accounts if a.kept.count}
    del kept["names of tracks"]
    assert kept == {
        "API calls": 2, "kernels": 1, "copies": 1, "fills": 1, "GPU slices": 1, "slices": 1, "instants": 1,
        "counter values": 1,
    }  # fmt: skip


def test_copies_and_fills_of_a_trace_of_cutrace_keep_their_kinds(tmp_path):
    columns = ["start", "bytes", "kind", "source_memory", "destination_memory"]
    with captures.Capture(tmp_path / "run.bin") as c:
        c.device()
        for kind, source, destination in ((1, 1, 3), (2, 3, 2), (8, 6, 5), (0, 0, 0), (99, 99, 99)):
            c.memcpy(40 + kind, 41 + kind, 8, kind=kind, source=source, destination=destination)
        c.work("memsets", 200, 210, bytes=8, memory=6)
    cutrace.convert(c.path, tmp_path / "x.pftrace", capture=False)
    with cutrace.load(c.path) as before, balanced(cutrace.load(tmp_path / "x.pftrace")) as after:
        assert after.memsets["memory"].tolist() == [6]
        found = sorted(after.memcpys[columns].tolist())
        expected = sorted(before.memcpys[columns].tolist())
        assert found[:-1] == expected[:-1]
        assert found[-1][2:] == (0, 0, 0)  # kinds without a label


def test_a_trace_of_an_older_version_says_so(maker, tmp_path):
    maker.event(INSTANT, MAIN, 5, "m")
    path = maker.write(tmp_path / "x.pftrace")
    path.write_bytes(path.read_bytes() + b"\x0a\x05\x8a\xbf\x18\x01\x00")  # field 50161
    with balanced(cutrace.load(path)) as trace:
        assert any("cutrace wrote this file without its capture" in note for note in trace.quality.notes)


# Damage


def test_a_trace_cut_anywhere_has_what_is_in_front_of_the_cut(maker, tmp_path):
    for time in range(5):
        maker.event(INSTANT, MAIN, time, f"m{time}")
    data = maker.write(tmp_path / "x.pftrace").read_bytes()
    seen = 0
    for at in range(100, len(data)):
        path = tmp_path / "cut.pftrace"
        path.write_bytes(data[:at])
        try:
            trace = cutrace.load(path)
        except BadCapture:
            continue
        with balanced(trace):
            assert len(trace.instants) >= seen
            seen = len(trace.instants)
    assert seen == 4


@pytest.mark.parametrize(
    ("rest", "how"),
    [
        (b"\x0a\x03\xff\xff\xff", "packets: damaged"),
        (b"\x0a\xff\xff\xff\xff\x0f", "the file is damaged"),
        (b"\x0a" + b"\xff" * 12, "the file is damaged"),
        (b"\x12\x00", "the file is damaged"),
        (b"\x0a\x80\x01short", "the file is damaged"),
    ],
)
def test_damage_is_told(maker, tmp_path, rest, how):
    maker.event(INSTANT, MAIN, 5, "m")
    path = maker.write(tmp_path / "x.pftrace")
    path.write_bytes(path.read_bytes() + rest)
    with balanced(cutrace.load(path)) as trace:
        assert len(trace.instants) == 1
        assert any(how in loss.detail for loss in trace.quality.losses)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_lose_no_more_than_a_trace(tmp_path, data):
    maker = Maker()
    for time in range(5):
        maker.event(BEGIN, MAIN, time, "m", flow_ids=[1]).debug_annotations.add(name="a", int_value=1)
    content = bytearray(maker.trace.SerializeToString())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.pftrace"
    path.write_bytes(content)
    try:
        with balanced(cutrace.load(path)) as trace:
            assert len(trace.host_slices) <= 5
    except BadCapture:
        pass


def test_arguments_that_nest_too_deeply_and_groups_in_groups(maker, tmp_path):
    maker.event(INSTANT, MAIN, 5, "m")
    data = maker.trace.SerializeToString()

    def field(number: int, body: bytes) -> bytes:
        return bytes(varint(number << 3 | 2)) + bytes(varint(len(body))) + body

    def varint(value: int) -> list[int]:
        return [value] if value < 128 else [value & 127 | 128, *varint(value >> 7)]

    deep = b""
    for _ in range(5000):
        deep = field(11, deep)
    group = data
    for _ in range(5000):
        group = field(1, field(133, zstandard.compress(group)))
    path = tmp_path / "deep.pftrace"
    path.write_bytes(data + field(1, b"\x50\x01" + field(11, field(4, deep))) + group)
    with balanced(cutrace.load(path)) as trace:
        assert len(trace.instants) == 1
        assert any(loss.detail == "packets: damaged" for loss in trace.quality.losses)


def test_a_bomb_takes_no_memory(maker, tmp_path):
    maker.event(INSTANT, MAIN, 5, "m")
    bomb = protos.Trace()
    bomb.packet.add(zstd_compressed_packets=zstandard.compress(bytes(1 << 30)))
    path = tmp_path / "bomb.pftrace"
    path.write_bytes(maker.trace.SerializeToString() + bomb.SerializeToString())
    with balanced(cutrace.load(path)) as trace:
        assert len(trace.instants) == 1
        assert any("a group of packets" in loss.detail for loss in trace.quality.losses)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\n\n", b"\n{}", b'\n{"traceEvents": []}', b"\n# a text\n\n" * 9, b"\x0a\x00"]
)
def test_text_that_begins_with_an_empty_line_is_no_perfetto_trace(tmp_path, text):
    path = tmp_path / "x.txt"
    path.write_bytes(text)
    assert not perfetto.PERFETTO.recognizes(SourceFile.at(path))


def test_a_value_of_a_gpu_counter_counts_for_the_time_before_it_or_after_it(maker, tmp_path):
    descriptor = maker.packet(2, sequence_flags=1).interned_data.gpu_counter_descriptors.add(iid=1, gpu_id=3)
    for number, name in enumerate(("busy", "power")):
        spec = descriptor.counter_descriptor.specs.add(counter_id=number, name=name)
        if name == "power":
            spec.value_direction = spec.VALUE_DIRECTION_FORWARDS_LOOKING
    for time in (10, 20, 30):
        event = maker.packet(2, timestamp=S + time).gpu_counter_event
        event.counter_descriptor_iid = 1
        for number in (0, 1):
            event.counters.add(counter_id=number, double_value=time + number)
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "counters", "name", "time", "value", "device") == [
            ("busy", 10, 20, 3), ("busy", 20, 30, 3), ("power", 10, 11, 3), ("power", 20, 21, 3), ("power", 30, 31, 3)
        ]  # fmt: skip
        (left,) = trace.imports[0].leftovers()
        assert left == "1 values of GPU counters without a known start left out"


def test_each_sequence_adds_up_its_own_differences_of_a_counter(maker, tmp_path):
    for sequence, time, value in ((1, 10, 100), (2, 15, 50), (1, 20, 10), (2, 25, 5)):
        event = maker.packet(sequence, timestamp=S + time).track_event
        event.type, event.track_uuid, event.counter_value = COUNTER, RATE, value
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        assert rows(trace, "counters", "time", "value") == [(10, 1000), (15, 500), (20, 1100), (25, 550)]


def test_fields_of_old_events_without_a_place_are_in_the_account(maker, tmp_path):
    event = maker.event(0, MAIN, 10, "n")
    event.legacy_event.phase, event.legacy_event.duration_us = ord("X"), 2
    event.legacy_event.bind_id, event.legacy_event.flow_direction = 7, event.legacy_event.FLOW_OUT
    with balanced(cutrace.load(maker.write(tmp_path / "x.pftrace"))) as trace:
        left = list(trace.imports[0].leftovers())
        assert left == ["1 field 8 of legacy events left out", "1 field 13 of legacy events left out"]
