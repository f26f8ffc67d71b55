"""Calls of NCCL with a known size, from NCCL's NVTX ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...trace.nccl import NcclCall
from ..collection import CollectedBy, GroupSpreads, StatsCollector, Timed, duration
from ..context import CollectorContext
from ..distribution import Spread
from ..statistic import (
    Statistic,
    View,
    count_column,
    text_column,
    time_column,
)
from ..sweep import SweepBatch
from .slices import FOREVER

_NO_SIZE = -1


@dataclass(frozen=True)
class NcclUse(Timed):
    """The calls of one function of NCCL with the same communicator, rank, root and reduction, and the sizes of their
    messages. Fields that NCCL does not report are None."""

    bytes: Spread
    communicator: int | None
    rank: int | None
    root: int | None
    reduction: str | None


class _NcclCollector(StatsCollector[NcclUse]):
    tables = ("nvtx_ranges",)

    def __init__(self, context: CollectorContext) -> None:
        super().__init__(context)
        self._spreads = GroupSpreads()
        # The number of each kind of call. A kind is a call without its size.
        self._kinds: dict[NcclCall, int] = {}

    def add(self, batch: SweepBatch) -> None:
        rows = batch.tables.get("nvtx_ranges")
        if not rows:
            return
        nccl = self.context.trace.nccl
        call = nccl.of_rows(rows)
        kinds = []
        bytes_of = []
        for one in nccl.calls:
            kind = one._replace(bytes=None)
            kinds.append(self._kinds.setdefault(kind, len(self._kinds)))
            bytes_of.append(_NO_SIZE if one.bytes is None else one.bytes)
        size = np.array(bytes_of)[call]
        sized = (size >= 0) & (rows["end"] != FOREVER)
        kind_of_row = np.array(kinds, np.uint32)[call]
        group = self._spreads.groups.of(rows["name"][sized], kind_of_row[sized])
        self._spreads.add(group, duration(rows)[sized], size[sized])

    def result(self) -> Iterator[NcclUse]:
        kinds = list(self._kinds)
        for (name, kind), (time, size) in self._spreads.rows():
            call = kinds[kind]
            yield NcclUse(
                self.context.text(name),
                time,
                size,
                call.communicator,
                call.rank,
                call.root,
                call.reduction,
            )


#: The calls by function, communicator, rank, root and reduction.
NCCL_CALLS = CollectedBy(_NcclCollector)


def _communicator(view: View, use: Any) -> str:
    """The communicator as a string. The number has no thousands separators, because it is an identifier."""
    if use.communicator is None:
        return ""
    return str(use.communicator)


NCCL_SUM = Statistic(
    "nccl_sum",
    "Calls of NCCL by size",
    NCCL_CALLS,
    (
        time_column(
            "CPU time", "time.total", spare=True, doc="sum of the times in the calls"
        ),
        text_column("communicator", _communicator, doc="communicator"),
        count_column("rank", doc="rank of the caller in the communicator"),
        count_column("root", spare=True, doc="root of the collective"),
        text_column("reduction", spare=True, doc="reduction operation"),
        text_column("name", doc="function"),
    ),
    spread="bytes",
    unit="bytes",
    doc="How large the messages of NCCL are. The spread is over their bytes.",
)
