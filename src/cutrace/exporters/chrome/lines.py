"""Templates of lines of JSON, run natively once a row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._native import Blobs, JsonRows, Keys
from ...trace.strings import StringTable

_KINDS = {"": 0, "int": 1, "us": 2, "real": 3, "blob": 4, "if": 5}
_PLACE = re.compile(r"<(int|us|real|blob|if|end) ?(\w*)>")


def quoted(text: str) -> bytes:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


class Line:
    """A line with places for columns: ``<int stream>`` is the number in the column ``stream``, ``<us start>`` one of
    nanoseconds as microseconds, ``<real value>`` a double, ``<blob name>`` the piece of the table ``name`` whose id is
    in the column ``name``. What stands between ``<if flags>`` and ``<end>`` is left out where that column is 0.
    """

    def __init__(self, template: str) -> None:
        self._columns: list[str] = []
        self._blobs: list[str] = []
        parts: list[list[Any]] = []
        open_parts: list[int] = []
        at = 0
        for place in _PLACE.finditer(template):
            if place.start() > at:
                parts.append([0, template[at : place.start()].encode(), 0, 0])
            at = place.end()
            kind, column = place.groups()
            if kind == "end":
                start = open_parts.pop()
                parts[start][3] = len(parts) - start - 1
                continue
            if kind == "if":
                open_parts.append(len(parts))
            if column not in self._columns:
                self._columns.append(column)
            if kind == "blob" and column not in self._blobs:
                self._blobs.append(column)
            parts.append([_KINDS[kind], b"", self._columns.index(column), column if kind == "blob" else 0])
        parts.append([0, template[at:].encode(), 0, 0])
        for part in parts:
            if part[0] == _KINDS["blob"]:
                part[3] = len(self._columns) + self._blobs.index(part[3])
        self._rows = JsonRows([tuple(part) for part in parts])

    def write(self, columns: dict[str, np.ndarray], rows: int, **blobs: Blobs) -> bytes:
        """The lines of all rows."""
        given = [columns[name] for name in self._columns]
        return self._rows.write([*given, *(blobs[name] for name in self._blobs)], rows)


class Pieces:
    """JSON for tuples of numbers, each made once by ``make``."""

    def __init__(self, width: int, make: Callable[..., bytes]) -> None:
        self.blobs = Blobs()
        self._keys, self._make = Keys(width), make

    def ids(self, *columns: np.ndarray) -> np.ndarray:
        """The ids of the pieces, in :attr:`blobs`, of rows of columns."""
        wide = [np.ascontiguousarray(column).astype(np.int64) for column in columns]
        ids, first = self._keys.ids(wide)
        for row in first.tolist():
            self.blobs.add(self._make(*(int(column[row]) for column in wide)))
        return ids


class Names(Pieces):
    """Texts of a trace as JSON, by their ids."""

    def __init__(self, strings: StringTable) -> None:
        super().__init__(1, lambda text: quoted(strings[text]))
