"""SQL views with the names of Nsight Systems' and Perfetto's tables, compared with exports to both."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

import cutrace
from captures import DATA, Capture
from cutrace.queries import view_columns
from cutrace.sql_views import VIEWS
from support.traceprocessor import query as ask_perfetto

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

NSYS = [name for name in VIEWS if name[0].isupper() and not name.startswith(("ENUM", "StringIds"))]
#: Columns that contain ids of strings.
STRINGS = ("demangledName", "shortName", "nameId", "domainId")


def contents(view: str, columns: list[str]) -> str:
    """A query for the rows of a table of Nsight Systems, with strings in place of their ids."""
    selected = []
    for column in columns:
        if column in STRINGS:
            selected.append(f"(select value from StringIds where id = t.{column}) as {column}")
        else:
            selected.append(f't."{column}"')
    query = f"select {', '.join(selected)} from {view} t"
    if view == "CUPTI_ACTIVITY_KIND_MEMCPY":
        query += " where copyKind < 11"  # without the migrations of unified memory
    if view == "NVTX_EVENTS":
        query += ' where eventType = 34 or eventType in (59, 60) and "end" is not null'
    return query


def counted(rows: list[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, rows))


@pytest.mark.parametrize("capture", ["torch_step", "cuda_graph", "cuda_graph_whole", "processes", "cpp_streams", "jax"])
def test_views_have_the_rows_of_an_export_for_nsight_systems(tmp_path, capture):
    cutrace.convert(DATA / f"{capture}.bin", tmp_path / "run.sqlite")
    compared = 0
    with cutrace.load(DATA / f"{capture}.bin") as trace, closing(sqlite3.connect(tmp_path / "run.sqlite")) as exported:
        tables = {name for (name,) in exported.execute("select name from sqlite_master")}
        columns_of_views = view_columns()
        for view in NSYS:
            columns = columns_of_views[view]
            query = contents(view, columns)
            found = [tuple(row.values()) for row in cutrace.sql(trace, query).to_pylist()]
            expected = exported.execute(query).fetchall() if view in tables else []
            assert counted(found) == counted(expected), view
            compared += len(found)
    assert compared > 50


@pytest.mark.parametrize(
    ("capture", "query"),
    [
        ("torch_step", "select ts, dur from gpu_slice"),
        ("cuda_graph_whole", "select ts, dur from gpu_slice"),
        ("processes", "select ts, dur, pid from gpu_slice join process using (upid)"),
        (
            "torch_step",
            "select s.ts, s.dur, s.name, t.tid, p.pid from slice s join thread_track k on s.track_id = k.id "
            "join thread t using (utid) join process p using (upid) "
            "where s.category like 'cuda%' or s.category like 'nvtx%'",
        ),
        ("processes", "select pid, p.name from process p where pid > 0"),
        (
            "sampled",
            "select t.name, count(*) as n from counter c join counter_track t on c.track_id = t.id "
            "where t.name like '%.%' group by t.name",
        ),
    ],
)
def test_a_query_has_the_answer_of_perfetto(tmp_path, capture, query):
    cutrace.convert(DATA / f"{capture}.bin", tmp_path / "run.pftrace")
    expected = Counter(tuple(row.values()) for row in ask_perfetto(tmp_path / "run.pftrace", query))
    found = Counter(tuple(map(str, row.values())) for row in cutrace.sql(DATA / f"{capture}.bin", query).to_pylist())
    assert found == expected
    assert found


def test_all_slices_are_on_tracks(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("k"), 0, 5, correlation=1)
        c.push_pop("step", 0, 9)
        c.mark("here", 5)
        c.add("host_slices", start=10, end=20, name="on a track", track="mine", process=0)
        c.add("counters", time=10, value=1.5, name="load", unit="%", device=0xFFFF)
    query = "select slice.name, dur, track.name as track from slice left join track on track_id = track.id order by 1"
    found = cutrace.sql(tmp_path / "a.bin", query).to_pylist()
    assert [(row["name"], row["dur"]) for row in found] == [("here", 0), ("k", 5), ("on a track", 10), ("step", 9)]
    assert [row["track"] for row in found] == [None, "Stream 7", "mine", None]
    joined = "select count(*) as n from slice join track on track_id = track.id"
    assert cutrace.sql(tmp_path / "a.bin", joined)["n"].to_pylist() == [4]
    counters = "select value, name, unit from counter join counter_track on track_id = counter_track.id"
    assert cutrace.sql(tmp_path / "a.bin", counters).to_pylist() == [{"value": 1.5, "name": "load", "unit": "%"}]


def test_views_are_made_when_a_query_names_them(tmp_path, monkeypatch):
    read = []
    original = cutrace.Trace.table
    monkeypatch.setattr(cutrace.Trace, "table", lambda trace, name: read.append(name) or original(trace, name))
    path = DATA / "torch_step.bin"
    assert not set(cutrace.sql(path, "show tables")["name"].to_pylist()) & set(VIEWS)
    # If a column or an alias in a query has the name of a view, no view is created.
    cutrace.sql(path, "select process, track from host_slices slice")
    assert set(read) <= {"host_slices", "losses"}
    assert cutrace.sql(path, "select count(*) as n from query_table('SLICE')")["n"].to_pylist()[0] > 400
    own = cutrace.sql(path, "with slice as (select 1 as one) select * from slice")
    assert own.to_pylist() == [{"one": 1}]
