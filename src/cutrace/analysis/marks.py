"""Windows of a capture, and the marks that delimit them. This module needs neither a capture nor NumPy.

A mark is a string passed to :func:`cutrace.mark`. :func:`begin` and :func:`end` make the strings, :func:`parsed` reads
them. A window contains the work that was launched in it, even if the work ran later: see :mod:`.metrics`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from ..errors import CutraceError

#: The kinds of windows: a test, a named region of a test, and the calls of a tool inside a test.
KINDS = ("test", "region", "tool")

#: ``process`` of a window over all processes of a capture.
ALL_PROCESSES = -1

_FIRST_WORD = "cutrace"
# A mark is a C string in UTF-8. Characters that it cannot hold are escaped.
_NO_TEXT = re.compile(r"[\0\\\ud800-\udfff]")
# The limit in bytes of UTF-8. An escaped byte takes at most six bytes.
_LONGEST_NAME = 640
_KEPT = 600
_WRITTEN_OUT = re.compile(r"\\u([0-9a-f]{4})")
_MARK = re.compile(rf"{_FIRST_WORD} (begin|end) ({'|'.join(KINDS)}): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Window:
    """A part of a capture: ``start`` <= time < ``end`` (ns of BOOTTIME).

    ``process`` is the index of the process that set the marks (:data:`ALL_PROCESSES` for a whole capture) and
    ``thread`` its thread. ``regions`` are the windows inside, with nested windows, in the order of their start. Names
    may repeat. Calls that ``thread`` makes within a span (start, end) of ``tool`` do not count. ``complete`` is False
    when a mark is missing. The window then starts or ends with the enclosing window.
    """

    name: str
    start: int
    end: int
    process: int = ALL_PROCESSES
    regions: tuple[Window, ...] = ()
    tool: tuple[tuple[int, int], ...] = ()
    complete: bool = True
    thread: int = 0


def begin(kind: str, name: str) -> str:
    """The string of the mark at the start of a window. ``kind`` is one of :data:`KINDS`; ``name`` may be any string and
    is :func:`shortened` if it is very long."""
    return _text("begin", kind, name)


def end(kind: str, name: str) -> str:
    """The string of the mark at the end of the window of the same kind and name."""
    return _text("end", kind, name)


def shortened(name: str) -> str:
    """The name of a window, cut so that its mark fits into 4,096 bytes. A digest keeps cut names distinct."""
    plain = name.encode("utf-8", "surrogatepass")
    if len(plain) <= _LONGEST_NAME:
        return name
    return (
        f"{plain[:_KEPT].decode('utf-8', 'ignore')}... {sha256(plain).hexdigest()[:16]}"
    )


def parsed(text: str) -> tuple[bool, str, str] | None:
    """The meaning of a mark with this string: whether it starts a window, and the kind and the name of the window. None
    for other strings."""
    match = _MARK.fullmatch(text)
    if match is None:
        return None
    return (
        match[1] == "begin",
        match[2],
        _WRITTEN_OUT.sub(lambda m: chr(int(m[1], 16)), match[3]),
    )


def _text(what: str, kind: str, name: str) -> str:
    if kind not in KINDS:
        raise CutraceError(
            f"a mark cannot begin or end {kind!r}; use one of {', '.join(KINDS)}"
        )
    return f"{_FIRST_WORD} {what} {kind}: " + _NO_TEXT.sub(_written, shortened(name))


def _written(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"
