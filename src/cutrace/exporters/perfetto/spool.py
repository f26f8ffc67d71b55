"""Rows that are made in one pass and written in another: in memory as long as they are few, else in an unnamed file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from ...runbin.layout import Table

#: Bytes of rows that are kept in memory.
KEPT_BYTES = 8 << 20


@dataclass(frozen=True)
class SpoolBlock:
    """Some rows of a spool; what it has in common with the block of a capture has the same names. The rows are here
    (``kept``), or at an offset in the file."""

    spool: Spool
    rows: int
    first_time: int
    kept: np.ndarray | None
    offset: int

    @property
    def table(self) -> str:
        return self.spool.table.name

    @property
    def payload_size(self) -> int:
        return self.rows * self.spool.table.row_size

    def read(self) -> np.ndarray:
        """The rows."""
        return self.spool.read(self) if self.kept is None else self.kept


class Spool:
    """Rows of one table, in blocks. Leaving the ``with`` block gives up the rows."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.blocks: list[SpoolBlock] = []
        self._kept = 0
        self._file: Any = None
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rows: np.ndarray) -> None:
        """Append a block; its rows must not be changed any more."""
        if not len(rows):
            return
        first = int(rows[self.table.start_field].min())
        keep = self._kept + rows.nbytes <= KEPT_BYTES
        self.blocks.append(SpoolBlock(self, len(rows), first, rows if keep else None, self._end))
        if keep:
            self._kept += rows.nbytes
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the spool)
        self._file.seek(self._end)
        self._file.write(rows.data)
        self._end += rows.nbytes

    def read(self, block: SpoolBlock) -> np.ndarray:
        """The rows of a block that are in the file."""
        self._file.seek(block.offset)
        return np.frombuffer(self._file.read(block.payload_size), self.table.dtype)
