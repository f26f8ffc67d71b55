"""The energy of GPUs, from samples of their power."""

from __future__ import annotations

import numpy as np

from ..trace import Trace
from .intervals import Intervals

# Rows of `environment` with the power (mW) in the lower half of their values.
_POWER = 3
_LOWER_HALF = np.uint64(0xFFFFFFFF)
# Samples that are this many times as far apart as most are, have a gap between them.
_GAP = 3


class Power:
    """The power of each GPU of a trace over time. It is that of the whole GPU, whichever process reads it."""

    def __init__(self, trace: Trace) -> None:
        self._gpus = _gpus(trace)
        rows = trace.environment
        rows = rows[rows["kind"] == _POWER]
        parts: dict[bytes | tuple[int, int], list[np.ndarray]] = {}
        for process, device in np.unique(rows[["process", "device"]]).tolist():
            mine = (rows["process"] == process) & (rows["device"] == device)
            parts.setdefault(self._gpu(process, device), []).append(rows[mine])
        self._samples = {
            gpu: _Samples(np.concatenate(each)) for gpu, each in parts.items()
        }

    def joules(
        self, process: int, device: int, start: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """The energy (J) that a GPU of a process takes in each window from ``start`` to ``end`` (ns); NaN for those
        that the samples do not cover."""
        samples = self._samples.get(self._gpu(process, device))
        if samples is None:
            return np.full(len(start), np.nan)
        return samples.joules(start, end)

    def _gpu(self, process: int, device: int) -> bytes | tuple[int, int]:
        return self._gpus.get((process, device), (process, device))


def _gpus(trace: Trace) -> dict[tuple[int, int], bytes]:
    """The UUID of each GPU of each process that tells it."""
    found = {}
    for row in trace.devices:
        uuid = bytes(row["uuid"])
        if uuid.strip(b"\0"):
            found[int(row["process"]), int(row["device"])] = uuid
    return found


class _Samples:
    """The power of one GPU: linear between neighbouring samples, unknown in gaps between them and outside."""

    def __init__(self, rows: np.ndarray) -> None:
        times, places = np.unique(rows["time"].astype(np.int64), return_index=True)
        watts = (rows["values"][places] & _LOWER_HALF) * 1e-3
        apart = np.diff(times)
        self._times = times
        self._watts = watts
        # The energy (W ns) from the first sample to each one.
        means = (watts[1:] + watts[:-1]) / 2
        self._energy = np.append(0.0, np.cumsum(means * apart))
        wide = np.zeros(0, bool)
        if len(apart):
            wide = apart > _GAP * np.median(apart)
        self._gaps = Intervals.union(times[:-1][wide], times[1:][wide])

    def joules(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        covered = (start >= self._times[0]) & (end <= self._times[-1])
        covered &= self._gaps.within(start, end) == 0
        energy = (self._until(end) - self._until(start)) / 1e9
        return np.where(covered, energy, np.nan)

    def _until(self, times: np.ndarray) -> np.ndarray:
        """The energy (W ns) from the first sample to each time."""
        place = np.searchsorted(self._times, times, side="right") - 1
        place = np.maximum(place, 0)
        passed = times - self._times[place]
        watts = np.interp(times, self._times, self._watts)
        energy: np.ndarray = (
            self._energy[place] + passed * (self._watts[place] + watts) / 2
        )
        return energy
