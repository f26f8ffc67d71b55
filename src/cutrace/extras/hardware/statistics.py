"""Statistics of hardware metrics and of samples of program counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...analysis.reports import (
    ReportSpec,
    View,
    column_of,
    count_column,
    number_column,
    statistic,
    text_column,
)
from ...trace import Trace
from .kernel_metrics import metric_uses, range_metric_uses
from .sources import line_metrics, sampled_lines, stall_uses

_NAMES = ("names",)


def _measured(
    uses: Callable[[Trace, Callable[[str], str]], Iterable[Any]],
) -> Callable[[View], Iterable[Any]]:
    """Rows that are read from the trace, with the names of functions as the user wants them."""
    return lambda view: uses(view.trace, view.stats.options.names)


STATISTICS: tuple[ReportSpec, ...] = (
    statistic(
        "kernel_metrics",
        "Hardware metrics of kernels",
        (),
        text_column("kernel", "name"),
        text_column("metric"),
        count_column("launches", "count"),
        *(number_column(name) for name in ("mean", "min", "max")),
        text_column("unit"),
        rows=_measured(metric_uses),
        options=_NAMES,
    ),
    statistic(
        "range_metrics",
        "Hardware metrics of NVTX ranges",
        (),
        text_column("range", "name"),
        text_column("metric"),
        count_column("ranges", "count"),
        *(number_column(name) for name in ("mean", "min", "max")),
        text_column("unit"),
        rows=lambda view: range_metric_uses(view.trace),
    ),
    statistic(
        "instruction_line_sum",
        "Hardware metrics of instructions, by line of source",
        (),
        column_of("share", unit="1"),
        number_column("value"),
        text_column("metric"),
        text_column("unit", spare=True),
        text_column("line", "place.text"),
        text_column("file", "place.file", spare=True),
        text_column("function", "place.function"),
        count_column("instructions", spare=True),
        count_column("launches", spare=True),
        rows=_measured(line_metrics),
        options=_NAMES,
    ),
    statistic(
        "pc_stall_sum",
        "PC samples by function and stall reason",
        (),
        column_of("share", unit="1"),
        count_column("samples"),
        count_column("not issued", "not_issued"),
        text_column("stall"),
        text_column("function"),
        rows=_measured(stall_uses),
        options=_NAMES,
    ),
    statistic(
        "pc_line_sum",
        "PC samples by line",
        (),
        column_of("share", unit="1"),
        count_column("samples"),
        count_column("not issued", "not_issued"),
        text_column("stall"),
        text_column("line", "place.text"),
        text_column("function", "place.function"),
        rows=_measured(sampled_lines),
        options=_NAMES,
    ),
)
