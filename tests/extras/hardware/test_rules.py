"""Each rule is tested with values that show its problem, with other values, at its threshold, and without its
metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.extras.hardware import rules
from cutrace.extras.hardware.facts import FLUSHED, Facts, Room, Shape
from cutrace.extras.hardware.roofline import RATES, GpuLimits
from cutrace.extras.hardware.rules import (
    COMPUTE,
    DRAM,
    L1,
    L2,
    LATENCY,
    MEMORY,
    PIPES,
    RULES,
    THREADS,
    WARPS,
    KernelRule,
    findings,
    limit,
    not_asked,
    stall_metric,
)
from cutrace.extras.hardware.sets import SETS

ROOT = Path(__file__).parents[3]
BY_NAME = {rule.name: rule for rule in RULES}
USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.pct"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
ACTIVE_CYCLES = "sm__cycles_active.avg"
HOPPER = GpuLimits("NVIDIA H200", (9, 0), 132, 1_980_000_000, 4_916_432_000_000)
ADA = replace(HOPPER, name="NVIDIA L40", capability=(8, 9))
#: A kernel without any problem. Half of its values are 0, and the others are typical of good code.
GOOD: dict[str, float] = {
    **dict.fromkeys(SETS["why"].names, 0.0),
    COMPUTE: 65.0,
    MEMORY: 62.0,
    WARPS: 98.0,
    THREADS: 32.0,
    LATENCY: 10.0,
    rules.CYCLES: 100_000.0,
    ACTIVE_CYCLES: 100_000.0,
    rules.ISSUE: 0.7,
    rules.INSTRUCTIONS: 1e6,
    USED.format("ld"): 100.0,
    USED.format("st"): 100.0,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 1e6,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 1e6,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 1e6,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": 1e6,
}


def room(blocks: int = 8, percent: float = 100.0, waves: float = 20.0, **limits: int) -> Room:
    known = {"warps": 8, "blocks": 32} | {name.replace("_", " "): value for name, value in limits.items()}
    return Room(multiprocessors=100, blocks=blocks, percent=percent, waves=waves, limits=known)


def facts(values: dict[str, float] | None = None, /, **more: object) -> Facts:
    shape = Shape((16_000, 1, 1), (256, 1, 1), 32)
    about = {"shape": shape, "room": room(), "gpu": HOPPER, "caches": FLUSHED} | more
    return Facts("kernel", GOOD | (values or {}), **about)  # type: ignore[arg-type]


def latency_bound(values: dict[str, float] | None = None, /, **more: object) -> Facts:
    return facts({COMPUTE: 20.0, MEMORY: 30.0} | (values or {}), **more)


def memory_bound(unit: str, percent: float) -> Facts:
    return facts({COMPUTE: 20.0, MEMORY: percent, unit: percent})


def compute_bound(percent: float, unit: str = "", busy: float | None = None) -> Facts:
    values = {COMPUTE: percent, MEMORY: 20.0, rules.ISSUE: 0.1}
    if unit == "issue":
        values[rules.ISSUE] = percent / 100
    elif unit:
        values[PIPES[unit][0]] = percent if busy is None else busy
    return facts(values)


def grid(blocks: int, threads: int = 256, **of_room: float) -> Facts:
    shape = Shape((blocks, 1, 1), (threads, 1, 1), 32)
    return facts(shape=shape, room=room(**of_room))  # type: ignore[arg-type]


def waves(number: float) -> Facts:
    return facts({WARPS: 10.0}, room=room(waves=number))


def stalled(percent: float) -> Facts:
    return latency_bound({stall_metric("barrier"): percent / 10, rules.ISSUE: 0.2})


def reads(times: float, **more: object) -> Facts:
    values = {COMPUTE: 20.0, MEMORY: 70.0, L2: 70.0, rules.DRAM_READ: 32e6, rules.L2_READ_SECTORS: times * 1e6}
    return facts(values, **{"caches": FLUSHED} | more)


def local(percent: float) -> Facts:
    return facts({rules.LOCAL[0]: percent * 1e4 / 2, rules.LOCAL[1]: percent * 1e4 / 2})


def few_fit(percent: float) -> Facts:
    shape = Shape((16_000, 1, 1), (256, 1, 1), 255)
    return latency_bound({WARPS: 12.0}, shape=shape, room=room(1, percent, registers=1))


def least(start: Callable[[float], Facts]) -> tuple[Callable[[float], Facts], int]:
    """The rule applies from its threshold on."""
    return start, 1


def below(start: Callable[[float], Facts]) -> tuple[Callable[[float], Facts], int]:
    """The rule applies below its threshold."""
    return start, -1


#: By rule, a function that makes facts with a value in the unit of the threshold, and the side of the threshold with a
#: finding.
SIDES: dict[str, tuple[Callable[[float], Facts], int]] = {
    "DRAM-bound": least(lambda x: memory_bound(DRAM, x)),
    "L2-bound": least(lambda x: memory_bound(L2, x)),
    "L1-bound": least(lambda x: memory_bound(L1, x)),
    "compute-bound": least(compute_bound),
    **{f"{unit}-bound": least(lambda x, unit=unit: compute_bound(x, unit)) for unit in [*PIPES, "issue"]},
    "balanced": least(lambda x: facts({COMPUTE: x - 5, MEMORY: x})),
    "latency-bound": below(lambda x: facts({COMPUTE: x - 5, MEMORY: x})),
    "small grid": below(lambda x: facts({COMPUTE: x - 5, MEMORY: x}, room=room(waves=0.5))),
    "occupancy": below(few_fit),
    "achieved occupancy": least(lambda x: latency_bound({WARPS: 100 - x})),
    # With 1 + p waves, the lost part of the time is (1 - p) / 2.
    "tail": least(lambda x: waves(2 - x / 50)),
    "idle multiprocessors": least(lambda x: grid(round(100 - x))),
    "partial warps": least(lambda x: grid(16_000, threads=round(96 * (1 - x / 100)))),
    "sectors of loads": below(lambda x: facts({USED.format("ld"): x})),
    "sectors of stores": below(lambda x: facts({USED.format("st"): x})),
    "bank conflicts of loads": least(lambda x: facts({CONFLICTS.format("ld"): x * 1e4})),
    "bank conflicts of stores": least(lambda x: facts({CONFLICTS.format("st"): x * 1e4})),
    "local memory": least(local),
    "repeated reads": least(reads),
    "divergence": below(lambda x: facts({THREADS: x})),
    "slow fp64": least(lambda x: facts({PIPES["fp64"][0]: x}, gpu=ADA)),
    "stalls": least(stalled),
}
#: Rules without a value exactly at the threshold.
ROUNDED = {"tail", "partial warps"}
#: The distance of the tested values from a threshold, if 1 % of the threshold is too small.
STEPS = {"idle multiprocessors": 1, "partial warps": 2}


def sentence(name: str, of: Facts) -> str:
    found = BY_NAME[name].find(of)
    return "" if found is None else found.sentence


def test_every_rule_is_tried():
    assert set(SIDES) == set(BY_NAME)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_finds_something_on_one_side_of_its_threshold_only(rule: KernelRule):
    make, side = SIDES[rule.name]
    step = side * STEPS.get(rule.name, rule.threshold / 100)
    assert rule.find(make(rule.threshold - step)) is None
    assert rule.find(make(rule.threshold + step)) is not None
    # The threshold itself belongs to the upper side.
    if rule.name not in ROUNDED:
        assert (rule.find(make(rule.threshold)) is not None) == (side == 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_without_one_of_its_metrics_says_nothing(rule: KernelRule):
    make, side = SIDES[rule.name]
    shown = make(rule.threshold + side * 10 * STEPS.get(rule.name, rule.threshold / 100))
    assert rule.find(shown) is not None
    for metric in rule.metrics:
        rest = {name: value for name, value in shown.values.items() if name != metric}
        lacking = replace(shown, values=rest)
        assert rule.find(lacking) is None
        assert rule in not_asked(lacking)
    if rule.launch:
        for unknown in (replace(shown, shape=None), replace(shown, room=None)):
            assert rule.find(unknown) is None
            assert rule in not_asked(unknown)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_good_code_shows_its_limit_alone(rule: KernelRule):
    found = rule.find(facts())
    assert (found is not None) == (rule.name == "balanced")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_declared_in_full(rule: KernelRule):
    assert rule.formula
    assert rule.remedy.endswith(".")
    assert rule.source.startswith("https://")
    assert set(rule.metrics) <= set(SETS["why"].names)


def test_the_set_why_has_the_names_that_the_gpu_compute_tab_reads():
    """com.meta.GpuCompute: Speed of Light, Occupancy and Workload Analysis, without names that no chip has."""
    active = ".avg.pct_of_peak_sustained_active"
    pipes = [f"sm__inst_executed_pipe_{pipe}{active}" for pipe in ("alu", "fma", "fp16", "fp64")]
    busy = [f"sm__pipe_{pipe}_cycles_active{active}" for pipe in ("alu", "fma", "fp64", "tensor")]
    workload = {"sm__inst_executed.avg.per_cycle_active", "sm__inst_executed.avg.per_cycle_elapsed", *pipes, *busy}
    throughput = f"sm__instruction_throughput{active}"
    others = {*SETS["speed-of-light"].names, *SETS["occupancy"].names, throughput}
    assert workload | others <= set(SETS["why"].names)


@pytest.mark.parametrize(
    ("compute", "memory", "waves", "expected"),
    [
        (59.9, 10, 5, "latency"), (10, 59.9, 5, "latency"), (10, 20, 0.99, "small grid"), (10, 20, 1, "latency"),
        (60, 50.1, 5, "balanced"), (60, 50, 5, "compute"), (50, 60, 5, "memory"), (79.9, 70, 5, "balanced"),
        (80, 79, 5, "compute"), (79, 80, 5, "memory"), (95, 95, 5, "compute"), (70, 30, 0.5, "compute"),
    ],
)  # fmt: skip
def test_the_limit_is_that_of_speed_of_light(compute, memory, waves, expected):
    assert limit(facts({COMPUTE: compute, MEMORY: memory}, room=room(waves=waves))) == expected


@given(
    st.floats(0, 100), st.floats(0, 100), st.lists(st.floats(0, 100), min_size=11, max_size=11), st.floats(0.01, 9),
    st.booleans(),
)  # fmt: skip
def test_one_limiter_comes_first(compute, memory, units, number, known):
    metrics = [DRAM, L2, L1, *(names[0] for names in PIPES.values()), rules.ISSUE]
    values = dict(zip(metrics, units, strict=True)) | {COMPUTE: compute, MEMORY: memory}
    values[rules.ISSUE] /= 100
    made = facts(values, room=room(waves=number) if known else None)
    found = findings(made)
    limiters = [BY_NAME[one.rule].limiter for one in found]
    assert limiters == [True] + [False] * (len(found) - 1)
    shares = [one.share for one in found[1:]]
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= share <= 1 for share in shares)


def test_sentences_have_their_figures():
    assert sentence("DRAM-bound", memory_bound(DRAM, 94)) == "memory-bound: 94 % of the DRAM bandwidth"
    # The metric of the issue slots counts only the time in which there are warps.
    late = sentence("latency-bound", latency_bound({rules.ISSUE: 0.11}))
    assert late.endswith("a scheduler with warps issues an instruction in 11 % of the cycles")
    assert "the tensor cores are 85 % busy" in sentence("tensor-bound", compute_bound(85, "tensor"))
    assert "12 % of the warp slots hold a warp" in sentence("occupancy", few_fit(12.5))
    assert "limited by 255 registers a thread" in sentence("occupancy", few_fit(12.5))
    assert sentence("tail", waves(1.1)).startswith("1.1 waves: the last one has 9 % of the blocks and up to 50 %")
    assert "20 blocks on 100, so 80 % of them" in sentence("idle multiprocessors", grid(20))
    assert sentence("divergence", facts({THREADS: 9.0})).startswith("divergent: 9 of 32 threads active")
    assert "25 % of the bytes are used" in sentence("sectors of loads", facts({USED.format("ld"): 25.0}))
    # Seven of eight wavefronts are repetitions.
    assert "8-way bank conflicts of loads" in sentence(
        "bank conflicts of loads", facts({CONFLICTS.format("ld"): 875e3})
    )
    assert "L2 serves each byte of DRAM 8 times" in sentence("repeated reads", reads(8))
    assert "40 % of the time of a warp is waiting for other warps at a barrier (barrier)" in sentence(
        "stalls", stalled(40)
    )


def test_the_limiters_are_those_of_the_leading_rule_of_nsight_compute():
    """53 launches of benchmarks/why_ncu.py. A kernel near a threshold may be on either side of it, depending on the
    run."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "why-ncu-h200.json").read_text())
    gpu = GpuLimits(measured["gpu"], tuple(measured["capability"]))
    memory = {"DRAM-bound": "DRAM", "L2-bound": "L2", "L1-bound": "L1"}
    others = {"latency-bound": "latency", "small grid": "small grid", "balanced": "balanced"}
    for launch in measured["launches"]:
        known = {
            name: value for name, value in zip(measured["metrics"], launch["values"], strict=True) if value is not None
        }
        shape = Shape(tuple(launch["grid"]), tuple(launch["block"]), launch["registers"], launch["shared"])
        names = ("multiprocessors", "blocks", "percent", "waves", "limits")
        made = Facts(launch["kernel"], known, shape, Room(*map(launch.get, names)), gpu, measured["caches"])
        limiter = findings(made)[0]
        assert limiter.rule == launch["limiter"]
        said = (memory | others).get(limiter.rule, "compute")
        most = max(known[COMPUTE], known[MEMORY])
        assert said == launch["ncu"] or abs(most - rules.LATENCY_BOUND) < 0.5, launch["kernel"]
    assert len({launch["kernel"] for launch in measured["launches"]}) > 20


