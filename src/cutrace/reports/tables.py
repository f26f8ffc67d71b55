"""Format tables of figures: text for a terminal, CSV, JSON, Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from ..analysis.tables import Cell, Column, Table
from ..units import printable
from . import markdown as md
from .text import styled
from .values import NOTHING, duration, number_text, short, size, width_of

#: The version of the JSON. It increases when a key changes its meaning.
FORMAT = 1
ABOUT = {"kind": "cutrace stats"}

# The minimum width of the last column of strings (the name) and of other columns of strings, and the maximum width of a
# column of strings in a table of unlimited width.
_NAME = 40
_TEXT = 16
_WIDEST = 100
_SHORTEST = 16
_GAP = 2
_INDENT = "  "
_MARKDOWN_CELL = 160
# The number of rows that are written at a time.
_PIECE = 4096


def render(
    tables: Sequence[Table],
    form: str,
    *,
    limit: int = 0,
    width: int | None = None,
    about: Mapping[str, object] = ABOUT,
    style: Callable[[Table, tuple[Cell, ...]], str] | None = None,
) -> Iterator[str]:
    """Yield the tables as a string in pieces. ``form`` is table, csv, json or markdown. ``limit`` is the maximum of
    rows of each table, 0 for all. ``width`` is the width of the terminal in columns, None for unlimited. ``about`` has
    further keys for JSON. ``style`` returns the style (:mod:`.text`) of a row; without it there are no escape
    sequences."""
    if form == "csv":
        return _csv(tables, limit)
    if form == "json":
        return _json(tables, limit, about)
    if form == "markdown":
        return _markdown(tables, limit)
    return _text(tables, limit, width, style)


def notes(sentences: Iterable[str], form: str) -> Iterator[str]:
    """Yield sentences on missing data for the end of tables, in pieces. JSON has them in a key, and CSV has rows
    only."""
    for sentence in sentences:
        if form == "markdown":
            yield f"\n> {md.text(sentence)}\n"
        elif form not in ("csv", "json"):
            yield f"\n{printable(sentence)}\n"


def cell(value: Cell, column: Column) -> str:
    """A value as a string for people, in its unit."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return str(value).lower()
    if not math.isfinite(value):
        return str(value)
    if column.unit == "1":
        if 0 < value < 0.0005:
            return "<0.1%"
        if 0.9995 <= value < 1:
            return ">99.9%"
        return f"{value:.1%}"
    if column.unit == "ns":
        return duration(value)
    if column.unit == "change":
        return f"{'+' * (value > 0)}{duration(value)}"
    if column.unit == "moment":
        return f"@{int(value)}"  # The syntax of --start.
    if column.unit == "bytes":
        return size(value)
    if column.unit == "bytes/s":
        return f"{size(value)}/s"
    return number_text(value)


def key(column: Column) -> str:
    """The name of a column for programs, with its unit: ``total_ns``."""
    endings = {
        "ns": "_ns",
        "moment": "_ns",
        "change": "_ns",
        "bytes": "_bytes",
        "bytes/s": "_bytes_per_s",
    }
    unit = endings.get(column.unit, "")
    name = column.name.lower().replace(" ", "_")
    if f"_{name}".endswith(unit):
        return name
    return name + unit


def row_objects(table: Table) -> Iterator[dict[str, Any]]:
    """The rows of a table by the names of columns for programs."""
    names = list(map(key, table.columns))
    for row in table.rows:
        yield dict(zip(names, row, strict=True))


def _first(
    rows: Iterable[tuple[Cell, ...]], limit: int
) -> tuple[list[tuple[Cell, ...]], bool | int]:
    """The first ``limit`` rows (0: all rows), and the number of further rows (True if it is unknown)."""
    if not limit:
        return list(rows), 0
    if isinstance(rows, Sequence):
        return list(rows[:limit]), max(len(rows) - limit, 0)
    first = list(islice(rows, limit + 1))
    return first[:limit], len(first) > limit


def _more(left: bool | int) -> str:
    if left is True:
        return "and more: --limit 0 shows all"
    return f"and {left:,} more: --limit 0 shows all"


