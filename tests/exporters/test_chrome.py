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

#: Tables whose rows come back, and fields that the format does not have.
WHOLE: dict[str, tuple[str, ...]] = {
    "kernels": (), "memcpys": (), "memsets": (), "api_calls": (), "synchronizations": ("event_record",),
    "overheads": (),
    "nvtx_ranges": (), "nvtx_marks": (), "graph_launches": (), "gpu_slices": (), "host_slices": (), "counters": (),
    "flows": (), "external_correlations": (), "devices": (), "contexts": ("null_stream",),
}  # fmt: skip


def document(trace: Path, folder: Path, **options: Any) -> dict[str, Any]:
    written = folder / "written.json"
    cutrace.convert(trace, written, **options)
    out: dict[str, Any] = json.loads(written.read_bytes(), parse_constant=pytest.fail)
    return out


def events(document: dict[str, Any], category: str, phase: str = "X") -> list[Event]:
    return [e for e in document["traceEvents"] if e.get("cat") == category and e["ph"] == phase]


def described(trace: Trace, table: str, rows: np.ndarray, without: tuple[str, ...] = ()) -> Counter[str]:
    """Rows with references in place of ids, and with process ids."""
    launches, functions = trace.launches, trace.functions

    def plain(table: str, row: np.void) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for f in TABLES[table].fields:
            value = row[f.name]
            if f.name in without or (f.name == "id" and f.type in ("u32", "launch", "function")):
                continue
            if f.type == "string":
                out[f.name] = trace.strings[value]
            elif f.type == "launch":
                out |= {f"launch {k}": v for k, v in plain("launches", launches[value]).items()}
            elif f.type == "function":
                out |= {f"function {k}": v for k, v in plain("functions", functions[value]).items()}
            elif f.name == "process":
                out[f.name] = trace.processes[value].pid
            else:
                out[f.name] = value.tobytes().hex() if f.type == "bytes16" else value.item()
        return out

    return Counter(repr(plain(table, row)) for row in rows)


def in_use(trace: Trace) -> np.ndarray:
    """The contexts of work; the format does not contain others."""
    work = [trace.table(name) for name in ("kernels", "memcpys", "memsets", "graph_launches", "gpu_slices")]
    used = {tuple(row) for rows in work for row in rows[["process", "context"]].tolist()}
    contexts = trace.contexts
    return contexts[[tuple(row) in used for row in contexts[["process", "context"]].tolist()]]


