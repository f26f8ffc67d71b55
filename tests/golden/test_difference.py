"""What changed between golden files, in the words of a comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Golden, difference, differences, measured, write
from support.measured import H200, TEST, run


def golden(test: str = TEST, gpu: str = H200, recorded: str = "r", **changed: Any) -> Golden:
    return measured([run(**changed)], test=test, gpu=gpu, recorded=recorded)


def test_equal_files_do_not_differ():
    assert not difference("a", golden(), golden())
    assert not difference("a", None, None)


def test_a_kernel_that_came_is_named():
    kernels = {"softmax_fwd": 1, "vectorized_elementwise": 2, "cast": 1}
    found = difference("a", golden(), golden(kernel_launches=4, kernels=kernels))
    (row,) = found.sections["common"]
    assert (row.metric, row.golden, row.now, row.detail) == ("kernel_launches", 3, 4, "+ cast x1 (new)")


def test_memory_that_differs_by_little_is_still_a_difference():
    found = difference("a", golden(), golden(peak_memory_bytes=(32 << 20) + 1))
    assert [row.metric for row in found.sections[f"gpu.{H200}"]] == ["peak_memory_bytes"]


def test_lines_that_came_and_went_are_rows():
    found = difference("a", golden(sync_calls=None), golden(streams_used=None))
    rows = {row.metric: (row.golden, row.now, row.detail) for row in found.sections["common"]}
    assert rows == {"sync_calls": (None, 1, ""), "streams_used": (1, None, "gone")}


def test_what_is_no_metric_is_a_note():
    other = golden(test="b", recorded="s")
    found = difference("a", golden(), replace(other, common=replace(other.common, unstable=("frees",))))
    assert found.notes == (
        f"is of the test b, was of {TEST}",
        "[common] unstable: none -> frees",
        f"[gpu.{H200}] recorded: r -> s",
    )


def test_sections_that_came_and_went_are_notes():
    found = difference("a", golden(), golden(gpu="nvidia-a100"))
    assert found.notes == ("[gpu.nvidia-a100] is new", f"[gpu.{H200}] is gone")


def test_trees_are_compared_file_by_file(tmp_path):
    for name, one in {"a/x.toml": golden(), "b/x.toml": golden(), "a/y.toml": golden(), "b/z.toml": golden()}.items():
        write(one, tmp_path / name)
    found = differences(tmp_path / "a", tmp_path / "b")
    assert [(one.name, one.notes) for one in found] == [("y.toml", ("is gone",)), ("z.toml", ("is new",))]


def test_files_are_compared_by_their_names(tmp_path):
    write(golden(), tmp_path / "a.toml")
    write(golden(memset_count=2), tmp_path / "b.toml")
    (found,) = differences(tmp_path / "a.toml", tmp_path / "b.toml")
    assert found.name == str(tmp_path / "b.toml")
    assert differences(tmp_path / "a.toml", tmp_path / "a.toml") == ()


def test_a_file_and_a_folder_cannot_be_compared(tmp_path):
    write(golden(), tmp_path / "a.toml")
    with pytest.raises(CutraceError, match="name two golden files or two folders"):
        differences(tmp_path / "a.toml", tmp_path)


def test_folders_without_golden_files_are_an_error(tmp_path):
    with pytest.raises(CutraceError, match="holds a golden file"):
        differences(tmp_path, tmp_path)
