"""Format tables of figures: text for a terminal, CSV, JSON, Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from ..analysis.tables import Cell, Column, Table
from ..units import printable
from . import markdown as md
from .text import Line, styled
from .values import NOTHING, duration, number_text, short, size

#: The formats of :func:`render`.
FORMATS = ("table", "csv", "json", "markdown")
#: The version of the JSON. It increases when a key changes its meaning.
FORMAT = 1
ABOUT = {"kind": "cutrace stats"}

# Minimum width of the last text column, which is the name, and of other text columns; maximum width of any text column
# if the width of the table is not limited.
_NAME, _TEXT, _WIDEST = 40, 16, 100
_SHORTEST = 16
_GAP = 2
_MARKDOWN_CELL = 160


def render(
    tables: Sequence[Table],
    form: str,
    *,
    limit: int = 0,
    width: int | None = None,
    about: Mapping[str, object] = ABOUT,
    style: Callable[[Table, tuple[Cell, ...]], str] | None = None,
) -> Iterator[str]:
    """Yield the tables as pieces of text. ``form`` is one of :data:`FORMATS`; ``limit`` is the maximum of rows of each
    table, 0 for all; ``width`` is that of the terminal in columns, None for unlimited; ``about`` has further keys for
    JSON. ``style`` returns the style (:mod:`.text`) of a row; without it there are no escape sequences."""
    if form == "csv":
        return _csv(tables, limit)
    if form == "json":
        return _json(tables, limit, about)
    if form == "markdown":
        return _markdown(tables, limit)
    return _text(tables, limit, width, style)


def cell(value: Cell, column: Column) -> str:
    """A value as text for people, in its unit."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return printable(value)
    if not math.isfinite(value):
        return str(value)
    if column.unit == "1":
        return "<0.1%" if 0 < value < 0.0005 else f"{value:.1%}"
    if column.unit == "ns":
        return duration(value)
    if column.unit == "change":
        return f"{'+' * (value > 0)}{duration(value)}"
    if column.unit == "moment":
        return f"@{int(value)}"  # the syntax of --start
    if column.unit == "bytes":
        return size(value)
    if column.unit == "bytes/s":
        return f"{size(value)}/s"
    return number_text(value)


def key(column: Column) -> str:
    """The name of a column for programs, with its unit: ``total_ns``."""
    endings = {"ns": "_ns", "moment": "_ns", "change": "_ns", "bytes": "_bytes", "bytes/s": "_bytes_per_s"}
    unit, name = endings.get(column.unit, ""), column.name.lower().replace(" ", "_")
    return name if f"_{name}".endswith(unit) else name + unit


def _first(rows: Iterable[tuple[Cell, ...]], limit: int) -> tuple[list[tuple[Cell, ...]], bool | int]:
    """The first ``limit`` rows (0: all), and the number of further rows (True if it is unknown)."""
    if not limit:
        return list(rows), 0
    if isinstance(rows, Sequence):
        return list(rows[:limit]), max(len(rows) - limit, 0)
    first = list(islice(rows, limit + 1))
    return first[:limit], len(first) > limit


def _more(left: bool | int) -> str:
    return "and more: --limit 0 shows all" if left is True else f"and {left:,} more: --limit 0 shows all"


# Text


def no_style(table: Table, row: tuple[Cell, ...]) -> str:
    """No style for rows, so that only titles and heads are styled."""
    return ""


def _text(
    tables: Sequence[Table],
    limit: int,
    width: int | None,
    style: Callable[[Table, tuple[Cell, ...]], str] | None,
) -> Iterator[str]:
    def rendered(line: Line) -> str:
        return styled(line) if style else line[0]

    for number, table in enumerate(tables):
        rows, left = _first(table.rows, limit)
        name = "" if table.name in table.title.lower() else f" ({table.name})"
        yield "\n" * bool(number) + rendered((f"{table.title}{name}", "bold")) + "\n"
        lines = _lines(table, rows, None if width is None else width - 2)
        styles = ["dim", *(style(table, row) if style else "" for row in rows)]
        yield from (f"  {rendered(line)}\n" for line in zip(lines, styles, strict=False))
        if left:
            yield f"  {_more(left)}\n"


def _lines(table: Table, rows: list[tuple[Cell, ...]], width: int | None) -> Iterator[str]:
    if not rows:
        yield "nothing"
        return
    cells = zip(table.columns, zip(*rows, strict=True), strict=True)
    words = [[cell(value, column) for value in values] for column, values in cells]
    chosen = _fitting(table.columns, words, width)
    columns, words = [table.columns[i] for i in chosen], [words[i] for i in chosen]
    wide = _widths(columns, words, width)
    for line in zip(*([c.name, *w] for c, w in zip(columns, words, strict=True)), strict=True):
        cells_of_line = (
            f"{short(word, size):<{size}}" if column.unit == "text" else f"{word:>{size}}"
            for word, column, size in zip(line, columns, wide, strict=True)
        )
        yield (" " * _GAP).join(cells_of_line).rstrip()


