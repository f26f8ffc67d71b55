"""Arguments that a source gave as a JSON object, as debug annotations.

Numbers differ from slice to slice and stay with it. Texts, lists and objects, such as the shapes of an operator's
inputs, are the same for many slices: they are told once, and each slice refers to them. Lists and objects are told as
JSON, several of them together as one. Where they differ from slice to slice too, they are written out where they stand.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..._native import Blobs
from ...trace.strings import StringTable
from . import schema
from .naming import Names, Needs

#: Levels of lists and objects beyond which the JSON text itself is shown.
DEPTH = 16
#: So many different sets of arguments are shared in one stream of rows at most.
MOST_SHARED = 1 << 14

#: Texts by name, and the names of the numbers beside them.
Shared = tuple[tuple[tuple[str, str], ...], tuple[str, ...]]


class Arguments:
    """The arguments of the rows of one stream. ``pieces`` are fields of a ``TrackEvent`` with what differs from row to
    row; what rows share has a number, and :meth:`annotate` describes it."""

    def __init__(self, strings: StringTable, names: Names) -> None:
        self.pieces = Blobs()
        self.pieces.add(b"")
        self._strings, self._names = strings, names
        self._shared: list[Shared] = [((), ())]
        self._numbers: dict[Shared, int] = {self._shared[0]: 0}
        self._known: dict[bytes, int] = {b"": 0}
        self._of: dict[int, tuple[int, int]] = {0: (0, 0)}

    def of(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For rows with ids of JSON texts (0 for none): (numbers of what is shared, numbers of pieces), uint32."""
        found, of = np.unique(texts, return_inverse=True)
        pairs = np.array([self._pair(number) for number in found.tolist()], np.uint32).reshape(-1, 2)
        return pairs[of, 0], pairs[of, 1]

    def annotate(self, shared: int, needs: Needs) -> list[dict[str, Any]]:
        """The debug annotations that rows share; ``needs`` learns what they, and those of the rows, refer to."""
        texts, numbers = self._shared[shared]
        for name in numbers:
            needs.name("debug_annotation_names", name)
        return needs.annotations(**dict(texts))

    def _pair(self, number: int) -> tuple[int, int]:
        if number not in self._of:
            self._of[number] = self._split(self._strings[number])
        return self._of[number]

    def _split(self, text: str) -> tuple[int, int]:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            values = {"arguments": text}
        own = {name: value for name, value in values.items() if _is_number(value)}
        shared = _together({name: value for name, value in values.items() if name not in own}), tuple(own)
        if shared not in self._numbers:
            if len(self._shared) > MOST_SHARED:
                return 0, self._piece([{"name": name, **_value(value, DEPTH)} for name, value in values.items()])
            self._numbers[shared] = len(self._shared)
            self._shared.append(shared)
        iids = ((self._names.entry("debug_annotation_names", name).iid, value) for name, value in own.items())
        return self._numbers[shared], self._piece([{"name_iid": iid, **_value(value, 0)} for iid, value in iids])

    def _piece(self, annotations: list[dict[str, Any]]) -> int:
        piece = schema.encode("TrackEvent", {"debug_annotations": annotations}) if annotations else b""
        if piece not in self._known:
            self._known[piece] = self.pieces.add(piece)
        return self._known[piece]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _together(values: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Values that are no numbers as texts; several lists and objects as one."""
    deep = {name: value for name, value in values.items() if isinstance(value, list | dict)}
    if len(deep) > 1 and "arguments" not in values:
        values = {name: value for name, value in values.items() if name not in deep} | {"arguments": deep}
    return tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in values.items())


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
