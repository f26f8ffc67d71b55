"""What is expected of a test: by its markers, and by its golden values."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cutrace import golden
from cutrace.errors import CutraceError

from .options import Settings

_KNOWN = ("warmup", "repeat", "gate", "tolerance", "ignore", "counters", "off")


@dataclass(frozen=True)
class Expectation:
    """How one test is traced, and what it is compared with.

    ``repeat`` is None where the plugin decides; ``counters`` are those of the hardware that the test asks for, those
    that it limits among them; ``limits`` are budgets by metric, as ``gpu_limit`` has them. ``path``
    is the golden file of the test's module, ``entry`` what that says of the test; ``siblings``: it has golden values of
    other tests. ``passed_over`` is why the test is neither recorded nor compared with golden values, "" if it is.
    """

    rules: golden.Rules
    path: Path
    marked: bool = False
    off: bool = False
    warmup: int = 0
    repeat: int | None = None
    counters: tuple[str, ...] = ()
    limits: Mapping[str, Any] | None = None
    entry: golden.Entry | None = None
    siblings: bool = False
    passed_over: str = ""

    @property
    def any(self) -> bool:
        """Whether the test would be verified."""
        return self.entry is not None or self.marked or self.limits is not None


class Expectations:
    """Finds out what is expected of tests. Each golden file is read once. ``name`` gives the id of a test."""

    def __init__(self, settings: Settings, name: Callable[[pytest.Item], str]) -> None:
        self._settings = settings
        self._name = name
        self._module = functools.cache(_module)

    def of(self, item: pytest.Item) -> Expectation:
        """Raises :class:`CutraceError` or :class:`pytest.UsageError` for markers or a golden file that are not
        understood."""
        settings = self._settings
        file, test = golden.split(self._name(item))
        given = item.ihook.pytest_cutrace_golden_path(item=item, root=settings.golden_root)
        path = golden.golden_path(settings.golden_root, file or test) if given is None else Path(given)
        found = _by_markers(Expectation(settings.rules, path, repeat=settings.repeat), item)
        if found.off or (settings.scope == "marked" and not found.marked):
            return found
        if _benchmarked(item) and not found.marked:
            return replace(found, passed_over="a benchmark decides how often it runs")
        module = self._module(path, file)
        if isinstance(module, CutraceError):
            raise module
        return replace(found, entry=module.tests.get(test), siblings=bool(module.tests))


def _module(path: Path, file: str) -> golden.Module | CutraceError:
    """The golden file of a test file, or what is wrong with it. Without a file, an empty one."""
    try:
        return golden.read(path, module=file) if path.is_file() else golden.Module(file)
    except CutraceError as error:
        return error


def _by_markers(found: Expectation, item: pytest.Item) -> Expectation:
    """What the markers of a test add to the session's rules; of several the closest one wins, word by word.

    Raises :class:`pytest.UsageError` with the place of the test for what is not understood.
    """
    limits: dict[str, Any] = {}
    try:
        for marker in reversed(list(item.iter_markers("cutrace"))):
            if marker.args:
                words = ", ".join(_KNOWN)
                raise CutraceError(f"the marker cutrace takes no positional argument: write one of {words} by name")
            found = replace(found, marked=True)
            for word, value in marker.kwargs.items():
                found = _with(found, word, value)
        for marker in reversed(list(item.iter_markers("gpu_limit"))):
            if marker.args or not marker.kwargs:
                what = "takes metrics by name" if marker.args else "limits nothing"
                raise CutraceError(f"gpu_limit {what}: write gpu_limit(kernel_launches=3)")
            limits |= golden.parse_limits(marker.kwargs)
    except CutraceError as error:
        path, line, _ = item.reportinfo()
        place = f"{path}:{line + 1}" if line is not None else str(path)
        raise pytest.UsageError(f"{place}: {error}") from None
    limited = [name for name in limits if golden.is_counter(name)]
    return replace(found, limits=limits or None, counters=tuple(dict.fromkeys((*found.counters, *limited))))


def _with(found: Expectation, word: str, value: Any) -> Expectation:
    """The expectation with one keyword of the marker."""
    rules = found.rules
    match word:
        case "off":
            if not isinstance(value, bool):
                raise CutraceError(f"off={value!r}: write True or False")
            return replace(found, off=value)
        case "warmup" | "repeat":
            least = 0 if word == "warmup" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise CutraceError(f"{word}={value!r}: write a number from {least} on")
            return replace(found, warmup=value) if word == "warmup" else replace(found, repeat=value)
        case "gate":
            rules = replace(rules, gate=golden.parse_gate(_words(word, value)))
        case "tolerance":
            given = value if isinstance(value, Mapping) else _words(word, value)
            rules = replace(rules, tolerance={**rules.tolerance, **golden.parse_tolerance(given)})
        case "ignore":
            rules = replace(rules, ignore=(*rules.ignore, *golden.parse_ignore(_words(word, value))))
        case "counters":
            return replace(found, counters=golden.parse_counters(_words(word, value)))
        case _:
            raise CutraceError(f"the marker cutrace knows no {word!r}: write {', '.join(_KNOWN)}")
    return replace(found, rules=rules)


def _words(word: str, value: object) -> str | list[str]:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | set | frozenset) and all(isinstance(one, str) for one in value):
        return list(value)
    raise CutraceError(f"{word}={value!r}: write a text or a list of texts")


def _benchmarked(item: pytest.Item) -> bool:
    """Whether a benchmark decides how often the body runs what it measures."""
    plugins = ("pytest_benchmark", "pytest_codspeed")
    return "benchmark" in getattr(item, "fixturenames", ()) and any(name in sys.modules for name in plugins)
