"""Measurements of code by function and stall reason, by line, and by file. They are PC samples, or metrics of
instructions (``cutrace profile --lines``)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np

from ...analysis.names import UNKNOWN, normalize_kernel
from ...trace import Trace

#: The stall reason of warps that issued an instruction.
SELECTED = "selected"
#: The name of the number of PC samples among the metrics of :class:`Sources`.
SAMPLES = "samples"

_Key = TypeVar("_Key")


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file (``offset`` is 0). Without line information, an instruction: its ``offset`` (bytes) in its
    function, with an empty ``file`` and ``line`` 0."""

    function: str
    file: str
    line: int
    offset: int

    @property
    def text(self) -> str:
        """``axpy.cu:12``, or ``+0x40``."""
        if self.file:
            return f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"+{self.offset:#x}"


@dataclass(frozen=True)
class LineMetric:
    """The sum of one metric over the instructions of a line, in ``unit``, and its ``share`` (0 to 1) of the sum over
    all lines. ``launches`` is the number of counted launches in which the function ran."""

    metric: str
    unit: str
    place: Place
    launches: int
    instructions: int
    value: float
    share: float


@dataclass(frozen=True)
class StallUse:
    """The samples of a function with one stall reason. ``samples`` is their number, and ``share`` (0 to 1) their share
    of the function's samples. ``not_issued`` counts the samples in cycles without an issued instruction."""

    function: str
    stall: str
    samples: int
    not_issued: int
    share: float


@dataclass(frozen=True)
class SampledLine:
    """The samples of one place, as in :class:`StallUse`. ``share`` (0 to 1) is their share of all samples. ``stalls``
    has the samples by stall reason, largest first."""

    place: Place
    samples: int
    not_issued: int
    share: float
    stalls: dict[str, int]

    @property
    def stall(self) -> str:
        """The most frequent stall reason except :data:`SELECTED`; "" without such a reason."""
        for name in self.stalls:
            if name != SELECTED:
                return name
        return ""


class _Names:
    """The functions and places of rows, from the ids of their strings. ``names`` converts mangled names of
    functions."""

    def __init__(self, trace: Trace, names: Callable[[str], str]) -> None:
        self.text = trace.strings
        self._names = names
        self.function = cache(self._function)
        self.place = cache(self._place)

    def _function(self, number: int) -> str:
        name = self.text[number]
        return (name and self._names(name)) or UNKNOWN

    def _place(self, function: int, file: int, line: int, offset: int) -> Place:
        """The line of an instruction if its file and line are known, else its offset."""
        name = self.function(function)
        if file and line:
            return Place(name, self.text[file], line, 0)
        return Place(name, "", 0, offset)


