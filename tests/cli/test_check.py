"""cutrace check: a capture against a golden file, on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures import Capture
from cutrace.analysis.metrics import measure
from cutrace.analysis.windows import begin, end, windows
from cutrace.golden import gpu_name, measured, recorded_on, write
from cutrace.trace import load
from support import cutrace

TEST = "tests/test_softmax.py::test_fwd[float16]"


def capture(path: Path, *kernels: str, waits: int = 1, duration: int = 10_000, test: str = TEST, runs: int = 1) -> Path:
    """A run of a test that launches kernels one after the other and then waits."""
    with Capture(path) as c:
        c.device()
        c.context()
        at, correlation = 1_000, 1
        for _ in range(runs):
            c.mark(begin("test", test), at, source=1)
            for name in kernels:
                c.api("cudaLaunchKernel", at + 100, at + 200, correlation=correlation)
                c.kernel(c.launch(name), at + 300, at + 300 + duration, correlation=correlation)
                at, correlation = at + duration + 1_000, correlation + 1
            for _ in range(waits):
                c.api("cudaStreamSynchronize", at, at + 500, correlation=correlation)
                at, correlation = at + 1_000, correlation + 1
            c.mark(end("test", test), at, source=1)
            at += 1_000
    return path


@pytest.fixture
def golden(tmp_path) -> Path:
    """The golden file of three kernels and a wait."""
    with load(capture(tmp_path / "golden.bin", "softmax", "add", "add")) as trace:
        found = measure(trace, windows(trace)[0])
    path = tmp_path / "golden.toml"
    write(measured([found], test=TEST, gpu=gpu_name(found.gpus), recorded=recorded_on(found)), path)
    return path


def check(*arguments: object) -> tuple[int, str, str]:
    done = cutrace("check", *arguments)
    return done.returncode, done.stdout, done.stderr


def test_the_same_again_passes(tmp_path, golden):
    status, said, complaints = check(capture(tmp_path / "a.bin", "softmax", "add", "add"), "--golden", golden)
    assert (status, complaints) == (0, "")
    assert said.startswith(f"cutrace: {TEST}  on nvidia-h200\n")
    assert "passed: " in said


def test_what_changed_is_a_table_and_status_1(tmp_path, golden):
    status, said, complaints = check(
        capture(tmp_path / "a.bin", "softmax", "add", "add", "cast", waits=2), "--golden", golden
    )
    assert (status, complaints) == (1, "")
    lines = [line.split(maxsplit=4) for line in said.splitlines()]
    assert ["metric", "golden", "now", "rule"] in lines
    assert ["kernel_launches", "3", "4", "exact", "+ cast x1 (new)"] in lines
    assert ["sync_calls", "1", "2", "exact", "+ cudaStreamSynchronize"] in lines
    assert ["kernel_time", "30.0us", "40.0us", "5", "%     SLOW (not gated)"] in lines
    assert "failed: " in said


def test_what_is_gated_is_a_choice(tmp_path, golden):
    more = capture(tmp_path / "a.bin", "softmax", "add", "add", "cast")
    assert check(more, "--golden", golden, "--gate", "memory")[0] == 0
    assert check(more, "--golden", golden, "--gate", "time")[0] == 1
    assert (
        check(more, "--golden", golden, "--gate", "time", "--tolerance", "kernel_time=50%,busy=50%,api_time=50%")[0]
        == 0
    )
    assert check(more, "--golden", golden, "--ignore", "cast")[0] == 0


def test_less_fails_only_when_strict(tmp_path, golden):
    less = capture(tmp_path / "a.bin", "softmax", "add")
    assert check(less, "--golden", golden)[0] == 0
    assert check(less, "--golden", golden, "--strict")[0] == 1


def test_all_runs_of_the_test_count(tmp_path, golden):
    status, said, _ = check(capture(tmp_path / "a.bin", "softmax", "add", "add", runs=3), "--golden", golden)
    assert status == 0
    assert f"{TEST}  on nvidia-h200, 3 runs\n" in said


def test_a_capture_without_tests_is_compared_as_a_whole(tmp_path, golden):
    with Capture(tmp_path / "a.bin") as c:
        c.device()
        c.kernel(c.launch("softmax"), 1_000, 2_000)
    status, said, _ = check(tmp_path / "a.bin", "--golden", golden)
    assert status == 0
    assert "BETTER - add x2 (gone)" in said


def test_a_capture_that_lost_records_does_not_pass(tmp_path, golden):
    with Capture(tmp_path / "lost.bin") as c:
        c.loss(1, 12, time=10_000)
    path = capture(tmp_path / "a.bin", "softmax", "add", "add")
    status, said, _ = check(path, tmp_path / "lost.bin", "--golden", golden)
    assert status == 1
    assert "12 " in said
    assert "failed: " in said


def test_the_section_of_another_gpu_can_be_asked_for(tmp_path, golden):
    path = capture(tmp_path / "a.bin", "softmax", "add", "add")
    golden.write_text(golden.read_text() + "\n[gpu.other]\nkernel_launches = 7\n")
    assert check(path, "--golden", golden)[0] == 0
    status, said, _ = check(path, "--golden", golden, "--gpu", "other", "--strict", "--gate", "exact")
    assert status == 1
    assert "on other\n" in said


BAD = {
    "no golden file": (["{tmp}/a.bin", "--golden", "{tmp}/absent.toml"], "cannot read the golden file"),
    "a damaged one": (["{tmp}/a.bin", "--golden", "{tmp}/bad.toml"], "bad.toml:1: format 9 is newer"),
    "another test": (["{tmp}/a.bin", "--golden", "{golden}", "--test", "x"], "golden.toml:3: this is"),
    "no such test": (["{tmp}/other.bin", "--golden", "{golden}"], "test_fwd[float16]: it has other"),
    "no such GPU": (["{tmp}/a.bin", "--golden", "{golden}", "--gpu", "x"], "x: it has values for nvidia-h200"),
    "no such class": (["{tmp}/a.bin", "--golden", "{golden}", "--gate", "speed"], "'speed' cannot be gated"),
    "no such metric": (["{tmp}/a.bin", "--golden", "{golden}", "--tolerance", "speed=1"], "no metric 'speed'"),
    "no capture": (["{golden}", "--golden", "{golden}"], "not a run.bin capture"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_status_2(case, tmp_path, golden):
    capture(tmp_path / "a.bin", "softmax")
    capture(tmp_path / "other.bin", "softmax", test="other")
    (tmp_path / "bad.toml").write_text("format = 9\n")
    arguments, sentence = BAD[case]
    status, said, complaint = check(*(a.format(tmp=tmp_path, golden=golden) for a in arguments))
    assert (status, said) == (2, "")
    assert complaint.startswith("cutrace: ")
    assert complaint.count("\n") == 1
    assert sentence in complaint
