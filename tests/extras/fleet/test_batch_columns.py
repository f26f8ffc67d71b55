"""Every column of the batch reports, compared with loops over the files."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import cutrace
from captures import Capture
from cutrace.extras.fleet.engines import Engine
from cutrace.extras.fleet.model import BatchOptions
from cutrace.extras.fleet.running import ALL, batch_reports
from cutrace.extras.fleet.running import run as run_batch
from support.plain_stats import gpu

pytest.importorskip("pyarrow")


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Four ranks with kernels of two names on two GPUs, communication, copies and ranges. All lengths differ."""
    made = []
    for rank in range(4):
        path = tmp_path / f"rank{rank}.bin"
        with Capture(path, pid=100 + rank, environment={"RANK": str(rank)}) as c:
            gemm, add = c.launch("_Z4gemmPf"), c.launch("_Z3addPf")
            reduce = c.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
            c.clocks()
            for step in range(5):
                begin = 1_000_000 * step + 100 * rank
                c.kernel(gemm, begin, begin + 40_000 + 1_000 * rank + step, correlation=5 * step + 1)
                c.kernel(reduce, begin + 30_000, begin + 60_000 + 17 * rank, stream=9, correlation=5 * step + 2)
                c.memcpy(begin + 55_000, begin + 70_000, 4096, stream=8, correlation=5 * step + 3)
                c.kernel(add, begin + 90_000, begin + 90_500 + 3 * step, device=1, context=2, correlation=5 * step + 4)
                c.push_pop(f"step {step}", begin, begin + 80_000 + 7 * rank)
            if rank == 2:
                c.kernel(c.launch("_Z4onlyPf"), 20_000_000, 20_003_000)
            c.clocks(30_000_000)
        made.append(path)
    return made


def test_the_tables_of_every_report_are_declared(paths, tmp_path):
    options = BatchOptions(name="gemm", baseline=(str(paths[0]),))
    found = run_batch(ALL, paths[1:] + paths[:1], tmp_path / "out", engine=Engine("sequential"), options=options)
    assert list(found.results) == list(batch_reports())
    for name, result in found.results.items():
        declared = [(table.name, table.columns) for table in batch_reports()[name].tables]
        assert [(table.name, table.columns) for table in result.tables] == declared


def rows(result: cutrace.Batch, number: int = 0) -> list[dict[str, Any]]:
    return result.reports[number].arrow().to_pylist()


def batch(report: str, paths: list[Path], tmp_path: Path, **options: Any) -> cutrace.Batch:
    return cutrace.batch(report, paths, tmp_path / "out", mode="sequential", **options)


def kernels(path: Path) -> dict[str, list[int]]:
    found = defaultdict(list)
    with cutrace.load(path) as trace:
        for row in trace.kernels:
            name = cutrace.analysis.names.normalize_kernel(trace.strings[int(trace.launches["name"][row["launch"]])])
            found[name].append(int(row["end"]) - int(row["start"]))
    return dict(found)


def test_kernels(paths, tmp_path):
    of_ranks = {f"rank {n}": kernels(path) for n, path in enumerate(paths)}
    names = {name for uses in of_ranks.values() for name in uses}
    every = {name: [time for uses in of_ranks.values() for time in uses.get(name, ())] for name in names}
    whole = sum(map(sum, every.values()))
    expected = []
    for name in sorted(names, key=lambda name: (-sum(every[name]), name)):
        times = every[name]
        means = {rank: statistics.fmean(uses[name]) for rank, uses in of_ranks.items() if name in uses}
        slowest = max(means, key=means.__getitem__)
        expected.append({
            "share": pytest.approx(sum(times) / whole), "total_ns": sum(times), "count": len(times),
            "mean_ns": pytest.approx(statistics.fmean(times)), "min_ns": min(times), "max_ns": max(times),
            "ranks": len(means), "slowest_mean_ns": pytest.approx(means[slowest]), "slowest_rank": slowest,
            "kernel": name,
        })  # fmt: skip
    assert rows(batch("kernels", paths, tmp_path)) == expected


def test_idle_times(paths, tmp_path):
    gaps: dict[str, list[int]] = {}
    for rank, path in enumerate(paths):
        with cutrace.load(path) as trace:
            for device in (0, 1):
                work = sorted(
                    (int(row["start"]), int(row["end"]))
                    for table in (trace.kernels, trace.memcpys)
                    for row in table
                    if row["device"] == device
                )
                reached = work[0][0]
                own = gaps.setdefault(f"rank {rank} GPU {device}", [])
                for start, end in work:
                    if start > reached:
                        own.append(start - reached)
                    reached = max(reached, end)
    result = batch("gaps", paths, tmp_path)
    assert {row.pop("gpu"): row for row in rows(result, 1)} == {
        label: {
            "total_ns": sum(own), "count": len(own), "mean_ns": sum(own) / len(own), "max_ns": max(own), "host": "test",
        }
        for label, own in gaps.items()
    }  # fmt: skip
    totals = [row["total_ns"] for row in rows(result, 1)]
    assert totals == sorted(totals, reverse=True)
    by_power = defaultdict(list)
    for length in (length for own in gaps.values() for length in own):
        by_power[1 << (length.bit_length() - 1)].append(length)
    whole = sum(map(sum, gaps.values()))
    assert rows(result) == [
        {
            "at_least_ns": least, "share": pytest.approx(sum(lengths) / whole), "total_ns": sum(lengths),
            "count": len(lengths), "mean_ns": pytest.approx(sum(lengths) / len(lengths)), "max_ns": max(lengths),
        }
        for least, lengths in sorted(by_power.items())
    ]  # fmt: skip


