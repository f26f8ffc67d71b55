"""Metrics like those of measured tests, for tests of golden files and reports."""

from __future__ import annotations

from typing import Any

from cutrace.analysis.definitions import Metrics
from cutrace.golden import Change, Entry, Module, Observed, Rules, merged, observed, parse_update
from cutrace.golden.naming import golden_path

MODULE = "tests/test_softmax.py"
NAME = "TestSoftmax::test_fwd[float16-1024x4096]"
TEST = f"{MODULE}::{NAME}"
FACTS = {"compute capability": "9.0", "driver": "580.159", "cuda": "13.0"}
SOFTMAX: dict[str, Any] = {
    "kernel_launches": 3, "kernels": {"softmax_fwd": 1, "vectorized_elementwise": 2}, "graph_launches": 0,
    "memcpy_count": 1, "memcpy_bytes": 4, "memcpy_d2h_count": 1, "memcpy_d2h_bytes": 4,
    "memset_count": 1, "memset_bytes": 64, "sync_calls": 1, "syncs": {"cudaStreamSynchronize": 1},
    "allocations": 0, "allocators": {}, "frees": 0, "pinned_allocations": 0, "pinned_frees": 0, "streams_used": 1,
    "peak_memory_bytes": 32 << 20, "net_memory_bytes": 0,
    "kernel_time_ns": 18_700, "busy_ns": 18_000, "api_time_ns": 40_000, "idle_share": 0.25,
}  # fmt: skip
#: The changes that make a run without GPU work.
NOTHING: dict[str, Any] = {
    "kernels": {}, "memcpy_count": 0, "memcpy_bytes": 0, "memcpy_d2h_count": None, "memcpy_d2h_bytes": None,
    "memset_count": 0, "memset_bytes": 0, "streams_used": 0,
}  # fmt: skip


def run(
    *,
    regions: dict[str, dict[str, Any]] | None = None,
    problems: tuple[str, ...] = (),
    facts: dict[str, str] = FACTS,
    gpus: tuple[str, ...] = ("NVIDIA H200",),
    **changed: Any,
) -> Metrics:
    """A run of a softmax test, with changes: three kernels, a copy of 4 bytes, a fill and a wait. A metric that is
    changed to None is left out. The totals of kernels and calls are computed from the counts by name."""
    values = {name: value for name, value in {**SOFTMAX, **totalled(changed)}.items() if value is not None}
    named = {name: totalled(inside) for name, inside in (regions or {}).items()}
    return Metrics(values, named, problems, gpus, facts, 5)


def totalled(values: dict[str, Any]) -> dict[str, Any]:
    """Add the totals of metrics that are counted by name."""
    totals = {"kernels": "kernel_launches", "syncs": "sync_calls", "allocators": "allocations"}
    return {totals[name]: sum(values[name].values()) for name in totals if name in values} | values


def entry(*runs: Metrics, environment: str = "sm_90", confirmed: bool = True, **rules: Any) -> Entry:
    """The golden entry of a test with these runs in one environment; without runs, with the plain run."""
    return {environment: observed(runs or (run(),), Rules(**rules), confirmed=confirmed)}


def updated(
    old: Entry | None, *runs: Metrics, environment: str = "sm_90", update: str = "changed", **options: Any
) -> tuple[Entry, tuple[str, ...]]:
    """The entry after an update with these runs, and the values that were not accepted."""
    confirmed = options.pop("confirmed", True)
    rules = Rules(**options)
    new = observed(runs, rules, confirmed=confirmed)
    return merged(old, new, environment=environment, update=parse_update(update), rules=rules)


def change(
    root: Any, nodeid: str = TEST, environment: str = "sm_90", line: int = 0, before: str = "", **changed: Any
) -> Change:
    """A change that puts a test's measurements into its golden file below ``root``."""
    return Change(nodeid, golden_path(root, nodeid), environment, observed([run(**changed)]), line, before)


def many(count: int) -> Module:
    """The golden file of a test with many parameters. Each parameter has one kernel."""
    tests = {f"test_fwd[{i}]": {"sm_90": Observed({"": {"kernel_launches": {"softmax_fwd": 1}}})} for i in range(count)}
    return Module(MODULE, tests)
