"""Collapsed stacks and profiles for speedscope."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import cutrace
from captures import Capture
from cutrace.analysis.flame import flame
from cutrace.cli import cli

DATA = Path(__file__).parents[1] / "data"
FILES = ["torch_step.bin", "cuda_graph_whole.bin", "ranks.bin", "kineto-torch2.11-h200-transformer.json.gz"]


def converted(source: Path, destination: Path, **how: object) -> Path:
    cutrace.convert(source, destination, **how)
    return destination


@pytest.mark.parametrize("name", FILES)
def test_collapsed_stacks_have_all_gpu_time(name, tmp_path):
    lines = converted(DATA / name, tmp_path / "a.folded").read_text("utf-8").splitlines()
    with cutrace.load(DATA / name) as trace:
        root = flame(trace)
    stacks = dict(line.rsplit(" ", 1) for line in lines)
    assert len(stacks) == len(lines)
    assert sum(map(int, stacks.values())) == root.gpu_ns
    assert {stack.count(";") + 1 for stack in stacks} <= {len(frames) for frames in root.walk()}


def check_speedscope(document: dict) -> None:
    """Check the rules of speedscope's schema for files with sampled profiles."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(frame.keys() == {"name"} and isinstance(frame["name"], str) for frame in frames)
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])
    for profile in document["profiles"]:
        assert profile.keys() == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= frame < len(frames) for stack in profile["samples"] for frame in stack)


@pytest.mark.parametrize("name", FILES)
def test_speedscope_has_all_gpu_time_and_that_of_threads(name, tmp_path):
    document = json.loads(converted(DATA / name, tmp_path / "a.speedscope.json").read_text("utf-8"))
    check_speedscope(document)
    with cutrace.load(DATA / name) as trace:
        root = flame(trace)
    totals = [sum(profile["weights"]) for profile in document["profiles"]]
    assert totals == [root.gpu_ns, root.cpu_ns][: len(totals)]
    assert len(totals) == 1 + bool(root.cpu_ns)


@pytest.fixture
def unpleasant(tmp_path) -> Path:
    with Capture(tmp_path / "names.bin") as c:
        kernel = c.launch("kernel", grid=(1, 1, 1), block=(1, 1, 1))
        for at, name in enumerate(["a;b", "a:b", "line\nbreak", "\udcff", ""], 1):
            c.push_pop(name, 1000 * at, 1000 * at + 500, thread=1)
            c.api("cudaLaunchKernel", 1000 * at, 1000 * at + 10, thread=1, correlation=at)
            c.kernel(kernel, 1000 * at + 100, 1000 * at + 100 + at, stream=7, correlation=at)
    return c.path


def test_separators_in_names_do_not_break_lines(unpleasant, tmp_path):
    lines = converted(unpleasant, tmp_path / "a.folded").read_text("utf-8").splitlines()
    assert lines[:2] == ["(unnamed);kernel 5", "a:b;kernel 3"]
    assert "line break;kernel 3" in lines
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 15
    check_speedscope(json.loads(converted(unpleasant, tmp_path / "a.speedscope.json").read_text("utf-8")))


def test_a_window_of_time(tmp_path):
    source = DATA / "torch_step.bin"
    with cutrace.load(source) as trace:
        middle = (trace.start + trace.end) // 2
    parts = [
        converted(source, tmp_path / f"{name}.folded", start=start, end=end)
        for name, start, end in (("all", None, None), ("first", None, middle), ("rest", middle, None))
    ]
    whole, first, rest = (sum(int(x.rpartition(" ")[2]) for x in p.read_text().splitlines()) for p in parts)
    assert 0 < min(first, rest) <= max(first, rest) < whole <= first + rest


@pytest.mark.parametrize("form", ["folded", "speedscope"])
def test_the_format_by_name_and_on_stdout(form, tmp_path):
    direct = converted(DATA / "triton.bin", tmp_path / "a", format=form)
    result = CliRunner().invoke(cli, ["convert", str(DATA / "triton.bin"), "-o", "-", "--format", form, "-q"])
    assert result.exit_code == 0
    assert result.stdout.replace("stdout.speedscope.json", "a") == direct.read_text("utf-8")


def test_a_capture_without_gpu_work(tmp_path):
    with Capture(tmp_path / "empty.bin") as c:
        c.push_pop("step", 1000, 9000)
    assert converted(c.path, tmp_path / "a.folded").read_text() == ""
    check_speedscope(json.loads(converted(c.path, tmp_path / "a.speedscope.json").read_text()))
