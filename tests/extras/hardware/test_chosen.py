"""cutrace profile on the fake GPU in one run: launches of kernels that are chosen while the program runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from profiled import Runs
from support.fakedriver import FakeDriver

PROGRAM = """
import sys, fakegpu
with open("runs", "a") as file:
    file.write("run ")
axpy, gemm = "_Z4axpyPfi", "_Z4gemmPfS_"
for step in range(5):
    fakegpu.launch(axpy, grid=8 + step, duration_ns=1000 + step)
    fakegpu.launch(gemm, grid=4, duration_ns=3000)
fakegpu.synchronize()
print("done")
"""
INSTRUCTIONS = "sm__inst_executed.sum"


@pytest.fixture
def runs(fake_driver: FakeDriver, tmp_path: Path) -> Runs:
    return Runs(fake_driver, tmp_path, program=PROGRAM)


def counted(runs: Runs) -> list[tuple[str, int, int, float]]:
    """The names, numbers of blocks, times and values of the launches in the capture."""
    with cutrace.load(runs.folder / "run.bin") as trace:
        kernels = trace.arrow("kernels").to_pylist()
        metrics = {row["correlation"]: row for row in trace.arrow("kernel_metrics").to_pylist()}
        assert len(kernels) == len(metrics)
        found = []
        for kernel in kernels:
            metric = metrics[kernel["correlation"]]
            assert metric["start"] == kernel["start"]
            found.append((kernel["name"], kernel["grid_x"], metric["duration"], metric["value"]))
        return found


def test_the_command_runs_once_and_only_chosen_launches_are_counted(runs: Runs) -> None:
    done = runs("--metrics", INSTRUCTIONS, "--kernel", "axpy", "--skip", "1", "--count", "2")
    assert done.returncode == 0, done.stderr
    assert (runs.folder / "runs").read_text() == "run "
    assert "2 launches profiled" in done.stderr
    assert counted(runs) == [("axpy(float*, int)", 9, 1001, 1000.0), ("axpy(float*, int)", 10, 1002, 1000.0)]


@pytest.mark.parametrize("pattern", ["gem?", "/(?i)^GEMM/", "_Z4gemm*", "gemm(float**"])
def test_kernels_are_chosen_by_each_of_their_names(runs: Runs, pattern: str) -> None:
    done = runs("--metrics", INSTRUCTIONS, "--kernel", pattern)
    assert done.returncode == 0, done.stderr
    assert [row[:3] for row in counted(runs)] == [("gemm(float*, float*)", 4, 3000)] * 5


def test_without_a_name_all_launches_are_counted(runs: Runs) -> None:
    assert runs("--metrics", INSTRUCTIONS).returncode == 0
    assert [row[1] for row in counted(runs)] == [8, 4, 9, 4, 10, 4, 11, 4, 12, 4]


def test_the_launch_and_its_gpu_are_described_as_in_a_recording(runs: Runs) -> None:
    runs("--metrics", INSTRUCTIONS, "-o", "once.bin")
    runs("--metrics", INSTRUCTIONS, "--timeline", "-o", "twice.bin")
    with cutrace.load(runs.folder / "once.bin") as once, cutrace.load(runs.folder / "twice.bin") as twice:
        launches = [
            [{k: v for k, v in row.items() if k.startswith(("name", "grid", "block", "registers"))} for row in rows]
            for rows in (once.arrow("launches").to_pylist(), twice.arrow("launches").to_pylist())
        ]
        assert launches[0] == launches[1]
        mine, theirs = once.arrow("devices").to_pylist()[0], twice.arrow("devices").to_pylist()[0]
        differing = {name for name in theirs if mine[name] != theirs[name]}
        # The fake CUPTI and the fake driver give different sizes and rates.
        assert differing <= {"l2_cache", "memory_bandwidth"}


def test_the_capture_says_that_it_has_only_counted_launches(runs: Runs) -> None:
    done = runs("--kernel", "axpy", "--count", "1")
    note = "only launches that `cutrace profile` counted are in this capture"
    assert note in done.stderr
    assert "of the time of all kernels" not in done.stdout
    (answer,) = cutrace.why(runs.folder / "run.bin").answers
    assert answer.facts.share is None
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert any(note in sentence for sentence in trace.quality.sentences())
    cutrace.redact(runs.folder / "run.bin", runs.folder / "redacted.bin")
    assert cutrace.why(runs.folder / "redacted.bin").answers[0].facts.share is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--kernel", "axpi"), "the command has no kernel axpi: did you mean axpy?"),
        (("--kernel", "GEMM"), "upper and lower case differ, and there is gemm"),
        (("--skip", "10"), "nothing is left to profile after the first 10 launches"),
        (("--metrics", "no-such-set"), "is neither a set"),
    ],
)
def test_a_choice_that_names_nothing_is_an_error(runs: Runs, options: tuple[str, ...], sentence: str) -> None:
    done = runs(*options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (runs.folder / "run.bin").exists()


def test_a_command_without_kernels_is_an_error(runs: Runs) -> None:
    done = runs(program="print('nothing')")
    assert done.returncode == 2
    assert "nothing was profiled: the command launched no kernel" in done.stderr


def test_the_status_of_the_command_is_kept_with_its_values(runs: Runs) -> None:
    done = runs("--metrics", INSTRUCTIONS, "--count", "1", program=PROGRAM + "sys.exit(3)")
    assert done.returncode == 3
    assert len(counted(runs)) == 1


def test_a_command_that_fails_before_its_first_launch_is_said(runs: Runs) -> None:
    done = runs(program="import sys; sys.exit(3)")
    assert done.returncode == 3
    assert "nothing was profiled: the command ended with 3" in done.stderr


def test_kernels_of_graphs_are_said_to_be_left_out(runs: Runs) -> None:
    program = PROGRAM + "import ctypes\nctypes.CDLL('libcuda.so.1').cuGraphLaunch(None, None)\n"
    done = runs("--metrics", INSTRUCTIONS, "--kernel", "gemm", program=program)
    assert done.returncode == 0, done.stderr
    assert "left out: kernels of CUDA graphs" in done.stderr
    assert len(counted(runs)) == 5
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert any("left out: kernels of CUDA graphs" in sentence for sentence in trace.quality.sentences())
    done = runs("--kernel", "in_the_graph", "-o", "other.bin", program=program)
    assert done.returncode == 2
    assert "left out: kernels of CUDA graphs" in done.stderr
    assert "the command has no kernel in_the_graph" in done.stderr


def test_processes_choose_separately(runs: Runs) -> None:
    program = (
        "import os, subprocess, sys\n"
        "child = \"import fakegpu, sys\\nfor grid in range(1, 4): fakegpu.launch('axpy', grid=grid)\\n\"\n"
        "for rank in '01':\n"
        "    command = [sys.executable, '-c', child + 'fakegpu.synchronize()']\n"
        "    subprocess.run(command, env=os.environ | {'RANK': rank}, check=True)\n"
    )
    done = runs("--metrics", INSTRUCTIONS, "--skip", "1", "--count", "1", program=program)
    assert done.returncode == 0, done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert all("-c" in process.info["command"] for process in trace.processes)
        assert sorted(process.rank for process in trace.processes if process.rank is not None) == [0, 1]
        assert sorted(trace.kernel_metrics["process"].tolist()) == [0, 1]
        assert [row["grid_x"] for row in trace.arrow("kernels").to_pylist()] == [2, 2]


def test_a_launch_that_fails_is_not_counted_and_shifts_no_other(runs: Runs) -> None:
    program = (
        "import fakegpu\n"
        "for grid in (1, 2, 0, 3):\n"
        "    try: fakegpu.launch('_Z1av', grid=max(grid, 1), fails=grid == 0)\n"
        "    except RuntimeError: pass\n"
        "fakegpu.synchronize()\n"
    )
    done = runs("--metrics", INSTRUCTIONS, "--skip", "1", "--count", "2", program=program)
    assert done.returncode == 0, done.stderr
    assert [row[1] for row in counted(runs)] == [2, 3]


def test_threads_that_launch_a_new_kernel_together_ask_once(runs: Runs) -> None:
    program = (
        "import fakegpu, threading\nfakegpu.init()\nbarrier = threading.Barrier(8)\n"
        "def work():\n"
        "    barrier.wait()\n"
        "    for kernel in range(20): fakegpu.launch(f'_Z{len(str(kernel)) + 1}k{kernel}v')\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "fakegpu.synchronize()\n"
    )
    done = runs("--metrics", INSTRUCTIONS, "--kernel", "k3", program=program)
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in counted(runs)] == ["k3()"] * 8


def test_folders_may_have_long_names(runs: Runs) -> None:
    folder = runs.folder / ("long" * 40)
    folder.mkdir()
    done = runs("--metrics", INSTRUCTIONS, "--count", "1", TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    assert len(counted(runs)) == 1
    assert list(folder.iterdir()) == []


def test_counters_that_cannot_be_read_are_said(runs: Runs) -> None:
    done = runs(FAKE_CUPTI_FAILURES="RangeProfilerStart:35")
    assert done.returncode == 2
    assert done.stderr.count("NVreg_RestrictProfilingToAdminUsers=0") == 1
    assert not (runs.folder / "run.bin").exists()
