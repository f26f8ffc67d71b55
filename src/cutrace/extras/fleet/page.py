"""The pages of batch reports: sentences, charts and tables. Each page is a self-contained HTML file."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from ...reports.html import escaped, figure, figures, page, rounded, section
from ...units import count_of
from .model import Bars, HeatMap, Histogram, Matrix, Picture, Result

_FOLDER = Path(__file__).parent
_SHARED = ("charts", "tables")

# The largest number of rows of a table on a page.
_ROWS = 200
# The largest number of sentences that are not folded, because more would push the charts off the screen.
_UNFOLDED = 10
# The number of cell levels below the first percentile, and above the second percentile.
_TAIL = 27
# The number of cell levels between the percentiles.
_BODY = 201
# The byte of a cell without a value.
_NOTHING = 255
_PERCENTILES = (1, 99)
# Smaller times (ns) count from the boot of a machine and not on a wall clock.
_EPOCH = 10**18
_DAY = 86_400 * 10**9


def html(
    result: Result,
    about: str,
    name: str = "",
    pages: Sequence[str] = (),
) -> str:
    """The page of a report. ``about`` names its sources. ``pages`` are the names of all reports in the folder,
    including its own ``name``."""
    parts = [_links(pages, name), _sentences(result.sentences)]
    if result.empty:
        parts.append("<p>No file has records for this report.</p>")
    for number, picture in enumerate(result.pictures):
        chart = None
        if _has_values(picture):
            chart = _chart(picture)
        parts.append(figure(f"chart{number}", picture.title, chart))
    more = "and {:,} more: cutrace batch prints all with --limit 0"
    parts += [
        section(table.title, figures(table, _ROWS, more)) for table in result.tables
    ]
    return _page(result.tables[0].title, about, parts)


def index_html(results: Mapping[str, Result], about: str) -> str:
    """The index page of several reports, by name. Their sentences link to their pages. ``about`` is as in
    :func:`html`."""
    parts = []
    without: dict[str, str] = {"Nothing stands out": "", "No records": ""}
    for name, result in results.items():
        title = result.tables[0].title
        if not result.sentences:
            heading = "No records" if result.empty else "Nothing stands out"
            without[heading] += f"<li>{_link(name, title)}</li>"
            continue
        count = count_of(len(result.sentences), "finding")
        parts.append(f"<h2>{_link(name, title)} <small>{count}</small></h2>")
        parts.append(_sentences(result.sentences, name))
    for heading, items in without.items():
        if items:
            parts.append(f"<h2>{heading}</h2><ul>{items}</ul>")
    return _page("Reports over many traces", about, parts)


def _page(title: str, about: str, parts: Sequence[str]) -> str:
    main = "\n".join(parts)
    return page(
        "batch",
        title,
        folder=_FOLDER,
        shared=_SHARED,
        about=escaped(about),
        main=main,
    )


def _links(pages: Sequence[str], current: str) -> str:
    """Links to all pages of a folder; empty for a single page."""
    if not pages:
        return ""
    links = [_link("index", "all reports")]
    for name in pages:
        mark = ""
        if name == current:
            mark = " aria-current=page"
        links.append(_link(name, name, mark))
    return f"<nav class=pages>{''.join(links)}</nav>"


def _sentences(sentences: Sequence[str], name: str = "") -> str:
    """An HTML list of sentences. Only the first ones are visible, the others are folded. With ``name``, each links to
    the page of this report."""
    items = []
    for sentence in sentences:
        content = escaped(sentence)
        if name:
            content = _link(name, sentence)
        items.append(f"<li>{content}</li>")
    shown = _list(items[:_UNFOLDED])
    others = items[_UNFOLDED:]
    if not others:
        return shown
    summary = f"and {len(others):,} more"
    return f"{shown}<details><summary>{summary}</summary>{_list(others)}</details>"


def _list(items: Sequence[str]) -> str:
    return f"<ul class=sentences>{''.join(items)}</ul>"


def _link(name: str, text: str, mark: str = "") -> str:
    address = f"{quote(name)}.html"
    return f'<a href="{escaped(address)}"{mark}>{escaped(text)}</a>'


# Charts, as values for charts.js


def _has_values(picture: Picture) -> bool:
    if isinstance(picture, Histogram):
        return bool(picture.begins)
    if isinstance(picture, Bars):
        return bool(picture.labels)
    return picture.values.size > 0


def _chart(picture: Picture) -> dict[str, object]:
    chart: dict[str, object] = {}
    if isinstance(picture, Histogram):
        chart |= {"begins": picture.begins, "ends": picture.ends}
        return chart | {"kind": "histogram", "unit": "ns", "counts": picture.counts}
    if isinstance(picture, Bars):
        chart |= {"kind": "bars", "labels": picture.labels}
        chart["series"] = _series(picture.series.items())
    elif isinstance(picture, Matrix):
        chart |= {"kind": "heat", "labels": picture.labels, "columns": picture.columns}
        chart |= {"differences": True} | _cells(picture.values)
    else:
        chart |= {"start": _moment(picture.start), "step": picture.step}
        if isinstance(picture, HeatMap):
            chart |= {"kind": "heat", "labels": picture.labels, "hosts": picture.hosts}
            chart |= _cells(picture.values)
        else:
            rows = zip(picture.labels, picture.values.tolist(), strict=True)
            chart |= {"kind": "lines", "series": _series(rows)}
    return chart | {"unit": picture.unit}


def _series(rows: Iterable[tuple[str, Sequence[float]]]) -> list[dict[str, object]]:
    """Rows as JSON objects with name and numbers."""
    series: list[dict[str, object]] = []
    for name, row in rows:
        values = list(map(rounded, map(float, row)))
        series.append({"name": name, "values": values})
    return series


def _moment(ns: int) -> dict[str, object]:
    """Split a time on the wall clock (ns since 1970) into the day and the time of that day (ns). Without a wall clock
    the day is empty."""
    if ns < _EPOCH:
        return {"day": "", "at": 0}
    day = time.strftime("%Y-%m-%d", time.gmtime(ns // 10**9))
    return {"day": day, "at": ns % _DAY}


def _cells(values: np.ndarray) -> dict[str, object]:
    """Encode the cells of a heat map: a byte for each cell, row by row, in base64, and the values of the bytes. Most
    levels lie between percentiles, so that all other values stay distinct despite a few extreme values."""
    known = values[np.isfinite(values)]
    if not len(known):
        known = np.zeros(1)
    low, high = np.percentile(known, _PERCENTILES)
    below = np.linspace(known.min(), low, _TAIL, endpoint=False)
    body = np.linspace(low, high, _BODY)
    above = np.linspace(high, known.max(), _TAIL + 1)[1:]
    levels = np.concatenate([below, body, above])
    borders = (levels[1:] + levels[:-1]) / 2
    cells = np.searchsorted(borders, values).astype(np.uint8)
    cells[~np.isfinite(values)] = _NOTHING
    return {
        "levels": [rounded(level) for level in levels.tolist()],
        "cells": base64.b64encode(cells.tobytes()).decode(),
    }
