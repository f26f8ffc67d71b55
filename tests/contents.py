"""The contents of a trace with references in place of ids, so that traces of different files can be compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from cutrace import Trace
from cutrace.runbin import TABLES
from cutrace.runbin.layout import REFERRED, Field
from cutrace.trace.selection import FACTS, INTERNED

#: Tables of events.
EVENTS = [name for name in TABLES if name not in FACTS | INTERNED]

#: The keys of a process description that describe the imported file.
ABOUT_THE_FILE = ("import", "imported_from", "tables", "format")


def rows(trace: Trace, table: str, *, unknown: bool = False) -> list[dict[str, Any]]:
    """The rows of a table as dicts. Strings, launch configurations and functions are given as values."""
    array = trace.unknown(table) if unknown else trace.table(table)
    columns = {f.name: _column(trace, f, array[f.name]) for f in TABLES[table].fields}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def contents(trace: Trace) -> dict[str, Counter[tuple[tuple[str, Any], ...]]]:
    """The rows of each table with the number of their occurrences. Rows with unknown times are included."""
    return {
        name: Counter(tuple(row.items()) for row in rows(trace, name) + rows(trace, name, unknown=True))
        for name in TABLES
        if name not in INTERNED
    }


def everything(trace: Trace) -> dict[str, Any]:
    """:func:`contents`, the processes, and the launches and functions to which no row refers."""
    return {
        **contents(trace),
        **{name: Counter(_referred(trace, name, np.arange(1, len(trace.table(name))))) for name in INTERNED},
        "processes": [_process(process) for process in trace.processes],
    }


def _process(process: Any) -> tuple[Any, ...]:
    # An empty value is equal to a missing key.
    info = {key: value for key, value in process.info.items() if key not in ABOUT_THE_FILE and value not in ("", [])}
    return process.pid, process.name, process.host, process.boot_id, process.command, info


def _column(trace: Trace, field: Field, values: np.ndarray) -> list[Any]:
    if field.type == "string":
        return trace.strings.take(values).tolist()
    if field.type == "stack":
        return [tuple(_referred(trace, "frames", trace.stacks["frame"][_path(trace, s)])) for s in values.tolist()]
    if field.type in REFERRED and field.name != "id":
        return _referred(trace, REFERRED[field.type], values)
    return [value.hex() for value in values.tolist()] if field.type == "f64" else values.tolist()  # because NaN != NaN


def _path(trace: Trace, stack: int) -> list[int]:
    """The ids of a stack and of its callers."""
    path = [stack]
    while path[-1]:
        path.append(int(trace.stacks["parent"][path[-1]]))
    return path[:-1]


def _referred(trace: Trace, name: str, ids: np.ndarray) -> list[Any]:
    table = trace.table(name)[ids]
    # Ids of launches and functions are not compared.
    return list(zip(*(_column(trace, f, table[f.name]) for f in TABLES[name].fields if f.name != "id"), strict=True))
