"""What follows from records in a Perfetto trace, counted once more in plain Python on real captures."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import cutrace
from cutrace.trace import Trace
from pftrace import Decoded, decode

DATA = Path(__file__).parents[1] / "data"
CAPTURES = [path.stem for path in sorted(DATA.glob("*.bin"))]
WORK = ("kernels", "memcpys", "memsets", "graph_launches")
SYNCHRONIZE_STREAM, SYNCHRONIZE_CONTEXT = 3, 4


@cache
def opened(name: str) -> Trace:
    return cutrace.load(DATA / f"{name}.bin")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def convert(name: str) -> Decoded:
        path = tmp_path_factory.mktemp("traces") / f"{name}.pftrace"
        cutrace.convert(DATA / f"{name}.bin", path)
        return decode(path)

    return convert


def work(trace: Trace) -> list[tuple[int, int, int, int, int, int, int]]:
    """(process, start, end, correlation, device, context, stream) of all work."""
    fields = ["process", "start", "end", "correlation", "device", "context", "stream"]
    return [tuple(row) for table in WORK for row in trace.table(table)[fields].tolist()]  # type: ignore[misc]


def launches(trace: Trace) -> dict[tuple[int, int], tuple[int, int]]:
    """By process and correlation, when the outermost call began and its thread."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for process, correlation, start, thread in trace.api_calls[["process", "correlation", "start", "thread"]].tolist():
        if (process, correlation) not in found or start < found[process, correlation][0]:
            found[process, correlation] = start, thread
    return found


@pytest.mark.parametrize("name", CAPTURES)
def test_ranges_on_streams_span_the_work_that_was_launched_in_them(name: str, converted: Any) -> None:
    trace = opened(name)
    launched = launches(trace)
    by_thread = defaultdict(list)
    for process, start, end, correlation, device, context, stream in work(trace):
        if (process, correlation) in launched:
            at, thread = launched[process, correlation]
            by_thread[process, thread].append((at, start, end, (device, context, stream)))
    expected = []
    ranges = trace.nvtx_ranges
    for process, thread, begin, finish, text in ranges[["process", "thread", "start", "end", "name"]].tolist():
        streams = defaultdict(list)
        for at, start, end, stream in by_thread[process, thread]:
            if begin <= at <= finish:
                streams[stream].append((start, end))
        name_of = trace.strings[text]
        expected += [(min(s for s, _ in on), max(e for _, e in on), name_of) for on in streams.values()]
    found = [(s.start, s.end, s.name) for s in converted(name).derived]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("name", CAPTURES)
def test_launch_queues_end_empty_and_have_as_much_work_as_there_was(name: str, converted: Any) -> None:
    trace = opened(name)
    launched = launches(trace)
    spans = defaultdict(list)
    for process, _start, end, correlation, device, context, stream in work(trace):
        if (process, correlation) in launched:
            spans[process, device, context, stream].append((launched[process, correlation][0], end))
    expected = []
    for on in spans.values():
        # Of equal moments, what begins comes first: work is there for no time at all otherwise.
        changes = sorted([(begin, 1) for begin, _ in on] + [(max(begin, end), -1) for begin, end in on])
        depth = most = 0
        at: dict[int, int] = {}
        for moment, change in changes:
            depth += change
            at[moment] = depth
        most = max(at.values())
        expected.append((most, len(on)))
    tracks = defaultdict(list)
    for sample in converted(name).counters:
        if sample.track.name.startswith("launch queue"):
            tracks[sample.track.uuid].append((sample.time, sample.value))
    assert all(samples[-1][1] == 0 for samples in tracks.values())
    assert sorted(int(max(value for _, value in samples)) for samples in tracks.values()) == sorted(
        most for most, _ in expected
    )


