"""cutrace diff of a golden file and captures, on any machine."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from captures import Capture
from cutrace.analysis.marks import begin, end
from support import cutrace, refused

TEST = "tests/test_softmax.py::test_fwd[float16]"


def capture(
    path: Path, *kernels: str, waits: int = 1, duration: int = 10_000, test: str = TEST, runs: int = 1, sm: int = 90
) -> Path:
    """The capture of a test that launches kernels one after the other and then waits."""
    with Capture(path) as c:
        c.device(compute_major=sm // 10, compute_minor=sm % 10)
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
    """A golden file with three kernels, a wait, and the kernel time."""
    path = tmp_path / "golden.toml"
    capture(tmp_path / "golden.bin", "softmax", "add", "add")
    done = cutrace("golden", "create", tmp_path / "golden.bin", "-o", path, "--gate", "work,kernel_time")
    assert done.returncode == 0, done.stderr
    return path


def check(golden: Path, *arguments: object) -> tuple[int, str, str]:
    done = cutrace("diff", golden, *arguments)
    return done.returncode, done.stdout, done.stderr


def test_the_same_again_passes(tmp_path, golden):
    status, said, complaints = check(golden, capture(tmp_path / "a.bin", "softmax", "add", "add"))
    assert (status, complaints) == (0, "")
    assert said == "cutrace: test_fwd[float16] on sm_90\n  passed: 3 metrics as before\n"


def test_what_changed_is_a_table_and_status_1(tmp_path, golden):
    status, said, complaints = check(golden, capture(tmp_path / "a.bin", "softmax", "add", "add", "cast", waits=2))
    assert (status, complaints) == (1, "")
    lines = [line.split(maxsplit=4) for line in said.splitlines()]
    assert ["metric", "golden", "now", "rule"] in lines
    assert ["kernel_launches", "3", "4", "exact", "+ cast (new)"] in lines
    assert ["sync_calls", "1", "2", "exact", "+ cudaStreamSynchronize"] in lines
    assert ["kernel_time", "30.0us", "40.0us", "5", "%     SLOW (not gated)"] in lines
    assert "failed: 3 of 3 metrics changed" in said


def test_a_failure_ends_with_the_command_that_accepts_it(tmp_path, golden):
    more = capture(tmp_path / "a.bin", "softmax", "add", "add", "cast")
    status, said, _ = check(golden, more)
    assert status == 1
    command = said.splitlines()[-1].removeprefix("if intended: cutrace ")
    assert cutrace(*shlex.split(command)).returncode == 0
    assert check(golden, more)[0] == 0


CHOICES = {
    "another metric": (["--gate", "syncs"], 0),
    "nothing": (["--gate", "none"], 0),
    "time": (["--gate", "kernel_time"], 1),
    "time with a tolerance": (["--gate", "kernel_time", "--tolerance", "kernel_time=50%"], 0),
    "a tolerance of the total": (["--tolerance", "kernel_launches=40%"], 0),
    "without the kernel": (["--ignore", "kernels:cast"], 0),
    "without the metric": (["--ignore", "kernels"], 0),
    "a state without a golden value": (["--gate", "peak_memory"], 1),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_fails_is_a_choice(tmp_path, golden, case):
    options, status = CHOICES[case]
    more = capture(tmp_path / "a.bin", "softmax", "add", "add", "cast")
    assert check(golden, more, *options)[0] == status


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--gate", "work,less"], 1)])
def test_less_fails_only_on_request(tmp_path, golden, options, status):
    found = check(golden, capture(tmp_path / "a.bin", "softmax", "add"), *options)
    assert found[0] == status
    assert "BETTER - add" in found[1]


def test_all_runs_of_the_test_count_and_all_captures(tmp_path, golden):
    twice = capture(tmp_path / "a.bin", "softmax", "add", "add", runs=2)
    other = capture(tmp_path / "b.bin", "softmax", "add", "add", "cast")
    status, said, _ = check(golden, twice, other)
    assert status == 1
    assert "test_fwd[float16] on sm_90, 3 runs\n" in said
    assert "+ cast (new) (in 1 of 3 runs)" in said


def test_a_capture_without_tests_is_compared_as_a_whole(tmp_path, golden):
    with Capture(tmp_path / "a.bin") as c:
        c.device()
        c.kernel(c.launch("softmax"), 1_000, 2_000)
    status, said, _ = check(golden, tmp_path / "a.bin")
    assert status == 0
    assert "BETTER - add x2 (gone)" in said


def test_a_capture_that_lost_records_does_not_pass(tmp_path, golden):
    with Capture(tmp_path / "lost.bin") as c:
        c.loss(1, 12, time=10_000)
    path = capture(tmp_path / "a.bin", "softmax", "add", "add")
    status, said, _ = check(golden, path, tmp_path / "lost.bin")
    assert status == 1
    assert "12 " in said
    assert "failed: " in said


def test_what_has_no_golden_value_in_this_environment_does_not_pass(tmp_path, golden):
    path = capture(tmp_path / "a.bin", "softmax", "add", "add", sm=80)
    status, said, _ = check(golden, path)
    assert status == 1
    assert "not verified: no golden for sm_80" in said
    assert check(golden, path, "--environment", "sm_90")[0] == 0


def test_own_kernels_hold_everywhere(tmp_path, golden):
    other = capture(tmp_path / "a.bin", "softmax", "softmax", "gemm", sm=80)
    status, said, _ = check(golden, other, "--own", "softmax")
    assert status == 1
    assert "+ softmax" in said
    assert "gemm" not in said


def test_a_variant_is_part_of_the_environment(tmp_path, golden):
    path = capture(tmp_path / "a.bin", "softmax", "add", "add")
    status, said, _ = check(golden, path, "--variant", "click{click:1}")
    assert status == 1
    assert "not verified: no golden for sm_90-click8" in said


def test_what_one_run_alone_has_shown_does_not_pass(tmp_path, golden):
    golden.write_text(golden.read_text().replace("kernels =", 'unconfirmed = ["sm_90"]\nkernels ='))
    status, said, _ = check(golden, capture(tmp_path / "a.bin", "softmax", "add", "add"))
    assert status == 1
    assert "not confirmed: the golden values come from one run" in said


BAD = {
    "no golden file": (["{tmp}/absent.toml", "{tmp}/a.bin"], "cannot read the golden file"),
    "a damaged one": (["{tmp}/bad.toml", "{tmp}/a.bin"], "bad.toml:1: format 9 is newer"),
    "one of format 1": (["{tmp}/old.toml", "{tmp}/a.bin"], "old.toml:1: format 1 is no longer supported"),
    "no such test in the file": (["{golden}", "{tmp}/a.bin", "--test", "x"], "has no test x: it has"),
    "no such test in the capture": (["{golden}", "{tmp}/other.bin", "--test", "{test}"], "they have other"),
    "a test that the file lacks": (["{golden}", "{tmp}/other.bin"], "has no test other: it has"),
    "no such environment": (["{golden}", "{tmp}/a.bin", "--environment", "x"], "x: it knows sm_90"),
    "no such class": (["{golden}", "{tmp}/a.bin", "--gate", "speed"], "no metric 'speed'"),
    "no such metric": (["{golden}", "{tmp}/a.bin", "--tolerance", "speed=1"], "no metric 'speed'"),
    "no such package": (["{golden}", "{tmp}/a.bin", "--variant", "{{nope}}"], "nope"),
    "no capture": (["{golden}", "{tmp}/text.bin"], "is text, not a trace"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_status_2(case, tmp_path, golden):
    capture(tmp_path / "a.bin", "softmax")
    capture(tmp_path / "other.bin", "softmax", test="other")
    (tmp_path / "bad.toml").write_text("format = 9\n")
    (tmp_path / "text.bin").write_text("no capture")
    (tmp_path / "old.toml").write_text("format = 1\ntest = 'x'\n[common]\n")
    arguments, sentence = BAD[case]
    refused(cutrace("diff", *(a.format(tmp=tmp_path, golden=golden, test=TEST) for a in arguments)), sentence)


def test_counters_of_the_hardware_are_left_out_and_kept(tmp_path, golden):
    text = golden.read_text()
    golden.write_text(text.rstrip("\n") + "\ninstructions = 1000\n")
    again = capture(tmp_path / "a.bin", "softmax", "add", "add")
    status, said, _ = check(golden, again)
    assert status == 0
    assert "not compared: instructions: only tests count them, no capture holds them" in said
    more = capture(tmp_path / "b.bin", "softmax", "add", "add", "cast")
    assert cutrace("golden", "create", more, "-o", golden, "--update", "all").returncode == 0
    assert "instructions = 1000" in golden.read_text()
