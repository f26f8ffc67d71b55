"""Record what a program does on NVIDIA GPUs, view it in Perfetto, and test it with golden files.

Each name below is loaded on first use, so that ``import cutrace`` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from .conversion import convert
    from .errors import BadCapture, CutraceError
    from .extras.fleet.api import Batch, batch
    from .extras.fleet.merging import merge
    from .extras.hardware.api import roofline, why
    from .extras.hardware.counting import region
    from .extras.hardware.profiling import profile
    from .extras.pages.api import FlameGraph, flame, view
    from .loading import load
    from .slicing import Conditions
    from .slicing import cut as slice
    from .trace import Trace

__all__ = [
    "BadCapture", "Batch", "Conditions", "CutraceError", "Diff", "FlameGraph", "Report", "Trace", "arm", "attach",
    "batch", "convert", "demangle", "diff", "dump", "flame", "info", "load", "mark", "merge", "open", "processes",
    "profile", "record", "redact", "region", "roofline", "slice", "sql", "stats", "trace_processor", "view",
    "why",
]  # fmt: skip

_HOMES = {
    "collect": ("arm", "attach", "dump", "mark", "processes", "record"),
    "conversion": ("convert",),
    "errors": ("BadCapture", "CutraceError"),
    "extras.fleet.api": ("Batch", "batch"),
    "extras.fleet.merging": ("merge",),
    "extras.hardware.api": ("roofline", "why"),
    "extras.hardware.counting": ("region",),
    "extras.hardware.profiling": ("profile",),
    "extras.pages.api": ("FlameGraph", "flame", "view"),
    "loading": ("load",),
    "slicing": ("Conditions", "slice"),
    "trace": ("Trace",),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("cutrace")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "api")
    value = getattr(
        import_module(f".{home}", __name__), "cut" if name == "slice" else name
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
