"""Files are grouped by job. Restarted ranks and ranks with a shorter time are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import captures
import cutrace
from captures import Capture

pq = pytest.importorskip("pyarrow.parquet")
SECOND = 1_000_000_000


def rank_file(
    path: Path,
    rank: int | None,
    *,
    first: int = 0,
    last: int = 100,
    clock: bool = True,
    host: str = "test",
    **variables: str,
) -> Path:
    """A process with a kernel each second, from one time to another (s). ``rank`` None is not in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = {} if rank is None else {"RANK": str(rank)}
    environment |= variables
    with Capture(path, pid=100 + (rank or 0), host=host, environment=environment) as c:
        gemm = c.launch("_Z4gemmPf")
        for at in range(first, last):
            c.kernel(gemm, at * SECOND, at * SECOND + 1_000, correlation=at + 1)
        c.mark("here", 150 * SECOND)
        if clock:
            c.clocks()
    return path


def batch(paths: list[Path], out: Path, report: str = "kernels", **options: str) -> cutrace.Batch:
    return cutrace.batch(report, paths, out, mode="sequential", **options)


def jobs_on_disk(out: Path) -> set[str]:
    return {path.name for path in (out / "kernels").glob("job=*")}


# Ranks from NCCL


def nccl_file(path: Path, rank: int, size: int = 4, communicators: int = 1, **environment: str) -> Path:
    """A process with a rank from its communicators and not from its launcher. Further communicators have half as many
    ranks."""
    with Capture(path, pid=100 + rank, environment=environment) as c:
        c.kernel(c.launch("_Z4gemmPf"), SECOND, SECOND + 1_000, correlation=1)
        for number in range(communicators):
            fields = {"NCCL communicator ID": number + 1, "No. of ranks": size >> number, "Rank": rank >> number}
            c.add(
                "nvtx_ranges", start=10, end=20, name="ncclCommInitRank", domain="NCCL", thread=1, end_thread=1,
                arguments=json.dumps(fields),
            )  # fmt: skip
    return path


def ranks_on_disk(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "kernels").glob("job=*/*"))


def test_nccl_tells_the_rank_where_no_launcher_does(tmp_path):
    paths = [nccl_file(tmp_path / f"{name}.bin", rank) for name, rank in (("a", 3), ("b", 0), ("c", 1))]
    result = batch(paths, tmp_path / "out")
    assert ranks_on_disk(tmp_path / "out") == ["rank=0", "rank=1", "rank=3"]
    assert result.missing == ["rank 2 of 4 is absent"]


def test_processes_of_one_file_are_ranks_of_one_world_or_are_numbered(tmp_path):
    several = [nccl_file(tmp_path / f"{name}.bin", rank) for name, rank in (("a", 3), ("b", 1))]
    captures.join(tmp_path / "world.bin", several)
    batch([tmp_path / "world.bin"], tmp_path / "out")
    assert ranks_on_disk(tmp_path / "out") == ["rank=1", "rank=3"]
    # Two jobs have the same rank.
    several[1] = nccl_file(tmp_path / "c.bin", 3)
    captures.join(tmp_path / "worlds.bin", several)
    batch([tmp_path / "worlds.bin"], tmp_path / "out")
    assert ranks_on_disk(tmp_path / "out") == ["rank=0", "rank=1"]


def test_nccl_has_less_authority_than_the_environment_and_the_name_of_the_file(tmp_path):
    told = nccl_file(tmp_path / "a.bin", 3, RANK="1")
    named = nccl_file(tmp_path / "rank7.bin", 2)
    result = batch([told, named], tmp_path / "out")
    assert ranks_on_disk(tmp_path / "out") == ["rank=1", "rank=7"]
    # One file does not state its rank.
    assert result.missing == []


def test_communicators_that_do_not_agree_tell_no_rank(tmp_path):
    paths = [nccl_file(tmp_path / f"{name}.bin", rank, communicators=2) for name, rank in (("a", 3), ("b", 2))]
    result = batch(paths, tmp_path / "out")
    assert ranks_on_disk(tmp_path / "out") == ["rank=0", "rank=1"]
    assert result.missing == []


# Folders


def nodes(
    folder: Path, count: int = 3, *, each: int = 2, absent: int = -1, world: str = "6", **how: object
) -> list[Path]:
    """A folder for each node of a job."""
    ranks = [rank for rank in range(count * each) if rank != absent]
    names = {rank: folder / f"node{rank // each}" / f"rank{rank}.bin" for rank in ranks}
    return [rank_file(path, rank, WORLD_SIZE=world, **how) for rank, path in names.items()]


