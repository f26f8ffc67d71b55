"""Running a command under the collector: its exit status, its signals and its files. The commands are scripted programs
that write the files of a recorded process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cutrace.collect import Options, record_command
from cutrace.collect.command import find_command
from cutrace.errors import CutraceError
from cutrace.runbin import Reader
from support import recorded


def record(tmp_path: Path, command: list[str]):
    return record_command(command, tmp_path / "run.bin", Options())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("code", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_status_is_the_one_a_shell_would_give(tmp_path, code, status):
    recording = record(tmp_path, ["sh", "-c", code])
    assert (recording.status, recording.output, recording.processes) == (status, None, 0)


def test_one_process_makes_one_capture_and_nothing_else_is_left(tmp_path):
    recording = record(tmp_path, recorded("capture()"))
    assert (recording.status, recording.output, recording.processes) == (0, tmp_path / "run.bin", 1)
    assert names(tmp_path) == ["run.bin"]


def test_processes_are_joined_in_the_order_of_their_start(tmp_path):
    recording = record(tmp_path, recorded("capture(1, started=20); capture(2, started=10)"))
    assert recording.processes == 2
    with Reader(tmp_path / "run.bin") as reader:
        assert [info["started"] for info in reader.processes] == [10, 20]


def test_what_a_killed_process_wrote_is_kept(tmp_path):
    recording = record(tmp_path, recorded("capture(); os.kill(os.getpid(), 9)"))
    assert (recording.status, recording.processes) == (137, 1)


def test_nothing_recorded_leaves_an_earlier_capture_alone(tmp_path):
    (tmp_path / "run.bin").write_bytes(b"earlier")
    assert record(tmp_path, ["true"]).output is None
    assert (tmp_path / "run.bin").read_bytes() == b"earlier"
    assert names(tmp_path) == ["run.bin"]


def test_the_command_gets_the_injection_variables_and_a_private_folder(tmp_path):
    code = (
        "import stat\n"
        "assert os.environ['CUDA_INJECTION64_PATH'] == os.environ['NVTX_INJECTION64_PATH']\n"
        "assert os.path.isfile(os.environ['CUDA_INJECTION64_PATH'])\n"
        "assert stat.S_IMODE(os.stat(options['directory']).st_mode) == 0o700\n"
        f"assert os.path.dirname(options['directory']) == {str(tmp_path)!r}\n"
    )
    assert record(tmp_path, recorded(code)).status == 0


def test_without_nvtx_the_variable_of_another_tool_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/other.so")
    command = ["sh", "-c", 'test "$NVTX_INJECTION64_PATH" = /other.so']
    assert record_command(command, tmp_path / "run.bin", Options(nvtx=False)).status == 0
    assert record_command(command, tmp_path / "run.bin", Options()).status == 1


def test_the_command_has_the_signals_of_a_fresh_process(tmp_path):
    code = "import signal; sys.exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    assert record(tmp_path, recorded(code)).status == 0


def test_a_process_that_outlives_the_command_is_named_and_its_part_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("cutrace.collect.join._GRACE", 0.2)
    code = (
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    import time\n"
        "    file = open(capture(), 'ab'); open('ready', 'w').close()\n"
        "    os.dup2(os.open(os.devnull, os.O_RDWR), 1); os.dup2(1, 2); time.sleep(60)\n"
        "while not os.path.exists('ready'): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    recording = record(tmp_path, recorded(code))
    try:
        assert len(recording.running) == 1
        with Reader(tmp_path / "run.bin") as reader:
            assert reader.processes[0]["pid"] == recording.running[0]
    finally:
        for pid in recording.running:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_sent_to_the_recording_reaches_the_command(tmp_path, number):
    command = recorded("capture(); open('ready', 'w').close()\nimport time; time.sleep(60)")
    recorder = subprocess.Popen(
        [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", "--", *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.send_signal(number)
    recorder.communicate(timeout=30)
    # Python turns SIGINT into KeyboardInterrupt and dies of the signal again.
    assert recorder.returncode == 128 + number
    assert (tmp_path / "run.bin").exists()


TAKES_SIGNALS = """
import os, signal, sys, threading, time
from cutrace.collect import Options, record_command
other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
other.start()
def send():
    while not os.path.exists("ready"): time.sleep(0.01)
    signal.pthread_kill(other.ident, signal.SIGTERM)
