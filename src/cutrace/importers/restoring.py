"""Rows of a whole trace on their way back into captures of its processes.

What cutrace writes into files of other formats has the ids of a trace: one range of texts, launch configurations and
functions for all processes, and one clock. A capture has them by process. This is the way back: a
:class:`Restoring` is given the three interned tables as they come, and then rows that refer to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runbin import TABLES, Writer
from .base import Import
from .building import REFERRED

_TIMES = ("start", "end", "time")
#: Ids that may be missing because what explained them is damaged.
_MOST_MISSING = 1 << 20


@dataclass(frozen=True)
class Described:
    """A process as the file describes it: ``clock_offset`` (ns) was added to its times."""

    info: dict[str, Any]
    pid: int
    clock_offset: int = 0

    @classmethod
    def checked(cls, info: object, pid: object, clock_offset: object) -> Described:
        """A process of whose values nothing is certain."""
        offset = clock_offset if type(clock_offset) is int and abs(clock_offset) < 1 << 62 else 0
        number = pid if type(pid) is int and 0 <= pid < 1 << 32 else 0
        return cls(info if isinstance(info, dict) else {}, number, offset)


class Restoring:
    """Writes captures from rows of a trace.

    ``texts`` are the texts of the trace by id; the list may grow while rows are added, and so may what
    :meth:`intern` was given. Text 0 is the empty one. With ``own``, texts from that id on are in the trace only where
    rows refer to them.
    """

    def __init__(self, out: Import, processes: Sequence[Described], texts: list[bytes], own: int | None = None) -> None:
        self._out, self.texts, self._own = out, texts, own
        self._tables = {name: np.zeros(1, TABLES[name].dtype) for name in REFERRED.values()}
        self._processes = [self._begun(index, process) for index, process in enumerate(processes)]

    def __len__(self) -> int:
        return len(self._processes)

    def intern(self, name: str, rows: np.ndarray, first: int | None = None) -> None:
        """More rows of ``launches`` or ``functions``, in the order of their ids; ``first`` is the id of the first one.
        Raises ValueError when that cannot be."""
        known = self._tables[name]
        gap = np.zeros(_gap(len(known), first), known.dtype)
        self._tables[name] = np.concatenate([known, gap, rows])

    def extend_texts(self, first: int, texts: list[bytes]) -> None:
        """More texts, the first of which has the id ``first``. Raises ValueError when that cannot be."""
        self.texts += [b""] * _gap(len(self.texts), first)
        self.texts += texts

    def text(self, text: bytes) -> int:
        """The id of a text that was made, which is another than that of an equal one."""
        self.texts.append(text)
        return len(self.texts) - 1

    def rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Write rows of a table to the captures of their processes. Returns which of them could not be, as a mask:
        those of processes that there are not."""
        fits: np.ndarray = rows["process"] < len(self._processes)
        for index in np.unique(rows["process"][fits]).tolist():
            mine = rows if index == 0 and not rows["process"].any() else rows[rows["process"] == index]
            self._processes[index].rows(name, mine, self)
        return ~fits

    def finish(self) -> None:
        """Write what nothing refers to: it belongs to the trace all the same."""
        first = self._processes[0]
        for name in REFERRED.values():
            used = np.logical_or.reduce([p.used(name, len(self._tables[name])) for p in self._processes])
            first.number(name, np.flatnonzero(~used[1:]) + 1, self)
        seen = np.logical_or.reduce([p.used("strings", len(self.texts)) for p in self._processes])
        for text in np.flatnonzero(~seen[1 : self._own]).tolist():
            first.writer.string(self.texts[text + 1])

    def table(self, name: str) -> np.ndarray:
        """The rows of ``launches`` or ``functions`` by id."""
        return self._tables[name]

    def _begun(self, index: int, process: Described) -> _Process:
        return _Process(self._out.restored(index, process.info, process.pid), process.clock_offset)


class _Process:
    """The capture of one process, and the ids that it gave."""

    def __init__(self, writer: Writer, clock_offset: int) -> None:
        self.writer, self._offset = writer, clock_offset
        # By id of the trace, the id of the process; 0 for what has not been needed.
        self._ids = {name: np.zeros(1, np.uint32) for name in ("strings", *REFERRED.values())}

    def used(self, name: str, size: int) -> np.ndarray:
        """Which ids of the trace the process has ids for, and 0."""
        used: np.ndarray = self._known(name, size)[:size] > 0
        used[0] = True
        return used

    def rows(self, name: str, rows: np.ndarray, trace: Restoring) -> None:
        layout = TABLES[name]
        rows = rows.copy()
        rows["process"] = 0
        for f in layout.fields:
            if f.type == "string":
                rows[f.name] = self._texts(rows[f.name], trace.texts)
            elif f.type in REFERRED:
                rows[f.name] = self._interned(REFERRED[f.type], rows[f.name], trace)
            elif f.name in _TIMES and self._offset:
                own = (rows[f.name].astype(np.int64) - self._offset).astype(np.uint64)
                rows[f.name] = np.where(rows[f.name] > 0, own, 0)
        self.writer.rows(name, rows)

    def number(self, name: str, ids: np.ndarray, trace: Restoring) -> None:
        """Give ids to rows of ``launches`` or ``functions`` that have none."""
        if not len(ids):
            return
        known = self._known(name, len(trace.table(name)))
        first = int(known.max()) + 1
        rows = trace.table(name)[ids]
        rows["id"] = np.arange(first, first + len(ids))
        rows["name"] = self._texts(rows["name"], trace.texts)
        known[ids] = rows["id"]
        self.writer.rows(name, rows)

    def _interned(self, name: str, ids: np.ndarray, trace: Restoring) -> np.ndarray:
        size = len(trace.table(name))
        ids = np.where(ids < size, ids, 0)
        known = self._known(name, size)
        self.number(name, _new(known, ids), trace)
        own: np.ndarray = known[ids]
        return own

    def _texts(self, ids: np.ndarray, texts: list[bytes]) -> np.ndarray:
        ids = np.where(ids < len(texts), ids, 0)
        known = self._known("strings", len(texts))
        for number in _new(known, ids).tolist():
            known[number] = self.writer.string(texts[number])
        own: np.ndarray = known[ids]
        return own

    def _known(self, name: str, size: int) -> np.ndarray:
        known = self._ids[name]
        if len(known) < size:
            grown = np.zeros(max(size, 2 * len(known)), np.uint32)
            grown[: len(known)] = known
            known = self._ids[name] = grown
        return known


def _gap(size: int, first: int | None) -> int:
    """How many ids are missing before ``first``."""
    gap = 0 if first is None else first - size
    if not 0 <= gap <= _MOST_MISSING:
        raise ValueError("ids out of order")
    return gap


def _new(known: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Those of the ids, each once, that have no number yet."""
    new: np.ndarray = np.unique(ids[(known[ids] == 0) & (ids != 0)])
    return new


def duration_of(name: str, rows: np.ndarray) -> int:
    """The durations (ns) of rows with known times, summed; 0 for a table without ends."""
    if "end" not in (rows.dtype.names or ()) or not len(rows):
        return 0
    return int((rows["end"].astype(np.int64) - rows["start"].astype(np.int64)).sum())
