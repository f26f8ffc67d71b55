"""Differences between golden files."""

from __future__ import annotations

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Module, Observed, difference, differences, write
from support.measured import MODULE, TEST, entry, run


def test_equal_entries_do_not_differ():
    assert not difference(TEST, entry(), entry())
    assert not difference(TEST, None, None)


def test_a_kernel_that_came_is_named():
    kernels = {"softmax_fwd": 1, "vectorized_elementwise": 2}
    found = difference(TEST, entry(), entry(run(kernels={**kernels, "cast": 1})))
    (row,) = found.environments["sm_90"]
    assert (row.metric, row.golden, row.now) == ("kernel_launches", kernels, {**kernels, "cast": 1})
    assert row.detail == "+ cast (new)"


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"kernels": {"softmax_fwd": 1}}, "BETTER"),
        ({"kernels": {"softmax_fwd": 2}}, "CHANGED"),
        ({"frees": 1}, "CHANGED"),
        ({"peak_memory_bytes": 1}, "BETTER"),
        ({"kernel_time_ns": 8_000}, "BETTER"),
        ({"kernel_time_ns": 60_000}, "CHANGED"),
    ],
)
def test_a_difference_has_the_verdict_of_a_comparison(changed, verdict):
    gate = frozenset({"work", "state", "time"})
    before = entry(run(frees=2, kernels={"softmax_fwd": 1, "cast": 2}), gate=gate)
    after = entry(run(**{"frees": 2, "kernels": {"softmax_fwd": 1, "cast": 2}} | changed), gate=gate)
    (row,) = difference(TEST, before, after).environments["sm_90"]
    assert (row.verdict.value, row.failed) == (verdict, verdict == "CHANGED")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (2, {"gemm": 3}, "CHANGED"),
        (2, {"gemm": 1}, "BETTER"),
        ({"gemm": 2}, 3, "CHANGED"),
        ({"gemm": 2}, 1, "BETTER"),
        ({"gemm": 2}, 2, "CHANGED"),
    ],
)
def test_a_total_and_counts_by_name_are_compared_as_numbers(before, after, verdict):
    (row,) = difference(
        TEST,
        {"sm_90": Observed({"": {"kernel_launches": before}})},
        {"sm_90": Observed({"": {"kernel_launches": after}})},
    ).environments["sm_90"]
    assert (row.golden, row.now, row.verdict.value, row.detail) == (before, after, verdict, "")


def test_values_that_came_and_went_are_rows():
    before, after = entry(run(**{"ours.tokens": 3})), entry(run(memset_count=0), gate=frozenset({"work", "frees"}))
    rows = {
        row.metric: (row.golden is None, row.now is None)
        for row in difference(TEST, before, after).environments["sm_90"]
    }
    assert rows == {"memset_count": (False, False), "frees": (True, False), "ours.tokens": (False, True)}


def test_what_became_unstable_is_a_row():
    (row,) = difference(TEST, entry(), entry(run(), run(memset_count=3))).environments["sm_90"]
    assert (row.metric, row.golden, row.now, row.verdict.value) == ("memset_count", 1, (1, 3), "UNSTABLE")


def test_environments_that_came_and_went_are_notes():
    assert difference(TEST, entry(), entry(environment="sm_80")).notes == ("sm_80 is new", "sm_90 is gone")


def test_confirmation_is_a_note():
    assert difference(TEST, entry(confirmed=False), entry()).notes == ("sm_90 is confirmed",)
    assert difference(TEST, entry(), entry(confirmed=False)).notes == ("sm_90 is not confirmed yet",)


def test_trees_are_compared_test_by_test(tmp_path):
    for name, tests in {
        "a/x.toml": ["one"],
        "b/x.toml": ["one", "two"],
        "a/y.toml": ["one"],
        "b/z.toml": ["one"],
    }.items():
        write(Module(f"{name[2]}.py", {test: entry() for test in tests}), tmp_path / name)
    found = differences(tmp_path / "a", tmp_path / "b")
    assert [(one.nodeid, *one.notes) for one in found] == [
        ("x.py::two", "is new"),
        ("y.py::one", "is gone"),
        ("z.py::one", "is new"),
    ]


def test_two_files_are_compared_whatever_they_are_called(tmp_path):
    for name, count in {"a": 1, "b": 2}.items():
        write(Module(MODULE, {"test": entry(run(memset_count=count))}), tmp_path / f"{name}.toml")
    (found,) = differences(tmp_path / "a.toml", tmp_path / "b.toml")
    assert found.nodeid == f"{MODULE}::test"
    assert differences(tmp_path / "a.toml", tmp_path / "a.toml") == ()


def test_a_file_and_a_folder_cannot_be_compared(tmp_path):
    write(Module(MODULE), tmp_path / "a.toml")
    with pytest.raises(CutraceError, match="name two golden files or two folders"):
        differences(tmp_path / "a.toml", tmp_path)


def test_folders_without_golden_files_are_an_error(tmp_path):
    with pytest.raises(CutraceError, match="holds a golden file"):
        differences(tmp_path, tmp_path)
