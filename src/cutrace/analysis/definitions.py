"""The definitions of metrics, and their values in a window. This module does not need NumPy.

docs/reference/pytest.md shows :data:`METRICS`; docs/internals/metrics.md has the longer rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

#: One number, or counts by name.
Value = int | float | dict[str, int]


class MetricClass(Enum):
    """The class of a metric: the causes of its changes. It determines how golden files store and compare the metric."""

    #: Depends on the test, and on the kernels that libraries choose in this environment. Compared exactly; missing
    #: means 0.
    WORK = "work"
    #: Depends also on the earlier work of the process, such as the contents of memory pools. Compared with a recorded
    #: range.
    STATE = "state"
    #: A counter of the project or of the hardware. Compared exactly; missing means unknown.
    COUNTER = "counter"
    #: Depends on the compiler, its options and the GPU architecture. Compared kernel by kernel; missing means unknown.
    CODE = "code"
    #: Depends also on the load and the clocks of the machine. Compared statistically.
    TIME = "time"
    #: Never compared.
    INFO = "info"


@dataclass(frozen=True)
class Metric:
    """The definition of a metric.

    ``unit`` is "" for counts. With ``counts`` the value is a dict of counts by name. A window without such work has the
    value 0 (or {}) with ``always``, otherwise no value. ``total`` names the metric of which this one is a part or a
    breakdown. The GPU counts ``hardware`` metrics when a test requests them. Between runs they may differ by the share
    ``tolerance`` and the number ``floor``.
    """

    name: str
    kind: MetricClass
    unit: str
    doc: str
    counts: bool = False
    always: bool = True
    total: str = ""
    hardware: bool = False
    tolerance: float = 0.0
    floor: int = 0


#: The directions of copies, by their abbreviation in names of metrics.
COPY_KINDS: dict[str, str] = {
    "h2d": "from host to device",
    "d2h": "from device to host",
    "d2d": "within a device",
    "h2h": "within host memory",
    "p2p": "between devices",
    "other": "in a direction that CUPTI does not know",
}


_WORK = MetricClass.WORK
_STATE = MetricClass.STATE
_CODE = MetricClass.CODE
_TIME = MetricClass.TIME
_INFO = MetricClass.INFO
_BYTES_TOLERANCE = 0.02
#: The tolerance of bytes: the L2 cache also writes back data of earlier work, and keeps data for later.
_DRAM_FLOOR = 8 << 20
_FULL_NAME = re.compile(r"[a-z0-9]+__[a-z0-9_]+\.(?:sum|min|max)")


def _copies() -> Iterator[Metric]:
    for kind, direction in COPY_KINDS.items():
        for what, unit, doc in (
            ("count", "", "copies"),
            ("bytes", "bytes", "bytes copied"),
        ):
            name = f"memcpy_{kind}_{what}"
            total = f"memcpy_{what}"
            yield Metric(
                name, _WORK, unit, f"{doc} {direction}", always=False, total=total
            )


def hardware(name: str, doc: str) -> Metric:
    """The metric of a hardware counter, named by cutrace or by CUPTI."""
    unit = "bytes" if "bytes" in name else ""
    floor = _DRAM_FLOOR if unit and name.startswith("dram") else 0
    tolerance = _BYTES_TOLERANCE if unit else 0.0
    return Metric(
        name, MetricClass.COUNTER, unit, doc, False, False, "", True, tolerance, floor
    )


def is_full_name(name: str) -> bool:
    """Whether a name is CUPTI's name of a count, such as ``sm__inst_executed.sum``."""
    return _FULL_NAME.fullmatch(name) is not None


