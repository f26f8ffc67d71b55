"""Load, launch and unload modules one after another in every way, with graphs and FFT plans in between.

Prints, as JSON under ``launched``, the names of its own kernels (``own_…``) in the order of their launches. With
``--keep`` nothing is unloaded.
"""

import argparse
import json

import cupy
from cuda.bindings import driver, nvrtc


def check(result):
    error, *values = result
    assert int(error) == 0, error
    return values[0] if len(values) == 1 else values


def cubin(name: str) -> bytes:
    source = f'extern "C" __global__ void {name}() {{}}'
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"own.cu", 0, [], []))
    major, minor = cupy.cuda.Device().compute_capability
    check(nvrtc.nvrtcCompileProgram(program, 1, [f"-arch=sm_{major}{minor}".encode()]))
    code = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, code))
    return code


class Modules:
    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.kept: list[object] = []
        self.launched: list[str] = []

    def launch(self, function, name: str, stream: int = 0) -> None:
        check(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
        if stream == 0:
            self.launched.append(name)

    def by_module(self, name: str) -> None:
        module = check(driver.cuModuleLoadData(cubin(name)))
        function = check(driver.cuModuleGetFunction(module, name.encode()))
        for _ in range(3):
            self.launch(function, name)
        check(driver.cuCtxSynchronize())
        if not self.keep:
            check(driver.cuModuleUnload(module))

    def by_library(self, name: str) -> None:
        library = check(driver.cuLibraryLoadData(cubin(name), [], [], 0, [], [], 0))
        kernel = check(driver.cuLibraryGetKernel(library, name.encode()))
        for _ in range(3):
            self.launch(driver.CUfunction(int(kernel)), name)
        check(driver.cuCtxSynchronize())
        if not self.keep:
            check(driver.cuLibraryUnload(library))

    def by_cupy(self, name: str) -> None:
        module = cupy.RawModule(code=f'extern "C" __global__ void {name}() {{}}')
        kernel = module.get_function(name)
        for _ in range(3):
            kernel((1,), (32,), ())
            self.launched.append(name)
        cupy.cuda.Device().synchronize()
        if self.keep:
            self.kept.append(module)
        else:
            cupy.clear_memo()

    def by_graph(self, name: str) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        module = check(driver.cuModuleLoadData(cubin(name)))
        function = check(driver.cuModuleGetFunction(module, name.encode()))
        stream.begin_capture()
        self.launch(function, name, stream.ptr)
        graph = stream.end_capture()
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        self.launched.append(name)
        if self.keep:
            self.kept.append((graph, stream))
            return
        del graph
        check(driver.cuModuleUnload(module))

    def by_fft(self, length: int) -> None:
        plan = cupy.fft.fft(cupy.zeros(length, cupy.complex64))
        cupy.cuda.Device().synchronize()
        if self.keep:
            self.kept.append(plan)
        else:
            cupy.fft.config.get_plan_cache().clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--modules", type=int, default=200)
    args = parser.parse_args()
    cupy.zeros(1)
    cupy.fft.config.get_plan_cache().set_size(1000)
    modules = Modules(args.keep)
    ways = [modules.by_module, modules.by_library, modules.by_cupy, modules.by_graph]
    for i in range(args.modules):
        ways[i % len(ways)](f"own_{i:03d}")
        if i % 5 == 0:
            modules.by_fft(64 + 97 * i)
    print(json.dumps({"launched": modules.launched}))


main()
