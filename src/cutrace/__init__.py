"""Record what a program does on NVIDIA GPUs, see it in Perfetto, hold it in tests.

The names below are loaded when they are first used, so that ``import cutrace`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .collect import arm, dump, mark, record
    from .conversion import convert
    from .errors import BadCapture, CutraceError
    from .loading import load
    from .trace import Trace

__all__ = ["BadCapture", "CutraceError", "Trace", "arm", "convert", "dump", "load", "mark", "record"]

_HOMES = {
    "BadCapture": "errors",
    "CutraceError": "errors",
    "Trace": "trace",
    "arm": "collect",
    "convert": "conversion",
    "dump": "collect",
    "load": "loading",
    "mark": "collect",
    "record": "collect",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("cutrace")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
