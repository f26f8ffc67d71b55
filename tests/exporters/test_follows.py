"""Derived events (NVTX on streams, counters, waits), compared with loops over the tables.

These tests use none of the exporter's code for derived events. Each rule of docs/internals/perfetto.md is written
again, as a loop.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
import cutrace
from captures import ORIGIN, Capture
from cutrace.analysis.statistics.streams import STREAMS
from cutrace.exporters.perfetto import export, host_writer
from cutrace.exporters.perfetto.derived import counters
from cutrace.exporters.perfetto.descriptors import pids
from cutrace.exporters.perfetto.host_tables import Spool
from cutrace.runbin.labels import MEMCPY_KINDS, MEMORY_KINDS
from cutrace.trace import Trace, projection
from cutrace.trace.launches import CallBlocks
from pftrace import Decoded, decode
from range_rule import Piece, Range, pieces

DATA = Path(__file__).resolve().parents[1] / "data"
COMMITTED = sorted(p.name for p in DATA.glob("*.bin"))
GPU_TABLES = ("kernels", "memcpys", "memsets", "graph_launches")
NEVER = 1 << 64


def busy(path: Path) -> Path:
    """Two threads launch into three streams, in ranges of two domains, with waits of all kinds in between."""
    random = np.random.default_rng(5)
    with Capture(path) as c:
        c.device()
        c.context()
        kernel, now = c.launch("k"), 10_000
        free = dict.fromkeys((7, 8, 9), now)
        records: dict[int, int] = {}
        recorded: dict[int, int] = {}  # the end of the work before each event record
        for i in range(400):
            correlation = i + 1
            now += int(random.integers(1, 400))
            thread, stream = int(random.choice([100, 101])), int(random.choice([7, 8, 9]))
            kind = int(random.integers(0, 12))
            if kind < 6:
                c.api("cudaLaunchKernel", now, now + 50, thread=thread, correlation=correlation)
                nodes = 4 if kind == 0 else 1
                for _ in range(nodes):
                    begin = max(free[stream], now + 20) + int(random.integers(0, 300))
                    free[stream] = begin + int(random.integers(0, 900))
                    c.kernel(kernel, begin, free[stream], stream=stream, correlation=correlation)
            elif kind == 6:
                begin = max(free[stream], now + 20)
                free[stream] = begin + int(random.integers(1, 2_000))
                c.api("cudaMemcpyAsync", now, now + 60, thread=thread, correlation=correlation)
                c.memcpy(begin, free[stream], 4096, stream=stream, correlation=correlation, kind=1 + i % 2)
            elif kind == 7:
                records[stream], recorded[stream] = i + 1, free[stream]
                c.add("cuda_events", event=stream, event_record=i + 1 if i % 3 else 0, stream=stream,
                      context=1, correlation=correlation)  # fmt: skip
            elif kind == 8 and stream in records:
                named = records[stream] if records[stream] % 3 != 1 else 0
                waiting = int(random.choice([7, 8, 9]))
                free[waiting] = max(free[waiting], recorded[stream])
                c.add("synchronizations", start=ORIGIN + now, end=ORIGIN + now + 5, type=2, event=stream,
                      event_record=named, stream=waiting, context=1, correlation=correlation)  # fmt: skip
            elif kind == 9 and stream in records:
                c.api("cudaEventSynchronize", now, now + 90, thread=thread, correlation=correlation)
                c.add("synchronizations", start=ORIGIN + now, end=ORIGIN + now + 80, type=1, event=stream,
                      context=1, correlation=correlation)  # fmt: skip
            elif kind == 10:
                c.api("cudaStreamSynchronize", now, now + 90, thread=thread, correlation=correlation)
                c.add("synchronizations", start=ORIGIN + now, end=ORIGIN + now + 80, type=3, stream=stream,
                      context=1, correlation=correlation)  # fmt: skip
            else:
                c.api("cudaDeviceSynchronize", now, now + 90, thread=thread, correlation=correlation)
                c.add("synchronizations", start=ORIGIN + now, end=ORIGIN + now + 80, type=4, context=1,
                      correlation=correlation)  # fmt: skip
            if i % 7 == 0:
                c.flush()
            if i % 5 == 0:
                length = int(random.integers(0, 9_000))
                c.push_pop(f"range {i % 4}", now - 500, now + length, thread=thread, domain=("", "d")[i % 2])
            if i % 40 == 0:
                c.start_end("crossing", now, now + 20_000, range_id=i + 1, thread=thread, end_thread=100)
                c.push_pop("open", now + 3, None, thread=thread)
            c.add("allocations", time=ORIGIN + now, address=i, bytes=1 << (i % 9), operation=1 + (i % 3 == 2),
                  memory=3 - i % 2, context=1)  # fmt: skip
    return path


@pytest.fixture(params=["busy", "training_steps", "awkward", *COMMITTED])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "busy":
        return busy(tmp_path / "busy.bin")
    return captures.named(request.param, tmp_path)


@pytest.fixture(params=["whole", "pieces"])
def decoded(request: pytest.FixtureRequest, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoded:
    """The decoded trace, also when everything is processed in the smallest pieces."""
    if request.param == "pieces":
        for module, name, value in (
            (export, "GPU_WINDOW", 1), (export, "GPU_KEPT", 1 << 16), (host_writer, "HOST_WINDOW", 1),
            (host_writer, "HOST_KEPT", 4_000), (CallBlocks, "STEP", 1), (projection, "KEPT", 40),
            (Spool, "KEPT_BYTES", 200),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, value)
    cutrace.convert(capture, tmp_path / "out.pftrace")
    return decode(tmp_path / "out.pftrace")


def dicts(rows: np.ndarray) -> Iterator[dict[str, Any]]:
    for row in rows.tolist():
        yield dict(zip(rows.dtype.names or (), row, strict=True))


def all_work(trace: Trace) -> list[dict[str, Any]]:
    return [r | {"table": table} for table in GPU_TABLES for r in dicts(trace.table(table))]


def calls(trace: Trace) -> dict[tuple[int, int], dict[str, Any]]:
    """The call of each correlation id, or the first one if there are several."""
    out: dict[tuple[int, int], dict[str, Any]] = {}
    for call in sorted(dicts(trace.api_calls), key=lambda r: -r["start"]):
        if call["correlation"]:
            out[call["process"], call["correlation"]] = call
    return out


def stream_of(name: str) -> int:
    found = re.search(r"stream (\d+)", name)
    assert found
    return int(found[1])


def test_nvtx_on_streams(capture: Path, decoded: Decoded) -> None:
    expected: Counter[Any] = Counter()
    with cutrace.load(capture) as trace:
        pid = pids(trace)
        work_of: dict[Any, list[Piece]] = defaultdict(list)
        range_of: dict[int, Range] = {}
        for piece in pieces(trace):
            for around in piece.ranges:
                range_of[id(around)] = around
                work_of[id(around), piece.stream].append(piece)
        for (number, (process, *_, stream)), work in work_of.items():
            around = range_of[number]
            first, last = min(w.start for w in work), max(w.end for w in work)
            expected[pid[process], first, last, around.name, around.domain, around.thread, stream] += 1
    assert decoded.derived or not expected
    shown = Counter(
        (s.pid, s.start, s.end, s.name, s.args.get("domain", ""), s.args.get("thread", 0), stream_of(s.track.name))
        for s in decoded.derived
        if not s.track.name.startswith("NVTX of graph nodes")  # test_replays.py tests these
    )
    assert shown == expected
    assert all(s.categories[0] == "cutrace.derived" for s in decoded.derived)


def values_of(decoded: Decoded) -> dict[tuple[int, str], list[tuple[int, float]]]:
    out: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    for c in decoded.counters:
        if c.categories == ("cutrace.derived",):
            process = next(t.process.pid for t in (c.track, *c.parents) if t.HasField("process"))
            out[process, c.name].append((c.time, c.value))
    return out


def summed(changes: list[tuple[int, int]]) -> list[tuple[int, float]]:
    """Add up changes to the values of a counter."""
    by_time: dict[int, int] = defaultdict(int)
    for time, change in changes:
        by_time[time] += change
    value, out = 0, []
    for time in sorted(by_time):
        value += by_time[time]
        out.append((time, float(value)))
    return out


def test_counters(capture: Path, decoded: Decoded) -> None:
    depth: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    bandwidth: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    memory: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    with cutrace.load(capture) as trace:
        known, pid = calls(trace), pids(trace)
        queued: dict[Any, int] = {}
        latest: dict[Any, int] = {}
        for w in sorted(all_work(trace), key=lambda w: w["start"]):
            stream = pid[w["process"]], w["device"], w["context"], w["stream"]
            call = known.get((w["process"], w["correlation"]))
            if call and latest.get(stream) != w["correlation"]:
                queued[stream] = max(min(call["start"], w["start"]), queued.get(stream, 0))
                if queued[stream] < w["start"]:
                    depth[stream] += [(queued[stream], 1), (w["start"], -1)]
            latest[stream] = w["correlation"]
            if w["table"] == "memcpys":
                speed = round(w["bytes"] * 1e9 / (w["end"] - w["start"])) if w["end"] > w["start"] else 0
                name = f"copy bandwidth, device {w['device']}: {MEMCPY_KINDS[w['kind']]}"
                bandwidth[pid[w["process"]], name] += [(w["start"], speed), (w["end"], -speed)]
        for a in dicts(trace.allocations):
            name = f"memory in use, device {a['device']}: {MEMORY_KINDS[a['memory']]}"
            memory[pid[a["process"]], name].append((a["time"], a["bytes"] * {1: 1, 2: -1}.get(a["operation"], 0)))
    shown = values_of(decoded)
    expected = {key: summed(changes) for key, changes in (bandwidth | memory).items()}
    assert {key: v for key, v in shown.items() if not key[1].startswith("launch queue")} == expected
    queues = sorted((p, values) for (p, name), values in shown.items() if name.startswith("launch queue"))
    assert queues == sorted((p, summed(changes)) for (p, *_), changes in depth.items())
    assert all(values[-1][1] == 0 for _, values in queues)


def test_a_launch_queue_is_that_of_the_statistic(capture: Path, decoded: Decoded) -> None:
    with cutrace.load(capture) as trace:
        pid = pids(trace)
        uses = STREAMS.of(trace)
        expected = sorted((pid[use.process], use.queue.at_launch.max) for use in uses if use.queue.mean)
    shown = values_of(decoded).items()
    longest = [(p, max(n for _, n in values)) for (p, name), values in shown if name.startswith("launch queue")]
    assert sorted(longest) == expected


def test_work_that_runs_is_not_in_its_launch_queue(tmp_path: Path) -> None:
    """The second kernel is launched while the first one runs, so one launch is waiting."""
    with Capture(tmp_path / "run.bin") as c:
        kernel = c.launch("k")
        for correlation, called, start, end in ((1, 10, 20, 90), (2, 30, 90, 95)):
            c.api("cudaLaunchKernel", called, called + 5, correlation=correlation)
            c.kernel(kernel, start, end, stream=7, correlation=correlation)
    with cutrace.load(tmp_path / "run.bin") as trace:
        (use,) = STREAMS.of(trace)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "out.pftrace")
    (values,) = values_of(decode(tmp_path / "out.pftrace")).values()
    assert values == [(ORIGIN + time, length) for time, length in ((10, 1), (20, 0), (30, 1), (90, 0))]
    assert use.queue.at_launch.max == 1


def waits_for(trace: Trace, work_of: dict[Any, list[dict[str, Any]]]) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Yield each row of synchronizations with the work that it waited for, as an index into the list of all work."""

    def last(process: int, context: int, stream: int, below: int) -> int | None:
        before = [w for w in work_of[process, context, stream] if 0 < w["correlation"] < below]
        if not before:
            return None
        return max(before, key=lambda w: (w["correlation"], w["start"]))["at"]

    records = list(dicts(trace.cuda_events))
    for s in dicts(trace.synchronizations):
        place = (s["process"], s["context"])
        if not s["correlation"]:
            continue
        if s["type"] == 3:
            yield s, last(*place, s["stream"], s["correlation"])
        elif s["type"] == 4:
            for process, context, stream in list(work_of):
                if (process, context) == place:
                    yield s, last(*place, stream, s["correlation"])
        elif s["type"] in (1, 2):
            of_event = [r for r in records if (r["process"], r["context"], r["event"]) == (*place, s["event"])]
            of_event = [r for r in of_event if r["correlation"]]
            if s["event_record"]:
                found = [r for r in of_event if r["event_record"] == s["event_record"]]
            else:
                found = [r for r in of_event if r["correlation"] < s["correlation"]]
            if found:
                record = max(found, key=lambda r: r["correlation"])
                yield s, last(*place, record["stream"], record["correlation"])


