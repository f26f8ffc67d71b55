"""Compare two captures without a golden file: kernels, API calls, copies, synchronisations and memory.

Counts, bytes and launch configurations are compared exactly. Times are compared by :mod:`.statistics`, as in golden
files. docs/reference/statistics.md has the rules.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..analysis.collection import Collected
from ..analysis.context import Configuration
from ..analysis.definitions import METRICS
from ..analysis.distribution import NOTHING, Spread
from ..analysis.statistics.api import CALLS, SYNCHRONIZATIONS
from ..analysis.statistics.copies import MEMORY_OPERATIONS
from ..analysis.statistics.graphs import GRAPHS
from ..analysis.statistics.kernels import CODES, CONFIGURATIONS, KERNELS, CodeUse
from ..analysis.statistics.memory import MEMORY
from ..analysis.tables import Cell, Column, Table
from ..errors import CutraceError
from ..units import count_of
from .codes import code_difference
from .model import Interval, Stored, Verdict
from .rules import (
    MEMORY_TOLERANCE,
    TIME_TOLERANCE,
    memory_tolerance,
    refuse_large_share,
    shares,
)
from .values import Tolerance, ValueResult, compare_values

#: The collections that are compared.
COMPARED = (
    KERNELS,
    CONFIGURATIONS,
    CODES,
    CALLS,
    MEMORY_OPERATIONS,
    SYNCHRONIZATIONS,
    GRAPHS,
    MEMORY,
)
_COUNTS = (Column("count before"), Column("count after"))
_BYTES = (Column("bytes before", "bytes"), Column("bytes after", "bytes"))
_TIMES = (
    Column("time before", "ns", spare=True),
    Column("time after", "ns", spare=True),
    Column("change", "change"),
)
_MEDIANS = (
    Column("median before", "ns", spare=True),
    Column("median after", "ns", spare=True),
)
_WORDS = (Column("differs", "text"), Column("details", "text"), Column("name", "text"))
# On a narrow terminal, counts and bytes leave room for the direction of the copy only.
_SPARE_WORDS = (
    Column("change", "change", spare=True),
    Column("differs", "text", spare=True),
    Column("details", "text", spare=True),
    Column("name", "text"),
)
#: The sections of a comparison: their titles, and the columns of their tables.
SECTIONS: dict[str, tuple[str, tuple[Column, ...]]] = {
    "kernels": ("Kernels", (*_COUNTS, *_TIMES, *_MEDIANS, *_WORDS)),
    "api": ("API calls", (*_COUNTS, *_TIMES, *_WORDS)),
    "copies": ("Copies and fills", (*_COUNTS, *_BYTES, *_TIMES[:2], *_SPARE_WORDS)),
    "syncs": ("Synchronisations", (*_COUNTS, *_TIMES, *_WORDS)),
    "graphs": ("CUDA graphs, traced as a whole", (*_COUNTS, *_WORDS)),
    "memory": ("Memory (peak)", (*_BYTES, *_WORDS)),
}
# The kinds of memory that the program allocates. Memory of the driver, such as the variables of modules, is omitted.
_MEMORIES = ("device", "array", "managed", "pinned")
_PAIRS = 3
# Times of API calls are not judged, because they depend on the awaited work.
_TIMED = ("kernels", "copies")


class Aspect(enum.Enum):
    """A property of a row that can differ."""

    COUNTS = "counts"
    BYTES = "bytes"
    LAUNCHES = "launches"
    MEMORY = "memory"
    TIME = "time"
    CODE = "code"


#: For each numeric aspect, the metric whose rules apply.
_METRICS = {
    Aspect.COUNTS: METRICS["kernel_launches"],
    Aspect.BYTES: METRICS["memcpy_bytes"],
    Aspect.MEMORY: METRICS["peak_memory_bytes"],
    Aspect.TIME: METRICS["kernel_time_ns"],
}
#: The default shares by which aspects may change. Other aspects are compared exactly.
_SHARES = {Aspect.MEMORY: MEMORY_TOLERANCE, Aspect.TIME: TIME_TOLERANCE}
#: The aspects that are equal in all runs of a deterministic program.
EXACT = frozenset({Aspect.COUNTS, Aspect.BYTES, Aspect.LAUNCHES})


@dataclass(frozen=True)
class CaptureRules:
    """The aspects that fail a comparison, and the tolerances: the share by which each aspect may change without a
    difference. For times it is the tolerance of :func:`.statistics.change`."""

    fail_on: frozenset[Aspect] = EXACT
    tolerance: Mapping[Aspect, float] = field(default_factory=dict)

    def share(self, aspect: Aspect) -> float:
        return self.tolerance.get(aspect, _SHARES.get(aspect, 0.0))

    def compare(self, aspect: Aspect, before: Stored, after: Stored) -> ValueResult:
        """Compare a number of two captures. Counts and bytes may change by their share in both directions."""
        share = self.share(aspect)
        if aspect is Aspect.MEMORY:
            tolerance = memory_tolerance(share)
        else:
            tolerance = Tolerance(share, share)
        return compare_values(_METRICS[aspect], before, after, tolerance)


_DEFAULTS = CaptureRules()


@dataclass(frozen=True)
class CaptureSide:
    """The values of one capture in a row: number, times (ns) and bytes (in the memory section, the peak). A kernel also
    has its launches by launch configuration, and its machine code (None if it was not recorded)."""

    count: int = 0
    time: Spread = NOTHING
    bytes: int = 0
    launches: Counter[Configuration] = field(
        default_factory=Counter, repr=False, compare=False
    )
    code: CodeUse | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class CaptureChange:
    """One name of a section in both captures. ``aspects`` are the aspects that differ, ``verdict`` is the verdict on
    the times, and ``details`` are strings for people."""

    section: str
    name: str
    before: CaptureSide
    after: CaptureSide
    aspects: frozenset[Aspect]
    verdict: Verdict
    failed: bool
    details: tuple[str, ...] = ()

    @property
    def time_change(self) -> int:
        """The change of the total time (ns)."""
        return self.after.time.total - self.before.time.total


@dataclass(frozen=True)
class CaptureComparison:
    """All names of both captures. Changes that fail come first, then changes of exact aspects, then the largest changes
    of the total time."""

    rows: tuple[CaptureChange, ...]

    @property
    def failed(self) -> bool:
        return any(row.failed for row in self.rows)

    @property
    def changes(self) -> tuple[CaptureChange, ...]:
        """The rows with a difference."""
        return tuple(row for row in self.rows if row.aspects)


def parse_aspects(text: str) -> frozenset[Aspect]:
    """Parse aspects such as ``counts,time``. ``exact`` means counts, bytes and launches, ``all`` all aspects, ``none``
    none. Raises :class:`CutraceError` for any other word."""
    sets = {"exact": EXACT, "all": frozenset(Aspect), "none": frozenset[Aspect]()}
    aspects: set[Aspect] = set()
    for part in text.split(","):
        word = part.strip().lower()
        if word in sets:
            aspects |= sets[word]
        else:
            aspects.add(_aspect(word))
    return frozenset(aspects)


def parse_tolerances(texts: Iterable[str]) -> dict[Aspect, float]:
    """Parse strings such as ``time=10%`` and ``counts=0.01`` to shares by aspect. Raises :class:`CutraceError` for any
    other string, and for an exact aspect with a share above 100 %."""
    tolerances = {}
    for name, share in shares(texts):
        aspect = _aspect(name)
        if aspect in EXACT:
            refuse_large_share(name, share)
        tolerances[aspect] = share
    return tolerances


def _aspect(word: str) -> Aspect:
    try:
        return Aspect(word.strip().lower())
    except ValueError:
        known = ", ".join(aspect.value for aspect in Aspect)
        raise CutraceError(
            f"{word!r} is not an aspect of captures: write some of {known}"
        ) from None


def compare_captures(
    earlier: Collected, later: Collected, rules: CaptureRules = _DEFAULTS
) -> CaptureComparison:
    """Compare two captures. Both must have the collections of :data:`COMPARED`."""
    sides_before = _sides(earlier)
    sides_after = _sides(later)
    rows = []
    for section in SECTIONS:
        names_before = sides_before[section]
        names_after = sides_after[section]
        for name in {**names_before, **names_after}:
            before = names_before.get(name, _NO_SIDE)
            after = names_after.get(name, _NO_SIDE)
            rows.append(_row(section, name, before, after, rules))
    rows.sort(key=_importance)
    return CaptureComparison(tuple(rows))


def _importance(row: CaptureChange) -> tuple[object, ...]:
    """The sort key of rows, the most important first."""
    count_change = abs(row.after.count - row.before.count)
    return (
        not row.failed,
        not row.aspects & EXACT,
        not row.aspects,
        -abs(row.time_change),
        -count_change,
        row.name,
    )


#: The side of a name that is missing from a capture. It is never changed.
_NO_SIDE = CaptureSide()


def _sides(collected: Collected) -> dict[str, dict[str, CaptureSide]]:
    """The values of a capture by section and name."""
    calls = {}
    for call in collected[CALLS]:
        time = call.time
        if time.count:
            calls[call.name] = CaptureSide(time.count, time)
        if call.failed:
            calls[f"{call.name} (failed)"] = CaptureSide(call.failed)
    copies = {}
    for copy in collected[MEMORY_OPERATIONS]:
        time = copy.time
        copies[copy.name] = CaptureSide(time.count, time, copy.bytes.total)
    syncs = {}
    for sync in collected[SYNCHRONIZATIONS]:
        time = sync.time
        syncs[sync.name] = CaptureSide(time.count, time)
    graphs = {}
    launches = sum(graph.time.count for graph in collected[GRAPHS])
    if launches:
        # The ids of graphs differ from run to run.
        graphs["launches"] = CaptureSide(launches)
    peaks: Counter[str] = Counter()
    for use in collected[MEMORY]:
        if use.memory in _MEMORIES:
            peaks[use.memory] += use.peak
    memory = {name: CaptureSide(bytes=peak) for name, peak in peaks.items()}
    return {
        "kernels": _kernel_sides(collected),
        "api": calls,
        "copies": copies,
        "syncs": syncs,
        "graphs": graphs,
        "memory": memory,
    }


def _kernel_sides(collected: Collected) -> dict[str, CaptureSide]:
    """The kernels of a capture by name, with their launch configurations and their machine code."""
    launches: defaultdict[str, Counter[Configuration]] = defaultdict(Counter)
    for used in collected[CONFIGURATIONS]:
        of_kernel = launches[used.configuration.name]
        of_kernel[used.configuration] += used.time.count
    codes = {use.name: use for use in collected[CODES]}
    sides = {}
    for kernel in collected[KERNELS]:
        name = kernel.name
        sides[name] = CaptureSide(
            kernel.time.count,
            kernel.time,
            launches=launches[name],
            code=codes.get(name),
        )
    return sides


def _row(
    section: str,
    name: str,
    before: CaptureSide,
    after: CaptureSide,
    rules: CaptureRules,
) -> CaptureChange:
    aspects = set()
    details = []
    size = Aspect.BYTES
    if section == "memory":
        size = Aspect.MEMORY
    elif not before.count:
        details.append("new")
    elif not after.count:
        details.append("gone")
    if rules.compare(Aspect.COUNTS, before.count, after.count).differs:
        aspects.add(Aspect.COUNTS)
    if rules.compare(size, before.bytes, after.bytes).differs:
        aspects.add(size)
    code = _code_difference(before.code, after.code)
    if code:
        aspects.add(Aspect.CODE)
        details.append(", ".join(code))
    launches = list(_differences(before.launches, after.launches))
    if launches:
        aspects.add(Aspect.LAUNCHES)
        details += [text for text in launches if text not in code]
    better = set()
    if after.bytes < before.bytes:
        better.add(Aspect.MEMORY)
    verdict = Verdict.SAME
    if section in _TIMED and before.count and after.count:
        old = _interval(before.time)
        new = _interval(after.time)
        verdict = rules.compare(Aspect.TIME, old, new).verdict
    if verdict is Verdict.SLOW:
        aspects.add(Aspect.TIME)
        details.append("slower")
    elif verdict is Verdict.FAST:
        aspects.add(Aspect.TIME)
        better.add(Aspect.TIME)
        details.append("faster")
    failed = bool(aspects & rules.fail_on - better)
    return CaptureChange(
        section,
        name,
        before,
        after,
        frozenset(aspects),
        verdict,
        failed,
        tuple(details),
    )


def _interval(time: Spread) -> Interval:
    median = round(time.median)
    q3 = round(time.q3)
    return Interval(time.min, median, q3, time.count)


# Tables


def difference_tables(
    comparison: CaptureComparison, *, everything: bool
) -> list[Table]:
    """A table for each section with differences; with ``everything``, for each section with rows."""
    tables = []
    for section, (title, columns) in SECTIONS.items():
        rows = [row for row in comparison.rows if row.section == section]
        if not everything:
            rows = [row for row in rows if row.aspects]
        if rows:
            cells = [_cells(row, columns) for row in rows]
            tables.append(Table(section, title, columns, cells))
    return tables


def verdict(comparison: CaptureComparison) -> str:
    """A line with the numbers of differences, of failing differences, and of equal rows."""
    changes = len(comparison.changes)
    same = len(comparison.rows) - changes
    failed = sum(row.failed for row in comparison.rows)
    if not changes:
        return f"no difference, {same:,} as before"
    return (
        f"{count_of(changes, 'difference')} ({failed:,} that fail), {same:,} as before"
    )


def _cells(row: CaptureChange, columns: Sequence[Column]) -> tuple[Cell, ...]:
    return tuple(_cell(row, column.name) for column in columns)


def _cell(row: CaptureChange, column: str) -> Cell:
    figure, _, which = column.partition(" ")
    side = row.after
    if which == "before":
        side = row.before
    match figure:
        case "count":
            return side.count
        case "bytes":
            return side.bytes
        case "time":
            return side.time.total
        case "median":
            if side.time.count:
                return side.time.median
            return None
        case "change":
            return row.time_change
        case "differs":
            return ", ".join(sorted(aspect.value for aspect in row.aspects))
        case "details":
            return "; ".join(row.details)
    return row.name


# Machine code


def _code_difference(old: CodeUse | None, new: CodeUse | None) -> list[str]:
    """Return the differences in a kernel's machine code. The list is empty if the code is equal or unknown."""
    if old is None or new is None or old.unknown or new.unknown:
        return []
    before = {code.description for code in old.ran}
    after = {code.description for code in new.ran}
    return code_difference(before, after)


