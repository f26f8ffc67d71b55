"""Tables of another tool's file, read in batches of columns, for any file format.

A column has a value for each row, and masks for missing values and values of a wrong type. So importers work with
arrays, and an unexpected value raises no exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self

#: The kind of a column's values: int64, float64, or objects (str, bytes; a UUID is either).
Kind = Literal["integer", "real", "text", "bytes", "uuid"]

#: Rows in a batch.
BATCH = 1 << 15

_EMPTY: dict[Kind, object] = {
    "integer": 0,
    "real": 0.0,
    "text": "",
    "bytes": b"",
    "uuid": "",
}
_DTYPES: dict[Kind, type] = {"integer": np.int64, "real": np.float64}
_TYPES: dict[Kind, tuple[type, ...]] = {
    "integer": (int,),
    "real": (float, int),
    "text": (str,),
    "bytes": (bytes,),
    "uuid": (str, bytes),
}


@dataclass(frozen=True)
class ReadColumn:
    """Values of one column. ``null`` marks rows without a value, ``wrong`` rows with a value of another type;
    ``values`` is 0 or empty there. ``missing`` says that the table has no such column."""

    values: np.ndarray
    null: np.ndarray
    wrong: np.ndarray
    missing: bool = False

    @classmethod
    def of(cls, values: np.ndarray) -> ReadColumn:
        """A column with a valid value in each row."""
        nothing = np.zeros(len(values), bool)
        return cls(values, nothing, nothing)

    @classmethod
    def absent(cls, rows: int, kind: Kind, *, missing: bool = True) -> ReadColumn:
        return cls(
            values=np.full(rows, _EMPTY[kind], _DTYPES.get(kind, object)),
            null=np.ones(rows, bool),
            wrong=np.zeros(rows, bool),
            missing=missing,
        )

    @classmethod
    def mixed(cls, values: Sequence[object], kind: Kind) -> ReadColumn:
        """A column of Python values of any type."""
        types = _TYPES[kind]
        array = np.empty(len(values), object)
        array[:] = values
        null = array == None  # noqa: E711 (of each)
        present = set(map(type, values))
        if present <= {type(None), *types}:
            right = ~null
        else:
            right = np.array([type(v) in types for v in values], bool)
        array[~right] = _EMPTY[kind]
        array = array.astype(_DTYPES.get(kind, object))
        return cls(array, null, ~(right | null))

    @classmethod
    def joined(cls, parts: Sequence[ReadColumn]) -> ReadColumn:
        """The columns of consecutive rows as one."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        null = np.concatenate([part.null for part in parts])
        wrong = np.concatenate([part.wrong for part in parts])
        return cls(values, null, wrong, all(part.missing for part in parts))

    @property
    def known(self) -> np.ndarray:
        """A mask of the rows with a value of the right type."""
        return ~(self.null | self.wrong)

    def select(self, chosen: np.ndarray) -> ReadColumn:
        return ReadColumn(
            self.values[chosen], self.null[chosen], self.wrong[chosen], self.missing
        )


@dataclass(frozen=True)
class ColumnBatch:
    """Some rows of a table, by column."""

    rows: int
    columns: dict[str, ReadColumn]

    def __getitem__(self, name: str) -> np.ndarray:
        """The values of a column, 0 or empty where there is none."""
        return self.columns[name].values

    def known(self, name: str) -> np.ndarray:
        return self.columns[name].known

    def select(self, chosen: np.ndarray) -> ColumnBatch:
        """The rows that ``chosen`` selects (a mask or indices)."""
        columns = {name: column.select(chosen) for name, column in self.columns.items()}
        rows = len(chosen)
        if chosen.dtype == bool:
            rows = int(np.count_nonzero(chosen))
        return ColumnBatch(rows, columns)

    def apart(
        self, values: np.ndarray
    ) -> Iterator[tuple[int, ColumnBatch, np.ndarray]]:
        """Yield each value, the rows with this value, and their indices. ``values`` has a value for each row. Usually
        all are equal."""
        if not len(values):
            return
        if (values == values[:1]).all():
            yield values[:1].tolist()[0], self, np.arange(len(values))
            return
        for value in np.unique(values).tolist():
            chosen = np.flatnonzero(values == value)
            yield value, self.select(chosen), chosen


class Tables(ABC):
    """A file, or folder, of tables; a context manager. Damage raises no error: ``damage`` has the reason for each table
    that could not be read to its end."""

    #: Exceptions of reading a damaged file.
    errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self) -> None:
        self.damage: dict[str, str] = {}
        #: The columns of each table, in the order of the file.
        self.names: dict[str, tuple[str, ...]] = {}

    @abstractmethod
    def count(self, table: str) -> int | None:
        """The number of rows of a table, None when unknown."""

    @abstractmethod
    def least(self, table: str, column: str, floor: int) -> int | None:
        """The smallest number of a column that is at least ``floor``; None if no number is."""

    @abstractmethod
    def filled(self, table: str, columns: Sequence[str]) -> dict[str, int]:
        """For each column, the number of rows with a value other than NULL, 0 and the empty string."""

    def batches(self, table: str, columns: Mapping[str, Kind]) -> Iterator[ColumnBatch]:
        """The rows of a table in the order of the file. A column that the table lacks has no values."""
        names = self.names.get(table, ())
        present = {name: kind for name, kind in columns.items() if name in names}
        for rows, read in self._batches(table, present):
            for name, kind in columns.items():
                if name not in read:
                    read[name] = ReadColumn.absent(rows, kind)
            yield ColumnBatch(rows, read)

    @abstractmethod
    def _batches(
        self, table: str, columns: Mapping[str, Kind]
    ) -> Iterator[tuple[int, dict[str, ReadColumn]]]:
        """:meth:`batches` of columns that the table has: the number of rows, and the columns."""

    @contextmanager
    def reading(self, table: str) -> Iterator[None]:
        """Catch an exception of a damaged file, and note it in :attr:`damage`."""
        try:
            yield
        except self.errors as error:
            self.damage.setdefault(table, str(error))

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


def rows(
    tables: Tables, table: str, columns: Mapping[str, Kind]
) -> Iterator[dict[str, object]]:
    """The rows of a small table one by one, with None for missing and wrong values. No rows when there is no such
    table."""
    if table not in tables.names:
        return
    for batch in tables.batches(table, columns):
        values: dict[str, list[object]] = {}
        for name in columns:
            of_column = batch[name].astype(object)
            of_column[~batch.known(name)] = None
            values[name] = of_column.tolist()
        for number in range(batch.rows):
            yield {name: values[name][number] for name in columns}
