"""cuda.core: a kernel compiled at run time, stream-ordered memory, and work that another thread launches."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

import pytest

core = pytest.importorskip("cuda.core")
pytestmark = pytest.mark.cutrace(warmup=1)

SOURCE = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, unsigned n) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += a * x[i];
}
"""
ELEMENTS = 1 << 16


@dataclass
class Machine:
    device: Any
    stream: Any
    kernel: Any

    def saxpy(self, x: Any, y: Any) -> None:
        core.launch(
            self.stream,
            core.LaunchConfig(grid=64, block=256),
            self.kernel,
            ctypes.c_float(2),
            int(x.handle),
            int(y.handle),
            ctypes.c_uint32(ELEMENTS),
        )


@pytest.fixture(scope="module")
def machine() -> Machine:
    device = core.Device()
    device.set_current()
    options = core.ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    module = core.Program(SOURCE, code_type="c++", options=options).compile("cubin")
    return Machine(device, device.create_stream(), module.get_kernel("saxpy"))


def test_saxpy(machine: Machine) -> None:
    x, y = (machine.device.allocate(4 * ELEMENTS, stream=machine.stream) for _ in range(2))
    x.fill(0, stream=machine.stream)
    y.fill(0, stream=machine.stream)
    machine.saxpy(x, y)
    machine.stream.sync()
    for buffer in (x, y):
        buffer.close(machine.stream)


def test_another_thread_launches(machine: Machine) -> None:
    x = machine.device.allocate(4 * ELEMENTS, stream=machine.stream)
    x.fill(0, stream=machine.stream)

    def work() -> None:
        machine.device.set_current()
        for _ in range(5):
            machine.saxpy(x, x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    machine.stream.sync()
    x.close(machine.stream)
