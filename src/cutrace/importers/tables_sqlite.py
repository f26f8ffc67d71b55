"""Tables of an SQLite database, read without locks and without changes to its folder."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import BadCapture
from .tables import BATCH, Kind, ReadColumn, Tables

#: The first bytes of an SQLite database.
MAGIC = b"SQLite format 3\x00"

# Rows in a fetch. More rows would leave the processor's cache before they become columns.
_FETCHED = 1 << 11


class SqliteTables(Tables):
    """The tables of a database file (see :class:`.tables.Tables`).

    The file is opened as immutable: nothing is locked or written, and locks of other programs are ignored. Raises
    :class:`BadCapture` when it is not a database.
    """

    errors = (sqlite3.Error, OverflowError)

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True
            )
            # Read files whose end is missing. The file stays read-only.
            self._connection.execute("PRAGMA writable_schema = ON")
            self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
            #: The names of the tables, readable or not.
            self.listed = self._listed()
        except sqlite3.Error as error:
            raise BadCapture(
                f"{path} cannot be read as a database: {error}. Export it again."
            ) from None

        for name in self.listed:
            with self.reading(name):
                query = f"PRAGMA table_info({_quoted(name)})"
                columns = self._connection.execute(query).fetchall()
                self.names[name] = tuple(str(column[1]) for column in columns)

    def _listed(self) -> list[str]:
        """The names of the tables before any damage. Raises :class:`sqlite3.Error` when there are none."""
        names: list[str] = []
        cursor = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )
        try:
            for (name,) in cursor:
                names.append(str(name))
        except sqlite3.Error as error:
            if not names:
                raise
            self.damage["the list of tables"] = str(error)
        return [name for name in names if not name.startswith("sqlite_")]

    def count(self, table: str) -> int | None:
        query = f"SELECT count(*) FROM {_quoted(table)}"
        with self.reading(table):
            (count,) = self._connection.execute(query).fetchone()
            return int(count)
        return None

    def least(self, table: str, column: str, floor: int) -> int | None:
        name = _quoted(column)
        query = f"SELECT min({name}) FROM {_quoted(table)} WHERE {name} >= ? AND typeof({name}) = 'integer'"
        with self.reading(table):
            (least,) = self._connection.execute(query, (floor,)).fetchone()
            if least is None:
                return None
            return int(least)
        return None

    def filled(self, table: str, columns: Sequence[str]) -> dict[str, int]:
        if not columns:
            return {}
        sums = [f"count(nullif(nullif({_quoted(c)}, 0), ''))" for c in columns]
        query = f"SELECT {', '.join(sums)} FROM {_quoted(table)}"
        with self.reading(table):
            counts = self._connection.execute(query).fetchone()
            return dict(zip(columns, map(int, counts), strict=True))
        return {}

    def _batches(
        self, table: str, columns: Mapping[str, Kind]
    ) -> Iterator[tuple[int, dict[str, ReadColumn]]]:
        # Select NULL if there is no column to read, because the number of rows is needed.
        selected = ", ".join(map(_quoted, columns)) or "NULL"
        query = f"SELECT {selected} FROM {_quoted(table)}"
        size = 0
        parts: dict[str, list[ReadColumn]] = {name: [] for name in columns}
        for rows in self._rows(table, query):
            size += len(rows)
            for values, (name, kind) in zip(zip(*rows), columns.items()):  # noqa: B905
                parts[name].append(_column(values, kind))
            if size >= BATCH:
                yield size, _joined(parts)
                size = 0
                parts = {name: [] for name in columns}
        if size:
            yield size, _joined(parts)

    def _rows(self, table: str, query: str) -> Iterator[list[tuple[object, ...]]]:
        """The results of a query, some rows at a time."""
        read = 0
        with self.reading(table):
            cursor = self._connection.execute(query)
            while rows := _fetched(cursor):
                read += len(rows)
                yield rows
        if table in self.damage:
            # Read the good rows of the failed fetch one by one.
            rows = []
            with self.reading(table):
                cursor = self._connection.execute(f"{query} LIMIT -1 OFFSET {read}")
                while row := cursor.fetchone():
                    rows.append(row)
            if rows:
                yield rows

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def tables_of(path: Path) -> set[str]:
    """The names of the tables of a database; empty for a file that is not a database."""
    try:
        with SqliteTables(path) as tables:
            return set(tables.listed)
    except BadCapture:
        return set()


def _joined(parts: Mapping[str, Sequence[ReadColumn]]) -> dict[str, ReadColumn]:
    return {name: ReadColumn.joined(some) for name, some in parts.items()}


def _quoted(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'


def _fetched(cursor: sqlite3.Cursor) -> list[tuple[object, ...]]:
    # The millions of tuples here form no cycles, and the garbage collector would take a quarter of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return cursor.fetchmany(_FETCHED)
    finally:
        if collecting:
            gc.enable()


def _column(values: tuple[object, ...], kind: Kind) -> ReadColumn:
    if kind in ("integer", "real"):
        if values[0] is None and values.count(None) == len(values):
            return ReadColumn.absent(len(values), kind, missing=False)
        array = np.array(values)
        if array.dtype == np.int64:
            if kind == "real":
                array = array.astype(np.float64)
            return ReadColumn.of(array)
        if array.dtype == np.float64 and kind == "real":
            return ReadColumn.of(array)
    return ReadColumn.mixed(values, kind)
