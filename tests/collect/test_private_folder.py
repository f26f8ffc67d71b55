"""The private folder in which processes of a user find each other, and attacks on it by other users."""

from __future__ import annotations

import ctypes
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cutrace.collect import private_folder
from cutrace.collect.library import collector_path
from cutrace.collect.private_folder import existing_folders, usable_folders
from cutrace.collect.standby import _reached, processes
from cutrace.extras.hardware.counting import _GpuLock

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
OTHER = 54321


def as_user(uid: int, action: Callable[[], object]) -> None:
    """Call ``action`` as another user, in a process without XDG_RUNTIME_DIR. An exception there fails the test."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(uid)
            os.environ.pop("XDG_RUNTIME_DIR", None)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def user() -> Iterator[int]:
    """A user id that owns no process and no folder."""
    uid = 60_000 + os.getpid() % 5_000

    def remove() -> None:
        for path in Path("/tmp").glob(f"cutrace-{uid}*"):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)

    remove()
    yield uid
    remove()


@pytest.fixture
def taken(user: int) -> Path:
    """The user's folder, created first by another user."""
    folder = Path(f"/tmp/cutrace-{user}")
    as_user(OTHER, lambda: folder.mkdir(mode=0o755))
    return folder


def test_the_runtime_folder_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert next(usable_folders()) == tmp_path / "cutrace"
    assert (tmp_path / "cutrace").stat().st_mode & 0o777 == 0o700
    assert existing_folders()[0] == tmp_path / "cutrace"


@pytest.mark.parametrize("runtime", ["absent", "relative", "open"])
def test_a_folder_that_others_can_enter_or_find_elsewhere_is_not_used(tmp_path, monkeypatch, runtime):
    monkeypatch.setattr(private_folder, "_TEMPORARY", tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open" / "cutrace").mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative" if runtime == "relative" else str(tmp_path / runtime))
    used = {folder.parent.name for folder in usable_folders()}
    assert used <= {"tmp", str(os.geteuid())}
    assert not (tmp_path / "relative").exists()


def test_a_random_name_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(private_folder, "_TEMPORARY", tmp_path)
    monkeypatch.setattr(private_folder, "_named_folders", lambda: [tmp_path / f"cutrace-{os.geteuid()}"])
    (tmp_path / f"cutrace-{os.geteuid()}").mkdir(mode=0o755)
    made = next(usable_folders())
    assert made.name.startswith(f"cutrace-{os.geteuid()}-")
    assert next(usable_folders()) == made
    assert existing_folders() == [made]


@needs_root
def test_a_process_can_be_attached_to_where_another_user_has_taken_the_folder(user, taken):
    library = ctypes.CDLL(str(collector_path()))
    libc = ctypes.CDLL(None)

    def be_on_standby() -> None:
        libc.unsetenv(b"XDG_RUNTIME_DIR")
        libc.setenv(b"CUTRACE_OPTIONS", b"standby=1", 1)
        library.InitializeInjection()
        for _ in range(2):  # the second process finds the folder of the first
            child = os.fork()
            if child == 0:
                library.InitializeInjection()
                assert _reached(os.getpid()) is not None
                assert os.getpid() in [process.pid for process in processes()]
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _reached(os.getpid()) is not None

    as_user(user, be_on_standby)
    (made,) = Path("/tmp").glob(f"cutrace-{user}-*")
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (user, 0o700)
    assert not list(taken.iterdir())


@needs_root
def test_a_gpu_can_be_locked_where_another_user_has_taken_the_folder(user, taken):
    def lock() -> None:
        gpu = _GpuLock("11" * 16)
        (file,) = Path("/tmp").glob(f"cutrace-{user}-*/*.lock")
        gpu.release()
        assert file.stat().st_uid == user

    as_user(user, lock)
    as_user(user, lock)  # in the same folder


@needs_root
def test_root_makes_no_folder_in_that_of_another_user(tmp_path, monkeypatch):
    theirs = tmp_path / "runtime"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    assert theirs / "cutrace" not in [next(usable_folders()), *existing_folders()]
    assert not list(theirs.iterdir())


@needs_root
def test_listing_processes_removes_nothing_in_a_folder_that_another_user_chose(user, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder not in (Path("/"), Path("/tmp")):
            folder.chmod(0o755)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "1-1").write_text("of the user")
    os.utime(mine / "1-1", (1, 1))
    os.chown(mine, user, user)
    as_user(OTHER, lambda: Path(f"/tmp/cutrace-{user}").symlink_to(mine))
    as_user(user, processes)
    assert (mine / "1-1").exists()


def test_counting_goes_on_where_no_file_can_be_made(monkeypatch):
    def none() -> Iterator[Path]:
        raise PermissionError
        yield

    monkeypatch.setattr("cutrace.extras.hardware.counting.usable_folders", none)
    _GpuLock("11" * 16).release()
