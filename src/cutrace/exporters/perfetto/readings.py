"""Readings of GPUs and the memory of processes over time, as the events that viewers and queries expect.

* The SM clock is the frequency of its GPU (``generic_gpu_frequency_event``).
* Power, its limit, temperature, fan and memory clock are counters of the GPU. Perfetto's queries look for the names
  ``Power`` and ``Temperature``.
* The memory of a process on a GPU is its ``gpu_mem_total_event``.

A physical GPU has one index in the trace. So the readings of all its processes are on the same tracks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...trace import Trace
from .derived.counters import MemoryCounters
from .descriptors import Descriptors
from .kernel_metrics import FORWARDS, unit_fields
from .packets import Interned, Output
from .proto import Columns, Delta, FromColumn, SegmentPiece, Template

_GROUP = "Environment"
# Smaller ids belong to Perfetto's own groups and to the group of sampled counters.
_GROUP_ID = 1001


class _Reading(NamedTuple):
    """A reading in rows of ``environment`` of one kind: the ``bits`` bits of ``values`` from bit ``shift`` on,
    multiplied by ``factor``."""

    kind: int
    shift: int
    bits: int
    factor: float
    unit: str
    name: str
    description: str

    def values(self, rows: np.ndarray) -> np.ndarray:
        mask = np.uint64((1 << self.bits) - 1)
        shifted = rows["values"] >> np.uint64(self.shift)
        numbers: np.ndarray = shifted & mask
        return numbers * self.factor


_SM_CLOCK = _Reading(1, 0, 16, 1e3, "kHz", "gpufreq", "Clock of the multiprocessors")
_READINGS = (
    _Reading(1, 16, 16, 1e6, "cycles/s", "Memory clock", "Clock of the memory"),
    _Reading(2, 0, 32, 1.0, "°C", "Temperature", "Temperature of the GPU"),
    _Reading(3, 0, 32, 1e-3, "W", "Power", "Power that the GPU takes"),
    _Reading(3, 32, 32, 1e-3, "W", "Power limit", "Power that the GPU may take"),
    _Reading(4, 0, 32, 1.0, "%", "Fan", "Speed of the fan"),
)


def write_environment(trace: Trace, output: Output, descriptors: Descriptors) -> None:
    """Write the clocks, power, temperature and fan of all GPUs."""
    by_gpu: dict[int, list[np.ndarray]] = {}
    for rows in trace.blocks("environment"):
        for process, device in np.unique(rows[["process", "device"]]).tolist():
            gpu = descriptors.devices.gpu(process, device)
            mine = (rows["process"] == process) & (rows["device"] == device)
            by_gpu.setdefault(gpu, []).append(rows[mine])
    for gpu, parts in sorted(by_gpu.items()):
        readings = np.concatenate(parts)
        readings = readings[np.argsort(readings["time"], kind="stable")]
        _write_frequency(output, gpu, readings)
        for reading in _READINGS:
            _write_reading(output, gpu, reading, readings)


def _write_frequency(output: Output, gpu: int, rows: np.ndarray) -> None:
    rows = rows[rows["kind"] == _SM_CLOCK.kind]
    frequency = _SM_CLOCK.values(rows).astype(np.uint64)
    event = {"gpu_id": gpu, "frequency_khz": FromColumn("value")}
    _write_series(output, "generic_gpu_frequency_event", event, rows["time"], frequency)


def _write_reading(
    output: Output, gpu: int, reading: _Reading, rows: np.ndarray
) -> None:
    rows = rows[rows["kind"] == reading.kind]
    spec = {
        "counter_id": 0,
        "name": reading.name,
        "description": reading.description,
        **unit_fields(reading.unit),
        "value_direction": FORWARDS,
    }
    group = {"group_id": _GROUP_ID, "name": _GROUP, "counter_ids": [0]}
    descriptor = {"specs": spec, "counter_groups": group}
    values = {"gpu_id": gpu, "counter_descriptor": descriptor}
    entry = Interned("gpu_counter_descriptors", 1, values)
    counter = {"counter_id": 0, "double_value": FromColumn("value")}
    event = {"counter_descriptor_iid": entry.iid, "gpu_id": gpu, "counters": counter}
    numbers = reading.values(rows)
    _write_series(output, "gpu_counter_event", event, rows["time"], numbers, entry)


def write_gpu_memory(
    output: Output, descriptors: Descriptors, process: int, memory: MemoryCounters
) -> None:
    """Write the memory of a process on each GPU: the bytes allocated since the start of the capture and not released.
    Older memory is not known."""
    for device, times, values in memory.on_gpus():
        gpu = descriptors.devices.gpu(process, device)
        pid = descriptors.pids[process]
        event = {"gpu_id": gpu, "pid": pid, "size": FromColumn("value")}
        size = np.maximum(values, 0).astype(np.uint64)
        _write_series(output, "gpu_mem_total_event", event, times, size)


def _write_series(
    output: Output,
    field: str,
    event: dict[str, Any],
    times: np.ndarray,
    values: np.ndarray,
    entry: Interned | None = None,
) -> None:
    """Write an event for each value, in the order of time, on a new sequence. The sequence receives ``entry`` first."""
    if not len(times):
        return
    sequence = output.sequence()
    sequence.anchor(int(times[0]))
    if entry:
        sequence.intern([entry])
    packet = {
        "sequence": SegmentPiece("bare_prefixes"),
        "timestamp": Delta("time", event=True),
        field: event,
    }
    times = np.ascontiguousarray(times)
    columns: Columns = {
        "time": times,
        "value": values,
        "bare_prefixes": output.bare_prefixes,
    }
    bound = Template("Trace", {"packet": packet}).bind(columns)
    output.series(bound, sequence, len(times), times)