def test_a_folder_for_each_node_is_one_job(tmp_path):
    paths, out = nodes(tmp_path / "run", absent=3), tmp_path / "out"
    for _ in range(2):
        result = batch(paths, out)
        assert result.missing == ["rank 3 of 6 is absent"]
        assert jobs_on_disk(out) == {"job=run"}
    batch(paths[:2], out)
    assert jobs_on_disk(out) == {"job=node0"}
    assert len(list(out.rglob("*.parquet"))) == 2


def test_the_labels_of_one_job_have_no_job(tmp_path):
    result = batch(nodes(tmp_path / "run"), tmp_path / "out", "pace", name="gemm")
    assert sorted(result.reports[0].arrow()["rank"].to_pylist()) == [f"rank {rank}" for rank in range(6)]


def test_folders_of_runs_are_jobs_of_their_own(tmp_path):
    same_ranks = [
        rank_file(tmp_path / run / f"rank{rank}.bin", rank, WORLD_SIZE="2") for run in "ab" for rank in (0, 1)
    ]
    batch(same_ranks, tmp_path / "out")
    assert jobs_on_disk(tmp_path / "out") == {"job=a", "job=b"}


@pytest.mark.parametrize(
    "other",
    [{"first": 120, "last": 140}, {"WORLD_SIZE": "4"}, {"SLURM_JOB_ID": "7"}, {"WORLD_SIZE": ""}, {"RANK": ""}],
    ids=["another time", "another number of ranks", "a told job", "no number of ranks", "no rank"],
)
def test_without_evidence_folders_are_jobs(tmp_path, other):
    paths = [
        rank_file(tmp_path / "a" / "rank0.bin", 0, **{"WORLD_SIZE": "2"}),
        rank_file(tmp_path / "b" / "rank1.bin", 1, **({"WORLD_SIZE": "2"} | other)),
    ]
    batch(paths, tmp_path / "out")
    assert len(jobs_on_disk(tmp_path / "out")) == 2


def test_without_clocks_all_ranks_have_to_be_there(tmp_path):
    paths = nodes(tmp_path / "run", clock=False)
    batch(paths, tmp_path / "out")
    assert jobs_on_disk(tmp_path / "out") == {"job=run"}
    batch(paths[:-1], tmp_path / "out")
    assert jobs_on_disk(tmp_path / "out") == {"job=node0", "job=node1", "job=node2"}


def test_two_jobs_one_after_the_other_in_folders_of_nodes(tmp_path):
    early = [rank_file(tmp_path / "d" / f"a{rank}" / "x.bin", rank, last=40, WORLD_SIZE="2") for rank in (0, 1)]
    late = [rank_file(tmp_path / "d" / f"b{rank}" / "x.bin", rank, first=60, WORLD_SIZE="2") for rank in (0, 1)]
    batch([*early, *late], tmp_path / "out")
    assert len(jobs_on_disk(tmp_path / "out")) == 2
    assert "job=d" in jobs_on_disk(tmp_path / "out")


def test_a_given_job_stays(tmp_path):
    batch(nodes(tmp_path / "run"), tmp_path / "out", job="mine")
    assert jobs_on_disk(tmp_path / "out") == {"job=mine"}


# Restarts


def test_a_restart_is_told_and_both_count(tmp_path):
    paths = []
    for start in (0, 1):
        for rank in range(2):
            path = tmp_path / f"{start}-{rank}.bin"
            times = {"first": 60 * start, "last": 60 * start + 40}
            paths.append(rank_file(path, rank, WORLD_SIZE="2", **times))
    result = batch(paths, tmp_path / "out", "pace", name="gemm")
    assert result.missing == ["ranks 0 and 1 are in 2 consecutive recordings, as after a restart: all are counted"]
    table = result.reports[0].arrow()
    assert sorted(table["rank"].to_pylist()) == [
        f"rank {rank} (start {start + 1} of 2, {start}-{rank}.bin)" for rank in (0, 1) for start in (0, 1)
    ]
    assert sum(table["count"].to_pylist()) == 160


def test_the_same_rank_twice_at_one_time_is_no_restart(tmp_path):
    paths = [rank_file(tmp_path / f"{name}.bin", rank, WORLD_SIZE="2") for name, rank in (("a", 0), ("b", 0), ("c", 1))]
    result = batch(paths, tmp_path / "out", "pace", name="gemm")
    (sentence,) = result.missing
    assert sentence.startswith(
        "rank 0 is in several recordings, with equal times or without times: give each job a folder"
    )
    assert sorted(result.reports[0].arrow()["rank"].to_pylist()) == ["rank 0 (a.bin)", "rank 0 (b.bin)", "rank 1"]


# Ranks that were present for a part of the time


