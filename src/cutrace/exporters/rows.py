"""Read rows of a trace for exporters of tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..runbin.layout import REFERRED
from ..trace import Trace


def pieces(trace: Trace, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of a table, block by block: rows with known times, and the other rows."""
    if name in REFERRED.values():
        rows = trace.table(name)[1:]  # Row 0 means "unknown".
        yield rows, rows[:0]
        return
    yield from map(trace.block, trace.block_infos(name))


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
