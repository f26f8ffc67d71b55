"""Trace-event JSON: for chrome://tracing, ui.perfetto.dev, and tools that read torch.profiler's files, such as Holistic
Trace Analysis. docs/chrome.md says which record becomes which event.
"""

from __future__ import annotations

from .export import write

__all__ = ["write"]
