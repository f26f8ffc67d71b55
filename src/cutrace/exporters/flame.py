"""Flame graphs of GPU time: collapsed stacks for flamegraph.pl and its successors, and profiles for speedscope."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..analysis.context import StatsOptions
from ..analysis.flame import Frame, flame_with_coverage
from ..trace import Trace
from .base import Request

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
#: The meaning of the CPU times of flame graphs, by the kind of frames.
_CPU_TIMES = {"range": "time of threads in ranges", "stack": "time of API calls"}
#: A semicolon divides frames, a line break lines.
_PLAIN = str.maketrans({";": ":", "\n": " ", "\r": " "})


def write_folded(trace: Trace, path: Path, request: Request) -> None:
    """Write a line for each path with GPU time of its own: its frames with semicolons between, a space, and the time in
    ns. Lines are sorted."""
    lines: dict[str, int] = {}
    root, _ = requested_flame(trace, request)
    for frames in root.walk():
        own = frames[-1].own_gpu_ns
        if own:
            line = ";".join(frame.name.translate(_PLAIN) for frame in frames)
            lines[line] = lines.get(line, 0) + own
    text = "".join(f"{line} {lines[line]}\n" for line in sorted(lines))
    _write(path, text)


def write_speedscope(trace: Trace, path: Path, request: Request) -> None:
    """Write a file for speedscope.app with two profiles: GPU time, and the time of threads in ranges or of API
    calls."""
    root, _ = requested_flame(trace, request)
    numbers: dict[str, int] = {}
    profiles = [
        _profile("GPU time", root, numbers, lambda frame: frame.own_gpu_ns),
        _profile(_CPU_TIMES[request.by], root, numbers, lambda frame: frame.own_cpu_ns),
    ]
    timed = [profile for profile in profiles if profile["samples"]]
    document = {
        "$schema": _SCHEMA,
        "exporter": "cutrace",
        "name": path.name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in numbers]},
        "profiles": timed or profiles[:1],
    }
    _write(path, json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def requested_flame(trace: Trace, request: Request) -> tuple[Frame, str | None]:
    """The flame graph of a request, and the sentence on the share of GPU time in ranges. Reports this sentence to the
    user."""
    options = StatsOptions(ranges=request.ranges)
    root, covered = flame_with_coverage(trace, options, request.by)
    if covered:
        request.say(covered)
    return root, covered


def _profile(
    name: str, root: Frame, numbers: dict[str, int], own: Callable[[Frame], int]
) -> dict[str, Any]:
    """A profile with a sample for each path. The weight is the time of the last frame without its children."""
    samples = []
    weights = []
    for frames in root.walk():
        time = own(frames[-1])
        if time:
            names = [frame.name for frame in frames]
            samples.append([numbers.setdefault(name, len(numbers)) for name in names])
            weights.append(time)
    times = {"unit": "nanoseconds", "startValue": 0, "endValue": sum(weights)}
    return {
        "type": "sampled",
        "name": name,
        **times,
        "samples": samples,
        "weights": weights,
    }


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
