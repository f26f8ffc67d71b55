"""Processes on standby, on the fake GPU: repeated attachments, and all possible failures.

tests/native/test_standby.cpp tests the protocol under sanitizers.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import cutrace
from cutrace import CutraceError
from cutrace.collect import standby
from faults.conftest import LIMIT, PRELUDE
from support import cutrace as run

#: Executes the lines of Python that the test sends, and answers each of them.
OBEDIENT = (
    PRELUDE
    + """
for line in sys.stdin:
    answer = None
    exec(json.loads(line))
    print(json.dumps(answer), flush=True)
"""
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="standby is for Linux")


class Program:
    """A program on standby that executes lines from the test."""

    def __init__(
        self, environment: dict[str, str], folder: Path, options: Sequence[str], text: str, within: Sequence[str]
    ) -> None:
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", "cutrace", "arm", *options, "--", sys.executable, "-c", text],
            env=environment, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("w"),
        )  # fmt: skip
        self.pid = self._process.pid
        self.folder = folder

    def do(self, line: str) -> object:
        """Let the program execute a line. Returns the value that the line assigns to ``answer``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or '"the program has ended"')

    def launch(self, count: int, name: str = "k") -> None:
        self.do(f"launch({count}, {name!r}); fakegpu.synchronize()")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Let the program end with its exit handlers. Returns its exit status."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        return self._process.wait(LIMIT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT)

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()


Arm = Callable[..., Program]


