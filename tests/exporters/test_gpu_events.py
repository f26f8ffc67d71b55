"""Captures with almost as many launch configurations as launches. Dynamic shapes and rebuilt graphs make such
captures."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import cutrace
from captures import ORIGIN, Capture
from cutrace.exporters.perfetto.gpu_events import GpuEvents, GpuPart
from pftrace import decode, packets, protos

LAUNCHES = 20_000


def configuration(i: int) -> dict[str, int]:
    """Configuration ``i``. Each optional field is present in some configurations and absent in others."""
    return {
        "registers": i % 128,
        "static_shared": i % 5 * 16,
        "dynamic_shared": i % 7 * 1024,
        "local_per_thread": i % 3 * 8,
        "local_total": i % 3 << 40,
        "graph": i // 100 % 2 * i,
        "graph_node": i // 100 % 2 * (i + 1),
        "carveout": 255 if i % 4 else i % 101,
        "cluster_x": i % 2,
        "cluster_y": i % 2,
        "cluster_z": i % 2,
        "max_cluster": i % 2 * 8,
        "launch_type": i % 2,
        "cache_executed": i % 4,
    }


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Capture(tmp_path_factory.mktemp("many") / "many.bin") as c:
        c.device()
        for i in range(LAUNCHES):
            launch = c.launch(f"kernel_{i % 40}", (i + 1, 1 + i % 3, 1), (32 * (1 + i % 32), 1, 1), **configuration(i))
            c.kernel(launch, 1000 * i, 1000 * i + 700, stream=7 + i % 2, correlation=i + 1)
            if i % 10 == 0:
                c.add("memcpys", start=ORIGIN + 1000 * i, end=ORIGIN + 1000 * i + 9, bytes=i + 1, kind=1, context=1,
                      source_memory=1, destination_memory=3, graph=i, graph_node=i + 1)  # fmt: skip
    return c.path


def expected_arguments(i: int) -> dict[str, Any]:
    given = configuration(i)
    return {
        "grid_size": (i + 1) * (1 + i % 3),
        "workgroup_size": 32 * (1 + i % 32),
        "thread_count": (i + 1) * (1 + i % 3) * 32 * (1 + i % 32),
        "registers_per_thread": given["registers"],
        "shared_mem_static": given["static_shared"],
        "shared_mem_dynamic": given["dynamic_shared"],
        "local_mem_per_thread": given["local_per_thread"] or None,
        "local_mem_total": given["local_total"] if given["local_per_thread"] else None,
        "graph": given["graph"] or None,
        "graph_node": given["graph_node"] or None,
        "shared_mem_carveout_pct": None if given["carveout"] == 255 else given["carveout"],
        "cluster_size": "1x1x1" if i % 2 else None,
        "func_cache_config": (None, "prefer shared memory", "prefer L1", "equal")[i % 4],
        "max_cluster_size": given["max_cluster"] or None,
        "occupancy_limit_warps": 64 // (1 + i % 32),
    }


def test_each_launch_has_its_own_configuration(many: Path, tmp_path: Path) -> None:
    cutrace.convert(many, tmp_path / "out.pftrace")
    kernels = [e for e in decode(tmp_path / "out.pftrace").gpu if e.stage == "Kernel"]
    assert sorted(e.submission for e in kernels) == list(range(1, LAUNCHES + 1))
    for e in kernels:
        i = e.submission - 1
        assert e.start == ORIGIN + 1000 * i
        assert (e.name, e.kernel.name, e.args["stream_id"]) == (f"kernel_{i % 40}", f"kernel_{i % 40}", 7 + i % 2)
        assert (e.grid, e.block) == ((i + 1, 1 + i % 3, 1), (32 * (1 + i % 32), 1, 1))
        expected = expected_arguments(i)
        assert {name: e.args.get(name) for name in expected} == expected
        assert ("occupancy_limit_registers" in e.args) == (i % 128 > 0)


def test_kernels_have_no_arguments_of_their_own(many: Path, tmp_path: Path) -> None:
    # If an argument differed from event to event, trace_processor would store all arguments for each event.
    cutrace.convert(many, tmp_path / "out.pftrace")
    events = [
        p.gpu_render_stage_event for p in packets(tmp_path / "out.pftrace") if p.HasField("gpu_render_stage_event")
    ]
    kernels = [event for event in events if not event.HasField("launch")]
    assert len(kernels) == LAUNCHES
    fields = {field.name for event in kernels for field, _ in event.ListFields()}
    own = {"event_id", "duration", "cutrace_correlation"}
    assert fields - own == {"hw_queue_iid", "stage_iid", "context", "name_iid", "kernel_iid"}


def test_copies_of_many_graphs(many: Path, tmp_path: Path) -> None:
    cutrace.convert(many, tmp_path / "out.pftrace")
    copies = [e for e in decode(tmp_path / "out.pftrace").gpu if e.stage == "Memcpy"]
    found = sorted((e.start - ORIGIN, e.args["bytes"], e.args.get("graph"), e.args["graph_node"]) for e in copies)
    assert found == [(1000 * i, i + 1, i or None, i + 1) for i in range(0, LAUNCHES, 10)]


def test_memory_does_not_grow_with_each_configuration(many: Path, tmp_path: Path) -> None:
    # The peak memory of Python objects. A description of each configuration by field name would take some kilobytes.
    tracemalloc.start()
    try:
        cutrace.convert(many, tmp_path / "out.pftrace")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LAUNCHES * 2000


def test_a_sequence_that_begins_later_is_told_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = GpuEvents.write

    def halves(self: GpuEvents, part: GpuPart, *more: object) -> None:
        # The second half is written first. The first half is then before the clock, and needs a separate sequence.
        middle = len(part) // 2
        write(self, GpuPart(part.block, middle, part.end), *more)
        write(self, GpuPart(part.block, part.begin, middle), *more)

    with Capture(tmp_path / "c.bin") as c:
        c.device()
        launches = [c.launch(f"kernel_{i}", (i + 1, 1, 1)) for i in range(4)]
        for n, i in enumerate((0, 1, 2, 3, 3, 2, 0, 2)):
            c.kernel(launches[i], 100 * n, 100 * n + 50)
    monkeypatch.setattr(GpuEvents, "write", halves)
    cutrace.convert(c.path, tmp_path / "out.pftrace")
    events = sorted(decode(tmp_path / "out.pftrace").gpu, key=lambda e: e.start)
    found = [(e.kernel.name, e.grid[0], e.args["thread_count"]) for e in events]
    assert found == [(f"kernel_{i}", i + 1, 32 * (i + 1)) for i in (0, 1, 2, 3, 3, 2, 0, 2)]


def packets_with(trace: Path, field: str) -> int:
    """The number of packets with interned entries of a field."""
    packets = protos.Trace.FromString(trace.read_bytes()).packet
    return sum(len(getattr(packet.interned_data, field)) > 0 for packet in packets)


def test_many_names_are_written_together(tmp_path: Path) -> None:
    with Capture(tmp_path / "names.bin") as c:
        c.device()
        for i in range(500):
            c.kernel(c.launch(f"_Z6kernelILi{i}EEvv"), 100 * i, 100 * i + 50, correlation=i + 1)
    cutrace.convert(c.path, tmp_path / "names.pftrace", derived=False)
    assert packets_with(tmp_path / "names.pftrace", "event_names") <= 2
    events = sorted(decode(tmp_path / "names.pftrace").gpu, key=lambda e: e.start)
    assert [e.name for e in events] == [f"kernel<{i}>" for i in range(500)]
    assert [e.kernel.name for e in events] == [f"_Z6kernelILi{i}EEvv" for i in range(500)]


def test_many_streams_are_written_together(tmp_path: Path) -> None:
    with Capture(tmp_path / "streams.bin") as c:
        c.device()
        launch = c.launch("kernel")
        for i in range(500):
            c.kernel(launch, 100 * i, 100 * i + 50, stream=7 + i, context=1 + i % 2, correlation=i + 1)
    cutrace.convert(c.path, tmp_path / "streams.pftrace", derived=False)
    assert packets_with(tmp_path / "streams.pftrace", "gpu_specifications") <= 2
    events = sorted(decode(tmp_path / "streams.pftrace").gpu, key=lambda e: e.start)
    assert [(e.args["stream_id"], e.args["context"]) for e in events] == [(7 + i, 1 + i % 2) for i in range(500)]
    assert all(f"stream {e.args['stream_id']}" in e.queue for e in events)


def test_a_stream_has_the_name_that_the_program_gave_it(tmp_path: Path) -> None:
    with Capture(tmp_path / "named.bin") as c:
        c.device()
        c.add("resource_names", kind=1, object=8, context=1, name="copies")
        c.add("resource_names", kind=3, object=9, context=1, name="a device")
        launch = c.launch("kernel")
        for stream in (7, 8, 9):
            c.kernel(launch, 100 * stream, 100 * stream + 50, stream=stream, context=1)
    cutrace.convert(c.path, tmp_path / "named.pftrace", derived=False)
    events = sorted(decode(tmp_path / "named.pftrace").gpu, key=lambda e: e.start)
    assert [e.queue for e in events] == ["stream 7", "stream 8 copies", "stream 9"]
