"""Clocks, power, temperature and memory of GPUs in a Perfetto trace, in the form that Perfetto's queries read."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace
from captures import DATA, ORIGIN, Capture
from pftrace import packets
from support.traceprocessor import query

Values = dict[tuple[int, str], list[tuple[int, float]]]


def readings(path: Path) -> tuple[Values, dict[str, Any]]:
    """The readings of each GPU by time since ORIGIN, and the specifications of GPU counters by name."""
    values: Values = defaultdict(list)
    specs: dict[str, Any] = {}
    clocks: dict[int, int] = {}
    described: dict[tuple[int, int], Any] = {}
    for packet in packets(path):
        sequence = packet.trusted_packet_sequence_id
        for clock in packet.clock_snapshot.clocks:
            if clock.is_incremental:
                clocks[sequence] = clock.timestamp - ORIGIN
        for entry in packet.interned_data.gpu_counter_descriptors:
            (described[sequence, entry.iid],) = entry.counter_descriptor.specs
        fields = {field.name for field, _ in packet.ListFields()}
        if not fields & {"generic_gpu_frequency_event", "gpu_counter_event", "gpu_mem_total_event"}:
            continue
        clocks[sequence] += packet.timestamp
        time = clocks[sequence]
        if "generic_gpu_frequency_event" in fields:
            event = packet.generic_gpu_frequency_event
            values[event.gpu_id, "kHz"].append((time, event.frequency_khz))
        elif "gpu_mem_total_event" in fields:
            event = packet.gpu_mem_total_event
            values[event.gpu_id, f"bytes of {event.pid}"].append((time, event.size))
        else:
            event = packet.gpu_counter_event
            spec = described[sequence, event.counter_descriptor_iid]
            specs[spec.name] = spec
            (counter,) = event.counters
            values[event.gpu_id, spec.name].append((time, counter.double_value))
    return dict(values), specs


def speed(sm: int, memory: int) -> int:
    return sm | memory << 16 | 5 << 32 | 16 << 48


def test_what_gpus_say_of_themselves(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for time, kind, values, device in (
            (10, 1, speed(1980, 2619), 0), (20, 2, 45, 0), (30, 3, 345_678 | 700_000 << 32, 1), (40, 4, 37, 0),
            (50, 2, 46, 0), (60, 1, speed(345, 2619), 0),
        ):  # fmt: skip
            c.add("environment", time=ORIGIN + time, kind=kind, values=values, device=device)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "out.pftrace")
    values, specs = readings(tmp_path / "out.pftrace")
    assert values == {
        (0, "kHz"): [(10, 1_980_000), (60, 345_000)],
        (0, "Memory clock"): [(10, 2619e6), (60, 2619e6)],
        (0, "Temperature"): [(20, 45.0), (50, 46.0)],
        (0, "Fan"): [(40, 37.0)],
        (1, "Power"): [(30, 345.678)],
        (1, "Power limit"): [(30, 700.0)],
    }
    units = {name: list(spec.numerator_units) for name, spec in specs.items()}
    assert units == {"Memory clock": [13], "Temperature": [34], "Fan": [37], "Power": [29], "Power limit": [29]}
    assert {spec.value_direction for spec in specs.values()} == {2}  # a reading is valid from its time on


def test_processes_on_one_gpu_share_its_readings(tmp_path: Path) -> None:
    whole = b""
    for pid in (1, 2):
        path = tmp_path / f"{pid}.bin"
        with Capture(path, pid=pid) as c:
            c.add("devices", device=pid, uuid=bytes([9]) * 16, name="NVIDIA H200")
            for block in range(3):
                time = ORIGIN + 10 * block + pid
                c.add("environment", time=time, kind=2, values=time - ORIGIN, device=pid)
                c.flush()
        whole += path.read_bytes()
    (tmp_path / "run.bin").write_bytes(whole)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "out.pftrace")
    values, _ = readings(tmp_path / "out.pftrace")
    assert values == {(0, "Temperature"): [(time, float(time)) for time in (1, 2, 11, 12, 21, 22)]}


def test_the_memory_of_a_process_on_a_gpu(tmp_path: Path) -> None:
    """All kinds of GPU memory count. Memory that is older than the capture is unknown."""
    device, physical, pinned = 3, 128, 2
    with Capture(tmp_path / "run.bin", pid=7) as c:
        for time, operation, memory, size, gpu in (
            (5, 2, device, 50, 0), (10, 1, device, 150, 0), (20, 1, physical, 1000, 0), (30, 1, pinned, 77, 0),
            (40, 1, device, 8, 1), (50, 2, device, 150, 0),
        ):  # fmt: skip
            c.add("allocations", time=ORIGIN + time, operation=operation, memory=memory, bytes=size, device=gpu)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "out.pftrace")
    values, _ = readings(tmp_path / "out.pftrace")
    assert values == {
        (0, "bytes of 7"): [(5, 0), (10, 100), (20, 1100), (50, 950)],
        (1, "bytes of 7"): [(40, 8)],
    }
    cutrace.convert(tmp_path / "run.bin", tmp_path / "out.pftrace", derived=False)
    assert readings(tmp_path / "out.pftrace")[0] == {}


def test_a_trace_without_its_capture_has_the_readings(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin", pid=7) as c:
        c.add("environment", time=ORIGIN + 10, kind=1, values=speed(1980, 2619))
        c.add("environment", time=ORIGIN + 20, kind=3, values=345_678 | 700_000 << 32)
        c.add("allocations", time=ORIGIN + 30, operation=1, memory=3, bytes=100)
        c.kernel(c.launch("k"), 1, 5)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "out.pftrace", capture=False)
    with cutrace.load(tmp_path / "out.pftrace") as trace:
        rows = trace.counters
        names, units = (trace.strings.take(rows[field]).tolist() for field in ("name", "unit"))
        times = (rows["time"].astype("i8") - ORIGIN).tolist()
        found = set(zip(names, units, rows["device"].tolist(), times, rows["value"].tolist(), strict=True))
        assert [process.pid for process in trace.processes] == [7]
    assert found == {
        ("GPU frequency", "Hz", 0, 10, 1980e6), ("Memory clock", "Hz", 0, 10, 2619e6), ("Power", "W", 0, 20, 345.678),
        ("Power limit", "W", 0, 20, 700.0), ("GPU memory", "bytes", 0, 30, 100.0),
    }  # fmt: skip


# A recorded training, with readings of its GPU.


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    recorded = DATA / "torch_step.bin"
    with cutrace.load(recorded) as trace:
        (device,) = trace.devices
        process = trace.processes[0]
        first, last = int(trace.kernels["start"].min()), int(trace.kernels["end"].max())
    with Capture(folder / "readings.bin", pid=1, host=process.host, boot_id=process.boot_id) as c:
        c.add("devices", device=0, uuid=device["uuid"], name="NVIDIA H200")
        for number, time in enumerate(np.linspace(first, last, 100, endpoint=False).astype(int).tolist()):
            clock = 1200 if 60 <= number < 70 else 1980
            c.add("environment", time=time, kind=1, values=speed(clock, 2619))
            c.add("environment", time=time, kind=2, values=60 + number)
            c.add("environment", time=time, kind=3, values=(600 + number) * 1000)
    (folder / "run.bin").write_bytes(recorded.read_bytes() + (folder / "readings.bin").read_bytes())
    cutrace.convert(folder / "run.bin", folder / "run.pftrace")
    return folder / "run.pftrace"


def test_perfetto_knows_the_frequency_of_the_gpu(training: Path) -> None:
    rows = query(
        training,
        "include perfetto module android.gpu.frequency;"
        "select gpu_id, gpu_freq, max(ts) - min(ts) as lasts from android_gpu_frequency group by 1, 2 order by 2",
    )
    assert [(row["gpu_id"], row["gpu_freq"]) for row in rows] == [("0", "1200000"), ("0", "1980000")]
    slow, fast = (int(row["lasts"]) for row in rows)
    assert slow < fast


def test_perfetto_knows_the_frequency_while_the_gpu_is_busy(training: Path) -> None:
    """Perfetto's queries about residency, ramps and throttling need it."""
    (row,) = query(
        training,
        "include perfetto module counters.intervals; include perfetto module intervals.overlap; "
        "include perfetto module intervals.intersect; "
        "create perfetto table clock as select f.id, f.ts, f.dur, f.value as khz, t.ugpu from "
        "counter_leading_intervals!((select c.id, c.ts, c.track_id, c.value from counter c join gpu_counter_track g "
        "on g.id = c.track_id where g.name = 'gpufreq')) f join gpu_counter_track t on t.id = f.track_id; "
        "create perfetto table busy as select row_number() over (order by ts) as id, ugpu, ts, dur from "
        "interval_merge_overlapping_partitioned!((select s.ts, s.dur, extract_arg(t.dimension_arg_set_id, 'ugpu') "
        "as ugpu from gpu_slice s join gpu_track t on s.track_id = t.id where s.dur > 0), (ugpu)); "
        "select min(khz) as low, max(khz) as high, sum(i.dur) > 0 as some from "
        "_interval_intersect!((busy, clock), (ugpu)) i join clock on clock.id = i.id_1",
    )
    assert [float(value) for value in row.values()] == [1.2e6, 1.98e6, 1]


