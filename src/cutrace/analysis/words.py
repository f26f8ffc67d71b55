"""Words for the numbers in CUPTI's records, as tables for people have them."""

from __future__ import annotations

COPIES = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
}  # fmt: skip
MEMORIES = {
    1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device static", 7: "managed static",
}  # fmt: skip
SYNCHRONIZATIONS = {1: "event", 2: "stream wait event", 3: "stream", 4: "context"}
OVERHEADS = {
    1: "driver compiler", 1 << 16: "CUPTI buffer flush", 2 << 16: "CUPTI instrumentation", 3 << 16: "CUPTI resource",
    4 << 16: "runtime triggered module loading", 5 << 16: "lazy function loading", 6 << 16: "command buffer full",
    7 << 16: "activity buffer request", 8 << 16: "UVM activity init",
}  # fmt: skip
#: Unified memory: what is counted, and whether the value is a number of bytes.
UNIFIED_MEMORY = {
    1: ("migration Host-to-Device", True), 2: ("migration Device-to-Host", True), 3: ("CPU page fault", False),
    4: ("GPU page fault", False), 5: ("thrashing", False), 6: ("throttling", False), 7: ("remote mapping", False),
    8: ("migration Device-to-Device", True),
}  # fmt: skip
RANGE_STYLES = {0: "push/pop", 1: "start/end"}
GPU_SLICES = {1: "annotation", 2: "NVTX range"}


def word(words: dict[int, str], number: int) -> str:
    """The word for a number; "unknown" for 0 and the number itself where there is none."""
    return words.get(number) or (f"unknown ({number})" if number else "unknown")
