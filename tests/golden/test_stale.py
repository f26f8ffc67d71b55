"""Golden values without an existing test. They are reported only if this is certain."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Module, StaleCheck, check, collected_ids, golden_path, prune, read, split, write
from support.measured import entry

SOURCE = """
    import unittest
    import pytest
    from helpers import imported_test, Shared

    def test_plain(): ...

    async def test_async(): ...

    if True:
        def test_branch(): ...
    else:
        def test_other_branch(): ...

    try:
        import cupy
    except ImportError:
        def test_handler(): ...

    match 1:
        case 1:
            def test_case(): ...

    test_assigned = test_plain

    @pytest.mark.parametrize("x", [1, 2])
    def test_parametrized(x): ...

    @expand([1, 2])
    def test_expanded(x): ...

    class Base:
        def test_of_base(self): ...

    class TestChild(Base):
        def test_own(self): ...
        class TestInner:
            def test_inner(self): ...

    class TestUnit(unittest.TestCase):
        def test_unit(self): ...

    class TestShared(Shared): ...

    @parameterize({"n": 1})
    class TestMade:
        def test_made(self): ...

    class TestMeta(metaclass=Shared): ...

    @pytest.mark.gpu
    class TestMarked:
        def test_marked(self): ...

    TestAssigned = made_by_a_function()
