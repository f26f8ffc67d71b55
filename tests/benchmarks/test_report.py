"""The tables of benchmarks/report.py, on a synthetic result."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "report.py"


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["report"] = module
    spec.loader.exec_module(module)
    return module


def result(**times: list[float]) -> dict[str, Any]:
    """A result of the launch loop on one thread: nanoseconds per launch, by configuration and round."""
    rows = [
        {"workload": "launches_1", "config": config, "round": number, "ns_per_op": value}
        for config, values in times.items()
        for number, value in enumerate(values)
    ]
    return {
        "machine": {"gpu": {"name": "NVIDIA Test", "driver_version": "1.2"}, "cpu": "a CPU", "cores": 2},
        "versions": {"cutrace": "0"},
        "date": "2026-01-02T03:04:05+00:00",
        "rounds": max(map(len, times.values()), default=0),
        "measurements": rows,
        "captures": [],
        "exit": {},
        "checks": {},
        "failures": [],
    }


def verdict(report: ModuleType, made: dict[str, Any], what: str, **more: Any) -> str:
    return next(t.verdict for t in report.targets(made, **more) if t.what.startswith(what))


def test_added_time_is_taken_against_the_same_round(report: ModuleType) -> None:
    # The machine slows down over the rounds, but the added time of the tool stays the same.
    overheads = report.Overheads(result(none=[1000, 2000, 3000], null=[1500, 2500, 3500]))
    added = overheads.added("launches_1", "null")
    assert (added.median, added.q1, added.q3) == (500, 500, 500)


def test_a_round_without_its_baseline_does_not_count(report: ModuleType) -> None:
    overheads = report.Overheads(result(none=[1000], null=[1500, 9000]))
    assert overheads.added_by_round("launches_1", "null") == {0: 500}


def test_python_profilers_are_compared_with_the_loop_called_from_python(report: ModuleType) -> None:
    overheads = report.Overheads(result(none=[1000], none_python=[1100], torch_profiler=[3100], cutrace=[2000]))
    assert overheads.added("launches_1", "torch_profiler").median == 2000
    assert overheads.ratio("launches_1", "cutrace", "torch_profiler") == 0.5


@pytest.mark.parametrize(
    ("cutrace", "expected"),
    [([2040] * 4, "pass"), ([2060] * 4, "fail"), ([2000, 2050, 2060, 2200], "unclear")],
)
def test_ratio_to_the_null_collector(report: ModuleType, cutrace: list[float], expected: str) -> None:
    overheads = report.Overheads(result(none=[1000] * 4, null=[2000] * 4, cutrace=cutrace))
    # The limit is 1.05 times the 1,000 ns that the null collector adds.
    assert overheads.verdict("launches_1", "cutrace", "null", 1.05) == expected


def test_no_ratio_to_a_tool_that_adds_nothing(report: ModuleType) -> None:
    overheads = report.Overheads(result(none=[1000], null=[990], cutrace=[1010]))
    assert overheads.ratio("launches_1", "cutrace", "null") is None


def test_a_further_collector_is_shown_beside_the_null_collector(report: ModuleType) -> None:
    made = result(none=[1000], null=[2000], cutrace=[2050], before=[2100]) | {"collectors": {"before": "lib.so"}}
    text = report.markdown(made)
    assert "| collector of before | 2,100 (2,100 to 2,100) | 1,100 (1,100 to 1,100) |" in text
    assert "collector of before / null collector: at most 1.05" in text
    assert "| 1.05 pass | - | - | - | 1.10 fail |".replace("-", "not measured") in text


def test_a_capture_of_a_graph_is_compared_without_the_nodes(report: ModuleType) -> None:
    made = result(none=[1000], null=[2000], cutrace=[3000], cutrace_no_nvtx=[2020], cutrace_kernels=[1500])
    for row in made["measurements"]:
        row["workload"] = "graph_capture"
    (row,) = (line for line in report.ratio_table(report.Overheads(made)) if line.startswith("| captured"))
    assert row.split(" | ")[1:3] == ["1.02 pass (without NVTX)", "not measured"]


def test_what_was_not_measured_does_not_pass(report: ModuleType) -> None:
    made = result(none=[1])
    assert {t.verdict for t in report.targets(made)} == {"not measured"}
    assert report.Overheads(made).verdict("launches_1", "cutrace", "null", 1.05) == "not measured"


@pytest.mark.parametrize(("lost", "kernels", "expected"), [(0, 100, "pass"), (3, 100, "fail"), (0, 99, "fail")])
def test_missing_kernels(report: ModuleType, lost: int, kernels: int, expected: str) -> None:
    made = result(none=[1])
    rows = {"kernels": kernels, "api_calls": kernels}
    made["captures"] = [{"config": "cutrace", "launched": 100, "bytes": 6400, "rows": rows, "lost": lost}]
    assert verdict(report, made, "kernels missing") == expected
    assert verdict(report, made, "run.bin, bytes") == "pass"


def test_exit_and_memory(report: ModuleType) -> None:
    made = result(none=[1])
    rows = {"kernels": 10, "api_calls": 10}
    capture = {"seconds": 0.4, "max_rss": 164 << 20, "kernels": 10, "rows": rows, "lost": 0}
    made["exit"] = {"null": {"seconds": 0.2, "max_rss": 100 << 20}, "cutrace": capture}
    assert verdict(report, made, "from exit") == "pass"
    assert verdict(report, made, "host memory") == "fail"
    assert verdict(report, made, "NVTX", nvtx_ns=149.0) == "pass"


def test_the_command_prints_all_tables(report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(result(none=[1000], null=[2000], cutrace=[2010])))
    assert report.main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "| cutrace | 2,010 (2,010 to 2,010) | 1,010 (1,010 to 1,010) |" in out
    assert "| 1.01 pass | not measured |" in out
    assert "| NVTX push and pop | - | < 150 ns | not measured |" in out
    assert out.startswith("NVIDIA Test, driver 1.2")


def test_checks_and_failures_are_told(report: ModuleType) -> None:
    made = result(none=[1])
    made["checks"] = {"proton": {"launched": 2000, "seen": 1999}, "kernels_per_operation": {"transformer": 400.5}}
    made["failures"] = [{"what": "null, round 0", "error": "no"}, {"what": "null, round 1", "error": "no"}]
    text = report.markdown(made)
    assert "Proton (trace) saw 1,999 of 2,000 kernels" in text
    assert "transformer training step (a step): 400.5 kernels" in text
    assert "- 2 times: no" in text


def test_an_unreadable_result_is_an_error(report: ModuleType, tmp_path: Path) -> None:
    assert report.main([str(tmp_path / "absent.json")]) == 2


def test_campaigns_are_put_together(report: ModuleType) -> None:
    first = result(none=[1000, 2000], null=[1500, 2500]) | {
        "exit": {"null": {"max_rss": 9}, "cutrace": {"max_rss": 20}}
    }
    second = result(none=[5000], null=[5900]) | {"exit": {"null": {"max_rss": 7}, "cutrace": {"max_rss": 15}}}
    whole = report.together([first, second])
    assert whole["rounds"] == 3
    assert report.Overheads(whole).added_by_round("launches_1", "null") == {0: 500, 1: 500, 2: 900}
    assert whole["exit"] == {"null": {"max_rss": 7}, "cutrace": {"max_rss": 20}}
    assert first["rounds"] == 2
