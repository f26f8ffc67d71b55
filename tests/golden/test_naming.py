"""Where golden files are: readable, and never two ids in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.golden.naming import LONGEST, golden_path

ROOT = Path("golden")

PLAIN = {
    "tests/test_softmax.py::test_fwd": "tests/test_softmax.py/test_fwd.toml",
    "tests/test_softmax.py::TestSoftmax::test_fwd": "tests/test_softmax.py/TestSoftmax.test_fwd.toml",
    "tests/test_softmax.py::TestSoftmax::test_fwd[float16-1024x4096]": (
        "tests/test_softmax.py/TestSoftmax.test_fwd/float16-1024x4096.toml"
    ),
    "test_a.py::test[a=1,b=2.5]": "test_a.py/test/a=1,b=2.5.toml",
    "x/y.z/test_a.py::A::B::test": "x/y.z/test_a.py/A.B.test.toml",
}


@pytest.mark.parametrize("nodeid", PLAIN)
def test_a_plain_id_is_kept_as_it_is(nodeid):
    assert golden_path(ROOT, nodeid) == ROOT / PLAIN[nodeid]


ODD = {
    "a space": ("test_a.py::test[a b]", "test_a.py/test/a_b~"),
    "a slash": ("test_a.py::test[cuda/cpu]", "test_a.py/test/cuda_cpu~"),
    "two dots": ("test_a.py::test[..]", "test_a.py/test/_.~"),
    "no parameters between brackets": ("test_a.py::test[]", "test_a.py/test/_~"),
    "a bracket in brackets": ("test_a.py::test[x[0]]", "test_a.py/test/x_0_~"),
    "a way out": ("../other/test_a.py::test", "_./other/test_a.py/test~"),
    "an absolute path": ("/tmp/test_a.py::test", "tmp/test_a.py/test~"),
    "not Python": ("docs/case.toml::step 1", "docs/case_toml/step_1~"),
    "no function": ("README.md", "README.md/_~"),
    "nothing": ("", "_/_~"),
    "a control character": ("test_a.py::test[a\nb]", "test_a.py/test/a_b~"),
    "another alphabet": ("test_a.py::test[größe]", "test_a.py/test/gr__e~"),
    "a hidden folder": (".ci/test_a.py::test", "_ci/test_a.py/test~"),
    "the mark of a hash": ("test_a.py::test[a~b]", "test_a.py/test/a_b~"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_id_stays_readable_and_gets_a_hash(case):
    nodeid, begin = ODD[case]
    path = golden_path(ROOT, nodeid).relative_to(ROOT).as_posix()
    assert path.startswith(begin)
    assert len(path) == len(begin) + 12 + len(".toml")


def test_a_long_id_is_cut_and_gets_a_hash():
    path = golden_path(ROOT, f"test_a.py::test[{'x' * 101}]")
    assert len(path.stem) == LONGEST
    assert path.stem.startswith("x" * 80)
    assert "~" in path.stem
    assert golden_path(ROOT, f"test_a.py::test[{'x' * 100}]").stem == "x" * 100


def test_an_id_of_any_length_makes_a_path_that_systems_accept(tmp_path):
    path = golden_path(tmp_path, "a/" * 5000 + "test_a.py::" + "Class::" * 500 + f"test[{'y' * 10000}]")
    path.parent.mkdir(parents=True)
    path.touch()
    assert path.is_file()


# Ids made of what ids are made of, so that near misses are frequent.
pieces = st.sampled_from(
    ["a", "A", "b", "test", "T", "::", "[", "]", "/", ".", "..", ".py", ".toml", "_", "-", "~", " ", "\\", "é", "\n"]
)
ids = st.one_of(st.text(max_size=30), st.lists(pieces, max_size=12).map("".join))


@given(st.sets(ids, min_size=2, max_size=20))
def test_different_ids_never_meet(nodeids):
    paths = {golden_path(ROOT, nodeid) for nodeid in nodeids}
    assert len(paths) == len(nodeids)


@given(st.sets(ids, min_size=2, max_size=20))
def test_no_golden_file_is_in_the_way_of_a_folder(nodeids):
    paths = {golden_path(ROOT, nodeid) for nodeid in nodeids}
    assert not paths & {folder for path in paths for folder in path.parents}


@given(ids)
def test_every_path_stays_under_the_root_and_is_seen(nodeid):
    path = golden_path(ROOT, nodeid)
    assert path.parts[0] == ROOT.name
    assert len(path.parts) >= 3
    assert not any(part.startswith(".") for part in path.parts)
    assert path.suffix == ".toml"
    assert all(len(part) <= LONGEST + len(".toml") for part in path.parts)


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
    first, second = golden_path(ROOT, one), golden_path(ROOT, other)
    assert first != second
    assert first not in second.parents
    assert second not in first.parents
