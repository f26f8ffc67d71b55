"""Write 16.8 MB in NVTX ranges that go on for up to a second after the kernel, to see what the L2 cache writes back.

    cutrace profile --ranges 'tail*' --format csv -o tail.bin \\
        --metrics dram__bytes_write.sum,dram__bytes_read.sum,lts__t_bytes.sum,gpu__time_duration.sum \\
        -- python benchmarks/workloads/write_back.py

The name of a range has the milliseconds after the kernel. Needs CuPy and nvtx.
"""

from __future__ import annotations

import time

import cupy
import nvtx

VALUES = 4 << 20  # of 4 bytes: less than the L2 cache holds
OTHER = 200 << 20  # bytes: more than the L2 cache holds
TAILS = (0, 0, 0.1, 1, 10, 100, 1000)  # milliseconds; the first one has costs of a first launch


def main() -> None:
    values = cupy.zeros(VALUES, cupy.float32)
    other = cupy.zeros(OTHER, cupy.uint8)
    write = cupy.ElementwiseKernel("", "float32 value", "value = i", "write")
    device = cupy.cuda.Device()
    write(values)
    for tail in TAILS:
        other.sum()
        device.synchronize()
        with nvtx.annotate(f"tail {tail}"):
            write(values)
            device.synchronize()
            time.sleep(tail / 1000)


main()
