"""cutrace profile on the fake GPU: two runs, the selected launches, and their metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from cutrace.analysis.tables import Table, columns_of
from cutrace.collect import surroundings
from cutrace.extras.hardware.verbs import profile as verb
from profiled import Runs
from support.fakedriver import FakeDriver

PROGRAM = """
import sys, fakegpu
axpy, gemm = "_Z4axpyPfi", "_Z4gemmPfS_"
for step in range(5):
    fakegpu.launch(axpy, grid=8 + step, duration_ns=1000 + step)
    fakegpu.launch(gemm, grid=4, duration_ns=3000)
fakegpu.synchronize()
print("done")
"""


@pytest.fixture
def runs(fake_driver: FakeDriver, tmp_path: Path) -> Runs:
    return Runs(fake_driver, tmp_path, "--timeline", program=PROGRAM)


def test_chosen_launches_get_their_metrics_and_keep_their_own_times(runs: Runs) -> None:
    done = runs("--metrics", "sm__inst_executed.sum,occupancy", "--kernel", "axpy", "--skip", "1", "--count", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2
    assert "of 2 launches in" in done.stderr
    assert "2 launches profiled" in done.stderr
    rows = runs.rows()
    assert {row["name"] for row in rows} >= {"sm__inst_executed.sum"}
    counted = [row for row in rows if row["name"] == "sm__inst_executed.sum"]
    assert [row["duration"] for row in counted] == [1001, 1002]
    assert [row["value"] for row in counted] == [1000.0, 1000.0]
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert len(trace.kernels) == 10
        correlations = {k["correlation"] for k in trace.arrow("kernels").to_pylist() if "axpy" in k["name"]}
        assert {row["correlation"] for row in rows} <= correlations


def test_the_table_is_on_stdout(runs: Runs) -> None:
    done = runs("--metrics", "sm__inst_executed.sum", "--kernel", "gemm", "--count", "1", "--format", "csv")
    assert done.stdout.splitlines()[-1] == "gemm,0,3000,sm__inst_executed.sum,1000.0,instructions,flushed"


def test_kernels_of_nvtx_ranges(runs: Runs) -> None:
    program = (
        "import nvtx, fakegpu\nfakegpu.launch('_Z1av')\nwith nvtx.annotate('here'): fakegpu.launch('_Z1av', grid=3)\n"
    )
    done = runs("--metrics", "sm__inst_executed.sum", "--nvtx", "here", program=program + "fakegpu.synchronize()")
    assert done.returncode == 0, done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        (row,) = trace.kernel_metrics
        (kernel,) = trace.kernels[trace.kernels["correlation"] == row["correlation"]]
        assert trace.launches[kernel["launch"]]["grid_x"] == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--kernel", "nothing_like_it"), "the trace has no kernel"),
        (("--skip", "100"), "nothing is left to profile"),
        (("--nvtx", "nowhere"), "nowhere"),
        (("--metrics", "no-such-set"), "is neither a set"),
        (("--metrics", "sm__inst_exicuted.sum"), "did you mean"),
    ],
)
def test_a_filter_or_metric_that_names_nothing_is_an_error(runs: Runs, options: tuple[str, ...], sentence: str) -> None:
    done = runs(*options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (runs.folder / "run.bin").exists()


@pytest.mark.parametrize("option", ["--kernel", "--nvtx", "--ranges"])
@pytest.mark.parametrize(("pattern", "sentence"), [("/(/", "is not a regular expression"), ("regex:a", "write '/a/'")])
def test_a_wrong_pattern_is_an_error_before_the_first_run(runs: Runs, option: str, pattern: str, sentence: str) -> None:
    done = runs(option, pattern)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stdout == ""


def test_the_status_of_the_command_is_kept(runs: Runs) -> None:
    done = runs(program=PROGRAM + "sys.exit(3)")
    assert done.returncode == 3
    assert "ended with 3 in its first run" in done.stderr


def test_a_launch_that_fails_does_not_shift_the_others(runs: Runs) -> None:
    program = (
        "import os, fakegpu\n"
        "for grid in (0, 1, 2, 0, 3):\n"
        "    try: fakegpu.launch('_Z1av', grid=max(grid, 1), fails=grid == 0, duration_ns=1000 * grid)\n"
        "    except RuntimeError: pass\n"
        "fakegpu.synchronize()\n"
    )
    done = runs("--metrics", "gpu__time_duration.sum", "--skip", "1", program=program)
    assert done.returncode == 0, done.stderr
    assert "2 launches profiled" in done.stderr
    assert [(row["duration"], row["value"]) for row in runs.rows()] == [(2000, 2000.0), (3000, 3000.0)]


def test_counters_that_this_user_may_not_read_are_said_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(surroundings, "counters_restricted", lambda: True)
    monkeypatch.setattr(surroundings, "may_administrate", lambda: False)
    with pytest.raises(cutrace.CutraceError, match=r"ERR_NVGPUCTRPERM.*NVreg_RestrictProfilingToAdminUsers=0"):
        cutrace.profile(["touch", str(tmp_path / "ran")], tmp_path / "run.bin")
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_launches_otherwise_the_second_time_is_said(runs: Runs) -> None:
    program = (
        "import os, fakegpu\n"
        "second = 'CUTRACE_PROFILE' in os.environ\n"
        "fakegpu.launch('_Z1av', grid=2 if second else 1)\n"
        "fakegpu.launch('_Z1bv', grid=1)\n"
        "if not second: fakegpu.launch('_Z1cv', grid=1)\n"
        "fakegpu.synchronize()\n"
    )
    done = runs("--metrics", "sm__inst_executed.sum", program=program)
    assert done.returncode == 0, done.stderr
    assert "no metrics for 1 launch with another grid or block in the second run" in done.stderr
    assert "1 launch of the first run did not run in the second" in done.stderr
    assert len(runs.rows()) == 1


def test_nothing_counted_is_a_failure_that_says_why(runs: Runs) -> None:
    program = (
        "import os, fakegpu\nif 'CUTRACE_PROFILE' not in os.environ: fakegpu.launch('_Z1av')\nfakegpu.synchronize()"
    )
    done = runs(program=program)
    assert done.returncode == 2
    assert "did not run in the second" in done.stderr


def test_the_trace_has_the_metrics_as_counters_of_the_gpu(runs: Runs) -> None:
    runs("--metrics", "sm__inst_executed.sum,gpu__time_duration.sum", "--kernel", "gemm", "--count", "1")
    cutrace.convert(runs.folder / "run.bin", runs.folder / "run.pftrace", capture=False)
    from pftrace import packets

    events = [p.gpu_counter_event for p in packets(runs.folder / "run.pftrace") if p.HasField("gpu_counter_event")]
    values = [[counter.double_value for counter in event.counters] for event in events]
    assert sorted(values[0]) == [1000.0, 3000.0]  # the time is the time of the kernel
    assert values[1:] == [[0.0, 0.0]]


def test_threads_that_launch_beside_a_profiled_launch_are_not_in_its_metrics(runs: Runs) -> None:
    program = """
