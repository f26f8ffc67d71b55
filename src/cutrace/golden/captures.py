"""What changed from one capture to another, without a golden file: kernels, API calls, copies, waits, memory.

Counts, bytes and launch configurations are exact; times scatter and are judged as those of golden files are, by
:mod:`.statistics`. docs/stats.md has the rules.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..analysis.distribution import NOTHING, Spread
from ..analysis.stats import Configuration, Stats
from ..errors import CutraceError
from . import statistics
from .compare import memory_verdict
from .model import Interval, Verdict
from .rules import MEMORY_TOLERANCE, TIME_TOLERANCE

#: The fields of :class:`.analysis.stats.Stats` that are compared.
PARTS = ("kernels", "configurations", "api", "memory_operations", "synchronizations", "graphs", "memory")
#: The sections of a comparison, with what they are called.
SECTIONS = {
    "kernels": "Kernels",
    "api": "API calls",
    "copies": "Copies and fills",
    "syncs": "Synchronisations",
    "graphs": "CUDA graphs, traced as a whole",
    "memory": "Memory (peak)",
}
# Memory that the program takes; the driver's own, such as the variables of modules, is left out.
_MEMORIES = ("device", "array", "managed", "pinned")
_PAIRS = 3
# What the GPU takes for it is a matter of the work; what a call takes is one of what it waits for.
_TIMED = ("kernels", "copies")


class Aspect(enum.Enum):
    """What can differ."""

    COUNTS = "counts"
    BYTES = "bytes"
    LAUNCHES = "launches"
    MEMORY = "memory"
    TIME = "time"


#: What is the same in every run of a program that does the same.
EXACT = frozenset({Aspect.COUNTS, Aspect.BYTES, Aspect.LAUNCHES})


@dataclass(frozen=True)
class Rules:
    """Which aspects fail a comparison, and by which share each may change before it counts as different. For times that
    is the tolerance of :func:`.statistics.change`."""

    fail_on: frozenset[Aspect] = EXACT
    tolerance: Mapping[Aspect, float] = field(default_factory=dict)

    def share(self, aspect: Aspect) -> float:
        default = {Aspect.MEMORY: MEMORY_TOLERANCE, Aspect.TIME: TIME_TOLERANCE}.get(aspect, 0.0)
        return self.tolerance.get(aspect, default)


#: What holds where nothing else is said.
DEFAULTS = Rules()


@dataclass(frozen=True)
class Side:
    """One capture's part of a row: how many, their times (ns), and their bytes (the peak in the section of memory)."""

    count: int = 0
    time: Spread = NOTHING
    bytes: int = 0


@dataclass(frozen=True)
class Change:
    """One name of a section in both captures. ``aspects`` are those that differ, ``verdict`` says it of the times,
    ``details`` are words on what else there is to know."""

    section: str
    name: str
    before: Side
    after: Side
    aspects: frozenset[Aspect]
    verdict: Verdict
    failed: bool
    details: tuple[str, ...] = ()

    @property
    def time_change(self) -> int:
        """How much more time (ns) all of them took."""
        return self.after.time.total - self.before.time.total


@dataclass(frozen=True)
class CaptureComparison:
    """All names of both captures, the most important changes first: those that fail, those that are exact, then by how
    much the total time changed."""

    rows: tuple[Change, ...]

    @property
    def failed(self) -> bool:
        return any(row.failed for row in self.rows)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The rows in which something differs."""
        return tuple(row for row in self.rows if row.aspects)


def parse_aspects(words: str) -> frozenset[Aspect]:
    """The aspects of ``counts,time``; ``exact`` are counts, bytes and launches, ``all`` all, ``none`` is none."""
    found: set[Aspect] = set()
    for word in (word.strip().lower() for word in words.split(",")):
        if word == "exact":
            found |= EXACT
        elif word == "all":
            found |= set(Aspect)
        elif word != "none":
            found.add(_aspect(word))
    return frozenset(found)


def parse_tolerances(texts: Iterable[str]) -> dict[Aspect, float]:
    """Shares by aspect, of texts such as ``time=10%`` and ``counts=0.01``."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        number, scale = (value[:-1], 100) if value.endswith("%") else (value, 1)
        try:
            share = float(number) / scale
        except ValueError:
            share = -1.0
        aspect = _aspect(name.strip().lower())
        if not equals or not 0 <= share < float("inf"):
            raise CutraceError(f"{text!r} is no tolerance: write an aspect and a share, such as time=5%")
        found[aspect] = share
    return found


def _aspect(word: str) -> Aspect:
    try:
        return Aspect(word)
    except ValueError:
        known = ", ".join(aspect.value for aspect in Aspect)
        raise CutraceError(f"{word!r} is nothing that can differ: write some of {known}") from None


def compare_captures(a: Stats, b: Stats, rules: Rules = DEFAULTS) -> CaptureComparison:
    """What changed from ``a`` to ``b``, collected with :data:`PARTS`."""
    before, after = _sides(a), _sides(b)
    shapes = _configurations(a), _configurations(b)
    rows = []
    for section in SECTIONS:
        for name in dict.fromkeys((*before[section], *after[section])):
            sides = before[section].get(name, Side()), after[section].get(name, Side())
            shape = (shapes[0].get(name), shapes[1].get(name)) if section == "kernels" else (None, None)
            rows.append(_row(section, name, *sides, *shape, rules))
    return CaptureComparison(tuple(sorted(rows, key=_importance)))


