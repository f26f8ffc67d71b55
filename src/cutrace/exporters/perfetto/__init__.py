"""Perfetto traces: a capture as a GPU compute trace for ui.perfetto.dev. docs/perfetto.md says what becomes of what.

``schema`` knows Perfetto's messages by name and ``template`` turns descriptions of them into native programs;
``gpu`` and ``tracks`` are those descriptions; ``sweep`` brings the host's slices into order; ``sequence``,
``naming``, ``devices`` and ``header`` hold what a trace shares; ``output`` is the file.
"""

from __future__ import annotations

from .export import write

__all__ = ["write"]
