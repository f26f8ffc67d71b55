"""Rows of a trace on their way into a table of another format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..trace import Trace


@dataclass(frozen=True)
class Piece:
    """Some rows of a table: those with known times, and the others."""

    rows: np.ndarray
    unknown: np.ndarray


def pieces(trace: Trace, name: str) -> Iterator[Piece]:
    """The rows of a table, a block of the capture at a time."""
    if name in ("launches", "functions"):
        rows = trace.table(name)[1:]  # row 0 stands for "unknown"
        yield Piece(rows, rows[:0])
        return
    for info in trace.block_infos(name):
        yield Piece(*trace.block(info))
