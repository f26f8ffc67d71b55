"""Compile and launch kernels with cuda.core. It uses the driver API, no runtime API and no framework."""

from __future__ import annotations

import ctypes
import json

try:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
except ImportError:  # before cuda.core 0.5
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, unsigned long long n) {
  unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
extern "C" __global__ void fill(float* data, float value, unsigned long long n) {
  unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  if (i < n) data[i] = value;
}
"""
ELEMENTS = 1 << 18
REPEATS = 50


def main() -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    module = Program(SOURCE, code_type="c++", options=options).compile("cubin")
    saxpy, fill = module.get_kernel("saxpy"), module.get_kernel("fill")

    x = device.allocate(4 * ELEMENTS, stream=stream)
    y = device.allocate(4 * ELEMENTS, stream=stream)
    x_at, y_at = int(x.handle), int(y.handle)
    config = LaunchConfig(grid=ELEMENTS // 256, block=256)
    count = ctypes.c_uint64(ELEMENTS)
    launch(stream, config, fill, x_at, ctypes.c_float(1.0), count)
    launch(stream, config, fill, y_at, ctypes.c_float(0.0), count)
    for _ in range(REPEATS):
        launch(stream, config, saxpy, ctypes.c_float(0.5), x_at, y_at, count)
    stream.sync()
    x.close(stream)
    y.close(stream)
    stream.sync()
    stream.close()
    print(json.dumps({"kernels": {"saxpy": REPEATS, "fill": 2}}))


if __name__ == "__main__":
    main()
