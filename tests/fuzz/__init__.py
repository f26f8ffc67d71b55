"""Fuzzing: see docs/internals/fuzzing.md. ``python -m fuzz`` (from ``tests``) runs the Python targets."""

from __future__ import annotations

from .imports import Databases, Json, Traces
from .targets import Captures, GoldenFiles, Marks, Reading, Target

TARGETS: dict[str, type[Target]] = {
    target.name: target for target in (Captures, Reading, Json, Databases, Traces, GoldenFiles, Marks)
}
