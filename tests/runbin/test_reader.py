"""Reading run.bin: complete, torn, damaged and hostile files."""

from __future__ import annotations

import errno
import json
import os
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutrace._native import crc32c
from cutrace.errors import BadCapture
from cutrace.outputs import open_to_read, read_at
from cutrace.runbin import TABLES, Reader, Writer
from cutrace.runbin.blocks import HEADER_SIZE, MAGIC, pack_header
from cutrace.runbin.layout import PROCESS_BLOCK, STRINGS_BLOCK

KERNELS = TABLES["kernels"]


def kernels(count: int, start: int = 1000) -> np.ndarray:
    rows = np.zeros(count, KERNELS.dtype)
    rows["start"] = start + 10 * np.arange(count)
    rows["end"] = rows["start"] + 5
    rows["correlation"] = np.arange(count)
    return rows


def write(path: Path, count: int = 100, pid: int = 7, blocks: int = 3, **info) -> bytes:
    with Writer(path, pid=pid, **info) as writer:
        writer.intern_one("launches", name="first", grid_x=1)
        for i in range(blocks):
            writer.rows("kernels", kernels(count, start=1000 + 100_000 * i))
    return path.read_bytes()


def rows_of(reader: Reader, table: str = "kernels") -> np.ndarray:
    return np.concatenate(
        [reader.read(i) for i in reader.indices(TABLES[table].number).tolist()] or [np.empty(0, TABLES[table].dtype)]
    )


def reseal(header: bytes) -> bytes:
    """Return the header with its checksum corrected."""
    return header[:60] + crc32c(header[:60]).to_bytes(4, "little")


def test_rows_come_back_as_they_were_written(tmp_path):
    write(tmp_path / "a.bin", count=50_000, blocks=1)
    with Reader(tmp_path / "a.bin") as reader:
        np.testing.assert_array_equal(rows_of(reader), kernels(50_000))
        assert reader.damage == ()
        assert reader.processes[0]["pid"] == 7


def test_a_block_knows_its_table_its_rows_and_their_time(tmp_path):
    write(tmp_path / "a.bin", count=10, blocks=2)
    with Reader(tmp_path / "a.bin") as reader:
        blocks = [b for b in reader.blocks if b.table == "kernels"]
    assert [(b.rows, b.first_time, b.last_time) for b in blocks] == [(10, 1000, 1095), (10, 101_000, 101_095)]
    assert [b.index for b in blocks] == sorted(b.index for b in blocks)


def test_rows_are_a_view_of_the_payload(tmp_path):
    write(tmp_path / "a.bin", blocks=1)
    with Reader(tmp_path / "a.bin") as reader:
        rows = reader.read(int(reader.indices(KERNELS.number)[0]))
    assert not rows.flags.owndata
    assert not rows.flags.writeable


def test_a_small_capture_is_read_at_once(tmp_path):
    write(tmp_path / "a.bin", count=30)
    with Reader(tmp_path / "a.bin") as reader:
        indices = reader.indices(TABLES["kernels"].number)
        os.truncate(tmp_path / "a.bin", 0)
        rows = [len(reader.read(index)) for index in indices.tolist()]
        assert sum(rows) == 3 * 30
        assert not reader.damage


def test_captures_appended_to_one_another_are_one_capture_of_two_processes(tmp_path):
    a, b = write(tmp_path / "a.bin", pid=1), write(tmp_path / "b.bin", pid=1, count=20)
    (tmp_path / "ab.bin").write_bytes(a + b)
    with Reader(tmp_path / "ab.bin") as reader:
        assert len(reader.processes) == 2
        assert reader.damage == ()
        assert len(rows_of(reader)) == 3 * 100 + 3 * 20


def test_processes_with_layouts_of_this_version_share_their_declaration(tmp_path):
    (tmp_path / "ab.bin").write_bytes(write(tmp_path / "a.bin", pid=1) + write(tmp_path / "b.bin", pid=2))
    with Reader(tmp_path / "ab.bin") as reader:
        assert reader.processes[0]["tables"] is reader.processes[1]["tables"]


def test_a_capture_appended_to_itself_counts_once(tmp_path):
    a = write(tmp_path / "a.bin")
    (tmp_path / "aa.bin").write_bytes(a + a)
    with Reader(tmp_path / "aa.bin") as reader:
        assert len(rows_of(reader)) == 300
        assert "a recording twice, counted once" in reader.damage[0].reason


