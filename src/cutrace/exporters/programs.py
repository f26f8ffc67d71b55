"""Operations of native programs, which encode the rows of columns as bytes: packets, and lines of JSON."""

from __future__ import annotations

from typing import NamedTuple

(
    RAW,
    VARINTS,
    FIXED64S,
    DELTA,
    BLOB,
    REPEATED,
    OPEN,
    CLOSE,
    UNLESS,
    GIVEN,
    INTEGER,
    MICROSECONDS,
    REAL,
) = range(13)


class Op(NamedTuple):
    """One operation of a :class:`cutrace._native.Program`."""

    kind: int
    tag: bytes = b""
    column: int = 0
    column2: int = 0
    optional: bool = False
    event: bool = False
    omit: int = 0
    skip: int = 0
    raw: bytes = b""
