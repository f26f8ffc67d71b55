"""Problems that a session reports: tests that were not verified, and golden values without a test."""

from __future__ import annotations

import shlex
import shutil
from typing import Any

import pytest

from cutrace.reports.model import State
from support.suites import Suite

PROGRAM = """
def test_one():
    fakegpu.launch("k")

@pytest.mark.parametrize("n", [1, 2])
def test_two(n):
    fakegpu.launch("k")
"""


@pytest.fixture
def recorded(suite: Suite) -> Suite:
    suite.write("tests/test_a.py", PROGRAM)
    suite.write("tests/test_b.py", PROGRAM)
    assert suite.run("--cutrace-update").status == 0
    return suite


def test_all_is_well(recorded: Suite) -> None:
    done = recorded.run("--cutrace=require")
    assert done.status == 0, done.output
    assert done.report is not None
    assert done.report.notes == ()


def test_the_golden_folder_is_missing(recorded: Suite) -> None:
    shutil.rmtree(recorded.folder / "golden")
    noted = recorded.run("--cutrace")
    assert noted.status == 0
    assert "there is no folder of golden files at golden" in noted.output


def test_a_renamed_or_a_new_test_is_missing_its_values(recorded: Suite) -> None:
    recorded.write("tests/test_a.py", PROGRAM.replace("test_one", "test_renamed"))
    done = recorded.run("--cutrace")
    case = done.case("test_renamed")
    assert (done.status, case.state, case.reason) == (
        0, State.MISSING, "golden/tests/test_a.toml has no values of it",
    )  # fmt: skip
    assert "no golden 1 test" in done.words
    assert "1 golden value has no test any more: tests/test_a.py::test_one (cutrace golden check)" in done.output
    assert "test_renamed" in recorded.golden(".cutrace/proposed")["tests/test_a.toml"]


def test_what_is_gone_is_told_where_all_was_collected(recorded: Suite) -> None:
    recorded.write("tests/test_a.py", PROGRAM.replace("[1, 2]", "[1]"))
    told = "1 golden value has no test any more: tests/test_a.py::test_two[2] (cutrace golden check)"
    assert told in recorded.run("--cutrace").output
    assert told in recorded.run("--cutrace", "tests/test_a.py").output
    assert told in recorded.run("--cutrace", "-n", "2", plugins=("xdist",)).output
    assert told not in recorded.run("--cutrace", "tests/test_b.py").output
    assert told in recorded.run("--cutrace", "-k", "one").output
    assert told not in recorded.run("--cutrace", "tests/test_a.py::test_one").output
    assert told in recorded.run("--cutrace", "--deselect", "tests/test_a.py::test_one").output
    assert told in recorded.run("--cutrace", "--ignore", "tests/test_b.py").output
    recorded.write("tests/test_a.py", PROGRAM)
    recorded.write("conftest.py", "def pytest_collection_modifyitems(config, items):\n"
                   "    config.hook.pytest_deselected(items=items[:1])\n    del items[:1]\n")  # fmt: skip
    assert "has no test any more" not in recorded.run("--cutrace").output
    assert "has no test any more" not in recorded.run("--cutrace", "-n", "2", plugins=("xdist",)).output


def test_a_module_that_is_gone(recorded: Suite) -> None:
    (recorded.folder / "tests/test_b.py").unlink()
    told = "1 golden value has no test any more: tests/test_b.py (cutrace golden check)"
    assert told in recorded.run("--cutrace").output
    assert told not in recorded.run("--cutrace", "tests/test_a.py").output
    golden = recorded.folder / "golden/tests/test_b.toml"
    golden.write_text(golden.read_text().replace("sm_90", "sm_80"))
    assert "has no test any more" not in recorded.run("--cutrace").output, "it may exist on another GPU"


def test_a_selection_without_tests(recorded: Suite) -> None:
    assert recorded.run("--cutrace=require", "-k", "nothing").status == 5


def test_limits_alone_need_no_golden_folder(suite: Suite) -> None:
    suite.write("test_a.py", "@pytest.mark.gpu_limit(kernel_launches=1)\ndef test_it():\n    fakegpu.launch('k')\n")
    assert suite.run("--cutrace=require", "-o", "cutrace_scope=marked").status == 0
    assert suite.run("--cutrace=require").status == 4, "values could be missing"
    assert "no folder" not in suite.run("--cutrace").output