# Text


def no_style(table: Table, row: tuple[Cell, ...]) -> str:
    """No style for rows: only titles and heads have styles."""
    return ""


def _text(
    tables: Sequence[Table],
    limit: int,
    width: int | None,
    style: Callable[[Table, tuple[Cell, ...]], str] | None,
) -> Iterator[str]:
    def rendered(text: str, of_text: str) -> str:
        if style is None:
            return text
        return styled((text, of_text))

    inner = None
    if width is not None:
        inner = width - len(_INDENT)
    for number, table in enumerate(tables):
        rows, left = _first(table.rows, limit)
        if number:
            yield "\n"
        title = table.title
        if table.name not in title.lower():
            title += f" ({table.name})"
        yield rendered(title, "bold") + "\n"
        if not rows:
            yield _INDENT + rendered("nothing", "dim") + "\n"
            continue
        head, *lines = _aligned(table.columns, rows, inner)
        yield _INDENT + rendered(head, "dim") + "\n"
        for line, row in zip(lines, rows, strict=True):
            of_row = ""
            if style:
                of_row = style(table, row)
            yield _INDENT + rendered(line, of_row) + "\n"
        if left:
            yield _INDENT + _more(left) + "\n"


@dataclass
class _TextColumn:
    """A column of a table for a terminal: its strings, the head first, and its width in columns of the terminal."""

    column: Column
    words: list[str]
    full: int = 0
    least: int = 0
    width: int = 0

    @property
    def is_text(self) -> bool:
        return self.column.is_text

    @property
    def is_constant(self) -> bool:
        """Whether several rows have the same value."""
        values = self.words[1:]
        return len(values) > 1 and len(set(values)) == 1

    def padded(self, row: int) -> str:
        word = self.words[row]
        if self.is_text:
            word = short(word, self.width)
            return word + " " * (self.width - width_of(word))
        return f"{word:>{self.width}}"


def _aligned(
    columns: Sequence[Column], rows: list[tuple[Cell, ...]], width: int | None
) -> Iterator[str]:
    """The head and the rows of a table as lines of at most this width, None for any."""
    table = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        words = [cell(value, column) for value in values]
        table.append(_TextColumn(column, [column.name, *words]))

    if width is not None:
        table = _fitting(table, width)
    _share_width(table, width)

    for row in range(len(rows) + 1):
        line = (" " * _GAP).join(column.padded(row) for column in table)
        yield line.rstrip()


def _measure(table: list[_TextColumn]) -> None:
    """Set the full width of each column and its minimum. The last column of strings is the name."""
    name = None
    for column in table:
        column.full = max(map(width_of, column.words))
        column.least = min(column.full, _WIDEST)
        if column.is_text:
            column.least = min(column.full, _TEXT)
            name = column
    if name is not None:
        name.least = min(name.full, _NAME)


def _fitting(table: list[_TextColumn], width: int) -> list[_TextColumn]:
    """The columns that fit into a line. Spare columns are dropped, from the last one on. Spare columns with the same
    value in all rows are dropped before the others."""
    _measure(table)
    spare = [column for column in table if column.column.spare]
    spare.sort(key=lambda column: column.is_constant)
    kept = list(table)
    needed = sum(column.least for column in table)
    while spare and needed + _gaps(kept) > width:
        column = spare.pop()
        kept.remove(column)
        needed -= column.least
    return kept


def _gaps(table: list[_TextColumn]) -> int:
    """The width of the gaps between columns."""
    return _GAP * (len(table) - 1)


