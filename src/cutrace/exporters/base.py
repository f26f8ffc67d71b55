"""What all exporters share: how they are found, and what they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, cast

from ..trace import Trace

Progress = Callable[[int, int], None]
Compression = Literal["zstd", "deflate"] | None


@dataclass(frozen=True)
class Request:
    """What is wanted of an export.

    ``format`` is the name of the exporter; if None, the ending of the output says which. ``compress`` packs groups of
    packets, where the format has such. Without ``derived``, events that are computed from records are left out:
    NVTX on streams, counters, what waited for what. ``table`` is for formats that hold one table. ``capture`` says
    whether the file carries the capture itself, so that it opens again as that capture (:mod:`cutrace.embedding`); if
    None, the format decides. ``progress`` is called with the work done and the whole work, in any unit. An exporter
    writes all rows of the trace that it gets: :func:`cutrace.loading.selected` makes a smaller trace first.
    """

    format: str | None = None
    compress: Compression = None
    derived: bool = True
    table: str | None = None
    capture: bool | None = None
    progress: Progress | None = None


Write = Callable[[Trace, Path, Request], None]


@dataclass(frozen=True)
class Exporter:
    """Writes one format, chosen by how the name of the output ends (``suffixes``).

    ``write`` writes a trace to a path that does not exist yet, or names the function that does as ``module:function``,
    to be imported when it is needed. With ``folder`` it makes a folder. It raises :class:`cutrace.CutraceError` for a
    request that it cannot fulfil.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    write: str | Write
    folder: bool = False

    def __call__(self, trace: Trace, path: Path, request: Request) -> None:
        write = self.write
        if isinstance(write, str):
            module, _, function = write.partition(":")
            write = cast(Write, getattr(import_module(module), function))
        write(trace, path, request)