def _fitting(columns: Sequence[Column], words: list[list[str]], width: int | None) -> list[int]:
    """The indices of the columns that fit into a line. Spare columns are dropped, the last one first."""
    chosen = list(range(len(columns)))
    _, least = _needed(columns, words)
    spare = [i for i in chosen if columns[i].spare]
    # Columns with equal values in all rows are dropped before others.
    spare.sort(key=lambda i: (len(words[i]) > 1 and len(set(words[i])) == 1, i))
    while width is not None and spare and sum(least[i] + _GAP for i in chosen) - _GAP > width:
        chosen.remove(spare.pop())
    return chosen


def _needed(columns: Sequence[Column], words: list[list[str]]) -> tuple[list[int], list[int]]:
    """The full width of each column and its minimum."""
    full = [max(len(column.name), *map(len, w)) for column, w in zip(columns, words, strict=True)]
    last = max((i for i, column in enumerate(columns) if column.unit == "text"), default=-1)
    bounds = [_NAME if i == last else _TEXT if c.unit == "text" else _WIDEST for i, c in enumerate(columns)]
    return full, list(map(min, full, bounds))


def _widths(columns: Sequence[Column], words: list[list[str]], width: int | None) -> list[int]:
    """The width of each column. Numbers get their full width. Of the rest, each text gets its minimum, then the name up
    to its full width, then the other texts. If the minimum does not fit, the name is shortened first."""
    full, least = _needed(columns, words)
    texts = [i for i, column in enumerate(columns) if column.unit == "text"]
    if width is None or not texts:
        return [min(w, _WIDEST) if i in texts else w for i, w in enumerate(full)]
    *others, name = texts
    wide = [0 if i in texts else w for i, w in enumerate(full)]
    left = width - _GAP * (len(columns) - 1) - sum(wide)
    scarce = min(1.0, max(left - _SHORTEST, 0) / max(sum(least[i] for i in others), 1))
    for i in others:
        wide[i] = max(int(least[i] * scarce), min(_SHORTEST // 2, full[i]))
    left -= sum(wide[i] for i in others)
    wide[name] = max(min(full[name], left), min(_SHORTEST, full[name]))
    left -= wide[name]
    for i in sorted(others, key=lambda i: full[i]):
        more = min(full[i] - wide[i], max(left, 0))
        wide[i], left = wide[i] + more, left - more
    return wide


# For programs


def _csv(tables: Sequence[Table], limit: int) -> Iterator[str]:
    """RFC 4180 with plain numbers. Each of several tables follows its name and precedes an empty line."""
    for table in tables:
        if len(tables) > 1:
            yield f"# {table.name}\r\n"
        heads = [tuple(key(column) for column in table.columns)]
        for rows in _pieces(chain(heads, islice(table.rows, limit or None))):
            text = io.StringIO()
            csv.writer(text).writerows([_plain(value) for value in row] for row in rows)
            yield text.getvalue()
        if len(tables) > 1:
            yield "\r\n"


def _json(tables: Sequence[Table], limit: int, about: Mapping[str, object]) -> Iterator[str]:
    """A JSON object in which rows are objects by column."""
    yield json.dumps({"format": FORMAT, **about}, ensure_ascii=False)[:-1] + ', "reports": ['
    for number, table in enumerate(tables):
        keys = [key(column) for column in table.columns]
        columns = [{"key": k, "name": c.name, "unit": c.unit} for k, c in zip(keys, table.columns, strict=True)]
        head = {"name": table.name, "title": table.title, "columns": columns}
        yield ("," * bool(number)) + "\n" + json.dumps(head, ensure_ascii=False)[:-1] + ', "rows": ['
        separator = "\n"
        for rows in _pieces(islice(table.rows, limit or None)):
            objects = (dict(zip(keys, map(_number, row), strict=True)) for row in rows)
            yield separator + ",\n".join(json.dumps(o, ensure_ascii=False, allow_nan=False) for o in objects)
            separator = ",\n"
        yield "]}"
    yield "]}\n"


def _pieces(rows: Iterable[tuple[Cell, ...]]) -> Iterator[list[tuple[Cell, ...]]]:
    """Batches of some thousand rows, because listings may be long."""
    source = iter(rows)
    while piece := list(islice(source, 4096)):
        yield piece


def _number(value: Cell) -> Cell:
    """A cell as a JSON value: infinite numbers become None, others are rounded to 6 digits."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _plain(value: Cell) -> Cell:
    return "" if value is None else round(value, 6) if isinstance(value, float) else value


def _markdown(tables: Sequence[Table], limit: int) -> Iterator[str]:
    for number, table in enumerate(tables):
        rows, left = _first(table.rows, limit)
        yield "\n" * bool(number) + f"### {md.text(table.title)}\n\n"
        words = {column.name for column in table.columns if column.unit == "text"}
        cells = (
            [
                md.code(value, _MARKDOWN_CELL) if isinstance(value, str) and value else md.text(cell(value, column))
                for value, column in zip(row, table.columns, strict=True)
            ]
            for row in rows
        )
        lines = list(md.table([md.text(column.name) for column in table.columns], cells, {md.text(w) for w in words}))
        yield "\n".join(lines[:-1]) + "\n"
        if left:
            yield f"\n{md.text(_more(left))}\n"
