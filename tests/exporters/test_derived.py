"""Derived data can be omitted from a Perfetto trace without any other change."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
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
