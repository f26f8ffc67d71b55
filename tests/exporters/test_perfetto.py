"""The metadata and the packets of a Perfetto trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import captures
import cutrace
from captures import ORIGIN, Capture
from cutrace import conversion
from cutrace.errors import CutraceError
from cutrace.exporters.base import Request
from cutrace.exporters.perfetto import export, host_writer, pipeline, write
from cutrace.runbin.blocks import HEADER_SIZE
from pftrace import EXTENSIONS, Decoded, decode, packets

DATA = Path(__file__).parents[1] / "data"


def convert(capture: Path, **options: object) -> Decoded:
    out = capture.with_suffix(".pftrace")
    cutrace.convert(capture, out, **options)
    return decode(out)


@pytest.fixture
def ordinary(tmp_path: Path) -> Path:
    return captures.training_steps(tmp_path / "ordinary.bin")


@pytest.fixture
def awkward(tmp_path: Path) -> Path:
    return captures.awkward(tmp_path / "awkward.bin")


class TestProcessesAndThreads:
    def test_names(self, ordinary: Path) -> None:
        tracks = convert(ordinary).tracks.values()
        assert [(t.process.pid, t.process.process_name) for t in tracks if t.HasField("process")] == [(100, "program")]
        threads = {t.thread.tid: t.thread.thread_name for t in tracks if t.HasField("thread")}
        assert threads == {100: "main", 101: "loader"}

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("thread 71 (python3)", "python3"),
            ("thread 71", ""),
            ("Host Threads/71", "Host Threads"),
            ("thread 72 (python3)", "thread 72 (python3)"),
            ("pool/3", "pool/3"),
            ("main", "main"),
        ],
    )
    def test_names_of_threads_do_not_repeat_the_id(self, name: str, shown: str, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.mark("here", 5, thread=71)
            c.add("threads", thread=71, name=name)
        threads = [t.thread for t in convert(c.path).tracks.values() if t.HasField("thread")]
        assert [(t.tid, t.thread_name) for t in threads] == [(71, shown)]

    def test_processes_with_one_pid_stay_apart(self, awkward: Path) -> None:
        decoded = convert(awkward)
        pids = [t.process.pid for t in decoded.tracks.values() if t.HasField("process")]
        assert len(set(pids)) == 3
        assert {e.pid for e in decoded.gpu} == set(pids)

    def test_queues_and_contexts_of_processes_stay_apart(self, awkward: Path) -> None:
        queues: dict[int, set[tuple[int, str]]] = {}
        for e in convert(awkward).gpu:
            queues.setdefault(e.queue_iid, set()).add((e.pid, e.queue))
        assert all(len(names) == 1 for names in queues.values())
        names = [name for entries in queues.values() for _, name in entries]
        assert len(set(names)) == len(names) == 3 * 2

    def test_names_of_queues_say_what_tells_them_apart(self, tmp_path: Path) -> None:
        def capture(pid: int, *contexts: int) -> Path:
            with Capture(tmp_path / f"{pid}.bin", pid=pid) as c:
                c.api("cudaFree", 1, 2)
                for context in contexts:
                    c.kernel(c.launch("k"), 10 * context, 10 * context + 5, context=context)
            return c.path

        def queues(*parts: Path) -> list[str]:
            return sorted({e.queue for e in convert(captures.join(tmp_path / "both.bin", parts)).gpu})

        idle, one, two = capture(1), capture(2, 1), capture(3, 1, 2)
        assert queues(idle, one) == ["stream 7"]
        assert queues(idle, two) == ["stream 7", "stream 7, device 0 context 2"]
        assert queues(one, two) == [
            "stream 7, device 0 context 2, program (3)", "stream 7, program (2)", "stream 7, program (3)",
        ]  # fmt: skip

    def test_a_context_without_work_changes_no_names(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            for context in (1, 2):
                c.add("contexts", context=context, device=context - 1)
            c.kernel(c.launch("k"), 10, 20, context=1)
        assert {e.queue for e in convert(c.path).gpu} == {"stream 7"}

    def test_tracks_of_a_stream_whose_context_is_not_known(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.kernel(c.launch("k"), 10, 20, context=1)
            c.add("gpu_slices", start=ORIGIN + 10, end=ORIGIN + 20, name="step", stream=7)
            c.add("gpu_slices", start=ORIGIN + 10, end=ORIGIN + 20, name="step", stream=7, device=1)
        names = {t.name for t in convert(c.path).tracks.values() if t.name.startswith("annotations")}
        assert names == {"annotations, stream 7", "annotations, stream 7, device 1"}

    def test_annotations_without_a_context_are_beside_their_stream(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            for number, stream in enumerate((7, 8)):
                begin = 100 * number
                c.api("cudaLaunchKernel", begin, begin + 5, correlation=number + 1)
                c.kernel(c.launch("k"), begin + 10, begin + 20, correlation=number + 1, context=1, stream=stream)
                c.add("gpu_slices", start=ORIGIN + begin + 10, end=ORIGIN + begin + 20, name="step", stream=stream)
        tracks = convert(c.path).tracks.values()
        ranks = {t.name: t.sibling_order_rank for t in tracks if t.name.endswith((", stream 7", ", stream 8"))}
        assert sorted(ranks, key=lambda name: ranks[name]) == [
            "annotations, stream 7", "launch queue, stream 7", "annotations, stream 8", "launch queue, stream 8",
        ]  # fmt: skip

    def test_annotations_of_a_stream_of_several_contexts(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            for context in (1, 2):
                c.kernel(c.launch("k"), 10 * context, 10 * context + 5, context=context)
            c.add("gpu_slices", start=ORIGIN + 10, end=ORIGIN + 20, name="step", stream=7)
        assert {e.queue for e in convert(c.path).gpu} == {"stream 7", "stream 7, device 0 context 2"}
        names = {t.name for t in convert(c.path).tracks.values() if t.name.startswith("annotations")}
        assert names == {"annotations, stream 7"}


class TestGpus:
    def test_facts(self, ordinary: Path) -> None:
        (gpu,) = convert(ordinary).gpus
        assert (gpu.name, gpu.vendor, gpu.architecture, gpu.pci_bdf) == (
            "NVIDIA H200", "NVIDIA", "Hopper", "0000:19:00.0",
        )  # fmt: skip
        assert gpu.uuid == bytes(range(1, 17))
        assert {kv.key: kv.value for kv in gpu.extra_info}["compute_capability"] == "9.0"

    @pytest.mark.parametrize(
        ("name", "vendor", "architecture"),
        [("AMD Instinct MI250X", "AMD", ""), ("Intel(R) Data Center GPU Max 1550", "Intel", ""),
         ("Tesla V100", "NVIDIA", "Hopper")],
    )  # fmt: skip
    def test_vendor_and_architecture(self, tmp_path: Path, name: str, vendor: str, architecture: str) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.add("devices", device=0, name=name, compute_major=9)
        (gpu,) = convert(c.path).gpus
        assert (gpu.name, gpu.vendor, gpu.architecture) == (name, vendor, architecture)

    def test_a_gpu_that_is_not_described_keeps_its_number(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.add("devices", device=0, name="NVIDIA H200")
            for number, device in enumerate((2, 0)):
                c.kernel(c.launch("k"), 10 * number, 10 * number + 5, device=device)
        assert [e.gpu for e in convert(c.path).gpu] == [2, 0]

    def test_architectures(self, tmp_path: Path) -> None:
        names = {
            (5, 0): "Maxwell", (5, 2): "Maxwell", (5, 3): "Maxwell", (6, 0): "Pascal", (6, 1): "Pascal",
            (6, 2): "Pascal", (7, 0): "Volta", (7, 2): "Volta", (7, 5): "Turing", (8, 0): "Ampere",
            (8, 6): "Ampere", (8, 7): "Ampere", (8, 9): "Ada Lovelace", (9, 0): "Hopper", (10, 0): "Blackwell",
            (10, 3): "Blackwell", (11, 0): "Blackwell", (12, 0): "Blackwell", (12, 1): "Blackwell", (99, 0): "",
        }  # fmt: skip
        with Capture(tmp_path / "c.bin") as c:
            for number, (major, minor) in enumerate(names):
                c.device(number, uuid=bytes([number] * 16), compute_major=major, compute_minor=minor)
                c.kernel(c.launch("k"), 10, 20, device=number)
        assert [gpu.architecture for gpu in convert(c.path).gpus] == list(names.values())

    def test_one_gpu_seen_by_two_processes_is_one(self, tmp_path: Path) -> None:
        parts = []
        for pid, ordinal in ((1, 0), (2, 3)):
            with Capture(tmp_path / f"{pid}.bin", pid=pid) as c:
                c.device(ordinal)
                c.kernel(c.launch("k"), 10, 20, device=ordinal)
            parts.append(c.path)
        decoded = convert(captures.join(tmp_path / "both.bin", parts))
        assert len(decoded.gpus) == 1
        assert [(e.gpu, e.args["device"]) for e in decoded.gpu] == [(0, 0), (0, 3)]

    def test_without_a_table_of_devices(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.kernel(c.launch("k"), 10, 20, device=2)
        decoded = convert(c.path)
        assert decoded.gpus == []
        assert decoded.gpu[0].gpu == 2
        assert "occupancy_limit_warps" not in decoded.gpu[0].args

    def test_occupancy_and_arguments_that_viewers_read(self, ordinary: Path) -> None:
        gemm = next(e for e in convert(ordinary).gpu if "gemm<0>" in e.name)
        expected = {
            "device": 0, "stream_id": 7, "process_id": 100, "process_name": "program", "grid_size": 64,
            "workgroup_size": 256, "thread_count": 64 * 256, "registers_per_thread": 96, "shared_mem_static": 0,
            "shared_mem_dynamic": 49_152, "shared_mem_config_size": 102_400, "shared_mem_driver": 1024,
            "occupancy_limit_blocks": 32, "occupancy_limit_warps": 8, "occupancy_limit_registers": 2,
            "occupancy_limit_shared_mem": 4, "sm__maximum_warps_per_active_cycle_pct": 25.0,
            "sm__maximum_warps_avg_per_active_cycle": 16, "waves_per_multiprocessor": 64 / (2 * 132),
        }  # fmt: skip
        assert {k: gemm.args[k] for k in expected} == expected
        assert "stream" not in gemm.args  # if it had one, Perfetto's page would not show the stream's name
        assert gemm.kernel.arch == "sm_90"
        assert (gemm.grid, gemm.block) == ((64, 1, 1), (256, 1, 1))

    def test_all_arguments_of_a_kernel(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.device()
            launch = c.launch(
                "k", (2, 3, 5), (64, 2, 1), registers=40, static_shared=1, dynamic_shared=2, shared_executed=3,
                local_per_thread=4, local_total=5, max_cluster=8, max_active_clusters=16, cluster_x=1, cluster_y=2,
                cluster_z=1, cluster_policy=9, shared_limit=10, carveout=50, graph=6, graph_node=7, cache_requested=1,
                cache_executed=2, launch_type=1,
            )  # fmt: skip
            c.kernel(launch, 0, 10, stream=8)
            c.kernel(c.launch("k", local_total=5, cluster_policy=9), 20, 30)
        full, plain = convert(c.path).gpu
        assert full.args == {
            "device": 0, "context": 1, "stream_id": 8, "process_id": 100, "process_name": "program",
            "grid_size": 30, "workgroup_size": 128, "thread_count": 3840, "launch.grid_size.x": 2,
            "launch.grid_size.y": 3, "launch.grid_size.z": 5, "launch.workgroup_size.x": 64,
            "launch.workgroup_size.y": 2, "launch.workgroup_size.z": 1, "registers_per_thread": 40,
            "shared_mem_static": 1, "shared_mem_dynamic": 2, "shared_mem_driver": 1024, "shared_mem_config_size": 3,
            "shared_mem_limit_config": 10, "shared_mem_carveout_pct": 50, "func_cache_config": "prefer L1",
            "func_cache_config_requested": "prefer shared memory", "local_mem_per_thread": 4, "local_mem_total": 5,
            "cluster_size": "1x2x1", "max_cluster_size": 8, "max_active_clusters": 16, "cluster_scheduling_policy": 9,
            "launch_type": "cooperative", "graph": 6, "graph_node": 7, "occupancy_limit_blocks": 32,
            "occupancy_limit_warps": 16, "occupancy_limit_registers": 12, "occupancy_limit_shared_mem": 202,
            "sm__maximum_warps_avg_per_active_cycle": 48, "sm__maximum_warps_per_active_cycle_pct": 75.0,
            "waves_per_multiprocessor": 30 / (12 * 132),
        }  # fmt: skip
        assert plain.args.keys() == full.args.keys() - {
            "shared_mem_limit_config", "shared_mem_carveout_pct", "func_cache_config", "func_cache_config_requested",
            "local_mem_per_thread", "local_mem_total", "cluster_size", "max_cluster_size", "max_active_clusters",
            "cluster_scheduling_policy", "launch_type", "graph", "graph_node",
        }  # fmt: skip

    def test_all_arguments_of_copies_and_fills(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.memcpy(0, 10, 40, flags=1, graph=3, graph_node=4)
            c.memcpy(10, 20, 60, kind=10, source=3, peer_context=2)
            c.memcpy(20, 30, 80, kind=8, source=3, peer_context=2)
            c.work("memcpys", 30, 40, bytes=8, kind=8, source_memory=3, destination_memory=5, source_device=1,
                   destination_device=2, peer_context=3)  # fmt: skip
            c.memset(40, 50, 16, value=255, flags=1)
            c.memset(50, 60, 16, graph=3, graph_node=4)
        on = {"device": 0, "context": 1, "stream_id": 7}
        of_graph = {"graph": 3, "graph_node": 4}
        peers = {"source_device": 0, "destination_device": 0, "peer_context": 2}
        others = {"source_device": 1, "destination_device": 2, "peer_context": 3}
        kinds = ("kind", "source_memory", "destination_memory", "bytes", "bandwidth")
        copies = [
            ("HtoD", ("HtoD", "pageable", "device", 40, 4_000_000_000), {"asynchronous": 1, **of_graph}),
            ("PtoP", ("PtoP", "device", "device", 60, 6_000_000_000), peers),
            ("DtoD", ("DtoD", "device", "device", 80, 8_000_000_000), {}),
            ("DtoD", ("DtoD", "device", "managed", 8, 800_000_000), others),
        ]
        fills = [
            {"value": 255, "memory": "device", "bytes": 16, "asynchronous": 1},
            {"value": 0, "memory": "device", "bytes": 16, **of_graph},
        ]
        assert [(e.name, e.args) for e in convert(c.path).gpu] == [
            *((f"Memcpy {kind}", on | dict(zip(kinds, values, strict=True)) | more) for kind, values, more in copies),
            *(("Memset", on | arguments) for arguments in fills),
        ]

    def test_what_many_launches_share_is_in_the_trace_once(self, ordinary: Path, tmp_path: Path) -> None:
        convert(ordinary)
        field = EXTENSIONS["compute_kernels"]
        kernels = [k.name for p in packets(tmp_path / "ordinary.pftrace") for k in p.interned_data.Extensions[field]]
        assert len([name for name in kernels if name]) == 8 + 2  # eight layers on one stream each, one kernel on both


class TestClocks:
    def test_snapshots_of_the_capture(self, ordinary: Path) -> None:
        first = convert(ordinary).clocks[0]
        assert first == {6: ORIGIN, 3: ORIGIN - 5_000, 5: ORIGIN - 4_000, 1: ORIGIN + 1_700_000_000_000_000_000}

    def test_times_cost_few_bytes(self, ordinary: Path, tmp_path: Path) -> None:
        convert(ordinary)
        deltas = [p.timestamp for p in packets(tmp_path / "ordinary.pftrace") if p.HasField("gpu_render_stage_event")]
        assert max(deltas) < 1 << 21  # three bytes

    def test_blocks_that_overlap_share_a_sequence(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            k = c.launch("k")
            for i in range(5):
                for j in range(10):
                    c.kernel(k, 100 * i + 50 * j, 100 * i + 50 * j + 10)
                c.flush()
        decoded = convert(c.path)
        assert sorted(e.start - ORIGIN for e in decoded.gpu) == sorted(
            100 * i + 50 * j for i in range(5) for j in range(10)
        )
        gpu = {
            p.trusted_packet_sequence_id
            for p in packets(tmp_path / "c.pftrace")
            if p.HasField("gpu_render_stage_event")
        }
        assert len(gpu) == 1

    def test_a_block_whose_header_lies_about_its_times(self, tmp_path: Path) -> None:
        """Rows that start before the time in the header are written on a separate sequence with correct times."""
        with Capture(tmp_path / "c.bin") as c:
            c.api("late", 1_000, 2_000)
            c.flush()
            c.api("early", 100, 200)
        with cutrace.load(c.path) as trace:
            infos = trace.block_infos("api_calls")
            lying = [infos[0], infos[1].__class__(**{**infos[1].__dict__, "first_time": ORIGIN + 5_000})]
            trace.block_infos = lambda name, *_: lying if name == "api_calls" else []  # type: ignore[method-assign]
            write(trace, tmp_path / "out.pftrace", Request())
        found = {(s.name, s.start - ORIGIN, (s.end or 0) - ORIGIN) for s in decode(tmp_path / "out.pftrace").slices}
        assert found >= {("late", 1_000, 2_000), ("early", 100, 200)}


class TestOrder:
    """Viewers sort packets by time, unless they are already in order."""

    @pytest.mark.parametrize("name", ["torch_step.bin", "processes.bin", "kineto-torch2.11-h200-train-graph.json.gz"])
    def test_track_events_are_written_in_it(self, name: str, tmp_path: Path) -> None:
        cutrace.convert(DATA / name, tmp_path / "out.pftrace")
        decoded = decode(tmp_path / "out.pftrace")
        assert len({s.pid for s in decoded.slices}) > 1 or name == "torch_step.bin"
        assert decoded.counters
        assert decoded.written == sorted(decoded.written)

    def test_processes_with_few_rows_are_written_with_one_that_has_many(self) -> None:
        few, many = 10, 1 << 20
        assert export.groups([few, many, few, many, few]) == [[0, 1, 2], [3, 4]]
        assert [len(group) for group in export.groups([few] * 20)] == [8, 8, 4]


class TestCounters:
    def test_values_of_one_moment_share_a_packet_of_up_to_nine(self, tmp_path: Path) -> None:
        events = [
            {"ph": "C", "name": f"c{i}", "ts": ts, "pid": 1, "tid": 1, "args": {"v": 10 * i + ts}}
            for ts in (1, 2, 3)
            for i in range(20)
        ]
        (tmp_path / "c.json").write_text(json.dumps({"traceEvents": events}))
        decoded = convert(tmp_path / "c.json")
        found = {(s.time, s.track.name.split(",")[0], s.value) for s in decoded.counters}
        begin = min(s.time for s in decoded.counters) - 1000
        assert found == {(begin + 1000 * e["ts"], e["name"], e["args"]["v"]) for e in events}
        written = [p.track_event for p in packets(tmp_path / "c.pftrace") if p.track_event.type == 4]
        assert sorted(len(event.extra_counter_values) for event in written)[-3:] == [8, 8, 8]
        assert len(decoded.counters) == len(events) == len(written) + sum(len(e.extra_counter_values) for e in written)

    def test_values_at_the_moment_of_another_event_are_in_its_packet(self, tmp_path: Path) -> None:
        cutrace.convert(DATA / "kineto-torch2.11-h200-transformer.json.gz", tmp_path / "out.pftrace")
        events = [p.track_event for p in packets(tmp_path / "out.pftrace") if p.HasField("track_event")]
        assert sum(len(e.extra_counter_values) for e in events if e.type == 3) > 1_000
        assert not any(e.extra_counter_track_uuids for e in events if not e.extra_counter_values)


class TestOverlaps:
    def test_calls_that_do_not_nest_are_on_a_track_of_their_own_and_counted(self, awkward: Path) -> None:
        decoded = convert(awkward)
        spilled = [s for s in decoded.slices if s.track.name == "overlapping slices"]
        assert {s.name for s in spilled} == {"cudaMalloc", "ä µ 漢字"}
        assert {s.tid for s in spilled} == {100}
        assert any(s.name.startswith(f"{len(spilled)} slices shown on a separate track") for s in decoded.slices)

    def test_slices_nested_deeper_than_perfetto_keeps_are_all_shown_and_counted(self, tmp_path: Path) -> None:
        deep = [
            {"ph": "X", "pid": 1, "tid": 2, "ts": i, "dur": 5000 - 2 * i, "name": "deep", "cat": "cpu_op"}
            for i in range(1200)
        ]
        (tmp_path / "deep.json").write_text(json.dumps(deep))
        decoded = convert(tmp_path / "deep.json")
        assert sum(s.name == "deep" for s in decoded.slices) == 1200
        assert any("700 slices shown on a separate track" in s.name and "500 levels" in s.name for s in decoded.slices)

    def test_the_end_of_one_call_and_the_begin_of_the_next_at_one_moment(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            for i in range(100):
                c.api("a", 10 * i, 10 * i + 10)
                c.push_pop("b", 10 * i, 10 * i + 10)
                c.push_pop("c", 10 * i + 10, 10 * i + 10)
        assert not [s for s in convert(c.path).slices if s.track.name == "overlapping slices"]

    def test_kernels_of_one_stream_keep_their_times(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            k = c.launch("k")
            for i in range(10):
                c.kernel(k, 100 - 10 * i, 200 + i)
        assert sorted((e.start - ORIGIN, e.end - ORIGIN) for e in convert(c.path).gpu) == sorted(
            (100 - 10 * i, 200 + i) for i in range(10)
        )


class TestWhatIsMissing:
    def test_is_an_instant_and_an_attribute(self, awkward: Path) -> None:
        decoded = convert(awkward)
        notices = [s.name for s in decoded.slices if s.track.name == "cutrace"]
        assert any("126 records that CUPTI dropped" in n and "kernel" in n for n in notices)
        assert any(n.startswith("3 rows of kernels without known times") for n in notices)
        assert decoded.attributes["cutrace.missing"] == len(notices)
        assert decoded.attributes["cutrace.missing.0"] == notices[0]

    def test_damage_of_a_table_that_no_track_shows_is_told(self, tmp_path: Path) -> None:
        data = bytearray((captures.DATA / "torch_step.bin").read_bytes())
        with cutrace.load(captures.DATA / "torch_step.bin") as trace:
            (block,) = trace.block_infos("contexts")
        data[block.offset + HEADER_SIZE] ^= 1
        (tmp_path / "c.bin").write_bytes(data)
        attributes = convert(tmp_path / "c.bin").attributes
        assert attributes["cutrace.missing.0"].startswith("damaged block at byte")

    def test_a_capture_that_lost_nothing_has_no_such_track(self, ordinary: Path) -> None:
        decoded = convert(ordinary)
        assert decoded.attributes["cutrace.missing"] == 0
        assert "cutrace" not in {t.name for t in decoded.tracks.values()}


class TestWindows:
    """The size of the windows does not change the trace."""

    def test_small_windows_and_groups_give_the_same_events(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "many.bin"
        rng = np.random.default_rng(1)
        with Capture(path) as c:
            for i in range(60):
                for _ in range(20):
                    begin = int(rng.integers(0, 1_000)) + 700 * i
                    c.api("call", begin, begin + int(rng.integers(0, 300)), thread=100 + i % 3)
                    c.push_pop("range", begin, begin + int(rng.integers(0, 20_000)), thread=100 + i % 3)
                    c.mark("mark", begin)
                c.flush()
        whole = convert(path)
        monkeypatch.setattr(host_writer, "HOST_WINDOW", 1)
        monkeypatch.setattr(host_writer, "HOST_KEPT", 2_000)
        monkeypatch.setattr(pipeline, "GROUP_SIZE", 200)
        small = convert(path)

        def key(decoded: Decoded) -> list[tuple[object, ...]]:
            return sorted((s.name, s.start, s.end, s.tid) for s in decoded.slices if s.track.name != "cutrace")

        assert key(small) == key(whole)
        assert len(key(whole)) == 60 * 20 * 3

    def test_more_blocks_that_begin_at_one_time_than_are_in_memory_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Capture(tmp_path / "c.bin") as c:
            for i in range(30):
                for begin in (5, 5, 6, 90):
                    c.api(f"call {i}", begin, 100 + i, thread=100 + i)
                c.flush()
        whole = convert(c.path)
        for name, value in (("HOST_WINDOW", 1), ("HOST_BLOCKS", 6), ("HOST_BLOCKS_KEPT", 3)):
            monkeypatch.setattr(host_writer, name, value)
        small = convert(c.path)

        def key(decoded: Decoded) -> list[tuple[object, ...]]:
            return sorted((s.name, s.start, s.end) for s in decoded.slices if s.track.name != "cutrace")

        assert key(small) == key(whole)
        assert len(key(whole)) == 30 * 4


class TestSparseCaptures:
    def test_an_empty_one(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            pass
        decoded = convert(c.path)
        assert (decoded.slices, decoded.gpu) == ([], [])
        assert len(decoded.tracks) == 1

    def test_one_with_nvtx_only(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "c.bin") as c:
            c.push_pop("a", 1, 9)
            c.mark("m", 5)
        decoded = convert(c.path)
        assert [(s.name, s.start - ORIGIN) for s in decoded.slices] == [("a", 1), ("m", 5)]
        assert decoded.gpus == []


class TestFiles:
    def test_a_folder_that_is_not_there(self, ordinary: Path, tmp_path: Path) -> None:
        with cutrace.load(ordinary) as trace, pytest.raises(CutraceError, match="cannot write"):
            conversion.write(trace, tmp_path / "none" / "out.pftrace")

    def test_a_failure_leaves_nothing_behind(self, ordinary: Path, tmp_path: Path) -> None:
        def fail(done: int, total: int) -> None:
            raise RuntimeError("stop")

        before = set(tmp_path.iterdir())
        for name in ("out.pftrace", "out.pftrace.gz"):
            with cutrace.load(ordinary) as trace, pytest.raises(RuntimeError, match="stop"):
                conversion.write(trace, tmp_path / name, Request(progress=fail))
        assert set(tmp_path.iterdir()) == before

    def test_a_compression_that_is_not_known(self, ordinary: Path, tmp_path: Path) -> None:
        with cutrace.load(ordinary) as trace, pytest.raises(CutraceError, match="choose one of zstd, deflate"):
            write(trace, tmp_path / "out.pftrace", Request(compress="lzma"))  # type: ignore[arg-type]

    def test_compressed_traces_are_smaller(self, ordinary: Path, tmp_path: Path) -> None:
        sizes = {}
        for compress in (None, "zstd", "deflate"):
            cutrace.convert(ordinary, tmp_path / "out.pftrace", compress=compress)
            sizes[compress] = (tmp_path / "out.pftrace").stat().st_size
        assert max(sizes["zstd"], sizes["deflate"]) * 2 < sizes[None]


class TestRangesThatNeverEnded:
    def test_they_keep_their_id_and_their_thread(self, tmp_path: Path) -> None:
        with Capture(tmp_path / "open.bin") as capture:
            capture.add("nvtx_ranges", start=ORIGIN + 5, name="lasting", thread=100, range_id=77, kind=1, flags=1)
        (opened,) = convert(tmp_path / "open.bin").slices
        assert (opened.name, opened.start, opened.end) == ("lasting", ORIGIN + 5, None)
        assert (opened.args["range_id"], opened.args["thread"]) == (77, 100)


@pytest.mark.filterwarnings("error")
def test_a_payload_of_any_bits_is_no_cause_for_a_warning(tmp_path: Path) -> None:
    with Capture(tmp_path / "nan.bin") as capture:
        capture.mark("odd", 5, payload=0x7FA0_0000, payload_type=6)
        capture.mark("even", 6, payload=0x7FA0_0000, payload_type=1)
    assert [s.name for s in convert(tmp_path / "nan.bin").slices] == ["odd", "even"]
