"""Values of options, markers and ini files, and errors for wrong ones."""

from __future__ import annotations

import pytest

from cutrace.analysis.definitions import METRICS, hardware, is_full_name
from cutrace.errors import CutraceError
from cutrace.extras.hardware.sets import COUNTERS
from cutrace.golden import (
    MODES,
    Budget,
    Rules,
    Update,
    parse_budget,
    parse_counters,
    parse_gate,
    parse_ignore,
    parse_tolerance,
    parse_update,
)
from cutrace.golden.model import find_metric
from cutrace.golden.rules import parse_limits


def gated(rules: Rules) -> set[str]:
    return {name for name, found in METRICS.items() if rules.gates(found) and not found.total}


def test_work_and_counters_are_gated_unless_something_else_is_said():
    assert Rules().gate == parse_gate("work,counter") == {"work", "counter"}


@pytest.mark.parametrize("words", ["work, peak_memory", ["work", "peak_memory"], ["work,peak_memory_bytes"]])
def test_words_come_as_a_text_or_a_list(words):
    assert parse_gate(words) == {"work", "peak_memory_bytes"}


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("kernels", {"kernel_launches"}),
        ("memcpy_d2h_bytes", {"memcpy_bytes"}),
        ("allocators", {"allocations"}),
        ("peak_memory", {"peak_memory_bytes"}),
        ("time", {"kernel_time_ns", "busy_ns", "api_time_ns"}),
        ("none", set()),
        ("", set()),
    ],
)
def test_a_part_or_a_breakdown_stands_for_its_total(word, names):
    assert gated(Rules(parse_gate(word))) == names


def test_a_counter_of_the_projects_own_is_a_word():
    assert parse_gate("ours.tokens") == {"ours.tokens"}


def test_every_counter_of_the_hardware_has_a_name_of_cuptis():
    assert list(COUNTERS) == [name for name, found in METRICS.items() if found.hardware]
    assert all(is_full_name(name) for name in COUNTERS.values())
    assert parse_counters("instructions, sm__inst_executed.sum,instructions") == (
        "instructions", "sm__inst_executed.sum",
    )  # fmt: skip
    assert all(find_metric(name) == hardware(name, find_metric(name).doc) for name in COUNTERS.values())


def test_bytes_of_the_hardware_have_a_tolerance():
    shares = {name: Rules().tolerance_of(find_metric(name)) for name in (*COUNTERS, *COUNTERS.values(), "mylib.bytes")}
    assert {name for name, share in shares.items() if share} == {name for name in shares if "_bytes" in name}
    assert Rules().label(find_metric("dram_bytes")) == "2 %"
    assert Rules().label(find_metric("instructions")) == "exact"
    assert Rules(tolerance=parse_tolerance("counter=5%")).label(find_metric("instructions")) == "5 %"


def test_what_is_ignored_is_a_metric_a_class_or_a_pattern_of_names():
    rules = Rules(ignore=parse_ignore("kernels:nccl*, allocators, state, memcpy_count:d2d"))
    assert rules.ignore == ("kernel_launches:nccl*", "allocations", "state", "memcpy_count:d2d")
    assert rules.without_ignored("kernel_launches", {"nccl_all": 1, "k": 2}) == {"k": 2}
    assert {name for name, found in METRICS.items() if rules.ignores(found)} == {
        name for name, found in METRICS.items() if found.kind.value == "state"
    }


@pytest.mark.parametrize(
    "given",
    [
        {"kernel_time": 0.1, "work": "5%"},
        "kernel_time=10% work=0.05",
        "kernel_time_ns=.1,work=5 %",
        ["kernel_time = 0.1", "work=5%"],
    ],
)
def test_tolerances_are_shares_by_metric_or_class(given):
    assert parse_tolerance(given) == pytest.approx({"kernel_time_ns": 0.1, "work": 0.05})


def test_a_tolerance_of_a_metric_goes_before_that_of_its_class():
    rules = Rules(tolerance=parse_tolerance("work=10% kernels=1%"))
    shares = {name: rules.tolerance_of(METRICS[name]) for name in ("kernels", "kernel_launches", "memset_count")}
    assert shares == {"kernels": 0.01, "kernel_launches": 0.01, "memset_count": 0.1}


def test_the_words_of_a_rule():
    rules = Rules(tolerance=parse_tolerance("busy=12.5% memcpy_bytes=10%"))
    words = {name: rules.label(METRICS[name]) for name in METRICS}
    assert words["kernel_launches"] == "exact"
    assert words["allocations"] == "range"
    assert words["peak_memory_bytes"] == "+2 %"
    assert words["kernel_time_ns"] == "5 %"
    assert words["busy_ns"] == "12.5 %"
    assert words["memcpy_bytes"] == words["memcpy_d2h_bytes"] == "+10 %"


@pytest.mark.parametrize(
    ("words", "update"),
    [
        ("changed", Update()),
        ("all", Update("all")),
        ("all, syncs", Update("all", frozenset({"sync_calls"}))),
        (["kernels,state"], Update("changed", frozenset({"kernel_launches", "state"}))),
        *((mode, Update(mode)) for mode in MODES),
    ],
)
def test_an_update_is_a_mode_and_what_it_is_limited_to(words, update):
    assert parse_update(words) == update


def test_limits_are_counts_bytes_and_times():
    limits = {
        "kernel_launches": (3, "kernel_launches", 3),
        "peak_memory": ("64 MiB", "peak_memory_bytes", 64 << 20),
        "dram__bytes.sum": ("64 MiB", "dram__bytes.sum", 64 << 20),
        "kernel_time": ("20us", "kernel_time_ns", 20_000),
        "busy_ns": (1000, "busy_ns", 1000),
        "idle_share": (0.5, "idle_share", 0.5),
    }
    given = {name: value for name, (value, _, _) in limits.items()}
    assert parse_limits(given) == {name: value for _, name, value in limits.values()}


