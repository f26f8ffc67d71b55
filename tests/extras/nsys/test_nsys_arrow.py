"""Arrow and Parquet exports of Nsight Systems have the same tables as SQLite exports, and become the same traces."""

from __future__ import annotations

import math
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cutrace
from contents import everything
from cutrace import BadCapture, CutraceError, Trace
from databases import NSYS, global_tid, kernel, nsys

pa = pytest.importorskip("pyarrow")


def tables(path: Path) -> dict[str, Any]:
    """The tables of a database as Arrow tables."""
    found = {}
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [c[1] for c in database.execute(f"PRAGMA table_info({name})")]
            values = list(zip(*database.execute(f"SELECT * FROM {name}"), strict=True)) or [()] * len(columns)
            # UUIDs are bytes in this version.
            found[name] = pa.table({c: pa.array(v) for c, v in zip(columns, values, strict=True)})
    return found


def parquetdir(folder: Path, source: Path) -> Path:
    import pyarrow.parquet

    folder.mkdir()
    for name, table in tables(source).items():
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    return folder


def arrowdir(folder: Path, source: Path) -> Path:
    folder.mkdir()
    for i, (name, table) in enumerate(tables(source).items()):
        new = pa.ipc.new_file if i % 2 else pa.ipc.new_stream
        with new(folder / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table)
    return folder


def arrow(path: Path, source: Path) -> Path:
    with path.open("wb") as file:
        for name, table in tables(source).items():
            named = table.replace_schema_metadata({"table_name": name})
            with pa.ipc.new_stream(file, named.schema) as writer:
                writer.write_table(named)
    return path


FORMS = [parquetdir, arrowdir, arrow]


def same(a: Trace, b: Trace) -> bool:
    found, expected = everything(a), everything(b)
    # Each import has a separate boot id.
    for held in (found, expected):
        del held["processes"]
    return found == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_real_export_is_the_same_in_each_form(tmp_path: Path, form: Any) -> None:
    trace = cutrace.load(form(tmp_path / "export.arrow", NSYS))
    expected = cutrace.load(NSYS)

    assert same(trace, expected)
    assert trace.imports[0].format == "nsys-arrow"
    assert trace.imports[0].accounts == expected.imports[0].accounts


@pytest.mark.parametrize("form", FORMS)
def test_nvtx_and_calls_are_the_same_in_each_form(tmp_path: Path, form: Any) -> None:
    thread = {"globalTid": global_tid(100, 101)}
    source = nsys(
        tmp_path / "a.sqlite", ["f", "poll"],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10 * i, 10 * i + 5, graphNodeId=i or None) for i in range(1, 50)],
        OSRT_API=[thread | {"start": 4, "end": 6, "nameId": 2}],
        NVTX_EVENTS=[
            thread | {"start": 3, "end": 9, "eventType": 59, "text": "a", "textId": None, "doubleValue": 2.5},
            thread | {"start": 4, "end": None, "eventType": 59, "text": None, "textId": 1, "doubleValue": None},
        ],
    )  # fmt: skip

    assert same(cutrace.load(form(tmp_path / "export.arrow", source)), cutrace.load(source))


def other(column: Any, how: str) -> Any:
    """A column as other programs write it when they copy an export."""
    if pa.types.is_string(column.type):
        kinds = {"dictionary": pa.dictionary(pa.int32(), pa.string()), "large": pa.large_string()}
        return column.cast(kinds[how]) if how in kinds else column
    if pa.types.is_integer(column.type):
        if how == "floating" and (max(map(abs, column.to_pylist() or [0])) if not column.null_count else 0) >= 2**53:
            return column  # too large for an exact integer
        kinds = {"floating": pa.float64(), "decimal": pa.decimal128(38, 0)}
        return column.cast(kinds[how]) if how in kinds else column
    return column


@pytest.mark.parametrize("how", ["dictionary", "large", "floating", "decimal"])
def test_columns_may_be_of_other_types(tmp_path: Path, how: str) -> None:
    import pyarrow.parquet

    (tmp_path / "p").mkdir()
    for name, table in tables(NSYS).items():
        columns = {c: other(table.column(c).combine_chunks(), how) for c in table.column_names}
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / "p" / f"{name}.parquet")
    trace, expected = cutrace.load(tmp_path / "p"), cutrace.load(NSYS)

    assert same(trace, expected)
    assert trace.imports[0].accounts == expected.imports[0].accounts


def test_a_column_that_says_nothing_is_no_leftover(tmp_path: Path) -> None:
    import pyarrow.parquet

    folder = parquetdir(tmp_path / "p", nsys(tmp_path / "a.sqlite", CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)] * 3))
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pyarrow.parquet.read_table(file)
    for column, values in (("nothing", [math.nan, 0.0, None]), ("something", [math.nan, 0.0, 1.0])):
        table = table.append_column(column, pa.array(values))
    pyarrow.parquet.write_table(table, file)
    (told,) = (line for line in cutrace.load(folder).imports[0].leftovers() if "thing" in line)

    assert told == "1 something of CUPTI_ACTIVITY_KIND_KERNEL left out"


def test_a_number_that_is_not_whole_is_lost(tmp_path: Path) -> None:
    import pyarrow.parquet

    export = nsys(tmp_path / "a.sqlite", ["k"], CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20)] * 3)
    folder = parquetdir(tmp_path / "p", export)
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pyarrow.parquet.read_table(file)
    for column, values in (("end", [20.0, 20.5, 1e300]), ("registersPerThread", [16.0, None, 16.0])):
        table = table.set_column(table.column_names.index(column), column, pa.array(values))
    pyarrow.parquet.write_table(table, file)
    trace = cutrace.load(folder)

    assert trace.kernels["end"].tolist() == [20 + trace.processes[0].info["time_offset_ns"]]
    assert trace.imports[0].lost == 2


def test_a_file_that_is_cut_off_gives_what_can_be_read(tmp_path: Path) -> None:
    rows = [kernel(10 * i, 10 * i + 5) for i in range(1, 5001)]
    path = arrow(
        tmp_path / "a.arrow", nsys(tmp_path / "a.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=rows, X=[{"a": 1}])
    )
    path.write_bytes(path.read_bytes()[:-40])
    trace = cutrace.load(path)

    assert len(trace.kernels) == 5000
    assert any("damaged" in note for note in trace.quality.notes)


def test_a_damaged_table_leaves_the_others(tmp_path: Path) -> None:
    folder = parquetdir(tmp_path / "p", NSYS)
    (folder / "CUPTI_ACTIVITY_KIND_MEMCPY.parquet").write_bytes(b"PAR1 no more")
    trace = cutrace.load(folder)

    assert len(trace.kernels) == 1
    assert len(trace.unified_memory) == 0
    assert any("CUPTI_ACTIVITY_KIND_MEMCPY" in note for note in trace.quality.notes)


def test_a_folder_of_other_things_is_no_export(tmp_path: Path) -> None:
    (tmp_path / "songs.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadCapture):
        cutrace.load(tmp_path)


def test_without_pyarrow_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = parquetdir(tmp_path / "p", NSYS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CutraceError, match="pip install pyarrow"):
        cutrace.load(folder)
