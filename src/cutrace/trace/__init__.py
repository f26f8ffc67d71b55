"""The model of a capture: tables over all its processes, strings, clocks, and what is missing."""

from .process import Process
from .quality import EarlyStart, Loss, Quality
from .strings import StringTable
from .trace import Trace, load

__all__ = ["EarlyStart", "Loss", "Process", "Quality", "StringTable", "Trace", "load"]
