"""Rooflines as a self-contained HTML page or SVG. Axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from ...reports.html import escaped, page, section, style_of_page, table
from ...reports.values import NOTHING, duration
from ...units import count_of
from .roofline import DRAM, Ceiling, Point, Roofline

_FOLDER = Path(__file__).parent

#: Width and height of a chart on a wide screen, and on a phone.
_WIDE = (900, 520)
_NARROW = (440, 420)
_LEFT = 50
_RIGHT = 20
_TOP = 26
_BOTTOM = 40
_RADIUS = 9
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def html(rooflines: Sequence[Roofline], source: str) -> str:
    """The page of these rooflines; ``source`` is the name of their capture."""
    return page(
        "roofline",
        "cutrace roofline",
        folder=_FOLDER,
        about=escaped(source),
        main="\n".join(map(_section, rooflines)),
    )


def svg(rooflines: Sequence[Roofline]) -> str:
    """The charts of these rooflines, one below the other."""
    width, height = _WIDE
    whole = height * len(rooflines)
    pictures = "\n".join(
        f'<g transform="translate(0 {at * height})">\n{_picture(roof, _WIDE)}\n</g>'
        for at, roof in enumerate(rooflines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" height="{whole}" '
        f'role="img" aria-label="{_title(rooflines)}">\n'
        f"<style>{style_of_page('roofline', _FOLDER)}</style>\n{pictures}\n</svg>\n"
    )


def _section(roof: Roofline) -> str:
    pictures = "\n".join(
        f'<svg class="{name}" viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{_title([roof])}">\n'
        f"{_picture(roof, size)}\n</svg>"
        for name, size in (("wide", _WIDE), ("narrow", _NARROW))
    )
    notes = "".join(f"<p class=note>{escaped(note)}.</p>" for note in roof.notes)
    return section(
        roof.gpu.name,
        f"{pictures}\n{notes}\n{_kernels(roof.points)}\n{_ceilings(roof.ceilings)}",
    )


def _title(rooflines: Sequence[Roofline]) -> str:
    return escaped(
        f"Roofline of kernels on {', '.join(roof.gpu.name for roof in rooflines)}"
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
    rows = (
        (
            str(number) if point.placed else "", point.kernel, duration(point.time),
            NOTHING if point.share is None else f"{point.share:.1%}", point.ceiling, point.kind or "none",
            amount(point.rate, _unit(point.kind)) if point.kind else NOTHING, amount(point.traffic, "B"),
            NOTHING if point.intensity is None else _digits(point.intensity), f"{point.launches:,}",
        )
        for number, point in enumerate(points, 1)
    )  # fmt: skip
    return table(
        head, rows, {"kernel": "text name", "operations": "text", "of": "text"}
    )


def _ceilings(ceilings: Sequence[Ceiling]) -> str:
    head = ("ceiling", "per second", "known from", "")
    rows = (
        (
            c.kind,
            amount(c.rate, _unit(c.kind)),
            "measured" if c.measured else "documents",
            c.source,
        )
        for c in ceilings
    )
    return table(head, rows, {"ceiling": "text", "known from": "text", "": "text name"})


def amount(value: float, unit: str) -> str:
    """A number with three digits and a prefix: ``66.9 TFLOP``, ``4.81 TB``."""
    if value > 0:
        place = min(max(int(math.log10(value) // 3), 0), len(_PREFIXES) - 1)
    else:
        place = 0
    return f"{_digits(value / 1000**place)} {_PREFIXES[place]}{unit}"


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

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        logs = [math.log10(value) for value in values]
        self._first = math.floor(min(logs))
        self._last = max(max(logs) + 0.25, self._first + 1)
        self.start = start
        self.end = end
        self.low = 10.0**self._first
        self.high = 10.0**self._last

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._first) / (self._last - self._first)
        return self.start + share * (self.end - self.start)

    @property
    def powers(self) -> Iterator[float]:
        return (10.0**power for power in range(self._first, math.floor(self._last) + 1))


def _picture(roof: Roofline, size: tuple[int, int]) -> str:
    width, height = size
    placed = [
        (number, point) for number, point in enumerate(roof.points, 1) if point.placed
    ]
    memory = [c for c in roof.ceilings if c.kind == DRAM]
    peaks = [c for c in roof.ceilings if c.kind != DRAM]
    ridges = [peak.rate / slope.rate for peak in peaks for slope in memory]
    x = _Axis(
        [*(point.intensity or 1 for _, point in placed), *ridges] or [1],
        _LEFT,
        width - _RIGHT,
    )
    y = _Axis(
        [*(point.rate for _, point in placed), *(c.rate for c in peaks)] or [1],
        height - _BOTTOM,
        _TOP,
    )
    name = f'<text x="{x.end}" y="14" text-anchor="end">{escaped(roof.gpu.name)}</text>'
    parts = [
        name,
        *_grid(x, y),
        '<g class="roofs">',
        *_memory(memory, peaks, x, y),
        *_compute(peaks, memory, x, y),
        "</g>",
    ]
    # Kernels with less time are drawn later, so that others do not hide them.
    return "\n".join(
        [
            *parts,
            '<g class="points">',
            *(_dot(number, point, x, y) for number, point in placed),
            "</g>",
        ]
    )


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for value in x.powers:
        yield f'<path class="grid" d="M{x(value):.1f} {y.end}V{y.start}"/>'
        label = f"{value:,.0f}" if value >= 1 else f"{value:g}"
        yield f'<text x="{x(value):.1f}" y="{y.start + 16}" text-anchor="middle">{label}</text>'
    for value in y.powers:
        yield f'<path class="grid" d="M{x.start} {y(value):.1f}H{x.end}"/>'
        yield f'<text x="{x.start - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{amount(value, "")}</text>'
    yield f'<text x="{x.end}" y="{y.start + 34}" text-anchor="end">operations per byte of DRAM</text>'
    yield '<text x="6" y="14">operations per second</text>'


def _memory(
    memory: Sequence[Ceiling], peaks: Sequence[Ceiling], x: _Axis, y: _Axis
) -> Iterator[str]:
    """The slopes, up to the highest peak."""
    top = max((peak.rate for peak in peaks), default=y.high)
    for ceiling in memory:
        low = max(x.low, y.low / ceiling.rate)
        high = min(x.high, top / ceiling.rate)
        if low >= high:
            continue
        start = (x(low), y(low * ceiling.rate))
        end = (x(high), y(high * ceiling.rate))
        angle = math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))
        side = 16 if ceiling.measured else -7
        yield _roof(ceiling, start, end)
        yield (
            f'<text class="{_class(ceiling.kind)}" x="12" y="{side}" '
            f'transform="translate({start[0]:.1f} {start[1]:.1f}) rotate({angle:.1f})">{_label([ceiling])}</text>'
        )


def _compute(
    peaks: Sequence[Ceiling], memory: Sequence[Ceiling], x: _Axis, y: _Axis
) -> Iterator[str]:
    """The flat ceilings, beginning at the slope. Ceilings of equal height share a line."""
    slope = max((c.rate for c in memory), default=math.inf)
    for (rate, measured), some in groupby(sorted(peaks, key=_height), _height):
        same = list(some)
        left = x(max(rate / slope, x.low))
        right = x.end
        level = y(rate)
        yield _roof(same[0], (left, level), (right, level))
        yield (
            f'<text class="{_class(same[0].kind)}" x="{right - 4:.1f}" y="{level + (16 if measured else -6):.1f}" '
            f'text-anchor="end">{_label(same)}</text>'
        )


def _height(ceiling: Ceiling) -> tuple[float, bool]:
    return ceiling.rate, ceiling.measured


def _roof(
    ceiling: Ceiling, start: tuple[float, float], end: tuple[float, float]
) -> str:
    measured = " measured" * ceiling.measured
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (start, end))
    return (
        f'<polyline class="roof {_class(ceiling.kind)}{measured}" points="{points}"/>'
    )


def _label(ceilings: Sequence[Ceiling]) -> str:
    names = ", ".join(c.kind for c in ceilings)
    measured = " measured" * ceilings[0].measured
    return escaped(
        f"{names} {amount(ceilings[0].rate, _unit(ceilings[0].kind))}/s{measured}"
    )


def _dot(number: int, point: Point, x: _Axis, y: _Axis) -> str:
    left = x(point.intensity or 1)
    top = y(point.rate)
    share = "" if point.share is None else f"\n{point.share:.1%} of {point.ceiling}"
    details = (
        f"{point.kernel}\n{count_of(point.launches, 'launch')}, {duration(point.time)}\n"
        f"{amount(point.rate, _unit(point.kind))}/s {point.kind}\n{amount(point.traffic, 'B')}/s of DRAM\n"
        f"{_digits(point.intensity or 0)} operations per byte{share}"
    )
    lines = "\n".join(map(escaped, details.split("\n")))
    return (
        f'<g class="{_class(point.kind)}"><title>{lines}</title>'
        f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{_RADIUS}"/>'
        f'<text x="{left:.1f}" y="{top + 3.5:.1f}">{number}</text></g>'
    )
