"""The comparison of one value with the expected one."""

from __future__ import annotations

from typing import Any

import pytest

from cutrace.analysis.definitions import METRICS
from cutrace.golden import Span
from cutrace.golden.statistics import interval
from cutrace.golden.values import Tolerance, compare_values

MIB = 1 << 20
ABOVE = Tolerance(0.1)
BOTH = Tolerance(0.1, 0.1)
CASES: list[tuple[str, Any, Any, Tolerance, str]] = [
    # Counts
    ("memset_count", 2, 2, Tolerance(), "SAME"),
    ("memset_count", 2, 3, Tolerance(), "CHANGED"),
    ("memset_count", 2, 1, Tolerance(), "BETTER"),
    ("memset_count", 100, 110, ABOVE, "SAME"),
    ("memset_count", 100, 111, ABOVE, "CHANGED"),
    ("memset_count", 100, 95, ABOVE, "BETTER"),
    ("memset_count", 100, 90, BOTH, "SAME"),
    ("memset_count", 100, 89, BOTH, "BETTER"),
    ("memset_count", 100, 103, Tolerance(floor=3), "SAME"),
    ("memset_count", 100, 96, Tolerance(floor=3), "BETTER"),
    # Alternatives
    ("memset_count", (1, 4), 4, Tolerance(), "SAME"),
    ("memset_count", (1, 4), 2, Tolerance(), "CHANGED"),
    ("memset_count", (1, 4), 2, ABOVE, "SAME"),
    ("memset_count", (1, 4), 0, Tolerance(), "BETTER"),
    # Counts by name
    ("kernel_launches", {"a": 1, "b": 3}, {"a": 1, "b": 3}, Tolerance(), "SAME"),
    ("kernel_launches", {"a": 1, "b": 3}, {"a": 2}, Tolerance(), "CHANGED"),
    ("kernel_launches", {"a": 1, "b": 3}, {"b": 3}, Tolerance(), "BETTER"),
    ("kernel_launches", {"a": 10}, {"a": 10, "b": 1}, ABOVE, "SAME"),
    ("kernel_launches", {"a": 10}, {"a": 10, "b": 2}, ABOVE, "CHANGED"),
    ("kernel_launches", {"a": 10}, {"b": 9}, ABOVE, "BETTER"),
    # States
    ("allocations", 3, 4, Tolerance(), "WORSE"),
    ("allocations", Span(1, 3), 2, Tolerance(), "SAME"),
    ("allocations", Span(2, 3), 1, Tolerance(), "BETTER"),
    ("frees", Span(2, 3), 1, Tolerance(), "WORSE"),
    ("peak_memory_bytes", 8 * MIB, 9 * MIB, Tolerance(floor=MIB), "SAME"),
    ("peak_memory_bytes", 8 * MIB, 9 * MIB + 1, Tolerance(floor=MIB), "WORSE"),
    ("peak_memory_bytes", 8 * MIB, 7 * MIB - 1, Tolerance(floor=MIB), "BETTER"),
    # Times
    ("kernel_time_ns", interval([10_000]), interval([30_000]), Tolerance(), "SLOW"),
    ("kernel_time_ns", interval([30_000]), interval([10_000]), Tolerance(), "FAST"),
    ("kernel_time_ns", interval([30_000]), 10_000, Tolerance(), "AMBIGUOUS"),
]


@pytest.mark.parametrize(("name", "expected", "measured", "tolerance", "verdict"), CASES)
def test_a_value_has_a_verdict(name: str, expected: Any, measured: Any, tolerance: Tolerance, verdict: str) -> None:
    result = compare_values(METRICS[name], expected, measured, tolerance)
    assert result.verdict.value == verdict
    assert result.differs is (verdict != "SAME")
