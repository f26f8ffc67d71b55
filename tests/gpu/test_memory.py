"""Allocations and pools against CUPTI's records and PyTorch's statistics, and programs that those records crash.

`pytest -rP tests/gpu/test_memory.py` shows each case beside what CUPTI's records say of it.
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

from cutrace.runbin.labels import MEMORY_KINDS

from .conftest import PROGRAMS

Record = Callable[..., Any]
CASES = PROGRAMS / "memory_cases.py"
# CUPTI's records are not compared in these cases of the program, which they crash (13.0 and 13.5).
CRASHES = ("cuMemAlloc, cuMemFreeAsync", "freed twice", "async on the stream of a destroyed context")
ALLOCATE, RELEASE = 1, 2
CREATED, DESTROYED, TRIMMED = 1, 2, 3
PINNED, DEVICE, ARRAY, MANAGED, PHYSICAL = 2, 3, 4, 5, 128

# Where the two may differ, and why.
KNOWN = {
    **dict.fromkeys(CRASHES, "CUPTI's records crash here"),
    "allocated before the records were enabled": "a recording from cuInit() on knows this memory",
    "physical": "CUPTI does not report cuMemCreate()",
    "variables of a module": "cutrace does not know their addresses",
    "graph with memory": "cutrace also has the release",
    "context destroyed with its memory": "CUPTI may not report the end of a context",
}

Row = tuple[Any, ...]


def ended(what: str, status: int, stdout: str, stderr: str) -> str:
    """What a failed program has said, in one line of pytest's summary and below it."""
    last = (stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    return f"{what}: status {status}; {last}\n-- stderr\n{stderr[-4000:]}\n-- stdout\n{stdout[-2000:]}"


def cases(mode: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run([sys.executable, CASES, mode], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, ended(f"{CASES.name} {mode}", done.returncode, done.stdout, done.stderr)
    return {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}


def comparable(rows: list[dict[str, int]]) -> list[Row]:
    """Rows without what differs between two processes: addresses are numbered in the order of their first use."""
    numbers: dict[int, int] = {}
    out = []
    for row in rows:
        number = numbers.setdefault(row["address"], len(numbers))
        operation = {ALLOCATE: "allocate", RELEASE: "release"}.get(row["operation"], row["operation"])
        kind = MEMORY_KINDS.get(row["memory"], row["memory"])
        way = "async" if row["async"] else "sync"
        used = row["pool_used"] if operation == "allocate" else ""  # CUPTI gives that before a release
        out.append((operation, kind, row["bytes"], way, f"#{number}", row["device"], row["pool_type"], used))
    return out


@pytest.fixture(scope="module")
def by_cupti(_needs_gpu: None) -> dict[str, dict[str, Any]]:
    return cases("records")


@pytest.fixture
def by_cutrace(record: Record) -> tuple[Any, dict[str, dict[str, Any]]]:
    recorded = record([sys.executable, CASES, "plain"])
    said = ended(f"{CASES.name} under cutrace", recorded.status, recorded.stdout, recorded.stderr)
    assert recorded.status == 0, said
    assert recorded.path.exists(), f"no capture; {said}"
    told = {line["case"]: line for line in recorded.reports}
    for line in told.values():
        line["rows"] = [row | {"async": row["flags"] & 1} for row in rows_of(line, recorded.trace.allocations)]
        line["pools"] = rows_of(line, recorded.trace.memory_pools)
    return recorded, told


def rows_of(case: dict[str, Any], rows: Any) -> list[dict[str, int]]:
    """The rows of a case, in the order of time."""
    inside = (rows["time"] >= case["start"]) & (rows["time"] <= case["end"])
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
            if name in KNOWN:
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


def test_each_case_returns_what_it_returns_without_a_tool(by_cutrace: Any) -> None:
    alone = cases("plain")
    _, told = by_cutrace
    assert {name: line["results"] for name, line in told.items()} == {
        name: line["results"] for name, line in alone.items()
    }


@pytest.mark.parametrize("name", CRASHES)
def test_a_case_that_crashes_cupti_is_complete(by_cutrace: Any, name: str) -> None:
    for kinds in ("memory", "pool", "memory,pool"):
        command = [sys.executable, CASES, "crash", name, kinds]
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
    pools = {int(address) for address in trace.memory_pools["address"]}
    for name in ("explicit pool", "use of a pool", "life of a pool"):
        seen = {row["pool"] for row in told[name]["rows"]}
        print(name, "allocations", [hex(pool) for pool in seen], "driver", told[name]["pointers"])
        assert seen <= pools, name


def changes(pools: list[dict[str, int]]) -> list[tuple[int, int]]:
    """Operation and size, without trims that left the size as it was: CUPTI also has rows for some of them."""
    out: list[tuple[int, int]] = []
    for row in pools:
        size = 0 if row["operation"] == DESTROYED else row["size"]
        if row["operation"] != TRIMMED or not out or size != out[-1][1]:
            out.append((row["operation"], size))
    return out


def test_pools_are_those_of_cuptis_records(by_cutrace: Any, by_cupti: dict[str, dict[str, Any]]) -> None:
    """`used` of a pool that is created differs: CUPTI's row is from before the first allocation."""
    _, told = by_cutrace
    for name, line in told.items():
        for ours in line["pools"]:
            print(f"{name}: cutrace {ours}")
        for theirs in by_cupti.get(name, {}).get("pools", []):
            print(f"{name}: CUPTI   {theirs}")
    name = "life of a pool"
    assert {operation for operation, _ in changes(told[name]["pools"])} == {CREATED, DESTROYED, TRIMMED}
    assert changes(told[name]["pools"]) == changes(by_cupti[name]["pools"])


@pytest.mark.parametrize("name", ["variables of a module", "graph with memory"])
def test_allocations_without_an_address_are_cuptis(
    by_cutrace: Any, by_cupti: dict[str, dict[str, Any]], name: str
) -> None:
    _, told = by_cutrace
    print(table(name, comparable(told[name]["rows"]), comparable(by_cupti[name]["rows"])))

    def allocated(line: dict[str, Any]) -> list[tuple[str, int, int]]:
        rows = [row for row in line["rows"] if row["operation"] == ALLOCATE]
        return sorted((MEMORY_KINDS[row["memory"]], row["bytes"], row["device"]) for row in rows)

    assert allocated(told[name]) == allocated(by_cupti[name])
    levels = dict.fromkeys(MEMORY_KINDS, 0)
    for row in told[name]["rows"]:
        levels[row["memory"]] += row["bytes"] if row["operation"] == ALLOCATE else -row["bytes"]
    assert not any(levels.values()), "what was allocated in the case was not released in it"


def test_rows_belong_to_the_calls_of_the_program(by_cutrace: Any) -> None:
    recorded, told = by_cutrace
    trace = recorded.trace
    calls = {int(row["correlation"]): row for row in trace.api_calls}
    rows = [row for row in told["runtime"]["rows"] if row["correlation"]]
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
        # Expandable segments are the only physical memory of the program. Other segments are told from the workspaces
        # of libraries, which allocate themselves, by their addresses.
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
