"""Read rows of a trace for exporters of tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..runbin.layout import LOSS_REASONS, REFERRED
from ..trace import Trace
from ..trace.quality import unfinished, unreadable

_NUMBERS = {name: number for number, (name, _) in LOSS_REASONS.items()}


def pieces(trace: Trace, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of a table, block by block: rows with known times, and the other rows."""
    if name in REFERRED.values():
        rows = trace.table(name)[1:]  # Row 0 means "unknown".
        yield rows, rows[:0]
        return
    yield from map(trace.block, trace.block_infos(name))


def losses_of_the_file(trace: Trace) -> list[dict[str, Any]]:
    """The losses that the file of a trace shows and its table ``losses`` lacks: processes whose capture was not closed,
    and damage. They are rows of that table, with strings in place of ids. Reads all blocks."""
    rows = []
    for loss in (*unfinished(trace.processes), *unreadable(trace.quality.damage)):
        row = {
            "time": 0,
            "count": loss.count,
            "reason": _NUMBERS[loss.reason],
            "process": loss.process,
            "detail": loss.detail,
        }
        rows.append(row)
    return rows


def payload_columns(rows: np.ndarray) -> dict[str, np.ndarray]:
    """The NVTX payloads of rows as columns ``unsigned``, ``signed`` and ``float``, with masks of the rows of each
    type."""
    kind = rows["payload_type"]
    bits = np.ascontiguousarray(rows["payload"])
    low = bits.astype(np.uint32)
    signed = low.view(np.int32).astype(np.int64)
    # Each payload is converted to every type, so it can be a signalling NaN.
    with np.errstate(invalid="ignore"):
        single = low.view(np.float32).astype(np.float64)
    return {
        "is_unsigned": np.isin(kind, (1, 4)),
        "is_signed": np.isin(kind, (2, 5)),
        "is_float": np.isin(kind, (3, 6)),
        "unsigned": np.where(kind == 4, low, bits),
        "signed": np.where(kind == 5, signed, bits.view(np.int64)),
        "float": np.where(kind == 6, single, bits.view(np.float64)),
    }
