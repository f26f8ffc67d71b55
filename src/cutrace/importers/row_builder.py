"""Building rows of a capture from columns of another tool's tables, with an account of unusable rows.

A row with a value that its field cannot hold is unusable. It is counted as lost. Values are never truncated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..runbin import TABLES, Writer
from ..runbin.layout import REFERRED
from .base import Import
from .tables import ColumnBatch
from .timeline import sums

_NONE = 0xFFFFFFFF
_LAST = 2**63 - 1


@dataclass
class Rows:
    """Rows of the table ``table`` built from the rows of ``batch``; ``offset`` (ns) is added to times.

    Set each field once. :meth:`reject` marks rows as unusable; the first reason counts.
    """

    table: str
    batch: ColumnBatch
    offset: int = 0
    rows: np.ndarray = field(init=False)
    referred: dict[str, Rows] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = np.zeros(self.batch.rows, TABLES[self.table].dtype)
        self._durations = np.zeros(self.batch.rows, np.int64)
        self._reasons: list[str] = []
        self._reason = np.zeros(self.batch.rows, np.uint8)

    def of(self, name: str) -> Rows:
        """The rows that the field ``name`` (a key of :data:`REFERRED`) refers to; these rows for ""."""
        if not name:
            return self
        if name not in self.referred:
            self.referred[name] = Rows(REFERRED[name], self.batch)
        return self.referred[name]

    def reject(self, which: np.ndarray, why: str) -> None:
        """Mark rows of a mask as unusable."""
        if not which.any():
            return
        if why not in self._reasons:
            self._reasons.append(why)
        number = self._reasons.index(why) + 1
        self._reason[which & self.usable] = number

    def set(self, name: str, values: np.ndarray) -> None:
        """Set a field to numbers. Rows whose number does not fit are rejected."""
        target = self.rows.dtype[name]
        if target.kind == "f" or target == values.dtype:
            self.rows[name] = values
            return
        if target == np.uint64:
            if name == "bytes":
                self.reject(values < 0, "bytes out of range")
            # SQL has no unsigned integers, so large addresses are negative.
            self.rows[name] = values.astype(np.uint64)
            return
        limits = np.iinfo(target)
        outside = (values < limits.min) | (values > limits.max)
        if outside.any():
            # A missing number is -1 or 0xffffffff, in fields of any size.
            outside &= (values != -1) & (values != _NONE)
            self.reject(outside, f"{name} out of range")
        self.rows[name] = values.astype(target)

    def check(self, *columns: str) -> None:
        """Reject rows whose values in these columns have a wrong type."""
        for column in columns:
            self.reject(self.batch.columns[column].wrong, f"{column} of a wrong type")

    def need(self, *columns: str) -> None:
        """As :meth:`check`, and reject rows without a value in these columns. Columns that the table lacks are
        ignored."""
        self.check(*columns)
        for column in columns:
            if not self.batch.columns[column].missing:
                self.reject(self.batch.columns[column].null, f"no {column}")

    def moment(self, column: str, name: str = "time", until: str = "") -> None:
        """Set the time of an instant. ``until`` is a column with the end of the event, for the account only."""
        self.need(column)
        if until:
            self.need(until)
        self.rows[name] = self._time(column)
        if until:
            starts = self.batch[column]
            ends = self.batch[until]
            usable = self.usable & (ends >= starts)
            self._durations[usable] = (ends - starts)[usable]

    def span(
        self, start: str = "start", end: str = "end", *, open_ended: bool = False
    ) -> None:
        """Set start and end. An end of 0 is unknown. With ``open_ended`` a missing end is unknown, too."""
        self.need(start)
        if open_ended:
            self.check(end)
        else:
            self.need(end)
        starts = self.batch[start]
        ends = self.batch[end]
        unknown = (ends == 0) & (starts != 0)
        unknown |= self.batch.columns[end].null
        self.rows["start"] = self._time(start)
        times = self._time(end, ~unknown)
        self.rows["end"] = np.where(unknown, 0, times)
        self.reject(~unknown & (ends < starts), "it ends before it starts")

    def adopt(self, other: Rows) -> None:
        """Reject the rows that ``other``, built from the same batch, has rejected."""
        for i, why in enumerate(other._reasons):
            self.reject(other._reason == i + 1, why)

    @property
    def usable(self) -> np.ndarray:
        """A mask of the rows that are not rejected so far."""
        return self._reason == 0

    def settle(self, out: Import, what: str) -> np.ndarray:
        """Account for all rows and return the usable rows."""
        durations = self._durations
        if "end" in TABLES[self.table].offsets:
            starts = self.rows["start"].astype(np.int64)
            ends = self.rows["end"].astype(np.int64)
            known = (starts > 0) | (self.usable & (starts == 0))
            durations = np.where(known & (ends >= starts), ends - starts, 0)
        good = self.usable
        count = int(np.count_nonzero(good))
        out.kept(what, count, _sum(durations[good]))
        for i, why in enumerate(self._reasons):
            which = self._reason == i + 1
            count = int(np.count_nonzero(which))
            out.lost(what, count, _sum(durations[which]), why)
        if good.all():
            return self.rows
        return self.rows[good]

    def _time(self, column: str, where: np.ndarray | None = None) -> np.ndarray:
        values = self.batch[column]
        outside = values < -self.offset
        outside |= values > _LAST - self.offset
        rejected = outside
        if where is not None:
            rejected = outside & where
        self.reject(rejected, f"{column} out of range")
        unknown = outside | self.batch.columns[column].null
        times = values + np.int64(self.offset)
        return np.where(unknown, 0, times).astype(np.uint64)


def _sum(values: np.ndarray) -> int:
    """The exact sum, which may exceed 64 bits."""
    (total,) = sums(values, np.zeros(len(values), np.intp), 1)
    return total


class Texts(dict[int, str]):
    """The strings of a file by id, "" for an unknown id. ``unknown`` are the unknown ids that were looked up; 0 and
    negative numbers stand for no string."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[int] = set()

    def __missing__(self, number: int) -> str:
        if number > 0:
            self.unknown.add(number)
        return ""


