"""The options of a capture and the text in which the collector reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutrace.collect import KINDS, Options
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
    ],
)
def test_a_wrong_value_is_answered_with_the_right_ones(options, hint):
    with pytest.raises(CutraceError, match=hint):
        Options.of(**options)


def test_every_kind_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []
