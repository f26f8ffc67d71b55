"""Captures: write any trace as a run.bin."""

from __future__ import annotations

from pathlib import Path

from ..trace import Trace
from ..trace.writing import write as write_capture
from .base import Request


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write a trace as a capture. Unreferenced rows, such as names of kernels that are not in it, are omitted."""
    write_capture(trace, path, progress=request.progress)
