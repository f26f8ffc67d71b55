"""Runs of ``cutrace profile`` on the fake GPU, and captures with hardware metrics of kernels in the form that it
writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cutrace
from captures import ORIGIN, Capture
from support import cutrace as run
from support.fakedriver import FakeDriver

OP = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FP32 = {OP.format(name): 0.0 for name in ("fadd", "fmul", "ffma")}
BYTES = "dram__bytes.sum"
BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
PEAK = ".peak_sustained_elapsed.per_second"

#: A launch: the kernel name, its time (ns), its metrics, and its configuration, by default one small block.
Launch = tuple[str, int, Mapping[str, float]] | tuple[str, int, Mapping[str, float], Mapping[str, Any]]


class Runs:
    """Runs ``cutrace profile`` with the options ``always`` on ``program``, or on another program."""

    def __init__(self, driver: FakeDriver, folder: Path, *always: str, program: str = "", **variables: str) -> None:
        self.folder, self._always, self._program = folder, always, program
        self.environment = driver.environment() | variables

    def __call__(self, *options: str, program: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program or self._program]
        return run(
            "profile", *self._always, *options, "--", *command, cwd=self.folder, env=self.environment | variables
        )

    def rows(self, table: str = "kernel_metrics") -> list[dict[str, Any]]:
        with cutrace.load(self.folder / "run.bin") as trace:
            return trace.arrow(table).to_pylist()


def profiled_capture(path: Path, *launches: Launch, **gpu: int | str) -> Path:
    """Write kernels 1 ms apart, then a part with their metrics. The part is a separate process with the same pid."""
    with Capture(path, started=5) as c:
        c.device(**gpu)
        c.context()
        for at, (name, time, _, *shape) in enumerate(launches):
            launch = c.launch(name, **dict(*shape))
            c.api("cudaLaunchKernel", at * 10**6, at * 10**6 + 10, correlation=at + 1)
            c.kernel(launch, at * 10**6 + 100, at * 10**6 + 100 + time, correlation=at + 1)
    part = path.with_suffix(".metrics")
    with Capture(part, started=5, instance=1) as c:
        c.device(**gpu)
        for at, (_, time, metrics, *_) in enumerate(launches):
            start = ORIGIN + at * 10**6 + 100
            for metric, value in metrics.items():
                unit = "bytes" if "bytes" in metric else ""
                c.add("kernel_metrics", start=start, end=start + time, correlation=at + 1, name=metric, value=value,
                      unit=unit)  # fmt: skip
    path.write_bytes(path.read_bytes() + part.read_bytes())
    part.unlink()
    return path
