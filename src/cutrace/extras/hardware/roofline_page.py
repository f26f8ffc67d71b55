"""Rooflines as a section of an HTML page. Axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from ...reports.html import escaped, section, sortable, table
from ...reports.values import NOTHING, duration
from ...units import count_of
from .roofline import DRAM, Ceiling, Point, Roofline

#: Width and height of a chart on a wide screen, and on a phone.
_WIDE = (900, 520)
_NARROW = (440, 420)
_LEFT = 50
_RIGHT = 20
_TOP = 26
_BOTTOM = 40
_RADIUS = 9
#: The height of a line of a label. No browser needs much more.
_LINE = 13
#: The width of a letter. No browser needs much more.
_LETTER = 6.6
#: The smallest distance of two numbers on an axis.
_APART = 46
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def roofline_section(roof: Roofline) -> str:
    """The section of a page: the chart and its tables."""
    title = escaped(f"Roofline of kernels on {roof.gpu.name}")
    pictures = ""
    for name, size in (("wide", _WIDE), ("narrow", _NARROW)):
        width, height = size
        picture = picture_of(roof, size)
        pictures += (
            f'<svg class="{name}" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">\n'
            f"{picture}\n</svg>\n"
        )
    notes = ""
    for note in roof.notes:
        notes += f"<p class=note>{escaped(note)}.</p>"
    kernels = _kernels(roof.points)
    ceilings = _ceilings(roof.ceilings)
    return section(
        f"Roofline of {roof.gpu.name}", f"{pictures}{notes}\n{kernels}\n{ceilings}"
    )


# Tables


def _kernels(points: Sequence[Point]) -> str:
    head = (
        "",
        "kernel",
        "time",
        "share",
        "of",
        "operations",
        "operations/s",
        "bytes/s",
        "operations/byte",
        "launches",
    )
    rows = []
    for number, point in enumerate(points, 1):
        place = ""
        if point.placed:
            place = str(number)
        share = NOTHING
        if point.share is not None:
            share = f"{point.share:.1%}"
        rate = NOTHING
        if point.kind:
            rate = _per_second(point.rate, point.kind)
        intensity = NOTHING
        if point.intensity is not None:
            intensity = _digits(point.intensity)
        rows.append(
            (
                place,
                point.kernel,
                duration(point.time),
                share,
                point.ceiling,
                point.kind or "none",
                rate,
                _per_second(point.traffic, DRAM),
                intensity,
                f"{point.launches:,}",
            )
        )
    classes = {"kernel": "text name", "operations": "text", "of": "text"}
    return sortable(table(head, rows, classes))


def _ceilings(ceilings: Sequence[Ceiling]) -> str:
    rows = []
    for ceiling in ceilings:
        if ceiling.measured:
            known_from = "measured"
        else:
            known_from = "documents"
        rate = _per_second(ceiling.rate, ceiling.kind)
        rows.append((ceiling.kind, rate, known_from, ceiling.source))
    head = ("ceiling", "rate", "known from", "")
    classes = {"ceiling": "text", "known from": "text", "": "text name"}
    return sortable(table(head, rows, classes))


def amount(value: float, unit: str) -> str:
    """Format a number with three digits and a prefix: ``66.9 TFLOP``, ``4.81 TB``."""
    thousands = 0
    if value > 0:
        thousands = int(math.log10(value) // 3)
    thousands = min(max(thousands, 0), len(_PREFIXES) - 1)
    return f"{_digits(value / 1000**thousands)} {_PREFIXES[thousands]}{unit}"


def _per_second(rate: float, kind: str) -> str:
    """Format the rate of operations of a kind, or of bytes: ``66.9 TFLOP/s``, ``4.81 TB/s``."""
    return f"{amount(rate, _unit(kind))}/s"


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _unit(kind: str) -> str:
    if kind == DRAM:
        return "B"
    if kind.endswith("int8"):
        return "OP"
    return "FLOP"


def _class(kind: str) -> str:
    return kind.split()[0]


# Charts


class _Axis:
    """A logarithmic axis between two pixels, from a power of ten to slightly above the largest value."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        logs = [math.log10(value) for value in values or [1.0]]
        self._first = math.floor(min(logs))
        self._last = max(max(logs) + 0.25, self._first + 1)
        self.start = start
        self.end = end
        self.low = 10.0**self._first
        self.high = 10.0**self._last

    def __call__(self, value: float) -> float:
        decades = self._last - self._first
        share = (math.log10(value) - self._first) / decades
        return self.start + share * (self.end - self.start)

    @property
    def powers(self) -> Iterator[float]:
        for power in range(self._first, math.floor(self._last) + 1):
            yield 10.0**power


