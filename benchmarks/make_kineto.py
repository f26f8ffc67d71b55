"""Make a JSON file with torch.profiler: training steps of a transformer, with all options of the profiler.

    python benchmarks/make_kineto.py kineto.json.gz --megabytes 100

The session has CPU operators with shapes and Python functions, annotations, two streams and memory counters. One step
is profiled first, which gives the number of steps for the wanted size. Needs PyTorch and an NVIDIA GPU.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from workloads import options


class Training:
    """A transformer with a meaningless task. Its data are copied on a separate stream."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, device="cuda")
        self._model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self._optimizer = torch.optim.Adam(self._model.parameters())
        self._host = torch.randn(8, 64, 256).pin_memory()
        self._side = torch.cuda.Stream()

    def step(self) -> None:
        with record_function("data"), torch.cuda.stream(self._side):
            data = self._host.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._side)
        with record_function("forward"):
            loss = self._model(data).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            self._optimizer.step()
            self._optimizer.zero_grad()
        float(loss)


def write(training: Training, steps: int, path: Path) -> int:
    """Profile ``steps`` steps into ``path``. Returns the size of the file in bytes."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True, profile_memory=True, with_stack=True) as profiler:
        for _ in range(steps):
            training.step()
            profiler.step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return path.stat().st_size


def main() -> None:
    parser = options.parser(__doc__)
    parser.add_argument("output", type=Path, help="a .json or .json.gz file")
    parser.add_argument("--megabytes", type=float, default=0, help="least size; by default a single step")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU: run this where PyTorch finds one")
    training = Training()
    for _ in range(3):
        training.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kineto.json")
        one, two = write(training, 1, path), write(training, 3, path)
        each = (two - one) / 2
        size = write(training, max(1, math.ceil((chosen.megabytes * 1e6 - one) / each * 1.02) + 1), path)
        if chosen.output.suffix == ".gz":
            with path.open("rb") as plain, gzip.open(chosen.output, "wb", 6) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
        else:
            shutil.copyfile(path, chosen.output)
    print(json.dumps({"bytes": size, "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
