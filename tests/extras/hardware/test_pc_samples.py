"""PC samples by stall reason and by line."""

from __future__ import annotations

import pytest

import cutrace
from captures import Capture
from cutrace.analysis.reports import tables
from cutrace.extras.hardware.sources import Place, SampledLine, StallUse, sampled_lines, stall_uses
from cutrace.slicing import Conditions, cut
from sampled import AXPY, sampled_capture


@pytest.mark.parametrize("in_blocks", [False, True])
def test_samples_are_summed_by_function_and_reason(tmp_path, in_blocks):
    with cutrace.load(sampled_capture(tmp_path / "a.bin", in_blocks=in_blocks)) as trace:
        assert stall_uses(trace) == [
            StallUse("axpy", "long_scoreboard", 77, 66, 77 / 92),
            StallUse("axpy", "selected", 10, 0, 10 / 92),
            StallUse("axpy", "wait", 5, 4, 5 / 92),
            StallUse("sum", "barrier", 8, 8, 1),
        ]


@pytest.mark.parametrize("in_blocks", [False, True])
def test_samples_are_summed_by_line_and_by_instruction_without_lines(tmp_path, in_blocks):
    with cutrace.load(sampled_capture(tmp_path / "a.bin", in_blocks=in_blocks)) as trace:
        lines = sampled_lines(trace)
        assert lines == [
            SampledLine(Place("axpy", "/src/axpy.cu", 12, 0), 87, 66, 0.87, {"long_scoreboard": 77, "selected": 10}),
            SampledLine(Place("sum", "", 0, 0x1C0), 8, 8, 0.08, {"barrier": 8}),
            SampledLine(Place("axpy", "/src/axpy.cu", 13, 0), 5, 4, 0.05, {"wait": 5}),
        ]
        assert list(lines[0].stalls) == ["long_scoreboard", "selected"]
        assert sampled_lines(trace, lambda name: name)[0].place.function == AXPY


def test_offsets_in_functions_of_one_name_are_apart(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        for function, samples in (("_Z4axpyIfEvPT_", 5), ("_Z4axpyIdEvPT_", 7)):
            c.add("pc_samples", start=1, end=2, function=function, offset=16, stall="wait", samples=samples)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert [(line.place.text, line.samples) for line in sampled_lines(trace)] == [("+0x10", 7), ("+0x10", 5)]
        assert [(use.function, use.samples) for use in stall_uses(trace)] == [("axpy", 12)]


def test_a_warp_that_issues_an_instruction_does_not_wait():
    place = Place("f", "a.cu", 1, 0)
    assert SampledLine(place, 9, 0, 1, {"selected": 8, "wait": 1}).stall == "wait"
    assert SampledLine(place, 8, 0, 1, {"selected": 8}).stall == ""


def test_the_reports_are_usual_where_there_are_samples(tmp_path):
    with cutrace.load(sampled_capture(tmp_path / "a.bin")) as trace:
        stalls, lines = (table for table in tables(trace) if table.name.startswith("pc_"))
        assert stalls.rows[0] == (77 / 92, 77, 66, "long_scoreboard", "axpy")
        assert lines.rows[0] == (0.87, 87, 66, "long_scoreboard", "axpy.cu:12", "axpy")
    with Capture(tmp_path / "b.bin"):
        pass
    with cutrace.load(tmp_path / "b.bin") as trace:
        assert not [table for table in tables(trace) if table.name.startswith("pc_")]
        assert [table.rows for table in tables(trace, ["pc_stall_sum", "pc_line_sum"])] == [[], []]


@pytest.mark.parametrize(
    ("conditions", "functions"),
    [
        (Conditions(kernel=("axpy",)), {"axpy"}),
        (Conditions(kernel=("sum",)), {"sum"}),
        (Conditions(gpu=("0",)), {"axpy", "sum"}),
        (Conditions(start="@1000500000000"), {"axpy", "sum"}),
        (Conditions(end="@1000400000000"), {"axpy"}),
    ],
)
def test_a_slice_has_the_samples_of_its_time_and_of_its_kernels(tmp_path, conditions, functions):
    cut(sampled_capture(tmp_path / "a.bin"), tmp_path / "b.bin", conditions)
    with cutrace.load(tmp_path / "b.bin") as trace:
        assert {use.function for use in stall_uses(trace)} == functions