def find(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The index in ``numbers`` of the first occurrence of each wanted number, -1 for a missing one."""
    if not len(numbers):
        return np.full(len(wanted), -1)
    order = np.argsort(numbers, kind="stable")
    place = np.searchsorted(numbers, wanted, sorter=order)
    at = order[np.minimum(place, len(order) - 1)]
    return np.where(numbers[at] == wanted, at, -1)


class Strings:
    """String ids of one process for the strings of a file. A string is written at its first use."""

    def __init__(self, writer: Writer, texts: Texts) -> None:
        self._writer = writer
        self._texts = texts

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        which, inverse = np.unique(ids, return_inverse=True)
        string_ids = [self._writer.string(self._texts[i]) for i in which.tolist()]
        return np.array(string_ids, np.int64)[inverse]


def text_ids(writer: Writer, texts: np.ndarray) -> np.ndarray:
    """The string ids of an array of str."""
    values = texts.tolist()
    ids = {text: writer.string(text) for text in dict.fromkeys(values)}
    return np.fromiter(map(ids.__getitem__, values), np.int64, len(values))


def arguments(
    writer: Writer, values: Mapping[str, Sequence[object]], rows: int
) -> np.ndarray:
    """String ids of JSON objects, one for each row, without values of None; 0 for a row without values."""
    known: dict[tuple[object, ...], int] = {}
    ids = np.zeros(rows, np.int64)
    names = list(values)
    for i, row in enumerate(zip(*values.values(), strict=True)):
        if row not in known:
            values_of = zip(names, row, strict=True)
            given = {name: value for name, value in values_of if value is not None}
            known[row] = 0
            if given:
                known[row] = writer.string(json.dumps(given, ensure_ascii=False))
        ids[i] = known[row]
    return ids
