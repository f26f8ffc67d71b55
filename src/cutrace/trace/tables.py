"""The tables of a trace as attributes. Type checkers and editors read tables.pyi, which knows their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runbin.layout import TABLES

if TYPE_CHECKING:
    import numpy as np

    from .trace import Trace


class _TableAttribute:
    """A table of the trace as an attribute: a structured array, read at first use and kept."""

    def __init__(self, name: str, doc: str) -> None:
        self.name = name
        self.__doc__ = doc

    def __get__(self, trace: Trace | None, owner: type) -> np.ndarray | _TableAttribute:
        if trace is None:
            return self
        return trace.table(self.name)


class TraceTables:
    """The tables of a trace."""


for _name, _layout in TABLES.items():
    setattr(TraceTables, _name, _TableAttribute(_name, _layout.doc))
