"""Writing of golden files: all changes of a run are written at once, and candidates are accepted later."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.errors import CutraceError
from cutrace.golden import (
    Accepted,
    Entry,
    Module,
    accept,
    check,
    compare,
    digest,
    golden_path,
    joined,
    propose,
    prune,
    read,
    write,
    write_changes,
)
from support.measured import MODULE, NAME, TEST, change, entry, run

OTHER = "tests/test_other.py::test_it"


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "golden"


@pytest.fixture
def proposed(tmp_path) -> Path:
    return tmp_path / ".cutrace" / "proposed"


def put(root: Path, known: Entry, test: str = NAME) -> str:
    """Write a golden file of one test and return its text."""
    write(Module(MODULE, {test: known}), golden_path(root, TEST))
    return said(root)


def said(root: Path) -> str:
    return golden_path(root, TEST).read_text()


def known(root: Path) -> Entry:
    return read(golden_path(root, TEST)).tests[NAME]


def ids(root: Path) -> list[str]:
    return list(read(golden_path(root, TEST)).tests)


# Writing


def test_changes_of_many_tests_are_one_file_each_module(root):
    changes = [change(root, f"{MODULE}::test[{i}]") for i in range(20)] + [change(root, OTHER)]
    written = write_changes(changes)
    assert written == (golden_path(root, OTHER), golden_path(root, TEST))
    assert len(ids(root)) == 20
    assert write_changes(changes) == ()


SOURCE = ["test_z", "test_b[2]", "test_b[10-x]", "test_b[10]", "test_a"]
LINES = {"test_z": 3, "test_b": 9, "test_a": 20}


@given(st.permutations(SOURCE), st.sets(st.sampled_from(SOURCE)), st.booleans())
def test_the_order_is_that_of_lines_then_of_natural_names_whatever_came_first(
    tmp_path_factory, arrival, first, known_lines
):
    root = tmp_path_factory.mktemp("golden")
    lines = LINES if known_lines else {}
    changes = {name: change(root, f"{MODULE}::{name}", line=lines.get(name.split("[")[0], 0)) for name in arrival}
    ordered = SOURCE if known_lines else sorted(SOURCE, key=["test_a", *SOURCE[1:4], "test_z"].index)
    # A second run has all tests. It adds the tests that the first run lacked in their places.
    write_changes([changes[name] for name in arrival if name in first])
    write_changes(changes.values())
    assert ids(root) == ordered


def test_what_is_there_keeps_its_place(root):
    before = Module(MODULE, {"test_c": entry(), "test_a": entry()})
    write(before, golden_path(root, TEST))
    write_changes([change(root, f"{MODULE}::{name}", memset_count=2) for name in ("test_b", "test_a")])
    assert ids(root) == ["test_c", "test_a", "test_b"]
    assert read(golden_path(root, TEST)).tests["test_c"] == entry()


def test_writing_what_is_there_already_touches_nothing(root):
    (path,) = write_changes([change(root)])
    commented = path.read_text().replace("softmax_fwd = 1", "softmax_fwd = 0x1").replace("\n", "  # why\r\n")
    path.write_bytes(commented.encode())
    before = path.stat().st_mtime_ns
    assert write_changes([change(root)]) == ()
    assert path.read_bytes() == commented.encode()
    assert path.stat().st_mtime_ns == before


def test_other_environments_stay_as_they_are(root):
    put(root, entry())
    write_changes([change(root, environment="sm_80", memset_count=2)])
    assert known(root) == {**entry(), **entry(run(memset_count=2), environment="sm_80")}


@pytest.mark.parametrize("number", ["9" * 5000, "²", "٣", "", "::", "]["])
def test_any_id_has_a_place(root, number):
    write_changes([change(root, f"{MODULE}::test[{name}]") for name in (number, "1", "x")])
    assert set(ids(root)) == {f"test[{number}]", "test[1]", "test[x]"}


def test_each_golden_file_is_read_once_to_be_written(root, monkeypatch):
    put(root, entry())
    paths, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: paths.append(path) or read_bytes(path))
    assert write_changes([change(root, memset_count=2), change(root, f"{MODULE}::test[1]")])
    assert paths == [golden_path(root, TEST)]


def test_an_id_without_a_file_has_a_golden_file_too(root):
    write_changes([change(root, "softmax")])
    golden = read(golden_path(root, "softmax"), module="")
    assert joined(golden.path, next(iter(golden.tests))) == "softmax"


# Nothing is lost


def test_a_damaged_file_stays_as_it_is_and_the_others_are_written(root):
    path = golden_path(root, TEST)
    path.parent.mkdir(parents=True)
    path.write_text("<<<<<<< ours\n")
    with pytest.raises(CutraceError, match=r"test_softmax\.toml:1: there are marks of a merge conflict"):
        write_changes([change(root), change(root, OTHER)])
    assert path.read_text() == "<<<<<<< ours\n"
    assert golden_path(root, OTHER).is_file()


def test_a_folder_that_cannot_be_written_is_named_and_the_others_are_written(root, tmp_path):
    (tmp_path / "file").touch()
    closed = replace(change(root), path=tmp_path / "file" / "a.toml")
    too_long = replace(change(root), path=tmp_path / ("x" * 300) / "a.toml")
    with pytest.raises(CutraceError, match=r"cannot .*file/a\.toml.*; .*xxx/a\.toml"):
        write_changes([closed, too_long, change(root, OTHER)])
    assert golden_path(root, OTHER).is_file()


def test_the_file_of_another_module_is_not_overwritten(root):
    before = put(root, entry())
    stray = replace(change(root, OTHER), path=golden_path(root, TEST))
    with pytest.raises(CutraceError, match=r"golden file of 'tests/test_softmax.py', not of 'tests/test_other.py'"):
        write_changes([stray])
    assert said(root) == before


def test_two_modules_cannot_share_a_file(root):
    stray = replace(change(root, OTHER), path=golden_path(root, TEST))
    with pytest.raises(CutraceError, match=r"would be the golden file of 'tests/test_softmax\.py' and of"):
        write_changes([change(root), stray])


# Candidates


def candidate(proposed: Path, root: Path, *, environment: str = "sm_90", **changed: Any) -> Path:
    """Write a candidate that was compared with the current golden file."""
    path = golden_path(root, TEST)
    old = read(path).tests.get(NAME) if path.exists() else None
    wanted = change(root, environment=environment, before=digest(old, environment), **changed)
    return propose([wanted], proposed, root)[0]


def test_a_candidate_is_where_the_golden_file_would_be(proposed, root):
    place = candidate(proposed, root)
    assert place.relative_to(proposed) == golden_path(root, TEST).relative_to(root)
    assert read(place, module=MODULE).tests == {NAME: entry()}


def test_a_candidate_becomes_the_golden_file_and_stays(proposed, root):
    place = candidate(proposed, root)
    assert accept(proposed, root) == (Accepted(TEST, golden_path(root, TEST), {}, entry()),)
    assert said(root) == place.read_text()
    assert compare(known(root), [run()], environment="sm_90").failed is False


def test_accepting_again_changes_nothing(proposed, root):
    put(root, entry())
    candidate(proposed, root, memset_count=2)
    assert accept(proposed, root)[0].changed
    before = golden_path(root, TEST).stat().st_mtime_ns
    assert not accept(proposed, root)[0].changed
    assert golden_path(root, TEST).stat().st_mtime_ns == before


@pytest.mark.parametrize("later", ["another value", "gone", "new"])
def test_a_candidate_that_is_older_than_the_golden_file_is_refused_and_nothing_is_written(proposed, root, later):
    if later != "new":
        put(root, entry())
    place = candidate(proposed, root, memset_count=2)
    propose([change(root, OTHER)], proposed, root)
    before = put(root, entry(run(memset_count=3)), *(["other"] if later == "gone" else []))
    line = place.read_text().splitlines().index(f'["{NAME}"]') + 1
    with pytest.raises(CutraceError, match=r"has changed since this candidate of .* was written") as error:
        accept(proposed, root)
    assert str(error.value).startswith(f"{place}:{line}: ")
    assert f"({golden_path(root, TEST)}:{1 if later == 'gone' else 6})" in str(error.value)
    assert said(root) == before
    assert not golden_path(root, OTHER).exists()


def test_what_changed_in_another_environment_or_of_another_test_makes_nothing_stale(proposed, root):
    put(root, entry())
    candidate(proposed, root, memset_count=2)
    write_changes([change(root, environment="sm_80"), change(root, f"{MODULE}::test_other")])
    accept(proposed, root)
    assert known(root) == {**entry(run(memset_count=2)), **entry(environment="sm_80")}


def test_candidates_of_two_environments_are_accepted_one_after_the_other(tmp_path, root):
    put(root, entry())
    for name in ("sm_80", "sm_120"):  # both environments ran with the same golden file
        candidate(tmp_path / name, root, environment=name, kernels={f"{name}_gemm": 1})
    for name in ("sm_80", "sm_120"):
        accept(tmp_path / name, root)
    assert set(known(root)) == {"sm_90", "sm_80", "sm_120"}
    for name in ("sm_80", "sm_120"):
        assert not compare(known(root), [run(kernels={f"{name}_gemm": 1})], environment=name).failed
    assert not compare(known(root), [run()], environment="sm_90").failed


SELECTED = {
    TEST: 1,
    "tests/test_other.py": 1,
    "tests/test_softmax.py": 3,
    "tests/test_softmax.py::TestSoftmax": 1,
    "tests/test_softmax.py::test_p": 2,
    "tests/test_softmax.py::test_p[[]1]": 1,
    "*test_p*": 2,
}


@pytest.mark.parametrize("word", SELECTED)
def test_a_selection_takes_a_test_a_class_a_file_or_a_pattern(proposed, root, word):
    changes = [change(root, nodeid) for nodeid in (TEST, f"{MODULE}::test_p[1]", f"{MODULE}::test_p[2]", OTHER)]
    propose(changes, proposed, root)
    assert len(accept(proposed, root, select=[word])) == SELECTED[word]


def test_a_selection_of_nothing_is_an_error(proposed, root):
    candidate(proposed, root)
    with pytest.raises(CutraceError, match="holds no candidate of tests/test_soft:"):
        accept(proposed, root, select=["tests/test_soft"])


def test_a_dry_run_tells_the_same_and_writes_nothing(proposed, root):
    candidate(proposed, root)
    assert accept(proposed, root, dry_run=True)[0].changed
    assert not root.exists()


def test_candidates_come_in_the_order_of_the_source_and_keep_it(proposed, root):
    names = ["test_z", "test_b", "test_a"]
    changes = [change(root, f"{MODULE}::{name}", line=at) for at, name in enumerate(names, 1)]
    random.Random(1).shuffle(changes)
    propose(changes, proposed, root)
    accept(proposed, root)
    assert ids(root) == names


def test_one_bad_candidate_and_nothing_is_written(proposed, root):
    candidate(proposed, root)
    (bad,) = propose([change(root, OTHER)], proposed, root)
    bad.write_text(bad.read_text().replace("memset_count = 1", "memset_count = one"))
    with pytest.raises(CutraceError, match=r"test_other\.toml:\d+: "):
        accept(proposed, root)
    assert not root.exists()


@pytest.mark.parametrize("damage", ["<<<<<<< ours\n", "format = 1\n"])
def test_a_damaged_golden_file_is_not_overwritten(proposed, root, damage):
    candidate(proposed, root)
    put(root, entry())
    golden_path(root, TEST).write_text(damage)
    with pytest.raises(CutraceError, match=r"golden/tests/test_softmax\.toml:1: "):
        accept(proposed, root)
    assert said(root) == damage


def test_no_folder_and_no_candidate_are_told_apart(proposed, root):
    with pytest.raises(CutraceError, match="there is no folder"):
        accept(proposed, root)
    proposed.mkdir(parents=True)
    with pytest.raises(CutraceError, match="holds no candidate:"):
        accept(proposed, root)


def test_a_golden_file_elsewhere_has_no_candidate(proposed, root, tmp_path):
    with pytest.raises(CutraceError, match=r"elsewhere\.toml is not under .*golden"):
        propose([replace(change(root), path=tmp_path / "elsewhere.toml")], proposed, root)


def test_a_digest_is_that_of_one_environment():
    both = {**entry(), **entry(run(memset_count=2), environment="sm_80")}
    assert digest(both, "sm_90") == digest(entry(), "sm_90") != digest(both, "sm_80")
    assert digest(None, "sm_90") == digest(entry(), "sm_80") == ""
    assert digest(entry(confirmed=False), "sm_90") != digest(entry(), "sm_90")


def test_a_new_test_stands_where_it_stands_in_its_source(root, tmp_path):
    source = tmp_path / MODULE
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(
        "def test_b(): ...\n\nclass TestC:\n    def test_1(self): ...\n\n    def test_2(self): ...\n\n"
        "if True:\n    async def test_a(): ...\n"
    )
    write(Module(MODULE, {"test_b": entry(), "TestC::test_2": entry()}), golden_path(root, TEST))
    new = [change(root, f"{MODULE}::{name}") for name in ("test_a", "TestC::test_1[x]", "test_made")]
    lines = {"test_a": 9, "TestC::test_1[x]": 4}
    for one in new:
        write_changes([replace(one, source=source, line=lines.get(one.nodeid.partition("::")[2], 0))])
    assert ids(root) == ["test_b", "TestC::test_1[x]", "TestC::test_2", "test_a", "test_made"]


@pytest.fixture
def update(root, tmp_path):
    """Updates the golden file of a module. A test is a function, and has metrics."""

    def update(**tests: dict[str, int]) -> str:
        source = tmp_path / MODULE
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("".join(f"def {function}(): ...\n" for function in tests))
        changes = []
        for line, (function, values) in enumerate(tests.items(), 1):
            one = change(root, f"{MODULE}::{function}[1]", line=line, **values)
            changes.append(replace(one, source=source))
        write_changes(changes)
        prune(check(root, tmp_path).stale, root)
        return said(root)

    return update


def test_a_branch_adds_a_test_before_one_that_another_branch_renames(root, tmp_path, update):
    base = update(test_a={}, test_b={}, test_c={})
    ours = update(test_a={}, test_new={}, test_b={}, test_c={})
    golden_path(root, TEST).write_text(base)
    theirs = update(test_a={}, test_renamed={}, test_c={"memset_count": 2})
    for name, golden in {"base": base, "ours": ours, "theirs": theirs}.items():
        (tmp_path / name).write_text(golden)
    merge = ["git", "merge-file", "ours", "base", "theirs"]
    assert subprocess.run(merge, cwd=tmp_path).returncode == 0
    merged = read(tmp_path / "ours")
    assert list(merged.tests) == ["test_a[1]", "test_new[1]", "test_renamed[1]", "test_c[1]"]
    assert merged.marks["test_renamed"] == read(tmp_path / "base").marks["test_b"]
    assert len(set(merged.marks.values())) == 4


def test_renamed_tests_keep_their_marks_in_order_at_the_start_too(root, update):
    update(test_a={}, test_b={}, test_c={})
    before = read(golden_path(root, TEST)).marks
    update(test_1={}, test_2={"memset_count": 2}, test_c={})
    after = read(golden_path(root, TEST)).marks
    assert after == {"test_1": before["test_a"], "test_2": before["test_b"], "test_c": before["test_c"]}


def test_a_file_without_marks_gets_them_for_the_tests_that_change(root, update):
    tests = {f"{name}[1]": entry() for name in ("test_a", "test_b", "test_c")}
    write(Module(MODULE, tests), golden_path(root, TEST))
    old = said(root)
    assert update(test_a={}, test_b={}, test_c={}) == old
    update(test_a={}, test_renamed={}, test_c={"memset_count": 2})
    assert read(golden_path(root, TEST)).marks.keys() == {"test_renamed", "test_c"}


def test_an_accepted_test_stands_where_it_stands_in_its_source(root, tmp_path):
    (tmp_path / MODULE).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / MODULE).write_text("def test_1(): ...\ndef test_2(): ...\ndef test_3(): ...\n")
    write(Module(MODULE, {"test_1": entry(), "test_3": entry()}), golden_path(root, TEST))
    propose([change(root, f"{MODULE}::test_2")], tmp_path / "proposed", root)
    accept(tmp_path / "proposed", root, tests=tmp_path)
    assert ids(root) == ["test_1", "test_2", "test_3"]
