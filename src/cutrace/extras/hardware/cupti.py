"""Call CUPTI's functions for hardware metrics (libcupti 12.6 or later) with ctypes.

Each function takes one struct that starts with the size of the struct. Later releases append fields, and a release
refuses an unknown size. So a call is first tried with all fields, then without fields that a release may lack.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ...collect import cuda
from ...errors import CutraceError

_TYPES: dict[str, Any] = {
    "size": ctypes.c_size_t,
    "u64": ctypes.c_uint64,
    "u32": ctypes.c_uint32,
    "u16": ctypes.c_uint16,
    "u8": ctypes.c_uint8,
    "enum": ctypes.c_int,
    "pointer": ctypes.c_void_p,
    "text": ctypes.c_char_p,
    "texts": ctypes.POINTER(ctypes.c_char_p),
    "values": ctypes.POINTER(ctypes.c_double),
}

# Each function with the fields of its struct after the size and a reserved pointer; fields after "|" were added later.
# An indented line continues the previous one.
_FUNCTIONS = """
ProfilerInitialize:
ProfilerDeInitialize:
DeviceGetChipName: size device, text chip
ProfilerGetCounterAvailability: pointer context, size size, pointer image | u8 device_level
ProfilerHostInitialize: enum profiler, text chip, pointer availability, pointer host | text single_pass_set
ProfilerHostDeinitialize: pointer host
ProfilerHostGetSupportedChips: size count, texts names
ProfilerHostGetBaseMetrics: pointer host, enum type, texts names, size count
ProfilerHostGetSubMetrics: pointer host, enum type, text name, size count, texts names
ProfilerHostGetMetricProperties: pointer host, text name, text description, text unit, text dimension, enum type |
    enum scope
ProfilerHostConfigAddMetrics: pointer host, texts names, size count
ProfilerHostGetConfigImageSize: pointer host, size size
ProfilerHostGetConfigImage: pointer host, size size, pointer image
ProfilerHostGetNumOfPasses: size size, pointer image, size passes
ProfilerHostEvaluateToGpuValues: pointer host, pointer image, size size, size index, texts names, size count, values
    values
RangeProfilerEnable: pointer context, pointer profiler | enum cache_control
RangeProfilerDisable: pointer profiler
RangeProfilerGetCounterDataSize: pointer profiler, texts names, size count, size ranges, u32 nodes, size size
RangeProfilerCounterDataImageInitialize: pointer profiler, size size, pointer image
RangeProfilerSetConfig: pointer profiler, size config_size, pointer config, size size, pointer image, enum range, enum
    replay, size ranges, u16 levels, u16 level, size pass_index, u16 target
RangeProfilerStart: pointer profiler
RangeProfilerStop: pointer profiler, size pass_index, size target, u8 complete
RangeProfilerPushRange: pointer profiler, text name
RangeProfilerPopRange: pointer profiler
RangeProfilerDecodeData: pointer profiler, size dropped
RangeProfilerGetCounterDataInfo: pointer image, size size, size count
RangeProfilerCounterDataGetRangeInfo: pointer image, size size, size index, text delimiter, text name
PmSamplingEnable: size device, pointer sampling
PmSamplingDisable: pointer sampling
PmSamplingGetCounterAvailability: size device, size size, pointer image
PmSamplingGetCounterDataSize: pointer sampling, texts names, size count, u32 samples, size size
PmSamplingCounterDataImageInitialize: pointer sampling, size size, pointer image
PmSamplingSetConfig: pointer sampling, size config_size, pointer config, size buffer, u64 interval, enum trigger, enum
    keep
