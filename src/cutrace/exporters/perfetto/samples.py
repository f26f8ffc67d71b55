"""Sampled hardware counters, as counters of the GPU in a counter group of their own.

The counters are not in Perfetto's group COMPUTE, because the GPU Compute tab treats values of this group as values of
kernels. A value in a ``GpuCounterEvent`` covers the time since the previous event. So each event has the values that
held until its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ...trace import Trace
from .descriptors import Descriptors
from .kernel_metrics import unit_fields
from .packets import Interned, Output, Sequence
from .proto import Columns, Delta, FromColumn, SegmentPiece, Template

_GROUP = "Hardware counters"
_GROUP_ID = 1000  # smaller ids are Perfetto's own groups
_FIRST_IID = 1000  # smaller ids are metrics of kernels


def is_sampled(trace: Trace, process: int) -> bool:
    """Whether the counters of a process are hardware counters of GPUs."""
    return isinstance(trace.processes[process].info.get("sampled"), dict)


class SampleWriter:
    """Writes the sampled counters of one process. ``number`` is the index of the process."""

    def __init__(
        self, trace: Trace, output: Output, descriptors: Descriptors, number: int
    ) -> None:
        self._output = output
        self._descriptors = descriptors
        self._process = number
        self._strings = trace.strings
        descriptions: Mapping[str, Any] = trace.processes[number].info["sampled"]
        self._descriptions = {name: str(text) for name, text in descriptions.items()}
        self._gpus: dict[int, _Gpu] = {}

    def write(self, blocks: Iterable[np.ndarray]) -> None:
        """Write rows of ``counters``, block after block."""
        for rows in blocks:
            for device in np.unique(rows["device"]).tolist():
                mine = rows[rows["device"] == device]
                gpu = self._gpus.get(device)
                if gpu is None or not gpu.takes(mine):
                    gpu = self._opened(device, mine)
                    self._gpus[device] = gpu
                self._write(gpu, mine)

    def _opened(self, device: int, rows: np.ndarray) -> _Gpu:
        """A sequence for the counters of a GPU, with its descriptor."""
        _, at = np.unique(rows["name"], return_index=True)
        first = rows[np.sort(at)]
        gpu = self._descriptors.devices.gpu(self._process, device)
        sequence = self._output.sequence()
        sequence.anchor(int(rows["time"].min()))
        iid = self._output.uuid() + _FIRST_IID
        group = {
            "group_id": _GROUP_ID,
            "name": _GROUP,
            "counter_ids": list(range(len(first))),
        }
        specs = [self._spec(number, row) for number, row in enumerate(first)]
        descriptor = {"specs": specs, "counter_groups": group}
        values = {"gpu_id": gpu, "counter_descriptor": descriptor}
        sequence.intern([Interned("gpu_counter_descriptors", iid, values)])
        return _Gpu(sequence, iid, gpu, first["name"].tolist())

    def _spec(self, number: int, row: np.void) -> dict[str, Any]:
        name = self._strings[row["name"]]
        return {
            "counter_id": number,
            "name": name,
            "description": self._descriptions.get(name),
            **unit_fields(self._strings[row["unit"]]),
        }

    def _write(self, gpu: _Gpu, rows: np.ndarray) -> None:
        times, moment = np.unique(rows["time"], return_inverse=True)
        shape = (len(times) + 1, len(gpu.columns))
        held = np.full(shape, -1)
        names = rows["name"].tolist()
        column = np.array([gpu.columns[name] for name in names])
        held[moment + 1, column] = np.arange(len(rows))
        # ``held`` gets the last row up to each time, by counter (-1 for none). ``values`` has the values of these rows.
        # NaN is an unknown value.
        held = np.maximum.accumulate(held, axis=0)
        values = rows["value"][held]
        values = np.where(held < 0, gpu.last, values)
        gpu.last = values[-1]
        finite = np.nan_to_num(values[:-1], posinf=0, neginf=0)
        columns: Columns = {"time": times, "bare_prefixes": self._output.bare_prefixes}
        for number, values_of in enumerate(finite.T):
            columns[f"value{number}"] = np.ascontiguousarray(values_of)
        template = _template(gpu.iid, gpu.gpu, len(gpu.columns))
        bound = template.bind(columns)
        self._output.series(bound, gpu.sequence, len(times), times)


class _Gpu:
    """The counters of one GPU: the sequence of their events, their columns by name, and their last values."""

    def __init__(
        self, sequence: Sequence, iid: int, gpu: int, names: list[int]
    ) -> None:
        self.sequence = sequence
        self.iid = iid
        self.gpu = gpu
        self.columns = {name: number for number, name in enumerate(names)}
        self.last = np.zeros(len(names))

    def takes(self, rows: np.ndarray) -> bool:
        """Whether the sequence has the counters of rows, and no event after the first row."""
        if not set(rows["name"].tolist()) <= self.columns.keys():
            return False
        return bool(rows["time"].min() >= self.sequence.time)


@cache
def _template(iid: int, gpu: int, counters: int) -> Template:
    values = []
    for number in range(counters):
        value = FromColumn(f"value{number}")
        values.append({"counter_id": number, "double_value": value})
    event = {"counter_descriptor_iid": iid, "gpu_id": gpu, "counters": values}
    packet = {
        "sequence": SegmentPiece("bare_prefixes"),
        "timestamp": Delta("time", event=True),
        "gpu_counter_event": event,
    }
    return Template("Trace", {"packet": packet})
