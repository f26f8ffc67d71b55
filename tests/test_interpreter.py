"""Python processes that cutrace starts do not import from the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutrace.collect import checks
from cutrace.interpreter import module_command

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[1]


@pytest.fixture
def working_folder(tmp_path, monkeypatch) -> Path:
    """A working folder with a file for each module of the standard library. A program must run none of these files."""
    folder = tmp_path / "working"
    folder.mkdir()
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\nraise SystemExit(9)"
        )
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def imported(working_folder) -> Path:
    return working_folder.parent / "imported"


@pytest.mark.parametrize("version", [(3, 10, 0), (3, 11, 0)])
def test_a_module_runs_with_its_arguments(imported, monkeypatch, version):
    if version <= sys.version_info[:3]:
        monkeypatch.setattr(sys, "version_info", version)
    command = module_command("cutrace", "--version")
    monkeypatch.undo()
    done = subprocess.run(command, cwd=imported.parent / "working", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cutrace")
    assert not imported.exists()


def test_doctor_keeps_away_from_the_working_folder(imported):
    trial = checks.run_trial()
    assert not imported.exists()
    assert trial.marks == 1


def test_sampling_keeps_away_from_the_working_folder(fake_driver, imported):
    record = ("record", "--sample", "metrics", "-o", str(imported.parent / "run.bin"), "--", "sleep", "1")
    environ = fake_driver.environment()
    done = subprocess.run(module_command("cutrace", *record), env=environ, capture_output=True, text=True, timeout=60)
    assert not imported.exists()
    assert done.returncode == 0
    assert "sampled values" in done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="multiprocessing of Python 3.10 imports from the working folder")
def test_workers_of_a_batch_keep_away_from_the_working_folder(imported):
    pytest.importorskip("pyarrow")
    batch = ("batch", "kernels", str(DATA / "ranks.bin"), str(DATA / "triton.bin"), "-o", str(imported.parent / "out"))
    done = subprocess.run(module_command("cutrace", *batch), capture_output=True, text=True, timeout=120)
    assert not imported.exists()
    assert done.returncode == 0, done.stderr
    assert "PYTHONSAFEPATH" not in os.environ
