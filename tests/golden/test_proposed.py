"""Candidates that a run of the tests leaves, and what accepting them does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutrace.analysis.metrics import Metrics
from cutrace.errors import CutraceError
from cutrace.golden import accept, golden_path, measured, propose, read, text, write
from support.measured import H200, TEST, run

OTHER = "tests/test_other.py::test_it"


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    return tmp_path / ".cutrace" / "proposed", tmp_path / "golden"


def candidate(folders: tuple[Path, Path], *runs: Metrics, test: str = TEST, gpu: str = H200) -> Path:
    golden = measured(runs or [run()], test=test, gpu=gpu, recorded="r")
    return propose(golden, golden_path(folders[1], test), *folders)


def test_a_candidate_is_where_the_golden_file_would_be(folders):
    place = candidate(folders)
    assert place.relative_to(folders[0]) == golden_path(folders[1], TEST).relative_to(folders[1])
    assert read(place, test=TEST).test == TEST


def test_a_candidate_becomes_the_golden_file_and_stays(folders):
    place = candidate(folders)
    (accepted,) = accept(*folders)
    assert (accepted.path, accepted.old, accepted.changed) == (golden_path(folders[1], TEST), None, True)
    assert accepted.path.read_text() == place.read_text()


def test_accepting_again_changes_nothing(folders):
    candidate(folders)
    accept(*folders)
    before = golden_path(folders[1], TEST).stat().st_mtime_ns
    (again,) = accept(*folders)
    assert not again.changed
    assert golden_path(folders[1], TEST).stat().st_mtime_ns == before


def test_candidates_of_several_gpus_come_together(folders, tmp_path):
    candidate(folders)
    accept(*folders)
    other = (tmp_path / "from-ci", folders[1])
    candidate(other, run(streams_used=2), gpu="nvidia-a100")
    (accepted,) = accept(*other)
    assert set(accepted.new.gpus) == {H200, "nvidia-a100"}
    assert accepted.new.common.metrics["streams_used"] == 1
    assert accepted.new.gpus["nvidia-a100"].metrics["streams_used"] == 2


def test_worse_memory_is_accepted_too(folders):
    candidate(folders)
    accept(*folders)
    candidate(folders, run(peak_memory_bytes=1 << 30))
    (accepted,) = accept(*folders)
    assert accepted.new.gpus[H200].metrics["peak_memory_bytes"] == 1 << 30


def test_one_bad_candidate_and_nothing_is_written(folders):
    candidate(folders)
    bad = candidate(folders, test=OTHER)
    bad.write_text(bad.read_text().replace("sync_calls = 1", "sync_calls = one"))
    with pytest.raises(CutraceError, match=r"test_it\.toml:\d+: "):
        accept(*folders)
    assert not folders[1].exists()


def test_a_candidate_of_another_test_than_the_golden_file_is_an_error(folders):
    place = candidate(folders)
    write(measured([run()], test=OTHER, gpu=H200, recorded=""), golden_path(folders[1], TEST))
    before = golden_path(folders[1], TEST).read_text()
    with pytest.raises(CutraceError, match=f"golden file of '{OTHER}'"):
        accept(*folders)
    assert golden_path(folders[1], TEST).read_text() == before != place.read_text()


def test_a_damaged_golden_file_is_an_error(folders):
    candidate(folders)
    write(measured([run()], test=TEST, gpu=H200, recorded=""), path := golden_path(folders[1], TEST))
    path.write_text("<<<<<<< ours\n" + path.read_text())
    with pytest.raises(CutraceError, match=r"\.toml:1: "):
        accept(*folders)


def test_no_folder_and_no_candidate_are_told_apart(folders):
    with pytest.raises(CutraceError, match="there is no folder"):
        accept(*folders)
    folders[0].mkdir(parents=True)
    with pytest.raises(CutraceError, match="holds no candidate"):
        accept(*folders)


def test_a_golden_file_elsewhere_has_no_candidate(folders, tmp_path):
    golden = measured([run()], test=TEST, gpu=H200, recorded="r")
    with pytest.raises(CutraceError, match=r"elsewhere\.toml is not under .*golden"):
        propose(golden, tmp_path / "elsewhere.toml", *folders)


def test_a_candidate_says_all_that_was_measured(folders):
    golden = measured([run()], test=TEST, gpu=H200, recorded="r")
    assert candidate(folders).read_text() == text(golden)
