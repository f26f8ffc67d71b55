"""Ways to allocate and free through libcuda and libcudart, each in a separate process.

    memory_cases.py              run all cases; a tool may watch
    memory_cases.py KIND         the same with CUPTI's records: KIND is memory or pool, or both with a comma
    memory_cases.py KIND CASE    only that case, in this process: KIND may be none

Prints a JSON line for each case: its name, and the id and the exit status of its process. If the case failed, the line
also has its last line of stderr. If the case ended normally, the line has its start and end (ns, CLOCK_BOOTTIME), the
results of its calls, and the driver's report on each pointer from a pool: its pool, its mapping, and the use of the
pool. With records, the line also has CUPTI's records.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

BYTES = 4096
OTHER_MEMORY = "cuMemAlloc, cuMemFreeAsync"
FREED_TWICE = "freed twice"
DESTROYED_CONTEXT = "async on the stream of a destroyed context"
KINDS = {"memory": 49, "pool": 50}

cuda = ctypes.CDLL("libcuda.so.1")

# A module with variables of known sizes.
_MODULE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[1000];
.visible .global .align 1 .u8 small;
.visible .global .align 4 .b8 preset[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.visible .const .align 4 .b8 constant[64];
.visible .entry nothing() { ret; }
"""


class Array(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]


class Array3D(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_uint), ("channels", c_uint),
        ("flags", c_uint),
    ]  # fmt: skip


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_uint), ("handles", c_uint), ("location", c_uint), ("id", c_int), ("security", c_void_p),
        ("size", c_size_t), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54),
    ]  # fmt: skip


class Physical(ctypes.Structure):
    _fields_ = [
        ("type", c_uint), ("handles", c_uint), ("location", c_uint), ("id", c_int), ("security", c_void_p),
        ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]  # fmt: skip


LEGACY, OF_THREAD = c_void_p(1), c_void_p(2)
FLOAT, UINT16, UINT8 = 0x20, 2, 1

results: list[int] = []
pointers: list[dict[str, Any]] = []


def call(name: str, *arguments: Any) -> int:
    results.append(getattr(cuda, name)(*arguments))
    return results[-1]


def alloc(bytes: int = BYTES) -> c_uint64:
    pointer = c_uint64()
    call("cuMemAlloc_v2", byref(pointer), c_size_t(bytes))
    return pointer


def alloc_async(stream: Any, bytes: int = BYTES) -> c_uint64:
    pointer = c_uint64()
    call("cuMemAllocAsync", byref(pointer), c_size_t(bytes), stream)
    note(pointer)
    return pointer


def alloc_pool(pool: c_void_p, stream: Any, bytes: int = BYTES) -> c_uint64:
    pointer = c_uint64()
    call("cuMemAllocFromPoolAsync", byref(pointer), c_size_t(bytes), pool, stream)
    note(pointer)
    return pointer


def free(pointer: c_uint64) -> None:
    call("cuMemFree_v2", pointer)


def free_async(pointer: c_uint64, stream: Any) -> None:
    call("cuMemFreeAsync", pointer, stream)


def note(pointer: c_uint64) -> None:
    """Note the driver's report on a pointer: the handle of its pool, its mapping, and the used bytes of the pool."""
    known: dict[str, int] = {"address": pointer.value}
    for name, attribute in {"pool": 17, "mapping": 19, "mapping_size": 18}.items():
        value = c_uint64()
        if cuda.cuPointerGetAttribute(byref(value), attribute, pointer) == 0:
            known[name] = value.value
    used = c_uint64()
    if known.get("pool") and cuda.cuMemPoolGetAttribute(c_void_p(known["pool"]), 7, byref(used)) == 0:
        known["used"] = used.value
    pointers.append(known)


def new_stream(flags: int = 0) -> c_void_p:
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), c_uint(flags))
    return stream


def new_context() -> c_void_p:
    context = c_void_p()
    call("cuCtxCreate_v2", byref(context), c_uint(0), c_int(0))
    return context


def new_pool() -> c_void_p:
    pool = c_void_p()
    call("cuMemPoolCreate", byref(pool), byref(PoolProperties(type=1, location=1, id=0)))
    return pool


# ---- the fifteen cases of the finding ----


def stream_of_a_destroyed_stream() -> None:
    stream = new_stream()
    pointer = alloc_async(stream)
    call("cuStreamSynchronize", stream)
    call("cuStreamDestroy_v2", stream)
    free_async(pointer, None)


