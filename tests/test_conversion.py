"""cutrace.convert(): what it refuses. What it writes is in tests/exporters, what the command line says in tests/cli."""

from __future__ import annotations

import pytest

import cutrace
from support import small_capture


def test_the_capture_is_never_overwritten(tmp_path):
    capture = small_capture(tmp_path / "a.pftrace")
    (tmp_path / "link.pftrace").symlink_to(capture)
    for name in ("a.pftrace", "link.pftrace"):
        with pytest.raises(cutrace.CutraceError, match="is the capture itself"):
            cutrace.convert([capture], tmp_path / name)


def test_no_capture_is_an_error(tmp_path):
    with pytest.raises(cutrace.CutraceError, match="no capture"):
        cutrace.convert([], tmp_path / "a.pftrace")


def test_a_stretch_of_time_has_to_have_a_length(tmp_path):
    with pytest.raises(cutrace.CutraceError, match="after the start"):
        cutrace.convert(small_capture(tmp_path / "a.bin"), tmp_path / "a.pftrace", start=10, end=10)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_several_captures_open_as_one_trace(tmp_path):
    paths = [small_capture(tmp_path / f"{pid}.bin", pid=pid) for pid in (100, 200)]
    with cutrace.load(paths) as trace:
        assert [process.pid for process in trace.processes] == [100, 200]
        assert len(trace.kernels) == 4
    with cutrace.load(paths[:1]) as trace:
        assert len(trace.kernels) == 2
    with pytest.raises(cutrace.CutraceError, match="no capture"):
        cutrace.load([])
