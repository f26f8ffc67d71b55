"""Count what CUPTI records of a CUDA graph, by the order of its instantiation and of the start of tracing.

    python benchmarks/whole_graphs.py --out whole-graphs.json [--cupti FOLDER]...

``native/whole_graphs.cu`` launches a graph of three kernels 100 times in a process for each order. CUPTI traces each
launch as a whole or its nodes. ``--cupti`` names folders with a libcupti.so.13, in addition to the one that the linker
finds. Needs an NVIDIA GPU and nvcc.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine
from programs import build_whole_graphs

#: The steps of the program by the order that they make.
ORDERS = {
    "whole graphs traced, graph made": "whole kernels make launch measure",
    "graph made, whole graphs traced": "make launch whole kernels measure",
    "graph made while traced as a whole, tracing off and on": "whole kernels make launch off whole kernels measure",
    "graph made while traced as a whole, then nodes traced": "whole kernels make launch off kernels measure",
    "graph made, nodes traced": "make launch kernels measure",
}


def observe(program: Path, steps: str, folder: str) -> dict[str, int | str]:
    """Run one order. Returns the records by kind, or the signal that ended the program."""
    environment = os.environ | ({"LD_LIBRARY_PATH": folder} if folder else {})
    done = subprocess.run([program, *steps.split()], capture_output=True, text=True, env=environment, timeout=60)
    if done.returncode < 0:
        return {"ended": signal.Signals(-done.returncode).name}
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED, arch="native")
    parser.add_argument("--cupti", action="append", default=[], metavar="FOLDER", help="a folder with a libcupti.so.13")
    args = parser.parse_args()
    orders = []
    with tempfile.TemporaryDirectory() as folder:
        program = build_whole_graphs(Path(folder), args.arch)
        for library in ("", *args.cupti):
            for order, steps in ORDERS.items():
                row = {"order": order, "cupti": library or "the linker's", **observe(program, steps, library)}
                print(json.dumps(row), flush=True)
                orders.append(row)
    result = {
        "benchmark": "whole_graphs",
        "command": sys.argv,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "launches": 100,
        "nodes": 3,
        "orders": orders,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
