"""Parquet files as other programs read them, compared with docs/formats.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import captures
import cutrace
from cutrace.runbin import TABLES
from cutrace.trace.selection import INTERNED

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.fixture
def folder(tmp_path):
    capture = captures.awkward(tmp_path / "run.bin")
    cutrace.convert(capture, tmp_path / "run.parquet")
    return tmp_path / "run.parquet"


def test_there_is_a_file_for_each_table_with_rows_and_no_other(folder):
    with cutrace.load(folder.with_name("run.bin")) as trace:
        wanted = {name for name in TABLES if len(trace.table(name)) > (name in INTERNED)}
        unknown = {name for name in TABLES if len(trace.unknown(name))}
    assert {p.stem for p in folder.glob("*.parquet")} == wanted | {"processes"}
    assert {p.stem for p in (folder / "unknown_times").glob("*.parquet")} == unknown == {"kernels", "nvtx_ranges"}


def test_columns_are_the_fields_of_the_table_with_their_units(folder):
    for path in folder.rglob("*.parquet"):
        if path.stem == "processes":
            continue
        found, table = pq.read_schema(path), TABLES[path.stem]
        derived = [f.name for f in found if b"derived" in (f.metadata or {})]
        assert [n for n in found.names if n not in derived or n in table.offsets][: len(table.fields)] == list(
            table.offsets
        )
        assert found.metadata[b"cutrace.table"].decode() == table.name
        for field in table.fields:
            column = found.field(field.name)
            assert (column.metadata or {}).get(b"unit", b"").decode() == field.unit
            if field.unit in ("ns", "bytes") and field.type == "u64":
                assert column.type == pa.int64()
            if field.type == "string":
                assert pa.types.is_dictionary(column.type)


def test_texts_stand_in_place_of_ids(folder):
    kernels = pq.read_table(folder / "kernels.parquet").to_pydict()
    assert set(kernels["name"]) == {None, "", "_Z6überλv", "node()"}
    launches = pq.read_table(folder / "launches.parquet").to_pydict()
    assert dict(zip(launches["id"], launches["demangled"], strict=True))[kernels["launch"][-1]] == "node()"
    assert "_Z4nodev" in launches["name"]
    ranges = pq.read_table(folder / "nvtx_ranges.parquet").to_pydict()
    assert {"outer", "ä µ 漢字", None} <= set(ranges["name"])
    assert set(pq.read_table(folder / "api_calls.parquet").column("name").to_pylist()) >= {"cudaLaunchKernel", None}


def test_processes_say_what_the_capture_says(folder):
    (first, *_) = pq.read_table(folder / "processes.parquet").to_pylist()
    assert (first["pid"], first["host"], first["command"]) == (100, "node0", ["python", "train.py"])
    assert '"boot_id"' in first["description"]


def test_it_replaces_a_folder_that_was_there(folder):
    (folder / "pc_samples.parquet").write_text("")
    cutrace.convert(folder.with_name("run.bin"), folder)
    assert not (folder / "pc_samples.parquet").exists()
    assert (folder / "kernels.parquet").exists()


@pytest.mark.parametrize("name", ["thesis.txt", "other.parquet", "unknown_times/notes"])
def test_it_does_not_replace_a_folder_with_other_files(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    with pytest.raises(cutrace.CutraceError, match=f"it has {Path(name).name}, which would be lost"):
        cutrace.convert(folder.with_name("run.bin"), folder)
    assert (folder / name).read_text() == "mine"


def test_duckdb_reads_it_as_it_is(folder):
    duckdb = pytest.importorskip("duckdb")
    section = DOCS.read_text().partition("\n## Parquet\n")[2]
    query = re.search(r"```sql\n(.*?)```", section, re.DOTALL)[1].replace("run.parquet", str(folder))
    rows = duckdb.sql(query).fetchall()
    assert ("node()", 15, 750) in rows


def test_polars_reads_it_as_it_is(folder):
    polars = pytest.importorskip("polars")
    kernels = polars.read_parquet(folder / "kernels.parquet")
    assert kernels.select((polars.col("end") - polars.col("start")).sum()).item() == 60_756
    for path in folder.rglob("*.parquet"):
        polars.read_parquet(path)


def test_every_column_is_of_a_type_that_spark_reads(folder):
    # Spark has no unsigned types and no half-precision type. It reads them as the next larger type.
    known = {"int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    known |= {"double", "bool", "string", "list<element: string>"}
    for path in folder.rglob("*.parquet"):
        for column in pq.read_schema(path):
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            assert str(kind) in known or kind == pa.binary(16)
