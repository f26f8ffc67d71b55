"""Tables of an SQLite database, read without locks and without a trace of it."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import BadCapture
from .tables import BATCH, Batch, Column, Kind

#: What an SQLite database begins with.
MAGIC = b"SQLite format 3\x00"

# Rows that are fetched at once: more would leave the processor's cache before they are columns.
_FETCHED = 1 << 11


class SqliteTables:
    """The tables of a database file (see :class:`.tables.Tables`).

    The file is opened as one that nobody changes: nothing is locked or written, nor does anybody's lock matter.
    Raises :class:`BadCapture` when it is no database.
    """

    def __init__(self, path: Path) -> None:
        self.damage: dict[str, str] = {}
        try:
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            # The file cannot be written all the same: this lets files be read of which the end is missing.
            self._connection.execute("PRAGMA writable_schema = ON")
            self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
            self._schema = self._listed()
        except sqlite3.Error as error:
            raise BadCapture(f"{path} cannot be read as a database: {error}. Export it again.") from None

    def _listed(self) -> list[tuple[object]]:
        """The names of the tables, those in front of a damage. Raises :class:`sqlite3.Error` when there are none."""
        found: list[tuple[object]] = []
        cursor = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        try:
            while row := cursor.fetchone():
                found.append(row)
        except sqlite3.Error as error:
            if not found:
                raise
            self.damage["the list of tables"] = str(error)
        return found

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for (name,) in self._schema:
            if str(name).startswith("sqlite_"):
                continue
            with self._reading(str(name)):
                columns = self._connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
                found[str(name)] = tuple(str(column[1]) for column in columns)
        return found

    def count(self, table: str) -> int | None:
        with self._reading(table):
            return int(self._connection.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])
        return None

    def least(self, table: str, column: str, floor: int) -> int | None:
        name = _quoted(column)
        with self._reading(table):
            found = self._connection.execute(
                f"SELECT min({name}) FROM {_quoted(table)} WHERE {name} >= ? AND typeof({name}) = 'integer'", (floor,)
            ).fetchone()[0]
            return None if found is None else int(found)
        return None

    def filled(self, table: str, columns: Sequence[str]) -> dict[str, int]:
        if not columns:
            return {}
        sums = ", ".join(f"count(nullif(nullif({c}, 0), ''))" for c in map(_quoted, columns))
        with self._reading(table):
            counts = self._connection.execute(f"SELECT {sums} FROM {_quoted(table)}").fetchone()
            return dict(zip(columns, map(int, counts), strict=True))
        return {}

    def batches(self, table: str, columns: Mapping[str, Kind]) -> Iterator[Batch]:
        present = [name for name in columns if name in self.names.get(table, ())]
        # A table without any of them still has rows.
        query = f"SELECT {', '.join(map(_quoted, present)) or 'NULL'} FROM {_quoted(table)}"
        for parts in self._parts(table, query, [columns[name] for name in present]):
            size = sum(rows for rows, _ in parts)
            found = {name: _joined([part[i] for _, part in parts]) for i, name in enumerate(present)}
            yield Batch(size, found | {n: Column.absent(size, k) for n, k in columns.items() if n not in found})

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> SqliteTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self, table: str, query: str, kinds: Sequence[Kind]) -> Iterator[list[_Part]]:
        """What a query finds, in batches."""
        read = 0
        with self._reading(table):
            cursor = self._connection.execute(query)
            parts, error = _fetched(cursor, kinds)
            while parts:
                read += sum(rows for rows, _ in parts)
                yield parts
                parts, error = ([], error) if error else _fetched(cursor, kinds)
            if error:
                raise error
        if table not in self.damage:
            return
        # Rows that were to be fetched together with the one that could not be.
        rows: list[tuple[object, ...]] = []
        with self._reading(table):
            cursor = self._connection.execute(f"{query} LIMIT -1 OFFSET {read}")
            while row := cursor.fetchone():
                rows.append(row)
        if rows:
            yield [(len(rows), _columns(rows, kinds))]

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            self.damage.setdefault(table, str(error))


def tables_of(path: Path) -> set[str]:
    """The names of the tables of a database; none for what is no database."""
    try:
        with SqliteTables(path) as tables:
            return {str(name) for (name,) in tables._schema}
    except BadCapture:
        return set()


def _quoted(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'


#: Some rows: how many, and their columns.
_Part = tuple[int, list[Column]]


def _fetched(cursor: sqlite3.Cursor, kinds: Sequence[Kind]) -> tuple[list[_Part], sqlite3.Error | None]:
    """The rows of a batch, in some parts, and why they are the last ones if they should not be."""
    parts: list[_Part] = []
    size = 0
    # Millions of tuples come and go here, none of them in a cycle: looking for cycles takes a quarter of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        while size < BATCH and (rows := cursor.fetchmany(_FETCHED)):
            parts.append((len(rows), _columns(rows, kinds)))
            size += len(rows)
    except sqlite3.Error as error:
        return parts, error
    finally:
        if collecting:
            gc.enable()
    return parts, None


def _columns(rows: Sequence[tuple[object, ...]], kinds: Sequence[Kind]) -> list[Column]:
    # A query for no column has one all the same.
    return [_column(values, kind) for values, kind in zip(zip(*rows), kinds)]  # noqa: B905


def _column(values: tuple[object, ...], kind: Kind) -> Column:
    if kind in ("integer", "real"):
        if values[0] is None and values.count(None) == len(values):
            return Column.absent(len(values), kind, missing=False)
        array = np.array(values)
        if array.dtype == np.int64:
            return Column.of(array if kind == "integer" else array.astype(np.float64))
        if array.dtype == np.float64 and kind == "real":
            return Column.of(array)
    return Column.mixed(values, kind)


def _joined(parts: Sequence[Column]) -> Column:
    return parts[0] if len(parts) == 1 else Column.joined(parts)
