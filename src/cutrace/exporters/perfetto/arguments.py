"""Arguments that a source gave as a JSON object, as debug annotations.

Numbers differ from slice to slice and stay with it. Texts, lists and objects, such as the shapes of an operator's
inputs, are the same for many slices: they are told once, and each slice refers to them. Lists and objects are told as
JSON, several of them together as one. Where they differ from slice to slice too, they are written out where they stand.

So that the text can be made again, what slices share has the number of a text: their own, or, where numbers stay with
the slices, a *pattern*, the text with marks in the places of these (:func:`_pattern`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import Blobs
from ...trace.strings import StringTable
from . import schema
from .naming import Names, Needs

#: Levels of lists and objects beyond which the JSON text itself is shown.
DEPTH = 16
#: So many different sets of arguments are shared in one trace at most.
MOST_SHARED = 1 << 14
#: So many numbers stay with a slice at most where their text is to be made again.
MOST_NUMBERS = 64
#: What rows share whose arguments are written out.
UNSHARED = (1 << 32) - 1
#: Where a number stood in a pattern: its name between the first byte and one that says how it is told.
MARK, SIGNED, UNSIGNED, FLOAT = b"\0", b"\1", b"\2", b"\3"
_CODES = {"int_value": SIGNED, "uint_value": UNSIGNED, "double_value": FLOAT}
#: Whole numbers by name in a JSON text, and where they stood in a pattern.
_WHOLE = re.compile(rb'(": ?)(-?[0-9]{1,18})(?=[,}])')
_WHOLE_MARKS = re.compile(rb"\0([^\0-\3]*)\x01")
_ANNOTATION = schema.field("TrackEvent", "debug_annotations").tag
_INT_VALUE = schema.field("DebugAnnotation", "int_value").tag


@dataclass(frozen=True)
class _Alike:
    """Texts that differ in whole numbers alone: what they share, and for each number the begin of its annotation."""

    shared: int
    begins: tuple[bytes, ...]

    def piece(self, numbers: list[int]) -> bytes:
        """The annotations of a text with these numbers."""
        out = bytearray()
        for begin, number in zip(self.begins, numbers, strict=True):
            body = begin + schema.varint(number)
            out += _ANNOTATION + schema.varint(len(body)) + body
        return bytes(out)


class Arguments:
    """The arguments of the rows of a trace, by the ids of their texts.

    ``shared_of`` is what a row with a text shares with others: the id of a text or a pattern, 0 for no arguments,
    ``UNSHARED`` where it is nothing. ``piece_of`` numbers ``pieces``: fields of a ``TrackEvent`` with what is the row's
    own. ``patterns`` have the ids behind those of the texts. ``reserved`` are names of annotations that rows have
    beside these.
    """

    def __init__(self, strings: StringTable, names: Names, used: Iterable[int], reserved: Collection[str] = ()) -> None:
        self._strings, self._names, self._reserved = strings, names, reserved
        self.pieces = Blobs()
        self.pieces.add(b"")
        self._pieces: dict[bytes, int] = {b"": 0}
        self._patterns: dict[bytes, int] = {}
        self._alike: dict[bytes, _Alike] = {}  # by the text around the numbers
        # Of what is shared, texts by name, and the names of the numbers beside them.
        self._shared: dict[int, tuple[dict[str, str], tuple[str, ...]]] = {0: ({}, ())}
        self.shared_of = np.zeros(len(strings), np.uint32)
        self.piece_of = np.zeros(len(strings), np.uint32)
        for text in used:
            if text:
                self.shared_of[text], self.piece_of[text] = self._told(text)

    @property
    def patterns(self) -> list[bytes]:
        return list(self._patterns)

    @property
    def patterned(self) -> np.ndarray:
        """Which texts are told by a pattern and numbers."""
        which: np.ndarray = (self.shared_of >= len(self.shared_of)) & (self.shared_of != UNSHARED)
        return which

    @property
    def any_unshared(self) -> bool:
        return bool((self.shared_of == UNSHARED).any())

    def unshared(self, texts: np.ndarray) -> np.ndarray:
        """Which rows with these texts share nothing that tells their text."""
        which: np.ndarray = self.shared_of[texts] == UNSHARED
        return which

    def annotate(self, shared: int, needs: Needs) -> list[dict[str, Any]]:
        """The debug annotations that rows share; ``needs`` learns what they, and those of the rows, refer to."""
        if shared == UNSHARED:
            return []
        texts, numbers = self._shared[shared]
        for name in numbers:
            needs.name("debug_annotation_names", name)
        return needs.annotations(**texts)

    def _told(self, text: int) -> tuple[int, int]:
        data = self._strings.bytes(text)
        around, numbers = _parted(data)
        alike = self._alike.get(around)
        if alike and numbers is not None:
            return alike.shared, self._numbered(alike.piece(numbers))
        values = _object(data)
        if values is None:
            values = {"arguments": self._strings[text]}
        own = {name: value for name, value in values.items() if _is_number(value) and name not in self._reserved}
        pattern = _pattern(data, own)
        shared = text if pattern == data else self._patterns.get(pattern)
        if shared is None or shared not in self._shared:
            if len(self._shared) > MOST_SHARED:
                return UNSHARED, self._piece([{"name": name, **_value(value, DEPTH)} for name, value in values.items()])
            if shared is None:
                shared = self._patterns[pattern] = len(self._strings) + len(self._patterns)
            texts = _together({name: value for name, value in values.items() if name not in own})
            self._shared[shared] = texts, tuple(own)
        if numbers and _WHOLE_MARKS.sub(b"\0", pattern) == around:
            iids = [self._name_iid(name.decode()) for name in _WHOLE_MARKS.findall(pattern)]
            begins = (schema.encode("DebugAnnotation", {"name_iid": iid}) + _INT_VALUE for iid in iids)
            self._alike[around] = _Alike(shared, tuple(begins))
        return shared, self._piece([{"name_iid": self._name_iid(n), **_value(v, 0)} for n, v in own.items()])

    def _name_iid(self, name: str) -> int:
        return self._names.entry("debug_annotation_names", name).iid

    def _piece(self, annotations: list[dict[str, Any]]) -> int:
        return self._numbered(schema.encode("TrackEvent", {"debug_annotations": annotations}))

    def _numbered(self, piece: bytes) -> int:
        if piece not in self._pieces:
            self._pieces[piece] = self.pieces.add(piece)
        return self._pieces[piece]


def _parted(data: bytes) -> tuple[bytes, list[int] | None]:
    """A text with a mark in place of each whole number that has a name, and the numbers; None for these when they are
    not written as numbers usually are."""
    parts = _WHOLE.split(data)
    told = parts[2::3]
    numbers = [int(number) for number in told]
    usual = MARK not in data and all(b"%d" % n == t for n, t in zip(numbers, told, strict=True))
    parts[2::3] = [MARK] * len(told)
    return b"".join(parts), numbers if usual else None


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


def _pattern(data: bytes, numbers: dict[str, Any]) -> bytes:
    """A text with marks in the places of these numbers, where they stand as they would be written."""
    if len(numbers) > MOST_NUMBERS:
        return data
    for name, value in numbers.items():
        # Marks must stay what they are, and no name look like what is looked for.
        if any(c < " " or c == '"' or "\ud800" <= c < "\ue000" for c in name):
            continue
        (kind,) = _value(value, 0)
        mark = MARK + name.encode() + _CODES[kind]
        key = json.dumps(name, ensure_ascii=False).encode()
        for colon in (b":", b": "):
            told = data.replace(key + colon + json.dumps(value).encode(), key + colon + mark, 1)
            if told != data:
                # Not in two places: one that is left tells which number it was where another was not the row's own.
                data = told
                break
    return data


def _together(values: dict[str, Any]) -> dict[str, str]:
    """Values that are no numbers as texts; several lists and objects as one."""
    deep = {name: value for name, value in values.items() if isinstance(value, list | dict)}
    if len(deep) > 1 and "arguments" not in values:
        values = {name: value for name, value in values.items() if name not in deep} | {"arguments": deep}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


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
