"""Functions that say why kernels are slow, and that return rooflines; :mod:`cutrace` exports them."""

from __future__ import annotations

from pathlib import Path

from ...arguments import checked
from ...loading import Clock, Source, StrPath, listed, opened
from ...outputs import check_output, write_pieces
from ...patterns import Patterns
from .roofline import Roofline, rooflines
from .why import Why, compared, explained
from .why_page import html


@checked
def why(
    source: Source,
    other: Source | None = None,
    *,
    destination: StrPath | None = None,
    kernel: Patterns | None = None,
    clock: Clock = "align",
) -> Why:
    """Say why the kernels of a capture are slow. With ``destination`` (``.html``), also write a page of the answers.

    Returns a :class:`Why`. Its ``answers`` have the ``findings``, ``facts`` and ``tables`` of each kernel with metrics
    from :func:`cutrace.profile`, longest time first. It also has ``rooflines``, and ``notes`` on missing data. With
    ``other``, the capture after a change, it has the ``changes`` of the kernels in both captures instead. ``kernel`` is
    one pattern of names or several. ``clock`` is as in :func:`cutrace.load`. docs/internals/why.md lists the rules.

    Raises :class:`CutraceError` when no kernel has metrics, or the destination cannot be written.
    """
    inputs = [*listed(source)]
    if other is not None:
        inputs += listed(other)
    path = None if destination is None else Path(destination)
    if path is not None:
        check_output(path, inputs, endings=(".html",))
    with opened(source, clock=clock) as trace:
        result = explained(trace, kernel)
    if other is not None:
        with opened(other, clock=clock) as trace:
            result = compared(result, explained(trace, kernel))
    if path is not None:
        write_pieces(path, [html(result, ", ".join(map(str, inputs)))])
    return result


@checked
def roofline(source: Source, *, clock: Clock = "align") -> list[Roofline]:
    """Return a :class:`Roofline` for each model of GPU. It has ``points`` and ``ceilings`` in operations and bytes per
    second, and ``notes``.

    Its points are the kernels with operations and bytes from :func:`cutrace.profile`. The operations of tensor
    cores need ``metrics="flops"``. docs/internals/why.md defines each number. ``clock`` is as in :func:`cutrace.load`.
    Raises :class:`CutraceError` when there is no point.
    """
    with opened(source, clock=clock) as trace:
        return rooflines(trace)
