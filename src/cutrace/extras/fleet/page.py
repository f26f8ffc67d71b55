"""The page of a batch report: sentences, pictures and tables of many ranks, as one self-contained HTML file.

Pictures stretch to the width of the screen, so their texts are HTML. A heat map is a canvas that the script of the page
draws from one byte for each cell.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np

from ...analysis.tables import Column
from ...reports.html import data_script, escaped, figures, page, section
from ...reports.tables import cell
from ...reports.values import duration
from .model import Bars, HeatMap, Histogram, Result

_FOLDER = Path(__file__).parent

# Rows of a table; labels of bars that are listed one below the other; bytes of a cell, of which 255 means no value.
_ROWS = 200
_LISTED = 24
_LEVELS = 254
_SIDE = 1000

# A bar: x, y, width, height, its text and its style.
_Bar = tuple[float, float, float, float, str, str]


def html(result: Result, about: str) -> str:
    """The page of a report. ``about`` says what it was made from."""
    sentences = ""
    for sentence in result.sentences:
        sentences += f"<li>{escaped(sentence)}</li>"
    parts = [f"<ul class=sentences>{sentences}</ul>"]
    heats = []
    for number, picture in enumerate(result.pictures):
        parts.append(_picture(number, picture))
        if isinstance(picture, HeatMap):
            heats.append(data_script(f"heat{number}", _cells(picture)))
    more = "and {:,} more: cutrace batch prints all with --limit 0"
    for table in result.tables:
        rows = figures(table, _ROWS, more)
        parts.append(section(table.title, rows))
    return page(
        "batch",
        result.tables[0].title,
        folder=_FOLDER,
        about=escaped(about),
        main="\n".join(parts),
        data="\n".join(heats),
    )


def index_html(results: Mapping[str, Result], about: str) -> str:
    """The page of several reports, by name: their sentences, which link to their pages. ``about`` is as in
    :func:`html`."""
    parts = []
    for name, result in results.items():
        title = escaped(result.tables[0].title)
        link = f'<a href="{escaped(quote(name))}.html">'
        sentences = ""
        for sentence in result.sentences:
            sentences += f"<li>{link}{escaped(sentence)}</a></li>"
        parts.append(f"<h2>{link}{title}</a></h2><ul class=sentences>{sentences}</ul>")
    return page(
        "batch",
        "Reports over many traces",
        folder=_FOLDER,
        about=escaped(about),
        main="\n".join(parts),
    )


# Pictures


def _picture(number: int, picture: Histogram | Bars | HeatMap) -> str:
    if isinstance(picture, HeatMap):
        drawn = _heat(number, picture)
    elif isinstance(picture, Histogram):
        drawn = _histogram(picture)
    else:
        drawn = _bars(picture)
    return (
        f"<figure><figcaption>{escaped(picture.title)}</figcaption>\n{drawn}\n</figure>"
    )


def _histogram(picture: Histogram) -> str:
    """Counts by time, on a logarithmic axis."""
    if not picture.begins:
        return "<p class=note>nothing</p>"
    first = math.log2(picture.begins[0] + 1)
    last = math.log2(picture.ends[-1] + 1)
    most = max(picture.counts)
    bars: list[_Bar] = []
    for begin, end, count in zip(
        picture.begins,
        picture.ends,
        picture.counts,
        strict=True,
    ):
        left = math.log2(begin + 1)
        right = math.log2(end + 1)
        text = f"{duration(begin)} to {duration(end)}: {count:,}"
        bars.append((left - first, most - count, right - left, count, text, "s0"))
    axis = _axis(
        duration(picture.begins[0]),
        f"{most:,} in the highest bin",
        duration(picture.ends[-1]),
    )
    return _chart(last - first, most, bars) + axis


def _bars(picture: Bars) -> str:
    """Bars that begin at 0; those of several series are stacked."""
    if not picture.labels:
        return "<p class=note>nothing</p>"
    column = Column("", picture.unit)
    values = np.array(list(picture.series.values()), np.float64)
    least = float(np.minimum(values, 0).sum(axis=0).min())
    most = float(np.maximum(values, 0).sum(axis=0).max())
    height = most - least or 1.0
    legend = ""
    if len(picture.series) > 1:
        names = []
        for at, name in enumerate(picture.series):
            names.append(f"<span class=s{at % 4}>{escaped(name)}</span>")
        legend = f"<p class=legend>{' '.join(names)}</p>"
    lists = len(picture.labels) <= _LISTED
    rows = ""
    bars: list[_Bar] = []
    for at, label in enumerate(picture.labels):
        stack = list(_stack(label, picture, values[:, at], column, -least))
        if lists:
            total = cell(float(values[:, at].sum()), column)
            lying = [(x, 0, size, 1, text, style) for x, size, text, style in stack]
            rows += (
                f"<li><span class=name>{escaped(label)}</span><span>{total}</span>"
                f"{_chart(height, 1, lying)}</li>"
            )
        else:
            for below, size, text, style in stack:
                bars.append((at, height - below - size, 1, size, text, style))
    if lists:
        return f"{legend}<ul class=bars>{rows}</ul>"
    axis = _axis(
        picture.labels[0],
        f"up to {cell(most, column)}",
        picture.labels[-1],
    )
    return legend + _chart(len(picture.labels), height, bars) + axis


def _stack(
    label: str,
    picture: Bars,
    values: np.ndarray,
    column: Column,
    zero: float,
) -> Iterator[tuple[float, float, str, str]]:
    """Yield begin and length of the bars of a label, with their text and style. Positive bars go up from ``zero``,
    negative ones down."""
    above = zero
    below = zero
    for at, (name, value) in enumerate(
        zip(picture.series, values.tolist(), strict=True)
    ):
        if value >= 0:
            begin = above
            above += value
        else:
            below += value
            begin = below
        text = f"{label}, {name}: {cell(value, column)}"
        yield begin, abs(value), text, f"s{at % 4}"


def _heat(number: int, picture: HeatMap) -> str:
    rows, columns = picture.values.shape
    column = Column("", picture.unit)
    low, high = _range(picture.values)
    ranks = ""
    if rows:
        ranks = f"{picture.labels[0]} to {picture.labels[-1]}, from the top"
    steps = f"{duration(picture.step * columns)} in steps of {duration(picture.step)}"
    return (
        f'<canvas width="{columns}" height="{rows}" data-heat="heat{number}" role="img" '
        f'aria-label="{escaped(picture.title)}"></canvas>'
        f"{_axis(ranks, '', steps)}"
        f"<p class=scale><span>{cell(low, column)}</span><span class=ramp></span><span>{cell(high, column)}</span> "
        "<output></output></p>"
    )


def _range(values: np.ndarray) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if len(known):
        return (float(known.min()), float(known.max()))
    return (0.0, 0.0)


def _cells(picture: HeatMap) -> dict[str, object]:
    """A heat map as JSON values; the cells are bytes in base64, row by row."""
    low, high = _range(picture.values)
    scaled = (picture.values - low) / ((high - low) or 1.0) * _LEVELS
    known = np.isfinite(scaled)
    levels = np.full(scaled.shape, _LEVELS + 1, np.uint8)
    levels[known] = np.rint(scaled[known])
    column = Column("", picture.unit)
    texts = []
    for level in range(_LEVELS + 1):
        value = low + (high - low) * level / _LEVELS
        texts.append(cell(value, column))
    _, steps = scaled.shape
    return {
        "labels": list(picture.labels),
        "times": [duration(picture.step * step) for step in range(steps)],
        "texts": texts,
        "cells": base64.b64encode(levels.tobytes()).decode(),
    }


def _chart(width: float, height: float, bars: Iterable[_Bar]) -> str:
    """Bars in a box of this size. It is drawn as 1,000 by 1,000, because browsers limit coordinates."""
    across = _SIDE / width
    down = _SIDE / height
    drawn = []
    for x, y, wide, high, text, style in bars:
        place = f'x="{x * across:.6g}" y="{y * down:.6g}"'
        extent = f'width="{wide * across:.6g}" height="{high * down:.6g}"'
        title = f"<title>{escaped(text)}</title>"
        drawn.append(f'<rect class="{style}" {place} {extent}>{title}</rect>')
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img">'
        f"{''.join(drawn)}</svg>"
    )


def _axis(left: str, middle: str, right: str) -> str:
    spans = [f"<span>{escaped(text)}</span>" for text in (left, middle, right)]
    return f"<p class=axis>{''.join(spans)}</p>"