@pytest.fixture
def arm(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arm]:
    """Start a program under ``cutrace arm``, in an environment without other processes on standby."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(standby, "_folders", lambda: (runtime / "cutrace",))
    programs: list[Program] = []

    def start(
        *options: str, text: str = OBEDIENT, cuda: bool = True, within: Sequence[str] = (), **variables: str
    ) -> Program:
        world = environment | {"XDG_RUNTIME_DIR": str(runtime)} | variables
        programs.append(program := Program(world, tmp_path, options, text, within))
        if cuda:
            program.do("fakegpu.init()")
        return program

    yield start
    for program in programs:
        program.kill()


def kernels(path: Path) -> Counter[str]:
    """The kernels of a capture by name."""
    with cutrace.load(path) as trace:
        return Counter(trace.strings.take(trace.launches["name"][trace.kernels["launch"]]).tolist())


def is_complete(path: Path) -> bool:
    with cutrace.load(path) as trace:
        return trace.quality.lossless and trace.processes[0].complete


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def the_only_process() -> cutrace.collect.StandbyProcess:
    (process,) = cutrace.processes()
    return process


def attaching(program: Program, *options: str) -> subprocess.Popen[str]:
    """Start ``cutrace attach`` and wait until it records."""
    command = [sys.executable, "-m", "cutrace", "attach", str(program.pid), *options]
    attacher = subprocess.Popen(command, cwd=program.folder, text=True, stderr=subprocess.PIPE)
    assert attacher.stderr is not None
    assert attacher.stderr.readline().startswith(f"cutrace: recording process {program.pid}: ")
    return attacher


# ---- attaching ----


def test_several_attachments_in_a_row_are_complete(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    program.launch(10, "before")
    for count in (100, 200, 300):
        path = tmp_path / f"{count}.bin"
        with cutrace.attach(program.pid, path):
            program.launch(count)
        program.launch(5, "between")
        assert kernels(path) == {"k": count}
        assert is_complete(path)
    assert program.do("answer = fakegpu.subscribers()") == 0
    assert program.end() == 0
    assert program.stderr == ""
    assert not cutrace.processes()


def test_each_window_of_an_armed_server_is_a_file_while_it_is_recorded(arm: Arm, tmp_path: Path) -> None:
    program = arm("--capture-range", "profiler")
    program.do("from profiled_server import Server")
    profiler = "lambda: fakegpu.profiler('cudaProfiler{}')"
    program.do(f"server = Server({profiler.format('Start')}, {profiler.format('Stop')}, lambda name: launch(1, name))")
    with cutrace.attach(program.pid, tmp_path / "%p-%i.bin") as attachment:
        for number in (1, 2):
            program.do(f"server.profile('r{number}')")
            assert not attachment.wait("1ms")
            path = tmp_path / f"{program.pid}-{number}.bin"
            assert kernels(path) == {f"r{number}": 1}
            assert is_complete(path)
        program.do("server.profile('r3')")
    assert kernels(tmp_path / f"{program.pid}-3.bin") == {"r3": 1}


def test_an_armed_program_opens_windows_while_it_is_recorded(arm: Arm, tmp_path: Path) -> None:
    program = arm("--capture-range", "profiler")
    window = "fakegpu.profiler('cudaProfilerStart'); launch({}, 'k'); fakegpu.profiler('cudaProfilerStop')"
    program.do(window.format(7))
    with cutrace.attach(program.pid, tmp_path / "some.bin"):
        program.launch(5, "outside")
        program.do(window.format(10))
        program.launch(5, "outside")
        program.do(window.format(20))
    with cutrace.attach(program.pid, tmp_path / "all.bin", capture_range="none"):
        program.launch(5, "inside")
    with cutrace.attach(program.pid, tmp_path / "first.bin", capture_range="profiler", capture_range_end="stop"):
        program.do(window.format(1))
        program.do(window.format(2))
    done = run("attach", program.pid, "--for", "50ms", cwd=program.folder)
    assert done.returncode == 2
    assert "the capture range 'profiler' never opened" in done.stderr
    assert program.do("answer = fakegpu.subscribers()") == 0
    assert program.end() == 0
    assert kernels(tmp_path / "some.bin") == {"k": 30}
    assert is_complete(tmp_path / "some.bin")
    with cutrace.load(tmp_path / "some.bin") as trace:
        assert len(trace.processes[0].windows) == 2
    assert kernels(tmp_path / "all.bin") == {"inside": 5}
    with cutrace.load(tmp_path / "all.bin") as trace:
        assert trace.notes == ()
    assert kernels(tmp_path / "first.bin") == {"k": 1}


def test_a_process_on_standby_does_nothing(arm: Arm) -> None:
    program = arm()
    process = Path("/proc", str(program.pid))
    threads = {(task / "comm").read_text().strip(): task for task in (process / "task").iterdir()}
    assert [name for name in threads if name.startswith("cutrace")] == ["cutrace-standby"]

    def status() -> str:
        return (threads["cutrace-standby"] / "status").read_text()

    def switches() -> list[str]:
        return [line for line in status().splitlines() if "ctxt_switches" in line]

    eventually(lambda: "State:\tS" in status())
    before = switches()
    program.launch(1000)
    time.sleep(0.3)
    assert switches() == before
    assert program.do("answer = fakegpu.subscribers()") == 0


def test_it_attaches_before_the_first_call_of_cuda(arm: Arm, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    program = arm(cuda=False)
    program.do("import nvtx; nvtx.mark('first')")
    assert not the_only_process().cuda
    with cutrace.attach(program.pid, tmp_path / "run.bin"):
        program.launch(7)
        program.do("with nvtx.annotate('range'): pass")
        assert the_only_process().cuda
    assert kernels(tmp_path / "run.bin") == {"k": 7}
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.count("nvtx_ranges") == 1


def test_options_of_arm_are_defaults_of_attach(arm: Arm, tmp_path: Path) -> None:
    program = arm("--api", "none", "--kinds", "kernel,api,nvtx", "--max-memory", "8MiB")
    given = []
    for options in ({}, {"api": "launch"}, {"kinds": "kernel", "cuda_graph": "graph"}):
        with cutrace.attach(program.pid, tmp_path / "run.bin", **options):  # type: ignore[arg-type]
            program.launch(3)
        with cutrace.load(tmp_path / "run.bin") as trace:
            recorded = trace.processes[0].info["options"]
            given.append((recorded["api"], recorded["kinds"], recorded.get("graph"), trace.count("api_calls")))
            assert recorded["max_memory"] == str(8 << 20)
    assert given == [
        ("none", "kernel,api,nvtx", None, 0),
        ("launch", "kernel,api,nvtx", None, 4),
        ("none", "kernel", "graph", 0),
    ]


# ---- the command line ----


def test_the_command_says_what_it_records_and_what_it_has(arm: Arm) -> None:
    program = arm()
    attacher = attaching(program, "-o", "run.pftrace")
    program.launch(50)
    attacher.send_signal(signal.SIGINT)
    _, stderr = attacher.communicate(timeout=LIMIT)
    assert attacher.returncode == 0, stderr
    assert "cutrace: run.pftrace: 1 process, 50 kernels, 5" in stderr
    assert kernels(program.folder / "run.pftrace") == {"k": 50}
    assert sorted(p.name for p in program.folder.iterdir()) == ["run.pftrace", "runtime", "stderr"]


def test_calls_that_outlast_the_end_are_named_by_each_verb(arm: Arm, tmp_path: Path) -> None:
    """CUPTI keeps the buffer of a thread that is inside a call. The buffer has the earlier calls of the thread."""
    program = arm()
    attacher = attaching(program, "-o", "run.bin")
    program.do("fakegpu.hold_buffer(True)")
    program.launch(5)
    attacher.send_signal(signal.SIGINT)
    _, stderr = attacher.communicate(timeout=LIMIT)
    (loss,) = cutrace.load(tmp_path / "run.bin").quality.losses
    assert (loss.reason, loss.count) == ("kept_back", 1)
    assert f"not recorded: 1 {loss.meaning} ({loss.detail})" in stderr
    info = run("info", tmp_path / "run.bin")
    stats = run("stats", tmp_path / "run.bin")
    convert = run("convert", tmp_path / "run.bin", "-o", tmp_path / "run.pftrace")
    for said in (info.stdout, stats.stdout + stats.stderr, convert.stderr):
        assert loss.meaning in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_attacher_ends_the_recording_in_order(arm: Arm, number: int) -> None:
    program = arm()
    attacher = attaching(program)
    program.launch(20)
    attacher.send_signal(number)
    assert attacher.wait(LIMIT) == 0
    assert kernels(program.folder / "run.bin") == {"k": 20}
    assert is_complete(program.folder / "run.bin")


@pytest.mark.parametrize(
    ("options", "name"), [((), "run.bin"), (("--for", "50ms", "--every", "1h"), "run-1.bin")], ids=["once", "repeated"]
)
def test_a_recording_outlives_its_terminal(arm: Arm, options: Sequence[str], name: str) -> None:
    program = arm()
    terminal, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stderr:
        attacher = subprocess.Popen(
            [sys.executable, "-m", "cutrace", "attach", str(program.pid), *options], cwd=program.folder, stderr=stderr
        )
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        assert screen.read(100).startswith(b"cutrace: recording process")
        program.launch(20)
        if options:
            assert name.encode() in screen.read(100)
            time.sleep(0.5)  # It prints the rest of its summary, and waits for the next recording.
    attacher.send_signal(signal.SIGHUP)
    assert attacher.wait(LIMIT) == 0
    assert is_complete(program.folder / name)


LATE_SIGNAL = """
import os, signal, sys
from cutrace import cli
from cutrace.collect import Attachment
stop = Attachment.stop
def late(self):
    os.kill(os.getpid(), signal.SIGINT)
    return stop(self)