PmSamplingStart: pointer sampling
PmSamplingStop: pointer sampling
PmSamplingDecodeData: pointer sampling, pointer image, size size, enum reason, u8 overflow
PmSamplingGetCounterDataInfo: pointer image, size size, size total, size populated, size completed
PmSamplingCounterDataGetSampleInfo: pointer sampling, pointer image, size size, size index, u64 start, u64 end
SassMetricsGetNumOfMetrics: text chip, size count
SassMetricsGetMetrics: text chip, size count, pointer metrics
"""

_INVALID_PARAMETER = 1
_ADVICE = {
    7: "another tool may be profiling this process: end it first",
    14: "another tool uses CUPTI in a way that excludes this: end it first",
    15: "libnvperf_host.so must be in the folder of libcupti: `pip install nvidia-cuda-cupti` installs both",
    26: "another tool holds the counters of this GPU (DCGM, Nsight Compute, another cutrace): wait for its end or "
    "end it, then run this again",
    27: "this GPU or this libcupti does not support it",
    35: "only administrators may read counters here (ERR_NVGPUCTRPERM): run as root or with CAP_SYS_ADMIN, or have the "
    "driver loaded with NVreg_RestrictProfilingToAdminUsers=0",
    40: "the host of this virtual GPU does not allow it to read counters: enable them in the configuration of the host",
    41: "a GPU in confidential-computing mode has no counters to read",
    43: "counters of this MIG instance cannot be read: use a whole GPU",
    46: "this libcupti does not know the chip: install a newer one",
}


_CODES = {
    "INVALID_OPERATION": 7,
    "NOT_INITIALIZED": 15,
    "HARDWARE_BUSY": 26,
    "NOT_SUPPORTED": 27,
    "INSUFFICIENT_PRIVILEGES": 35,
}


def advised(failure: str) -> str:
    """The failure that a native library reports, with advice."""
    advice = _ADVICE.get(_CODES.get(failure.rpartition(" CUPTI_ERROR_")[2], 0))
    if advice:
        return f"{failure}: {advice}"
    return failure


class SassMetric(ctypes.Structure):
    """A metric of instructions, as CUPTI lists it."""

    _fields_ = (
        ("id", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
    )


class CuptiError(CutraceError):
    """A CUPTI function failed. ``code`` is its CUptiResult."""

    def __init__(self, function: str, code: int, name: str) -> None:
        sentence = f"cupti{function} failed with {name}"
        if code in _ADVICE:
            sentence += f": {_ADVICE[code]}"
        super().__init__(sentence)
        self.code = code


@cache
def _structs(function: str) -> tuple[tuple[type[ctypes.Structure], int], ...]:
    """The structs that a function may take, newest first, each with its size without padding, as CUPTI expects it."""
    line = next(
        text
        for text in _FUNCTIONS.replace("\n    ", " ").splitlines()
        if text.startswith(function + ":")
    )
    _, _, text = line.partition(":")
    old, _, new = text.partition("|")
    shapes = [old]
    if new:
        shapes = [f"{old},{new}", old]
    made = []
    for shape in shapes:
        fields = [("struct_size", ctypes.c_size_t), ("reserved", ctypes.c_void_p)]
        for field in shape.split(","):
            if field.strip():
                kind, name = field.split()
                fields.append((name, _TYPES[kind]))
        struct = type(function, (ctypes.Structure,), {"_fields_": fields})
        last = getattr(struct, fields[-1][0])
        made.append((struct, last.offset + last.size))
    return tuple(made)


class Cupti:
    """A loaded libcupti. Functions are called by name, with the fields of their struct as keyword arguments::

    Cupti.found().call("ProfilerHostGetSupportedChips").count
    """

    def __init__(self, path: Path) -> None:
        """Load the library. Raises :class:`CutraceError` if that fails or it has no hardware metrics."""
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise CutraceError(f"libcupti cannot be loaded: {error}") from None
        if not hasattr(self._library, "cuptiProfilerHostInitialize"):
            raise CutraceError(
                f"{path} is older than CUPTI 12.6, which hardware metrics need: install a newer one"
            )

    @classmethod
    def found(cls) -> Cupti:
        """The libcupti that this process has loaded, else the libcupti that a recording would use. Raises
        :class:`CutraceError` if there is none."""
        path = cuda.cupti_in_process() or cuda.find_cupti()
        if path is None:
            raise CutraceError(
                "there is no libcupti here: install one, for example with `pip install nvidia-cuda-cupti`"
            )
        return cls(path)

    def call(self, function: str, **fields: Any) -> Any:
        """Call a function and return its struct with the outputs. Raises :class:`CuptiError` if it fails."""
        native = getattr(self._library, f"cupti{function}", None)
        if native is None:
            raise CutraceError(
                f"{self.path} has no cupti{function}: install a newer libcupti"
            )
        code = _INVALID_PARAMETER
        for struct, size in _structs(function):
            arguments = struct(struct_size=size)
            for name, _ in struct._fields_:  # type: ignore[misc]
                if name in fields:
                    setattr(arguments, name, fields[name])
            code = native(ctypes.byref(arguments))
            if code != _INVALID_PARAMETER:
                break
        if code:
            raise CuptiError(function, code, self._name(code))
        return arguments

    def repeated(self, function: str, **fields: Any) -> tuple[Any, Callable[[], None]]:
        """Prepare repeated calls of a function. Returns its struct, and a function that makes the call. The fields of
        the struct may change between calls.

        A call costs a tenth of :meth:`call`. The caller must keep alive the objects that fields point to.
        """
        struct, size = _structs(function)[0]
        arguments = struct(struct_size=size, **fields)
        raw = self._library[f"cupti{function}"]
        reference = ctypes.byref(arguments)

        def call() -> None:
            code = raw(reference)
            if code:
                raise CuptiError(function, code, self._name(code))

        return arguments, call

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuptiGetResultString(code, ctypes.byref(text))
        return (text.value or b"").decode() or f"CUptiResult {code}"


def address(buffer: Any) -> ctypes.c_void_p:
    """The address of a ctypes buffer."""
    return ctypes.cast(buffer, ctypes.c_void_p)


def texts(names: list[str]) -> Any:
    """Names as an array of C strings."""
    return (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
