"""Texts of arguments of Perfetto traces that cutrace wrote, made again from patterns and numbers.

A pattern is a text with marks where numbers stood that differ from event to event
(:mod:`cutrace.exporters.perfetto.arguments`). Events have these numbers as annotations.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .perfetto_wire import Arguments
from .restoring import Restoring

#: A number's place: its name, and a byte that says how it is told.
_PLACE = re.compile(rb"\0([^\0-\3]*)([\1-\3])")
#: A pattern has no more places than this, and all texts together that were made no more bytes than this and so many
#: times those of the file: a small file must not take much memory.
_MOST_PLACES, _LEAST_BYTES, _BYTES_A_BYTE = 64, 64 << 20, 64
_FORMATS = {b"\1": "<q", b"\2": "<Q", b"\3": "<d"}


@dataclass(frozen=True)
class _Pattern:
    data: bytes

    @cached_property
    def _parts(self) -> list[bytes]:
        return _PLACE.split(self.data)

    @property
    def names(self) -> list[str]:
        """The name of the number in each place."""
        return [name.decode("utf-8", "replace") for name in self._parts[1::3]]

    def text(self, bits: list[int]) -> bytes:
        """The text with these numbers."""
        out = list(self._parts[::3])
        for i, (kind, number) in enumerate(zip(self._parts[2::3], bits, strict=True)):
            (value,) = struct.unpack(_FORMATS[kind], struct.pack("<Q", number))
            out[i] += json.dumps(value).encode()
        return b"".join(out)


class Patterns:
    """Makes texts of a trace, from a file of ``size`` bytes. Ids from ``first`` on are those of patterns; with None
    there are none. ``refused`` counts texts that were not made, since they would be too many."""

    def __init__(self, restoring: Restoring, first: int | None, size: int) -> None:
        self._restoring, self._first = restoring, first
        self._known: dict[int, _Pattern] = {}
        self._made: dict[tuple[int, ...], int] = {}  # texts by pattern and numbers
        self._left = _LEAST_BYTES + _BYTES_A_BYTE * size
        self.refused = 0

    def texts(self, ids: np.ndarray, rows: np.ndarray, arguments: Arguments, names: dict[int, str]) -> np.ndarray:
        """The ids of the texts of rows with these ``ids`` of texts or patterns. ``arguments`` are those of ``rows``, -1
        for those of others; ``names`` has the names of numbers by their ids."""
        if self._first is None or not (ids >= self._first).any():
            return ids
        out: np.ndarray = ids.copy()
        # Rows and arguments by pattern, in their order.
        patterns, of_rows = np.unique(ids, return_inverse=True)
        by_pattern = np.argsort(of_rows, kind="stable")
        bounds = np.searchsorted(of_rows[by_pattern], np.arange(len(patterns) + 1))
        mine = np.flatnonzero(rows >= 0)
        of_arguments = of_rows[rows[mine]]
        order = np.argsort(of_arguments, kind="stable")
        mine = mine[order]
        argument_bounds = np.searchsorted(of_arguments[order], np.arange(len(patterns) + 1))
        place = np.zeros(len(ids), np.int64)  # of a row among those with its pattern
        named: dict[str, list[int]] = {}
        for iid, name in names.items():
            named.setdefault(name, []).append(iid)
        for i in np.flatnonzero(patterns >= self._first).tolist():
            number = int(patterns[i])
            pattern = self._pattern(number)
            which = by_pattern[bounds[i] : bounds[i + 1]]
            place[which] = np.arange(len(which))
            given = mine[argument_bounds[i] : argument_bounds[i + 1]]
            bits = np.zeros((len(which), len(pattern.names)), np.uint64)
            for column, name in enumerate(pattern.names):
                chosen = given[np.isin(arguments.names[given], np.array(named.get(name, ()), np.uint64))]
                bits[place[rows[chosen]], column] = arguments.values[chosen]
            found, inverse = np.unique(bits, axis=0, return_inverse=True)
            texts = [self._text(number, numbers) for numbers in found.tolist()]
            out[which] = np.array(texts, np.uint32)[inverse.reshape(-1)]
        return out

    def _text(self, number: int, bits: list[int]) -> int:
        key = (number, *bits)
        known = self._made.get(key)
        if known is None:
            pattern = self._pattern(number)
            self._left -= len(pattern.data)
            if self._left < 0:
                self.refused += 1
                return 0
            known = self._made[key] = self._restoring.text(pattern.text(bits))
        return known

    def _pattern(self, number: int) -> _Pattern:
        texts = self._restoring.texts
        if number not in self._known:
            data = texts[number] if number < len(texts) else b""
            usable = data.count(b"\0") <= _MOST_PLACES
            self._known[number] = _Pattern(data if usable else b"")
        return self._known[number]
