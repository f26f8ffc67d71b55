"""A session without measurements reports this."""

from __future__ import annotations

import pytest

from cutrace.reports.model import State
from support.suites import Suite

PROGRAM = """
@pytest.mark.cutrace
def test_gated():
    if os.environ.get("WORK", "1") == "1":
        fakegpu.launch("k")

@pytest.mark.gpu_limit(kernel_launches=5)
def test_limited():
    if os.environ.get("WORK", "1") == "1":
        fakegpu.launch("k")

def test_plain():
    pass
"""


@pytest.fixture
def recorded(suite: Suite) -> Suite:
    suite.write("test_a.py", PROGRAM)
    assert suite.run("--cutrace", "--cutrace-update").status == 0
    return suite


def test_no_driver(recorded: Suite) -> None:
    recorded.write("test_a.py", PROGRAM.replace('fakegpu.launch("k")', "pass"))
    recorded.write("fakegpu.py", "")
    done = recorded.run("--cutrace", gpu=False)
    assert done.status == 0
    why = "there is no NVIDIA driver (libcuda.so.1)"
    assert f"cutrace: nothing can be traced: {why}" in done.output.splitlines()
    assert {name: (case.state, case.reason) for name, case in done.cases.items()} == {
        "test_gated": (State.UNVERIFIED, why),
        "test_limited": (State.UNVERIFIED, why),
        "test_plain": (State.UNTRACED, why),
    }
    assert f"unverified 2 {why}" in done.words
    assert "nothing was traced" not in done.output, "the states of tests have the reason"
    assert "no golden file" not in done.output
    updated = recorded.run("--cutrace", "--cutrace-update", gpu=False)
    assert "no golden file was written" in updated.output
    distributed = recorded.run("--cutrace", "-n", "2", gpu=False, plugins=("xdist",))
    assert f"cutrace: nothing can be traced: {why}" in distributed.output.splitlines()
    assert f"unverified 2 {why}" in distributed.words


@pytest.mark.parametrize("distributed", [(), ("-n", "1")])
def test_another_tool_holds_cupti(recorded: Suite, distributed: tuple[str, ...]) -> None:
    recorded.write("conftest.py", "fakegpu.hold_cupti()")
    plugins = ("xdist",) if distributed else ()
    done = recorded.run("--cutrace", *distributed, plugins=plugins)
    assert done.status == 0
    assert done.case("test_gated").state is State.UNVERIFIED
    assert "another" in done.case("test_gated").reason
    assert "2 unverified" in done.output


def test_nothing_was_done_where_there_is_no_gpu(recorded: Suite) -> None:
    """CUDA was not used, and nothing indicates a GPU."""
    done = recorded.run("--cutrace", WORK="0")
    assert done.case("test_gated").state is State.UNVERIFIED
    assert "no GPU work of tests was seen" in done.output
    hidden = recorded.run("--cutrace", WORK="0", CUDA_VISIBLE_DEVICES="")
    assert hidden.case("test_gated").reason == "CUDA_VISIBLE_DEVICES= hides all GPUs"


@pytest.mark.parametrize("fault", ["fakegpu.drop(5)", "fakegpu.launch('endless', end=False)"])
def test_numbers_that_cannot_be_trusted_fail_a_gated_test(recorded: Suite, fault: str) -> None:
    recorded.write("test_a.py", PROGRAM.replace('fakegpu.launch("k")', f'fakegpu.launch("k"); {fault}'))
    done = recorded.run("--cutrace")
    assert done.failed == {"test_gated", "test_limited"}
    assert "not verified: " in done.output
    recorded.write("test_b.py", f"def test_plain():\n    fakegpu.launch('k'); {fault}\n")
    plain = recorded.run("--cutrace", "test_b.py")
    assert plain.status == 0
    assert plain.case("test_plain").problems


def test_nvtx_that_goes_elsewhere_is_told_and_does_no_harm(recorded: Suite) -> None:
    done = recorded.run("--cutrace", NVTX_INJECTION64_PATH="/opt/other/libother.so")
    assert done.status == 0, done.output
    assert done.case("test_gated").state is State.GATED
    assert "NVTX ranges are not recorded: another tool has set NVTX_INJECTION64_PATH" in done.output


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("CUDA_INJECTION64_PATH", "/opt/other/libother.so", "another tool has set CUDA_INJECTION64_PATH"),
        ("CUTRACE_OPTIONS", "directory=/nowhere", "this process is already armed"),
    ],
)
def test_the_process_belongs_to_another_recording(recorded: Suite, name: str, value: str, told: str) -> None:
    done = recorded.run("--cutrace", **{name: value})
    assert done.case("test_gated").state is State.UNVERIFIED
    assert told in done.case("test_gated").reason


def test_the_variables_were_gone_when_cuda_began(suite: Suite) -> None:
    suite.write("test_a.py", """
        @pytest.mark.cutrace
        def test_it(monkeypatch):
            for name in ("CUDA_INJECTION64_PATH", "CUTRACE_OPTIONS"):
                monkeypatch.delenv(name)
            fakegpu.launch("k")

        def test_after():
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.case("test_it").state is State.UNVERIFIED
    assert "CUDA was initialised without the collector" in done.case("test_it").reason
    assert done.case("test_after").values["kernel_launches"] == 1


def test_a_recording_of_the_test_s_own(suite: Suite) -> None:
    suite.write("test_a.py", """
        import cutrace as cutrace_package

        @pytest.mark.cutrace
        def test_it(tmp_path):
            fakegpu.launch("k")
            with cutrace_package.record(tmp_path / "run.bin"):
                pass

        def test_after():
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace")
    assert done.failed == {"test_it"}
    assert "this process is recorded already" in done.output
    advice = "for a test that records itself: @pytest.mark.cutrace(off=True)"
    assert advice in done.output
    assert [note for note in done.case("test_it").notes if advice in note]
    assert done.case("test_after").values["kernel_launches"] == 1
    path = suite.folder / "test_a.py"
    path.write_text(path.read_text().replace("mark.cutrace", "mark.cutrace(off=True)"))
    done = suite.run("--cutrace")
    assert done.status == 0
    assert done.case("test_it").reason == "the marker says off=True"
    assert done.case("test_after").values["kernel_launches"] == 1


def test_a_test_that_patches_getpid_is_traced(suite: Suite) -> None:
    suite.write("test_a.py", """
        def test_it(monkeypatch):
            monkeypatch.setattr(os, "getpid", lambda: 1)
            fakegpu.launch("k")
    """)  # fmt: skip
    done = suite.run("--cutrace", "--cutrace-update")
    assert done.case("test_it").state is State.UPDATED
