"""Answers to why kernels are slow: the facts of each kernel of a capture, and its block as text and Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

import cutrace
from captures import ORIGIN, Capture
from cutrace.errors import CutraceError
from cutrace.extras.hardware import why_text
from cutrace.extras.hardware.facts import Facts, Shape, kernel_facts
from cutrace.extras.hardware.kernel_metrics import Profiled
from cutrace.extras.hardware.rules import COMPUTE, DRAM, L1, L2, LATENCY, MEMORY, WARPS, stall_metric
from cutrace.extras.hardware.sets import SETS
from cutrace.extras.hardware.why import Answer, Why, answers, suffices
from profiled import Launch, profiled_capture

COPY = {COMPUTE: 20.0, MEMORY: 94.0, DRAM: 94.0, L2: 50.0, L1: 30.0, WARPS: 80.0}
LATE = {COMPUTE: 5.0, MEMORY: 10.0, WARPS: 12.0}
MANY: dict[str, Any] = {"grid": (10_000, 1, 1), "block": (256, 1, 1)}


def facts_of(tmp_path: Path, *launches: Launch, **gpu: int | str) -> list[Facts]:
    with cutrace.load(profiled_capture(tmp_path / "a.bin", *launches, **gpu)) as trace:
        return kernel_facts(trace)


def answers_of(tmp_path: Path, *launches: Launch, kernel: str | None = None) -> list[Answer]:
    with cutrace.load(profiled_capture(tmp_path / "a.bin", *launches)) as trace:
        return answers(trace, kernel)


def text_of(answer: Answer, width: int | None = 80) -> str:
    return click.unstyle("".join(why_text.text_block(why_text.block(answer), width)))


def test_launches_of_one_configuration_are_one_kernel(tmp_path):
    wide = MANY | {"grid": (20_000, 1, 1), "static_shared": 1_024, "dynamic_shared": 512}
    found = facts_of(
        tmp_path, ("_Z4copyPf", 1_000, {MEMORY: 80.0}, MANY), ("_Z4copyPf", 3_000, {MEMORY: 90.0}, MANY),
        ("_Z4copyPf", 5_000, {MEMORY: 95.0}, wide), ("_Z4axpyPf", 1_000, {MEMORY: 50.0, COMPUTE: 5.0}, MANY),
    )  # fmt: skip
    assert [(facts.kernel, facts.total, facts.counted) for facts in found] == [
        ("copy", 5_000, 1), ("copy", 4_000, 2), ("axpy", 1_000, 1),
    ]  # fmt: skip
    assert found[1].values == {MEMORY: 85.0}
    assert found[1].time == 2_000
    assert found[1].share == pytest.approx(0.4)
    assert found[0].shape == Shape((20_000, 1, 1), (256, 1, 1), 32, 1_536)


def test_instances_of_a_template_are_kernels_of_their_own(tmp_path):
    found = facts_of(tmp_path, ("_Z4copyIfEvPT_", 9, COPY, MANY), ("_Z4copyIdEvPT_", 5, COPY, MANY))
    assert [(facts.kernel, facts.full_name) for facts in found] == [
        ("copy", "void copy<float>(float*)"), ("copy", "void copy<double>(double*)"),
    ]  # fmt: skip
    names = [
        answers_of(tmp_path, ("_Z4copyIfEvPT_", 9, COPY, MANY), kernel=name) for name in ("_Z4copyIfEvPT_", "copy")
    ]
    assert [len(found) for found in names] == [1, 1]
    (answer,) = answers_of(tmp_path, ("_Z4copyIfEvPT_", 9, COPY, MANY), kernel="/<float>/")
    assert "\n  void copy<float>(float*)\n" in text_of(answer)


def test_launches_without_metrics_count_for_time_and_share(tmp_path):
    found = facts_of(tmp_path, ("a", 1_000, COPY, MANY), ("a", 2_000, {}, MANY), ("b", 7_000, {}, MANY))
    (facts,) = found
    assert (facts.counted, facts.launches, facts.time, facts.total, facts.share) == (1, 2, 1_500, 3_000, 0.3)
    assert why_text.about(facts)[0] == "1.5us a launch, 30.0 % of the time of all kernels; 2 launches, 1 counted"


def test_without_the_first_run_times_are_those_of_counted_launches(tmp_path):
    path = tmp_path / "metrics.bin"
    with Capture(path) as c:
        c.device()
        for number, time in enumerate((1_000, 3_000), 1):
            start = ORIGIN + number * 10_000
            c.add("kernel_metrics", start=start, end=start + time, correlation=number, name=MEMORY, value=9.0)
    with cutrace.load(path) as trace:
        (facts,) = kernel_facts(trace)
    assert (facts.time, facts.launches, facts.total) == (2_000, 2, 0)


def test_each_model_of_gpu_has_its_own_launches_and_time(tmp_path):
    """One process has two GPUs, and each ran the same kernel."""
    path = tmp_path / "a.bin"
    models = ("NVIDIA H200", "NVIDIA L40")
    with Capture(path, started=5) as c:
        launch = c.launch("k", **MANY)
        for device, name in enumerate(models):
            c.device(device, name=name)
            c.context(device + 1, device)
            c.kernel(launch, device * 10_000, device * 10_000 + 1_000 + 2_000 * device, correlation=device + 1,
                     device=device, context=device + 1)  # fmt: skip
    part = tmp_path / "part.bin"
    with Capture(part, started=5, instance=1) as c:
        for device, name in enumerate(models):
            start = ORIGIN + device * 10_000
            c.device(device, name=name)
            c.add("kernel_metrics", start=start, end=start + 1_000 + 2_000 * device, correlation=device + 1,
                  device=device, name=MEMORY, value=9.0)  # fmt: skip
    path.write_bytes(path.read_bytes() + part.read_bytes())
    with cutrace.load(path) as trace:
        found = kernel_facts(trace)
    assert [(facts.gpu.name, facts.launches, facts.total, facts.share) for facts in found] == [
        ("NVIDIA L40", 1, 3_000, 0.75), ("NVIDIA H200", 1, 1_000, 0.25),
    ]  # fmt: skip


def test_metrics_are_those_of_kernels_of_their_process(tmp_path):
    """Two processes launched different kernels at the same time, with the same correlation id."""
    values = {"copy": 80.0, "axpy": 50.0}
    content = b""
    for pid, (kernel, value) in enumerate(values.items(), 100):
        with Capture(tmp_path / "whole.bin", pid=pid, started=5, instance=pid) as c:
            c.kernel(c.launch(kernel, **MANY), 1_000, 2_000, correlation=1)
        with Capture(tmp_path / "metrics.bin", pid=pid, started=5, instance=pid + 100) as c:
            start = ORIGIN + 1_000
            c.add("kernel_metrics", start=start, end=start + 1_000, correlation=1, name=MEMORY, value=value)
        content += (tmp_path / "whole.bin").read_bytes() + (tmp_path / "metrics.bin").read_bytes()
    (tmp_path / "both.bin").write_bytes(content)
    with cutrace.load(tmp_path / "both.bin") as trace:
        found = kernel_facts(trace)
    assert {facts.kernel: facts.values for facts in found} == {name: {MEMORY: values[name]} for name in values}


def test_what_fits_follows_from_launch_and_gpu(tmp_path):
    (facts,) = facts_of(tmp_path, ("a", 1_000, LATE, MANY | {"registers": 255}))
    assert facts.room is not None
    # 255 registers are rounded up to 256, of 65,536. So one block fits, and its eight warps fill 8 of 64 slots.
    assert (facts.room.blocks, facts.room.percent, facts.room.limiter) == (1, 12.5, "registers")
    assert facts.room.waves == pytest.approx(10_000 / 132)


def test_an_unknown_gpu_or_configuration_leaves_the_room_open(tmp_path):
    (facts,) = facts_of(tmp_path, ("a", 1_000, LATE, MANY), max_warps_per_multiprocessor=0)
    assert facts.room is None
    (facts,) = facts_of(tmp_path, ("a", 1_000, LATE, {"block": (0, 0, 0)}))
    assert (facts.shape, facts.room) == (None, None)


def test_the_active_share_is_that_of_the_multiprocessors():
    assert Facts("k", {"gpc__cycles_elapsed.max": 100.0, "sm__cycles_active.avg": 25.0}).active == 0.25
    assert Facts("k", {"gpc__cycles_elapsed.max": 100.0}).active == 1
    assert Facts("k", {"gpc__cycles_elapsed.max": 0.0, "sm__cycles_active.avg": 25.0}).active == 1


def test_captures_without_a_state_of_the_caches_have_unknown_ones(tmp_path):
    (facts,) = facts_of(tmp_path, ("a", 1_000, COPY, MANY))
    assert facts.caches == "unknown"


@pytest.mark.parametrize(
    ("states", "expected"), [((1, 1), "flushed"), ((2, 2), "kept"), ((1, 2), "unknown"), ((9, 9), "unknown")]
)
def test_launches_with_different_caches_have_no_common_state(tmp_path, monkeypatch, states, expected):
    path = profiled_capture(tmp_path / "a.bin", ("a", 1_000, COPY, MANY))
    launches = [Profiled("a", 1_000, 0, 0, dict(COPY), 1, state) for state in states]
    monkeypatch.setattr("cutrace.extras.hardware.facts.profiled", lambda trace, names: launches)
    with cutrace.load(path) as trace:
        (facts,) = kernel_facts(trace)
    assert facts.caches == expected


def test_a_block_has_the_limiter_first_and_fits_eighty_columns(tmp_path):
    metrics = COPY | {LATENCY: 10.0, stall_metric("long_scoreboard"): 9.0, stall_metric("wait"): 0.5}
    long = "_ZN" + "".join(f"7chapter{number}" for number in range(9)) + "E"
    (answer,) = answers_of(tmp_path, (long, 1_000, metrics, MANY))
    lines = text_of(answer).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1] == "  1.0us a launch, 100.0 % of the time of all kernels; 1 launch"
    assert "  * memory-bound: 94 % of the DRAM bandwidth" in lines
    assert "  NVIDIA H200; caches unknown or different by launch" in lines
    assert any(line.startswith("    DRAM ") and line.split()[-4:] == ["-", "94.0%", "-", "-"] for line in lines)
    assert any(line.split()[:3] == ["90.0%", "9", "long_scoreboard"] for line in lines)


def test_the_stalls_add_up_to_the_time_between_two_instructions(tmp_path):
    metrics = COPY | {LATENCY: 10.0, stall_metric("wait"): 4.0, stall_metric("barrier"): 0.1}
    (answer,) = answers_of(tmp_path, ("a", 1_000, metrics, MANY))
    (stalls,) = [table for table in answer.tables if table.name == "stalls"]
    rows = list(stalls.rows)
    assert [row[2] for row in rows] == ["wait", ""]
    assert sum(float(row[1] or 0) for row in rows) == pytest.approx(10)


def test_rates_and_sectors_are_in_the_table_of_memory(tmp_path):
    metrics = COPY | {
        "dram__bytes_read.sum": 600.0, "dram__bytes_write.sum": 400.0, "gpu__time_duration.sum": 10.0,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": 8.0,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": 6.0,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 64.0, "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 4.0,
    }  # fmt: skip
    (answer,) = answers_of(tmp_path, ("a", 99_000, metrics, MANY))
    (memory,) = [table for table in answer.tables if table.name == "memory"]
    rows = {row[0]: row[1:] for row in memory.rows}
    assert rows["DRAM"] == (1_000, 1e11, 0.94, None, None)
    assert rows["global loads"] == (2048, 2048e8, None, None, 16)
    assert rows["shared stores"] == (None, None, None, None, 4)
    assert "shared loads" not in rows


def test_rules_that_could_not_be_asked_are_named_with_their_set(tmp_path):
    (answer,) = answers_of(tmp_path, ("a", 1_000, {COMPUTE: 3.0, MEMORY: 2.0}, MANY))
    assert answer.limiter == "latency-bound"
    said = why_text.missing(answer)
    assert "stalls" in said
    assert "--metrics why" in said
    assert "balanced" not in said
    assert "Not asked" in " ".join(text_of(answer).split())
    (answer,) = answers_of(tmp_path, ("a", 1_000, dict.fromkeys(SETS["why"].names, 1.0), MANY))
    assert why_text.missing(answer) == (
        "Not asked: repeated reads (the bytes of DRAM depend on earlier kernels: profile with --caches flush)"
    )


def test_without_a_limiter_the_first_cause_has_its_share_too(tmp_path):
    (answer,) = answers_of(tmp_path, ("a", 1_000, {WARPS: 9.0}, MANY | {"grid": (66, 1, 1)}))
    assert answer.limiter == ""
    assert "so 50 % of them have no work (up to 50 % of the time)" in " ".join(text_of(answer).split())


def test_rules_that_could_not_be_asked_leave_open_whether_something_stands_out(tmp_path):
    (answer,) = answers_of(tmp_path, ("a", 1_000, {WARPS: 99.0}, MANY))
    assert answer.not_asked
    assert "nothing stands out in these metrics" in text_of(answer)


def test_counts_of_different_passes_give_no_negative_rows(tmp_path):
    """Conflicts can slightly exceed all accesses, and stalls the whole time."""
    metrics = COPY | {
        LATENCY: 10.0, stall_metric("wait"): 10.1,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": 8.0,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": 9.0,
    }  # fmt: skip
    (answer,) = answers_of(tmp_path, ("a", 1_000, metrics, MANY))
    for table in answer.tables:
        for row in table.rows:
            assert all(value >= 0 for value in row if isinstance(value, (int, float)))


def test_causes_have_their_share_and_a_remedy_is_said_once(tmp_path):
    values = {
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.pct": 25.0,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum": 1e6,
    }
    metrics = COPY | {name.format(op): value for name, value in values.items() for op in ("ld", "st")}
    (answer,) = answers_of(tmp_path, ("a", 1_000, metrics, MANY))
    text = " ".join(text_of(answer).split())
    assert "global loads: 25 % of the bytes are used (up to 35 % of the time)" in text
    assert text.count("Let the threads of a warp access neighbouring addresses") == 1


def test_markdown_has_the_same_sentences_and_folded_tables(tmp_path):
    found = answers_of(tmp_path, ("_Z4copyIfEvPT_", 1_000, COPY, MANY), ("_Z4a__bPf", 500, LATE, MANY))
    text = "".join(why_text.markdown(Why(tuple(found))))
    assert "## <code>copy</code>" in text
    assert "94 % of the DRAM bandwidth" in text
    assert text.count("<details>") == text.count("</details>") == 2
    assert "### Occupancy" in text


def test_lines_of_the_kernel_are_in_its_block(tmp_path):
    path = profiled_capture(tmp_path / "a.bin", ("_Z4copyPf", 1_000, COPY, MANY))
    part = tmp_path / "lines.bin"
    with Capture(part, started=5, instance=2) as c:
        for line, value in ((7, 30.0), (9, 90.0)):
            c.add("instruction_metrics", name="smsp__sass_inst_executed", value=value, launches=1, function="_Z4copyPf",
                  file="/src/copy.cu", line=line, offset=16 * line)  # fmt: skip
        c.add("pc_samples", start=ORIGIN, end=ORIGIN + 9, samples=5, function="_Z4copyPf", file="/src/copy.cu", line=7,
              offset=112, stall="wait")  # fmt: skip
    path.write_bytes(path.read_bytes() + part.read_bytes())
    with cutrace.load(path) as trace:
        (answer,) = answers(trace)
    (lines,) = [table for table in answer.tables if table.name == "lines"]
    assert list(lines.rows) == [
        (0.75, "smsp__sass_inst_executed", "copy.cu:9"),
        (0.25, "smsp__sass_inst_executed", "copy.cu:7"),
        (1.0, "samples, mostly wait", "copy.cu:7"),
    ]


def test_kernels_are_chosen_by_name(tmp_path):
    launches: tuple[Launch, ...] = (("_Z4copyPf", 1_000, COPY, MANY), ("_Z4axpyPf", 500, LATE, MANY))
    assert [answer.facts.kernel for answer in answers_of(tmp_path, *launches, kernel="/xp/")] == ["axpy"]
    with pytest.raises(CutraceError, match=r"no kernel with metrics matches gemm: there are axpy, copy"):
        answers_of(tmp_path, *launches, kernel="gemm")


def test_a_capture_without_metrics_says_how_to_get_them(tmp_path):
    with pytest.raises(CutraceError, match="cutrace profile -- COMMAND"):
        answers_of(tmp_path, ("a", 1_000, {}))


def test_the_limit_needs_both_throughputs():
    assert suffices([COMPUTE, MEMORY])
    assert not suffices([COMPUTE, DRAM])
