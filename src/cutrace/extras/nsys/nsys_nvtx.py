"""NVTX events of an Nsight Systems export: ranges, marks, and names of domains, categories and threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...importers.base import rows_of
from ...importers.row_builder import Rows
from ...importers.tables import ColumnBatch
from . import nsys_graphs
from . import schema as nsys
from .reading import Target, convert, kinds, map_distinct, value_or

if TYPE_CHECKING:
    from .nsys import NsysReading

_TABLE = nsys.NVTX_RANGES.name
_COLUMNS = kinds(nsys.NVTX_RANGES)

# The second number of each pair is used for events from text files.
_MARKS = (nsys.NVTX_MARK, 65)
_PUSHES = (nsys.NVTX_PUSH_POP, 70)
_STARTS = (nsys.NVTX_START_END, 71)
_NAMES = (nsys.NVTX_CATEGORY, nsys.NVTX_THREAD, nsys.NVTX_DOMAIN)


@dataclass
class _Named:
    """The result of a first pass over the table: the names of domains, and the depth of each row's push/pop range. If
    the export has graph nodes, also the starts, ends, threads and names of these ranges."""

    domains: dict[tuple[int, int], str] = field(default_factory=dict)
    depths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint16))
    pushes: tuple[np.ndarray, ...] = ()

    def domain(self, target: Target, number: int) -> int:
        """The string id of a domain's name."""
        name = self.domains.get((target.key >> nsys.THREAD_BITS, number))
        if name is None and number:
            name = f"domain {number}"
        return target.writer.string(name or "")


def convert_events(reading: NsysReading) -> None:
    """Write the NVTX events of an export."""
    named = _first_pass(reading)
    for target, batch, indices in reading.batches(_TABLE, _COLUMNS):
        types = batch["eventType"]
        marks = np.isin(types, _MARKS)
        ranges = np.isin(types, _PUSHES + _STARTS)
        names = np.isin(types, _NAMES)
        if marks.any():
            made = Rows("nvtx_marks", batch.select(marks), reading.offset)
            convert(reading, target, made, nsys.NVTX_MARKS)
            _describe(target, made, named)
            reading.write(_TABLE, target, made)
        if ranges.any():
            depths = named.depths[indices[ranges]]
            made = _ranges(reading, target, batch.select(ranges), named, depths)
            reading.write(_TABLE, target, made)
        if names.any():
            _write_names(reading, target, batch.select(names), named)
        other = types[~(marks | ranges | names)]
        kinds, counts = np.unique(other, return_counts=True)
        for kind, count in zip(kinds, counts, strict=True):
            reading.out.left(_TABLE, int(count), why=f"events of type {kind}")
    reading.leave_columns(_TABLE, set(_COLUMNS))
    if named.pushes:
        nsys_graphs.write_nodes(reading, named.pushes)


def _first_pass(reading: NsysReading) -> _Named:
    named = _Named()
    ranges: list[list[np.ndarray]] = []
    read = 0
    has_nodes = nsys_graphs.has_nodes(reading.tables)
    columns = ("start", "end", "eventType", "domainId", "textId", "text", "globalTid")
    kinds = {name: _COLUMNS[name] for name in columns}
    for batch in reading.tables.batches(_TABLE, kinds):
        types = batch["eventType"]
        pushes = np.flatnonzero(np.isin(types, _PUSHES) & batch.known("start"))
        if len(pushes):
            ends = value_or(batch, "end", np.iinfo(np.int64).max)
            values = [batch["start"], ends, batch["globalTid"], batch["domainId"]]
            if has_nodes:
                values += [batch["text"], batch["textId"]]
            ranges.append([pushes + read, *(column[pushes] for column in values)])
        for i in np.flatnonzero(types == nsys.NVTX_DOMAIN).tolist():
            process = int(batch["globalTid"][i]) >> nsys.THREAD_BITS
            domain = int(batch["domainId"][i])
            text = str(batch["text"][i])
            if not text:
                text = reading.texts[int(batch["textId"][i])]
            named.domains[process, domain] = text
        read += batch.rows
    named.depths = np.zeros(read, np.uint16)
    if ranges:
        indices, starts, ends, threads, domains, *texts = (
            np.concatenate(parts) for parts in zip(*ranges, strict=True)
        )
        named.depths[indices] = depths(starts, ends, threads, domains)
        if has_nodes:
            named.pushes = (starts, ends, threads, *texts)
    return named


