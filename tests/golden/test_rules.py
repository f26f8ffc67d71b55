"""The words of options, markers and ini files, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from cutrace.analysis.metrics import METRICS, Gate
from cutrace.errors import CutraceError
from cutrace.golden import Rules, parse_gate, parse_limits, parse_tolerance


def test_exact_and_memory_are_gated_unless_something_else_is_said():
    assert Rules().gate == parse_gate("exact,memory") == {Gate.EXACT, Gate.MEMORY}


@pytest.mark.parametrize("words", ["exact, time", ["exact", "time"], ("TIME", "exact")])
def test_classes_come_as_a_text_or_a_list(words):
    assert parse_gate(words) == {Gate.EXACT, Gate.TIME}


def test_none_gates_nothing():
    assert parse_gate("none") == frozenset()


@pytest.mark.parametrize("words", ["exakt", "info", "", "exact,,time", "all"])
def test_an_unknown_class_is_named_with_those_there_are(words):
    with pytest.raises(CutraceError, match="cannot be gated: write some of exact, memory, time, or none"):
        parse_gate(words)


def test_none_with_a_class_is_an_error():
    with pytest.raises(CutraceError, match="'none' stands alone"):
        parse_gate("none,exact")


@pytest.mark.parametrize(
    "given",
    [
        {"kernel_time": 0.1, "peak_memory_bytes": "5%"},
        "kernel_time=10% peak_memory=0.05",
        "kernel_time_ns=.1,peak_memory=5 %",
        ["kernel_time = 0.1", "peak_memory=5%"],
    ],
)
def test_tolerances_are_shares_by_metric(given):
    assert parse_tolerance(given) == pytest.approx({"kernel_time_ns": 0.1, "peak_memory_bytes": 0.05})


def test_the_words_of_a_rule():
    rules = Rules(tolerance=parse_tolerance("busy=12.5% memcpy_bytes=10%"))
    words = {name: rules.words(METRICS[name]) for name in METRICS}
    assert words["kernel_launches"] == "exact"
    assert words["peak_memory_bytes"] == "+2 %"
    assert words["kernel_time_ns"] == "5 %"
    assert words["busy_ns"] == "12.5 %"
    assert words["memcpy_bytes"] == "+10 %"


BAD_TOLERANCES = {
    "an unknown metric": ({"kernel_tim": 0.1}, "no metric 'kernel_tim': did you mean kernel_time"),
    "nothing like a metric": ({"x": 0.1}, r"no metric 'x': docs/metrics\.md"),
    "a list by name": ({"kernels": 0.1}, "kernels is a list by name"),
    "what is never compared": ({"idle_share": 0.1}, "idle_share is never compared"),
    "a text that is no share": ({"busy": "much"}, "'much' is no tolerance of busy_ns: write a share such as 0.05"),
    "a negative share": ({"busy": -0.1}, "-0.1 is no tolerance"),
    "no number": ({"busy": float("nan")}, "nan is no tolerance"),
    "a truth": ({"busy": True}, "True is no tolerance"),
    "no equals sign": ("kernel_time", "'kernel_time' is no tolerance: write a metric and a share"),
}


@pytest.mark.parametrize("case", BAD_TOLERANCES)
def test_a_wrong_tolerance_says_what_to_write(case):
    given, sentence = BAD_TOLERANCES[case]
    with pytest.raises(CutraceError, match=sentence):
        parse_tolerance(given)


def test_limits_are_counts_bytes_and_times():
    given = {"kernel_launches": 3, "peak_memory": "64 MiB", "kernel_time": "20us", "busy_ns": 1000, "idle_share": 0.5}
    assert parse_limits(given) == {
        "kernel_launches": 3,
        "peak_memory_bytes": 64 << 20,
        "kernel_time_ns": 20_000,
        "busy_ns": 1000,
        "idle_share": 0.5,
    }


BAD_LIMITS = {
    "an unknown metric": ({"kernel_launch": 3}, "no metric 'kernel_launch': did you mean kernel_launches"),
    "a count that is a text": ({"sync_calls": "3"}, "'3' is no limit of sync_calls: write a number of times"),
    "a negative count": ({"sync_calls": -1}, "-1 is no limit"),
    "no size": ({"peak_memory": "64 apples"}, "'64 apples' is not a size"),
    "no time": ({"kernel_time": "20 MiB"}, "'20 MiB' is not a time"),
    "a list": ({"peak_memory": [1]}, "'64 MiB'"),
    "a list by name": ({"syncs": 0}, "syncs is a list by name"),
}


@pytest.mark.parametrize("case", BAD_LIMITS)
def test_a_wrong_limit_says_what_to_write(case):
    given, sentence = BAD_LIMITS[case]
    with pytest.raises(CutraceError, match=sentence):
        parse_limits(given)
