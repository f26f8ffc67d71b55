"""Slices with equal times are nested in a trace as in the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

import cutrace
from captures import ORIGIN, Capture
from cutrace.analysis.statistics.host import HOST_SLICES
from pftrace import decode


def converted(source: Path, *, derived: bool = False) -> list[str]:
    """The names of the slices in a trace in the order of their starts, outer ones first."""
    trace = source.with_name("converted.pftrace")
    cutrace.convert(source, trace, capture=False)
    found = decode(trace)
    slices = found.derived if derived else found.slices
    return [each.name for each in slices]


@pytest.mark.parametrize("length", [0, 10])
def test_ranges_of_equal_times_nest_by_their_depth(tmp_path: Path, length: int) -> None:
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        for depth, name in ((2, "inner"), (0, "outer"), (1, "middle")):
            c.push_pop(name, 5, 5 + length, depth=depth)
            c.flush()
    assert converted(path) == ["outer", "middle", "inner"]


def test_ranges_of_several_domains_were_written_when_they_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        for domain, name in (("a", "inner"), ("b", "middle")):
            c.push_pop(name, 5, 15, domain=domain)
        c.flush()
        c.push_pop("outer", 5, 15, domain="c")
    assert converted(path) == ["outer", "middle", "inner"]


def test_calls_are_inside_of_slices_and_ranges(tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        c.api("cuLaunchKernel", 5, 15, domain=1, correlation=3)
        c.api("cudaLaunchKernel", 5, 15, correlation=2)
        for kind, name in ((4, "ioctl"), (1, "aten::mm"), (3, "python")):
            c.add("host_slices", start=ORIGIN + 5, end=ORIGIN + 15, thread=100, kind=kind, name=name)
        c.push_pop("step", 5, 15, depth=7)
    assert converted(path) == ["step", "python", "aten::mm", "cudaLaunchKernel", "cuLaunchKernel", "ioctl"]


def test_ranges_on_a_stream_with_the_same_work_nest_by_their_depth(tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        c.kernel(c.launch("k"), 50, 60, correlation=1)
        c.api("cudaLaunchKernel", 7, 8, correlation=1)
        for depth, name in ((2, "inner"), (1, "middle"), (0, "outer")):
            c.push_pop(name, 5, 15, depth=depth)
    assert converted(path, derived=True) == ["outer", "middle", "inner"]


def test_statistics_nest_ranges_and_slices_as_traces_do(tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        for kind, name in ((1, "aten::mm"), (3, "python")):
            c.add("host_slices", start=ORIGIN + 5, end=ORIGIN + 15, thread=100, kind=kind, name=name)
        for depth, name in ((2, "inner"), (0, "outer"), (1, "middle")):
            c.push_pop(name, 5, 15, depth=depth)
        c.api("cudaLaunchKernel", 7, 8, correlation=1)
        c.kernel(c.launch("k"), 50, 60, correlation=1)
    cutrace.convert(path, tmp_path / "run.folded")
    assert (tmp_path / "run.folded").read_text() == "outer;middle;inner;python;aten::mm;k 10\n"
    with cutrace.load(path) as trace:
        assert {use.name: use.self_ns for use in HOST_SLICES.of(trace)} == {"aten::mm": 10, "python": 0}


def test_slices_of_a_perfetto_trace_stay_nested(tmp_path: Path) -> None:
    trace = protos.Trace()

    def event(time: int, kind: int, name: str = "") -> None:
        event = trace.packet.add(trusted_packet_sequence_id=1, timestamp=10**9 + time).track_event
        event.type, event.track_uuid, event.name = kind, 1, name

    track = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
    track.uuid, track.thread.pid, track.thread.tid = 1, 70, 71
    for name in ("outer", "middle", "inner"):
        event(5, 1, name)
    for time in (5, 15, 15):
        event(time, 2)
    source = tmp_path / "source.pftrace"
    source.write_bytes(trace.SerializeToString())
    with cutrace.load(source) as imported:
        names = imported.strings.take(imported.host_slices["name"]).tolist()
        assert names.index("outer") < names.index("middle")
    assert converted(source) == ["outer", "middle", "inner"]
