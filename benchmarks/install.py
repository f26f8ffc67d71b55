"""Measure the time from ``pip install`` of a wheel to the first converted trace, in a fresh environment.

    python benchmarks/install.py dist/cutrace-*.whl [--out install.json]

The environment has no compiler: ``PATH`` has only the programs of the environment, and pip may install only wheels.
Dependencies come from the index that pip is configured to use. Prints JSON: ``environment_s`` is the time to create the
environment, ``install_s`` and ``convert_s`` are the times of the two commands, and ``size_mib`` is the size of the
wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workloads import machine, options

CAPTURE = Path(__file__).resolve().parent.parent / "tests" / "data" / "torch_step.bin"


def measure(wheel: Path, folder: Path) -> dict[str, float]:
    """Install the wheel under ``folder`` and convert a capture. Raises ``CalledProcessError`` if a step fails."""
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH")}
    environment["PATH"] = str(programs)
    commands = {
        "environment_s": [sys.executable, "-m", "venv", folder / "venv"],
        "install_s": [programs / "pip", "install", "--quiet", "--only-binary", ":all:", wheel.resolve()],
        "convert_s": [programs / "cutrace", "convert", CAPTURE, "-o", folder / "run.pftrace"],
    }
    times = {}
    for name, command in commands.items():
        begin = time.monotonic()
        subprocess.run([*map(str, command)], env=environment, cwd=folder, check=True, timeout=300)
        times[name] = round(time.monotonic() - begin, 2)
    return times


def main() -> None:
    parser = options.parser(__doc__, out=None)
    parser.add_argument("wheel", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure(args.wheel, Path(folder))
    size = round(args.wheel.stat().st_size / 2**20, 2)
    result = json.dumps({"wheel": args.wheel.name, "size_mib": size, **times, "machine": machine.facts()}, indent=2)
    print(result)
    if args.out:
        args.out.write_text(result + "\n")


if __name__ == "__main__":
    main()