def test_a_budget_allows_calls_by_place():
    given = {"sync_calls": 0, "allow": ["mylib/io.py:*", "/loss.py:(item|[0-9]+)$/"], "reason": " reads back "}
    assert parse_budget(given) == Budget({"sync_calls": 0}, tuple(given["allow"]), "reads back")
    assert parse_budget({"sync_calls": 0, "allow": "a.py:7", "reason": "x"}).allowed == ("a.py:7",)
    assert parse_budget({"kernel_launches": 3}) == Budget({"kernel_launches": 3})


BAD = {
    "an empty update": (parse_update, " ", "the value is empty: write one of missing, changed, all"),
    "a class that is none": (parse_gate, "wrok", "no metric 'wrok': did you mean work"),
    "a mode instead of a class": (parse_gate, "all", "no metric 'all': the reference"),
    "a class of format 1": (parse_gate, "exact", "no metric 'exact'"),
    "a gate of what is never compared": (parse_gate, "idle_share", "idle_share is never compared"),
    "none with a class": (parse_gate, "none,work", "'none' excludes other names"),
    "an unknown metric": (parse_tolerance, {"kernel_tim": 0.1}, "no metric 'kernel_tim': did you mean kernel_time"),
    "nothing like a metric": (parse_tolerance, {"x": 0.1}, r"no metric 'x': the reference of the pytest plugin"),
    "a counter that the hardware has not": (parse_counters, "instruction", "did you mean instructions"),
    "a counter like none": (parse_counters, "x", "write instructions, tensor_instructions"),
    "a metric that is not a counter": (parse_counters, ["kernel_launches"], "no hardware counter 'kernel_launches'"),
    "a counter without a rollup": (parse_counters, ["sm__inst_executed"], "end it with .sum, .min or .max"),
    "a share of the peak": (parse_counters, "sm__throughput.avg.pct_of_peak_sustained_elapsed", "is not a count"),
    "a tolerance that is no share": (
        parse_tolerance,
        {"busy": "much"},
        "'much' is not a tolerance of busy: write a share",
    ),
    "no percent sign": (parse_tolerance, {"busy": 10}, "a tolerance of busy of 10 would be 1,000 %: write 10%"),
    "a negative share": (parse_tolerance, {"busy": -0.1}, "-0.1 is not a tolerance"),
    "no number": (parse_tolerance, {"busy": float("nan")}, "nan is not a tolerance"),
    "a truth": (parse_tolerance, {"busy": True}, "True is not a tolerance"),
    "no equals sign": (parse_tolerance, "kernel_time", "'kernel_time' is not a tolerance: write a name and a share"),
    "a pattern without a metric": (parse_ignore, "nccl*", r"'nccl\*' is not a metric: write kernels:nccl\*"),
    "a metric without a pattern": (parse_ignore, "kernels:", "'kernels:' ignores nothing"),
    "a pattern for a class": (parse_ignore, "work:x", "only a metric that is counted by name takes a pattern"),
    "a pattern for a number": (parse_ignore, "allocations:x", "only a metric that is counted by name takes a pattern"),
    "two modes": (parse_update, "all,missing", "missing and all exclude each other"),
    "a mode that is none": (parse_update, "changd", "no metric 'changd': did you mean changed"),
    "a limit of an unknown metric": (parse_limits, {"kernel_launch": 3}, "did you mean kernel_launches"),
    "a count that is a text": (parse_limits, {"sync_calls": "3"}, "'3' is not a limit of sync_calls: write a number"),
    "a negative limit": (parse_limits, {"sync_calls": -1}, "-1 is not a limit"),
    "no size": (parse_limits, {"peak_memory": "64 apples"}, "'64 apples' is not a size"),
    "no time": (parse_limits, {"kernel_time": "20 MiB"}, "'20 MiB' is not a time"),
    "a list": (parse_limits, {"peak_memory": [1]}, "'64 MiB'"),
    "no place": (parse_budget, {"sync_calls": 0, "allow": [], "reason": "x"}, r"allow=\[\] names no place"),
    "a place without a reason": (parse_budget, {"sync_calls": 0, "allow": ["a.py:*"]}, "allow needs a reason"),
    "an empty reason": (parse_budget, {"sync_calls": 0, "allow": ["a.py:*"], "reason": " "}, "allow needs a reason"),
    "a reason alone": (parse_budget, {"sync_calls": 0, "reason": "x"}, "reason belongs to allow"),
    "a place without a limit": (parse_budget, {"allow": ["a.py:*"], "reason": "x"}, "write sync_calls=0 beside it"),
    "a file": (parse_budget, {"sync_calls": 0, "allow": "a.py", "reason": "x"}, "write a.py:FUNCTION, a.py:LINE or"),
    "a place that is no text": (parse_budget, {"sync_calls": 0, "allow": [7], "reason": "x"}, "7 is not a place"),
    "a wrong expression": (parse_budget, {"sync_calls": 0, "allow": "/(/", "reason": "x"}, "not a regular expression"),
    "a limit of a breakdown": (
        parse_limits,
        {"syncs": 0},
        "syncs has counts by name and cannot be limited",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_word_says_what_to_write(case):
    parse, given, sentence = BAD[case]
    with pytest.raises(CutraceError, match=sentence):
        parse(given)
