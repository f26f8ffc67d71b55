"""What golden files hold: for each test, what it did in each environment in which it was recorded.

An environment is a GPU architecture and, where the project says so, a variant of its own: ``sm_90``,
``sm_90-cuda13-torch2.11``. This model keeps whole values for each environment. :mod:`.files` writes what all of them
share once, and :mod:`.compare` decides what holds in an environment that was never recorded.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..analysis.definitions import METRICS, Metric, MetricClass, Value, hardware, is_full_name

#: Where any of these is above 0, there was GPU work.
WORK = ("kernel_launches", "graph_launches", "memcpy_count", "memset_count")
#: Metrics that may be negative: a test can free more than it allocates.
SIGNED = frozenset({"net_memory_bytes"})
_PLACES = {name: place for place, name in enumerate(METRICS)}
#: Integers of more bits than this are no measurements, and JSON readers choke on them.
_BITS = 1024


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
    #: Times that are neither the same nor plainly different.
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
    """The id of a test: the reverse of :func:`split`."""
    return f"{file}::{test}" if file else test


def scoped(region: str, name: str) -> str:
    """How a metric of a region is named in a list: ``region/metric``; of the whole window: ``metric``."""
    return f"{region}/{name}" if region else name


# Metrics


def metric(name: str) -> Metric | None:
    """The metric of this name. A name with a dot in it is a counter: CUPTI's name of a hardware counter, else a
    project's own."""
    found = METRICS.get(name)
    if found is None and is_full_name(name):
        return hardware(name, "a hardware counter")
    if found is None and "." in name.strip("."):
        return Metric(name, MetricClass.COUNTER, "", "a metric of the project's own")
    return found


def is_counter(name: str) -> bool:
    """Whether this is a counter of the hardware, which a capture does not hold."""
    found = metric(name)
    return found is not None and found.hardware


def counters_in(entry: Entry) -> set[str]:
    """The counters of the hardware of which an entry has values."""
    scopes = (s for one in entry.values() for values in (one.values, one.unstable) for s in values.values())
    return {name for scope in scopes for name in scope if is_counter(name)}


def place(name: str) -> tuple[int, str]:
    """The key that sorts metrics as tables and files have them; those of projects come last, by name."""
    return _PLACES.get(name, len(_PLACES)), name


def ordered(names: Iterable[str]) -> list[Metric]:
    """The metrics of these names in the order of :func:`place`. Names that no metric has are left out."""
    return [one for name in sorted(set(names), key=place) if (one := metric(name)) is not None]


def total_of(found: Metric) -> str:
    """The metric under which golden files keep this one: its total, or itself."""
    return found.total or found.name


def part_of(found: Metric) -> str:
    """The name of a metric among the parts of its total: ``d2h`` of ``memcpy_d2h_count``."""
    return found.name.split("_")[1] if found.total and not found.counts else ""


#: The totals of work that golden files keep by their parts.
DIVIDED = frozenset(found.total for found in METRICS.values() if found.total and found.kind is MetricClass.WORK)


def absent(found: Metric) -> Any:
    """The value of a metric that is not written down: work did not happen, everything else is not known."""
    if found.kind is not MetricClass.WORK:
        return None
    return {} if found.name in DIVIDED else 0


def grouped(values: Mapping[str, Value]) -> dict[str, Any]:
    """Measured values as golden files keep them: work under the names of its totals, by its parts where it has any; the
    other metrics that can be compared by their totals alone, as numbers."""
    found: dict[str, Any] = {name: {} for name in DIVIDED if name in values}
    for name, value in values.items():
        one = metric(name)
        if one is None or one.kind is MetricClass.INFO or name in DIVIDED:
            continue
        if not one.total:
            found[name] = round(value) if isinstance(value, int | float) else value
        elif one.total in DIVIDED:
            parts = value if isinstance(value, dict) else {part_of(one): value}
            found.setdefault(one.total, {}).update({key: count for key, count in parts.items() if count})
    return found


# Values


def alternatives(count: Count) -> tuple[int, ...]:
    """The values of which any is right."""
    return count if isinstance(count, tuple) else (count,)


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


def plain(value: Any) -> Any:
    """Anything as what JSON has. Numbers that it lacks (NaN, infinities) become null, and unknown objects their text.

    Dataclasses become objects by field. Ranges become ``{"span": {...}}`` and intervals ``{"interval": {...}}``, which
    no counts by name look like: these have no objects in them.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _BITS else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {type(value).__name__.lower(): found} if isinstance(value, Interval | Span) else found
    if isinstance(value, Mapping):
        return {text_of(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    scalar = getattr(value, "item", None)  # NumPy's and torch's numbers
    if callable(scalar):
        try:
            return plain(scalar())
        except Exception:  # an array of many: its text
            return text_of(value)
    return text_of(value)


def stored(value: Any) -> Any:
    """The golden value that :func:`plain` made this of."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if isinstance(inner := value.get("interval"), dict):
        return Interval(**{**inner, "samples": tuple(inner.get("samples") or ())})
    if isinstance(inner := value.get("span"), dict):
        return Span(**inner)
    return {name: stored(count) for name, count in value.items()}


def text_of(value: object) -> str:
    """The text of any object. The ``str()`` of an object that a test recorded may fail."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"
