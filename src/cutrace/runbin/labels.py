"""Labels for the numbers in CUPTI's records."""

from __future__ import annotations

#: The category of counters sampled on a GPU.
HARDWARE_COUNTER = "hardware_counter"

MEMCPY_KINDS = {
    0: "unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP",
}  # fmt: skip
MEMORY_KINDS = {
    0: "unknown", 1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device static",
    7: "managed static", 128: "physical",
}  # fmt: skip
SYNCHRONIZATIONS = {
    0: "unknown",
    1: "event",
    2: "stream wait event",
    3: "stream",
    4: "context",
}
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
RANGE_STYLES = {0: "push/pop", 1: "start/end"}
GPU_SLICES = {1: "annotation", 2: "NVTX range"}

_ENDPOINTS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


def label(labels: dict[int, str], number: int) -> str:
    """The label of a number, or the number itself if it has no label."""
    return labels.get(number, str(number))


def known_label(labels: dict[int, str], number: int) -> str:
    """The label of a number; "unknown" for 0, "unknown (9)" where there is no label."""
    return labels.get(number) or (f"unknown ({number})" if number else "unknown")


def allocation_notes(flags: int) -> dict[str, str]:
    """The meaning of the flags of a row of ``allocations``, as arguments of its event."""
    notes = {}
    if flags & 2:
        notes["size"] = "unknown, its allocation was not recorded"
    if flags & 4:
        notes["released"] = "with its context"
    return notes


def titled(label: str) -> str:
    """A label in title case: ``Stream Wait Event``."""
    words = map(_capitalized, label.split())
    return " ".join(words)


def _capitalized(word: str) -> str:
    return word[:1].upper() + word[1:]


def spelled(kind: str) -> str:
    """A kind of copy in full: ``Host-to-Device`` for ``HtoD``."""
    if kind[0] in _ENDPOINTS:
        source = _ENDPOINTS[kind[0]]
        destination = _ENDPOINTS[kind[-1]]
        return f"{source}-to-{destination}"
    return titled(kind)


#: Kinds of copies in full.
COPIES = {number: spelled(kind) for number, kind in MEMCPY_KINDS.items() if number}
#: Unified memory: the label of each kind, and whether its value is a number of bytes.
UNIFIED_MEMORY: dict[int, tuple[str, bool]] = {}
for _number, _kind in UNIFIED_MEMORY_KINDS.items():
    if _kind.startswith("migration"):
        UNIFIED_MEMORY[_number] = (f"migration {spelled(_kind.split()[1])}", True)
    elif _number:
        UNIFIED_MEMORY[_number] = (_kind, False)