def test_perfetto_knows_power_and_temperature_of_the_gpu(training: Path) -> None:
    """Perfetto's queries find the readings of a GPU by the index in its work."""
    rows = query(
        training,
        "select t.name, t.unit, count(*) as n, min(c.value) as low, max(c.value) as high from gpu_counter_track t "
        "join counter c on c.track_id = t.id where t.ugpu in (select extract_arg(w.dimension_arg_set_id, 'ugpu') "
        "from gpu_track w) and t.name in ('Power', 'Temperature') group by 1, 2 order by 1",
    )
    assert [list(row.values()) for row in rows] == [
        ["Power", "W", "100", "600.000000", "699.000000"], ["Temperature", "C", "100", "60.000000", "159.000000"],
    ]  # fmt: skip


def test_perfetto_knows_the_memory_of_the_process(training: Path) -> None:
    rows = query(
        training,
        "include perfetto module android.gpu.memory; select p.name, max(gpu_memory) as most "
        "from android_gpu_memory_per_process join process p using (upid) group by 1",
    )
    with cutrace.load(training) as trace:
        in_gpu = trace.allocations[np.isin(trace.allocations["memory"], (3, 4, 6, 128))]
    factors = np.array([0, 1, -1])[np.minimum(in_gpu["operation"], 2)]
    held = np.cumsum(in_gpu["bytes"].astype(np.int64) * factors)
    assert rows == [{"name": "python3 train.py", "most": str(held.max())}]
