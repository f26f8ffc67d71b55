"""A few lines on the use of time in a trace, from its statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from ..analysis.tables import Column, Table
from ..units import count_of, printable
from .tables import cell, row_objects
from .values import duration, short

_Row = dict[str, Any]
_SHARE = Column("share", "1")
_LABEL = 16
_NARROWEST = 24


def headline(
    tables: Sequence[Table], missing: Sequence[str], width: int | None = None
) -> list[str]:
    """Lines on the GPU's busy share, the kernel with the most time, idle time, copies, and missing data. ``tables`` are
    statistics; a line is left out if its statistic has no rows. ``missing`` are sentences on losses. Lines are wrapped
    at ``width`` columns, and the name of the kernel is shortened to one line."""
    rows = {table.name: list(row_objects(table)) for table in tables}
    if not rows:
        return []
    room = None
    if width is not None:
        room = max(width - _LABEL, _NARROWEST)
    lines = [*_busy(rows), *_kernel(rows, room), *_idle(rows), *_copies(rows)]
    lines.append(("missing", _missing(missing)))
    shown = []
    for label, text in lines:
        pieces = [printable(text)]
        if room is not None:
            pieces = wrap(pieces[0], room, break_on_hyphens=False)
        for piece in pieces:
            shown.append(f"{label:<{_LABEL}}{piece}")
            label = ""
    return shown


def _share(value: float) -> str:
    return cell(value, _SHARE)


def _busy(rows: Mapping[str, list[_Row]]) -> Iterator[tuple[str, str]]:
    gpus = rows.get("gpu_sum", [])
    if not gpus:
        return
    least = min(gpus, key=lambda row: row["busy_share"] or 0)
    text = f"{_share(least['busy_share'] or 0)} of {duration(least['span_ns'])} on GPU {least['gpu']}"
    if len(gpus) > 1:
        text += f", the least of {len(gpus):,}"
    yield "GPU busy", text


def _kernel(
    rows: Mapping[str, list[_Row]], room: int | None
) -> Iterator[tuple[str, str]]:
    kernels = rows.get("cuda_gpu_kern_sum", [])
    if not kernels:
        return
    most = max(kernels, key=lambda row: row["total_ns"])
    launches = count_of(most["count"], "launch")
    total = duration(most["total_ns"])
    name = most["name"]
    if room is not None:
        name = short(name, room)
    yield (
        "most time",
        f"{total} in {launches}, {_share(most['share'])} of all kernels: {name}",
    )


def _stream(row: _Row) -> tuple[str, ...]:
    return row["process"], row["gpu"], row["stream"]


def _idle(rows: Mapping[str, list[_Row]]) -> Iterator[tuple[str, str]]:
    streams = rows.get("stream_sum", [])
    if not streams:
        return
    busiest = max(streams, key=lambda row: row["busy_ns"])
    for row in rows.get("idle_sum", []):
        if _stream(row) == _stream(busiest) and row["idle_ns"]:
            host = _share(row["host_share"] or 0)
            yield (
                "idle",
                f"{duration(row['idle_ns'])} of stream {row['stream']}, the busiest; {host} waited for the host",
            )


def _copies(rows: Mapping[str, list[_Row]]) -> Iterator[tuple[str, str]]:
    for row in rows.get("overlap_sum", []):
        if row["communication"] == "copies":
            hidden = _share(row["hidden_share"] or 0)
            time = duration(row["time_ns"])
            yield "copies", f"{time}, {hidden} of it behind kernels"
            return


def _missing(sentences: Sequence[str]) -> str:
    if not sentences:
        return "nothing is known to be missing"
    if len(sentences) == 1:
        return sentences[0]
    more = len(sentences) - 1
    return f"{sentences[0]}; {more:,} more below"
