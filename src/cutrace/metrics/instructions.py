"""Metrics of single instructions, which CUPTI calls SASS metrics: code is patched to count them while it runs, once."""

from __future__ import annotations

import ctypes
from difflib import get_close_matches

from ..errors import CutraceError
from .cupti import Cupti, CuptiError, SassMetric, address
from .host import Config, Metric

#: What is counted unless somebody says.
DEFAULT = "smsp__sass_inst_executed,smsp__sass_thread_inst_executed"
#: CUPTI does not say what these metrics count; their names do.
_COUNTED = {
    "inst_executed": "instruction", "branch_targets": "branch_target", "sectors": "l2_sector", "bytes": "byte",
    "wavefronts": "wavefront", "tags": "tag",
}  # fmt: skip


def metrics_of(cupti: Cupti, chip: str) -> list[Metric]:
    """The metrics of instructions of a chip, by name. Raises :class:`CutraceError` where CUPTI does not tell them."""
    try:
        cupti.call("ProfilerInitialize")
        count = cupti.call("SassMetricsGetNumOfMetrics", chip=chip.encode()).count
        found = (SassMetric * count)()
        cupti.call("SassMetricsGetMetrics", chip=chip.encode(), count=count, metrics=address(found))
    except CuptiError as error:
        raise CutraceError(
            f"{cupti.path} does not tell the metrics of instructions of {chip}: it needs the NVIDIA driver for that, "
            "and a GPU of compute capability 7.0 or later"
        ) from error
    described = [(metric.name.decode(), (metric.description or b"").decode()) for metric in found]
    return [
        Metric(name, "instruction", text, name.partition("__")[0], _counted(name)) for name, text in sorted(described)
    ]


def configure(cupti: Cupti, chip: str, text: str) -> Config:
    """How to count the metrics of ``NAME,...`` together. Raises :class:`CutraceError` for a name the chip lacks."""
    known = {metric.name: metric for metric in metrics_of(cupti, chip)}
    names = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else "`cutrace metrics list --lines` has all"
            raise CutraceError(f"{name} is no metric that {chip} can count by line: {hint}")
    if not names:
        raise CutraceError(f"{text!r} names no metrics: take names of `cutrace metrics list --lines`, with commas")
    return Config(tuple(names), tuple(known[name].values_in for name in names), ctypes.create_string_buffer(0), 1)


def _counted(name: str) -> str:
    return next((counted for part, counted in _COUNTED.items() if part in name), "")
