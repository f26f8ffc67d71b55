"""The options of a capture and the text in which the collector reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutrace.collect import KINDS, Options
from cutrace.collect.standby import length_of
from cutrace.errors import CutraceError


def test_the_text_has_a_line_for_each_option():
    options = Options.of(
        kinds="kernel, nvtx,kernel", api="none", cuda_graph="graph", nvtx=False, max_memory="64MiB", cupti="/x"
    )
    assert options.text(directory="/tmp/d").splitlines() == [
        "directory=/tmp/d", "kinds=kernel,nvtx", "api=none", "graph=graph", "nvtx=0", "max_memory=67108864", "cupti=/x",
    ]  # fmt: skip


def test_what_is_not_given_is_left_to_the_collector():
    assert Options().text(output="/tmp/f").splitlines() == ["output=/tmp/f"]


def test_paths_are_made_absolute_since_the_program_may_change_its_folder():
    assert Options().text(output="f.bin").splitlines()[0] == f"output={Path.cwd() / 'f.bin'}"


@pytest.mark.parametrize("name", ["a;b", "a\nb"])
def test_a_path_that_would_read_as_another_option_is_refused(name):
    with pytest.raises(CutraceError, match="choose another"):
        Options().text(directory=f"/tmp/{name}")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"kinds": "kernel,warp"}, "'warp'.*choose from default, kernel"),
        ({"kinds": []}, "choose from"),
        ({"api": "some"}, "launch, all, none"),
        ({"cuda_graph": "edge"}, "node, graph"),
        ({"max_size": "big"}, "512MiB"),
        ({"max_size": 1}, "64 KiB or more"),
        ({"max_size": "1e3"}, "512MiB"),
        ({"max_memory": "1K"}, "1 MiB or more"),
        ({"max_memory": "9999999T"}, "up to 8000 TiB"),
        ({"stacks": "sync,free"}, "'free'.*choose from sync, alloc, copy, launch"),
        ({"stacks": ""}, "choose from sync"),
        ({"stacks": []}, "choose from sync"),
        ({"stacks": "launch:1/0"}, "launch:1/N"),
        ({"stacks": "launch:1/-3"}, "launch:1/N"),
        ({"stacks": "launch:2/3"}, "launch:1/N"),
        ({"stacks": "launch:"}, "launch:1/N"),
        ({"stacks": "launch:1/4294967296"}, "launch:1/N"),
        ({"stacks": "sync:1/10"}, "only launches"),
        ({"stacks_min": "20us"}, "needs stacks"),
        ({"stacks": "sync", "stacks_min": "soon"}, "1.5s"),
        ({"stacks": "sync", "stacks_min": 0}, "1ns or more"),
        ({"stacks": "sync", "stacks_min": "9999999999s"}, "1ns or more"),
    ],
)
def test_a_wrong_value_is_answered_with_the_right_ones(options, hint):
    with pytest.raises(CutraceError, match=hint):
        Options.of(**options)


@pytest.mark.parametrize(
    ("stacks", "line"),
    [
        ("launch:1/100, sync", "stacks=sync,launch:100"),
        (["copy", "alloc"], "stacks=alloc,copy"),
        ("launch:1/1", "stacks=launch"),
        ("sync,launch:1/7,sync,launch", "stacks=sync,launch"),
    ],
)
def test_stacks_are_written_as_the_collector_reads_them(stacks, line):
    assert Options.of(stacks=stacks).text(output="/f").splitlines() == ["output=/f", line]


@pytest.mark.parametrize(("least", "ns"), [("20us", 20_000), (500_000, 500_000), ("7ns", 7)])
def test_short_calls_can_be_left_without_stacks(least, ns):
    lines = Options.of(stacks="sync", stacks_min=least).text(output="/f").splitlines()
    assert lines == ["output=/f", "stacks=sync", f"stacks_min_ns={ns}"]


def test_every_kind_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []


@pytest.mark.parametrize("duration", [10, "10us", 0.5, "soon"])
def test_a_recording_of_an_attachment_has_a_length(duration):
    with pytest.raises(CutraceError, match=r"1ms or more|is not a time"):
        length_of(duration)
