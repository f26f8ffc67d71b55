"""NVTX in an nvprof database. A mark has one row. A range has two rows, its start and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...importers.row_builder import Rows, find
from ...importers.tables import ColumnBatch, ReadColumn
from .nsys_nvtx import depths
from .nvprof_records import ids, packed
from .reading import Kinds

if TYPE_CHECKING:
    from .nvprof import NvprofReading

# CUpti_ActivityFlag of markers
_INSTANT = 1
_BEGIN = 2
_END = 4
_THREAD = 2  # CUpti_ActivityObjectKind
_COLOR = 2  # CUPTI_ACTIVITY_FLAG_MARKER_COLOR_ARGB

# nvtxPayloadType_t by CUpti_MetricValueKind.
_PAYLOADS = {0: 3, 1: 1, 4: 2}
_COLUMNS: Kinds = {
    "flags": "integer",
    "timestamp": "integer",
    "id": "integer",
    "objectKind": "integer",
    "objectId": "bytes",
    "name": "integer",
    "domain": "integer",
}
_DATA: Kinds = {
    "flags": "integer",
    "id": "integer",
    "payloadKind": "integer",
    "payload": "bytes",
    "color": "integer",
    "category": "integer",
}


def convert(reading: NvprofReading, name: str) -> None:
    """Write the marks and ranges of the marker table."""
    batch = _whole(reading, name, _COLUMNS, _with_threads)
    data = _whole(reading, f"{name}_DATA", _DATA, _with_bits)
    flags = batch["flags"]
    marks = np.flatnonzero(flags & _INSTANT)
    begins = np.flatnonzero(flags & _BEGIN)
    ends = np.flatnonzero(flags & _END)
    # The start and the end of a range have the same id.
    at = find(batch["id"][ends], batch["id"][begins])
    matched = at >= 0
    if len(ends):
        end = ends[at]
    else:
        end = np.zeros(len(begins), np.int64)
    ended = np.zeros(batch.rows, bool)
    ended[end[matched]] = True
    unmatched = ends[~ended[ends]]
    reading.out.lost(name, len(unmatched), why="an end without a start")
    other = batch.rows - len(marks) - len(begins) - len(ends)
    reading.out.left(name, other, why="synchronisation of the host")
    _marks(reading, name, batch.select(marks), data)
    _ranges(reading, name, batch, begins, end, matched, data)
    described = batch["id"][np.concatenate([marks, begins])]
    used = int(np.count_nonzero(np.isin(data["id"], described)))
    reading.out.kept(f"{name}_DATA", used)
    reading.out.lost(f"{name}_DATA", data.rows - used, why="of no mark or range")


def _marks(
    reading: NvprofReading,
    name: str,
    batch: ColumnBatch,
    data: ColumnBatch,
) -> None:
    for pid, part, _ in batch.apart(batch["process"]):
        made = Rows("nvtx_marks", part)
        made.moment("timestamp")
        _describe(reading, pid, made, data)
        reading.write(name, reading.target(pid), made)


def _ranges(
    reading: NvprofReading,
    name: str,
    batch: ColumnBatch,
    begins: np.ndarray,
    end: np.ndarray,
    matched: np.ndarray,
    data: ColumnBatch,
) -> None:
    whole = batch.select(begins)
    columns = whole.columns
    finish = np.zeros(len(begins), np.int64)
    finish[matched] = batch["timestamp"][end[matched]]
    end_thread = whole["thread"].copy()
    end_thread[matched] = batch["thread"][end[matched]]
    columns["end"] = ReadColumn(finish, ~matched, np.zeros(len(begins), bool))
    columns["end_thread"] = ReadColumn.of(end_thread)
    # The file lacks the kind of a range, so a range that ends in its own thread counts as push/pop.
    pushed = (whole["objectKind"] == _THREAD) & (end_thread == whole["thread"])
    columns["pushed"] = ReadColumn.of(pushed.astype(np.int64))
    depth = np.zeros(len(begins), np.int64)
    ends = np.where(matched, finish, np.iinfo(np.int64).max)
    depth[pushed] = depths(
        whole["timestamp"][pushed],
        ends[pushed],
        whole["process"][pushed],
        whole["thread"][pushed],
        whole["domain"][pushed],
    )
    columns["depth"] = ReadColumn.of(depth)
    for pid, part, _ in whole.apart(whole["process"]):
        made = Rows("nvtx_ranges", part)
        made.span("timestamp", open_ended=True)
        _describe(reading, pid, made, data)
        made.set("end_thread", part["end_thread"])
        made.set("depth", part["depth"])
        unpaired = part["pushed"] == 0
        numbers = np.where(unpaired, part["id"], 0)
        made.rows["kind"] = unpaired
        made.rows["range_id"] = numbers.astype(np.uint64)
        made.rows["flags"] = part.columns["end"].null
        reading.write(name, reading.target(pid), made)
        # Account for the rows of the ends, too.
        ended = ~part.columns["end"].null
        closed = int(np.count_nonzero(ended))
        good = int(np.count_nonzero(ended & made.usable))
        why = "the end of a range that cannot be used"
        reading.out.kept(name, good)
        reading.out.lost(name, closed - good, why=why)


def _describe(reading: NvprofReading, pid: int, made: Rows, data: ColumnBatch) -> None:
    """Set the common fields of marks and ranges."""
    batch = made.batch
    rows = made.rows
    target = reading.target(pid)
    made.need("id")
    made.check("name", "domain")
    rows["thread"] = batch["thread"]
    rows["name"] = target.strings[batch["name"]]
    rows["domain"] = target.strings[batch["domain"]]
    if not data.rows:
        return
    at = find(data["id"], batch["id"])
    has_data = at >= 0
    more = data.select(at)
    rows["category"] = np.where(has_data, more["category"], 0).astype(np.uint32)
    colored = has_data & (more["flags"] & _COLOR != 0)
    rows["color"] = np.where(colored, more["color"], 0).astype(np.uint32)
    bits = more["bits"].view(np.uint64)
    of_kind = [more["payloadKind"] == kind for kind in _PAYLOADS]
    types = np.select(of_kind, list(_PAYLOADS.values()), 1)
    # Markers without a payload have type 0 and value 0.
    known = has_data & ((bits != 0) | (more["payloadKind"] != 0))
    rows["payload"] = np.where(known, bits, 0)
    rows["payload_type"] = np.where(known, types, 0)


def _with_threads(batch: ColumnBatch) -> None:
    """Replace the object ids of markers with columns of processes and threads."""
    objects = batch.columns.pop("objectId").values
    numbers = ids(objects).astype(np.int64)
    batch.columns["process"] = ReadColumn.of(numbers[:, 0].copy())
    batch.columns["thread"] = ReadColumn.of(numbers[:, 1].copy())


def _with_bits(batch: ColumnBatch) -> None:
    """Replace the payloads with a column of their bits."""
    payloads = batch.columns.pop("payload").values
    batch.columns["bits"] = ReadColumn.of(packed(payloads, 8, "<i8")[:, 0])


def _whole(
    reading: NvprofReading,
    name: str,
    columns: Kinds,
    shrink: Callable[[ColumnBatch], None],
) -> ColumnBatch:
    """All rows of a table as numbers; no rows if the file lacks the table."""
    absent = {column: ReadColumn.absent(0, kind) for column, kind in columns.items()}
    parts = [ColumnBatch(0, absent)]
    shrink(parts[0])
    size = 0
    for part in reading.listed(name, columns):
        shrink(part)
        parts.append(part)
        size += part.rows
    reading.missing(name, size)
    joined = {}
    for column in parts[0].columns:
        joined[column] = ReadColumn.joined([part.columns[column] for part in parts])
    return ColumnBatch(size, joined)
