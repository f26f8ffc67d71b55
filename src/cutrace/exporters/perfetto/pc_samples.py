"""PC samples as Perfetto's stack samples, for flame graphs. A stack has the function, the line or the instruction, and
the stall reason.

Each row becomes one stack sample in the middle of its interval. The weight is the number of samples.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..._native import demangle
from ...trace import Trace
from .descriptors import Descriptors
from .packets import Interned, Output, Sequence
from .proto import Columns, Delta, FromColumn, SegmentPiece, Template

_SOURCE = "gpu_pc"
_COUNTER = {"name": "PC samples", "unit": 9}  # UNIT_COUNT

_TEMPLATE = Template(
    "Trace",
    {
        "packet": {
            "sequence": SegmentPiece("prefixes"),
            "timestamp": Delta("time", event=True),
            "stack_sample": {
                "task_context_iid": FromColumn("task"),
                "callstack_iid": FromColumn("stack"),
                "primary_weight": FromColumn("samples"),
            },
        }
    },
)


class PcSampleWriter:
    """Writes the rows of ``pc_samples`` of the process with index ``process``."""

    def __init__(
        self, trace: Trace, output: Output, descriptors: Descriptors, process: int
    ) -> None:
        self._output = output
        self._descriptors = descriptors
        self._process = process
        self._text = trace.strings.__getitem__
        self._sequence: Sequence | None = None

    def write(self, blocks: Iterable[np.ndarray]) -> None:
        """Write rows, block after block."""
        for rows in blocks:
            if not len(rows):
                continue
            duration = rows["end"] - rows["start"]
            time = rows["start"] + duration // np.uint64(2)
            order = np.argsort(time, kind="stable")
            rows = rows[order]
            time = time[order]
            first = int(time[0])
            if self._sequence is None or first < self._sequence.time:
                self._sequence = self._opened(first)
            columns: Columns = {
                "time": time,
                "prefixes": self._output.prefixes,
                "task": self._tasks(self._sequence, rows),
                "stack": self._stacks(self._sequence, rows),
                "samples": np.ascontiguousarray(rows["samples"]),
            }
            bound = _TEMPLATE.bind(columns)
            self._output.series(bound, self._sequence, len(rows), time)

    def _opened(self, time: int) -> Sequence:
        sequence = self._output.sequence()
        sequence.anchor(time)
        defaults = {"source": _SOURCE, "primary_descriptor": _COUNTER}
        sequence.defaults({"stack_sample_defaults": defaults})
        return sequence

    def _tasks(self, sequence: Sequence, rows: np.ndarray) -> np.ndarray:
        """The task context of each row: its process and its GPU."""
        devices, inverse = np.unique(rows["device"], return_inverse=True)
        ids = []
        for device in devices.tolist():
            gpu = self._descriptors.devices.gpu(self._process, device) + 1
            ids.append(gpu)
            context = {"name": f"GPU {device}", "kind": "gpu"}
            task = {"pid": self._descriptors.pids[self._process], "async_id": gpu}
            entries = [
                Interned("stack_sample_async_context_descriptors", gpu, context),
                Interned("stack_sample_task_contexts", gpu, task),
            ]
            sequence.intern(entries)
        return np.array(ids, np.uint64)[inverse]

    def _stacks(self, sequence: Sequence, rows: np.ndarray) -> np.ndarray:
        """The interned callstack of each row."""
        fields = ("function", "file", "line", "offset", "stall")
        columns = np.stack([rows[name] for name in fields])
        keys, inverse = np.unique(columns, axis=1, return_inverse=True)
        names = self._output.names
        entries: list[Interned] = []
        ids = []
        for function, file, line, offset, stall in keys.T.tolist():
            place = f"+{offset:#x}"
            if file and line:
                place = f"{self._text(file)}:{line}"
            frames = []
            for text in (
                demangle(self._text(function)) or "unknown",
                place,
                self._text(stall),
            ):
                name = names.entry("function_names", text)
                entries += [
                    name,
                    Interned("frames", name.iid, {"function_name_id": name.iid}),
                ]
                frames.append(name.iid)
            stack = names.entry("callstacks", " ".join(map(str, frames)))
            entries.append(Interned("callstacks", stack.iid, {"frame_ids": frames}))
            ids.append(stack.iid)
        sequence.intern(entries)
        return np.array(ids, np.uint64)[inverse.reshape(-1)]
