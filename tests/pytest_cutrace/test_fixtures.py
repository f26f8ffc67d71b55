"""The fixtures, markers and hooks."""

from __future__ import annotations

import numpy as np
import pytest

from cutrace.errors import CutraceError
from cutrace.reports.model import State
from pytest_cutrace.fixtures import checked
from support.suites import Suite


def test_regions_records_and_metrics(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_regions(gpu_trace):
            for _ in range(2):
                with gpu_trace.region("forward"):
                    fakegpu.launch("f")
            with gpu_trace.region("backward"):
                with gpu_trace.region("inner"):
                    fakegpu.launch("i")
                fakegpu.launch("b")
            fakegpu.launch("rest")

        def test_metrics(gpu_trace):
            assert gpu_trace.active
            fakegpu.launch("before")
            with gpu_trace.region("one"):
                fakegpu.launch("k")
                fakegpu.copy("HtoD", 64)
            assert gpu_trace.metrics["kernels"] == {"k": 1}
            assert gpu_trace.metrics["memcpy_bytes"] == 64
            with gpu_trace.region("two"):
                pass
            assert gpu_trace.metrics["kernel_launches"] == 0
            fakegpu.launch("after")

        def test_records(gpu_trace, cutrace_dir):
            fakegpu.launch("k")
            gpu_trace.value("tokens", 7)
            gpu_trace.value("mylib.blocks", int(os.environ.get("BLOCKS", 3)))
            (cutrace_dir / "notes.txt").write_text("mine")

        def test_too_early(gpu_trace):
            gpu_trace.metrics

        def test_no_number(gpu_trace):
            gpu_trace.value("mylib.blocks", "many")
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update")
    assert done.failed == {"test_too_early", "test_no_number"}
    assert "gpu_trace.metrics needs a region that has ended" in done.output
    assert "a name with a dot is a counter" in done.output
    regions = {name: values["kernels"] for name, values in done.case("test_regions").regions.items()}
    assert regions == {"forward": {"f": 2}, "backward": {"b": 1, "i": 1}, "inner": {"i": 1}}
    assert done.case("test_metrics").values["kernels"] == {"after": 1, "before": 1, "k": 1}
    assert done.case("test_records").user == {"tokens": 7, "mylib.blocks": 3}
    assert '"mylib.blocks" = 3' in suite.golden()["test_a.toml"]
    assert (suite.folder / ".cutrace/tests/test_a.py/test_records/notes.txt").read_text() == "mine"
    again = suite.run("--cutrace", "-k", "regions or test_metrics or records", BLOCKS="4")
    assert again.failed == {"test_records"}
    assert "mylib.blocks" in again.output


def test_work_of_graphs_is_in_the_regions_in_which_it_was_captured(suite: Suite) -> None:
    suite.write("test_a.py", """
        import pytest

        @pytest.fixture(scope="module")
        def shared():
            fakegpu.launch("warm_up")
            fakegpu.begin_capture()
            fakegpu.launch("old")
            return fakegpu.instantiate(fakegpu.end_capture())

        @pytest.mark.parametrize("times", [1, int(os.environ.get("TIMES", 2))], ids=["once", "more"])
        def test_replays(gpu_trace, shared, times):
            fakegpu.begin_capture()
            with gpu_trace.region("forward"):
                fakegpu.launch("f")
                with gpu_trace.region("inner"):
                    fakegpu.launch("i")
            graph = fakegpu.instantiate(fakegpu.end_capture())
            with gpu_trace.region("replays"):
                for _ in range(times):
                    fakegpu.replay(graph)
            fakegpu.replay(shared)
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update")
    for name, times in (("once", 1), ("more", 2)):
        case = done.case(f"test_replays[{name}]")
        assert case.values["kernels"] == {"f": times, "i": times, "old": 1}
        assert {region: values["kernels"] for region, values in case.regions.items()} == {
            "forward": {"f": times, "i": times}, "inner": {"i": times}, "replays": {"f": times, "i": times},
        }  # fmt: skip
    assert not suite.run("--cutrace").failed
    assert suite.run("--cutrace", TIMES="3").failed == {"test_replays[more]"}


def test_regions_before_cuda_begins(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it(gpu_trace):
            with gpu_trace.region("first"):
                fakegpu.launch("k")
            with gpu_trace.region("second"):
                fakegpu.launch("k")
                fakegpu.launch("k")
    """)  # fmt: skip
    (case,) = suite.run("--cutrace").cases.values()
    assert {name: values["kernel_launches"] for name, values in case.regions.items()} == {"first": 1, "second": 2}
    assert case.problems == ()


REGIONS_OF_FIXTURES = """
@pytest.fixture
def spanning(gpu_trace):
    with gpu_trace.region("spanning"):
        fakegpu.launch("setup")
        yield
        fakegpu.launch("teardown")

@pytest.fixture
def before(gpu_trace):
    with gpu_trace.region("before"):
        fakegpu.launch("before")
    gpu_trace.value("tokens", 7)
    gpu_trace.value("mylib.blocks", int(os.environ.get("BLOCKS", 3)))

def test_it(spanning, before, gpu_trace):
    fakegpu.launch("k")
    with gpu_trace.region("inner"):
        fakegpu.launch("i")
    fakegpu.launch(os.environ.get("EXTRA", "k"))

def test_after(spanning):
    fakegpu.launch("k")
"""


def test_regions_and_values_of_fixtures(suite: Suite) -> None:
    suite.write("test_a.py", REGIONS_OF_FIXTURES)
    assert suite.run().status == 0
    done = suite.run("--cutrace-update")
    assert done.status == 0, done.output
    case = done.case("test_it")
    assert case.problems == ()
    assert case.user == {"tokens": 7, "mylib.blocks": 3}
    regions = {name: values["kernels"] for name, values in case.regions.items()}
    assert regions == {"spanning": {"i": 1, "k": 2}, "inner": {"i": 1}}, "in the second run too"
    assert case.runs == 2
    again = suite.run("--cutrace", EXTRA="more", BLOCKS="4")
    rows = {(row.metric, row.region) for row in again.case("test_it").rows if row.failed}
    assert rows == {("kernel_launches", ""), ("kernel_launches", "spanning"), ("mylib.blocks", "")}
    assert again.case("test_after").state is State.GATED


def test_the_module_cutrace_is_not_hidden(suite: Suite) -> None:
    suite.write("test_a.py", """
        import cutrace

        def test_it(gpu_trace):
            assert cutrace.__name__ == "cutrace"
            fakegpu.launch("k")

        def test_no_such_fixture(request):
            with pytest.raises(pytest.FixtureLookupError):
                request.getfixturevalue("cutrace")
    """)  # fmt: skip
    assert suite.run("--cutrace").status == 0


def test_repeat_and_warmup(suite: Suite) -> None:
    suite.write("test_a.py", """
        runs = []

        @pytest.mark.cutrace(warmup=2, repeat=3)
        def test_it():
            runs.append(1)
            for _ in range(1 if len(runs) > 2 else 5):
                fakegpu.launch("k")

        def test_how_often():
            assert len(runs) == 5
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update")
    assert done.status == 0, done.output
    assert done.case("test_it").runs == 3
    (text,) = suite.golden().values()
    assert "kernels = { k = 1 }" in text
    assert "unconfirmed" not in text


def test_markers_are_closer_than_the_session(suite: Suite) -> None:
    suite.write("test_a.py", """
        MORE = int(os.environ.get("MORE", 0))

        @pytest.mark.cutrace(ignore=["kernels:noise*"])
        def test_ignore():
            fakegpu.launch("k")
            for i in range(MORE):
                fakegpu.launch("noise_kernel")

        @pytest.mark.cutrace(tolerance={"kernel_launches": 0.5, "streams_used": "50%"})
        def test_tolerance():
            for _ in range(10 + MORE):
                fakegpu.launch("k")

        @pytest.mark.cutrace(gate=["work"])
        class TestClass:
            @pytest.mark.cutrace(off=True)
            def test_off(self):
                fakegpu.launch("k")

            def test_on(self):
                for _ in range(10 + MORE):
                    fakegpu.launch("k")
    """)  # fmt: skip
    suite.run("--cutrace", "--cutrace-update")
    done = suite.run("--cutrace", MORE="1")
    assert done.failed == {"TestClass.test_on"}
    assert done.case("TestClass.test_off").state is State.UNTRACED


def test_limits(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.gpu_limit(kernel_launches=2, peak_memory="1 MiB", sync_calls=0)
        def test_within():
            fakegpu.launch("k")

        @pytest.mark.gpu_limit(peak_memory="1 MiB")
        def test_over():
            fakegpu.free(fakegpu.malloc(1 << 21))
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.failed == {"test_over"}
    added, line = [line for line in done.output.splitlines() if line.startswith("  peak_memory")]
    assert added.endswith("   2 MiB test_a.py:12 in test_over")
    assert line.split() == ["peak_memory", "1", "MiB", "2", "MiB", "limit", "WORSE", "over", "the", "limit"]
    assert "cutrace: peak_memory 2 MiB (limit 1 MiB)" in done.output


def test_scopes(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.cutrace
        def test_marked():
            fakegpu.launch("k")

        def test_plain():
            fakegpu.launch("k")
    """)  # fmt: skip
    states = {"marked": State.TRACED, "existing": State.TRACED, "all": State.MISSING}
    for scope, state in states.items():
        suite.write("pytest.ini", f"[pytest]\ncutrace_scope = {scope}\n")
        done = suite.run("--cutrace")
        assert done.case("test_marked").state is State.MISSING
        assert done.case("test_plain").state is state, scope
    suite.write("pytest.ini", "[pytest]\ncutrace_scope = marked\n")
    suite.run("--cutrace", "--cutrace-update")
    assert "test_plain" not in suite.golden()["test_a.toml"]


def test_the_names_of_a_folder_are_for_its_tests(suite: Suite) -> None:
    suite.write("a/conftest.py", "def pytest_cutrace_normalize_kernel(name):\n    return 'generated'\n")
    for folder in ("a", "b"):
        suite.write(f"{folder}/test_{folder}.py", "def test_it():\n    fakegpu.launch('gen_1')\n")
    assert suite.run("--cutrace-update").status == 0
    golden = suite.golden()
    assert "kernels = { generated = 1 }" in golden["a/test_a.toml"]
    assert "kernels = { gen_1 = 1 }" in golden["b/test_b.toml"]
    for selected in ("a", "b"):
        assert suite.run("--cutrace=require", selected).status == 0


def test_hooks(suite: Suite) -> None:
    suite.write("conftest.py", """
        results = []

        def pytest_cutrace_environment(names, facts):
            return "sm_" + facts["compute capability"].replace(".", "") + "-mine"

        def pytest_cutrace_golden_path(item, root):
            return root / "flavour" / (item.path.stem + ".toml")

        def pytest_cutrace_normalize_kernel(name):
            return "generated" if name.startswith("gen_") else None

        def pytest_cutrace_metrics(trace, window):
            return {"mylib.blocks": int(trace.launches[trace.kernels["launch"]]["grid_x"].sum())}

        def pytest_cutrace_compare(item, entry, runs, environment, rules):
            from dataclasses import replace
            from cutrace.golden import compare
            if item.name == "test_forgiven":
                compared = compare(entry, runs, environment=environment, rules=rules)
                return replace(compared, rows=tuple(row for row in compared.rows if row.metric != "mylib.blocks"))

        def pytest_cutrace_result(item, case):
            with open("results.txt", "a") as file:
                print(item.name, case.state.value, file=file)
    """)  # fmt: skip
    body = "def {0}():\n    fakegpu.launch('gen_1', grid={{0}})\n\n"
    program = body.format("test_it") + body.format("test_forgiven")
    suite.write("test_a.py", program.format(4))
    suite.run("--cutrace", "--cutrace-update")
    text = suite.golden()["flavour/test_a.toml"]
    assert "kernels = { generated = 1 }" in text
    assert '"mylib.blocks" = 4' in text
    assert 'seen = ["sm_90-mine"]' in text
    suite.write("test_a.py", program.format(5))
    assert suite.run("--cutrace").failed == {"test_it"}
    assert (suite.folder / "results.txt").read_text().split() == [
        *("test_it", "updated", "test_forgiven", "updated", "test_it", "gated", "test_forgiven", "gated"),
    ]


@pytest.mark.parametrize("path", ["root / 'test_a'", "root.parent / 'test_a.toml'", "'test_a.toml'"])
@pytest.mark.parametrize("options", [(), ("-k", "nothing")])
def test_a_golden_path_that_no_account_finds_is_refused(suite: Suite, path: str, options: tuple[str, ...]) -> None:
    suite.write("conftest.py", f"def pytest_cutrace_golden_path(root):\n    return {path}\n")
    suite.write("test_a.py", "def test_it():\n    fakegpu.launch('k')\n")
    done = suite.run("--cutrace-update", *options)
    assert done.status == 4
    assert f"return a file under {suite.folder / 'golden'} with the ending .toml" in done.output
    assert "INTERNALERROR" not in done.output


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (np.int64(7), True),
        (np.uint64(2**63), False),
        (2**63 - 1, True),
        (1 - 2**63, True),
        (2**63, False),
        (-(2**63), False),
    ],
)
def test_a_counter_has_64_bits(value: int, fits: bool) -> None:
    if fits:
        assert checked("mylib.tokens", value)
        return
    with pytest.raises(CutraceError, match="a whole number of 64 bits"):
        checked("mylib.tokens", value)
