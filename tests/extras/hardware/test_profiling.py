"""Profiling on the fake GPU: the values of each launch, and errors without readable values."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace.errors import CutraceError
from cutrace.extras.hardware.work import choose_launches
from profiled import Runs
from support.fakedriver import FakeDriver

TWO_PROCESSES = """
import subprocess, sys
child = "import fakegpu, nvtx, sys\\n" \\
    "with nvtx.annotate(sys.argv[1]):\\n fakegpu.launch('axpy', grid=int(sys.argv[2]))\\n fakegpu.synchronize()"
for name, grid in (("other", "8"), ("step", "9")):
    subprocess.run([sys.executable, "-c", child, name, grid], check=True)
"""


@pytest.fixture
def runs(fake_driver: FakeDriver, tmp_path: Path) -> Runs:
    return Runs(fake_driver, tmp_path, "--timeline")


def test_a_launch_gets_the_values_of_its_own_process(runs: Runs) -> None:
    done = runs("--nvtx", "step", program=TWO_PROCESSES)
    assert done.returncode == 0, done.stderr
    assert "another grid" not in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        (pid,) = {trace.processes[row["process"]].pid for row in trace.kernel_metrics}
        (mine,) = (row for row in trace.kernels if trace.processes[row["process"]].pid == pid)
        assert trace.launches[mine["launch"]]["grid_x"] == 9


@pytest.mark.parametrize("graphs", [0, 2])
def test_an_empty_choice_names_the_kernels_of_graphs(tmp_path: Path, graphs: int) -> None:
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("axpy"), 1_000, 2_000, correlation=1)
        for node in range(graphs):
            c.kernel(c.launch("node", graph=1, graph_node=node), 3_000 + node, 4_000, correlation=2)
    with cutrace.load(tmp_path / "a.bin") as trace, pytest.raises(CutraceError, match="nothing is left") as error:
        choose_launches(trace, None, None, skip=1, count=None)
    others = ", and 2 inside CUDA graphs, which cannot be replayed one by one" if graphs else ""
    assert f"1 launch met the filter{others}. Change" in str(error.value)


THREE = """
import fakegpu, os
with open("runs", "a") as file:
    file.write("run ")
for name, grid in (("axpy", 1), ("other", 2), ("axpy", 3)):
    fakegpu.launch(name, grid=grid)
