"""Totals, peaks and levels of the allocations of a program on the fake GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cutrace
from cutrace.analysis.metrics import measure
from cutrace.analysis.statistics.memory import MEMORY
from cutrace.analysis.windows import whole
from support.fakedriver import FakeDriver
from support.test_fakegpu import armed, run

MIB = 1 << 20
_SIZE_UNKNOWN = 2

EVERY_KIND = """
MIB = 1 << 20
plain = fakegpu.malloc(3 * MIB)
managed = fakegpu.malloc(5 * MIB, call="cudaMallocManaged")
pooled = fakegpu.malloc(7 * MIB, call="cudaMallocAsync")
pinned = fakegpu.malloc(11 * MIB, call="cudaMallocHost")
array = fakegpu.malloc(13 * MIB, call="cudaMallocArray")
fakegpu.free(plain)
fakegpu.free(pooled, call="cudaFreeAsync")
fakegpu.free(managed)
plain = fakegpu.malloc(2 * MIB)
fakegpu.free(plain, call="cudaFreeAsync")
fakegpu.free(array, call="cudaFreeArray")
"""


def test_every_kind_of_memory_reaches_totals_and_peaks(fake_driver: FakeDriver, tmp_path: Path) -> None:
    trace = armed(fake_driver, EVERY_KIND, tmp_path / "run.bin")
    used = {row.memory: row for row in MEMORY.of(trace)}
    assert {kind: (row.allocations, row.allocated, row.frees, row.peak) for kind, row in used.items()} == {
        "device": (3, 12 * MIB, 3, 10 * MIB),
        "managed": (1, 5 * MIB, 1, 5 * MIB),
        "pinned": (1, 11 * MIB, 0, 11 * MIB),
        "array": (1, 13 * MIB, 1, 13 * MIB),
    }
    metrics = measure(trace, whole(trace)).values
    assert metrics["peak_memory_bytes"] == (3 + 5 + 7 + 13) * MIB
    assert metrics["net_memory_bytes"] == 0
    assert (metrics["allocations"], metrics["frees"]) == (5, 5)
    assert (metrics["pinned_allocations"], metrics["pinned_frees"]) == (1, 0)
    assert metrics["allocators"] == {
        "cudaMalloc": 2, "cudaMallocArray": 1, "cudaMallocAsync": 1, "cudaMallocManaged": 1,
    }  # fmt: skip


def test_memory_from_before_leaves_levels_at_what_was_allocated(fake_driver: FakeDriver, tmp_path: Path) -> None:
    program = """
before = fakegpu.malloc(1 << 30)
with cutrace.record(sys.argv[1]):
    held = fakegpu.malloc(1 << 20)
    fakegpu.free(before)
    fakegpu.free(held)
"""
    run(fake_driver, program, tmp_path / "run.bin")
    trace = cutrace.load(tmp_path / "run.bin")
    rows = np.sort(trace.allocations, order="time")
    assert rows["operation"].tolist() == [1, 2, 2]
    assert rows["bytes"].tolist() == [1 << 20, 0, 1 << 20]
    assert (rows["flags"] & _SIZE_UNKNOWN).tolist() == [0, _SIZE_UNKNOWN, 0]
    metrics = measure(trace, whole(trace)).values
    assert (metrics["peak_memory_bytes"], metrics["net_memory_bytes"]) == (1 << 20, 0)
    assert (metrics["allocations"], metrics["frees"]) == (1, 2)


POOLS = """
held = fakegpu.malloc(100, call="cudaMallocAsync")
more = fakegpu.malloc(MIB << 6, call="cudaMallocAsync")
fakegpu.free(more, call="cudaFreeAsync")
fakegpu.synchronize()
"""


def test_pools_are_created_and_trimmed(fake_driver: FakeDriver, tmp_path: Path) -> None:
    trace = armed(fake_driver, f"MIB = {MIB}{POOLS}", tmp_path / "run.bin")
    rows = np.sort(trace.memory_pools, order="time")
    assert rows[["operation", "size", "used", "pool_type"]].tolist() == [(1, 32 * MIB, 100, 1), (3, 32 * MIB, 100, 1)]
    allocations = trace.allocations
    assert {int(pool) for pool in allocations["pool"]} == {int(address) for address in rows["address"]}
    assert "pool" in trace.processes[0].info["kinds"]
    by_correlation = {int(row["correlation"]): int(row["function"]) for row in trace.api_calls}
    names = [trace.strings[int(trace.functions["name"][by_correlation[int(row["correlation"])]])] for row in rows]
    assert [name.split("_v")[0] for name in names] == ["cudaMallocAsync", "cudaDeviceSynchronize"]


@pytest.mark.parametrize(("kinds", "pools", "allocations"), [("memory", 0, 3), ("pool", 2, 0)])
def test_pools_and_allocations_are_recorded_apart(
    fake_driver: FakeDriver, tmp_path: Path, kinds: str, pools: int, allocations: int
) -> None:
    trace = armed(fake_driver, f"MIB = {MIB}{POOLS}", tmp_path / "run.bin", kinds=[kinds])
    assert (len(trace.memory_pools), len(trace.allocations)) == (pools, allocations)
    assert trace.processes[0].info["kinds"] == [kinds]


@pytest.mark.parametrize("suffix", [".json", ".sqlite", ".pftrace"])
def test_a_release_of_unknown_size_can_be_exported(fake_driver: FakeDriver, tmp_path: Path, suffix: str) -> None:
    program = """
before = fakegpu.malloc(1 << 30, call="cudaMallocAsync")
with cutrace.record(sys.argv[1]):
    fakegpu.free(before, call="cudaFreeAsync")
"""
    run(fake_driver, program, tmp_path / "run.bin")
    output = tmp_path / f"out{suffix}"
    cutrace.convert(tmp_path / "run.bin", output)
    if suffix == ".sqlite":
        import sqlite3

        with sqlite3.connect(output) as database:
            assert database.execute("SELECT isAsync, bytes FROM CUDA_GPU_MEMORY_USAGE_EVENTS").fetchall() == [(1, 0)]
