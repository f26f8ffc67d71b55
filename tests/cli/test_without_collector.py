"""cutrace without its collector: it reads and converts, and explains why it cannot record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from cutrace.collect import library

CAPTURE = Path(__file__).parents[1] / "data" / "cuda_core.bin"


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
