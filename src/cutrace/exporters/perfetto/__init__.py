"""Perfetto traces: a capture as a GPU compute trace for ui.perfetto.dev. docs/perfetto.md says what becomes of what.

``proto`` knows Perfetto's messages by name, ``packets`` the file and its sequences, ``descriptors`` the tracks.
``gpu_events`` and ``host_tables`` describe what tables become, ``annotations`` and ``flows`` what more their rows have,
``derived`` what follows from them. ``export`` puts these together, window by window.
"""

from __future__ import annotations

from .export import write

__all__ = ["write"]
