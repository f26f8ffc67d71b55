"""The encoder, compared with the protobuf classes, which read the same values for any columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from cutrace._native import Blobs, Program, encode, encode_pieces, encode_rows
from cutrace.exporters.perfetto import proto
from cutrace.exporters.perfetto.proto import Delta, Each, FromColumn, Piece, SegmentPiece, Template, When
from cutrace.exporters.programs import CLOSE, INTEGER, MICROSECONDS, OPEN, RAW, REAL, UNLESS, Op

U64 = st.integers(0, 2**64 - 1)
SIZES = st.one_of(U64, *(st.integers(0, 2 ** (7 * n)) for n in range(1, 9)))


def parsed(template: Template, rows: int, **columns: Any) -> list[Any]:
    trace = protos.Trace()
    trace.ParseFromString(encoded(template, rows, columns))
    return list(trace.packet)


def encoded(template: Template, rows: int, columns: dict[str, Any]) -> bytes:
    offsets, pieces = np.array([0, rows], np.uint32), np.zeros(1, np.uint32)
    out = np.empty(1 << 20, np.uint8)
    size, done = encode(out, 0, [template.bind(columns)], offsets, pieces, np.zeros(1, np.uint64))
    assert done == rows
    return out[:size].tobytes()


def packet(**fields: Any) -> Template:
    return Template("Trace", {"packet": fields})


@given(st.lists(SIZES, min_size=1, max_size=50))
def test_varints_of_every_size(values: list[int]) -> None:
    template = packet(gpu_render_stage_event={"event_id": FromColumn("v")})
    found = [p.gpu_render_stage_event.event_id for p in parsed(template, len(values), v=np.array(values, np.uint64))]
    assert found == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_signed_numbers(values: list[int]) -> None:
    template = packet(track_event={"counter_value": FromColumn("v")})
    found = [p.track_event.counter_value for p in parsed(template, len(values), v=np.array(values, np.int64))]
    assert found == values


@pytest.mark.parametrize("kind", ["u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8"])
def test_every_type_of_column(kind: str) -> None:
    info = np.iinfo(kind)
    values = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], kind)
    template = packet(track_event={"counter_value": FromColumn("v")})
    found = [p.track_event.counter_value for p in parsed(template, len(values), v=values)]
    assert np.array(found, np.int64).tolist() == values.astype(np.int64).tolist()


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=10))
def test_doubles(values: list[float]) -> None:
    template = packet(track_event={"double_counter_value": FromColumn("v")})
    found = [p.track_event.double_counter_value for p in parsed(template, len(values), v=np.array(values, np.float64))]
    assert found == values


@given(st.lists(U64, min_size=1, max_size=10))
def test_fixed_numbers(values: list[int]) -> None:
    template = packet(track_event={"flow_ids": FromColumn("v")})
    assert [list(p.track_event.flow_ids) for p in parsed(template, len(values), v=np.array(values, np.uint64))] == [
        [v] for v in values
    ]


@given(st.binary(min_size=0, max_size=200), st.integers(1, 60))
def test_fields_of_packed_rows_at_any_offset(data: bytes, size: int) -> None:
    """Columns are read in place: unaligned, with any stride, up to the last byte."""
    dtype = np.dtype([("a", "u1"), ("b", "<u8"), ("pad", f"V{size}"), ("c", "<u2"), ("d", "<u4")])
    rows = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    fields = {
        "event_id": FromColumn("b"),
        "hw_queue_iid": FromColumn("a"),
        "context": FromColumn("d"),
        "stage_iid": FromColumn("c"),
    }
    columns = {name: rows[name] for name in "abcd"}
    found = [
        (e.hw_queue_iid, e.event_id, e.stage_iid, e.context)
        for p in (parsed(packet(gpu_render_stage_event=fields), len(rows), **columns) if len(rows) else [])
        for e in [p.gpu_render_stage_event]
    ]
    assert found == [tuple(int(r[name]) for name in "abcd") for r in rows]


@given(st.lists(st.tuples(U64, st.booleans(), st.lists(U64, max_size=40)), min_size=1, max_size=20))
def test_optional_repeated_and_conditional_fields(rows: list[tuple[int, bool, list[int]]]) -> None:
    flags = np.array([r[1] for r in rows])
    offsets = np.cumsum([0, *(len(r[2]) for r in rows)]).astype(np.uint32)
    values = np.array([v for r in rows for v in r[2]], np.uint64)
    event = {
        "event_id": FromColumn("v", omit=0),
        "launch": When("flag", {"grid_size": {"x": 7}}),
        "event_wait_ids": Each("offsets", "values"),
    }
    columns = {"v": np.array([r[0] for r in rows], np.uint64), "flag": flags, "offsets": offsets, "values": values}
    for p, (value, flag, waits) in zip(
        parsed(packet(gpu_render_stage_event=event), len(rows), **columns), rows, strict=True
    ):
        e = p.gpu_render_stage_event
        assert e.HasField("event_id") == (value != 0)
        assert e.event_id == value
        assert e.HasField("launch") == flag
        assert e.launch.grid_size.x == (7 if flag else 0)
        assert list(e.event_wait_ids) == waits


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=8))
def test_a_condition_may_end_between_fields_that_are_written_together(rows: list[tuple[bool, int, int]]) -> None:
    flags, first, second = (np.array(values) for values in zip(*rows, strict=True))
    args = [When("flag", {"uint_value": FromColumn("first")}), {"uint_value": FromColumn("second")}]
    template = packet(gpu_render_stage_event={"launch": {"args": args}})
    columns = {"flag": flags, "first": first.astype(np.uint32), "second": second.astype(np.uint32)}
    for p, (flag, a, b) in zip(parsed(template, len(rows), **columns), rows, strict=True):
        assert [arg.uint_value for arg in p.gpu_render_stage_event.launch.args] == ([a, b] if flag else [b])


@given(st.lists(st.text(max_size=300), min_size=1, max_size=10))
def test_pieces_make_messages_of_any_length(texts: list[str]) -> None:
    """The length of a nested message takes one byte or more, depending on its contents."""
    pieces = Blobs()
    for text in texts:
        pieces.add(proto.encode("TrackEvent", {"name": text}))
    ids = np.arange(len(texts), dtype=np.uint32)[::-1]
    template = packet(track_event={"type": 1, "pieces": Piece("ids", "pieces")}, sequence_flags=2)
    found = parsed(template, len(texts), ids=ids, pieces=pieces)
    assert [p.track_event.name for p in found] == texts[::-1]
    assert all(p.track_event.type == 1 and p.sequence_flags == 2 for p in found)


@given(st.lists(st.lists(st.integers(0, 2**62), min_size=1, max_size=10), min_size=1, max_size=5), st.integers(60, 400))
@settings(deadline=None)
def test_segments_streams_and_small_buffers(times: list[list[int]], room: int) -> None:
    """Differences restart in each segment, streams alternate, and a full buffer loses nothing."""
    times = [sorted(t) for t in times]
    flat = np.array([t for segment in times for t in segment], np.uint64)
    offsets = np.cumsum([0, *map(len, times)]).astype(np.uint32)
    which = (np.arange(len(flat)) % 2).astype(np.uint16)
    rows = np.arange(len(flat), dtype=np.uint32)[::-1].copy()
    prefixes = Blobs()
    for i in range(len(times)):
        prefixes.add(proto.encode("TracePacket", {"trusted_packet_sequence_id": i + 1}))
    shared = {"timestamp": Delta("time", event=True), "prefix": SegmentPiece("prefixes")}
    a = packet(**shared, track_event={"name_iid": FromColumn("row")})
    b = packet(**shared, gpu_render_stage_event={"event_id": FromColumn("row")})
    columns = {"time": flat, "prefixes": prefixes, "row": np.arange(len(flat), dtype=np.uint32)}
    streams = [a.bind(columns), b.bind(columns)]
    lasts, pieces = np.zeros(len(times), np.uint64), np.arange(len(times), dtype=np.uint32)
    data, event, calls = b"", 0, 0
    while event < len(flat):
        out = np.empty(room, np.uint8)
        size, event = encode(out, 0, streams, offsets, pieces, lasts, event, which, rows)
        data += out[:size].tobytes()
        calls += 1
        room = room * 2 if not size else room
        assert calls < 1000
    trace = protos.Trace()
    trace.ParseFromString(data)
    assert lasts.tolist() == [t[-1] for t in times]
    clocks = [0] * len(times)
    for i, p in enumerate(trace.packet):
        segment = p.trusted_packet_sequence_id - 1
        clocks[segment] += p.timestamp
        assert clocks[segment] == flat[i]
        assert (p.track_event.name_iid if which[i] == 0 else p.gpu_render_stage_event.event_id) == rows[i]


def test_numbers_as_text() -> None:
    ops = [
        Op(INTEGER, column=0), Op(RAW, raw=b" "), Op(MICROSECONDS, column=0), Op(UNLESS, column=0, skip=2),
        Op(RAW, raw=b" "), Op(REAL, column=1), Op(RAW, raw=b";"),
    ]  # fmt: skip
    columns = [np.array([-(1 << 63), -1, 0, 1_002_003]), np.array([0.1, np.nan, 5.0, -0.0])]
    assert encode_rows((Program(ops), columns), 4) == (
        b"-9223372036854775808 -9223372036854775.808 0.1;-1 -0.001 null;0 0.000;1002003 1002.003 -0;"
    )
    assert encode_rows((Program(ops[:1]), [np.array([1 << 63], np.uint64)]), 1) == b"9223372036854775808"
    for op, column in ((Op(REAL), columns[0]), (Op(INTEGER), columns[1])):
        with pytest.raises(ValueError, match="text needs a column of"):
            encode_rows((Program([op]), [column]), 4)


@given(st.lists(st.tuples(U64, st.text(max_size=100)), max_size=20))
def test_a_piece_for_each_row(rows: list[tuple[int, str]]) -> None:
    """Pieces that were encoded from columns are normal fields of a message."""
    names, pieces = Blobs(), Blobs()
    pieces.add(b"")
    for _, name in rows:
        names.add(proto.encode("TrackEvent", {"name": name}))
    ids = np.arange(len(rows), dtype=np.uint32)
    event = Template("TrackEvent", {"name": Piece("ids", "names"), "counter_value": FromColumn("values")})
    values = np.array([value for value, _ in rows], np.uint64)
    encode_pieces(pieces, event.bind({"ids": ids, "names": names, "values": values}), len(rows))
    template = packet(track_event={"piece": Piece("ids", "pieces")})
    found = [p.track_event for p in parsed(template, len(rows), ids=ids + 1, pieces=pieces)]
    assert [(e.counter_value & (1 << 64) - 1, e.name) for e in found] == rows


class TestRefusals:
    """Arguments that would read or write out of bounds are errors."""

    template = packet(gpu_render_stage_event={"event_id": FromColumn("v")})
    offsets, pieces, lasts = np.array([0, 2], np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint64)

    def encode(self, columns: dict[str, Any], template: Template | None = None, **more: Any) -> Any:
        stream = (template or self.template).bind(columns)
        return encode(np.empty(1000, np.uint8), 0, [stream], self.offsets, self.pieces, self.lasts.copy(), **more)

    def test_a_column_that_is_too_short(self) -> None:
        with pytest.raises(IndexError, match="no row 1"):
            self.encode({"v": np.zeros(1, np.uint32)})

    def test_a_row_that_is_not_there(self) -> None:
        with pytest.raises(IndexError, match="no row 9"):
            self.encode({"v": np.zeros(2, np.uint32)}, rows=np.array([0, 9], np.uint32))

    def test_a_stream_that_is_not_there(self) -> None:
        with pytest.raises(IndexError, match="no stream 3"):
            self.encode({"v": np.zeros(2, np.uint32)}, which=np.array([0, 3], np.uint16))

    def test_a_piece_that_is_not_there(self) -> None:
        template = packet(track_event={"pieces": Piece("ids", "pieces")})
        with pytest.raises(IndexError, match="no piece"):
            self.encode({"ids": np.zeros(2, np.uint32), "pieces": Blobs()}, template)

    @pytest.mark.parametrize("offsets", [[0, 1, 9], [1, 0, 0]])
    def test_offsets_of_a_list_that_lead_out_of_it(self, offsets: list[int]) -> None:
        template = packet(gpu_render_stage_event={"event_wait_ids": Each("offsets", "values")})
        with pytest.raises(IndexError, match="offsets"):
            self.encode({"offsets": np.array(offsets, np.uint32), "values": np.zeros(3, np.uint64)}, template)

    def test_times_that_go_back(self) -> None:
        with pytest.raises(ValueError, match="must not decrease"):
            self.encode({"t": np.array([5, 4], np.uint64)}, packet(timestamp=Delta("t")))

    def test_pieces_of_rows_that_are_not_there_or_of_themselves(self) -> None:
        pieces = Blobs()
        with pytest.raises(IndexError, match="no row 2"):
            encode_pieces(pieces, self.template.bind({"v": np.zeros(2, np.uint32)}), 3)
        template = packet(track_event={"pieces": Piece("ids", "pieces")})
        with pytest.raises(ValueError, match="their own table"):
            encode_pieces(pieces, template.bind({"ids": np.zeros(2, np.uint32), "pieces": pieces}), 2)
        template = packet(sequence=SegmentPiece("prefixes"))
        with pytest.raises(ValueError, match="segment"):
            encode_pieces(pieces, template.bind({"prefixes": Blobs()}), 1)
        assert len(pieces) == 0

    @pytest.mark.parametrize("column", [np.zeros((2, 2), np.uint32), np.zeros(2, ">u4"), np.zeros(2, "S3")])
    def test_columns_of_other_kinds(self, column: np.ndarray) -> None:
        with pytest.raises(TypeError, match="incompatible"):
            self.encode({"v": column})

    @pytest.mark.parametrize(
        "ops", [[(CLOSE, b"", 0, 0, False, False, 0, 0, b"")], [(OPEN, b"\n", 0, 0, False, False, 0, 0, b"")]]
    )
    def test_programs_with_messages_left_open_or_closed_twice(self, ops: list[Any]) -> None:
        with pytest.raises(ValueError, match="closed"):
            Program(ops)


def test_a_field_that_perfetto_does_not_have() -> None:
    with pytest.raises(KeyError, match="TracePacket has no field nonsense"):
        packet(nonsense=1)


@given(st.integers(-(2**31), 2**31 - 1), st.text(max_size=20), st.lists(U64, max_size=5))
def test_constant_messages(number: int, text: str, ids: list[int]) -> None:
    event = {"type": 1, "name": text, "flow_ids": ids, "debug_annotations": [{"name": text, "int_value": number}]}
    found = protos.TracePacket.FromString(proto.encode("TracePacket", {"track_event": event})).track_event
    assert (found.type, found.name, list(found.flow_ids)) == (1, text, ids)
    assert found.debug_annotations[0].int_value == number