Attachment.stop = late
cli.main(["attach", *sys.argv[1:]])
"""


@pytest.mark.parametrize("options", [(), ("--every", "10s")])
def test_a_second_signal_leaves_the_recording_complete(arm: Arm, options: Sequence[str]) -> None:
    program = arm()
    program.do(LAUNCHING)
    command = [sys.executable, "-c", LATE_SIGNAL, str(program.pid), "-o", "run-%i.json", "--for", "50ms", *options]
    done = subprocess.run(command, cwd=program.folder, text=True, stderr=subprocess.PIPE, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "cutrace: run-1.bin: 1 process, " in done.stderr
    assert sorted(path.name for path in program.folder.glob("*run*")) == ["run-1.bin", "run-1.json", "runtime"]


def test_the_caller_may_change_the_folder(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    program = arm()
    monkeypatch.chdir(program.folder)
    with cutrace.attach(program.pid, "run.bin"):
        program.launch(20)
        monkeypatch.chdir("/")
    assert kernels(program.folder / "run.bin") == {"k": 20}


def test_it_ends_after_a_time(arm: Arm) -> None:
    program = arm()
    done = run("attach", program.pid, "--for", "10ms", cwd=program.folder)
    assert done.returncode == 0
    assert "for 10ms, or until Ctrl-C\ncutrace: run.bin: 1 process, 0 kernels" in done.stderr
    assert program.end() == 0


#: Launches in a thread until a function stops it.
LAUNCHING = """
import threading
over = threading.Event()
def work():
    while not over.is_set():
        launch(1)
thread = threading.Thread(target=work, daemon=True)
thread.start()
"""


def test_the_time_counts_from_the_first_work_that_is_recorded(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    program.do(f"fakegpu.hold_recorded_launch({str(tmp_path / 'go')!r})")
    attacher = attaching(program, "--for", "300ms")
    # Not earlier: of a call that started before the recording, only the kernel is recorded, and it counts.
    program.do(LAUNCHING)
    with pytest.raises(subprocess.TimeoutExpired):
        attacher.wait(1.5)
    (tmp_path / "go").touch()
    _, stderr = attacher.communicate(timeout=LIMIT)
    assert attacher.returncode == 0, stderr
    assert kernels(tmp_path / "run.bin")["k"] > 1
    program.do("over.set(); thread.join()")
    assert program.end() == 0


def test_a_first_call_that_never_returns_does_not_keep_the_recording(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_LONGEST_FIRST_CALL", 0.5)
    program = arm()
    program.do(f"fakegpu.hold_recorded_launch({str(program.folder / 'never')!r})")
    with cutrace.attach(program.pid, program.folder / "run.bin") as attachment:
        program.do(LAUNCHING)
        assert not attachment.record_for("0.3s")


def test_recordings_are_repeated_into_files_with_numbers(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    (tmp_path / "run-2.bin").write_bytes(b"earlier")
    program.do(LAUNCHING)
    attacher = attaching(program, "--for", "50ms", "--every", "300ms")
    eventually((tmp_path / "run-3.bin").exists)
    attacher.send_signal(signal.SIGINT)
    _, stderr = attacher.communicate(timeout=LIMIT)
    assert attacher.returncode == 0, stderr
    assert (tmp_path / "run-2.bin").read_bytes() == b"earlier"
    for name in ("run-1.bin", "run-3.bin"):
        assert kernels(tmp_path / name)["k"] > 0
        assert is_complete(tmp_path / name)
    assert "run-1.bin: 1 process, " in stderr
    assert not (tmp_path / "run.bin").exists()
    program.do("over.set(); thread.join()")
    assert program.end() == 0


def test_repeated_recordings_of_two_programs_share_an_output(arm: Arm, tmp_path: Path) -> None:
    programs = [arm(), arm()]
    for program in programs:
        program.do(LAUNCHING)
    attachers = [attaching(program, "--for", "1s", "--every", "1h") for program in programs]
    eventually(lambda: len(list(tmp_path.glob("run-*.bin"))) == 2)
    for attacher in attachers:
        attacher.send_signal(signal.SIGINT)
        assert attacher.wait(LIMIT) == 0
    recorded = set()
    for name in ("run-1.bin", "run-2.bin"):
        with cutrace.load(tmp_path / name) as trace:
            recorded.add(trace.processes[0].pid)
    assert recorded == {program.pid for program in programs}
    assert not list(tmp_path.glob(".run*"))


def test_repeated_recordings_end_with_the_program(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    attacher = attaching(program, "--for", "10ms", "--every", "1h", "-o", "run.json.gz")
    eventually((tmp_path / "run-1.json.gz").exists)
    assert program.end() == 0
    _, stderr = attacher.communicate(timeout=LIMIT)
    assert (attacher.returncode, f"process {program.pid} has ended" in stderr) == (0, True)
    assert (tmp_path / "run-1.bin").exists()


RECORDING_ITSELF = """
import cutrace
mine = cutrace.record('mine.bin')
while mine._to is None:
    try:
        mine.start()
    except cutrace.CutraceError:
        pass  # somebody is attached now
