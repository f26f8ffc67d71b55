"""What a test asks for by its markers. A word that is not understood is a usage error that names the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Rules, parse_gate, parse_ignore, parse_limits, parse_tolerance

_KNOWN = ("warmup", "repeat", "gate", "tolerance", "ignore", "off")


@dataclass(frozen=True)
class Wishes:
    """How one test is traced and compared. ``repeat`` is None where the plugin decides; ``limits`` are budgets by
    metric, as ``gpu_limit`` has them."""

    rules: Rules
    marked: bool = False
    off: bool = False
    warmup: int = 0
    repeat: int | None = None
    limits: Mapping[str, Any] | None = None


def wishes(item: pytest.Item, rules: Rules, repeat: int | None) -> Wishes:
    """What the markers of a test say on top of the session's rules; of several the closest one wins, word by word.

    Raises :class:`pytest.UsageError` with the place of the test for what is not understood.
    """
    found = Wishes(rules, repeat=repeat)
    try:
        for marker in reversed(list(item.iter_markers("cutrace"))):
            found = _with_marker(found, marker)
        limits: dict[str, Any] = {}
        for marker in reversed(list(item.iter_markers("gpu_limit"))):
            if marker.args:
                raise CutraceError("gpu_limit takes metrics by name: write gpu_limit(kernel_launches=3)")
            limits |= parse_limits(marker.kwargs)
            if not marker.kwargs:
                raise CutraceError("gpu_limit limits nothing: write gpu_limit(kernel_launches=3)")
    except CutraceError as error:
        raise pytest.UsageError(f"{place(item)}: {error}") from None
    return replace(found, limits=limits) if limits else found


def place(item: pytest.Item) -> str:
    """File and line of a test."""
    path, line, _ = item.reportinfo()
    return f"{path}:{line + 1}" if line is not None else str(path)


def _with_marker(found: Wishes, marker: pytest.Mark) -> Wishes:
    if marker.args:
        raise CutraceError(f"the marker cutrace takes no positional argument: write one of {', '.join(_KNOWN)} by name")
    rules = found.rules
    for word, value in marker.kwargs.items():
        if word == "off":
            if not isinstance(value, bool):
                raise CutraceError(f"off={value!r}: write True or False")
            found = replace(found, off=value)
        elif word == "warmup":
            found = replace(found, warmup=_count(word, value, 0))
        elif word == "repeat":
            found = replace(found, repeat=_count(word, value, 1))
        elif word == "gate":
            rules = replace(rules, gate=parse_gate(_words(word, value)))
        elif word == "tolerance":
            given = value if isinstance(value, Mapping) else _words(word, value)
            rules = replace(rules, tolerance={**rules.tolerance, **parse_tolerance(given)})
        elif word == "ignore":
            rules = replace(rules, ignore=(*rules.ignore, *parse_ignore(_words(word, value))))
        else:
            raise CutraceError(f"the marker cutrace knows no {word!r}: write {', '.join(_KNOWN)}")
    return replace(found, rules=rules, marked=True)


def _count(word: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CutraceError(f"{word}={value!r}: write a number from {least} on")
    return value


def _words(word: str, value: object) -> str | list[str]:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | set | frozenset) and all(isinstance(one, str) for one in value):
        return list(value)
    raise CutraceError(f"{word}={value!r}: write a text or a list of texts")
