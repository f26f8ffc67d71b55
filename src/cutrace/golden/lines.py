"""On which line of a TOML file something is: what tomllib does not tell once a file is parsed."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)$")
_AT_END = re.compile(r"\s*\(at end of document\)$")


def parsed(source: str) -> dict[str, Any]:
    """The tables of a TOML document. Raises :class:`Damaged` with the line on which it stops being one."""
    try:
        tables: dict[str, Any] = tomllib.loads(source)
        return tables
    except RecursionError:
        raise Damaged(1, "it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one; a number of too many digits is not a TOMLDecodeError
        message = str(error)
        line = _AT_LINE.search(message)
        if line is None and not _AT_END.search(message):
            raise Damaged(_culprit(source), message) from None
        reason = _AT_END.sub(" at the end of the file", _AT_LINE.sub("", message))
        raise Damaged(int(line[1]) if line else source.count("\n") + 1, reason) from None


class Damaged(Exception):
    """A document that is not TOML: the line, from 1, and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def line_of(source: str, keys: Sequence[str]) -> int:
    """The line, from 1, that holds the key with these parents; if there is none, the closest of its parents."""
    found, depth = 1, 0
    section: tuple[str, ...] = ()
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("["):
            here = section = _header(line)
        else:
            here = (*section, *_key(line))
        shared = next(
            (i for i, (a, b) in enumerate(zip(here, keys, strict=False)) if a != b), min(len(here), len(keys))
        )
        if shared > depth:
            found, depth = number, shared
    return found


def _culprit(source: str) -> int:
    """The first line with an error that tomllib reports without a place."""
    return next((n for n, line in enumerate(source.split("\n"), 1) if _fails_without_place(line)), 1)


def _fails_without_place(line: str) -> bool:
    try:
        tomllib.loads(line)
    except ValueError as error:
        return not isinstance(error, tomllib.TOMLDecodeError)
    return False


def _header(line: str) -> tuple[str, ...]:
    return _keys(line) or ()


def _key(line: str) -> tuple[str, ...]:
    """The key of a line; one in quotes may hold an equals sign."""
    ends = (at for at, c in enumerate(line) if c == "=")
    return next((keys for at in ends if (keys := _keys(line[:at] + "= 0"))), ())


def _keys(document: str) -> tuple[str, ...] | None:
    try:
        return _path(tomllib.loads(document))
    except ValueError:
        return None


def _path(table: Any) -> tuple[str, ...]:
    path: list[str] = []
    while isinstance(table, dict) and table:
        key, table = next(iter(table.items()))
        path.append(key)
        if isinstance(table, list):
            table = table[0]
    return tuple(path)
