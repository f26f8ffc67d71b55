"""Allocations and pools, compared with CUPTI's records and PyTorch's statistics; and programs that crash when CUPTI
records them.

`pytest -rP tests/gpu/test_memory.py` shows each case together with CUPTI's records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace
from cutrace.runbin.labels import MEMORY_KINDS

from .conftest import CUTRACE, PROGRAMS, Recorded

Record = Callable[..., Any]
CASES = PROGRAMS / "memory_cases.py"
# Cases of the program that crash with CUPTI's records (13.0 and 13.5).
CRASHES = ("cuMemAlloc, cuMemFreeAsync", "freed twice", "async on the stream of a destroyed context")
ALLOCATE, RELEASE = 1, 2
CREATED, DESTROYED, TRIMMED = 1, 2, 3
PINNED, DEVICE, ARRAY, MANAGED, PHYSICAL = 2, 3, 4, 5, 128

# The allowed differences between cutrace and CUPTI, and their reasons.
KNOWN = {
    **dict.fromkeys(CRASHES, "CUPTI's records crash here"),
    "allocated before the records were enabled": "a recording from cuInit() on knows this memory",
    "explicit pool destroyed before the free": "CUPTI does not report this release",
    "registered": "CUPTI does not report cuMemHostRegister()",
    "arrays": "CUPTI has a row for each level of a mipmapped array",
    "physical": "CUPTI does not report cuMemCreate()",
    "variables of a module": "cutrace does not know their addresses, CUPTI 13.0 has no rows",
    "graph with memory": "cutrace also has the release",
    "context destroyed with its memory": "CUPTI may not report the end of a context",
}

Row = tuple[Any, ...]


def ended(what: str, status: int, stdout: str, stderr: str) -> str:
    """The output of a failed program: one line for pytest's summary, and the rest below it."""
    last = (stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    return f"{what}: status {status}; {last}\n-- stderr\n{stderr[-4000:]}\n-- stdout\n{stdout[-2000:]}"


def cases(command: list[Any]) -> dict[str, dict[str, Any]]:
    """The JSON lines of the program, by case."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, ended(" ".join(map(str, command)), done.returncode, done.stdout, done.stderr)
    return {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}


def comparable(rows: list[dict[str, int]]) -> list[Row]:
    """Rows without values that differ between two processes. Addresses are numbered in the order of their first use."""
    numbers: dict[int, int] = {}
    out = []
    for row in rows:
        number = numbers.setdefault(row["address"], len(numbers))
        operation = {ALLOCATE: "allocate", RELEASE: "release"}.get(row["operation"], row["operation"])
        kind = MEMORY_KINDS.get(row["memory"], row["memory"])
        way = "async" if row["async"] else "sync"
        used = row["pool_used"] if operation == "allocate" else ""  # CUPTI gives the value before a release
        out.append((operation, kind, row["bytes"], way, f"#{number}", row["device"], row["pool_type"], used))
    return out


@pytest.fixture(scope="module")
def alone(_needs_gpu: None) -> dict[str, dict[str, Any]]:
    """The cases without a tool."""
    return cases([sys.executable, CASES])


@pytest.fixture(scope="module")
def by_cupti(_needs_gpu: None) -> dict[str, dict[str, Any]]:
    """The cases with CUPTI's records, except cases in which these records crash the program."""
    told = cases([sys.executable, CASES, "memory,pool"])
    for name, line in told.items():
        if line["status"]:
            print(f"{name}: CUPTI's records end it with {line['status']}")
            assert name in CRASHES, line
    return {name: line for name, line in told.items() if not line["status"]}


@pytest.fixture(scope="module")
def by_cutrace(_needs_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, dict[str, Any]]]:
    path = tmp_path_factory.mktemp("memory") / "run.bin"
    told = cases([*CUTRACE, "record", "-o", path, "--", sys.executable, CASES])
    trace = cutrace.load(path)
    for line in told.values():
        assert line["status"] == 0, line
        line["rows"] = [row | {"async": row["flags"] & 1} for row in rows_of(line, trace, trace.allocations)]
        line["pools"] = rows_of(line, trace, trace.memory_pools)
    return Recorded(path, 0, "", ""), told


