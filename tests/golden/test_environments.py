"""The environments in which values apply: values of one environment, of two, and of the project's own kernels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.errors import CutraceError
from cutrace.golden import Comparison, Entry, Rules, Verdict, check_variant, compare, variant
from support.measured import entry, run, updated

ENVIRONMENTS = [f"{gpu}-cuda{version}" for gpu in ("sm_80", "sm_90", "sm_120") for version in (12, 13)]


def gemm(name: str, **more: Any) -> dict[str, Any]:
    return {"kernels": {"fill": 1, name: 1}, **more}


def on(environment: str, known: Entry, *, own: tuple[str, ...] = (), **changed: Any) -> Comparison:
    return compare(known, [run(**changed)], environment=environment, rules=Rules(own=own))


@pytest.fixture
def one() -> Entry:
    """A kernel of a library that was recorded in one environment."""
    return entry(run(**gemm("ampere_gemm")), environment="sm_80")


@pytest.fixture
def two(one) -> Entry:
    """The same entry with another kernel of the library in a second environment."""
    return {**one, **entry(run(**gemm("sm90_gemm")), environment="sm_90")}


def test_an_environment_that_is_known_is_compared_with_its_own_values_alone(two):
    assert not on("sm_80", two, **gemm("ampere_gemm")).failed
    assert on("sm_80", two, **gemm("sm90_gemm")).failed


def test_what_one_environment_has_shown_is_claimed_for_no_other(one):
    for changed in (gemm("ampere_gemm"), gemm("sm120_gemm"), gemm("ampere_gemm", memset_count=9)):
        found = on("sm_120", one, **changed)
        assert not found.failed
        assert found.unverified == "no golden for sm_120"
        assert {row.verdict for row in found.rows} == {Verdict.UNVERIFIED}


def test_what_two_have_equal_holds_on_a_third(two):
    found = on("sm_120", two, **gemm("sm120_gemm", memset_count=2))
    assert {row.metric for row in found.rows if row.failed} == {"memset_count"}


def test_names_that_differ_between_environments_are_not_claimed(two):
    found = on("sm_120", two, **gemm("sm120_gemm"))
    assert not found.failed
    (row,) = [row for row in found.rows if row.verdict is Verdict.UNVERIFIED]
    assert row.golden == {"fill": 1}
    assert row.detail == "no golden for sm_120: ampere_gemm, sm120_gemm, sm90_gemm"


def test_a_name_that_two_have_equal_is_held_beside_others_that_differ(two):
    found = on("sm_120", two, kernels={"fill": 2, "sm120_gemm": 1})
    assert [row.detail for row in found.rows if row.failed] == ["+ fill"]


def test_what_both_lack_has_to_be_lacking(two):
    assert on("sm_120", two, **gemm("sm120_gemm", graph_launches=1)).failed


def test_a_region_in_one_environment_alone_is_claimed_for_no_other(one):
    known = {**one, **entry(run(regions={"f": {"kernels": {"a": 1}}}), environment="sm_90")}
    for regions in ({}, {"f": {"kernels": {"a": 1}}}, {"f": {"kernels": {"b": 1}}}):
        assert not any(row.failed for row in on("sm_120", known, regions=regions).rows if row.region)


def test_a_region_that_one_environment_lacks_is_not_claimed():
    region = run(regions={"f": {"kernels": {"ours::a": 1}}})
    both = {**entry(region, environment="sm_80"), **entry(region, environment="sm_90")}
    assert on("sm_120", both).failed
    assert not on("sm_120", {**both, **entry(environment="sm_75")}, own=("ours::*",)).failed
    assert not on("sm_120", entry(region)).failed


def test_what_one_run_alone_has_shown_counts_for_no_other_environment(one):
    known = {**one, **entry(run(**gemm("sm90_gemm")), environment="sm_90", confirmed=False)}
    assert {row.verdict for row in on("sm_120", known, **gemm("x")).rows} == {Verdict.UNVERIFIED}


def test_without_an_environment_the_first_holds(one):
    assert on("", one, **gemm("sm90_gemm")).failed


# Kernels of the project's own

OWN = ("ours::*",)
OURS = {"ours::softmax": 1, "ampere_gemm": 1}
CASES = {
    "the same": ({"ours::softmax": 1, "sm120_gemm": 1}, ""),
    "another count": ({"ours::softmax": 2, "sm120_gemm": 1}, "+ ours::softmax"),
    "a new one": ({"ours::softmax": 1, "ours::cast": 1}, "+ ours::cast (new)"),
    "one that is gone, and another": ({"ours::cast": 1}, "+ ours::cast (new), - ours::softmax (gone)"),
}


@pytest.mark.parametrize("case", CASES)
def test_own_kernels_hold_everywhere_from_the_start_and_others_are_unverified(case):
    kernels, detail = CASES[case]
    found = on("sm_120", entry(run(kernels=OURS)), own=OWN, kernels=kernels)
    assert [row.detail for row in found.rows if row.failed] == ([detail] if detail else [])
    assert found.unverified == "no golden for sm_120"


def test_an_own_kernel_on_which_environments_differ_is_not_claimed():
    known = {
        **entry(run(kernels={"ours::softmax": 1}), environment="sm_80"),
        **entry(run(kernels={"ours::softmax": 2}), environment="sm_90"),
    }
    found = on("sm_120", known, own=OWN, kernels={"ours::softmax": 3})
    assert not found.failed
    assert found.unverified == "no golden for sm_120"


# Architectures and versions of libraries

behaviours = st.fixed_dictionaries(
    {
        "kernels": st.dictionaries(st.sampled_from("abc"), st.integers(1, 2)),
        "syncs": st.dictionaries(st.sampled_from(["wait"]), st.integers(1, 2)),
        "memset_count": st.integers(0, 1),
        "ours.tokens": st.sampled_from([None, 0, 1]),
        "peak_memory_bytes": st.sampled_from([0, 4 << 20]),
        "regions": st.dictionaries(st.sampled_from("fg"), st.fixed_dictionaries({"memset_count": st.integers(0, 1)})),
    }
)
GATES = frozenset({"work", "counter", "state"})
steps = st.lists(st.tuples(st.sampled_from(ENVIRONMENTS), behaviours), min_size=1, max_size=8)


@given(steps, st.sampled_from(["changed", "all"]))
def test_whatever_is_updated_passes_and_no_other_environment_changes(history, mode):
    known: Entry = {}
    for environment, behaviour in history:
        before = dict(known)
        known, _ = updated(known, run(**behaviour), environment=environment, update=mode, gate=GATES)
        assert {**known, environment: None} == {**before, environment: None}
        found = compare(known, [run(**behaviour)], environment=environment, rules=Rules(GATES))
        # Only "all" accepts an increase of a state.
        assert not [row for row in found.rows if row.failed and (mode != "changed" or row.metric[:4] != "peak")]
        assert updated(known, run(**behaviour), environment=environment, update=mode, gate=GATES)[0] == known


@given(behaviours, st.lists(st.sampled_from(ENVIRONMENTS), min_size=2, max_size=5, unique=True))
def test_what_is_the_same_everywhere_holds_everywhere(behaviour, environments):
    known: Entry = {}
    for environment in environments[:2]:
        known, _ = updated(known, run(**behaviour), environment=environment)
    found = compare(known, [run(**behaviour)], environment="sm_75", rules=Rules(frozenset({"work", "counter", "less"})))
    assert not found.failed
    assert found.unverified == ""


# The variant of an environment


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("", ""),
        ("cuda{cuda}", "cuda13"),
        ("cuda{cuda:2}", "cuda13.1"),
        ("np{numpy:1}-x", "np3-x"),
        ("{numpy}", "3.2.1"),
        ("{numpy}/ {cuda}", "3.2.1__13"),
    ],
)
def test_a_variant_has_versions_without_what_follows_a_plus(template, words, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.2.1+cu130")
    check_variant(template)
    assert variant(template, {"cuda": "13.1"}) == words


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{no_such_package}", "no_such_package.* is neither cuda nor an installed package"),
        ("{}", "neither cuda nor an installed package"),
        ("{torch:two}", "is not a variant: write names in braces"),
        ("cuda{cuda", "is not a variant: write names in braces"),
    ],
)
def test_a_wrong_variant_says_what_to_write(template, sentence):
    with pytest.raises(CutraceError, match=sentence):
        check_variant(template)