def picture_of(roof: Roofline, size: tuple[int, int] = _WIDE) -> str:
    """The chart as the content of an SVG element. ``size`` is its width and height in pixels."""
    width, height = size
    memory = []
    peaks = []
    for ceiling in roof.ceilings:
        if ceiling.kind == DRAM:
            memory.append(ceiling)
        else:
            peaks.append(ceiling)
    intensities = [peak.rate / slope.rate for peak in peaks for slope in memory]
    rates = [peak.rate for peak in peaks]
    placed = []
    for number, point in enumerate(roof.points, 1):
        if point.placed:
            placed.append((number, point))
            intensities.append(point.intensity or 1)
            rates.append(point.rate)
    x = _Axis(intensities, _LEFT, width - _RIGHT)
    y = _Axis(rates, height - _BOTTOM, _TOP)
    # Kernels with less time are drawn later, so that kernels with more time do not hide them.
    dots = [_dot(number, point, x, y) for number, point in placed]
    name = f'<text x="{x.end}" y="14" text-anchor="end">{escaped(roof.gpu.name)}</text>'
    return "\n".join(
        [
            name,
            *_grid(x, y),
            '<g class="roofs">',
            *_memory(memory, peaks, x, y),
            *_compute(peaks, memory, x, y),
            "</g>",
            '<g class="points">',
            *dots,
            "</g>",
        ]
    )


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    apart = max(1, math.ceil(_APART / (x(10 * x.low) - x.start)))
    for number, value in enumerate(x.powers):
        left = f"{x(value):.1f}"
        yield f'<path class="grid" d="M{left} {y.end}V{y.start}"/>'
        if number % apart:
            continue
        label = f"{value:g}"
        if value >= 1:
            label = amount(value, "").strip()
        yield f'<text x="{left}" y="{y.start + 16}" text-anchor="middle">{label}</text>'
    for value in y.powers:
        top = y(value)
        label = amount(value, "")
        yield f'<path class="grid" d="M{x.start} {top:.1f}H{x.end}"/>'
        yield f'<text x="{x.start - 6}" y="{top + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{x.end}" y="{y.start + 34}" text-anchor="end">operations per byte of DRAM</text>'
    yield '<text x="6" y="14">operations per second</text>'


def _memory(
    memory: Sequence[Ceiling],
    peaks: Sequence[Ceiling],
    x: _Axis,
    y: _Axis,
) -> Iterator[str]:
    """The slopes of memory ceilings, up to the highest peak."""
    top = max((peak.rate for peak in peaks), default=y.high)
    for ceiling in memory:
        low = max(x.low, y.low / ceiling.rate)
        high = min(x.high, top / ceiling.rate)
        if low >= high:
            continue
        left = x(low)
        bottom = y(low * ceiling.rate)
        right = x(high)
        top_of_slope = y(high * ceiling.rate)
        angle = math.degrees(math.atan2(top_of_slope - bottom, right - left))
        if ceiling.measured:
            side = 16
        else:
            side = -7
        yield _roof(ceiling, (left, bottom), (right, top_of_slope), _label([ceiling]))
        yield (
            f'<text class="{_class(ceiling.kind)}" x="12" y="{side}" '
            f'transform="translate({left:.1f} {bottom:.1f}) rotate({angle:.1f})">{escaped(_label([ceiling]))}</text>'
        )


