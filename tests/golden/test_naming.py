"""Paths of golden files and artifacts: readable and unique."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.golden import artifact_path, golden_path, split
from cutrace.golden.naming import LONGEST, suite_of

ROOT = Path("golden")

SOFTMAX = "tests/test_softmax.py"
PLACES = [
    (golden_path, f"{SOFTMAX}::test_fwd", "tests/test_softmax.toml"),
    (golden_path, f"{SOFTMAX}::TestSoftmax::test_fwd[float16-1024x4096]", "tests/test_softmax.toml"),
    (golden_path, "x/y.z/test_a.py::test", "x/y.z/test_a.toml"),
    (golden_path, "test_a.b.py::test", "test_a.b.py.toml"),
    (golden_path, "docs/case.txt::step 1", "docs/case.txt.toml"),
    (artifact_path, f"{SOFTMAX}::test_fwd", f"{SOFTMAX}/test_fwd"),
    (artifact_path, f"{SOFTMAX}::TestSoftmax::test_fwd", f"{SOFTMAX}/TestSoftmax.test_fwd"),
    (artifact_path, f"{SOFTMAX}::TestA::test_fwd[float16-1024x4096]", f"{SOFTMAX}/TestA.test_fwd/float16-1024x4096"),
    (artifact_path, "test_a.py::test[a=1,b=2.5]", "test_a.py/test/a=1,b=2.5"),
    (artifact_path, "x/y.z/test_a.py::A::B::test", "x/y.z/test_a.py/A.B.test"),
]


@pytest.mark.parametrize(("path", "nodeid", "place"), PLACES)
def test_a_plain_id_is_readable_in_its_paths(path, nodeid, place):
    assert path(ROOT, nodeid) == ROOT / place


ODD = {
    "a space": ("test_a.py::test[a b]", "test_a.py/test/a_b~"),
    "a slash": ("test_a.py::test[cuda/cpu]", "test_a.py/test/cuda_cpu~"),
    "two dots": ("test_a.py::test[..]", "test_a.py/test/_.~"),
    "no parameters between brackets": ("test_a.py::test[]", "test_a.py/test~"),
    "a bracket in brackets": ("test_a.py::test[x[0]]", "test_a.py/test/x_0_~"),
    "a way out": ("../other/test_a.py::test", "_./other/test_a.py/test~"),
    "an absolute path": ("/tmp/test_a.py::test", "tmp/test_a.py/test~"),
    "not Python": ("docs/case.toml::step 1", "docs/case_toml/step_1~"),
    "no function": ("README.md", "README.md~"),
    "nothing": ("", "_~"),
    "a control character": ("test_a.py::test[a\nb]", "test_a.py/test/a_b~"),
    "another alphabet": ("test_a.py::test[größe]", "test_a.py/test/gr__e~"),
    "a hidden folder": (".ci/test_a.py::test", "_ci/test_a.py/test~"),
    "the mark of a hash": ("test_a.py::test[a~b]", "test_a.py/test/a_b~"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_id_stays_readable_and_gets_a_hash(case):
    nodeid, begin = ODD[case]
    path = artifact_path(ROOT, nodeid).relative_to(ROOT).as_posix()
    assert path.startswith(begin)
    assert len(path) == len(begin) + 12


@pytest.mark.parametrize(
    ("file", "begin"),
    [
        ("../test_a.py", "_./test_a.py~"),
        ("t s/test_a.py", "t_s/test_a.py~"),
        ("test_a", "test_a~"),
        (".a/.py", "_a/_py~"),
    ],
)
def test_an_odd_file_stays_readable_and_gets_a_hash(file, begin):
    path = golden_path(ROOT, f"{file}::test").relative_to(ROOT).as_posix()
    assert path.startswith(begin)
    assert len(path) == len(begin) + 12 + len(".toml")


def test_a_long_id_is_cut_and_gets_a_hash():
    path = artifact_path(ROOT, f"test_a.py::test[{'x' * 101}]")
    assert len(path.name) == LONGEST
    assert path.name.startswith("x" * 80)
    assert "~" in path.name
    assert artifact_path(ROOT, f"test_a.py::test[{'x' * 100}]").name == "x" * 100


@pytest.mark.parametrize("place", [golden_path, artifact_path])
def test_an_id_of_any_length_makes_a_path_that_systems_accept(place, tmp_path):
    path = place(tmp_path, "a/" * 5000 + "test_a.py::" + "Class::" * 500 + f"test[{'y' * 10000}]")
    path.parent.mkdir(parents=True)
    path.touch()
    assert path.is_file()


# Ids made from the pieces of real ids, so that near misses are frequent.
pieces = st.sampled_from(
    ["a", "A", "b", "test", "T", "::", "[", "]", "/", ".", "..", ".py", ".toml", "_", "-", "~", " ", "\\", "é", "\n"]
)
ids = st.one_of(st.text(max_size=30), st.lists(pieces, max_size=12).map("".join))


@given(st.sets(ids, min_size=2, max_size=20))
def test_different_ids_never_meet(nodeids):
    assert len({artifact_path(ROOT, nodeid) for nodeid in nodeids}) == len(nodeids)


@given(st.sets(ids, min_size=2, max_size=20))
def test_different_files_never_meet(nodeids):
    files = {split(nodeid)[0] or split(nodeid)[1] for nodeid in nodeids}
    assert len({golden_path(ROOT, nodeid) for nodeid in nodeids}) == len(files)


@given(st.sets(ids, min_size=2, max_size=20))
def test_no_golden_file_is_in_the_way_of_a_folder(nodeids):
    paths = {golden_path(ROOT, nodeid) for nodeid in nodeids}
    assert not paths & {folder for path in paths for folder in path.parents}


@given(ids)
def test_every_path_stays_under_the_root_and_is_seen(nodeid):
    for path in (golden_path(ROOT, nodeid), artifact_path(ROOT, nodeid)):
        assert path.parts[0] == ROOT.name
        assert len(path.parts) >= 2
        assert not any(part.startswith(".") for part in path.parts)
        assert all(len(part) <= LONGEST + len(".toml") for part in path.parts)
    assert golden_path(ROOT, nodeid).suffix == ".toml"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("d/test_f::p", "d::test_f[p]"),
        ("a.py::A::b", "a.py::A.b"),
        ("a.py::A::toml[p]", "a.py::A"),
        ("d.py/x.toml::y", "d.py::x"),
        ("d.py/a.py::t", "d.py::a.py::t"),
    ],
)
def test_ids_that_look_alike_do_not_meet(one, other):
    assert artifact_path(ROOT, one) != artifact_path(ROOT, other)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\ncutrace_golden_dir = tests/gold\n"),
        ("tox.ini", "[tox]\n[pytest]\ncutrace_golden_dir = tests/gold\n"),
        ("setup.cfg", "[tool:pytest]\ncutrace_golden_dir = tests/gold\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\ncutrace_golden_dir = "tests/gold"\n'),
        ("pyproject.toml", '[tool.pytest]\ncutrace_golden_dir = "tests/gold"\n'),
    ],
)
def test_the_suite_of_a_folder_is_that_of_pytest(tmp_path, name, text):
    folder = tmp_path / "tests/sub"
    folder.mkdir(parents=True)
    (tmp_path / "tests/tox.ini").write_text("[tox]\n")
    (tmp_path / "tests/setup.cfg").write_text("not an ini file")
    assert suite_of(folder).rootdir != tmp_path
    (tmp_path / name).write_text(text)
    assert suite_of(folder) == (tmp_path, tmp_path / "tests/gold")
    (tmp_path / "tests/pytest.ini").touch()
    assert suite_of(folder) == (tmp_path / "tests", tmp_path / "tests/golden")
