"""What a JUnit file says of a traced test, as (name, value) pairs for its properties."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..units import printable
from .model import Case, plain
from .text import remark
from .values import pair


def properties(case: Case) -> list[tuple[str, str]]:
    """The properties of a test: its state, each number that was measured, what drifted, and where the trace is.

    Values are plain numbers without units, as tools that draw trends of them want.
    """
    return [(f"cutrace.{printable(name)}", printable(value)) for name, value in _pairs(case)]


def _pairs(case: Case) -> Iterator[tuple[str, str]]:
    yield "state", case.state.value
    yield from ((name, value) for name, value in (("reason", case.reason), ("gpu", case.gpu)) if value)
    for scope, values in (("", case.values), *((f"{region}.", of) for region, of in case.regions.items())):
        # Counts by name have totals of their own.
        yield from ((scope + name, _text(value)) for name, value in values.items() if not isinstance(value, dict))
    yield from ((f"user.{name}", _text(value)) for name, value in case.user.items())
    for row in case.rows:
        if row.failed:
            golden, now = pair(row.metric, row.golden, row.now)
            where = f"{row.region}." if row.region else ""
            yield f"failed.{where}{row.metric}", f"golden {golden}, now {now}: {remark(row)}"
    yield from (("problem", problem) for problem in case.problems)
    yield from ((f"file.{name}", path) for name, path in case.artifacts.items())


def _text(value: object) -> str:
    made = plain(value)
    return made if isinstance(made, str) else json.dumps(made)
