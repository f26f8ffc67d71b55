"""Profiles for ``go tool pprof``, Pyroscope and other readers of pprof: the flame graph of GPU time as the protobuf
message ``perftools.profiles.Profile`` (profile.proto of github.com/google/pprof)."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

from ..analysis.flame import Frame, FramesBy
from ..trace import Trace
from ..trace.alignment import wall_clock
from .base import Request
from .flame import requested_flame
from .perfetto.proto import encode

#: The values of a sample and their units; readers show the first one.
VALUES = (("gpu_time", "nanoseconds"), ("operations", "count"))
#: A Python frame: ``ops.py:42 in fused_add``.
_PLACE = re.compile(r"(?P<file>.+):(?P<line>\d+) in (?P<function>.+)")


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a sample for each path whose last frame has GPU work: its time (ns) and its number of operations. Sentences
    on missing data are comments of the profile."""
    sentences: list[str] = []
    root, covered = requested_flame(trace, request)
    if covered:
        sentences.append(covered)
    sentences += trace.quality.sentences()
    profile = _Profile(request.by)
    for frames in root.walk():
        profile.add(frames)
    data = profile.encoded(trace, sentences)
    # The header has no time, so that equal profiles are equal files.
    compressed = gzip.compress(data, mtime=0)
    path.write_bytes(compressed)


class _Profile:
    """A profile, to which samples are added."""

    def __init__(self, by: FramesBy) -> None:
        self._by = by
        self._strings = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[int, int], int] = {}
        self._out = bytearray()
        for name, unit in VALUES:
            kind = {"type": self._string(name), "unit": self._string(unit)}
            self._put({"sample_type": kind})

    def add(self, frames: tuple[Frame, ...]) -> None:
        """Add the sample of a path, if its last frame has GPU work."""
        last = frames[-1]
        below = sum(child.operations for child in last.children.values())
        values = (last.own_gpu_ns, last.operations - below)
        if not any(values):
            return
        # Readers expect the innermost frame first.
        locations = list(map(self._location, reversed(frames)))
        self._put({"sample": {"location_id": locations, "value": values}})

    def encoded(self, trace: Trace, comments: list[str]) -> bytes:
        """The profile as a message."""
        default, _ = VALUES[0]
        numbers = {
            "comment": list(map(self._string, comments)),
            "default_sample_type": self._string(default),
            "duration_nanos": trace.end - trace.start,
        }
        began = wall_clock(trace.clocks)
        if began is not None:
            numbers["time_nanos"] = began + trace.start
        self._put({"string_table": list(self._strings)})
        self._put(numbers)
        return bytes(self._out)

    def _put(self, fields: dict[str, Any]) -> None:
        self._out += encode("pprof.Profile", fields)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, frame: Frame) -> int:
        """The id of the location of a frame."""
        name = frame.name
        file = ""
        line = 0
        place = _PLACE.fullmatch(name)
        if self._by == "stack" and frame.kind == "range" and place:
            name = place["function"]
            file = place["file"]
            line = int(place["line"])
        function = self._function(name, file)
        key = (function, line)
        if key not in self._locations:
            number = len(self._locations) + 1
            self._locations[key] = number
            at = {"function_id": function, "line": line}
            self._put({"location": {"id": number, "line": at}})
        return self._locations[key]

    def _function(self, name: str, file: str) -> int:
        """The id of a function."""
        key = (name, file)
        if key not in self._functions:
            number = len(self._functions) + 1
            self._functions[key] = number
            text = self._string(name)
            function = {
                "id": number,
                "name": text,
                "system_name": text,
                "filename": self._string(file),
            }
            self._put({"function": function})
        return self._functions[key]
