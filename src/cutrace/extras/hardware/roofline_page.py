"""Rooflines as a section of an HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...reports.html import escaped, figure, section, sortable, table
from ...reports.values import NOTHING, duration
from ...units import count_of
from .roofline import DRAM, Ceiling, Point, Roofline

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def roofline_section(number: int, roof: Roofline) -> str:
    """The section of a page: the chart and its tables. ``number`` is unique in the page."""
    chart = {
        "kind": "roofline",
        "points": list(_dots(roof.points)),
        "ceilings": list(_roofs(roof.ceilings)),
    }
    picture = figure(f"roofline{number}", f"Kernels on {roof.gpu.name}", chart)
    notes = ""
    for note in roof.notes:
        notes += f"<p class=note>{escaped(note)}.</p>"
    kernels = _kernels(roof.points)
    ceilings = _ceilings(roof.ceilings)
    return section(
        f"Roofline of {roof.gpu.name}", f"{picture}{notes}\n{kernels}\n{ceilings}"
    )


# The chart, as values for charts.js


def _dots(points: Sequence[Point]) -> Iterator[dict[str, object]]:
    """The points with their numbers in the table, and the lines of their tooltips."""
    for number, point in enumerate(points, 1):
        if not point.placed:
            continue
        details = [
            point.kernel,
            f"{count_of(point.launches, 'launch')}, {duration(point.time)}",
            f"{_per_second(point.rate, point.kind)} {point.kind}",
            f"{_per_second(point.traffic, DRAM)} of DRAM",
            f"{_digits(point.intensity or 0)} operations per byte",
        ]
        if point.share is not None:
            details.append(f"{point.share:.1%} of {point.ceiling}")
        yield {
            "number": number,
            "kind": _class(point.kind),
            "x": point.intensity,
            "y": point.rate,
            "details": details,
        }


def _roofs(ceilings: Sequence[Ceiling]) -> Iterator[dict[str, object]]:
    """The ceilings. Those of equal height share a line."""
    alike: dict[tuple[bool, float, bool], list[str]] = {}
    for ceiling in ceilings:
        key = (ceiling.kind == DRAM, ceiling.rate, ceiling.measured)
        alike.setdefault(key, []).append(ceiling.kind)
    for (slope, rate, measured), kinds in alike.items():
        label = f"{', '.join(kinds)} {_per_second(rate, kinds[0])}"
        if measured:
            label += " measured"
        yield {
            "label": label,
            "kind": _class(kinds[0]),
            "rate": rate,
            "slope": slope,
            "measured": measured,
        }


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
