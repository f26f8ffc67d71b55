"""Rooflines as a function; :mod:`cutrace` exports it."""

from __future__ import annotations

from pathlib import Path

from ...api import Source
from ...loading import Clock, StrPath, listed, opened
from ...outputs import check_output, write_pieces
from .roofline import Roofline, rooflines
from .roofline_page import html, svg


def roofline(
    source: Source,
    destination: StrPath | None = None,
    *,
    clock: Clock = "align",
) -> list[Roofline]:
    """Return a :class:`Roofline` for each kind of GPU, and draw them to ``destination``: a page with tables (``.html``)
    or a picture (``.svg``).

    A roofline has ``points`` and ``ceilings`` in operations and bytes a second, and ``notes``. Its kernels are those
    whose operations and bytes :func:`cutrace.profile` counted with ``metrics="flops"``. docs/roofline.md defines each
    number. ``clock`` is as in :func:`cutrace.load`. Raises :class:`CutraceError` when there is no point, or the
    destination cannot be written.
    """
    path = None if destination is None else Path(destination)
    if path is not None:
        check_output(path, listed(source), endings=(".html", ".svg"))
    with opened(source, clock=clock) as trace:
        roofs = rooflines(trace)
    if path is not None:
        if path.suffix == ".html":
            text = html(roofs, ", ".join(map(str, listed(source))))
        else:
            text = svg(roofs)
        write_pieces(path, [text])
    return roofs
