"""SQL over the parts of a batch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import cutrace
from captures import Capture
from support import cutrace as command_line

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
DOCS = (Path(__file__).parents[3] / "docs" / "internals" / "sql.md").read_text()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a batch over four ranks on two hosts. One rank lost records."""
    paths = []
    for rank in range(4):
        path = tmp_path / f"rank{rank}.bin"
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "SLURM_JOB_ID": "77"}
        with Capture(path, pid=100 + rank, host=f"node{rank // 2}", environment=variables) as c:
            gemm, reduce = c.launch("_Z4gemmPf"), c.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
            for step in range(5):
                c.kernel(gemm, 10_000 * step, 10_000 * step + 1_000 + rank, correlation=2 * step + 1)
                c.kernel(reduce, 10_000 * step + 5_000, 10_000 * step + 6_000, correlation=2 * step + 2)
                c.push_pop("step", 10_000 * step, 10_000 * step + 7_000)
            if rank == 3:
                c.loss(1, 50, "kernel")
            c.clocks()
        paths.append(path)
    cutrace.batch("all", paths, tmp_path / "out", mode="sequential", name="gemm")
    return tmp_path / "out"


def test_the_parts_of_a_report_are_a_table(out):
    query = "select rank, local_rank, host, job, label, incomplete, sum(total_ns) as ns from kernels"
    query += " where kernel = 'gemm' group by all order by rank"
    assert cutrace.sql(out, query).to_pylist() == [
        {
            "rank": rank, "local_rank": rank % 2, "host": f"node{rank // 2}", "job": "77",
            "label": f"rank {rank}" + " (incomplete)" * (rank == 3), "incomplete": rank == 3, "ns": 5 * (1_000 + rank),
        }
        for rank in range(4)
    ]  # fmt: skip
    sources = cutrace.sql(out, "select distinct source from overlap order by 1")["source"].to_pylist()
    assert [Path(source).name for source in sources] == [f"rank{rank}.bin" for rank in range(4)]


def test_each_report_has_a_table_with_all_rows(out):
    manifest = json.loads((out / "all.manifest.json").read_text())
    listed = cutrace.sql(out, "show tables")["name"].to_pylist()
    assert sorted(listed) == sorted(manifest["reports"])
    pq = pytest.importorskip("pyarrow.parquet")
    for name in listed:
        rows = sum(pq.ParquetFile(path).metadata.num_rows for path in (out / name).rglob("*.parquet"))
        assert cutrace.sql(out, f"select count(*) as n from {name}")["n"].to_pylist() == [rows]


def test_the_examples_over_a_batch_run(out):
    examples = re.findall(r"cutrace sql out/ '(.*?)'", DOCS, re.DOTALL)
    assert examples
    for example in examples:
        assert cutrace.sql(out, example).num_rows


def test_the_command_line_tells_what_is_missing(out):
    done = command_line("sql", out, "select count(*) as n from overlap", "--format", "csv")
    assert (done.returncode, done.stdout) == (0, "n\n4\n")
    assert "50 records that CUPTI dropped" in done.stderr


def test_a_wrong_table_of_a_batch_names_those_that_are_there(out):
    with pytest.raises(cutrace.CutraceError, match=r"The tables are .*kernels.*\."):
        cutrace.sql(out, "select * from memcpys")
    with pytest.raises(cutrace.CutraceError, match=r"kernels has job, rank, local_rank, host, .*kernel"):
        cutrace.sql(out, "select nme from kernels")


def test_other_folders_are_no_batch(tmp_path):
    (tmp_path / "x.manifest.json").write_text("[1]")
    with pytest.raises(cutrace.CutraceError, match="it is a folder"):
        cutrace.sql(tmp_path, "select 1")
