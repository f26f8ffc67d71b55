"""Arguments that a source gave as a JSON object, as debug annotations: numbers, texts, truth, lists and objects."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..._native import Blobs
from ...trace.strings import StringTable
from . import schema

#: Levels of lists and objects beyond which the JSON text itself is shown.
DEPTH = 16


def arguments(strings: StringTable, texts: np.ndarray) -> tuple[np.ndarray, Blobs]:
    """For rows with ids of JSON texts (0 for none) a piece of a ``TrackEvent`` each: (numbers of pieces, pieces)."""
    found, of = np.unique(texts, return_inverse=True)
    pieces = Blobs()
    for number in found.tolist():
        pieces.add(_piece(strings[number]) if number else b"")
    return of.astype(np.uint32), pieces


def _piece(text: str) -> bytes:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        values = {"arguments": text}
    annotations = [{"name": name, **_value(value, DEPTH)} for name, value in values.items()]
    return schema.encode("TrackEvent", {"debug_annotations": annotations})


def _value(value: Any, depth: int) -> dict[str, Any]:
    """The fields of a debug annotation that hold a value."""
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int):
        if 0 <= value < 1 << 64:
            return {"uint_value" if value >> 63 else "int_value": value}
        return {"int_value": value} if -(1 << 63) <= value < 0 else {"string_value": str(value)}
    if isinstance(value, float):
        return {"double_value": value}
    if value is None:
        return {"string_value": "null"}
    if isinstance(value, str):
        return {"string_value": value}
    if depth == 0:
        return {"string_value": json.dumps(value)}
    if isinstance(value, list):
        return {"array_values": [_value(item, depth - 1) for item in value]}
    return {"dict_entries": [{"name": name, **_value(item, depth - 1)} for name, item in value.items()]}