def pool_destroyed_before_the_free() -> None:
    pool = new_pool()
    pointer = alloc_pool(pool, main_stream)
    call("cuMemPoolDestroy", pool)
    free_async(pointer, main_stream)


def freed_twice() -> None:
    pointer = alloc_async(main_stream)
    free_async(pointer, main_stream)
    free_async(pointer, main_stream)


def without_a_context() -> None:
    pointer = alloc_async(main_stream)
    call("cuCtxSetCurrent", None)
    free_async(pointer, main_stream)
    call("cuCtxSetCurrent", primary)


def in_another_contexts_stream() -> None:
    context = new_context()
    stream = new_stream()
    pointer = alloc_async(stream)
    call("cuCtxSetCurrent", primary)
    free_async(pointer, stream)
    call("cuStreamSynchronize", stream)
    call("cuCtxDestroy_v2", context)
    call("cuCtxSetCurrent", primary)


def on_the_stream_of_a_destroyed_context() -> None:
    context = new_context()
    stream = new_stream()
    pointer = alloc_async(stream)
    call("cuStreamSynchronize", stream)
    call("cuCtxDestroy_v2", context)
    call("cuCtxSetCurrent", primary)
    free_async(pointer, main_stream)


# ---- kinds of memory ----


def pitched() -> None:
    pointer, pitch = c_uint64(), c_size_t()
    call("cuMemAllocPitch_v2", byref(pointer), byref(pitch), c_size_t(1000), c_size_t(30), c_uint(4))
    free(pointer)


def managed() -> None:
    pointer = c_uint64()
    call("cuMemAllocManaged", byref(pointer), c_size_t(1 << 20), c_uint(1))
    free(pointer)


def pinned() -> None:
    for name, more in {"cuMemAllocHost_v2": (), "cuMemHostAlloc": (c_uint(3),)}.items():
        pointer = c_void_p()
        call(name, byref(pointer), c_size_t(1 << 16), *more)
        call("cuMemFreeHost", pointer)


def registered() -> None:
    memory = ctypes.create_string_buffer(1 << 16)
    call("cuMemHostRegister_v2", memory, c_size_t(1 << 16), c_uint(0))
    call("cuMemHostUnregister", memory)


def arrays() -> None:
    flat, solid, mipmapped = c_void_p(), c_void_p(), c_void_p()
    call("cuArrayCreate_v2", byref(flat), byref(Array(1000, 30, FLOAT, 2)))
    call("cuArray3DCreate_v2", byref(solid), byref(Array3D(64, 32, 16, UINT16, 4, 0)))
    call("cuMipmappedArrayCreate", byref(mipmapped), byref(Array3D(64, 64, 0, UINT8, 4, 0)), c_uint(4))
    call("cuArrayDestroy", flat)
    call("cuArrayDestroy", solid)
    call("cuMipmappedArrayDestroy", mipmapped)


def physical() -> None:
    handle, address = c_uint64(), c_uint64()
    size = 2 << 20
    call("cuMemCreate", byref(handle), c_size_t(size), byref(Physical(type=1, location=1, id=0)), c_uint64(0))
    call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    call("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
    call("cuMemRelease", handle)
    call("cuMemUnmap", address, c_size_t(size))
    call("cuMemAddressFree", address, c_size_t(size))


def variables_of_a_module() -> None:
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), c_char_p(_MODULE))
    call("cuModuleGetFunction", byref(function), module, c_char_p(b"nothing"))
    call("cuModuleUnload", module)


def context_destroyed_with_its_memory() -> None:
    context = new_context()
    alloc(3 << 20)
    pointer = c_void_p()
    call("cuMemHostAlloc", byref(pointer), c_size_t(1 << 16), c_uint(0))
    call("cuCtxDestroy_v2", context)
    call("cuCtxSetCurrent", primary)


def captured() -> None:
    stream, graph = new_stream(1), c_void_p()
    call("cuStreamBeginCapture_v2", stream, c_uint(0))
    pointer = alloc_async(stream)
    free_async(pointer, stream)
    call("cuStreamEndCapture", stream, byref(graph))


