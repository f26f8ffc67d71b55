"""Programs on two GPUs: one process for each GPU, or one process for both."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace

CUTRACE = (sys.executable, "-m", "cutrace")
PROGRAMS = Path(__file__).parent / "programs"

Record = Callable[..., Any]
Needs = Callable[..., None]


@pytest.fixture(autouse=True)
def _needs_two_gpus(needs: Needs) -> None:
    needs("torch")
    count = ctypes.c_int()
    cuda = ctypes.CDLL("libcuda.so.1")
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value < 2:
        pytest.skip(f"two GPUs are wanted, {count.value} found")


def named(trace: cutrace.Trace, rows: np.ndarray, part: str) -> np.ndarray:
    """The kernels with ``part`` in their names."""
    names = trace.strings.take(trace.launches["name"][rows["launch"]])
    return rows[[part in name for name in names.tolist()]]


def test_ranks_of_a_parallel_training_are_in_one_capture(record: Record, scripts: Path) -> None:
    recorded = record([sys.executable, scripts / "ranks.py"])
    assert recorded.status == 0, recorded.stderr
    trace, reports = recorded.trace, recorded.reports
    assert [r["sum"] for r in reports] == [3.0, 3.0]
    ranks = {r["pid"]: r for r in reports}
    assert {p.pid for p in trace.processes} == set(ranks)
    assert len({d["uuid"].tobytes() for d in trace.devices}) == 2
    for process in trace.processes:
        report = ranks[process.pid]
        kernels = trace.kernels[trace.kernels["process"] == process.index]
        assert set(kernels["device"].tolist()) == {report["rank"]}
        # Each step sums the gradients once. The program makes one more sum.
        assert len(named(trace, kernels, "ncclDevKernel")) >= report["steps"] + 1
        ranges = trace.nvtx_ranges[trace.nvtx_ranges["process"] == process.index]
        steps = {name for name in trace.strings.take(ranges["name"]).tolist() if name.startswith("step ")}
        assert steps == {f"step {i}" for i in range(report["steps"])}
    recorded.launching_calls(trace.kernels)
    # NCCL leaves ranges open.
    assert {loss.reason for loss in trace.quality.losses} <= {"nvtx_open"}


def test_what_ranks_sum_up_they_do_at_the_same_time(record: Record, scripts: Path) -> None:
    trace = record([sys.executable, scripts / "ranks.py"]).trace
    sums = [
        np.sort(named(trace, trace.kernels[trace.kernels["process"] == p.index], "AllReduce"), order="start")
        for p in trace.processes
    ]
    assert len(sums[0]) == len(sums[1]) > 0
    # A sum needs both GPUs, so its kernels overlap if the clocks of both are converted correctly.
    assert np.all(np.maximum(sums[0]["start"], sums[1]["start"]) < np.minimum(sums[0]["end"], sums[1]["end"]))


def test_ranks_in_captures_of_their_own_merge_into_the_same(record: Record, scripts: Path, tmp_path: Path) -> None:
    recorded = record([sys.executable, scripts / "ranks.py"])
    parts = []
    for process in recorded.trace.processes:
        parts.append(tmp_path / f"rank{len(parts)}.bin")
        subprocess.run([*CUTRACE, "slice", recorded.path, "--process", str(process.pid), "-o", parts[-1]], check=True)
    subprocess.run([*CUTRACE, "merge", *parts, "-o", tmp_path / "merged.bin"], check=True)
    with cutrace.load(tmp_path / "merged.bin") as merged:
        for name in ("kernels", "memcpys", "api_calls", "nvtx_ranges"):
            assert np.array_equal(np.sort(merged.table(name)["start"]), np.sort(recorded.trace.table(name)["start"])), (
                name
            )


PEERS = """
import cutrace, torch
with cutrace.record("run.bin"):
    a = torch.arange(1 << 20, dtype=torch.float32, device="cuda:0")
    b = torch.empty_like(a, device="cuda:1")
    for _ in range(5):
        b.copy_(a)
    with torch.cuda.device(1):
        for _ in range(7):
            b.mul_(2)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
"""


def test_one_process_on_two_gpus(python: Callable[..., Any]) -> None:
    recorded = python(PEERS)
    assert recorded.status == 0, recorded.stderr
    trace = recorded.trace
    assert sorted(set(trace.kernels["device"].tolist())) == [0, 1]
    assert np.count_nonzero(trace.kernels["device"] == 1) == 7
    peers = trace.memcpys[trace.memcpys["kind"] == 10]
    assert len(peers) == 5
    assert set(peers["bytes"].tolist()) == {4 << 20}
    assert {(r["source_device"], r["destination_device"]) for r in peers} == {(0, 1)}
    recorded.assert_lossless()


def test_collectives_tell_their_communicator_and_bytes(record: Record) -> None:
    recorded = record([sys.executable, PROGRAMS / "two_communicators.py", "29531"], limit=200)
    assert recorded.status == 0, recorded.stderr
    trace, reports = recorded.trace, recorded.reports
    recorded.assert_lossless()  # no range is left open
    assert {r["rank"] for r in reports} == {0, 1}
    communicators: dict[int, set[int | None]] = {0: set(), 1: set()}
    for report in reports:
        process = next(p for p in trace.processes if p.pid == report["pid"])
        ranges = trace.nvtx_ranges[trace.nvtx_ranges["process"] == process.index]
        names = np.array(trace.strings.take(ranges["name"]), object)
        known = ranges[names == "known"][0]
        inside = (ranges["start"] >= known["start"]) & (ranges["end"] <= known["end"])
        wanted = {f"nccl{call['name']}" for call in report["calls"]}
        chosen = inside & np.isin(names, list(wanted))
        in_order = np.argsort(ranges["start"][chosen], kind="stable")
        numbers = trace.nccl.of_rows(ranges[chosen][in_order])
        found_calls = [trace.nccl.calls[number] for number in numbers.tolist()]
        assert [name[4:] for name in names[chosen][in_order]] == [call["name"] for call in report["calls"]]
        for call, found in zip(report["calls"], found_calls, strict=True):
            assert found.bytes == call["bytes"]
            assert found.root == call.get("root")
            assert found.rank == report["rank"]
            communicators[call["group"]].add(found.communicator)
    # Both ranks have the same id for each communicator, and the two communicators have different ids.
    assert [len(ids) for ids in communicators.values()] == [1, 1]
    assert communicators[0] != communicators[1]
