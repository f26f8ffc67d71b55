"""Trace-event JSON: the events that other tools expect, and the import of the same capture from it."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
import cutrace
from captures import ORIGIN, Capture
from cutrace import CutraceError, Trace
from cutrace.conversion import write
from cutrace.runbin import TABLES, Reader, Writer
from cutrace.trace_events import EXTERNAL_KIND

DATA = Path(__file__).resolve().parents[1] / "data"
CAPTURES = sorted(DATA.glob("*.bin"))
KINETO = sorted(DATA.glob("kineto*.json.gz"))

Event = dict[str, Any]


def document(trace: Path, folder: Path, **options: Any) -> dict[str, Any]:
    written = folder / "written.json"
    cutrace.convert(trace, written, **options)
    out: dict[str, Any] = json.loads(written.read_bytes(), parse_constant=pytest.fail)
    return out


def events(document: dict[str, Any], category: str, phase: str = "X") -> list[Event]:
    return [e for e in document["traceEvents"] if e.get("cat") == category and e["ph"] == phase]


@pytest.mark.parametrize("path", [*CAPTURES, *KINETO], ids=lambda p: p.name)
def test_a_file_without_the_capture_is_read_as_that_of_any_tool(path: Path, tmp_path: Path) -> None:
    fields = {
        "kernels": ["start", "end", "correlation", "stream", "device"],
        "memcpys": ["start", "end", "correlation", "stream", "bytes", "kind"],
        "memsets": ["start", "end", "correlation", "stream", "bytes"],
        "api_calls": ["start", "end", "correlation", "thread"],
        "counters": ["time", "value"],
    }
    written = tmp_path / "written.json"
    cutrace.convert(path, written)
    with cutrace.load(path) as before, cutrace.load(written) as after:
        assert after.imports[0].lost == 0
        for table, names in fields.items():
            rows = [sorted(trace.table(table)[names].tolist()) for trace in (before, after)]
            assert rows[0] == rows[1], table


def test_a_file_without_the_capture_says_what_is_missing(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        c.kernel(c.launch("k"), 0, 5)
        c.add("pc_samples", start=ORIGIN, end=ORIGIN + 1)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "run.json")
    with cutrace.load(tmp_path / "run.json") as trace:
        notes = " ".join(trace.quality.notes)
    assert "cutrace wrote this file without its capture" in notes
    assert "left out, because no event can hold them: 1 row of pc_samples" in notes


def test_versions_are_those_of_the_first_process_that_has_them(tmp_path: Path) -> None:
    parts = []
    for pid, versions in enumerate(({}, {"driver_version": 12080, "cupti_version": 24}, {"driver_version": 13000}), 1):
        with Capture(tmp_path / f"{pid}.bin", pid=pid, **versions) as c:
            c.kernel(c.launch("k"), 0, 5)
        parts.append(c.path)
    found = document(captures.join(tmp_path / "run.bin", parts), tmp_path)
    assert (found["cuda_driver_version"], found["cupti_version"]) == (12080, 24)


class TestMadeByHand:
    def test_arguments_that_are_no_json(self, tmp_path: Path) -> None:
        path = tmp_path / "made.bin"
        with captures.Capture(path) as c:
            for arguments in ("text", "[1]", '{"a": NaN}', '{"a": 1', '{"trace_event": {"ph": "XY", "ts": 1}}'):
                c.add("host_slices", start=captures.ORIGIN, end=captures.ORIGIN + 1, name="n", arguments=arguments)
        told = [e.get("args") for e in document(path, tmp_path)["traceEvents"] if e["ph"] == "X"]
        assert {"arguments": "text"} in told
        assert {"arguments": '{"a": NaN}'} in told


def test_counters_of_threads_and_devices_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "made.bin"
    with captures.Capture(path) as c:
        for more in ({}, {"thread": 7}, {"thread": 8}, {"device": 3}, {"device": 3, "thread": 7}):
            c.add("counters", **{"time": captures.ORIGIN, "value": 1, "name": "c", "device": 0xFFFF} | more)
    names = [e["name"] for e in document(path, tmp_path)["traceEvents"] if e["ph"] == "C"]
    assert names == ["c", "c (thread 7)", "c (thread 8)", "c (GPU 3)", "c (GPU 3) (thread 7)"]


class TestWhatToolsLookFor:
    @pytest.fixture(scope="class")
    def step(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Trace]:
        path = DATA / "torch_step.bin"
        return document(path, tmp_path_factory.mktemp("step")), cutrace.load(path)

    def test_the_outer_object(self, step: tuple[dict[str, Any], Trace]) -> None:
        told, trace = step
        assert told["schemaVersion"] == 1
        assert [d["name"] for d in told["deviceProperties"]] == ["NVIDIA H200"]
        assert told["deviceProperties"][0]["numSms"] == 132
        kernel = events(told, "kernel")[0]
        wall = told["baseTimeNanoseconds"] + round(kernel["ts"] * 1000)
        clock = trace.clocks[0]
        assert abs(wall - (int(trace.kernels["start"][0]) + int(clock["realtime"]) - int(clock["boottime"]))) < 10**6

    def test_every_record_is_one_event(self, step: tuple[dict[str, Any], Trace]) -> None:
        told, trace = step
        domains = trace.functions[trace.api_calls["function"]]["domain"]
        expected = {
            "kernel": trace.count("kernels"), "gpu_memcpy": trace.count("memcpys"),
            "gpu_memset": trace.count("memsets"),
            "cuda_sync": trace.count("synchronizations"), "cuda_driver": int((domains == 1).sum()),
            "cuda_runtime": int((domains == 2).sum()), "overhead": trace.count("overheads"),
            "nvtx": trace.count("nvtx_ranges"),
        }  # fmt: skip
        found = Counter(e["cat"] for e in told["traceEvents"] if e["ph"] == "X")
        assert dict(found) == {kind: count for kind, count in expected.items() if count}

    def test_kernels_in_the_words_of_kineto(self, step: tuple[dict[str, Any], Trace]) -> None:
        told, _ = step
        for event in events(told, "kernel"):
            arguments = event["args"]
            assert (event["pid"], event["tid"]) == (arguments["device"], arguments["stream"])
            assert {
                "queued",
                "context",
                "correlation",
                "registers per thread",
                "shared memory",
                "grid",
                "block",
            } <= set(arguments)
            assert 0 <= arguments["est. achieved occupancy %"] <= 100
            assert not event["name"].startswith("_Z")

    def test_waits_for_no_stream_are_of_stream_minus_1(self, tmp_path: Path) -> None:
        """Holistic Trace Analysis counts events with another stream as GPU work."""
        with captures.Capture(tmp_path / "run.bin") as c:
            for stream, kind in ((0, 4), (7, 3)):
                c.add("synchronizations", start=captures.ORIGIN, end=captures.ORIGIN + 5, stream=stream, type=kind)
        told = document(tmp_path / "run.bin", tmp_path)

        assert [e["args"]["stream"] for e in events(told, "cuda_sync")] == [-1, 7]

    def test_what_a_source_does_not_say_is_not_said(self, tmp_path: Path) -> None:
        """ROCm's kernels have no grid, and its calls have no numbers."""
        with captures.Capture(tmp_path / "run.bin") as c:
            c.kernel(c.launch("k", (0, 0, 0), (0, 0, 0), registers=0), 10, 15)
            function = c.writer.intern_one("functions", name="hipLaunchKernel", domain=2)
            c.add("api_calls", start=captures.ORIGIN, end=captures.ORIGIN + 1, function=function)
        told = document(tmp_path / "run.bin", tmp_path)

        assert not {"grid", "block", "registers per thread", "shared memory"} & set(events(told, "kernel")[0]["args"])
        assert "cbid" not in events(told, "cuda_runtime")[0]["args"]

    def test_flags_of_allocations_are_arguments(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "run.bin") as c:
            for flags in range(8):
                c.add("allocations", time=ORIGIN + flags, operation=2, memory=3, flags=flags)
        told = events(document(tmp_path / "run.bin", tmp_path), "allocation", "i")
        notes = [{key: e["args"].get(key) for key in ("size", "released")} for e in told]
        unknown, with_context = "unknown, its allocation was not recorded", "with its context"
        assert notes == [
            {"size": unknown if flags & 2 else None, "released": with_context if flags & 4 else None}
            for flags in range(8)
        ]

    def test_waits_have_the_external_ids_of_their_calls(self, tmp_path: Path) -> None:
        with captures.Capture(tmp_path / "run.bin") as c:
            c.add("synchronizations", start=captures.ORIGIN, end=captures.ORIGIN + 5, correlation=3, type=3, stream=7)
            c.add("external_correlations", external=12, correlation=3, kind=EXTERNAL_KIND)
        told = document(tmp_path / "run.bin", tmp_path)

        assert events(told, "cuda_sync")[0]["args"]["External id"] == 12

    def test_copies_say_what_they_copy(self, step: tuple[dict[str, Any], Trace]) -> None:
        told, _ = step
        names = {e["name"] for e in events(told, "gpu_memcpy")}
        assert "Memcpy HtoD (Pinned -> Device)" in names
        for event in events(told, "gpu_memcpy"):
            assert event["args"]["memory bandwidth (GB/s)"] == pytest.approx(
                event["args"]["bytes"] / (event["dur"] * 1000)
            )

    def test_arrows_lead_from_calls_to_their_work(self, step: tuple[dict[str, Any], Trace]) -> None:
        told, _ = step
        starts = {e["id"]: e for e in events(told, "ac2g", "s")}
        calls = {e["args"]["correlation"]: e for c in ("cuda_runtime", "cuda_driver") for e in events(told, c)}
        work = [e for c in ("kernel", "gpu_memcpy", "gpu_memset") for e in events(told, c)]
        ends = {(e["id"], e["ts"], e["tid"]) for e in events(told, "ac2g", "f")}
        for event in work:
            correlation = event["args"]["correlation"]
            assert (correlation, event["ts"], event["tid"]) in ends
            assert starts[correlation]["ts"] == calls[correlation]["ts"]

    def test_processes_threads_and_streams_have_names(self, step: tuple[dict[str, Any], Trace]) -> None:
        told, trace = step
        names = {(e["name"], e.get("pid"), e.get("tid")): e["args"] for e in events(told, None, "M")}  # type: ignore[arg-type]
        process = trace.processes[0]
        assert names["process_name", process.pid, None] == {"name": process.name}
        assert names["process_name", 0, None] == {"name": "GPU 0"}
        assert names["thread_name", 0, 7] == {"name": "stream 7"}

    def test_annotations_are_not_taken_for_work(self, tmp_path: Path) -> None:
        """Holistic Trace Analysis counts events with a stream among their arguments as kernels."""
        for event in events(document(KINETO[0], tmp_path), "gpu_user_annotation"):
            assert "stream" not in event.get("args", {})

    def test_work_of_several_processes_is_told_apart(self, tmp_path: Path) -> None:
        told = document(DATA / "processes.bin", tmp_path)
        with cutrace.load(DATA / "processes.bin") as trace:
            workers = np.unique(trace.kernels["process"])
            assert len({e["pid"] for e in events(told, "kernel")}) == len(workers) > 1
        assert len({e["args"]["name"] for e in told["traceEvents"] if e["name"] == "process_name"}) >= len(workers)

    def test_versions_are_of_the_first_process_that_has_them(self, tmp_path: Path) -> None:
        parts = []
        versions = ({}, {"driver_version": 12080, "runtime_version": "new"}, {"driver_version": 1, "cupti_version": 2})
        for pid, info in enumerate(versions, 1):
            with captures.Capture(tmp_path / f"{pid}.bin", pid=pid, **info) as c:
                c.kernel(c.launch("k"), 0, 10)
            parts.append(c.path)
        for some, expected in ((parts, [12080, None, None]), (parts[2:], [1, None, 2]), (parts[:1], [None] * 3)):
            told = document(captures.join(tmp_path / "all.bin", some), tmp_path)
            names = ("cuda_driver_version", "cuda_runtime_version", "cupti_version")
            assert [told.get(name) for name in names] == expected

    def test_metadata_events_that_are_no_events_are_left_out(self, tmp_path: Path) -> None:
        label = {"name": "label", "args": {"number": 1}}
        with captures.Capture(tmp_path / "a.bin", metadata_events=[5, {"name": 3}, {}, label, label | {"tid": 7}]) as c:
            c.api("cudaFree", 0, 10)
        found = [e for e in document(c.path, tmp_path)["traceEvents"] if e["ph"] == "M" and e["name"] != "process_name"]
        assert found == [{"ph": "M", **label, "pid": 100}, {"ph": "M", **label, "pid": 100, "tid": 7}]


