"""The workload of ``cutrace demo``: a few steps of copy, compute and reduce on two streams, with NVTX ranges.

Also runs alone: ``cutrace record -- python -m cutrace.cli.demo_workload``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import nvtx
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

_ELEMENTS = 1 << 22
_STEPS = 5
_THREADS = 256

_SOURCE = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, unsigned n) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += a * x[i];
}

extern "C" __global__ void block_sums(const float* x, float* sums, unsigned n) {
  __shared__ float part[256];
  float sum = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  part[threadIdx.x] = sum;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
"""


def main() -> None:
    device = Device()
    device.set_current()
    compute = device.create_stream()
    copies = device.create_stream()
    with nvtx.annotate("compile", color="orange"):
        options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
        module = Program(_SOURCE, code_type="c++", options=options).compile(
            "cubin", name_expressions=()
        )
        saxpy = module.get_kernel("saxpy")
        block_sums = module.get_kernel("block_sums")
    blocks = 4 * device.properties.multiprocessor_count
    size = _ELEMENTS * 4
    with nvtx.annotate("allocate", color="gray"):
        x, y, spare = (device.allocate(size, stream=compute) for _ in range(3))
        sums = device.allocate(blocks * 4, stream=compute)
        x.fill(0, stream=compute)
        y.fill(0, stream=compute)
        compute.sync()
    config = LaunchConfig(grid=blocks, block=_THREADS)
    for step in range(_STEPS):
        with nvtx.annotate(f"step {step}", color="green"):
            with nvtx.annotate("compute", color="blue"):
                launch(
                    compute,
                    config,
                    saxpy,
                    ctypes.c_float(0.5),
                    _pointer(x),
                    _pointer(y),
                    ctypes.c_uint32(_ELEMENTS),
                )
                launch(
                    compute,
                    config,
                    block_sums,
                    _pointer(y),
                    _pointer(sums),
                    ctypes.c_uint32(_ELEMENTS),
                )
            with nvtx.annotate("copy", color="purple"):
                spare.copy_from(x, stream=copies)
            nvtx.mark(f"step {step} submitted")
            compute.sync()
            copies.sync()


def _pointer(buffer: Any) -> int:
    return int(buffer.handle)


if __name__ == "__main__":
    main()
