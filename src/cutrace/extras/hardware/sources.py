"""What was measured of code, by function and stall reason, by line and by file: metrics of instructions
(``cutrace profile --lines``) and PC samples."""

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

#: The stall reason of warps that issued an instruction and did not wait.
SELECTED = "selected"
#: The name of the number of PC samples among the metrics of :class:`Sources`.
SAMPLES = "samples"

_Key = TypeVar("_Key")


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file (``offset`` is 0), or, without line information, the ``offset`` (bytes) of an instruction in its
    function (``file`` is empty, ``line`` 0)."""

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
    """The sum of one metric over the instructions of a line, in ``unit``, and its ``share`` (0 to 1) of the metric. The
    function ran in ``launches`` of the counted launches."""

    metric: str
    unit: str
    place: Place
    launches: int
    instructions: int
    value: float
    share: float


@dataclass(frozen=True)
class StallUse:
    """The samples of a function with one stall reason: the number of ``samples``, those of them taken when the
    scheduler issued no instruction (``not_issued``), and the ``share`` (0 to 1) of the function's samples."""

    function: str
    stall: str
    samples: int
    not_issued: int
    share: float


@dataclass(frozen=True)
class SampledLine:
    """The samples of one place, as in :class:`StallUse`, with their ``share`` (0 to 1) of all samples. ``stalls`` has
    the samples by stall reason, largest first."""

    place: Place
    samples: int
    not_issued: int
    share: float
    stalls: dict[str, int]

    @property
    def stall(self) -> str:
        """The most frequent stall reason except :data:`SELECTED`; empty without one."""
        return next((name for name in self.stalls if name != SELECTED), "")


class _Names:
    """The functions and the places of rows, by the ids of their texts. ``names`` converts mangled names of
    functions."""

    def __init__(self, trace: Trace, names: Callable[[str], str]) -> None:
        self.text = text = trace.strings
        self.function = cache(
            lambda number: (text[number] and names(text[number])) or UNKNOWN
        )
        self.place = cache(self._place)

    def _place(self, function: int, file: int, line: int, offset: int) -> Place:
        """The line of an instruction if both file and line are known, else its offset."""
        known = file and line
        return Place(
            self.function(function),
            self.text[file if known else 0],
            *((line, 0) if known else (0, offset)),
        )


def line_metrics(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[LineMetric]:
    """Each metric of each line: metrics in the order of the request, and for each the largest values first. NaN and
    infinite values are ignored. ``names`` converts mangled names of functions."""
    named = _Names(trace, names)
    fields = ["name", "unit", "launches", "value", "function", "file", "line", "offset"]
    parts: dict[tuple[int, int], dict[Place, list[tuple[int, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for name, unit, launches, value, *place in trace.instruction_metrics[
        fields
    ].tolist():
        if math.isfinite(value):
            parts[name, unit][named.place(*place)].append((launches, value))
    uses = []
    for (name, unit), places in parts.items():
        whole = sum(value for some in places.values() for _, value in some) or 1
        metrics = []
        for at, some in places.items():
            launches = max(n for n, _ in some)
            total = sum(value for _, value in some)
            about = named.text[name], named.text[unit], at
            metrics.append(
                LineMetric(*about, launches, len(some), total, total / whole)
            )
        uses += sorted(metrics, key=lambda use: (-use.value, use.place))
    return uses


def stall_uses(
    trace: Trace, names: Callable[[str], str] = normalize_kernel
) -> list[StallUse]:
    """The samples of each function by stall reason: functions with the most samples first, and for each the largest
    values first. ``names`` converts mangled names of functions."""
    named = _Names(trace, names)
    sums = _sums(
        trace,
        lambda function, stall: (named.function(function), named.text[stall]),
        "function",
        "stall",
    )
    totals = Counter[str]()
    for (function, _), (samples, _) in sums.items():
        totals[function] += samples
    uses = [
        StallUse(*key, *counts, counts[0] / (totals[key[0]] or 1))
        for key, counts in sums.items()
    ]
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

    def key(stall: int, function: int, *at: int) -> tuple[tuple[int, Place], str]:
        # Functions with the same name share lines but not offsets.
        return (0 if at[0] else function, named.place(function, *at)), named.text[stall]

    lines: dict[tuple[int, Place], dict[str, tuple[int, int]]] = defaultdict(dict)
    for (line, stall), counts in _sums(
        trace, key, "stall", "function", "file", "line", "offset"
    ).items():
        lines[line][stall] = counts
    sums = {
        line: [sum(column) for column in zip(*stalls.values(), strict=True)]
        for line, stalls in lines.items()
    }
    whole = sum(samples for samples, _ in sums.values()) or 1
    result = []
    for line, (samples, not_issued) in sums.items():
        stalls = sorted(
            ((stall, count) for stall, (count, _) in lines[line].items()),
            key=lambda s: (-s[1], s[0]),
        )
        result.append(
            SampledLine(line[1], samples, not_issued, samples / whole, dict(stalls))
        )
    return sorted(result, key=lambda line: (-line.samples, line.place))


def _sums(
    trace: Trace, key: Callable[..., _Key], *fields: str
) -> dict[_Key, tuple[int, int]]:
    """The sums of ``samples`` and ``not_issued`` of PC samples, by the key that is made of these fields."""
    sums: dict[_Key, tuple[int, int]] = {}
    for rows in trace.blocks("pc_samples"):
        groups, inverse = np.unique(
            np.stack([rows[name] for name in fields]), axis=1, return_inverse=True
        )
        counts = np.zeros((groups.shape[1], 2), np.uint64)
        np.add.at(
            counts,
            inverse.reshape(-1),
            np.stack([rows["samples"], rows["not_issued"]], axis=1),
        )
        for group, (samples, not_issued) in zip(
            groups.T.tolist(), counts.tolist(), strict=True
        ):
            before = sums.get(at := key(*group), (0, 0))
            sums[at] = before[0] + samples, before[1] + not_issued
    return sums


@dataclass
class Heat:
    """The measurements of a line or an instruction: ``values`` by metric, and the samples by stall reason."""

    values: Counter[str] = field(default_factory=Counter)
    stalls: Counter[str] = field(default_factory=Counter)
    functions: set[str] = field(default_factory=set)


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
    """The sources of a trace. ``metrics`` has :data:`SAMPLES`, if there are any, and the counted metrics in the order
    of the request, whose values are sums over at most ``launches``."""

    files: list[MeasuredSource] = field(default_factory=list)
    total: Heat = field(default_factory=Heat)
    metrics: tuple[str, ...] = ()
    launches: int = 0

    def weight(self, heat: Heat) -> tuple[float, ...]:
        """The sort key of the hottest code."""
        return tuple(heat.values[metric] for metric in self.metrics)


def sources(trace: Trace) -> Sources:
    """The measurements of each line and instruction of a trace, hottest source first."""
    result = Sources()
    by_name: dict[tuple[str, str], MeasuredSource] = {}

    def of(place: Place) -> tuple[Heat, ...]:
        name = place.file, "" if place.file else place.function
        source = by_name.setdefault(name, MeasuredSource(*name))
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
    result.metrics = tuple(
        metric
        for metric, value in result.total.values.items()
        if value or metric != SAMPLES
    )
    result.files = sorted(
        by_name.values(), key=lambda source: result.weight(source.total), reverse=True
    )
    return result