def beside_a_capture() -> None:
    """Allocate while the thread captures another stream in global mode. Few calls are allowed in this mode."""
    captured, graph, pointer = new_stream(1), c_void_p(), c_uint64()
    call("cuStreamBeginCapture_v2", captured, c_uint(0))
    call("cuMemAllocAsync", byref(pointer), c_size_t(BYTES), main_stream)
    call("cuMemFreeAsync", pointer, main_stream)
    call("cuStreamEndCapture", captured, byref(graph))
    call("cuGraphDestroy", graph)
    call("cuStreamDestroy_v2", captured)


def graph_with_memory() -> None:
    stream, graph, executable = new_stream(1), c_void_p(), c_void_p()
    call("cuStreamBeginCapture_v2", stream, c_uint(0))
    pointer = c_uint64()
    call("cuMemAllocAsync", byref(pointer), c_size_t(BYTES), stream)
    call("cuMemFreeAsync", pointer, stream)
    call("cuStreamEndCapture", stream, byref(graph))
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    for _ in range(2):
        call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    call("cuDeviceGraphMemTrim", c_int(0))


def use_of_a_pool() -> None:
    first, second = alloc_async(main_stream, 100), alloc_async(main_stream, 100_000)
    free_async(first, main_stream)
    third = alloc_async(main_stream, 513)
    free_async(second, main_stream)
    free(third)


def life_of_a_pool() -> None:
    pool = new_pool()
    first, second = alloc_pool(pool, main_stream, 100), alloc_pool(pool, main_stream, 100 << 20)
    free_async(second, main_stream)
    call("cuStreamSynchronize", main_stream)
    free_async(first, main_stream)
    call("cuMemPoolTrimTo", pool, c_size_t(0))
    call("cuCtxSynchronize")
    call("cuMemPoolDestroy", pool)


def without_effect() -> None:
    pointer = c_uint64()
    call("cuMemAlloc_v2", byref(pointer), c_size_t(1 << 60))
    call("cuMemFree_v2", c_uint64(0))
    call("cuMemFree_v2", c_uint64(0x1234))
    call("cuMemFreeHost", None)


# ---- the runtime ----


def runtime() -> None:
    pointer, stream = c_void_p(), c_void_p()
    for name, more in {"cudaMalloc": (), "cudaMallocManaged": (c_uint(1),)}.items():
        results.append(getattr(cudart, name)(byref(pointer), c_size_t(BYTES), *more))
        results.append(cudart.cudaFree(pointer))
    for name, more in {"cudaMallocHost": (), "cudaHostAlloc": (c_uint(0),)}.items():
        results.append(getattr(cudart, name)(byref(pointer), c_size_t(BYTES), *more))
        results.append(cudart.cudaFreeHost(pointer))
    results.append(cudart.cudaStreamCreate(byref(stream)))
    results.append(cudart.cudaMallocAsync(byref(pointer), c_size_t(BYTES), stream))
    results.append(cudart.cudaFreeAsync(pointer, stream))
    results.append(cudart.cudaFree(None))


def load(*names: str) -> ctypes.CDLL:
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    from cuda import pathfinder

    return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib(names[0][3:].split(".")[0]).abs_path)


def cases() -> dict[str, Callable[[], None]]:
    return {
        "async, stream 0": lambda: free_async(alloc_async(None), None),
        "async, legacy": lambda: free_async(alloc_async(LEGACY), LEGACY),
        "async, per thread": lambda: free_async(alloc_async(OF_THREAD), OF_THREAD),
        "async, a stream": lambda: free_async(alloc_async(main_stream), main_stream),
        "async, freed after its stream": stream_of_a_destroyed_stream,
        OTHER_MEMORY: lambda: free_async(alloc(), None),
        "cuMemFreeAsync(null)": lambda: free_async(c_uint64(0), None),
        "explicit pool": lambda: free_async(alloc_pool(shared_pool, main_stream), main_stream),
        "explicit pool destroyed before the free": pool_destroyed_before_the_free,
        FREED_TWICE: freed_twice,
        "cuMemFree of an async pointer": lambda: free(alloc_async(main_stream)),
        "freed without a context": without_a_context,
        "async in another context's stream": in_another_contexts_stream,
        DESTROYED_CONTEXT: on_the_stream_of_a_destroyed_context,
        "allocated before the records were enabled": lambda: free_async(before, main_stream),
        "cuMemAlloc": lambda: free(alloc()),
        "pitched": pitched,
        "managed": managed,
        "pinned": pinned,
        "registered": registered,
        "arrays": arrays,
        "physical": physical,
        "variables of a module": variables_of_a_module,
        "context destroyed with its memory": context_destroyed_with_its_memory,
        "captured": captured,
        "beside a capture": beside_a_capture,
        "graph with memory": graph_with_memory,
        "use of a pool": use_of_a_pool,
        "life of a pool": life_of_a_pool,
        "without effect": without_effect,
        "runtime": runtime,
    }


