"""Rooflines: operations of kernels per second and per byte of DRAM, and the ceilings of the GPU.

docs/internals/why.md defines each number and names the sources of the documented rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import CutraceError
from ...trace import Trace
from ...units import count_of
from .kernel_metrics import Profiled, profiled

#: The ``kind`` of the memory ceiling.
DRAM = "DRAM"

_ADVICE = "profile with --metrics flops"
_BYTES = "dram__bytes.sum"
_TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
#: Tensor cores with a smaller busy time (percent) count as unused.
_LEAST_TENSOR = 1.0
_PEAK = ".peak_sustained_elapsed.per_second"
#: A kind with a smaller share of a kernel's operations gets no point. For example, compilers load constants with fp16
#: instructions.
_LEAST_SHARE = 0.2


def _instructions(prefix: str, numbers: int) -> dict[str, int]:
    """The metrics of additions, multiplications and multiply-adds, each with its operations per instruction. An
    instruction processes ``numbers`` numbers."""
    weights = {"add": numbers, "mul": numbers, "fma": 2 * numbers}
    return {
        f"smsp__sass_thread_inst_executed_op_{prefix}{op}_pred_on.sum": weight
        for op, weight in weights.items()
    }


#: The metrics of each kind of operation, with the operations per count. The last metric gives the peak rate.
KINDS: dict[str, dict[str, int]] = {
    "fp32": _instructions("f", 1),
    "fp64": _instructions("d", 1),
    "fp16": _instructions("h", 2),
    "tensor fp16": {"sm__ops_path_tensor_src_fp16.sum": 1},
    "tensor bf16": {"sm__ops_path_tensor_src_bf16_dst_fp32.sum": 1},
    "tensor tf32": {"sm__ops_path_tensor_src_tf32_dst_fp32.sum": 1},
    "tensor fp64": {"sm__ops_path_tensor_src_fp64.sum": 1},
    "tensor fp8": {"sm__ops_path_tensor_src_fp8.sum": 1},
    "tensor int8": {"sm__ops_path_tensor_src_int8.sum": 1},
}

#: Multiply-adds (two operations each) per cycle and multiprocessor, by compute capability.
RATES: dict[tuple[int, int], dict[str, int]] = {
    (7, 5): {"fp32": 64, "fp64": 2, "fp16": 128},
    (8, 0): {
        "fp32": 64,
        "fp64": 32,
        "fp16": 256,
        "tensor fp16": 1024,
        "tensor bf16": 1024,
        "tensor tf32": 512,
        "tensor fp64": 64,
        "tensor int8": 2048,
    },
    (8, 6): {"fp32": 128, "fp64": 2},
    (8, 9): {"fp32": 128, "fp64": 2},
    (9, 0): {
        "fp32": 128,
        "fp64": 64,
        "fp16": 256,
        "tensor fp16": 2048,
        "tensor bf16": 2048,
        "tensor tf32": 1024,
        "tensor fp64": 128,
        "tensor fp8": 4096,
        "tensor int8": 4096,
    },
    (10, 0): {"fp32": 128, "fp64": 64},
    (12, 0): {"fp32": 128, "fp64": 2},
}


@dataclass(frozen=True)
class GpuLimits:
    """The attributes of a GPU that determine its ceilings; ``clock`` is in Hz, ``bandwidth`` in bytes/s."""

    name: str = "unknown GPU"
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0
    clock: int = 0
    bandwidth: int = 0


@dataclass(frozen=True)
class Ceiling:
    """The maximum rate of a GPU: bytes of DRAM per second if ``kind`` is :data:`DRAM`, else operations of the ``kind``
    per second. ``measured`` is True if the rate comes from counters of the GPU. ``source`` explains the number."""

    kind: str
    rate: float
    measured: bool
    source: str


@dataclass(frozen=True)
class Point:
    """The operations of one kind, summed over all launches of a kernel: the number of ``launches``, their ``time``
    (ns), ``operations``, and ``bytes`` of DRAM. ``ceiling`` is the kind of the lower ceiling at this point, and
    ``share`` the reached share of the ceiling. They are "" and None if no ceiling is known."""

    kernel: str
    kind: str
    launches: int
    time: int
    operations: float
    bytes: float
    ceiling: str = ""
    share: float | None = None

    @property
    def placed(self) -> bool:
        """Whether the point can be drawn on logarithmic axes."""
        return self.operations >= 1 and self.bytes >= 1

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations * 1e9 / self.time

    @property
    def traffic(self) -> float:
        """Bytes of DRAM per second."""
        return self.bytes * 1e9 / self.time

    @property
    def intensity(self) -> float | None:
        """Operations per byte of DRAM; None without bytes."""
        if self.bytes:
            return self.operations / self.bytes
        return None


@dataclass(frozen=True)
class Roofline:
    """The points of the kernels on GPUs of one model, longest time first, and the ceilings of the GPU for their kinds
    of operations. ``notes`` describe missing data."""

    gpu: GpuLimits
    ceilings: tuple[Ceiling, ...]
    points: tuple[Point, ...]
    notes: tuple[str, ...]


def rooflines(trace: Trace) -> list[Roofline]:
    """The roofline of each GPU model. Raises :class:`CutraceError` if no launch has counts of operations and bytes."""
    roofs = every_roofline(trace)
    if not roofs:
        absent = (
            "there are no hardware metrics of kernels: "
            "record them with `cutrace profile --metrics flops -- COMMAND`"
        )
        raise CutraceError(trace.quality.doubt(absent))
    if not any(roof.points for roof in roofs):
        notes = "; ".join(note for roof in roofs for note in roof.notes)
        raise CutraceError(f"no kernel can be placed: {notes}")
    return roofs


def every_roofline(trace: Trace) -> list[Roofline]:
    """The roofline of each GPU model with hardware metrics of kernels, even if it has no points."""
    limits = gpus(trace)
    launches: dict[GpuLimits, list[Profiled]] = {}
    for launch in profiled(trace):
        gpu = limits.get((launch.process, launch.device), GpuLimits())
        launches.setdefault(gpu, []).append(launch)
    return [_roofline(gpu, some) for gpu, some in launches.items()]


def gpus(trace: Trace) -> dict[tuple[int, int], GpuLimits]:
    """The limits of each GPU by process and device."""
    limits = {}
    for gpu, row in trace.device_rows.items():
        limits[gpu] = GpuLimits(
            name=trace.strings[int(row["name"])],
            capability=(int(row["compute_major"]), int(row["compute_minor"])),
            multiprocessors=int(row["multiprocessors"]),
            clock=int(row["core_clock"]) * 1000,
            bandwidth=int(row["memory_bandwidth"]) * 1000,
        )
    return limits


def _roofline(gpu: GpuLimits, launches: Sequence[Profiled]) -> Roofline:
    usable = []
    kernels: dict[str, list[Profiled]] = {}
    for launch in launches:
        counted = _operations(launch) and _bytes(launch) is not None
        if counted and launch.time > 0 and not _hides_operations(launch):
            usable.append(launch)
            kernels.setdefault(launch.kernel, []).append(launch)
    ceilings = list(_ceilings(gpu, launches))
    peaks = {}
    # Measured peaks replace documented peaks, because they apply to the clock of the run.
    for ceiling in sorted(ceilings, key=lambda ceiling: ceiling.measured):
        peaks[ceiling.kind] = ceiling.rate
    points: list[Point] = []
    for kernel, some in kernels.items():
        points += _points(kernel, some, peaks)
    points.sort(key=lambda point: (-point.time, point.kernel, -point.operations))
    kinds = {DRAM, *(point.kind for point in points)}
    relevant = [ceiling for ceiling in ceilings if ceiling.kind in kinds]
    notes = _notes(gpu, launches, usable, points, peaks)
    return Roofline(gpu, tuple(relevant), tuple(points), tuple(notes))


def _operations(launch: Profiled) -> dict[str, float]:
    """The operations of each kind with complete metrics."""
    values = launch.values
    operations = {}
    for kind, metrics in KINDS.items():
        if metrics.keys() <= values.keys():
            counts = [values[name] * weight for name, weight in metrics.items()]
            operations[kind] = sum(counts)
    return operations


def _hides_operations(launch: Profiled) -> bool:
    """Whether a launch used tensor cores without a count of their operations. Its point would be far too low."""
    if launch.values.get(_TENSOR, 0) < _LEAST_TENSOR:
        return False
    return not any(kind.startswith("tensor") for kind in _operations(launch))


def _bytes(launch: Profiled) -> float | None:
    values = launch.values
    if _BYTES in values:
        return values[_BYTES]
    read = values.get("dram__bytes_read.sum")
    write = values.get("dram__bytes_write.sum")
    if read is None or write is None:
        return None
    return read + write


def _points(
    kernel: str,
    launches: Sequence[Profiled],
    peaks: Mapping[str, float],
) -> Iterator[Point]:
    """A point for each kind with a large enough share of a kernel's operations; one point for a kernel without
    operations."""
    time = 0
    moved = 0.0
    totals = dict.fromkeys(KINDS, 0.0)
    for launch in launches:
        time += launch.time
        moved += _bytes(launch) or 0
        for kind, count in _operations(launch).items():
            totals[kind] += count
    least = _LEAST_SHARE * sum(totals.values())
    kinds = [kind for kind, count in totals.items() if count and count >= least]
    for kind in kinds or [""]:
        operations = totals.get(kind, 0.0)
        point = Point(kernel, kind, len(launches), time, operations, moved)
        ceiling, share = _reached(point, peaks)
        yield replace(point, ceiling=ceiling, share=share)


def _reached(point: Point, peaks: Mapping[str, float]) -> tuple[str, float | None]:
    """The lower ceiling at a point, and the reached share of it."""
    ceiling = ""
    highest = None
    for kind, rate in ((point.kind, point.rate), (DRAM, point.traffic)):
        if kind in peaks:
            share = rate / peaks[kind]
            if highest is None or share > highest:
                ceiling = kind
                highest = share
    return ceiling, highest


def _ceilings(gpu: GpuLimits, launches: Sequence[Profiled]) -> Iterator[Ceiling]:
    if gpu.bandwidth:
        source = "memory clock x width of the bus, as the driver has them"
        yield Ceiling(DRAM, gpu.bandwidth, False, source)
    cycles = gpu.multiprocessors * gpu.clock
    if cycles:
        processors = f"{gpu.multiprocessors} multiprocessors"
        clock = f"{gpu.clock / 1e6:,.0f} MHz"
        for kind, rate in RATES.get(gpu.capability, {}).items():
            operations = 2 * rate
            source = f"{operations:,} a cycle x {processors} x {clock}"
            yield Ceiling(kind, operations * cycles, False, source)
    for kind, metrics in ({DRAM: {_BYTES: 1}} | KINDS).items():
        # The metric's peak applies to sparse matrices, which few kernels use: see docs/internals/why.md.
        if kind.startswith("tensor"):
            continue
        # The last metric of a kind counts multiply-adds, which have the highest rate.
        metric, weight = list(metrics.items())[-1]
        source = metric + _PEAK
        peaks = [launch.values.get(source, 0.0) for launch in launches]
        peak = max(peaks, default=0.0)
        if weight > 1:
            source = f"{source} x {weight}"
        if peak >= 1:
            yield Ceiling(kind, peak * weight, True, source)


def _notes(
    gpu: GpuLimits,
    launches: Sequence[Profiled],
    usable: Sequence[Profiled],
    points: Sequence[Point],
    peaks: Mapping[str, float],
) -> Iterator[str]:
    no_bytes = sum(_bytes(launch) is None for launch in launches)
    no_operations = sum(not _operations(launch) for launch in launches)
    if no_bytes:
        yield f"{_lacking(no_bytes)} {_BYTES}: {_ADVICE}"
    if no_operations:
        yield f"{_lacking(no_operations)} counts of operations: {_ADVICE}"
    hidden = sum(map(_hides_operations, launches))
    if hidden:
        used = count_of(hidden, "launch")
        yield f"{used} with uncounted operations of tensor cores left out: {_ADVICE}"
    if usable:
        missing = ["fp32", "fp64", "fp16", "tensor"]
        for launch in usable:
            for kind in _operations(launch):
                family = kind.split()[0]
                if family in missing:
                    missing.remove(family)
        if missing:
            yield f"operations of {', '.join(missing)} were not counted: {_ADVICE}"
        kinds = dict.fromkeys([DRAM, *(point.kind for point in points)])
        unknown = [kind for kind in kinds if kind and kind not in peaks]
        if unknown:
            yield f"no ceiling is known for {', '.join(unknown)} on {gpu.name}"
    off = sum(not point.placed for point in points)
    if off:
        verb = "is" if off == 1 else "are"
        yield f"{count_of(off, 'kernel')} without operations or bytes of DRAM {verb} in the table only"


def _lacking(launches: int) -> str:
    if launches == 1:
        return "1 launch lacks"
    return f"{count_of(launches, 'launch')} lack"