def test_asynchronous_copies_are_loads_too():
    """The sectors of loads include the sectors of asynchronous copies, but not their used bytes."""
    copied = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum"
    loaded = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum"
    only = {USED.format("ld"): 0.0, USED.format("ldgsts"): 100.0, copied: 1e6}
    assert sentence("sectors of loads", facts(only)) == ""
    assert "25 % of the bytes" in sentence("sectors of loads", facts(only | {USED.format("ldgsts"): 25.0}))
    both = {USED.format("ld"): 20.0, USED.format("ldgsts"): 100.0, copied: 1e6, loaded: 3e6}
    assert "40 % of the bytes" in sentence("sectors of loads", facts(both))
    assert sentence("sectors of loads", facts({USED.format("ld"): 0.0})) == ""


def test_unused_bytes_are_no_repeated_reads():
    strided = reads(8)
    values = dict(strided.values) | {USED.format("ld"): 12.5}
    assert sentence("repeated reads", replace(strided, values=values)) == ""


def test_a_pipe_far_below_the_throughput_does_not_explain_it():
    assert sentence("fma-bound", compute_bound(90, "fma", busy=60)) == ""
    assert sentence("compute-bound", compute_bound(90, "fma", busy=60)) != ""


def test_a_pipe_that_fills_the_issue_slots_is_the_limit():
    both = facts({COMPUTE: 95.0, MEMORY: 20.0, PIPES["fma"][0]: 93.0, rules.ISSUE: 0.95})
    assert "(fma) is 93 % busy" in sentence("fma-bound", both)
    assert sentence("issue-bound", both) == ""


