"""Names of trace-event JSON, shared by its readers and writers: torch.profiler's (Kineto's) names and cutrace's own."""

from __future__ import annotations

from .runbin import labels
from .runbin.labels import titled

#: The argument that holds the keys of an event without a field in the capture.
WRAP = "trace_event"
#: The argument for fields of a record that Kineto does not write. A top-level key of this name marks a file of cutrace.
OWN = "cutrace"
#: The top-level key with sentences about missing data.
MISSING = "cutrace_missing"
#: The top-level key with :meth:`.Quality.carried`, for imports of the file.
LOSSES = "cutrace_losses"

#: The name of the process for events without a process.
NO_PROCESS = "events without a process"

#: The argument of work of a CUDA graph with the NVTX ranges in which its node was created.
CREATED_IN = "created in"
#: The argument with the Python stack of a call.
STACK = "stack"
#: The argument with the Python frame of the launch of GPU work.
LAUNCHED_AT = "launched at"

#: CUPTI's numbers by Kineto's names, as in "Memcpy HtoD (Pinned -> Device)".
MEMCPY_KINDS = {label: kind for kind, label in labels.MEMCPY_KINDS.items() if kind}
MEMORY_KINDS = {titled(label): number for number, label in labels.MEMORY_KINDS.items()}
SYNCHRONIZATIONS = {
    titled(label) + " Sync" * (label != "stream wait event"): number
    for number, label in labels.SYNCHRONIZATIONS.items()
}
OVERHEADS = {
    titled(label.removeprefix("CUPTI ")): number
    for number, label in labels.OVERHEADS.items()
}

#: Categories of slices on the host by HOST_SLICE_KINDS.
HOST_CATEGORIES = {1: "cpu_op", 2: "user_annotation", 3: "python_function"}

#: The kind of ``external_correlations`` rows with Kineto's External ids.
EXTERNAL_KIND = 0xFFFF

#: Kineto's names of device properties, and the fields of ``devices``.
DEVICE_PROPERTIES = {
    "totalGlobalMem": "memory",
    "computeMajor": "compute_major",
    "computeMinor": "compute_minor",
    "maxThreadsPerBlock": "max_threads_per_block",
    "maxThreadsPerMultiprocessor": "max_threads_per_multiprocessor",
    "regsPerBlock": "registers_per_block",
    "warpSize": "warp_size",
    "sharedMemPerBlock": "shared_per_block",
    "numSms": "multiprocessors",
    "regsPerMultiprocessor": "registers_per_multiprocessor",
    "sharedMemPerBlockOptin": "shared_per_block_optin",
    "sharedMemPerMultiprocessor": "shared_per_multiprocessor",
}
