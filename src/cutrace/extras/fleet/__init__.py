"""Traces of many ranks or runs: merged on one timeline, or summarised in reports.

A report has a mapper, which makes a small partial result of each file, and a reducer, which combines the partial
results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...plugins import Verb, hookimpl

if TYPE_CHECKING:
    from ...queries import QueryTables


@hookimpl
def cutrace_verbs() -> list[Verb]:
    verbs = "cutrace.extras.fleet.verbs"
    return [
        Verb(
            "merge",
            "Put the traces of ranks and machines on one timeline.",
            f"{verbs}.merge:merge",
        ),
        Verb(
            "batch",
            "Report over the traces of many ranks or runs.",
            f"{verbs}.batch:batch",
        ),
    ]


@hookimpl
def cutrace_sql_folders() -> list[Callable[[Path], QueryTables | None]]:
    from .tables import batch_tables

    return [batch_tables]
