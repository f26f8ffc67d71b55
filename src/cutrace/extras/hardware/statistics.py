"""Statistics of hardware metrics and of PC samples."""

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
    """Make a function that reads rows from the trace of a view, with function names in the form of the user's
    choice."""
    return lambda view: uses(view.trace, view.collected.options.names)


def _range_metrics(view: View) -> Iterable[Any]:
    return range_metric_uses(view.trace)


def _metric_columns(kind: str, counted: str) -> tuple[StatisticColumn, ...]:
    return (
        text_column(kind, "name", doc=f"name of the {kind}"),
        text_column("metric", doc="name of the metric"),
        count_column(counted, "count", doc=f"counted {counted}"),
        number_column("mean", doc="mean of their values"),
        number_column("min", spare=True, doc="minimum"),
        number_column("max", spare=True, doc="maximum"),
        text_column("unit", doc="unit of mean, min and max"),
        text_column(
            "caches",
            spare=True,
            doc="whether the caches were flushed before each pass, or kept",
        ),
    )


_LINE = text_column(
    "line",
    "place.text",
    doc="file:line, or the offset in the function where the line is unknown",
)
_FUNCTION = text_column("function", "place.function", doc="device function")
_SAMPLES = (
    count_column("samples", doc="samples of program counters"),
    count_column(
        "not issued",
        "not_issued",
        doc="samples taken when the scheduler issued no instruction",
    ),
)

STATISTICS: tuple[Statistic, ...] = (
    Statistic(
        "kernel_metrics",
        "Hardware metrics of kernels",
        _measured(metric_uses),
        _metric_columns("kernel", "launches"),
        options=("names",),
        doc="What `cutrace profile` counted for each kernel. NaN and infinite values do not count.",
    ),
    Statistic(
        "range_metrics",
        "Hardware metrics of NVTX ranges",
        _range_metrics,
        _metric_columns("range", "ranges"),
        doc="What `cutrace profile --ranges` counted for each NVTX range.",
    ),
    Statistic(
        "instruction_line_sum",
        "Hardware metrics of instructions, by line of source",
        _measured(line_metrics),
        (
            column_of(
                "share", unit="1", doc="fraction of the metric's sum over all lines"
            ),
            number_column(
                "value",
                doc="sum over the instructions of the line and all counted launches",
            ),
            text_column("metric", doc="name of the metric"),
            text_column("unit", spare=True, doc="unit of the values"),
            _LINE,
            text_column(
                "file", "place.file", spare=True, doc="path of the source file"
            ),
            _FUNCTION,
            count_column("instructions", spare=True, doc="instructions of the line"),
            count_column(
                "launches", spare=True, doc="counted launches in which the function ran"
            ),
        ),
        options=("names",),
        doc="What `cutrace profile --lines` counted for each line of source.",
    ),
    Statistic(
        "pc_stall_sum",
        "PC samples by function and stall reason",
        _measured(stall_uses),
        (
            column_of("share", unit="1", doc="fraction of the samples of the function"),
            *_SAMPLES,
            text_column("stall", doc="stall reason, as CUPTI names it"),
            text_column("function", doc="device function"),
        ),
        options=("names",),
        doc="Why warps wait, by function and stall reason.",
    ),
    Statistic(
        "pc_line_sum",
        "PC samples by line",
        _measured(sampled_lines),
        (
            column_of("share", unit="1", doc="fraction of all samples"),
            *_SAMPLES,
            text_column(
                "stall", doc="stall reason of most warps, selected not counted"
            ),
            _LINE,
            _FUNCTION,
        ),
        options=("names",),
        doc="The lines of source at which warps were sampled, most samples first.",
    ),
)