def attendance(folder: Path, times: dict[int, tuple[int, int]], *, count: int = 16, of_host: int = 4) -> list[str]:
    """The sentences about ranks. Some ranks have the given times (s); the times of the others differ a little."""
    paths = []
    for rank in range(count):
        first, last = times.get(rank, (rank % 3, 98 + rank % 2))
        host = f"node{rank // of_host}"
        paths.append(rank_file(folder / f"{rank}.bin", rank, first=first, last=last, host=host, WORLD_SIZE=str(count)))
    return batch(paths, folder / "out").missing


def test_a_rank_that_ended_early_is_told(tmp_path):
    assert attendance(tmp_path, {7: (0, 68)}) == ["rank 7 of 16 on node1 ended 30.000 s before the others"]


def test_a_rank_that_started_late_is_told(tmp_path):
    assert attendance(tmp_path, {7: (40, 99)}) == ["rank 7 of 16 on node1 started 39.000 s after the others"]


def test_a_host_that_ended_early_is_told_once(tmp_path):
    (sentence,) = attendance(tmp_path, dict.fromkeys(range(4, 8), (0, 50)))
    assert sentence == "4 of 4 ranks of node1 ended 48.000 s before the others"


def test_half_of_the_hosts_that_ended_early_are_told(tmp_path):
    (sentence,) = attendance(tmp_path, dict.fromkeys(range(8), (0, 50)))
    assert sentence == "8 of 16 ranks, all of node0 and node1, ended 48.500 s before the others"


def test_windows_that_differ_are_no_news(tmp_path):
    assert not attendance(tmp_path / "a", {rank: (rank, 90 + rank % 7) for rank in range(16)})
    assert not attendance(tmp_path / "b", {3: (0, 95)}), "less than 5 % of the time"
    assert not attendance(tmp_path / "c", {3: (40, 139)}), "as long as the others, at another time"
    assert not attendance(tmp_path / "d", {rank: (5 * rank, 5 * rank + 60) for rank in range(16)})
    assert not attendance(tmp_path / "e", {2: (0, 50)}, count=3), "three have no median to stand out from"


def test_an_early_end_needs_known_clocks(tmp_path):
    paths = [rank_file(tmp_path / f"{n}.bin", n, last=50 if n == 3 else 99, clock=n != 3) for n in range(8)]
    assert not batch(paths, tmp_path / "out").missing


def test_a_rank_in_the_name_of_a_file_is_known(tmp_path):
    early = "rank 3 ended 31.000 s before the others"
    paths = [rank_file(tmp_path / f"rank{n}.bin", None, last=68 if n == 3 else 99) for n in range(8)]
    for report in ("kernels", "all"):
        assert batch(paths, tmp_path / "out", report).missing == [early]
        assert early in (tmp_path / "out" / "kernels.html").read_text()
    again = rank_file(tmp_path / "again-rank5.bin", None, first=100, last=130)
    mixed = rank_file(tmp_path / "rank2.bin", 2, last=99, WORLD_SIZE="8")
    assert mixed in paths
    assert batch([*paths, again], tmp_path / "out").missing == [
        "rank 5 is in 2 consecutive recordings, as after a restart: all are counted",
        early,
    ]


def test_a_file_without_a_rank_silences_no_other(tmp_path):
    paths = [rank_file(tmp_path / f"{n}.bin", n, last=68 if n == 3 else 99, WORLD_SIZE="9") for n in range(8)]
    paths.append(rank_file(tmp_path / "other.bin", None, last=99))
    assert batch(paths, tmp_path / "out").missing == ["rank 3 ended 31.000 s before the others"]


def test_the_page_says_that_ranks_are_not_known(tmp_path):
    paths = [rank_file(tmp_path / f"{n}.bin", None, last=68 if n == 3 else 99) for n in range(8)]
    for report, page in (("kernels", "kernels"), ("all", "index")):
        assert not batch(paths, tmp_path / "out", report).missing
        text = (tmp_path / "out" / f"{page}.html").read_text()
        assert "Nothing is known to be missing" not in text
        assert "No records are known to be missing. The ranks in 8 of 8 files are not known" in text


def test_a_restarted_rank_did_not_end_early(tmp_path):
    paths = [rank_file(tmp_path / f"{n}.bin", n, WORLD_SIZE="8") for n in range(8) if n != 3]
    paths += [
        rank_file(tmp_path / "3a.bin", 3, last=40, WORLD_SIZE="8"),
        rank_file(tmp_path / "3b.bin", 3, first=45, WORLD_SIZE="8"),
    ]
    assert batch(paths, tmp_path / "out").missing == [
        "rank 3 is in 2 consecutive recordings, as after a restart: all are counted"
    ]
