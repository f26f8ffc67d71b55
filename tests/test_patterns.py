"""The pattern language, and the options that use it."""

from __future__ import annotations

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import parse_ignore
from cutrace.golden.rules import Rules, parse_own
from cutrace.patterns import any_matcher, matcher


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "ab", True),
        ("f(float*)", "f(float*)", True),
        ("x[1]", "x[1]", True),
        ("/b$/", "ab", True),
        ("/^b/", "ab", False),
        ("A*", "ab", False),
        ("/", "/", True),
    ],
)
def test_patterns(pattern, text, matches):
    assert matcher(pattern)(text) is matches


def test_one_of_several_patterns_is_enough():
    matches = any_matcher(["a*", "/b$/"])
    assert [matches(name) for name in ("ax", "xb", "xa")] == [True, True, False]
    assert not any_matcher([])("a")


def test_a_wrong_expression_is_one_sentence():
    with pytest.raises(CutraceError, match=r"^/\(/ is not a regular expression: .*\. Correct it\.$"):
        matcher("/(/")


def test_an_expression_as_in_ncu_is_told_how_to_write():
    with pytest.raises(CutraceError, match=r"^regex:a\.\* is not a pattern here: write '/a\.\*/'$"):
        matcher("regex:a.*")


def test_rules_of_golden_files_take_the_same_patterns():
    rules = Rules(ignore=parse_ignore("kernels:/^nccl/,kernels:f(x[1])"), own=("/^my::/", "other[*]"))
    assert rules.without_ignored("kernel_launches", {"nccl_a": 1, "f(x[1])": 2, "g": 3}) == {"g": 3}
    assert [rules.owns(name) for name in ("my::a", "other[*]", "a::my::b")] == [True, True, False]


@pytest.mark.parametrize("make", [lambda: parse_ignore("kernels:/(/"), lambda: parse_own(["/(/"])])
def test_a_wrong_rule_is_an_error_before_any_test(make):
    with pytest.raises(CutraceError, match="is not a regular expression"):
        make()