def test_waits(capture: Path, decoded: Decoded) -> None:
    with cutrace.load(capture) as trace:
        pid = pids(trace)
        everything = all_work(trace)
        work_of: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for at, w in enumerate(everything):
            work_of[w["process"], w["context"], w["stream"]].append(w | {"at": at})

        def shown(w: dict[str, Any]) -> Any:
            return (pid[w["process"]], w["start"], w["end"], w["correlation"], w["stream"])

        host: dict[Any, set[Any]] = defaultdict(set)
        device: dict[Any, set[Any]] = defaultdict(set)
        for s, found in waits_for(trace, work_of):
            if found is None:
                continue
            if s["type"] != 2:
                host[pid[s["process"]], s["correlation"]].add(shown(everything[found]))
                continue
            behind = [
                w for w in work_of[s["process"], s["context"], s["stream"]] if w["correlation"] > s["correlation"]
            ]
            if behind:
                first = min(behind, key=lambda w: (w["correlation"], w["start"]))
                device[shown(first)].add(shown(everything[found]))
    events = {e.event_id: (e.pid, e.start, e.end, e.submission, e.args["stream_id"]) for e in decoded.gpu}
    for s in decoded.slices:
        if s.is_call:
            expected = host.get((s.pid, s.args.get("correlation", 0)), set())
            assert {events[i] for i in s.waits} == expected
            assert len(s.waits) == len(expected)
    for e in decoded.gpu:
        assert {events[i] for i in e.waits} == device.pop(events[e.event_id], set())
    assert not device


