"""The properties of a traced test in a JUnit file, as (name, value) pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from ..analysis.definitions import Value
from ..golden.compare import Row
from ..golden.model import plain
from ..units import printable
from .model import Case
from .text import added_lines, changes


def properties(case: Case) -> list[tuple[str, str]]:
    """The properties of a finished test: its state, the measured numbers, the changes, and the files kept.

    Values are numbers without units, as tools that plot trends expect.
    """
    pairs = _pairs(case)
    return [(f"cutrace.{printable(name)}", printable(value)) for name, value in pairs]


def _pairs(case: Case) -> Iterator[tuple[str, str]]:
    yield "state", case.state.value
    if case.reason:
        yield "reason", case.reason
    if case.gpu:
        yield "gpu", case.gpu
    if case.environment:
        yield "environment", case.environment
    if case.codes:
        yield "code", case.code
    yield from _numbers("", case.values)
    for region, values in case.regions.items():
        yield from _numbers(f"{region}.", values)
    for name, value in case.user.items():
        yield f"user.{name}", _text(value)
    yield from _changes("failed", case.failed_rows)
    yield from _changes("better", case.better)
    yield from _changes("updated", case.updated)
    yield from _changes("other", case.other_code)
    for line in added_lines(case):
        yield "added", line
    for problem in case.problems:
        yield "problem", problem
    for name, path in case.artifacts.items():
        yield f"file.{name}", path


def _numbers(scope: str, values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """All values except counts by name, because their totals are metrics too."""
    for name, value in values.items():
        if not isinstance(value, dict):
            yield scope + name, _text(value)


def _changes(word: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        name = ".".join(filter(None, (word, row.region, row.metric)))
        yield name, changes([row])[0]


def _text(value: object) -> str:
    made = plain(value)
    if isinstance(made, str):
        return made
    return json.dumps(made)
