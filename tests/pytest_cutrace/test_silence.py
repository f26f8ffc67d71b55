"""If a session does not compare a golden value, ``require`` makes it fail with a sentence that names the value and the
reason.

Each case is a change to a suite with golden files. A session of plain pytest would pass with the change.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.fakedriver import FakeDriver
from support.suites import FORKING, PRELUDE, Suite

Change = Callable[[Path], None]

FILES = {
    "pytest.ini": "[pytest]\naddopts = --doctest-modules\nmarkers = slow\n",
    "tests/test_a.py": """
def test_one():
    fakegpu.launch("k")


@pytest.mark.parametrize("n", [1, 2])
def test_two(n):
    for _ in range(n):
        fakegpu.launch("k")


class TestStep:
    def test_step(self, gpu_trace):
        with gpu_trace.region("forward"):
            fakegpu.launch("k")
        gpu_trace.value("mylib.tokens", 8)
""",
    "tests/test_b.py": """
import unittest


@pytest.fixture
def batch():
    return 2


def test_copy(batch):
    fakegpu.copy("HtoD", 4096)


@pytest.mark.slow
def test_slow():
    fakegpu.launch("k")


@pytest.mark.cutrace(counters=["instructions"])
def test_counted():
    fakegpu.launch("k")


class TestUnit(unittest.TestCase):
    def test_unit(self):
        fakegpu.launch("k")
""",
    "mylib.py": '''
def scale():
    """
    >>> scale()
    """
    fakegpu.launch("k")
''',
}


def edit(name: str, old: str, new: str) -> Change:
    """Replace ``old``, which occurs once in the file."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert text.count(old) == 1
        (folder / name).write_text(text.replace(old, new))

    return change


def add(name: str, text: str) -> Change:
    """Write a file, or append to it."""

    def change(folder: Path) -> None:
        path = folder / name
        if not path.exists():
            text_before = PRELUDE
        else:
            text_before = path.read_text()
        path.write_text(text_before + text)

    return change


def conftest(text: str) -> Change:
    return add("conftest.py", text)


def ini(lines: str) -> Change:
    return edit("pytest.ini", "markers = slow\n", f"markers = slow\n{lines}\n")


def addopts(words: str) -> Change:
    return edit("pytest.ini", "--doctest-modules", f"--doctest-modules {words}")


def remove(name: str) -> Change:
    def change(folder: Path) -> None:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink()

    return change


def move(name: str, new: str) -> Change:
    def change(folder: Path) -> None:
        (folder / new).parent.mkdir(exist_ok=True)
        (folder / name).rename(folder / new)

    return change


def nothing(folder: Path) -> None:
    pass


