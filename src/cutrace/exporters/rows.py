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


def payload_columns(rows: np.ndarray) -> dict[str, np.ndarray]:
    """NVTX payloads by the type of value they become, and which rows have one of that type."""
    kind, bits = rows["payload_type"], np.ascontiguousarray(rows["payload"])
    low = bits.astype(np.uint32)
    with np.errstate(invalid="ignore"):  # a payload may be a signalling NaN, and is looked at as all types
        single = low.view(np.float32).astype(np.float64)
    return {
        "is_unsigned": np.isin(kind, (1, 4)),
        "is_signed": np.isin(kind, (2, 5)),
        "is_float": np.isin(kind, (3, 6)),
        "unsigned": np.where(kind == 4, low, bits),
        "signed": np.where(kind == 5, low.view(np.int32).astype(np.int64), bits.view(np.int64)),
        "float": np.where(kind == 6, single, bits.view(np.float64)),
    }