def test_a_quiet_footer_keeps_the_reasons(recorded: Suite) -> None:
    recorded.write("tests/test_c.py", "@pytest.mark.cutrace\ndef test_c():\n    pass\ndef test_d():\n    pass\n")
    lines = recorded.run("--cutrace", "-q").output.splitlines()
    assert "  not traced: 1 no GPU work" in lines
    assert not any("report.json" in line for line in lines)
    hidden = recorded.run("--cutrace", "-q", gpu=True, CUDA_VISIBLE_DEVICES="", PYTEST_ADDOPTS="tests/test_c.py")
    assert "  unverified: 1 CUDA_VISIBLE_DEVICES= hides all GPUs" in hidden.output.splitlines()


def test_a_test_that_begins_to_skip(recorded: Suite) -> None:
    recorded.write("tests/test_b.py", PROGRAM.replace("def test_one():", "def test_one():\n    pytest.skip('later')"))
    told = recorded.run("--cutrace", "-q")
    assert told.status == 0
    assert "  golden: 6: 5 compared, 1 skipped" in told.output
    allowed = PROGRAM.replace(
        "def test_one():", "@pytest.mark.cutrace(may_skip=True)\n@pytest.mark.skip\ndef test_one():"
    )
    recorded.write("tests/test_b.py", allowed)
    done = recorded.run("--cutrace=require")
    assert done.status == 0, done.output
    assert "golden 6: 5 compared, 1 skipped as allowed" in done.words


def test_a_suite_that_skips_all_of_its_tests(recorded: Suite) -> None:
    recorded.write("conftest.py", "import pytest\n\n@pytest.fixture(autouse=True)\ndef no_gpu():\n    pytest.skip()\n")
    done = recorded.run("--cutrace")
    assert done.status == 0
    assert "nothing was traced: all tests were skipped" in done.output
    assert "start processes of tests" not in done.output


def test_a_session_that_ends_early_tells_what_did_not_run(recorded: Suite) -> None:
    recorded.write("tests/test_a.py", PROGRAM.replace("def test_one():", "def test_one():\n    assert False"))
    done = recorded.run("--cutrace", "-x")
    assert done.status == 1
    assert "golden 6: 1 failed before, 5 not run" in done.words


LOST_ONE = "tests/test_a.py::test_one (cutrace golden check)"


def lose_one(suite: Suite, file: str = "tests/test_a.py") -> None:
    suite.write(file, PROGRAM.replace("test_one", "lost_one"))


def test_tests_outside_of_the_rootdir(suite: Suite) -> None:
    (suite.folder / "pytest.ini").unlink()
    suite.write("ci/pytest.ini", "[pytest]\n")
    for folder in ("tests", "more"):
        suite.write(f"{folder}/test_a.py", PROGRAM)
    options = ("-c", "ci/pytest.ini", "--import-mode=importlib")
    assert suite.run("--cutrace-update", *options, "tests", "more").status == 0
    # Ids do not depend on the selection.
    for words in (("tests", "more"), ("tests",), ("tests/test_a.py",), ("more/test_a.py::test_one",)):
        done = suite.run("--cutrace=require", *options, *words)
        assert done.status == 0, done.output
    lose_one(suite)
    done = suite.run("--cutrace=require", *options, "tests", "more")
    assert f"1 golden value has no test any more: ../{LOST_ONE}" in done.output
    assert suite.run("--cutrace=require", *options, "more").status == 0


