"""All that a trace holds, so that two traces can be compared whatever files they came from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from cutrace import Trace
from cutrace.runbin import TABLES

_ID_TABLES = {"launch": "launches", "function": "functions"}

#: What the description of a process says about the file that it came from.
ABOUT_THE_FILE = ("import", "imported_from", "tables", "format")


def contents(trace: Trace) -> dict[str, Any]:
    """By table the rows, each as many times as it is there, with texts, launches and functions in place of their ids;
    and the processes."""
    found: dict[str, Any] = {"processes": [_process(p) for p in trace.processes]}
    for name in TABLES:
        rows = trace.table(name)
        found[name] = _rows(trace, name, rows[1:] if name in ("launches", "functions") else rows)
        found[f"{name} without known times"] = _rows(trace, name, trace.unknown(name))
    return {name: rows for name, rows in found.items() if rows}


def opens_alike(capture: Path, file: Path, *, format: str, nothing_left: bool = False) -> None:
    """``file``, which cutrace made of a whole capture, opens as the capture: nothing of it is lost, and, if that is
    asked for, nothing else was in the file."""
    with cutrace.load(capture) as before, cutrace.load(file) as after:
        assert contents(after) == contents(before)
        (account,) = after.imports
        assert (account.format, account.lost) == (format, 0)
        assert all(a.balanced for a in account.accounts)
        assert not (nothing_left and list(account.leftovers()))


def _process(process: Any) -> tuple[Any, ...]:
    # A key that says nothing is as good as none.
    info = {key: value for key, value in process.info.items() if key not in ABOUT_THE_FILE and value not in ("", [])}
    return process.pid, process.name, process.host, process.boot_id, process.command, info


def _rows(trace: Trace, name: str, rows: np.ndarray) -> Counter[tuple[Any, ...]]:
    return Counter(_in_order(trace, name, rows))


def _column(trace: Trace, kind: str, values: np.ndarray) -> list[Any]:
    if kind == "string":
        return trace.strings.take(values).tolist()
    if kind in _ID_TABLES:
        return _referred(trace, _ID_TABLES[kind], values)
    if values.dtype.kind == "f":
        return values.view(np.uint64).tolist()  # NaN is equal to itself
    return values.tolist()


def _referred(trace: Trace, name: str, ids: np.ndarray) -> list[Any]:
    unique, inverse = np.unique(ids, return_inverse=True)
    rows = _in_order(trace, name, trace.table(name)[unique])
    return [rows[i] for i in inverse.tolist()]


def _in_order(trace: Trace, name: str, rows: np.ndarray) -> list[tuple[Any, ...]]:
    # Their ids are no part of what launches and functions are.
    fields = [f for f in TABLES[name].fields if f.name != "id" or name not in _ID_TABLES.values()]
    return list(zip(*(_column(trace, f.type, rows[f.name]) for f in fields), strict=True))
