"""Folders of Parquet files that cutrace wrote open as the traces that they were made from."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import captures
import cutrace
from contents import everything
from cutrace import BadCapture, CutraceError
from random_captures import random_capture

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DATA = sorted((Path(__file__).parents[1] / "data").glob("*.bin"))


def opened_alike(capture: Path, folder: Path) -> None:
    """The folder, which cutrace made of the capture, opens as the capture and holds nothing else."""
    with cutrace.load(capture) as before, cutrace.load(folder) as after:
        assert everything(after) == everything(before)
        (account,) = after.imports
        assert (account.format, account.lost, list(account.leftovers())) == ("parquet", 0, [])
        assert all(a.balanced for a in account.accounts)


def converted(capture: Path) -> Path:
    folder = capture.with_name("run.parquet")
    cutrace.convert(capture, folder)
    return folder


@pytest.mark.parametrize("capture", DATA, ids=lambda path: path.stem)
def test_a_folder_of_a_real_capture_opens_as_the_capture(capture, tmp_path):
    cutrace.convert(capture, tmp_path / "run.parquet")
    opened_alike(capture, tmp_path / "run.parquet")


def test_everything_that_is_legal_and_unpleasant_comes_back(tmp_path):
    capture = captures.awkward(tmp_path / "run.bin")
    opened_alike(capture, converted(capture))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_any_capture_comes_back(tmp_path, random: Random):
    capture = random_capture(tmp_path / "run.bin", random)
    opened_alike(capture, converted(capture))


def test_rows_in_several_groups_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("cutrace.exporters.parquet._GROUP_ROWS", 7)
    capture = captures.training_steps(tmp_path / "run.bin")
    folder = converted(capture)
    assert pq.ParquetFile(folder / "kernels.parquet").num_row_groups > 10
    opened_alike(capture, folder)


def test_damage_of_the_capture_is_among_the_losses(tmp_path):
    capture = captures.training_steps(tmp_path / "run.bin")
    data = bytearray(capture.read_bytes())
    data[len(data) * 2 // 3] ^= 0xFF
    capture.write_bytes(data)
    with cutrace.load(converted(capture)) as trace:
        assert [loss.reason for loss in trace.quality.losses] == ["unreadable"]


# Files that are not as cutrace wrote them


@pytest.fixture
def folder(tmp_path):
    return converted(captures.training_steps(tmp_path / "run.bin"))


def changed(folder: Path, table: str, column: str, values) -> None:
    path = folder / f"{table}.parquet"
    found = pq.read_table(path)
    at = found.schema.get_field_index(column)
    pq.write_table(found.set_column(at, column, values(found.column(column))), path)


def lost(trace: cutrace.Trace) -> dict[str, int]:
    assert all(a.balanced for a in trace.imports[0].accounts)
    return {loss.detail: loss.count for loss in trace.quality.losses}


def test_a_file_that_was_written_by_another_program_is_read_by_its_columns(folder):
    # Other programs write plain texts, other sizes of integers, other orders of columns.
    path = folder / "kernels.parquet"
    found = pq.read_table(path)
    columns = {name: found.column(name) for name in reversed(found.schema.names)}
    columns["stream"] = columns["stream"].cast(pa.int64())
    pq.write_table(pa.table(columns), path)
    changed(folder, "nvtx_ranges", "name", lambda column: column.cast(pa.string()))
    opened_alike(folder.with_name("run.bin"), folder)


def test_a_column_that_is_not_there_is_zero(folder):
    path = folder / "kernels.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["device", "stream"]), path)
    with cutrace.load(folder) as trace:
        assert set(trace.kernels["stream"].tolist()) == {0}
        assert lost(trace) == {}


def test_a_column_of_another_type_loses_its_rows(folder):
    changed(folder, "memcpys", "bytes", lambda column: pa.array(["many"] * len(column)))
    with cutrace.load(folder) as trace:
        assert lost(trace) == {"memcpys: unreadable: column bytes is not a number": 20}
        assert len(trace.kernels)


def test_numbers_that_do_not_fit_lose_their_rows(folder):
    changed(folder, "memcpys", "stream", lambda column: pa.array([1 << 40] * len(column)))
    with cutrace.load(folder) as trace:
        assert lost(trace) == {"memcpys: unreadable: column stream has values that do not fit": 20}


def test_rows_of_no_process_are_lost(folder):
    changed(folder, "memcpys", "process", lambda column: pa.array([0] * 15 + [7] * 5, pa.uint16()))
    with cutrace.load(folder) as trace:
        assert lost(trace) == {"memcpys: of no process": 5}
        assert len(trace.memcpys) == 15


def test_a_file_that_is_damaged_is_lost_and_the_others_are_not(folder):
    path = folder / "kernels.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with cutrace.load(folder) as trace:
        (what,) = lost(trace)
        assert what.startswith("kernels: the file cannot be read")
        assert len(trace.api_calls)


def test_rows_of_a_damaged_page_are_lost(folder):
    path = folder / "kernels.parquet"
    data = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(0)
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 0xFF
    path.write_bytes(data)
    with cutrace.load(folder) as trace, cutrace.load(folder.with_name("run.bin")) as before:
        assert sum(lost(trace).values()) == len(before.kernels)
        assert len(trace.kernels) == 0
        assert len(trace.api_calls) == len(before.api_calls)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_damaged_bytes_lose_what_they_are_part_of(folder, random: Random):
    path = random.choice(sorted(folder.rglob("*.parquet")))
    whole = path.read_bytes()
    data = bytearray(whole)
    for _ in range(random.choice((1, 3, 9))):
        data[random.randrange(len(data))] = random.randrange(256)
    path.write_bytes(data)
    try:
        with cutrace.load(folder) as trace:
            everything(trace)
            lost(trace)
    except BadCapture:
        assert path.stem == "processes"
    finally:
        path.write_bytes(whole)


def test_a_folder_without_its_processes_is_no_trace(folder):
    processes = folder / "processes.parquet"
    whole = processes.read_bytes()
    # The footer is there, what it speaks of is not.
    processes.write_bytes(whole[:4] + bytes(len(whole) // 2 - 4) + whole[len(whole) // 2 :])
    with pytest.raises(BadCapture):
        cutrace.load(folder)
    processes.unlink()
    with pytest.raises(BadCapture):
        cutrace.load(folder)


def test_a_folder_of_a_newer_schema_is_refused(folder):
    path = folder / "processes.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"cutrace.table": "processes", "cutrace.schema": "99"}), path)
    with pytest.raises(BadCapture, match="schema 99"):
        cutrace.load(folder)


def test_a_folder_of_something_else_is_no_trace(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1]}), folder / "processes.parquet")
    with pytest.raises(BadCapture):
        cutrace.load(folder)
    shutil.rmtree(folder)


def test_without_pyarrow_a_sentence_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(CutraceError, match=r"pip install 'cutrace\[parquet\]'"):
        cutrace.load(folder)
    with pytest.raises(CutraceError, match=r"pip install 'cutrace\[parquet\]'"):
        cutrace.convert(folder.with_name("run.bin"), folder.with_name("again.parquet"))
    assert not folder.with_name("again.parquet").exists()
