"""What styles of GPU work have in common, numbered as it comes: the streams of a process, for one."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from .styles import Styles


class Numbered:
    """Numbers for the combinations of some fields that styles depend on. ``keys`` has the combination by number."""

    def __init__(self, *fields: str) -> None:
        self._fields = fields
        self.keys: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._of: WeakKeyDictionary[Styles, np.ndarray] = WeakKeyDictionary()

    def of(self, styles: Styles) -> np.ndarray:
        """The number of each style."""
        known = self._of.get(styles, np.zeros(0, np.uint32))
        if len(known) < len(styles):
            fields = (styles.field(f)[len(known) :].tolist() for f in self._fields)
            fresh = [self._number(key) for key in zip(*fields, strict=True)]
            known = self._of[styles] = np.append(known, np.array(fresh, np.uint32))
        return known

    def _number(self, key: tuple[int, ...]) -> int:
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number
