"""A GPU that a test controls, for programs that run on the fake driver (see ``fakedriver``).

The measured program imports this module and controls the GPU with it::

    import fakegpu

    fakegpu.launch("_Z4axpyPfi", grid=8, duration_ns=5000)
    fakegpu.synchronize()

The first call initialises CUDA, as the CUDA runtime does. The driver then loads the library that
``CUDA_INJECTION64_PATH`` names. All times are nanoseconds, and all sizes are bytes. Each function that is an API call
has a parameter ``call``: the name under which it is recorded, with or without CUPTI's version suffix. A call that fails
raises RuntimeError with the CUresult.

The module imports neither cutrace nor a package that uses NVTX.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

#: Kinds of copies as CUPTI numbers them.
COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}

_NO_END, _DETACHED, _FAILS = 1, 2, 4
_ALL_STREAMS = 0xFFFFFFFF
_MULTIPLE_SUBSCRIBERS = 39


@cache
def _driver() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    if not hasattr(library, "fake_gpu_init"):
        raise RuntimeError("libcuda.so.1 is not the fake one: start the program with FakeDriver.environment()")
    return library


@cache
def _cupti() -> ctypes.CDLL:
    library = ctypes.CDLL("libcupti.so.13")
    if not hasattr(library, "fake_drop"):
        raise RuntimeError("libcupti.so.13 is not the fake one: start the program with FakeDriver.environment()")
    return library


def _check(status: int, call: str) -> None:
    if status:
        raise RuntimeError(f"{call}: CUresult {status}")


def _three(size: int | Sequence[int]) -> ctypes.Array[ctypes.c_uint32]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (ctypes.c_uint32 * 3)(*sizes, *(1,) * (3 - len(sizes)))


# ---- the GPU ----


def describe(name: str = "NVIDIA FAKE", capability: tuple[int, int] = (9, 0), devices: int = 1) -> None:
    """Set the properties of the GPUs. Call it before ``init()``."""
    _driver().fake_gpu_describe(name.encode(), *capability, devices)


def init() -> None:
    """Initialise CUDA and make the context of device 0 current, as the first call of the CUDA runtime does."""
    _check(_driver().fake_gpu_init(), "cuInit")


def use_context(number: int) -> None:
    """Make another context current in this thread. The first context has number 1."""
    _check(_driver().cuCtxSetCurrent(ctypes.c_void_p(number)), "cuCtxSetCurrent")


def launch(
    name: str = "kernel",
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] = 128,
    stream: int = 7,
    duration_ns: int = 1000,
    delay_ns: int = 0,
    detached: bool = False,
    end: bool = True,
    fails: bool = False,
    call: str = "cudaLaunchKernel",
) -> None:
    """Launch a kernel. It starts 2 us later, or at the end of the previous work in the stream.

    :param delay_ns: a delay of the start.
    :param detached: no synchronising call waits for the kernel, as for work in a context that the caller does not know.
        With ``delay_ns`` the kernel starts, and is reported, after the start of a later test.
    :param end: False for a kernel without an end in its record.
    """
    flags = (_DETACHED if detached else 0) | (0 if end else _NO_END) | (_FAILS if fails else 0)
    status = _driver().fake_gpu_launch(
        call.encode(), name.encode(), _three(grid), _three(block), stream, ctypes.c_uint64(duration_ns),
        ctypes.c_uint64(delay_ns), flags,
    )  # fmt: skip
    _check(status, call)


def memory() -> int:
    """The number of kernels so far, which is their result."""
    init()
    of_driver = _driver().fake_gpu_memory
    of_driver.restype = ctypes.POINTER(ctypes.c_uint64)
    return int(of_driver().contents.value)


def load_module(cubin: bytes, number: int = 1) -> None:
    """Load a module. CUPTI reports its number and its cubin."""
    init()
    _cupti().fake_module_loaded(ctypes.c_uint32(number), ctypes.c_void_p(1), cubin, ctypes.c_size_t(len(cubin)))


def wait_in_launch(kernel: str, launches: int = 1) -> None:
    """Let the next kernel of this thread wait for ``launches`` later launches of another kernel, if it runs as a pass
    of a range. Its own launch returns after these."""
    _driver().fake_gpu_wait_in_launch(kernel.encode(), launches)


def hold_recorded_launch(file: str) -> None:
    """Let the next recorded launch return only when the file exists. This simulates a slow CUPTI."""
    _driver().fake_gpu_hold_recorded_launch(file.encode())


def graph_launch(
    nodes: int | Sequence[str] = 2,
    graph: int = 1,
    stream: int = 7,
    duration_ns: int = 1000,
    call: str = "cudaGraphLaunch",
) -> None:
    """Launch a CUDA graph of kernels that run one after the other, each for ``duration_ns``.

    :param nodes: the names of the nodes, or their number (``node0``, ``node1``, ...).
    """
    names = [f"node{i}" for i in range(nodes)] if isinstance(nodes, int) else list(nodes)
    array = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
    status = _driver().fake_gpu_graph(call.encode(), array, len(names), graph, stream, ctypes.c_uint64(duration_ns))
    _check(status, call)


def begin_capture(stream: int = 7) -> None:
    """Start to capture the kernels and fills of a stream into a CUDA graph. They do not run."""
    _check(_driver().fake_gpu_begin_capture(stream), "cudaStreamBeginCapture")


def end_capture(stream: int = 7) -> int:
    """End the capture of a stream. Returns the graph."""
    graph = ctypes.c_uint32()
    _check(_driver().fake_gpu_end_capture(stream, ctypes.byref(graph)), "cudaStreamEndCapture")
    return graph.value


def instantiate(graph: int) -> int:
    """Make an executable graph from a captured graph."""
    executable = ctypes.c_uint32()
    _check(_driver().fake_gpu_instantiate(graph, ctypes.byref(executable)), "cudaGraphInstantiate")
    return executable.value


def replay(executable: int, stream: int = 7, duration_ns: int = 1000) -> None:
    """Launch an executable graph. Each of its nodes takes ``duration_ns``."""
    _check(_driver().fake_gpu_replay(executable, stream, ctypes.c_uint64(duration_ns)), "cudaGraphLaunch")


def copy(
    kind: str = "HtoD", bytes: int = 4096, stream: int = 7, duration_ns: int = 1000, call: str = "cudaMemcpyAsync",
    pinned: bool = True,
) -> None:  # fmt: skip
    """Copy memory. ``kind`` is a key of :data:`COPIES`. A call whose name lacks Async waits for the copy. Host memory
    is pinned or pageable."""
    status = _driver().fake_gpu_copy(
        call.encode(), COPIES[kind], pinned, ctypes.c_uint64(bytes), stream, ctypes.c_uint64(duration_ns)
    )
    _check(status, call)


def memset(
    bytes: int = 4096, value: int = 0, stream: int = 7, duration_ns: int = 1000, call: str = "cudaMemsetAsync"
) -> None:
    """Fill memory."""
    _check(
        _driver().fake_gpu_fill(call.encode(), ctypes.c_uint64(bytes), value, stream, ctypes.c_uint64(duration_ns)),
        call,
    )


def synchronize(call: str = "cudaDeviceSynchronize", stream: int | None = None) -> None:
    """Wait for a stream, or for all streams."""
    _check(_driver().fake_gpu_wait(call.encode(), _ALL_STREAMS if stream is None else stream), call)


def malloc(bytes: int, call: str = "cudaMalloc") -> int:
    """Allocate device memory (of 80 GiB). Returns its address. A call whose name has Async takes it from the memory
    pool."""
    address = ctypes.c_uint64()
    status = _driver().fake_gpu_allocate(call.encode(), ctypes.c_uint64(bytes), ctypes.byref(address))
    _check(status, call)
    return address.value


def free(address: int, call: str = "cudaFree") -> None:
    _check(_driver().fake_gpu_release(call.encode(), ctypes.c_uint64(address)), call)


def api(call: str, duration_ns: int = 0) -> None:
    """Make any other API call, without GPU work. It is recorded if the recording includes such calls."""
    _check(_driver().fake_gpu_call(call.encode(), ctypes.c_uint64(duration_ns)), call)


def profiler(call: str) -> None:
    """Tell profilers to start or stop: cudaProfilerStart, cudaProfilerStop, cuProfilerStart or cuProfilerStop."""
    _check(_driver().fake_gpu_profiler(call.encode()), call)


# ---- faults ----


def hold_cupti(error: int = _MULTIPLE_SUBSCRIBERS) -> None:
    """Let CUPTI refuse subscribers from now on, as if another tool held it. Call it before ``init()``."""
    _cupti().fake_fail_subscribe(error)


def release_cupti() -> None:
    """Let CUPTI accept subscribers again."""
    _cupti().fake_fail_subscribe(0)


def subscribe() -> int:
    """Subscribe to CUPTI like another tool of this process. Returns CUPTI's answer: 0, or 39 while a tool holds
    CUPTI."""
    handle = ctypes.c_void_p()
    return int(_cupti().cuptiSubscribe(ctypes.byref(handle), ctypes.c_void_p(1), None))


def drop(records: int) -> None:
    """Let CUPTI lose ``records`` records. It reports them with the next buffer."""
    _cupti().fake_drop(ctypes.c_size_t(records))


def deliver_at_flush_only(on: bool = True) -> None:
    """Let CUPTI deliver buffers only when it is flushed, the newest first."""
    _cupti().fake_deliver_late_and_reversed(on)


def hold_buffer(on: bool) -> None:
    """Let flushes leave this thread's buffer in CUPTI, as real flushes do while work in the buffer is running."""
    _cupti().fake_hold_buffer(on)


def flush_takes(milliseconds: int) -> None:
    """Set the time that each flush of CUPTI takes."""
    _cupti().fake_set_flush_delay(milliseconds)


def subscribers() -> int:
    """The number of tools that hold CUPTI: 0 or 1."""
    return int(_cupti().fake_subscribers())


def capture(on: bool, stream: int = 7) -> None:
    """Start or end the capture of a stream into a graph. CUDA must be in use."""
    driver, begin, end = 1, 539, 497  # CUPTI's numbers of cuStreamBeginCapture_v2 and cuStreamEndCapture
    _cupti().fake_stream_call(driver, begin if on else end, ctypes.c_void_p(stream), ctypes.c_void_p(1), 0)