fakegpu.synchronize()
"""


def record(runs: Runs, *options: str, program: str = THREE, output: str = "recorded.bin") -> None:
    command = [sys.executable, "-m", "cutrace", "record", *options, "-o", output, "--", sys.executable, "-c", program]
    subprocess.run(command, cwd=runs.folder, env=runs.environment, check=True, capture_output=True, timeout=60)


def test_a_recording_takes_the_place_of_the_first_run(runs: Runs) -> None:
    record(runs)
    done = runs("--recorded", "recorded.bin", "--kernel", "axpy", "--skip", "1", program=THREE)
    assert done.returncode == 0, done.stderr
    assert (runs.folder / "runs").read_text() == "run " * 2
    assert "first run took" not in done.stderr
    with cutrace.load(runs.folder / "recorded.bin") as recorded, cutrace.load(runs.folder / "run.bin") as profiled:
        assert profiled.kernels.tolist() == recorded.kernels.tolist()
        assert set(profiled.kernel_metrics["correlation"].tolist()) == {recorded.kernels["correlation"][2]}
        assert profiled.launches[profiled.kernels["launch"][2]]["grid_x"] == 3


@pytest.mark.parametrize("how", ["sliced", "newest", "windows", "inside"])
def test_a_recording_without_the_start_is_refused(runs: Runs, how: str) -> None:
    program = THREE
    if how == "sliced":
        record(runs, output="whole.bin")
        axpy = cutrace.Conditions(kernel="axpy")
        cutrace.slice(runs.folder / "whole.bin", runs.folder / "recorded.bin", conditions=axpy)
    elif how == "newest":
        record(runs, "--last", "10s")
    elif how == "windows":
        program = "import nvtx\nwith nvtx.annotate('step'):\n " + THREE.strip().replace("\n", "\n ")
        record(runs, "--capture-range", "nvtx:step", program=program)
    else:
        inside = f"import cutrace\nwith cutrace.record('recorded.bin'):\n exec({THREE!r})"
        subprocess.run([sys.executable, "-c", inside], cwd=runs.folder, env=runs.environment, check=True, timeout=60)
    (runs.folder / "runs").unlink()
    done = runs("--recorded", "recorded.bin", program=program)
    assert done.returncode == 2
    assert "recorded.bin does not start with the program" in done.stderr
    assert "record the whole program with `cutrace record`" in done.stderr
    assert not (runs.folder / "runs").exists()
    assert not (runs.folder / "run.bin").exists()


def test_a_capture_with_metrics_is_no_first_run(runs: Runs) -> None:
    assert runs("--kernel", "other", program=THREE).returncode == 0
    done = runs("--recorded", "run.bin", "-o", "again.bin", program=THREE)
    assert done.returncode == 2
    assert "run.bin already has metrics: give the capture that `cutrace record` wrote" in done.stderr
    assert not (runs.folder / "again.bin").exists()


def test_the_recording_is_not_replaced(runs: Runs) -> None:
    record(runs)
    before = (runs.folder / "recorded.bin").read_bytes()
    done = runs("--recorded", "recorded.bin", "-o", "recorded.bin", program=THREE)
    assert done.returncode == 2
    assert (runs.folder / "recorded.bin").read_bytes() == before


def test_a_recording_of_another_program_gives_no_values(runs: Runs) -> None:
    record(runs)
    done = runs(
        "--recorded", "recorded.bin", "--kernel", "axpy", program="import fakegpu\nfakegpu.launch('axpy', grid=9)"
    )
    assert done.returncode == 2
    assert "no metrics for 1 launch with another grid or block in the second run" in done.stderr
    assert "1 launch of the first run did not run in the second" in done.stderr


HOLDS_CUPTI = "import os, fakegpu\nif 'CUTRACE_PROFILE' in os.environ: fakegpu.hold_cupti()\nfakegpu.init()\n"


def test_a_process_that_only_fails_takes_no_place_of_another(runs: Runs) -> None:
    done = runs(program=HOLDS_CUPTI + TWO_PROCESSES)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("CUPTI is held by another tool") == 1
    assert "another grid" not in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        counted = {trace.processes[row["process"]].pid for row in trace.kernel_metrics}
        assert counted == {trace.processes[row["process"]].pid for row in trace.kernels}
        assert len(counted) == 2


def test_processes_that_cannot_be_told_apart_get_no_values(runs: Runs) -> None:
    fails = "import os; os.environ.update({'FAKE_CUPTI_FAILURES': 'RangeProfilerStart:35'} if '8' in sys.argv else {})"
    program = HOLDS_CUPTI + TWO_PROCESSES.replace(
        "import fakegpu, nvtx, sys", f"import sys; {fails}; import fakegpu, nvtx"
    )
    done = runs(program=program)
    assert done.returncode == 2
    assert "some processes of the second run failed, so the others cannot be told apart" in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert (trace.kernels.size, trace.kernel_metrics.size) == (2, 0)


@pytest.mark.skipif(shutil.which("localedef") is None, reason="needs localedef")
def test_values_are_read_whatever_the_locale_of_the_program(runs: Runs) -> None:
    language = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(runs.folder / "de_DE.UTF-8")]
    if subprocess.run(language, capture_output=True).returncode:
        pytest.skip("localedef knows no de_DE")
    program = "import fakegpu, locale\nlocale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')\nfakegpu.launch('axpy')"
    done = runs("--metrics", "occupancy", program=program, LOCPATH=str(runs.folder))
    assert done.returncode == 0, done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert sorted(trace.kernel_metrics["value"].tolist()) == [0.5, 50]


@pytest.mark.parametrize(
    ("failures", "advice"),
    [
        ("ProfilerGetCounterAvailability:35", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("RangeProfilerStart:35", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("RangeProfilerEnable:26", "another cutrace): wait for its end or end it, then run this again"),
        ("RangeProfilerSetConfig:7", "another tool may be profiling this process"),
    ],
)
def test_counters_that_cannot_be_read_leave_the_recording(runs: Runs, failures: str, advice: str) -> None:
    program = "import fakegpu\nfor _ in range(3): fakegpu.launch('axpy')\nfakegpu.synchronize()"
    done = runs(program=program, FAKE_CUPTI_FAILURES=failures)
    assert done.returncode == 2
    assert done.stderr.count(advice) == 1, "once for all launches"
    assert "Traceback" not in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert (trace.kernels.size, trace.kernel_metrics.size) == (3, 0)


@pytest.mark.parametrize("lines", [(), ("--lines",)])
def test_launches_are_not_numbered_where_some_may_be_missing(runs: Runs, lines: tuple[str, ...]) -> None:
    program = (
        "import fakegpu\n"
        "fakegpu.launch('axpy')\nfakegpu.launch('axpy', grid=3)\n"
        "fakegpu.drop(1)\nfakegpu.synchronize()\n"
    )
    done = runs(*lines, program=program)
    assert done.returncode == 2
    assert "nothing was profiled: launches may be missing in the first run (1 record that CUPTI dropped" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (runs.folder / "run.bin").exists()


def test_losses_of_other_records_keep_no_launch_from_being_counted(runs: Runs) -> None:
    pytest.importorskip("nvtx")
    program = "import fakegpu, nvtx\nnvtx.push_range('open')\nfakegpu.launch('axpy')\nfakegpu.synchronize()\n"
    done = runs(program=program)
    assert done.returncode == 0, done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert trace.quality.losses
        assert trace.kernel_metrics.size


def test_launches_without_known_times_are_numbered(runs: Runs) -> None:
    program = (
        "import fakegpu\n"
        "fakegpu.launch('axpy', grid=3, end=False)\nfakegpu.launch('axpy', grid=5)\nfakegpu.synchronize()\n"
    )
    done = runs(program=program)
    assert done.returncode == 0, done.stderr
    assert "another grid" not in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        (counted,) = set(trace.kernel_metrics["correlation"].tolist())
        (row,) = trace.kernels[trace.kernels["correlation"] == counted]
        assert trace.launches[row["launch"]]["grid_x"] == 5


#: A replay of this kernel waits for another kernel, which another thread launches meanwhile.
INTERLOCKED = """
import fakegpu, threading
fakegpu.init()
launched = 0

