"""Fuzzing; docs/internals/fuzzing.md describes it. ``python -m fuzz`` (in ``tests``) runs the Python targets."""

from __future__ import annotations

from .imports import Databases, Json, Traces
from .targets import Captures, GoldenFiles, Marks, Reading, Target

TARGETS: dict[str, type[Target]] = {
    target.name: target for target in (Captures, Reading, Json, Databases, Traces, GoldenFiles, Marks)
}