"""
THERE = [
    "test_plain",
    "test_async",
    "test_branch",
    "test_other_branch",
    "test_handler",
    "test_case",
    "test_assigned",
    "imported_test",
    "test_parametrized[1]",
    "test_parametrized[3]",  # the parameters are known only when tests are collected
    "test_expanded_0_x",
    "Base::test_of_base",
    "TestChild::test_own",
    "TestChild::test_of_base[float16]",
    "TestChild::TestInner::test_inner",
    "TestUnit::test_unit",
    "TestShared::test_of_another_file",
    "TestMade::test_made",
    "TestMade::test_of_the_decorator",
    "TestMade_param_0_{n=1}::test_made",
    "TestMeta::test_of_the_metaclass",
    "TestMarked::test_marked",
    "TestMarked",  # a function became a class
    "TestAssigned::test_of_the_function",
    "Shared::test_of_another_file",
]
GONE = {
    "test_renamed": "test_renamed",
    "test_plain_too": "test_plain_too",
    "test_parametrized_more[1]": "test_parametrized_more",
    "TestRemoved::test_x": "TestRemoved",
    "TestChild::test_removed": "TestChild::test_removed",
    "TestChild::TestInner::test_of_base": "TestChild::TestInner::test_of_base",
    "TestUnit::test_removed[1]": "TestUnit::test_removed",
    "TestMarked::test_removed": "TestMarked::test_removed",
    "TestChild::TestGone::test_inner": "TestChild::TestGone::test_inner",
}


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(dedent(SOURCE))
    return tmp_path


def add(project: Path, *ids: str) -> None:
    """Add golden values of these tests to the files of their modules."""
    for nodeid in ids:
        file, test = split(nodeid)
        path = golden_path(project / "golden", nodeid)
        tests = read(path).tests if path.exists() else {}
        write(Module(file, {**tests, test: entry()}), path)


def look(project: Path, collected: list[str] | None = None) -> StaleCheck:
    return check(project / "golden", project, collected)


@pytest.mark.parametrize("name", THERE)
def test_a_test_that_is_there_or_may_be_made_is_left_alone(project, name):
    add(project, f"tests/test_a.py::{name}")
    assert look(project) == StaleCheck(1, 1, (), ())


@pytest.mark.parametrize("name", GONE)
def test_a_test_that_is_certainly_gone_is_stale(project, name):
    add(project, f"tests/test_a.py::{name}", "tests/test_a.py::test_plain")
    (stale,) = look(project).stale
    assert stale.nodeid == f"tests/test_a.py::{name}"
    assert stale.reason == f"tests/test_a.py has no {GONE[name]}"


def test_a_test_file_that_is_gone_is_named(project):
    add(project, "tests/test_b.py::test_x")
    assert [one.reason for one in look(project).stale] == ["tests/test_b.py is gone"]


CANNOT_TELL = {
    "a star": "from helpers import *\n",
    "names made at run time": "for n in 'ab': globals()['test_' + n] = print\n",
    "a class made at run time": "TestX = type('TestX', (), {})\n",
    "a file that does not parse": "def test_(:\n",
    "a file with a zero byte": "x = 1\0\n",
}


@pytest.mark.parametrize("case", CANNOT_TELL)
def test_a_file_that_may_define_anything_is_left_alone(project, case):
    (project / "tests" / "test_a.py").write_text(CANNOT_TELL[case])
    add(project, "tests/test_a.py::test_x")
    assert look(project).stale == ()


def test_what_is_no_python_is_left_alone(project):
    (project / "README.md").touch()
    add(project, "README.md::example")
    assert look(project).stale == ()


def test_nothing_of_the_tests_is_run(project):
    (project / "tests" / "test_a.py").write_text("raise SystemExit(3)\ndef test_x(): ...\n")
    add(project, "tests/test_a.py::test_x")
    assert look(project).stale == ()


def test_a_class_that_inherits_from_itself_ends(project):
    (project / "tests" / "test_a.py").write_text("class TestA(TestB): ...\nclass TestB(TestA): ...\n")
    add(project, "tests/test_a.py::TestA::test_x")
    assert len(look(project).stale) == 1


def test_a_list_of_collected_tests_decides_on_parameters(project):
    add(project, "tests/test_a.py::test_parametrized[1]", "tests/test_a.py::test_parametrized[3]")
    (stale,) = look(project, ["tests/test_a.py::test_parametrized[1]"]).stale
    assert (stale.nodeid, stale.reason) == ("tests/test_a.py::test_parametrized[3]", "no such test was collected")


def test_a_list_says_nothing_of_ids_with_line_breaks(project):
    add(project, "tests/test_a.yaml::first\nsecond", "tests/test_a.yaml::third")
    (project / "tests" / "test_a.yaml").touch()
    assert look(project, ["tests/test_a.yaml::third", "tests/test_a.yaml::first", "second"]).stale == ()


def test_a_list_says_nothing_of_files_of_which_it_names_no_test(project):
    add(project, "tests/test_a.py::test_plain", "tests/test_b.py::test_x")
    stale = look(project, ["tests/test_c.py::test_y"]).stale
    assert [one.nodeid for one in stale] == ["tests/test_b.py::test_x"]


def test_a_second_golden_file_of_a_test_is_stale(project):
    add(project, "tests/test_a.py::test_plain")
    write(Module("tests/test_a.py", {"test_plain": entry()}), project / "golden" / "copy.toml")
    assert [one.path.name for one in look(project).stale] == ["copy.toml"]


def test_a_place_of_a_projects_own_is_fine(project):
    write(Module("tests/test_a.py", {"test_plain": entry()}), project / "golden" / "flat.toml")
    assert look(project).stale == ()


def test_damaged_files_are_told_and_do_not_hide_the_others(project):
    add(project, "tests/test_a.py::test_gone", "tests/test_b.py::test_plain")
    (path := golden_path(project / "golden", "tests/test_b.py::test_plain")).write_text("format = 3\n")
    found = look(project)
    assert (found.files, found.tests, len(found.stale)) == (2, 1, 1)
    assert found.damaged == (f"{path}:1: format 3 is newer than 2, the newest known here: install a newer cutrace",)


def test_no_folder_of_golden_files_is_an_error(project):
    with pytest.raises(CutraceError, match="name it with --golden-dir"):
        look(project)


def test_pruning_deletes_stale_values_and_the_files_and_folders_that_are_empty_then(project):
    add(project, "tests/test_a.py::TestRemoved::test_x[1]", "tests/test_a.py::test_plain", "old/test_b.py::test_x")
    (project / "golden" / "README.md").write_text("keep me")
    prune(look(project).stale, project / "golden")
    left = sorted(path.relative_to(project / "golden").as_posix() for path in (project / "golden").rglob("*"))
    assert left == ["README.md", "tests", "tests/test_a.toml"]
    assert read(project / "golden" / "tests" / "test_a.toml").tests == {"test_plain": entry()}


def test_pruning_everything_leaves_the_folder(project):
    add(project, "old/test_b.py::test_x")
    prune(look(project).stale, project / "golden")
    assert list((project / "golden").iterdir()) == []


def test_the_ids_in_what_pytest_prints():
    output = dedent("""\
        tests/test_a.py::test_plain
        tests/test_a.py::test[a b-é]

        ==== warnings summary ====
          tests/test_a.py::indented
        ERROR tests/test_b.py::nothing - ImportError
        2 tests collected, 1 error in 0.01s
        """)
    assert collected_ids(output) == ("tests/test_a.py::test_plain", "tests/test_a.py::test[a b-é]")


def test_a_list_without_an_id_is_an_error():
    with pytest.raises(CutraceError, match="pytest --collect-only --verbosity=-1"):
        collected_ids("tests/test_a.py: 2\n\n2 tests collected\n")
