"""Hardware counters over ranges of this process, each from a start to an end."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...collect import cuda
from ...errors import CutraceError
from .cupti import Cupti, address, texts
from .host import RANGES, Chip, chip_of

_USER_RANGE = 2
_USER_REPLAY = 3


class NoContext(CutraceError):
    """CUDA is not initialised in this process."""

    before_cuda = True


@dataclass(frozen=True)
class Context:
    """A CUDA context: its handle, its id (unique in the process), and the ordinal and UUID of its device."""

    handle: int
    number: int
    device: int
    uuid: str

    @classmethod
    def current(cls) -> Context:
        """Return the current context. If no context is current, return the primary context of the first device with an
        active primary context, else the primary context of device 0.

        Raises :class:`NoContext` if the program has not initialised CUDA.
        """
        if not cuda.initialised():
            raise NoContext(
                "CUDA is not in use yet: use the GPU first, for example in a session fixture"
            )
        handle = ctypes.c_void_p()
        if _driver().cuCtxGetCurrent(ctypes.byref(handle)) or not handle.value:
            _must("cuDevicePrimaryCtxRetain", ctypes.byref(handle), _first_active())
        device = ctypes.c_int()
        uuid = ctypes.create_string_buffer(16)
        with pushed(handle.value or 0):
            _must("cuCtxGetDevice", ctypes.byref(device))
        _must("cuDeviceGetUuid", uuid, device)
        return cls(
            handle.value or 0,
            _number(handle.value or 0),
            device.value,
            uuid.raw.hex(),
        )

    def synchronize(self) -> None:
        """Wait until the GPU has finished the work of this context."""
        with pushed(self.handle):
            _must("cuCtxSynchronize")

    @property
    def alive(self) -> bool:
        """Whether the context still exists. A reset of the device destroys it."""
        return _number(self.handle) == self.number


class RangeCounters:
    """Counts metrics over ranges of a CUDA context in one pass, without replay.

    Graphs are counted, too. The caller synchronises the context before a range starts and before it ends.
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        """Enable the counters. Raises :class:`CutraceError` if a metric is unknown, or the metrics need several
        passes."""
        self._cupti = Cupti.found()
        self._context = context
        handle = context.handle
        self._cupti.call("ProfilerInitialize")
        size = self._cupti.call("ProfilerGetCounterAvailability", context=handle).size
        image = ctypes.create_string_buffer(size)
        self._cupti.call(
            "ProfilerGetCounterAvailability",
            context=handle,
            size=size,
            image=address(image),
        )
        self._chip = Chip(
            self._cupti,
            chip_of(self._cupti, context.device),
            RANGES,
            image.raw,
        )
        try:
            self.config = self._chip.configure(names)
            self.config.must_fit_one_pass("a range runs once")
            self._profiler = self._cupti.call(
                "RangeProfilerEnable", context=handle
            ).profiler
        except BaseException:
            self._chip.close()
            raise
        try:
            sized = self._call(
                "GetCounterDataSize",
                names=texts(list(names)),
                count=len(names),
                ranges=1,
                nodes=1,
            )
        except BaseException:
            self.close()
            raise
        self._image = ctypes.create_string_buffer(sized.size)

    def _call(self, function: str, **fields: Any) -> Any:
        with pushed(self._context.handle):
            return self._cupti.call(
                f"RangeProfiler{function}", profiler=self._profiler, **fields
            )

    def start(self) -> None:
        image = {"size": len(self._image), "image": address(self._image)}
        self._call("CounterDataImageInitialize", **image)
        self._call(
            "SetConfig",
            **image,
            config_size=len(self.config.image),
            config=address(self.config.image),
            range=_USER_RANGE,
            replay=_USER_REPLAY,
            ranges=1,
            levels=1,
            level=1,
        )
        self._call("Start")
        self._call("PushRange", name=b"range")

    def stop(self) -> dict[str, float]:
        """End the range. Returns the values by name of metric."""
        self._call("PopRange")
        self._call("Stop")
        dropped = self._call("DecodeData").dropped
        if dropped:
            raise CutraceError(
                f"the GPU dropped the counters of {dropped} range: count fewer metrics together"
            )
        values = self._chip.evaluate(self._image, 0, self.config.names)
        return dict(zip(self.config.names, values, strict=True))

    def close(self) -> None:
        """Release the counters. A context that has ended has already released them."""
        with contextlib.suppress(CutraceError):
            if self._context.alive:
                self._call("Disable")
        self._chip.close()


@contextlib.contextmanager
def pushed(handle: int) -> Iterator[None]:
    """Make a context current inside the ``with`` block."""
    _must("cuCtxPushCurrent_v2", ctypes.c_void_p(handle))
    try:
        yield
    finally:
        _driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _driver() -> ctypes.CDLL:
    driver = cuda.driver()
    assert driver is not None  # CUDA is initialised
    return driver


def _must(function: str, *arguments: Any) -> None:
    code = getattr(_driver(), function)(*arguments)
    if code:
        raise CutraceError(
            f"{function} failed with CUresult {code}: the counters of this process cannot be read"
        )


def _number(handle: int) -> int:
    number = ctypes.c_ulonglong()
    if not hasattr(_driver(), "cuCtxGetId"):
        raise CutraceError(
            "counters need the driver of CUDA 12.0 or later: install a newer one"
        )
    if _driver().cuCtxGetId(ctypes.c_void_p(handle), ctypes.byref(number)):
        return 0
    return number.value


def _first_active() -> int:
    """The first device with an active primary context, else device 0."""
    count = ctypes.c_int()
    flags = ctypes.c_uint()
    active = ctypes.c_int()
    _driver().cuDeviceGetCount(ctypes.byref(count))
    for device in range(count.value):
        _driver().cuDevicePrimaryCtxGetState(
            device, ctypes.byref(flags), ctypes.byref(active)
        )
        if active.value:
            return device
    return 0
