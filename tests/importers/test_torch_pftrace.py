"""Import of the typed Perfetto traces of torch.profiler (``CuspyConfig``, ``export_chrome_trace("x.pftrace")``).

The writer below follows PyTorch's public sources (BSD-3-Clause): torch/csrc/profiler/cuspy/cuspy_pftrace.cpp encodes
the packets, and torch/profiler/_cuspy/trace.py selects their contents. All packets belong to sequence 1. Its second
packet has all interned data. Tracks come first, without a sequence. Groups of slices follow. A group has all starts of
the operators in any order of time, and then their ends in the same order. Other groups have the calls and further
kinds. GPU work by kind follows, then counters. The file is compressed with gzip. GPU work has no submission id: its ids
are strings in extra_data, and zeros are left out. Kernels have only a demangled name, and three arguments of their
launch. Graphics context 1 is the process, stages have ids from 1 on, and streams from 100 on.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

import cutrace
from cutrace.exporters.perfetto.first_screen import first_screen
from pftrace import EXTENSIONS
from support import cutrace as run

BASE = 1_790_000_000_000_000_000
BEGIN, END = 1, 2
PID, CPU, GPU_SYNC, OVERHEAD = 70, 2, 4, 6
KERNEL, MEMCPY, MEMSET, ANNOTATION = 1, 2, 3, 4
STAGES = ("Kernel", "Memcpy", "Memset", "Annotation", "EventRecord", "HostNode")
NAMES = ("aten::mm", "cudaLaunchKernel", "cudaGraphLaunch", "Event Sync", "Resource", "gemm<float>", "step")
CATEGORIES = ("cpu_op", "cuda_runtime", "user_annotation")
ARGUMENTS = ("registers_per_thread", "shared_mem_dynamic", "thread_count")
COUNTERS = ("Power (W)", "SM Active (%)", "Cycles (Current Kernel)")


class TorchWriter:
    """Writes a trace packet by packet. Times are nanoseconds after :data:`BASE`."""

    def __init__(self) -> None:
        self.trace = protos.Trace()
        self.ends: list[tuple[int, int]] = []
        clocks = self.packet(timestamp=BASE).clock_snapshot.clocks
        for clock in (6, 1):
            clocks.add(clock_id=clock, timestamp=BASE)
        for uuid, pid, name in ((1, PID, "python"), (3, 0, "GPU 0"), (5, 0x7FFFFFFF, "Overhead")):
            process = self.trace.packet.add().track_descriptor
            process.uuid, process.process.pid, process.process.process_name = uuid, pid, name
            thread = self.trace.packet.add().track_descriptor
            thread.uuid, thread.parent_uuid = uuid + 1, uuid
            thread.thread.pid, thread.thread.tid = pid, {1: 71, 3: 7, 5: 0}[uuid]
            thread.thread.thread_name = "thread 71" if uuid == 1 else "stream 7"
        self.intern()

    def packet(self, **fields: Any) -> Any:
        return self.trace.packet.add(trusted_packet_sequence_id=1, **fields)

    def intern(self) -> None:
        data = self.packet(sequence_flags=1).interned_data
        descriptor = data.gpu_counter_descriptors.add(iid=1, gpu_id=0).counter_descriptor
        for number, name in enumerate(COUNTERS):
            descriptor.specs.add(counter_id=number, name=name)
        descriptor.counter_groups.add(group_id=6, counter_ids=[2])
        for table, names in ((data.event_names, NAMES), (data.event_categories, CATEGORIES)):
            for iid, name in enumerate(names, 1):
                table.add(iid=iid, name=name)
        for iid, name in enumerate(STAGES, 1):
            data.gpu_specifications.add(iid=iid, name=name, category=2 if name == "Kernel" else 0)
        for iid, stream in ((100, 7), (101, 20)):
            data.gpu_specifications.add(iid=iid, name=f"[{stream:02}] stream {stream}", category=0)
        data.graphics_contexts.add(iid=1, pid=PID)
        data.Extensions[EXTENSIONS["compute_kernels"]].add(iid=1, demangled_name="gemm<float>")
        for iid, name in enumerate(ARGUMENTS, 1):
            data.Extensions[EXTENSIONS["compute_arg_names"]].add(iid=iid, name=name)

    def slice(self, track: int, start: int, end: int, name: str, category: str = "", **args: Any) -> Any:
        """Add a slice to the group of the last one, unless :meth:`end_group` was called in between."""
        event = self.packet(timestamp=BASE + start, sequence_flags=2).track_event
        event.type, event.track_uuid, event.name_iid = BEGIN, track, NAMES.index(name) + 1
        if category:
            event.category_iids.append(CATEGORIES.index(category) + 1)
        for key, value in args.items():
            kind = "string_value" if isinstance(value, str) else "int_value"
            event.debug_annotations.add(name=key.replace("_id_", " id"), **{kind: value})
        self.ends.append((track, end))
        return event

    def end_group(self) -> None:
        """Write the ends of the slices since the last group, in their order."""
        for track, end in self.ends:
            last = self.packet(timestamp=BASE + end).track_event
            last.type, last.track_uuid = END, track
        self.ends = []

    def work(self, stage: int, event_id: int, start: int, end: int, stream: int = 7, **extra: int) -> Any:
        self.end_group()
        event = self.packet(timestamp=BASE + start, sequence_flags=2).gpu_render_stage_event
        event.event_id, event.duration, event.gpu_id, event.stage_iid, event.context = (
            event_id,
            end - start,
            0,
            stage,
            1,
        )
        event.hw_queue_iid = {7: 100, 20: 101}[stream]
        ids = {"device id": 0, "context id": 1, "stream id": stream}
        for name, value in (ids | {key.replace("_", " "): value for key, value in extra.items() if value}).items():
            event.extra_data.add(name=name, value=str(value))
        for name, value in (("arch", "sm_90"), ("process_id", str(PID)), ("process_name", "python")):
            event.extra_data.add(name=name, value=value)
        return event

    def kernel(self, event_id: int, start: int, end: int, stream: int = 7, **extra: int) -> Any:
        event = self.work(KERNEL, event_id, start, end, stream, **extra)
        event.kernel_iid, event.name_iid = 1, NAMES.index("gemm<float>") + 1
        for size, values in ((event.launch.grid_size, (8, 2, 1)), (event.launch.workgroup_size, (128, 1, 1))):
            size.x, size.y, size.z = values
        for iid, value in ((1, 32), (2, 1024), (3, 128)):
            event.launch.args.add(name_iid=iid, uint_value=value)
        return event

    def counter(self, time: int, number: int, value: float) -> None:
        event = self.packet(timestamp=BASE + time, sequence_flags=2).gpu_counter_event
        event.counter_descriptor_iid = 1
        if number == 2:
            event.counters.add(counter_id=number, int_value=int(value))
        else:
            event.counters.add(counter_id=number, double_value=value)

    def write(self, folder: Path) -> Path:
        self.end_group()
        path = folder / "torch.pftrace"
        path.write_bytes(gzip.compress(self.trace.SerializeToString()))
        return path


def step() -> TorchWriter:
    """Two launches with their work: a kernel, and a graph of two kernels. One kernel of the graph waits for the
    other."""
    torch = TorchWriter()
    torch.slice(CPU, 1_000, 9_000, "aten::mm", "cpu_op", **{"External id": 5})
    torch.end_group()
    launch = torch.slice(CPU, 2_000, 3_000, "cudaLaunchKernel", "cuda_runtime", cbid=211, correlation=11)
    launch.Extensions[EXTENSIONS["gpu_correlation"]].render_stage_submission_event_ids.append(1)
    graph = torch.slice(CPU, 4_000, 5_000, "cudaGraphLaunch", "cuda_runtime", cbid=311, correlation=14)
    graph.Extensions[EXTENSIONS["gpu_correlation"]].render_stage_submission_event_ids.append(3)
    torch.end_group()
    torch.slice(OVERHEAD, 100, 200, "Resource")
    torch.end_group()
    sync = {"stream": 7, "correlation": 15, "device": 0, "context": 1, "cuda_sync_kind": "Event Sync"}
    torch.slice(GPU_SYNC, 30_000, 40_000, "Event Sync", **sync, wait_on_cuda_event_id=9)
    torch.kernel(1, 10_000, 12_000, correlation=11, priority=-1)
    waiting = torch.kernel(2, 16_000, 17_000, 20, correlation=14, graph_id=3, graph_node_id=2)
    waiting.event_wait_ids.append(3)
    torch.kernel(3, 14_000, 15_500, correlation=14, graph_id=3, graph_node_id=1)
    torch.work(MEMCPY, 4, 18_000, 19_000, correlation=12, bytes=4096)
    torch.work(MEMSET, 5, 19_000, 19_500, correlation=13, bytes=64)
    torch.work(ANNOTATION, 6, 10_000, 12_000).name_iid = NAMES.index("step") + 1
    for time in (10_000, 20_000):
        torch.counter(time, 0, 350.5)
        torch.counter(time, 1, 61.25)
    torch.counter(10_000, 2, 3_600)
    return torch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return step().write(tmp_path)


def times(trace: cutrace.Trace, table: str) -> list[tuple[int, int]]:
    rows = trace.table(table)
    return sorted((int(row["start"]) - BASE, int(row["end"]) - BASE) for row in rows)


def test_every_kernel_has_its_correlation_launch_and_graph_node(path: Path) -> None:
    with cutrace.load(path) as trace:
        assert times(trace, "kernels") == [(10_000, 12_000), (14_000, 15_500), (16_000, 17_000)]
        fields = ["device", "context", "stream", "correlation"]
        assert sorted(trace.kernels[fields].tolist()) == [(0, 1, 7, 11), (0, 1, 7, 14), (0, 1, 20, 14)]
        launches = trace.launches[trace.kernels["launch"]]
        assert set(trace.strings.take(launches["name"]).tolist()) == {"gemm<float>"}
        shape = ["registers", "dynamic_shared", "grid_x", "grid_y", "grid_z", "block_x"]
        assert set(launches[shape].tolist()) == {(32, 1024, 8, 2, 1, 128)}
        assert sorted(launches[["graph", "graph_node"]].tolist()) == [(0, 0), (3, 1), (3, 2)]
        assert trace.streams[["stream", "priority"]].tolist() == [(7, -1)]
        assert [process.pid for process in trace.processes] == [PID]


def test_copies_and_fills_have_their_bytes(path: Path) -> None:
    with cutrace.load(path) as trace:
        assert trace.memcpys[["stream", "correlation", "bytes"]].tolist() == [(7, 12, 4096)]
        assert trace.memsets[["stream", "correlation", "bytes"]].tolist() == [(7, 13, 64)]
        assert trace.strings.take(trace.gpu_slices["name"]).tolist() == ["step"]


def test_the_host_has_operators_calls_waits_and_overhead(path: Path) -> None:
    with cutrace.load(path) as trace:
        assert sorted(trace.api_calls[["thread", "correlation"]].tolist()) == [(71, 11), (71, 14)]
        assert trace.host_slices[["thread", "kind", "external"]].tolist() == [(71, 1, 5)]
        assert trace.synchronizations[["stream", "correlation", "event"]].tolist() == [(7, 15, 9)]
        assert times(trace, "overheads") == [(100, 200)]


def named(trace: cutrace.Trace) -> list[tuple[str, int, int]]:
    """The slices of the host by start, the longest first. A slice that never ended has the end -1."""
    found = []
    for rows in (trace.host_slices, trace.unknown("host_slices")):
        names = trace.strings.take(rows["name"]).tolist()
        ends = [int(end) - BASE if end else -1 for end in rows["end"]]
        found += zip(names, (rows["start"] - BASE).tolist(), ends, strict=True)
    return sorted(found, key=lambda row: (row[1], -row[2], row[0]))


@pytest.mark.parametrize("reverse", [False, True])
def test_each_slice_of_a_group_has_its_own_end(tmp_path: Path, reverse: bool) -> None:
    expected = [("step", 10, 100), ("Resource", 10, 60), ("aten::mm", 10, 60), ("step", 60, 90), ("Resource", 90, 95)]
    torch = TorchWriter()
    for name, start, end in reversed(expected) if reverse else expected:
        torch.slice(CPU, start, end, name, "cpu_op")
    torch.slice(OVERHEAD + 2, 5, 6, "step", "cpu_op")  # a track of another thread, in the same group
    with cutrace.load(torch.write(tmp_path)) as trace:
        assert named(trace) == [("step", 5, 6), *expected]
        assert not trace.quality.losses


def test_slices_of_a_group_that_overlap_without_nesting_have_their_own_ends(tmp_path: Path) -> None:
    torch = TorchWriter()
    torch.slice(CPU, 10, 30, "step", "cpu_op")
    torch.slice(CPU, 20, 40, "aten::mm", "cpu_op")
    with cutrace.load(torch.write(tmp_path)) as trace:
        assert named(trace) == [("step", 10, 30), ("aten::mm", 20, 40)]


def test_groups_of_calls_and_operators_are_apart(tmp_path: Path) -> None:
    torch = TorchWriter()
    for start in range(0, 100, 20):
        torch.slice(CPU, start, start + 20, "aten::mm", "cpu_op")
    torch.end_group()
    for number, start in enumerate(range(5, 100, 20), 1):
        torch.slice(CPU, start, start + number, "cudaLaunchKernel", "cuda_runtime", cbid=211, correlation=number)
    with cutrace.load(torch.write(tmp_path)) as trace:
        assert times(trace, "host_slices") == [(start, start + 20) for start in range(0, 100, 20)]
        calls = trace.api_calls
        durations = calls["end"] - calls["start"]
        assert dict(zip(calls["correlation"].tolist(), durations.tolist(), strict=True)) == {
            1: 1,
            2: 2,
            3: 3,
            4: 4,
            5: 5,
        }


def test_slices_of_a_trace_that_is_cut_off_keep_the_ends_that_are_there(tmp_path: Path) -> None:
    torch = TorchWriter()
    for name, start, end in (("step", 10, 100), ("aten::mm", 20, 60), ("Resource", 30, 40)):
        torch.slice(CPU, start, end, name, "cpu_op")
    torch.end_group()
    del torch.trace.packet[-1]
    with cutrace.load(torch.write(tmp_path)) as trace:
        assert named(trace) == [("step", 10, 100), ("aten::mm", 20, 60), ("Resource", 30, -1)]


def test_where_an_end_of_a_group_is_missing_the_others_are_in_the_account(tmp_path: Path) -> None:
    torch = TorchWriter()
    for name, start, end in (("step", 10, 100), ("aten::mm", 20, 60), ("Resource", 30, 40)):
        torch.slice(CPU, start, end, name, "cpu_op")
    torch.end_group()
    del torch.trace.packet[-2]
    torch.slice(CPU, 200, 210, "step", "cpu_op")
    with cutrace.load(torch.write(tmp_path)) as trace:
        assert named(trace) == [("step", 10, -1), ("aten::mm", 20, -1), ("Resource", 30, -1), ("step", 200, 210)]
        accounts = {account.what: account for account in trace.imports[0].accounts}
        (why,) = accounts["ends of slices"].lost
        assert (why, accounts["ends of slices"].lost[why].count) == ("their begins are not known", 2)


def test_every_value_of_a_counter_arrives(path: Path) -> None:
    with cutrace.load(path) as trace:
        rows = trace.counters
        names = trace.strings.take(rows["name"]).tolist()
        found = sorted(zip(names, (rows["time"] - BASE).tolist(), rows["value"].tolist(), strict=True))
        assert found == [
            ("Cycles (Current Kernel)", 10_000, 3600.0), ("Power (W)", 10_000, 350.5), ("Power (W)", 20_000, 350.5),
            ("SM Active (%)", 10_000, 61.25), ("SM Active (%)", 20_000, 61.25),
        ]  # fmt: skip
        assert set(rows["device"].tolist()) == {0}


def test_an_edge_of_a_graph_is_an_arrow_from_the_end_to_the_start(path: Path) -> None:
    with cutrace.load(path) as trace:
        flows = trace.flows[["time", "id", "phase"]].tolist()
        assert [(time - BASE, number, chr(phase)) for time, number, phase in flows] == [
            (15_500, 1, "s"),
            (16_000, 1, "f"),
        ]


def test_packed_waits_are_edges_too(tmp_path: Path) -> None:
    torch = TorchWriter()
    for event_id, start in ((1, 10), (2, 20)):
        torch.kernel(event_id, start, start + 5)
    waiting = torch.kernel(3, 30, 40)
    waiting.MergeFromString(b"\x92\x01\x02\x01\x02")  # field 18 as a list of 1 and 2
    with cutrace.load(torch.write(tmp_path)) as trace:
        starts = trace.flows["time"][trace.flows["phase"] == ord("s")]
        assert sorted((starts - BASE).tolist()) == [15, 25]


def test_copies_and_fills_without_bytes_are_kept(tmp_path: Path) -> None:
    torch = TorchWriter()
    torch.work(MEMCPY, 1, 10, 20, correlation=3)
    torch.work(MEMSET, 2, 30, 40, correlation=4)
    with cutrace.load(torch.write(tmp_path)) as trace:
        assert trace.memcpys[["correlation", "bytes"]].tolist() == [(3, 0)]
        assert trace.memsets[["correlation", "bytes"]].tolist() == [(4, 0)]
        assert not trace.quality.losses


def test_kernels_without_a_launch_are_kernels(tmp_path: Path) -> None:
    torch = TorchWriter()
    torch.work(KERNEL, 1, 10, 20, correlation=3).name_iid = NAMES.index("gemm<float>") + 1
    torch.work(KERNEL, 2, 30, 40, correlation=4)  # without a name
    with cutrace.load(torch.write(tmp_path)) as trace:
        launches = trace.launches[trace.kernels["launch"]]
        assert sorted(trace.strings.take(launches["name"]).tolist()) == ["Kernel", "gemm<float>"]
        assert sorted(trace.kernels["correlation"].tolist()) == [3, 4]


def test_nothing_is_lost_and_a_note_says_that_durations_are_not_exact(path: Path, tmp_path: Path) -> None:
    done = run("convert", path, "-o", tmp_path / "x.pftrace")
    assert (done.returncode, done.stderr.count("could not be used")) == (0, 0)
    with cutrace.load(path) as trace:
        accounts = {account.what: account for account in trace.imports[0].accounts}
        assert all(account.balanced and not account.lost for account in accounts.values())
        assert not [what for what in accounts if what.startswith("field ")]
        assert accounts["argument thread_count of kernels"].seen.count == 3
        assert any("ends a kernel, copy or fill" in note for note in trace.quality.notes)


def test_the_page_shows_its_gpu_work_first(tmp_path: Path) -> None:
    torch = TorchWriter()
    torch.kernel(1, 10_000, 12_000)
    torch.slice(CPU, 1, 900_000, "cudaLaunchKernel", "cuda_runtime", cbid=211)
    with cutrace.load(torch.write(tmp_path)) as trace:
        shown = first_screen(trace)
    (command,) = json.loads(shown["startupCommands"])
    assert re.search(command["args"][0], f"python {PID} > GPU")
    assert (int(shown["visStart"]) - BASE, int(shown["visEnd"]) - BASE) == (9_940, 12_060)


def test_work_without_a_correlation_has_none(tmp_path: Path) -> None:
    torch = TorchWriter()
    torch.kernel(1, 10, 20)
    torch.slice(CPU, 1, 2, "cudaLaunchKernel", "cuda_runtime", cbid=211)
    torch.slice(CPU, 3, 4, "cudaLaunchKernel", "cuda_runtime", cbid=211, correlation=4)
    with cutrace.load(torch.write(tmp_path)) as trace:
        assert trace.kernels["correlation"].tolist() == [0]
        assert len(trace.external_correlations) == 0
    found = json.loads(run("stats", tmp_path / "torch.pftrace", "--report", "launch_sum", "--format", "json").stdout)
    assert "10ns" not in json.dumps(found)


def test_what_has_no_place_is_in_the_account(tmp_path: Path) -> None:
    torch = TorchWriter()
    torch.kernel(1, 10, 20).event_wait_ids.append(99)  # no such work
    launch = torch.slice(CPU, 1, 2, "cudaLaunchKernel", "cuda_runtime", cbid=211)
    launch.Extensions[EXTENSIONS["gpu_correlation"]].render_stage_submission_event_ids.append(1)
    torch.counter(5, 7, 1.0)  # no such counter
    with cutrace.load(torch.write(tmp_path)) as trace:
        left = trace.imports[0].leftovers()
        assert {"1 field 18 of GPU events left out", "1 field 3000 of track events left out"} <= set(left)
        assert trace.strings.take(trace.counters["name"]).tolist() == ["counter 7"]
