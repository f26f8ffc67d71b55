"""cutrace why: its formats, the page, the comparison of two captures, and its errors for bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cutrace as package
from captures import Capture
from cutrace.extras.hardware import why_text
from cutrace.extras.hardware.facts import Facts, Shape
from cutrace.extras.hardware.rules import COMPUTE, DRAM, L1, L2, MEMORY, RULES, WARPS, Finding
from cutrace.extras.hardware.verbs import profile
from cutrace.extras.hardware.why import Answer, KernelChange, Why, compared
from cutrace.extras.hardware.why_page import html
from profiled import BYTES, FP32, Launch, profiled_capture
from reports.page import Page
from support import cutrace

BOUND = {
    COMPUTE: 20.0,
    MEMORY: 94.0,
    DRAM: 94.0,
    L2: 50.0,
    L1: 30.0,
    WARPS: 80.0,
    BYTES: 1e6,
    **dict.fromkeys(FP32, 5e6),
}
LATE = BOUND | {MEMORY: 40.0, DRAM: 40.0, WARPS: 12.0}
MANY: dict[str, Any] = {"grid": (10_000, 1, 1), "block": (256, 1, 1)}
EVIL = "</title><script>alert(1)</script>\"'&\x00"
ROOT = Path(__file__).parents[3]


def capture(path: Path, *launches: Launch) -> Path:
    return profiled_capture(path, *launches)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    wide = MANY | {"registers": 255}
    return capture(tmp_path / "before.bin", ("_Z4gemmPf", 2_000, LATE, wide), ("_Z4gonePf", 500, LATE, MANY))


@pytest.fixture
def after(tmp_path: Path) -> Path:
    return capture(tmp_path / "after.bin", ("_Z4gemmPf", 1_000, BOUND, MANY), ("_Z3newPf", 500, LATE, MANY))


def test_what_holds_for_all_kernels_is_printed_once(before, tmp_path):
    lines = cutrace("why", before).stdout.splitlines()
    assert len(lines[0].split("; ")) == 2, "GPU and caches"
    assert lines.count(f"  {lines[0]}") == 0
    assert [line[:11] for line in lines].count("Not asked: ") == 1
    assert not any(line.startswith("  Not asked: ") for line in lines)
    alone = capture(tmp_path / "alone.bin", ("_Z4gemmPf", 2_000, LATE, MANY))
    assert f"  {lines[0]}" in cutrace("why", alone).stdout.splitlines()
    differ = capture(tmp_path / "differ.bin", ("_Z4gemmPf", 2_000, LATE, MANY), ("_Z4gonePf", 500, {MEMORY: 1.0}, MANY))
    assert cutrace("why", differ).stdout.count("  Not asked: ") == 2


def test_a_capture_is_answered_on_stdout(before):
    done = cutrace("why", before)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gemm\n  2.0us a launch, 80.0 % of the time of all kernels; 1 launch\n" in done.stdout
    assert "* latency-bound: compute at 20 % and memory at 40 % of their peaks\n" in done.stdout
    assert "limited by 255 registers a thread" in " ".join(done.stdout.split())
    assert "\033" not in done.stdout


def test_a_kernel_is_chosen(before):
    assert "gemm" not in cutrace("why", before, "--kernel", "gone").stdout
    done = cutrace("why", before, "--kernel", "absent")
    assert done.returncode == 2
    assert "no kernel with metrics matches absent: there are gemm, gone\n" in done.stderr


def test_metrics_may_be_among_lost_records(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("k"), 10, 20)
        c.loss(1, 5)
    done = cutrace("why", tmp_path / "a.bin")
    assert done.returncode == 2
    assert "`cutrace profile -- COMMAND`. The trace lacks records: 5 records that CUPTI dropped" in done.stderr


def test_markdown_and_json_have_the_same_findings(before):
    found = json.loads(cutrace("why", before, "--format", "json").stdout)
    text = cutrace("why", before, "--format", "markdown").stdout
    kernel = found["kernels"][0]
    assert kernel["launch"] == {"grid": [10_000, 1, 1], "block": [256, 1, 1], "registers": 255, "shared": 0}
    expected = {
        "kernel": "gemm", "full_name": "gemm(float*)", "gpu": "NVIDIA H200", "launches": 1, "counted": 1,
        "time_ns": 2_000, "total_ns": 2_000, "share": 0.8, "caches": "unknown", "limiter": "latency-bound",
    }  # fmt: skip
    assert {name: kernel.get(name) for name in expected} == expected
    assert kernel["values"] == LATE
    assert "repeated reads" in kernel["not_asked"]
    gpu = found["rooflines"][0]["gpu"]
    assert (gpu["clock_hz"], gpu["bytes_per_second"]) == (1_980_000_000, 4_916_432_000_000)
    point = found["rooflines"][0]["points"][0]
    assert (point["time_ns"], point["operations_per_second"], point["bytes_per_second"]) == (2_000, 1e13, 5e11)
    assert point["operations_per_byte"] == 20
    findings = kernel["findings"]
    assert [finding["rule"] for finding in findings][:2] == ["latency-bound", "occupancy"]
    assert "12 % of the warp slots hold a warp" in text
    assert kernel["tables"]["memory"][0]["of_peak"] == 0.4


def test_a_page_is_written_and_nothing_printed(before, tmp_path):
    out = tmp_path / "why.html"
    done = cutrace("why", before, "-o", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{out}: " in done.stderr
    text = out.read_text()
    assert "Roofline of NVIDIA H200" in text
    assert '<td class="text name"><div>gemm</div></td>' in text
    assert "<section id=k0><h2 class=mono>gemm</h2>" in text
    assert "latency-bound: compute at 20 %" in text
    assert "memory at 40 % of their peaks" in cutrace("why", before, "-o", out, "--format", "table").stdout


def test_two_captures_are_compared(before, after):
    done = cutrace("why", before, after)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "2.0us -> 1.0us a launch (-50.0 %)" in text
    assert "before: latency-bound" in text
    assert "after: memory-bound: 94 % of the DRAM bandwidth" in text
    assert "gone: occupancy: 12 % of the warp slots hold a warp" in text
    assert f"{MEMORY} 40 94 135.0%" in text
    assert COMPUTE not in text  # the value did not change
    assert "only before: gone" in done.stderr
    assert "only after: new" in done.stderr
    back = json.loads(cutrace("why", after, before, "--format", "json").stdout)
    (change,) = back["changes"]
    assert [finding["rule"] for finding in change["new"]] == ["occupancy"]
    assert {row["metric"] for row in change["values"]} == BOUND.keys()
    assert back["kernels"] == []
    assert "* 2.0us" in cutrace("why", before, after, "--format", "markdown").stdout


def test_the_page_of_two_captures_has_both(before, after, tmp_path):
    assert cutrace("why", before, after, "-o", tmp_path / "why.html").returncode == 0
    text = (tmp_path / "why.html").read_text()
    assert "2.0us -&gt; 1.0us a launch (-50.0 %)" in text
    assert '<li class="good"><b>gone: occupancy' in text
    assert "only before: gone." in text


def test_kernels_of_both_are_needed(before, tmp_path):
    other = capture(tmp_path / "other.bin", ("_Z5otherPf", 1_000, BOUND, MANY))
    done = cutrace("why", before, other)
    assert done.returncode == 2
    assert "no kernel has metrics in both captures" in done.stderr


def test_a_capture_without_metrics_says_how_to_profile(tmp_path):
    path = capture(tmp_path / "a.bin", ("k", 10, {}))
    done = cutrace("why", path)
    assert done.returncode == 2
    assert done.stderr.endswith("record them with `cutrace profile -- COMMAND`\n")


def test_losses_are_told_everywhere(before, tmp_path):
    part = tmp_path / "part.bin"
    with Capture(part, pid=7, instance=3) as c:
        c.loss(1, 5)
    before.write_bytes(before.read_bytes() + part.read_bytes())
    (sentence,) = json.loads(cutrace("why", before, "--format", "json").stdout)["notes"]
    assert sentence.startswith("5 ")
    assert sentence in cutrace("why", before).stderr
    assert cutrace("why", before, "--format", "markdown").stdout.endswith(f"\n> {sentence}\n")
    assert cutrace("why", before, "-o", tmp_path / "a.html").returncode == 0
    assert "<p class=note>5 " in (tmp_path / "a.html").read_text()


def test_blocks_of_a_profile_tell_losses(before, tmp_path, capsys):
    part = tmp_path / "part.bin"
    with Capture(part, pid=7, instance=3) as c:
        c.loss(1, 5)
    before.write_bytes(before.read_bytes() + part.read_bytes())
    profile._put_answers(before, "table")
    printed = capsys.readouterr()
    assert "latency-bound" in printed.out
    with package.load(before) as trace:
        (sentence,) = trace.quality.sentences()
    assert sentence in printed.err


def test_only_the_first_kernels_are_printed_and_the_rest_counted(tmp_path):
    launches = [("k", 100 + at, LATE, MANY | {"grid": (200 + at, 1, 1)}) for at in range(23)]
    done = cutrace("why", capture(tmp_path / "a.bin", *launches))
    assert done.stdout.count("a launch,") == 20
    assert "only 20 kernels are shown; -o PAGE.html has 3 more" in done.stderr


def answer(kernel: str, grid: int, time: float = 1.0) -> Answer:
    shape = Shape((grid, 1, 1), (32, 1, 1))
    return Answer(Facts(kernel, {MEMORY: time}, shape, time=time), (), (), ())


def pairs(before: list[Answer], after: list[Answer]) -> list[tuple[int, int]]:
    found = compared(Why(tuple(before)), Why(tuple(after)))
    grids = []
    for change in found.changes:
        assert change.before.facts.shape
        assert change.after.facts.shape
        assert change.before.facts.kernel == change.after.facts.kernel
        grids.append((change.before.facts.shape.blocks, change.after.facts.shape.blocks))
    return grids


def test_kernels_are_paired_by_configuration_before_their_order():
    before = [answer("a", 1), answer("a", 2), answer("a", 3), answer("b", 7)]
    after = [answer("a", 2), answer("a", 9), answer("b", 8), answer("a", 1)]
    assert pairs(before, after) == [(1, 1), (2, 2), (3, 9), (7, 8)]


def test_a_cause_that_the_other_capture_cannot_show_is_neither_gone_nor_new():
    rule = RULES[-1]
    shown = replace(answer("a", 1), findings=(Finding(rule.name, "Slow.", 0.5, "Act."),))
    unasked = replace(answer("a", 1), not_asked=(rule,))
    (change,) = compared(Why((shown,)), Why((unasked,))).changes
    assert change.gone == ()
    (change,) = compared(Why((unasked,)), Why((shown,))).changes
    assert change.new == ()
    (change,) = compared(Why((shown,)), Why((answer("a", 1),))).changes
    assert change.gone == shown.findings


def test_different_states_of_the_caches_are_said():
    flushed = replace(answer("a", 1), facts=replace(answer("a", 1).facts, caches="flushed"))
    for other, said in ((flushed, False), (answer("a", 1), True)):
        (change,) = compared(Why((flushed,)), Why((other,))).changes
        text = " ".join("".join(why_text.text(Why(changes=(change,)), 80)).split())
        assert ("the caches were in different states" in text) == said
        assert ("the caches were in different states" in html(Why(changes=(change,)), "a")) == said


def test_a_change_from_nothing_has_no_share():
    (change,) = compared(Why((answer("a", 1, 0),)), Why((answer("a", 1, 5),))).changes
    assert change.time is None
    assert list(change.values.rows) == [(MEMORY, 0, 5, None)]


def test_no_name_becomes_markup_and_the_page_needs_nothing_else():
    finding = Finding("a", EVIL, 0.5, EVIL)
    pages = []
    for name in (EVIL, "plain"):
        one = Answer(Facts(name, {COMPUTE: 5.0}), (finding,), (), ())
        changes = compared(Why((one,), notes=(name,)), Why((one,)))
        pages += [html(Why((one,), notes=(name,)), name), html(changes, name)]
    tags = [[tag for tag, _ in Page(text).tags] for text in pages]
    assert tags[:2] == tags[2:]
    for text in pages:
        assert not {name for _, attributes in Page(text).tags for name in attributes} & {"style", "src", "onclick"}


def test_the_page_of_the_rules_has_each_with_its_threshold_and_source():
    text = (ROOT / "docs" / "internals" / "why.md").read_text()
    for rule in RULES:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {rule.name} |")]
        assert f" {rule.threshold:g}" in row
        assert rule.source in row


def test_python_has_the_same(before, after):
    found = package.why(before, after)
    assert isinstance(found.changes[0], KernelChange)
    assert found.changes[0].time == -0.5
