"""Lines of JSON: templates that native code fills for each row, and pieces that are made once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import Blobs, Keys, Program, encode_rows
from ...trace.strings import StringTable
from ...trace_events import OWN, WRAP
from ..programs import BLOB, INTEGER, MICROSECONDS, RAW, REAL, UNLESS, Op

#: A column of a line: numbers, or ids with their pieces.
Column = np.ndarray | tuple[np.ndarray, Blobs]

_KINDS = {"int": INTEGER, "us": MICROSECONDS, "real": REAL, "blob": BLOB, "if": UNLESS}
_PLACE = re.compile(r"<(int|us|real|blob|if|end) ?(\w*)>")


def quoted(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


def dumped(value: Any) -> bytes:
    """A value as JSON; NaN and infinities become strings."""
    try:
        text = json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
    except ValueError:
        plain = json.loads(json.dumps(value), parse_constant=str)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def members(values: dict[str, Any]) -> bytes:
    """The members of an object, preceded by a comma; empty if there are none."""
    if values:
        return b"," + dumped(values)[1:-1]
    return b""


def own(more: Mapping[str, Any] | None = None, **fields: int) -> bytes:
    """cutrace's own argument with ``more`` and the fields that are not 0, after a comma; empty without fields."""
    given: dict[str, Any] = {name: value for name, value in fields.items() if value}
    given |= more or {}
    if given:
        return members({OWN: given})
    return b""


class Line:
    """A template of a line. ``<int stream>`` stands for the integer in the column ``stream``, ``<us start>`` for
    nanoseconds in microseconds, ``<real value>`` for a double, and ``<blob name>`` for the piece with the id in the
    column ``name``. The part between ``<if flags>`` and ``<end>`` is omitted where the column ``flags`` is 0.
    """

    def __init__(self, template: str) -> None:
        # The inputs of the program: columns (part 0) and the pieces of columns with ids (part 1).
        self._arrays: list[tuple[str, int]] = []
        ops: list[Op] = []
        conditions: list[int] = []
        at = 0
        for place in _PLACE.finditer(template):
            if place.start() > at:
                text = template[at : place.start()]
                ops.append(Op(RAW, raw=text.encode()))
            at = place.end()
            kind, column = place.groups()
            if kind == "end":
                start = conditions.pop()
                skipped = len(ops) - start - 1
                ops[start] = ops[start]._replace(skip=skipped)
                continue
            if kind == "if":
                conditions.append(len(ops))
            pieces = 0
            if kind == "blob":
                pieces = self._array(column, 1)
            numbers = self._array(column, 0)
            ops.append(Op(_KINDS[kind], column=numbers, column2=pieces))
        ops.append(Op(RAW, raw=template[at:].encode()))
        self._program = Program(ops)
        self.columns = tuple(dict.fromkeys(column for column, _ in self._arrays))

    def _array(self, column: str, part: int) -> int:
        if (column, part) not in self._arrays:
            self._arrays.append((column, part))
        return self._arrays.index((column, part))

    def write(self, columns: Mapping[str, Column], rows: int) -> bytes:
        arrays: list[np.ndarray | Blobs] = []
        for name, part in self._arrays:
            column = columns[name]
            if isinstance(column, tuple):
                arrays.append(column[part])
            else:
                arrays.append(column)
        return encode_rows((self._program, arrays), rows)


class Pieces:
    """Pieces of JSON for tuples of numbers. ``make`` is called once for each tuple."""

    def __init__(self, width: int, make: Callable[..., bytes]) -> None:
        self._blobs = Blobs()
        self._keys = Keys(width)
        self._make = make

    def __call__(self, *columns: np.ndarray) -> tuple[np.ndarray, Blobs]:
        """The column with the pieces for the rows of some columns of numbers."""
        wide = [np.ascontiguousarray(column).astype(np.int64) for column in columns]
        ids, first = self._keys.ids(wide)
        for row in first.tolist():
            numbers = [int(column[row]) for column in wide]
            self._blobs.add(self._make(*numbers))
        return ids, self._blobs