@pytest.mark.parametrize("plugins", [(), ("xdist",)])
def test_a_command_has_the_options_that_find_its_test(suite: Suite, plugins: tuple[str, ...]) -> None:
    (suite.folder / "pytest.ini").unlink()
    suite.write("ci/pytest.ini", "[pytest]\n")
    suite.write("tests/test_a.py", "def test_it():\n    fakegpu.launch(os.environ.get('KERNEL', 'k'))\n")
    workers = ("-n", "1") if plugins else ()
    options = ("-c", "ci/pytest.ini", "-o", "cutrace_golden_dir=gold files", "tests")
    suite.run("--cutrace-update", *options)
    done = suite.run("--cutrace", *options, *workers, plugins=plugins, KERNEL="other")
    command = "pytest --cutrace-update -c ci/pytest.ini -o 'cutrace_golden_dir=gold files' tests/test_a.py::test_it"
    assert f"if intended: {command}\n" in done.output
    assert suite.run(*shlex.split(command)[1:], KERNEL="other").status == 0
    assert suite.run("--cutrace=require", *options, KERNEL="other").status == 0


@pytest.mark.parametrize("options", [("--rootdir",), ("-c",)])
def test_a_rootdir_that_is_a_link(recorded: Suite, options: tuple[str, ...], tmp_path_factory: Any) -> None:
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(recorded.folder)
    named = link / "pytest.ini" if options == ("-c",) else link
    for words in ((), ("tests",)):
        done = recorded.run("--cutrace=require", *options, str(named), *words)
        assert done.status == 0, done.output
        assert "golden 6: 6 compared" in done.words
    lose_one(recorded)
    done = recorded.run("--cutrace=require", *options, str(named))
    assert f"1 golden value has no test any more: {LOST_ONE}" in done.output


def test_packages_of_pyargs(suite: Suite) -> None:
    for name in ("__init__", "tests/__init__"):
        suite.write(f"lib/pkg/{name}.py", "")
    for name in ("test_a", "test_b"):
        suite.write(f"lib/pkg/tests/{name}.py", PROGRAM)
    suite.write("project/pytest.ini", "[pytest]\npythonpath = ../lib\n")
    project = Suite(suite.folder / "project", suite.driver)
    assert project.run("--cutrace-update", "--pyargs", "pkg").status == 0
    one = "pkg.tests.test_a::test_one"
    for word, account in {one: "golden 1: 1 compared", "pkg.tests.test_a": "golden 3: 3 compared"}.items():
        done = project.run("--cutrace=require", "--pyargs", word)
        assert done.status == 0, done.output
        assert account in done.words
    suite.write("lib/pkg/tests/test_a.py", PROGRAM.replace('"k"', '"other"'))
    done = project.run("--cutrace=require", "-x", "--pyargs", "pkg")
    assert f"if intended: pytest --cutrace-update --pyargs {one}\n" in done.output
    assert "golden 6: 1 compared, 5 not run" in done.words
    assert project.run("--cutrace-update", "--pyargs", one).status == 0
    assert project.run("--cutrace=require", "--pyargs", one).status == 0
    lose_one(suite, "lib/pkg/tests/test_a.py")
    (suite.folder / "lib/pkg/tests/test_b.py").unlink()
    done = project.run("--cutrace=require", "--pyargs", "pkg")
    gone = "pkg/tests/test_a.py::test_one, pkg/tests/test_b.py"
    assert f"2 golden values have no test any more: {gone} (cutrace golden check)" in done.output


def test_a_folder_with_an_at_sign_in_groups(suite: Suite) -> None:
    suite.write("tests@2/test_a.py", PROGRAM)
    assert suite.run("--cutrace-update").status == 0
    done = suite.run("--cutrace=require", "-n", "2", "--dist", "loadgroup", plugins=("xdist",))
    assert done.status == 0, done.output
    assert "golden 3: 3 compared" in done.words


def test_a_quiet_session_says_why_it_fails(recorded: Suite) -> None:
    assert "cutrace" not in recorded.run("--cutrace=require", "-qq").output
    lose_one(recorded)
    done = recorded.run("--cutrace=require", "-qq")
    assert f"1 golden value has no test any more: {LOST_ONE}" in done.output


