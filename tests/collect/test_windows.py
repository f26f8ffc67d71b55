"""Recordings of windows that a program opens and closes, on the fake GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cutrace
import pftrace
from cutrace.collect.join import Destination
from cutrace.collect.options import Options
from cutrace.errors import CutraceError
from cutrace.runbin import Reader
from support import cutrace as run_cutrace
from support import refused
from support.fakedriver import FakeDriver

PRELUDE = """
import os, subprocess, sys, threading
import cutrace, fakegpu
def window(*kernels, calls="cuda"):
    fakegpu.profiler(calls + "ProfilerStart")
    for name in kernels: fakegpu.launch(name)
    fakegpu.profiler(calls + "ProfilerStop")
"""
#: Two windows, with work before, between and after them, and exit status 3.
TWO = """
fakegpu.launch("before")
window("a", "b")
fakegpu.launch("between", duration_ns=20_000_000)
fakegpu.synchronize()
window("c")
fakegpu.launch("behind")
sys.exit(3)
"""
Record = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def record(fake_driver: FakeDriver, tmp_path: Path) -> Record:
    """Record a program into run.bin in the folder of the test."""

    def start(program: str, *options: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = ("record", *options, "--", sys.executable, "-c", PRELUDE + program)
        done = run_cutrace(*command, cwd=tmp_path, env=fake_driver.environment())
        assert done.returncode == status, done.stderr
        return done

    return start


def alone(driver: FakeDriver, folder: Path, program: str) -> str:
    """Run a program that records itself. Returns its stderr."""
    command = [sys.executable, "-c", PRELUDE + program]
    done = subprocess.run(
        command, cwd=folder, env=driver.environment(), capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def kernels(trace: cutrace.Trace) -> list[str]:
    """The names of the kernels in the order of their starts."""
    rows = trace.kernels[trace.kernels["start"].argsort(kind="stable")]
    names = trace.launches["name"][rows["launch"]].tolist()
    return [trace.strings[name] for name in names]


def of_windows(trace: cutrace.Trace, process: int = 0) -> list[list[str]]:
    """The names of the kernels of each window."""
    found = []
    for window in trace.processes[process].windows:
        rows = trace.kernels[trace.kernels["start"].argsort(kind="stable")]
        rows = rows[rows["process"] == process]
        rows = rows[(rows["start"] >= window.start) & (rows["end"] <= window.read)]
        found.append([trace.strings[name] for name in trace.launches["name"][rows["launch"]].tolist()])
    return found


def test_all_windows_of_a_program_are_one_capture(record: Record, tmp_path: Path) -> None:
    done = record(TWO, "--capture-range", "profiler", status=3)
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert kernels(trace) == ["a", "b", "c"]
        assert of_windows(trace) == [["a", "b"], ["c"]]
        (process,) = trace.processes
        assert process.complete
        assert process.capture_range == "profiler"
        first, second = process.windows
        assert first.start <= first.end <= first.read < second.start <= second.end <= second.read
        assert trace.unrecorded() == [(first.read, second.start)]
        assert trace.quality.lossless
        (note,) = trace.quality.notes
        assert note.startswith("only the capture range 'profiler' was recorded (2 windows, ")
        assert note in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.bin"]


def test_what_reads_a_capture_says_that_time_is_not_in_it(record: Record, tmp_path: Path) -> None:
    record(TWO, "--capture-range", "profiler", status=3)
    path = tmp_path / "run.bin"
    sentence = "only the capture range 'profiler' was recorded"
    info = run_cutrace("info", path)
    assert sentence in info.stdout
    assert "Nothing is known to be missing" not in info.stdout
    assert sentence in run_cutrace("stats", path).stderr
    assert sentence in run_cutrace("convert", path, "-o", tmp_path / "run.pftrace").stderr
    found = json.loads(run_cutrace("info", "--format", "json", path).stdout)
    process = found["processes"][0]
    assert process["capture_range"] == "profiler"
    assert len(process["windows"]) == 2
    assert sentence in found["notes"][0]


def test_time_between_windows_is_not_idle_time(record: Record, tmp_path: Path) -> None:
    record(TWO, "--capture-range", "profiler", status=3)
    path = tmp_path / "run.bin"
    with cutrace.load(path) as trace:
        span = int(trace.kernels["end"].max() - trace.kernels["start"].min())
        (gap,) = trace.unrecorded()
        unrecorded = gap[1] - gap[0]
    assert unrecorded >= 20_000_000
    reports = json.loads(
        run_cutrace("stats", path, "--report", "gpu_sum", "--report", "idle_sum", "--format", "json").stdout
    )["reports"]
    of_gpu, of_stream = (report["rows"][0] for report in reports)
    assert of_gpu["span_ns"] == span - unrecorded
    assert of_gpu["idle_ns"] == span - unrecorded - 3_000
    assert of_stream["idle_ns"] == of_stream["host_ns"] == span - unrecorded - 3_000
    summary = cutrace.info(path)
    assert summary.gpus[0].utilization == pytest.approx(3_000 / (summary.span - unrecorded))


def test_a_timeline_marks_what_was_not_recorded(record: Record, tmp_path: Path) -> None:
    record(TWO, "--capture-range", "profiler", status=3)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "run.pftrace")
    decoded = pftrace.decode(tmp_path / "run.pftrace")
    with cutrace.load(tmp_path / "run.bin") as trace:
        (gap,) = trace.unrecorded()
    slices = [s for s in decoded.slices if s.name == "not recorded"]
    assert [(s.start, s.end) for s in slices] == [gap]
    assert slices[0].track.name == "cutrace"


def test_derived_captures_keep_the_windows(record: Record, tmp_path: Path) -> None:
    record(TWO, "--capture-range", "profiler", status=3)
    with cutrace.load(tmp_path / "run.bin") as trace:
        windows = trace.processes[0].windows
    cutrace.redact(tmp_path / "run.bin", tmp_path / "redacted.bin")
    cutrace.slice(tmp_path / "run.bin", tmp_path / "part.bin", cutrace.Conditions(kernel=["a"]))
    cutrace.merge([tmp_path / "run.bin"], tmp_path / "merged.bin")
    for name in ("redacted", "part", "merged"):
        with cutrace.load(tmp_path / f"{name}.bin") as trace:
            assert trace.processes[0].windows == windows, name
            assert trace.processes[0].capture_range == "profiler"


def test_one_window_or_a_number_of_them(record: Record, tmp_path: Path) -> None:
    for end, expected in {"stop": ["a", "b"], "repeat:1": ["a", "b"], "repeat:2": ["a", "b", "c"]}.items():
        record(TWO, "--capture-range", "profiler", "--capture-range-end", end, status=3)
        with cutrace.load(tmp_path / "run.bin") as trace:
            assert kernels(trace) == expected, end
            assert trace.quality.lossless


def test_many_windows_are_in_order(record: Record, tmp_path: Path) -> None:
    record("for i in range(12): window(f'k{i}', calls='cu')", "--capture-range", "profiler")
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert of_windows(trace) == [[f"k{i}"] for i in range(12)]
        assert trace.processes[0].complete
    with Reader(tmp_path / "run.bin") as reader:
        starts = [window[0] for window in reader.processes[0]["windows"]]
        assert starts == sorted(starts)


def test_ranges_of_a_name_are_windows(record: Record, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    record(
        """
