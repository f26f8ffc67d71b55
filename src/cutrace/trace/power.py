"""The energy of GPUs, from samples of their power."""

from __future__ import annotations

import numpy as np

from .intervals import Intervals
from .trace import Trace

# Rows of `environment` with the power (mW) in the lower half of their values.
_POWER = 3
_LOWER_HALF = np.uint64(0xFFFFFFFF)
# There is a gap between samples whose distance is more than this many times the usual one.
_GAP = 3


class Power:
    """The power of each GPU of a trace over time. All processes of a GPU read the power of the whole GPU."""

    def __init__(self, trace: Trace) -> None:
        # The UUID by process and device. Equal UUIDs are one GPU.
        self._gpus: dict[tuple[int, int], bytes] = {}
        for gpu, row in trace.device_rows.items():
            uuid = bytes(row["uuid"])
            if uuid.strip(b"\0"):
                self._gpus[gpu] = uuid
        rows = trace.environment
        rows = rows[rows["kind"] == _POWER]
        gpus = rows[["process", "device"]]
        parts: dict[bytes | tuple[int, int], list[np.ndarray]] = {}
        for gpu in np.unique(gpus):
            mine = rows[gpus == gpu]
            known = self._gpu(*gpu.tolist())
            parts.setdefault(known, []).append(mine)
        self._samples = {}
        for known, each in parts.items():
            samples = np.concatenate(each)
            self._samples[known] = _Samples(samples)

    def joules(
        self, process: int, device: int | None, start: np.ndarray, end: np.ndarray
    ) -> list[float | None]:
        """The energy (J) that a process's GPU uses in each window from ``start`` to ``end`` (ns); None for windows that
        the samples do not cover."""
        energies: list[float | None] = [None] * len(start)
        if device is None:
            return energies
        samples = self._samples.get(self._gpu(process, device))
        if samples is None:
            return energies
        covered = samples.cover(start, end)
        watt_ns = samples.until(end) - samples.until(start)
        joules = watt_ns / 1e9
        for place in np.flatnonzero(covered).tolist():
            energies[place] = float(joules[place])
        return energies

    def _gpu(self, process: int, device: int) -> bytes | tuple[int, int]:
        gpu = (process, device)
        return self._gpus.get(gpu, gpu)


class _Samples:
    """The power of one GPU: linear between neighbouring samples, unknown in gaps between them and outside."""

    def __init__(self, rows: np.ndarray) -> None:
        all_times = rows["time"].astype(np.int64)
        times, places = np.unique(all_times, return_index=True)
        milliwatts = rows["values"][places] & _LOWER_HALF
        watts = milliwatts * 1e-3
        self._times = times
        self._watts = watts
        before = times[:-1]
        after = times[1:]
        apart = after - before
        means = (watts[1:] + watts[:-1]) / 2
        # The energy (W ns) from the first sample to each one.
        energy = np.cumsum(means * apart)
        self._energy = np.append(0.0, energy)
        usual = np.median(apart) if len(apart) else 0
        wide = apart > _GAP * usual
        self._gaps = Intervals.union(before[wide], after[wide])

    def cover(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """A mask of the windows that are between the first and the last sample, and touch no gap."""
        first = self._times[0]
        last = self._times[-1]
        covered: np.ndarray = (start >= first) & (end <= last)
        covered &= self._gaps.within(start, end) == 0
        return covered

    def until(self, times: np.ndarray) -> np.ndarray:
        """The energy (W ns) from the first sample to each time. No time is before the first sample."""
        place = np.searchsorted(self._times, times, side="right") - 1
        place = np.maximum(place, 0)
        sampled = self._times[place]
        watts = self._watts[place]
        now = np.interp(times, self._times, self._watts)
        since = (times - sampled) * (watts + now) / 2
        return self._energy[place] + since
