"""Trace events of a JSON file as columns, from the native scanner.

Events come in groups, one for each rule and one for all others, in batches of some ten thousand. No Python object is
made for an event. Strings are ids for :meth:`EventReader.texts`, and threads are indices of
:attr:`EventReader.threads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

import numpy as np

from .._native import EventScanner
from ..trace_events import OWN, WRAP
from .base import DAMAGED, Import, SourceFile

#: Bytes in a read, and events in a batch.
CHUNK = 1 << 20
BATCH = 1 << 15

_END = {
    "array": "the array of events is not closed",
    "event": "it ends inside an event",
    "object": "it ends before the outer object is closed",
}


class Want(IntEnum):
    """The type of a wanted value. A value of another type stays in the arguments."""

    INTEGER = 0
    NUMBER = 1
    TEXT = 2
    JSON = 3
    #: A value of any type, which is only counted.
    NOTHING = 4


@dataclass(frozen=True)
class Key:
    """A wanted key or argument, and its column. A key may have several entries, tried in order."""

    name: str
    want: Want = Want.INTEGER
    column: str = ""


def keys(*names: str, want: Want = Want.INTEGER) -> tuple[Key, ...]:
    """Several wanted keys of one type."""
    return tuple(Key(name, want) for name in names)


@dataclass(frozen=True)
class Rule:
    """The condition of a ``group``: one of the ``phases`` (empty: any phase), a category and a name (None: any).

    ``arguments`` are the wanted arguments. With ``numbers``, all arguments that are numbers are listed.
    """

    group: str
    phases: str = ""
    category: str | None = None
    name: str | None = None
    arguments: tuple[Key, ...] = ()
    numbers: bool = False


class Flag(IntFlag):
    """Properties of an event."""

    TIME = 1
    DURATION = 2
    BAD_TIME = 4
    BAD_DURATION = 8


#: Wanted keys of all events.
EVENT_KEYS = (
    Key("id"),
    Key("id", Want.JSON, "id text"),
    Key("id2", Want.JSON),
    Key("s", Want.TEXT),
    Key("bp", Want.TEXT),
    Key(OWN, Want.JSON, "own"),
)


_DENSE = (
    "phases",
    "flags",
    "times",
    "durations",
    "threads",
    "names",
    "categories",
    "arguments",
)


@dataclass(frozen=True)
class Events:
    """Some events of a group. Arrays have one entry for each event. Times are in nanoseconds of the file's clock.

    ``arguments`` are ids of the JSON text of the other arguments. ``numbers`` is (events, ids of keys, values).
    ``counted`` are the wanted arguments that are only counted.
    """

    group: str
    counted: tuple[str, ...]
    phases: np.ndarray
    flags: np.ndarray
    times: np.ndarray
    durations: np.ndarray
    threads: np.ndarray
    names: np.ndarray
    categories: np.ndarray
    arguments: np.ndarray
    columns: dict[str, tuple[np.ndarray, np.ndarray]]
    numbers: tuple[np.ndarray, np.ndarray, np.ndarray]

    def __len__(self) -> int:
        return len(self.phases)

    def integers(self, column: str) -> np.ndarray:
        """The values of a column (int64), 0 where an event has none."""
        out = np.zeros(len(self), np.int64)
        if column in self.columns:
            rows, bits = self.columns[column]
            out[rows] = bits.view(np.int64)
        return out

    def ids(self, column: str) -> np.ndarray:
        """The ids of strings in a column (uint32), 0 where an event has none."""
        return self.integers(column).astype(np.uint32)

    def present(self, column: str) -> np.ndarray:
        """A mask of the events that have a value in the column."""
        out = np.zeros(len(self), bool)
        if column in self.columns:
            out[self.columns[column][0]] = True
        return out

    def count(self, column: str) -> int:
        """The number of events that have a value in the column."""
        if column in self.columns:
            return len(self.columns[column][0])
        return 0

    def select(self, chosen: np.ndarray) -> Events:
        if chosen.all():
            return self
        new_rows = np.cumsum(chosen) - 1

        def sparse(rows: np.ndarray, *values: np.ndarray) -> Any:
            inside = chosen[rows]
            kept = [some[inside] for some in values]
            return new_rows[rows[inside]], *kept

        dense = {}
        for name in _DENSE:
            dense[name] = getattr(self, name)[chosen]
        columns = {}
        for name, column in self.columns.items():
            columns[name] = sparse(*column)
        return replace(self, **dense, columns=columns, numbers=sparse(*self.numbers))


class EventReader:
    """The events of a file. Iterate over it once; then :attr:`others` is complete. Errors of the whole file are noted
    and counted in ``out``."""

    def __init__(self, source: SourceFile, rules: Sequence[Rule], out: Import) -> None:
        self._source = source
        self._out = out
        self._rules = (*rules, Rule(""))
        self.scanner = EventScanner(
            [
                (r.phases, r.category, r.name, _plain(r.arguments), r.numbers)
                for r in rules
            ],
            _plain(EVENT_KEYS),
            WRAP,
        )
        self._threads: list[tuple[int | bytes | None, int | bytes | None]] = []

    def __iter__(self) -> Iterator[list[Events]]:
        scanner = self.scanner
        first = b""
        try:
            with self._source.open() as file:
                # In a damaged file, read1() returns the piece before the damage, and read() loses it.
                read = file.read1 if self._source.packed else file.read  # type: ignore[attr-defined]
                while piece := read(CHUNK):
                    first = first or piece
                    scanner.feed(piece)
                    if scanner.pending >= BATCH:
                        yield self._taken()
        except DAMAGED as error:
            self._out.lost("the rest of the file", 1, why="of unknown size")
            self._out.note(
                f"The compressed file is damaged ({error}): its readable part was imported, and an unknown part is "
                "missing. Copy or export the file again."
            )
        scanner.finish()
        if scanner.ended in _END:
            self._note_end(whole_array=first.lstrip().startswith(b"["))
        if scanner.pending:
            yield self._taken()

    def _note_end(self, *, whole_array: bool) -> None:
        """Report a file that is cut off. A file that is an array of events needs no end (``whole_array``)."""
        scanner = self.scanner
        end = _END[scanner.ended]
        missing = "an unknown number is missing"
        if scanner.ended == "array" and whole_array:
            missing = "others may be missing, because the format allows an array without its end"
        elif scanner.ended != "event":  # which the scanner counts as lost
            self._out.lost("the rest of the file", 1, why="of unknown size")
        self._out.note(
            f"The file is cut off: {end}, after {scanner.understood:,} of {scanner.bytes:,} bytes. "
            f"All events before were imported; {missing}."
        )

    def texts(self, ids: np.ndarray) -> list[bytes]:
        """The strings with these ids (uint32), as UTF-8."""
        return self.scanner.texts(np.ascontiguousarray(ids, np.uint32))

    @property
    def threads(self) -> list[tuple[int | bytes | None, int | bytes | None]]:
        """(pid, tid) of the file; None where an event has none."""
        self._threads += self.scanner.threads(len(self._threads))
        return self._threads

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def has_events(self) -> bool:
        """Whether the file has a place for events, even if it is empty."""
        return self.scanner.has_array

    @property
    def others(self) -> dict[str, bytes]:
        """The other keys of the outer object, with the JSON text of their values (empty for a value that is too
        large)."""
        return {
            key.decode("utf-8", "replace"): value for key, value in self.scanner.others
        }

    def _taken(self) -> list[Events]:
        out = []
        for rule, taken in zip(self._rules, self.scanner.take(), strict=True):
            if len(taken[0]):
                names = (
                    key.column or key.name for key in (*EVENT_KEYS, *rule.arguments)
                )
                columns = {
                    name: column
                    for name, column in zip(names, taken[8], strict=True)
                    if len(column[0])
                }
                counted = tuple(
                    key.name for key in rule.arguments if key.want == Want.NOTHING
                )
                out.append(
                    Events(
                        rule.group,
                        counted,
                        *taken[:8],
                        columns=columns,
                        numbers=taken[9],
                    )
                )
        return out


def _plain(wanted: Sequence[Key]) -> list[tuple[str, int]]:
    return [(key.name, int(key.want)) for key in wanted]
