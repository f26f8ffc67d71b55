"""Metrics of single instructions (CUPTI's SASS metrics). CUPTI patches the code of kernels, so that they count while
they run once."""

from __future__ import annotations

import ctypes

from ...errors import CutraceError, did_you_mean
from ...units import parse_words
from .cupti import Cupti, CuptiError, SassMetric, address
from .host import ChipMetric, Config

#: The default metrics.
DEFAULT = "smsp__sass_inst_executed,smsp__sass_thread_inst_executed"
#: The descriptions of metrics, by a part of their names. CUPTI has no descriptions of these metrics.
_COUNTED = {
    "inst_executed": "instruction",
    "branch_targets": "branch_target",
    "sectors": "l2_sector",
    "bytes": "byte",
    "wavefronts": "wavefront",
    "tags": "tag",
}


def metrics_of(cupti: Cupti, chip: str) -> list[ChipMetric]:
    """The instruction metrics of a chip, sorted by name. Raises :class:`CutraceError` if CUPTI cannot list them."""
    try:
        cupti.call("ProfilerInitialize")
        count = cupti.call("SassMetricsGetNumOfMetrics", chip=chip.encode()).count
        metrics = (SassMetric * count)()
        cupti.call(
            "SassMetricsGetMetrics",
            chip=chip.encode(),
            count=count,
            metrics=address(metrics),
        )
    except CuptiError as error:
        raise CutraceError(
            f"{cupti.path} cannot list the instruction metrics of {chip}: install the NVIDIA driver, and use a GPU of "
            "compute capability 7.0 or later"
        ) from error
    described = []
    for metric in metrics:
        name = metric.name.decode()
        text = (metric.description or b"").decode()
        unit, _, _ = name.partition("__")
        described.append(ChipMetric(name, "instruction", text, unit, _counted(name)))
    return sorted(described, key=lambda metric: metric.name)


def configure(cupti: Cupti, chip: str, text: str) -> Config:
    """The configuration to count the metrics in ``text`` (``NAME,...``) together. Raises :class:`CutraceError` for a
    name that the chip lacks, or without names."""
    known = {metric.name: metric for metric in metrics_of(cupti, chip)}
    names = parse_words(text)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "`cutrace metrics list --lines` lists all")
            raise CutraceError(f"{chip} has no metric {name} to count by line: {hint}")
    if not names:
        raise CutraceError(
            f"{text!r} names no metrics: give names from `cutrace metrics list --lines`, with commas"
        )
    return Config(
        tuple(names),
        tuple(known[name].values_in for name in names),
        ctypes.create_string_buffer(0),
        1,
    )


def _counted(name: str) -> str:
    for part, counted in _COUNTED.items():
        if part in name:
            return counted
    return ""
