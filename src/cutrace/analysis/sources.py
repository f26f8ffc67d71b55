"""Metrics of ``cutrace profile --lines`` and PC samples by stall reason, for source lines and for instructions without
line information."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ..trace import Trace
from .instructions import Place, line_metrics
from .names import normalize_kernel
from .pc_samples import sampled_lines


@dataclass
class Heat:
    """The measurements of a line or an instruction: ``values`` by metric and ``samples`` by stall reason."""

    values: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    functions: set[str] = field(default_factory=set)

    @property
    def sampled(self) -> int:
        """The number of samples."""
        return self.samples.total()


@dataclass
class MeasuredSource:
    """A file with its measured lines by number. If ``file`` is empty, a function with its instructions by offset
    (bytes)."""

    file: str
    function: str
    heats: dict[int, Heat] = field(default_factory=lambda: defaultdict(Heat))
    total: Heat = field(default_factory=Heat)


@dataclass
class Sources:
    """The sources of a trace. ``metrics`` has the units of the counted metrics, in the order of the request. Their
    values are sums over at most ``launches``."""

    files: list[MeasuredSource] = field(default_factory=list)
    total: Heat = field(default_factory=Heat)
    metrics: dict[str, str] = field(default_factory=dict)
    launches: int = 0

    def weight(self, heat: Heat) -> tuple[float, ...]:
        """The sort key of the hottest code: the samples, then the metrics."""
        return heat.sampled, *(heat.values[metric] for metric in self.metrics)


def sources(trace: Trace, names: Callable[[str], str] = normalize_kernel) -> Sources:
    """The measurements of each line and instruction of a trace, hottest source first."""
    result = Sources()
    by_name: dict[tuple[str, str], MeasuredSource] = {}

    def of(place: Place) -> tuple[Heat, ...]:
        file, function = (place.file, "") if place.file else ("", place.function)
        source = by_name.setdefault((file, function), MeasuredSource(file, function))
        heat = source.heats[place.line if file else place.offset]
        heat.functions.add(place.function)
        return heat, source.total, result.total

    for use in line_metrics(trace, names):
        result.metrics[use.metric] = use.unit
        result.launches = max(result.launches, use.launches)
        for heat in of(use.place):
            heat.values[use.metric] += use.value  # type: ignore[assignment]
    for line in sampled_lines(trace, names):
        for heat in of(line.place):
            heat.samples.update(line.stalls)
    result.files = sorted(by_name.values(), key=lambda source: result.weight(source.total), reverse=True)
    return result