def _share_width(table: list[_TextColumn], width: int | None) -> None:
    """Set the width of each column. Numbers get their full width. Columns of strings share the rest: each gets its
    minimum, then the name (the last column of strings) grows to its full width, then the others grow. If the minimum
    does not fit, the name is shortened first."""
    _measure(table)
    for column in table:
        column.width = column.full
    texts = [column for column in table if column.is_text]
    if width is None or not texts:
        for column in texts:
            column.width = min(column.full, _WIDEST)
        return

    *others, name = texts
    left = width - _gaps(table)
    for column in table:
        if not column.is_text:
            left -= column.full

    # The minimum width of the other columns of strings, or their share of the remaining width.
    needed = sum(column.least for column in others)
    scarce = min(1.0, max(left - _SHORTEST, 0) / max(needed, 1))
    for column in others:
        least = min(_SHORTEST // 2, column.full)
        column.width = max(int(column.least * scarce), least)
        left -= column.width

    # The name, up to its full width.
    least = min(_SHORTEST, name.full)
    name.width = max(min(name.full, left), least)
    left -= name.width

    # The other strings, the shortest first.
    others.sort(key=lambda column: column.full)
    for column in others:
        more = min(column.full - column.width, max(left, 0))
        column.width += more
        left -= more


# For programs


def _csv(tables: Sequence[Table], limit: int) -> Iterator[str]:
    """CSV with plain numbers. Lines end with a line feed, as shells expect. If there are several tables, each table has
    its name before it and an empty line after it."""
    for table in tables:
        if len(tables) > 1:
            yield f"# {table.name}\n"
        head = tuple(map(key, table.columns))
        rows = islice(table.rows, limit or None)
        for piece in _pieces(chain([head], rows)):
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            for row in piece:
                writer.writerow(row)
            yield text.getvalue()
        if len(tables) > 1:
            yield "\n"


def _json(
    tables: Sequence[Table], limit: int, about: Mapping[str, object]
) -> Iterator[str]:
    """A JSON object in which rows are objects by column."""
    yield _opened({"format": FORMAT, **about}, "reports")
    for number, table in enumerate(tables):
        if number:
            yield ","
        keys = list(map(key, table.columns))
        columns = []
        for name, column in zip(keys, table.columns, strict=True):
            columns.append({"key": name, "name": column.name, "unit": column.unit})
        about_table = {
            "name": table.name,
            "title": table.title,
            "columns": columns,
        }
        yield "\n" + _opened(about_table, "rows")
        separator = "\n"
        for piece in _pieces(islice(table.rows, limit or None)):
            lines = []
            for row in piece:
                values = dict(zip(keys, map(_number, row), strict=True))
                lines.append(json.dumps(values, ensure_ascii=False, allow_nan=False))
            yield separator + ",\n".join(lines)
            separator = ",\n"
        yield "]}"
    yield "]}\n"


def _opened(values: Mapping[str, object], key: str) -> str:
    """The start of a JSON object with these values, up to the first element of a list under ``key``."""
    written = json.dumps(values, ensure_ascii=False)
    return f'{written[:-1]}, "{key}": ['


def _pieces(rows: Iterable[tuple[Cell, ...]]) -> Iterator[list[tuple[Cell, ...]]]:
    """The rows in batches of some thousands, because listings may be long."""
    source = iter(rows)
    piece = list(islice(source, _PIECE))
    while piece:
        yield piece
        piece = list(islice(source, _PIECE))


def _number(value: Cell) -> Cell:
    """A cell as a JSON value. JSON has no infinite numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _markdown(tables: Sequence[Table], limit: int) -> Iterator[str]:
    for number, table in enumerate(tables):
        rows, left = _first(table.rows, limit)
        if number:
            yield "\n"
        yield f"### {md.text(table.title)}\n\n"
        head = []
        texts = []
        for column in table.columns:
            name = md.text(column.name)
            head.append(name)
            if column.is_text:
                texts.append(name)
        cells = [_markdown_row(row, table.columns) for row in rows]
        for line in md.table(head, cells, texts):
            if line:
                yield f"{line}\n"
        if left:
            yield f"\n{md.text(_more(left))}\n"


def _markdown_row(row: tuple[Cell, ...], columns: Sequence[Column]) -> list[str]:
    cells = []
    for value, column in zip(row, columns, strict=True):
        if isinstance(value, str) and value:
            cells.append(md.code(value, _MARKDOWN_CELL))
        else:
            cells.append(md.text(cell(value, column)))
    return cells