def test_units_that_are_counted_while_active_count_for_the_whole_time():
    """L1 is at 65 % of its peak while the multiprocessors are active, which is 72 % of the time."""
    values = {COMPUTE: 20.0, MEMORY: 65.0, L2: 60.0, L1: 90.0}
    assert findings(facts(values))[0].rule == "L2-bound"
    assert findings(facts(values | {ACTIVE_CYCLES: 72_000.0}))[0].rule == "L1-bound"


def test_l2_does_not_hide_the_limit_of_dram():
    """L2 has parts that do not count for the throughput of memory. These are the values of a copy on an H200."""
    copy = {COMPUTE: 9.2, MEMORY: 62.8, DRAM: 62.8, L2: 72.0, L1: 23.0}
    assert sentence("DRAM-bound", facts(copy)) == "memory-bound: 63 % of the DRAM bandwidth"


@pytest.mark.parametrize("side", ["cutrace", "ncu"])
def test_the_limiters_of_measured_kernels_are_those_of_their_programs(side):
    """Values of benchmarks/metrics_ncu.py. DRAM has the throughput of all memory in its copy, stride and Triton
    kernels."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "metrics-ncu-h200.json").read_text())
    kernels: dict[str, dict[str, float]] = {}
    for row in measured["rows"]:
        kernels.setdefault(row["kernel"], {})[row["metric"]] = row[side]
    limiters = {name: findings(Facts(name, values))[0].rule for name, values in kernels.items()}
    assert limiters == {
        "copy": "DRAM-bound",
        "reduction": "latency-bound",
        "divergence": "issue-bound",
        "conflicts": "L1-bound",
        "stride": "DRAM-bound",
        "matmul fp32": "fma-bound",
        "matmul bf16": "tensor-bound",
        "triton": "DRAM-bound",
    }
    assert "divergent: 21 of 32" in " ".join(one.sentence for one in findings(Facts("", kernels["divergence"])))


def test_few_resident_warps_of_a_kernel_near_a_peak_are_no_problem():
    values = {COMPUTE: 20.0, MEMORY: 90.0, DRAM: 90.0, WARPS: 12.0}
    assert sentence("occupancy", facts(values, room=room(1, 12.5, registers=1))) == ""


def test_a_tail_that_occupancy_contradicts_is_not_said():
    busy = facts({WARPS: 97.0}, room=room(waves=1.1))
    assert sentence("tail", busy) == ""
    # Warps are counted only while a multiprocessor has a warp. Here most multiprocessors had no warp in the last wave.
    assert sentence("tail", facts({WARPS: 97.0, ACTIVE_CYCLES: 60_000.0}, room=room(waves=1.1))) != ""


@pytest.mark.parametrize("number", [0.5, 1.0, 2.0, 12.3])
def test_whole_waves_and_many_waves_have_no_tail(number):
    assert sentence("tail", waves(number)) == ""


def test_blocks_of_half_a_warp_are_not_divergent():
    half = facts({THREADS: 16.0}, shape=Shape((16_000, 1, 1), (16, 1, 1), 32))
    assert sentence("divergence", half) == ""
    assert "50 % of the threads empty" in sentence("partial warps", half)


def test_fp64_is_slow_only_where_the_documented_rates_say_so():
    busy = {PIPES["fp64"][0]: 95.0}
    assert "2 fp64 multiply-adds a cycle of a multiprocessor beside 128" in sentence("slow fp64", facts(busy, gpu=ADA))
    assert sentence("slow fp64", facts(busy)) == ""
    assert sentence("slow fp64", facts(busy, gpu=GpuLimits())) == ""
    gpus = {capability: replace(ADA, capability=capability) for capability in RATES}
    slow = {capability for capability, gpu in gpus.items() if sentence("slow fp64", facts(busy, gpu=gpu))}
    assert slow == {(7, 5), (8, 6), (8, 9), (12, 0)}


@pytest.mark.parametrize("caches", ["unknown", "kept"])
def test_bytes_of_dram_say_nothing_about_repeated_reads_unless_caches_were_flushed(caches):
    kept = reads(8, caches=caches)
    assert sentence("repeated reads", kept) == ""
    assert "--caches flush" in BY_NAME["repeated reads"].lacks(kept)


def test_each_stall_reason_that_calls_for_action_has_a_remedy():
    for reason, stall in rules.STALLS.items():
        assert bool(stall.remedy) != stall.harmless
        shown = latency_bound({stall_metric(reason): 5.0, rules.ISSUE: 0.2})
        found = BY_NAME["stalls"].find(shown)
        assert (found is None) == stall.harmless
        if found is not None:
            assert found.remedy == stall.remedy


def test_waiting_for_a_turn_does_not_hide_the_largest_real_reason():
    values = {stall_metric("not_selected"): 4.0, stall_metric("wait"): 3.5, rules.ISSUE: 0.2}
    assert "(wait)" in sentence("stalls", latency_bound(values))


def test_busy_schedulers_have_no_stalls_to_speak_of():
    assert sentence("stalls", latency_bound({stall_metric("wait"): 9.0, rules.ISSUE: 0.8})) == ""


def test_causes_of_almost_no_time_are_left_out():
    few = facts({CONFLICTS.format("ld"): 500_000.0, rules.CYCLES: 1e9})
    assert BY_NAME["bank conflicts of loads"].find(few) is not None
    assert [found.rule for found in findings(few)] == ["balanced"]


def test_no_more_than_all_accesses_are_repetitions():
    more = sentence("bank conflicts of loads", facts({CONFLICTS.format("ld"): 1.2e6}))
    assert "32-way bank conflicts of loads, 97 % of the accesses are repetitions" in more


def test_without_metrics_only_the_launch_speaks():
    found = findings(replace(grid(20), values={}))
    assert [one.rule for one in found] == ["idle multiprocessors"]


def test_only_near_the_peak_the_same_bytes_cannot_be_faster():
    remedies = {percent: BY_NAME["DRAM-bound"].find(memory_bound(DRAM, percent)).remedy for percent in (65.0, 92.0)}
    assert "Or move the same bytes faster" in remedies[65.0]
    assert "hardly run faster" in remedies[92.0]
    assert "hardly" not in remedies[65.0]
    assert "faster: keep" not in remedies[92.0]
