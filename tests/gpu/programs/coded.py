"""Launch kernels of several modules, some of them with the same name. Prints the driver's reports about each function
as JSON.

``launched`` has one item for each launch, in order: the name, the ``source`` that was compiled, and the function's
registers, static shared memory and local memory from the driver. With ``--changed`` the kernel ``own_scale`` has other
code. With ``--unload`` each module is unloaded before the next one is loaded.
"""

from __future__ import annotations

import argparse
import json

from cuda.bindings import driver, nvrtc

SCALE = """
extern "C" __global__ void own_scale(float* y, float factor) {
  __shared__ float block[32];
  block[threadIdx.x] = y[threadIdx.x] OPERATION factor;
  __syncthreads();
  y[threadIdx.x] = block[31 - threadIdx.x];
}
"""
STACKED = """
extern "C" __global__ void own_stacked(float* y, float factor) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = y[i & 31] * i;
  y[threadIdx.x] = values[(int)factor & 63] + values[((int)factor * 7) & 63];
}
"""
# A kernel with many registers.
WIDE = """
extern "C" __global__ void own_twice(float* y, float factor) {
  float v[48];
#pragma unroll
  for (int i = 0; i < 48; ++i) v[i] = y[(threadIdx.x + i) & 31];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 48; ++i) y[(threadIdx.x * 7 + i) & 31] = v[47 - i] * factor;
}
"""
NARROW = """
extern "C" __global__ void own_twice(float* y, float factor) { y[threadIdx.x] += factor; }
"""


def check(result):
    error, *values = result
    assert int(error) == 0, error
    return values[0] if len(values) == 1 else values


def compiled(source: str) -> bytes:
    device = check(driver.cuDeviceGet(0))
    attributes = driver.CUdevice_attribute
    major, minor = (
        check(driver.cuDeviceGetAttribute(attribute, device))
        for attribute in (
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"own.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 1, [f"-arch=sm_{major}{minor}".encode()]))
    code = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, code))
    return code


class Program:
    def __init__(self, unload: bool) -> None:
        self.unload = unload
        self.launched: list[dict[str, object]] = []
        self.functions: list[tuple[object, str, str]] = []
        self.memory = check(driver.cuMemAlloc(4096))

    def module(self, source: str, name: str, text: str) -> None:
        module = check(driver.cuModuleLoadData(compiled(text)))
        function = check(driver.cuModuleGetFunction(module, name.encode()))
        self.use(function, function, name, source)
        if self.unload:
            check(driver.cuModuleUnload(module))
        else:
            self.functions.append((function, name, source))

    def library(self, source: str, name: str, text: str) -> None:
        library = check(driver.cuLibraryLoadData(compiled(text), [], [], 0, [], [], 0))
        kernel = check(driver.cuLibraryGetKernel(library, name.encode()))
        launched = driver.CUfunction(int(kernel))
        self.use(launched, check(driver.cuKernelGetFunction(kernel)), name, source)
        if self.unload:
            check(driver.cuLibraryUnload(library))
        else:
            self.functions.append((launched, name, source))

    def use(self, function, attributes_of, name: str, source: str) -> None:
        kinds = driver.CUfunction_attribute
        registers, shared, local = (
            check(driver.cuFuncGetAttribute(kind, attributes_of))
            for kind in (
                kinds.CU_FUNC_ATTRIBUTE_NUM_REGS,
                kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            )
        )
        told = {"name": name, "source": source, "registers": registers, "shared": shared, "local": local}
        for _ in range(3):
            self.launch(function)
            self.launched.append(told)
        check(driver.cuCtxSynchronize())

    def launch(self, function) -> None:
        import ctypes

        values = ((int(self.memory), 3.0), (ctypes.c_void_p, ctypes.c_float))
        check(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, values, 0))

    def again(self) -> None:
        """Launch the functions of all modules once more, in the order of their modules."""
        by_source = {told["source"]: told for told in self.launched}
        for function, _, source in self.functions:
            self.launch(function)
            self.launched.append(by_source[source])
        check(driver.cuCtxSynchronize())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--unload", action="store_true")
    options = parser.parse_args()
    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
    check(driver.cuCtxSetCurrent(context))
    program = Program(options.unload)
    scale = SCALE.replace("OPERATION", "+" if options.changed else "*")
    program.module("scale", "own_scale", scale)
    program.module("stacked", "own_stacked", STACKED)
    program.module("wide", "own_twice", WIDE)
    program.library("narrow", "own_twice", NARROW)
    program.module("wide again", "own_twice", WIDE)
    program.again()
    print(json.dumps({"launched": program.launched}))


main()