def test_overlap(paths, tmp_path):
    expected = []
    for rank, path in enumerate(paths):
        with cutrace.load(path) as trace:
            for device in (0, 1):
                part = gpu(trace, 0, device)
                talk, copies = part["communication"], part["copies"]
                expected.append({
                    "busy_ns": part["busy"], "compute_ns": part["compute"], "communication_ns": talk,
                    "hidden": pytest.approx(part["communication hidden"] / talk) if talk else None,
                    "exposed_ns": talk - part["communication hidden"], "copies_ns": copies,
                    "hidden_copies": pytest.approx(part["copies hidden"] / copies) if copies else None,
                    "gpu": f"rank {rank} GPU {device}", "host": "test",
                })  # fmt: skip
    assert rows(batch("overlap", paths, tmp_path)) == expected


def test_utilization(paths, tmp_path):
    found = rows(batch("utilization", paths, tmp_path))
    assert {row["gpu"] for row in found} == {f"rank {rank} GPU {device}" for rank in range(4) for device in (0, 1)}
    for row in found:
        assert row["busy"] == pytest.approx(row["busy_time_ns"] / row["span_ns"])
    with cutrace.load(paths[0]) as trace:
        (row,) = [row for row in found if row["gpu"] == "rank 0 GPU 0"]
        assert row["busy_time_ns"] == gpu(trace, 0, 0)["busy"]
    busy = [row["busy"] for row in found]
    assert busy == sorted(busy)


@pytest.mark.parametrize(("name", "kind"), [("gemm", "kernel"), ("step *", "range")])
def test_pace(paths, tmp_path, name, kind):
    expected = []
    for rank, path in enumerate(paths):
        times = kernels(path)["gemm"] if kind == "kernel" else [80_000 + 7 * rank] * 5
        expected.append({
            "mean_ns": pytest.approx(sum(times) / 5), "count": 5, "total_ns": sum(times), "min_ns": min(times),
            "max_ns": max(times), "kind": kind, "rank": f"rank {rank}", "host": "test",
        })  # fmt: skip
    assert rows(batch("pace", paths, tmp_path, name=name)) == expected[::-1], "the slowest first"


def test_regressions(tmp_path):
    lengths = {"old": (1000, 1100), "new": (1500, 1300, 1700)}
    sets = {}
    for name, times in lengths.items():
        sets[name] = [tmp_path / f"{name}{number}.bin" for number in range(len(times))]
        for path, time in zip(sets[name], times, strict=True):
            with Capture(path, environment={"SLURM_JOB_ID": path.stem}) as c:
                c.kernel(c.launch("k"), 0, time)
                c.kernel(c.launch("k"), 10_000, 10_000 + time + 2)
                c.kernel(c.launch("same"), 20_000, 20_500)
                c.kernel(c.launch(f"only {name}"), 30_000, 30_000 + time)
                c.push_pop("part 7", 0, 2 * time)
    result = batch("regressions", sets["new"], tmp_path, baseline=sets["old"])
    compared, only = rows(result), rows(result, 1)
    intervals = [(row.pop("at_least"), row["ratio"], row.pop("at_most")) for row in compared]
    assert all(low <= ratio <= high for low, ratio, high in intervals)
    assert compared == [
        {
            "ratio": pytest.approx(new / old), "baseline_mean_ns": pytest.approx(old), "mean_ns": pytest.approx(new),
            "baseline_runs": 2, "runs": 3, "kind": kind, "name": name,
        }
        for new, old, kind, name in (
            (3000, 2100, "range", "part #"), (1501, 1051, "kernel", "k"), (500, 500, "kernel", "same"),
        )
    ]  # fmt: skip
    assert sorted(only, key=lambda row: row["name"]) == [
        {"total_ns": 4500, "count": 3, "runs": "others", "kind": "kernel", "name": "only new"},
        {"total_ns": 2100, "count": 2, "runs": "baseline", "kind": "kernel", "name": "only old"},
    ]


def test_outliers(tmp_path):
    totals = [1_000 + 2 * n for n in range(8)] + [5_000]
    paths = [tmp_path / f"run{number}.bin" for number in range(len(totals))]
    for path, total in zip(paths, totals, strict=True):
        with Capture(path) as c:
            c.kernel(c.launch("k"), 0, total)
            c.kernel(c.launch("same"), 20_000, 20_500)
    (row,) = rows(batch("outliers", paths, tmp_path))
    median = statistics.median(totals)
    deviation = 1.4826 * statistics.median(abs(total - median) for total in totals)
    assert row == {
        "difference_ns": 5_000 - median, "total_ns": 5_000, "median_ns": median, "ratio": pytest.approx(5_000 / median),
        "score": pytest.approx((5_000 - median) / deviation), "run": "run8.bin", "kind": "kernel", "name": "k",
    }  # fmt: skip
    drawn = run_batch("outliers", paths, tmp_path / "out", engine=Engine("sequential"))
    (picture,) = drawn.results["outliers"].pictures
    assert list(picture.labels) == [path.name for path in paths]
    assert picture.series == {"total": [total + 500 for total in totals]}
