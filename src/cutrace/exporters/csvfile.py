"""CSV: one table as text, for spreadsheets and scripts.

The format is RFC 4180: commas, a header line, CRLF, quotes only around strings that need them. Strings replace string
ids. The columns of ``launches`` replace the launch of a kernel, and the columns of ``functions`` the function of an API
call. The id of a stack is followed by the columns of its innermost frame. Names of kernels are demangled. Rows without
known times are omitted.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from .._native import demangle
from ..errors import CutraceError
from ..runbin.layout import NOT_SHOWN, REFERENCES, TABLES, Field, TableLayout
from ..trace import Trace
from ..trace.quality import losses_of_the_file
from .base import Request
from .rows import pieces

#: The characters that need quotes.
_SPECIAL = frozenset(',"\r\n')
_LINES = 1 << 14


def write(trace: Trace, path: Path, request: Request) -> None:
    """Write the table ``request.table``, or else the table that the file is named after (``kernels.csv``). A path that
    ends with .gz is compressed. Memory does not grow with the table. Raises :class:`CutraceError` if there is no such
    table."""
    table = table_of(path, request.table)
    total = trace.count(table.name)
    done = 0
    with path.open("wb") as raw, _packed(raw, path) as file:
        columns = _Columns(trace, table)
        file.write(columns.header())
        for rows, unknown in pieces(trace, table.name):
            for at in range(0, len(rows), _LINES):
                part = rows[at : at + _LINES]
                file.write(columns.lines(part))
            done += len(rows) + len(unknown)
            if request.progress:
                request.progress(min(done, total), total)
        if table.name == "losses":
            for row in losses_of_the_file(trace):
                row["detail"] = quoted(row["detail"])
                line = columns.format % tuple(row.values())
                file.write(line.encode())


class _Columns:
    """The columns of a table, and the lines of its rows. The cells of an id (a string, a launch configuration) are
    formatted once."""

    def __init__(self, trace: Trace, table: TableLayout) -> None:
        self._trace = trace
        self._table = table
        self._known: dict[str, dict[int, str]] = {f.name: {} for f in table.fields}
        formats = [_FORMATS.get(f.type, "%d") for f in table.fields]
        self.format = ",".join(formats) + "\r\n"

    def header(self) -> bytes:
        names: list[str] = []
        for field in self._table.fields:
            names += _names(self._table, field)
        return (",".join(names) + "\r\n").encode()

    def lines(self, rows: np.ndarray) -> bytes:
        fields = self._table.fields
        columns = [self._column(field, rows[field.name]) for field in fields]
        lines = map(self.format.__mod__, zip(*columns, strict=True))
        return "".join(lines).encode()

    def _column(self, field: Field, values: np.ndarray) -> list[Any]:
        if field.type == "bytes16":
            return [bytes(value).hex() for value in values]
        numbers = values.tolist()
        if field.type != "string" and not self._table.referred(field):
            return cast(list[Any], numbers)
        known = self._known[field.name]
        for number in set(numbers) - known.keys():
            known[number] = self._shown(self._table, field, number)
        return [known[number] for number in numbers]

    def _shown(self, table: TableLayout, field: Field, number: int) -> str:
        """The columns of a field: its value, and the row of another table that it refers to."""
        if field.type == "string":
            text = self._trace.strings[number]
            if table.name == "launches":
                text = demangle(text)
            return quoted(text)
        parts = []
        if table.shows(field):
            parts.append(str(number))
        referred = table.referred(field)
        if referred:
            other = TABLES[referred]
            row = self._trace.table(referred)[number]
            for inner in other.fields:
                if inner.name not in NOT_SHOWN:
                    value = row[inner.name].item()
                    parts.append(self._shown(other, inner, value))
        return ",".join(parts)


_FORMATS = {"f64": "%r", **dict.fromkeys(("bytes16", *REFERENCES), "%s")}


def _names(table: TableLayout, field: Field) -> list[str]:
    """The names of the columns of a field."""
    names = []
    if table.shows(field):
        names.append(field.name)
    referred = table.referred(field)
    if referred:
        other = TABLES[referred]
        for inner in other.fields:
            if inner.name not in NOT_SHOWN:
                names += _names(other, inner)
    return names


def quoted(text: str) -> str:
    """A string as a CSV value: in quotes if it contains a comma, a quote or a line break."""
    if not _SPECIAL.isdisjoint(text):
        return f'"{text.replace(chr(34), chr(34) * 2)}"'
    return text


def table_of(path: Path, name: str | None) -> TableLayout:
    """The table of this name, or else the table that the file is named after. Raises :class:`CutraceError` if there is
    no such table."""
    if not name:
        name = path.name.lower().removesuffix(".gz").removesuffix(".csv")
    if name not in TABLES:
        raise CutraceError(
            f"a CSV file holds one table, and there is no table {name!r}: name the file after a table, such as "
            f"kernels.csv, or convert the capture with `table=`: {', '.join(TABLES)}"
        )
    return TABLES[name]


def _packed(raw: IO[bytes], path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.GzipFile("", "wb", 6, raw, 0))
    return raw
