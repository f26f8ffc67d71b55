"""The calls of NCCL, from fields of the payloads of its NVTX ranges.

A payload has the communicator, the size of the message, the root and the reduction of a call, if the call has them.
Older versions of NCCL leave out the communicator. The rank, and the number of ranks, are in the payloads of the calls
that make or end a communicator.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .trace import Trace

_DOMAIN = "NCCL"
_COMMUNICATOR = "NCCL communicator ID"
_RANK = "Rank"
_RANKS = "No. of ranks"
_ROOT = "Root"
_REDUCTION = "Reduction operation"
# Older versions call it "Bytes" in ncclSend and ncclRecv.
_SIZES = ("Message size [bytes]", "Bytes")


class NcclCall(NamedTuple):
    """The known fields of a call; None where the payload has no such field.

    ``rank`` is the rank of the caller in the communicator. ``bytes`` is the size of the message as NCCL counts it.
    """

    communicator: int | None = None
    rank: int | None = None
    bytes: int | None = None
    root: int | None = None
    reduction: str | None = None


#: The entry for ranges of other libraries.
NO_CALL = NcclCall()


class NcclCalls:
    """The calls of NCCL in ``nvtx_ranges``. ``calls`` has the distinct calls by number; number 0 is :data:`NO_CALL`."""

    def __init__(self, trace: Trace) -> None:
        self._strings = trace.strings
        self._domain = trace.strings.find(_DOMAIN)
        self._payloads: dict[int, dict[str, Any]] = {}
        self._numbers: dict[NcclCall, int] = {NO_CALL: 0}
        # The ranks in a communicator by process and thread. Thread 0 stands for all threads of the process.
        self._ranks: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
        #: The number of ranks of each communicator that is known.
        self.sizes: dict[int, int] = {}
        if self._domain is None:
            return
        for rows in trace.blocks("nvtx_ranges"):
            keys, _, _ = self._distinct(rows)
            for process, thread, text in keys.tolist():
                self._note_rank(process, thread, self._payload(text))

    @property
    def calls(self) -> list[NcclCall]:
        return list(self._numbers)

    def of_rows(self, rows: Any) -> np.ndarray:
        """The number of the call of each row of ``nvtx_ranges``. ``rows`` is an array, or columns by name."""
        numbers = np.zeros(len(rows), np.uint32)
        keys, row_key, is_call = self._distinct(rows)
        of_key = [self._number(*key) for key in keys.tolist()]
        numbers[is_call] = np.array(of_key, np.uint32)[row_key]
        return numbers

    def world(self, process: int) -> tuple[int, int] | None:
        """The rank of a process and the number of ranks, in its communicators of several ranks. None if the process has
        no such communicator, or if its communicators disagree."""
        found = set()
        for (owner, thread, communicator), ranks in self._ranks.items():
            size = self.sizes.get(communicator, 0)
            if owner == process and not thread and size > 1:
                found |= {(rank, size) for rank in ranks if rank < size}
        if len(found) == 1:
            return found.pop()
        return None

    def _distinct(self, rows: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distinct combinations of process, thread and payload in rows of NCCL, the index of the combination of
        each of these rows, and a mask of these rows."""
        is_call = np.zeros(len(rows), bool)
        if self._domain is not None:
            is_call = (rows["domain"] == self._domain) & (rows["arguments"] != 0)
        columns = []
        for field in ("process", "thread", "arguments"):
            values = rows[field][is_call]
            columns.append(values.astype(np.int64))
        keys = np.stack(columns, axis=1)
        keys, row_key = np.unique(keys, axis=0, return_inverse=True)
        return keys, row_key.reshape(-1), is_call

    def _payload(self, text: int) -> dict[str, Any]:
        if text not in self._payloads:
            self._payloads[text] = payload_fields(self._strings[text])
        return self._payloads[text]

    def _note_rank(self, process: int, thread: int, payload: dict[str, Any]) -> None:
        """Keep the rank, which is in payloads of calls that make or end a communicator."""
        communicator = _integer(payload, _COMMUNICATOR, 64)
        if communicator is None:
            return
        rank = _integer(payload, _RANK)
        if rank is not None:
            for owner in (0, thread):
                key = (process, owner, communicator)
                self._ranks[key].add(rank)
        ranks = _integer(payload, _RANKS)
        if ranks is not None:
            self.sizes[communicator] = ranks

    def _number(self, process: int, thread: int, text: int) -> int:
        payload = self._payload(text)
        communicator = _integer(payload, _COMMUNICATOR, 64)
        rank = _integer(payload, _RANK)
        if rank is None and communicator is not None:
            rank = self._rank(process, thread, communicator)
        size = None
        for name in _SIZES:
            if name in payload:
                size = _integer(payload, name)
                break
        root = _integer(payload, _ROOT)
        reduction = payload.get(_REDUCTION)
        if reduction is not None:
            reduction = str(reduction).encode("utf-8", "replace").decode()
        call = NcclCall(communicator, rank, size, root, reduction)
        return self._numbers.setdefault(call, len(self._numbers))

    def _rank(self, process: int, thread: int, communicator: int) -> int | None:
        """The rank of a caller. A process with several ranks of a communicator may have one thread for each rank."""
        for owner in (0, thread):
            ranks = self._ranks.get((process, owner, communicator), set())
            if len(ranks) == 1:
                return next(iter(ranks))
        return None


def payload_fields(text: str) -> dict[str, Any]:
    """The fields in a string of the column ``arguments``; empty if it is not a JSON object."""
    try:
        fields = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if isinstance(fields, dict):
        return fields
    return {}


def _integer(payload: dict[str, Any], name: str, bits: int = 63) -> int | None:
    value = payload.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if 0 <= value < 1 << bits:
        return value
    return None
