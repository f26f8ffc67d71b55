"""Sampling of hardware counters, from the values that CUPTI decodes to the rows of a capture. CUPTI is a Python
fake."""

from __future__ import annotations

import ctypes
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cutrace.errors import CutraceError
from cutrace.extras.hardware import sampling
from cutrace.extras.hardware.cupti import CuptiError
from cutrace.extras.hardware.host import ChipMetric
from cutrace.extras.hardware.sampling import BoottimeClock, CounterRows, GpuSampling, PmSampler, Samples
from cutrace.extras.hardware.sets import SAMPLED
from cutrace.trace import load

pytestmark = pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="sampling is for Linux")

INTERVAL = 100_000
NAN = float("nan")


class FakeCupti:
    """A fake ``Cupti``. A test puts samples (start, end, value) into ``waiting`` by device. ``failing`` has the
    CUptiResult of failing functions. ``alone`` has the metrics that need a separate pass."""

    path = Path("libcupti.so.13")

    def __init__(self, devices: int = 1, failing: dict[str, int] | None = None, alone: tuple[str, ...] = ()) -> None:
        self.failing, self.alone = failing or {}, alone
        self.waiting: list[list[tuple[int, int, float]]] = [[] for _ in range(devices)]
        self.decoded: list[list[tuple[int, int, float]]] = [[] for _ in range(devices)]
        self.overflow = [False] * devices
        self.enabled: set[int] = set()
        self.calls: list[str] = []
        self.triggers: list[tuple[int, int]] = []
        self._names: list[str] = []
        self._images: dict[int, int] = {}

    def call(self, function: str, **fields: object) -> SimpleNamespace:
        self.calls.append(function)
        if code := self.failing.get(function):
            raise CuptiError(function, code, "CUPTI_ERROR")
        return getattr(self, function, lambda **_: SimpleNamespace())(**fields)

    def repeated(self, function: str, **fields: object) -> tuple[SimpleNamespace, Callable[[], None]]:
        given = SimpleNamespace(**fields, index=0, start=0, end=0)
        device = self._device(given.image)

        def times() -> None:
            given.start, given.end, _ = self.decoded[device][given.index]

        def evaluate() -> None:
            given.values[:] = [self.decoded[device][given.index][2]] * len(given.values)

        return given, times if function.endswith("SampleInfo") else evaluate

    def _device(self, image: ctypes.c_void_p) -> int:
        """The device of an image. Images belong to the devices in the order of their first use."""
        return self._images.setdefault(image.value or 0, len(self._images))

    def DeviceGetChipName(self, device):
        return SimpleNamespace(chip=b"GH100")

    def ProfilerHostGetSupportedChips(self):
        return SimpleNamespace(count=1, names=[b"GH100"])

    def ProfilerHostInitialize(self, **_):
        return SimpleNamespace(host=1)

    def ProfilerHostGetBaseMetrics(self, **_):
        names = sorted({name.partition(".")[0].encode() for name in SAMPLED})
        return SimpleNamespace(count=len(names), names=names)

    def ProfilerHostGetMetricProperties(self, host, name):
        if name.decode() not in SAMPLED:
            raise CuptiError("ProfilerHostGetMetricProperties", 17, "CUPTI_ERROR_INVALID_METRIC_NAME")
        dimension = b"byte/second" if b"bytes" in name else b"percent"
        return SimpleNamespace(description=b"# of things", unit=b"sm", dimension=dimension, type=0)

    def ProfilerHostConfigAddMetrics(self, host, names, count):
        self._names = [name.decode() for name in names]

    def ProfilerHostGetConfigImageSize(self, host):
        return SimpleNamespace(size=8)

    def ProfilerHostGetNumOfPasses(self, size, image):
        some = [name for name in self._names if name in self.alone]
        return SimpleNamespace(passes=1 if len(self._names) == 1 else 1 + len(some))

    def PmSamplingGetCounterAvailability(self, device, **_):
        return SimpleNamespace(size=8)

    def PmSamplingEnable(self, device):
        self.enabled.add(device)
        return SimpleNamespace(sampling=device)

    def PmSamplingDisable(self, sampling):
        self.enabled.remove(sampling)

    def PmSamplingSetConfig(self, sampling, interval, trigger, **_):
        self.triggers.append((trigger, interval))
        if trigger == 1 and "time" in self.failing:
            raise CuptiError("PmSamplingSetConfig", self.failing["time"], "CUPTI_ERROR")

    def PmSamplingGetCounterDataSize(self, sampling, names, count, samples):
        return SimpleNamespace(size=16 * samples)

    def PmSamplingCounterDataImageInitialize(self, sampling, image, size):
        self.decoded[self._device(image)] = []

    def PmSamplingDecodeData(self, sampling, image, size):
        waiting, room = self.waiting[self._device(image)], size // 16
        self.decoded[self._device(image)], waiting[:] = waiting[:room], waiting[room:]
        overflow, self.overflow[sampling] = self.overflow[sampling] and not waiting, False
        return SimpleNamespace(reason=1 if waiting else 2, overflow=overflow)

    def PmSamplingGetCounterDataInfo(self, image, size):
        return SimpleNamespace(completed=len(self.decoded[self._device(image)]))