#: All metrics, in the order of files and tables.
METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric(
            "kernel_launches",
            _WORK,
            "",
            "kernels that ran, each node of a launched CUDA graph included; launches captured into a graph "
            "run nothing and do not count",
        ),
        Metric(
            "kernels",
            _WORK,
            "",
            "the same by stable name",
            counts=True,
            total="kernel_launches",
        ),
        Metric(
            "code",
            _CODE,
            "",
            "machine code of each of these kernels, if the recording asks for it; regions have none",
            always=False,
        ),
        Metric(
            "graph_launches",
            _WORK,
            "",
            "successful calls of cudaGraphLaunch and cuGraphLaunch; with cuda_graph=graph also graphs whose "
            "call was not recorded",
        ),
        Metric(
            "memcpy_count",
            _WORK,
            "",
            "copies by the GPU or the driver, peer-to-peer copies and copies of graphs included; nearly "
            "always one a call",
        ),
        Metric("memcpy_bytes", _WORK, "bytes", "bytes of these copies"),
        *_copies(),
        Metric("memset_count", _WORK, "", "memory fills"),
        Metric("memset_bytes", _WORK, "bytes", "bytes filled"),
        Metric(
            "sync_calls",
            _WORK,
            "",
            "calls that make their thread wait for the GPU, successful or not",
        ),
        Metric(
            "syncs",
            _WORK,
            "",
            "the same by function, without suffixes of versions and streams",
            counts=True,
            total="sync_calls",
        ),
        Metric(
            "allocations",
            _STATE,
            "",
            "allocations of device memory, managed memory and arrays, from pools too",
        ),
        Metric(
            "allocators",
            _STATE,
            "",
            "the same by function; (unknown call) where the call was not recorded",
            counts=True,
            total="allocations",
        ),
        Metric("frees", _STATE, "", "releases of the memory that allocations counts"),
        Metric("pinned_allocations", _STATE, "", "allocations of pinned host memory"),
        Metric("pinned_frees", _STATE, "", "releases of pinned host memory"),
        Metric(
            "streams_used",
            _STATE,
            "",
            "streams on which kernels, copies, fills or whole graphs ran, by process and context; streams of "
            "the driver for branches of a graph count",
        ),
        Metric(
            "default_stream_work",
            _STATE,
            "",
            "kernels, copies, fills and whole graphs on the legacy default stream of their context; no value"
            " if a capture lacks a context",
        ),
        Metric(
            "pageable_copies",
            _STATE,
            "",
            "copies between host and device whose host memory is pageable, copies of graphs included",
        ),
        Metric(
            "peak_memory_bytes",
            _STATE,
            "bytes",
            "highest level of the memory that allocations and frees count, above the level at the start, "
            "over all devices; at least 0",
        ),
        Metric(
            "net_memory_bytes",
            _STATE,
            "bytes",
            "bytes allocated minus bytes released; negative when more was released",
        ),
        hardware(
            "instructions", "instructions that warps executed (sm__inst_executed.sum)"
        ),
        hardware(
            "tensor_instructions",
            "instructions that ran on tensor cores (sm__inst_executed_pipe_tensor.sum)",
        ),
        hardware(
            "fp32_fma",
            "fused multiplications and additions of 32 bits that threads executed "
            "(smsp__sass_thread_inst_executed_op_ffma_pred_on.sum)",
        ),
        hardware(
            "fp32_add",
            "additions of 32 bits that threads executed (smsp__sass_thread_inst_executed_op_fadd_pred_on.sum)",
        ),
        hardware(
            "fp32_mul",
            "multiplications of 32 bits that threads executed "
            "(smsp__sass_thread_inst_executed_op_fmul_pred_on.sum)",
        ),
        hardware(
            "dram_bytes", "bytes read from DRAM and written to it (dram__bytes.sum)"
        ),
        hardware("dram_read_bytes", "bytes read from DRAM (dram__bytes_read.sum)"),
        hardware("dram_write_bytes", "bytes written to DRAM (dram__bytes_write.sum)"),
        hardware("l2_bytes", "bytes requested from the L2 cache (lts__t_bytes.sum)"),
        Metric(
            "kernel_time_ns",
            _TIME,
            "ns",
            "sum of the times of all kernels, also where they overlap",
        ),
        Metric(
            "busy_ns",
            _TIME,
            "ns",
            "time in which at least one kernel, copy, fill or whole graph ran, on any GPU",
        ),
        Metric(
            "api_time_ns",
            _TIME,
            "ns",
            "time in the recorded calls of the CUDA API, to their end; calls within calls of a thread count once",
        ),
        Metric(
            "gpu_span_ns",
            _INFO,
            "ns",
            "time from the start of the first GPU work to the end of the last",
            always=False,
        ),
        Metric(
            "idle_share",
            _INFO,
            "1",
            "part of gpu_span_ns in which no work ran, 0 to 1",
            always=False,
        ),
        Metric(
            "launch_latency_ns",
            _INFO,
            "ns",
            "median, over launches, of the time from the start of the call to the start of its first kernel;"
            " negative where CUPTI's clocks disagree",
            always=False,
        ),
        Metric(
            "copy_bandwidth",
            _INFO,
            "bytes/s",
            "bytes of all copies over the sum of their times on the device",
            always=False,
        ),
    )
}


@dataclass(frozen=True)
class Metrics:
    """The metrics of a window.

    ``values`` are by name, in the order of :data:`METRICS`; ``regions`` has such values by name of region, summed over
    regions of the same name. ``problems`` are sentences with the reasons why the numbers are unreliable. ``gpus`` has
    the name of each device used. ``facts`` has properties of hardware and software that are in the capture: ``compute
    capability`` (several are joined by ``+``), ``clock`` of the first device, ``driver``, ``cuda``. ``gpu_records``
    counts the GPU work, ``without_launch`` the work without a recorded launch, which counts by its own start.

    ``codes`` are the machine codes of the kernels by stable name, each as ``9f3c52d0a1b2c3d4 registers=32 bytes=512``;
    ``ambiguous`` or ``unknown`` stands for launches whose code is not known. It is None if no code was recorded.
    """

    values: dict[str, Value]
    regions: dict[str, dict[str, Value]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    gpu_records: int = 0
    without_launch: int = 0
    codes: Mapping[str, tuple[str, ...]] | None = None
