"""Sampled hardware counters in a Perfetto trace: values of GPU counters, read as trace_processor reads them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import cutrace
from captures import ORIGIN, Capture, join
from cutrace.slicing import Conditions, cut
from pftrace import packets

NAN = float("nan")
UUID = b"\x11" * 16
SM, DRAM = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed", "dram__bytes_read.sum.per_second"
MEANINGS = {SM: "# of cycles with a warp", DRAM: "# of bytes read"}


def sampled(path: Path, values: dict[int, list[tuple[int, float, float]]], *, in_blocks: bool = False) -> Path:
    """A capture of a sampler. ``values`` has, by device, times with the values of both counters."""
    with Capture(path, pid=7, sampled=MEANINGS, sample_interval=100) as c:
        for device, moments in values.items():
            c.add("devices", device=device, uuid=bytes([device + 1]) * 16, name="NVIDIA H200")
            for time, sm, dram in moments:
                for name, unit, value in ((SM, "%", sm), (DRAM, "bytes/s", dram)):
                    c.add("counters", time=ORIGIN + time, name=name, unit=unit, value=value, device=device,
                          category="hardware_counter")  # fmt: skip
                if in_blocks:
                    c.flush()
    return path


class Read:
    """The GPU counters of a trace, by GPU and name. ``values`` are pairs of a time and the value from then on."""

    def __init__(self, path: Path) -> None:
        self.values: dict[tuple[int, str], list[tuple[int, float]]] = {}
        self.specs: dict[str, Any] = {}
        self.groups: dict[str, set[str]] = defaultdict(set)
        self.host_counters = 0
        clocks: dict[int, int] = {}
        described: dict[tuple[int, int], Any] = {}
        events: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
        for packet in packets(path):
            sequence = packet.trusted_packet_sequence_id
            for clock in packet.clock_snapshot.clocks:
                if clock.is_incremental:
                    clocks[sequence] = clock.timestamp
            for entry in packet.interned_data.gpu_counter_descriptors:
                described[sequence, entry.iid] = entry
                names = {spec.counter_id: spec.name for spec in entry.counter_descriptor.specs}
                self.specs |= {spec.name: spec for spec in entry.counter_descriptor.specs}
                for group in entry.counter_descriptor.counter_groups:
                    self.groups[group.name] |= {names[number] for number in group.counter_ids}
            self.host_counters += packet.HasField("track_event") and packet.track_event.type == 4
            if packet.HasField("gpu_counter_event"):
                clocks[sequence] += packet.timestamp
                event = packet.gpu_counter_event
                entry = described[sequence, event.counter_descriptor_iid]
                names = {spec.counter_id: spec.name for spec in entry.counter_descriptor.specs}
                for counter in event.counters:
                    key = entry.gpu_id, names[counter.counter_id]
                    events[key].append((clocks[sequence] - ORIGIN, counter.double_value))
        for key, found in events.items():
            # In the trace, a value applies to the time since the previous event.
            times = [time for time, _ in found]
            assert times == sorted(times)
            self.values[key] = list(zip(times, [value for _, value in found[1:]] + [0.0], strict=True))


def convert(capture: Path) -> Read:
    out = capture.with_suffix(".pftrace")
    cutrace.convert(capture, out)
    return Read(out)


MOMENTS = [(100, 10.0, 1e9), (200, 20.0, 2e9), (300, 30.0, 3e9), (400, NAN, NAN)]


@pytest.mark.parametrize("in_blocks", [False, True])
def test_each_value_holds_until_the_next_sample(tmp_path, in_blocks):
    found = convert(sampled(tmp_path / "run.bin", {0: MOMENTS}, in_blocks=in_blocks))
    assert found.values[0, SM] == [(100, 10), (200, 20), (300, 30), (400, 0)]
    assert found.values[0, DRAM] == [(100, 1e9), (200, 2e9), (300, 3e9), (400, 0)]
    assert found.host_counters == 0


def test_they_are_in_a_group_of_their_own_with_units_and_descriptions(tmp_path):
    found = convert(sampled(tmp_path / "run.bin", {0: MOMENTS}))
    assert found.groups == {"Hardware counters": {SM, DRAM}}
    assert not any(list(spec.groups) for spec in found.specs.values())
    assert list(found.specs[SM].numerator_units) == [37]
    assert (list(found.specs[DRAM].numerator_units), list(found.specs[DRAM].denominator_units)) == ([7], [22])
    assert found.specs[DRAM].description == "# of bytes read"


def test_a_gap_shows_no_value(tmp_path):
    moments = [(100, 10.0, 1.0), (200, NAN, NAN), (500, 50.0, 5.0), (600, NAN, NAN)]
    found = convert(sampled(tmp_path / "run.bin", {0: moments}))
    assert found.values[0, SM] == [(100, 10), (200, 0), (500, 50), (600, 0)]


def test_values_that_are_not_finite_are_shown_as_0(tmp_path):
    infinite = float("inf")
    moments = [(100, infinite, 1.0), (200, 20.0, -infinite), (300, -infinite, infinite), (400, 1.0, NAN)]
    found = convert(sampled(tmp_path / "run.bin", {0: moments}))
    assert found.values[0, SM] == [(100, 0), (200, 20), (300, 0), (400, 0)]
    assert found.values[0, DRAM] == [(100, 1), (200, 0), (300, 0), (400, 0)]


def test_two_gpus_are_apart(tmp_path):
    other = [(150, 1.0, 2.0), (250, NAN, NAN)]
    found = convert(sampled(tmp_path / "run.bin", {0: MOMENTS, 1: other}))
    assert found.values[0, SM] == [(100, 10), (200, 20), (300, 30), (400, 0)]
    assert found.values[1, SM] == [(150, 1), (250, 0)]


def test_a_counter_that_a_moment_lacks_holds(tmp_path):
    with Capture(tmp_path / "run.bin", pid=7, sampled=MEANINGS) as c:
        for time, name, value in ((100, SM, 1.0), (100, DRAM, 2.0), (200, SM, 3.0), (300, DRAM, 4.0), (400, SM, 5.0)):
            c.add("counters", time=ORIGIN + time, name=name, unit="%", value=value)
    found = convert(tmp_path / "run.bin")
    assert found.values[0, DRAM][:3] == [(100, 2), (200, 2), (300, 4)]
    assert found.values[0, SM][:3] == [(100, 1), (200, 3), (300, 3)]


def test_blocks_that_go_back_in_time_are_written(tmp_path):
    with Capture(tmp_path / "run.bin", pid=7, sampled=MEANINGS) as c:
        for times in ((100, 500), (300, 700)):
            for time in times:
                c.add("counters", time=ORIGIN + time, name=SM, unit="%", value=float(time))
            c.flush()
    out = tmp_path / "run.pftrace"
    cutrace.convert(tmp_path / "run.bin", out)
    assert sum(packet.HasField("gpu_counter_event") for packet in packets(out)) == 4


def test_counters_of_other_processes_stay_where_they_are(tmp_path):
    with Capture(tmp_path / "run.bin") as c:
        c.add("counters", time=ORIGIN + 100, name="loss", value=1.0, device=0xFFFF)
    found = convert(tmp_path / "run.bin")
    assert (found.values, found.host_counters) == ({}, 1)


def test_merged_captures_keep_their_samples(tmp_path):
    first = sampled(tmp_path / "a.bin", {0: MOMENTS})
    second = sampled(tmp_path / "b.bin", {1: [(150, 1.0, 2.0), (250, NAN, NAN)]})
    cutrace.merge([first, second], tmp_path / "all.bin")
    found = convert(tmp_path / "all.bin")
    assert sorted(len(values) for values in found.values.values()) == [2, 2, 4, 4]


def test_a_slice_keeps_the_samples_in_it(tmp_path):
    whole = sampled(tmp_path / "run.bin", {0: MOMENTS})
    # Times count from the start of the trace, which is the first sample.
    cut(whole, tmp_path / "part.bin", Conditions(start="50ns", end="250ns"))
    with cutrace.load(tmp_path / "part.bin") as trace:
        times = {time - ORIGIN for rows in trace.blocks("counters") for time in rows["time"].tolist()}
        assert times == {200, 300}
        assert trace.processes[0].info["sampled"] == MEANINGS


def test_a_slice_by_ranges_keeps_the_samples_of_the_gpu_meanwhile(tmp_path):
    """The samples belong to a separate process."""
    with Capture(tmp_path / "program.bin", pid=1) as c:
        c.push_pop("step", 190, 310)
        c.push_pop("other", 320, 500)
    sampled(tmp_path / "sampler.bin", {0: MOMENTS})
    whole = join(tmp_path / "run.bin", (tmp_path / "program.bin", tmp_path / "sampler.bin"))
    cut(whole, tmp_path / "part.bin", Conditions(nvtx=("step",)))
    with cutrace.load(tmp_path / "part.bin") as trace:
        assert {time - ORIGIN for rows in trace.blocks("counters") for time in rows["time"].tolist()} == {200, 300}


def test_imported_values_have_the_times_of_the_capture(tmp_path: Path) -> None:
    moments = [(100, 25.0, 3.0), (200, 50.0, 4.0), (300, NAN, NAN)]
    capture = sampled(tmp_path / "run.bin", {0: moments})
    cutrace.convert(capture, tmp_path / "run.pftrace", capture=False)
    with cutrace.load(tmp_path / "run.pftrace") as trace:
        names = trace.strings.take(trace.counters["name"])
        times = trace.counters["time"] - ORIGIN
        found = zip(names.tolist(), times.tolist(), trace.counters["value"].tolist(), strict=True)
        assert sorted(found) == [(DRAM, 100, 3.0), (DRAM, 200, 4.0), (SM, 100, 25.0), (SM, 200, 50.0)]
