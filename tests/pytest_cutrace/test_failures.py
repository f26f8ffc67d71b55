"""Failures with the same cause are one block, leave few files, and can be updated by one command."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from support.fakedriver import FakeDriver
from support.suites import Outcome, Suite

PROGRAM = """
CAUSES = os.environ.get("CAUSES", "").split()

@pytest.mark.parametrize("number", range(12))
def test_many(number):
    for _ in range(1 + number % 2):
        fakegpu.launch("softmax")
    for cause in CAUSES:
        fakegpu.launch(cause)

def test_other():
    fakegpu.launch("softmax")
    if CAUSES:
        fakegpu.copy("DtoH", 4)
"""


@pytest.fixture(scope="module")
def golden(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    suite = Suite(tmp_path_factory.mktemp("recorded"), fake_driver)
    suite.write("pytest.ini", "[pytest]\n")
    suite.write("test_it.py", PROGRAM)
    done = suite.run("--cutrace", "--cutrace-update")
    assert done.status == 0, done.output
    return suite.folder / "golden"


@pytest.fixture
def recorded(suite: Suite, golden: Path) -> Suite:
    """A suite with golden files."""
    suite.write("test_it.py", PROGRAM)
    shutil.copytree(golden, suite.folder / "golden")
    return suite


def block(done: Outcome) -> list[str]:
    """The lines of the block in the footer."""
    lines = done.output.splitlines()
    (start,) = [at for at, line in enumerate(lines) if " tests failed: " in line]
    end = start + 1
    while lines[end].startswith("    "):
        end += 1
    return lines[start:end]


def kept(suite: Suite, name: str) -> int:
    return len(list(suite.folder.glob(f".cutrace/tests/**/{name}")))


def update(suite: Suite, command: str, **variables: str) -> Outcome:
    """Run the command of a block as a shell would."""
    words = shlex.split(command.partition("if intended: pytest ")[2])
    return suite.run("--cutrace", *words, **variables)


def test_the_first_failure_has_all_lines_and_later_ones_name_it(recorded: Suite) -> None:
    done = recorded.run("--cutrace", CAUSES="cast")
    assert done.failed == {"test_other", *(f"test_many[{number}]" for number in range(12))}
    lines = done.output.splitlines()
    assert sum(line.startswith("  metric ") for line in lines) == 2
    same = [line for line in lines if line.endswith(": same cause as test_it.py::test_many[0]")]
    assert len(same) == 4, "those that the footer names"
    assert same[0].startswith("cutrace: kernel_launches 2 -> 3 (+ cast): same")
    assert "traceback" not in done.output


def test_the_footer_has_a_block_with_a_command_that_updates_all(recorded: Suite) -> None:
    done = recorded.run("--cutrace", CAUSES="cast")
    assert block(done) == [
        "  12 tests failed: kernel_launches (+ cast)",
        *(f"    test_it.py::test_many[{number}]" for number in range(5)),
        "    and 7 more",
        "    if intended: pytest --cutrace-update test_it.py::test_many",
    ]
    assert update(recorded, block(done)[-1], CAUSES="cast").status == 0
    assert recorded.run("--cutrace", CAUSES="cast").failed == {"test_other"}


def test_a_quiet_footer_has_the_cause_and_the_command(recorded: Suite) -> None:
    done = recorded.run("--cutrace", "-q", CAUSES="cast")
    assert len(block(done)) == 2


@pytest.mark.parametrize("plugins", [(), ("xdist",)])
def test_the_command_selects_no_other_test(recorded: Suite, plugins: tuple[str, ...]) -> None:
    """Otherwise other parameters of the function, which were not selected, would be updated, too."""
    workers = ("-n", "2") if plugins else ()
    done = recorded.run("--cutrace", "-k", "not 11", *workers, plugins=plugins, CAUSES="cast")
    command = block(done)[-1]
    assert command == "    if intended: pytest --cutrace-update @.cutrace/failed/1.txt"
    updated = update(recorded, command, CAUSES="cast")
    assert set(updated.cases) == {f"test_many[{number}]" for number in range(11)}
    assert recorded.run("--cutrace", CAUSES="cast").failed == {"test_many[11]", "test_other"}


def test_a_single_parameter_on_the_command_line_stands_for_no_others(recorded: Suite) -> None:
    done = recorded.run("--cutrace", "test_it.py::test_many[1]", "test_it.py::test_many[3]", CAUSES="cast")
    assert block(done)[-1].endswith("pytest --cutrace-update 'test_it.py::test_many[1]' 'test_it.py::test_many[3]'")


def test_files_of_the_first_ten_tests_of_a_cause_are_kept_and_all_are_in_the_report(recorded: Suite) -> None:
    done = recorded.run("--cutrace", "--junitxml=junit.xml", CAUSES="cast")
    assert [kept(recorded, name) for name in ("run.bin", "trace.pftrace", "metrics.json")] == [11, 11, 11]
    assert all(done.case(f"test_many[{number}]").failed_rows for number in range(12))
    assert not done.case("test_many[11]").artifacts
    assert (recorded.folder / "junit.xml").read_text().count("kernel_launches") >= 12
    done = recorded.run("--cutrace", "--cutrace-keep=all", CAUSES="cast")
    assert kept(recorded, "trace.pftrace") == 13


def test_files_of_tests_without_golden_values_are_few_too(recorded: Suite) -> None:
    golden = recorded.folder / "golden/test_it.toml"
    golden.write_text(golden.read_text().replace("test_many", "test_few"))
    recorded.run("--cutrace", CAUSES="")
    assert kept(recorded, "trace.pftrace") == 10


def test_each_worker_shows_a_cause_once_and_the_footer_adds_them_up(recorded: Suite) -> None:
    done = recorded.run("--cutrace", "-n", "2", plugins=("xdist",), CAUSES="cast")
    assert block(done)[0] == "  12 tests failed: kernel_launches (+ cast)"
    assert block(done)[-1].endswith(" test_it.py::test_many")
    assert 1 <= done.output.count(": same cause as ") <= 8


def test_tests_that_are_expected_to_fail_are_not_referred_to(recorded: Suite) -> None:
    recorded.write(
        "conftest.py",
        """
        def pytest_collection_modifyitems(items):
            items[0].add_marker(pytest.mark.xfail(strict=True))
    """,
    )
    done = recorded.run("--cutrace", CAUSES="cast")
    assert done.case("test_many[0]").outcome == "xfailed"
    assert block(done)[0].startswith("  11 tests failed")
    assert ": same cause as test_it.py::test_many[1]\n" in done.output
    assert ": same cause as test_it.py::test_many[0]" not in done.output


def test_a_test_that_fails_again_has_all_its_lines_again(recorded: Suite) -> None:
    done = recorded.run("--cutrace", "--reruns", "1", "-k", "test_other", plugins=("rerunfailures",), CAUSES="cast")
    assert done.failed == {"test_other"}
    assert ": same cause as" not in done.output
    assert "  metric " in done.output


def test_commands_are_for_the_folder_where_pytest_was_started(recorded: Suite) -> None:
    below = Suite(recorded.folder / "below", recorded.driver)
    below.folder.mkdir()
    done = below.run("--cutrace", "--rootdir=..", "-c", "../pytest.ini", "..", "-k", "not 11", CAUSES="cast")
    lines = block(done)
    assert lines[1] == "    ../test_it.py::test_many[0]"
    assert lines[-1].endswith(" @../.cutrace/failed/1.txt")
    words = (recorded.folder / ".cutrace/failed/1.txt").read_text().splitlines()
    assert words[0] == "../test_it.py::test_many[0]"
    assert len(words) == 11


def test_repetitions_of_a_test_are_updated_by_its_own_id(recorded: Suite) -> None:
    done = recorded.run("--cutrace", "--count=3", "-k", "test_other", plugins=("repeat",), CAUSES="cast")
    assert done.output.count(": same cause as test_it.py::test_other[1-3]") == 2
    assert block(done)[0].startswith("  3 tests failed: ")
    assert block(done)[-1].endswith("pytest --cutrace-update test_it.py::test_other")


def test_another_error_in_a_rerun_has_its_traceback(recorded: Suite) -> None:
    recorded.write("conftest.py", """
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_call(item):
            try:
                return (yield)
            except BaseException:
                if item.execution_count == 2:
                    raise RuntimeError("of a plugin")
                raise
    """)  # fmt: skip
    done = recorded.run("--cutrace", "--reruns=1", "-k", "test_other", plugins=("rerunfailures",), CAUSES="cast")
    assert done.output.count('raise RuntimeError("of a plugin")') == 1


def test_a_failure_is_at_the_line_of_its_test(recorded: Suite) -> None:
    done = recorded.run("--cutrace", "--tb=line", "-k", "test_other", CAUSES="cast")
    lines = (recorded.folder / "test_it.py").read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if "def test_other" in text]
    assert f"{recorded.folder / 'test_it.py'}:{line}: Failed: cutrace: " in done.output