def rows_of(case: dict[str, Any], trace: cutrace.Trace, rows: Any) -> list[dict[str, int]]:
    """The rows of a case, in order of time."""
    [process] = (process for process in trace.processes if process.pid == case["process"])
    inside = (rows["process"] == process.index) & (rows["time"] >= case["start"]) & (rows["time"] <= case["end"])
    return [{name: int(row[name]) for name in row.dtype.names} for row in np.sort(rows[inside], order="time")]


def table(name: str, ours: list[Row], theirs: list[Row] | None) -> str:
    lines = [f"{name}{': ' + KNOWN[name] if name in KNOWN else ''}"]
    lines += [f"    cutrace {' '.join(map(str, row))}" for row in ours] or ["    cutrace nothing"]
    if theirs is not None:
        lines += [f"    CUPTI   {' '.join(map(str, row))}" for row in theirs] or ["    CUPTI   nothing"]
    return "\n".join(lines)


def test_rows_are_those_of_cuptis_records(by_cutrace: Any, by_cupti: dict[str, dict[str, Any]]) -> None:
    recorded, told = by_cutrace
    different = []
    for name, line in told.items():
        theirs = comparable(by_cupti[name]["rows"]) if name in by_cupti else None
        ours = comparable(line["rows"])
        print(table(name, ours, theirs))
        print(f"    results {line['results']} {by_cupti.get(name, {}).get('results', '')}")
        if ours != theirs and name not in KNOWN:
            different.append(table(name, ours, theirs))
    assert not different, "\n" + "\n".join(different)
    recorded.assert_lossless()


def test_totals_and_peaks_are_those_of_cuptis_records(by_cutrace: Any, by_cupti: dict[str, dict[str, Any]]) -> None:
    def total(told: dict[str, dict[str, Any]], kind: int) -> tuple[int, int]:
        level = peak = allocated = 0
        for name, line in told.items():
            if name in KNOWN and name != "arrays":
                continue
            for row in line["rows"]:
                if row["memory"] == kind:
                    level += row["bytes"] if row["operation"] == ALLOCATE else -row["bytes"]
                    allocated += row["bytes"] if row["operation"] == ALLOCATE else 0
                    peak = max(peak, level)
        return allocated, peak

    _, told = by_cutrace
    for kind in (PINNED, DEVICE, ARRAY, MANAGED):
        assert total(told, kind) == total(by_cupti, kind), MEMORY_KINDS[kind]


def test_each_case_returns_what_it_returns_without_a_tool(by_cutrace: Any, alone: dict[str, dict[str, Any]]) -> None:
    _, told = by_cutrace
    assert {name: line["results"] for name, line in told.items()} == {
        name: line["results"] for name, line in alone.items()
    }


