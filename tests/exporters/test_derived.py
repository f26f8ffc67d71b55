"""Derived data can be omitted from a Perfetto trace without any other change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import ORIGIN, Capture
from cutrace.runbin import TABLES
from pftrace import decode

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("name", ["torch_step", "cpp_streams", "cuda_graph"])
def test_without_derived_tracks_the_records_are_the_same(name: str, tmp_path: Path) -> None:
    whole, records = tmp_path / "whole.pftrace", tmp_path / "records.pftrace"
    cutrace.convert(DATA / f"{name}.bin", whole)
    cutrace.convert(DATA / f"{name}.bin", records, derived=False)
    a, b = decode(whole), decode(records)
    assert a.counters
    assert not b.counters

    assert [(s.start, s.end, s.name) for s in a.slices] == [(s.start, s.end, s.name) for s in b.slices]
    assert a.derived
    assert not b.derived
    assert records.stat().st_size < whole.stat().st_size
    with cutrace.load(whole) as one, cutrace.load(records) as other:
        assert one.count("kernels") == other.count("kernels") > 0


def test_tracks_of_a_stream_are_beside_each_other(tmp_path: Path) -> None:
    cutrace.convert(DATA / "torch_step.bin", tmp_path / "out.pftrace")
    tracks = decode(tmp_path / "out.pftrace").tracks
    groups: dict[str, list[tuple[int, str]]] = {}
    for track in tracks.values():
        parent = tracks.get(track.parent_uuid)
        if parent is not None and parent.child_ordering == parent.EXPLICIT:
            groups.setdefault(parent.name, []).append((track.sibling_order_rank, track.name))
    assert [name for _, name in sorted(groups.pop("GPU 0: ranges and queues"))] == [
        "NVTX on stream 7", "launch queue, stream 7", "NVTX on stream 13", "launch queue, stream 13",
        "copy bandwidth, device 0: DtoH", "copy bandwidth, device 0: HtoD",
    ]  # fmt: skip
    # Viewers sort the groups of a process by name.
    assert sorted(groups) == ["memory", "overhead and synchronization"]
    costs = [name for _, name in sorted(groups["overhead and synchronization"])]
    assert costs[-1].startswith("synchronization")


def test_many_allocations_of_many_devices_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    # More devices than counters, and more allocations than a counter keeps.
    rows = np.zeros(70_000, TABLES["allocations"].dtype)
    numbers = np.arange(len(rows))
    rows["time"] = ORIGIN + numbers
    rows["device"] = numbers % 300
    rows["bytes"] = 1
    rows["operation"] = 1
    rows["memory"] = 3
    with Capture(path) as c:
        c.kernel(c.launch("k"), 0, 10)
        c.writer.rows("allocations", rows)
    cutrace.convert(path, tmp_path / "run.pftrace")
    counters = decode(tmp_path / "run.pftrace").counters
    last = {counter.track.name: counter.value for counter in counters}
    assert last["memory in use, device 0: device"] == 234
    assert len(last) >= 256
