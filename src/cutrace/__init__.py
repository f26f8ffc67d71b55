"""Record what a program does on NVIDIA GPUs, view it in Perfetto, and test it with golden files.

Each name below is loaded on first use, so that ``import cutrace`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analysis.summary import Summary
    from .api import (
        Diff,
        Report,
        demangle,
        diff,
        info,
        open,
        redact,
        sql,
        stats,
        trace_processor,
    )
    from .collect import arm, attach, dump, mark, processes, record
    from .collect.capture import Armed, Capture
    from .collect.join import Recording
    from .collect.options import OptionArguments
    from .collect.standby import Attachment, StandbyProcess
    from .conversion import convert
    from .errors import BadCapture, CutraceError
    from .exporters.base import Request
    from .extras.fleet.api import Batch, batch
    from .extras.fleet.merging import Rank, merge
    from .extras.hardware.api import roofline, why
    from .extras.hardware.counting import region
    from .extras.hardware.profiling import Profile, profile
    from .extras.hardware.roofline import Roofline
    from .extras.hardware.why import Why
    from .extras.pages.api import FlameGraph, flame, view
    from .loading import Source, load
    from .patterns import Patterns
    from .slicing import Conditions, Cut
    from .slicing import cut as slice
    from .trace import Trace
    from .units import Size, Time

#: The names of ``from cutrace import *``. ``open`` and ``slice`` are public too, but would hide Python's own.
__all__ = [
    "Armed", "Attachment", "BadCapture", "Batch", "Capture", "Conditions", "Cut", "CutraceError", "Diff", "FlameGraph",
    "OptionArguments", "Patterns", "Profile", "Rank", "Recording", "Report", "Request", "Roofline", "Size", "Source",
    "StandbyProcess", "Summary", "Time", "Trace", "Why", "arm", "attach", "batch", "convert", "demangle", "diff",
    "dump", "flame", "info", "load", "mark", "merge", "processes", "profile", "record", "redact", "region", "roofline",
    "sql", "stats", "trace_processor", "view", "why",
]  # fmt: skip
if TYPE_CHECKING:
    __all__ += ["open", "slice"]

_HOMES = {
    "analysis.summary": ("Summary",),
    "api": (
        *("Diff", "Report", "demangle", "diff", "info", "open", "redact", "sql"),
        *("stats", "trace_processor"),
    ),
    "collect": (
        *("Armed", "Attachment", "Capture", "Recording", "StandbyProcess", "arm"),
        *("attach", "dump", "mark", "processes", "record"),
    ),
    "collect.options": ("OptionArguments",),
    "conversion": ("convert",),
    "errors": ("BadCapture", "CutraceError"),
    "exporters.base": ("Request",),
    "extras.fleet.api": ("Batch", "batch"),
    "extras.fleet.merging": ("Rank", "merge"),
    "extras.hardware.api": ("roofline", "why"),
    "extras.hardware.counting": ("region",),
    "extras.hardware.profiling": ("Profile", "profile"),
    "extras.hardware.roofline": ("Roofline",),
    "extras.hardware.why": ("Why",),
    "extras.pages.api": ("FlameGraph", "flame", "view"),
    "loading": ("Source", "load"),
    "patterns": ("Patterns",),
    "slicing": ("Conditions", "Cut", "slice"),
    "trace": ("Trace",),
    "units": ("Size", "Time"),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("cutrace")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(
        import_module(f".{home}", __name__), "cut" if name == "slice" else name
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "open", "slice", "__version__"})