@pytest.mark.parametrize("name", CRASHES)
def test_a_case_that_crashes_cupti_is_complete(by_cutrace: Any, name: str) -> None:
    for kinds in ("memory", "pool", "memory,pool"):
        command = [sys.executable, CASES, kinds, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        print(f"{name}: with CUPTI's records of {kinds} it ends with {done.returncode}")
    _, told = by_cutrace
    rows = comparable(told[name]["rows"])
    way = "sync" if name == "cuMemAlloc, cuMemFreeAsync" else "async"
    assert [(row[0], row[1], row[2], row[3]) for row in rows] == [
        ("allocate", "device", 4096, way),
        ("release", "device", 4096, "async"),
    ]


def test_the_use_of_a_pool_is_the_drivers(by_cutrace: Any, by_cupti: dict[str, dict[str, Any]]) -> None:
    _, told = by_cutrace
    line = told["use of a pool"]
    used = {known["address"]: known["used"] for known in line["pointers"]}
    for ours, theirs in zip(line["rows"], by_cupti["use of a pool"]["rows"], strict=True):
        print("use", ours["operation"], ours["bytes"], "cutrace", ours["pool_used"], "CUPTI", theirs["pool_used"],
              "pool: cutrace", hex(ours["pool"]), "CUPTI", hex(theirs["pool"]))  # fmt: skip
        if ours["operation"] == ALLOCATE:
            assert ours["pool_used"] == used[ours["address"]]
    print("what the driver says of pointers:", line["pointers"])


def test_pools_of_allocations_are_those_of_the_table(by_cutrace: Any) -> None:
    recorded, told = by_cutrace
    trace = recorded.trace
    assert "pool" in trace.processes[0].info["kinds"]
    for name in ("explicit pool", "use of a pool", "life of a pool"):
        seen = {(row["process"], row["pool"]) for row in told[name]["rows"]}
        print(name, "allocations", [hex(pool) for _, pool in seen], "driver", told[name]["pointers"])
        assert seen <= {(int(row["process"]), int(row["address"])) for row in trace.memory_pools}, name


def changes(pools: list[dict[str, int]]) -> list[tuple[bool, int]]:
    """For each change of a pool that a case destroys: whether the pool is destroyed, and its size. CUPTI has no row for
    the creation of a pool, some rows for trims that change nothing, and some rows for other pools of the process."""
    [address] = {row["address"] for row in pools if row["operation"] == DESTROYED}
    out = [(False, 0)]
    for row in pools:
        if row["address"] != address:
            continue
        destroyed = row["operation"] == DESTROYED
        change = (destroyed, 0 if destroyed else row["size"])
        if change != out[-1]:
            out.append(change)
    return out


def test_pools_are_those_of_cuptis_records(by_cutrace: Any, by_cupti: dict[str, dict[str, Any]]) -> None:
    """`used` differs at the creation of a pool, because CUPTI writes its row before the first allocation."""
    _, told = by_cutrace
    for name, line in told.items():
        for ours in line["pools"]:
            print(f"{name}: cutrace {ours}")
        for theirs in by_cupti.get(name, {}).get("pools", []):
            print(f"{name}: CUPTI   {theirs}")
    name = "life of a pool"
    assert {row["operation"] for row in told[name]["pools"]} == {CREATED, DESTROYED, TRIMMED}
    assert changes(told[name]["pools"]) == changes(by_cupti[name]["pools"])


def allocated(line: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The kind, size and device of the memory that a case allocates."""
    rows = [row for row in line["rows"] if row["operation"] == ALLOCATE]
    return sorted((MEMORY_KINDS[row["memory"]], row["bytes"], row["device"]) for row in rows)


def assert_all_is_released(line: dict[str, Any]) -> None:
    levels = dict.fromkeys(MEMORY_KINDS, 0)
    for row in line["rows"]:
        levels[row["memory"]] += row["bytes"] if row["operation"] == ALLOCATE else -row["bytes"]
    assert not any(levels.values())


def test_memory_of_graphs_is_cuptis(by_cutrace: Any, by_cupti: dict[str, dict[str, Any]]) -> None:
    _, told = by_cutrace
    ours, theirs = told["graph with memory"], by_cupti["graph with memory"]
    print(table("graph with memory", comparable(ours["rows"]), comparable(theirs["rows"])))
    assert allocated(ours) == allocated(theirs)
    assert_all_is_released(ours)


def test_variables_of_a_module_are_cuptis(by_cutrace: Any, by_cupti: dict[str, dict[str, Any]]) -> None:
    _, told = by_cutrace
    ours, theirs = told["variables of a module"], by_cupti["variables of a module"]
    assert [size for _, size, _ in allocated(ours)] == [1, 8, 64, 1000]
    if theirs["rows"]:  # CUPTI 13.0 has none
        assert allocated(ours) == allocated(theirs)
    assert_all_is_released(ours)


def test_rows_belong_to_the_calls_of_the_program(by_cutrace: Any) -> None:
    recorded, told = by_cutrace
    trace = recorded.trace
    rows = [row for row in told["runtime"]["rows"] if row["correlation"]]
    [process] = {row["process"] for row in rows}
    of_process = trace.api_calls[trace.api_calls["process"] == process]
    calls = {int(row["correlation"]): row for row in of_process}
    names = [trace.strings[int(trace.functions["name"][calls[row["correlation"]]["function"]])] for row in rows]
    assert names == [
        "cudaMalloc", "cudaFree", "cudaMallocManaged", "cudaFree", "cudaMallocHost", "cudaFreeHost", "cudaHostAlloc",
        "cudaFreeHost", "cudaMallocAsync", "cudaFreeAsync",
    ]  # fmt: skip
    for row in rows:
        call = calls[row["correlation"]]
        assert call["start"] <= row["time"] <= call["end"]


TRAINING = """
import json, sys, torch
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    loss = model(torch.randn(256 << (step % 2), 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
stats = torch.cuda.memory_stats()
def segments():
    return [[s["address"], s["total_size"]] for s in torch.cuda.memory_snapshot()]
trained = segments()
big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
all_segments = segments()  # nothing was given back before, so these are all that there ever were
del big
torch.cuda.empty_cache()
after = torch.cuda.memory_stats()
print(json.dumps({
    "trained": trained,
    "segments": all_segments,
    "reserved": stats["reserved_bytes.all.current"],
    "allocated": after["reserved_bytes.all.allocated"],
    "freed": after["reserved_bytes.all.freed"],
    "peak": after["reserved_bytes.all.peak"],
}))
"""


@pytest.mark.parametrize("expandable", [False, True])
def test_memory_is_that_of_pytorchs_statistics(
    record: Record, needs: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expandable: bool
) -> None:
    needs("torch")
    if expandable:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    (tmp_path / "train.py").write_text(TRAINING)
    recorded = record([sys.executable, tmp_path / "train.py"])
    report = recorded.report
    rows = np.sort(recorded.trace.allocations, order="time")
    kind = rows[rows["memory"] == (PHYSICAL if expandable else DEVICE)]
    live: dict[int, int] = {}
    ours = {"allocated": 0, "freed": 0, "peak": 0}
    others = []
    segments = {(address, size) for address, size in report["segments"]}
    for row in kind:
        piece = int(row["address"]), int(row["bytes"])
        # Expandable segments are the only physical memory of the program. Addresses distinguish other segments from
        # workspaces of libraries.
        if not expandable and piece not in segments:
            others.append((row["operation"], hex(piece[0]), piece[1]))
            continue
        if row["operation"] == ALLOCATE:
            live[piece[0]] = piece[1]
            ours["allocated"] += piece[1]
        elif not (row["flags"] & 2):
            ours["freed"] += live.pop(piece[0])
        ours["peak"] = max(ours["peak"], ours["allocated"] - ours["freed"])
    print("PyTorch", {name: report[name] for name in ours}, "cutrace", ours, "rows of others", others)
    if not expandable:
        recorded_segments = {(int(row["address"]), int(row["bytes"])) for row in kind if row["operation"] == ALLOCATE}
        assert segments <= recorded_segments, f"without a row: {sorted(segments - recorded_segments)}"
        assert sum(size for _, size in report["trained"]) == report["reserved"]
    assert ours == {name: report[name] for name in ours}
    recorded.assert_lossless()


CUSPARSE = """
import json, cupy, cupyx.scipy.sparse
from cupyx import cusparse
matrix = cupyx.scipy.sparse.csr_matrix(cupy.eye(64, dtype="float64") * 2)
cusparse.csrilu02(matrix)
cupy.cuda.Device().synchronize()
print(json.dumps({"data": float(matrix.data.sum())}))
"""


def test_cusparses_incomplete_factorization_is_recorded(
    record: Record, needs: Callable[..., None], tmp_path: Path
) -> None:
    needs("cupy")
    (tmp_path / "ilu.py").write_text(CUSPARSE)
    recorded = record([sys.executable, tmp_path / "ilu.py"])
    assert recorded.status == 0, ended("ilu.py", recorded.status, recorded.stdout, recorded.stderr)
    assert recorded.report == {"data": 128.0}
    rows = recorded.trace.allocations
    released = rows[(rows["operation"] == RELEASE) & (rows["memory"] == DEVICE)]
    print(f"{len(rows)} rows, releases with flags {sorted(set(released['flags'].tolist()))}")
    assert len(released)
    assert not (released["flags"] & 2).any(), "a release without a known allocation"
    recorded.assert_lossless()
