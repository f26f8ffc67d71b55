"""Arguments that a source gave as a JSON object, as debug annotations.

Numbers differ from slice to slice and stay with it. Texts, lists and objects, such as the shapes of an operator's
inputs, are the same for many slices: they are interned, and each slice refers to them. Several lists and objects of one
slice are interned as one JSON text. When a trace has too many different ones, they are written out in each slice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from ..._native import Blobs
from ...trace.strings import StringTable
from . import proto
from .packets import InternedNames, InternedRefs
from .proto import Columns

#: The field with the arguments that a source gave, a JSON object's text.
TEXT = "arguments"
#: Levels of lists and objects beyond which the JSON text itself is shown.
DEPTH = 16
#: At most so many different sets of texts are shared in one trace.
MOST_SHARED = 1 << 14
#: The number of the shared set of rows that share nothing.
UNSHARED = 0

#: Whole numbers by name in a JSON text, short enough for 64 bits.
_WHOLE = re.compile(rb'(?<=":)( ?)(-?(?:0|[1-9][0-9]{0,17}))(?=[,}])')
#: Stands for the first number of a text when it is tried out which numbers are annotations.
_PROBE = 10**17
_ANNOTATION = proto.field("TrackEvent", "debug_annotations").tag
_INT_VALUE = proto.field("DebugAnnotation", "int_value").tag


class Annotations:
    """The arguments of the rows of a trace, by the ids of their texts.

    ``shared_of`` numbers the sets of texts that rows share, ``piece_of`` the ``pieces``: fields of a ``TrackEvent``
    with the row's own arguments. Both have an entry for each string of the trace; ``used`` are the ids of texts with
    arguments. ``reserved`` are names of annotations that rows have beside these.
    """

    def __init__(
        self, strings: StringTable, names: InternedNames, used: Iterable[int], reserved: Collection[str]
    ) -> None:
        self._names, self._reserved = names, reserved
        self.pieces = Blobs()
        self._pieces = {b"": self.pieces.add(b"")}
        # The texts of each shared set, and the names of the numbers beside them.
        self._shared: list[tuple[dict[str, str], tuple[str, ...]]] = [({}, ())]
        self._numbers: dict[tuple[Any, ...], int] = {((), ()): UNSHARED}
        # Of texts that differ in whole numbers alone, by the text around the numbers: what they share, and the encoded
        # name of each number.
        self._similar: dict[tuple[bytes, ...], tuple[int, list[bytes]]] = {}
        self.shared_of = np.zeros(len(strings), np.uint32)
        self.piece_of = np.zeros(len(strings), np.uint32)
        for text in used:
            if text:
                shared, piece = self._parse(strings.bytes(text), strings[text])
                self.shared_of[text], self.piece_of[text] = shared, self._piece(piece)

    def columns(self, texts: np.ndarray) -> Columns:
        """Columns for rows with these texts: ``shared``, and the ``text`` of each among the ``texts``."""
        return {"shared": self.shared_of[texts], "text": self.piece_of[texts], "texts": self.pieces}

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The number of the shared set of each row."""
        return np.asarray(self.shared_of[rows[TEXT]])

    def shared(self, number: int, refs: InternedRefs) -> list[dict[str, Any]]:
        """The debug annotations of a shared set. ``refs`` gets what they, and the rows' own, refer to."""
        texts, numbers = self._shared[number]
        for name in numbers:
            refs.name("debug_annotation_names", name)
        return refs.annotations(texts)

    def _parse(self, data: bytes, text: str) -> tuple[int, bytes]:
        """What a text shares with others, and its own annotations, encoded."""
        parts = _WHOLE.split(data)
        numbers = [int(number) for number in parts[2::3]]
        around = (*parts[0::3], *parts[1::3])
        if around in self._similar:
            shared, begins = self._similar[around]
            return shared, b"".join(map(_whole_number, begins, numbers))
        own, texts = self._divide(data)
        if own is None:
            own, texts = {}, {"arguments": text}
        key = tuple(texts.items()), tuple(own)
        if key not in self._numbers:
            if len(self._shared) > MOST_SHARED:
                values = _object(data) or texts
                fields = [{"name": name, **_value(value, DEPTH)} for name, value in values.items()]
                return UNSHARED, proto.encode("TrackEvent", {"debug_annotations": fields})
            self._numbers[key] = len(self._shared)
            self._shared.append((texts, tuple(own)))
        iids = {name: self._names.entry("debug_annotation_names", name).iid for name in own}
        if numbers:
            # Whether other numbers in the same places change these annotations, and nothing else.
            probes = range(_PROBE, _PROBE + len(numbers))
            parts[2::3] = [b"%d" % probe for probe in probes]
            if self._divide(b"".join(parts)) == (dict(zip(own, probes, strict=False)), texts):
                begins = [proto.encode("DebugAnnotation", {"name_iid": iid}) + _INT_VALUE for iid in iids.values()]
                self._similar[around] = self._numbers[key], begins
        fields = [{"name_iid": iids[name], **_value(value, 0)} for name, value in own.items()]
        return self._numbers[key], proto.encode("TrackEvent", {"debug_annotations": fields})

    def _divide(self, data: bytes) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """The members of a JSON object: numbers as numbers, the rest as text. Several lists and objects become one
        text. JSON that is not an object gives None and no text."""
        values = _object(data)
        if values is None:
            return None, {}
        own = {name: value for name, value in values.items() if _is_number(value) and name not in self._reserved}
        values = {name: value for name, value in values.items() if name not in own}
        deep = {name: value for name, value in values.items() if isinstance(value, list | dict)}
        if len(deep) > 1 and "arguments" not in values:
            values = {name: value for name, value in values.items() if name not in deep} | {"arguments": deep}
        return own, {name: v if isinstance(v, str) else json.dumps(v) for name, v in values.items()}

    def _piece(self, piece: bytes) -> int:
        if piece not in self._pieces:
            self._pieces[piece] = self.pieces.add(piece)
        return self._pieces[piece]


def _whole_number(begin: bytes, number: int) -> bytes:
    """An annotation from its encoded name and its value."""
    body = begin + proto.varint(number)
    return _ANNOTATION + proto.varint(len(body)) + body


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and -(1 << 63) <= value < 1 << 64
    return isinstance(value, float)


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