"""


def test_a_recording_that_cannot_be_repeated_now_is_tried_again(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    attacher = attaching(program, "--for", "10ms", "--every", "200ms")
    eventually((tmp_path / "run-1.bin").exists)
    program.do(RECORDING_ITSELF)
    assert attacher.stderr is not None
    while "the program itself is recording" not in attacher.stderr.readline():
        assert attacher.poll() is None
    program.do("mine.stop()")
    taken = {path.name for path in tmp_path.glob("run-*.bin")}
    eventually(lambda: {path.name for path in tmp_path.glob("run-*.bin")} > taken)
    attacher.send_signal(signal.SIGTERM)
    attacher.communicate(timeout=LIMIT)
    assert attacher.returncode == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--every", "60s"), "--every repeats a recording of a certain length: give that length with --for"),
        (("--for", "2s", "--every", "2s"), "--every 2s leaves no time between recordings of 2s: give a longer --every"),
        (("--for", "2m", "--every", "60s"), "--every 60s leaves no time between recordings of 2m"),
        (("--for", "2s", "--every", "often"), "'often' is not a time"),
        (("--for", "2s", "--every", "0"), "--every 0 leaves no time"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(arm: Arm, options: tuple[str, ...], sentence: str) -> None:
    program = arm()
    done = run("attach", program.pid, *options, cwd=program.folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"cutrace: {sentence}")
    assert done.stderr.count("\n") == 1
    assert not list(program.folder.glob("*.bin"))
    assert program.end() == 0


def test_a_signal_dumps_the_newest_rows(arm: Arm) -> None:
    program = arm("--last", "1m")
    attacher = attaching(program)
    assert attacher.stderr is not None
    program.launch(20)
    attacher.send_signal(signal.SIGUSR2)
    assert attacher.stderr.readline() == "cutrace: run-1.bin holds the newest rows\n"
    program.launch(20)
    attacher.send_signal(signal.SIGINT)
    assert attacher.wait(LIMIT) == 0
    assert kernels(program.folder / "run-1.bin") == {"k": 20}
    assert kernels(program.folder / "run.bin") == {"k": 40}
    attacher = attaching(program, "--last", "1m", "-o", "w-%i.bin")
    assert attacher.stderr is not None
    program.launch(20)
    attacher.send_signal(signal.SIGUSR2)
    assert attacher.stderr.readline() == "cutrace: w-1-1.bin holds the newest rows\n"
    attacher.send_signal(signal.SIGINT)
    assert attacher.wait(LIMIT) == 0
    program = arm()
    attachment = cutrace.attach(program.pid, program.folder / "run.bin")
    attachment.start()
    with pytest.raises(CutraceError, match="keeps all its rows cannot be dumped"):
        attachment.dump(program.folder / "x.bin")
    attachment.stop()


def test_a_signal_that_another_thread_takes_dumps_the_newest_rows(arm: Arm) -> None:
    """Some libraries have threads that handle signals; NumPy is an example."""
    program = arm("--last", "1m")
    attacher = attaching(program)
    program.launch(20)
    threads = [int(path.name) for path in Path(f"/proc/{attacher.pid}/task").iterdir()]
    assert ctypes.CDLL(None).tgkill(attacher.pid, max(threads), signal.SIGUSR2) == 0
    assert attacher.stderr is not None
    assert attacher.stderr.readline() == "cutrace: run-1.bin holds the newest rows\n"
    attacher.send_signal(signal.SIGINT)
    assert attacher.wait(LIMIT) == 0


def test_a_condition_dumps_the_newest_rows(arm: Arm) -> None:
    program = arm()
    attacher = attaching(program, "--last", "1m", "--dump-when", "memory > 1GiB")
    program.launch(20)
    program.do("fakegpu.malloc(2 << 30)")
    eventually(lambda: (program.folder / "run-1.bin").exists())
    attacher.send_signal(signal.SIGINT)
    assert attacher.wait(LIMIT) == 0
    assert kernels(program.folder / "run-1.bin") == {"k": 20}


def test_ps_shows_what_each_process_does(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time()
    program = arm()

    def listed() -> tuple[str, dict[str, object]]:
        found = json.loads(run("ps", "--format", "json", cwd=program.folder).stdout)
        processes = {process["pid"]: process for process in found["processes"]}
        text = [line for line in run("ps", cwd=program.folder).stdout.splitlines() if f"  {program.pid}  " in line]
        return text[0], processes[program.pid]

    def lasted(row: str) -> float:
        """The seconds of the only duration in a row."""
        (found,) = re.findall(r"([0-9.]+) (us|ms|s)\b", row)
        return float(found[0]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[found[1]]

    text, about = listed()
    for_s, _, state = text.partition("  used  ")
    assert state.startswith("asleep")
    assert 0 < lasted(for_s) <= time.time() - began
    assert (about["state"], about["cuda"], about["recorded_by"], about["rows"]) == ("asleep", True, None, 0)
    assert sys.executable in about["command"]  # type: ignore[operator]
    with cutrace.attach(program.pid, program.folder / "run.bin"):
        program.launch(5000)
        eventually(lambda: the_only_process().rows > 1000)
        text, about = listed()
        _, _, state = text.partition(f"  recorded by process {os.getpid()} for ")
        for_s, _, _ = state.partition(", ")
        assert 0 <= lasted(for_s) <= time.time() - began
        assert about["bytes"] > about["rows"]  # type: ignore[operator]
        assert (about["state"], about["recorded_by"], about["attached_pid"]) == ("recording", "attach", os.getpid())
    assert the_only_process().state == "asleep"
    program.kill()
    assert run("ps").stdout == "no process is on standby: `cutrace arm -- command` starts one\n"
    eventually(lambda: not cutrace.processes() and not list((program.folder / "runtime" / "cutrace").iterdir()))


# ---- ends ----


def test_a_killed_attacher_leaves_a_complete_capture(arm: Arm) -> None:
    program = arm()
    attacher = attaching(program)
    program.launch(30)
    attacher.kill()
    attacher.communicate()
    eventually(lambda: the_only_process().state == "asleep")
    (left,) = program.folder.glob(".run.bin.*/*.bin")
    assert kernels(left) == {"k": 30}
    assert is_complete(left)
    with cutrace.attach(program.pid, program.folder / "next.bin"):
        program.launch(1)
    assert kernels(program.folder / "next.bin") == {"k": 1}


def test_the_end_of_the_program_ends_the_recording(arm: Arm) -> None:
    program = arm()
    attacher = attaching(program)
    program.launch(30)
    program.do("launch(5, 'unfinished')")
    assert program.end() == 0
    _, stderr = attacher.communicate(timeout=LIMIT)
    assert attacher.returncode == 0, stderr
    assert f"cutrace: process {program.pid} has ended\n" in stderr
    assert "not recorded" not in stderr
    assert kernels(program.folder / "run.bin") == {"k": 30, "unfinished": 5}
    assert is_complete(program.folder / "run.bin")


def test_what_a_killed_program_had_written_is_kept(arm: Arm) -> None:
    program = arm()
    attacher = attaching(program)
    program.launch(30)
    eventually(lambda: the_only_process().rows >= 60)
    program.kill()
    _, stderr = attacher.communicate(timeout=LIMIT)
    assert attacher.returncode == 0, stderr
    assert (
        f"process {program.pid} was killed, or replaced itself: the capture has what it had written by then" in stderr
    )
    assert kernels(program.folder / "run.bin") == {"k": 30}


def test_a_second_attacher_is_told_of_the_first(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    with cutrace.attach(program.pid, tmp_path / "first.bin"):
        done = run("attach", program.pid, "-o", "second.bin", "--for", "1ms", cwd=tmp_path)
        assert done.returncode == 2
        assert (
            f"cutrace: process {program.pid}: it is being recorded by the attach of process {os.getpid()} for "
            in done.stderr
        )
        program.launch(3)
    assert kernels(tmp_path / "first.bin") == {"k": 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first.bin", "runtime", "stderr"]


def test_a_recording_of_the_program_itself_is_not_disturbed(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    program.do("own = cutrace.record('own.bin'); own.start(); launch(4)")
    assert the_only_process().recorded_by == "program"
    with pytest.raises(CutraceError, match="the program itself is recording"):
        cutrace.attach(program.pid, tmp_path / "run.bin").start()
    program.do("own.stop()")
    assert kernels(tmp_path / "own.bin") == {"k": 4}
    # The program may also end a recording. The capture is then complete.
    with cutrace.attach(program.pid, tmp_path / "run.bin"):
        program.launch(6)
        program.do("from cutrace.collect.library import collector; collector().stop()")
        program.launch(1, "later")
    assert kernels(tmp_path / "run.bin") == {"k": 6}
    assert is_complete(tmp_path / "run.bin")


def test_a_path_that_is_no_utf8(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    path = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.bin"))
    with cutrace.attach(program.pid, path):
        program.launch(2)
    assert kernels(path) == {"k": 2}


def test_a_full_disk_keeps_whole_blocks(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    attachment = cutrace.attach(program.pid, tmp_path / "run.bin")
    attachment.start()
    program.launch(100)
    eventually(lambda: the_only_process().rows >= 200)
    program.do("inject.writes_fail(errno.ENOSPC)")
    program.launch(100)
    time.sleep(0.3)
    program.do("inject.writes_work()")
    attachment.stop()
    assert kernels(tmp_path / "run.bin") == {"k": 100}
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert "disk" in {loss.reason for loss in trace.quality.losses} or not trace.quality.lossless
    with cutrace.attach(program.pid, tmp_path / "next.bin"):
        program.launch(9)
    assert kernels(tmp_path / "next.bin") == {"k": 9}
    assert program.end() == 0


def test_another_tool_that_holds_cupti_is_named(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    program.do("fakegpu.hold_cupti()")
    with pytest.raises(CutraceError, match="another tool holds CUPTI"):
        cutrace.attach(program.pid, tmp_path / "run.bin").start()
    program.do("fakegpu.release_cupti()")
    with cutrace.attach(program.pid, tmp_path / "run.bin"):
        program.launch(2)
    assert kernels(tmp_path / "run.bin") == {"k": 2}
    assert not list(tmp_path.glob(".run*"))


# ---- refused users ----


def absence(pid: int) -> str:
    with pytest.raises(CutraceError) as refused:
        cutrace.attach(pid, "unused.bin").start()
    return str(refused.value)


def test_a_process_that_is_not_on_standby(arm: Arm) -> None:
    assert "is not on standby: start it with `cutrace arm -- command`" in absence(os.getpid())
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert f"there is no process {ended.pid}" in absence(ended.pid)
    program = arm(cuda=False)
    program.do("answer = 1")
    assert "after its first CUDA or NVTX call" in absence(program.pid)


def test_a_process_under_record(environment: dict[str, str], arm: Arm, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cutrace", "record", "--", sys.executable, "-c", "print(1, flush=True); input()"]
    recorder = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert recorder.stdout is not None
    recorder.stdout.readline()
    (child,) = Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children").read_text().split()
    assert "is recorded already, by `cutrace record`" in absence(int(child))
    recorder.communicate(b"\n", timeout=LIMIT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user(arm: Arm, tmp_path: Path) -> None:
    nobody = 65534
    program = arm()
    folder = tmp_path / "runtime" / "cutrace"
    (path,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700

    def knock() -> bytes:
        """Connect to the socket as another user. Returns the answer."""
        knocking = (
            f"import os, socket; os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})\n"
            f"s = socket.socket(socket.AF_UNIX); s.connect({f'/proc/self/cwd/{path.name}'!r})\n"
            "s.settimeout(20)\nprint(s.recv(100))"
        )
        return subprocess.run([sys.executable, "-c", knocking], cwd=folder, capture_output=True, timeout=LIMIT).stdout

    assert knock() == b""  # the folders cannot be entered
    for parent in (folder, *folder.parents):  # somebody opens the folders to all users by mistake
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    path.chmod(0o777)
    assert knock() == b"b''\n"  # closed without an answer
    path.chmod(0o700)
    folder.chmod(0o700)
    assert the_only_process().state == "asleep"
    # Root requests a recording that belongs to the user.
    other = subprocess.Popen(["sleep", "60"], user=nobody, group=nobody, extra_groups=[])
    try:
        eventually(lambda: Path(f"/proc/{other.pid}").stat().st_uid == nobody)
        assert "only that user can attach (sudo -u 'nobody' cutrace attach" in absence(other.pid)
    finally:
        other.kill()
        other.wait()
    assert program.end() == 0


def test_a_folder_that_others_can_enter_is_not_used(arm: Arm, tmp_path: Path) -> None:
    folder = tmp_path / "runtime" / "cutrace"
    folder.mkdir(mode=0o755)
    monkeyed = arm("--max-memory", "8MiB", TMPDIR=str(tmp_path))
    assert not list(folder.iterdir())
    assert Path(f"/tmp/cutrace-{os.geteuid()}").stat().st_mode & 0o777 == 0o700
    # A program without XDG_RUNTIME_DIR uses the other folder.
    assert list(Path(f"/tmp/cutrace-{os.geteuid()}").glob(f"{monkeyed.pid}-*"))
    assert monkeyed.end() == 0
    assert not list(Path(f"/tmp/cutrace-{os.geteuid()}").glob(f"{monkeyed.pid}-*"))


IN_A_CONTAINER = (
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'mount -t tmpfs -o mode=0700 none "$0" && exec "$@"'),
)


@pytest.mark.parametrize("own", ["runtime", "output"])
def test_a_container(arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    tried = subprocess.run([*IN_A_CONTAINER, "/mnt", "true"], capture_output=True) if shutil.which("unshare") else None
    if tried is None or tried.returncode:
        pytest.skip("no rights to make a container")
    (tmp_path / "output").mkdir()
    program = arm(within=(*IN_A_CONTAINER, str(tmp_path / own)))
    (pid,) = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    attachment = cutrace.attach(int(pid), tmp_path / "output" / "run.bin")
    if own == "output":
        with pytest.raises(CutraceError, match="The process sees other files"):
            attachment.start()
        return
    assert not cutrace.processes()
    attachment.start()
    program.launch(8)
    attachment.stop()
    assert kernels(tmp_path / "output" / "run.bin") == {"k": 8}


def test_wrong_options_are_said_and_the_program_runs(environment: dict[str, str], arm: Arm, tmp_path: Path) -> None:
    program = arm(text=OBEDIENT)
    assert program.end() == 0
    from cutrace.collect.library import collector_path

    variables = {"CUTRACE_OPTIONS": f"standby=1;directory={tmp_path}", "CUDA_INJECTION64_PATH": str(collector_path())}
    done = subprocess.run(
        [sys.executable, "-c", "import fakegpu; fakegpu.launch(); print('ran')"],
        env=environment | variables, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.stdout == "ran\n"
    assert "standby=1 takes neither directory nor output" in done.stderr


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_collector_alone_makes_files_that_the_umask_allows(
    environment: dict[str, str], tmp_path: Path, umask: int, mode: int
) -> None:
    from cutrace.collect.library import collector_path

    variables = {"CUTRACE_OPTIONS": f"directory={tmp_path}", "CUDA_INJECTION64_PATH": str(collector_path())}
    subprocess.run(
        [sys.executable, "-c", "import fakegpu; fakegpu.launch()"],
        env=environment | variables, umask=umask, check=True, timeout=LIMIT,
    )  # fmt: skip
    (capture,) = tmp_path.glob("*.bin")
    assert capture.stat().st_mode & 0o777 == mode


def test_a_folder_that_the_program_cannot_write_into(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    with pytest.raises(CutraceError, match=r"the folder .* does not exist"):
        cutrace.attach(program.pid, tmp_path / "no" / "run.bin").start()


# ---- what programs do to the socket ----


def reachable(pid: int, folder: Path, launch: Callable[[], None]) -> bool:
    path = folder / "reached.bin"
    with cutrace.attach(pid, path):
        launch()
    return is_complete(path)


def test_strange_peers(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    (path,) = (tmp_path / "runtime" / "cutrace").iterdir()
    folder = os.open(path.parent, os.O_RDONLY)
    peers = []

    def peer(text: bytes) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(f"/proc/self/fd/{folder}/{path.name}")  # an address has 108 bytes
        with suppress(BrokenPipeError, ConnectionResetError):
            made.sendall(text)
        peers.append(made)
        return made

    with cutrace.attach(program.pid, tmp_path / "run.bin"):
        peer(b"start")  # half a line
        peer(os.urandom(5000))
        peer(b"\0\n\n\n \n stop\nSTART\nstart output=\nstop \ndump\nstatus\n" * 10)
        talker = peer(b"x" * 200_000)
        talker.shutdown(socket.SHUT_WR)
        reader = peer(b"status\n" * 3000)  # a reader that never reads
        for _ in range(100):
            peer(b"").close()
        silent = [peer(b"") for _ in range(20)]
        program.launch(25)
        assert the_only_process().state == "recording"
    assert kernels(tmp_path / "run.bin") == {"k": 25}
    assert is_complete(tmp_path / "run.bin")
    assert reader.fileno() >= 0
    assert len(silent) == 20
    for made in peers:
        made.close()
    os.close(folder)
    assert program.end() == 0
    assert program.stderr == ""


def test_a_program_that_closes_all_descriptors(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    for _ in range(2):
        program.do("os.closerange(3, 2000)")
        assert reachable(program.pid, tmp_path, lambda: program.launch(3))
    # In the middle of a recording, the connection is lost, but the capture is complete.
    attachment = cutrace.attach(program.pid, tmp_path / "run.bin")
    attachment.start()
    program.launch(30)
    program.do("os.closerange(3, 2000)")
    assert "has closed the connection" in attachment.stop().trouble
    assert is_complete(tmp_path / "run.bin")
    assert kernels(tmp_path / "run.bin") == {"k": 30}
    assert reachable(program.pid, tmp_path, lambda: program.launch(3))


def test_a_program_without_free_descriptors(arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_GREETING", 0.3)
    program = arm()
    program.do("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600)); taken = []")
    program.do("exec('try:\\n  while 1: taken.append(os.dup(0))\\nexcept OSError: pass')")
    with pytest.raises(CutraceError, match="does not answer: it is stopped, or has no free descriptor"):
        cutrace.attach(program.pid, tmp_path / "run.bin").start()
    assert the_only_process().state == "silent"
    program.do("[os.close(fd) for fd in taken]")
    monkeypatch.setattr(standby, "_GREETING", LIMIT)
    assert reachable(program.pid, tmp_path, lambda: program.launch(3))


def test_a_stopped_program_is_silent(arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_GREETING", 0.3)
    program = arm()
    program.signal(signal.SIGSTOP)
    eventually(lambda: ") T " in Path(f"/proc/{program.pid}/stat").read_text())
    assert the_only_process().state == "silent"
    with pytest.raises(CutraceError, match="does not answer"):
        cutrace.attach(program.pid, tmp_path / "run.bin").start()
    program.signal(signal.SIGCONT)
    monkeypatch.setattr(standby, "_GREETING", LIMIT)
    assert reachable(program.pid, tmp_path, lambda: program.launch(3))


def test_signals_of_the_program_stay_with_it(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    program.do("seen = []; signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread().name))")
    with cutrace.attach(program.pid, tmp_path / "run.bin"):
        for _ in range(20):
            program.signal(signal.SIGUSR1)
            program.launch(10)
    assert set(program.do("answer = seen")) == {"MainThread"}  # type: ignore[call-overload]
    assert kernels(tmp_path / "run.bin") == {"k": 200}


def test_forked_children_do_not_answer_for_their_parent(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    attachment = cutrace.attach(program.pid, tmp_path / "run.bin")
    attachment.start()
    child = program.do("answer = os.fork()\nif not answer: time.sleep(60); os._exit(0)")
    program.launch(40)
    eventually(lambda: the_only_process().rows >= 80)
    assert the_only_process().pid == program.pid
    program.kill()
    # The child has no copy of the connection, so the attacher notices the end of the parent.
    assert attachment.wait(f"{LIMIT}s")
    attachment.stop()
    os.kill(int(str(child)), signal.SIGKILL)
    assert kernels(tmp_path / "run.bin") == {"k": 40}


def test_a_forked_child_that_uses_nvtx_can_be_attached_to(arm: Arm, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    program = arm()
    program.do("import nvtx; nvtx.mark('parent')")
    child = program.do(
        "answer = os.fork()\n"
        "if not answer:\n"
        "    nvtx.mark('child')\n"
        "    for _ in range(6000): nvtx.mark('child'); time.sleep(0.01)\n"
        "    os._exit(0)"
    )
    assert isinstance(child, int)
    eventually(lambda: {p.pid for p in cutrace.processes()} == {program.pid, child})
    with cutrace.attach(child, tmp_path / "child.bin"), cutrace.attach(program.pid, tmp_path / "parent.bin"):
        program.launch(3)
        eventually(lambda: all(p.rows > 3 for p in cutrace.processes()))
    os.kill(child, signal.SIGKILL)
    with cutrace.load(tmp_path / "child.bin") as trace:
        assert trace.processes[0].pid == child
        assert trace.count("nvtx_marks") > 0
    assert kernels(tmp_path / "parent.bin") == {"k": 3}
    eventually(lambda: {p.pid for p in cutrace.processes()} == {program.pid})


def test_a_child_that_is_forked_before_cuda_is_used(arm: Arm, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    program = arm(cuda=False)
    program.do("import nvtx; nvtx.mark('parent')")
    child = program.do(
        "answer = os.fork()\n"
        "if not answer:\n"
        "    fakegpu.init()\n"
        "    for _ in range(6000): launch(1, 'child'); fakegpu.synchronize(); time.sleep(0.01)\n"
        "    os._exit(0)"
    )
    assert isinstance(child, int)
    eventually(lambda: {p.pid: p.cuda for p in cutrace.processes()} == {program.pid: False, child: True})
    with cutrace.attach(child, tmp_path / "child.bin"):
        eventually(lambda: max(p.rows for p in cutrace.processes()) > 3)
    os.kill(child, signal.SIGKILL)
    assert kernels(tmp_path / "child.bin").keys() == {"child"}


def test_a_child_of_multiprocessing_ends_its_recording(arm: Arm, tmp_path: Path) -> None:
    program = arm(cuda=False)
    program.do(
        "import multiprocessing\n"
        "def work():\n"
        "    fakegpu.init()\n"
        "    while not os.path.exists('go'): time.sleep(0.001)\n"
        "    launch(100, 'child'); fakegpu.synchronize()\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\n"
        "child.start()"
    )
    child = program.do("answer = child.pid")
    assert isinstance(child, int)
    eventually(lambda: [p.pid for p in cutrace.processes()] == [child])
    with cutrace.attach(child, tmp_path / "child.bin") as attachment:
        (tmp_path / "go").touch()
        assert attachment.wait(f"{LIMIT}s")
    assert kernels(tmp_path / "child.bin") == {"child": 100}
    assert is_complete(tmp_path / "child.bin")
    assert program.do("child.join(); answer = child.exitcode") == 0
    assert not list((tmp_path / "runtime" / "cutrace").iterdir())


def test_a_program_that_replaces_itself(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    program.do(f"program = {OBEDIENT!r}")
    with cutrace.attach(program.pid, tmp_path / "run.bin") as attachment:
        program.launch(5)
        eventually(lambda: the_only_process().rows >= 10)
        # The new program answers this line.
        program.do("print(0, flush=True); os.execv(sys.executable, [sys.executable, '-c', program])")
        assert attachment.wait(f"{LIMIT}s")
    assert kernels(tmp_path / "run.bin") == {"k": 5}
    program.do("fakegpu.init()")
    assert the_only_process().pid == program.pid
    assert reachable(program.pid, tmp_path, lambda: program.launch(3))


def test_the_program_exits_while_somebody_attaches(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    command = [sys.executable, "-m", "cutrace", "attach", str(program.pid), "--for", "10s"]
    attacher = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    eventually(lambda: attacher.poll() is not None or list(tmp_path.glob(".run.bin.*")))
    assert program.end() == 0
    _, stderr = attacher.communicate(timeout=LIMIT)
    assert attacher.returncode in (0, 2), stderr
    assert "Traceback" not in stderr
    assert f"process {program.pid} has ended" in stderr


def test_functions_are_annotated_while_somebody_is_attached(arm: Arm, tmp_path: Path) -> None:
    program = arm()
    program.do("def step(): launch(1)")
    for path in (tmp_path / "a.bin", tmp_path / "b.bin"):
        with cutrace.attach(program.pid, path, annotate="__main__:step"):
            program.do("step()")
        program.do("step()")
        hooks = "any(map(sys.monitoring.get_tool, range(6))) if hasattr(sys, 'monitoring') else bool(sys.getprofile())"
        assert program.do(f"answer = {hooks}") is False
        with cutrace.load(path) as trace:
            assert trace.strings.take(trace.nvtx_ranges["name"]).tolist() == ["step"]
            assert trace.quality.lossless
