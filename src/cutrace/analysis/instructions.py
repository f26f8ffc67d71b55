"""Instruction metrics of ``cutrace profile --lines``, summed by source line."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ..trace import Trace
from .names import normalize_kernel


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file (``offset`` is 0), or, without line information, the ``offset`` (bytes) of an instruction in its
    function (``file`` is empty, ``line`` 0)."""

    function: str
    file: str
    line: int
    offset: int

    @classmethod
    def of(cls, function: str, file: str, line: int, offset: int) -> Place:
        """The place of an instruction: its line if both file and line are known, else its offset."""
        return cls(function, file, line, 0) if file and line else cls(function, "", 0, offset)

    @property
    def text(self) -> str:
        """``axpy.cu:12``, or ``+0x40``."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else f"+{self.offset:#x}"


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


def line_metrics(trace: Trace, names: Callable[[str], str] = normalize_kernel) -> list[LineMetric]:
    """Each metric of each line: metrics in the order of the request, and for each the largest values first. NaN and
    infinite values are ignored."""
    rows = trace.instruction_metrics
    columns = ["name", "unit", "function", "file", "line", "offset", "launches", "value"]
    sums: dict[tuple[int, int], dict[Place, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    text = trace.strings
    known: dict[tuple[int, ...], Place] = {}
    for name, unit, function, file, line, offset, launches, value in rows[columns].tolist():
        place = known.get((function, file, line, offset))
        if place is None:
            place = known[function, file, line, offset] = Place.of(names(text[function]), text[file], line, offset)
        if math.isfinite(value):
            sums[name, unit][place].append((launches, value))
    uses = []
    for (name, unit), places in sums.items():
        whole = sum(value for parts in places.values() for _, value in parts)
        metrics = [
            LineMetric(text[name], text[unit], place, max(n for n, _ in parts), len(parts), total, total / (whole or 1))
            for place, parts in places.items()
            for total in [sum(value for _, value in parts)]
        ]
        uses += sorted(metrics, key=lambda use: (-use.value, use.place))
    return uses
