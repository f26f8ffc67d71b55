"""Values of counters in events: whole numbers as integers, which take half the room."""

from __future__ import annotations

import numpy as np

from .template import Column

#: Whole numbers up to here are the same as integers and as floats.
_EXACT = float(1 << 53)

#: The field of a ``TrackEvent`` that holds values, by whether all of them are whole.
FIELDS = {True: {"counter_value": Column("value")}, False: {"double_counter_value": Column("value")}}


def counted(values: np.ndarray) -> tuple[bool, np.ndarray]:
    """Whether all values are whole numbers, and then as integers."""
    if values.dtype.kind != "f":
        return True, values.astype(np.int64)
    # There is no integer for -0.0.
    zero = (values == 0) & np.signbit(values)
    whole = bool(np.all((np.abs(values) <= _EXACT) & (np.rint(values) == values) & ~zero))
    return whole, values.astype(np.int64) if whole else values
