"""Profiling of whole NVTX ranges on the fake GPU. A kernel there executes 1,000 instructions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from profiled import Runs
from support.fakedriver import FakeDriver

INSTRUCTIONS = "sm__inst_executed.sum"
HEAD = "import nvtx, fakegpu, threading\nfakegpu.init()\n"
STEPS = (
    HEAD
    + """
for step in range(4):
    with nvtx.annotate("step"):
        for _ in range(step):
            fakegpu.launch()
        fakegpu.graph_launch(2)
    fakegpu.launch("between")
fakegpu.synchronize()
"""
)


class RangeRuns(Runs):
    def counted(self, *options: str, program: str, **variables: str) -> list[tuple[str, int, float]]:
        """Count ranges. Returns the name, the number and the instructions of each range."""
        done = self(*options, program=program, **variables)
        assert done.returncode == 0, done.stderr
        (table,) = json.loads(done.stdout)["reports"]
        return [(row["range"], row["number"], row["value"]) for row in table["rows"]]


@pytest.fixture
def runs(fake_driver: FakeDriver, tmp_path: Path) -> RangeRuns:
    return RangeRuns(fake_driver, tmp_path, "--metrics", INSTRUCTIONS, "--format", "json")


def test_a_range_has_the_counts_of_all_in_it_graphs_included(runs: RangeRuns) -> None:
    assert runs.counted("--ranges", "step", program=STEPS) == [
        ("step", 0, 2000), ("step", 1, 3000), ("step", 2, 4000), ("step", 3, 5000),
    ]  # fmt: skip
    with cutrace.load(runs.folder / "run.bin") as trace:
        own = [(row["start"], row["end"]) for row in trace.nvtx_ranges]
    assert [(row["start"], row["end"]) for row in runs.rows()] == own
    assert {(row["range"], row["correlation"]) for row in runs.rows()} == {("step", 0)}


def test_skip_and_count_choose_among_the_ranges(runs: RangeRuns) -> None:
    assert runs.counted("--ranges", "s*", "--skip", "1", "--count", "2", program=STEPS) == [
        ("step", 1, 3000), ("step", 2, 4000),
    ]  # fmt: skip


def test_ranges_of_a_domain_and_registered_ones_are_numbered_apart(runs: RangeRuns) -> None:
    program = (
        HEAD
        + """
domain = nvtx.get_domain("mine")
registered = domain.get_registered_string("step")
for _ in range(2):
    with nvtx.annotate("step", domain="mine"): fakegpu.launch()
    with nvtx.annotate("step"): fakegpu.launch(); fakegpu.launch()
fakegpu.synchronize()
"""
    )
    assert runs.counted("--ranges", "step", program=program) == [
        ("step", 0, 1000), ("step", 0, 2000), ("step", 1, 1000), ("step", 1, 2000),
    ]  # fmt: skip


def test_a_range_that_another_thread_ends_is_counted(runs: RangeRuns) -> None:
    program = (
        HEAD
        + """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    for kernels in (1, 2):
        started = nvtx.start_range("a\\tb\\nc")
        for _ in range(kernels): fakegpu.launch()
        pool.submit(nvtx.end_range, started).result()
"""
    )
    assert runs.counted("--ranges", "a*", program=program) == [("a\tb\nc", 0, 1000), ("a\tb\nc", 1, 2000)]


def test_ranges_inside_a_counted_one_are_left_out(runs: RangeRuns) -> None:
    program = (
        HEAD
        + """
def walk(depth):
    with nvtx.annotate("walk"):
        fakegpu.launch()
        if depth: walk(depth - 1)
walk(2)
walk(0)
fakegpu.synchronize()
"""
    )
    assert runs.counted("--ranges", "walk", program=program) == [("walk", 0, 3000), ("walk", 3, 1000)]
    assert "left out: 2 ranges that began inside another one" in runs("--ranges", "walk", program=program).stderr


def test_a_range_in_a_capture_is_not_counted_and_the_capture_goes_on(runs: RangeRuns) -> None:
    program = (
        HEAD
        + """
for on in (True, False):
    fakegpu.capture(on)
    with nvtx.annotate("step"): fakegpu.launch()
with nvtx.annotate("step"):
    fakegpu.capture(True)
    fakegpu.capture(False)
    fakegpu.launch()
"""
    )
    done = runs("--ranges", "step", program=program)
    assert "a range began while a CUDA graph was captured" in done.stderr
    assert "1 range of the first run did not run in the second" in done.stderr
    assert [row["value"] for row in runs.rows()] == [1000, 1000]


def test_a_range_that_ends_in_a_capture_is_not_counted_and_the_next_one_is(runs: RangeRuns) -> None:
    program = (
        HEAD
        + """
with nvtx.annotate("step"):
    fakegpu.capture(True)