import nvtx
fakegpu.launch("before")
for i in range(2):
    with nvtx.annotate("step"): fakegpu.launch(f"k{i}")
    with nvtx.annotate("save"): fakegpu.launch("saves")
""",
        "--capture-range", "nvtx:st*",
    )  # fmt: skip
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert of_windows(trace) == [["k0"], ["k1"]]
        assert trace.processes[0].capture_range == "nvtx:st*"
        assert trace.strings.take(trace.nvtx_ranges["name"]).tolist() == ["step", "step"]


def test_a_range_that_opens_before_cuda_is_used_has_its_work(record: Record, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    record(
        """
import nvtx
with nvtx.annotate("step"): pass
with nvtx.annotate("step"): fakegpu.launch("k0")
fakegpu.launch("between")
with nvtx.annotate("step"): fakegpu.launch("k1")
""",
        "--capture-range", "nvtx:step",
    )  # fmt: skip
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert of_windows(trace) == [[], ["k0"], ["k1"]]
        assert len(trace.api_calls) == 2
        assert {"kernel", "memcpy", "api", "nvtx"} <= set(trace.processes[0].info["kinds"])
        assert trace.quality.lossless


def test_an_open_window_ends_with_the_program(record: Record, tmp_path: Path) -> None:
    record("fakegpu.profiler('cudaProfilerStart'); fakegpu.launch('a')", "--capture-range", "profiler")
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert of_windows(trace) == [["a"]]
        assert trace.quality.lossless


def test_a_killed_process_leaves_what_it_had(record: Record, tmp_path: Path) -> None:
    program = """
