"""Profiles for ``go tool pprof``, Pyroscope and other readers of pprof: the flame graph of GPU time as the protobuf
message ``perftools.profiles.Profile`` (profile.proto of github.com/google/pprof)."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from ..analysis.flame import Frame, FramesBy
from ..trace import Trace
from .base import Request
from .flame import requested_flame
from .perfetto.proto import utf8, varint

# The numbers of the fields, by message.
_SAMPLE_TYPE = 1
_SAMPLE = 2
_LOCATION = 4
_FUNCTION = 5
_STRING = 6
_TIME = 9
_DURATION = 10
_COMMENT = 13
_DEFAULT_TYPE = 14
_TYPE_NAME, _TYPE_UNIT = 1, 2
_SAMPLE_LOCATION, _SAMPLE_VALUE = 1, 2
_LOCATION_ID, _LOCATION_LINE = 1, 4
_LINE_FUNCTION, _LINE_NUMBER = 1, 2
_FUNCTION_ID, _FUNCTION_NAME, _FUNCTION_SYSTEM_NAME, _FUNCTION_FILE = 1, 2, 3, 4

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
            self._put(
                _SAMPLE_TYPE,
                _number(_TYPE_NAME, self._string(name)),
                _number(_TYPE_UNIT, self._string(unit)),
            )

    def add(self, frames: tuple[Frame, ...]) -> None:
        """Add the sample of a path, if its last frame has GPU work."""
        last = frames[-1]
        below = sum(child.operations for child in last.children.values())
        values = (last.own_gpu_ns, last.operations - below)
        if not any(values):
            return
        sample = []
        # Readers expect the innermost frame first.
        for frame in reversed(frames):
            location = self._location(frame)
            sample.append(_number(_SAMPLE_LOCATION, location))
        sample += [_number(_SAMPLE_VALUE, value) for value in values]
        self._put(_SAMPLE, *sample)

    def encoded(self, trace: Trace, comments: list[str]) -> bytes:
        """The profile as a message."""
        numbers = [_number(_COMMENT, self._string(comment)) for comment in comments]
        default, _ = VALUES[0]
        numbers.append(_number(_DEFAULT_TYPE, self._string(default)))
        numbers.append(_number(_DURATION, trace.end - trace.start))
        start = _wall_clock(trace)
        if start is not None:
            numbers.append(_number(_TIME, start))
        for text in self._strings:
            self._out += _bytes(_STRING, utf8(text))
        return bytes(self._out) + b"".join(numbers)

    def _put(self, field: int, *parts: bytes) -> None:
        self._out += _bytes(field, b"".join(parts))

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
            at = _number(_LINE_FUNCTION, function) + _number(_LINE_NUMBER, line)
            self._put(
                _LOCATION,
                _number(_LOCATION_ID, number),
                _bytes(_LOCATION_LINE, at),
            )
        return self._locations[key]

    def _function(self, name: str, file: str) -> int:
        """The id of a function."""
        key = (name, file)
        if key not in self._functions:
            number = len(self._functions) + 1
            self._functions[key] = number
            text = self._string(name)
            self._put(
                _FUNCTION,
                _number(_FUNCTION_ID, number),
                _number(_FUNCTION_NAME, text),
                _number(_FUNCTION_SYSTEM_NAME, text),
                _number(_FUNCTION_FILE, self._string(file)),
            )
        return self._functions[key]


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def _wall_clock(trace: Trace) -> int | None:
    """The wall-clock time of the start of the trace (ns since 1970); None if it is not known."""
    known = trace.clocks[trace.clocks["realtime"] > 0]
    if not len(known):
        return None
    first = known[0]
    lead = int(first["realtime"]) - int(first["boottime"])
    return trace.start + lead
