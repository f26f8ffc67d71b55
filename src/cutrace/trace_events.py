"""Words of trace-event JSON that readers and writers of it share: what torch.profiler (Kineto) calls things, and what
cutrace adds."""

from __future__ import annotations

#: Keys of an event that a capture has no field for lie in an argument of this name.
WRAP = "trace_event"
#: Fields of a record that Kineto does not write lie in an argument of this name.
OWN = "cutrace"

#: CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind, as in "Memcpy HtoD (Pinned -> Device)".
MEMCPY_KINDS = {
    "<unknown>": 0, "HtoD": 1, "DtoH": 2, "HtoA": 3, "AtoH": 4, "AtoA": 5, "AtoD": 6, "DtoA": 7, "DtoD": 8, "HtoH": 9,
    "PtoP": 10,
}  # fmt: skip
MEMORY_KINDS = {
    "Unknown": 0, "Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5, "Device Static": 6,
    "Managed Static": 7,
}  # fmt: skip
#: CUpti_ActivitySynchronizationType.
SYNCHRONIZATIONS = {"Unknown Sync": 0, "Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
#: CUpti_ActivityOverheadKind.
OVERHEADS = {
    "Unknown": 0, "Driver Compiler": 1, "Buffer Flush": 1 << 16, "Instrumentation": 2 << 16, "Resource": 3 << 16,
    "Runtime Triggered Module Loading": 4 << 16, "Lazy Function Loading": 5 << 16, "Command Buffer Full": 6 << 16,
    "Activity Buffer Request": 7 << 16, "UVM Activity Init": 8 << 16,
}  # fmt: skip

#: Categories of slices on the host by HOST_SLICE_KINDS.
HOST_CATEGORIES = {1: "cpu_op", 2: "user_annotation", 3: "python_function"}

#: ``external_correlations`` rows with Kineto's External ids are of this kind.
EXTERNAL_KIND = 0xFFFF

#: Kineto's names of device properties, and the fields of ``devices``.
DEVICE_PROPERTIES = {
    "totalGlobalMem": "memory", "computeMajor": "compute_major", "computeMinor": "compute_minor",
    "maxThreadsPerBlock": "max_threads_per_block", "maxThreadsPerMultiprocessor": "max_threads_per_multiprocessor",
    "regsPerBlock": "registers_per_block", "warpSize": "warp_size", "sharedMemPerBlock": "shared_per_block",
    "numSms": "multiprocessors", "regsPerMultiprocessor": "registers_per_multiprocessor",
    "sharedMemPerBlockOptin": "shared_per_block_optin", "sharedMemPerMultiprocessor": "shared_per_multiprocessor",
}  # fmt: skip
