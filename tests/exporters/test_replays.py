"""Replayed work in a trace: the ranges in which its graph nodes were created."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from random import Random

import pytest

import captures
import cutrace
from captures import ORIGIN
from cutrace.exporters.perfetto import export
from pftrace import Decoded, decode

TRACK = "NVTX of graph nodes on stream 7"


def converted(run: Path) -> Decoded:
    out = run.with_suffix(".pftrace")
    cutrace.convert(run, out)
    return decode(out)


def slices(trace: Decoded, track: str = TRACK) -> list[tuple[str, int, int]]:
    return [(s.name, s.start - ORIGIN, s.end - ORIGIN) for s in trace.derived if s.track.name == track and s.end]


def test_replayed_work_says_where_it_was_created(tmp_path: Path) -> None:
    gpu = converted(captures.replays(tmp_path / "run.bin", count=1)).gpu
    assert [event.args.get("created_in") for event in gpu] == [
        "forward/layer0", "forward/layer0/attn", "forward/layer1", "(no range)", "(not recorded)",
        "forward/layer0/attn",
    ]  # fmt: skip
    assert {event.args.get("created_by") for event in gpu} == {"cudaLaunchKernel, thread 100", None}
    assert "created_by" not in gpu[4].args


@pytest.mark.parametrize("small", [False, True])
def test_ranges_of_creation_are_slices_around_consecutive_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    run = tmp_path / "run.bin"
    with captures.Capture(run) as c:
        for node, ranges in enumerate([("f", "a"), ("f", "b"), ("f", "b"), ("f", "b", "c"), ("f", "a")], 1):
            c.graph_node(node, node, *ranges)
        kernels = [c.launch("_Z1kv", graph_node=node) for node in range(1, 6)]
        for replay in (1, 2):
            c.api("cudaGraphLaunch", 1_000 * replay, 1_000 * replay + 5, correlation=replay)
            for i, kernel in enumerate(kernels):
                c.kernel(kernel, 1_000 * replay + 10 * i, 1_000 * replay + 10 * i + 8, correlation=replay)
                c.flush()
        c.kernel(kernels[0], 2_003, 2_005, correlation=2, stream=8)
    if small:
        # With windows of one block, graph launches continue in the next window.
        monkeypatch.setattr(export, "GPU_WINDOW", 1)
    trace = converted(run)
    one = [("f", 0, 48), ("a", 0, 8), ("b", 10, 38), ("c", 30, 38), ("a", 40, 48)]
    assert slices(trace) == [(name, 1_000 * r + begin, 1_000 * r + end) for r in (1, 2) for name, begin, end in one]
    assert slices(trace, "NVTX of graph nodes on stream 8") == [("f", 2_003, 2_005), ("a", 2_003, 2_005)]


def test_work_without_a_correlation_id_belongs_to_the_graph_launch_before_it(tmp_path: Path) -> None:
    run = tmp_path / "run.bin"
    with captures.Capture(run) as c:
        c.graph_node(1, 5, "f")
        kernel = c.launch("_Z1kv", graph_node=1)
        for i, correlation in enumerate((1, 0, 1, 2, 0)):
            c.kernel(kernel, 1_000 + 10 * i, 1_008 + 10 * i, correlation=correlation)
    assert slices(converted(run)) == [("f", 1_000, 1_028), ("f", 1_030, 1_048)]


def plain(work: list[tuple[int, int, int, int, tuple[str, ...]]]) -> Counter[tuple[int, str, int, int]]:
    """The slices of work (stream, correlation, start, end, path) by depth. The work is in order of time."""
    found: Counter[tuple[int, str, int, int]] = Counter()
    for stream in {w[0] for w in work}:
        mine = [w for w in work if w[0] == stream]
        for depth in range(1, 4):
            keys = [(w[1], w[4][:depth] if len(w[4]) >= depth else ()) for w in mine]
            at = 0
            for (_, path), group in groupby(keys):
                size = len(list(group))
                run, at = mine[at : at + size], at + size
                if path:
                    found[stream, path[-1], run[0][2], max(w[3] for w in run)] += 1
    return found


@pytest.mark.parametrize("seed", range(6))
def test_slices_of_random_work_are_those_of_a_plain_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    paths = [(), ("f",), ("f", "a"), ("f", "a", "x"), ("f", "b"), ("g", "a")]
    work = []
    with captures.Capture(tmp_path / "run.bin") as c:
        for node, path in enumerate(paths, 1):
            c.graph_node(node, node, *path)
        kernels = [c.launch("_Z1kv", graph_node=node) for node in range(1, len(paths) + 1)]
        correlation, node, now = dict.fromkeys((7, 8), 1), 0, 1_000
        for _ in range(300):
            stream = random.choice((7, 8))
            correlation[stream] += random.random() < 0.1
            node = random.randrange(len(paths)) if random.random() < 0.5 else node
            now += random.randint(1, 9)
            end = now + random.randint(0, 12)  # some overlap the next
            c.kernel(kernels[node], now, end, stream=stream, correlation=2 * correlation[stream] + stream % 2)
            work.append((stream, correlation[stream], now, end, paths[node]))
            if random.random() < 0.1:
                c.flush()
    if seed % 2:
        monkeypatch.setattr(export, "GPU_WINDOW", 1)
    found = converted(tmp_path / "run.bin")
    slices = [s for s in found.derived if s.track.name.startswith("NVTX of graph nodes") and s.end]
    assert plain(work) == Counter(
        (int(s.track.name[-1]), s.name, s.start - ORIGIN, s.end - ORIGIN) for s in slices if s.end
    )


def test_launch_ranges_and_ranges_of_creation_have_tracks_of_their_own(tmp_path: Path) -> None:
    trace = converted(captures.replays(tmp_path / "run.bin", count=1))
    assert slices(trace, "NVTX on stream 7") == [("step", 10_100, 10_650)]
    # If ranges have equal times, the outer range starts first. Work without a range splits ranges.
    assert slices(trace) == [
        ("forward", 10_100, 10_382), ("layer0", 10_100, 10_281), ("attn", 10_200, 10_281), ("layer1", 10_300, 10_382),
        ("forward", 10_600, 10_650), ("layer0", 10_600, 10_650), ("attn", 10_600, 10_650),
    ]  # fmt: skip


def test_a_long_graph_launch_is_cut_where_too_much_work_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run.bin"
    with captures.Capture(run) as c:
        c.graph_node(1, 5, "f")
        kernel = c.launch("_Z1kv", graph_node=1)
        for i in range(4):
            c.kernel(kernel, 1_000 + 10 * i, 1_008 + 10 * i, correlation=1)
            c.flush()
    monkeypatch.setattr(export, "GPU_WINDOW", 1)
    monkeypatch.setattr("cutrace.exporters.perfetto.derived.replays._KEPT", 1)
    assert slices(converted(run)) == [("f", 1_000, 1_018), ("f", 1_020, 1_038)]


def test_without_derived_data_only_the_arguments_remain(tmp_path: Path) -> None:
    run = captures.replays(tmp_path / "run.bin")
    cutrace.convert(run, tmp_path / "out.pftrace", derived=False)
    trace = decode(tmp_path / "out.pftrace")
    assert not trace.derived
    assert trace.gpu[0].args["created_in"] == "forward/layer0"


def test_json_says_where_replayed_work_was_created(tmp_path: Path) -> None:
    run = captures.replays(tmp_path / "run.bin", count=1)
    cutrace.convert(run, tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    assert [e["args"]["created in"] for e in work] == [
        "forward/layer0", "forward/layer0/attn", "forward/layer1", "(no range)", "(not recorded)",
        "forward/layer0/attn",
    ]  # fmt: skip
    cutrace.convert(captures.training_steps(tmp_path / "steps.bin", steps=1), tmp_path / "steps.json")
    assert "created in" not in (tmp_path / "steps.json").read_text()