# Launch configurations


def _differences(
    old: Counter[Configuration], new: Counter[Configuration]
) -> Iterator[str]:
    """The differences of launch configurations, as strings. Each missing configuration is paired with the new one that
    differs in the fewest fields. If the numbers of launches are equal, each configuration must be as frequent as
    before. Otherwise the sets of configurations must be equal."""
    if not old or not new:
        return
    same = old.keys() == new.keys()
    if old.total() == new.total():
        same = old == new
    if same:
        return
    gone = _only_in(old, new)
    come = _only_in(new, old)
    gone.sort(key=lambda config: -old[config])
    for _ in range(min(_PAIRS, len(gone), len(come))):
        config = gone.pop(0)
        # The configuration that differs in the fewest fields. If there are several, the most frequent one.
        nearest = min(
            come, key=lambda other: (len(_fields(config, other)), -new[other])
        )
        come.remove(nearest)
        yield ", ".join(_fields(config, nearest)) or "in other numbers"
    if gone:
        yield f"{count_of(len(gone), 'more configuration')} gone"
    if come:
        yield f"{count_of(len(come), 'more configuration')} new"


def _only_in(
    some: Counter[Configuration], others: Counter[Configuration]
) -> list[Configuration]:
    """The configurations that ``others`` lacks. If ``others`` lacks none, the configurations that are less frequent in
    ``others``."""
    lacking = [config for config in some if config not in others]
    return lacking or list(some - others)


def _fields(old: Configuration, new: Configuration) -> list[str]:
    """The fields that differ, as strings."""
    differing = []
    for name in ("grid", "block", "cluster", "registers", "shared"):
        before = _text(getattr(old, name))
        after = _text(getattr(new, name))
        if before != after:
            differing.append(f"{name} {before} -> {after}")
    return differing


def _text(value: int | Sequence[int]) -> str:
    if isinstance(value, int):
        return str(value)
    if len(value) == 3:
        return "x".join(map(str, value))
    return "+".join(map(str, value))
