"""Trace-event JSON for chrome://tracing, ui.perfetto.dev, and tools that read files of torch.profiler, such as Holistic
Trace Analysis. docs/internals/exporters.md describes the events of each record.
"""

from __future__ import annotations

from .export import write

__all__ = ["write"]