@pytest.mark.parametrize("path", [*CAPTURES, *KINETO], ids=lambda p: p.name)
def test_a_capture_comes_back(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "written.json"
    cutrace.convert(path, written)
    with cutrace.load(path) as before, cutrace.load(written) as after:
        assert after.imports[0].lost == 0
        for table, without in WHOLE.items():
            wanted = in_use(before) if table == "contexts" else before.table(table)
            assert described(after, table, after.table(table), without) == described(before, table, wanted, without), (
                table
            )
            assert described(after, table, after.unknown(table), without) == described(
                before, table, before.unknown(table), without
            )


class TestMadeByHand:
    """Rows with all that is legal and unpleasant: every field of every row comes back that the format can hold."""

    @pytest.fixture
    def trace(self, tmp_path: Path) -> Path:
        path = tmp_path / "made.bin"
        with captures.Capture(path, pid=9) as c:
            start = captures.ORIGIN
            kernel = c.launch(
                "_Z4axpyPf", grid=(2**31 - 1, 65535, 1), block=(1024, 1, 1), static_shared=5, dynamic_shared=7,
                cluster_x=2, local_total=2**40, carveout=3, launch_type=1, graph=4, graph_node=2**33,
            )  # fmt: skip
            c.kernel(kernel, start + 1, start + 2**40 + 3, stream=7, correlation=2**32 - 1)
            c.add("memcpys", start=start, end=start, bytes=2**40, kind=10, source_memory=3, destination_memory=3,
                  device=1,
                  source_device=2, destination_device=1, context=5, peer_context=6, stream=8, flags=1, graph=3,
                  graph_node=9)  # fmt: skip
            c.add("memsets", start=start, end=start + 1, bytes=1, value=2**32 - 1, memory=5, flags=1, stream=2**32 - 1)
            name = 'quotes " \\ \x01 \u2028 \U0001f600'
            c.add("nvtx_ranges", start=start, end=start + 9, name=name, domain="d", payload=2**64 - 1, payload_type=1,
                  color=2**32 - 1,
                  category=3, thread=5, end_thread=5, depth=2)  # fmt: skip
            c.add("nvtx_ranges", start=start, end=start + 9, name=name, kind=1, range_id=2**63, thread=5, end_thread=6)
            c.add("nvtx_ranges", start=start + 4, end=0, name=name, kind=1, range_id=8, thread=5, flags=1)
            c.add("nvtx_ranges", start=start + 5, end=0, name="open", thread=5, flags=1)
            c.add("nvtx_marks", time=start, name=name, source=1, thread=2**32 - 1)
            c.add("synchronizations", start=start, end=start + 1, type=2, event=3, event_record=4, stream=7, status=5)
            c.add(
                "host_slices",
                start=start,
                end=start + 5,
                name=name,
                arguments=json.dumps({name: [name]}, ensure_ascii=False, separators=(",", ":")),
                category="cpu_op",
                kind=1,
                external=2**60,
            )
            c.add("host_slices", start=start, end=0, name="open", flags=3, kind=5, track="0x1", category="c")
            c.add(
                "gpu_slices",
                start=start,
                end=start + 5,
                name=name,
                category="gpu_user_annotation",
                kind=1,
                stream=7,
                device=2,
            )
            c.add(
                "gpu_slices", start=start, end=start + 5, name=name, category="gpu_slice", arguments='{"a":[1]}',
                stream=7,
                context=3, correlation=9, flags=1,
            )  # fmt: skip
            c.add("counters", time=start, value=1e300, name="c", device=3, unit="bytes")
            c.add("counters", time=start, value=2.5, name="c", thread=7)
        return path

    def test_every_field(self, trace: Path, tmp_path: Path) -> None:
        written = tmp_path / "written.json"
        cutrace.convert(trace, written)
        with cutrace.load(trace) as before, cutrace.load(written) as after:
            for table, without in WHOLE.items():
                if table == "contexts":
                    continue
                for rows in ("table", "unknown"):
                    left, right = (described(t, table, getattr(t, rows)(table), without) for t in (before, after))
                    # A thread with an id that no system gives gets another one.
                    assert right == left or table == "nvtx_marks", table

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
        """Holistic Trace Analysis takes what has another stream for work of the GPU."""
        with captures.Capture(tmp_path / "run.bin") as c:
            for stream, kind in ((0, 4), (7, 3)):
                c.add("synchronizations", start=captures.ORIGIN, end=captures.ORIGIN + 5, stream=stream, type=kind)
        told = document(tmp_path / "run.bin", tmp_path)

        assert [e["args"]["stream"] for e in events(told, "cuda_sync")] == [-1, 7]
        assert cutrace.load(tmp_path / "written.json").synchronizations["stream"].tolist() == [0, 7]

    def test_what_a_source_does_not_say_is_not_said(self, tmp_path: Path) -> None:
        """ROCm's kernels have no grid, and its calls no numbers."""
        with captures.Capture(tmp_path / "run.bin") as c:
            c.kernel(c.launch("k", (0, 0, 0), (0, 0, 0), registers=0), 10, 15)
            function = c.writer.function(name="hipLaunchKernel", domain=2)
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
        """Holistic Trace Analysis takes what has a stream among its arguments for a kernel."""
        for event in events(document(KINETO[0], tmp_path), "gpu_user_annotation"):
            assert "stream" not in event.get("args", {})

    def test_work_of_several_processes_is_told_apart(self, tmp_path: Path) -> None:
        told = document(DATA / "processes.bin", tmp_path)
        with cutrace.load(DATA / "processes.bin") as trace:
            workers = np.unique(trace.kernels["process"])
            assert len({e["pid"] for e in events(told, "kernel")}) == len(workers) > 1
        assert len({e["args"]["name"] for e in told["traceEvents"] if e["name"] == "process_name"}) >= len(workers)


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


def test_payloads_are_numbers_and_come_back_to_the_bit(tmp_path: Path) -> None:
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
    with cutrace.load(tmp_path / "run.bin") as before, cutrace.load(tmp_path / "run.json") as after:
        for field in ("payload", "payload_type"):
            assert before.nvtx_marks[field].tolist() == after.nvtx_marks[field].tolist()


def test_of_cuda_events_only_those_waited_for_are_kept(tmp_path: Path) -> None:
    """Memory does not grow with recorded events for which nothing waits."""
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