threading.Thread(target=send, daemon=True).start()
command = ["sh", "-c", "touch ready; exec sleep 60"]
print(record_command(command, "run.bin", Options()).status)
"""


def test_a_signal_that_another_thread_takes_reaches_the_command(tmp_path):
    """Some libraries have threads that do not block signals; NumPy is an example."""
    done = subprocess.run(
        [sys.executable, "-c", TAKES_SIGNALS], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout) == (0, f"{128 + signal.SIGTERM}\n"), done.stderr


IGNORES_ITS_CHILDREN = """
import signal, sys
from cutrace.collect import Options, record_command
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(record_command(sys.argv[1:], "run.bin", Options()).status)
assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
"""


def test_a_caller_that_ignores_the_end_of_its_children_gets_the_status_and_the_capture(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", IGNORES_ITS_CHILDREN, *recorded("capture(); os._exit(3)")],
        cwd=tmp_path, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert names(tmp_path) == ["run.bin"]


def test_a_capture_is_kept_when_the_status_of_its_command_is_lost(tmp_path, monkeypatch):
    wait = os.waitpid

    def lose(pid: int, _: int) -> None:
        wait(pid, 0)
        raise ChildProcessError

    monkeypatch.setattr(os, "waitpid", lose)
    with pytest.raises(ChildProcessError):
        record(tmp_path, recorded("capture()"))
    assert names(tmp_path) == ["run.bin"]


def test_a_command_of_another_user_gets_no_signal_and_is_recorded(tmp_path, monkeypatch):
    """sudo, for example."""
    code = f"capture(); os.kill({os.getpid()}, signal.SIGTERM); import time; time.sleep(0.5)"
    monkeypatch.setattr(os, "kill", refuse)
    recording = record(tmp_path, recorded(f"import signal; {code}"))
    assert (recording.status, recording.processes) == (0, 1)


def refuse(pid: int, number: int) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


# The recording runs in a terminal of its own, as the leader of its session.
IN_A_TERMINAL = """
import os, pty, sys, time
recorder, terminal = pty.fork()
if recorder == 0:
    os.execv(sys.executable, [sys.executable, "-m", "cutrace", "record", "--", *sys.argv[2:]])
while not os.path.exists("ready"): time.sleep(0.01)
if sys.argv[1] == "hang up":
    os.close(terminal)
else:
    os.write(terminal, b"\x03")
print(os.waitstatus_to_exitcode(os.waitpid(recorder, 0)[1]))
"""


@pytest.mark.parametrize(
    ("event", "before", "number"),
    [
        ("hang up", "", signal.SIGHUP),
        ("Ctrl-C", "", signal.SIGINT),
        ("Ctrl-C", "os.setpgid(0, 0); ", signal.SIGINT),
    ],
    ids=["hang up", "Ctrl-C", "Ctrl-C for another group"],
)
def test_signals_of_the_terminal_reach_the_command_once(tmp_path, event, before, number):
    """The kernel sends SIGHUP only to the leader of a session, and SIGINT only to the group in the foreground. Commands
    such as timeout leave this group."""
    code = (
        f"{before}import signal, time\n"
        "taken = []\n"
        f"signal.signal({number:d}, lambda *_: taken.append(0))\n"
        "capture(); open('ready', 'w').close()\n"
        "end = time.monotonic() + 40\n"
        "while not taken and time.monotonic() < end: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"  # for a second signal
        "os._exit(len(taken))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", IN_A_TERMINAL, event, *recorded(code)],
        cwd=tmp_path, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert (tmp_path / "run.bin").exists()


EARLY_SIGNAL = """
import os, signal, sys
from importlib import import_module
from cutrace import cli
module = import_module(f"cutrace.collect.{sys.argv[1]}")
function = getattr(module, sys.argv[2])
def early(*given):
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
    return function(*given)
