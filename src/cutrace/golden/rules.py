"""What is compared and how strictly: the words of options, markers and ini files, understood and checked.

A word names a metric (``kernel_launches``, ``peak_memory``) or a class of them (``work``, ``state``, ``counter``,
``time``). A metric that is a part or a breakdown stands for its total: ``kernels`` for ``kernel_launches``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

from ..analysis.definitions import METRICS, Metric, MetricClass
from ..errors import CutraceError
from ..units import parse_duration, parse_size
from .model import DIVIDED, is_counter, metric, total_of

#: Memory fails above both: this share more than was seen, and this many bytes more.
MEMORY_TOLERANCE = 0.02
MEMORY_FLOOR = 1 << 20
#: How much slower than the golden interval a time may be.
TIME_TOLERANCE = 0.05

#: ``missing`` adds what is not written down; ``changed`` also replaces what differs, but more of a state or a slower
#: time only ``all`` does; ``widen`` keeps what is written and adds what was measured as an alternative.
Mode = Literal["missing", "changed", "all", "widen"]
MODES: tuple[Mode, ...] = get_args(Mode)

_CLASSES = {kind.value: kind for kind in MetricClass if kind is not MetricClass.INFO}
_SHARE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)\s*(%?)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Rules:
    """How a test is compared.

    ``gate`` has the metrics and classes that fail a test; ``tolerance`` shares by metric or class (0.05 is 5 %);
    ``ignore`` metrics and classes that are left out, and ``METRIC:PATTERN`` for names of a breakdown (patterns as of
    file names, upper and lower case being different); ``own`` patterns of the kernels that the project calls its own.
    ``fail_less``: doing less fails too; ``strict``: so does what has no golden value.
    """

    gate: frozenset[str] = frozenset({"work", "counter"})
    tolerance: Mapping[str, float] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    fail_less: bool = False
    strict: bool = False

    def gates(self, found: Metric) -> bool:
        return not {found.kind.value, total_of(found)}.isdisjoint(self.gate)

    def ignores(self, found: Metric) -> bool:
        return not {found.kind.value, total_of(found)}.isdisjoint(self.ignore)

    def patterns(self, total: str) -> tuple[str, ...]:
        """The patterns of names that do not count in a total."""
        return tuple(word.partition(":")[2] for word in self.ignore if word.startswith(f"{total}:"))

    def owns(self, kernel: str) -> bool:
        return any(fnmatchcase(kernel, pattern) for pattern in self.own)

    def tolerance_of(self, found: Metric) -> float:
        """The share by which a metric may exceed its golden value."""
        default = TIME_TOLERANCE if found.kind is MetricClass.TIME else 0.0
        if found.kind is MetricClass.STATE and found.unit == "bytes":
            default = MEMORY_TOLERANCE
        if found.hardware:
            default = found.tolerance
        return self.tolerance.get(total_of(found), self.tolerance.get(found.kind.value, default))

    def words(self, found: Metric) -> str:
        """The rule of a metric in a table: ``exact``, ``+2 %``, ``5 %``."""
        share = self.tolerance_of(found)
        if not share:
            return "range" if found.kind is MetricClass.STATE else "exact"
        both_ways = found.kind is MetricClass.TIME or found.hardware
        return f"{'' if both_ways else '+'}{share * 100:.4g} %"


#: What holds where nothing else is said.
DEFAULTS = Rules()


@dataclass(frozen=True)
class Update:
    """What an update replaces: its mode, and the metrics and classes that it is limited to (none: all)."""

    mode: Mode = "changed"
    only: frozenset[str] = frozenset()

    def takes(self, found: Metric) -> bool:
        return not self.only or not self.only.isdisjoint({found.kind.value, total_of(found)})


def parse_gate(words: str | Iterable[str]) -> frozenset[str]:
    """The metrics and classes of ``"work,peak_memory"`` or ``["work", "peak_memory"]``; ``"none"`` is nothing."""
    names = _listed(words)
    if "none" in names and len(names) > 1:
        raise CutraceError("'none' stands alone: write it, or the metrics and classes that are gated")
    return frozenset(_word(name) for name in names if name != "none")


def parse_ignore(words: str | Iterable[str]) -> tuple[str, ...]:
    """What ``"kernels:nccl*, allocations, state"`` leaves out, with the names of totals for those of metrics."""
    found = []
    for name in _listed(words):
        first, colon, pattern = name.partition(":")
        if colon and not pattern:
            raise CutraceError(f"{name!r} ignores nothing: write a pattern behind the colon, such as kernels:nccl*")
        if not colon and re.search(r"[*?\[]", name):
            raise CutraceError(f"{name!r} names no metric: write kernels:{name} to leave out kernels of such names")
        total = _word(first)
        if colon and total not in DIVIDED:
            raise CutraceError(f"{name!r}: only a metric that is counted by name takes a pattern, such as kernels")
        found.append(f"{total}:{pattern}" if colon else total)
    return tuple(dict.fromkeys(found))


def parse_tolerance(given: str | Iterable[str] | Mapping[str, object]) -> dict[str, float]:
    """Tolerances of ``"kernel_time=10% work=0.05"``, of such texts, or of ``{"kernel_time": 0.1}``: shares by metric or
    class. Several in one text are divided by commas or spaces."""
    pairs: list[tuple[str, object]] = []
    if isinstance(given, Mapping):
        pairs = [(str(name), value) for name, value in given.items()]
    else:
        for word in (word for text in ([given] if isinstance(given, str) else given) for word in _assignments(text)):
            name, equals, text = word.partition("=")
            if not equals:
                raise CutraceError(f"{word!r} is no tolerance: write a metric and a share, such as kernel_time=5%")
            pairs.append((name, text))
    found = {}
    for name, value in pairs:
        target, share = _word(name), share_of(value)
        if share is None:
            raise CutraceError(f"{value!r} is no tolerance of {name.strip()}: write a share such as 0.05, or '5%'")
        found[target] = share
    return found


def parse_limits(given: Mapping[str, object]) -> dict[str, int | float]:
    """The budgets of ``gpu_limit(kernel_launches=3, peak_memory="64 MiB", kernel_time="20us")`` by the full names of
    metrics: counts, bytes, ns."""
    return {found.name: _limit(found, value) for name, value in given.items() for found in [metric_named(name)]}


def parse_update(words: str | Iterable[str]) -> Update:
    """The update of ``"all"``, ``"kernels,sync_calls"`` or ``"widen,syncs"``: a mode, and what it is limited to."""
    names = _listed(words)
    modes = [mode for mode in MODES if mode in names]
    if len(modes) > 1:
        raise CutraceError(f"{' and '.join(modes)} cannot be one update: write one of {', '.join(MODES)}")
    return Update(modes[0] if modes else "changed", frozenset(_word(name) for name in names if name not in MODES))


def parse_counters(words: str | Iterable[str]) -> tuple[str, ...]:
    """The hardware counters of ``"instructions,dram_bytes"`` or ``["sm__inst_executed.sum"]``. Raises
    :class:`CutraceError` for a name that is no count of the hardware."""
    return tuple(dict.fromkeys(map(_counter, _listed(words))))


def _counter(name: str) -> str:
    if is_counter(name):
        return name
    if "__" in name:
        base = name.partition(".")[0]
        raise CutraceError(f"{name!r} is no count: end it with .sum, .min or .max, such as {base}.sum")
    known = [found.name for found in METRICS.values() if found.hardware]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"write {', '.join(known)}, or a name of `cutrace metrics list`"
    raise CutraceError(f"there is no hardware counter {name!r}: {hint}")


def metric_named(name: str) -> Metric:
    """The metric of this name; its unit (``_ns``, ``_bytes``) may be left away: ``peak_memory``. Raises
    :class:`CutraceError` for a name that no metric has."""
    wanted = name.strip()
    for full in (wanted, f"{wanted}_ns", f"{wanted}_bytes"):
        if (found := metric(full)) is not None:
            return found
    close = difflib.get_close_matches(wanted, (*METRICS, *_CLASSES, *MODES), 3)
    hint = f"did you mean {' or '.join(close)}?" if close else "docs/metrics.md lists them."
    raise CutraceError(f"there is no metric {name!r}: {hint}")


def _word(name: str) -> str:
    """A class, or the total that a metric counts in."""
    if name.strip() in _CLASSES:
        return name.strip()
    found = metric_named(name)
    if found.kind is MetricClass.INFO:
        raise CutraceError(f"{found.name} is never compared: name another metric")
    return total_of(found)


def _listed(words: str | Iterable[str]) -> list[str]:
    texts = [words] if isinstance(words, str) else words
    return [word.strip() for text in texts for word in str(text).split(",") if word.strip()]


def _assignments(text: str) -> list[str]:
    """``metric=share`` by ``metric=share``, however they are spaced."""
    return [word for word in re.split(r"[,\s]+", re.sub(r"\s*=\s*|\s+(?=%)", lambda m: m[0].strip(), text)) if word]


def share_of(value: object) -> float | None:
    """The share of ``0.05``, ``"0.05"`` or ``"5%"``, None for anything else."""
    share = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    elif isinstance(value, str) and (match := _SHARE.fullmatch(value.strip())):
        share = float(match[1]) / (100 if match[2] else 1)
    return share if 0 <= share < float("inf") else None


def _limit(found: Metric, value: object) -> int | float:
    if found.counts:
        raise CutraceError(f"{found.name} counts by name and has no limit: limit {found.total} instead")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return value
    if isinstance(value, str) and found.name.endswith(("_bytes", "_ns")):
        return (parse_size if found.name.endswith("_bytes") else parse_duration)(value)
    kind = {"_bytes": "bytes, or a text such as '64 MiB'", "_ns": "ns, or a text such as '20us'"}
    what = next((words for ending, words in kind.items() if found.name.endswith(ending)), "times, from 0")
    raise CutraceError(f"{value!r} is no limit of {found.name}: write a number of {what}")
