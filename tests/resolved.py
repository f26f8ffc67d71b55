"""Rows of traces with everything that they refer to in place of ids, so that traces can be compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cutrace.runbin import TABLES
from cutrace.trace import Trace
from cutrace.trace.selection import FACTS, INTERNED

#: Tables whose rows are events.
EVENTS = [name for name in TABLES if name not in FACTS | INTERNED]


def rows(trace: Trace, table: str, *, unknown: bool = False) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries, with texts, launch configurations and functions as values."""
    out = []
    array = trace.unknown(table) if unknown else trace.table(table)
    for row in array.tolist():
        fields = dict(zip(array.dtype.names, row, strict=True))
        for f in TABLES[table].fields:
            if f.type == "string":
                fields[f.name] = trace.strings[fields[f.name]]
            elif f.type in ("launch", "function"):
                fields[f.name] = interned(trace, f"{f.type}es" if f.type == "launch" else "functions", fields[f.name])
        out.append(fields)
    return out


def interned(trace: Trace, table: str, index: int) -> tuple[Any, ...]:
    """A launch configuration or function without its id, its name as text."""
    row = trace.table(table)[index]
    return tuple(trace.strings[int(row[n])] if n == "name" else row[n].item() for n in row.dtype.names if n != "id")


def counted(found: list[dict[str, Any]]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(row.items()) for row in found)


def contents(trace: Trace) -> dict[str, Counter[tuple[tuple[str, Any], ...]]]:
    """All rows of a trace by table, unknown times among them; process numbers are those of the trace."""
    return {
        name: counted(rows(trace, name) + rows(trace, name, unknown=True)) for name in TABLES if name not in INTERNED
    }