setattr(module, sys.argv[2], early)
cli.main(sys.argv[4:])
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("before", [("join", "start_sampling"), ("environment", "injection")])
def test_a_signal_before_the_start_of_the_command_ends_the_recording(tmp_path, before, number):
    done = subprocess.run(
        [sys.executable, "-c", EARLY_SIGNAL, *before, number, "record", "--", "touch", "ran"],
        cwd=tmp_path, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (128 + getattr(signal, number), "")
    assert names(tmp_path) == []


# The command has ended when its status is decoded.
LATE_SIGNAL = """
import os, signal, sys
from cutrace import cli
decoded = os.waitstatus_to_exitcode
def late(status):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return decoded(status)
os.waitstatus_to_exitcode = late
cli.main(sys.argv[2:])
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2"])
def test_a_signal_that_comes_too_late_for_the_command_does_not_end_the_recording(tmp_path, number):
    """timeout sends SIGTERM twice, and users press Ctrl-C twice."""
    done = subprocess.run(
        [sys.executable, "-c", LATE_SIGNAL, number, "record", "--", *recorded("capture(); os._exit(3)")],
        cwd=tmp_path, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("cutrace: run.bin: 1 process")
    assert names(tmp_path) == ["run.bin"]


LATER_SIGNAL = """
import os, signal, sys
import cutrace.cli.record as module
from cutrace import cli
summarize = module.summarize
def late(recording):
    os.kill(os.getpid(), signal.SIGINT)
    summarize(recording)
module.summarize = late
cli.main(sys.argv[1:])
"""


def test_a_signal_during_the_summary_leaves_the_status_of_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LATER_SIGNAL, "record", "--", *recorded("capture(); os._exit(3)")],
        cwd=tmp_path, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("cutrace: run.bin: 1 process")


def test_a_recording_that_was_stopped_for_a_while_goes_on(tmp_path):
    """Ctrl-Z and fg."""
    code = "capture(); print(flush=True); os.read(0, 1); os._exit(3)"
    recorder = subprocess.Popen(
        [sys.executable, "-m", "cutrace", "record", "--", *recorded(code)],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "\n"
    for _ in range(3):
        recorder.send_signal(signal.SIGSTOP)
        time.sleep(0.3)  # longer than the wait for a signal
        recorder.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    _, said = recorder.communicate(timeout=30)
    assert recorder.returncode == 3, said
    assert said.startswith("cutrace: run.bin: 1 process")


def test_handlers_of_signals_are_as_before(tmp_path):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    record_command(["true"], tmp_path / "run.bin", Options())
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("absent/run.bin", "does not exist"),
        (".", "not a file"),
        ("/dev/null", "not a file"),
        ("/proc/run.bin", "cannot write"),
    ],
)
def test_an_output_that_cannot_be_written_is_found_before_the_command_runs(tmp_path, output, hint):
    with pytest.raises(CutraceError, match=hint):
        record_command(["touch", str(tmp_path / "ran")], tmp_path / output, Options())
    assert not (tmp_path / "ran").exists()


def test_a_command_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CutraceError, match=r"^command not found: no-such-command\. Check"):
        record(tmp_path, ["no-such-command"])
    assert names(tmp_path) == []


def test_a_file_that_cannot_be_executed_is_told_apart(tmp_path):
    (tmp_path / "script").write_text("")
    with pytest.raises(CutraceError, match="cannot be executed"):
        find_command(str(tmp_path / "script"))
    (tmp_path / "script").chmod(0o755)
    with pytest.raises(CutraceError, match="Name its interpreter"):
        record(tmp_path, [str(tmp_path / "script")])
    assert names(tmp_path) == ["script"]


def test_files_that_cannot_be_joined_are_kept_and_named(tmp_path):
    with pytest.raises(CutraceError, match="The recording is in") as error:
        record(tmp_path, recorded(f"capture(); os.mkdir({str(tmp_path / 'run.bin')!r})"))
    folder = Path(str(error.value).rpartition(" is in ")[2].rstrip("."))
    assert len(list(folder.glob("*.bin"))) == 1