def test_the_examples_have_all_that_is_looked_for(tmp_path: Path) -> None:
    cutrace.convert(busy(tmp_path / "busy.bin"), tmp_path / "busy.pftrace")
    found = decode(tmp_path / "busy.pftrace")
    assert sum(bool(e.waits) for e in found.gpu) > 10
    assert sum(bool(s.waits) for s in found.slices) > 50
    assert len({s.track.name for s in found.derived}) == 6
    assert len({c.name for c in found.counters}) == 3 + 2 + 2


def test_counters_of_many_changes_are_means_and_highest_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = busy(tmp_path / "busy.bin")
    cutrace.convert(path, tmp_path / "exact.pftrace")
    monkeypatch.setattr(counters, "EXACT", 10)
    monkeypatch.setattr(counters, "BITS", 5)
    cutrace.convert(path, tmp_path / "few.pftrace")
    exact, few = (values_of(decode(tmp_path / f"{name}.pftrace")) for name in ("exact", "few"))
    with cutrace.load(path) as trace:
        first, last = trace.start, trace.end
    shift = 0
    while (last - first) >> shift >> 5:
        shift += 1
    assert set(exact) == set(few)
    for key, values in exact.items():
        expected = []
        for part in range(((last - first) >> shift) + 1):
            begin, end = first + (part << shift), first + ((part + 1) << shift)
            inside = [(max(t, begin), v) for t, v in values if t < end]
            at_begin = [(begin, inside_value) for t, inside_value in values if t <= begin][-1:] or [(begin, 0.0)]
            steps = at_begin + [(t, v) for t, v in inside if t > begin]
            if "memory" in key[1]:
                expected.append((begin, max(v for _, v in steps)))
            else:
                times = [t for t, _ in steps] + [end]
                area = sum(v * (b - a) for (a, v), b in zip(steps, times[1:], strict=True))
                expected.append((begin, area / (end - begin)))
        shown, at = [], 0.0
        # If a window divides a part, the value of the part comes after the division.
        found = {time - ((time - first) & ((1 << shift) - 1)): value for time, value in few[key]}
        assert len(found) == len(few[key])
        for begin, _ in expected:
            at = found.get(begin, at)
            shown.append(at)
        assert np.allclose(shown, [v for _, v in expected], rtol=1e-9, atol=1e-6), key
        assert set(found) <= {begin for begin, _ in expected}