window("a")
fakegpu.profiler("cudaProfilerStart")
fakegpu.launch("b")
fakegpu.synchronize()
import glob, time
def written():
    (path,) = (path for path in glob.glob(".run.bin.*/*.bin") if "-w" not in path)
    with cutrace.load(path) as trace: return trace.count("kernels")
while not written(): time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    record(program, "--capture-range", "profiler", status=137)
    with cutrace.load(tmp_path / "run.bin") as trace:
        first, second = trace.processes[0].windows
        assert first.end
        assert (second.end, second.read) == (0, 0)
        assert not trace.processes[0].complete
        assert trace.unrecorded() == [(first.read, second.start)]
        assert [loss.reason for loss in trace.named_losses] == ["not_closed"]


def test_processes_have_windows_of_their_own(record: Record, tmp_path: Path) -> None:
    child = repr(PRELUDE + "window('child')")
    record(f"window('a')\nsubprocess.run([sys.executable, '-c', {child}], check=True)\n", "--capture-range", "profiler")
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert sorted(of_windows(trace, process) for process in range(2)) == [[["a"]], [["child"]]]
        (note,) = trace.notes
        assert "(2 windows of 2 processes, " in note
        assert len(trace.unrecorded()) == 1
        assert trace.unrecorded(0) == []


