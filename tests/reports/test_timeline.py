"""Timelines: the work of a window, a limited number of slices, and the number of omitted ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace.analysis.definitions import COPY_KINDS
from cutrace.analysis.marks import Window
from cutrace.analysis.metrics import measure
from cutrace.analysis.windows import whole
from cutrace.reports.timeline import timeline, top_kernels

CAPTURES = sorted((Path(__file__).parents[1] / "data").glob("*.bin"))


@pytest.fixture(params=CAPTURES, ids=lambda path: path.stem)
def trace(request):
    with cutrace.load(request.param) as opened:
        yield opened


def kinds(picture) -> list[str]:
    return [picture.styles[s[2]].kind for lane in picture.lanes for s in lane.slices]


def test_all_work_of_a_window_is_in_its_picture(trace):
    window = whole(trace)
    picture, values = timeline(trace, window, limit=10**6), measure(trace, window).values
    found = kinds(picture)
    assert picture.left_out == 0
    assert found.count("kernel") == values["kernel_launches"]
    assert found.count("copy") == values["memcpy_count"]
    assert found.count("fill") == values["memset_count"]
    assert found.count("wait") == values["sync_calls"]
    assert found.count("nvtx") == len(trace.nvtx_ranges)


def test_slices_of_a_lane_ascend_and_those_of_a_row_do_not_overlap(trace):
    picture = timeline(trace, whole(trace), limit=10**6)
    for lane in picture.lanes:
        starts = [s[0] for s in lane.slices]
        assert starts == sorted(starts)
        ends: dict[int, int] = {}
        for start, length, _, depth, _ in lane.slices:
            assert start >= ends.get(depth, start)
            ends[depth] = start + length
            assert start + length <= picture.span_ns


@pytest.mark.parametrize("limit", [1, 10, 40])
def test_the_longest_slices_stay_and_the_others_are_counted(trace, limit):
    window = whole(trace)
    everything, few = timeline(trace, window, limit=10**6), timeline(trace, window, limit=limit)
    one_by_one = sum(kind != "rest" for kind in kinds(few))
    assert one_by_one + few.left_out == len(kinds(everything))
    assert len(kinds(few)) <= limit + len(few.lanes)
    for lane, whole_lane in zip(few.lanes, everything.lanes, strict=True):
        kept = [s[1] for s in lane.slices if few.styles[s[2]].kind != "rest"]
        assert sorted(kept) == sorted(s[1] for s in whole_lane.slices)[len(whole_lane.slices) - len(kept) :]


def test_a_call_and_what_it_launched_share_a_number(trace):
    picture = timeline(trace, whole(trace), limit=10**6)
    by_link: dict[int, set[str]] = {}
    for lane in picture.lanes:
        for _, _, style, _, link in lane.slices:
            by_link.setdefault(link, set()).add(picture.styles[style].kind)
    by_link.pop(0)
    assert by_link
    assert all(found & {"api", "wait"} and len(found) > 1 for found in by_link.values())


def test_the_kernels_of_a_window_add_up(trace):
    window = whole(trace)
    values, top = measure(trace, window).values, top_kernels(trace, window, 10**6)
    assert {k.name: k.count for k in top} == values["kernels"]
    assert sum(k.total_ns for k in top) == values["kernel_time_ns"]
    assert [k.total_ns for k in top] == sorted((k.total_ns for k in top), reverse=True)
    assert len(top_kernels(trace, window, 1)) == min(len(top), 1)


def test_a_region_has_a_lane_and_an_empty_window_none(trace):
    window = whole(trace)
    middle = (window.start + window.end) // 2
    named = replace(window, regions=(Window("forward", window.start, middle), Window("back", middle, window.end)))
    first = timeline(trace, named).lanes[0]
    assert (first.title, len(first.slices)) == ("regions", 2)
    nothing = timeline(trace, Window("", window.end + 10, window.end + 20))
    assert nothing.lanes == ()
    assert nothing.span_ns == 10
    assert top_kernels(trace, Window("", window.end + 10, window.end + 20)) == ()


def test_copies_of_arrays_have_the_direction_that_metrics_count(tmp_path):
    kinds = {1: "h2d", 2: "d2h", 3: "h2d", 4: "d2h", 5: "d2d", 8: "d2d", 9: "h2h", 10: "p2p", 0: "other"}
    for kind, direction in kinds.items():
        with Capture(tmp_path / "a.bin") as made:
            made.memcpy(100, 200, 64, kind=kind)
        with cutrace.load(tmp_path / "a.bin") as trace:
            window = whole(trace)
            assert measure(trace, window).values[f"memcpy_{direction}_count"] == 1
            assert [style.name for style in timeline(trace, window).styles] == [f"copy {COPY_KINDS[direction]}"]


def test_slices_without_a_free_row_are_left_out_and_counted(tmp_path):
    with Capture(tmp_path / "a.bin") as made:
        for number in range(12):
            made.push_pop(f"range {number}", 100 + number, 1000 - number)
        # After the overlapping ranges, the lanes are free again.
        made.push_pop("later", 2000, 2100)
    with cutrace.load(tmp_path / "a.bin") as trace:
        picture = timeline(trace, whole(trace))
    (lane,) = picture.lanes
    assert [s[3] for s in lane.slices] == [*range(10), 0]
    assert [picture.styles[s[2]].name for s in lane.slices] == [*(f"range {n}" for n in range(10)), "later"]
    assert picture.left_out == 2


def test_the_slices_that_are_left_out_are_one_slice_for_each_run(tmp_path):
    lengths = [5] * 20
    lengths[3] = 90
    lengths[10] = 80
    with Capture(tmp_path / "a.bin") as made:
        for number, length in enumerate(lengths):
            made.push_pop(f"range {number}", 100 * number, 100 * number + length)
    with cutrace.load(tmp_path / "a.bin") as trace:
        # Half of the limit is for slices. Ranges may use a quarter of these, which is two.
        picture = timeline(trace, whole(trace), limit=16)
    (lane,) = picture.lanes
    assert [(s[0], s[1], picture.styles[s[2]].name) for s in lane.slices] == [
        (0, 205, "3 more slices"), (300, 90, "range 3"), (400, 505, "6 more slices"), (1000, 80, "range 10"),
        (1100, 805, "9 more slices"),
    ]  # fmt: skip
    assert picture.styles[lane.slices[0][2]].detail == "left out; 15ns in all"
    assert picture.left_out == 18


def test_each_call_and_its_work_have_a_number_of_their_own(tmp_path):
    with Capture(tmp_path / "a.bin") as made:
        kernel = made.launch("k")
        for number in range(1, 4):
            made.api("cudaLaunchKernel", 100 * number, 100 * number + 10, correlation=number)
            made.kernel(kernel, 1000 * number, 1000 * number + 500, correlation=number)
        made.kernel(kernel, 8000, 8500, correlation=3)
        made.api("cudaMalloc", 900, 950)
        made.kernel(kernel, 9000, 9500)
    with cutrace.load(tmp_path / "a.bin") as trace:
        calls, work = timeline(trace, whole(trace)).lanes
    assert [s[4] for s in calls.slices] == [1, 2, 3, 0]
    assert [s[4] for s in work.slices] == [1, 2, 3, 3, 0]


def test_slices_say_what_they_are_in_full(tmp_path):
    with Capture(tmp_path / "a.bin") as made:
        made.device()
        made.context()
        made.thread(100, "main")
        made.add("resource_names", kind=1, object=8, context=1, name="copies")
        shape = {"grid": (2, 3, 4), "block": (5, 6, 7), "registers": 40}
        made.kernel(made.launch("_Z4axpyPf", static_shared=1024, dynamic_shared=1024, **shape), 100, 200)
        made.kernel(made.launch("plain", **shape), 300, 400)
        made.memcpy(500, 600, 2048, kind=1, stream=8)
        made.memset(700, 800, 512, value=7, stream=8)
        made.work("graph_launches", 900, 950, graph=3)
        made.api("cudaLaunchKernel", 10, 20, status=700)
        made.api("cudaStreamSynchronize", 30, 60)
        made.push_pop("step", 0, 90, domain="lib")
        made.mark("tick", 40)
    with cutrace.load(tmp_path / "a.bin") as trace:
        picture = timeline(trace, whole(trace))
    lanes = {(lane.group, lane.title): [picture.styles[s[2]] for s in lane.slices] for lane in picture.lanes}
    shown = {place: [(s.kind, s.name, s.detail) for s in styles] for place, styles in lanes.items()}
    size = "grid 2 x 3 x 4, block 5 x 6 x 7, 40 registers"
    assert shown == {
        ("main (thread 100)", "NVTX"): [("nvtx", "step", "domain lib"), ("mark", "tick", "")],
        ("main (thread 100)", "CUDA API"): [
            ("api", "cudaLaunchKernel", "returned error 700"), ("wait", "cudaStreamSynchronize", ""),
        ],
        ("NVIDIA H200 (0)", "stream 7"): [
            ("kernel", "axpy", f"{size}\n2 KiB shared\naxpy(float*)"), ("kernel", "plain", size),
            ("graph", "graph 3", "a whole CUDA graph"),
        ],
        ("NVIDIA H200 (0)", "copies"): [
            ("copy", "copy from host to device", "2 KiB, pageable to device"), ("fill", "fill", "512 B with 0x7"),
        ],
    }  # fmt: skip
    assert picture.span_ns == 951, "one nanosecond more than the last end"