def test_waits_may_be_recorded_out_of_the_order_of_their_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Capture(tmp_path / "c.bin") as c:
        launch = c.launch("k")
        for correlation, stream in ((1, 7), (4, 8), (5, 9), (8, 8)):
            c.kernel(launch, 100 * correlation, 100 * correlation + 50, stream=stream, correlation=correlation)
            c.flush()
        for correlation, stream in ((2, 7), (6, 9)):
            c.add("cuda_events", event=stream, event_record=stream, stream=stream, context=1, correlation=correlation)
        # Stream 8 waits for the kernel on stream 7 before its first kernel, and for the kernel on stream 9 before its
        # second kernel.
        for correlation, stream in ((7, 9), (3, 7)):
            c.add("synchronizations", start=ORIGIN + 100 * correlation, end=ORIGIN + 100 * correlation + 5, type=2,
                  event=stream, event_record=stream, stream=8, context=1, correlation=correlation)  # fmt: skip
    monkeypatch.setattr(export, "GPU_WINDOW", 1)
    cutrace.convert(c.path, tmp_path / "c.pftrace")
    events = {e.submission: e for e in decode(tmp_path / "c.pftrace").gpu}
    waits = {submission: e.waits for submission, e in events.items() if e.waits}
    assert waits == {4: (events[1].event_id,), 8: (events[5].event_id,)}


def test_too_many_waits_are_counted_and_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutrace.exporters.perfetto.derived import waits

    monkeypatch.setattr(waits, "MOST", 10)
    cutrace.convert(busy(tmp_path / "busy.bin"), tmp_path / "out.pftrace")
    found = decode(tmp_path / "out.pftrace")
    assert not any(s.waits for s in found.slices)
    assert any("not matched with the awaited work" in str(v) for v in found.attributes.values())
