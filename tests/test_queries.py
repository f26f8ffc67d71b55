"""SQL over the tables of a trace, and the examples of docs/reference/tables.md."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import Capture
from cutrace.runbin import TABLES, Writer
from support import cutrace as command_line
from support import rows, small_capture

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

PAGES = Path(__file__).parents[1] / "docs"
DOCS = (PAGES / "reference" / "tables.md").read_text()
DATA = Path(__file__).parent / "data"


@pytest.fixture
def capture(tmp_path):
    return small_capture(tmp_path / "run.bin")


def sql(*arguments: object, **options) -> str:
    done = command_line("sql", *arguments, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments: object) -> str:
    done = command_line("sql", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("example", re.findall(r"```sql\n(.*?)```", DOCS, re.DOTALL))
def test_the_examples_have_rows(example):
    assert cutrace.sql(DATA / "torch_step.bin", example).num_rows


def test_the_examples_in_python_run(tmp_path, monkeypatch):
    for number, name in enumerate(("run", "rank0", "rank1")):
        small_capture(tmp_path / f"{name}.bin", pid=100 + number, instance=number + 1)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    names = {"cutrace": cutrace}
    exec(example, names)
    assert names["slowest"].to_pylist() == [{"name": "saxpy", "ns": 150}]
    assert sorted(names["launches"].to_pydict()["launches"]) == [2, 2]


def test_every_table_is_there_with_its_rows_and_columns():
    with cutrace.load(DATA / "torch_step.bin") as trace:
        listed = cutrace.sql(trace, "show tables").to_pydict()["name"]
        payloads = {"nvtx_range_payloads", "nvtx_mark_payloads"}
        assert set(listed) == {*TABLES, *payloads, "processes"}
        for name in ("kernels", "api_calls", "launches", "devices"):
            expected = trace.arrow(name)
            found = cutrace.sql(trace, f"select * from {name}")
            if "short_name" in found.column_names:
                place = found.column_names.index("short_name")
                assert found.column_names[place - 1] == "name"
                found = found.remove_column(place)
            assert found.to_pydict() == expected.to_pydict()
            assert found.column_names == expected.column_names
        assert cutrace.sql(trace, "select pid, name from processes").to_pylist() == [
            {"pid": process.pid, "name": process.name} for process in trace.processes
        ]


def test_launch_configurations_filter_sort_and_join(tmp_path):
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        small, large = (
            writer.intern_one("launches", name="small", grid_x=1),
            writer.intern_one("launches", name="large", grid_x=8),
        )
        launches, start = [large, small, 0, large], np.arange(10, 14)
        writer.rows("kernels", rows("kernels", 4, start=start, end=start + 1, launch=launches))

    def starts(condition: str) -> list[int]:
        found = cutrace.sql(tmp_path / "a.bin", f"select start from kernels where {condition}")
        return [start - 10 for start in found["start"].to_pylist()]

    assert starts("grid_x > 1 and name is not null") == [0, 3]
    assert starts("name is null") == [2]
    assert starts("grid_x in (1, 2) or name = 'large'") == [0, 1, 3]
    assert starts("true order by grid_x, start desc") == [2, 1, 3, 0]
    assert starts("grid_x = (select grid_x from launches where name = 'small')") == [1]
    assert cutrace.sql(tmp_path / "a.bin", "select id, short_name from launches").to_pylist() == [
        {"id": small, "short_name": "small"},
        {"id": large, "short_name": "large"},
    ]


def test_sums_agree_with_stats_and_are_integers():
    path = DATA / "torch_step.bin"
    found = cutrace.sql(path, "select sum(duration) as ns, count(*) as launches from kernels")
    assert found.schema.types == [pa.int64(), pa.int64()]
    report = cutrace.stats(path, "cuda_gpu_kern_sum")
    totals = [sum(row[report.place(name)] for row in report.rows) for name in ("total", "count")]
    assert list(found.to_pylist()[0].values()) == totals


def test_only_the_named_tables_are_read(capture, monkeypatch):
    read = []
    original = cutrace.Trace.table
    monkeypatch.setattr(cutrace.Trace, "table", lambda trace, name: read.append(name) or original(trace, name))
    assert cutrace.sql(capture, 'select count(*) as n from "KERNELS"').to_pydict() == {"n": [2]}
    assert set(read) <= {"kernels", "launches", "losses"}
    computed = "select count(*) as n from query_table('api_' || 'calls')"
    assert cutrace.sql(capture, computed).to_pydict() == {"n": [2]}


def test_several_files_are_one_trace(tmp_path):
    paths = [small_capture(tmp_path / f"{n}.bin", pid=n, offset=1000 * n, instance=n) for n in (1, 2)]
    query = "select pid, count(*) as n from kernels join processes using (process) group by pid order by pid"
    assert cutrace.sql(paths, query).to_pydict() == {"pid": [1, 2], "n": [2, 2]}
    assert sql(*paths, query, "--format", "csv") == "pid,n\n1,2\n2,2\n"


def test_the_table_is_limited_as_in_stats(capture):
    shown = sql(capture, "select range as n from range(25)")
    assert shown.splitlines()[0] == "Result"
    assert "more: --limit 0 shows all" in shown.splitlines()[-1]
    assert len(shown.splitlines()) == 2 + 20 + 1
    assert len(sql(capture, "from range(25)", "--limit", 0).splitlines()) == 2 + 25
    assert len(sql(capture, "from range(25)", "--format", "csv").splitlines()) == 1 + 25


def test_json_has_numbers_texts_and_null(capture):
    query = "select 7 as i, 1.5 as d, true as b, null as nothing, 'x' as t, 'ab'::blob as raw, [1, 2] as l, 1 as i"
    (report,) = json.loads(sql(capture, query, "--format", "json"))["reports"]
    assert report["rows"] == [
        {"i": 7, "d": 1.5, "b": True, "nothing": None, "t": "x", "raw": "6162", "l": "[1, 2]", "i_2": 1}
    ]
    assert [column["unit"] for column in report["columns"][:2]] == ["", "number"]


def test_parquet_has_all_rows_and_types(tmp_path, capture):
    from pyarrow import parquet

    query, out = "select name, duration, sum(duration) over () as total from kernels", tmp_path / "out.parquet"
    assert sql(capture, query, "-o", out) == ""
    assert parquet.read_table(out).to_pylist() == cutrace.sql(capture, query).to_pylist()
    assert "name a file with -o" in refused(capture, query, "--format", "parquet")


def test_a_failed_query_leaves_the_output_alone(tmp_path, capture):
    for form in ("parquet", "json"):
        out = tmp_path / f"out.{form}"
        out.write_text("before")
        query = "select cast(name as int) from kernels"
        assert "Could not convert string 'saxpy' to INT32" in refused(capture, query, "--format", form, "-o", out)
        assert out.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"run.bin", "out.parquet", "out.json"}


@pytest.mark.parametrize("form", ["table", "csv", "json", "markdown"])
@pytest.mark.parametrize(
    "query",
    ["select (case when range = 1e5 then 'x' else '1' end)::int from range(100001)",
     "select sum(range::hugeint * 1e18::hugeint) as s from range(100000)"],
)  # fmt: skip
def test_a_failed_query_prints_nothing(capture, form, query):
    assert refused(capture, query, "--format", form, "--limit", 0)


def test_the_output_is_no_source(capture):
    before = capture.read_bytes()
    assert "is an input" in refused(capture, "select 1", "-o", capture, "--format", "json")
    assert capture.read_bytes() == before


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select '\udcff'", "the query is not UTF-8"),
        ("select nme from kernels", r'"nme" not found.*"name".* kernels has start, end, duration, .*registers'),
        ("select k.nme from kernels k", r"kernels has start"),
        ("select * from kernel", r'Did you mean "kernels"\? The tables are processes, kernels, memcpys'),
        ("select start, end from kernels", r'as a column it needs quotes, "end"'),
        ("selec 1", r'syntax error at or near "selec"\.'),
        ("select sum(duration::hugeint * 1e18::hugeint) as s from kernels", "beyond 64 bits: .* s::double"),
        ("", "one statement that reads"),
        ("select 1; select 2", "one statement that reads"),
        ("create table t as select 1", "one statement that reads"),
        ("set memory_limit = '1GB'", "one statement that reads"),
        ("copy kernels to 'x.csv'", "one statement that reads"),
        ("select * from read_text('/etc/hostname')", "disabled by configuration"),
        ("select * from '/etc/hostname'", "does not exist"),
        ("select * from read_csv('http://localhost/x.csv')", "cutrace: "),
        ("select * from rows", "does not exist"),  # a variable of this test's module
    ],
)
def test_bad_queries_end_with_one_sentence(capture, query, said):
    assert re.search(said, refused(capture, query))


@pytest.mark.parametrize("form", ["table", "csv"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_query(capture, tmp_path, form, number):
    """The query would take years. DuckDB has a temporary folder when cutrace starts it."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    query = "select sum(a.range * b.range) as s from range(1000000000) a, range(1000000000) b"
    command = [sys.executable, "-m", "cutrace", "sql", str(capture), query, "--format", form]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(scratch)}
    ) as run:
        while not any(scratch.iterdir()):
            assert run.poll() is None
            time.sleep(0.01)
        time.sleep(0.5)
        run.send_signal(number)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 128 + number
    assert "Traceback" not in said
    assert not any(scratch.iterdir())


