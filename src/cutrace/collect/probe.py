"""A small program to record: one NVTX mark, and one memory fill on the first GPU.

``cutrace doctor`` runs it in a new process with the collector injected. It prints one JSON object with the results.
It calls the C interfaces of the driver and NVTX, so it needs no compiler and no other package.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

from . import cuda, environment

MARK = "cutrace doctor"

_BYTES = 1 << 20

# The part of NVTX's injection interface (nvtx3/nvtxDetail/nvtxTypes.h) that a client has to implement.
_TABLE_CALLBACKS = 1
_MODULE_CORE = 1
_MARK_A = 2
_SLOTS = 16
_GetTable = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
_GetModule = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_uint),
)


class _Callbacks(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("get_module", _GetModule))


def nvtx_mark(library: str) -> str:
    """Send one NVTX mark through an injection library, as the NVTX headers do. Returns the error, "" for none."""
    try:
        initialise = ctypes.CDLL(library).InitializeInjectionNvtx2
    except (OSError, AttributeError) as error:
        return str(error)
    functions = (ctypes.c_void_p * _SLOTS)()
    slots = (ctypes.c_void_p * _SLOTS)(
        *(
            ctypes.addressof(functions) + i * ctypes.sizeof(ctypes.c_void_p)
            for i in range(_SLOTS)
        )
    )

    def get_module(module: int, table: Any, size: Any) -> int:
        if module != _MODULE_CORE:
            return 0
        table[0] = ctypes.addressof(slots)
        size[0] = _SLOTS
        return 1

    callbacks = _Callbacks(ctypes.sizeof(_Callbacks), _GetModule(get_module))

    def get_table(number: int) -> int:
        if number == _TABLE_CALLBACKS:
            return ctypes.addressof(callbacks)
        return 0

    exported = _GetTable(get_table)
    if not initialise(exported):
        return "the collector refused the NVTX injection"
    address = functions[_MARK_A]
    if not address:
        return "the collector installed no callback for NVTX marks"
    ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)(MARK.encode())
    return ""


def gpu_memset() -> dict[str, Any]:
    """Fill some memory of the first GPU. Returns ``devices`` (names) and ``error`` ("" for none)."""
    driver = cuda.driver()
    if driver is None:
        return {"devices": [], "error": "no driver"}
    devices: list[str] = []
    context = ctypes.c_void_p()
    pointer = ctypes.c_uint64()
    count = ctypes.c_int()

    def call(name: str, *arguments: object) -> None:
        status = driver[name](*arguments)
        if status:
            text = ctypes.c_char_p()
            driver.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(
                f"{name}: {text.value.decode() if text.value else status}"
            )

    try:
        call("cuInit", 0)
        call("cuDeviceGetCount", ctypes.byref(count))
        name = ctypes.create_string_buffer(256)
        for device in range(count.value):
            call("cuDeviceGetName", name, 256, device)
            devices.append(name.value.decode(errors="replace"))
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(_BYTES))
        call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(_BYTES))
        call("cuCtxSynchronize")
        call("cuMemFree_v2", pointer)
    except RuntimeError as error:
        return {"devices": devices, "error": str(error)}
    return {"devices": devices, "error": ""}


if __name__ == "__main__":
    json.dump(
        {"nvtx": nvtx_mark(os.environ[environment.NVTX]), **gpu_memset()}, sys.stdout
    )
