"""The reports of ``cutrace stats``: statistics by name, and their tables.

Reports of ``nsys stats`` have the same names here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from .. import plugins
from ..errors import CutraceError, did_you_mean
from ..trace import Trace
from .collection import StatsCollection, collect
from .context import DEFAULTS, StatsOptions
from .statistic import Statistic, View
from .statistics import STATISTICS
from .tables import Table

#: The options of users by field of StatsOptions.
OPTIONS_OF_USERS = {
    "names": "names",
    "short_ns": "short",
    "consecutive_ns": "kernel_wait",
    "ranges": "ranges",
    "name": "name",
}


@cache
def statistics() -> dict[str, Statistic]:
    """All statistics by name: from the core, the extras and other packages."""
    of_extras = plugins.of_extras("cutrace_statistics")
    of_others = plugins.others("cutrace_statistics")
    by_name: dict[str, Statistic] = {}
    for one in (*STATISTICS, *of_extras, *of_others):
        by_name.setdefault(one.name, one)
    return by_name


def report(name: str) -> Statistic:
    """The statistic of this name. Raises :class:`cutrace.CutraceError` if there is none."""
    known = statistics().get(name)
    if known is None:
        hint = "`cutrace stats --list-reports` lists all"
        similar = did_you_mean(name, statistics(), "")
        if similar:
            hint = f"{similar} {hint}"
        if "," in name:
            hint = "give each report an option --report of its own"
        raise CutraceError(f"there is no report {name!r}: {hint}")
    return known


def tables(
    trace: Trace, names: Sequence[str] | None = None, options: StatsOptions = DEFAULTS
) -> list[Table]:
    """The tables of these reports; by default, of the usual reports that have rows. Raises
    :class:`cutrace.CutraceError` for an unknown report."""
    if names is None:
        usual = [one for one in statistics().values() if one.usual]
        return [table for table in _tables(trace, usual, options) if table.rows]
    chosen = [report(name) for name in names]
    return _tables(trace, chosen, options)


def _tables(
    trace: Trace, chosen: Sequence[Statistic], options: StatsOptions
) -> list[Table]:
    needed: list[StatsCollection[Any]] = []
    for one in chosen:
        needed += one.collections
    view = View(trace, collect(trace, needed, options))
    return [one.table(view) for one in chosen]


def check_options(names: Sequence[str], options: StatsOptions) -> None:
    """Raise :class:`cutrace.CutraceError` for an option that is not at its default and that no report uses, and for a
    report of steps without their name."""
    used: set[str] = set()
    for name in names:
        used.update(report(name).options)
        if "name" in used and not options.name:
            raise CutraceError(
                f"{name} needs `name=`, the name of the ranges that are steps, such as `name='step *'`: "
                "`cutrace stats --report nvtx_sum` lists the ranges"
            )
    for field, option in OPTIONS_OF_USERS.items():
        is_default = getattr(options, field) == getattr(DEFAULTS, field)
        if not is_default and field not in used:
            users = [one.name for one in statistics().values() if field in one.options]
            raise CutraceError(
                f"{', '.join(names)} does not use `{option}=`: "
                f"leave it out, or ask for one of {', '.join(users)}"
            )
