"""The strings of a trace: one table for all processes, with each string once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .rows import numbered


class StringTable:
    """Strings by id. Id 0 is the empty string. Ids are dense: ``len(table)`` is the largest id plus one."""

    def __init__(self) -> None:
        self._texts: list[bytes] = [b""]
        self._ids: dict[bytes, int] = {b"": 0}

    def add(self, text: bytes) -> int:
        """The id of a string; adds the string if it is new."""
        known = self._ids.get(text)
        if known is None:
            known = len(self._texts)
            self._ids[text] = known
            self._texts.append(text)
        return known

    def find(self, text: str) -> int | None:
        """The id of a string; None if the trace does not contain the string."""
        return self._ids.get(text.encode("utf-8", "surrogateescape"))

    def bytes(self, index: int) -> bytes:
        """The bytes of a string in the file."""
        return self._texts[index]

    def __getitem__(self, index: int) -> str:
        return self._texts[index].decode("utf-8", "replace")

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return (text.decode("utf-8", "replace") for text in self._texts)

    def take(self, ids: np.ndarray, change: Callable[[str], Any] = str) -> np.ndarray:
        """The strings of many ids, converted by ``change``, as an object array of the same shape as ``ids``."""
        numbers, places = numbered(ids.reshape(-1))
        texts = np.empty(len(numbers), object)
        texts[:] = [change(self[number]) for number in numbers]
        taken: np.ndarray = texts[places]
        return taken.reshape(ids.shape)