def all_of(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


@dataclass(frozen=True)
class Case:
    """A change, and a part of the message of the session that should fail. The session has these ``options`` and
    ``variables``, and loads ``plugins`` in addition. ``gpu`` is True if there is a driver."""

    change: Change
    says: str
    options: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = True


A = "tests/test_a.py"
B = "tests/test_b.py"
GOLDEN_A = "golden/tests/test_a.toml"
GOLDEN_B = "golden/tests/test_b.toml"
ONE = 'def test_one():\n    fakegpu.launch("k")\n'
LOST_ONE = "1 golden value has no test any more: tests/test_a.py::test_one (cutrace golden check)"
LOST_A = "4 golden values were not collected: tests/test_a.py::test_one"
LOST_B = "4 golden values were not collected: tests/test_b.py::test_copy"
SKIPPED_ONE = "1 test with golden values was skipped: tests/test_a.py::test_one"
HIDDEN_ONE = "1 test passed although cutrace failed it: tests/test_a.py::test_one"
EXPECTED_ONE = "1 test with golden values is expected to fail: tests/test_a.py::test_one"

CASES: dict[str, dict[str, Case]] = {
    "a test is gone": {
        "deleted": Case(edit(A, ONE, ""), LOST_ONE),
        "renamed": Case(edit(A, "test_one", "test_1"), LOST_ONE),
        "no longer called a test": Case(edit(A, "test_one", "check_one"), LOST_ONE),
        "moved to another module": Case(all_of(edit(A, ONE, ""), add("tests/test_new.py", ONE)), LOST_ONE),
        "its class renamed": Case(
            edit(A, "TestStep", "TestTrain"), "has no test any more: tests/test_a.py::TestStep::test_step"
        ),
        "its class with a constructor": Case(
            edit(A, "class TestStep:\n", "class TestStep:\n    def __init__(self):\n        pass\n\n"),
            "has no test any more: tests/test_a.py::TestStep::test_step",
        ),
        "its class with `__test__ = False`": Case(
            edit(A, "class TestStep:\n", "class TestStep:\n    __test__ = False\n\n"),
            "has no test any more: tests/test_a.py::TestStep::test_step",
        ),
        "a parameter less": Case(
            edit(A, "[1, 2]", "[1]"), "1 golden value has no test any more: tests/test_a.py::test_two[2]"
        ),
        "other ids of parameters": Case(
            edit(A, "[1, 2]", "[1, 2], ids=['small', 'large']"),
            "2 golden values have no test any more: tests/test_a.py::test_two[1], tests/test_a.py::test_two[2]",
        ),
        "an empty list of parameters": Case(
            edit(A, "[1, 2]", "[]"),
            "2 golden values have no test any more: tests/test_a.py::test_two[1], tests/test_a.py::test_two[2]",
        ),
        "generated tests with other ids": Case(
            all_of(
                edit(A, '@pytest.mark.parametrize("n", [1, 2])\n', ""),
                add(
                    A,
                    "\n\ndef pytest_generate_tests(metafunc):\n"
                    "    if 'n' in metafunc.fixturenames:\n        metafunc.parametrize('n', [1, 3])\n",
                ),
            ),
            "1 golden value has no test any more: tests/test_a.py::test_two[2]",
        ),
        "its module deleted": Case(remove(B), "1 golden value has no test any more: tests/test_b.py"),
        "its module renamed": Case(move(B, "tests/test_c.py"), "1 golden value has no test any more: tests/test_b.py"),
        "its module renamed in the folder that is selected": Case(
            move(B, "tests/test_c.py"), "1 golden value has no test any more: tests/test_b.py", options=("tests",)
        ),
        "its module renamed, in workers": Case(
            move(B, "tests/test_c.py"),
            "1 golden value has no test any more: tests/test_b.py",
            options=("-n", "1"),
            plugins=("xdist",),
        ),
        "its module in another folder": Case(
            move(B, "other/test_b.py"), "1 golden value has no test any more: tests/test_b.py"
        ),
        "while a folder is ignored": Case(edit(A, ONE, ""), LOST_ONE, options=("--ignore=docs", "--ignore-glob=doc*")),
        "removed by a hook": Case(conftest("def pytest_collection_modifyitems(items):\n    del items[1]\n"), LOST_ONE),
    },
    "a test is skipped": {
        "by a marker": Case(edit(A, ONE, "@pytest.mark.skip(reason='later')\n" + ONE), SKIPPED_ONE),
        "by a condition": Case(edit(A, ONE, "@pytest.mark.skipif(os.sep == '/', reason='-')\n" + ONE), SKIPPED_ONE),
        "in its body": Case(edit(A, ONE, "def test_one():\n    pytest.skip('no GPU')\n"), SKIPPED_ONE),
        "after its work": Case(edit(A, ONE, ONE + "    pytest.skip('no GPU')\n"), SKIPPED_ONE),
        "by a missing package in its body": Case(
            edit(A, ONE, "def test_one():\n    pytest.importorskip('nolib')\n"), SKIPPED_ONE
        ),
        "by a fixture": Case(
            edit(B, "    return 2", "    pytest.skip('no data')"),
            "1 test with golden values was skipped: tests/test_b.py::test_copy",
        ),
        "by a hook": Case(
            conftest(
                "def pytest_collection_modifyitems(items):\n"
                "    for item in items:\n        item.add_marker(pytest.mark.skip)\n"
            ),
            "9 tests with golden values were skipped",
        ),
        "by a fixture of all tests": Case(
            conftest("@pytest.fixture(autouse=True)\ndef gpu():\n    pytest.skip('no GPU')\n"),
            "9 tests with golden values were skipped",
        ),
        "by unittest": Case(
            edit(B, "class TestUnit", "@unittest.skip('later')\nclass TestUnit"),
            "1 test with golden values was skipped: tests/test_b.py::TestUnit::test_unit",
        ),
        "in setUp": Case(
            edit(
                B,
                "    def test_unit(self):\n",
                "    def setUp(self):\n        self.skipTest('later')\n\n    def test_unit(self):\n",
            ),
            "1 test with golden values was skipped: tests/test_b.py::TestUnit::test_unit",
        ),
        "with its module, by a marker": Case(
            add(A, "\n\npytestmark = pytest.mark.skip\n"), "4 tests with golden values were skipped"
        ),
        "with its module, when it is imported": Case(
            edit(A, ONE, "pytest.skip('no GPU', allow_module_level=True)\n\n\n" + ONE), LOST_A
        ),
        "with its module, by a missing package": Case(edit(A, ONE, "pytest.importorskip('nolib')\n\n\n" + ONE), LOST_A),
        "as a doctest": Case(
            edit("mylib.py", ">>> scale()", ">>> scale()  # doctest: +SKIP"),
            "1 test with golden values was skipped: mylib.py::mylib.scale",
        ),
        "in a part, a subtest": Case(
            edit(
                A,
                'def test_two(n):\n    for _ in range(n):\n        fakegpu.launch("k")',
                "def test_two(n, subtests):\n    for at in range(n):\n        with subtests.test(at):\n"
                "            if at:\n                pytest.skip('later')\n            fakegpu.launch('k')",
            ),
            "1 test could not be verified: tests/test_a.py::test_two[2]",
        ),
        "in its last rerun": Case(
            edit(
                A,
                ONE,
                "RUNS = []\n\n\n@pytest.mark.flaky(reruns=1)\ndef test_one():\n"
                "    RUNS.append(1)\n    assert len(RUNS) > 1\n    pytest.skip('flaky')\n",
            ),
            SKIPPED_ONE,
            plugins=("rerunfailures",),
        ),
    },
    "a test is expected to fail": {
        "and fails": Case(
            edit(A, ONE, "@pytest.mark.xfail\ndef test_one():\n    assert False\n"),
            EXPECTED_ONE,
        ),
        "and its GPU work differs": Case(
            edit(A, ONE, "@pytest.mark.xfail\n" + ONE + '    fakegpu.launch("more")\n'), EXPECTED_ONE
        ),
        "and does not run": Case(edit(A, ONE, "@pytest.mark.xfail(run=False)\n" + ONE), EXPECTED_ONE),
        "by `pytest.xfail`": Case(edit(A, ONE, ONE + "    pytest.xfail('later')\n"), EXPECTED_ONE),
        "and passes, but nothing is gated": Case(
            edit(A, ONE, "@pytest.mark.xfail\n@pytest.mark.cutrace(gate='none')\n" + ONE),
            "1 test could not be verified: tests/test_a.py::test_one",
        ),
        "and passes under a new name": Case(
            edit(A, ONE, "@pytest.mark.xfail\n" + ONE.replace("test_one", "test_1")),
            "1 test has no golden values: tests/test_a.py::test_1",
        ),
    },
    "a test does not run": {
        "because an earlier one ends pytest": Case(
            edit(A, ONE, "def test_one():\n    pytest.exit('enough', returncode=0)\n"),
            "8 tests with golden values did not run",
        ),
        "because pytest ends before the first test": Case(
            conftest("def pytest_collection_modifyitems():\n    pytest.exit('no GPU', returncode=0)\n"),
            "9 tests with golden values did not run",
        ),
        "because pytest ends at its start": Case(
            conftest("def pytest_sessionstart():\n    pytest.exit('no GPU', returncode=0)\n"),
            "nothing was gated: pytest ended before it collected tests",
        ),
        "because pytest ends when it is configured": Case(
            conftest("def pytest_configure():\n    pytest.exit('no GPU', returncode=0)\n"),
            "nothing was gated: pytest ended before it collected tests",
        ),
        "because an earlier one is interrupted": Case(
            edit(A, ONE, "def test_one():\n    raise KeyboardInterrupt\n"), "KeyboardInterrupt"
        ),
        "because an earlier one failed, with `-x`": Case(
            edit(A, ONE, "def test_one():\n    assert False\n"),
            "tests with golden values did not run",
            options=("-x",),
        ),
        "because its worker crashed": Case(
            edit(A, ONE, "def test_one():\n    os._exit(0)\n"),
            "crashed",
            options=("-n", "1"),
            plugins=("xdist",),
        ),
        "because a hook runs it": Case(
            conftest("def pytest_runtest_protocol(item):\n    return True\n"),
            "9 tests with golden values did not run",
        ),
        "because a hook runs all tests": Case(
            conftest("def pytest_runtestloop():\n    return True\n"),
            "9 tests with golden values did not run",
        ),
        "because a hook calls its function": Case(
            conftest("def pytest_pyfunc_call():\n    return True\n"), "(no GPU work was seen)"
        ),
        "because only fixtures are set up": Case(
            nothing, "9 tests with golden values did not run", options=("--setup-only",)
        ),
    },
    "a module is not collected": {
        "`collect_ignore`": Case(conftest("collect_ignore = ['tests/test_b.py']\n"), LOST_B),
        "a hook ignores it": Case(
            conftest(
                "def pytest_ignore_collect(collection_path):\n    return collection_path.name == 'test_b.py' or None\n"
            ),
            LOST_B,
        ),
        "`python_files`": Case(ini("python_files = test_a.py"), LOST_B),
        "`python_functions`": Case(
            ini("python_functions = check_*"), "4 golden values were not collected: tests/test_a.py::test_one"
        ),
        "`norecursedirs`": Case(ini("norecursedirs = tests"), "8 golden values were not collected"),
        "`testpaths`": Case(ini("testpaths = mylib.py tests/test_a.py"), LOST_B),
        "doctests are not collected": Case(
            edit("pytest.ini", "--doctest-modules", ""), "1 golden value was not collected: mylib.py::mylib.scale"
        ),
        "an error of its import": Case(edit(A, ONE, "import nolib\n\n\n" + ONE), "No module named 'nolib'"),
        "an error of its import that does not end the session": Case(
            edit(A, ONE, "import nolib\n\n\n" + ONE), LOST_A, options=("--continue-on-collection-errors",)
        ),
        "`--ignore` in addopts": Case(addopts("--ignore=tests/test_b.py"), LOST_B),
    },
    "addopts deselects a test": {
        "`-k`": Case(
            addopts("-k 'not test_one'"), "1 golden value was deselected by addopts: tests/test_a.py::test_one"
        ),
        "`-m`": Case(addopts("-m 'not slow'"), "1 golden value was deselected by addopts: tests/test_b.py::test_slow"),
        "`--deselect`": Case(
            addopts("--deselect tests/test_a.py::test_one"),
            "1 golden value was deselected by addopts: tests/test_a.py::test_one",
        ),
        "`--deselect`, in workers": Case(
            addopts("--deselect tests/test_a.py::test_one"),
            "1 golden value was deselected by addopts: tests/test_a.py::test_one",
            options=("-n", "1"),
            plugins=("xdist",),
        ),
        "`-m`, together with `-k` of the command line": Case(
            addopts("-m 'not slow'"),
            "1 golden value was deselected by addopts: tests/test_b.py::test_slow",
            options=("-k", "one or slow"),
        ),
        "`-m`, together with `--deselect` of the command line, in workers": Case(
            addopts("-m 'not slow'"),
            "1 golden value was deselected by addopts: tests/test_b.py::test_slow",
            options=("-n", "1", "--deselect", "tests/test_a.py::test_one"),
            plugins=("xdist",),
        ),
    },
    "golden values are gone": {
        "the folder moved": Case(move("golden", "expected"), "there is no folder of golden files at golden"),
        "another folder": Case(ini("cutrace_golden_dir = gold"), "there is no folder of golden files at gold"),
        "another rootdir": Case(nothing, "there is no folder of golden files", options=("--rootdir=tests",)),
        "a file deleted": Case(remove(GOLDEN_A), "4 tests did GPU work without golden values: tests/test_a.py"),
        "a file moved": Case(
            move(GOLDEN_A, "golden/other/test_a.toml"), "4 tests did GPU work without golden values: tests/test_a.py"
        ),
        "a file emptied": Case(lambda folder: (folder / GOLDEN_A).write_text(""), "test_a.toml"),
        "a file cut off": Case(
            lambda folder: (folder / GOLDEN_A).write_text((folder / GOLDEN_A).read_text()[:-3]), "test_a.toml"
        ),
        "a merge conflict": Case(add(GOLDEN_A, "<<<<<<< ours\n"), "there are marks of a merge conflict"),
        "a merge conflict beside a module that skips itself": Case(
            all_of(
                add(GOLDEN_A, "<<<<<<< ours\n"),
                edit(A, ONE, "pytest.skip('no GPU', allow_module_level=True)\n\n\n" + ONE),
            ),
            "there are marks of a merge conflict",
        ),
        "an entry deleted": Case(
            edit(GOLDEN_A, "[test_one]\nkernels = { k = 1 }\n", ""), "1 test has no golden values: tests/test_a.py"
        ),
        "an entry emptied": Case(edit(GOLDEN_A, "[test_one]\nkernels = { k = 1 }\n", "[test_one]\n"), "(+ k)"),
        "an entry unstable": Case(
            edit(GOLDEN_A, "[test_one]\nkernels = { k = 1 }\n", "[test_one]\nunstable.kernel_launches = [1, 2]\n"),
            "1 test could not be verified: tests/test_a.py::test_one",
        ),
        "an entry unconfirmed": Case(
            edit(GOLDEN_A, "[test_one]\n", '[test_one]\nunconfirmed = ["sm_90"]\n'),
            "1 test has golden values of one run alone: tests/test_a.py::test_one",
        ),
        "a hook names another file": Case(
            conftest("def pytest_cutrace_golden_path(root):\n    return root / 'other.toml'\n"),
            "tests did GPU work without golden values",
        ),
    },
    "the rules gate nothing": {
        "`--cutrace-gate=none`": Case(nothing, "9 tests could not be verified", options=("--cutrace-gate=none",)),
        "`cutrace_gate = none`": Case(ini("cutrace_gate = none"), "9 tests could not be verified"),
        "the gate of a marker": Case(
            edit(A, ONE, "@pytest.mark.cutrace(gate='sync_calls')\n" + ONE),
            "1 test could not be verified: tests/test_a.py::test_one",
        ),
        "`cutrace_ignore` of all metrics": Case(
            ini("cutrace_ignore =\n    work\n    counter"), "9 tests could not be verified"
        ),
        "a pattern that ignores all kernels": Case(
            ini("cutrace_ignore = kernels:*"), "tests could not be verified: mylib.py::mylib.scale"
        ),
        "a tolerance of 1000 %": Case(
            ini("cutrace_tolerance = kernels=1000%"), "cutrace_tolerance: a tolerance of kernels above 100 %"
        ),
        "a tolerance of 10, meant as 10 %": Case(
            edit(A, ONE, "@pytest.mark.cutrace(tolerance={'kernels': 10})\n" + ONE),
            "test_a.py:6: a tolerance of kernels of 10 would be 1,000 %: write 10%",
        ),
        "`cutrace_scope = marked`": Case(
            ini("cutrace_scope = marked"), "8 tests with golden values are out of scope: mylib.py::mylib.scale"
        ),
        "`off=True`": Case(
            edit(A, ONE, "@pytest.mark.cutrace(off=True)\n" + ONE),
            "1 test with golden values is switched off: tests/test_a.py::test_one",
        ),
        "a hook that compares nothing": Case(
            conftest(
                "from cutrace.golden import Comparison\n\ndef pytest_cutrace_compare():\n    return Comparison(())\n"
            ),
            "9 tests could not be verified",
        ),
    },
    "the environment has no golden values": {
        "another GPU": Case(conftest("fakegpu.describe(capability=(8, 0))\n"), "9 tests could not be verified"),
        "a renamed environment": Case(
            edit(GOLDEN_A, 'seen = ["sm_90"]', 'seen = ["sm_100"]'), "4 tests could not be verified"
        ),
        "another variant": Case(ini("cutrace_variant = pytest{pytest}"), "9 tests could not be verified"),
        "a hook names another one": Case(
            conftest("def pytest_cutrace_environment():\n    return 'mine'\n"),
            "9 tests could not be verified",
        ),
    },
    "the work is not seen": {
        "no driver": Case(nothing, "there is no NVIDIA driver (libcuda.so.1)", gpu=False),
        "the GPU is hidden": Case(
            conftest("fakegpu.launch = fakegpu.copy = lambda *arguments: None\n"),
            "9 tests could not be verified",
            variables={"CUDA_VISIBLE_DEVICES": ""},
        ),
        "another tool holds CUPTI": Case(conftest("fakegpu.hold_cupti()\n"), "9 tests could not be verified"),
        "another tool is loaded": Case(
            nothing,
            "another tool has set CUDA_INJECTION64_PATH",
            variables={"CUDA_INJECTION64_PATH": "/opt/other/libother.so"},
        ),
        "pytest is recorded": Case(
            nothing, "this process is already armed", variables={"CUTRACE_OPTIONS": "directory=/nowhere"}
        ),
        "the variables of the recording are removed": Case(
            edit(
                A,
                ONE,
                "def test_one(monkeypatch):\n    monkeypatch.delenv('CUDA_INJECTION64_PATH')\n"
                "    monkeypatch.delenv('CUTRACE_OPTIONS')\n    fakegpu.launch('k')\n",
            ),
            "1 test could not be verified: tests/test_a.py::test_one",
            options=("-p", "no:doctest", "-o", "addopts="),
        ),
        "a process without the variables": Case(
            edit(
                A,
                ONE,
                "def test_one():\n    names = ('LD_LIBRARY_PATH', 'PYTHONPATH')\n"
                "    subprocess.run([sys.executable, '-c', 'import fakegpu; fakegpu.launch(\"k\")'],\n"
                "                   env={name: os.environ[name] for name in names}, check=True)\n",
            ),
            "(no GPU work was seen)",
        ),
        "a process in which the test ends at once": Case(
            edit(
                A,
                ONE,
                "def test_one():\n    if not os.fork():\n        fakegpu.launch('k')\n        os._exit(0)\n"
                "    os.wait()\n",
            ),
            "FAILED tests/test_a.py::test_one",
        ),
        "a test records itself": Case(
            edit(
                A,
                ONE,
                "def test_one(tmp_path):\n    import cutrace\n    with cutrace.record(tmp_path / 'run.bin'):\n"
                "        fakegpu.launch('k')\n",
            ),
            "this process is recorded already",
        ),
        "a test stops the recording": Case(
            edit(
                A,
                ONE,
                "def test_one():\n    from cutrace.collect.library import collector\n"
                "    collector().stop()\n    fakegpu.launch('k')\n",
            ),
            "tests/test_a.py::test_one",
        ),
        "CUPTI drops records": Case(edit(A, ONE, ONE + "    fakegpu.drop(5)\n"), "not verified: "),
        "a kernel without an end": Case(
            edit(A, 'test_one():\n    fakegpu.launch("k")', 'test_one():\n    fakegpu.launch("k", end=False)'),
            "not verified: ",
        ),
        "a counter cannot be read": Case(
            nothing,
            "1 test could not be verified: tests/test_b.py::test_counted",
            variables={"FAKE_CUPTI_FAILURES": "RangeProfilerStart:35"},
        ),
        "a counter is no longer requested": Case(
            edit(B, '@pytest.mark.cutrace(counters=["instructions"])\n', ""), "tests/test_b.py::test_counted"
        ),
        "a value of the test is no longer given": Case(
            edit(A, '        gpu_trace.value("mylib.tokens", 8)\n', ""), "mylib.tokens"
        ),
        "a region is renamed": Case(edit(A, '"forward"', '"step"'), "forward"),
        "a region is removed": Case(
            edit(
                A,
                '        with gpu_trace.region("forward"):\n            fakegpu.launch("k")\n',
                '        fakegpu.launch("k")\n',
            ),
            "forward",
        ),
        "the work is done by a fixture": Case(
            all_of(
                edit(B, "    return 2", '    fakegpu.copy("HtoD", 4096)'),
                edit(B, 'def test_copy(batch):\n    fakegpu.copy("HtoD", 4096)', "def test_copy(batch):\n    pass"),
            ),
            "(no GPU work was seen)",
        ),
    },
    "a failure is hidden": {
        "a hook catches it": Case(
            all_of(
                edit(A, ONE, ONE + '    fakegpu.launch("more")\n'),
                conftest(
                    "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_call():\n"
                    "    try:\n        return (yield)\n    except BaseException:\n        return None\n"
                ),
            ),
            HIDDEN_ONE,
        ),
        "a hook reports it as passed": Case(
            all_of(
                edit(A, ONE, ONE + '    fakegpu.launch("more")\n'),
                conftest(
                    "@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
                    "def pytest_runtest_makereport():\n    report = yield\n    report.outcome = 'passed'\n"
                    "    return report\n"
                ),
            ),
            HIDDEN_ONE,
        ),
        "a hook catches that records are dropped": Case(
            all_of(
                edit(A, ONE, ONE + "    fakegpu.drop(5)\n"),
                conftest(
                    "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_call():\n"
                    "    try:\n        return (yield)\n    except BaseException:\n        return None\n"
                ),
            ),
            HIDDEN_ONE,
        ),
        "a hook sets the exit status": Case(
            all_of(
                edit(A, ONE, "@pytest.mark.skip\n" + ONE),
                conftest("def pytest_sessionfinish(session):\n    session.exitstatus = 0\n"),
            ),
            SKIPPED_ONE,
        ),
        "a hook accepts a session without tests": Case(
            all_of(
                ini("python_files = check_*.py"),
                edit("pytest.ini", "--doctest-modules", ""),
                conftest(
                    "def pytest_sessionfinish(session, exitstatus):\n    if exitstatus == 5:\n"
                    "        session.exitstatus = 0\n"
                ),
            ),
            "9 golden values were not collected",
        ),
    },
    "pytest runs a test otherwise": {
        "several times, of which one skips": Case(
            edit(
                A,
                ONE,
                "RUNS = []\n\n\n@pytest.fixture\ndef second():\n    RUNS.append(1)\n"
                "    if len(RUNS) == 2:\n        pytest.skip('twice')\n\n\n" + ONE.replace("()", "(second)", 1),
            ),
            SKIPPED_ONE,
            options=("--count=2",),
            plugins=("repeat",),
        ),
        "in forks": Case(conftest(textwrap.dedent(FORKING)), "tests could not be verified", variables={"FORKED": "1"}),
        "in threads": Case(
            # The plugin runs tests that use ctypes, like the fake GPU, in one thread, but as often as a marker
            # requests.
            edit(A, ONE, "@pytest.mark.iterations(2)\n" + ONE),
            "1 pytest-run-parallel runs it several times at once",
            plugins=("run-parallel",),
        ),
        "in a time that is over": Case(
            edit(A, ONE, ONE + "    time.sleep(60)\n"), "Timeout", options=("--timeout=1",), plugins=("timeout",)
        ),
    },
}
TABLE = [pytest.param(case, id=f"{group}: {name}") for group, cases in CASES.items() for name, case in cases.items()]


@pytest.fixture(scope="module")
def recorded(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite with golden values of all its tests."""
    suite = Suite(tmp_path_factory.mktemp("recorded"), fake_driver)
    for name, text in FILES.items():
        suite.write(name, text)
    for _ in range(2):  # doctests cannot run again, so a second update confirms them
        done = suite.run("--cutrace-update")
        assert done.status == 0, done.output
    return suite.folder


@pytest.fixture
def suite(recorded: Path, suite: Suite) -> Suite:
    """A copy of the suite with golden values."""
    shutil.copytree(recorded, suite.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".cutrace"))
    return suite


@pytest.mark.parametrize("case", TABLE)
def test_a_check_that_is_lost_is_red(suite: Suite, case: Case) -> None:
    case.change(suite.folder)
    done = suite.run("--cutrace=require", *case.options, plugins=case.plugins, gpu=case.gpu, **case.variables)
    assert done.status != 0, done.output
    assert case.says in done.words, done.output


SELECTED = {
    "all": ((), "golden 9: 9 compared"),
    "-k": (("-k", "one"), "golden 9: 1 compared, 8 not selected"),
    "-m": (("-m", "slow"), "golden 9: 1 compared, 8 not selected"),
    "-m, against addopts": (
        ("-m", "slow", "-o", "addopts=--doctest-modules -m nothing"),
        "golden 9: 1 compared, 8 not selected",
    ),
    "-k, with -m in addopts": (
        ("-k", "one", "-o", "addopts=--doctest-modules -m 'not slow'"),
        "golden 9: 1 compared, 8 not selected",
    ),
    "--deselect": (("--deselect", "tests/test_a.py::test_one"), "golden 9: 8 compared, 1 not selected"),
    "--ignore": (("--ignore", "tests/test_b.py"), "golden 9: 5 compared, 4 not selected"),
    "a module": (("tests/test_a.py",), "golden 4: 4 compared"),
    "a test": (("tests/test_a.py::test_one",), "golden 1: 1 compared"),
    "a function": (("tests/test_a.py::test_two",), "golden 2: 2 compared"),
    "workers": (("-n", "1", "-k", "one"), "golden 9: 1 compared, 8 not selected"),
}


@pytest.mark.parametrize("name", SELECTED)
def test_what_the_command_line_selects_is_enough(suite: Suite, name: str) -> None:
    options, account = SELECTED[name]
    plugins = ("xdist",) if "-n" in options else ()
    done = suite.run("--cutrace=require", *options, plugins=plugins)
    assert done.status == 0, done.output
    assert account in done.words


def test_the_page_has_the_table() -> None:
    rows = [f"| {group} | {', '.join(cases)} |" for group, cases in CASES.items()]
    assert "\n".join(rows) in (Path(__file__).parents[2] / "docs" / "internals" / "gate.md").read_text()
