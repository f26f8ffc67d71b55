"""Derived data can be omitted from a Perfetto trace without other changes."""

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
