"""Lines of records that torch.profiler has no words for."""

from __future__ import annotations

import numpy as np

from .lines import Line, Pieces, quoted
from .places import Places

_ALLOCATION = Line(
    ',\n{"ph":"i","s":"p","cat":"allocation","name":<blob name><blob where>,"ts":<us time>,"args":{'
    '"address":<int address>,"bytes":<int bytes>,"device":<int device>,"context":<int context>,'
    '"correlation":<int correlation>,"memory":<int memory>}}'
)
_POOL = Line(
    ',\n{"ph":"i","s":"p","cat":"memory_pool","name":<blob name><blob where>,"ts":<us time>,'
    '"args":{"address":<int address>,"size":<int size>,"used":<int used>,"device":<int device>,'
    '"correlation":<int correlation>}}'
)
_UNIFIED = Line(
    ',\n{"ph":"i","s":"p","cat":"unified_memory","name":<blob name><blob where>,"ts":<us start>,"args":{'
    '"duration (us)":<us duration>,"value":<int value>,"address":<int address>,"source":<int source_device>,'
    '"destination":<int destination_device>,"flags":<int flags>}}'
)
_JIT = Line(
    ',\n{"ph":"i","s":"t","cat":"jit","name":<blob name><blob where>,"ts":<us start>,'
    '"args":{"duration (us)":<us duration>,"cache size":<int cache_size>,"correlation":<int correlation>,'
    '"device":<int device>}}'
)
_ALLOCATIONS = {1: "allocate", 2: "release"}
_POOLS = {1: "memory pool created", 2: "memory pool destroyed", 3: "memory pool trimmed"}
_UNIFIED_KINDS = {
    1: "migration HtoD", 2: "migration DtoH", 3: "CPU page fault", 4: "GPU page fault", 5: "thrashing", 6: "throttling",
    7: "remote mapping", 8: "migration DtoD",
}  # fmt: skip
_JIT_OPERATIONS = {1: "cache load", 2: "cache store", 3: "compile"}
_WORDS = (_ALLOCATIONS, _POOLS, _UNIFIED_KINDS, _JIT_OPERATIONS)
_TABLES = ("allocation", "memory pool", "unified memory", "JIT")


class OtherLines:
    """Lines of rows of the other tables. What has a duration is no slice here: it overlaps what is on its thread."""

    def __init__(self, places: Places, offset: int) -> None:
        self._places, self._offset = places, offset
        self._words = Pieces(2, self._word)

    def allocations(self, rows: np.ndarray) -> bytes:
        return self._write(_ALLOCATION, rows, 0, rows["operation"])

    def memory_pools(self, rows: np.ndarray) -> bytes:
        return self._write(_POOL, rows, 1, rows["operation"])

    def unified_memory(self, rows: np.ndarray) -> bytes:
        return self._write(_UNIFIED, rows, 2, rows["kind"])

    def jit(self, rows: np.ndarray) -> bytes:
        return self._write(_JIT, rows, 3, rows["operation"], rows["thread"])

    def _write(
        self, line: Line, rows: np.ndarray, kind: int, words: np.ndarray, thread: np.ndarray | None = None
    ) -> bytes:
        columns = {name: rows[name] for name in rows.dtype.names or ()}
        for name in {"start", "time"} & set(columns):
            columns[name] = columns[name].astype(np.int64) - self._offset
        if "end" in columns:
            columns["duration"] = rows["end"] - rows["start"]
        threads = np.zeros(len(rows), np.int64) if thread is None else thread
        columns["where"] = self._places.host.ids(rows["process"], threads)
        columns["name"] = self._words.ids(np.full(len(rows), kind), words)
        return line.write(columns, len(rows), name=self._words.blobs, where=self._places.host.blobs)

    @staticmethod
    def _word(kind: int, number: int) -> bytes:
        return quoted(_WORDS[kind].get(number, f"{_TABLES[kind]} {number}"))
