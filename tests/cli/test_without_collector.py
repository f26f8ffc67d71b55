"""cutrace without its collector: it reads and converts, and explains why it cannot record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from cutrace.collect import library

CAPTURE = Path(__file__).parents[1] / "data" / "cuda_core.bin"


#: Removes modules and functions that Python lacks on Windows, then imports every module.
WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, subprocess, sys, time
import click, numpy, rich.console
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for module, names in {
    signal: [n for n in dir(signal) if n.startswith("SIG") and n not in ("SIGINT", "SIGTERM")] + ["pthread_sigmask"],
    os: ["fork", "getuid", "pread", "posix_spawn", "register_at_fork", "sched_getaffinity", "uname", "O_NOFOLLOW"],
    time: [n for n in dir(time) if n.lower().startswith("clock_")],
}.items():
    for name in names:
        delattr(module, name)
import cutrace
for found in pkgutil.walk_packages(cutrace.__path__, "cutrace."):
    if found.name != "cutrace.__main__" and ".lib" not in found.name:
        importlib.import_module(found.name)
cutrace.convert(*sys.argv[1:])
"""


def test_reading_needs_nothing_of_posix(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_POSIX, str(CAPTURE), str(tmp_path / "run.pftrace")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.pftrace").exists()


@pytest.fixture
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    library.installed.cache_clear()
    monkeypatch.setattr(library, "NAME", "libcutrace_collector_that_is_absent.so")
    yield
    library.installed.cache_clear()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("platform", "said"),
    [
        ("linux", "this build reads and converts captures but cannot record"),
        ("darwin", "cutrace records on Linux only"),
    ],
)
def test_recording_says_why_it_is_not_there(monkeypatch: pytest.MonkeyPatch, platform: str, said: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(cutrace.CutraceError, match=said):
        library.collector_path()


def _absent() -> bool:
    try:
        library.collector_path()
    except cutrace.CutraceError:
        return True
    return False


@pytest.mark.skipif(not _absent(), reason="this build has the collector: tox -e converter tests one without")
class TestABuildWithoutIt:
    def cutrace(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cutrace", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_record_ends_with_2_and_a_sentence(self, tmp_path: Path) -> None:
        done = self.cutrace("record", "-o", tmp_path / "run.bin", "--", "true")
        assert done.returncode == 2
        assert "cannot record" in done.stderr
        assert "Traceback" not in done.stderr

    def test_doctor_tells(self) -> None:
        done = self.cutrace("doctor")
        assert "cannot record" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("ending", ["pftrace", "json", "sqlite", "parquet", "bin"])
    def test_captures_are_converted(self, ending: str, tmp_path: Path) -> None:
        done = self.cutrace("convert", CAPTURE, "-o", tmp_path / f"run.{ending}")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"run.{ending}").exists()

    def test_statistics_are_made(self) -> None:
        assert self.cutrace("stats", CAPTURE).returncode == 0
