"""Rows that are made in one pass and written in another: kept in memory as long as they are few, else in an unnamed
file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from ...runbin.layout import Table

#: Bytes of rows that are kept in memory.
KEPT_BYTES = 4 << 20


@dataclass(frozen=True)
class SpoolBlock:
    """Some rows of a spool; what it has in common with the block of a capture has the same names."""

    spool: Spool
    offset: int
    rows: int
    first_time: int

    @property
    def table(self) -> str:
        return self.spool.table.name

    @property
    def payload_size(self) -> int:
        return self.rows * self.spool.table.row_size

    def read(self) -> np.ndarray:
        return self.spool.read(self)


class Spool:
    """Rows of one table, in blocks of rising time each. Leaving the ``with`` block gives up the rows."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.blocks: list[SpoolBlock] = []
        self._file = tempfile.SpooledTemporaryFile(KEPT_BYTES)  # noqa: SIM115 (lives as long as the spool)
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def add(self, rows: np.ndarray) -> None:
        """Append a block."""
        if not len(rows):
            return
        first = int(rows[self.table.start_field].min())
        self.blocks.append(SpoolBlock(self, self._end, len(rows), first))
        self._file.seek(self._end)
        self._file.write(rows.tobytes())
        self._end += rows.nbytes

    def read(self, block: SpoolBlock) -> np.ndarray:
        """The rows of a block."""
        self._file.seek(block.offset)
        return np.frombuffer(self._file.read(block.payload_size), self.table.dtype)
