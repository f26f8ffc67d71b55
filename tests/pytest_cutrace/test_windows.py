"""The work of a test: all work that its code launched, in any process and at any time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.suites import Suite


def launches(suite: Suite, *options: str) -> dict[str, object]:
    done = suite.run("--cutrace", *options)
    assert done.status == 0, done.output
    return {name: case.values.get("kernels") for name, case in done.cases.items()}


def passed_in_new_process(suite: Suite, option: str) -> str:
    """The output, in a process that has not loaded NumPy. The programs that run other suites have loaded it."""
    variables = suite.driver.environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "pytest_cutrace.plugin", option]
    done = subprocess.run(command, cwd=suite.folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return " ".join(done.stdout.split())


def test_fixtures_are_outside_and_late_work_stays_with_its_launch(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.fixture
        def prepared():
            fakegpu.launch("setup")
            yield
            fakegpu.launch("teardown")

        def test_first(prepared):
            fakegpu.launch("late", delay_ns=50_000_000, detached=True)
            fakegpu.launch("first")

        def test_second(prepared):
            fakegpu.launch("second")
            time.sleep(0.1)

        def test_third(prepared):
            fakegpu.launch("third")
    """)  # fmt: skip
    assert launches(suite) == {"test_first": {"first": 1}, "test_second": {"second": 1}, "test_third": {"third": 1}}


def test_threads_and_processes_of_a_test_count(suite: Suite) -> None:
    suite.write("test_a.py", """
        import threading

        CHILD = "import fakegpu; fakegpu.launch('child'); fakegpu.synchronize()"

        def test_child_only():
            subprocess.run([sys.executable, "-c", CHILD], check=True)

        def test_thread():
            thread = threading.Thread(target=fakegpu.launch, args=("thread",))
            thread.start()
            thread.join()

        def test_child_and_parent():
            fakegpu.launch("parent")
            subprocess.run([sys.executable, "-c", CHILD], check=True)

        def test_own():
            fakegpu.launch("own")
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update")
    assert {name: case.values["kernels"] for name, case in done.cases.items()} == {
        "test_child_only": {"child": 1},
        "test_thread": {"thread": 1},
        "test_child_and_parent": {"child": 1, "parent": 1},
        "test_own": {"own": 1},
    }
    assert suite.golden()["test_a.toml"].count("kernels = ") == 4
    assert suite.run("--cutrace").status == 0


def test_a_suite_of_subprocesses_alone_is_verified(suite: Suite) -> None:
    suite.write("test_a.py", """
        PROGRAM = "import fakegpu; [fakegpu.launch('k') for _ in range(%s)]" % os.environ.get("LAUNCHES", 1)

        def test_it():
            subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    """)  # fmt: skip
    suite.run("--cutrace", "--cutrace-update")
    assert suite.run("--cutrace=require").status == 0
    done = suite.run("--cutrace", LAUNCHES="2")
    assert done.failed == {"test_it"}
    assert "kernel_launches" in done.output


def test_a_child_that_lives_on_is_noticed(suite: Suite) -> None:
    suite.write("test_a.py", """
        PROGRAM = "import fakegpu, time; fakegpu.launch('k'); print('done', flush=True); time.sleep(60)"
        children = []

        @pytest.fixture(scope="module", autouse=True)
        def ended():
            yield
            for child in children:
                child.kill()

        @pytest.mark.cutrace
        def test_server():
            children.append(subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True))
            children[-1].stdout.readline()

        def test_after():
            fakegpu.launch("own")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.failed == {"test_server"}
    assert "killed or still running" in done.output
    assert done.case("test_server").values["kernels"] == {"k": 1}
    assert done.case("test_after").values["kernels"] == {"own": 1}


def test_forks_are_left_alone(suite: Suite) -> None:
    suite.write("test_a.py", """
        import multiprocessing

        def child():
            fakegpu.launch("child")
            fakegpu.synchronize()

        def test_fork_before_cuda():
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join()
            assert process.exitcode == 0

        def test_fork():
            fakegpu.launch("parent")
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0

        def test_fork_that_returns():
            fakegpu.launch("parent")
            if os.fork() == 0:
                time.sleep(0.1)
                os._exit(0)
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.case("test_fork_before_cuda").reason == "", "a child of multiprocessing ends its recording"
    found = {name: case.values.get("kernels") for name, case in done.cases.items()}
    assert found["test_fork_before_cuda"] == {"child": 1}
    assert found["test_fork"] == {"parent": 1}
    assert found["test_fork_that_returns"] == {"parent": 1}


def test_a_test_may_change_its_surroundings(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_folder(tmp_path):
            os.chdir(tmp_path)
            fakegpu.launch("k")

        def test_variables():
            for name in list(os.environ):
                if "INJECTION" in name or "CUTRACE" in name:
                    del os.environ[name]
            fakegpu.launch("k")

        def test_after():
            program = "import fakegpu; fakegpu.launch('child')"
            subprocess.run([sys.executable, "-c", program], check=True)
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update")
    assert {name: case.values["kernels"] for name, case in done.cases.items()} == {
        "test_folder": {"k": 1},
        "test_variables": {"k": 1},
        "test_after": {"child": 1},
    }
    assert any("put back" in note for note in done.case("test_after").notes)
    assert (suite.folder / "golden/test_a.toml").is_file()


@pytest.mark.parametrize("first", ["without_numpy", "restored", "cleared"])
@pytest.mark.parametrize("imported", ["", "import numpy"])
def test_a_test_may_replace_modules(suite: Suite, first: str, imported: str) -> None:
    suite.write("test_a.py", f"""
        from unittest import mock
        {imported}

        @pytest.fixture
        def without_numpy(monkeypatch):
            monkeypatch.setitem(sys.modules, "numpy", None)

        @pytest.fixture
        def restored():
            with mock.patch.dict(sys.modules):
                yield

        @pytest.fixture
        def cleared():
            with mock.patch.dict(sys.modules, clear=True):
                yield

        def test_first({first}):
            fakegpu.launch("k")

        def test_second():
            import numpy
            fakegpu.launch("k")
    """)  # fmt: skip
    for option in ("--cutrace-update", "--cutrace=require"):
        assert "golden 2: 2 compared" in passed_in_new_process(suite, option)


def test_tests_without_gpu_work_do_not_wait_for_numpy(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it():
            assert "numpy" not in sys.modules
    """)  # fmt: skip
    assert "1 passed" in passed_in_new_process(suite, "--cutrace")


def test_the_order_of_tests_does_not_matter(suite: Suite) -> None:
    body = "\n\n".join(f"def test_{i}():\n    for _ in range({i + 1}):\n        fakegpu.launch('k')" for i in range(6))
    suite.write("test_a.py", body)
    forward = launches(suite)
    names = [f"test_a.py::test_{i}" for i in reversed(range(6))]
    assert launches(suite, *names) == forward
    distributed = suite.run("--cutrace", "-n", "2", plugins=("xdist",))
    assert {name: case.values.get("kernels") for name, case in distributed.cases.items()} == forward
    assert {case.worker for case in distributed.cases.values()} == {"gw0", "gw1"}
    # The environment that a worker of another session would give to this test.
    outer = {"PYTEST_XDIST_WORKER": "gw0", "CUTRACE_PYTEST_CONTROLLER": "1"}
    nested = suite.run("--cutrace", "-n", "2", plugins=("xdist",), **outer)
    assert {name: case.values.get("kernels") for name, case in nested.cases.items()} == forward
