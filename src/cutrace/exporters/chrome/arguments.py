"""The arguments of events that were imported, apart again: what belongs beside them, and what into them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import Blobs
from ...trace.strings import StringTable
from ...trace_events import WRAP
from .lines import quoted


class _NotJson(Exception):
    """NaN and the like, which Python reads."""


def _refuse(word: str) -> Any:
    raise _NotJson(word)


def dumped(value: Any) -> str:
    """A value as JSON; what has no number in JSON becomes text."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=str), ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class Parts:
    """Pieces of JSON of one text of arguments, each with a comma before it or empty: ``beside`` is keys of the event,
    ``inside`` the arguments, ``of_end`` those of the event that ends a slice. ``phase`` is how the event was written.
    """

    beside: bytes = b""
    inside: bytes = b""
    of_end: bytes = b""
    phase: str = ""
    empty: bool = False


def split(text: str) -> Parts:
    """A text of arguments apart. What is no JSON object becomes an argument ``arguments``."""
    try:
        told = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError, _NotJson):
        told = None
    if not isinstance(told, dict):
        return Parts(inside=b',"arguments":' + quoted(text))
    wrap = told.get(WRAP)
    if not isinstance(wrap, dict):
        inner = text.strip()[1:-1].strip()
        return Parts(inside=b"," + inner.encode("utf-8", "replace") if inner else b"", empty=not inner)
    del told[WRAP]
    end, phase = wrap.pop("end", None), wrap.pop("ph", "")
    return Parts(
        beside=_members(wrap),
        inside=_members(told),
        of_end=b',"args":' + dumped(end).encode("utf-8", "replace") if end is not None else b"",
        phase=phase if isinstance(phase, str) else "",
    )


def _members(values: dict[str, Any]) -> bytes:
    return b"," + dumped(values)[1:-1].encode("utf-8", "replace") if values else b""


class Arguments:
    """The parts of all texts of arguments that were asked for, as pieces for lines."""

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._known = np.full(len(strings), -1, np.int64)
        self._there, self._phases = bytearray(), bytearray()
        self.beside, self.inside, self.of_end = Blobs(), Blobs(), Blobs()
        self._known[0] = self._add(Parts())

    def ids(self, texts: np.ndarray) -> np.ndarray:
        """Ids of the pieces of texts (ids). In :attr:`inside`, twice the id is the piece that comes first in an object,
        and one more the piece that comes behind something else."""
        for text in np.unique(texts[self._known[texts] < 0]).tolist():
            self._known[text] = self._add(split(self._strings[text]))
        ids: np.ndarray = self._known[texts]
        return ids

    def there(self, ids: np.ndarray) -> np.ndarray:
        """Whether there is an object of arguments, empty or not."""
        return np.asarray(np.frombuffer(self._there, np.uint8).copy()[ids] > 0)

    def phases(self, ids: np.ndarray) -> np.ndarray:
        """How events were written (ASCII), 0 where that is not told."""
        return np.asarray(np.frombuffer(self._phases, np.uint8).copy()[ids])

    def _add(self, parts: Parts) -> int:
        self.beside.add(parts.beside)
        self.inside.add(parts.inside[1:])
        self.inside.add(parts.inside)
        self.of_end.add(parts.of_end)
        self._there.append(bool(parts.inside) or parts.empty)
        self._phases.append(ord(parts.phase) if len(parts.phase) == 1 and parts.phase.isascii() else 0)
        return len(self._there) - 1
