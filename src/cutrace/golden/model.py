"""The model of golden files: the values of each test in each environment in which it was recorded.

An environment is a GPU architecture and, optionally, a variant of the project: ``sm_90``, ``sm_90-cuda13-torch2.11``.
This model has the complete values of each environment. :mod:`.files` writes shared values once, and :mod:`.compare`
decides which values apply in an environment that was never recorded.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..analysis.definitions import (
    METRICS,
    Metric,
    MetricClass,
    Value,
    hardware,
    is_full_name,
)
from .codes import is_code

#: The metrics of GPU work. There was GPU work if any of them is above 0.
WORK = ("kernel_launches", "graph_launches", "memcpy_count", "memset_count")
#: Metrics that may be negative: a test can free more than it allocates.
SIGNED = frozenset({"net_memory_bytes"})
#: The name of the metric with the machine code of kernels.
CODE = "code"
_ORDER = {name: index for index, name in enumerate(METRICS)}
#: The maximum of bits of an integer. Larger integers are not measurements, and JSON readers fail on them.
_BITS = 1024


class Verdict(enum.Enum):
    """The result of the comparison of a value with the golden value."""

    SAME = "SAME"
    #: Code differs, or a count of work or a counter increased.
    CHANGED = "CHANGED"
    #: Less work, or a state below the golden range.
    BETTER = "BETTER"
    #: A state above the golden range, or a value above a limit.
    WORSE = "WORSE"
    FAST = "FAST"
    SLOW = "SLOW"
    #: Times that are not the same and not clearly different.
    AMBIGUOUS = "AMBIGUOUS"
    #: There is no golden value, and none is required.
    NEW = "NEW"
    #: There is no golden value that applies in this environment.
    UNVERIFIED = "UNVERIFIED"
    #: Runs disagreed when the golden value was written.
    UNSTABLE = "UNSTABLE"


@dataclass(frozen=True)
class Interval:
    """``n`` measurements of a time (ns): minimum, median and third quartile.

    ``samples`` are stored for at least :data:`cutrace.golden.statistics.ENOUGH` measurements, for the rank test.
    """

    min: int
    median: int
    q3: int
    n: int
    samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Span:
    """The minimum and the maximum of the measured values of a state."""

    min: int
    max: int


@dataclass(frozen=True)
class Codes:
    """The machine code of each kernel: the codes of its launches, in order, in the notation of :mod:`.codes`. A
    measured code may be a word for an unknown code."""

    by_kernel: dict[str, tuple[str, ...]]

    @property
    def known(self) -> Codes:
        """The codes of the kernels whose codes are all known."""
        return self.of(self.by_kernel.keys() - set(self.unknown))

    @property
    def unknown(self) -> list[str]:
        """The names of the other kernels, in order."""
        unknown = []
        for name, codes in self.by_kernel.items():
            if not all(map(is_code, codes)):
                unknown.append(name)
        return sorted(unknown)

    def of(self, kernels: Container[str]) -> Codes:
        """The codes of these kernels alone."""
        codes = self.by_kernel.items()
        return Codes({name: own for name, own in codes if name in kernels})


#: A count, or several accepted alternatives.
Count = int | tuple[int, ...]
#: Counts by name: of kernels, of functions, of directions of copies. A missing name counts 0.
Parts = dict[str, Count]
Stored = Count | Parts | Span | Interval | Codes
#: Golden values by metric. Parts are stored under the name of their total: ``{"kernel_launches": {"k": 2}}``.
Values = dict[str, Stored]


@dataclass(frozen=True)
class Observed:
    """The values of a test in one environment, by region ("" is the whole window). ``unstable`` has the values on which
    runs disagreed; ``confirmed`` says that a second run or session agreed."""

    values: dict[str, Values] = field(default_factory=dict)
    unstable: dict[str, Values] = field(default_factory=dict)
    confirmed: bool = True

    def metrics(self, region: str) -> set[str]:
        """The metrics with a value in a region."""
        return {*self.values.get(region, ()), *self.unstable.get(region, ())}


#: The golden values of one test, by environment.
Entry = dict[str, Observed]


@dataclass(frozen=True)
class Module:
    """A golden file. ``path`` is the test file as in the ids of its tests. ``tests`` are the entries by the rest of the
    id (``TestA::test_b[1]``), in the order of the file. ``against`` has, for candidates, the digests of the compared
    golden values (:mod:`.changes`). ``marks`` has the marks of tests for git, by :func:`function_of`."""

    path: str
    tests: dict[str, Entry] = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)


def split(nodeid: str) -> tuple[str, str]:
    """The test file and the rest of an id."""
    file, separator, rest = nodeid.partition("::")
    if separator:
        return (file, rest)
    return ("", nodeid)


def function_of(test: str) -> str:
    """A test without its parameters: ``TestA::test_b`` of ``TestA::test_b[1]``."""
    function, _, _ = test.partition("[")
    return function


def joined(file: str, test: str) -> str:
    """The id of a test: the reverse of :func:`split`."""
    if file:
        return f"{file}::{test}"
    return test


def scoped(region: str, name: str) -> str:
    """The display name of a metric: ``region/metric`` for a region, ``metric`` for the whole window."""
    if region:
        return f"{region}/{name}"
    return name


# Metrics


def find_metric(name: str) -> Metric | None:
    """The metric of this name, None if there is none. A name with a dot is a counter: of the hardware if CUPTI has such
    names, otherwise of the project."""
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    if is_full_name(name):
        return hardware(name, "a hardware counter")
    if "." in name.strip("."):
        return Metric(name, MetricClass.COUNTER, "", "a counter of the project")
    return None


def is_counter(name: str) -> bool:
    """Whether this is a hardware counter, which captures do not contain."""
    metric = find_metric(name)
    return metric is not None and metric.hardware


def counters_in(entry: Entry) -> set[str]:
    """The hardware counters with values in an entry."""
    names: set[str] = set()
    for observed in entry.values():
        for region in {**observed.values, **observed.unstable}:
            names |= observed.metrics(region)
    return {name for name in names if is_counter(name)}


def place(name: str) -> tuple[int, str]:
    """The sort key of metrics in tables and files. Counters that are not in METRICS come last, by name."""
    last = len(_ORDER)
    return _ORDER.get(name, last), name


def ordered(names: Iterable[str]) -> list[Metric]:
    """The metrics of these names in the order of :func:`place`. Unknown names are omitted."""
    metrics = []
    for name in sorted(set(names), key=place):
        metric = find_metric(name)
        if metric is not None:
            metrics.append(metric)
    return metrics


def total_of(metric: Metric) -> str:
    """The name under which golden files store this metric: the name of its total, or its own name."""
    return metric.total or metric.name


def part_of(metric: Metric) -> str:
    """The name of a metric among the parts of its total: ``d2h`` for ``memcpy_d2h_count``."""
    if metric.total and not metric.counts:
        return metric.name.split("_")[1]
    return ""


#: The totals of work that golden files store by their parts.
DIVIDED = frozenset(
    metric.total
    for metric in METRICS.values()
    if metric.total and metric.kind is MetricClass.WORK
)
#: The breakdown of a total by name, which golden files list instead of the total: ``kernels`` of ``kernel_launches``.
BREAKDOWNS = {metric.total: metric.name for metric in METRICS.values() if metric.counts}


def absent(metric: Metric) -> Any:
    """The value of a metric that a golden file lacks: 0 or {} for work, None (unknown) for others."""
    if metric.kind is not MetricClass.WORK:
        return None
    if metric.name in DIVIDED:
        return {}
    return 0


def values_in(scopes: Iterable[Mapping[str, Any]], metric: Metric) -> list[Any]:
    """The values of a metric in several runs or environments. Unknown values are left out."""
    values = []
    for scope in scopes:
        value = scope.get(metric.name, absent(metric))
        if value is not None:
            values.append(value)
    return values


def has_work(values: Mapping[str, Any]) -> bool:
    """Whether the values of a window have GPU work."""
    return any(values.get(name) for name in WORK)


def copy_metric(region: str, name: str, before: Observed, after: Observed) -> None:
    """Copy the values of one metric, stable and unstable, from ``before`` to ``after``."""
    for source, target in (
        (before.values, after.values),
        (before.unstable, after.unstable),
    ):
        values = source.get(region, {})
        if name in values:
            target.setdefault(region, {})[name] = values[name]


def grouped(values: Mapping[str, Value]) -> dict[str, Any]:
    """Measured values in the form of golden files: totals of work by their parts, other comparable metrics as
    numbers."""
    totals: dict[str, Any] = {}
    for name, value in values.items():
        metric = find_metric(name)
        if name in DIVIDED:
            totals.setdefault(name, {})
        elif metric is None or metric.kind is MetricClass.INFO:
            continue
        elif metric.total in DIVIDED:
            parts = totals.setdefault(metric.total, {})
            if isinstance(value, dict):
                parts.update({part: value[part] for part in value if value[part]})
            elif value:
                parts[part_of(metric)] = value
        elif not metric.total:
            if isinstance(value, int | float):
                value = round(value)
            totals[name] = value
    return totals


# Values


def alternatives(count: Count) -> tuple[int, ...]:
    """The accepted values of a count."""
    if isinstance(count, tuple):
        return count
    return (count,)


def amount(value: object) -> int | None:
    """A value as one number: the sum of counts by name, the maximum of alternatives or of a range, the median of an
    interval; None for others."""
    if isinstance(value, int | float):  # The most frequent case.
        return int(value)
    if isinstance(value, Mapping):
        return sum(amount(count) or 0 for count in value.values())
    if isinstance(value, tuple):
        return max(value, default=0)
    if isinstance(value, Span):
        return value.max
    if isinstance(value, Interval):
        return value.median
    return None


def plain(value: Any) -> Any:
    """Convert any object to JSON values. NaN and infinities become null, unknown objects their string.

    Dataclasses become objects by field. Ranges become ``{"span": {...}}``, intervals ``{"interval": {...}}`` and codes
    ``{"codes": {...}}``, which cannot be confused with counts by name because these contain no objects.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        bits = value.bit_length()
        if bits <= _BITS:
            return int(value)
        return f"an integer of {bits} bits"
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value)]
        fields = {name: plain(getattr(value, name)) for name in names}
        if isinstance(value, Interval | Span | Codes):
            return {type(value).__name__.lower(): fields}
        return fields
    if isinstance(value, Mapping):
        return {text_of(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    scalar = getattr(value, "item", None)  # NumPy's and torch's numbers
    if callable(scalar):
        try:
            return plain(scalar())
        except Exception:  # an array with several elements
            return text_of(value)
    return text_of(value)


def stored(value: Any) -> Any:
    """The golden value of a result of :func:`plain`."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    interval = value.get("interval")
    if isinstance(interval, dict):
        samples = tuple(interval.get("samples") or ())
        return Interval(**{**interval, "samples": samples})
    span = value.get("span")
    if isinstance(span, dict):
        return Span(**span)
    codes = value.get("codes")
    if isinstance(codes, dict):
        by_kernel = codes["by_kernel"].items()
        return Codes({name: tuple(own) for name, own in by_kernel})
    return {name: stored(count) for name, count in value.items()}


def text_of(value: object) -> str:
    """A string for any object, also if its ``str()`` fails."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"