fakegpu.capture(False)
with nvtx.annotate("step"): fakegpu.launch()
"""
    )
    assert "a range ended while a CUDA graph was captured" in runs("--ranges", "step", program=program).stderr
    assert [row["value"] for row in runs.rows()] == [1000]


def test_each_process_has_its_own_ranges(runs: RangeRuns) -> None:
    child = (
        "import fakegpu, nvtx, sys\nfakegpu.init()\n"
        "with nvtx.annotate('step'):\n for _ in range(int(sys.argv[1])): fakegpu.launch()"
    )
    program = f"import subprocess, sys\nfor n in '13': subprocess.run([sys.executable, '-c', {child!r}, n], check=True)"
    assert runs.counted("--ranges", "step", program=program) == [("step", 0, 1000), ("step", 0, 3000)]


def test_a_forked_child_counts_its_ranges_from_0(runs: RangeRuns) -> None:
    program = """
import nvtx, fakegpu, os
for _ in range(3):
    with nvtx.annotate("step"): pass
if child := os.fork():
    os.waitpid(child, 0)
else:
    with nvtx.annotate("other"): pass
    fakegpu.init()
    with nvtx.annotate("step"): fakegpu.launch()
    fakegpu.synchronize()
"""
    done = runs("--ranges", "step", program=program)
    assert "on a thread that had not used CUDA" in done.stderr
    assert [row["value"] for row in runs.rows()] == [1000]


def test_a_child_that_is_forked_inside_a_range_has_no_part_in_it(runs: RangeRuns) -> None:
    program = (
        HEAD
        + """
import os
with nvtx.annotate("step"):
    fakegpu.launch()
    if (child := os.fork()) == 0:
        raise SystemExit
    os.waitpid(child, 0)
    fakegpu.launch()
"""
    )
    done = runs("--ranges", "step", program=program)
    assert done.returncode == 0, done.stderr
    assert [row["value"] for row in runs.rows()] == [2000]
    assert "failed with" not in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--ranges", "stp"), "did you mean step?"),
        (("--ranges", "step", "--skip", "9"), "4 NVTX ranges met the filter"),
        (("--ranges", "step", "--kernel", "axpy"), "give them alone"),
        (("--ranges", "step", "--metrics", "speed-of-light"), "passes, but a range runs once"),
    ],
)
def test_what_cannot_be_counted_is_an_error(runs: RangeRuns, options: tuple[str, ...], sentence: str) -> None:
    done = runs(*options, program=STEPS)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (runs.folder / "run.bin").exists()


@pytest.mark.parametrize(
    ("failures", "advice"),
    [
        ("ProfilerGetCounterAvailability:35", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("RangeProfilerPushRange:7", "another tool may be profiling this process"),
        ("RangeProfilerPopRange:7", "another tool may be profiling this process"),
    ],
)
def test_counters_that_cannot_be_read_leave_the_recording(runs: RangeRuns, failures: str, advice: str) -> None:
    done = runs("--ranges", "step", program=STEPS, FAKE_CUPTI_FAILURES=failures)
    assert done.returncode == 2
    assert done.stderr.count(advice) == 1
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert (trace.nvtx_ranges.size, trace.kernel_metrics.size) == (4, 0)


def test_the_metrics_of_ranges_unless_somebody_says(runs: RangeRuns) -> None:
    program = HEAD + "with nvtx.annotate('step'): fakegpu.launch()"
    cutrace_profile = (
        "import cutrace, sys; cutrace.profile([sys.executable, '-c', sys.argv[1]], 'run.bin', ranges='step')"
    )
    subprocess.run(
        [sys.executable, "-c", cutrace_profile, program], cwd=runs.folder, env=runs.environment, check=True, timeout=60
    )
    assert "dram__bytes_read.sum" in {row["name"] for row in runs.rows()}


def test_stats_and_the_trace_show_the_metrics_of_ranges(runs: RangeRuns) -> None:
    from pftrace import packets

    assert runs.counted("--ranges", "step", "--skip", "1", program=STEPS)
    capture, converted = runs.folder / "run.bin", runs.folder / "run.pftrace"
    assert [row[:4] for row in cutrace.stats(capture, "range_metrics").rows] == [("step", INSTRUCTIONS, 3, 4000.0)]
    assert not cutrace.stats(capture, "kernel_metrics").rows
    with pytest.raises(cutrace.CutraceError, match="no hardware metrics of kernels"):
        cutrace.roofline(capture)
    cutrace.convert(capture, converted, capture=False)
    written = list(packets(converted))
    names = {name.name: name.iid for packet in written for name in packet.interned_data.debug_annotation_names}
    arguments = [argument for packet in written for argument in packet.track_event.debug_annotations]
    found = [argument.double_value for argument in arguments if argument.name_iid == names[INSTRUCTIONS]]
    assert not any(packet.HasField("gpu_counter_event") for packet in written)
    assert found == [3000.0, 4000.0, 5000.0]


def test_a_part_of_a_capture_has_the_metrics_of_its_ranges(runs: RangeRuns) -> None:
    assert runs.counted("--ranges", "step", program=STEPS)
    cutrace.slice(runs.folder / "run.bin", runs.folder / "part.bin", cutrace.Conditions(nvtx=["step"], index="2"))
    with cutrace.load(runs.folder / "part.bin") as trace:
        assert [(trace.strings[row["range"]], row["value"]) for row in trace.kernel_metrics] == [("step", 4000)]
