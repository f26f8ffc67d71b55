"""The properties of a traced test in a JUnit file, as (name, value) pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..golden.model import plain
from ..units import printable
from .model import Case
from .text import changes


def properties(case: Case) -> list[tuple[str, str]]:
    """The properties of a finished test: its state, the measured numbers, the changes, and the files kept.

    Values are numbers without units, as tools that plot trends expect.
    """
    return [
        (f"cutrace.{printable(name)}", printable(value)) for name, value in _pairs(case)
    ]


def _pairs(case: Case) -> Iterator[tuple[str, str]]:
    yield "state", case.state.value
    about = (
        ("reason", case.reason),
        ("gpu", case.gpu),
        ("environment", case.environment),
    )
    yield from ((name, value) for name, value in about if value)
    for scope, values in (
        ("", case.values),
        *((f"{region}.", of) for region, of in case.regions.items()),
    ):
        # Counts by name are left out, because their totals are metrics too.
        yield from (
            (scope + name, _text(value))
            for name, value in values.items()
            if not isinstance(value, dict)
        )
    yield from ((f"user.{name}", _text(value)) for name, value in case.user.items())
    for word, rows in (
        ("failed", case.failed_rows),
        ("better", case.better),
        ("updated", case.updated),
    ):
        yield from (
            (".".join(filter(None, (word, row.region, row.metric))), changes([row])[0])
            for row in rows
        )
    yield from (("problem", problem) for problem in case.problems)
    yield from ((f"file.{name}", path) for name, path in case.artifacts.items())


def _text(value: object) -> str:
    made = plain(value)
    if isinstance(made, str):
        return made
    return json.dumps(made)
