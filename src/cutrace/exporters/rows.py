"""Rows of a trace on their way into a table of another format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..runbin.layout import TABLES, Table
from ..trace import Trace
from .base import Request


@dataclass(frozen=True)
class Piece:
    """Some rows of a table: those with known times, and the others."""

    rows: np.ndarray
    unknown: np.ndarray


def pieces(trace: Trace, name: str, request: Request) -> Iterator[Piece]:
    """The rows of a table that touch the wanted time, a block of the capture at a time. Rows without known times touch
    none: they are there only when no time was asked for. Rows of tables without times are always there."""
    table = TABLES[name]
    if name in ("launches", "functions"):
        rows = trace.table(name)[1:]  # row 0 stands for "unknown"
        yield Piece(rows, rows[:0])
        return
    whole = table.start_field is None or (request.start is None and request.end is None)
    for info in trace.block_infos(name, request.start, request.end):
        rows, unknown = trace.block(info)
        yield Piece(rows, unknown) if whole else Piece(_touching(table, rows, request), unknown[:0])


def _touching(table: Table, rows: np.ndarray, request: Request) -> np.ndarray:
    start, end = request.start, request.end
    inside = np.ones(len(rows), bool)
    if start is not None:
        inside &= rows[table.end_field] >= max(start, 0)
    if end is not None:
        inside &= rows[table.start_field] < max(end, 0)
    return rows[inside]
