"""Words for the numbers in CUPTI's records, as tables for people have them."""

from __future__ import annotations

from ..runbin.words import MEMCPY_KINDS, UNIFIED_MEMORY_KINDS

_PLACES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


def _spelled(kind: str) -> str:
    """``HtoD`` in full."""
    return f"{_PLACES[kind[0]]}-to-{_PLACES[kind[-1]]}"


COPIES = {number: _spelled(kind) for number, kind in MEMCPY_KINDS.items() if number}
#: Unified memory: what is counted, and whether the value is a number of bytes.
UNIFIED_MEMORY = {
    number: (f"migration {_spelled(kind.split()[1])}", True) if kind.startswith("migration") else (kind, False)
    for number, kind in UNIFIED_MEMORY_KINDS.items()
    if number
}
RANGE_STYLES = {0: "push/pop", 1: "start/end"}
GPU_SLICES = {1: "annotation", 2: "NVTX range"}


def word(words: dict[int, str], number: int) -> str:
    """The word for a number; "unknown" for 0 and the number itself where there is none."""
    return words.get(number) or (f"unknown ({number})" if number else "unknown")