def launch():
    for _ in range(2):
        fakegpu.wait_in_launch({other!r})
        fakegpu.launch('waits')

launching = threading.Thread(target=launch, daemon=True)
launching.start()
while launching.is_alive():
    {meanwhile}
fakegpu.launch('axpy')
fakegpu.synchronize()
print('computed', fakegpu.memory() - launched)
"""


def test_a_kernel_that_waits_for_one_of_another_thread_ends_in_a_sentence(runs: Runs) -> None:
    program = INTERLOCKED.format(other="other", meanwhile="fakegpu.launch('other'); launched += 1")
    done = runs("--kernel", "/waits|axpy/", program=program, CUTRACE_PROFILE_PATIENCE_MS="100")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("computed 3") == 2, "the other kernels keep what they computed"
    sentence = (
        "launch 0 of waits and later ones were not counted: another thread had to wait for 0.1 s to launch a kernel"
    )
    assert done.stderr.count(sentence) == 1
    assert "2 launches of the first run did not run in the second, or could not be counted" in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        counted = set(trace.kernel_metrics["correlation"].tolist())
        names = trace.strings.take(trace.launches["name"][trace.kernels["launch"]])
        axpy = trace.kernels["correlation"][names == "axpy"]
        assert counted == set(axpy.tolist())


@pytest.mark.parametrize("meanwhile", ["fakegpu.launch('other')", "launching.join()"])
def test_a_kernel_that_waits_for_ever_ends_the_program_with_a_sentence(runs: Runs, meanwhile: str) -> None:
    program = "import fakegpu\nfakegpu.launch('first')\n" + INTERLOCKED.format(other="never", meanwhile=meanwhile)
    done = runs("--kernel", "/first|waits/", program=program, CUTRACE_PROFILE_PATIENCE_MS="100")
    assert done.returncode == 1
    sentence = (
        "the program was ended, because launch 0 of waits did not end while it was counted. Kernels that wait for"
    )
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    with cutrace.load(runs.folder / "run.bin") as trace:
        assert trace.kernel_metrics.size, "what was counted before is kept"


COMPUTES = """
import fakegpu
for call in ('cudaLaunchKernel', 'cuLaunchKernelEx', 'cuLaunchCooperativeKernel'):
    fakegpu.launch('axpy', call=call)
