"""Sizes, times and names as people read and write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from .errors import CutraceError

#: A time: an integer of nanoseconds (of Python or NumPy), or a string with a unit, such as ``"1.5s"`` or ``"200ms"``.
#: As a moment, a string counts from the start of the trace, and an integer or ``"@N"`` is a time of its tables.
Time = SupportsIndex | str
#: A size: an integer of bytes, or a string such as ``"512MiB"``.
Size = SupportsIndex | str

_SIZES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_TIMES = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
# Python refuses to parse numbers with thousands of digits.
_NUMBER = re.compile(
    r"\s*([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})\s*([a-zµ]*)\s*",
    re.IGNORECASE | re.ASCII,
)
_MOMENT = re.compile(r"@[0-9]{1,40}")

#: The units of times for people, and their number of digits after the point.
_SHOWN_TIMES = ((1, "ns", 0), (10**3, "us", 1), (10**6, "ms", 2), (10**9, "s", 3))


def _scaled(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _NUMBER.fullmatch(text.replace("µ", "u"))
    if match is None or match[2].lower() not in units:
        raise CutraceError(f"{text!r} is not a {what}: write {example}")
    scale = units[match[2].lower()]
    whole, _, part = match[1].partition(".")
    size = int(whole or "0") * scale
    if part:
        size += int(part) * scale // 10 ** len(part)
    return size


def _count(given: object) -> int | None:
    """A whole number of 0 or more; None for any other value."""
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        return None
    number = given.__index__()
    return number if number >= 0 else None


def parse_size(size: Size) -> int:
    """Parse ``512MiB``, ``2G``, ``1.5 GB`` or a plain number into bytes. K, M, G and KiB, MiB, GiB are powers of 1024,
    KB, MB and GB powers of 1000. Raises :class:`CutraceError` for anything else."""
    if isinstance(size, str):
        return _scaled(size, _SIZES, "size", "a number of bytes, 512MiB or 2GB")
    number = _count(size)
    if number is None:
        raise CutraceError(
            f"{size!r} is not a size: give an int of bytes, or a string such as '512MiB'"
        )
    return number


def parse_duration(time: Time) -> int:
    """Return a duration in nanoseconds: an int of nanoseconds, or a string such as ``1.5s``, ``200ms``, ``30us``,
    ``7ns``, ``2m`` (minutes) or a plain number of seconds. Raises :class:`CutraceError` for anything else."""
    if isinstance(time, str):
        return _scaled(time, _TIMES, "time", "1.5s, 200ms, 30us or 7ns")
    number = _count(time)
    if number is None:
        raise CutraceError(
            f"{time!r} is not a time: give an int of nanoseconds, or a string such as '1.5s' or '200ms'"
        )
    return number


def parse_moment(time: Time, start: int) -> int:
    """Return a moment in nanoseconds, as in the tables of a trace: an int of nanoseconds, ``"@N"`` with such a number,
    or a duration from ``start`` on. Raises :class:`CutraceError` for anything else."""
    if not isinstance(time, str):
        return parse_duration(time)
    if not time.startswith("@"):
        return start + parse_duration(time)
    if _MOMENT.fullmatch(time) is None:
        raise CutraceError(
            f"{time!r} is not a time: write 1.5s or 200ms after the start, or @ and nanoseconds"
        )
    return int(time[1:])


def parse_words(text: str) -> list[str]:
    """Parse ``a,b, c`` into its words, each once."""
    words = map(str.strip, text.split(","))
    return list(dict.fromkeys(filter(None, words)))


def format_size(size: float) -> str:
    """Format a size for people: ``999 B``, ``64 MiB``, ``1.5 GiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while abs(round(size, 1)) >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.1f}".removesuffix(".0") + f" {units[0]}"


def format_duration(ns: float, separator: str = " ") -> str:
    """Format a time for people: ``850 ns``, ``12.3 us``, ``4.56 ms``, ``1.234 s``."""
    text = ""
    for scale, unit, digits in _SHOWN_TIMES:
        scaled = ns / scale
        text = f"{scaled:.{digits}f}{separator}{unit}"
        # Rounding may carry into the next unit: 999,960 ns are 1.00 ms.
        if abs(round(scaled, digits)) < 1000:
            break
    return text


def first_of(strings: Sequence[str], most: int) -> list[str]:
    """The first strings, and the number of the others: ``["a", "b", "and 3 more"]``."""
    first = list(strings[:most])
    others = len(strings) - most
    if others > 0:
        first.append(f"and {others:,} more")
    return first


def first_names(names: Sequence[str], most: int) -> str:
    """The first names and the number of the others: ``a, b, c and 2 more``."""
    first = ", ".join(names[:most])
    others = len(names) - most
    if others > 0:
        first += f" and {others:,} more"
    return first


def count_of(number: int, noun: str) -> str:
    """``1 kernel``, ``12,345 kernels``, ``2 processes``, ``3 copies``."""
    if number == 1:
        plural = noun
    elif noun.endswith(("s", "ch")):
        plural = noun + "es"
    elif noun.endswith("py"):
        plural = noun[:-1] + "ies"
    else:
        plural = noun + "s"
    return f"{number:,} {plural}"


def printable(text: str) -> str:
    """Replace the control characters of terminals in a string; a capture may hold any name."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table for a notebook. Cells are strings."""
    from html import escape

    def line(cells: Sequence[str], tag: str) -> str:
        words = [f"<{tag}>{escape(word)}</{tag}>" for word in cells]
        return f"<tr>{''.join(words)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{escape(title)}</caption>{line(head, 'th')}{body}</table>"
