"""Perfetto traces: write a capture as a GPU compute trace. docs/internals/perfetto.md has the mapping.

``proto`` encodes messages, ``packets`` writes packets and sequences, ``descriptors`` describes tracks. ``gpu_events``
and ``host_tables`` map tables to events. ``annotations`` and ``flows`` add arguments and flows to them. ``derived``
computes counters, projected NVTX ranges and waits. ``export`` runs all of them, window by window.
"""

from __future__ import annotations

from .export import write

__all__ = ["write"]
