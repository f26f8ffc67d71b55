"""The common start of Python programs of these tests: an empty kernel that is launched through the driver's C API.

``launch(count)`` launches kernels. Their numbers continue the numbers of the last call. 100 consecutive kernels have
the same number of blocks, which identifies them in a capture. CUDA is not used before ``start()``.
"""

from __future__ import annotations

import ctypes
import time

_PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"
_cuda = ctypes.CDLL("libcuda.so.1")
_context, _module, _kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
_launched = 0


def _must(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")


def start() -> None:
    _must(_cuda.cuInit(0))
    _must(_cuda.cuDevicePrimaryCtxRetain(ctypes.byref(_context), 0))
    use()
    _must(_cuda.cuModuleLoadData(ctypes.byref(_module), _PTX))
    _must(_cuda.cuModuleGetFunction(ctypes.byref(_kernel), _module, b"k"))


def use() -> None:
    """Call it first on each thread except the initial one."""
    _must(_cuda.cuCtxSetCurrent(_context))


def launch(count: int, blocks: int = 0) -> None:
    global _launched
    for _ in range(count):
        _must(_cuda.cuLaunchKernel(_kernel, blocks or _launched // 100 + 1, 1, 1, 32, 1, 1, 0, None, None, None))
        _launched += not blocks


def synchronize() -> None:
    _must(_cuda.cuCtxSynchronize())


def launch_steadily(seconds: float) -> int:
    """Launch a kernel every 2 ms. Returns the number of launches so far."""
    begin = time.monotonic()
    for number in range(int(seconds * 500)):
        time.sleep(max(0.0, begin + number / 500 - time.monotonic()))
        launch(1)
    synchronize()
    return _launched
