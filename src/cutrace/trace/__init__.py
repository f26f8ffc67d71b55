"""The model of a capture: tables over all its processes, strings, clocks and losses."""

from .imported import Account, Imported, Tally
from .process import Process
from .quality import EarlyStart, Loss, Quality
from .strings import StringTable
from .trace import Trace, load

__all__ = [
    "Account",
    "EarlyStart",
    "Imported",
    "Loss",
    "Process",
    "Quality",
    "StringTable",
    "Tally",
    "Trace",
    "load",
]