def sampler(cupti: FakeCupti, wanted: str = "", device: int = 0) -> PmSampler:
    return PmSampler(cupti, device, wanted, INTERVAL)  # type: ignore[arg-type]


def samples(*starts: int, value: float = 1.0, length: int = INTERVAL) -> Samples:
    start = np.array(starts, np.int64)
    return Samples(start, start + length, np.full((len(starts), 1), value))


def rows_of(boottime: int = 10**15) -> CounterRows:
    rows = CounterRows(0, [1], [2], 3)
    rows._clock = BoottimeClock(lambda clock: boottime)  # all clocks are equal
    return rows


def series(capture: Path, device: int = 0) -> list[tuple[int, float]]:
    """The times and values of the first counter of a device."""
    with load(capture) as trace:
        rows = np.concatenate(list(trace.blocks("counters")))
        rows = rows[rows["device"] == device]
        return rows[rows["name"] == rows["name"][0]][["time", "value"]].tolist()


class TestClock:
    BOOT, REAL = 40 * 10**12, 1_790_000_000 * 10**9

    def clock(self, step: int = 0) -> BoottimeClock:
        self.step = step
        return BoottimeClock(lambda clock: self.BOOT if clock == time.CLOCK_BOOTTIME else self.REAL + self.step)

    def test_times_of_the_wall_clock_are_moved(self):
        assert self.clock().move(np.array([self.REAL - 500, self.REAL])).tolist() == [self.BOOT - 500, self.BOOT]

    def test_times_that_a_callback_gave_on_boottime_stay(self):
        assert self.clock().move(np.array([self.BOOT - 500])).tolist() == [self.BOOT - 500]

    def test_the_time_that_reading_takes_moves_nothing(self):
        clock = self.clock()
        before = clock.move(np.array([self.REAL])).tolist()
        self.step = 300
        assert clock.move(np.array([self.REAL])).tolist() == before

    def test_a_wall_clock_that_is_set_is_followed(self):
        clock = self.clock()
        clock.move(np.array([self.REAL]))
        self.step = 3600 * 10**9
        assert clock.move(np.array([self.REAL + self.step])).tolist() == [self.BOOT]


