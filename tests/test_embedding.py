"""A file with an embedded capture opens as that capture, or reports that the capture cannot be read."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import captures
import cutrace
import pftrace
from contents import everything
from cutrace import CutraceError, embedding
from cutrace._native import transposed
from cutrace.exporters.perfetto import export, packets
from cutrace.importers.base import DAMAGED, SourceFile
from cutrace.runbin import TABLES, Writer, reader
from cutrace.runbin.blocks import HEADER, MAGIC
from support import cutrace as run

DATA = sorted((Path(__file__).parent / "data").glob("*.bin"))
NAMES = ("x.pftrace", "x.pftrace.gz", "x.json", "x.json.gz", "x.sqlite")


def carrying(capture: Path, name: str = "x.pftrace", **how) -> Path:
    target = capture.with_name(name)
    cutrace.convert(capture, target, capture=True, **how)
    return target


def inside(path: Path) -> bytes:
    """The capture that opens from a file."""
    with cutrace.load(path) as trace:
        assert not trace.imports
        return b"".join(trace.contents(1 << 20))


def example(folder: Path) -> Path:
    return captures.training_steps(folder / "run.bin", steps=3)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(embedding, "PIECE_SIZE", 1000)


@pytest.mark.parametrize("capture", DATA, ids=lambda path: path.stem)
def test_a_trace_opens_as_the_capture_that_it_was_made_from(capture, tmp_path):
    cutrace.convert(capture, tmp_path / "x.pftrace")
    assert inside(tmp_path / "x.pftrace") == capture.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_each_format_carries_a_capture_of_many_pieces(tmp_path, small_pieces, name):
    capture = example(tmp_path)
    assert inside(carrying(capture, name)) == capture.read_bytes()


def test_pieces_of_version_0_2_0_are_read(tmp_path, monkeypatch):
    """They have plain rows, and may start inside a block."""
    capture = example(tmp_path)
    whole = capture.read_bytes()
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    pieces = []
    for offset in range(0, len(whole), 1000):
        frame = compressor.compress(whole[offset : offset + 1000])
        pieces.append(embedding._HEADER.pack(offset, len(whole)) + frame)
    monkeypatch.setattr(packets, "piece_makers", lambda trace: map(partial, repeat(bytes), pieces))
    assert inside(carrying(capture)) == whole


def test_pieces_start_at_blocks(tmp_path):
    capture = example(tmp_path)
    with cutrace.load(capture) as trace:
        starts = {block.offset for block in trace._reader.blocks}
        largest = max(block.payload_size for block in trace._reader.blocks)
        parts = list(trace.contents(largest + 100))
    ends = np.cumsum([len(part) for part in parts]).tolist()
    assert len(parts) > 1
    assert set(ends[:-1]) < starts
    assert b"".join(parts) == capture.read_bytes()


def test_damage_at_the_start_is_carried(tmp_path, small_pieces):
    capture = example(tmp_path)
    capture.write_bytes(bytes(2500) + capture.read_bytes())
    assert inside(carrying(capture)) == capture.read_bytes()


def test_columns_of_bytes_are_smaller(tmp_path):
    rows = captures.training_steps(tmp_path / "run.bin", steps=50).read_bytes()
    assert len(zstandard.compress(transposed(rows), 1)) < 0.7 * len(zstandard.compress(rows, 1))


@pytest.mark.parametrize("capture", DATA, ids=lambda path: path.stem)
def test_columns_of_bytes_are_rows_again(capture):
    whole = capture.read_bytes()
    for data in (whole, whole[:-100], whole[1000:], whole[:30], b""):
        assert transposed(transposed(data), back=True) == data


BLOCKS = st.builds(lambda row_size, rows: block(row_size, rows), st.integers(0, 40), st.integers(0, 80))


@given(parts=st.lists(st.one_of(st.binary(max_size=80), st.just(MAGIC), BLOCKS)))
def test_any_bytes_are_the_same_again(parts):
    data = b"".join(parts)
    columns = transposed(data)
    assert len(columns) == len(data)
    assert transposed(columns, back=True) == data


def block(row_size: int, rows: int) -> bytes:
    """A block header and the first 2000 bytes of its payload."""
    header = np.zeros(1, HEADER)
    header["magic"] = MAGIC
    header["row_size"] = row_size
    header["payload_size"] = rows * row_size
    payload = np.arange(min(rows * row_size, 2000)) % 251
    return header.tobytes() + payload.astype(np.uint8).tobytes()


def test_pieces_are_between_the_windows_of_a_trace(tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(export, "GPU_WINDOW", 1)
    with captures.Capture(tmp_path / "run.bin") as c:
        launch = c.launch("kernel")
        for i in range(10):
            c.kernel(launch, 1000 * i, 1000 * i + 500, correlation=i + 1)
            c.flush()
    packets = pftrace.protos.Trace.FromString(carrying(c.path).read_bytes()).packet
    # The perfetto package does not know the field that contains a piece of the capture.
    pieces = [n for n, packet in enumerate(packets) if embedding._FIELD in packet.SerializeToString()]
    events = [n for n, packet in enumerate(packets) if packet.HasField("gpu_render_stage_event")]
    assert pieces[0] == 0
    assert any(events[0] < piece < events[-1] for piece in pieces)
    assert inside(tmp_path / "x.pftrace") == c.path.read_bytes()


def test_a_trace_is_called_by_the_file_that_was_opened(tmp_path):
    target = carrying(example(tmp_path))
    with cutrace.load(target) as trace:
        assert f"<Trace of {target}: " in repr(trace)


@pytest.mark.parametrize("compress", ["zstd", "deflate"])
def test_a_trace_with_packed_packets_carries_one(tmp_path, compress):
    capture = example(tmp_path)
    cutrace.convert(capture, tmp_path / "x.pftrace", compress=compress)
    assert inside(tmp_path / "x.pftrace") == capture.read_bytes()


def test_a_carrying_file_may_be_compressed_later(tmp_path):
    capture = example(tmp_path)
    trace = carrying(capture)
    packed = tmp_path / "x.pftrace.zst"
    packed.write_bytes(zstandard.compress(trace.read_bytes()))
    assert inside(packed) == capture.read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("asked", [None, False])
def test_only_json_needs_the_request_to_carry_one(tmp_path, name, asked):
    capture = example(tmp_path)
    cutrace.convert(capture, tmp_path / name, capture=asked)
    found = embedding.extract(SourceFile.at(tmp_path / name), tmp_path / "inside.bin", DAMAGED)
    assert found == (asked is None and ".json" not in name)


def test_viewers_see_the_same_events(tmp_path):
    capture = example(tmp_path)
    with_capture = pftrace.decode(carrying(capture))
    cutrace.convert(capture, tmp_path / "plain.pftrace", capture=False)
    without = pftrace.decode(tmp_path / "plain.pftrace")
    assert with_capture.gpu == without.gpu
    assert with_capture.packets - without.packets == {"none": 1}


def test_other_readers_of_json_and_databases_see_the_same_events(tmp_path):
    capture = example(tmp_path)
    for name in ("plain.json", "plain.sqlite"):
        cutrace.convert(capture, tmp_path / name, capture=False)
    found = json.loads(carrying(capture, "x.json").read_bytes())
    assert found.pop(embedding.JSON_KEY)
    assert found == json.loads((tmp_path / "plain.json").read_bytes())

    def rows(path: Path) -> dict[str, list[object]]:
        with closing(sqlite3.connect(path)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
            return {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}

    found = rows(carrying(capture, "x.sqlite"))
    assert found.pop(embedding.SQLITE_TABLE)
    assert found == rows(tmp_path / "plain.sqlite")


def test_captures_of_several_processes_come_back_as_one(tmp_path):
    a = captures.training_steps(tmp_path / "a.bin", steps=1)
    b = captures.awkward(tmp_path / "b.bin")
    cutrace.convert([a, b], tmp_path / "both.pftrace")
    assert inside(tmp_path / "both.pftrace") == a.read_bytes() + b.read_bytes()


def test_traces_behind_each_other_come_back_as_one(tmp_path, small_pieces):
    sources = DATA[:2]
    both = tmp_path / "both.pftrace"
    for source in sources:
        one = tmp_path / "one.pftrace"
        cutrace.convert(source, one)
        both.write_bytes((both.read_bytes() if both.exists() else b"") + one.read_bytes())
    assert inside(both) == b"".join(source.read_bytes() for source in sources)


def test_what_is_carried_is_redacted(tmp_path):
    with captures.Capture(tmp_path / "run.bin", command=["secret", "--of-mine"], host="secret-host") as c:
        c.mark("m", 5)
    trace = carrying(tmp_path / "run.bin", redact=True)
    assert b"secret" not in inside(trace)


def test_what_is_carried_is_the_selected_part(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        c.mark("before", 0)
        c.mark("inside", 1_000)
        c.mark("behind", 2_000)
    moment = captures.ORIGIN + 1_000
    path = carrying(tmp_path / "run.bin", start=moment, end=moment + 1)
    assert [word in inside(path) for word in (b"before", b"inside", b"behind")] == [False, True, False]


def test_what_a_file_of_another_tool_said_is_carried(tmp_path):
    source = tmp_path / "other.json"
    source.write_text('[{"ph": "X", "ts": 1, "dur": 2, "name": "a", "pid": 1, "tid": 2}]')
    cutrace.convert(source, tmp_path / "x.pftrace")
    with cutrace.load(source) as before, cutrace.load(tmp_path / "x.pftrace") as after:
        assert after.imports[0].source == "other.json"
        assert everything(after)["host_slices"] == everything(before)["host_slices"]


def test_a_format_that_cannot_carry_a_capture_says_so(tmp_path):
    for name in ("x.bin", "kernels.csv"):
        with pytest.raises(CutraceError, match=r"cannot carry the capture: choose \.pftrace"):
            carrying(example(tmp_path), name)


def test_the_command_line_asks_for_it(tmp_path):
    capture = example(tmp_path)
    for option, expected in (("--capture", True), ("--no-capture", False)):
        target = tmp_path / f"x{option}.json"
        assert run("convert", capture, "-o", target, option).returncode == 0
        assert (embedding.JSON_KEY in json.loads(target.read_bytes())) == expected


# Damage


def damaged(path: Path, how: str) -> None:
    """Check that the file reports a damaged capture, and is read from its events instead."""
    try:
        with cutrace.load(path) as trace:
            assert any("the embedded capture is damaged" in note and how in note for note in trace.quality.notes)
            assert trace.imports[0].lost
    except CutraceError:
        assert path.suffix != ".sqlite"  # the file has no other readable contents


@pytest.mark.parametrize("name", ["x.pftrace", "x.json"])
def test_a_capture_that_is_cut_off_is_not_used(tmp_path, small_pieces, name):
    capture = example(tmp_path)
    whole = carrying(capture, name).read_bytes()
    end = len(whole) - len(without_capture(capture, name))
    path = tmp_path / f"cut-{name}"
    for at in range(40, end - 200, 97):
        path.write_bytes(whole[:at])
        damaged(path, "")


def without_capture(capture: Path, name: str) -> bytes:
    path = capture.with_name(f"plain-{name}")
    cutrace.convert(capture, path, capture=False)
    return path.read_bytes()


def test_a_trace_that_is_cut_off_in_its_first_piece_says_what_is_lost(tmp_path):
    with Writer(tmp_path / "a.bin") as w:
        rows = np.zeros(1 << 16, TABLES["api_calls"].dtype)
        for field in ("start", "end", "correlation"):
            rows[field] = np.random.default_rng(3).integers(1 << 20, 1 << 30, len(rows))
        rows["end"] += rows["start"]
        w.rows("api_calls", rows)
    cutrace.convert(tmp_path / "a.bin", tmp_path / "a.pftrace")
    whole = (tmp_path / "a.pftrace").read_bytes()
    for size in (1 << 17, 200):
        (tmp_path / "b.pftrace").write_bytes(whole[:size])
        with pytest.raises(cutrace.BadCapture, match="is cut off or damaged: the capture inside is not complete"):
            cutrace.load(tmp_path / "b.pftrace")


def test_a_trace_that_is_cut_off_behind_the_capture_is_the_capture(tmp_path):
    capture = example(tmp_path)
    path = carrying(capture)
    path.write_bytes(path.read_bytes()[: -len(without_capture(capture, "x.pftrace")) + 10])
    assert inside(path) == capture.read_bytes()


def test_pieces_that_are_missing_or_in_another_order_are_told(tmp_path, small_pieces):
    path = carrying(example(tmp_path), "x.sqlite")
    for statement, how in (
        ("DELETE FROM {t} WHERE rowid = 2", "a piece is missing"),
        ("DELETE FROM {t} WHERE rowid > 1", "bytes are there"),
        ("UPDATE {t} SET piece = substr(piece, 1, 9)", "a piece is cut off"),
        ("UPDATE {t} SET piece = 'text'", "a piece is cut off"),
        ("UPDATE {t} SET piece = CAST(substr(piece, 1, 30) || zeroblob(50) AS BLOB)", ""),
    ):
        broken = tmp_path / "broken.sqlite"
        broken.write_bytes(path.read_bytes())
        with closing(sqlite3.connect(broken)) as database:
            database.execute(statement.format(t=embedding.SQLITE_TABLE))
            database.commit()
        damaged(broken, how)


def test_a_damaged_definition_of_another_table_leaves_the_capture_readable(tmp_path):
    """SQLite names the missing table in its message. The name may not be valid UTF-8."""
    capture = example(tmp_path)
    path = carrying(capture, "x.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE broken (x)")
        database.execute("CREATE INDEX of_broken ON broken (x)")
        database.commit()
    path.write_bytes(path.read_bytes().replace(b"ON broken", b"ON br\xdfken"))
    assert inside(path) == capture.read_bytes()

    damaged_header = path.with_name("header.sqlite")
    damaged_header.write_bytes(path.read_bytes()[:100] + bytes(4000))
    with pytest.raises(CutraceError), cutrace.load(damaged_header):
        pass


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_never_changes_a_capture_in_silence(tmp_path, at, bit):
    capture = tmp_path / "run.bin"
    if not capture.exists():
        example(tmp_path)
        carrying(capture)
    content = bytearray((tmp_path / "x.pftrace").read_bytes())
    size = len(content) - len(without_capture(capture, "x.pftrace"))
    content[int(at * size)] ^= 1 << bit
    path = tmp_path / "flipped.pftrace"
    path.write_bytes(content)
    try:
        with cutrace.load(path) as trace:
            unharmed = not trace.imports
            assert not unharmed or b"".join(trace.contents(1 << 20)) == capture.read_bytes()
    except CutraceError:
        pass


def test_a_piece_that_would_fill_the_memory_is_not_unpacked(tmp_path):
    bomb = embedding._HEADER.pack(0, 1 << 40) + zstandard.compress(bytes(embedding.PIECE_SIZE + 1))
    path = tmp_path / "bomb.sqlite"
    cutrace.convert(example(tmp_path), path, capture=False)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE {embedding.SQLITE_TABLE} ({embedding.SQLITE_COLUMN} BLOB)")
        database.execute(f"INSERT INTO {embedding.SQLITE_TABLE} VALUES (?)", (bomb,))
        database.commit()
    damaged(path, "too large")


def test_a_full_disk_is_named(tmp_path):
    path = carrying(example(tmp_path))
    with pytest.raises(CutraceError, match="cannot write /dev/full: No space left on device"):
        embedding.extract(SourceFile.at(path), Path("/dev/full"), DAMAGED)


def test_a_capture_that_got_shorter_is_not_carried_by_half(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_READ_AT_ONCE", 0)  # larger captures are not read at once
    capture = example(tmp_path)
    with cutrace.load(capture) as trace:
        capture.write_bytes(capture.read_bytes()[:500])
        with pytest.raises(CutraceError, match="got shorter"):
            list(embedding.pieces(trace))


def test_a_compressed_trace_that_carries_none_is_read_for_its_events(tmp_path):
    cutrace.convert(example(tmp_path), tmp_path / "x.pftrace.gz", capture=False)
    assert gzip.decompress((tmp_path / "x.pftrace.gz").read_bytes())[:1] == b"\n"
    with cutrace.load(tmp_path / "x.pftrace.gz") as trace:
        assert trace.imports[0].format == "perfetto"
