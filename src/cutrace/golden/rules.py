"""The rules of comparison, parsed from options, markers and ini files.

A name is the name of a metric (``kernel_launches``, ``peak_memory``) or of a class of metrics (``work``, ``state``,
``counter``, ``time``). The name of a part or a breakdown selects its total: ``kernels`` selects ``kernel_launches``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, get_args

from ..analysis.definitions import METRICS, Metric, MetricClass
from ..errors import CutraceError, did_you_mean
from ..patterns import any_matcher, matcher
from ..units import parse_duration, parse_size
from .model import CODE, DIVIDED, Codes, find_metric, is_counter, total_of
from .values import Tolerance

#: Memory fails if it exceeds the golden value by more than this share and by more than this many bytes.
MEMORY_TOLERANCE = 0.02
MEMORY_FLOOR = 1 << 20
#: The share by which a time may exceed the golden interval.
TIME_TOLERANCE = 0.05

#: The modes of an update. ``missing`` adds missing values. ``changed`` also replaces values that differ, except worse
#: states and slower times. ``all`` replaces these too.
Mode = Literal["missing", "changed", "all"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: The word in a gate that lets a decrease of a gated metric fail a test.
_LESS = "less"
#: The metrics with names that ``ignore`` can leave out.
_BY_NAME = (*DIVIDED, CODE)
_KERNELS = "kernel_launches"
_CLASSES = {kind.value: kind for kind in MetricClass if kind is not MetricClass.INFO}
_SHARE = re.compile(
    r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)\s*(%?)", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True)
class Rules:
    """The rules by which a test is compared.

    ``gate`` has the metrics and classes that fail a test. ``tolerance`` has shares by metric or class (0.05 is 5 %).
    ``ignore`` has the metrics and classes to omit, and ``METRIC:PATTERN`` for names of a breakdown. ``own`` has
    patterns of the project's own kernels. Patterns are as in :mod:`cutrace.patterns`. With ``less`` in ``gate``, a
    decrease of a gated metric fails a test too.
    """

    gate: frozenset[str] = frozenset({"work", "counter"})
    tolerance: Mapping[str, float] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    @property
    def fail_less(self) -> bool:
        return _LESS in self.gate

    def gates(self, metric: Metric) -> bool:
        return _names_metric(self.gate, metric)

    def ignores(self, metric: Metric) -> bool:
        return _names_metric(self.ignore, metric)

    def without_ignored(self, total: str, value: Any) -> Any:
        """Counts or codes by name, without ignored names. Other values are unchanged."""
        if not self.ignore:
            return value
        of = {total}
        if total == CODE:
            of.add(_KERNELS)  # The code of an ignored kernel is ignored, too.
        patterns = []
        for word in self.ignore:
            metric, _, pattern = word.partition(":")
            if pattern and metric in of:
                patterns.append(pattern)
        if not patterns or not isinstance(value, dict | Codes):
            return value
        ignored = any_matcher(patterns)
        if isinstance(value, Codes):
            return value.of([name for name in value.by_kernel if not ignored(name)])
        return {name: count for name, count in value.items() if not ignored(name)}

    def owns(self, kernel: str) -> bool:
        return any_matcher(self.own)(kernel)

    def tolerance_of(self, metric: Metric) -> float:
        """The share by which a metric may exceed its golden value."""
        for name in (total_of(metric), metric.kind.value):
            if name in self.tolerance:
                return self.tolerance[name]
        if metric.kind is MetricClass.TIME:
            return TIME_TOLERANCE
        if _is_memory(metric):
            return MEMORY_TOLERANCE
        return metric.tolerance

    def tolerance_for(self, metric: Metric) -> Tolerance:
        """The tolerance of a metric. Memory and hardware counters have a tolerance in both directions."""
        share = self.tolerance_of(metric)
        if _is_memory(metric):
            return memory_tolerance(share)
        if metric.hardware and share:
            return Tolerance(share, share, metric.floor)
        return Tolerance(share)

    def label(self, metric: Metric) -> str:
        """The rule of a metric in tables: ``exact``, ``range``, ``+2 %``, ``5 %``."""
        share = self.tolerance_of(metric)
        if not share:
            if metric.kind is MetricClass.STATE:
                return "range"
            return "exact"
        percent = f"{share * 100:.4g} %"
        if metric.kind is MetricClass.TIME or metric.hardware:
            return percent
        return f"+{percent}"


DEFAULTS = Rules()


def _names_metric(names: Collection[str], metric: Metric) -> bool:
    """Whether names of metrics and classes include a metric."""
    if not names:
        return False
    return metric.kind.value in names or total_of(metric) in names


def _is_memory(metric: Metric) -> bool:
    return metric.kind is MetricClass.STATE and metric.unit == "bytes"


def memory_tolerance(share: float) -> Tolerance:
    """The tolerance of memory: a share in both directions, and at least 1 MiB."""
    return Tolerance(share, share, MEMORY_FLOOR)


@dataclass(frozen=True)
class Budget:
    """The limits of a test or of a region by full name of the metric.

    ``allowed`` are patterns of places, ``file:function`` or ``file:line``. Synchronising calls below a matching frame
    of Python do not count towards the limit of ``sync_calls``. ``reason`` is the reason for this exception.
    """

    limits: Mapping[str, int | float]
    allowed: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Update:
    """The values that an update replaces: its mode, and the metrics and classes to which it is limited (none: all)."""

    mode: Mode = "changed"
    only: frozenset[str] = frozenset()

    def takes(self, metric: Metric) -> bool:
        return not self.only or _names_metric(self.only, metric)


def parse_gate(value: str | Iterable[str]) -> frozenset[str]:
    """Parse metrics and classes such as ``"work,peak_memory"`` or ``["work", "peak_memory"]``; ``"none"`` means none.
    ``less`` stays as it is. Raises :class:`CutraceError` for unknown names."""
    names = _split(value)
    if names == ["none"]:
        return frozenset()
    if "none" in names:
        raise CutraceError(
            "'none' excludes other names: write either none or the metrics and classes to gate"
        )
    gate = set()
    for name in names:
        if name == _LESS:
            gate.add(name)
        else:
            gate.add(_target(name))
    return frozenset(gate)


def parse_ignore(value: str | Iterable[str]) -> tuple[str, ...]:
    """Parse ignored metrics, classes and names, such as ``"kernels:nccl*, allocations, state"``. Totals replace their
    parts. Raises :class:`CutraceError` for unknown names."""
    ignored: dict[str, None] = {}
    for name in _split(value):
        first, colon, pattern = name.partition(":")
        if colon and not pattern:
            raise CutraceError(
                f"{name!r} ignores nothing: write a pattern after the colon, such as kernels:nccl*"
            )
        if not colon and re.search(r"[*?\[]", name):
            raise CutraceError(
                f"{name!r} is not a metric: write kernels:{name} to ignore kernels by name"
            )
        total = _target(first)
        if colon and total not in _BY_NAME:
            raise CutraceError(
                f"{name!r}: only a metric that is counted by name takes a pattern, such as kernels"
            )
        matcher(pattern)  # raises an error for a wrong pattern
        ignored[f"{total}{colon}{pattern}"] = None
    return tuple(ignored)


def parse_own(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of the project's own kernels as a tuple. Raises :class:`CutraceError` for a wrong pattern."""
    own = tuple(patterns)
    any_matcher(own)
    return own


