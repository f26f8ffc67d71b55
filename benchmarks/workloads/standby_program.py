"""Time loops on request. Reads the names of loops from stdin, one on each line, and answers with the nanoseconds per
operation.

    python standby_program.py LIBRARY SCALE

The operation of ``launches`` is a launch of an empty kernel by the library (native/launch_loop.cu). The operation of
``torch_loop`` is one small kernel of PyTorch. The program is the same for every tool that is loaded into it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch_workloads

_LAUNCHES = 200_000


def main() -> None:
    library, scale = Path(sys.argv[1]), float(sys.argv[2])
    for line in sys.stdin:
        if line == "launches\n":
            launches = int(_LAUNCHES * scale)
            timing = torch_workloads.launch_loop(library, 1, launches, launches // 5)
        else:
            timing = torch_workloads.torch_loop(scale)
        print(json.dumps(timing.ns_per_op), flush=True)


if __name__ == "__main__":
    main()
