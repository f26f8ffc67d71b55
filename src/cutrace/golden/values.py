"""Compare one expected value of a metric with a measured one.

Golden files, updates, differences of golden files, captures and reports of jobs all compare values here. They differ
only in their tolerances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..analysis.definitions import Metric, MetricClass
from ..units import first_of, format_size
from . import statistics
from .codes import changed_codes
from .model import (
    Codes,
    Count,
    Interval,
    Parts,
    Span,
    Stored,
    Verdict,
    alternatives,
    amount,
)

#: The maximum of names in a detail. Other names are counted.
LISTED = 6


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference of a value from the expected value: a share ``above`` it, a share ``below`` it, and the
    number ``floor`` in both directions. By default each difference counts. For a time only ``above`` is used."""

    above: float = 0.0
    below: float = 0.0
    floor: float = 0

    def room_above(self, value: float) -> float:
        return max(self.above * abs(value), self.floor)

    def room_below(self, value: float) -> float:
        return max(self.below * abs(value), self.floor)


EXACT = Tolerance()


@dataclass(frozen=True)
class ValueResult:
    """The verdict on a measured value, and a string with the differences. The expected counts of the names in
    ``unknown`` are not known."""

    verdict: Verdict
    detail: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return self.verdict is not Verdict.SAME


_SAME = ValueResult(Verdict.SAME)


def compare_values(
    metric: Metric, expected: Stored, measured: Any, tolerance: Tolerance = EXACT
) -> ValueResult:
    """Compare an expected value of a metric with a measured value. If the measured value is a range or has
    alternatives, its highest value is compared."""
    if metric.kind is MetricClass.TIME:
        return _compare_times(expected, measured, tolerance)
    if metric.kind is MetricClass.STATE:
        return _compare_states(metric, expected, measured, tolerance)
    if isinstance(expected, Codes):
        return _compare_codes(expected, measured)
    if isinstance(expected, dict):
        if isinstance(measured, Mapping):
            return _compare_parts(metric, expected, measured, tolerance)
        expected = amount(expected) or 0
    assert isinstance(expected, int | tuple)
    return _compare_counts(expected, amount(measured) or 0, tolerance)


def _compare_times(
    expected: Stored, measured: Any, tolerance: Tolerance
) -> ValueResult:
    if isinstance(expected, Interval) and isinstance(measured, Interval):
        return ValueResult(statistics.change(expected, measured, tolerance.above))
    return ValueResult(Verdict.AMBIGUOUS, "not comparable")


def _compare_states(
    metric: Metric, expected: Stored, measured: Any, tolerance: Tolerance
) -> ValueResult:
    """Compare a state with the expected value or range."""
    most = amount(expected) or 0
    least = most
    if isinstance(expected, Span):
        least = expected.min
    value = amount(measured) or 0
    if value > most + tolerance.room_above(most):
        return ValueResult(Verdict.WORSE)
    if value >= least - tolerance.room_below(most):
        return _SAME
    if metric.name.endswith("frees"):
        return ValueResult(Verdict.WORSE)  # Fewer frees may be a leak.
    return ValueResult(Verdict.BETTER)


def _compare_codes(expected: Codes, measured: Any) -> ValueResult:
    """Compare the code of kernels. A kernel on one side only is a difference, too."""
    now: Mapping[str, tuple[str, ...]] = {}
    if isinstance(measured, Codes):
        now = measured.by_kernel
    detail = changed_codes(expected.by_kernel, now)
    if detail:
        return ValueResult(Verdict.CHANGED, detail)
    return _SAME


def _compare_parts(
    metric: Metric,
    expected: Parts,
    parts: Mapping[str, Count],
    tolerance: Tolerance,
) -> ValueResult:
    """Compare counts by name. A tolerance applies to their sum."""
    detail = changed_parts(expected, parts, metric.unit)
    if not detail:
        return _SAME
    if tolerance.above:
        before = amount(expected) or 0
        now = amount(parts) or 0
        if now < before:
            return ValueResult(Verdict.BETTER, detail)
        if now <= before * (1 + tolerance.above):
            return ValueResult(Verdict.SAME, detail)
        return ValueResult(Verdict.CHANGED, detail)
    for name, count in parts.items():
        if is_more(expected.get(name, 0), count):
            return ValueResult(Verdict.CHANGED, detail)
    return ValueResult(Verdict.BETTER, detail)


def _compare_counts(expected: Count, count: int, tolerance: Tolerance) -> ValueResult:
    accepted = alternatives(expected)
    for one in accepted:
        if abs(count - one) <= tolerance.room_below(one):
            return _SAME
    if is_more(expected, count, tolerance.above):
        return ValueResult(Verdict.CHANGED)
    if count > min(accepted):
        return _SAME
    return ValueResult(Verdict.BETTER)


def is_more(expected: Count, measured: Count, share: float = 0.0) -> bool:
    """Whether a count exceeds the expected count by more than this share. Without a share, a count between two
    alternatives exceeds the lower alternative."""
    accepted = alternatives(expected)
    most = max(accepted)
    count = amount(measured) or 0
    if count > most * (1 + share):
        return True
    return not share and min(accepted) < count < most


def changed_parts(
    expected: Mapping[str, Count], measured: Mapping[str, Count], unit: str = ""
) -> str:
    """The names whose counts differ, increases first: ``+ fill, - gemm x2 (gone)``; bytes as sizes."""
    increases = []
    decreases = []
    for name in sorted({**expected, **measured}):
        before = expected.get(name, 0)
        now = amount(measured.get(name)) or 0
        if now in alternatives(before):
            continue
        text = _part_change(name, max(alternatives(before)), now, unit)
        if is_more(before, now):
            increases.append(text)
        else:
            decreases.append(text)
    return ", ".join(first_of(increases + decreases, LISTED))


def _part_change(name: str, before: int, now: int, unit: str) -> str:
    """The change of one name as a string: ``- gemm x2 (gone)``; bytes as sizes."""
    if unit == "bytes":
        return f"{name} {format_size(before)} -> {format_size(now)}"
    text = f"+ {name}"
    if now < before:
        text = f"- {name}"
    by = abs(now - before)
    if by > 1:
        text += f" x{by}"
    if now == 0:
        return f"{text} (gone)"
    if before:
        return text
    return f"{text} (new)"