# Arguments of imported events


def _refuse(word: str) -> Any:
    """Reject NaN and infinities, which Python's parser accepts."""
    raise ValueError(word)


@dataclass(frozen=True)
class ArgumentParts:
    """The pieces of JSON of one string of arguments, each empty or preceded by a comma: ``beside`` has keys of the
    event, ``inside`` the arguments, ``of_end`` the keys and the arguments of the end event. ``phase`` is
    the phase of the imported event.
    """

    beside: bytes = b""
    inside: bytes = b""
    of_end: bytes = b""
    phase: str = ""
    empty: bool = False


def split(text: str) -> ArgumentParts:
    """Split a string of arguments. A string that is not a JSON object becomes the argument ``arguments``."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return ArgumentParts(inside=b',"arguments":' + quoted(text))
    wrap = value.get(WRAP)
    if not isinstance(wrap, dict):
        inner = text.strip()[1:-1].strip()
        if not inner:
            return ArgumentParts(empty=True)
        return ArgumentParts(inside=b"," + inner.encode("utf-8", "replace"))
    del value[WRAP]
    end = wrap.pop("end", None)
    phase = wrap.pop("ph", "")
    if not isinstance(phase, str):
        phase = ""
    return ArgumentParts(
        beside=members(wrap),
        inside=members(value),
        of_end=_of_end(end),
        phase=phase,
    )


def _of_end(end: Any) -> bytes:
    """The keys and the arguments of an end event, each preceded by a comma."""
    beside = b""
    if isinstance(end, dict) and isinstance(end.get(WRAP), dict):
        beside = members(end.pop(WRAP))
    if not end:
        return beside
    return beside + b',"args":' + dumped(end)


class EventArguments:
    """The parts of strings of arguments as columns of lines. Each string is split once."""

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._known = np.full(len(strings), -1, np.int64)
        self._has_arguments = bytearray()
        self._phases = bytearray()
        self._beside = Blobs()
        self._inside = Blobs()
        self._of_end = Blobs()
        self._known[0] = self._add(ArgumentParts())

    def ids(self, texts: np.ndarray) -> np.ndarray:
        """Return the ids of the parts of these strings. ``texts`` has an id for each string."""
        new = np.unique(texts[self._known[texts] < 0])
        for text in new.tolist():
            parts = split(self._strings[text])
            self._known[text] = self._add(parts)
        return self._known[texts]

    def columns(
        self, ids: np.ndarray, behind: np.ndarray | int = 0
    ) -> dict[str, Column]:
        """The columns of parts. ``args`` says whether there is an object of arguments. ``behind`` is 1 where another
        argument precedes ``inside``."""
        pieces = ids.astype(np.uint32)
        inside = (2 * ids + behind).astype(np.uint32)
        # Copy the array: an array of bytes that is in use cannot grow.
        has_arguments = np.frombuffer(self._has_arguments, np.uint8).copy()
        return {
            "beside": (pieces, self._beside),
            "of_end": (pieces, self._of_end),
            "inside": (inside, self._inside),
            "args": has_arguments[ids] > 0,
        }

    def phases(self, ids: np.ndarray) -> np.ndarray:
        """The phases of imported events (ASCII), 0 if unknown."""
        phases = np.frombuffer(self._phases, np.uint8).copy()
        return phases[ids]

    def _add(self, parts: ArgumentParts) -> int:
        self._beside.add(parts.beside)
        # Each id has two pieces: piece 2 * id for the first place in an object, and piece 2 * id + 1 with a comma for
        # other places.
        self._inside.add(parts.inside[1:])
        self._inside.add(parts.inside)
        self._of_end.add(parts.of_end)
        self._has_arguments.append(bool(parts.inside) or parts.empty)
        if len(parts.phase) == 1 and parts.phase.isascii():
            self._phases.append(ord(parts.phase))
        else:
            self._phases.append(0)
        return len(self._has_arguments) - 1
