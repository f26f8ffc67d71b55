"""Writing a trace, or a part of it, as a new capture.

Rows are written block by block and process by process, so memory does not grow with the trace. Strings, launch
configurations, functions, frames and stacks get new ids when the first row refers to them. They are not written if no
row refers to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..outputs import check_output, replacing
from ..runbin.blocks import BlockInfo
from ..runbin.joining import mark
from ..runbin.layout import REFERRED, TABLES, TableLayout
from ..runbin.writer import NewIds, Writer
from .process import Process
from .quality import unreadable
from .rows import changed
from .selection import FACTS, SelectedRows, Selection, refuse_empty
from .stacks import by_level
from .trace import Trace

Progress = Callable[[int, int], None]


def write(
    trace: Trace,
    path: Path,
    selection: Selection | None = None,
    *,
    notes: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> int:
    """Write the selected part of a trace (all of it for None) to the capture ``path``. The file appears in one step.

    Each selected process is written with its facts and its description, to which ``notes`` are added. Times are on the
    clock of the trace. Damage of the original becomes losses of the new capture. Returns the number of event rows; rows
    of facts do not count. Raises :class:`CutraceError` when no row is selected, or the file cannot be written.
    """
    check_output(path, trace.sources)
    selection = selection or Selection()
    part = SelectedRows(trace, selection)
    infos: list[list[BlockInfo]] = [[] for _ in trace.processes]
    for info in part.blocks:
        infos[info.process].append(info)
    wanted = list(trace.processes)
    if selection.processes is not None:
        wanted = [p for p in wanted if p.index in selection.processes]
    total = sum(len(infos[p.index]) for p in wanted)
    done = 0
    events = 0
    unchosen = 0
    with replacing(path) as temporary, temporary.open("w+b") as whole:
        first: Writer | None = None
        offsets = []
        for process in wanted:
            offsets.append(whole.tell())
            writer = Writer(path, file=whole, **_description(process, notes))
            out = _ProcessWriter(trace, writer)
            for info in infos[process.index]:
                rows = part.block(info)
                out.rows(TABLES[info.table or ""], rows)
                if info.table not in FACTS:
                    events += len(rows)
                    unchosen += part.unchosen(info, rows)
                done += 1
                if progress is not None:
                    progress(done, total)
            if first:
                writer.close(in_order=process.complete)
            else:
                first = writer
        # The damage is complete only after all blocks were read.
        if first:
            first.losses(
                (loss.reason, loss.count, loss.detail)
                for loss in unreadable(trace.damage)
            )
            first.close(in_order=wanted[0].complete)
        mark(whole, offsets)
        # The damaged block may have had the selected rows. The new capture then says that rows are lost.
        if selection.of_rows and events == unchosen and not trace.damage:
            refuse_empty(trace)
    return events


def _description(process: Process, notes: tuple[str, ...]) -> dict[str, Any]:
    """The process description in the new capture: the old one and the notes."""
    info = dict(process.info)
    info.pop("format", None)
    info.pop("tables", None)
    info.pop("from_start", None)
    if process.windows:
        info["windows"] = process.times_of_windows
    info["pid"] = process.pid
    merged = [*info.get("notes", ()), *notes]
    if merged:
        info["notes"] = merged
    return info


class _ProcessWriter:
    """Writes the rows of one process with new ids."""

    def __init__(self, trace: Trace, writer: Writer) -> None:
        self._trace = trace
        self._writer = writer
        self._ids = {"string": NewIds(self._intern_strings)}
        for kind, table in REFERRED.items():
            self._ids[kind] = NewIds(partial(self._intern, table))

    def rows(self, table: TableLayout, rows: np.ndarray) -> None:
        """Write rows of the trace."""
        if not len(rows):
            return
        if table.name == "call_stacks":
            self._write_stacks(rows["stack"])
        changes = self._changes(table, rows)
        self._writer.rows(table.name, changed(rows, changes))

    def _write_stacks(self, stacks: np.ndarray) -> None:
        """Write stacks and their callers, each caller first."""
        for level in by_level(self._trace.stacks["parent"], stacks):
            self._ids["stack"][level]

    def _changes(self, table: TableLayout, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The fields of rows that differ in the new capture."""
        changes: dict[str, np.ndarray] = {}
        for f in table.fields:
            if f.type in self._ids and f.name != "id":
                values = self._ids[f.type][rows[f.name]]
            elif f.name == "process":
                values = np.zeros(len(rows), rows.dtype[f.name])
            else:
                continue
            if not np.array_equal(rows[f.name], values):
                changes[f.name] = values
        return changes

    def _intern_strings(self, ids: np.ndarray) -> list[int]:
        strings = self._trace.strings
        return [self._writer.string(strings.bytes(number)) for number in ids.tolist()]

    def _intern(self, table: str, ids: np.ndarray) -> np.ndarray:
        rows = self._trace.table(table)[ids]
        changes = self._changes(TABLES[table], rows)
        return self._writer.intern(table, changed(rows, {**changes, "id": 0}))
