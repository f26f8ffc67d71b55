"""CSV of any table."""

from __future__ import annotations

import csv
import io

import pytest

import captures
import cutrace
from captures import ORIGIN
from cutrace import CutraceError
from cutrace.runbin import TABLES
from cutrace.trace.selection import INTERNED


@pytest.fixture
def capture(tmp_path):
    return captures.awkward(tmp_path / "run.bin")


def rows(path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


def test_the_name_of_the_file_says_the_table(capture, tmp_path):
    cutrace.convert(capture, tmp_path / "memcpys.csv")
    first = rows(tmp_path / "memcpys.csv")[0]
    assert (first["start"], first["bytes"], first["kind"]) == (str(ORIGIN + 40_600), "4096", "10")


def test_or_the_request_does(capture, tmp_path):
    cutrace.convert(capture, tmp_path / "x.csv", table="memcpys")
    assert len(rows(tmp_path / "x.csv")) == 6


@pytest.mark.parametrize("how", [{}, {"table": "kernel"}])
def test_no_table_is_an_error_that_lists_them(capture, tmp_path, how):
    with pytest.raises(CutraceError, match=r"kernels, memcpys, .*, losses"):
        cutrace.convert(capture, tmp_path / "kernel.csv", **how)
    assert not (tmp_path / "kernel.csv").exists()


def test_every_table_can_be_written(capture, tmp_path):
    with cutrace.load(capture) as trace:
        for name in TABLES:
            path = tmp_path / f"{name}.csv"
            cutrace.convert(capture, path)
            assert len(rows(path)) == len(trace.table(name)) - (name in INTERNED)
            assert path.read_bytes().endswith(b"\r\n")


def test_kernels_have_the_columns_of_their_launch_and_demangled_names(capture, tmp_path):
    cutrace.convert(capture, tmp_path / "kernels.csv")
    found = [row for row in rows(tmp_path / "kernels.csv") if row["name"] == "node()"]
    assert len(found) == 15
    assert (found[0]["block_x"], found[0]["graph_node"], found[0]["carveout"]) == ("32", "100", "255")


def test_calls_have_the_columns_of_their_function(capture, tmp_path):
    cutrace.convert(capture, tmp_path / "api_calls.csv")
    found = rows(tmp_path / "api_calls.csv")
    assert ("cudaLaunchKernel", "700") in {(row["name"], row["status"]) for row in found}
    assert "" in {row["name"] for row in found}


def test_only_texts_that_need_quotes_have_them(tmp_path):
    texts = ["plain", "a,b", 'say "hi"', "two\nlines", "two\r\nlines", " spaces ", "", "ä"]
    with captures.Capture(tmp_path / "run.bin") as c:
        for text in texts:
            c.mark(text, 1)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "nvtx_marks.csv")
    assert [row["name"] for row in rows(tmp_path / "nvtx_marks.csv")] == texts
    written = (tmp_path / "nvtx_marks.csv").read_text()
    assert ',"a,b",' in written
    assert ',"say ""hi""",' in written
    assert '"plain"' not in written


def test_numbers_are_exact(tmp_path):
    with captures.Capture(tmp_path / "run.bin") as c:
        c.device(uuid=bytes(range(16)))
        c.add("counters", time=ORIGIN, value=0.1, name="load")
        c.mark("largest", 0, payload=(1 << 64) - 1, payload_type=1)
    for name in ("counters", "nvtx_marks", "devices"):
        cutrace.convert(tmp_path / "run.bin", tmp_path / f"{name}.csv")
    assert rows(tmp_path / "counters.csv")[0]["value"] == "0.1"
    assert rows(tmp_path / "nvtx_marks.csv")[0]["payload"] == str((1 << 64) - 1)
    assert rows(tmp_path / "devices.csv")[0]["uuid"] == bytes(range(16)).hex()


def test_a_window_keeps_what_touches_it(capture, tmp_path):
    cutrace.convert(capture, tmp_path / "kernels.csv", start=ORIGIN + 20_001, end=ORIGIN + 40_000)
    starts = {int(row["start"]) - ORIGIN for row in rows(tmp_path / "kernels.csv")}
    assert starts == {15_000, 30_000}
