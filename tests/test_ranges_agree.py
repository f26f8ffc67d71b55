"""The GPU work of a range is the same in all outputs, and follows the rule of docs/concepts.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import cutrace
from captures import DATA, ORIGIN, Capture, join
from cutrace.analysis.context import StatsOptions
from cutrace.analysis.coverage import RangeShare, coverage
from cutrace.analysis.statistics.host import HOST_SLICES
from cutrace.analysis.statistics.nvtx import RANGE_SHARES, RANGES
from cutrace.exporters.perfetto import export
from cutrace.exporters.perfetto.host_tables import HostEvents
from cutrace.slicing import Conditions, cut
from pftrace import decode
from range_rule import Piece, Range, pieces, time_by_name, time_by_range
from support import cutrace as command


def _launches(c: Capture, *calls: tuple[int, int], seen: int = 0) -> None:
    """Launch a kernel at each time in a thread. All kernels take different times."""
    kernel = c.launch("_Z4workv")
    for number, (time, thread) in enumerate(calls, seen + 1):
        c.api("cudaLaunchKernel", time, time + 1, thread=thread, correlation=number)
        begin = 100_000 + 1_000 * number
        c.kernel(kernel, begin, begin + (1 << number % 9), correlation=number, stream=7 + number % 2)


def _killed(c: Capture) -> None:
    c.push_pop("program", 10, None)
    c.push_pop("step", 20, 50)
    c.push_pop("step", 60, None)
    _launches(c, (5, 100), (15, 100), (30, 100), (55, 100), (70, 100), (80, 200))


def _several_threads(c: Capture) -> None:
    c.push_pop("main", 10, 100)
    c.push_pop("loader", 50, 150, thread=300)
    c.push_pop("other", 200, 300, thread=400)
    _launches(c, *((time, thread) for time in (5, 20, 60, 120, 160, 250) for thread in (100, 200, 300)))


def _overlapping(c: Capture) -> None:
    c.start_end("first", 10, 60, range_id=1)
    c.start_end("second", 30, 90, range_id=2, end_thread=200)
    c.push_pop("inside", 40, 80)
    _launches(c, *((time, thread) for time in (20, 35, 50, 70, 85, 95) for thread in (100, 200)))


def _edges(c: Capture) -> None:
    c.push_pop("a", 10, 20)
    c.push_pop("b", 20, 30)
    c.push_pop("empty", 25, 25)
    c.push_pop("c", 40, 50, thread=200)
    _launches(c, *((time, thread) for time in (9, 10, 19, 20, 25, 30, 39, 40, 50) for thread in (100, 300)))


def _ties(c: Capture) -> None:
    # Inner ranges end first, so they are written first.
    c.push_pop("inner", 10, 40, depth=2)
    c.push_pop("middle", 10, 50, depth=1)
    c.push_pop("outer", 5, 60)
    c.push_pop("same", 100, 120)
    c.push_pop("same", 90, 130)
    _launches(c, (15, 100), (20, 200), (110, 100))


def _domains(c: Capture) -> None:
    """A library has ranges of a separate domain, on the threads of the program and on a thread of the library."""
    c.push_pop("step", 10, 200)
    c.push_pop("backward", 40, 150, depth=1)
    c.push_pop("all-reduce", 50, 70, thread=200, domain="library")
    c.push_pop("copy", 60, 90, thread=300, domain="library")
    c.push_pop("all-reduce", 100, 120, domain="library")
    c.push_pop("serve", 110, 180, thread=300)
    c.start_end("request", 105, 160, range_id=1, thread=400, end_thread=100, domain="server")
    times = (5, 20, 45, 50, 55, 65, 75, 95, 102, 107, 115, 130, 155, 170, 190, 210)
    _launches(c, *((time, thread) for time in times for thread in (100, 200, 300, 500)))


_MADE = {
    "killed": _killed, "several": _several_threads, "overlapping": _overlapping, "edges": _edges, "ties": _ties,
    "domains": _domains,
}  # fmt: skip
_RECORDED = ["torch_step.bin", "modules.bin", "ranks.bin", "groups.bin", "cuda_graph.bin", "processes.bin", "cut"]


@pytest.fixture(params=[*_MADE, *_RECORDED])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param in _MADE:
        with Capture(tmp_path / "made.bin") as c:
            _MADE[request.param](c)
        return tmp_path / "made.bin"
    if request.param == "cut":
        whole = (DATA / "torch_step.bin").read_bytes()
        (tmp_path / "cut.bin").write_bytes(whole[: len(whole) * 3 // 4])
        return tmp_path / "cut.bin"
    return DATA / request.param


def _stats(path: Path, by: str) -> Counter[str]:
    with cutrace.load(path) as trace:
        found = RANGES.of(trace, StatsOptions(ranges=by))
    times: Counter[str] = Counter()
    for use in found:
        times[use.name] += use.projected.gpu_ns
    return +times


def _flame(path: Path, by: str) -> Counter[str]:
    times: Counter[str] = Counter()
    for frames in cutrace.flame(path, ranges=by).root.walk():
        name = frames[-1].name
        if frames[-1].kind == "range" and name not in [frame.name for frame in frames[:-1]]:
            times[name] += frames[-1].gpu_ns
    return +times


def _folded(path: Path, by: str, folder: Path) -> Counter[str]:
    cutrace.convert(path, folder / "out.folded", ranges=by)
    times: Counter[str] = Counter()
    for line in (folder / "out.folded").read_text().splitlines():
        frames, _, time = line.rpartition(" ")
        for name in set(frames.split(";")[:-1]):
            times[name] += int(time)
    return times


def _slice(path: Path, name: str, by: str, folder: Path) -> int:
    cut(path, folder / "part.bin", Conditions(nvtx=[name], ranges=by))
    with cutrace.load(folder / "part.bin") as trace:
        return sum(piece.end - piece.start for piece in pieces(trace))


def _projected(work: list[Piece]) -> Counter[tuple[str, int, int, str | None]]:
    """Each range on each stream: its name, the time of its work, and whether the work is adopted."""
    found: dict[tuple[Range, tuple[int, ...]], list[Piece]] = {}
    for piece in work:
        for around in piece.ranges:
            found.setdefault((around, piece.stream), []).append(piece)
    slices: Counter[tuple[str, int, int, str | None]] = Counter()
    for (around, _), inside in found.items():
        kinds = {piece.thread == around.thread for piece in inside}
        adopted = {(True,): None, (False,): "all"}.get(tuple(kinds), "some")
        slices[around.name, min(p.start for p in inside), max(p.end for p in inside), adopted] += 1
    return slices


def _in_perfetto(path: Path, by: str, folder: Path) -> Counter[tuple[str, int, int, str | None]]:
    cutrace.convert(path, folder / "out.pftrace", ranges=by, capture=False)
    derived = decode(folder / "out.pftrace").derived
    slices = [s for s in derived if s.track.name.startswith("NVTX ") and "graph nodes" not in s.track.name]
    return Counter((s.name, s.start, s.end, s.args.get("adopted")) for s in slices)


@pytest.mark.parametrize("by", ["adopted", "own"])
def test_all_outputs_give_a_range_the_same_work(capture, by, tmp_path):
    with cutrace.load(capture) as trace:
        work = pieces(trace, by)
        has_origins = trace.origins is not None
    assert any(piece.ranges for piece in work)

    assert _stats(capture, by) == time_by_range(work)
    assert _in_perfetto(capture, by, tmp_path) == _projected(work)
    if has_origins:
        return  # flame graphs and slices also have the ranges of the creation of graph nodes
    by_frame = time_by_name(work, lambda r: r.frame)
    assert _flame(capture, by) == by_frame
    assert _folded(capture, by, tmp_path) == by_frame
    expected = time_by_name(work, lambda r: r.name)
    for name in list(expected)[:8]:
        assert _slice(capture, name, by, tmp_path) == expected[name], name


def test_the_shares_of_gpu_time_are_those_of_the_rule(capture):
    with cutrace.load(capture) as trace:
        found = RANGE_SHARES.of(trace)
        shares = {share.how: (share.operations, share.gpu_ns) for share in found}
        work = pieces(trace)
    for how in ("own", "adopted", "several", "none"):
        mine = [piece.end - piece.start for piece in work if piece.how == how]
        assert shares[how] == (len(mine), sum(mine))


def test_every_output_that_sums_by_range_says_how_much_of_the_gpu_time_has_one(tmp_path):
    capture = DATA / "torch_step.bin"
    with cutrace.load(capture) as trace:
        work = pieces(trace)
    time = Counter()
    for piece in work:
        time[piece.how] += piece.end - piece.start
    own, adopted, none = (round(100 * time[how] / time.total(), 1) for how in ("own", "adopted", "none"))
    expected = (
        f"GPU time by range: {own} % in ranges of the launching thread, {adopted} % adopted from threads without "
        f"a range, 0 % with several candidates, {none} % in no range"
    )
    assert min(own, adopted, none) > 10

    for name in ("a.pftrace", "a.folded", "a.speedscope.json", "a.pb.gz"):
        assert _says("convert", capture, "-o", tmp_path / name, expected) == [True], name
    assert decode(tmp_path / "a.pftrace").attributes["cutrace.ranges"] == expected
    assert _says(
        "slice", capture, "--nvtx", "backward", "-o", tmp_path / "a.bin", f"in the whole trace, {expected}"
    ) == [True]
    assert cutrace.flame(capture).coverage == expected
    assert expected in cutrace.flame(capture)._repr_html_()
    cutrace.view(capture, tmp_path / "a.html")
    assert f"<p class=note>{expected}</p>" in (tmp_path / "a.html").read_text()


def _says(*arguments):
    *arguments, sentence = arguments
    done = command(*arguments)
    assert done.returncode == 0
    return [line == f"cutrace: {sentence}" for line in done.stderr.splitlines() if "GPU time" in line]


def test_ranges_are_projected_if_their_work_is_in_blocks_of_any_order(tmp_path, monkeypatch):
    """If too many blocks are open at a time, their work is not in the order of time."""
    monkeypatch.setattr(export, "GPU_WINDOW", 1)
    monkeypatch.setattr(export, "GPU_KEPT", 1)
    with Capture(tmp_path / "a.bin") as c:
        kernel = c.launch("_Z4workv")
        for number in range(1, 5):
            now = 1_000 * number
            c.push_pop("step", now, now + 500)
            c.api("cudaLaunchKernel", now + 10, now + 20, correlation=number)
            c.kernel(kernel, now + 100, now + 200, correlation=number)
            c.flush()
    with cutrace.load(tmp_path / "a.bin") as trace:
        work = pieces(trace)
    assert _in_perfetto(tmp_path / "a.bin", "adopted", tmp_path) == _projected(work)


@pytest.mark.parametrize("by", ["adopted", "own"])
def test_traces_and_statistics_say_the_same_about_ranges(capture, by, tmp_path):
    with cutrace.load(capture) as trace:
        shares = RANGE_SHARES.of(trace, StatsOptions(ranges=by))
    cutrace.convert(capture, tmp_path / "a.pftrace", ranges=by, capture=False)
    assert decode(tmp_path / "a.pftrace").attributes["cutrace.ranges"] == coverage(shares)


def test_shares_include_the_annotations_of_processes_without_nvtx(tmp_path):
    parts = [tmp_path / "0.bin", tmp_path / "1.bin"]
    with Capture(parts[0]) as c:
        c.push_pop("step", 10, 20)
        _launches(c, (15, 100), (30, 100))
    with Capture(parts[1], pid=200) as c:
        c.add("host_slices", start=ORIGIN + 10, end=ORIGIN + 20, name="step", kind=2, thread=100)
        _launches(c, (15, 100))
    whole = join(tmp_path / "a.bin", parts)
    with cutrace.load(whole) as trace:
        shares = coverage(RANGE_SHARES.of(trace))
    cutrace.convert(whole, tmp_path / "a.pftrace", capture=False)
    assert decode(tmp_path / "a.pftrace").attributes["cutrace.ranges"] == shares


def test_nothing_is_said_without_ranges_or_for_frames_of_python(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        _launches(c, (15, 100))
    for name in ("a.pftrace", "a.folded"):
        assert _says("convert", tmp_path / "a.bin", "-o", tmp_path / name, "") == []
    assert "cutrace.ranges" not in decode(tmp_path / "a.pftrace").attributes
    assert cutrace.flame(tmp_path / "a.bin").coverage is None
    assert _says("convert", tmp_path / "a.bin", "-o", tmp_path / "b.pftrace", "--no-derived", "") == []


def test_small_shares_are_not_said_to_be_none():
    shares = [RangeShare("own", 1, 1_000_000), RangeShare("adopted", 1, 1)]
    assert coverage(shares) == (
        "GPU time by range: over 99.9 % in ranges of the launching thread, under 0.1 % adopted from threads without a "
        "range, 0 % with several candidates, 0 % in no range"
    )
    assert coverage([]) is None


def test_the_backward_pass_belongs_to_its_range():
    assert _stats(DATA / "torch_step.bin", "adopted")["backward"] == 226_978
    assert _stats(DATA / "torch_step.bin", "own")["backward"] < 3_000


def test_ranges_of_a_library_hide_no_work_from_those_of_the_program():
    """A thread of autograd launches the all-reduces of DDP inside NCCL's range, while the main thread is in a step's
    range."""
    around_all_reduces = {path[:-1] for path in _paths(DATA / "groups.bin") if path[-1] == "NCCL:ncclAllReduce"}
    assert around_all_reduces == {("ddp 4",), ("ddp 5",)}
    with cutrace.load(DATA / "groups.bin") as trace:
        hidden = [piece for piece in pieces(trace) if {around.thread for around in piece.ranges} > {piece.thread}]
    # Three buckets of gradients for each step and rank.
    assert len(hidden) == 3 * 2 * 2
    assert {piece.how for piece in hidden} == {"own"}


def test_ranges_with_the_same_work_are_nested_as_on_their_thread(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("inner", 10, 40, depth=2)
        c.push_pop("middle", 10, 50, depth=1)
        c.push_pop("outer", 5, 60)
        _launches(c, (15, 100))
    cutrace.convert(tmp_path / "a.bin", tmp_path / "a.pftrace", capture=False)
    slices = [s for s in decode(tmp_path / "a.pftrace").derived if s.track.name.startswith("NVTX")]
    # A slice that starts first encloses the others, so the order of the file is the order of nesting.
    assert [s.name for s in slices] == ["outer", "middle", "inner"]


def test_adopted_slices_share_the_style_of_their_name(tmp_path, monkeypatch):
    """On a stream, a range has its own work, adopted work, or both. Only the name is written once for all of these."""
    described = []
    style = HostEvents._style

    def noted(events, row, sets):
        if events.table.name == "projected":
            described.append(row["name"])
        return style(events, row, sets)

    monkeypatch.setattr(HostEvents, "_style", noted)
    with Capture(tmp_path / "a.bin") as c:
        kernel = c.launch("k")
        for number, threads in enumerate([(100,), (101,), (100, 101)]):
            now = 1_000 * (number + 1)
            c.push_pop("step", now, now + 500, thread=100)
            for i, thread in enumerate(threads):
                called = now + 10 + 20 * i
                correlation = 10 * number + i + 1
                c.api("cudaLaunchKernel", called, called + 5, thread=thread, correlation=correlation)
                c.kernel(kernel, called + 6, called + 15, stream=7, correlation=correlation)
    slices = _in_perfetto(tmp_path / "a.bin", "adopted", tmp_path)
    assert [adopted for _, _, _, adopted in sorted(slices, key=lambda s: s[1])] == [None, "all", "some"]
    assert len(described) == 1


def _paths(path: Path) -> dict[tuple[str, ...], int]:
    """The GPU time of the paths of a flame graph down to work."""
    return {
        tuple(frame.name for frame in frames[:-1]): frames[-1].gpu_ns
        for frames in cutrace.flame(path).root.walk()
        if frames[-1].kind != "range"
    }


def test_in_a_flame_graph_ranges_that_adopt_are_around_those_of_the_launching_thread(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("step", 10, 100)
        c.push_pop("copy", 20, 90, domain="library")
        c.push_pop("backward", 30, 80)
        c.push_pop("all-reduce", 40, 70, thread=200, domain="library")
        _launches(c, (50, 200), (75, 200), (60, 300), (65, 100))
    assert _paths(tmp_path / "a.bin") == {
        ("step", "backward", "library:all-reduce"): 2,
        # Two threads have a range of the library open at time 60, and one at time 75.
        ("step", "library:copy", "backward"): 4 + 16,
        ("step", "backward"): 8,
    }


def test_a_range_in_one_domain_counts_before_several_in_another(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("first", 10, 100)
        c.push_pop("second", 10, 100, thread=200)
        c.push_pop("all-reduce", 40, 60, thread=300, domain="library")
        _launches(c, (50, 300), (50, 400), (70, 300))
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert {share.how: share.gpu_ns for share in RANGE_SHARES.of(trace)} == {
            "own": 2, "adopted": 4, "several": 8, "none": 0,
        }  # fmt: skip


def test_annotations_of_other_tools_adopt_work_too(tmp_path):
    """In a trace of torch.profiler, the operators of the backward pass are in no annotation of their thread."""
    source = DATA / "kineto-torch2.11-h200-transformer.json.gz"
    with cutrace.load(source) as trace:
        shares = {share.how: share.gpu_ns for share in RANGE_SHARES.of(trace)}
        annotations = [use for use in HOST_SLICES.of(trace) if use.kind == "annotation"]
    assert shares["adopted"] > 0
    flame = cutrace.flame(source).root
    for use in annotations:
        own = [f[-1] for f in flame.walk() if f[-1].name == use.name and use.name not in [g.name for g in f[:-1]]]
        assert sum(frame.gpu_ns for frame in own) == use.projected.gpu_ns
        assert _annotation_slice(source, use.name, tmp_path) == use.projected.gpu_ns


def _annotation_slice(source: Path, name: str, folder: Path) -> int:
    cut(source, folder / "part.bin", Conditions(nvtx=[name]))
    with cutrace.load(folder / "part.bin") as part:
        return sum(piece.end - piece.start for piece in pieces(part))