def _compute(
    peaks: Sequence[Ceiling],
    memory: Sequence[Ceiling],
    x: _Axis,
    y: _Axis,
) -> Iterator[str]:
    """The flat ceilings. Each starts at the slope. Ceilings of equal height share a line."""
    slope = max((ceiling.rate for ceiling in memory), default=math.inf)
    lines = []
    for (rate, _), some in groupby(sorted(peaks, key=_height), _height):
        lines.append((rate, list(some)))
    labels = _Labels(x.end - 4)
    texts = []
    # Most kernels are compared with the highest ceiling, so its label is placed first.
    for rate, same in reversed(lines):
        left = x(max(rate / slope, x.low))
        right = x.end
        level = y(rate)
        label = _label(same)
        yield _roof(same[0], (left, level), (right, level), label)
        place = labels.place(label, left, level, below=same[0].measured)
        if place is not None:
            end, base = place
            texts.append(
                f'<text class="{_class(same[0].kind)}" x="{end:.1f}" y="{base:.1f}" '
                f'text-anchor="end">{escaped(label)}</text>'
            )
    # Labels come last, so that no line covers them.
    yield from texts


class _Labels:
    """Labels of flat ceilings, placed from the right to the left, so that none covers another."""

    def __init__(self, right: float) -> None:
        self._right = right
        # The left end, the right end and the base of each placed label.
        self._taken: list[tuple[float, float, float]] = []

    def place(
        self, label: str, left: float, level: float, *, below: bool
    ) -> tuple[float, float] | None:
        """Return the right end and the base of a label ``below`` or above a line. ``left`` is the left end of the line.
        None if all places are taken. The line then has the label as a title."""
        base = level - 4
        if below:
            base = level + _LINE
        width = len(label) * _LETTER
        right = self._right
        while right - width > left:
            near = [one for one in self._taken if abs(one[2] - base) < _LINE]
            over = [one for one in near if one[0] < right and right - width < one[1]]
            if not over:
                self._taken.append((right - width, right, base))
                return right, base
            right = min(one[0] for one in over) - _LETTER
        return None


def _height(ceiling: Ceiling) -> tuple[float, bool]:
    return ceiling.rate, ceiling.measured


def _roof(
    ceiling: Ceiling,
    start: tuple[float, float],
    end: tuple[float, float],
    label: str,
) -> str:
    classes = f"roof {_class(ceiling.kind)}"
    if ceiling.measured:
        classes += " measured"
    first = f"{start[0]:.1f},{start[1]:.1f}"
    last = f"{end[0]:.1f},{end[1]:.1f}"
    title = f"<title>{escaped(label)}</title>"
    return f'<polyline class="{classes}" points="{first} {last}">{title}</polyline>'


def _label(ceilings: Sequence[Ceiling]) -> str:
    first = ceilings[0]
    names = ", ".join(ceiling.kind for ceiling in ceilings)
    label = f"{names} {_per_second(first.rate, first.kind)}"
    if first.measured:
        label += " measured"
    return label


def _dot(number: int, point: Point, x: _Axis, y: _Axis) -> str:
    left = x(point.intensity or 1)
    top = y(point.rate)
    details = [
        point.kernel,
        f"{count_of(point.launches, 'launch')}, {duration(point.time)}",
        f"{_per_second(point.rate, point.kind)} {point.kind}",
        f"{_per_second(point.traffic, DRAM)} of DRAM",
        f"{_digits(point.intensity or 0)} operations per byte",
    ]
    if point.share is not None:
        details.append(f"{point.share:.1%} of {point.ceiling}")
    title = "\n".join(map(escaped, details))
    return (
        f'<g class="{_class(point.kind)}"><title>{title}</title>'
        f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{_RADIUS}"/>'
        f'<text x="{left:.1f}" y="{top + 3.5:.1f}">{number}</text></g>'
    )
