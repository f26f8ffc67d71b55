"""Rows of a comparison as a table to read, for the verbs that show them."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.metrics import METRICS
from ..golden import Interval, Row, Verdict
from ..golden.model import Stored, scoped
from ..units import format_duration, format_size, printable

_QUIET = (Verdict.CHANGED, Verdict.SAME)


def table(rows: Sequence[Row], *, head: tuple[str, ...] = ("metric", "golden", "now", "rule")) -> list[str]:
    """One line a row under a headline: metric, golden value, value now, rule, and what there is to say."""
    cells = [head] + [
        (scoped(row.region, row.metric), shown(row.metric, row.golden), shown(row.metric, row.now), row.rule)
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    remarks = ["", *map(_remark, rows)]
    return [
        printable(
            f"{line[0]:<{widths[0]}}  {line[1]:>{widths[1]}}  {line[2]:>{widths[2]}}  {line[3]:<{widths[3]}}  {remark}"
        ).rstrip()
        for line, remark in zip(cells, remarks, strict=True)
    ]


def shown(name: str, value: Stored | None) -> str:
    """A value with the unit of its metric; an interval as its median, counts by name as their sum."""
    if value is None:
        return "-"
    if isinstance(value, Interval):
        return format_duration(value.median)
    if isinstance(value, dict):
        return f"{sum(value.values()):,}"
    unit = METRICS[name].unit if name in METRICS else ""
    if unit == "bytes":
        return f"-{format_size(-round(value))}" if value < 0 else format_size(round(value))
    if unit == "ns":
        return format_duration(round(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _remark(row: Row) -> str:
    words = [row.verdict.value] if row.verdict not in _QUIET or not row.detail else []
    return " ".join([*words, *([row.detail] if row.detail else []), *(["(not gated)"] if not row.gated else [])])
