"""NVTX events of an Nsight Systems export: ranges, marks, and the domains, categories and threads that they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..runbin import TABLES
from .building import Rows, text_ids
from .tables import Batch, Kind

if TYPE_CHECKING:
    from .nsys import Reading, Target

_TABLE = "NVTX_EVENTS"

# ENUM_NSYS_EVENT_TYPE; the second of each pair came from text files.
_MARKS, _PUSHES, _STARTS = (34, 65), (59, 70), (60, 71)
_CATEGORY, _THREAD, _DOMAIN = 33, 39, 75

#: The columns of payloads, and what nvtxPayloadType_t calls them.
_PAYLOADS = {
    "uint64Value": 1, "int64Value": 2, "doubleValue": 3, "uint32Value": 4, "int32Value": 5, "floatValue": 6,
}  # fmt: skip
_IDS: dict[str, Kind] = dict.fromkeys(("start", "end", "eventType", "domainId", "textId", "category"), "integer")
_TEXT: dict[str, Kind] = {"text": "text"}
_MORE: dict[str, Kind] = {
    "rangeId": "integer",
    "color": "integer",
    "endGlobalTid": "integer",
    # Columns of cutrace's own databases.
    "source": "integer",
    "depth": "integer",
    **{name: "real" if name in ("doubleValue", "floatValue") else "integer" for name in _PAYLOADS},
}


@dataclass
class _Named:
    """What a first look at the table finds: names, and how deep each push/pop range is."""

    domains: dict[tuple[int, int], str] = field(default_factory=dict)
    depths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint16))


def convert(reading: Reading) -> None:
    """Write the NVTX events of an export."""
    named = _look(reading)
    for target, batch, places in reading.batches(_TABLE, _IDS | _TEXT | _MORE, "globalTid"):
        types = batch["eventType"]
        marks, ranges = np.isin(types, _MARKS), np.isin(types, _PUSHES + _STARTS)
        if marks.any():
            reading.write(_TABLE, target, _marks(reading, target, batch.select(marks), named))
        if ranges.any():
            depths = named.depths[places[ranges]]
            reading.write(_TABLE, target, _ranges(reading, target, batch.select(ranges), named, depths))
        for target_table, made in _definitions(reading, target, batch, named):
            reading.out.seen(_TABLE, len(made))
            reading.out.kept(_TABLE, len(made))
            if target_table:
                target.writer.rows(target_table, made)
        rest = ~(marks | ranges | np.isin(types, (_CATEGORY, _THREAD, _DOMAIN)))
        for kind, count in zip(*np.unique(types[rest], return_counts=True), strict=True):
            reading.out.seen(_TABLE, int(count))
            reading.out.left(_TABLE, int(count), why=f"events of type {kind}")
    reading.leave_columns(_TABLE, {*_IDS, *_TEXT, *_MORE, "globalTid"})


def _look(reading: Reading) -> _Named:
    named = _Named()
    ranges: list[tuple[np.ndarray, ...]] = []
    read = 0
    for batch in reading.tables.batches(_TABLE, _IDS | _TEXT | {"globalTid": "integer"}):
        types = batch["eventType"]
        pushes = np.flatnonzero(np.isin(types, _PUSHES) & batch.known("start"))
        if len(pushes):
            ends = np.where(batch.known("end"), batch["end"], np.iinfo(np.int64).max)
            columns = (batch["start"], ends, batch["globalTid"], batch["domainId"])
            ranges.append((pushes + read, *(column[pushes] for column in columns)))
        for i in np.flatnonzero(types == _DOMAIN).tolist():
            key = int(batch["globalTid"][i]) >> 24, int(batch["domainId"][i])
            named.domains[key] = str(batch["text"][i]) or reading.texts[int(batch["textId"][i])]
        read += batch.rows
    named.depths = np.zeros(read, np.uint16)
    if ranges:
        places, starts, ends, threads, domains = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
        named.depths[places] = depths(starts, ends, threads, domains)
    return named


def depths(starts: np.ndarray, ends: np.ndarray, *groups: np.ndarray) -> np.ndarray:
    """How many ranges are around each one, of those that have the same values in ``groups`` and are nested."""
    order = np.lexsort((-ends, starts, *groups))
    starts, ends = starts[order], ends[order]
    changes = np.zeros(len(order), bool)
    for group in groups:
        changes[1:] |= np.diff(group[order]) != 0
    bounds = [0, *np.flatnonzero(changes).tolist(), len(order)]
    found = np.zeros(len(order), np.int64)
    for first, last in pairwise(bounds):
        begin, finish = starts[first:last], ends[first:last]
        # Those that began before, less those that ended: of the latter, empty ranges of this moment come later.
        number = np.arange(last - first)
        over = np.searchsorted(np.sort(finish), begin, "right")
        empty = np.append(0, np.cumsum(finish == begin))
        later = empty[np.searchsorted(begin, begin, "right")] - empty[number]
        found[first:last] = number - (over - later)
    result = np.zeros(len(order), np.uint16)
    result[order] = np.clip(found, 0, 0xFFFF)
    return result


def _marks(reading: Reading, target: Target, batch: Batch, named: _Named) -> Rows:
    made = Rows("nvtx_marks", batch, reading.offset)
    made.moment("start")
    made.take(source="source")
    _describe(reading, target, made, named)
    return made


def _ranges(reading: Reading, target: Target, batch: Batch, named: _Named, depths: np.ndarray) -> Rows:
    made = Rows("nvtx_ranges", batch, reading.offset)
    made.span(open_ended=True)
    made.rows["flags"] = batch.columns["end"].null
    _describe(reading, target, made, named)
    ends = np.where(batch.known("endGlobalTid"), batch["endGlobalTid"], 0)
    # Older versions write 0 where there is no other thread.
    made.rows["end_thread"] = np.where(ends != 0, reading.thread_numbers(ends), made.rows["thread"])
    starts = np.isin(batch["eventType"], _STARTS)
    made.rows["kind"] = starts
    made.set("depth", np.where(batch.known("depth"), batch["depth"], np.where(starts, 0, depths)))
    made.check("rangeId")
    made.rows["range_id"] = np.where(starts, batch["rangeId"], 0).astype(np.uint64)
    return made


def _describe(reading: Reading, target: Target, made: Rows, named: _Named) -> None:
    """Set what marks and ranges share."""
    batch, rows = made.batch, made.rows
    made.check("text", "textId", "category", "color", *_PAYLOADS)
    texts = text_ids(target.writer, batch["text"])
    rows["name"] = np.where(texts != 0, texts, target.strings[np.where(batch.known("textId"), batch["textId"], -1)])
    rows["thread"] = reading.thread_numbers(batch["globalTid"])
    rows["category"], rows["color"] = batch["category"].astype(np.uint32), batch["color"].astype(np.uint32)
    domains, inverse = np.unique(batch["domainId"], return_inverse=True)
    names = [target.writer.string(_domain(named, target.key >> 24, number)) for number in domains.tolist()]
    rows["domain"] = np.array(names)[inverse.reshape(-1)]
    told = np.stack([batch.known(name) for name in _PAYLOADS])
    # A payload is one value. Versions that know no NULL write zeros into the other columns.
    several = told.sum(axis=0) > 1
    told &= ~several | np.stack([batch[name] != 0 for name in _PAYLOADS])
    for (name, kind), where in zip(_PAYLOADS.items(), told, strict=True):
        where = where & (rows["payload_type"] == 0)
        rows["payload_type"][where] = kind
        rows["payload"][where] = _bits(batch[name][where], kind)


def _bits(values: np.ndarray, kind: int) -> np.ndarray:
    """The bits of payloads."""
    if kind == 3:
        return values.view(np.uint64)
    if kind == 6:
        return values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return values.astype(np.uint64) if kind <= 2 else values.astype(np.uint32).astype(np.uint64)


def _domain(named: _Named, process: int, number: int) -> str:
    return named.domains.get((process, number), f"domain {number}" if number else "")


def _definitions(reading: Reading, target: Target, batch: Batch, named: _Named) -> Iterator[tuple[str, np.ndarray]]:
    """Rows for names of categories and threads, and none for those of domains, which ranges have themselves."""
    types = batch["eventType"]
    where = np.flatnonzero(np.isin(types, (_CATEGORY, _THREAD, _DOMAIN)))
    if not len(where):
        return
    chosen = batch.select(where)
    texts = [
        str(t) or reading.texts[n] for t, n in zip(chosen["text"].tolist(), chosen["textId"].tolist(), strict=True)
    ]
    names = np.array([target.writer.string(text) for text in texts])
    for kind in (_CATEGORY, _THREAD, _DOMAIN):
        of_kind = chosen["eventType"] == kind
        count = int(np.count_nonzero(of_kind))
        if kind == _CATEGORY:
            made = np.zeros(count, TABLES["nvtx_categories"].dtype)
            domains = [_domain(named, target.key >> 24, number) for number in chosen["domainId"][of_kind].tolist()]
            made["domain"] = [target.writer.string(domain) for domain in domains]
            made["category"], made["name"] = chosen["category"][of_kind].astype(np.uint32), names[of_kind]
            yield "nvtx_categories", made
        elif kind == _THREAD:
            made = np.zeros(count, TABLES["threads"].dtype)
            made["thread"] = reading.thread_numbers(chosen["globalTid"][of_kind])
            made["name"], made["source"] = names[of_kind], 2
            yield "threads", made
        else:
            yield "", np.zeros(count)
