"""Databases have the tables of Nsight Systems, answer queries for its exports, and are complete."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cutrace
from captures import ORIGIN, Capture, training_steps
from contents import everything
from cutrace import CutraceError
from cutrace.analysis.names import normalize_kernel
from cutrace.trace.quality import summed
from databases import NSYS, kernel, nsys

CAPTURES = sorted((Path(__file__).parents[2] / "data").glob("*.bin"))


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


@pytest.fixture
def steps(tmp_path: Path) -> tuple[cutrace.Trace, Path]:
    """A capture of training steps, and the database that is made from it."""
    source, target = training_steps(tmp_path / "run.bin"), tmp_path / "run.sqlite"
    cutrace.convert(source, target)
    return cutrace.load(source), target


# Import of the database


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_capture_comes_back_as_it_was(path: Path, tmp_path: Path) -> None:
    cutrace.convert(path, tmp_path / "a.sqlite")
    back = cutrace.load(tmp_path / "a.sqlite")

    assert everything(back) == everything(cutrace.load(path))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_database_without_the_capture_is_read_as_that_of_any_tool(path: Path, tmp_path: Path) -> None:
    cutrace.convert(path, tmp_path / "a.sqlite", capture=False)
    back, before = cutrace.load(tmp_path / "a.sqlite"), cutrace.load(path)

    assert all(account.balanced and not account.lost for account in back.imports[0].accounts)
    for table in ("kernels", "memcpys", "api_calls"):
        fields = ["start", "end", "correlation"]
        assert sorted(back.table(table)[fields].tolist()) == sorted(before.table(table)[fields].tolist())
    assert any("cutrace wrote this file without its capture" in note for note in back.quality.notes)
    left = " ".join(back.imports[0].leftovers())
    for table in ("host_slices", "counters", "call_stacks"):
        assert not before.count(table) or table in left
    assert sorted(summed(back.quality.losses, ())) == sorted(summed(before.quality.losses, ()))


def test_threads_with_great_numbers_stay_apart(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        c.api("cudaMalloc", 10, 20, thread=0x12345700)
        c.api("cudaMalloc", 30, 40, thread=0x92345700)
        c.api("cudaMalloc", 50, 60, thread=77)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "a.sqlite")
    told = query(tmp_path / "a.sqlite", "SELECT globalTid & 0xFFFFFF FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start")
    numbers = query(tmp_path / "a.sqlite", "SELECT globalTid & 0xFFFFFF, thread FROM THREAD_NUMBERS")

    assert len({tid for (tid,) in told}) == 3
    assert dict(numbers) == {told[0][0]: 0x12345700, told[1][0]: 0x92345700}


def test_overheads_have_the_numbers_and_names_of_nsys(tmp_path: Path) -> None:
    kinds = (0, 1, 2 << 16, 6 << 16, 77 << 16, 5)
    with Capture(tmp_path / "run.bin") as c:
        for i, kind in enumerate(kinds):
            c.add("overheads", start=ORIGIN + i, end=ORIGIN + i + 1, thread=1, kind=kind)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "a.sqlite", capture=False)
    sql = (
        "SELECT overheadType, name, value FROM CUPTI_ACTIVITY_KIND_OVERHEAD JOIN StringIds AS s ON s.id = nameId "
        "LEFT JOIN ENUM_CUPTI_OVERHEAD_TYPE AS e ON e.id = overheadType ORDER BY start"
    )

    assert query(tmp_path / "a.sqlite", sql) == [
        (1, "OVERHEAD_UNKNOWN", "Unknown"),
        (2, "OVERHEAD_DRIVER_COMPILER", "Driver JIT compiler (CUDA)"),
        (4, "OVERHEAD_CUPTI_INSTRUMENTATION", "Instrumentation (Profiler)"),
        (8, "OVERHEAD_COMMAND_BUFFER_FULL", "Command buffer full (CUDA)"),
        (79, None, "Unknown"),
        (1, "OVERHEAD_UNKNOWN", "Unknown"),
    ]
    assert cutrace.load(tmp_path / "a.sqlite").overheads["kind"].tolist() == list(kinds)


def test_an_imported_export_has_the_same_rows_again(tmp_path: Path) -> None:
    cutrace.convert(NSYS, tmp_path / "a.sqlite")
    sql = (
        "SELECT start, end, deviceId, bytes, copyKind, migrationCause, virtualAddress FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "ORDER BY start"
    )

    assert query(tmp_path / "a.sqlite", sql) == query(NSYS, sql)
    kernels = (
        "SELECT start, end, deviceId, contextId, streamId, correlationId, globalPid, value, launchType, cacheConfig, "
        "registersPerThread, gridX, blockX, localMemoryTotal, sharedMemoryExecuted, graphNodeId "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
    )
    ours, theirs = query(tmp_path / "a.sqlite", kernels), query(NSYS, kernels)
    # nsys writes "float *", and other tools write "float*".
    assert [[str(v).replace(" ", "") for v in row] for row in ours] == [
        [str(v).replace(" ", "") for v in row] for row in theirs
    ]


# Typical queries for exports of nsys


def test_a_summary_of_kernels(steps: tuple[cutrace.Trace, Path]) -> None:
    trace, path = steps
    found = query(
        path,
        "SELECT value, count(*), sum(end - start), max(gridX * blockX) FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "JOIN StringIds ON StringIds.id = shortName GROUP BY value",
    )
    expected: dict[str, list[int]] = {}
    launches = trace.launches[trace.kernels["launch"]]
    for row, launch in zip(trace.kernels, launches, strict=True):
        name = normalize_kernel(trace.strings[launch["name"]]).rsplit("::", 1)[-1]
        of_name = expected.setdefault(name, [0, 0, 0])
        of_name[0] += 1
        of_name[1] += int(row["end"] - row["start"])
        of_name[2] = max(of_name[2], int(launch["grid_x"]) * int(launch["block_x"]))

    assert {name: numbers for name, *numbers in found} == expected
    assert set(expected) == {"gemm", "add"}


def test_kernels_with_the_calls_that_launched_them_and_the_ranges_around(steps: tuple[cutrace.Trace, Path]) -> None:
    trace, path = steps
    found = query(
        path,
        "SELECT count(*), count(DISTINCT n.text) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId "
        "AND r.globalTid / 0x1000000 = k.globalPid / 0x1000000 "
        "JOIN StringIds s ON s.id = r.nameId AND s.value LIKE 'cudaLaunchKernel%' "
        "JOIN NVTX_EVENTS n ON n.eventType = 59 AND n.globalTid = r.globalTid AND n.text LIKE 'layer%' "
        "AND n.start <= r.start AND n.end >= r.end",
    )

    assert found == [(len(trace.kernels), 8)]


def test_copies_by_kind_with_their_labels(steps: tuple[cutrace.Trace, Path]) -> None:
    trace, path = steps
    found = query(
        path,
        "SELECT o.label, s.label, d.label, sum(bytes), count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "JOIN ENUM_CUDA_MEMCPY_OPER o ON o.id = copyKind JOIN ENUM_CUDA_MEM_KIND s ON s.id = srcKind "
        "JOIN ENUM_CUDA_MEM_KIND d ON d.id = dstKind GROUP BY 1, 2, 3",
    )

    assert found == [("Host-to-Device", "Pinned", "Device", int(trace.memcpys["bytes"].sum()), len(trace.memcpys))]


def test_kernels_with_the_gpus_of_their_processes(tmp_path: Path) -> None:
    """Two processes have different GPUs, and each calls its own GPU 0."""
    paths = []
    for pid, name in ((100, "A"), (200, "B")):
        paths.append(tmp_path / f"{name}.bin")
        with Capture(paths[-1], pid=pid) as c:
            c.device(0, name=name)
            c.kernel(c.launch("k"), ORIGIN, ORIGIN + 5)
    cutrace.convert(paths, tmp_path / "a.sqlite")
    sql = (
        "SELECT d.pid, g.name FROM CUPTI_ACTIVITY_KIND_KERNEL AS k JOIN TARGET_INFO_CUDA_DEVICE AS d "
        "ON d.cudaId = k.deviceId AND d.pid = k.globalPid / 0x1000000 % 0x1000000 "
        "JOIN TARGET_INFO_GPU AS g ON g.id = d.gpuId ORDER BY d.pid"
    )

    assert query(tmp_path / "a.sqlite", sql) == [(100, "A"), (200, "B")]


def test_how_long_all_took(steps: tuple[cutrace.Trace, Path]) -> None:
    trace, path = steps
    found = query(path, "SELECT startTime, stopTime, duration FROM ANALYSIS_DETAILS")
    assert found == [(trace.start, trace.end, trace.end - trace.start)]


def test_processes_threads_gpus_and_the_wall_clock(steps: tuple[cutrace.Trace, Path]) -> None:
    _, path = steps

    assert query(path, "SELECT pid, name, globalPid / 0x1000000 % 0x1000000 FROM PROCESSES") == [(100, "program", 100)]
    assert query(
        path, "SELECT value, globalTid % 0x1000000 FROM ThreadNames JOIN StringIds ON id = nameId ORDER BY 2"
    ) == [("main", 100), ("loader", 101)]
    assert query(path, "SELECT id, name, smCount, clockRate FROM TARGET_INFO_GPU") == [
        (0, "NVIDIA H200", 132, 1_980_000_000)
    ]
    (began,) = query(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")[0]
    assert began == 1_700_000_000_000_000_000


def test_marks_payloads_domains_and_waits(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        c.push_pop("a", 10, 20, domain="mine", payload=2**64 - 5, payload_type=2, color=0xFF112233, category=4)
        c.push_pop("b", 11, None, payload=0x4004000000000000, payload_type=3)
        c.start_end("c", 12, 18, range_id=9, end_thread=101)
        c.mark("m", 15)
        c.add("nvtx_categories", domain="mine", category=4, name="loading")
        c.add("synchronizations", start=ORIGIN + 1, end=ORIGIN + 2, type=3, stream=7, context=1)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "a.sqlite")
    found = query(
        tmp_path / "a.sqlite",
        "SELECT e.name, n.text, n.end IS NULL, int64Value, doubleValue, rangeId, endGlobalTid % 0x1000000, "
        "(SELECT text FROM NVTX_EVENTS d WHERE d.eventType = 75 AND d.domainId = n.domainId) "
        "FROM NVTX_EVENTS n JOIN ENUM_NSYS_EVENT_TYPE e ON e.id = eventType ORDER BY n.text, e.name",
    )

    assert found == [
        ("NvtxPushPopRange", "a", 0, -5, None, None, 100, "mine"),
        ("NvtxPushPopRange", "b", 1, None, 2.5, None, 100, None),
        ("NvtxStartEndRange", "c", 0, None, None, 9, 101, None),
        ("NvtxCategory", "loading", 1, None, None, None, None, "mine"),
        ("NvtxMark", "m", 1, None, None, None, None, None),
        ("NvtxDomainCreate", "mine", 1, None, None, None, None, "mine"),
    ]
    assert query(
        tmp_path / "a.sqlite",
        "SELECT label, streamId, eventId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION "
        "JOIN ENUM_CUPTI_SYNC_TYPE ON id = syncType",
    ) == [("Stream Synchronize", 7, None)]


def test_what_nsys_has_no_table_for_is_in_tables_of_cutrace(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        c.add("counters", time=ORIGIN + 5, value=2.5, name="power", unit="W", device=0)
        c.add("host_slices", start=ORIGIN + 1, end=ORIGIN + 2, name="aten::mm", category="cpu_op", kind=1, thread=100)
        c.add("host_slices", start=ORIGIN + 3, end=ORIGIN + 4, name="poll", category="OS runtime", kind=4, thread=100)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "a.sqlite")

    assert query(tmp_path / "a.sqlite", "SELECT name, value, unit FROM counters") == [("power", 2.5, "W")]
    assert query(tmp_path / "a.sqlite", "SELECT name, category FROM host_slices") == [("aten::mm", "cpu_op")]
    assert query(tmp_path / "a.sqlite", "SELECT value FROM OSRT_API JOIN StringIds ON id = nameId") == [("poll",)]


# Requests


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutrace.extras.nsys.sqlite import Database

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Database, "add", full)
    with pytest.raises(CutraceError, match="disk is full"):
        cutrace.convert(training_steps(tmp_path / "run.bin"), tmp_path / "a.sqlite")
    assert not (tmp_path / "a.sqlite").exists()


def test_what_was_lost_in_an_import_is_still_told(tmp_path: Path) -> None:
    source = nsys(tmp_path / "a.sqlite", ["f"], CUPTI_ACTIVITY_KIND_KERNEL=[kernel(10, 20), kernel(30, 20)])
    cutrace.convert(source, tmp_path / "b.sqlite")
    back = cutrace.load(tmp_path / "b.sqlite")

    assert [(loss.reason, loss.count) for loss in back.quality.losses] == [("unreadable", 1)]
