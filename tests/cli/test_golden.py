"""cutrace golden: care for golden files without a GPU and without running a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutrace.golden import golden_path, measured, propose, write
from support import cutrace
from support.measured import H200, run

STAYS, GONE, OTHER = "tests/test_a.py::test_stays[1]", "tests/test_a.py::test_gone", "tests/test_b.py::test_it"


@pytest.fixture
def project(tmp_path) -> Path:
    """A project with a test file and golden files of a test that is there and of one that is not."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("raise SystemExit\ndef test_stays(): ...\n")
    for nodeid in (STAYS, GONE):
        write(measured([run()], test=nodeid, gpu=H200, recorded="r"), golden_path(tmp_path / "golden", nodeid))
    return tmp_path


def golden(project: Path, *arguments: object, **options) -> tuple[int, str, str]:
    done = cutrace("golden", *arguments, cwd=project, **options)
    return done.returncode, done.stdout, done.stderr


def test_check_names_what_is_stale(project):
    assert golden(project, "check") == (
        1,
        f"golden/tests/test_a.py/test_gone.toml: tests/test_a.py has no test_gone: {GONE}\n"
        "2 golden files, 1 stale, 0 damaged\n",
        "`cutrace golden prune` deletes the stale ones.\n",
    )


def test_check_is_content_when_all_is_well(project):
    golden_path(project / "golden", GONE).unlink()
    assert golden(project, "check") == (0, "1 golden file, 0 stale, 0 damaged\n", "")


def test_check_imports_nothing_that_a_gpu_or_a_test_would_need(project):
    # The test file of this project ends whatever imports it.
    status, _, complaints = golden(project, "check", "--rootdir", project, "--golden-dir", project / "golden")
    assert (status, complaints.count("\n")) == (1, 1)


def test_check_takes_a_list_of_collected_tests(project):
    (project / "ids").write_text("tests/test_a.py::test_stays[2]\n\n1 test collected in 0.01s\n")
    assert "2 stale" in golden(project, "check", "--collected", "ids")[1]
    assert "1 stale" in golden(project, "check", "--collected", "-", input=STAYS)[1]


def test_check_names_damaged_files_with_their_line_and_the_rest_all_the_same(project):
    golden_path(project / "golden", STAYS).write_text("<<<<<<< ours\n")
    status, said, complaints = golden(project, "check")
    assert status == 2
    assert "1 stale, 1 damaged" in said
    assert "cutrace: golden/tests/test_a.py/test_stays/1.toml:1: " in complaints


def test_prune_asks_first(project):
    status, said, asked = golden(project, "prune", input="n\n")
    assert status == 1
    assert "Delete 1 golden file? [y/N]" in asked
    assert "Nothing was deleted." in said
    assert golden_path(project / "golden", GONE).exists()


def test_prune_deletes_what_is_stale_and_nothing_else(project):
    status, said, _ = golden(project, "prune", input="y\n")
    assert status == 0
    assert "1 golden file deleted" in said
    assert not golden_path(project / "golden", GONE).exists()
    assert golden_path(project / "golden", STAYS).exists()
    assert golden(project, "prune", "--yes") == (0, "no golden file is stale\n", "")


def test_prune_does_not_ask_with_yes(project):
    assert golden(project, "prune", "--yes", input="")[0] == 0
    assert not golden_path(project / "golden", GONE).exists()


def test_prune_deletes_nothing_when_nobody_answers(project):
    status, _, complaint = golden(project, "prune", input="")
    assert status == 2
    assert "Add --yes" in complaint
    assert golden_path(project / "golden", GONE).exists()


def leave_candidate(project: Path, test: str, **changed: object) -> None:
    root = project / "golden"
    candidate = measured([run(**changed)], test=test, gpu=H200, recorded="r")
    propose(candidate, golden_path(root, test), project / ".cutrace" / "proposed", root)


def test_accept_lists_what_changed(project):
    leave_candidate(project, STAYS, sync_calls=2, syncs={"cudaStreamSynchronize": 2}, peak_memory_bytes=64 << 20)
    leave_candidate(project, GONE)
    leave_candidate(project, OTHER)
    status, said, complaints = golden(project, "accept", ".cutrace/proposed")
    assert (status, complaints) == (0, "")
    lines = [line.split(maxsplit=4) for line in said.splitlines()]
    assert ["golden/tests/test_a.py/test_stays/1.toml"] in lines
    assert ["[common]", "old", "new", "rule"] in lines
    assert ["sync_calls", "1", "2", "exact", "+ cudaStreamSynchronize"] in lines
    assert ["peak_memory", "32", "MiB", "64", "MiB   +2 %   WORSE"] in lines
    assert "golden/tests/test_b.py/test_it.toml is new\n" in said
    assert "test_gone" not in said
    assert said.endswith("3 candidates, 2 golden files changed\n")
    assert golden_path(project / "golden", OTHER).exists()
    assert golden(project, "accept", ".cutrace/proposed")[1] == "3 candidates, 0 golden files changed\n"


def test_diff_shows_what_changed_and_says_so_by_its_status(project):
    before = golden_path(project / "golden", STAYS)
    after = project / "after.toml"
    write(measured([run(memset_count=2)], test=STAYS, gpu=H200, recorded="r"), after)
    status, said, _ = golden(project, "diff", before, after)
    assert status == 1
    assert said.splitlines() == [
        str(after),
        "  [common]       old  new   rule",
        "  memset_count     1    2   exact   CHANGED",
    ]
    assert golden(project, "diff", "golden", "golden") == (0, "", "")


BAD = {
    "no verb": ([], "Missing command"),
    "no golden files": (["check", "--golden-dir", "absent"], "name it with --golden-dir"),
    "no tests": (["check", "--rootdir", "absent"], "name the root folder of the tests with --rootdir"),
    "no list": (["check", "--collected", "absent"], "cannot read the list of tests absent"),
    "an empty list": (["check", "--collected", "-"], "pytest --collect-only -q"),
    "a list where the answer would come from": (["prune", "--collected", "-"], "add --yes"),
    "no candidates": (["accept", "absent"], "there is no folder absent"),
    "no such file": (["diff", "absent.toml", "absent.toml"], "cannot read the golden file absent.toml"),
    "a file and a folder": (["diff", "golden", "tests/test_a.py"], "two golden files or two folders"),
    "no golden file": (["diff", "tests/test_a.py", "tests/test_a.py"], "test_a.py:1: "),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_status_2(case, project):
    arguments, sentence = BAD[case]
    status, said, complaint = golden(project, *arguments, input="")
    assert (status, said) == (2, "")
    assert complaint.startswith("cutrace: ")
    assert complaint.count("\n") == 1
    assert sentence in complaint
