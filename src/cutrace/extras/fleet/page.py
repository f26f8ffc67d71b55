"""The page of a batch report: sentences, pictures and tables of many ranks, as one self-contained HTML file.

Pictures stretch to the width of the screen, so their texts are HTML. A heat map is a canvas that the script of the page
draws from one byte for each cell.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

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
    sentences = "".join(
        f"<li>{escaped(sentence)}</li>" for sentence in result.sentences
    )
    pictures = [
        _picture(number, picture) for number, picture in enumerate(result.pictures)
    ]
    tables = [
        section(
            made.title,
            figures(
                made, _ROWS, "and {:,} more: cutrace batch prints all with --limit 0"
            ),
        )
        for made in result.tables
    ]
    heats = (
        (number, picture)
        for number, picture in enumerate(result.pictures)
        if isinstance(picture, HeatMap)
    )
    return page(
        "batch",
        result.tables[0].title,
        folder=_FOLDER,
        about=escaped(about),
        main="\n".join([f"<ul class=sentences>{sentences}</ul>", *pictures, *tables]),
        data="\n".join(
            data_script(f"heat{number}", _cells(picture)) for number, picture in heats
        ),
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
    edges = [
        [math.log2(time + 1) for time in times]
        for times in (picture.begins, picture.ends)
    ]
    first = edges[0][0]
    last = edges[1][-1]
    most = max(picture.counts)
    bars = (
        (
            begin - first,
            most - count,
            end - begin,
            count,
            f"{duration(a)} to {duration(b)}: {count:,}",
            "s0",
        )
        for begin, end, a, b, count in zip(
            *edges, picture.begins, picture.ends, picture.counts, strict=True
        )
    )
    axis = (
        duration(picture.begins[0]),
        f"{most:,} in the highest bin",
        duration(picture.ends[-1]),
    )
    return _chart(last - first, most, bars) + _axis(*axis)


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
        names = (
            f"<span class=s{at % 4}>{escaped(name)}</span>"
            for at, name in enumerate(picture.series)
        )
        legend = f"<p class=legend>{' '.join(names)}</p>"
    stacks = [
        list(_stack(label, picture, values[:, at], column, least, most))
        for at, label in enumerate(picture.labels)
    ]
    if len(stacks) <= _LISTED:
        rows = "".join(
            f"<li><span class=name>{escaped(label)}</span><span>{cell(float(values[:, at].sum()), column)}</span>"
            f"{_chart(height, 1, ((x, 0, wide, 1, text, style) for x, wide, text, style in stack))}</li>"
            for at, (label, stack) in enumerate(
                zip(picture.labels, stacks, strict=True)
            )
        )
        return f"{legend}<ul class=bars>{rows}</ul>"
    columns = (
        (at, height - above - high, 1, high, text, style)
        for at, stack in enumerate(stacks)
        for above, high, text, style in stack
    )
    axis = picture.labels[0], f"up to {cell(most, column)}", picture.labels[-1]
    return legend + _chart(len(stacks), height, columns) + _axis(*axis)


def _stack(
    label: str,
    picture: Bars,
    values: np.ndarray,
    column: Column,
    least: float,
    most: float,
) -> Iterator[tuple[float, float, str, str]]:
    """Yield begin and length of the bars of a label (from ``least``), with their text and style."""
    below = above = -least
    for at, (name, value) in enumerate(
        zip(picture.series, values.tolist(), strict=True)
    ):
        begin = above if value >= 0 else below + value
        text = f"{label}, {name}: {cell(value, column)}"
        yield begin, abs(value), text, f"s{at % 4}"
        above, below = (above + value, below) if value >= 0 else (above, below + value)


def _heat(number: int, picture: HeatMap) -> str:
    rows, columns = picture.values.shape
    seconds = duration(picture.step * columns)
    ends = f"{picture.labels[0]} to {picture.labels[-1]}, from the top" if rows else ""
    low, high = (
        cell(edge, Column("", picture.unit)) for edge in _range(picture.values)
    )
    return (
        f'<canvas width="{columns}" height="{rows}" data-heat="heat{number}" role="img" '
        f'aria-label="{escaped(picture.title)}"></canvas>'
        f"{_axis(ends, '', f'{seconds} in steps of {duration(picture.step)}')}"
        f"<p class=scale><span>{low}</span><span class=ramp></span><span>{high}</span> <output></output></p>"
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
    levels = np.where(
        np.isfinite(scaled), np.rint(np.nan_to_num(scaled)), _LEVELS + 1
    ).astype(np.uint8)
    texts = [
        cell(low + (high - low) * level / _LEVELS, Column("", picture.unit))
        for level in range(_LEVELS + 1)
    ]
    return {
        "labels": list(picture.labels),
        "times": [
            duration(picture.step * column) for column in range(picture.values.shape[1])
        ],
        "texts": texts,
        "cells": base64.b64encode(levels.tobytes()).decode(),
    }


def _chart(width: float, height: float, bars: Iterable[_Bar]) -> str:
    """Bars in a box of this size. It is drawn as 1,000 by 1,000, because browsers limit coordinates."""
    across = _SIDE / width
    down = _SIDE / height
    content = "".join(
        f'<rect class="{style}" x="{x * across:.6g}" y="{y * down:.6g}" width="{wide * across:.6g}" '
        f'height="{high * down:.6g}"><title>{escaped(text)}</title></rect>'
        for x, y, wide, high, text, style in bars
    )
    return f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img">{content}</svg>'


def _axis(left: str, middle: str, right: str) -> str:
    return f"<p class=axis>{''.join(f'<span>{escaped(text)}</span>' for text in (left, middle, right))}</p>"
