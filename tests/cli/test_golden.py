"""cutrace golden: maintain golden files without a GPU and without running tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures import Capture
from cutrace.analysis.marks import begin, end
from cutrace.golden import digest, golden_path, propose, read, write_changes
from support import cutrace
from support.measured import change

STAYS, GONE, OTHER = "tests/test_a.py::test_stays[1]", "tests/test_a.py::test_gone", "tests/test_b.py::test_it"


@pytest.fixture
def project(tmp_path) -> Path:
    """A project with a test file, and golden values of an existing test and of a removed test."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("raise SystemExit\ndef test_stays(): ...\n")
    write_changes([change(tmp_path / "golden", nodeid) for nodeid in (STAYS, GONE)])
    return tmp_path


def golden(project: Path, *arguments: object, **options) -> tuple[int, str, str]:
    done = cutrace("golden", *arguments, cwd=project, **options)
    return done.returncode, done.stdout, done.stderr


def values_in(project: Path, nodeid: str = STAYS) -> list[str]:
    return list(read(golden_path(project / "golden", nodeid)).tests)


# check


def test_check_names_what_is_stale_and_imports_no_test(project):
    # The test file of this project ends the process that imports it.
    assert golden(project, "check") == (
        1,
        f"golden/tests/test_a.toml: tests/test_a.py has no test_gone: {GONE}\n"
        "2 tests in 1 golden file, 1 stale, 0 damaged\n",
        "`cutrace golden check --prune` deletes the stale ones.\n",
    )


def test_check_is_content_when_all_is_well(project):
    assert golden(project, "check", "--prune", "--yes")[0] == 0
    assert golden(project, "check") == (0, "1 test in 1 golden file, 0 stale, 0 damaged\n", "")


def test_check_takes_a_list_of_collected_tests(project):
    (project / "ids").write_text("tests/test_a.py::test_stays[2]\n\n1 test collected in 0.01s\n")
    assert "2 stale" in golden(project, "check", "--collected", "ids")[1]
    assert "1 stale" in golden(project, "check", "--collected", "-", input=STAYS)[1]


def test_check_knows_that_a_list_is_not_complete(project):
    text = "tests/test_a.py::test_stays[2]\n\n1/3 tests collected (2 deselected) in 0.01s\n"
    status, output, notes = golden(project, "check", "--collected", "-", input=text)
    assert (status, output) == golden(project, "check")[:2]
    assert "the list lacks 2 tests that pytest deselected: only sources are searched" in notes


def test_check_names_damaged_files_with_their_line_and_the_rest_all_the_same(project):
    write_changes([change(project / "golden", OTHER)])
    golden_path(project / "golden", OTHER).write_text("<<<<<<< ours\n")
    status, said, complaints = golden(project, "check")
    assert status == 2
    assert "1 stale, 1 damaged" in said
    assert "cutrace: golden/tests/test_b.toml:1: " in complaints


# prune


def test_prune_asks_first(project):
    status, said, asked = golden(project, "check", "--prune", input="n\n")
    assert status == 1
    assert "Delete the values of 1 test? [y/N]" in asked
    assert "Nothing was deleted." in said
    assert len(values_in(project)) == 2


@pytest.mark.parametrize(("options", "answer"), [([], "y\n"), (["--yes"], "")])
def test_prune_deletes_what_is_stale_and_nothing_else(project, options, answer):
    status, said, _ = golden(project, "check", "--prune", *options, input=answer)
    assert status == 0
    assert "values of 1 test deleted" in said
    assert values_in(project) == ["test_stays[1]"]
    assert golden(project, "check", "--prune", "--yes") == (0, "no golden value is stale\n", "")


def test_prune_deletes_nothing_when_nobody_answers(project):
    status, _, complaint = golden(project, "check", "--prune", input="")
    assert status == 2
    assert "Add --yes" in complaint
    assert len(values_in(project)) == 2


# accept


