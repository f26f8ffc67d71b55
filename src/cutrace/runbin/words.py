"""Words for the numbers in CUPTI's records."""

from __future__ import annotations

MEMCPY_KINDS = {
    0: "unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP",
}  # fmt: skip
MEMORY_KINDS = {
    0: "unknown", 1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device static",
    7: "managed static",
}  # fmt: skip
SYNCHRONIZATIONS = {0: "unknown", 1: "event", 2: "stream wait event", 3: "stream", 4: "context"}
OVERHEADS = {
    0: "unknown", 1: "driver compiler", 1 << 16: "CUPTI buffer flush", 2 << 16: "CUPTI instrumentation",
    3 << 16: "CUPTI resource", 4 << 16: "runtime triggered module loading", 5 << 16: "lazy function loading",
    6 << 16: "command buffer full", 7 << 16: "activity buffer request", 8 << 16: "UVM activity init",
}  # fmt: skip
ALLOCATIONS = {0: "unknown", 1: "allocate", 2: "release"}
POOL_OPERATIONS = {0: "unknown", 1: "created", 2: "destroyed", 3: "trimmed"}
POOL_TYPES = {1: "local", 2: "imported"}
UNIFIED_MEMORY_KINDS = {
    0: "unknown", 1: "migration HtoD", 2: "migration DtoH", 3: "CPU page fault", 4: "GPU page fault", 5: "thrashing",
    6: "throttling", 7: "remote mapping", 8: "migration DtoD",
}  # fmt: skip
JIT_ENTRIES = {1: "PTX to cubin", 2: "NVVM IR to PTX"}
JIT_OPERATIONS = {1: "cache load", 2: "cache store", 3: "compile"}
ENVIRONMENT = {1: "speed", 2: "temperature", 3: "power", 4: "cooling"}
CACHE_CONFIGS = {1: "prefer shared memory", 2: "prefer L1", 3: "equal"}
LAUNCH_TYPES = {1: "cooperative", 2: "cooperative on several devices"}


def label(words: dict[int, str], number: int) -> str:
    """The word for a number; a number that has none is shown as it is."""
    return words.get(number, str(number))