class TestRequests:
    def test_packets_cannot_be_compressed(self, tmp_path: Path) -> None:
        with pytest.raises(CutraceError, match=r"\.json\.gz"):
            cutrace.convert(CAPTURES[0], tmp_path / "a.json", compress="zstd")

    def test_a_capture_without_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.bin"
        with captures.Capture(path):
            pass
        assert [e["name"] for e in document(path, tmp_path)["traceEvents"]] == ["process_name"]

    def test_what_is_missing_is_said(self, tmp_path: Path) -> None:
        assert any(
            "cuda_events" in sentence for sentence in document(DATA / "torch_step.bin", tmp_path)["cutrace_missing"]
        )


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """Lines are written block by block."""
    import tracemalloc

    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.bin"
        with captures.Capture(path) as c:
            made = np.zeros(rows, TABLES["host_slices"].dtype)
            made["start"] = captures.ORIGIN + np.arange(rows) * 10
            made["end"], made["name"] = made["start"] + 5, c.writer.string("n")
            c.writer.rows("host_slices", made)
        tracemalloc.start()
        with cutrace.load(path) as trace:
            write(trace, tmp_path / "out.json")
        out = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return out

    assert peak(400_000) < peak(100_000) + (8 << 20)


def test_payloads_are_numbers(tmp_path: Path) -> None:
    payloads = [
        (1, "<Q", 2**64 - 1), (2, "<q", -5), (3, "<d", 2.5), (3, "<d", math.inf), (4, "<I", 7),
        (5, "<i", -3), (6, "<f", 1.5),
    ]  # fmt: skip
    with Capture(tmp_path / "run.bin") as c:
        c.kernel(c.launch("k"), 0, 5)
        for n, (kind, form, value) in enumerate(payloads):
            bits = int.from_bytes(struct.pack(form, value), "little")
            c.add("nvtx_marks", time=ORIGIN + n, name="m", thread=1, payload=bits, payload_type=kind)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "run.json")
    told = [event["args"]["payload"] for event in events(json.loads((tmp_path / "run.json").read_text()), "nvtx", "i")]
    assert told == [None if value == math.inf else value for _, _, value in payloads]