def _importance(row: Change) -> tuple[object, ...]:
    count = abs(row.after.count - row.before.count)
    return (not row.failed, not row.aspects & EXACT, not row.aspects, -abs(row.time_change), -count, row.name)


def _sides(stats: Stats) -> dict[str, dict[str, Side]]:
    peaks: Counter[str] = Counter()
    for use in stats.memory:
        if use.memory in _MEMORIES:
            peaks[use.memory] += use.peak
    graphs = sum(graph.time.count for graph in stats.graphs)
    return {
        "kernels": {k.name: Side(k.time.count, k.time) for k in stats.kernels},
        "api": {
            name: side
            for call in stats.api
            for name, side in (
                (call.name, Side(call.time.count, call.time)),
                (f"{call.name} (failed)", Side(call.failed)),
            )
            if side.count
        },
        "copies": {m.name: Side(m.time.count, m.time, m.bytes.total) for m in stats.memory_operations},
        "syncs": {s.name: Side(s.time.count, s.time) for s in stats.synchronizations},
        # Numbers of graphs differ from run to run.
        "graphs": {"launches": Side(graphs)} if graphs else {},
        "memory": {name: Side(bytes=peak) for name, peak in peaks.items()},
    }


def _row(
    section: str,
    name: str,
    before: Side,
    after: Side,
    old: Counter[Configuration] | None,
    new: Counter[Configuration] | None,
    rules: Rules,
) -> Change:
    aspects = set()
    details = list(_presence(before, after)) if section != "memory" else []
    if _differs(before.count, after.count, rules.share(Aspect.COUNTS)):
        aspects.add(Aspect.COUNTS)
    if section == "memory":
        if memory_verdict(before.bytes, after.bytes, rules.share(Aspect.MEMORY)) is not Verdict.SAME:
            aspects.add(Aspect.MEMORY)
    elif _differs(before.bytes, after.bytes, rules.share(Aspect.BYTES)):
        aspects.add(Aspect.BYTES)
    if old and new and _launched_differently(old, new):
        aspects.add(Aspect.LAUNCHES)
        details += _differences(old, new)
    verdict = Verdict.SAME
    if section in _TIMED and before.time.count and after.time.count:
        verdict = statistics.change(_interval(before.time), _interval(after.time), rules.share(Aspect.TIME))
        if verdict in (Verdict.SLOW, Verdict.FAST):
            aspects.add(Aspect.TIME)
            details.append("slower" if verdict is Verdict.SLOW else "faster")
    failing = frozenset(aspects) & rules.fail_on
    if verdict is Verdict.FAST:
        failing -= {Aspect.TIME}
    if Aspect.MEMORY in failing and after.bytes < before.bytes:
        failing -= {Aspect.MEMORY}
    return Change(section, name, before, after, frozenset(aspects), verdict, bool(failing), tuple(details))


def _presence(before: Side, after: Side) -> Iterator[str]:
    if not before.count:
        yield "new"
    elif not after.count:
        yield "gone"


def _differs(before: int, after: int, share: float) -> bool:
    return abs(after - before) > share * before


def _interval(time: Spread) -> Interval:
    return Interval(time.min, round(time.median), round(time.q3), time.count)


# Launch configurations


def _configurations(stats: Stats) -> dict[str, Counter[Configuration]]:
    found: dict[str, Counter[Configuration]] = {}
    for use in stats.configurations:
        found.setdefault(use.configuration.name, Counter())[use.configuration] += use.time.count
    return found


def _launched_differently(old: Counter[Configuration], new: Counter[Configuration]) -> bool:
    """Among as many launches each configuration has to be as frequent, else the configurations have to be the same."""
    return old != new if old.total() == new.total() else old.keys() != new.keys()


def _differences(old: Counter[Configuration], new: Counter[Configuration]) -> Iterator[str]:
    """What changed, field by field, where configurations that went have a successor."""
    gone = [c for c in old if c not in new] or list(old - new)
    come = [c for c in new if c not in old] or list(new - old)
    for config in sorted(gone, key=lambda c: -old[c])[: min(_PAIRS, len(come))]:
        nearest = min(come, key=lambda c: (len(_fields(config, c)), -new[c]))
        come.remove(nearest)
        gone.remove(config)
        yield ", ".join(_fields(config, nearest)) or "in other numbers"
    more = [f"{len(part)} more configurations {words}" for part, words in ((gone, "gone"), (come, "new")) if part]
    yield from more


def _fields(old: Configuration, new: Configuration) -> list[str]:
    words = []
    for name in ("grid", "block", "cluster", "registers", "shared"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            words.append(f"{name} {_text(before)} -> {_text(after)}")
    return words


def _text(value: int | Sequence[int]) -> str:
    if isinstance(value, int):
        return str(value)
    return "x".join(map(str, value)) if len(value) == 3 else "+".join(map(str, value))
