"""Packets about the trace as a whole: clocks, processes, GPUs, and what is missing."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..._native import VERSION
from ...trace import Trace
from .devices import Devices
from .naming import Numbers
from .output import Output
from .sequence import BOOTTIME, CLEARED

REALTIME, MONOTONIC, MONOTONIC_RAW = 1, 3, 5
_SEQUENCE = 1
_INSTANT = 3


class Header:
    """Writes the packets of the trace's first sequence."""

    def __init__(self, trace: Trace, output: Output, pids: list[int]) -> None:
        self._trace, self._output, self._pids = trace, output, pids

    def begin(self, devices: Devices, uuids: list[int]) -> None:
        """What a reader has to know first."""
        self._packet({"sequence_flags": CLEARED})
        self._clocks()
        half = (1 << 64) - 1
        number = int.from_bytes(os.urandom(16), "big")
        self._packet({"trace_uuid": _signed({"msb": number >> 64, "lsb": number & half})})
        info = devices.info()
        if info:
            self._packet({"gpu_info": info})
        for process, track in zip(self._trace.processes, uuids, strict=True):
            described = {
                "pid": self._pids[process.index],
                "process_name": process.name,
                "cmdline": list(process.command),
            }
            self._packet({"track_descriptor": {"uuid": track, "process": described}})

    def finish(self, missing: list[tuple[str, int]], numbers: Numbers) -> None:
        """What is missing, as attributes of the trace and as instants on a track that is there only for them."""
        attributes: list[dict[str, Any]] = [
            {"key": "cutrace.version", "string_value": VERSION},
            {"key": "cutrace.missing", "long_value": len(missing)},
        ]
        for i, (what, count) in enumerate(missing):
            text = f"{count:,} {what}" if count else what
            attributes.append({"key": f"cutrace.missing.{i}", "string_value": text})
        self._packet({"trace_attributes": {"attribute": attributes}})
        if not missing:
            return
        track = numbers.uuid()
        self._packet({"track_descriptor": {"uuid": track, "name": "cutrace", "description": "what this trace lacks"}})
        for what, count in missing:
            event: dict[str, Any] = {
                "type": _INSTANT,
                "track_uuid": track,
                "name": f"{count:,} {what}" if count else what,
                "categories": ["cutrace.missing", "error"],
                "debug_annotations": [{"name": "count", "uint_value": count}] if count else None,
            }
            time = max(self._trace.start, 1)
            self._packet({"timestamp": time, "timestamp_clock_id": BOOTTIME, "track_event": event})

    def _clocks(self) -> None:
        """The machine's clocks, as far as they are on the clock of the trace."""
        here = self._trace.processes[0].boot_id
        shifted = [p.index for p in self._trace.processes if p.clock_offset or p.boot_id != here]
        rows = self._trace.clocks
        rows = rows[~np.isin(rows["process"], shifted)]
        snapshots = [
            {BOOTTIME: row["boottime"], MONOTONIC: row["monotonic"], MONOTONIC_RAW: row["monotonic_raw"],
             REALTIME: row["realtime"]}
            for row in rows[np.argsort(rows["boottime"], kind="stable")]
        ] or [{BOOTTIME: self._trace.start}]  # fmt: skip
        for clocks in snapshots:
            read = [{"clock_id": clock, "timestamp": int(time)} for clock, time in clocks.items()]
            self._packet({"clock_snapshot": {"clocks": read, "primary_trace_clock": BOOTTIME}})

    def _packet(self, values: dict[str, Any]) -> None:
        self._output.packet({"trusted_packet_sequence_id": _SEQUENCE, **values})


def _signed(values: dict[str, int]) -> dict[str, int]:
    return {k: v - (1 << 64) if v >> 63 else v for k, v in values.items()}
