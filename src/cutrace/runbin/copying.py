"""Copying the blocks of a capture, in this version's layout, with changes to their contents."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from .blocks import HEADER_SIZE, IN_PART, pack_header, padded
from .joining import packed, places
from .layout import BY_NUMBER, PROCESS_BLOCK, STRINGS_BLOCK, TableLayout, schema
from .reader import Reader
from .writer import pack_strings, span


class Changes:
    """Changes of a copy. This class copies all rows unchanged. A subclass overrides some methods. ``process`` is the
    index of a process in the file."""

    def description(self, process: int, info: dict[str, Any]) -> dict[str, Any]:
        """Return the new keys of a process block. The first block of a file has the key ``tables``."""
        return info

    def text(self, text: bytes) -> bytes:
        """Return the new string for a string."""
        return text

    def rows(self, process: int, table: TableLayout, rows: np.ndarray) -> np.ndarray:
        """Return new rows of a table, one for each of ``rows``. ``rows`` is read-only."""
        return rows


def with_note(info: dict[str, Any], sentence: str) -> dict[str, Any]:
    """The description of a process with another note."""
    notes = info.get("notes")
    if not isinstance(notes, list):
        notes = []
    return info | {"notes": [*notes, sentence]}


def copy(
    reader: Reader,
    blocks: Iterable[int],
    changes: Changes,
    to: BinaryIO,
) -> None:
    """Write blocks (indices) of a capture to a file.

    A damaged block becomes a header without a payload, so that readers of the copy find the same damage and its rows.
    So does a block that is cut off. Other bytes that are no block become zeros. Unknown tables are left out. The other
    blocks keep their sequence numbers, so that the gap shows.
    """
    blocks = list(blocks)
    parts = _parts(reader, blocks)
    unusable = _unusable(reader)
    for index in blocks:
        to.write(_changed_block(reader, index, changes, parts.get(index, 0)))
        to.write(unusable[index])


def _changed_block(
    reader: Reader,
    index: int,
    changes: Changes,
    part: int,
) -> bytes:
    """The bytes of a block with changed contents, none for an unknown table."""
    header = reader.headers[index]
    process = int(reader.process_of[index])
    kind = int(header["kind"])
    count = int(header["rows"])
    row_size = 0
    first = 0
    last = 0
    payload = b""
    damaged = False
    if kind == PROCESS_BLOCK:
        info = reader.description(index)
        damaged = info is None
        if info is not None:
            if "tables" in info:
                info = info | {"tables": schema()}
            info = changes.description(process, info)
            payload = json.dumps(info).encode()
    elif kind == STRINGS_BLOCK:
        strings = reader.strings(index)
        damaged = strings is None
        if strings is not None:
            changed = [(number, changes.text(text)) for number, text in strings]
            payload = pack_strings(changed)
    elif kind in BY_NUMBER:
        table = BY_NUMBER[kind]
        rows = changes.rows(process, table, reader.read(index))
        damaged = len(rows) != count
        if not damaged:
            payload = rows.tobytes()
            row_size = table.row_size
            first, last = span(rows, table)
    else:
        return b""
    head = pack_header(
        kind,
        row_size=row_size,
        rows=count,
        payload=payload,
        pid=int(header["pid"]),
        sequence=int(header["sequence"]),
        instance=int(header["instance"]),
        first_time=first,
        last_time=last,
        part=part,
        damaged=damaged and reader.payload(index) is None,
    )
    padding = padded(len(payload)) - len(payload)
    return head + payload + bytes(padding)


def _parts(reader: Reader, blocks: list[int]) -> dict[int, int]:
    """``part`` of the first block of each file that is copied. Files that the source lacks are missing in the copy."""
    first = sorted(set(reader.first_blocks).intersection(blocks))
    numbers, count = places(reader.headers["part"][first].tolist())
    parts = {}
    for index, number in zip(first, numbers, strict=True):
        parts[index] = packed(number, count)
    return parts


def _unusable(reader: Reader) -> defaultdict[int, bytes]:
    """The bytes that stand for the unusable parts of the file, by the block in front of them. They hold nothing of the
    contents."""
    stubs: defaultdict[int, bytes] = defaultdict(bytes)
    for damage in reader.unusable:
        behind = int(np.searchsorted(reader.offsets, damage.offset))
        if damage.reason == IN_PART:
            stub = reader.header_bytes(damage.offset)
        else:
            stub = bytes(min(damage.size, HEADER_SIZE))
        stubs[max(behind - 1, 0)] += stub
    return stubs
