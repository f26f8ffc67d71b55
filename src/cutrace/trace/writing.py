"""A trace, or a part of it, written as a capture again.

Block by block, process by process, so memory does not grow with the trace. Strings, launch configurations and functions
are written when the first row needs them and numbered anew: what nothing refers to is not in the new file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..outputs import check_output, replacing
from ..runbin.blocks import BlockInfo
from ..runbin.layout import LOSS_REASONS, REFERRED, TABLES, Table
from ..runbin.writer import Writer
from .process import Process
from .rows import copied
from .selection import FACTS, Part, Selection
from .trace import Trace

Progress = Callable[[int, int], None]

_UNREADABLE = next(number for number, (name, _) in LOSS_REASONS.items() if name == "unreadable")


def write(
    trace: Trace,
    path: Path,
    selection: Selection | None = None,
    *,
    notes: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> int:
    """Write the part of a trace that ``selection`` wants (None: all of it) to the capture ``path``, in one step.

    Every process that is wanted is in it with its description, to which ``notes`` are added, and its facts; its times
    are those of the trace. What could not be read of the original is among the losses of the new one.
    Returns how many rows are events, not facts. Raises :class:`CutraceError` when the file cannot be written.
    """
    check_output(path)
    selection = selection or Selection()
    part = Part(trace, selection)
    infos: list[list[BlockInfo]] = [[] for _ in trace.processes]
    for info in part.blocks:
        infos[info.process].append(info)
    wanted = [p for p in trace.processes if selection.processes is None or p.index in selection.processes]
    total, done, events = sum(len(infos[p.index]) for p in wanted), 0, 0
    with replacing(path) as temporary, temporary.open("wb") as whole:
        for process in wanted:
            with _Process(trace, Writer(path, file=whole, **_description(process, notes))) as out:
                for info in infos[process.index]:
                    rows = part.block(info)
                    out.rows(TABLES[info.table or ""], rows)
                    events += 0 if info.table in FACTS else len(rows)
                    done += 1
                    if progress is not None:
                        progress(done, total)
                if process is wanted[-1]:
                    # Known only when everything was read.
                    out.damage()
    return events


def _description(process: Process, notes: tuple[str, ...]) -> dict[str, Any]:
    """What the new capture says of a process: all that the old one did, and the notes."""
    info = {key: value for key, value in process.info.items() if key not in ("format", "tables")}
    given = info.get("notes")
    told = [*(given if isinstance(given, list) else []), *notes]
    return info | {"pid": process.pid} | ({"notes": told} if told else {})


class _Process:
    """Writes the rows of one process with ids of its own."""

    def __init__(self, trace: Trace, writer: Writer) -> None:
        self._trace, self._writer = trace, writer
        # By id of the trace the id in the new file; 0 for what has not been needed yet.
        sizes = {"string": len(trace.strings), "launch": len(trace.launches), "function": len(trace.functions)}
        self._ids = {kind: np.zeros(size, np.uint32) for kind, size in sizes.items()}

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            # Whether it was closed in order is among what the description says.
            self._writer.close(in_order=False)
        else:
            self._writer.discard()

    def rows(self, table: Table, rows: np.ndarray) -> None:
        """Write rows of the trace; they may be changed."""
        if not len(rows):
            return
        changes: dict[str, np.ndarray] = {}
        for f in table.fields:
            if f.type in self._ids:
                changes[f.name] = self._written(f.type, rows[f.name])
            elif f.name == "process":
                changes[f.name] = np.zeros(len(rows), rows.dtype[f.name])
        changes = {name: values for name, values in changes.items() if not np.array_equal(rows[name], values)}
        if changes and not rows.flags.writeable:
            rows = copied(rows)
        for name, values in changes.items():
            rows[name] = values
        self._writer.rows(table.name, rows)

    def damage(self) -> None:
        """Write what could not be read of the trace as losses."""
        damage = self._trace.damage
        rows = np.zeros(len(damage), TABLES["losses"].dtype)
        for row, d in zip(rows, damage, strict=True):
            row["count"], row["reason"] = max(d.rows, 1), _UNREADABLE
            row["detail"] = self._writer.string(d.reason)
        if len(rows):
            self._writer.rows("losses", rows)

    def _written(self, kind: str, ids: np.ndarray) -> np.ndarray:
        """The ids in the new file. What is new there is written, in the order of the old ids."""
        known = self._ids[kind]
        new = np.unique(ids[(known[ids] == 0) & (ids != 0)])
        if len(new) and kind == "string":
            known[new] = [self._writer.string(self._trace.strings.bytes(number)) for number in new.tolist()]
        elif len(new):
            rows = self._trace.table(REFERRED[kind])[new]
            rows["name"] = self._written("string", rows["name"])
            rows["id"] = known[new] = np.arange(len(new)) + known.max() + 1
            self._writer.rows(REFERRED[kind], rows)
        found: np.ndarray = known[ids]
        return found