def test_of_cuda_events_only_those_waited_for_are_kept(tmp_path: Path) -> None:
    """Memory does not grow with the number of event records without a wait."""
    count = 200_000
    with Writer(tmp_path / "run.bin") as writer:
        rows = np.zeros(count, TABLES["cuda_events"].dtype)
        rows["event_record"] = rows["correlation"] = np.arange(1, count + 1)
        rows["event"], rows["stream"] = 3, 9
        writer.rows("cuda_events", rows)
        waits = np.zeros(3, TABLES["synchronizations"].dtype)
        waits["start"], waits["end"], waits["type"], waits["stream"] = 5, 6, 2, 7
        waits["event"], waits["event_record"] = [3, 0, 3], [77, 77, count + 5]
        writer.rows("synchronizations", waits)
    tracemalloc.start()
    cutrace.convert(tmp_path / "run.bin", tmp_path / "run.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6
    told = [event["args"] for event in events(json.loads((tmp_path / "run.json").read_text()), "cuda_sync")]
    assert [(a.get("wait_on_stream"), a.get("wait_on_cuda_event_record_corr_id")) for a in told] == [
        (9, 77), (None, None), (-1, -1),
    ]  # fmt: skip


def test_a_window_reads_little_of_a_long_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writer(tmp_path / "run.bin") as writer:
        rows = np.zeros(30_000, TABLES["kernels"].dtype)
        for block in range(20):
            rows["start"] = np.arange(30_000) * 1000 + block * 30_000_000 + 1
            rows["end"] = rows["start"] + 500
            writer.rows("kernels", rows)
    read: list[int] = []
    payload = Reader.payload

    def counted(reader: Reader, index: int) -> bytes | None:
        data = payload(reader, index)
        read.append(len(data or b""))
        return data

    monkeypatch.setattr(Reader, "payload", counted)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "part.json", start=200_000_000, end=201_000_000)
    assert len(events(json.loads((tmp_path / "part.json").read_text()), "kernel")) == 1000
    assert sum(read) < (tmp_path / "run.bin").stat().st_size / 5
