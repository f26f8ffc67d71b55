"""Statistics of hardware metrics and of samples of program counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...analysis.statistic import (
    Statistic,
    StatisticColumn,
    View,
    column_of,
    count_column,
    number_column,
    text_column,
)
from ...trace import Trace
from .kernel_metrics import metric_uses, range_metric_uses
from .sources import line_metrics, sampled_lines, stall_uses


def _measured(
    uses: Callable[[Trace, Callable[[str], str]], Iterable[Any]],
) -> Callable[[View], Iterable[Any]]:
    """Rows that are read from the trace, with the names of functions as the user wants them."""
    return lambda view: uses(view.trace, view.collected.options.names)


def _range_metrics(view: View) -> Iterable[Any]:
    return range_metric_uses(view.trace)


def _metric_columns(kind: str, counted: str) -> tuple[StatisticColumn, ...]:
    return (
        text_column(kind, "name"),
        text_column("metric"),
        count_column(counted, "count"),
        number_column("mean"),
        number_column("min"),
        number_column("max"),
        text_column("unit"),
        text_column("caches", spare=True),
    )


STATISTICS: tuple[Statistic, ...] = (
    Statistic(
        "kernel_metrics",
        "Hardware metrics of kernels",
        _measured(metric_uses),
        _metric_columns("kernel", "launches"),
        options=("names",),
    ),
    Statistic(
        "range_metrics",
        "Hardware metrics of NVTX ranges",
        _range_metrics,
        _metric_columns("range", "ranges"),
    ),
    Statistic(
        "instruction_line_sum",
        "Hardware metrics of instructions, by line of source",
        _measured(line_metrics),
        (
            column_of("share", unit="1"),
            number_column("value"),
            text_column("metric"),
            text_column("unit", spare=True),
            text_column("line", "place.text"),
            text_column("file", "place.file", spare=True),
            text_column("function", "place.function"),
            count_column("instructions", spare=True),
            count_column("launches", spare=True),
        ),
        options=("names",),
    ),
    Statistic(
        "pc_stall_sum",
        "PC samples by function and stall reason",
        _measured(stall_uses),
        (
            column_of("share", unit="1"),
            count_column("samples"),
            count_column("not issued", "not_issued"),
            text_column("stall"),
            text_column("function"),
        ),
        options=("names",),
    ),
    Statistic(
        "pc_line_sum",
        "PC samples by line",
        _measured(sampled_lines),
        (
            column_of("share", unit="1"),
            count_column("samples"),
            count_column("not issued", "not_issued"),
            text_column("stall"),
            text_column("line", "place.text"),
            text_column("function", "place.function"),
        ),
        options=("names",),
    ),
)
