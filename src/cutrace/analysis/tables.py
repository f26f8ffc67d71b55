"""Tables of figures: columns with units, and rows. :mod:`cutrace.reports.tables` formats them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from ..errors import CutraceError

#: A string, a number in the unit of its column, or None for no value.
Cell = str | int | float | None
#: The unit of a column: "" counts, "1" shares from 0 to 1, "number" other numbers, "moment" times (ns) on the clock
#: of the trace, "change" differences of times (ns).
Unit = Literal["text", "", "ns", "moment", "change", "bytes", "bytes/s", "1", "number"]


@dataclass(frozen=True)
class Column:
    """A column: its name, the unit of its cells, and its meaning for the reference (``doc``). A ``spare`` column may be
    omitted on a narrow terminal."""

    name: str
    unit: Unit = ""
    spare: bool = False
    doc: str = ""

    @property
    def is_text(self) -> bool:
        return self.unit == "text"


def columns_of(text: str, docs: Mapping[str, str] = {}) -> tuple[Column, ...]:
    """Columns from a string: ``"total: ns, count, min: ns spare, kernel: text"``. ``docs`` has their meanings by
    name."""
    columns = []
    for column in text.split(","):
        name, _, words = column.partition(":")
        name = name.strip()
        unit = words.replace("spare", "").strip()
        spare = unit != words.strip()
        columns.append(Column(name, cast(Unit, unit), spare, docs.get(name, "")))
    return tuple(columns)


def docs_of(columns: Iterable[Column]) -> dict[str, str]:
    """The meanings of columns by name."""
    return {column.name: column.doc for column in columns}


@dataclass(frozen=True)
class Table:
    """A table with a ``name`` for programs and a ``title`` for people. Each row has one cell for each column. ``rows``
    of a ``listing`` (one row for each event) may be an iterator that is used once."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Iterable[tuple[Cell, ...]]
    listing: bool = False

    def place(self, column: str) -> int | None:
        """The index of the column of this name, None if there is none."""
        names = [c.name for c in self.columns]
        if column in names:
            return names.index(column)
        return None

    def sorted(self, column: str) -> Table:
        """Sort the rows by a column: numbers descending, strings ascending, empty cells last. Raises
        :class:`cutrace.CutraceError` for a listing, which is in the order of time."""
        if self.listing:
            raise CutraceError(
                f"{self.name} has a row for each event, in the order of time: leave out `sort=`"
            )
        place = self.place(column)
        if place is None:
            return self
        filled: list[tuple[Cell, ...]] = []
        empty: list[tuple[Cell, ...]] = []
        for row in self.rows:
            if row[place] is None:
                empty.append(row)
            else:
                filled.append(row)
        is_text = self.columns[place].is_text
        filled.sort(key=lambda row: row[place], reverse=not is_text)  # type: ignore[arg-type, return-value]
        return replace(self, rows=filled + empty)
