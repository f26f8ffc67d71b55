"""Hardware metrics of kernels as counters of the GPU, for Perfetto's GPU Compute tab. Metrics of NVTX ranges become
arguments of their slices.

For each counter of the group COMPUTE the tab reads the values between the start and the end of a kernel, on all GPUs.
Each value is written at the start of its kernel, and a 0 at the end. The 0 is left out if another kernel starts at that
time, because the tab would show the 0 for that kernel. The values of a kernel are left out if another kernel runs at
its start or its end, because the tab would show them for the other kernel.

The tab also reads the duration of a kernel from a counter. This counter has the duration in the capture, not in a
replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ...runbin.layout import CACHES
from ...trace import Trace
from ...trace.rows import distinct
from .descriptors import Descriptors
from .packets import BOOTTIME, NEEDS_STATE, Interned, InternedRefs, Output

_COMPUTE = 6
#: A value holds from its time on.
FORWARDS = 2
_TIME = "gpu__time_duration.sum"
#: Perfetto's numbers for the numerator and the denominator of each unit.
_UNITS = {
    "%": (37, None),
    "bytes": (7, None),
    "bytes/s": (7, 22),
    "ns": (19, None),
    "cycles/s": (13, None),
    "W": (29, None),
    "°C": (34, None),
    "instructions": (40, None),
    "instructions/s": (40, 22),
}


def write_kernel_metrics(trace: Trace, output: Output, descriptors: Descriptors) -> int:
    """Write the metrics of all kernels of a trace. Returns the number of values that are left out."""
    blocks = [rows[rows["range"] == 0] for rows in trace.blocks("kernel_metrics")]
    busy = _Busy(trace, blocks)
    by_gpu: dict[int, list[np.ndarray]] = {}
    left_out = 0
    for rows in blocks:
        alone = busy.alone(rows)
        left_out += len(rows) - int(alone.sum())
        rows = rows[alone]
        for process, device in np.unique(rows[["process", "device"]]).tolist():
            gpu = descriptors.devices.gpu(process, device)
            of_device = rows["process"] == process
            of_device &= rows["device"] == device
            mine = rows[of_device]
            by_gpu.setdefault(gpu, []).append(mine)
    names: dict[int, int] = {}
    time_name = trace.strings.find(_TIME)
    for number, (gpu, parts) in enumerate(sorted(by_gpu.items()), 1):
        rows = np.concatenate(parts)
        if time_name is not None:
            timed = rows["name"] == time_name
            durations = rows["end"] - rows["start"]
            rows["value"][timed] = durations[timed]
        specs = []
        caches = caches_text(rows)
        for row in _first_of(rows):
            counter = names.setdefault(int(row["name"]), len(names))
            spec = _spec(trace, row, counter)
            if caches:
                spec["description"] = f"caches {caches}"
            specs.append(spec)
        sequence = output.sequence()
        sequence.anchor(int(rows["start"].min()))
        values = {"gpu_id": gpu, "counter_descriptor": {"specs": specs}}
        sequence.intern([Interned("gpu_counter_descriptors", number, values)])
        for moment, counters in _moments(rows, names, busy):
            event = {
                "counter_descriptor_iid": number,
                "counters": counters,
                "gpu_id": gpu,
            }
            packet = {
                "timestamp": moment,
                "timestamp_clock_id": BOOTTIME,
                "sequence_flags": NEEDS_STATE,
                "gpu_counter_event": event,
            }
            sequence.packet(packet)
    return left_out


class _Busy:
    """The numbers of running kernels, on all GPUs, at the starts and ends of kernels with metrics."""

    def __init__(self, trace: Trace, metrics: Sequence[np.ndarray]) -> None:
        times = [rows[name] for rows in metrics for name in ("start", "end")]
        no_times = np.zeros(0, np.uint64)
        all_times = np.concatenate([no_times, *times])
        self._times = distinct(all_times)
        #: By time: the number of kernels that run directly after this time, and how many of these kernels started
        #: before it.
        self._running = np.zeros(len(self._times), np.int64)
        self._across = np.zeros(len(self._times), np.int64)
        if len(self._times):
            for rows in trace.blocks("kernels"):
                starts = np.sort(rows["start"])
                ends = np.sort(rows["end"])
                self._count(starts, ends)

    def _count(self, starts: np.ndarray, ends: np.ndarray) -> None:
        ended = np.searchsorted(ends, self._times, "right")
        begun = np.searchsorted(starts, self._times, "right")
        begun_before = np.searchsorted(starts, self._times, "left")
        self._running += begun - ended
        self._across += begun_before - ended

    def alone(self, rows: np.ndarray) -> np.ndarray:
        """For each row, whether its kernel starts and ends while no other kernel runs."""
        others = self._running[self._at(rows["start"])] > 1
        others |= self._across[self._at(rows["end"])] > 0
        return ~others

    def at(self, times: np.ndarray) -> np.ndarray:
        """Whether a kernel runs directly after each of these times."""
        return self._running[self._at(times)] > 0

    def _at(self, times: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._times, times)


class RangeMetrics:
    """The metrics of NVTX ranges, as arguments of their slices."""

    def __init__(self, trace: Trace) -> None:
        self._processes = [process.identity for process in trace.processes]
        # The index in ``_sets`` of each range, by process, start and name.
        self._numbers: dict[tuple[object, int, int], int] = {}
        self._sets: list[dict[str, float | str]] = [{}]
        for rows in trace.blocks("kernel_metrics"):
            rows = rows[rows["range"] != 0]
            fields = rows[["process", "start", "range", "name", "value", "caches"]]
            for process, start, text, name, value, caches in fields.tolist():
                key = (self._processes[process], start, text)
                number = self._numbers.setdefault(key, len(self._sets))
                if number == len(self._sets):
                    self._sets.append({})
                    if caches:
                        state = CACHES.get(caches, str(caches))
                        self._sets[number]["caches"] = state
                self._sets[number][trace.strings[name]] = value
        starts = [start for _, start, _ in self._numbers]
        self._starts = distinct(np.array(starts, np.uint64))

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The number of the set of metrics for each row of ``nvtx_ranges``, 0 for none."""
        numbers = np.zeros(len(rows), np.uint32)
        for at in np.flatnonzero(np.isin(rows["start"], self._starts)).tolist():
            row = rows[at]
            process = self._processes[row["process"]]
            key = (process, int(row["start"]), int(row["name"]))
            numbers[at] = self._numbers.get(key, 0)
        return numbers

    def shared(self, number: int, refs: InternedRefs) -> list[dict[str, Any]]:
        """The metrics of one set as debug annotations."""
        annotations = []
        for name, value in self._sets[number].items():
            name_iid = refs.name("debug_annotation_names", name)
            field = "string_value" if isinstance(value, str) else "double_value"
            annotations.append({"name_iid": name_iid, field: value})
        return annotations


