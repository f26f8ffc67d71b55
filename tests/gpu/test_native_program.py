"""A C++ program with known actions (tests/data/make/programs/streams.cu), recorded in each mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Record = Callable[..., Any]


@pytest.fixture
def streams(record: Record, programs: Path) -> Any:
    return record([programs / "streams"])


def test_every_kernel_copy_and_fill_is_there_and_nothing_else(streams: Any) -> None:
    report = streams.report
    assert streams.kernel_counts() == Counter({n: c for n, c in report["kernels"].items() if c})
    assert streams.copies() == report["copied"]
    fills = sorted([int(row["bytes"]), int(row["value"]) & 0xFF] for row in streams.trace.memsets)
    assert fills == sorted(report["memsets"])
    streams.assert_lossless()


def test_times_are_in_order_and_inside_the_capture(streams: Any) -> None:
    for rows in (streams.trace.kernels, streams.trace.memcpys, streams.trace.memsets, streams.trace.api_calls):
        assert (rows["start"] <= rows["end"]).all()
        assert rows["start"].min() >= streams.trace.start
        assert rows["end"].max() <= streams.trace.end
    seconds = (streams.trace.end - streams.trace.start) / 1e9
    assert 0 < seconds < 60


def test_work_on_one_stream_does_not_overlap(streams: Any) -> None:
    kernels = streams.trace.kernels
    for stream in np.unique(kernels["stream"]):
        rows = np.sort(kernels[kernels["stream"] == stream], order="start")
        assert (rows["start"][1:] >= rows["end"][:-1]).all()


def test_each_kernel_joins_to_a_call_on_the_thread_that_made_it(streams: Any) -> None:
    report = streams.report
    threads = Counter(streams.launching_calls(streams.trace.kernels)["thread"].tolist())
    told = [report["main_thread"], *report["workers"]]
    assert threads == Counter({thread["tid"]: thread["launches"] for thread in told})


def test_gpu_work_ends_after_its_call_began(streams: Any) -> None:
    for rows in (streams.trace.kernels, streams.trace.memcpys, streams.trace.memsets):
        assert (rows["end"] > streams.launching_calls(rows)["start"]).all()


def test_copies_join_to_copy_calls(streams: Any) -> None:
    names = streams.call_counts(streams.launching_calls(streams.trace.memcpys))
    copied = streams.report["copied"]
    assert names["cudaMemcpyAsync"] == copied["HtoD"][0] + copied["DtoH"][0] - 2
    assert names["cudaMemcpy2D"] == 1
    assert sum(names.values()) == len(streams.trace.memcpys)


def test_launch_configurations(streams: Any) -> None:
    launches = streams.trace.launches[streams.trace.kernels["launch"]]
    names = streams.kernel_names()

    def only(name: str) -> Any:
        found = np.unique(launches[names == name])
        assert len(found) == 1, name
        return found[0]

    block_sum = only("block_sum")
    assert (block_sum["grid_x"], block_sum["block_x"]) == (4096, 256)
    assert (block_sum["static_shared"], block_sum["dynamic_shared"]) == (32 * 4, 256 * 4)
    assert block_sum["registers"] > 0
    shapes = {tuple(row[f] for f in ("grid_x", "grid_y", "grid_z")) for row in launches[names == "templated"]}
    assert shapes == {(8, 1, 1), (2, 3, 4)}
    if streams.report["kernels"]["clustered"]:
        assert only("clustered")["cluster_x"] == 2


def test_each_worker_has_a_stream_of_its_own_with_its_name(streams: Any) -> None:
    trace = streams.trace
    threads = streams.launching_calls(trace.kernels)["thread"]
    named = {int(row["object"]): trace.strings[int(row["name"])] for row in trace.resource_names if row["kind"] == 1}
    names = set()
    for worker in streams.report["workers"]:
        (stream,) = np.unique(trace.kernels["stream"][threads == worker["tid"]])
        names.add(named[int(stream)])
    assert names == {"worker 0 stream", "worker 1 stream"}


def test_names_of_threads(streams: Any) -> None:
    trace = streams.trace
    names = {int(row["thread"]): trace.strings[int(row["name"])] for row in trace.threads if row["source"] == 2}
    assert {names[worker["tid"]] for worker in streams.report["workers"]} == {"worker 0", "worker 1"}


def test_nvtx_from_cpp(streams: Any) -> None:
    trace = streams.trace
    ranges = trace.nvtx_ranges
    assert Counter(trace.strings.take(ranges["name"])) == Counter(streams.report["nvtx"])
    marks = np.sort(trace.nvtx_marks, order="time")
    assert list(trace.strings.take(marks["name"])) == streams.report["marks"]
    steps = ranges[trace.strings.take(ranges["name"]) == "step"]
    assert set(trace.strings.take(steps["domain"])) == {"solver"}
    assert set(steps["category"]) == {7}
    assert set(steps["color"]) == {0xFF2060C0}
    assert Counter(steps["payload"].tolist()) == Counter([*range(6), *range(6)])
    categories = [(int(row["category"]), trace.strings[int(row["name"])]) for row in trace.nvtx_categories]
    assert (7, "iterations") in categories


def test_waits_and_events_are_recorded_on_request(record: Record, programs: Path, streams: Any) -> None:
    assert streams.trace.count("synchronizations") == streams.trace.count("cuda_events") == 0
    trace = record([programs / "streams"], "--kinds", "default,sync,event").trace
    # 1: event, 2: stream waits for an event, 3: stream, 4: context
    assert set(trace.synchronizations["type"]) == {1, 2, 3, 4}
    assert len(trace.cuda_events)
    assert len(trace.kernels) == len(streams.trace.kernels)


def test_facts_of_the_gpu(streams: Any) -> None:
    devices = streams.trace.devices
    assert len({device["uuid"].tobytes() for device in devices}) == len(devices) > 0
    for device in devices:
        assert streams.trace.strings[int(device["name"])]
        assert device["multiprocessors"] > 0
        assert device["warp_size"] == 32
    assert len(streams.trace.contexts) == 1


def test_kernels_only(record: Record, programs: Path) -> None:
    recorded = record([programs / "streams"], "--kinds", "kernel", "--api", "none", "--no-nvtx")
    assert sum(recorded.kernel_counts().values()) == sum(recorded.report["kernels"].values())
    trace = recorded.trace
    assert [len(trace.memcpys), len(trace.memsets), len(trace.api_calls), len(trace.nvtx_ranges)] == [0, 0, 0, 0]


def test_api_filter(record: Record, programs: Path) -> None:
    few = record([programs / "streams"], name="few.bin").call_counts()
    every = record([programs / "streams"], "--api", "all", name="all.bin").call_counts()
    assert few["cudaLaunchKernel"] == every["cudaLaunchKernel"] > 0
    assert few["cudaGetLastError"] == 0 < every["cudaGetLastError"]


def test_a_size_limit_is_kept_and_counted(record: Record, programs: Path) -> None:
    recorded = record([programs / "endings", "return"], "--max-size", "64KiB")
    assert recorded.status == 0
    assert recorded.path.stat().st_size <= 128 << 10
    whole = recorded.trace.count("kernels") == 1000
    assert whole or any(loss.reason == "size_limit" for loss in recorded.trace.quality.losses)


@pytest.mark.parametrize(
    ("way", "runs"),
    [
        ("from kernels", 30),
        ("cooperatively", 10),
        ("before the last kernel ends", 50),
        ("graphs from kernels", 20),
        ("loops in graphs", 50),
        ("on some multiprocessors", 11),
    ],
)
def test_rare_ways_to_give_work(record: Record, programs: Path, way: str, runs: int) -> None:
    """All kernels that the host launched are there. CUPTI has no records of kernels and graphs that kernels launch."""
    recorded = record([programs / "rare", way])
    assert recorded.report["runs"] == runs
    assert recorded.kernel_counts() == recorded.report["kernels"]
    recorded.assert_lossless()
