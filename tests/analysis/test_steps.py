"""Steps: each nanosecond of their wall clock, compared with a plain loop over the rows of captures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutrace
from captures import DATA, ORIGIN, Capture, join, named, training_steps
from cutrace.analysis import sweep
from cutrace.analysis.calls import synchronizes
from cutrace.analysis.context import DEFAULTS
from cutrace.analysis.gpu import communicates
from cutrace.analysis.statistics import steps as steps_module
from cutrace.analysis.statistics.steps import PARTS, STEPS, Step
from cutrace.errors import CutraceError
from cutrace.patterns import matcher
from cutrace.trace import Trace
from cutrace.trace.intervals import GrowingIntervals
from random_captures import random_capture
from support.plain_stats import Work, work


def steps(trace: Trace, name: str) -> list[Step]:
    return sorted(STEPS.of(trace, replace(DEFAULTS, name=name)), key=_key)


def _key(step: Step) -> tuple:
    return step.process, -1 if step.device is None else step.device, step.start, step.end, step.name


def plain_steps(trace: Trace, name: str) -> list[Step]:
    """The steps of a trace, computed moment by moment between two changes."""
    everything = work(trace)
    names = [trace.strings[int(row)] for row in trace.functions["name"]]
    waits = [
        (int(row["process"]), int(row["start"]), int(row["end"]))
        for row in trace.api_calls
        if synchronizes(names[row["function"]])
    ]
    found = []
    annotations = trace.host_slices[(trace.host_slices["kind"] == 2) & (trace.host_slices["track"] == 0)]
    whole = trace.nvtx_ranges[(trace.nvtx_ranges["flags"] & 6) == 0]
    for row in [*whole, *annotations]:
        text, process, began, ended = (int(row[field]) for field in ("name", "process", "start", "end"))
        if not matcher(name)(trace.strings[text]):
            continue
        of_process = [w for w in everything if w.process == process]
        syncs = [(start, end) for of, start, end in waits if of == process]
        missing = trace.unrecorded(process)
        for device in sorted({w.device for w in of_process}) or [None]:
            mine = [w for w in of_process if w.device == device]
            parts = plain_parts(began, ended, mine, syncs, missing)
            ends = [w.end for w in mine if (min(w.call.start, w.start) if w.call else w.start) < ended]
            behind = max(0, max(ends, default=0) - ended)
            found.append(Step(process, device, trace.strings[text], began, ended, parts, behind, None))
    return sorted(found, key=_key)


def plain_parts(
    start: int, end: int, mine: list[Work], syncs: list[tuple[int, int]], missing: list[tuple[int, int]]
) -> tuple[int, ...]:
    pending = [(w.call.start, launched(w)) for w in mine if w.call]
    spans = [*((w.start, w.end) for w in mine), *pending, *syncs, *missing, (start, end)]
    changes = sorted({min(max(time, start), end) for span in spans for time in span})
    parts = dict.fromkeys(PARTS, 0)
    for now, then in pairwise(changes):
        parts[part_of(now, mine, pending, syncs, missing)] += then - now
    return tuple(parts.values())


def launched(w: Work) -> int:
    """The end of the call that launched the work."""
    return w.start if synchronizes(w.call.function) else max(w.start, w.call.end)


def part_of(now: int, mine: list[Work], pending: list, syncs: list, missing: list) -> str:
    """The part of the step at the moment ``now``: the first part that applies."""
    running = [w for w in mine if w.start <= now < w.end]
    if any(w.table == "graph_launches" or (w.table == "kernels" and not communicates(w.name)) for w in running):
        return "compute"
    if any(w.table == "kernels" for w in running):
        return "communication"
    if running:
        return "copies"
    if any(called <= now < over for called, over in pending):
        return "launch"
    if any(first <= now < last for first, last in syncs):
        return "synchronisation"
    later = [w for w in mine if w.start > now]
    following = min((w.start for w in later), default=None)
    unknown = any(w.call is None for w in later if w.start == following)
    if (unknown and any(w.start <= now for w in mine)) or any(first <= now < last for first, last in missing):
        return "other"
    return "host"


@pytest.mark.parametrize(
    ("capture", "name"),
    [
        ("torch_step.bin", "step *"),
        ("torch_step.bin", "*"),  # nested: the phases inside the steps
        ("ranks.bin", "*"),
        ("groups.bin", "*"),
        ("sampled.bin", "*"),
        ("profiled.bin", "step [12]"),
        ("processes.bin", "/product [0-2]/"),
        ("cpp_streams.bin", "*"),
        ("cuda_graph.bin", "replay"),
        ("cuda_graph_whole.bin", "*"),
        ("jax.bin", "/dot_general/"),
        ("many_streams.bin", "stream 3"),
        ("training_steps", "*"),
        ("awkward", "*"),
    ],
)
def test_steps_of_captures_are_those_of_a_plain_loop(capture, name, tmp_path):
    with cutrace.load(named(capture, tmp_path)) as trace:
        found = steps(trace, name)
        assert found == plain_steps(trace, name)
        assert found
        assert all(sum(step.parts) == step.wall for step in found)


def test_all_parts_are_found_in_real_captures():
    seen = set()
    for capture in ("ranks.bin", "torch_step.bin"):
        with cutrace.load(DATA / capture) as trace:
            for step in steps(trace, "step *"):
                seen |= {part for part, time in zip(PARTS, step.parts, strict=True) if time}
    assert seen == set(PARTS) - {"other"}


_TIMES = st.integers(0, 60)
_SPANS = st.tuples(_TIMES, st.integers(0, 25))
_FUNCTIONS = ("cudaLaunchKernel", "cudaMemcpy", "cudaDeviceSynchronize", "cudaMalloc", "cudaGraphLaunch")


@given(
    calls=st.lists(st.tuples(_SPANS, st.sampled_from(_FUNCTIONS), st.integers(0, 8)), max_size=9),
    gpu=st.lists(st.tuples(_SPANS, st.integers(0, 4), st.integers(0, 1), st.integers(0, 8)), max_size=9),
    ranges=st.lists(st.tuples(_SPANS, st.integers(100, 101)), min_size=1, max_size=4),
    blocks=st.booleans(),
)
def test_steps_of_random_rows_are_those_of_a_plain_loop(tmp_path_factory, calls, gpu, ranges, blocks):
    path = tmp_path_factory.mktemp("steps") / "a.bin"
    with Capture(path) as c:
        kernels = [c.launch("_Z4axpyPf"), c.launch("ncclDevKernel_AllReduce")]
        for (start, length), function, correlation in calls:
            c.api(function, start, start + length, correlation=correlation)
        for (start, length), kind, device, correlation in gpu:
            where = {"device": device, "context": 1 + device, "correlation": correlation}
            span = start, start + length
            if kind < 2:
                c.kernel(kernels[kind], *span, **where)
            elif kind == 2:
                c.memcpy(*span, 64, **where)
            elif kind == 3:
                c.memset(*span, 64, **where)
            else:
                c.work("graph_launches", *span, graph=9, **where)
            if blocks:
                c.flush()
        for (start, length), thread in ranges:
            c.push_pop("step", start, start + length, thread=thread)
    with cutrace.load(path) as trace:
        assert steps(trace, "step") == plain_steps(trace, "step")


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_steps_of_captures_with_illegal_rows_are_those_of_a_plain_loop(tmp_path_factory, seed):
    path = random_capture(
        tmp_path_factory.mktemp("steps") / "a.bin", Random(seed), texts=("step", "ncclKernel", "cudaMemcpy", "")
    )
    with cutrace.load(path) as trace:
        found = [replace(step, joules=None) for step in steps(trace, "s*")]  # samples may surround an empty step
        assert found == plain_steps(trace, "s*")


def blocks_of_steps(path: Path, count: int) -> Path:
    """Steps in separate blocks. Work of each step is still running in the next one. A second GPU has work only in the
    last steps."""
    with Capture(path) as c:
        kernel, communication = c.launch("_Z4axpyPf"), c.launch("ncclDevKernel_AllReduce")
        for number in range(count):
            now = 20_000_000 * number
            c.push_pop(f"step {number}", now, now + 1_000_000)
            for launch in range(6):
                at, correlation = now + 100_000 * launch, 6 * number + launch + 1
                c.api("cudaLaunchKernel", at, at + 10_000, correlation=correlation)
                device = int(launch == 5 and number > count - 3)
                kind = communication if launch == 4 else kernel
                c.kernel(kind, at + 50_000, at + 90_000 + 300_000 * (launch == 3), correlation=correlation,
                         device=device, context=1 + device)  # fmt: skip
            c.kernel(kernel, now + 1_500_000, now + 20_300_000, correlation=6 * number + 6)
            c.api("cudaStreamSynchronize", now + 800_000, now + 900_000)
            c.flush()
    return path


def test_steps_are_split_while_the_trace_is_read(tmp_path, monkeypatch):
    with cutrace.load(blocks_of_steps(tmp_path / "a.bin", 40)) as trace:
        expected = plain_steps(trace, "step *")
        assert steps(trace, "step *") == expected
        assert {step.device for step in expected} == {0, 1}
        assert all(step.behind for step in expected if step.device == 0)
        monkeypatch.setattr(sweep, "_BATCH_ROWS", 9)
        monkeypatch.setattr(steps_module._StepCollector, "WAITED", 20)
        waiting = []
        split = steps_module._StepCollector._split_steps

        def noted(collector, chosen):
            waiting.append(len(chosen))
            split(collector, chosen)

        monkeypatch.setattr(steps_module._StepCollector, "_split_steps", noted)
        assert steps(trace, "step *") == expected
        assert len(waiting) > 20
        assert max(waiting) < 10


def test_intervals_are_united_as_they_grow(monkeypatch):
    monkeypatch.setattr(GrowingIntervals, "LOOSE", 10)
    random = Random(1)
    moments: set[int] = set()
    found = GrowingIntervals()
    for _ in range(200):
        start = np.array([random.randrange(1_000) for _ in range(3)])
        end = start + random.randrange(-2, 8)
        found.add(start, end)
        for first, last in zip(start.tolist(), end.tolist(), strict=True):
            moments |= set(range(first, last))
    united = found.united()
    assert sum((united.end - united.start).tolist()) == len(moments)
    assert (united.start[1:] > united.end[:-1]).all()
    starts = np.array([random.randrange(1_000) for _ in range(50)])
    ends = starts + 77
    within = [len(moments & set(range(start, start + 77))) for start in starts.tolist()]
    assert united.within(starts, ends).tolist() == within
    found.forget(500)
    assert found.united().end.min() > 500
    assert found.united().within(np.array([500]), np.array([2_000])).tolist() == [len(moments - set(range(500)))]


# Other rules


def report(path: Path, of: str, name: str) -> list[dict]:
    found = cutrace.stats(path, of, name=name)
    return [dict(zip((c.name for c in found.columns), row, strict=True)) for row in found.rows]


def test_the_report_has_the_parts_of_all_steps_by_process_and_gpu(tmp_path):
    path = blocks_of_steps(tmp_path / "a.bin", 7)
    with cutrace.load(path) as trace:
        expected = plain_steps(trace, "step *")
    rows = report(path, "step_sum", name="step *")
    assert [row["GPU"] for row in rows] == ["0"] * 9 + ["1"] * 9
    for device in (0, 1):
        mine = [step for step in expected if step.device == device]
        by_part = {row["part"]: row for row in rows if row["GPU"] == str(device)}
        wall = sum(step.wall for step in mine)
        columns = {part: [step.parts[number] for step in mine] for number, part in enumerate(PARTS)}
        columns |= {"wall clock": [step.wall for step in mine], "GPU behind": [step.behind for step in mine]}
        assert list(by_part) == list(columns)
        for part, times in columns.items():
            row = by_part[part]
            assert (row["steps"], row["total"]) == (7, sum(times))
            assert row["share"] == (None if part == "GPU behind" else sum(times) / wall)
            assert row["mean"] == pytest.approx(sum(times) / 7)
            # The median is the fourth of seven values. The last percentile is 6 % of the way from the largest to the
            # second largest value.
            ordered = sorted(times)
            assert row["p50"] == ordered[3]
            assert row["p99"] == pytest.approx(ordered[6] - 0.06 * (ordered[6] - ordered[5]))
        assert sum(by_part[part]["total"] for part in PARTS) == by_part["wall clock"]["total"]


def test_steps_one_by_one_are_in_the_order_of_time(tmp_path):
    path = blocks_of_steps(tmp_path / "a.bin", 7)
    rows = report(path, "step_trace", name="step *")
    assert [(row["step"], row["GPU"]) for row in rows] == [(f"step {n}", gpu) for n in range(7) for gpu in "01"]
    assert all(sum(row[part] for part in PARTS) == row["wall clock"] == 1_000_000 for row in rows)


def test_a_region_between_marks_is_a_step(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.mark("cutrace begin region: train 1", 100, source=1)
        c.mark("cutrace end region: train 1", 900, source=1)
        c.mark("cutrace begin region: train 2", 950, source=1)  # never ends
        c.kernel(c.launch("_Z4axpyPf"), 200, 500)
    (step,) = report(tmp_path / "a.bin", "step_trace", name="train *")
    assert (step["step"], step["wall clock"], step["compute"], step["host"]) == ("train 1", 800, 300, 500)


def test_a_process_without_gpu_work_waits_for_its_host(tmp_path):
    with Capture(tmp_path / "b.bin", pid=7) as c:
        c.push_pop("step", 0, 100)
        c.api("cudaDeviceSynchronize", 20, 50)
    blocks_of_steps(tmp_path / "c.bin", 1)
    path = join(tmp_path / "a.bin", [tmp_path / "b.bin", tmp_path / "c.bin"])
    rows = report(path, "step_trace", name="step")
    assert [(row["GPU"], row["host"], row["synchronisation"], row["joules"]) for row in rows] == [("", 70, 30, None)]


def test_time_outside_of_a_capture_range_is_other(tmp_path):
    windows = [[ORIGIN, ORIGIN + 300, ORIGIN + 300], [ORIGIN + 700, ORIGIN + 1_000, ORIGIN + 1_000]]
    with Capture(tmp_path / "a.bin", options={"capture_range": "profiler"}, windows=windows) as c:
        c.push_pop("step", 100, 900)
        kernel = c.launch("_Z4axpyPf")
        c.kernel(kernel, 150, 310, correlation=1)
        c.api("cudaLaunchKernel", 120, 130, correlation=1)
        c.kernel(kernel, 750, 800, correlation=2)
        c.api("cudaLaunchKernel", 690, 730, correlation=2)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert trace.unrecorded(0) == [(ORIGIN + 300, ORIGIN + 700)]
        assert steps(trace, "step") == plain_steps(trace, "step")
    (row,) = report(tmp_path / "a.bin", "step_trace", name="step")
    assert [row[part] for part in PARTS] == [210, 0, 0, 30 + 60, 0, 380, 120]


# Unanswerable questions


def refused(path: Path, name: str, of: str = "step_sum") -> str:
    with pytest.raises(CutraceError) as error:
        cutrace.stats(path, of, name=name)
    return str(error.value)


def test_a_step_may_be_among_lost_records(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("other", 10, 20)
        c.loss(1, 7)
    lost = "The trace lacks records: 7 records that CUPTI dropped because it had no buffer"
    assert refused(tmp_path / "a.bin", "step") == f"no range is named step: there are other. {lost}"


def test_a_name_that_no_range_has_is_an_error_that_lists_the_ranges(tmp_path):
    path = training_steps(tmp_path / "a.bin", steps=3)
    names = [*(f"layer {n}" for n in range(8)), "step 0", "step 1", "step 2"]
    assert refused(path, "iteration") == (f"no range is named iteration: there are {', '.join(names[:8])} and 3 more")
    assert refused(path, "step0") == "no range is named step0: did you mean step 0 or step 2 or step 1?"
    with Capture(tmp_path / "b.bin") as c:
        c.kernel(c.launch("_Z4axpyPf"), 200, 500)
    assert "because the trace has no ranges: put an NVTX range around each step" in refused(tmp_path / "b.bin", "*")


def test_steps_that_never_ended_or_are_there_in_part_are_no_steps(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("step 0", 0, 100)
        c.push_pop("step 1", 200, None)
        c.push_pop("step 2", 300, 400, flags=2)  # started before the first file of a rotated recording
        c.push_pop("step 3", 500, 600, flags=4)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert [step.name for step in steps(trace, "step *")] == ["step 0"]
    assert refused(tmp_path / "a.bin", "step 1").startswith("no range named step 1 ended")


@pytest.mark.parametrize("of", ["step_sum", "step_trace", "step_energy_sum"])
def test_a_report_of_steps_needs_their_name(of, tmp_path):
    path = training_steps(tmp_path / "a.bin", steps=3)
    assert refused(path, "", of).startswith(f"{of} needs `name=`, ")
    assert "gpu_sum does not use `name=`" in refused(path, "step *", "gpu_sum")


# Energy


def with_power(path: Path, samples: list[tuple[int, int]], *, device: int = 0) -> Path:
    """Two processes, each with a step of 100 ns at 1,000 and at 3,000. They share a GPU, which the second process calls
    ``device``. The first process has samples of its power (mW)."""
    parts = [path.with_suffix(f".{i}") for i in range(2)]
    for number, part in enumerate(parts):
        with Capture(part, pid=100 + number) as c:
            own = device if number else 0
            c.device(own)
            start = 1_000 + 2_000 * number
            c.push_pop("step", start, start + 100)
            c.kernel(c.launch("_Z4axpyPf"), start, start + 50, device=own)
            for time, power in samples if number == 0 else ():
                c.add("environment", time=ORIGIN + time, kind=3, values=power | 700_000 << 32, device=0)
                c.add("environment", time=ORIGIN + time, kind=2, values=50, device=0)
    return join(path, parts)


def plain_joules(samples: list[tuple[int, int]], start: int, end: int) -> float:
    """The energy (J) from the power in the middle of each nanosecond, interpolated between the samples around it."""
    joules = 0.0
    for now in range(start, end):
        before = max(sample for sample in samples if sample[0] <= now)
        after = min(sample for sample in samples if sample[0] > now)
        passed = (now + 0.5 - before[0]) / (after[0] - before[0])
        joules += (before[1] + passed * (after[1] - before[1])) * 1e-12
    return joules


def test_energy_is_that_of_the_samples_of_the_gpu_from_any_process(tmp_path):
    samples = [(time, 100_000 + 997 * time % 300_000) for time in range(0, 5_000, 70)]
    path = with_power(tmp_path / "a.bin", samples, device=3)
    rows = report(path, "step_trace", name="step")
    expected = [plain_joules(samples, 1_000, 1_100), plain_joules(samples, 3_000, 3_100)]
    assert [row["joules"] for row in rows] == pytest.approx(expected)
    sums = report(path, "step_energy_sum", name="step")
    assert [row["joules"] for row in sums] == pytest.approx(expected)
    assert [row["watts"] for row in sums] == pytest.approx([joules / 100e-9 for joules in expected])
    assert [(row["steps"], row["known"]) for row in sums] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("times", "known"),
    [
        (range(0, 5_000, 70), [True, True]),
        ([*range(0, 1_030, 70), *range(1_400, 5_000, 70)], [False, True]),  # a gap of 420 ns inside the first step
        ([*range(0, 1_030, 70), *range(1_120, 5_000, 70)], [True, True]),  # one sample is missing
        (range(0, 3_050, 70), [True, False]),  # the samples end in the second step
        (range(1_010, 5_000, 70), [False, True]),
        ([2_000], [False, False]),
        ([], [False, False]),
    ],
)
def test_energy_is_unknown_where_samples_do_not_cover_a_step(tmp_path, times, known):
    path = with_power(tmp_path / "a.bin", [(time, 200_000) for time in times])
    rows = report(path, "step_trace", name="step")
    assert [row["joules"] is not None for row in rows] == known
    for row in rows:
        assert row["joules"] in (None, pytest.approx(200 * 100e-9))
    sums = report(path, "step_energy_sum", name="step")
    assert [row["known"] for row in sums] == [int(one) for one in known]
    for row in sums:
        empty = {row[column] is None for column in ("joules", "mean", "p50", "p99", "watts")}
        assert empty == {not row["known"]}
