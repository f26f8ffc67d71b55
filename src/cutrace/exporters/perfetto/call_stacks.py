"""Python stacks of API calls as arguments of their slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...trace.stacks import PythonStacks
from .packets import InternedRefs


class StackArguments:
    """The stacks of calls as arguments. Slices with the same stack share the arguments."""

    def __init__(self, stacks: PythonStacks) -> None:
        self._stacks = stacks

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The number of the stack of each call."""
        return self._stacks.of_rows(rows)

    def shared(self, number: int, refs: InternedRefs) -> list[dict[str, Any]]:
        """The debug annotations of a stack. Adds their interned entries to ``refs``."""
        return refs.annotations({"stack": self._stacks.text(number) or None})