import threading, fakegpu
fakegpu.launch("_Z5firstv")
def work(name):
    for _ in range(200): fakegpu.launch(name, duration_ns=1)
threads = [threading.Thread(target=work, args=(f"_Z1{c}v",)) for c in "abcd"]
for thread in threads: thread.start()
for thread in threads: thread.join()
fakegpu.synchronize()
"""
    done = runs(
        "--metrics", "sm__inst_executed.sum", "--kernel", "a*", "--skip", "50", "--count", "100", program=program
    )
    assert done.returncode == 0, done.stderr
    rows = runs.rows()
    assert [row["value"] for row in rows] == [1000.0] * 100


def test_kernels_get_blocks_that_say_why_they_are_slow_where_the_metrics_suffice(runs: Runs) -> None:
    done = runs("--kernel", "/axpy|gemm/")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "gemm\n  3.0us a launch" in text
    assert "of the time of all kernels; 5 launches" in text
    assert "\n  Compute\n" in text
    # Each of the five grids of axpy counts as a kernel. With gemm there are six kernels, so one block is left out.
    assert "only 5 kernels are shown; `cutrace why run.bin` has 1 more" in done.stderr
    few = runs("--kernel", "gemm", "--metrics", "sm__inst_executed.sum")
    assert "Metrics of launches" in few.stdout


def test_a_table_for_people_names_each_launch_once() -> None:
    rows = [("gemm", 0, 10, "a", 1.0), ("gemm", 0, 10, "b", 2.0), ("gemm", 1, 12, "a", 3.0)]
    columns = columns_of("kernel: text, launch, time: ns, metric: text, value")
    table = Table("metrics", "Metrics of launches", columns, rows)
    assert verb._named_once(table).rows == [rows[0], ("", "", "", "b", 2.0), rows[2]]
