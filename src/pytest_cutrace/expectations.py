"""The expectations of tests: their markers and golden values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutrace import golden
from cutrace.errors import CutraceError
from cutrace.golden.decide import Expectation

from .bodies import benchmarked
from .options import MARKER, Settings

_MARKERS = ("cutrace", "gpu_limit")
#: The golden files of a session, or the errors of reading them, by path and test file.
GoldenFiles = dict[tuple[Path, str], golden.Module | CutraceError]


def markers_of(item: pytest.Item) -> tuple[pytest.Mark, ...]:
    """The markers on which the expectation of a test depends."""
    markers = item.iter_markers()
    return tuple(marker for marker in markers if marker.name in _MARKERS)


def golden_file(item: pytest.Item, nodeid: str, settings: Settings) -> Path:
    """The golden file of a test."""
    root = settings.golden_root
    custom = item.ihook.pytest_cutrace_golden_path(item=item, root=root)
    if custom is not None:
        path = Path(custom)
        if path.suffix != ".toml" or not path.is_relative_to(root):
            # The account of the session would not find it.
            raise pytest.UsageError(
                f"pytest_cutrace_golden_path returned {path}: return a file under {root} with the ending .toml"
            )
        return path
    file, test = golden.split(nodeid)
    return golden.golden_path(root, file or test)


def expectation(
    item: pytest.Item, nodeid: str, settings: Settings, files: GoldenFiles
) -> Expectation:
    """The expectation of a test. Raises :class:`CutraceError` or :class:`pytest.UsageError` for an invalid marker or
    golden file."""
    file, test = golden.split(nodeid)
    path = golden_file(item, nodeid, settings)
    expected = _by_markers(
        Expectation(settings.rules, path, repeat=settings.repeat), item
    )
    if expected.off or (settings.scope == "marked" and not expected.marked):
        return expected
    if benchmarked(item) and not expected.marked:
        return replace(expected, passed_over="a benchmark decides how often it runs")
    module = _module(path, file, files)
    return replace(expected, entry=module.tests.get(test), siblings=bool(module.tests))


def _module(path: Path, file: str, files: GoldenFiles) -> golden.Module:
    """The golden file of a test file. The golden file is read once. If it has an error, each test of the test file
    raises it."""
    if (path, file) not in files:
        try:
            files[path, file] = golden.existing(path, file)
        except CutraceError as error:
            files[path, file] = error
    module = files[path, file]
    if isinstance(module, CutraceError):
        raise module
    return module


def _by_markers(expected: Expectation, item: pytest.Item) -> Expectation:
    """The expectation with the arguments of the test's markers. For each argument the closest marker applies.

    Raises :class:`pytest.UsageError` with the location of the test for invalid arguments.
    """
    try:
        for marker in reversed(list(item.iter_markers("cutrace"))):
            if marker.args:
                names = ", ".join(MARKER)
                raise CutraceError(
                    f"the marker cutrace takes no positional argument: write one of {names} by name"
                )
            expected = replace(expected, marked=True)
            for name, value in marker.kwargs.items():
                expected = _with(expected, name, value)
        budget = _budget(item)
    except CutraceError as error:
        path, line, _ = item.reportinfo()
        place = str(path)
        if line is not None:
            place += f":{line + 1}"
        raise pytest.UsageError(f"{place}: {error}") from None
    if budget is None:
        return expected
    limited = [name for name in budget.limits if golden.is_counter(name)]
    counters = dict.fromkeys((*expected.counters, *limited))
    return replace(expected, budgets={"": budget}, counters=tuple(counters))


def _budget(item: pytest.Item) -> golden.Budget | None:
    """The limits of the markers ``gpu_limit`` of a test, None if it has no marker."""
    limits: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("gpu_limit"))):
        if marker.args or not marker.kwargs:
            what = "limits nothing"
            if marker.args:
                what = "takes metrics by name"
            raise CutraceError(f"gpu_limit {what}: write gpu_limit(kernel_launches=3)")
        limits |= marker.kwargs
    if not limits:
        return None
    return golden.parse_budget(limits)


def _with(expected: Expectation, name: str, value: Any) -> Expectation:
    """The expectation with one argument of the marker."""
    rules = expected.rules
    given: dict[str, Any] = {name: value}
    match name:
        case "off" | "may_skip":
            if not isinstance(value, bool):
                raise CutraceError(f"{name}={value!r}: write True or False")
            return replace(expected, **given)
        case "warmup" | "repeat":
            least = int(name == "repeat")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise CutraceError(f"{name}={value!r}: write a number from {least} on")
            return replace(expected, **given)
        case "gate":
            rules = replace(rules, gate=golden.parse_gate(_texts(name, value)))
        case "tolerance":
            tolerance = value
            if not isinstance(value, Mapping):
                tolerance = _texts(name, value)
            shares = golden.parse_tolerance(tolerance)
            rules = replace(rules, tolerance={**rules.tolerance, **shares})
        case "ignore":
            ignored = golden.parse_ignore(_texts(name, value))
            rules = replace(rules, ignore=(*rules.ignore, *ignored))
        case "counters":
            return replace(
                expected, counters=golden.parse_counters(_texts(name, value))
            )
        case _:
            raise CutraceError(
                f"the marker cutrace has no argument {name!r}: write one of {', '.join(MARKER)}"
            )
    return replace(expected, rules=rules)


def _texts(name: str, value: object) -> str | list[str]:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        texts = [one for one in value if isinstance(one, str)]
        if len(texts) == len(value):
            return texts
    raise CutraceError(f"{name}={value!r}: write a string or a list of strings")