@pytest.mark.parametrize("name", CAPTURES)
def test_memory_in_use_is_what_was_taken_and_not_given_back(name: str, converted: Any) -> None:
    trace = opened(name)
    held: dict[tuple[int, int, int], int] = defaultdict(int)
    fields = ["time", "process", "device", "memory", "operation", "bytes"]
    seen: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
    for time, process, device, memory, operation, size in sorted(map(tuple, trace.allocations[fields].tolist())):
        key = process, device, memory
        held[key] += size if operation == 1 else -size
        seen[key][time] = held[key]
    tracks = defaultdict(dict)
    for sample in converted(name).counters:
        if sample.track.name.startswith("memory in use"):
            tracks[sample.track.uuid][sample.time] = sample.value
    assert sorted(max(values.values()) for values in tracks.values()) == sorted(max(v.values()) for v in seen.values())
    assert sorted(list(v.values())[-1] for v in tracks.values()) == sorted(list(v.values())[-1] for v in seen.values())


@pytest.mark.parametrize("name", CAPTURES)
def test_copy_bandwidth_is_bytes_over_time_while_copies_run(name: str, converted: Any) -> None:
    trace = opened(name)
    fields = ["process", "device", "kind", "start", "end", "bytes"]
    alone = defaultdict(list)
    for process, device, kind, start, end, size in trace.memcpys[fields].tolist():
        alone[process, device, kind].append((start, end, size))
    tracks = defaultdict(list)
    for sample in converted(name).counters:
        if sample.track.name.startswith("copy bandwidth"):
            tracks[sample.track.uuid].append((sample.time, sample.value))
    assert len(tracks) == len(alone)

    def moved(samples: list[tuple[int, float]]) -> float:
        pairs = pairwise(samples)
        return sum(value * (after - time) / 1e9 for (time, value), (after, _) in pairs)

    # The area below a counter is what was copied.
    expected = sorted(float(sum(size for _, _, size in copies)) for copies in alone.values())
    assert sorted(moved(samples) for samples in tracks.values()) == pytest.approx(expected, rel=1e-3, abs=64)


@pytest.mark.parametrize("name", CAPTURES)
def test_a_call_that_waits_names_the_last_work_of_each_stream_before_it(name: str, converted: Any) -> None:
    trace = opened(name)
    decoded = converted(name)
    events = {event.event_id: event for event in decoded.gpu}
    # By process, context and stream, the work by correlation: (correlation, start, end).
    before = defaultdict(list)
    for process, start, end, correlation, _device, context, stream in work(trace):
        before[process, context, stream].append((correlation, start, end))
    expected = defaultdict(set)
    rows = trace.synchronizations[["process", "correlation", "type", "context", "stream"]].tolist()
    for process, correlation, kind, context, stream in rows:
        if kind == SYNCHRONIZE_STREAM:
            streams = [(process, context, stream)]
        elif kind == SYNCHRONIZE_CONTEXT:
            streams = [key for key in before if key[:2] == (process, context)]
        else:
            continue
        for key in streams:
            earlier = [one for one in before.get(key, ()) if one[0] < correlation]
            if earlier:
                last = max(one[0] for one in earlier)
                expected[process, correlation].add(frozenset(one[1:] for one in earlier if one[0] == last))
    pid_of = {p.pid: p.index for p in trace.processes}
    found = defaultdict(set)
    waiting = {(p, c) for p, c, kind, *_ in rows if kind in (SYNCHRONIZE_STREAM, SYNCHRONIZE_CONTEXT)}
    for call in decoded.slices:
        key = pid_of.get(call.pid, -1), call.args.get("correlation", 0)
        if call.gpu_api and key in waiting:
            found[key] |= {(events[e].start, events[e].end) for e in call.waits}
    calls = {(p, c) for p, c in trace.api_calls[["process", "correlation"]].tolist()}
    for key, choices in expected.items():
        if key in calls:
            # Of a graph, one of its nodes that were launched together.
            assert len(found[key]) == len(choices)
            assert all(found[key] & choice for choice in choices)
    assert set(found) <= waiting
