"""Bad input is a usage error. The message names the location and a correction."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cutrace.reports.model import State
from pytest_cutrace import options
from support.suites import Suite

TEST = "def test_it():\n    fakegpu.launch('k')\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cutrace_scope = most", "'most' is unknown: write one of marked, existing, all"),
        ("cutrace_gate = speed", "there is no metric 'speed'"),
        ("cutrace_tolerance = kernel_tim=5%", "there is no metric 'kernel_tim': did you mean"),
        ("cutrace = maybe", "'maybe' is unknown: write true, false or require"),
        ("cutrace_ignore = noise*", "'noise*' is not a metric: write kernels:noise*"),
        ("cutrace_seed = 7", "'7' is unknown: write one of on, off"),
        ("cutrace_variant = cuda{", "'cuda{' is not a variant"),
        ("cutrace_variant = {nothing-of-that-name}", "is neither cuda nor an installed package"),
    ],
)
def test_ini_values(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(pytest.UsageError) as error:
        settings(tmp_path, f"\n{line}")
    assert str(error.value).startswith(f"{tmp_path}/pytest.ini:3: {line.partition(' ')[0]}: ")
    assert told in str(error.value)


def test_ini_values_of_several_lines(tmp_path: Path) -> None:
    rules = settings(tmp_path, "cutrace_ignore = kernels:soft*\ncutrace_tolerance =\n    work=100%\n    time=1%").rules
    assert rules.ignore == ("kernel_launches:soft*",)
    assert rules.tolerance == {"work": 1.0, "time": 0.01}


def settings(folder: Path, lines: str) -> options.Settings:
    ini = folder / "pytest.ini"
    ini.write_text(f"[pytest]\n{lines}\n")
    return options.read(pytest.Config.fromdictargs({}, ["-c", str(ini), "--rootdir", str(folder)]))


MARKERS = {
    "cutrace(wramup=1)": "the marker cutrace has no argument 'wramup': write one of warmup, repeat",
    "cutrace(3)": "takes no positional argument",
    "cutrace(repeat=0)": "repeat=0: write a number from 1 on",
    "cutrace(warmup=True)": "warmup=True: write a number from 0 on",
    "cutrace(warmup='2')": "warmup='2': write a number from 0 on",
    "cutrace(gate='speed')": "there is no metric 'speed'",
    "cutrace(tolerance={'kernel_tim': 1})": "there is no metric 'kernel_tim'",
    "cutrace(off=1)": "off=1: write True or False",
    "gpu_limit(launches=3)": "there is no metric 'launches'",
    "gpu_limit(peak_memory='much')": "'much' is not a size",
    "gpu_limit(3)": "gpu_limit takes metrics by name",
    "gpu_limit()": "gpu_limit limits nothing",
}


def test_markers(suite: Suite) -> None:
    tests = (f"@pytest.mark.{marker}\ndef test_{at}():\n    pass\n" for at, marker in enumerate(MARKERS))
    path = suite.write("test_a.py", "".join(["import pytest\n", *tests]), prelude=False)
    done = suite.run("--cutrace", gpu=False)
    assert done.status == 4
    for at, told in enumerate(MARKERS.values()):
        (line,) = [line for line in done.output.splitlines() if f"{path}:{2 + 3 * at}: " in line]
        assert told in line
    assert "Traceback" not in done.output


def test_markers_in_workers(suite: Suite) -> None:
    suite.write("test_a.py", "@pytest.mark.cutrace(wramup=1)\ndef test_it():\n    pass\n")
    done = suite.run("--cutrace", "-n", "1", plugins=("xdist",))
    assert done.status == 1
    assert "1 failed" in done.output
    assert "KeyError" not in done.output
    assert "FAILED test_a.py::test_it - Failed: " in done.output
    assert "the marker cutrace has no argument 'wramup'" in done.case("test_it").reason


def test_markers_that_a_fixture_adds(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.fixture(autouse=True)
        def marked(request, gpu_trace):
            text = os.environ.get(request.node.name)
            if text:
                request.applymarker(eval(f"pytest.mark.{text}"))
            with gpu_trace.region("inner", kernel_launches=2):
                yield

        def test_a():
            fakegpu.launch("k")
            fakegpu.launch("k")

        @pytest.mark.cutrace(off=True)
        class TestOff:
            def test_b(self):
                fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert (done.status, done.case("test_a").state) == (0, State.GATED), done.output
    assert done.case("TestOff.test_b").state is State.UNTRACED
    done = suite.run("--cutrace", test_a="gpu_limit(kernel_launches=1)")
    assert done.failed == {"test_a"}
    assert "kernel_launches 2 (limit 1" in done.output
    done = suite.run("--cutrace", test_a="cutrace(off=True)", test_b="cutrace(off=False, repeat=2)")
    assert done.status == 0, done.output
    assert done.case("test_a").reason == "the marker says off=True"
    assert (done.case("TestOff.test_b").values["kernels"], done.case("TestOff.test_b").runs) == ({"k": 1}, 2)
    done = suite.run("--cutrace", test_a="cutrace(nonsense=1)", test_b="gpu_limit()")
    assert done.failed == {"test_a", "TestOff.test_b"}
    assert "test_a.py:14: the marker cutrace has no argument 'nonsense': write one of warmup" in done.output
    assert "test_a.py:20: gpu_limit limits nothing: write gpu_limit(kernel_launches=3)" in done.output
    assert done.case("test_a").state is State.UNVERIFIED
    suite.write("conftest.py", """
        import pytest

        @pytest.fixture(autouse=True)
        def marked(request):
            request.applymarker(pytest.mark.cutrace(nonsense=1))
    """, prelude=False)  # fmt: skip
    suite.write("test_a.py", "def test_a():\n    pass\n", prelude=False)
    assert suite.run("--cutrace", gpu=False).failed == {"test_a"}


def test_a_fixture_that_skips_its_test_may_allow_it(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.fixture(autouse=True)
        def no_gpu(request):
            if "SKIP" in os.environ:
                request.applymarker(pytest.mark.cutrace(may_skip=True))
                pytest.skip()

        def test_a():
            fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    done = suite.run("--cutrace=require", SKIP="1")
    assert done.status == 0, done.output
    assert "golden 1: 1 skipped as allowed" in done.words


def test_markers_that_a_hook_adds_last(suite: Suite) -> None:
    suite.write("conftest.py", """
        @pytest.hookimpl(wrapper=True, trylast=True)
        def pytest_collection_modifyitems(items):
            yield
            for item in items:
                item.add_marker(pytest.mark.gpu_limit(**{os.environ["LIMIT"]: 0}))
    """)  # fmt: skip
    suite.write("test_a.py", "def test_a():\n    fakegpu.launch('k')\n")
    assert suite.run("--cutrace", LIMIT="kernel_launches").failed == {"test_a"}
    done = suite.run("--cutrace", LIMIT="launches")
    assert done.status == 4
    assert "there is no metric 'launches'" in done.output


@pytest.mark.parametrize("distributed", [(), ("-n", "2")])
def test_a_damaged_golden_file(suite: Suite, distributed: tuple[str, ...]) -> None:
    suite.write("test_a.py", TEST)
    suite.run("--cutrace", "--cutrace-update")
    path = suite.folder / "golden/test_a.toml"
    path.write_text(path.read_text().replace("kernels = {", "kernelz = {"))
    done = suite.run("--cutrace", *distributed, plugins=("xdist",) if distributed else ())
    assert f"{path}:9: " in done.output
    assert "kernelz" in done.output
    assert done.output.count(f"{path}:9: ") == 1 or distributed
    assert done.status == (4 if not distributed else done.status) != 0


def test_a_golden_file_of_another_module(suite: Suite) -> None:
    suite.write("test_a.py", TEST)
    suite.run("--cutrace", "--cutrace-update")
    path = suite.folder / "golden/test_a.toml"
    path.write_text(path.read_text().replace('"test_a.py"', '"test_other.py"'))
    done = suite.run("--cutrace")
    assert done.status == 4
    assert f"{path}:4: " in done.output


def test_a_folder_in_the_place_of_a_golden_file(suite: Suite) -> None:
    suite.write("test_a.py", TEST)
    path = suite.folder / "golden/test_a.toml"
    path.mkdir(parents=True)
    done = suite.run("--cutrace")
    assert done.status == 4
    assert f"cannot read the golden file {path}: it is not a file. Move it away" in done.output


def test_options(suite: Suite) -> None:
    suite.write("test_a.py", TEST)
    suite.write("pytest.ini", "[pytest]\ncutrace_scope = some\n")
    ini = suite.run("--cutrace")
    assert (ini.status, "Traceback" in ini.output) == (4, False)
    assert (
        f"{suite.folder}/pytest.ini:2: cutrace_scope: 'some' is unknown: write one of marked, existing, all"
        in ini.output
    )
    suite.write("pytest.ini", "[pytest]\n")
    for option, told in {
        "report=pdf": "'pdf' is not a kind of report",
        "report=junit:a.xml": "junit takes no file: name it with --junitxml",
        "repeat=0": "'0' is not a number: write a number from 1 on",
        "repeat=": "'' is not a number: write a number from 1 on",
        "update=": "the value is empty: write one of missing, changed, all, or names of metrics and classes",
        "keep=some": "'some' is unknown: write one of all, failed, none",
    }.items():
        name = option.partition("=")[0]
        assert f"--cutrace-{name}: {told}" in suite.run("--cutrace", f"--cutrace-{option}").output
    assert "--cutrace-gate: there is no metric 'speed'" in suite.run("--cutrace", "--cutrace-gate=speed").output
    unknown = suite.run("--cutrace=perhaps")
    assert unknown.status == 4
    assert "--cutrace=perhaps is unknown: write --cutrace, --cutrace=require or --cutrace=off" in unknown.output
    assert "--cutrace-update: there is no metric 'al'" in suite.run("--cutrace-update=al").output
    overridden = suite.run("--cutrace", "-o", "cutrace_tolerance=much")
    assert "ERROR: -o cutrace_tolerance: 'much'" in overridden.output
    off = suite.run("--cutrace=off", "--cutrace-update")
    assert off.status == 4
    assert "ERROR: --cutrace=off excludes --cutrace-update: write one of them" in off.output


@pytest.mark.parametrize(
    ("option", "where"),
    [
        ("--cutrace", "command line"),
        ("--cutrace-update", "command line"),
        ("--cutrace-update=kernels,sync_calls", "command line"),
        ("--cutrace-update=kernels,sync_calls", "ini"),
        ("--cutrace-update=kernels,sync_calls", "environment"),
    ],
)
def test_a_path_behind_an_option_is_a_path(suite: Suite, option: str, where: str) -> None:
    suite.write("test_a.py", TEST)
    suite.write("test_b.py", TEST)
    report = f"--cutrace-report=json:{suite.folder / 'report.json'}"
    if where == "ini":
        suite.write("pytest.ini", f"[pytest]\naddopts = {option}\n")
        done = suite.run(report, "test_a.py")
    elif where == "environment":
        done = suite.run(report, "test_a.py", PYTEST_ADDOPTS=option)
    else:
        done = suite.run(option, "test_a.py")
    assert done.status == 0, done.output
    assert len(done.cases) == 1
    assert list(suite.golden()) == ([] if option == "--cutrace" else ["test_a.toml"])


def test_a_folder_that_cannot_be_written(suite: Suite) -> None:
    suite.write("test_a.py", TEST)
    (suite.folder / "file").write_text("")
    done = suite.run("--cutrace", "--cutrace-dir=file/inside")
    assert done.status == 4
    assert "cannot write" in done.output
    assert "Choose another name or place. --cutrace-dir names it." in done.output
    assert "Traceback" not in done.output
    if os.geteuid() == 0:
        return
    (suite.folder / "locked").mkdir(mode=0o500)
    assert suite.run("--cutrace", "--cutrace-dir=locked").status == 4


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        (".", "contains the rootdir"),
        ("..", "contains the rootdir"),
        ("results", "contains the golden files"),
        ("results/golden", "contains the golden files"),
        ("results/golden/tests", "is among the golden files"),
    ],
)
def test_a_folder_with_files_of_the_project(suite: Suite, folder: str, told: str) -> None:
    suite.write("pytest.ini", "[pytest]\ncutrace_golden_dir = results/golden\n")
    suite.write("results/golden/tests/proposed/test_a.toml", "")
    done = suite.run("--cutrace", f"--cutrace-dir={folder}")
    assert done.status == 4
    assert f"ERROR: --cutrace-dir: {suite.folder / folder} {told}: name another folder" in done.output
    assert (suite.folder / "results/golden/tests/proposed/test_a.toml").exists()
    assert not list(suite.folder.rglob(".gitignore"))


def test_a_folder_with_files_of_others(suite: Suite) -> None:
    suite.write("test_a.py", TEST)
    suite.write("results/proposed/mine.txt", "")
    (suite.folder / "empty").mkdir()
    for folder in ("results", "empty", "new"):
        assert suite.run("--cutrace", f"--cutrace-dir={folder}").status == 0
    ignored = {path.parent.name for path in suite.folder.rglob(".gitignore")}
    assert ignored == {"empty", "new"}
    assert (suite.folder / "results/proposed/mine.txt").exists()


def test_golden_files_beside_the_tests(suite: Suite) -> None:
    suite.write("pytest.ini", "[pytest]\ncutrace_golden_dir = .\n")
    suite.write("pyproject.toml", "[project]\nname = 'mine'\n")
    suite.write("test_a.py", TEST)
    assert suite.run("--cutrace-update").status == 0
    assert suite.run("--cutrace=require").status == 0


METRICS_HOOK = """
    def pytest_cutrace_metrics():
        if "BROKEN" in os.environ:
            return {"not a counter": 1}
        if "LARGE" in os.environ:
            return {"mylib.tokens": 2**70}
        return {"mylib.tokens": 3}
"""


def test_a_gated_test_whose_measurement_fails_is_red(suite: Suite) -> None:
    suite.write("conftest.py", METRICS_HOOK)
    suite.write("test_a.py", TEST)
    assert suite.run("--cutrace-update").status == 0
    assert suite.run("--cutrace=require").status == 0
    done = suite.run("--cutrace", BROKEN="1")
    assert (done.status, done.failed) == (1, {"test_it"})
    assert "cutrace: pytest_cutrace_metrics returned not a counter=1" in done.output
    assert done.case("test_it").state is State.UNVERIFIED
    assert "return whole numbers of 64 bits by names with a dot" in done.case("test_it").reason
    assert suite.run("--cutrace-update", LARGE="1").status == 1
    assert suite.run("--cutrace=require").status == 0


def test_a_test_without_golden_values_whose_measurement_fails_is_not_traced(suite: Suite) -> None:
    suite.write("conftest.py", METRICS_HOOK)
    suite.write("test_a.py", TEST)
    done = suite.run("--cutrace-update", BROKEN="1")
    assert done.status == 0
    assert done.case("test_it").state is State.UNTRACED
    assert suite.golden() == {}
