"""The blocks of the tables that become events, read ahead by the threads of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...runbin import BlockInfo
from ...runbin.layout import TABLES
from ...trace import Trace
from ...trace.launches import ReadBlock
from ...trace.rows import never_ended
from ..base import Progress
from . import gpu_tables, host_tables
from .host_tables import Spool
from .pipeline import PacketFile

#: The tables that become events, by name.
GPU_TABLES = tuple(t.name for t in gpu_tables.TABLES)
PC_SAMPLES = "pc_samples"
_RECORDED = [table.name for table in host_tables.TABLES if not table.derived]
HOST_TABLES = tuple(dict.fromkeys(_RECORDED))


class Blocks:
    """The blocks of the tables that become events. Reports progress, counts the rows without known times by table
    (``unknown``), and puts slices that never ended into the spool ``still_open``."""

    def __init__(
        self, trace: Trace, file: PacketFile, progress: Progress | None
    ) -> None:
        self.trace = trace
        self.file = file
        self._progress = progress
        self.unknown = dict.fromkeys(TABLES, 0)
        infos: list[BlockInfo] = []
        for name in (*GPU_TABLES, *HOST_TABLES, PC_SAMPLES):
            infos += trace.block_infos(name)
        self._total = sum(info.rows for info in infos)
        self._done = 0
        self._block: Callable[[BlockInfo], tuple[Any, np.ndarray]] = trace.block
        self._read: set[int] = set()  # offsets of blocks
        self.still_open: Spool  # set for each group of processes
        self._blocks: dict[tuple[str, int], list[BlockInfo]] = {}
        for info in _in_time(infos):
            key = (info.table or "", info.process)
            self._blocks.setdefault(key, []).append(info)

    def of(self, process: int, *tables: str) -> list[BlockInfo]:
        """The blocks of some tables of a process, table by table, in the order of time."""
        infos: list[BlockInfo] = []
        for table in tables:
            infos += self._blocks.get((table, process), ())
        return infos

    def rows(self, process: int) -> int:
        """The number of rows of a process that become events."""
        infos = self.of(process, *GPU_TABLES, *HOST_TABLES)
        return sum(info.rows for info in infos)

    def ahead(self, infos: Iterable[BlockInfo]) -> ReadBlock:
        """A function that returns the rows of a block. The threads of the file read blocks ahead, in the order of
        time."""
        return self.file.read_ahead(self.trace.block, _in_time(infos))

    def read_ahead(
        self,
        infos: Iterable[BlockInfo],
        prepare: Callable[[BlockInfo, np.ndarray], Any],
    ) -> None:
        """Read blocks ahead for :meth:`read`. It then returns the result of ``prepare`` for their rows. ``prepare``
        runs in any thread."""

        def block(info: BlockInfo) -> tuple[Any, np.ndarray]:
            rows, unknown = self.trace.block(info)
            return prepare(info, rows), unknown

        self._block = self.file.read_ahead(block, _in_time(infos))

    def read(self, info: BlockInfo) -> Any:  # The result of `prepare`.
        """The rows of a block with known times, prepared. Counts the block at the first call."""
        rows, unknown = self._block(info)
        if info.offset in self._read:
            return rows
        self._read.add(info.offset)
        table = info.table or ""
        still_open = unknown[never_ended(table, unknown)]
        self.still_open.add(TABLES[table], still_open)
        self.unknown[table] += len(unknown) - len(still_open)
        self._done += info.rows
        if self._progress:
            self._progress(self._done, self._total)
        return rows


def _in_time(infos: Iterable[BlockInfo]) -> list[BlockInfo]:
    return sorted(infos, key=lambda info: info.first_time)
