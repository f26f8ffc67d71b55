"""Metrics of instructions on the fake GPU. There, each function has four lines of two instructions of 16 bytes, the
third line runs ten times, and a block of 128 threads has four warps."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from cutrace.analysis.reports import tables
from cutrace.extras.hardware.sources import line_metrics
from profiled import Runs
from support.fakedriver import FakeDriver

EXECUTED = "smsp__sass_inst_executed"
PROGRAM = """
import fakegpu
for step in range(3):
    fakegpu.launch("_Z4axpyPfi", grid=8 + step)
    fakegpu.launch("_Z4gemmPfS_", grid=4)
fakegpu.synchronize()
"""


@pytest.fixture
def runs(fake_driver: FakeDriver, tmp_path: Path) -> Runs:
    return Runs(fake_driver, tmp_path, "--lines", program=PROGRAM, FAKE_SOURCES="/home/me")


def test_instructions_of_chosen_launches_are_counted_with_their_lines(runs: Runs) -> None:
    done = runs("--kernel", "axpy", "--skip", "1", "--metrics", EXECUTED)
    assert done.returncode == 0, done.stderr
    assert "2 launches profiled" in done.stderr
    rows = runs.rows("instruction_metrics")
    warps = 4 * (9 + 10)
    assert [(row["offset"], row["line"], row["value"]) for row in rows] == [
        (0, 10, warps), (16, 10, warps), (32, 11, warps), (48, 11, warps),
        (64, 12, 10 * warps), (80, 12, 10 * warps), (96, 13, warps), (112, 13, warps),
    ]  # fmt: skip
    assert {(row["function"], row["file"], row["launches"], row["name"], row["unit"]) for row in rows} == {
        ("_Z4axpyPfi", "/home/me/_Z4axpyPfi.cu", 2, EXECUTED, "instructions")
    }


def test_each_kernel_takes_a_run(runs: Runs) -> None:
    done = runs("--metrics", EXECUTED, program=PROGRAM + "print('ran')")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ran") == 3
    assert "of the instructions of 6 launches in 2 more runs" in done.stderr
    assert {row["function"]: row["launches"] for row in runs.rows("instruction_metrics")} == {
        "_Z4axpyPfi": 3,
        "_Z4gemmPfS_": 3,
    }


def test_launches_that_do_not_follow_each_other_are_left_out_and_counted(runs: Runs) -> None:
    program = (
        "import fakegpu, nvtx\n"
        "for step in range(6):\n"
        "    with nvtx.annotate('odd' if step in (1, 2, 4) else 'even'): fakegpu.launch('_Z1av', grid=1)\n"
        "fakegpu.synchronize()\n"
    )
    done = runs("--nvtx", "odd", "--metrics", EXECUTED, program=program)
    assert done.returncode == 0, done.stderr
    assert "left out: 1 launch." in done.stderr
    assert {(row["launches"], row["value"]) for row in runs.rows("instruction_metrics")} == {(2, 8.0), (2, 80.0)}


def test_only_the_longest_kernels_are_counted(runs: Runs) -> None:
    program = (
        "import fakegpu\n"
        "for n in range(10): fakegpu.launch(f'_Z1{chr(97 + n)}v', duration_ns=1000 * (n + 1))\n"
        "fakegpu.synchronize()\n"
    )
    done = runs("--metrics", EXECUTED, program=program)
    assert done.returncode == 0, done.stderr
    assert "left out: 2 launches." in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        functions = {trace.strings[number] for number in trace.instruction_metrics["function"]}
    assert functions == {f"_Z1{letter}v" for letter in "cdefghij"}


def test_a_run_that_fails_is_the_last(runs: Runs) -> None:
    program = PROGRAM + "import os, sys; print('ran'); sys.exit(3 * ('CUTRACE_PROFILE' in os.environ))"
    done = runs(program=program)
    assert done.returncode == 3
    assert done.stdout.count("ran") == 2


def test_without_line_information_instructions_have_their_offsets(runs: Runs) -> None:
    del runs.environment["FAKE_SOURCES"]
    done = runs("--kernel", "gemm", "--format", "csv", "--metrics", EXECUTED)
    assert done.returncode == 0, done.stderr
    assert {(row["file"], row["line"]) for row in runs.rows("instruction_metrics")} == {(None, 0)}
    assert done.stdout.splitlines()[1] == f"{5 / 13},480.0,{EXECUTED},instructions,+0x40,,gemm,1,3"


def test_the_report_has_the_hottest_line_of_each_metric_first(runs: Runs) -> None:
    assert runs().returncode == 0
    with cutrace.load(runs.folder / "run.bin") as trace:
        uses = line_metrics(trace)
        (table,) = tables(trace, ["instruction_line_sum"])
    assert [use.metric for use in uses] == [EXECUTED] * 8 + ["smsp__sass_thread_inst_executed"] * 8
    first = uses[0]
    assert (first.place.text, first.place.function, first.value) == ("_Z4axpyPfi.cu:12", "axpy", 20 * 4 * (8 + 9 + 10))
    assert sum(use.share for use in uses) == pytest.approx(2)
    assert uses[8].value == 32 * first.value
    assert next(iter(table.rows))[:3] == (pytest.approx(first.share), first.value, EXECUTED)


def test_the_table_has_the_hottest_lines_of_each_metric_and_says_where_the_rest_is(runs: Runs) -> None:
    program = PROGRAM.replace("_Z4gemmPfS_", "_Z4gemmPfS_', grid=4); fakegpu.launch('_Z4copyPf").replace('"', "'")
    done = runs(program=program)
    assert done.returncode == 0, done.stderr
    assert "cutrace stats --report instruction_line_sum run.bin" in done.stderr
    lines = [line for line in done.stdout.splitlines() if ".cu:" in line]
    assert [EXECUTED in line for line in lines] == [True] * 10 + [False] * 10, "of 12 each"
    assert all(".cu:12" in lines[at] for at in (0, 1, 2, 10, 11, 12))


def test_each_process_has_its_own_counts(runs: Runs) -> None:
    child = "import fakegpu, sys\\nfakegpu.launch('_Z4axpyPfi', grid=int(sys.argv[1]))\\nfakegpu.synchronize()"
    program = (
        f'import subprocess, sys\nfor grid in "12": subprocess.run([sys.executable, "-c", "{child}", grid], check=True)'
    )
    done = runs("--metrics", EXECUTED, program=program)
    assert done.returncode == 0, done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        found = trace.instruction_metrics[trace.instruction_metrics["offset"] == 0]
        values = {trace.processes[row["process"]].pid: row["value"] for row in found}
        grids = {trace.processes[r["process"]].pid: trace.launches[r["launch"]]["grid_x"] for r in trace.kernels}
    assert values == {pid: 4 * grid for pid, grid in grids.items()}


def test_a_kernel_of_one_process_alone_is_counted_there(runs: Runs) -> None:
    child = "import fakegpu, sys\\nfor name in sys.argv[1:]: fakegpu.launch(name, grid=1)\\nfakegpu.synchronize()"
    program = (
        f'import subprocess, sys\nfor names in (["_Z1av"], ["_Z1bv"], ["_Z1av", "_Z1cv"]):\n'
        f'    subprocess.run([sys.executable, "-c", "{child}", *names], check=True)'
    )
    done = runs("--metrics", EXECUTED, program=program)
    assert done.returncode == 0, done.stderr
    assert "did not run" not in done.stderr
    names: dict[str, set[int]] = {}
    with cutrace.load(runs.folder / "run.bin") as trace:
        for row in trace.instruction_metrics:
            names.setdefault(trace.strings[row["function"]], set()).add(trace.processes[row["process"]].pid)
        first, second, third = sorted({trace.processes[row["process"]].pid for row in trace.kernels})
    assert names == {"_Z1av": {first, third}, "_Z1bv": {second}, "_Z1cv": {third}}


@pytest.mark.parametrize("contexts", ["1121", "1112", "12"])
def test_launches_in_another_context_do_not_count(runs: Runs, contexts: str) -> None:
    program = (
        f"import fakegpu\nfakegpu.init()\nfor context in '{contexts}':\n"
        "    fakegpu.use_context(int(context))\n    fakegpu.launch('_Z1av', grid=1)\nfakegpu.synchronize()\n"
    )
    done = runs("--metrics", EXECUTED, program=program)
    assert done.returncode == 0, done.stderr
    first = contexts.count("1")
    assert f"{first} launch" in done.stderr
    assert done.stderr.count("instructions are counted in one CUDA context of a process") == 1
    assert "1 launch of the first run did not run in the second, or could not be counted" in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        values = {(int(row["launches"]), int(row["value"])) for row in trace.instruction_metrics}
    assert values == {(first, 4 * first), (first, 40 * first)}


def test_what_was_counted_before_a_program_changed_its_mind_is_kept(runs: Runs) -> None:
    program = (
        "import os, fakegpu\n"
        "for _ in range(1 if 'CUTRACE_PROFILE' in os.environ else 3): fakegpu.launch('_Z1av', grid=1)\n"
        "fakegpu.synchronize()\n"
    )
    done = runs("--metrics", EXECUTED, program=program)
    assert done.returncode == 0, done.stderr
    assert "2 launches of the first run did not run in the second" in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert set(trace.instruction_metrics["launches"].tolist()) == {1}


def test_a_program_that_is_killed_before_its_counts_are_written_is_said(runs: Runs) -> None:
    program = (
        "import os, fakegpu\n"
        "for step in range(3):\n"
        "    if step == 2 and 'CUTRACE_PROFILE' in os.environ: os._exit(0)\n"
        "    fakegpu.launch('_Z1av', grid=1)\n"
        "fakegpu.synchronize()\n"
    )
    done = runs(program=program)
    assert done.returncode == 2
    assert "3 launches of the first run did not run in the second, or could not be counted" in done.stderr


@pytest.mark.parametrize(
    ("failures", "sentence"),
    [
        ("SassMetricsSetConfig:7", "another tool may be profiling this process"),
        ("SassMetricsEnable:35", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("SassMetricsGetDataProperties:27", "cuptiSassMetricsGetDataProperties failed"),
        ("SassMetricsFlushData:999", "cuptiSassMetricsFlushData failed"),
        ("SassMetricsGetMetrics:999", "cannot list the instruction metrics"),
    ],
)
def test_what_cupti_refuses_is_said_once(runs: Runs, failures: str, sentence: str) -> None:
    done = runs(FAKE_CUPTI_FAILURES=failures)
    assert done.returncode == 2
    assert done.stderr.count(sentence) == 1
    assert "Traceback" not in done.stderr


def test_lines_stay_unknown_where_cupti_cannot_trace_them(runs: Runs) -> None:
    done = runs("--kernel", "axpy", FAKE_CUPTI_FAILURES="GetSassToSourceCorrelation:999")
    assert done.returncode == 0, done.stderr
    assert {row["line"] for row in runs.rows("instruction_metrics")} == {0}


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ("smsp__sass_inst_exicuted", "did you mean smsp__sass_inst_executed"),
        ("speed-of-light", "GH100 has no metric speed-of-light to count by line"),
        (",", "names no metrics"),
    ],
)
def test_a_metric_that_cannot_be_counted_by_line_is_an_error(runs: Runs, metrics: str, sentence: str) -> None:
    done = runs("--metrics", metrics)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (runs.folder / "run.bin").exists()
