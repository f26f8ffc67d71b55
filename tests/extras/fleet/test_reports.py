"""The numbers of batch reports: equal to those of `stats`, exact over time, and on the wall clock."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import ORIGIN, Capture
from cutrace.analysis.statistics.gpus import GPUS
from cutrace.extras.fleet.engines import Engine
from cutrace.extras.fleet.model import BatchOptions, Matrix, RankTrace
from cutrace.extras.fleet.running import run

pq = pytest.importorskip("pyarrow.parquet")
DATA = Path(__file__).parents[2] / "data"
CAPTURES = sorted(DATA.glob("*.bin"))
WALL = 1_700_000_000_000_000_000
MS = 1_000_000


def batch(tmp_path: Path, report: str, paths: list[Path], **options: str) -> cutrace.Batch:
    return cutrace.batch(report, paths, tmp_path / "out", mode="sequential", **options)


def parts(tmp_path: Path, report: str) -> list[dict[str, int]]:
    files = sorted((tmp_path / "out" / report).rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


def steps(path: Path, rank: int, *, late: int = 0, length: int = 4 * MS, idle: int = MS, nccl: int = 0) -> Path:
    """Ten steps of a kernel and an idle time. Each step ends with ``nccl`` ns of communication, if that is not 0."""
    with Capture(path, pid=100 + rank, environment={"RANK": str(rank)}) as c:
        gemm, reduce = c.launch("_Z4gemmPf"), c.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        c.clocks()
        for step in range(10):
            begin = late + step * (length + nccl + idle)
            c.kernel(gemm, begin, begin + length, correlation=2 * step + 1)
            if nccl:
                c.kernel(reduce, begin + length, begin + length + nccl, stream=9, correlation=2 * step + 2)
            c.push_pop(f"step {step}", begin, begin + length + nccl)
        c.clocks(10 * MS)
    return path


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_busy_and_idle_times_are_those_of_stats(tmp_path, capture):
    with cutrace.load(capture) as trace:
        uses = GPUS.of(trace)
    batch(tmp_path, "utilization", [capture])
    busy = sum(row["busy_ns"] for row in parts(tmp_path, "utilization"))
    # The drift of the wall clock changes the duration of an interval a little.
    assert busy == pytest.approx(sum(use.busy for use in uses), rel=1e-3)
    batch(tmp_path, "gaps", [capture])
    assert sum(row["total_ns"] for row in parts(tmp_path, "gaps")) == sum(u.last - u.first - u.busy for u in uses)
    batch(tmp_path, "overlap", [capture])
    rows = parts(tmp_path, "overlap")
    assert sum(row["busy_ns"] for row in rows) == sum(use.busy for use in uses)
    assert sum(row["hidden_copies_ns"] for row in rows) == sum(use.copies.hidden for use in uses)


def test_busy_time_is_at_its_time_on_the_wall_clock(tmp_path):
    path = steps(tmp_path / "a.bin", 0, length=40 * MS, idle=60 * MS)
    batch(tmp_path, "utilization", [path])
    rows = parts(tmp_path, "utilization")
    width = rows[0]["step_ns"]
    assert width & (width - 1) == 0
    assert all(row["at_ns"] % width == 0 for row in rows)
    assert all(b["at_ns"] - a["at_ns"] == width for a, b in pairwise(rows))
    for row in rows:
        begins = [WALL + ORIGIN + 100 * MS * step for step in range(10)]
        overlaps = (min(row["at_ns"] + width, b + 40 * MS) - max(row["at_ns"], b) for b in begins)
        assert row["busy_ns"] == sum(max(overlap, 0) for overlap in overlaps)


def test_a_rank_with_an_idle_gpu_is_named_and_nobody_else(tmp_path):
    paths = [steps(tmp_path / f"{n}.bin", n, late=n * 1000, idle=MS if n != 3 else 5 * MS) for n in range(8)]
    result = batch(tmp_path, "utilization", paths)
    (sentence,) = result.sentences
    assert sentence.startswith("rank 3 GPU 0: busy 4")
    (sentence,) = batch(tmp_path, "gaps", paths).sentences
    assert sentence == "rank 3 GPU 0: idle 5.00 times as long as the median GPU"
    by_length, by_rank = cutrace.batch("gaps", paths, tmp_path / "out", mode="sequential").reports
    assert sum(row["count"] for row in by_length.arrow().to_pylist()) == 8 * 9
    assert sum(row["total_ns"] for row in by_rank.arrow().to_pylist()) == 9 * MS * (7 + 5)
    assert batch(tmp_path, "utilization", paths[:3] + paths[4:]).sentences == []


def test_communication_that_is_not_hidden_is_named(tmp_path):
    paths = [steps(tmp_path / f"{n}.bin", n, nccl=MS + n * 100 if n != 2 else 3 * MS) for n in range(6)]
    result = batch(tmp_path, "overlap", paths)
    (sentence,) = result.sentences
    assert sentence.startswith("rank 2 GPU 0: communication outside of computation, with waits, takes 3.00 ")
    row = result.reports[0].arrow().to_pylist()[2]
    assert (row["communication_ns"], row["hidden"], row["exposed_ns"]) == (30 * MS, 0.0, 30 * MS)


def test_the_pace_of_a_range_and_of_a_kernel_by_rank_and_time(tmp_path):
    paths = [steps(tmp_path / f"{n}.bin", n, length=4 * MS + 100 * n if n != 4 else 6 * MS) for n in range(6)]
    result = batch(tmp_path, "pace", paths, name="step *")
    rows = {row["rank"]: row for row in result.reports[0].arrow().to_pylist()}
    assert {(row["kind"], row["count"]) for row in rows.values()} == {("range", 10)}
    assert rows["rank 4"]["mean_ns"] == 6 * MS
    assert result.sentences == ["rank 4: range step * takes 1.50 times as long as on the median rank"]
    kernels = batch(tmp_path, "pace", paths, name="gemm")
    assert {row["kind"] for row in kernels.reports[0].arrow().to_pylist()} == {"kernel"}
    assert [file.state for file in kernels.files] == ["done"] * 6, "another name needs other parts"
    drawn = run("pace", paths, tmp_path / "out", engine=Engine("sequential"), options=BatchOptions(name="gemm"))
    (picture,) = drawn.results["pace"].pictures
    assert picture.labels == [f"rank {n}" for n in range(6)]
    assert np.nanmax(picture.values[4]) == np.nanmin(picture.values[4]) == picture.values[4][0] == 6 * MS
    assert picture.start <= WALL + ORIGIN < picture.start + picture.step


def test_ranks_without_the_name_of_a_pace_are_named(tmp_path):
    paths = [steps(tmp_path / f"{n}.bin", n) for n in range(5)]
    with Capture(paths[3], pid=103) as c:
        c.kernel(c.launch("_Z4gemmPf"), 1_000, 2_000)
        c.clocks()
    assert batch(tmp_path, "pace", paths, name="step *").sentences == ["nothing is named 'step *' on rank 3"]


def test_small_shares_have_digits(tmp_path):
    paths = []
    for n in range(6):
        path = tmp_path / f"{n}.bin"
        with Capture(path, pid=100 + n) as c:
            gemm = c.launch("_Z4gemmPf")
            busy = 30_000 + n if n == 2 else 60_000 + n
            for step in range(3):
                c.kernel(gemm, step * 100 * MS, step * 100 * MS + busy, correlation=step + 1)
            c.clocks()
        paths.append(path)
    (sentence,) = batch(tmp_path, "utilization", paths).sentences
    shares = re.findall(r"(0\.0\d+)%", sentence)
    assert len(shares) == 2
    assert float(shares[0]) == pytest.approx(float(shares[1]) / 2, rel=0.05)


def test_a_pace_needs_a_name_that_is_there(tmp_path):
    path = steps(tmp_path / "a.bin", 0)
    with pytest.raises(cutrace.CutraceError, match=r"pace needs `name=`.*nvtx_sum"):
        batch(tmp_path, "pace", [path])
    with pytest.raises(cutrace.CutraceError, match="nothing is named 'axpy'"):
        batch(tmp_path, "pace", [path], name="axpy")


def test_a_rank_without_clock_snapshots_keeps_its_times(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("k"), 10, 20, correlation=1)
    with cutrace.load(tmp_path / "a.bin") as trace:
        rank = RankTrace(trace, (0,))
        assert rank.clock.error is None
        assert rank.moved(trace.kernels["start"]).tolist() == [ORIGIN + 10]


@pytest.mark.parametrize("report", ["kernels", "utilization", "gaps", "overlap"])
def test_a_capture_without_gpu_work_is_no_error(tmp_path, report):
    with Capture(tmp_path / "a.bin") as c:
        c.mark("nothing ran", 5)
    result = batch(tmp_path, report, [tmp_path / "a.bin"])
    assert all(list(table.rows) == [] for table in result.reports)


def test_the_picture_of_kernels_by_rank_has_the_differences_from_the_median_rank(tmp_path):
    paths = [steps(tmp_path / f"rank{n}.bin", n, nccl=MS, length=5 * MS if n == 3 else 4 * MS) for n in range(4)]
    ran = run("kernels", paths, tmp_path / "out", engine=Engine(mode="sequential"))
    (matrix,) = [picture for picture in ran.results["kernels"].pictures if isinstance(picture, Matrix)]
    assert matrix.labels == ["gemm"]
    assert matrix.columns == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert matrix.values.tolist() == [[0, 0, 0, 0.25]]


def test_the_heat_map_of_busy_gpus_has_the_hosts(tmp_path):
    with Capture(tmp_path / "rank0.bin", pid=1, host="node7") as c:
        c.clocks()
        c.kernel(c.launch("_Z4gemmPf"), 0, 5)
    ran = run("utilization", [tmp_path / "rank0.bin"], tmp_path / "out", engine=Engine(mode="sequential"))
    (heat,) = ran.results["utilization"].pictures
    assert heat.hosts == ["node7"]
