"""Join the files of several processes to one capture."""

from __future__ import annotations

import errno
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from cutrace import cli, conversion
from cutrace.collect import join as joining
from cutrace.collect.join import Destination, finished_parts, free_output, join, output_name
from cutrace.collect.options import Options
from cutrace.errors import CutraceError
from cutrace.outputs import mode_of_new_files
from cutrace.runbin import Reader, Writer
from support import cutrace as cutrace_verb


def part(folder: Path, pid: int, started: int | None) -> Path:
    path = folder / f"{pid}-{pid:x}.bin"
    info = {} if started is None else {"started": started}
    Writer(path, pid=pid, instance=pid, **info).close()
    return path


def pids(path: Path) -> list[int]:
    with Reader(path) as reader:
        assert not reader.damage
        return [info["pid"] for info in reader.processes]


def test_processes_are_in_the_order_of_their_start(tmp_path):
    parts = [part(tmp_path, 30, 5), part(tmp_path, 10, 7), part(tmp_path, 20, 6)]
    join(parts, tmp_path / "run.bin", moving=True)
    assert pids(tmp_path / "run.bin") == [30, 20, 10]


def test_a_file_that_does_not_say_when_it_started_comes_first(tmp_path):
    torn = tmp_path / "9-9.bin"
    torn.write_bytes(b"\x89CUTR\r\n\x1a and no more")
    assert joining.started(torn) == 0
    assert joining.started(tmp_path / "absent.bin") == 0
    assert joining.started(part(tmp_path, 1, None)) == 0
    assert joining.started(part(tmp_path, 2, 77)) == 77


@pytest.fixture
def joined(tmp_path: Path) -> tuple[Path, list[int]]:
    """A capture of three processes, and the offsets of their files in it."""
    parts = [part(tmp_path, pid, pid) for pid in (1, 2, 3)]
    sizes = [path.stat().st_size for path in parts]
    join(parts, tmp_path / "run.bin", moving=True)
    return tmp_path / "run.bin", [0, sizes[0], sizes[0] + sizes[1]]


def missing(data: bytes, folder: Path) -> list[str]:
    (folder / "cut.bin").write_bytes(data)
    with Reader(folder / "cut.bin") as reader:
        return [damage.reason for damage in reader.damage]


def lack(count: int, whole: int = 3) -> list[str]:
    return [f"the capture was joined from {whole} files and lacks {count}: it was copied in part"]


def test_a_capture_that_is_cut_between_two_processes_lacks_files(joined, tmp_path):
    path, (_, second, third) = joined
    data = path.read_bytes()
    assert missing(data, tmp_path) == []
    assert missing(data[:third], tmp_path) == lack(1)
    assert missing(data[:second], tmp_path) == lack(2)
    assert missing(data[second:], tmp_path) == lack(1)
    assert missing(data[:second] + data[third:], tmp_path) == lack(1)
    for verb in ("info", "stats"):
        done = cutrace_verb(verb, tmp_path / "cut.bin")
        assert lack(1)[0] in done.stdout + done.stderr


def test_joined_captures_that_are_joined_by_cat_count_their_own_files(joined, tmp_path):
    path, (_, _, third) = joined
    data = path.read_bytes()
    alone = part(tmp_path, 4, 4).read_bytes()
    more = tmp_path / "more.bin"
    join([part(tmp_path, pid, pid) for pid in (5, 6, 7)], more, moving=True)
    other = more.read_bytes()
    assert missing(data + alone + other, tmp_path) == []
    assert missing(data[:third] + alone, tmp_path) == lack(1)
    assert missing(data[:third] + other, tmp_path) == lack(1, 6)
    assert missing(data[:third] + data, tmp_path)[-1].startswith("a recording twice")


def test_a_file_without_a_whole_first_block_is_not_expected(tmp_path):
    torn = tmp_path / "9-9.bin"
    torn.write_bytes(b"\x89CUTR\r\n\x1a and no more")
    join([torn, part(tmp_path, 1, 1), part(tmp_path, 2, 2)], tmp_path / "run.bin", moving=True)
    with Reader(tmp_path / "run.bin") as reader:
        assert [damage.reason for damage in reader.damage] == ["damaged block header"]


def test_a_single_file_is_moved(tmp_path):
    only = part(tmp_path, 1, 0)
    inode = only.stat().st_ino
    join([only], tmp_path / "run.bin", moving=True)
    assert (tmp_path / "run.bin").stat().st_ino == inode
    assert not only.exists()


