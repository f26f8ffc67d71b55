"""Sample the hardware counters of GPUs over time, while other processes use these GPUs.

This runs as a program in a separate process, so that it adds no threads and signals to the measured program. It
initialises CUDA but creates no context. It writes ``{"ready": true}`` or ``{"error": "..."}`` to stdout. Then it
samples until stdin has a line or ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ...collect import cuda
from ...collect.surroundings import machine_identity
from ...errors import CutraceError
from ...runbin import TABLES, Writer
from ...runbin.labels import HARDWARE_COUNTER
from .cupti import Cupti, CuptiError, address, texts
from .host import SAMPLES, Chip, chip_of
from .sets import SAMPLED, chosen

#: Seconds between reads of samples.
POLL_S = 0.05
#: The number of samples that are decoded at once, and bytes of the GPU buffer for undecoded samples.
BATCH = 512
BUFFER = 64 << 20

_BY_CYCLES = 0
_BY_TIME = 1
_KEEP_OLDEST = 0
_ALL_DECODED = 2
_INVALID_PARAMETER = 1
_OUT_OF_MEMORY = 8
_NOT_SUPPORTED = 27
_STEP_NS = 1_000_000


class Samples(NamedTuple):
    """Samples of one GPU: starts and ends (ns on CUPTI's clock), and a row of values for each sample."""

    start: np.ndarray
    end: np.ndarray
    values: np.ndarray


class PmSampler:
    """Samples metrics of one GPU. ``names`` are the sampled metrics, and ``left_out`` the metrics that do not fit into
    one pass.

    ``metrics`` is ``SET|NAME,...``, or "" for the default set. Only metrics of the default set may be left out.
    """

    def __init__(
        self,
        cupti: Cupti,
        device: int,
        metrics: str,
        interval_ns: int,
    ) -> None:
        """Configure the sampling. Raises :class:`CutraceError` if a metric is unknown, the metrics need several passes,
        or sampling is not possible."""
        self.device = device
        self._cupti = cupti
        self.by_cycles = False
        self.overflown = False
        self._runs = False
        self._first = False
        size = cupti.call("PmSamplingGetCounterAvailability", device=device).size
        image = ctypes.create_string_buffer(size)
        cupti.call(
            "PmSamplingGetCounterAvailability",
            device=device,
            size=size,
            image=address(image),
        )
        self.chip = Chip(cupti, chip_of(cupti, device), SAMPLES, image.raw)
        self.names, self.left_out = self._choose(metrics)
        config = self.chip.configure(self.names).image
        self._config = config  # referenced here, because CUPTI keeps its address
        self._sampling = cupti.call("PmSamplingEnable", device=device).sampling
        try:
            fields = {
                "config_size": len(config),
                "config": address(config),
                "buffer": BUFFER,
                "keep": _KEEP_OLDEST,
            }
            self._configure(fields, interval_ns)
            sized = self._call(
                "GetCounterDataSize",
                names=texts(self.names),
                count=len(self.names),
                samples=BATCH,
            )
        except BaseException:
            self._call("Disable")
            raise
        self._image = ctypes.create_string_buffer(sized.size)
        self._whole = {"image": address(self._image), "size": sized.size}
        self._values, self._evaluate = self.chip.evaluator(self._image, self.names)
        self._times, self._read_times = cupti.repeated(
            "PmSamplingCounterDataGetSampleInfo", sampling=self._sampling, **self._whole
        )

    def _choose(self, metrics: str) -> tuple[list[str], list[str]]:
        if metrics:
            named = chosen(self.chip, metrics)
            self.chip.configure(named).must_fit_one_pass("a sample is taken in one")
            return named, []
        names: list[str] = []
        left_out: list[str] = []
        for name in filter(self.chip.has, SAMPLED):
            try:
                fits = self.chip.configure([*names, name]).passes == 1
            except CuptiError:
                fits = False  # this GPU cannot count it
            if fits:
                names.append(name)
            else:
                left_out.append(name)
        if not names:
            listed = ", ".join(SAMPLED)
            raise CutraceError(
                f"{self.chip.name} cannot sample any of {listed}: name other metrics"
            )
        return names, left_out

    def _configure(self, fields: dict[str, Any], interval_ns: int) -> None:
        try:
            self._call("SetConfig", **fields, interval=interval_ns, trigger=_BY_TIME)
        except CuptiError as error:
            if error.code not in (_INVALID_PARAMETER, _NOT_SUPPORTED):
                raise
            # Turing and GA100 support only cycles as interval. Samples have times, so the interval may be inexact.
            cycles = max(1, interval_ns * _attribute(self.device, "clock") // 10**6)
            self._call("SetConfig", **fields, interval=cycles, trigger=_BY_CYCLES)
            self.by_cycles = True

    def _call(self, function: str, **fields: Any) -> Any:
        return self._cupti.call(
            f"PmSampling{function}", sampling=self._sampling, **fields
        )

    def start(self) -> None:
        self._call("CounterDataImageInitialize", **self._whole)
        self._call("Start")
        self._first = True
        self._runs = True

    def read(self) -> Iterator[Samples]:
        """Yield the samples since the last call, in batches. The first sample after a start is dropped, because CUPTI
        documents that it may be wrong. If the GPU's buffer was full, sampling is restarted."""
        while True:
            complete = False
            try:
                decoded = self._call("DecodeData", **self._whole)
                overflow = bool(decoded.overflow)
                complete = decoded.reason == _ALL_DECODED
            except CuptiError as error:
                if error.code != _OUT_OF_MEMORY:
                    raise
                overflow = True
            info = self._cupti.call("PmSamplingGetCounterDataInfo", **self._whole)
            if info.completed:
                yield self._evaluated(info.completed)
                self._call("CounterDataImageInitialize", **self._whole)
            if overflow:
                self.overflown = True
                if self._runs:
                    self._call("Stop")
                    self.start()
                return
            if complete or not info.completed:
                return

    def _evaluated(self, count: int) -> Samples:
        start = np.empty(count, np.int64)
        end = np.empty(count, np.int64)
        samples = np.empty((count, len(self.names)))
        values = np.frombuffer(self._values)
        for index in range(count):
            self._times.index = index
            self._read_times()
            start[index] = self._times.start
            end[index] = self._times.end
            self._evaluate(index)
            samples[index] = values
        if self._first:
            self._first = False
            return Samples(start[1:], end[1:], samples[1:])
        return Samples(start, end, samples)

    def stop(self) -> None:
        """Stop sampling. Samples taken so far can still be read."""
        self._runs = False
        self._call("Stop")

    def close(self) -> None:
        """Release the counters."""
        with suppress(CuptiError):
            self._call("Disable")
        self.chip.close()


class BoottimeClock:
    """Converts times of samples to BOOTTIME.

    Samples have the clock of CUPTI's activity records. This clock is BOOTTIME if cutrace's collector has registered its
    timestamp callback in the process, else REALTIME.
    """

    def __init__(self, read: Callable[[int], int] | None = None) -> None:
        self._read = read or time.clock_gettime_ns
        self._offset = 0

    def move(self, times: np.ndarray) -> np.ndarray:
        """Convert times (ns). The offset is updated only if the wall clock was set. Smaller differences come from
        reading the clocks."""
        now = self._read(time.CLOCK_BOOTTIME)
        offset = now - self._read(time.CLOCK_REALTIME)
        if len(times):
            last = int(times[-1])
            # The two clocks differ by years and the sample is seconds old, so the clock closer to now is the right one.
            if abs(last - now) < abs(last + offset - now):
                offset = 0
        if abs(offset - self._offset) > _STEP_NS:
            self._offset = offset
        return times + self._offset


class CounterRows:
    """Converts samples of one GPU to rows of ``counters`` on BOOTTIME. A value is valid until the next row. NaN marks
    the start of a time without a known value. ``lost`` counts missing samples."""

    def __init__(
        self,
        device: int,
        names: Sequence[int],
        units: Sequence[int],
        category: int,
    ) -> None:
        self._device = device
        self._names = names
        self._units = units
        self._category = category
        self._clock = BoottimeClock()
        self._end: int | None = None
        self.lost = 0

    def of(self, samples: Samples) -> np.ndarray:
        """The rows of samples, in order of time."""
        if not len(samples.start):
            return np.empty(0, TABLES["counters"].dtype)
        start = self._clock.move(samples.start)
        end = self._clock.move(samples.end)
        if self._end is None:
            self._end = int(start[0])
        before = np.append(self._end, end[:-1])
        self._end = int(end[-1])
        length = np.maximum(end - start, 1)
        missing = start - before
        gaps = np.flatnonzero(missing > length // 2)
        lost = np.rint(missing[gaps] / length[gaps])
        self.lost += int(np.maximum(1, lost).sum())
        times = np.insert(start, gaps, before[gaps])
        values = np.insert(samples.values, gaps, np.nan, axis=0)
        return self._rows(times, values)

    def missing(self, since: int, until: int, interval_ns: int) -> None:
        """Count the missing samples up to ``until`` (ns) as lost. They start at the last sample, or at ``since`` if
        that is later."""
        last = max(since, self._end or 0)
        self.lost += max(0, until - last) // interval_ns

    def ended(self) -> np.ndarray:
        """The rows that end the last sample."""
        if self._end is None:
            return np.empty(0, TABLES["counters"].dtype)
        unknown = np.full((1, len(self._names)), np.nan)
        return self._rows(np.array([self._end]), unknown)

    def _rows(self, times: np.ndarray, values: np.ndarray) -> np.ndarray:
        rows = np.zeros(values.shape, TABLES["counters"].dtype)
        rows["time"] = times[:, None]
        rows["value"] = values
        rows["name"] = self._names
        rows["unit"] = self._units
        rows["category"] = self._category
        rows["device"] = self._device
        return rows.reshape(-1)


class GpuSampling:
    """Samples all GPUs into a separate file until :meth:`stop`, with one thread for each GPU."""

    def __init__(
        self,
        samplers: Sequence[PmSampler],
        path: Path,
        info: dict[str, Any],
        max_size: int | None = None,
    ) -> None:
        """``path`` is the file of the capture, ``info`` its process description, and ``max_size`` the maximum size of
        the file (bytes)."""
        # Samples are written immediately, so that the file has them even if this process is killed.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")
        self._max_size = max_size
        self._interval = int(info["sample_interval"])
        self._began = 0
        self._ended = 0
        self._samplers = samplers
        self._notes = list(_notes(samplers))
        described = {}
        for sampler in samplers:
            for name in sampler.names:
                described[name] = sampler.chip.describe(name)
        meanings = {name: metric.description for name, metric in described.items()}
        self._writer = Writer(
            path,
            file=self._file,
            **info,
            sampled=meanings,
            notes=self._notes,
        )
        text = self._writer.string
        self._rows = []
        self._threads = []
        for sampler in samplers:
            rows = CounterRows(
                sampler.device,
                [text(name) for name in sampler.names],
                [text(described[name].values_in) for name in sampler.names],
                text(HARDWARE_COUNTER),
            )
            thread = threading.Thread(
                target=self._run, args=(sampler, rows), name=f"GPU {sampler.device}"
            )
            self._rows.append(rows)
            self._threads.append(thread)
        self._full = 0  # rows dropped by the size limit
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start sampling. Raises :class:`CuptiError` if the GPU refuses."""
        with self._lock:
            numbers = [sampler.device for sampler in self._samplers]
            self._writer.rows("devices", _devices(self._writer.string, numbers))
            self._writer.rows("clocks", _clocks())
        self._began = boottime()
        for sampler in self._samplers:
            sampler.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sampling and complete the capture."""
        self._ended = boottime()
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        losses = []
        for sampler, rows in zip(self._samplers, self._rows, strict=True):
            if rows.lost:
                losses.append(("samples_lost", rows.lost, f"GPU {sampler.device}"))
        if self._full:
            losses.append(("size_limit", self._full, "counters"))
        self._writer.losses(losses, boottime())
        self._writer.rows("clocks", _clocks())
        self._writer.process({"notes": self._notes})
        self._writer.close()
        self._file.close()
        for sampler in self._samplers:
            sampler.close()

    def _run(self, sampler: PmSampler, rows: CounterRows) -> None:
        failed = False
        try:
            while not self._stopped.wait(POLL_S):
                for samples in sampler.read():
                    self._write(rows.of(samples))
                    # The GPU may take samples faster than this loop reads them, so the loop checks for the end.
                    if self._stopped.is_set():
                        break
            sampler.stop()
            for samples in sampler.read():
                self._write(rows.of(samples))
        except CutraceError as error:
            self._notes.append(f"sampling of GPU {sampler.device} ended early: {error}")
            failed = True
        self._write(rows.ended())
        if sampler.overflown:
            self._notes.append(
                f"GPU {sampler.device} took samples faster than they could be read: use a longer `interval=`"
            )
        if failed or sampler.overflown:
            self._stopped.wait()
            rows.missing(self._began, self._ended, self._interval)

    def _write(self, rows: np.ndarray) -> None:
        with self._lock:
            size = self._file.tell() + rows.nbytes
            if self._max_size is not None and size > self._max_size:
                self._full += len(rows)
            elif len(rows):
                self._writer.rows("counters", rows)
                self._file.flush()


def _notes(samplers: Sequence[PmSampler]) -> Iterator[str]:
    for sampler in samplers:
        gpu = f"GPU {sampler.device} ({sampler.chip.name})"
        if sampler.left_out:
            names = ", ".join(sampler.left_out)
            yield f"{gpu} cannot sample {names} in the same pass as the other metrics: they are omitted"
        if sampler.by_cycles:
            yield f"{gpu} cannot sample by time: the interval is converted to clock cycles"


def boottime() -> int:
    """The time (ns) on the BOOTTIME clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _clocks() -> np.ndarray:
    """The clocks of this machine, as a row of ``clocks``."""
    row = np.zeros(1, TABLES["clocks"].dtype)
    row["boottime"] = first = boottime()
    for name in ("monotonic", "monotonic_raw", "realtime"):
        row[name] = time.clock_gettime_ns(getattr(time, f"CLOCK_{name.upper()}"))
    row["spread"] = boottime() - first
    return row


#: The numbers of device attributes in the driver API. The clock is in kHz.
_ATTRIBUTES = {
    "clock": 13,
    "multiprocessors": 16,
    "compute_major": 75,
    "compute_minor": 76,
}


def _attribute(device: int, name: str) -> int:
    driver = cuda.driver()
    value = ctypes.c_int()
    if driver is not None:
        driver.cuDeviceGetAttribute(ctypes.byref(value), _ATTRIBUTES[name], device)
    return value.value


def _devices(text: Callable[[str], int], devices: Sequence[int]) -> np.ndarray:
    """The GPUs as rows of ``devices``. Recorded processes have the same UUIDs."""
    driver = cuda.driver()
    rows = np.zeros(len(devices), TABLES["devices"].dtype)
    rows["device"] = devices
    if driver is None:
        return rows
    # The newer function distinguishes MIG instances.
    read_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    for row, device in zip(rows, devices, strict=True):
        name = ctypes.create_string_buffer(256)
        pci = ctypes.create_string_buffer(64)
        uuid = ctypes.create_string_buffer(16)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceGetPCIBusId(pci, len(pci), device)
        read_uuid(uuid, device)
        row["name"] = text(name.value.decode())
        row["pci"] = text(pci.value.decode())
        row["uuid"] = uuid.raw
        for field in ("multiprocessors", "compute_major", "compute_minor"):
            row[field] = _attribute(device, field)
    return rows


def visible_gpus() -> int:
    """The number of GPUs in CUDA_VISIBLE_DEVICES. Initialises CUDA. Raises :class:`CutraceError` without a GPU."""
    driver = cuda.driver()
    count = ctypes.c_int()
    if (
        driver is None
        or driver.cuInit(0)
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or not count.value
    ):
        raise CutraceError("there is no GPU to sample: run `cutrace doctor`")
    return count.value


def _prepared(cupti: Cupti, metrics: str, interval_ns: int) -> list[PmSampler]:
    samplers: list[PmSampler] = []
    count = visible_gpus()
    cupti.call("ProfilerInitialize")
    try:
        for device in range(count):
            samplers.append(PmSampler(cupti, device, metrics, interval_ns))
    except CutraceError as error:
        for sampler in samplers:
            sampler.close()
        counters = "the counters"
        if count > 1:
            counters += f" of GPU {device}"
        raise CutraceError(f"{counters} cannot be sampled: {error}") from None
    return samplers


def _description(cupti: Cupti, interval_ns: int) -> dict[str, Any]:
    return {
        **machine_identity(),
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "name": "cutrace, sampling",
        "command": [sys.executable, "-m", "cutrace.extras.hardware.sampling"],
        "started": boottime(),
        "cupti_path": str(cupti.path),
        "driver_version": cuda.driver_version(),
        "sample_interval": interval_ns,
    }


def main(arguments: Sequence[str]) -> int:
    """Sample to a file until stdin has a line or ends. ``arguments`` is one JSON object: ``file``, ``metrics``,
    ``interval_ns``, ``cupti`` and ``max_size``. Returns the exit code."""
    options = json.loads(arguments[0])
    file = Path(options["file"])
    interval = options["interval_ns"]
    try:
        if options["cupti"]:
            cupti = Cupti(Path(options["cupti"]))
        else:
            cupti = Cupti.found()
        samplers = _prepared(cupti, options["metrics"], interval)
        info = _description(cupti, interval)
        sampling = GpuSampling(samplers, file, info, options["max_size"])
        sampling.start()
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        sampling.stop()
    except CutraceError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