@pytest.fixture
def candidates(project) -> Path:
    """The candidates of a run with a changed test, an unchanged test, and a new test."""
    root = project / "golden"
    known = read(golden_path(root, STAYS)).tests
    more = change(root, STAYS, before=digest(known["test_stays[1]"], "sm_90"), syncs={"cudaStreamSynchronize": 2})
    propose([more, change(root, GONE), change(root, OTHER)], project / "proposed", root)
    return project


def test_accept_lists_what_changed(candidates):
    status, said, complaints = golden(candidates, "accept", "proposed")
    assert (status, complaints) == (0, "")
    assert [line.split() for line in said.splitlines()] == [
        [STAYS],
        ["sm_90", "old", "new"],
        ["sync_calls", "1", "2", "+", "cudaStreamSynchronize"],
        [OTHER, "is", "new"],
        ["3", "candidates,", "2", "tests", "changed"],
    ]
    assert golden(candidates, "accept", "proposed")[1] == "3 candidates, 0 tests changed\n"


def test_accept_takes_a_selection_and_tries_it_without_writing(candidates):
    before = golden_path(candidates / "golden", STAYS).read_text()
    status, said, _ = golden(candidates, "accept", "proposed", OTHER, "--dry-run")
    assert (status, said) == (0, f"{OTHER} is new\n1 candidate, 1 test would change\n")
    assert not golden_path(candidates / "golden", OTHER).exists()
    assert golden(candidates, "accept", "proposed", "tests/test_b.py")[0] == 0
    assert values_in(candidates, OTHER) == ["test_it"]
    assert golden_path(candidates / "golden", STAYS).read_text() == before


def test_accept_refuses_a_candidate_that_is_older_than_the_golden_file(candidates):
    write_changes([change(candidates / "golden", STAYS, memset_count=7)])
    before = golden_path(candidates / "golden", STAYS).read_text()
    status, said, complaint = golden(candidates, "accept", "proposed")
    assert (status, said) == (2, "")
    assert complaint.startswith("cutrace: proposed/tests/test_a.toml:")
    assert "(golden/tests/test_a.toml:" in complaint
    assert golden_path(candidates / "golden", STAYS).read_text() == before


def test_accept_refuses_a_folder_around_the_candidates(candidates):
    before = values_in(candidates)
    status, said, complaint = golden(candidates, "accept", ".")
    assert (status, said) == (2, "")
    assert complaint == "cutrace: . is not the folder of candidates: name proposed\n"
    assert values_in(candidates) == before


def test_accept_says_that_the_golden_file_is_missing(candidates):
    status, _, complaint = golden(candidates, "accept", "proposed", "--golden-dir", "elsewhere")
    assert status == 2
    assert (
        "elsewhere/tests/test_a.toml, which does not exist: name the folder of golden files with --golden" in complaint
    )
    assert not (candidates / "elsewhere").exists()


# create


