"""What golden files hold: for each test, what it did in each environment in which it was recorded.

An environment is a GPU architecture and, where the project says so, a variant of its own: ``sm_90``,
``sm_90-cuda13-torch2.11``. This model keeps whole values for each environment; :mod:`.files` writes once what all of
them share, and :mod:`.compare` decides what holds in an environment that was never recorded.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..analysis.definitions import METRICS, Metric, MetricClass, Metrics, Value

#: The format of golden files that is written, and the only one that is read.
FORMAT = 2
#: Where any of these is above 0, there was GPU work.
WORK = ("kernel_launches", "graph_launches", "memcpy_count", "memset_count")
#: Metrics that may be negative: a test can free more than it allocates.
SIGNED = frozenset({"net_memory_bytes"})


class Verdict(enum.Enum):
    """How a value now compares with the golden one."""

    SAME = "SAME"
    #: Work or a counter differs, and not only by doing less.
    CHANGED = "CHANGED"
    #: Less work, or less of a state than runs have shown.
    BETTER = "BETTER"
    #: More of a state than runs have shown, or more than a limit.
    WORSE = "WORSE"
    FAST = "FAST"
    SLOW = "SLOW"
    #: Times that neither settle on the same nor differ plainly.
    AMBIGUOUS = "AMBIGUOUS"
    #: There is no golden value, and none is asked for.
    NEW = "NEW"
    #: There is no golden value that holds in this environment.
    UNVERIFIED = "UNVERIFIED"
    #: Runs did not agree when the golden value was written.
    UNSTABLE = "UNSTABLE"


@dataclass(frozen=True)
class Interval:
    """Repeated measurements of a time, in ns: their least, median and third quartile, and how many there were.

    ``samples`` are kept from :data:`cutrace.golden.statistics.ENOUGH` repeats on, for the rank test.
    """

    min: int
    median: int
    q3: int
    n: int
    samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Span:
    """The least and the greatest value that runs have shown."""

    min: int
    max: int


#: A count, or the alternatives of which any is right.
Count = int | tuple[int, ...]
#: Counts by name: of kernels, of functions, of directions of copies. A name that is missing counts 0.
Parts = dict[str, Count]
Stored = Count | Parts | Span | Interval
#: Golden values by metric. One that has parts stands under the name of its total: ``{"kernel_launches": {"k": 2}}``.
Values = dict[str, Stored]


@dataclass(frozen=True)
class Observed:
    """What a test did in one environment: values by region, "" being the whole window; the values on which runs did not
    agree, with all that was seen; and whether a second run or session has confirmed it."""

    values: dict[str, Values] = field(default_factory=dict)
    unstable: dict[str, Values] = field(default_factory=dict)
    confirmed: bool = True


#: What a golden file says of one test, by environment.
Entry = dict[str, Observed]


@dataclass(frozen=True)
class Module:
    """A golden file: ``path`` is that of the test file, as ids of tests begin; ``tests`` are its entries by the rest of
    the id (``TestA::test_b[1]``), in the order of the file. ``against`` says of candidates what they were compared
    with, see :mod:`.changes`."""

    path: str
    tests: dict[str, Entry] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)


def split(nodeid: str) -> tuple[str, str]:
    """The test file of an id, and the rest of it."""
    file, separator, rest = nodeid.partition("::")
    return (file, rest) if separator else ("", nodeid)


def joined(file: str, test: str) -> str:
    """The id of a test: what :func:`split` divides."""
    return f"{file}::{test}" if file else test


def scoped(region: str, name: str) -> str:
    """How a metric of a region is named in a list: ``region/metric``; of the whole window: ``metric``."""
    return f"{region}/{name}" if region else name


def metric(name: str, known: Mapping[str, Metric] = METRICS) -> Metric | None:
    """The metric of this name. A name with a dot in it is a project's own metric, a counter."""
    found = known.get(name)
    if found is None and "." in name.strip("."):
        return Metric(name, MetricClass.COUNTER, "", "a metric of the project's own")
    return found


def total_of(found: Metric) -> str:
    """The metric under which golden files keep this one: its total, or itself."""
    return found.total or found.name


def part_of(found: Metric) -> str:
    """The name of a metric among the parts of its total: ``d2h`` of ``memcpy_d2h_count``."""
    return found.name.split("_")[1] if found.total and not found.counts else ""


#: The totals of work that golden files keep by their parts.
DIVIDED = frozenset(found.total for found in METRICS.values() if found.total and found.kind is MetricClass.WORK)


def grouped(values: Mapping[str, Value], known: Mapping[str, Metric] = METRICS) -> dict[str, Any]:
    """Measured values as golden files keep them: work under the names of its totals, by its parts where it has any; the
    other metrics that can be compared by their totals alone, as numbers."""
    found: dict[str, Any] = {name: {} for name in DIVIDED if name in values}
    for name, value in values.items():
        one = metric(name, known)
        if one is None or one.kind is MetricClass.INFO or name in DIVIDED:
            continue
        if one.total not in DIVIDED:
            if not one.total:
                found[name] = round(value) if isinstance(value, int | float) else value
        elif isinstance(value, dict):
            found[one.total] = {key: count for key, count in value.items() if count}
        elif value:
            found.setdefault(one.total, {})[part_of(one)] = value
    return found


def scope(run: Metrics, region: str) -> Mapping[str, Value] | None:
    """The metrics of a region of a run, those of the whole window for "", or None if the region was not entered."""
    return run.regions.get(region) if region else run.values


def amount(value: object) -> int | None:
    """The number that a value comes to: the sum of counts by name, the greatest of alternatives and of a range."""
    if isinstance(value, Mapping):
        return sum(amount(count) or 0 for count in value.values())
    if isinstance(value, tuple):
        return max(value, default=0)
    if isinstance(value, Span):
        return value.max
    if isinstance(value, Interval):
        return value.median
    return int(value) if isinstance(value, int | float) else None


def plain(value: Stored) -> Any:
    """A golden value as JSON has it: alternatives as a list, ranges as ``{"span": {...}}`` and intervals as
    ``{"interval": {...}}``, which no counts by name look like."""
    if isinstance(value, Span):
        return {"span": {"min": value.min, "max": value.max}}
    if isinstance(value, Interval):
        return {"interval": {**vars(value), "samples": list(value.samples)}}
    if isinstance(value, dict):
        return {name: plain(count) for name, count in value.items()}
    return list(value) if isinstance(value, tuple) else value


def from_plain(value: Any) -> Any:
    """The golden value of :func:`plain`."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if isinstance(inner := value.get("span"), dict):
        return Span(**inner)
    if isinstance(inner := value.get("interval"), dict):
        return Interval(**{**inner, "samples": tuple(inner.get("samples") or ())})
    return {name: from_plain(count) for name, count in value.items()}
