"""Captures: a trace of any origin, or a stretch of it, as a run.bin."""

from __future__ import annotations

from pathlib import Path

from ..trace import Trace
from ..trace.selection import Selection
from ..trace.writing import write as write_capture
from .base import Request


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a capture. What nothing refers to, such as names of kernels that are not in it, is left out."""
    write_capture(trace, path, Selection(start=request.start, end=request.end), progress=request.progress)
