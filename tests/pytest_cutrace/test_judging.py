"""The judged run of a test: with fresh fixtures, by golden values and by limits, in updates and in checks."""

from __future__ import annotations

from cutrace.reports.model import State
from support.suites import Suite

MEMOISED = """
import functools

@functools.cache
def prepared():
    for _ in range(int(os.environ.get("TIMES", 1))):
        fakegpu.launch("prepare")

@pytest.fixture(autouse=True)
def forget():
    prepared.cache_clear()

def test_it():
    prepared()
    fakegpu.launch("k")
"""


def test_work_that_a_fixture_brings_back_is_in_every_run(suite: Suite) -> None:
    suite.write("test_a.py", MEMOISED)
    assert suite.run("--cutrace-update").status == 0
    assert suite.golden()["test_a.toml"].count("prepare = 1") == 1
    more = suite.run("--cutrace", TIMES="100")
    assert more.failed == {"test_it"}
    assert more.case("test_it").values["kernels"] == {"k": 1, "prepare": 100}


def test_a_limit_holds_for_work_that_a_fixture_brings_back(suite: Suite) -> None:
    suite.write("test_a.py", MEMOISED.replace("def test_it", "@pytest.mark.gpu_limit(kernel_launches=2)\ndef test_it"))
    for option in ("--cutrace", "--cutrace-update"):
        assert suite.run(option).status == 0
        assert suite.run(option, TIMES="1000").failed == {"test_it"}


def test_a_list_of_a_function_fixture_does_not_grow(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.fixture
        def batch():
            return []

        def test_it(batch):
            batch.append(1)
            for _ in range(len(batch) * int(os.environ.get("TIMES", 1))):
                fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.status == 0
    assert "unstable" not in suite.golden()["test_a.toml"]
    assert suite.run("--cutrace=require", TIMES="100").failed == {"test_it"}


def test_a_first_run_that_does_more_is_counted(suite: Suite) -> None:
    suite.write("test_a.py", """
        WARM = set()

        @pytest.mark.parametrize("size", [1, 2])
        @pytest.mark.gpu_limit(kernel_launches=1)
        def test_warm(size):
            if size not in WARM:
                WARM.add(size)
                fakegpu.launch("compile")
            fakegpu.launch("k")
    """)  # fmt: skip
    for option in ("--cutrace-update", "--cutrace=require"):
        done = suite.run(option, "-v")
        assert done.status == 0, done.output
        assert "2  did more in the first run: -v names the tests" in done.output
        assert "test_a.py::test_warm[1]: the first run did more GPU work than the judged runs" in done.output


def test_fixtures_are_set_up_again_in_order_and_wider_ones_stay(suite: Suite) -> None:
    suite.write("test_a.py", """
        EVENTS = []

        @pytest.fixture(scope="module")
        def shared():
            EVENTS.append("shared")
            yield
            EVENTS.append("not shared")

        @pytest.fixture
        def own(shared, tmp_path, monkeypatch, capsys):
            monkeypatch.setenv("OWN", "1")
            EVENTS.append(f"own {len(list(tmp_path.iterdir()))}")
            (tmp_path / "file").touch()
            yield
            EVENTS.append("not own")

        class TestClass:
            def setup_method(self):
                self.calls = []

            def test_it(self, own, request):
                assert request.instance is self and request.node.funcargs
                self.calls.append(1)
                EVENTS.append(f"run {len(self.calls)}")
                fakegpu.launch("k")

        def test_after():
            assert "OWN" not in os.environ
            assert EVENTS == ["shared", *["own 0", "run 1", "not own"] * 2]
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.status == 0, done.output


def test_a_teardown_that_fails_between_runs_fails_the_test(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.fixture
        def own():
            yield
            raise OSError("cannot close")

        def test_it(own):
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.failed == {"test_it"}
    assert "OSError: cannot close" in done.output
    assert not suite.golden()


def test_a_setup_that_fails_the_second_time_is_told(suite: Suite) -> None:
    suite.write("test_a.py", """
        UP = []

        @pytest.fixture
        def own():
            UP.append(1)
            if len(UP) > 1:
                raise OSError("in use")

        def test_it(own):
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace-update")
    assert done.status == 0, done.output
    assert done.case("test_it").notes == ("another run did not pass: OSError: in use",)


def test_unstable_values_alone_gate_nothing(suite: Suite) -> None:
    suite.write("test_a.py", """
        RUNS = [1, 2, 3]

        def test_it():
            for _ in range(RUNS.pop()):
                fakegpu.launch("k")
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    assert "unstable" in suite.golden()["test_a.toml"]
    done = suite.run("--cutrace")
    assert (done.status, done.case("test_it").state) == (0, State.UNVERIFIED)
    assert done.case("test_it").reason == "nothing is gated: its golden values are unstable"
    assert "1  with values that differ from run to run" in done.output
    assert suite.run("--cutrace=require").status == 4


def test_rules_that_gate_nothing_are_told(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it():
            fakegpu.launch("k")

        def test_idle():
            pass
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    for option in ("--cutrace-gate=none", "-ocutrace_ignore=kernel_launches"):
        done = suite.run("--cutrace=require", option)
        assert done.status == 4, done.output
        case = done.case("test_it")
        assert case.state is State.UNVERIFIED
        assert case.reason == "nothing is gated: the rules gate none of its golden values"


def test_a_further_run_that_does_not_end_as_the_first(suite: Suite) -> None:
    suite.write("test_a.py", """
        RUNS = []

        @pytest.fixture
        def model():
            yield
            assert "TEARDOWN" not in os.environ

        def test_it(model):
            RUNS.append(1)
            for _ in range(int(os.environ.get("LAUNCHES", 1))):
                fakegpu.launch("k")
            if len(RUNS) > 1 and "EXIT" in os.environ:
                sys.exit(0)
    """)  # fmt: skip
    assert suite.run("--cutrace-update").status == 0
    left = suite.run("--cutrace", LAUNCHES="2", EXIT="1")
    assert "another run did not pass: SystemExit: 0" in left.output
    assert (left.status, left.case("test_it").state) == (1, State.GATED)
    torn = suite.run("--cutrace", LAUNCHES="2", TEARDOWN="1")
    case = torn.case("test_it")
    assert (torn.status, case.state, case.reason) == (1, State.UNVERIFIED, "the test did not pass")
