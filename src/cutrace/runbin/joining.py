"""Joined captures. The first block of each file has the place of the file among the files that were joined, so that
readers notice that files are missing at the end or between others.

``part`` of a block's header has the number of all files in its upper half, and the place, from 1, in its lower half.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from .._native import crc32c
from .blocks import HEADER, header_at

_BITS = 16
_MOST = (1 << _BITS) - 1


def mark(file: BinaryIO, offsets: Sequence[int]) -> None:
    """Write the places of joined files into the file with all of them. ``offsets`` are the first bytes of the files. A
    file without a whole first block has no place. If there are too many files, none has a place."""

    def read(size: int, offset: int) -> bytes:
        file.seek(offset)
        return file.read(size)

    size = file.seek(0, os.SEEK_END)
    heads = {}
    for offset in offsets:
        head = header_at(read, offset, size)
        if isinstance(head, bytes):
            heads[offset] = head
    for place, offset in enumerate(heads, 1):
        header = np.frombuffer(heads[offset], HEADER).copy()
        header["part"] = packed(place, len(heads))
        header["header_crc"] = crc32c(header.tobytes()[:-4])
        file.seek(offset)
        file.write(header.tobytes())


def packed(place: int, count: int) -> int:
    """``part`` of the file at a place among ``count`` files; 0 if it needs none."""
    if 1 < count <= _MOST:
        return count << _BITS | place
    return 0


def places(parts: Sequence[int]) -> tuple[list[int], int]:
    """The places of files among all files that belong to a capture, and the number of all these files.

    ``parts`` has the ``part`` of the first block of each file, in their order. A capture may be joined from joined
    captures.
    """
    numbers = []
    before = 0
    last = 0
    count = 0
    for part in parts:
        place, of = _unpacked(part)
        if place <= last or of != count:
            # Another joined capture starts.
            before += count
        numbers.append(before + place)
        last = place
        count = of
    return numbers, before + count


def _unpacked(part: int) -> tuple[int, int]:
    """The place and the number of files. A file that was not joined is alone."""
    if not part:
        return 1, 1
    return part & _MOST, part >> _BITS