@pytest.mark.parametrize("cut", [1, 8, 40, 63, 64, 65, 200, 1000, 3000])
def test_a_torn_end_loses_only_the_last_block(tmp_path, cut):
    data = write(tmp_path / "a.bin")
    (tmp_path / "a.bin").write_bytes(data[:-cut])
    with Reader(tmp_path / "a.bin") as reader, Reader(write_to(tmp_path / "whole.bin", data)) as whole:
        kept = [b for b in whole.blocks if b.offset + HEADER_SIZE + b.payload_size <= len(data) - cut]
        assert [b.offset for b in reader.blocks] == [b.offset for b in kept]
        at_end = kept[-1].offset + HEADER_SIZE + -(-kept[-1].payload_size // 8) * 8
        torn = len(data) - cut - at_end
        assert sum(d.size for d in reader.damage) == max(torn, 0)


def write_to(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_torn_capture_in_front_of_another_does_not_take_it_along(tmp_path):
    a, b = write(tmp_path / "a.bin", pid=1), write(tmp_path / "b.bin", pid=2)
    with Reader(tmp_path / "a.bin") as reader:
        last = [x for x in reader.blocks if x.table == "kernels"][-1]
    (tmp_path / "ab.bin").write_bytes(a[: last.offset + HEADER_SIZE + 100] + b)
    with Reader(tmp_path / "ab.bin") as reader:
        assert len(rows_of(reader)) == 200 + 300
        assert [(d.reason, d.rows) for d in reader.damage] == [("a block that was written or copied in part", 100)]


def test_a_damaged_payload_is_left_out_and_reported(tmp_path):
    data = bytearray(write(tmp_path / "a.bin"))
    with Reader(tmp_path / "a.bin") as reader:
        block = [x for x in reader.blocks if x.table == "kernels"][1]
    data[block.offset + HEADER_SIZE + 10] ^= 0xFF
    with Reader(write_to(tmp_path / "a.bin", bytes(data))) as reader:
        assert len(rows_of(reader)) == 200
        assert [(d.offset, d.rows, d.reason) for d in reader.damage] == [(block.offset, 100, "damaged block")]


def test_the_reader_finds_the_next_block_behind_a_damaged_header(tmp_path):
    data = bytearray(write(tmp_path / "a.bin"))
    with Reader(tmp_path / "a.bin") as reader:
        block = [x for x in reader.blocks if x.table == "kernels"][1]
    data[block.offset + 20] ^= 0xFF
    with Reader(write_to(tmp_path / "a.bin", bytes(data))) as reader:
        assert len(rows_of(reader)) == 200
        assert [d.offset for d in reader.damage if d.size] == [block.offset]
        assert any("lacks" in d.reason for d in reader.damage), "the gap in the block numbers is named too"


def test_a_file_that_lacks_its_start_is_damaged(tmp_path):
    data = write(tmp_path / "a.bin")
    with Reader(tmp_path / "a.bin") as reader:
        second = reader.blocks[1].offset
    with Reader(write_to(tmp_path / "a.bin", data[second:])) as reader:
        assert "process 0 lacks 1 block" in [damage.reason for damage in reader.damage]


def test_a_newer_layout_is_read_by_the_fields_that_both_know(tmp_path):
    fields = [["new_field", "u64", 0, ""], ["end", "u64", 8, "ns"], ["start", "u64", 16, "ns"], ["odd", "u128", 24, ""]]
    rows = np.zeros(
        3, np.dtype({"names": ["end", "start"], "formats": ["<u8", "<u8"], "offsets": [8, 16], "itemsize": 40})
    )
    rows["start"], rows["end"] = [1, 2, 3], [4, 5, 6]
    info = {"format": 1, "tables": {"kernels": {"number": 16, "row_size": 40, "fields": fields}}}
    data = block(PROCESS_BLOCK, json.dumps(info).encode(), rows=1, sequence=0)
    data += block(KERNELS.number, rows.tobytes(), rows=3, row_size=40, sequence=1)
    with Reader(write_to(tmp_path / "new.bin", data)) as reader:
        read = rows_of(reader)
    assert read.dtype == KERNELS.dtype
    assert read["start"].tolist() == [1, 2, 3]
    assert read["end"].tolist() == [4, 5, 6]
    assert read["correlation"].tolist() == [0, 0, 0]


def block(kind: int, payload: bytes, *, rows: int, row_size: int = 0, sequence: int = 0, **header) -> bytes:
    head = pack_header(
        kind, row_size=row_size, rows=rows, payload=payload, pid=1, sequence=sequence, instance=9, **header
    )
    return head + payload + bytes(-len(payload) % 8)


def test_rows_survive_the_loss_of_the_process_block(tmp_path):
    data = bytearray(write(tmp_path / "a.bin"))
    data[HEADER_SIZE + 5] ^= 0xFF
    with Reader(write_to(tmp_path / "a.bin", bytes(data))) as reader:
        assert len(rows_of(reader)) == 300
        assert reader.damage[0].reason == "damaged block"


@pytest.mark.parametrize(
    "tables",
    [
        None,
        [],
        {"kernels": 1},
        {"kernels": {"row_size": -1, "fields": []}},
        {"kernels": {"row_size": 34, "fields": [[]]}},
        {"kernels": {"row_size": 34, "fields": [["start", "u64", 33, ""]]}},
        {"kernels": {"row_size": 34, "fields": [["start", "u64", -1, ""]]}},
        {"kernels": {"row_size": 34, "fields": [["start", "u64", 0, ""], ["start", "u64", 8, ""]]}},
        {"kernels": {"row_size": 1 << 40, "fields": []}},
    ],
)
def test_layouts_that_make_no_sense_are_not_followed(tmp_path, tables):
    data = block(PROCESS_BLOCK, json.dumps({"format": 1, "tables": tables}).encode(), rows=1)
    data += block(KERNELS.number, kernels(3).tobytes(), rows=3, row_size=34, sequence=1)
    with Reader(write_to(tmp_path / "bad.bin", data)) as reader:
        assert len(rows_of(reader)) in (0, 3)
        assert len(rows_of(reader)) == 3 or reader.damage


def test_a_format_of_the_future_is_refused_with_the_next_step(tmp_path):
    write(tmp_path / "a.bin")
    data = block(PROCESS_BLOCK, json.dumps({"format": 99}).encode(), rows=1)
    with pytest.raises(BadCapture, match=r"format 99.*install"):
        Reader(write_to(tmp_path / "future.bin", data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"hello, world\n" * 100, "is not a run.bin capture"),
        (MAGIC, "is a capture that is cut off inside its first block"),
        (MAGIC + bytes(56), "is a capture that is cut off inside its first block"),
        (b"\x00" * 5000, "is not a run.bin capture"),
    ],
)
def test_files_without_a_single_block_are_refused(tmp_path, data, message):
    with pytest.raises(BadCapture, match=message):
        Reader(write_to(tmp_path / "x.bin", data))


def test_paths_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(BadCapture, match="No such file"):
        Reader(tmp_path / "nothing.bin")
    with pytest.raises(BadCapture, match="it is a folder"):
        Reader(tmp_path)


def test_a_disk_that_fails_is_named_with_its_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    write(tmp_path / "a.bin")
    monkeypatch.setattr("cutrace.runbin.reader.read_at", fail)
    with pytest.raises(BadCapture, match=re.escape(f"cannot read {tmp_path}/a.bin: Input/output error. Check")):
        Reader(tmp_path / "a.bin")


def test_no_file_descriptor_is_left_open(tmp_path):
    write(tmp_path / "a.bin")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with Reader(tmp_path / "a.bin"):
        pass
    for data in (b"", b"no capture"):
        with pytest.raises(BadCapture):
            Reader(write_to(tmp_path / "x.bin", data))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("field", ["rows", "payload_size", "row_size"])
def test_sizes_that_are_lies_cost_no_memory(tmp_path, field):
    at, size = {"rows": (12, 4), "payload_size": (16, 4), "row_size": (10, 2)}[field]
    data = write(tmp_path / "a.bin", count=10)
    with Reader(tmp_path / "a.bin") as reader:
        target = [b for b in reader.blocks if b.table == "kernels"][1]
    head = bytearray(data[target.offset : target.offset + HEADER_SIZE])
    head[at : at + size] = b"\xff" * size
    lie = data[: target.offset] + reseal(bytes(head)) + data[target.offset + HEADER_SIZE :]
    tracemalloc.start()
    with Reader(write_to(tmp_path / "lie.bin", lie)) as reader:
        assert len(rows_of(reader)) == 20
        assert reader.damage
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> bytes:
    return write(tmp_path_factory.mktemp("sample") / "a.bin", count=30, host="here", command=["a", "b"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_whatever_crashes_the_reader(tmp_path, sample, monkeypatch, data):
    """Bits are flipped, bytes are cut or inserted, and headers with wild values get correct checksums."""
    monkeypatch.setattr("cutrace.runbin.reader._READ_AT_ONCE", data.draw(st.sampled_from([0, 1 << 16])))
    broken = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(broken) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "insert", "reseal"]))
        if action == "flip":
            broken[at] ^= data.draw(st.integers(1, 255))
        elif action == "cut":
            del broken[at : at + data.draw(st.integers(1, 300))]
        elif action == "insert":
            broken[at:at] = data.draw(st.binary(min_size=1, max_size=80))
        else:
            head = broken.rfind(MAGIC, 0, at + 1)
            if head >= 0 and len(broken) >= head + HEADER_SIZE:
                broken[head + data.draw(st.integers(8, 59))] = data.draw(st.integers(0, 255))
                broken[head : head + HEADER_SIZE] = reseal(bytes(broken[head : head + HEADER_SIZE]))
        if not broken:
            return
    path = write_to(tmp_path / "broken.bin", bytes(broken))
    try:
        reader = Reader(path)
    except BadCapture:
        return
    with reader:
        for index, info in enumerate(reader.blocks):
            if info.table:
                reader.read(index)
            elif reader.headers["kind"][index] == STRINGS_BLOCK:
                list(reader.strings(index) or ())


def test_threads_read_one_file_where_there_is_no_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread")
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * 64)
    file = open_to_read(path)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda at: read_at(file, 3, at), range(0, 16384, 7)))
    finally:
        os.close(file)
    assert found == [path.read_bytes()[at : at + 3] for at in range(0, 16384, 7)]
