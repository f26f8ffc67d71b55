"""Debug annotations for arguments that a source gave as a JSON object.

Numbers differ between slices, so each slice holds its own. Strings, lists and objects, such as the shapes of an
operator's inputs, repeat in many slices, so they are interned. Several lists and objects of one slice are interned as
one JSON string. When a trace has more than :data:`MOST_SHARED` different sets, each further slice holds its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..._native import Blobs
from ...trace.strings import StringTable
from . import proto
from .packets import InternedNames, InternedRefs
from .proto import Columns

#: The field with a source's arguments as a JSON string.
TEXT = "arguments"
#: Lists and objects nested deeper than this are written as JSON strings.
DEPTH = 16
#: The largest number of shared sets of strings in one trace.
MOST_SHARED = 1 << 14
#: The number of the empty shared set.
UNSHARED = 0

#: Integers with a name in a JSON string, short enough for 64 bits.
_WHOLE = re.compile(rb'(?<=":)( ?)(-?(?:0|[1-9][0-9]{0,17}))(?=[,}])')
#: The first of the numbers that replace the numbers of a string, to test which of them become annotations.
_PROBE = 10**17
_ANNOTATION = proto.field("TrackEvent", "debug_annotations").tag
_INT_VALUE = proto.field("DebugAnnotation", "int_value").tag


class _SharedSet(NamedTuple):
    """Strings that slices share, and the names of the numbers that differ between these slices."""

    texts: dict[str, str]
    numbers: tuple[str, ...]


class _SimilarTexts(NamedTuple):
    """Strings that differ only in integers: the number of their shared set, and the encoded name of each integer."""

    shared: int
    begins: list[bytes]


class Annotations:
    """The arguments of the rows of a trace, by string id of their JSON string.

    ``shared_of`` maps a string id to a shared set of strings. ``piece_of`` maps it to an entry of ``pieces``: encoded
    fields of a ``TrackEvent`` with the row's own arguments. Both have an entry for each string of the trace. ``used``
    gives the ids of the JSON strings. ``reserved`` names annotations that come from other fields of the rows.
    """

    def __init__(
        self,
        strings: StringTable,
        names: InternedNames,
        used: Iterable[int],
        reserved: Collection[str],
    ) -> None:
        self._names = names
        self._reserved = reserved
        self.pieces = Blobs()
        self._pieces = {b"": self.pieces.add(b"")}
        self._shared = [_SharedSet({}, ())]
        self._numbers: dict[tuple[Any, ...], int] = {((), ()): UNSHARED}
        # The results for strings that differ only in integers, by the parts around the integers.
        self._similar: dict[tuple[bytes, ...], _SimilarTexts] = {}
        self.shared_of = np.zeros(len(strings), np.uint32)
        self.piece_of = np.zeros(len(strings), np.uint32)
        for text in used:
            if text:
                data = strings.bytes(text)
                shared, piece = self._parse(data, strings[text])
                self.shared_of[text] = shared
                self.piece_of[text] = self._piece(piece)

    def columns(self, texts: np.ndarray) -> Columns:
        """Columns for rows with these string ids: ``shared``, ``text`` (an index into ``texts``) and ``texts``."""
        return {
            "shared": self.shared_of[texts],
            "text": self.piece_of[texts],
            "texts": self.pieces,
        }

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The number of the shared set of each row."""
        return self.shared_of[rows[TEXT]]

    def shared(self, number: int, refs: InternedRefs) -> list[dict[str, Any]]:
        """The debug annotations of a shared set. Adds to ``refs`` the interned entries of these annotations, and of the
        row's own annotations."""
        shared = self._shared[number]
        for name in shared.numbers:
            refs.name("debug_annotation_names", name)
        return refs.annotations(shared.texts)

    def _parse(self, data: bytes, text: str) -> tuple[int, bytes]:
        """The number of the shared set of a string, and its own annotations, encoded."""
        parts = _WHOLE.split(data)
        numbers = [int(number) for number in parts[2::3]]
        around = (*parts[0::3], *parts[1::3])
        if around in self._similar:
            similar = self._similar[around]
            encoded = map(_whole_number, similar.begins, numbers)
            return similar.shared, b"".join(encoded)
        own, texts = self._divide(data)
        if own is None:
            own = {}
            texts = {"arguments": text}
        key = tuple(texts.items()), tuple(own)
        if key not in self._numbers:
            if len(self._shared) > MOST_SHARED:
                values = _object(data) or texts
                return UNSHARED, _encoded(_entries(values, DEPTH))
            self._numbers[key] = len(self._shared)
            self._shared.append(_SharedSet(texts, tuple(own)))
        number = self._numbers[key]
        fields = []
        begins = []
        for name, value in own.items():
            iid = self._names.entry("debug_annotation_names", name).iid
            fields.append({"name_iid": iid, **_value(value, 0)})
            begin = proto.encode("DebugAnnotation", {"name_iid": iid})
            begins.append(begin + _INT_VALUE)
        if numbers:
            # Similar strings can share the result only if each integer becomes exactly one annotation.
            probes = range(_PROBE, _PROBE + len(numbers))
            parts[2::3] = [b"%d" % probe for probe in probes]
            expected = (dict(zip(own, probes, strict=False)), texts)
            if self._divide(b"".join(parts)) == expected:
                self._similar[around] = _SimilarTexts(number, begins)
        return number, _encoded(fields)

    def _divide(self, data: bytes) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """The numbers and the strings of a JSON object. Lists and objects become a JSON string; several of them become
        one string. Returns None and no strings for JSON that is not an object."""
        values = _object(data)
        if values is None:
            return None, {}
        own: dict[str, Any] = {}
        texts: dict[str, str] = {}
        deep: dict[str, Any] = {}
        for name, value in values.items():
            if _is_number(value) and name not in self._reserved:
                own[name] = value
                continue
            if isinstance(value, list | dict):
                deep[name] = value
            if not isinstance(value, str):
                value = json.dumps(value)
            texts[name] = value
        if len(deep) > 1 and "arguments" not in texts:
            for name in deep:
                del texts[name]
            texts["arguments"] = json.dumps(deep)
        return own, texts

    def _piece(self, piece: bytes) -> int:
        if piece not in self._pieces:
            self._pieces[piece] = self.pieces.add(piece)
        return self._pieces[piece]


def _encoded(annotations: list[dict[str, Any]]) -> bytes:
    return proto.encode("TrackEvent", {"debug_annotations": annotations})


def _entries(values: dict[str, Any], depth: int) -> list[dict[str, Any]]:
    """Debug annotations with the names and values of an object."""
    return [{"name": name, **_value(value, depth)} for name, value in values.items()]


def _whole_number(begin: bytes, number: int) -> bytes:
    """An encoded annotation from its encoded name and its value."""
    body = begin + proto.varint(number)
    return _ANNOTATION + proto.varint(len(body)) + body


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    if isinstance(values, dict):
        return values
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        fits = -(1 << 63) <= value < 1 << 64
        return fits and not isinstance(value, bool)
    return isinstance(value, float)


def _value(value: Any, depth: int) -> dict[str, Any]:
    """The fields of a debug annotation that hold a value."""
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return {"int_value": value}
        if 0 <= value < 1 << 64:
            return {"uint_value": value}
        return {"string_value": str(value)}
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
    return {"dict_entries": _entries(value, depth - 1)}
