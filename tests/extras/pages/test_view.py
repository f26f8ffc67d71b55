"""The page of a capture, and flame graphs in notebooks."""

from __future__ import annotations

import html
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import cutrace
from captures import ORIGIN, Capture, join, training_steps
from cutrace.analysis.flame import flame
from cutrace.cli import cli
from cutrace.extras.pages import view
from reports.page import Page

DATA = Path(__file__).parents[2] / "data"
FILES = ["torch_step.bin", "ranks.bin", "cuda_graph_whole.bin", "kineto-torch2.11-h200-transformer.json.gz"]


def viewed(source: Path, page: Path, other: Path | None = None) -> Page:
    cutrace.view(source, page, before=other)
    return Page(page.read_text("utf-8"))


def frames(page: Page) -> dict:
    return json.loads(page.scripts["frames"])


@pytest.mark.parametrize("name", FILES)
def test_the_page_has_all_parts_and_loads_nothing(name, tmp_path):
    page = viewed(DATA / name, tmp_path / "page.html")
    for part in ("Timeline", "GPU time by range", "Idle time of streams", name):
        assert part in page.words
    assert not [tag for tag, attributes in page.tags if {"src", "href"} & attributes.keys() or "style" in attributes]
    policy = next(dict(a)["content"] for tag, a in page.tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


@pytest.mark.parametrize("name", FILES)
def test_the_frames_are_those_of_the_flame_graph(name, tmp_path):
    data = frames(viewed(DATA / name, tmp_path / "page.html"))
    with cutrace.load(DATA / name) as trace:
        root = flame(trace)
    found, path = {}, []
    for depth, number, _, *use in data["frames"]:
        path[depth:] = [data["names"][number]]
        found[tuple(path[1:])] = use
    assert found.pop(()) == [root.gpu_ns, root.operations, root.cpu_ns]
    assert found == {
        tuple(f.name for f in one): [one[-1].gpu_ns, one[-1].operations, one[-1].cpu_ns] for one in root.walk()
    }
    assert (data["left"], data["before"]) == (0, False)


def test_traces_without_a_common_range_are_said_to_have_none(tmp_path):
    for step in range(3):
        cutrace.slice(DATA / "torch_step.bin", tmp_path / f"{step}.bin", cutrace.Conditions(nvtx=f"step {step}"))
    note = "No outermost range has the same name in both traces"
    assert note in viewed(tmp_path / "1.bin", tmp_path / "page.html", tmp_path / "2.bin").words
    assert note not in viewed(tmp_path / "1.bin", tmp_path / "page.html", DATA / "torch_step.bin").words


def test_two_traces_have_the_frames_of_both(tmp_path):
    def capture(name: str, ranges: dict[str, int]) -> Path:
        with Capture(tmp_path / name) as c:
            kernel = c.launch("k", grid=(1, 1, 1), block=(1, 1, 1))
            for at, (text, ns) in enumerate(ranges.items(), 1):
                c.push_pop(text, 1000 * at, 1000 * at + 500)
                c.api("cudaLaunchKernel", 1000 * at, 1000 * at + 10, correlation=at)
                c.kernel(kernel, 1000 * at + 100, 1000 * at + 100 + ns, stream=7, correlation=at)
        return c.path

    now, before = capture("now.bin", {"a": 30, "b": 5}), capture("before.bin", {"b": 7, "c": 20})
    page = viewed(now, tmp_path / "page.html", before)
    assert "compared with before.bin" in page.words
    data = frames(page)
    listed = [(depth, data["names"][name], *use) for depth, name, _, *use in data["frames"]]
    assert listed == [
        (0, "all", 35, 2, 1000, 27, 2, 1000),
        (1, "a", 30, 1, 500, 0, 0, 0), (2, "k", 30, 1, 0, 0, 0, 0),
        (1, "c", 0, 0, 0, 20, 1, 500), (2, "k", 0, 0, 0, 20, 1, 0),
        (1, "b", 5, 1, 500, 7, 1, 500), (2, "k", 5, 1, 0, 7, 1, 0),
    ]  # fmt: skip


def test_losses_of_both_traces_are_told(tmp_path):
    for name, lost in (("now.bin", 41), ("before.bin", 42)):
        with Capture(tmp_path / name) as c:
            c.kernel(c.launch("k"), 100, 200)
            c.loss(1, lost)
    words = viewed(tmp_path / "now.bin", tmp_path / "page.html", tmp_path / "before.bin").words
    assert "41 records that CUPTI dropped" in words
    assert "before.bin: 42 records that CUPTI dropped" in words


def test_only_the_largest_frames_are_in_the_page_with_those_around_them(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "_FRAMES", 40)
    data = frames(viewed(DATA / FILES[-1], tmp_path / "page.html"))
    assert len(data["frames"]) == 40
    with cutrace.load(DATA / FILES[-1]) as trace:
        assert data["left"] == 1 + sum(1 for _ in flame(trace).walk()) - 40
    depths = [depth for depth, *_ in data["frames"]]
    assert depths[0] == 0
    assert all(after <= before + 1 for before, after in pairwise(depths))


def test_processes_are_named_where_there_are_several(tmp_path):
    parts = [training_steps(tmp_path / f"{pid}.bin", steps=3, pid=pid) for pid in (100, 200)]
    words = viewed(join(tmp_path / "both.bin", parts), tmp_path / "page.html").words
    assert words.count("program (100)") >= 3
    one = viewed(parts[0], tmp_path / "page.html").words
    assert one.count("program (100)") == 1


def test_names_cannot_become_markup(tmp_path):
    with Capture(tmp_path / "<b>.bin") as c:
        evil = "</script><script>alert(1)</script>"
        kernel = c.launch(evil, grid=(1, 1, 1), block=(1, 1, 1))
        c.push_pop(evil, 1000, 2000)
        c.api("cudaLaunchKernel", 1000, 1010, correlation=1)
        c.kernel(kernel, 1100, 1200, stream=7, correlation=1)
        c.add("resource_names", kind=1, context=0, object=7, name=evil)
    page = viewed(c.path, tmp_path / "page.html")
    scripts = {attributes.get("id") for tag, attributes in page.tags if tag == "script"}
    assert scripts == {None, "frames", "time", "idle"}
    assert evil in frames(page)["names"]
    assert "<b>.bin" in page.words


def test_control_characters_of_names_are_replaced_in_frames(tmp_path):
    with Capture(tmp_path / "names.bin") as c:
        c.kernel(c.launch("a\u202eb\x1b[31m"), 1100, 1200)
    assert "a\ufffdb\ufffd[31m" in frames(viewed(c.path, tmp_path / "page.html"))["names"]


def test_a_capture_without_gpu_work(tmp_path):
    with Capture(tmp_path / "host.bin") as c:
        c.push_pop("step", 1000, 2000)
        c.add("allocations", time=ORIGIN + 1500, bytes=100, operation=1, memory=3)
    words = viewed(c.path, tmp_path / "page.html").words
    assert "GPU time by range" in words
    assert "100 B" in words
    assert "Kernels" not in words


def test_the_curve_of_memory_has_its_steps_where_memory_changes(tmp_path):
    with Capture(tmp_path / "memory.bin") as c:
        c.push_pop("all", 0, 1000)
        c.kernel(c.launch("k"), 0, 1000)
        c.add("allocations", time=ORIGIN + 250, bytes=400, operation=1, memory=3, address=1)
        c.add("allocations", time=ORIGIN + 500, bytes=400, operation=1, memory=3, address=2)
        c.add("allocations", time=ORIGIN + 750, bytes=400, operation=2, memory=3, address=2)
    page = viewed(c.path, tmp_path / "page.html")
    chart = json.loads(page.scripts["time"])
    assert chart["span"] == 1000
    curve = chart["lanes"][-1]
    steps = [(0, 0)]
    for edge, value in zip(curve["edges"], curve["values"], strict=False):
        if value != steps[-1][1]:
            steps.append((round(edge, -1), value))
    assert steps == [(0, 0), (250, 400), (500, 800), (750, 400)]
    assert curve["edges"][-1] == 1000
    assert (curve["most"], curve["total"]) == (800, "up to 800 B")


def test_the_verb_and_its_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    result = run(cli, ["view", str(DATA / "triton.bin")])
    assert (result.exit_code, Path("page.html").exists()) == (0, True)
    assert "cutrace: page.html: " in result.stderr
    result = run(cli, ["view", str(DATA / "triton.bin"), str(DATA / "torch_step.bin"), "-o", "two.html"])
    assert result.exit_code == 0
    assert "compared with triton.bin" in Path("two.html").read_text()
    with pytest.raises(cutrace.CutraceError, match=r"write a name that ends in \.html"):
        cutrace.view(DATA / "triton.bin", "page.txt")
    with pytest.raises(cutrace.CutraceError, match="does not exist"):
        cutrace.view(DATA / "triton.bin", "nowhere/page.html")
    with pytest.raises(cutrace.CutraceError):
        cutrace.view("missing.bin", "other.html")
    assert not Path("other.html").exists()


def test_a_flame_graph_shows_itself_in_a_notebook():
    graph = cutrace.flame(DATA / "torch_step.bin")
    with cutrace.load(DATA / "torch_step.bin") as trace:
        assert graph.root == flame(trace)
        assert cutrace.flame(trace) == graph
    assert repr(graph) == "<FlameGraph of 105 frames, 1.19 ms of GPU time>"
    inner = Page(html.unescape(re.fullmatch(r'<iframe srcdoc="([^"]*)" .*</iframe>', graph._repr_html_(), re.S)[1]))
    assert frames(inner)["names"][0] == "all"
    assert "GPU time by range" in inner.words
    full = cutrace.flame(DATA / "torch_step.bin", names="full")
    assert full.root.gpu_ns == graph.root.gpu_ns
    assert {f[-1].name for f in full.root.walk()} > {"step 0"}
    assert {f[-1].name for f in full.root.walk()} != {f[-1].name for f in graph.root.walk()}