def caches_text(rows: np.ndarray) -> str:
    """The states of the caches of rows of ``kernel_metrics``, empty if they are not known."""
    states = np.unique(rows["caches"]).tolist()
    return " or ".join(CACHES.get(state, str(state)) for state in states if state)


def _first_of(rows: np.ndarray) -> np.ndarray:
    """One row of each metric."""
    _, first = np.unique(rows["name"], return_index=True)
    return rows[first]


def _spec(trace: Trace, row: np.void, counter: int) -> dict[str, Any]:
    return {
        "counter_id": counter,
        "name": trace.strings[row["name"]],
        **unit_fields(trace.strings[row["unit"]]),
        "groups": _COMPUTE,
        "value_direction": FORWARDS,
    }


def unit_fields(unit: str) -> dict[str, int | None]:
    """The fields of a counter's description with its unit, None if Perfetto has no number for the unit."""
    counted, divided = _UNITS.get(unit, (None, None))
    return {"numerator_units": counted, "denominator_units": divided}


def _moments(
    rows: np.ndarray, names: dict[int, int], busy: _Busy
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The values at each time, in rising time."""
    followed = busy.at(rows["end"]).tolist()
    fields = rows[["start", "end", "name", "value"]].tolist()
    values = []
    for (start, end, name, value), next_begins in zip(fields, followed, strict=True):
        values.append((start, names[name], value))
        if not next_begins:
            values.append((end, names[name], 0.0))
    for moment, group in groupby(sorted(values), key=lambda item: item[0]):
        counters = [
            {"counter_id": counter, "double_value": value}
            for _, counter, value in group
        ]
        yield moment, counters
