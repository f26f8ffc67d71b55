"""Captures: a trace of any origin as a run.bin."""

from __future__ import annotations

from pathlib import Path

from ..trace import Trace
from ..trace.writing import write as write_capture
from .base import Request


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a capture. What nothing refers to, such as names of kernels that are not in it, is left out."""
    write_capture(trace, path, progress=request.progress)