class TestRows:
    def test_each_sample_is_a_row_of_each_counter(self):
        rows = CounterRows(1, [7, 8], [2, 2], 3)
        rows._clock = BoottimeClock(lambda clock: 10**15)
        made = rows.of(Samples(np.array([5]), np.array([5 + INTERVAL]), np.array([[0.5, 1.5]])))
        fields = ["time", "value", "name", "unit", "category", "device"]
        assert made[fields].tolist() == [(5, 0.5, 7, 2, 3, 1), (5, 1.5, 8, 2, 3, 1)]

    def test_a_gap_has_no_value_and_is_counted(self):
        rows = rows_of()
        made = rows.of(samples(0, INTERVAL, 5 * INTERVAL))
        assert made["time"].tolist() == [0, INTERVAL, 2 * INTERVAL, 5 * INTERVAL]
        assert np.isnan(made["value"]).tolist() == [False, False, True, False]
        assert rows.lost == 3

    def test_a_gap_between_two_readings_is_one(self):
        rows = rows_of()
        rows.of(samples(0))
        made = rows.of(samples(3 * INTERVAL))
        assert made["time"].tolist() == [INTERVAL, 3 * INTERVAL]
        assert rows.lost == 2

    def test_samples_that_are_not_quite_side_by_side_lack_nothing(self):
        rows = rows_of()
        assert len(rows.of(samples(0, INTERVAL + 900, 2 * INTERVAL - 900))) == 3
        assert rows.lost == 0

    def test_the_last_sample_ends(self):
        rows = rows_of()
        rows.of(samples(0))
        assert rows.ended()["time"].tolist() == [INTERVAL]
        assert np.isnan(rows.ended()["value"]).all()

    def test_nothing_sampled_has_no_end(self):
        assert len(rows_of().ended()) == 0


class TestChoice:
    def test_the_usual_metrics_are_those_that_fit_into_one_pass(self):
        found = sampler(FakeCupti(alone=SAMPLED[2:4]))
        assert found.left_out == list(SAMPLED[2:4])
        assert found.names == [*SAMPLED[:2], *SAMPLED[4:]]
        (note,) = sampling._notes([found])
        assert SAMPLED[2] in note
        assert "omitted" in note

    def test_metrics_of_ones_choice_that_need_more_are_an_error(self):
        with pytest.raises(CutraceError, match="need 2 passes, but a sample is taken in one: count fewer"):
            sampler(FakeCupti(alone=SAMPLED[1:2]), ",".join(SAMPLED[:3]))

    def test_an_unknown_metric_is_an_error(self):
        with pytest.raises(CutraceError, match="GH100 has no metric"):
            sampler(FakeCupti(), "sm__nothing.sum")

    def test_what_is_not_counted_is_given_back(self):
        cupti = FakeCupti(failing={"PmSamplingGetCounterDataSize": 999})
        with pytest.raises(CuptiError):
            sampler(cupti)
        assert not cupti.enabled

    def test_a_chip_that_knows_cycles_only_samples_by_cycles(self, monkeypatch):
        monkeypatch.setattr(sampling, "_attribute", lambda device, name: 1_410_000)
        cupti = FakeCupti(failing={"time": 27})
        found = sampler(cupti)
        assert cupti.triggers == [(1, INTERVAL), (0, 141_000)]
        assert "clock cycles" in next(sampling._notes([found]))

    @pytest.mark.parametrize(
        ("name", "dimension", "unit"),
        [
            ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed", "percent", "%"),
            ("dram__bytes_read.sum.per_second", "byte/second", "bytes/s"),
            ("dram__bytes_read.sum", "byte", "bytes"),
            ("sm__inst_executed.sum.per_second", "instruction/second", "instructions/s"),
            ("sm__ctas.sum", "cta", "cta"),
        ],
    )
    def test_units(self, name, dimension, unit):
        assert ChipMetric(name, "counter", "", "", dimension).values_in == unit