def line_metrics(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[LineMetric]:
    """Each metric of each line. Metrics are in the order of the request, and the lines of a metric start with the
    largest value. NaN and infinite values are ignored. ``names`` converts mangled names of functions."""
    named = _Names(trace, names)
    fields = ["name", "unit", "launches", "value", "function", "file", "line", "offset"]
    rows = trace.instruction_metrics[fields].tolist()
    metrics: dict[tuple[int, int], dict[Place, _LineSum]] = {}
    for name, unit, launches, value, *place in rows:
        if not math.isfinite(value):
            continue
        lines = metrics.setdefault((name, unit), {})
        counted = lines.setdefault(named.place(*place), _LineSum())
        counted.launches = max(counted.launches, launches)
        counted.instructions += 1
        counted.value += value
    uses = []
    for (name, unit), lines in metrics.items():
        whole = sum(counted.value for counted in lines.values()) or 1
        of_metric = []
        for place_of_line, counted in lines.items():
            use = LineMetric(
                metric=named.text[name],
                unit=named.text[unit],
                place=place_of_line,
                launches=counted.launches,
                instructions=counted.instructions,
                value=counted.value,
                share=counted.value / whole,
            )
            of_metric.append(use)
        uses += sorted(of_metric, key=lambda use: (-use.value, use.place))
    return uses


@dataclass
class _LineSum:
    """The sums of one metric over the instructions of a line."""

    launches: int = 0
    instructions: int = 0
    value: float = 0


def stall_uses(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[StallUse]:
    """The samples of each function by stall reason. Functions with the most samples come first, and the largest values
    of a function come first. ``names`` converts mangled names of functions."""
    named = _Names(trace, names)

    def key(function: int, stall: int) -> tuple[str, str]:
        return named.function(function), named.text[stall]

    sums = _sums(trace, key, "function", "stall")
    totals = Counter[str]()
    for (function, _), (samples, _) in sums.items():
        totals[function] += samples
    uses = []
    for (function, stall), (samples, not_issued) in sums.items():
        share = samples / (totals[function] or 1)
        uses.append(StallUse(function, stall, samples, not_issued, share))
    return sorted(
        uses,
        key=lambda use: (-totals[use.function], use.function, -use.samples, use.stall),
    )


def sampled_lines(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[SampledLine]:
    """The samples of each line, or of each instruction without line information, largest values first. ``names``
    converts mangled names of functions."""
    named = _Names(trace, names)

    def key(stall: int, function: int, *at: int) -> tuple[int, Place, str]:
        place = named.place(function, *at)
        if at[0]:
            function = 0  # functions with the same name share lines, but not offsets
        return function, place, named.text[stall]

    sums = _sums(trace, key, "stall", "function", "file", "line", "offset")
    whole = sum(samples for samples, _ in sums.values()) or 1
    lines: dict[tuple[int, Place], dict[str, tuple[int, int]]] = defaultdict(dict)
    for (function, place, stall), counts in sums.items():
        lines[function, place][stall] = counts
    result = []
    for (_, place), stalls in lines.items():
        samples = 0
        not_issued = 0
        by_stall = {}
        for stall, counts in sorted(
            stalls.items(), key=lambda item: (-item[1][0], item[0])
        ):
            samples += counts[0]
            not_issued += counts[1]
            by_stall[stall] = counts[0]
        share = samples / whole
        result.append(SampledLine(place, samples, not_issued, share, by_stall))
    return sorted(result, key=lambda line: (-line.samples, line.place))


def _sums(
    trace: Trace,
    key: Callable[..., _Key],
    *fields: str,
) -> dict[_Key, tuple[int, int]]:
    """The sums of ``samples`` and ``not_issued`` of PC samples, by the values of ``fields``."""
    sums: dict[_Key, tuple[int, int]] = {}
    for rows in trace.blocks("pc_samples"):
        columns = np.stack([rows[name] for name in fields])
        groups, inverse = np.unique(columns, axis=1, return_inverse=True)
        inverse = inverse.reshape(-1)
        samples = np.zeros(groups.shape[1], np.uint64)
        not_issued = samples.copy()
        np.add.at(samples, inverse, rows["samples"])
        np.add.at(not_issued, inverse, rows["not_issued"])
        counts = zip(samples.tolist(), not_issued.tolist(), strict=True)
        for group, (taken, waiting) in zip(groups.T.tolist(), counts, strict=True):
            at = key(*group)
            before = sums.get(at, (0, 0))
            sums[at] = (before[0] + taken, before[1] + waiting)
    return sums


@dataclass
class Heat:
    """The measurements of a line or an instruction: ``values`` by metric, and the samples by stall reason."""

    values: Counter[str] = field(default_factory=Counter)
    stalls: Counter[str] = field(default_factory=Counter)
    functions: set[str] = field(default_factory=set)


@dataclass
class MeasuredSource:
    """A file with its measured lines by number. Without a ``file``, a function with its instructions by offset
    (bytes)."""

    file: str
    function: str
    heats: dict[int, Heat] = field(default_factory=lambda: defaultdict(Heat))
    total: Heat = field(default_factory=Heat)


@dataclass
class Sources:
    """The sources of a trace. ``metrics`` has :data:`SAMPLES`, if there are PC samples, and the counted metrics in the
    order of the request. Their values are sums over at most ``launches`` launches."""

    files: list[MeasuredSource] = field(default_factory=list)
    total: Heat = field(default_factory=Heat)
    metrics: tuple[str, ...] = ()
    launches: int = 0

    def weight(self, heat: Heat) -> tuple[float, ...]:
        """A sort key; the hottest code has the largest."""
        return tuple(heat.values[metric] for metric in self.metrics)


def sources(trace: Trace) -> Sources:
    """The measurements of each line and instruction of a trace, hottest source first."""
    result = Sources()
    by_name: dict[tuple[str, str], MeasuredSource] = {}

    def of(place: Place) -> tuple[Heat, ...]:
        function = place.function
        if place.file:
            function = ""
        key = (place.file, function)
        source = by_name.setdefault(key, MeasuredSource(place.file, function))
        heat = source.heats[place.line or place.offset]
        heat.functions.add(place.function)
        return heat, source.total, result.total

    for line in sampled_lines(trace):
        for heat in of(line.place):
            heat.values[SAMPLES] += line.samples
            heat.stalls.update(line.stalls)
    for use in line_metrics(trace):
        result.launches = max(result.launches, use.launches)
        for heat in of(use.place):
            heat.values[use.metric] += use.value  # type: ignore[assignment]
    values = result.total.values
    metrics = [name for name in values if values[name] or name != SAMPLES]
    result.metrics = tuple(metrics)
    result.files = sorted(
        by_name.values(), key=lambda source: result.weight(source.total), reverse=True
    )
    return result