@pytest.mark.parametrize("count", [1, 2])
def test_the_capture_has_the_mode_of_new_files(tmp_path, count):
    parts = [part(tmp_path, pid + 1, 0) for pid in range(count)]
    for p in parts:
        p.chmod(0o400)
    join(parts, tmp_path / "run.bin", moving=True)
    assert stat.S_IMODE((tmp_path / "run.bin").stat().st_mode) == mode_of_new_files(tmp_path)


def test_without_moving_the_parts_stay(tmp_path):
    only = part(tmp_path, 1, 0)
    join([only], tmp_path / "run.bin", moving=False)
    assert only.read_bytes() == (tmp_path / "run.bin").read_bytes()


def test_a_failure_leaves_the_parts_and_no_partial_output(tmp_path, monkeypatch):
    parts = [part(tmp_path, 1, 0), part(tmp_path, 2, 0)]
    (tmp_path / "out").mkdir()

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(joining, "concatenate", full)
    with pytest.raises(CutraceError, match="No space left"):
        join(parts, tmp_path / "out" / "run.bin", moving=True)
    assert all(p.exists() for p in parts)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_that_a_process_still_writes_is_named_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "_GRACE", 0.0)
    code = (
        "import os, sys\n"
        "with open(f'{sys.argv[1]}/{os.getpid()}-1.bin', 'wb', buffering=0) as file:\n"
        "    file.write(b'x'); print(flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        parts, running = finished_parts(tmp_path)
        assert running == (child.pid,)
        assert [p.name for p in parts] == [f"{child.pid}-1.bin"]
    finally:
        child.communicate()
    assert finished_parts(tmp_path)[1] == ()


def test_a_writer_that_closes_other_files_meanwhile_is_seen(tmp_path):
    path = tmp_path / f"{os.getpid()}-1.bin"
    with path.open("wb") as file:
        # Above the descriptor that lists the descriptors of this process. That descriptor is closed before it is
        # examined.
        late = os.dup2(file.fileno(), 600)
    try:
        assert joining.writer(path) == os.getpid()
    finally:
        os.close(late)


class Clock:
    """A replacement for ``time``. Its sleep() takes no time, and calls a function of the test."""

    def __init__(self, meanwhile=lambda: None):
        self.now = 100.0
        self._meanwhile = meanwhile

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._meanwhile()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Files of a recording that processes are still writing. A test removes the closed ones."""
    paths = [part(tmp_path, 7, 1), part(tmp_path, 8, 2)]
    still_open = dict(zip(paths, (7, 8), strict=True))
    monkeypatch.setattr(joining, "writer", still_open.get)
    return still_open


def test_processes_that_are_ending_have_time_to_close_their_files(tmp_path, monkeypatch, written):
    monkeypatch.setattr(joining, "time", Clock(meanwhile=written.popitem))
    assert finished_parts(tmp_path) == ([tmp_path / "7-7.bin", tmp_path / "8-8.bin"], ())


def test_a_process_that_goes_on_is_waited_for_only_a_while(tmp_path, monkeypatch, written):
    clock = Clock()
    monkeypatch.setattr(joining, "time", clock)
    assert finished_parts(tmp_path)[1] == (7, 8)
    assert 101 <= clock.now < 101.1


def test_empty_files_are_no_parts(tmp_path):
    (tmp_path / "1-1.bin").touch()
    assert finished_parts(tmp_path) == ([], ())


@pytest.mark.parametrize("count", [1, 2])
def test_a_link_stays_and_what_it_names_is_replaced(tmp_path, count):
    parts = [part(tmp_path, pid, pid) for pid in range(1, count + 1)]
    (tmp_path / "data").mkdir()
    (tmp_path / "run.bin").symlink_to(tmp_path / "data" / "real.bin")
    join(parts, tmp_path / "run.bin", moving=True)
    assert (tmp_path / "run.bin").is_symlink()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["real.bin"]
    assert not any(part.exists() for part in parts)


@pytest.mark.parametrize(
    ("output", "there", "free"),
    [
        ("run.bin", [], "run-1.bin"),
        ("run.bin", ["run-1.bin", "run-2.bin"], "run-3.bin"),
        ("run.json.gz", ["run-1.bin"], "run-2.json.gz"),
        ("my.model.pftrace.gz", ["my.model-1.pftrace.gz"], "my.model-2.pftrace.gz"),
        ("run.data", ["run-1.data"], "run-2.data"),
        ("run", ["run-1"], "run-2"),
        ("%i-run.pftrace.gz", ["1-run.bin"], "2-run.pftrace.gz"),
    ],
)
def test_a_free_output_is_before_the_ending_and_has_a_free_capture(tmp_path, output, there, free):
    for name in there:
        (tmp_path / name).touch()
    assert free_output(tmp_path / output) == tmp_path / free


def recording(folder: Path, output: str, pid: int, **options: str) -> Destination:
    """A recording of one process that has ended."""
    to = Destination.of(folder / output, Options.of(**options))
    part(to.directory, pid, pid)
    return to


def test_recordings_that_end_together_have_numbers_of_their_own(tmp_path, monkeypatch):
    first = recording(tmp_path, "run-%i.pftrace", 1)
    others = [recording(tmp_path, "run-%i.pftrace", 2), recording(tmp_path, "run-%i.bin", 3)]
    convert = conversion.convert

    def late(*args, **kwargs):
        """Convert the first recording after the others have ended."""
        monkeypatch.undo()
        assert free_output(tmp_path / "run.bin").name == "run-2.bin"
        assert [other.finish().output.name for other in others] == ["run-2.pftrace", "run-2.bin"]
        convert(*args, **kwargs)

    monkeypatch.setattr(conversion, "convert", late)
    assert first.finish().output == tmp_path / "run-1.pftrace"
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["run-1.pftrace", "run-2.bin", "run-2.pftrace"]


def test_a_file_that_appears_while_its_number_is_reserved_is_kept(tmp_path, monkeypatch):
    ending = recording(tmp_path, "run-%i.bin", 1)
    mkdir = Path.mkdir

    def late(folder, **kwargs):
        monkeypatch.undo()
        (tmp_path / "run-1.bin").touch()
        mkdir(folder, **kwargs)

    monkeypatch.setattr(Path, "mkdir", late)
    assert ending.finish().output == tmp_path / "run-2.bin"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-1.bin", "run-2.bin"]


def test_recordings_of_the_newest_rows_have_numbers_of_their_own_from_the_start(tmp_path):
    first, second = (recording(tmp_path, "run-%i.json", pid, last="30s") for pid in (1, 2))
    assert [first.dump.name, second.dump.name] == ["run-1.bin", "run-2.bin"]
    assert stat.S_IMODE(first.directory.stat().st_mode) == 0o700
    first.discard()
    assert second.finish().output == tmp_path / "run-2.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-2.bin", "run-2.json"]
    assert free_output(tmp_path / "run.bin").name == "run-1.bin"


def test_a_recording_whose_number_cannot_be_reserved_is_kept(tmp_path, monkeypatch):
    ending = recording(tmp_path, "run-%i.bin", 1)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CutraceError, match="No space left on device") as failure:
        ending.finish()
    assert str(failure.value).endswith(f"The recording is in {ending.directory}.")
    assert pids(ending.directory / "1-1.bin") == [1]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("run.bin", "run.bin"),
        ("50%.bin", "50%.bin"),
        ("%q{JOB}/run-%q{SLURM_PROCID}-%i.bin", "77/run-3-%i.bin"),
        ("%h-%p.bin", "node7-PID.bin"),
        ("run-%h", "run-node7"),
    ],
)
def test_an_output_is_named_by_the_environment(monkeypatch, given, name):
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("JOB", "77")
    monkeypatch.setattr(platform, "node", lambda: "node7.local")
    expected = Path(name.replace("PID", str(os.getpid())))
    assert output_name(given) == expected
    assert cutrace.record(given).path == expected


def test_an_attached_process_names_the_output(tmp_path, monkeypatch):
    folder = tmp_path / "x100%quick"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert cutrace.attach(4711, "run-%p.bin").path == Path("run-4711.bin").absolute()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("run-%q{ABSENT}.bin", "needs the environment variable ABSENT, which is not set: set it, or choose another"),
        ("run-%q.bin", "names no environment variable: write %q{NAME}"),
        ("run-%q{}.bin", "names no environment variable: write %q{NAME}"),
    ],
)
def test_a_variable_that_is_not_set_is_a_sentence(tmp_path, monkeypatch, capsys, given, sentence):
    monkeypatch.chdir(tmp_path)
    for arguments in (["record", "-o", given, "--", "touch", "ran"], ["attach", "1", "-o", given]):
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
    with pytest.raises(CutraceError, match="environment variable"):
        cutrace.arm(given)
    assert list(tmp_path.iterdir()) == []