# ---- CUPTI's records ----


class Records:
    """CUPTI's records of memory and of pools since the last ``take()``."""

    def __init__(self, kinds: str) -> None:
        self.cupti = load("libcupti.so.13", "libcupti.so.12", "libcupti.so")
        self._buffers: list[Any] = []
        self._rows: list[dict[str, int]] = []
        self._pools: list[dict[str, int]] = []
        request = ctypes.CFUNCTYPE(None, ctypes.POINTER(c_void_p), ctypes.POINTER(c_size_t), ctypes.POINTER(c_size_t))
        complete = ctypes.CFUNCTYPE(None, c_void_p, ctypes.c_uint32, c_void_p, c_size_t, c_size_t)
        self._callbacks = (request(self._request), complete(self._complete))
        assert self.cupti.cuptiActivityRegisterCallbacks(*self._callbacks) == 0
        for kind in kinds.split(","):
            assert self.cupti.cuptiActivityEnable(KINDS[kind]) == 0

    def _request(self, buffer: Any, size: Any, records: Any) -> None:
        memory = ctypes.create_string_buffer((1 << 20) + 8)
        self._buffers.append(memory)
        buffer[0] = (ctypes.addressof(memory) + 7) // 8 * 8
        size[0], records[0] = 1 << 20, 0

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = c_void_p()
        while self.cupti.cuptiActivityGetNextRecord(c_void_p(buffer), c_size_t(valid), byref(record)) == 0:
            u32 = ctypes.cast(record, ctypes.POINTER(ctypes.c_uint32))
            u64 = ctypes.cast(record, ctypes.POINTER(c_uint64))
            if u32[0] == KINDS["pool"]:
                pool = {"operation": u32[1], "pool_type": u32[2], "device": u32[5], "minimum": u64[3]}
                pool |= {"address": u64[4], "size": u64[5], "release_threshold": u64[6], "used": u64[8]}
                self._pools.append(pool)
            if u32[0] != KINDS["memory"]:
                continue
            row = {"operation": u32[1], "memory": u32[2], "address": u64[2], "bytes": u64[3], "device": u32[13]}
            row |= {"context": u32[14], "stream": u32[15], "async": u32[18], "pool_type": u32[20]}
            row |= {"pool": u64[11], "pool_used": u64[14]} if u32[20] else {"pool": 0, "pool_used": 0}
            self._rows.append(row)

    def take(self) -> dict[str, list[dict[str, int]]]:
        self.cupti.cuptiActivityFlushAll(1)
        taken = {"rows": self._rows, "pools": self._pools}
        self._rows, self._pools = [], []
        return taken


def run_here(name: str, records: Records | None) -> dict[str, Any]:
    """Run one case in this process."""
    run = cases()[name]
    results.clear()
    pointers.clear()
    start = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    run()
    cuda.cuCtxSynchronize()
    end = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    line = {"start": start, "end": end, "results": results, "pointers": pointers}
    return line | (records.take() if records else {})


def run_apart(kinds: str, name: str) -> dict[str, Any]:
    """Run one case in a separate process."""
    command = [sys.executable, __file__, kinds, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        stdout, stderr = process.communicate(timeout=60)
    line = {"case": name, "process": process.pid, "status": process.returncode}
    if process.returncode:
        return line | {"error": stderr[-2000:]}
    return line | json.loads(stdout)


kinds, *only = sys.argv[1:] or ["none"]
if only:
    faulthandler.enable()
    primary, main_stream, before = c_void_p(), c_void_p(), c_uint64()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(byref(primary), c_int(0))
    cuda.cuCtxSetCurrent(primary)
    main_stream = new_stream()
    before = alloc_async(main_stream)
    cudart = load("libcudart.so.13", "libcudart.so.12", "libcudart.so")
    shared_pool = new_pool()
    records = Records(kinds) if kinds != "none" else None
    print(json.dumps(run_here(only[0], records)), flush=True)
else:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(lambda name: run_apart(kinds, name), cases()):
            print(json.dumps(line), flush=True)