def test_tables_about_tables_are_shown_whole(capture):
    assert len(sql(capture, "show tables").splitlines()) == 2 + len(TABLES) + 3
    assert "kernel_codes" in sql(capture, "show tables")
    assert len(sql(capture, "describe kernels").splitlines()) > 2 + 20
    assert "more: --limit 0 shows all" in sql(capture, "SHOW tables", "--limit", 5)


def test_kernels_have_the_names_of_batch_and_stats(tmp_path):
    path = DATA / "torch_step.bin"
    found = cutrace.sql(path, "select short_name, sum(duration) as ns from kernels group by 1 order by 1").to_pylist()
    expected = {row["name"]: row["total_ns"] for row in cutrace.stats(path, "cuda_gpu_kern_sum").arrow().to_pylist()}
    assert {row["short_name"]: row["ns"] for row in found} == expected
    cutrace.batch("kernels", [path], tmp_path / "out", mode="sequential")
    names = {row["kernel"] for row in cutrace.sql(tmp_path / "out", "select kernel from kernels").to_pylist()}
    assert names == set(expected)


def test_each_table_that_names_kernels_has_short_names(tmp_path):
    mangled, short = "_ZN2at6native4gemmIfEEvPT_", "at::native::gemm"
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        text = writer.string(mangled)
        launch = writer.intern_one("launches", name=mangled)
        writer.rows("kernels", rows("kernels", 2, start=[5, 6], end=7, launch=[launch, 0]))
        for name, column in {
            "kernel_codes": "name", "device_functions": "name", "pc_samples": "function",
            "instruction_metrics": "function",
        }.items():  # fmt: skip
            writer.rows(name, rows(name, 1, **{column: text}))
    for name in ("kernel_codes", "device_functions", "instruction_metrics"):
        assert cutrace.sql(tmp_path / "a.bin", f"select short_name from {name}")["short_name"].to_pylist() == [short]
    found = cutrace.sql(tmp_path / "a.bin", "select short_name from kernels order by start")
    assert found["short_name"].to_pylist() == [short, "(unknown kernel)"]
    assert cutrace.sql(tmp_path / "a.bin", "select short_name from launches where id = 1")["short_name"].to_pylist()