fakegpu.synchronize()
print('computed', fakegpu.memory())
"""
READ = ("--metrics", "dram__bytes_read.sum,speed-of-light")


def states(runs: Runs) -> set[tuple[int, float]]:
    rows = [row for row in runs.rows() if row["name"] == "dram__bytes_read.sum"]
    assert len(rows) == 3
    return {(row["caches"], row["value"]) for row in rows}


@pytest.mark.parametrize("version", ["130000", "130500"])
def test_caches_are_flushed_before_each_pass(runs: Runs, version: str) -> None:
    done = runs(*READ, program=COMPUTES, FAKE_CUPTI_VERSION=version)
    assert done.returncode == 0, done.stderr
    assert "computed 3" in done.stdout
    assert states(runs) == {(1, 4096.0)}


def test_caches_are_kept_on_request(runs: Runs) -> None:
    done = runs(*READ, "--caches", "keep", program=COMPUTES)
    assert "computed 3" in done.stdout
    assert states(runs) == {(2, 0.0)}


def test_caches_of_a_single_pass_are_flushed_without_saving_memory(runs: Runs) -> None:
    runs("--metrics", "dram__bytes_read.sum", program=COMPUTES, FAKE_CHECKPOINT="save")
    assert states(runs) == {(1, 4096.0)}


def test_without_the_library_for_checkpoints_caches_are_kept_and_that_is_said(runs: Runs, tmp_path: Path) -> None:
    folder = Path(runs.environment["LD_LIBRARY_PATH"].split(":")[0]).parents[2]
    without = tmp_path / "without"
    shutil.copytree(folder, without)
    (without / "nvidia" / "cu13" / "lib" / "libcheckpoint.so").unlink()
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH"):
        runs.environment[name] = runs.environment[name].replace(str(folder), str(without))
    done = runs(*READ, program=COMPUTES)
    assert done.stderr.count("the caches were kept: libcheckpoint.so is not in the folder of") == 1
    assert states(runs) == {(2, 0.0)}


@pytest.mark.parametrize("call", ["cuMemAllocAsync", "cudaMallocAsync", "cuMemAllocManaged"])
def test_caches_are_kept_where_memory_may_not_be_restored(runs: Runs, call: str) -> None:
    program = COMPUTES.replace("print", f"fakegpu.malloc(4096, call={call!r})\nfakegpu.launch('axpy')\nprint", 1)
    done = runs(*READ, program=program)
    assert "computed 4" in done.stdout
    assert done.stderr.count("the caches were kept: the program uses memory of pools") == 1
    rows = [row for row in runs.rows() if row["name"] == "dram__bytes_read.sum"]
    assert [(row["caches"], row["value"]) for row in rows] == [(1, 4096.0)] * 3 + [(2, 0.0)]


def test_memory_that_cannot_be_saved_is_not_touched(runs: Runs) -> None:
    done = runs(*READ, program=COMPUTES, FAKE_CHECKPOINT="save")
    assert "the memory could not be saved: cuptiCheckpointSave failed with CUPTI_ERROR_" in done.stderr
    assert "computed 3" in done.stdout
    assert "0 launches profiled" in done.stderr


def test_memory_that_cannot_be_restored_is_told(runs: Runs) -> None:
    done = runs(*READ, program=COMPUTES, FAKE_CHECKPOINT="restore")
    assert "What the program computes from here on may be wrong" in done.stderr


def test_nothing_is_replayed_while_a_graph_is_captured(runs: Runs) -> None:
    program = (
        "import fakegpu\nfakegpu.launch('first')\nfakegpu.begin_capture(9)\nfakegpu.launch('axpy', stream=7)\n"
        "fakegpu.launch('axpy', stream=9)\nfakegpu.end_capture(9)\nfakegpu.synchronize()\n"
    )
    done = runs(*READ, "--kernel", "axpy", program=program)
    assert "a kernel is not replayed while a CUDA graph is captured" in done.stderr


@pytest.mark.parametrize(("options", "expected"), [((), 2), (("--caches", "flush"), 1)])
def test_caches_of_ranges_are_kept_unless_asked_otherwise(runs: Runs, options: tuple[str, ...], expected: int) -> None:
    program = "import fakegpu, nvtx\nfakegpu.launch('first')\nwith nvtx.annotate('step'): fakegpu.launch('axpy')\n"
    done = runs("--ranges", "step", "--metrics", "dram__bytes_read.sum", *options, program=program)
    assert done.returncode == 0, done.stderr
    (row,) = runs.rows()
    assert (row["caches"], row["value"]) == (expected, 4096.0 if expected == 1 else 0.0)


def test_lines_have_no_state_of_caches(runs: Runs) -> None:
    done = runs("--lines", "--caches", "flush", program=COMPUTES)
    assert done.returncode == 2
    assert "instructions are counted while the program runs: leave out --caches" in done.stderr