SHARDS = """
def pytest_addoption(parser):
    parser.addoption("--shard", type=int)

def pytest_collection_modifyitems(config, items):
    others = items[1 - config.option.shard::2]
    items[:] = items[config.option.shard::2]
    config.hook.pytest_deselected(items=others)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_shard_is_a_selection_beside_addopts(recorded: Suite, workers: tuple[str, ...]) -> None:
    recorded.write("conftest.py", SHARDS)
    recorded.write("pytest.ini", "[pytest]\naddopts = -m 'not slow' --deselect nothing\nmarkers = slow\n")
    plugins = ("xdist",) if workers else ()
    done = recorded.run("--cutrace=require", "--shard", "0", *workers, plugins=plugins)
    assert done.status == 0, done.output
    assert "golden 6: 3 compared, 3 not selected" in done.words
    slow = PROGRAM.replace("def test_one", "@pytest.mark.slow\ndef test_one")
    recorded.write("tests/test_a.py", slow)
    done = recorded.run("--cutrace=require", "--shard", "0", *workers, plugins=plugins)
    assert "1 golden value was deselected by addopts: tests/test_a.py::test_one" in done.output


@pytest.mark.parametrize("option", ["--lf", "--sw"])
def test_addopts_continues_at_the_test_that_failed_last(recorded: Suite, option: str) -> None:
    failing = PROGRAM.replace("(n):", "(n):\n    assert n == 1 or 'BAD' not in os.environ")
    recorded.write("tests/test_a.py", failing)
    recorded.write("pytest.ini", f"[pytest]\naddopts = {option}\n")
    assert recorded.run("--cutrace=require", "tests/test_a.py", cache=True).status == 0, "no test failed last"
    assert recorded.run("--cutrace", "tests/test_a.py", cache=True, BAD="1").status != 0
    # A run passes the failed test and forgets it.
    shutil.copytree(recorded.folder / ".pytest_cache", recorded.folder / "remembered")
    for variables, told in {
        (): "2 golden values were deselected by addopts: tests/test_a.py::test_one, tests/test_a.py::test_two[1]",
        (("PYTEST_ADDOPTS", option),): "golden 3: 1 compared, 2 not selected",
    }.items():
        shutil.copytree(recorded.folder / "remembered", recorded.folder / ".pytest_cache", dirs_exist_ok=True)
        done = recorded.run("--cutrace=require", "tests/test_a.py", cache=True, **dict(variables))
        assert told in done.words, done.output
        assert bool(done.status) == (not variables)


FLAVOURS = """
def pytest_cutrace_golden_path(item, root):
    from cutrace.golden import golden_path
    flavour = os.environ["FLAVOUR"]
    if item.get_closest_marker("slow"):
        flavour += "-slow"
    return golden_path(root / flavour, item.nodeid)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_golden_files_of_another_build(suite: Suite, workers: tuple[str, ...]) -> None:
    suite.write("pytest.ini", "[pytest]\nmarkers = slow\n")
    suite.write("conftest.py", FLAVOURS)
    suite.write("test_a.py", """
        TYPES = ["f16", "f32"]
        if os.environ["FLAVOUR"] == "release":
            TYPES.append("fp8")

        @pytest.mark.parametrize("of", TYPES)
        def test_it(of):
            fakegpu.launch(of)

        @pytest.mark.slow
        def test_slow():
            fakegpu.launch("k")
    """)  # fmt: skip
    plugins = ("xdist",) if workers else ()
    for flavour in ("debug", "release"):
        assert suite.run("--cutrace-update", FLAVOUR=flavour).status == 0
    assert len(suite.golden()) == 4
    for flavour, account in {"debug": "golden 3: 3 compared", "release": "golden 4: 4 compared"}.items():
        done = suite.run("--cutrace=require", *workers, plugins=plugins, FLAVOUR=flavour)
        assert done.status == 0, done.output
        assert account in done.words
    suite.write("pytest.ini", "[pytest]\nmarkers = slow\naddopts = -m 'not slow'\n")
    done = suite.run("--cutrace=require", *workers, plugins=plugins, FLAVOUR="debug")
    assert "1 golden value was deselected by addopts: test_a.py::test_slow" in done.output
    lost = (suite.folder / "test_a.py").read_text().replace('"f32"]', "]")
    suite.write("test_a.py", lost, prelude=False)
    done = suite.run("--cutrace=require", "-m", "not nothing", *workers, plugins=plugins, FLAVOUR="debug")
    assert "1 golden value has no test any more: test_a.py::test_it[f32]" in done.output