def test_threads_of_a_server_record_requests_in_turn(record: Record, tmp_path: Path) -> None:
    """One thread opens windows and another closes them, while a third one works outside and inside them."""
    record(
        """
turn, served = threading.Condition(), [0]
def serve(me):
    for request in range(me, 12, 3):
        with turn:
            turn.wait_for(lambda: served[0] == request)
            if request % 2 == 0:
                fakegpu.launch("outside")
                fakegpu.profiler("cudaProfilerStart")
            fakegpu.launch(f"r{request}", stream=10 + me)
            fakegpu.synchronize(stream=10 + me)
            if request % 2:
                fakegpu.profiler("cudaProfilerStop")
                fakegpu.launch("outside")
            served[0] += 1
            turn.notify_all()
def background():
    while served[0] < 12: fakegpu.launch("background", stream=99)
threads = [threading.Thread(target=serve, args=(i,)) for i in range(3)] + [threading.Thread(target=background)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
        "--capture-range", "profiler",
    )  # fmt: skip
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.quality.lossless
        windows = [[name for name in window if name != "background"] for window in of_windows(trace)]
        assert windows == [[f"r{i}", f"r{i + 1}"] for i in range(0, 12, 2)]
        # Each kernel has a call.
        assert set(trace.kernels["correlation"].tolist()) <= set(trace.api_calls["correlation"].tolist())
        assert "outside" not in kernels(trace)


#: A server, and a client that gets the file of each window while the server runs.
SERVED = """
import time
from pathlib import Path
from profiled_server import Server
def work(name):
    fakegpu.launch(name)
    fakegpu.synchronize()
server = Server(
    lambda: fakegpu.profiler("cudaProfilerStart"), lambda: fakegpu.profiler("cudaProfilerStop"), work
)
def serve(windows, names="run-{}.bin"):
    for number in range(1, windows + 1):
        server.profile(f"r{number}")
        deadline = time.monotonic() + 20
        while names and not Path(names.format(number)).exists() and time.monotonic() < deadline: time.sleep(0.01)
        if names: assert Path(names.format(number)).exists(), number
"""


def holds_one_window(path: Path, kernel: str) -> None:
    with cutrace.load(path) as trace:
        assert of_windows(trace) == [[kernel]]
        assert kernels(trace) == [kernel]
        assert trace.quality.lossless
        assert trace.unrecorded() == []
        assert trace.processes[0].complete


def test_each_window_of_a_server_is_a_file_while_it_runs(record: Record, tmp_path: Path) -> None:
    done = record(SERVED + "serve(3)", "--capture-range", "profiler", "-o", "run-%i.bin")
    for number in (1, 2, 3):
        holds_one_window(tmp_path / f"run-{number}.bin", f"r{number}")
        assert f"cutrace: run-{number}.bin: 1 process, 1 kernel, " in done.stderr
    assert len(list(tmp_path.iterdir())) == 3


def test_each_window_of_a_server_is_one_trace(record: Record, tmp_path: Path) -> None:
    done = record(SERVED + "serve(2, 'run-{}.pftrace')", "--capture-range", "profiler", "-o", "run-%i.pftrace")
    assert done.stderr.count(": 1 process, 1 kernel, ") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-1.pftrace", "run-2.pftrace"]


def test_a_window_whose_trace_cannot_be_written_is_tried_again(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(SERVED + "serve(2)", "--capture-range", "profiler", "-o", "run-%i.bin")
    to = Destination.of(tmp_path / "trace-%i.pftrace", Options(capture_range="profiler"))
    (tmp_path / "run-1.bin").rename(to.directory / "1-1-w1.bin")
    with monkeypatch.context() as patched:
        patched.setattr("cutrace.conversion.convert", refuse)
        with pytest.raises(CutraceError, match="The recording is in"):
            to.publish_windows()
    (tmp_path / "run-2.bin").rename(to.directory / "1-1-w2.bin")
    assert len(to.finish().windows) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace-1.pftrace", "trace-2.pftrace"]
    holds_one_window(tmp_path / "trace-1.pftrace", "r1")
    holds_one_window(tmp_path / "trace-2.pftrace", "r2")


def refuse(*_: object, **__: object) -> None:
    raise CutraceError("the disk is full")


def test_a_server_that_records_itself_has_a_file_for_each_window_while_it_runs(
    fake_driver: FakeDriver, tmp_path: Path
) -> None:
    (tmp_path / "run-2.bin").touch()
    program = (
        SERVED
        + """
with cutrace.arm("run-%i.bin", capture_range="profiler"):
    serve(1)
    server.profile("r2")
with cutrace.record("own-%i.bin", capture_range="profiler"):
    serve(2, "own-{}.bin")
with cutrace.record("trace-%i.pftrace", capture_range="profiler"):
    serve(2, "trace-{}.pftrace")
"""
    )
    alone(fake_driver, tmp_path, program)
    for name, kernel in {"run-1": "r1", "run-3": "r2", "own-1": "r1", "own-2": "r2"}.items():
        holds_one_window(tmp_path / f"{name}.bin", kernel)
    holds_one_window(tmp_path / "trace-2.pftrace", "r2")
    assert len(list(tmp_path.iterdir())) == 7


def test_a_killed_server_leaves_a_file_for_each_window(record: Record, tmp_path: Path) -> None:
    program = (
        SERVED
        + """
serve(1)
server.post("/start_profile")
server.post("/generate/r2")
def written():
    (path,) = (path for path in Path().glob(".run-%i.bin.*/*.bin") if "-w" not in path.name)
    with cutrace.load(path) as trace: return trace.count("kernels")
while not written(): time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    )
    record(program, "--capture-range", "profiler", "-o", "run-%i.bin", status=137)
    holds_one_window(tmp_path / "run-1.bin", "r1")
    with cutrace.load(tmp_path / "run-2.bin") as trace:
        assert kernels(trace) == ["r2"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_server_that_is_killed_between_windows_leaves_their_files_alone(record: Record, tmp_path: Path) -> None:
    program = SERVED + "serve(1, 'run-{}.json'); time.sleep(0.3); os.kill(os.getpid(), 9)"
    done = record(program, "--capture-range", "profiler", "-o", "run-%i.json", status=137)
    assert "never opened" not in done.stderr
    holds_one_window(tmp_path / "run-1.bin", "r1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-1.bin", "run-1.json"]


def test_a_program_records_its_own_windows(fake_driver: FakeDriver, tmp_path: Path) -> None:
    alone(
        fake_driver,
        tmp_path,
        """
with cutrace.record("run.bin", capture_range="profiler"):
    fakegpu.launch("outside")
    window("a")
    window("b")
    fakegpu.launch("outside")
with cutrace.arm("armed.bin", capture_range="profiler", capture_range_end="repeat:1"):
    window("c")
    window("d")
""",
    )
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert of_windows(trace) == [["a"], ["b"]]
        assert len(trace.processes) == 1
    with cutrace.load(tmp_path / "armed.bin") as trace:
        assert of_windows(trace) == [["c"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["armed.bin", "run.bin"]


@pytest.mark.parametrize(
    ("capture_range", "reason"),
    [
        ("profiler", "the capture range 'profiler' never opened, so this process has no capture (cudaProfilerStart()"),
        ("nvtx:step", "the capture range 'nvtx:step' never opened, so this process has no capture (names of NVTX"),
    ],
)
def test_a_range_that_never_opens_is_said(record: Record, tmp_path: Path, capture_range: str, reason: str) -> None:
    done = record("fakegpu.launch('a'); sys.exit(5)", "--capture-range", capture_range, status=5)
    collector, recorder = done.stderr.splitlines()
    assert reason in collector
    assert f"nothing was recorded: the capture range {capture_range!r} never opened" in recorder
    assert list(tmp_path.iterdir()) == []


def test_a_range_that_never_opens_in_a_block_warns(fake_driver: FakeDriver, tmp_path: Path) -> None:
    said = alone(fake_driver, tmp_path, "with cutrace.record('a.bin', capture_range='profiler'): fakegpu.launch('a')")
    assert (
        f"RuntimeWarning: nothing was recorded to {tmp_path}/a.bin: the capture range 'profiler' never opened" in said
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--capture-range", "cudaProfilerApi"), "the capture range 'cudaProfilerApi' is unknown: write profiler"),
        (("--capture-range", ""), "the capture range '' is unknown: write profiler"),
        (("--capture-range", "nvtx"), "or nvtx:NAME"),
        (("--capture-range", "nvtx:"), "the capture range 'nvtx:' names no range"),
        (("--capture-range", "nvtx: "), "names no range"),
        (("--capture-range", "nvtx:a;b"), "write ? in its place"),
        (("--capture-range", "nvtx:a", "--no-nvtx"), "needs NVTX: record it too"),
        (("--capture-range", "nvtx:a", "--kinds", "kernel"), "needs NVTX: record it too"),
        (("--capture-range", "profiler", "--capture-range-end", "3"), "write stop, repeat or repeat:N"),
        (("--capture-range", "profiler", "--capture-range-end", "repeat:0"), "write stop, repeat or repeat:N"),
        (("--capture-range-end", "stop"), "needs a capture range"),
        (("--capture-range", "profiler", "--last", "30s"), "cannot keep the newest rows"),
        (("--capture-range", "profiler", "--sample", "pc"), "cannot sample"),
    ],
)
def test_bad_values_are_refused(options: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    refused(run_cutrace("record", *options, "--", "touch", "ran", cwd=tmp_path), sentence)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"capture_range": "profiler"}, ["capture_range=profiler"]),
        ({"capture_range": "none"}, ["capture_range=none"]),
        ({"capture_range": "nvtx: a b "}, ["capture_range=nvtx:a b"]),
        (
            {"capture_range": "profiler", "capture_range_end": "repeat:5"},
            ["capture_range=profiler", "capture_range_end=repeat:5"],
        ),
    ],
)
def test_ranges_are_written_as_the_collector_reads_them(options: dict[str, str], lines: list[str]) -> None:
    assert Options.of(**options).text(output="/f").splitlines() == ["output=/f", *lines]  # type: ignore[arg-type]
    with pytest.raises(CutraceError, match="write stop"):
        Options.of(**{**options, "capture_range_end": "always"})  # type: ignore[arg-type]
