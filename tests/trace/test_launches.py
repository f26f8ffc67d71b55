"""The join of API calls and GPU work."""

from __future__ import annotations

import numpy as np
import pytest

import cutrace
from captures import DATA, Capture
from cutrace.trace.launches import CLOCK_ERROR, CallBlocks, Launches, LaunchTimes, OwnedCalls


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.bin")))
def test_both_ways_find_the_same_calls(name):
    """The join of the whole trace, and the join block by block in bounded memory."""
    with cutrace.load(DATA / name) as trace:
        whole = Launches(trace).outermost()
        assert (np.diff(whole.starts) >= 0).all()
        for process in trace.processes:
            work = trace.kernels[trace.kernels["process"] == process.index]
            infos = trace.infos_by_process(("api_calls",))[process.index]
            newest = CallBlocks(trace.block, infos.get("api_calls", ()), 20)
            newest.read_until(1 << 62)
            found = newest.find(work["correlation"])
            call = whole.of(work)
            assert (found.known == (call >= 0)).all()
            known = call[found.known]
            assert (found.start[found.known] == whole.starts[known]).all()
            assert (found.thread[found.known] == whole.calls["thread"][known]).all()


def test_calls_are_read_in_step_with_work(tmp_path):
    with Capture(tmp_path / "run.bin") as c:
        for number in (1, 2, 3):
            start = CLOCK_ERROR * number
            c.api("cudaLaunchKernel", start, start + 5, correlation=number)
            c.flush()
    with cutrace.load(tmp_path / "run.bin") as trace:
        newest = CallBlocks(trace.block, trace.block_infos("api_calls"), 4)
        ids = np.array([1, 2, 3, 0], np.uint32)
        newest.read_until(trace.start)
        assert newest.find(ids).known.tolist() == [True, False, False, False]
        newest.read_until(trace.start + 2 * CLOCK_ERROR)
        assert newest.find(ids).known.tolist() == [True, True, True, False]


def test_calls_with_one_id_are_where_the_outermost_is(tmp_path):
    with Capture(tmp_path / "run.bin") as c:
        c.api("cudaLaunchKernel", 10, 50, correlation=1)
        c.api("cuLaunchKernel", 20, 40, correlation=1)
        c.api("cuLaunchKernel", 60, 70, correlation=2)
    with cutrace.load(tmp_path / "run.bin") as trace:
        edge = int(trace.api_calls["start"].min()) + 5

        def early(calls: OwnedCalls) -> np.ndarray:
            return calls.rows["start"] < edge

        def late(calls: OwnedCalls) -> np.ndarray:
            return calls.rows["start"] >= edge

        assert [ids.has(0, np.array([1, 2, 0])).tolist() for ids in Launches(trace).divided(early, None)] == [
            [True, False, False],
            [True, True, False],
        ]
        assert Launches(trace).divided(late, None)[0].has(0, np.array([1, 2])).tolist() == [False, True]


def test_an_interval_has_its_start_and_not_its_end():
    times = LaunchTimes([(np.array([10, 20], np.uint64), np.array([1, 2], np.uint32))])
    starts = np.array([0, 10, 10, 15, 20])
    ends = np.array([10, 11, 10, 30, 21])
    inside = {thread: times.inside(starts, ends, np.full(5, thread)).tolist() for thread in (1, 2, 3, 0)}
    assert inside == {
        1: [False, True, False, False, False],
        2: [False, False, False, True, True],
        3: [False] * 5,
        0: [False, True, False, True, True],
    }
    assert times.inside(starts, ends, None).tolist() == inside[0]
