"""Perfetto traces that cutrace wrote open as the traces that they were made from."""

from __future__ import annotations

import gzip
import itertools
import tracemalloc
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import captures
import cutrace
from contents import contents, opens_alike
from cutrace import BadCapture
from cutrace.exporters.perfetto import arguments, schema
from cutrace.importers import perfetto, perfetto_events, perfetto_patterns
from cutrace.importers.base import Source
from cutrace.runbin import TABLES
from random_captures import TEXTS, random_capture

DATA = sorted((Path(__file__).parents[1] / "data").glob("*.bin"))
HELD = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])

opened_alike = partial(opens_alike, format="perfetto")


def converted(capture: Path, name: str = "x.pftrace", **how) -> Path:
    target = capture.with_name(name)
    cutrace.convert(capture, target, capture=False, **how)
    return target


@pytest.mark.parametrize("capture", DATA, ids=lambda path: path.stem)
@pytest.mark.parametrize("compress", [None, "zstd", "deflate"])
def test_a_trace_of_a_real_capture_opens_as_the_capture(capture, compress, tmp_path):
    trace = tmp_path / "x.pftrace"
    cutrace.convert(capture, trace, compress=compress, capture=False)
    opened_alike(capture, trace)


def test_a_compressed_file_opens_too(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin")
    opened_alike(capture, converted(capture, "x.pftrace.gz"))
    packed = tmp_path / "x.pftrace.zst"
    packed.write_bytes(zstandard.compress(converted(capture).read_bytes()))
    opened_alike(capture, packed)


def test_everything_that_is_legal_and_unpleasant_comes_back(tmp_path):
    capture = captures.awkward(tmp_path / "run.bin")
    opened_alike(capture, converted(capture))


@pytest.mark.parametrize("most_shared", [arguments.MOST_SHARED, 2])
@HELD
@given(random=st.randoms(use_true_random=False))
def test_any_capture_comes_back(tmp_path, monkeypatch, most_shared, random: Random):
    monkeypatch.setattr(arguments, "MOST_SHARED", most_shared)
    # Half characters stand for bytes that are no UTF-8: they stay what they are.
    capture = random_capture(tmp_path / "run.bin", random, texts=(*TEXTS, "\udcff\udcfe"))
    path = tmp_path / "x.pftrace"
    path.unlink(missing_ok=True)
    cutrace.convert(capture, path, capture=False)
    opened_alike(capture, path)
    with cutrace.load(capture) as before, cutrace.load(path) as after:
        assert {after.strings.bytes(i) for i in range(len(after.strings))} == {
            before.strings.bytes(i) for i in range(len(before.strings))
        }


@pytest.mark.parametrize("size", [97, 5_000])
def test_slices_that_end_in_another_part_of_the_file_than_they_begin(tmp_path, monkeypatch, size):
    capture = captures.awkward(tmp_path / "run.bin")
    trace = converted(capture)
    monkeypatch.setattr(perfetto, "_CHUNK", size)
    opened_alike(capture, trace)


def test_texts_of_arguments_are_made_again_rather_than_kept(tmp_path):
    def trace(count: int, text: str) -> Path:
        with captures.Capture(tmp_path / "run.bin") as c:
            for i in range(count):
                start = captures.ORIGIN + 10 * i
                c.add("host_slices", start=start, end=start + 5, name="aten::mm", kind=1, thread=7, arguments=text % i)
        opened_alike(tmp_path / "run.bin", path := converted(tmp_path / "run.bin"))
        return path

    # 28 bytes are the begin of a slice and its end, 7 the number.
    more = trace(3000, '{"Sequence number": %d, "Input Dims": [[8, 64], []]}').stat().st_size
    assert (more - trace(1000, '{"Sequence number": %d, "Input Dims": [[8, 64], []]}').stat().st_size) / 2000 < 43


def test_a_text_that_something_else_has_too_is_kept(tmp_path):
    text = '{"n":5}'
    with captures.Capture(tmp_path / "run.bin") as c:
        c.add("host_slices", start=captures.ORIGIN, end=captures.ORIGIN + 5, name="a", thread=7, arguments=text)
        c.add("nvtx_marks", time=captures.ORIGIN, name=text, thread=7)
        c.add("instants", time=0, name="b", arguments=text)
    opened_alike(tmp_path / "run.bin", converted(tmp_path / "run.bin"))


def test_functions_that_look_alike_are_told_apart(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        for callback in (3, 4):
            function = c.writer.function(name="cuMemcpyHtoD", domain=1, callback=callback)
            c.add("api_calls", start=captures.ORIGIN, end=captures.ORIGIN + callback, thread=1, function=function)
    with cutrace.load(converted(tmp_path / "run.bin")) as trace:
        calls = trace.api_calls
        callbacks = trace.functions["callback"][calls["function"]]
        assert sorted(zip(callbacks.tolist(), (calls["end"] - calls["start"]).tolist(), strict=True)) == [
            (3, 3),
            (4, 4),
        ]


def test_a_part_of_a_capture_comes_back_as_what_it_has_events_of(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin")
    with cutrace.load(capture) as before:
        middle = (before.start + before.end) // 2
        kernels = before.kernels
        wanted = kernels[kernels["end"] >= middle]
    with cutrace.load(converted(capture, start=middle)) as after:
        assert np.array_equal(np.sort(after.kernels["start"]), np.sort(wanted["start"]))
        assert len(after.launches) == len(before.launches)


def test_what_a_first_import_said_is_kept(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin")
    once = converted(capture)
    twice = tmp_path / "twice.pftrace"
    cutrace.convert(once, twice, capture=False)
    with cutrace.load(capture) as before, cutrace.load(twice) as after:
        assert contents(after) == contents(before)
        assert after.processes[0].info["imported_from"]["source"] == once.name


# Damage


def cut(tmp_path: Path, size: int) -> cutrace.Trace:
    path = tmp_path / "cut.pftrace"
    path.write_bytes((tmp_path / "x.pftrace").read_bytes()[:size])
    return cutrace.load(path)


def test_a_trace_cut_anywhere_has_what_is_in_front_of_the_cut(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin", steps=3)
    data = converted(capture).read_bytes()
    with cutrace.load(capture) as whole:
        before = contents(whole)
    # What the trace is about stands at its begin.
    begin = data.index(schema.field("TracePacket", "cutrace_table").tag) + 5_000
    kernels = 0
    for at in range(begin, len(data), 331):
        with cut(tmp_path, at) as trace:
            found = contents(trace)
            assert found.get("kernels", Counter()) <= before["kernels"]
            assert len(trace.kernels) >= kernels
            kernels = len(trace.kernels)
            assert any("rest of the file" in loss.detail for loss in trace.quality.losses)
            assert all(a.balanced for a in trace.imports[0].accounts)
    assert kernels == before["kernels"].total()


def test_a_trace_cut_before_it_says_what_it_is_about_is_refused(tmp_path):
    converted(captures.training_steps(tmp_path / "run.bin", steps=3))
    with pytest.raises(BadCapture, match="Perfetto trace"):
        cut(tmp_path, 100)


def test_slices_whose_end_is_cut_off_have_none(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        c.push_pop("long", 0, 1_000_000)
        for i in range(1000):
            c.mark(f"m{i % 7}", i)
    size = converted(tmp_path / "run.bin").stat().st_size
    with cut(tmp_path, size * 2 // 3) as trace:
        (row,) = trace.unknown("nvtx_ranges")
        assert (trace.strings[row["name"]], row["end"]) == ("long", 0)
        assert any("have no end" in note for note in trace.quality.notes)


@HELD
@given(st.data())
def test_damaged_bytes_lose_what_they_are_part_of_and_never_more_than_a_trace(tmp_path, data):
    capture = tmp_path / "run.bin"
    if not capture.exists():
        captures.awkward(capture)
        converted(capture)
    content = bytearray((tmp_path / "x.pftrace").read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.pftrace"
    path.write_bytes(content)
    try:
        with cutrace.load(path) as trace:
            contents(trace)
            if trace.imports:
                assert all(a.balanced for a in trace.imports[0].accounts)
    except BadCapture:
        pass


def test_a_packet_that_is_no_message_is_left_out_and_counted(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin", steps=1)
    path = converted(capture)
    path.write_bytes(path.read_bytes() + b"\x0a\x03\xff\xff\xff")
    with cutrace.load(capture) as before, cutrace.load(path) as after:
        found = contents(after)
        assert found.pop("losses").total() == 1
        assert found == contents(before)
        assert [(loss.reason, loss.count, loss.detail) for loss in after.quality.losses][-1] == (
            "unreadable", 1, "packets: damaged",
        )  # fmt: skip


@pytest.mark.parametrize(
    "rest",
    [
        b"\x0a\xff\xff\xff\xff\x0f",  # a packet of 4 GiB
        b"\x0a" + b"\xff" * 12,  # a length without end
        b"\x12\x00",  # no packet
        b"\x0a\x80\x01short",
    ],
    ids=["huge", "endless", "other", "short"],
)
def test_what_follows_damage_of_the_outermost_level_is_lost(tmp_path, rest):
    capture = captures.training_steps(tmp_path / "run.bin", steps=1)
    path = converted(capture)
    path.write_bytes(path.read_bytes() + rest)
    with cutrace.load(path) as trace, cutrace.load(capture) as before:
        assert len(trace.kernels) == len(before.kernels)
        assert any("rest of the file" in loss.detail for loss in trace.quality.losses)


def test_a_bomb_takes_no_memory(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin", steps=1)
    plain = converted(capture).read_bytes()
    bomb = schema.encode("Trace", {"packet": {"zstd_compressed_packets": zstandard.compress(bytes(1 << 30))}})
    many = schema.encode("Trace", {"packet": {"zstd_compressed_packets": zstandard.compress(b"\x0a\x00" * (1 << 24))}})
    path = tmp_path / "bomb.pftrace"
    path.write_bytes(plain + bomb + many)
    tracemalloc.start()
    with cutrace.load(path) as trace, cutrace.load(capture) as before:
        peak = tracemalloc.get_traced_memory()[1]
        assert len(trace.kernels) == len(before.kernels)
    tracemalloc.stop()
    assert peak < 100 << 20


def test_texts_that_would_fill_the_memory_are_not_made(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        for i in range(2000):
            start = captures.ORIGIN + 10 * i
            c.add(
                "host_slices",
                start=start,
                end=start + 5,
                name="a",
                thread=7,
                arguments=f'{{"n":{i},"x":"{"x" * 90000}"}}',
            )
    path = converted(tmp_path / "run.bin", compress="zstd")
    assert path.stat().st_size < 300_000
    with cutrace.load(path) as trace:
        texts = trace.strings.take(trace.host_slices["arguments"])
        made = [text for text in texts.tolist() if text]
        assert 0 < len(made) < len(texts) == 2000
        assert sum(map(len, made)) < 100 << 20
        (lost,) = (loss for loss in trace.quality.losses if "texts of arguments" in loss.detail)
        assert lost.count == 2000 - len(made)


def test_a_text_that_comes_again_and_again_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(perfetto_patterns, "_LEAST_BYTES", 20_000)
    monkeypatch.setattr(perfetto_patterns, "_BYTES_A_BYTE", 0)
    monkeypatch.setattr(perfetto, "_CHUNK", 500)
    with captures.Capture(tmp_path / "run.bin") as c:
        for i in range(300):
            start = captures.ORIGIN + 10 * i
            text = f'{{"n":{i % 3},"x":"{"x" * 5000}"}}'
            c.add("host_slices", start=start, end=start + 5, name="a", thread=7, arguments=text)
    opened_alike(tmp_path / "run.bin", converted(tmp_path / "run.bin"))


def test_counters_cost_no_more_steps_however_many_there_are(tmp_path, monkeypatch):
    steps = []
    add = perfetto_events._Styles.add
    monkeypatch.setattr(perfetto_events._Styles, "add", lambda *given, **more: (steps.append(1), add(*given, **more)))

    def needed(count: int) -> int:
        steps.clear()
        with captures.Capture(tmp_path / "run.bin") as c:
            for i in range(count):
                c.add("counters", time=captures.ORIGIN + i, name=f"counter {i}", value=i, device=0xFFFF)
        opened_alike(tmp_path / "run.bin", converted(tmp_path / "run.bin"))
        return len(steps)

    assert needed(1000) == needed(10)


def test_a_table_that_claims_more_than_it_has_is_lost(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin", steps=1)
    plain = converted(capture).read_bytes()
    claims = [
        {"number": 16, "rows": 1 << 40, "data": zstandard.compress(b"")},
        {"number": 16, "rows": 5, "data": b"nothing"},
        {"number": 9999, "rows": 5, "data": zstandard.compress(bytes(100))},
        {"number": 2, "rows": 5, "first": 1 << 50, "data": zstandard.compress(bytes(20))},
        {"number": 48, "rows": 1, "first": 1 << 50, "data": zstandard.compress(bytes(104))},
    ]
    path = tmp_path / "claims.pftrace"
    path.write_bytes(plain + b"".join(schema.encode("Trace", {"packet": {"cutrace_table": c}}) for c in claims))
    with cutrace.load(path) as trace, cutrace.load(capture) as before:
        assert np.array_equal(np.sort(trace.kernels["start"]), np.sort(before.kernels["start"]))
        told = " ".join(loss.detail for loss in trace.quality.losses)
        assert all(word in told for word in ("of another size", "damaged", "does not know"))
        assert all(a.balanced for a in trace.imports[0].accounts)


def test_a_trace_that_something_else_made_is_refused_with_a_sentence(tmp_path):
    path = tmp_path / "other.pftrace"
    packet = {"trusted_packet_sequence_id": 1, "timestamp": 5, "track_event": {"type": 3}}
    path.write_bytes(9 * schema.encode("Trace", {"packet": packet}))
    with pytest.raises(BadCapture, match=r"track events.*ui\.perfetto\.dev"):
        cutrace.load(path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(BadCapture, match="did not make"):
        cutrace.load(path)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\n\n", b"\n{}", b'\n{"traceEvents": []}', b"\n# a text\n\n" * 9, b"\x0a\x00"]
)
def test_text_that_begins_with_an_empty_line_is_no_perfetto_trace(tmp_path, text):
    path = tmp_path / "x.txt"
    path.write_bytes(text)
    assert not perfetto.PERFETTO.recognizes(Source.at(path))


# What it costs


def test_what_is_carried_for_reading_back_is_little(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin", steps=300)
    data = converted(capture).read_bytes()
    with cutrace.load(capture) as trace:
        events = sum(trace.count(name) for name in TABLES if TABLES[name].start_field)
    tag = schema.field("TracePacket", "cutrace_table").tag
    tables = sum(len(packet) for packet in packets(data) if tag in packet[:8])
    assert tables < 2 * events


def packets(data: bytes):
    at = 0
    while at < len(data):
        size = shift = 0
        for begin in itertools.count(at + 1):
            size |= (data[begin] & 0x7F) << shift
            shift += 7
            if data[begin] < 0x80:
                break
        yield data[begin + 1 : begin + 1 + size]
        at = begin + 1 + size