class TestReading:
    def test_the_first_sample_is_left_out(self):
        cupti = FakeCupti()
        found = sampler(cupti)
        found.start()
        cupti.waiting[0] += [(0, 5, 9.0), (5, 10, 1.0), (10, 15, 2.0)]
        (part,) = found.read()
        assert (part.start.tolist(), part.end.tolist(), part.values[:, 0].tolist()) == ([5, 10], [10, 15], [1, 2])

    def test_more_than_an_image_holds_comes_in_parts(self, monkeypatch):
        monkeypatch.setattr(sampling, "BATCH", 3)
        cupti = FakeCupti()
        found = sampler(cupti)
        found.start()
        cupti.waiting[0] += [(i, i + 1, float(i)) for i in range(8)]
        assert [part.start.tolist() for part in found.read()] == [[1, 2], [3, 4, 5], [6, 7]]

    def test_behind_an_overflow_sampling_begins_anew(self):
        cupti = FakeCupti()
        found = sampler(cupti)
        found.start()
        cupti.waiting[0] += [(0, 1, 0.0), (1, 2, 0.0)]
        cupti.overflow[0] = True
        cupti.calls.clear()
        assert [len(part.start) for part in found.read()] == [1]
        assert found.overflown
        assert [name for name in cupti.calls if name in ("PmSamplingStop", "PmSamplingStart")] == [
            "PmSamplingStop",
            "PmSamplingStart",
        ]

    def test_an_overflow_that_decoding_fails_with_is_one(self):
        cupti = FakeCupti()
        found = sampler(cupti)
        found.start()
        cupti.failing["PmSamplingDecodeData"] = 8
        assert list(found.read()) == []
        assert found.overflown

    def test_what_has_ended_does_not_begin_again(self):
        cupti = FakeCupti()
        found = sampler(cupti)
        found.start()
        found.stop()
        cupti.overflow[0] = True
        cupti.calls.clear()
        assert list(found.read()) == []
        assert "PmSamplingStart" not in cupti.calls


