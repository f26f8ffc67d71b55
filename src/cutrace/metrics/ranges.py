"""Counters of ranges of this process: what the GPU counted between a begin and an end."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..collect import cuda
from ..errors import CutraceError
from .cupti import Cupti, address, texts
from .host import RANGES, Chip, chip_of

_USER_RANGE, _USER_REPLAY = 2, 3


class RangeCounters:
    """Counts metrics over ranges of the current CUDA context, in one pass: nothing runs twice.

    Graphs are counted too. A range begins and ends with a synchronisation of the context by the caller.
    """

    def __init__(self, names: Sequence[str], cupti: Cupti | None = None) -> None:
        """Raises :class:`CutraceError` when there is no context, a metric is unknown, or they need several passes."""
        self._cupti = cupti or Cupti.found()
        self._cupti.call("ProfilerInitialize")
        context, device = _current_context()
        asked = self._cupti.call("ProfilerGetCounterAvailability", context=context)
        image = ctypes.create_string_buffer(asked.size)
        self._cupti.call("ProfilerGetCounterAvailability", context=context, size=asked.size, image=address(image))
        self._chip = Chip(self._cupti, chip_of(self._cupti, device), RANGES, image.raw)
        self.config = self._chip.configure(names)
        if self.config.passes != 1:
            raise CutraceError(
                f"these metrics need {self.config.passes} passes, and a range runs once: count fewer of them together"
            )
        self._profiler = self._cupti.call("RangeProfilerEnable", context=context).profiler
        sized = self._call("GetCounterDataSize", names=texts(list(names)), count=len(names), ranges=1, nodes=1)
        self._image = ctypes.create_string_buffer(sized.size)

    def _call(self, function: str, **fields: Any) -> Any:
        return self._cupti.call(f"RangeProfiler{function}", profiler=self._profiler, **fields)

    def start(self) -> None:
        """Begin a range."""
        image = {"size": len(self._image), "image": address(self._image)}
        self._call("CounterDataImageInitialize", **image)
        self._call(
            "SetConfig", **image, config_size=len(self.config.image), config=address(self.config.image),
            range=_USER_RANGE, replay=_USER_REPLAY, ranges=1, levels=1, level=1,
        )  # fmt: skip
        self._call("Start")
        self._call("PushRange", name=b"range")

    def stop(self) -> dict[str, float]:
        """End the range. Returns the value of each metric by name."""
        self._call("PopRange")
        self._call("Stop")
        if dropped := self._call("DecodeData").dropped:
            raise CutraceError(f"the GPU had no room for the counters of {dropped} range")
        values = self._chip.evaluate(self._image, 0, self.config.names)
        return dict(zip(self.config.names, values, strict=True))

    def close(self) -> None:
        """Let go of the counters."""
        self._call("Disable")
        self._chip.close()


def _current_context() -> tuple[int, int]:
    """The current CUDA context and the ordinal of its device."""
    driver, context, device = cuda.driver(), ctypes.c_void_p(), ctypes.c_int()
    if driver is None or driver.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
        raise CutraceError("there is no CUDA context yet: let the program use the GPU first")
    driver.cuCtxGetDevice(ctypes.byref(device))
    return context.value, device.value