def depths(starts: np.ndarray, ends: np.ndarray, *groups: np.ndarray) -> np.ndarray:
    """The number of ranges around each range, among ranges with the same values in ``groups``. Ranges are nested."""
    order = np.lexsort((-ends, starts, *groups))
    starts = starts[order]
    ends = ends[order]
    changes = np.zeros(len(order), bool)
    for group in groups:
        changes[1:] |= np.diff(group[order]) != 0
    bounds = [0, *np.flatnonzero(changes).tolist(), len(order)]
    counts = np.zeros(len(order), np.int64)
    for first, last in pairwise(bounds):
        begin = starts[first:last]
        finish = ends[first:last]
        # Subtract the number of ended ranges from the number of started ranges. Empty ranges at this time count as not
        # yet ended.
        number = np.arange(last - first)
        over = np.searchsorted(np.sort(finish), begin, "right")
        empty = np.append(0, np.cumsum(finish == begin))
        later = empty[np.searchsorted(begin, begin, "right")] - empty[number]
        counts[first:last] = number - (over - later)
    result = np.zeros(len(order), np.uint16)
    result[order] = np.clip(counts, 0, 0xFFFF)
    return result


def _ranges(
    reading: NsysReading,
    target: Target,
    batch: ColumnBatch,
    named: _Named,
    depths: np.ndarray,
) -> Rows:
    made = Rows("nvtx_ranges", batch, reading.offset)
    convert(reading, target, made, nsys.NVTX_RANGES)
    _describe(target, made, named)
    rows = made.rows
    starts = np.isin(batch["eventType"], _STARTS)
    rows["kind"] = starts
    # Older versions write thread 0 if the range ends in its own thread.
    other = value_or(batch, "endGlobalTid", 0) != 0
    rows["end_thread"] = np.where(other, rows["end_thread"], rows["thread"])
    rows["range_id"] = np.where(starts, rows["range_id"], 0)
    made.set("depth", value_or(batch, "depth", np.where(starts, 0, depths)))
    return made


def _describe(target: Target, made: Rows, named: _Named) -> None:
    """Set the common fields of marks and ranges that :mod:`cutrace.extras.nsys.schema` does not declare."""
    batch = made.batch
    rows = made.rows
    columns = [name for name, _ in nsys.PAYLOADS.values()]
    made.check("text", "textId", "jsonTextId", *columns)
    # nsys stores the fields of extended payloads as JSON, as cutrace does.
    for name, number in (("name", "textId"), ("arguments", "jsonTextId")):
        texts = rows[name]
        interned = target.strings[value_or(batch, number, -1)]
        rows[name] = np.where(texts != 0, texts, interned)
    rows["domain"] = map_distinct(
        partial(named.domain, target), np.int64, batch["domainId"]
    )
    known = np.stack([batch.known(name) for name in columns])
    # Versions that write no NULL have 0 in the unused columns of a payload.
    several = known.sum(axis=0) > 1
    nonzero = np.stack([batch[name] != 0 for name in columns])
    known &= nonzero | ~several
    for (kind, (name, dtype)), where in zip(nsys.PAYLOADS.items(), known, strict=True):
        where = where & (rows["payload_type"] == 0)
        rows["payload_type"][where] = kind
        values = batch[name][where].astype(dtype)
        rows["payload"][where] = values.view(f"u{values.dtype.itemsize}")


def _write_names(
    reading: NsysReading,
    target: Target,
    batch: ColumnBatch,
    named: _Named,
) -> None:
    """Write the names of categories and threads. The names of domains are part of ranges and marks."""
    writer = target.writer
    types = batch["eventType"]
    texts = batch["text"].tolist()
    numbers = batch["textId"].tolist()
    ids = []
    for text, number in zip(texts, numbers, strict=True):
        ids.append(writer.string(str(text) or reading.texts[number]))
    names = np.array(ids)
    of_category = types == nsys.NVTX_CATEGORY
    of_thread = types == nsys.NVTX_THREAD
    if of_category.any():
        numbers = batch["domainId"][of_category].tolist()
        domains = [named.domain(target, number) for number in numbers]
        categories = batch["category"][of_category].astype(np.uint32)
        made = rows_of(
            "nvtx_categories",
            len(domains),
            domain=domains,
            category=categories,
            name=names[of_category],
        )
        writer.rows("nvtx_categories", made)
    if of_thread.any():
        threads = reading.thread_numbers(batch["globalTid"][of_thread])
        made = rows_of(
            "threads",
            len(threads),
            thread=threads,
            name=names[of_thread],
            source=2,
        )
        writer.rows("threads", made)
    reading.out.kept(_TABLE, batch.rows)