def test_the_documentation_lists_the_tables_with_short_names():
    page = (PAGES / "internals" / "sql.md").read_text().replace("\n\n", "\n")
    (listed,) = re.findall(r"^((?:`\w+`(?:, | and )?)+) have a `short_name`", page, re.M)
    with cutrace.load(DATA / "torch_step.bin") as trace:
        named = {}
        for name in cutrace.sql(trace, "show tables")["name"].to_pylist():
            columns = cutrace.sql(trace, f"describe {name}")["column_name"].to_pylist()
            named[name] = "short_name" in columns
    assert set(re.findall(r"\w+", listed)) - {"and"} == {name for name, has in named.items() if has}


def test_processes_have_their_place_in_the_job(tmp_path):
    variables = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "SLURM_JOB_ID": "77"}
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for number, (path, environment) in enumerate(zip(paths, (variables, {}), strict=True)):
        with Capture(path, pid=100 + number, host=f"node{number}", environment=environment) as c:
            c.mark("here", 5)
    query = "select rank, local_rank, world_size, job, host from processes order by pid"
    assert [tuple(row.values()) for row in cutrace.sql(paths, query).to_pylist()] == [
        (9, 1, 16, "77", "node0"), (None, None, None, None, "node1"),
    ]  # fmt: skip


def test_a_process_that_was_killed_is_not_complete(tmp_path):
    with Capture(tmp_path / "a.bin", pid=100) as c:
        c.mark("here", 5)
    with Capture(tmp_path / "b.bin", pid=101) as c:
        c.mark("here", 5)
        c.flush()
        c.writer._file.flush()
        (tmp_path / "killed.bin").write_bytes(c.writer._part.read_bytes())
    query = "select complete from processes order by pid"
    found = cutrace.sql([tmp_path / "a.bin", tmp_path / "killed.bin"], query)
    assert found["complete"].to_pylist() == [True, False]


def test_errors_name_what_is_missing(capture, monkeypatch):
    with pytest.raises(cutrace.CutraceError, match="Did you mean"):
        cutrace.sql(capture, "select * from kernel")
    for package in ("pyarrow", "duckdb"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(cutrace.CutraceError, match=rf"{package}: install it with `pip install {package}`"):
            cutrace.sql(capture, "select 1")


def test_what_is_missing_in_the_trace_is_said_on_stderr(tmp_path):
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        writer.rows("losses", rows("losses", 1, time=5, count=7, reason=1))
    done = command_line("sql", tmp_path / "a.bin", "select count(*) as n from kernels", "--format", "csv")
    assert (done.returncode, done.stdout) == (0, "n\n0\n")
    lost = "7 records that CUPTI dropped because it had no buffer"
    assert lost in done.stderr
    done = command_line("sql", tmp_path / "a.bin", "select 1", "--format", "json")
    assert lost in json.loads(done.stdout)["missing"]


def test_what_exceeds_the_memory_of_duckdb_goes_to_the_temporary_folder(tmp_path, monkeypatch):
    """A sort of 60 MB runs with 20 MB of memory."""
    duckdb = pytest.importorskip("duckdb")
    connect = duckdb.connect
    limits = {"memory_limit": "20MB", "threads": "1"}
    monkeypatch.setattr(duckdb, "connect", lambda config: connect(config=config | limits))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        count = 1_000_000
        start = np.arange(count, 0, -1) * 10
        writer.rows("memsets", rows("memsets", count, start=start, end=start + 5, bytes=np.arange(count)))
    query = "select start, bytes, correlation, duration, process from memsets order by start"
    found = cutrace.sql(tmp_path / "a.bin", query)["start"].to_numpy()
    assert found.tolist() == sorted(start.tolist())
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