def parse_tolerance(
    given: str | Iterable[str] | Mapping[str, object],
) -> dict[str, float]:
    """Parse tolerances such as ``"kernel_time=10% work=0.05"``, several such strings, or ``{"kernel_time": 0.1}`` to
    shares by metric or class. Commas or spaces separate several tolerances in one string. Raises :class:`CutraceError`
    for other strings, and for a share above 100 % of counts."""
    tolerance = {}
    for name, share in shares(given):
        target = _target(name)
        if target == CODE:
            raise CutraceError(
                "code is equal or not, and has no tolerance: ignore kernels, such as code:nccl*"
            )
        if _counts(target):
            refuse_large_share(name, share)
        tolerance[target] = share
    return tolerance


def refuse_large_share(name: str, share: float) -> None:
    """Raise :class:`CutraceError` for a share of counts above 100 %."""
    if share > 1:
        raise CutraceError(
            f"a tolerance of {name} above 100 % gates nothing: write a share such as 0.05 or '5%'"
        )


def shares(
    given: str | Iterable[str] | Mapping[str, object],
) -> Iterator[tuple[str, float]]:
    """The names and shares of tolerances. Raises :class:`CutraceError` for other strings, and for a number above 1
    without a percent sign, because ``10`` could mean ``10%``."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Mapping):
        given = _assigned(given)
    for name, value in given.items():
        share = _share(value)
        if share is None:
            raise CutraceError(
                f"{value!r} is not a tolerance of {name}: write a share such as 0.05 or '5%'"
            )
        if share > 1 and "%" not in str(value):
            raise CutraceError(
                f"a tolerance of {name} of {value} would be {100 * share:,.0f} %: "
                f"write {value}%, or {share:.0%} if it is meant"
            )
        yield str(name), share


def _assigned(texts: Iterable[str]) -> dict[str, str]:
    """The shares by name of strings such as ``time=5%``."""
    assigned = {}
    for text in texts:
        # Spaces may be around the equals sign and before the percent sign.
        closed = re.sub(r"\s*=\s*", "=", text)
        closed = re.sub(r"\s+%", "%", closed)
        for word in closed.replace(",", " ").split():
            name, equals, share = word.partition("=")
            if not equals:
                raise CutraceError(
                    f"{name!r} is not a tolerance: write a name and a share, such as time=5%"
                )
            assigned[name] = share
    return assigned


def parse_limits(given: Mapping[str, object]) -> dict[str, int | float]:
    """Parse limits such as ``kernel_launches=3, peak_memory="64 MiB", kernel_time="20us"`` to counts, bytes or ns by
    the full name of the metric. Raises :class:`CutraceError` for other names and values."""
    limits = {}
    for name, value in given.items():
        metric = metric_named(name)
        limits[metric.name] = _limit(metric, value)
    return limits


def parse_budget(given: Mapping[str, object]) -> Budget:
    """Parse limits with the places whose synchronising calls do not count: ``sync_calls=0, allow=["mylib/io.py:*"],
    reason="reads the result back"``. Raises :class:`CutraceError` for an empty list and for a list without a reason or
    without a limit of ``sync_calls``."""
    values = dict(given)
    allow = values.pop("allow", None)
    reason = values.pop("reason", None)
    limits = parse_limits(values)
    if allow is None:
        if reason is not None:
            raise CutraceError(
                "reason belongs to allow: name the places of calls that may wait, or remove the reason"
            )
        return Budget(limits)
    places = _places(allow)
    if not isinstance(reason, str) or not reason.strip():
        raise CutraceError(
            'allow needs a reason: write why these calls may wait, reason="reads the result back"'
        )
    if "sync_calls" not in limits:
        raise CutraceError(
            "allow names calls that a limit of sync_calls does not count: write sync_calls=0 beside it"
        )
    return Budget(limits, places, reason.strip())


def _places(allow: object) -> tuple[str, ...]:
    """Patterns of places, from one or a list of them."""
    if isinstance(allow, str):
        allow = [allow]
    if not isinstance(allow, list | tuple) or not allow:
        raise CutraceError(
            f"allow={allow!r} names no place: write a list such as ['mylib/io.py:*'], or remove it"
        )
    for place in allow:
        if not isinstance(place, str):
            raise CutraceError(
                f"{place!r} is not a place: write a string such as 'mylib/io.py:*'"
            )
        matcher(place)  # raises an error for a wrong pattern
        if ":" not in place and not place.startswith("/"):
            raise CutraceError(
                f"{place!r} is not a place: write {place}:FUNCTION, {place}:LINE or {place}:*"
            )
    return tuple(allow)


def parse_update(value: str | Iterable[str]) -> Update:
    """Parse an update such as ``"all"``, ``"kernels,sync_calls"`` or ``"all,syncs"``: a mode, and the metrics and
    classes to which it is limited. Raises :class:`CutraceError` for others, and for an empty string."""
    names = _split(value)
    if not names:
        raise CutraceError(
            f"the value is empty: write one of {', '.join(MODES)}, or names of metrics and classes"
        )
    modes = [mode for mode in MODES if mode in names]
    only = frozenset(_target(name) for name in names if name not in MODES)
    if not modes:
        return Update(only=only)
    if len(modes) > 1:
        raise CutraceError(
            f"{' and '.join(modes)} exclude each other: write one of {', '.join(MODES)}"
        )
    return Update(modes[0], only)


def parse_counters(value: str | Iterable[str]) -> tuple[str, ...]:
    """Parse hardware counters such as ``"instructions,dram_bytes"`` or ``["sm__inst_executed.sum"]``. Raises
    :class:`CutraceError` for other names."""
    counters = [_counter(name) for name in _split(value)]
    return tuple(dict.fromkeys(counters))


def _counter(name: str) -> str:
    if is_counter(name):
        return name
    if "__" in name:
        base = name.partition(".")[0]
        raise CutraceError(
            f"{name!r} is not a count: end it with .sum, .min or .max, such as {base}.sum"
        )
    known = [metric.name for metric in METRICS.values() if metric.hardware]
    advice = f"write {', '.join(known)}, or a name from `cutrace metrics list`"
    hint = did_you_mean(name, known, advice, most=1)
    raise CutraceError(f"there is no hardware counter {name!r}: {hint}")


def metric_named(name: str) -> Metric:
    """The metric of this name, with or without its unit (``_ns``, ``_bytes``): ``peak_memory``. Raises
    :class:`CutraceError` for an unknown name."""
    stem = name.strip()
    for full in (stem, f"{stem}_ns", f"{stem}_bytes"):
        metric = find_metric(full)
        if metric is not None:
            return metric
    known = dict.fromkeys((*METRICS, *_CLASSES, *MODES))
    # Only updates have modes.
    known.pop(stem, None)
    hint = did_you_mean(stem, known, "the reference of the pytest plugin lists them.")
    raise CutraceError(f"there is no metric {name!r}: {hint}")


def _target(name: str) -> str:
    """The class of this name, or the total of the metric of this name."""
    stem = name.strip()
    if stem in _CLASSES:
        return stem
    metric = metric_named(name)
    if metric.kind is MetricClass.INFO:
        raise CutraceError(f"{metric.name} is never compared: name another metric")
    return total_of(metric)


def _counts(target: str) -> bool:
    """Whether the values of a class or metric are counts. Counts do not vary from run to run."""
    metric = find_metric(target)
    if metric is not None:
        target = metric.kind.value
    return target in (MetricClass.WORK.value, MetricClass.COUNTER.value)


def _split(value: str | Iterable[str]) -> list[str]:
    if isinstance(value, str):
        value = [value]
    words = []
    for text in value:
        for word in str(text).split(","):
            stripped = word.strip()
            if stripped:
                words.append(stripped)
    return words


def _share(value: object) -> float | None:
    """The share of ``0.05``, ``"0.05"`` or ``"5%"``; None for other values."""
    if isinstance(value, str):
        match = _SHARE.fullmatch(value.strip())
        if match is None:
            return None
        share = float(match[1])
        if match[2]:
            share /= 100
    elif _is_number(value):
        share = float(value)
    else:
        return None
    if 0 <= share < math.inf:
        return share
    return None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _limit(metric: Metric, value: object) -> int | float:
    if metric.kind is MetricClass.CODE:
        raise CutraceError("code is no number and cannot be limited: gate it instead")
    if metric.counts:
        raise CutraceError(
            f"{metric.name} has counts by name and cannot be limited: limit {metric.total} instead"
        )
    if _is_number(value) and 0 <= value < math.inf:
        return value
    if isinstance(value, str) and metric.unit == "bytes":
        return parse_size(value)
    if isinstance(value, str) and metric.unit == "ns":
        return parse_duration(value)
    units = {
        "bytes": "bytes, or a string such as '64 MiB'",
        "ns": "ns, or a string such as '20us'",
    }
    what = units.get(metric.unit, "times, from 0")
    raise CutraceError(
        f"{value!r} is not a limit of {metric.name}: write a number of {what}"
    )