def capture(path: Path, *kernels: str, test: str | None = STAYS, sm: int = 90) -> Path:
    """The capture of a program, or of a test, that launches kernels."""
    with Capture(path) as c:
        c.device(compute_major=sm // 10, compute_minor=sm % 10)
        c.context()
        if test is not None:
            c.mark(begin("test", test), 1_000, source=1)
        for at, name in enumerate(kernels, 2):
            c.api("cudaLaunchKernel", at * 1_000, at * 1_000 + 200, correlation=at)
            c.kernel(c.launch(name), at * 1_000 + 300, at * 1_000 + 900, correlation=at)
        if test is not None:
            c.mark(end("test", test), 90_000, source=1)
    return path


def test_create_makes_a_golden_file_of_a_capture_that_check_passes(tmp_path):
    capture(tmp_path / "a.bin", "softmax", "add")
    path = golden_path(tmp_path / "golden", STAYS)
    assert golden(tmp_path, "create", "a.bin") == (0, f"{STAYS} is new\n1 test, 1 golden file written\n", "")
    assert path.read_text().endswith('["test_stays[1]"]\nkernels = { add = 1, softmax = 1 }\n')
    assert cutrace("diff", path, tmp_path / "a.bin").returncode == 0
    assert golden(tmp_path, "create", "a.bin")[1] == "1 test, 0 golden files written\n"


def test_create_of_two_captures_writes_what_they_do_not_agree_on_as_unstable(tmp_path):
    captures = [capture(tmp_path / "a.bin", "softmax"), capture(tmp_path / "b.bin", "softmax", "add")]
    status, said, _ = golden(tmp_path, "create", *captures, "-o", "g.toml")
    assert status == 0
    assert "kernel_launches is unstable: runs did not agree" in said
    assert (tmp_path / "g.toml").read_text().endswith("unstable.kernels = { add = [0, 1], softmax = 1 }\n")
    assert cutrace("diff", tmp_path / "g.toml", *captures).returncode == 0


def test_create_of_a_capture_without_tests_takes_a_name(tmp_path):
    capture(tmp_path / "a.bin", "softmax", test=None)
    assert golden(tmp_path, "create", "a.bin", "--test", "softmax", "-o", "g.toml")[0] == 0
    assert cutrace("diff", tmp_path / "g.toml", tmp_path / "a.bin").returncode == 0


def test_create_adds_an_environment_and_updates_a_known_one(tmp_path):
    for sm, kernels in ((80, ["ampere"]), (90, ["hopper"]), (90, ["hopper", "add"])):
        status, said, _ = golden(tmp_path, "create", capture(tmp_path / "a.bin", *kernels, sm=sm))
        assert status == 0
    assert "+ add (new)" in said
    golden_file = golden_path(tmp_path / "golden", STAYS)
    assert read(golden_file).tests["test_stays[1]"]["sm_80"].values[""] == {"kernel_launches": {"ampere": 1}}
    assert cutrace("diff", golden_file, tmp_path / "a.bin").returncode == 0


BAD = {
    "no golden files": (["check", "--golden-dir", "absent"], "name it with --golden-dir"),
    "no tests": (["check", "--rootdir", "absent"], "name the root folder of the tests with --rootdir"),
    "no list": (
        ["check", "--collected", "absent"],
        "cannot read the list of tests absent: No such file or directory. Check",
    ),
    "an empty list": (["check", "--collected", "-"], "pytest --collect-only --verbosity=-1"),
    "a list where the answer would come from": (["check", "--prune", "--collected", "-"], "add --yes"),
    "an answer to no question": (["check", "--yes"], "add --prune"),
    "no candidates": (["accept", "absent"], "there is no folder absent"),
    "no capture": (["create", "absent.bin"], "absent.bin"),
    "a capture that marks no test": (["create", "whole.bin"], "name it with --test"),
    "a capture without such a test": (["create", "test.bin", "--test", "x"], "they have tests/test_a.py::test_stays"),
    "a capture without GPU work": (["create", "idle.bin"], "names no GPU"),
    "a golden file of another module": (["create", "other.bin", "-o", "golden/tests/test_a.toml"], "test_a.toml:4: "),
    "one file for two modules": (["create", "test.bin", "other.bin", "-o", "new.toml"], "would be the golden file of"),
    "a place that cannot be written": (["create", "test.bin", "-o", "test.bin/a.toml"], "test.bin/a.toml"),
    "a folder for a golden file": (["create", "test.bin", "-o", "golden"], "golden: it is not a file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_status_2(case, project):
    capture(project / "whole.bin", "k", test=None)
    capture(project / "test.bin", "k")
    capture(project / "other.bin", "k", test=OTHER)
    capture(project / "idle.bin")
    before = golden_path(project / "golden", STAYS).read_text()
    arguments, sentence = BAD[case]
    status, _, complaint = golden(project, *arguments, input="")
    assert status == 2
    assert complaint.startswith("cutrace: ")
    assert complaint.count("\n") == 1
    assert sentence in complaint
    assert golden_path(project / "golden", STAYS).read_text() == before
