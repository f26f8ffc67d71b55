"""Measure the cost of one NVTX push and pop to the program, under cutrace and without a tool.

Builds ``native/nvtx_cost.cpp``, runs it with and without the collector, and prints one JSON line: the nanoseconds of a
push and pop, and the number of pairs in the capture. Needs g++ and the NVTX headers (nvidia-nvtx), no GPU.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cutrace
from workloads import options

HERE = Path(__file__).parent


def build(folder: Path) -> Path:
    """Compile the program."""
    done = subprocess.run([sys.executable, HERE.parent / "cmake" / "find_headers.py"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    includes = [f"-I{include}" for include in done.stdout.strip().split(";")]
    program = folder / "nvtx_cost"
    source = HERE / "native" / "nvtx_cost.cpp"
    subprocess.run(["g++", "-O2", "-std=c++20", *includes, "-o", program, source, "-ldl", "-lpthread"], check=True)
    return program


def run(command: list[str], folder: Path, collector: Path | None) -> dict[str, Any]:
    """Run the program, under the collector if one is given."""
    environment = {key: value for key, value in os.environ.items() if key != "NVTX_INJECTION64_PATH"}
    if collector is not None:
        environment |= {"NVTX_INJECTION64_PATH": str(collector), "CUTRACE_OPTIONS": f"directory={folder}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = options.parser(__doc__)
    parser.add_argument("--bursts", type=int, default=200, help="bursts of each kind a thread makes")
    parser.add_argument("--pairs", type=int, default=2000, help="push+pop pairs in a burst")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--collector", type=Path, default=Path(cutrace.__file__).parent / "libcutrace_collector.so")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [str(build(folder)), str(args.bursts), str(args.pairs), str(args.threads)]
        without = run(command, folder, None)
        within = run(command, folder, args.collector)
        with cutrace.load(next(folder.glob("*.bin"))) as trace:
            recorded = trace.count("nvtx_ranges")
    pairs = 3 * args.bursts * args.pairs * args.threads
    print(json.dumps({"cutrace": within, "no_tool": without, "pairs": pairs, "recorded": recorded, "cpu": cpu()}))


def cpu() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