def run(cupti: FakeCupti, path: Path, devices: int = 1, **options: int) -> GpuSampling:
    samplers = [sampler(cupti, device=device) for device in range(devices)]
    info = {"pid": 5, "sample_interval": INTERVAL}
    return GpuSampling(samplers, path, info, **options)


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class TestCapture:
    def test_two_gpus_have_a_sampler_each(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sampling, "visible_gpus", lambda: 2)
        cupti = FakeCupti(2)
        samplers = sampling._prepared(cupti, "", INTERVAL)  # type: ignore[arg-type]
        made = GpuSampling(samplers, tmp_path / "samples.bin", {"pid": 5, "sample_interval": INTERVAL})
        begin = now()
        for device in range(2):
            # The first sample is left out.
            cupti.waiting[device] += [
                (begin + i * INTERVAL, begin + (i + 1) * INTERVAL, device + 1.0) for i in range(3)
            ]
        made.start()
        time.sleep(2 * sampling.POLL_S)
        made.stop()
        for device in range(2):
            found = series(tmp_path / "samples.bin", device)
            assert [moment - begin for moment, _ in found] == [INTERVAL, 2 * INTERVAL, 3 * INTERVAL]
            assert [value for _, value in found[:2]] == [device + 1.0] * 2
            assert np.isnan(found[2][1])
        with load(tmp_path / "samples.bin") as trace:
            assert sorted(trace.devices["device"].tolist()) == [0, 1]
            assert len(trace.clocks) == 2
            assert trace.processes[0].complete
            assert trace.processes[0].info["sampled"] == dict.fromkeys(SAMPLED, "# of things")
            rows = np.concatenate(list(trace.blocks("counters")))
            texts = {trace.strings[n]: trace.strings[u] for n, u in rows[["name", "unit"]].tolist()}
            assert texts["dram__bytes_read.sum.per_second"] == "bytes/s"
        assert not cupti.enabled

    def test_lost_samples_are_losses(self, tmp_path):
        cupti = FakeCupti()
        made = run(cupti, tmp_path / "samples.bin")
        begin = now()
        cupti.waiting[0] += [(begin + i * INTERVAL, begin + (i + 1) * INTERVAL, 1.0) for i in (0, 1, 5)]
        made.start()
        time.sleep(2 * sampling.POLL_S)
        made.stop()
        with load(tmp_path / "samples.bin") as trace:
            (loss,) = trace.named_losses
            assert (loss.reason, loss.count, loss.detail) == ("samples_lost", 3, "GPU 0")

    def test_an_overflow_without_further_samples_counts_until_the_end(self, tmp_path):
        cupti = FakeCupti()
        made = run(cupti, tmp_path / "samples.bin")
        cupti.overflow[0] = True
        made.start()
        time.sleep(2 * sampling.POLL_S)
        made.stop()
        with load(tmp_path / "samples.bin") as trace:
            (loss,) = trace.named_losses
            assert 1000 < loss.count < 10**6
            assert "`interval=`" in trace.processes[0].info["notes"][-1]

    def test_a_gpu_that_fails_meanwhile_is_named_and_what_it_sampled_is_kept(self, tmp_path):
        cupti = FakeCupti()
        made = run(cupti, tmp_path / "samples.bin")
        begin = now()
        cupti.waiting[0] += [(begin + i * INTERVAL, begin + (i + 1) * INTERVAL, 1.0) for i in range(3)]
        made.start()
        time.sleep(3 * sampling.POLL_S)
        cupti.failing["PmSamplingDecodeData"] = 999
        time.sleep(2 * sampling.POLL_S)
        made.stop()
        assert len(series(tmp_path / "samples.bin")) == 3
        with load(tmp_path / "samples.bin") as trace:
            assert "sampling of GPU 0 ended early" in trace.processes[0].info["notes"][-1]
            assert trace.named_losses

    def test_beyond_the_size_limit_rows_are_counted_only(self, tmp_path):
        cupti = FakeCupti()
        made = run(cupti, tmp_path / "samples.bin", max_size=20_000)
        begin = now()
        cupti.waiting[0] += [(begin + i * INTERVAL, begin + (i + 1) * INTERVAL, 1.0) for i in range(1000)]
        made.start()
        time.sleep(2 * sampling.POLL_S)
        made.stop()
        with load(tmp_path / "samples.bin") as trace:
            (loss,) = trace.named_losses
            assert (loss.reason, loss.count) == ("size_limit", 999 * len(SAMPLED))

    def test_without_permission_nothing_is_held_and_the_way_out_is_said(self, monkeypatch):
        monkeypatch.setattr(sampling, "visible_gpus", lambda: 1)
        cupti = FakeCupti(failing={"PmSamplingGetCounterAvailability": 35})
        with pytest.raises(CutraceError, match=r"cannot be sampled.*NVreg_RestrictProfilingToAdminUsers=0"):
            sampling._prepared(cupti, "", INTERVAL)  # type: ignore[arg-type]
        assert not cupti.enabled

    def test_an_error_is_printed_and_ends_the_process_with_status_2(self, tmp_path, capsys):
        options = {
            "file": str(tmp_path / "samples.bin"), "metrics": "", "interval_ns": INTERVAL,
            "cupti": str(tmp_path / "absent.so"), "max_size": 0,
        }  # fmt: skip
        assert sampling.main([json.dumps(options)]) == 2
        assert "absent.so" in json.loads(capsys.readouterr().out)["error"]

    def test_memory_stays_the_same_over_two_minutes(self, tmp_path):
        """There are 12,000 samples of 10 ms, which are read every 50 ms."""
        cupti, length = FakeCupti(), 10**7
        names = ",".join(SAMPLED[:3])
        made = GpuSampling([sampler(cupti, names)], tmp_path / "samples.bin", {"pid": 5, "sample_interval": length})
        (found,), (rows,) = made._samplers, made._rows
        found.start()
        begin, held = now() - 120 * 10**9, []
        tracemalloc.start()
        try:
            for poll in range(2_400):
                first = begin + 5 * poll * length
                cupti.waiting[0] += [(first + i * length, first + (i + 1) * length, float(i)) for i in range(5)]
                cupti.calls.clear()
                for samples in found.read():
                    made._write(rows.of(samples))
                if poll in (1200, 2_399):
                    held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        made._writer.close()
        made._file.close()
        assert rows.lost == 0
        assert held[1] < held[0] + (64 << 10)
